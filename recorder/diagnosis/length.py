"""Rewards that follow the length of an answer."""

import numpy as np

from logs_ui.recorder.diagnosis.card import Card, Diagnostic, Run, Trend, since
from logs_ui.recorder.diagnosis.reward_parts import within_groups
from logs_ui.recorder.diagnosis.rows import Rows
from logs_ui.recorder.diagnosis.say import figure

_R = 0.8
_FEW = 8


def correlation(rows: Rows) -> float:
    """Pearson's r of reward and completion tokens within groups; NaN where either does not vary."""
    known = np.isfinite(rows.reward) & np.isfinite(rows.completion_tokens)
    if known.sum() < _FEW:
        return float("nan")
    reward = within_groups(np.where(known, rows.reward, np.nan), rows)[known]
    tokens = within_groups(np.where(known, rows.completion_tokens, np.nan), rows)[known]
    norm = float(np.sqrt(np.sum(reward**2) * np.sum(tokens**2)))
    return float(np.sum(reward * tokens)) / norm if norm > 1e-9 else float("nan")


def _by_step(rows: Rows) -> Trend:
    found = ((int(step), correlation(rows.where(rows.step == step))) for step in rows.steps[-50:])
    return tuple((step, r) for step, r in found if r == r)  # noqa: PLR0124 - NaN


def _look(run: Run) -> Card | None:
    rows, limit = run.rows, run.threshold("length", _R)
    r = correlation(rows)
    if not abs(r) >= limit:
        return None
    first, last = (
        float(np.nanmean(part.completion_tokens)) for part in (run.all.where(run.all.step <= run.all.steps[0]), rows)
    )
    grows = (last - first) * r > 0 and abs(last - first) > 0.2 * max(first, 1)
    if not grows:
        return None
    trend = _by_step(run.all)
    return Card(
        id="length",
        title=f"{'Longer' if r > 0 else 'Shorter'} answers are paid more, and answers become that",
        cost=run.fall.lost * abs(r),
        evidence=(
            f"Within groups reward and tokens correlate by r = {figure(r)}.",
            f"Rollouts went from {figure(first)} to {figure(last)} tokens.",
        ),
        suggestion="Take length out of the reward, or pay for it only where the answer is right.",
        where="",
        trend=trend,
        since_step=since(trend, lambda value: abs(value) >= limit),
        explains=("truncation", "reward_parts"),
    )


DIAGNOSTIC = Diagnostic(
    "length",
    "Length against reward",
    f"Pearson's r of reward and completion tokens within groups, |r| of {_R:g} or more, while lengths move that way.",
    "diagnosis literature; |r| ≥ 0.8 at n ≥ 8",
    lambda run: None if np.isfinite(run.rows.completion_tokens).sum() >= _FEW else "completion tokens",
    _look,
)
