"""Rollouts of a policy that the trainer has left behind."""

import numpy as np

from logs_ui.recorder.diagnosis.card import Card, Diagnostic, Run, since
from logs_ui.recorder.diagnosis.rollout_rows import Floats, Rows
from logs_ui.recorder.diagnosis.wording import figure, percent
from logs_ui.recorder.settings import FROM_NOTHING

_LAG = 4
_SHARE = 0.1


def lag(rows: Rows) -> Floats:
    """(N,) versions between the policy that sampled and the one that was trained; as an asynchronous trainer says, else
    steps between making and logging.
    """
    made = np.maximum(rows.step - rows.policy_step - 1, 0).astype(float)
    return np.where(np.isnan(rows.staleness), made, rows.staleness)


def reuse(run: Run) -> int:
    """Optimizer steps that one batch of rollouts is trained on, by the trainer's arguments; 1 where they do not say."""
    config = run.config
    names = ("steps_per_generation", "num_iterations", "gradient_accumulation_steps")
    batches, times, accumulated = (it if isinstance(it := config.get(name), int) and it > 0 else 1 for name in names)
    return max(batches * times // accumulated, 1)


def _look(run: Run) -> Card | None:
    limit = run.threshold("staleness", _LAG)
    ahead = (reuse(run) - 1) / 2  # the mean over the steps that a batch is trained on
    behind = lag(run.rows)
    is_old = behind + ahead >= limit
    share = float(is_old.mean())
    if share <= _SHARE:
        return None
    gone = int(sum(value is not None for value in run.rows.dropped))
    trend = run.all.by_step(lag(run.all) + ahead)
    said = [
        f"The lag is {figure(float(behind.mean()))} versions at the mean, and {figure(float(behind.max()))} at most."
    ]
    said += [f"One batch is trained on for {reuse(run)} steps: {figure(ahead)} more at the mean."] if ahead else []
    said += [f"{gone} of {len(run.rows)} were dropped for it."] if gone else []
    return Card(
        id="staleness",
        title=f"{percent(share)} of rollouts are {figure(limit)} or more policy versions old when they are trained on",
        cost=run.fall.lost * share,
        evidence=tuple(said),
        suggestion="Sample with the newest weights, make fewer rollouts ahead, or bound the staleness: they teach what "
        "the policy no longer does.",
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
    f"More than a tenth of the rollouts are {_LAG} or more versions behind the policy that is trained on them; a batch "
    "that is trained on for many steps (steps_per_generation, num_iterations) is older by half of them at the mean.",
    "ours",
    lambda run: None if len(run.rows) else "a rollout",
    _look,
    limits=FROM_NOTHING,
    position=50,
)
