"""Splits the lost reward by cause: each rollout has one cause, and the parts add up to the whole loss.

The loss of a rollout is the best reward minus its own. A rollout without a reward counts as 0. Its cause is what
ended it: the first of `CAUSES` that applies. [ours]
"""

from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import numpy as np

from logs_ui.recorder.diagnosis.rollout_rows import SAME, Bools, Floats, Ints, Rows
from logs_ui.recorder.diagnosis.scale import Scale
from logs_ui.recorder.vocabulary import BROKEN, LOOP, REPEATS, LossCause, Status, StopReason

LITTLE = 0.1  # of the best reward: a run that loses no more does well [ours]
_FACTS = ("parse_tail", "action_tail", "repeats", "env_steps")  # that a cause depends on


@dataclass(frozen=True)
class Cause:
    """The reason that a rollout's lost reward is counted under."""

    id: LossCause
    name: str
    meaning: str


CAUSES = (
    Cause(
        LossCause.INFRASTRUCTURE,
        "environment or infrastructure",
        "The environment raised, timed out or had no session left, or the rollout function raised.",
    ),
    Cause(LossCause.INVALID_REWARD, "no valid reward", "No reward function gave it a number, or one gave an infinity."),
    Cause(LossCause.TRUNCATION, "truncated", "Its last generation, or a tool's answer, hit the token limit."),
    Cause(LossCause.PARSE_FAILURE, "no action parsed", "No action was found in its last answer, which was whole."),
    Cause(
        LossCause.LOOP,
        "loop or turn limit",
        "The turns ran out before the environment was done; or it is not recorded why it ended, and it repeated its "
        "actions to the end.",
    ),
    Cause(LossCause.NEVER_SUBMITTED, "never acted", "It ended without a single action in its environment."),
    Cause(
        LossCause.WRONG_ANSWER,
        "ended below best",
        "It ended normally, or its end was not recorded, and it got less than the best reward.",
    ),
)
_LOOPS = next(place for place, cause in enumerate(CAUSES) if cause.id == LossCause.LOOP)


@dataclass(frozen=True)
class Share:
    """Holds one cause's part of the loss.

    Attributes:
        cost: reward lost per rollout; the costs of all shares, less `Waterfall.above`, add up to `Waterfall.lost`. If
            there is no scale, the share of the rollouts.
        rollouts: number of rollouts that lost reward to this cause.
        where: the filter that selects them among the rollouts that were looked at.
    """

    cause: Cause
    cost: float
    rollouts: int
    where: str


@dataclass(frozen=True)
class Waterfall:
    """Describes the way from the best reward down to the mean.

    Attributes:
        best: see `Scale`.
        mean: the mean reward; rollouts without one count as 0; NaN if none was scored, and none failed.
        lost: `best - mean`.
        above: the mean reward that rollouts have above the best; it reduces `lost`.
        shares: largest cost first; causes without a loss are left out.
        is_flat: True if there is no scale: see `Scale.is_flat`.
        higher: the filter for rollouts above the best; empty for several environments.
    """

    best: float
    mean: float
    lost: float
    above: float
    shares: tuple[Share, ...]
    is_flat: bool = False
    higher: str = ""


def cause_of(row: Any) -> Cause | None:
    """Return the cause that a loss of one stored rollout (`EvaluationRow`) is counted under; None if it has no end yet.

    It makes arrays of one value, for the columns that a cause depends on only: a table of rollouts calls this per row.
    """
    end: Any = SimpleNamespace(
        status=np.array([row.status], object),
        stop_reason=np.array([row.stop_reason], object),
        reward=np.array([row.reward], float),
        scored=np.array([row.scored is not None]),
        facts={name: np.array([getattr(row, name)], float) for name in _FACTS},
    )
    if row.status == Status.RUNNING or not judged(end)[0]:
        return None
    cause = causes(end)
    return name_causes(end, cause)[int(cause[0])]


def name_causes(rows: Rows, cause: Ints) -> tuple[Cause, ...]:
    """Return CAUSES, with a name that says loop or turn limit where the rollouts ended by one of them alone. `cause`
    are `causes` of the rows.
    """
    is_limit = rows.stop_reason[cause == _LOOPS] == StopReason.TURN_LIMIT
    if not len(is_limit) or 0 < is_limit.sum() < len(is_limit):
        return CAUSES
    name = "turn limit" if is_limit.all() else "loop"
    return tuple(replace(cause, name=name) if cause.id == LossCause.LOOP else cause for cause in CAUSES)


def causes(rows: Rows) -> Ints:
    """Return (N,) index into CAUSES of the cause that a loss is counted under."""
    facts = rows.facts
    unparsed = facts["parse_tail"] > 0
    # A rollout that ended itself may have repeated its actions before: that is not what ended it.
    looping = (facts["action_tail"] >= LOOP) | (facts["repeats"] > REPEATS)
    ended = [
        np.isin(rows.stop_reason, BROKEN) | np.isin(rows.status, (Status.ERROR, Status.ABORTED)),
        np.isnan(rows.reward),
        rows.stop_reason == StopReason.LENGTH,  # before parse failures: a truncated answer often cannot be parsed
        unparsed | (rows.stop_reason == StopReason.NO_ACTION),
        (rows.stop_reason == StopReason.TURN_LIMIT) | (looping & (rows.stop_reason == StopReason.NOT_RECORDED)),
        facts["env_steps"] == 0,
    ]
    return np.select(ended, range(len(ended)), default=len(CAUSES) - 1)


def has_cause(rows: Rows, *ids: LossCause) -> Bools:
    """Return (N,) True for rollouts whose loss is counted under one of these causes."""
    return np.isin(causes(rows), [place for place, cause in enumerate(CAUSES) if cause.id in ids])


def losses(rows: Rows, scale: Scale) -> Floats:
    """Return (N,) best reward minus the rollout's; negative above the best."""
    reward, best = rows.reward, scale.bests(rows)
    # A rollout without a reward counts as 0, or as the best where that is below 0. Minus infinity counts as 0, and
    # infinity as the best.
    rewards = np.where(np.isnan(reward), np.minimum(best, 0.0), np.nan_to_num(reward, neginf=0.0))
    return best - np.where(reward == np.inf, best, rewards)


def judged(rows: Rows) -> Bools:
    """Return (N,) True for rollouts of known loss: the trainer asked for their reward, or they failed before that."""
    return rows.scored | np.isin(rows.status, (Status.ERROR,))


def waterfall(rows: Rows, scale: Scale) -> Waterfall:
    """Return the waterfall of the rollouts whose loss is known."""
    rows = rows.where(judged(rows))
    if not len(rows):
        return Waterfall(scale.best, np.nan, 0.0, 0.0, (), is_flat=True)
    loss, cause = losses(rows, scale), causes(rows)
    if scale.is_flat:  # there is no reward to lose: rollouts are counted, but not those that ended well
        loss = np.where((cause == len(CAUSES) - 1) & scale.success.solved(rows), 0.0, 1.0)
    short = np.maximum(loss, 0.0)
    cost = np.bincount(cause, weights=short, minlength=len(CAUSES)) / len(rows)
    is_low = (short > SAME * np.maximum(abs(scale.bests(rows)), 1)) | np.isnan(rows.reward)
    count = np.bincount(cause[is_low], minlength=len(CAUSES))
    shares = [
        Share(cause_of, cost_of, rollouts, f"cause:{cause_of.id} {scale.below}".rstrip())
        for cause_of, cost_of, rollouts in zip(name_causes(rows, cause), cost.tolist(), count.tolist(), strict=True)
        if rollouts > 0
    ]
    lost, best = float(losses(rows, scale).mean()), float(scale.bests(rows).mean())
    return Waterfall(
        best=best,
        mean=best - lost,
        lost=lost,
        above=float(np.maximum(-loss, 0.0).mean()),
        shares=tuple(sorted(shares, key=lambda share: -share.cost)),
        is_flat=scale.is_flat,
        higher="" if scale.units else f"reward>{scale.best!r}",
    )
