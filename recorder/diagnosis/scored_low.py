"""Explains the loss of rollouts that ended normally and scored low, which is the largest bar of most real runs.

No check finds a fault in them. The card says which reward function has the headroom, since when, and what differs most:
over time, within groups and between tasks. [ours]
"""

from collections.abc import Iterator, Sequence

import numpy as np

from logs_ui.recorder.diagnosis.card import Card, Run, Trend
from logs_ui.recorder.diagnosis.change_point import change
from logs_ui.recorder.diagnosis.largest_differences import differences
from logs_ui.recorder.diagnosis.rollout_rows import SAME, Bools
from logs_ui.recorder.diagnosis.waterfall import LITTLE, has_cause, judged
from logs_ui.recorder.diagnosis.wording import figure, percent
from logs_ui.recorder.vocabulary import LossCause, StopReason

SCORED_LOW = "scored_low"
"""The id of its card, which is of no diagnostic."""

_ENDED = "Rollouts end normally and score low"
_UNKNOWN = 0.5  # of these rollouts [ours]
_SHARE = 0.1  # of the loss: less needs no explanation
_NAMED, _LITTLE = 3, 0.02  # reward functions; of the largest shortfall: less is not named
_BEST = 99  # percentile of the rewards


def scored_low(run: Run, cards: Sequence[Card]) -> tuple[Card | None, float]:
    """Return the card on this loss, and how much of it the rollouts of no other card hold, in reward per rollout.

    None for the card if it is less than a tenth of the loss, if the run does well, or if there is no scale.
    """
    fall, rows = run.fall, run.rows
    cost = run.cost_of(LossCause.WRONG_ANSWER)
    if run.scale.is_flat or fall.lost <= LITTLE * abs(fall.best) or cost < _SHARE * fall.lost:
        return None, 0.0
    low = judged(rows) & has_cause(rows, LossCause.WRONG_ANSWER) & (run.lost > SAME)
    every, told = np.ones(len(rows), bool), {name for it in cards for name in it.explains}
    causes = [it for it in cards if it.cost is not None and it.id not in told]
    explained = np.logical_or.reduce([~every, *(every if it.own is None else it.own for it in causes)])
    left = cost * float(run.lost[low & ~explained].sum()) / max(float(run.lost[low].sum()), SAME)
    functions = _shortfalls(run, low)
    most = f", mostly in {functions[0][0]}" if len(functions) > 1 and functions[0][1] >= cost / 2 else ""
    parts = ", ".join(f"{name} {figure(less)}" for name, less in functions)
    said = [f"Compared with the best 1% of rollouts, averaged over all and weighted: {parts} less."] * (
        len(functions) > 1
    )
    name = functions[0][0] if functions else "the reward"
    values = run.all.values.get(name, run.all.reward)
    trend = run.all.by_step(np.where(has_cause(run.all, LossCause.WRONG_ANSWER), values, np.nan))
    said += [*_change(trend, name), *differences(run, low)]
    if left < cost - SAME:
        said.append(f"The findings above concern rollouts with {percent(1 - left / cost)} of this loss.")
    is_unknown = (rows.stop_reason[low] == StopReason.NOT_RECORDED).mean() > _UNKNOWN
    ended = "Rollouts score low, and how most of them ended is not recorded" if is_unknown else _ENDED
    card = Card(
        id=SCORED_LOW,
        title=f"{ended}{most}: {percent(cost / (fall.lost + fall.above))} of the loss",
        cost=cost,
        evidence=tuple(said),
        suggestion="Compare the best with the worst rollout of a group: its page shows where they diverge.",
        where=f"cause:{LossCause.WRONG_ANSWER} {run.scale.below}",
        is_part=True,
        trend=trend,
        own=low,
    )
    return card, left


def _shortfalls(run: Run, low: Bools) -> list[tuple[str, float]]:
    """Return (reward function, how much less these rollouts get of it than the best hundredth of the run, per rollout
    looked at), largest first. Over all functions they add up to this loss, if the best reward is not set.
    """
    reward = np.nan_to_num(run.all.reward, nan=-np.inf)
    is_best = reward >= np.percentile(reward, _BEST)
    found = []
    for name, part in run.rows.parts.items():
        more = float(np.nan_to_num(run.all.parts[name][is_best]).mean()) - float(np.nan_to_num(part[low]).mean())
        found.append((name, more * float(low.mean())))
    least = _LITTLE * max((less for _, less in found), default=0.0)
    return sorted(((name, less) for name, less in found if less > least), key=lambda it: -it[1])[:_NAMED]


def _change(trend: Trend, name: str) -> Iterator[str]:
    """Say since when these rollouts get less, if they do."""
    found = change(trend)
    if found is not None and found.after < found.before:
        first, last, step = (trend[place][0] for place in (found.first, found.last, found.place))
        between = f" (between steps {first} and {last})" if first < last else ""
        fell = f"{name} fell from {figure(found.before)} to {figure(found.after)}"
        yield f"Of rollouts that ended normally, {fell} at step {step}{between}."
