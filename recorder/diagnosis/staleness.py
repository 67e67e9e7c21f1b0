"""Rollouts of a policy that the trainer has left behind."""

import numpy as np

from logs_ui.recorder.diagnosis.card import Card, Diagnostic, Run, since
from logs_ui.recorder.diagnosis.rows import Floats, Rows
from logs_ui.recorder.diagnosis.say import figure, percent

_LAG = 4


def lag(rows: Rows) -> Floats:
    """(N,) versions between the policy that sampled and the one that was trained; as an asynchronous trainer says, else
    steps between making and logging.
    """
    made = np.maximum(rows.step - rows.policy_step - 1, 0).astype(float)
    return np.where(np.isnan(rows.staleness), made, rows.staleness)


def _look(run: Run) -> Card | None:
    limit = run.threshold("staleness", _LAG)
    behind = lag(run.rows)
    share = float((behind >= limit).mean())
    if share <= 0.1:
        return None
    dropped = run.rows.facts["dropped"]
    gone = float(np.mean([value is not None for value in dropped]))
    trend = run.all.by_step(lag(run.all))
    return Card(
        id="staleness",
        title=f"{percent(share)} of rollouts are {figure(limit)} or more policy versions old when they are trained on",
        cost=run.fall.lost * share,
        evidence=(f"The lag is {figure(float(behind.mean()))} at the mean.", f"{percent(gone)} were dropped for it."),
        suggestion="Make fewer rollouts ahead, or bound the staleness: they teach what the policy no longer does.",
        where=f"staleness>={limit:g}",
        trend=trend,
        since_step=since(trend, lambda value: value >= limit),
    )


DIAGNOSTIC = Diagnostic(
    "staleness",
    "Staleness",
    f"More than a tenth of the rollouts are {_LAG} or more versions behind the policy that is trained on them.",
    "ours",
    lambda run: None if len(run.rows) else "a rollout",
    _look,
)
