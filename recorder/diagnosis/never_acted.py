"""Rollouts that end without a single action, or tool call, where others act."""

import numpy as np

from logs_ui.recorder.diagnosis.card import Card, Diagnostic, Run, since
from logs_ui.recorder.diagnosis.rows import Floats, Rows
from logs_ui.recorder.diagnosis.say import percent

_SHARE = 0.1


def _idle(rows: Rows) -> Floats:
    """(N,) 1 without an action, 0 with some, NaN where no environment was seen."""
    steps = rows.facts["env_steps"]
    return np.where(np.isnan(steps), np.nan, steps == 0)


def _missing(run: Run) -> str | None:
    return None if (~np.isnan(run.rows.facts["env_steps"])).any() else "an environment"


def _look(run: Run) -> Card | None:
    limit = run.threshold("never_acted", _SHARE)
    idle = _idle(run.rows)
    share = float(np.nanmean(idle))
    cost = run.cost_of("never_submitted")
    if share <= limit or cost <= 0:
        return None
    trend = run.all.by_step(_idle(run.all))
    return Card(
        id="never_acted",
        title=f"{percent(share)} of rollouts never act in their environment",
        cost=cost,
        evidence=("Their answers are text alone; no action or tool call was made of it.",),
        suggestion="Ask for the action in the prompt by an example, and pay nothing for a text that does not act.",
        where="env_steps=0",
        is_part=True,
        trend=trend,
        since_step=since(trend, lambda value: value > limit),
        explains=("dead_groups", "never_solved"),
    )


DIAGNOSTIC = Diagnostic(
    "never_acted",
    "Never acted",
    f"Share of rollouts with an environment and without a step in it, above {_SHARE:.0%}.",
    "NeMo Gym PR 1304; the threshold is ours",
    _missing,
    _look,
)
