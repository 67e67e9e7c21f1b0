"""Rollouts that were scored, and got no number."""

import numpy as np

from logs_ui.recorder.diagnosis.card import Card, Diagnostic, Run
from logs_ui.recorder.diagnosis.rows import Bools, Rows
from logs_ui.recorder.diagnosis.say import listed, percent
from logs_ui.recorder.models import Status


def invalid(rows: Rows) -> Bools:
    """(N,) that all reward functions declined, or one answered with NaN or an infinity."""
    found: Bools = rows.scored & (rows.status == Status.OK) & (np.isnan(rows.reward) | rows.odd)
    return found


def _look(run: Run) -> Card | None:
    rows = run.rows
    bad = invalid(rows)
    if not bad.any():
        return None
    silent = [name for name, values in rows.parts.items() if np.isnan(values[bad]).all()]
    tasks = sorted({rows.tasks[task] for task in rows.task[bad] if task >= 0})
    said = [f"{int(bad.sum())} rollouts; {int((bad & rows.odd).sum())} of them for NaN or an infinity."]
    said += [f"No number from {listed(silent)}."] if silent else []
    said += [f"Tasks: {listed(tasks)}."] if tasks else []
    return Card(
        id="invalid_reward",
        title=f"{percent(float(bad.mean()))} of rollouts were scored and got no reward",
        cost=run.cost_of("invalid_reward"),
        evidence=tuple(said),
        suggestion="Let a reward function answer for these rows: the trainer takes None from all of them for 0.",
        where="cause:invalid_reward",
        is_part=True,
        trend=run.all.by_step(invalid(run.all).astype(float)),
        explains=("dead_groups", "never_solved"),
    )


DIAGNOSTIC = Diagnostic(
    "invalid_reward",
    "Invalid zeros",
    "Rollouts for which every reward function returned None, or one returned NaN or an infinity; any is shown.",
    "TRL PR 6427, OpenEnv PR 675",
    lambda run: None if run.rows.scored.any() else "a reward",
    _look,
)
