"""Whether some rollouts are worse than the others, or low at all: what all have in common is no cause by itself."""

import numpy as np

from logs_ui.recorder.diagnosis.card import Run
from logs_ui.recorder.diagnosis.rollout_rows import SAME, Bools, Floats
from logs_ui.recorder.diagnosis.waterfall import losses

_ERRORS = 2.0  # standard errors: more than that is no accident
_FINE_SOLVED = 0.2  # ours: of rollouts that are solved, who have what is looked for
_FINE_QUALITY = 0.5  # ours: of the way from the worst reward to the best
_RISE = 0.25  # of that way too, from the first third of the steps to the last: ours
_FEW = 4  # rollouts: fewer have no mean


def gap(run: Run, chosen: Bools) -> float:
    """What the chosen lose more than the others, in reward for each of them; 0 where that may be an accident.

    Without any others: what they lose.
    """
    lost = np.maximum(losses(run.rows, run.scale), 0)
    if not chosen.any():
        return 0.0
    own, others = lost[chosen], lost[~chosen]
    if not len(others):
        return float(own.mean())
    more = float(own.mean() - others.mean())
    return more if more > _ERRORS * _error(own, others) else 0.0


def is_fine(run: Run, chosen: Bools) -> bool:
    """Whether the chosen do no worse than the others, and well: what they have in common then costs nothing."""
    if not chosen.any():
        return True
    others = (~chosen).sum() >= max(_FEW, 0.05 * len(chosen))
    if others and gap(run, chosen) > 0:
        return False
    reward = np.nan_to_num(run.rows.reward[chosen])
    solved = float((reward >= run.scale.solved - SAME).mean())
    worst, best = _range(run)
    if best - worst <= SAME:
        return False
    quality = (float(reward.mean()) - worst) / (best - worst)
    return solved >= _FINE_SOLVED or quality >= _FINE_QUALITY or _rises(run, chosen, best - worst)


def cost(run: Run, chosen: Bools) -> float:
    """Reward for each rollout that was looked at: what the chosen lose more than the others; where all fail alike, what
    they lose.
    """
    if is_fine(run, chosen):
        return 0.0
    lost = np.maximum(losses(run.rows, run.scale), 0)
    return float(chosen.mean()) * (gap(run, chosen) or float(lost[chosen].mean()))


def spread(run: Run) -> float:
    """From the worst reward of the run to the best; its first and 99th percentile."""
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
    """Standard error of the difference of two means, at the pooled variance."""
    number = len(a) + len(b)
    pooled = (len(a) * float(a.var()) + len(b) * float(b.var())) / max(number - 2, 1)
    return float(np.sqrt(pooled * (1 / len(a) + 1 / len(b))))
