"""Finds rollouts of a policy that is several versions older than the trained one."""

import numpy as np

from logs_ui.recorder.diagnosis.card import Card, Diagnostic, Run, since
from logs_ui.recorder.diagnosis.rollout_rows import Floats, Rows
from logs_ui.recorder.diagnosis.wording import figure, percent
from logs_ui.recorder.settings import FROM_NOTHING

_LAG = 4
_SHARE = 0.1


def lag(rows: Rows) -> Floats:
    """(N,) versions between the policy that sampled a rollout and the one that was trained on it.

    An asynchronous trainer reports it; otherwise it is the number of steps between generating and logging.
    """
    made = np.maximum(rows.step - rows.policy_step - 1, 0).astype(float)
    return np.where(np.isnan(rows.staleness), made, rows.staleness)


def reuse(run: Run) -> int:
    """Return the optimizer steps that one batch of rollouts is used for, by the trainer's arguments; 1 by default."""
    config = run.config
    names = ("steps_per_generation", "num_iterations", "gradient_accumulation_steps")
    batches, times, accumulated = (it if isinstance(it := config.get(name), int) and it > 0 else 1 for name in names)
    return max(batches * times // accumulated, 1)


def _look(run: Run) -> Card | None:
    limit = run.threshold("staleness", _LAG)
    ahead = (reuse(run) - 1) / 2  # the mean over the steps that use a batch
    behind = lag(run.rows)
    is_old = behind + ahead >= limit
    share = float(is_old.mean())
    if share <= _SHARE:
        return None
    gone = int(sum(value is not None for value in run.rows.dropped))
    trend = run.all.by_step(lag(run.all) + ahead)
    said = [f"Lag in versions: mean {figure(float(behind.mean()))}, maximum {figure(float(behind.max()))}."]
    said += [f"Each batch is used for {reuse(run)} steps, which adds {figure(ahead)} on average."] if ahead else []
    said += [f"{gone} of {len(run.rows)} were dropped as too old or too large."] if gone else []
    return Card(
        id="staleness",
        title=f"{percent(share)} of rollouts are {figure(limit)}+ policy versions old when they are trained on",
        cost=run.fall.lost * share,
        evidence=tuple(said),
        suggestion="Sample with the newest weights, generate fewer rollouts ahead, or limit the staleness.",
        where="" if ahead >= limit else f"lag>={limit - ahead:g}",
        trend=trend,
        since_step=since(trend, lambda value: value >= limit),
        limit=limit,
        stops_learning=True,
        own=is_old,
    )


DIAGNOSTIC = Diagnostic(
    "staleness",
    "Staleness",
    f"More than a tenth of the rollouts are {_LAG} or more versions older than the policy that is trained on them. A "
    "batch that is used for several steps (steps_per_generation, num_iterations) is older by half of them on average.",
    "ours",
    lambda run: None if len(run.rows) else "a rollout",
    _look,
    limits=FROM_NOTHING,
    position=50,
)
