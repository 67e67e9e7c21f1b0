"""Finds suspected reward hacking: the reward rises, and a function of little weight or named like an outcome falls.

The policy may have learned what the reward pays for in place of what is wanted.
"""

import numpy as np

from logs_ui.recorder.diagnosis.card import Card, Diagnostic, Run, since
from logs_ui.recorder.diagnosis.checks.reward_functions import is_outcome
from logs_ui.recorder.diagnosis.links import rewards
from logs_ui.recorder.diagnosis.measures import extent
from logs_ui.recorder.diagnosis.rollout_rows import SAME, Rows
from logs_ui.recorder.diagnosis.windows import rise, windows
from logs_ui.recorder.diagnosis.wording import figure, percent
from logs_ui.recorder.settings import SHARE

_SMALL = 0.1  # of the sum of all reward functions' ranges
_FALL = 0.1  # of the range of its values
_ERRORS = 3.0  # standard errors of groups that a function with weight must fall by: others may be worth its fall


def weightless(rows: Rows) -> dict[str, float]:
    """Return the reward functions that can make at most a tenth of the difference in reward, with their share (0 to 1).

    A function of small weight is left out if it is ever negative: it is then a penalty, which may grow with success.
    """
    ranges = {name: extent(part) for name, part in rows.parts.items()}
    total = sum(ranges.values())
    if total <= SAME:
        return {}
    share = {name: value / total for name, value in ranges.items()}
    return {
        name: share[name]
        for name, given in rows.values.items()
        if share[name] <= SAME or (share[name] <= _SMALL and float(np.nanmin(given, initial=0.0)) >= 0)
    }


def _look(run: Run) -> Card | None:
    found = windows(run)
    if found is None:
        return None
    before, after = found
    gain = rise(before.reward, after.reward)
    if gain.value <= 0 or not gain.is_sure:
        return None
    light = weightless(run.all)
    gains = {name: rise(part, after.parts[name]) for name, part in before.parts.items()}
    payer = max(gains, key=lambda name: gains[name].value, default="")
    falls = {name: rise(before.values[name], after.values[name]) for name in light}
    # Functions named like an outcome may give way to another one. Rollouts of one prompt are not independent.
    for name in () if is_outcome(payer) else before.values:
        if is_outcome(name) and name not in light:
            of_groups = (rows.group_means(rows.values[name]) for rows in (before, after))
            falls[name] = rise(*of_groups, errors=_ERRORS)
    # The fall as a share of the range of the function's values, for those that fell too far.
    limit, shares = run.threshold("hacking", _FALL), dict[str, float]()
    for name, fall in falls.items():
        if fall.is_sure and -fall.value > limit * extent(run.all.values[name]):
            shares[name] = -fall.value / extent(run.all.values[name])
    if not shares:
        return None
    name = max(shares, key=lambda name: shares[name])
    fall = falls[name]
    trend = run.all.by_step(run.all.values[name])
    if name in light:
        how = "which has little weight"
        weight = figure(run.all.weights.get(name, 1.0))
        said = f"Its weight is {weight}: it can make {percent(light[name])} of the difference in reward."
    else:
        how = f"and {payer} rises instead"
        first, last = figure(gains[payer].before), figure(gains[payer].after)
        said = f"{payer} added {first} to the reward at first, and {last} at last."
    return Card(
        id="hacking",
        title=f"Suspected reward hacking: the reward rises while {name} falls, {how}",
        cost=max(run.fall.lost, 0.0) * min(shares[name], 1.0) + gain.value,
        evidence=(
            (
                f"Steps {after.steps[0]}\u2013{after.steps[-1]} vs {before.steps[0]}\u2013{before.steps[-1]}: {name} "
                f"{figure(fall.before)} \u2192 {figure(fall.after)}, reward {figure(gain.before)} \u2192 "
                f"{figure(gain.after)}."
            ),
            said,
        ),
        suggestion=f"Read the rollouts of highest reward in which {name} is low: if they cheat, raise {name}'s "
        "weight, or fix the function that rewards them.",
        where=f"{rewards(name)}<={fall.after:.6g}",
        trend=trend,
        since_step=since(trend, lambda value: value < (fall.before + fall.after) / 2),
        # If both functions count, the cards on length and on weights say better why one gives way to the other.
        aspects=("weightless",) if name in light else (),
    )


DIAGNOSTIC = Diagnostic(
    "hacking",
    "Suspected hacking",
    "The mean reward rises from the first steps to the last, while a reward function falls by more than "
    f"{_FALL:.0%} of its range that has no weight, or that is never negative and can make at most {_SMALL:.0%} of the "
    "difference in reward; both by more than two standard errors. Or a function with weight that is named like an "
    f"outcome (correct, solved, ...) falls by more than {_ERRORS:g} standard errors of groups, while the function that "
    "rises most is not.",
    "ours",
    lambda run: None if len(run.all.values) > 1 else "two reward functions, one of which may have the weight 0",
    _look,
    limits=SHARE,
    position=190,
    explained_by=("length", "reward_parts:decides"),
)
