"""Rollouts that were scored, and got no number."""

import numpy as np

from logs_ui.recorder.diagnosis import contrast
from logs_ui.recorder.diagnosis.card import Card, Diagnostic, Run
from logs_ui.recorder.diagnosis.rows import Bools, Rows
from logs_ui.recorder.diagnosis.say import listed, percent
from logs_ui.recorder.models import Status

_MANY = 32  # rows: a function that answers for none of so many has none of its own


def invalid(rows: Rows) -> Bools:
    """(N,) that all reward functions declined, or one answered with NaN or an infinity."""
    found: Bools = rows.scored & (rows.status == Status.OK) & (np.isnan(rows.reward) | rows.odd)
    return found


def _silent(rows: Rows) -> list[str]:
    """Reward functions that gave a number to no row at all, of many."""
    if rows.scored.sum() < _MANY:
        return []
    return [name for name, values in rows.parts.items() if not np.isfinite(values).any()]


def _look(run: Run) -> Card | None:
    rows = run.rows
    bad, silent = invalid(rows), _silent(run.all)
    if bad.any():
        return _declined(run, bad)
    return _never_answers(run, silent) if silent else None


def _declined(run: Run, bad: Bools) -> Card:
    """By all of them."""
    rows = run.rows
    share = float(bad.mean())
    names = [name for name, values in rows.parts.items() if np.isnan(values[bad]).all()]
    tasks = sorted({rows.tasks[task] for task in np.unique(rows.task[bad]) if task >= 0})
    said = [f"{int(bad.sum())} rollouts; {int((bad & rows.odd).sum())} of them for NaN or an infinity."]
    said += [f"No number from {listed(names)}."] if names else []
    said += [f"Tasks: {listed(tasks)}."] if tasks else []
    part = run.cost_of("invalid_reward")
    return Card(
        id="invalid_reward",
        title=f"{percent(share)} of rollouts were scored and got no reward",
        cost=part if part > 0 else share * contrast.spread(run),
        evidence=tuple(said),
        suggestion="Let a reward function answer for these rows: the trainer takes None from all of them for 0.",
        where="cause:invalid_reward",
        is_part=part > 0,
        trend=run.all.by_step(invalid(run.all).astype(float)),
        explains=_EXPLAINS,
        own=bad,
        is_setup=True,
    )


def _never_answers(run: Run, names: list[str]) -> Card:
    rows = run.all
    return Card(
        id="invalid_reward",
        title=f"{listed(names)} gave no reward to any rollout",
        cost=max(run.fall.lost, contrast.spread(run)),
        evidence=(f"{int(rows.scored.sum())} rollouts were scored, and it declined all of them.",),
        suggestion="Call it by hand on a good completion: it must return a number for rows of its own.",
        where="",
        explains=_EXPLAINS,
        is_setup=True,
    )


_EXPLAINS = (
    "constant_reward",
    "dead_groups",
    "never_solved",
    "forgotten",
    "signal_cliff",
    "reward_parts",
    "task_mix",
    "length",
)

DIAGNOSTIC = Diagnostic(
    "invalid_reward",
    "Invalid zeros",
    "Rollouts for which every reward function returned None, or one returned NaN or an infinity; any is shown. And a "
    f"function that answers for none of {_MANY} or more.",
    "TRL PR 6427, OpenEnv PR 675",
    lambda run: None if run.rows.scored.any() else "a reward",
    _look,
)
