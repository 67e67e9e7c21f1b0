"""Compares some rollouts with the others, and the first steps of a run with its last.

A property that does not lower the reward is no cause.
"""

from dataclasses import dataclass

import numpy as np

from logs_ui.recorder.diagnosis.card import Run
from logs_ui.recorder.diagnosis.rollout_rows import SAME, Bools, Floats, Rows

_ERRORS = 2.0  # standard errors: a larger difference is not chance
_FINE_SOLVED = 0.2  # of the chosen rollouts are solved: then they do well [ours]
_FINE_QUALITY = 0.5  # of the range of rewards: then they do well [ours]
_RISE = 0.25  # of that range, from the first third of the steps to the last: then they improve [ours]
_FEW = 4  # rollouts: fewer have no meaningful mean


def gap(run: Run, chosen: Bools) -> float:
    """Return how much more the chosen rollouts lose than the others, in reward per chosen one; 0 if it may be chance.

    If all are chosen, return their loss.
    """
    if not chosen.any():
        return 0.0
    own, others = run.lost[chosen], run.lost[~chosen]
    if not len(others):
        return float(own.mean())
    more = float(own.mean() - others.mean())
    return more if more > _ERRORS * _error(own, others) else 0.0


def is_fine(run: Run, chosen: Bools) -> bool:
    """Return True if the chosen rollouts do well and no worse than the others: their property costs nothing then."""
    if not chosen.any():
        return True
    others = (~chosen).sum() >= max(_FEW, 0.05 * len(chosen))
    if others and gap(run, chosen) > 0:
        return False
    reward = np.nan_to_num(run.rows.reward[chosen])
    wins = float(run.scale.success.solved(run.rows)[chosen].mean())
    worst, best = _range(run)
    if best - worst <= SAME:
        return False
    quality = (float(reward.mean()) - worst) / (best - worst)
    return wins >= _FINE_SOLVED or quality >= _FINE_QUALITY or _rises(run, chosen, best - worst)


def cost(run: Run, chosen: Bools) -> float:
    """Return the reward per rollout that the chosen lose more than the others; if all fail alike, what they lose."""
    if is_fine(run, chosen):
        return 0.0
    return float(chosen.mean()) * (gap(run, chosen) or float(run.lost[chosen].mean()))


def spread(run: Run) -> float:
    """Return the range of the run's rewards, from the 1st to the 99th percentile."""
    worst, best = _range(run)
    return max(best - worst, run.scale.best - worst)


def _range(run: Run) -> tuple[float, float]:
    rewards = run.all.reward[np.isfinite(run.all.reward)]
    if not len(rewards):
        return 0.0, 0.0
    worst, best = np.percentile(rewards, (1, 99)).tolist()
    return worst, max(best, run.scale.best if run.settings.max_reward is not None else best)


def _rises(run: Run, chosen: Bools, whole: float) -> bool:
    steps = run.rows.steps
    third = len(steps) // 3
    if not third:
        return False
    reward = np.nan_to_num(run.rows.reward)
    first, last = reward[chosen & (run.rows.step < steps[third])], reward[chosen & (run.rows.step >= steps[-third])]
    if min(len(first), len(last)) < _FEW:
        return False
    return float(last.mean() - first.mean()) > max(_RISE * whole, _ERRORS * _error(first, last))


def _error(a: Floats, b: Floats) -> float:
    """Return the standard error of the difference of two means, with pooled variance."""
    number = len(a) + len(b)
    pooled = (len(a) * float(a.var()) + len(b) * float(b.var())) / max(number - 2, 1)
    return float(np.sqrt(pooled * (1 / len(a) + 1 / len(b))))


def windows(run: Run) -> tuple[Rows, Rows] | None:
    """Return the rollouts of the first steps and of as many last steps; None for a single step.

    If the last steps are more than half of the run, its first and its last third are compared.
    """
    steps = run.all.steps
    if len(steps) < 2:
        return None
    count = len(run.rows.steps)
    if 2 * count <= len(steps):
        return run.all.where(run.all.step <= steps[count - 1]), run.rows
    third = max(len(steps) // 3, 1)
    return run.all.where(run.all.step <= steps[third - 1]), run.all.where(run.all.step >= steps[-third])


@dataclass(frozen=True)
class Rise:
    """Describes the change of a mean."""

    before: float
    after: float
    value: float  # `after - before`; 0 if either is not known
    is_sure: bool  # True if the change is larger than some standard errors (two by default)


def rise(before: Floats, after: Floats, *, errors: float = _ERRORS) -> Rise:
    """Return the change between the means of the finite values."""
    first, last = before[np.isfinite(before)], after[np.isfinite(after)]
    if not len(first) or not len(last):
        return Rise(float("nan"), float("nan"), 0.0, is_sure=False)
    value = float(last.mean() - first.mean())
    error = float(np.sqrt(first.var() / len(first) + last.var() / len(last)))
    return Rise(float(first.mean()), float(last.mean()), value, abs(value) > max(errors * error, 1e-9))
