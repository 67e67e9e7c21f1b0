"""Finds answers that are truncated at the token limit."""

from typing import Any

import numpy as np

from logs_ui.recorder.diagnosis import contrast
from logs_ui.recorder.diagnosis.card import Card, Diagnostic, Run, since
from logs_ui.recorder.diagnosis.rollout_rows import Bools, Rows
from logs_ui.recorder.diagnosis.wording import figure, percent
from logs_ui.recorder.settings import SHARE
from logs_ui.recorder.vocabulary import StopReason

_SHARE = 0.05
_FEW = 2  # rollouts: one alone is an accident


def _limit(run: Run) -> float | None:
    """Return the trainer's max_completion_length in tokens; None if it is not recorded."""
    length: Any = run.config.get("max_completion_length")
    return float(length) if isinstance(length, int | float) and length > 0 else None


def _cut(rows: Rows, limit: float | None) -> Bools:
    """(N,) True for rollouts that the server reports as truncated; without a report, those that used all tokens."""
    turns = rows.facts["truncated_turns"]
    ended: Bools = rows.stop_reason == StopReason.LENGTH
    said: Bools = ended | (turns > 0)
    if limit is None:
        return said
    cut: Bools = said | (np.isnan(turns) & (rows.completion_tokens >= limit))
    return cut


def _missing(run: Run) -> str | None:
    known = ~np.isnan(run.rows.facts["truncated_turns"]) | (run.rows.stop_reason == StopReason.LENGTH)
    counted = _limit(run) is not None and np.isfinite(run.rows.completion_tokens).any()
    return None if known.any() or counted else "why generations ended"


def _look(run: Run) -> Card | None:
    rows, limit, length = run.rows, run.threshold("truncation", _SHARE), _limit(run)
    cut = _cut(rows, length)
    share = float(cut.mean())
    if cut.sum() < _FEW or share <= limit or contrast.is_fine(run, cut):
        return None
    trend = run.all.by_step(_cut(run.all, length).astype(float))
    part, whole = run.cost_of("truncation"), contrast.cost(run, cut)
    said = (rows.facts["truncated_turns"][cut] > 0).any()
    return Card(
        id="truncation",
        title=f"{percent(share)} of rollouts are truncated at the token limit",
        cost=max(part, whole),
        evidence=(_means(rows, cut), *_lengths(rows, cut, length), *_unreported(rows, cut)),
        suggestion=f"Raise max_completion_length{f' (now {figure(length)})' if length else ''}, or reward completions "
        "that finish within the limit.",
        where="truncated_turns>0" if said else "stop:length" if part else f"completion_tokens>={length:g}",
        is_part=part >= whole,
        trend=trend,
        since_step=since(trend, lambda value: value > limit),
        limit=limit,
        own=cut,
    )


def _means(rows: Rows, cut: Bools) -> str:
    means = [float(np.nanmean(rows.reward[of])) if np.isfinite(rows.reward[of]).any() else np.nan for of in (cut, ~cut)]
    return f"Mean reward: truncated {figure(means[0])}, not truncated {figure(means[1])}."


def _lengths(rows: Rows, cut: Bools, limit: float | None) -> list[str]:
    known = rows.completion_tokens[cut & np.isfinite(rows.completion_tokens)]
    said = [f"max_completion_length is {figure(limit)}."] if limit else []
    return said + (
        [f"Truncated completions have {figure(float(known.mean()))} tokens on average."] if len(known) else []
    )


def _unreported(rows: Rows, cut: Bools) -> list[str]:
    """Describe rollouts that only their token count gives away: the waterfall does not use it."""
    guessed = float((cut & ~_cut(rows, None)).sum() / cut.sum())
    return (
        [f"For {percent(guessed)} of them no stop reason is recorded. The waterfall counts those under other causes."]
        if guessed
        else []
    )


DIAGNOSTIC = Diagnostic(
    "truncation",
    "Truncation",
    "Share of rollouts with a turn that ended at the token limit, or, if no stop reason is recorded, that used all of "
    f"max_completion_length, above {_SHARE:.0%}.",
    "AReaL's no_eos_ratio",
    _missing,
    _look,
    limits=SHARE,
    position=100,
    explained_by=("infrastructure", "diversity:cold", "degenerate_text", "length"),
    is_behaviour=True,
)
