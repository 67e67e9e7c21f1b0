"""A reward that rises while a reward function that hardly counts falls: the policy may have found what the reward pays
for in place of what is wanted.
"""

import numpy as np

from logs_ui.recorder.diagnosis.card import Card, Diagnostic, Run, since
from logs_ui.recorder.diagnosis.dead_groups import SAME
from logs_ui.recorder.diagnosis.links import rewards
from logs_ui.recorder.diagnosis.rows import Floats, Rows
from logs_ui.recorder.diagnosis.say import figure, percent
from logs_ui.recorder.diagnosis.windows import rise, windows

_SMALL = 0.1  # of what all reward functions together can make a difference of
_FALL = 0.1  # of the range of what it gave


def weightless(rows: Rows) -> dict[str, float]:
    """Of each reward function that makes at most a tenth of the difference that all of them can make: how much of it, 0
    to 1. A small one counts only where it is never negative: what is, is a penalty, which may well grow with success.
    """
    ranges = {name: _range(part) for name, part in rows.parts.items()}
    total = sum(ranges.values())
    if total <= SAME:
        return {}
    share = {name: value / total for name, value in ranges.items()}
    return {
        name: share[name]
        for name, given in rows.values.items()
        if share[name] <= SAME or (share[name] <= _SMALL and float(np.nanmin(given, initial=0.0)) >= 0)
    }


def _range(values: Floats) -> float:
    known = values[np.isfinite(values)]
    return float(np.ptp(known)) if len(known) else 0.0


def _look(run: Run) -> Card | None:
    found = windows(run)
    if found is None:
        return None
    before, after = found
    gain = rise(before.reward, after.reward)
    if gain.value <= 0 or not gain.is_sure:
        return None
    falls = {name: rise(before.values[name], after.values[name]) for name in weightless(run.all)}
    limit = run.threshold("hacking", _FALL)
    fallen = [
        name for name, fall in falls.items() if fall.is_sure and -fall.value > limit * _range(run.all.values[name])
    ]
    if not fallen:
        return None
    name = min(fallen, key=lambda name: falls[name].value / _range(run.all.values[name]))
    values, fall = run.all.values[name], falls[name]
    trend = run.all.by_step(values)
    return Card(
        id="hacking",
        title=f"The reward rises while {name} falls, which hardly counts: suspected reward hacking",
        cost=max(run.fall.lost, 0.0) * min(-fall.value / _range(values), 1.0) + gain.value,
        evidence=(
            (
                f"{name} went from {figure(fall.before)} to {figure(fall.after)}, the reward from "
                f"{figure(gain.before)} to "
                f"{figure(gain.after)}: steps {before.steps[0]}\u2013{before.steps[-1]} against "
                f"{after.steps[0]}\u2013{after.steps[-1]}."
            ),
            (
                f"Its weight is {figure(run.all.weights.get(name, 1.0))}: it makes "
                f"{percent(weightless(run.all)[name])} of what reward functions can make a difference of."
            ),
        ),
        suggestion=f"Read the best-paid rollouts in which {name} is low: if they cheat, weigh {name} more, or mend "
        "what pays them.",
        where=f"{rewards(name)}<={fall.after:.6g}",
        trend=trend,
        since_step=since(trend, lambda value: value < (fall.before + fall.after) / 2),
        explains=("length", "reward_parts", "forgotten", "never_solved", "task_mix", "wrong_answer"),
    )


DIAGNOSTIC = Diagnostic(
    "hacking",
    "Suspected hacking",
    "The mean reward rises from the first steps to the last, while a reward function falls by more than "
    f"{_FALL:.0%} of the range of its values that has no weight, or that is never negative and can make at most "
    f"{_SMALL:.0%} of the difference; both by more than two standard errors.",
    "ours",
    lambda run: None if len(run.all.values) > 1 else "two reward functions, one of which may have the weight 0",
    _look,
)
