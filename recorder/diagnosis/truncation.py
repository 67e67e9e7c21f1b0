"""Answers that are cut off at the token limit."""

import numpy as np

from logs_ui.recorder.diagnosis.card import Card, Diagnostic, Run, since
from logs_ui.recorder.diagnosis.rows import Bools, Rows
from logs_ui.recorder.diagnosis.say import figure, percent
from logs_ui.recorder.models import StopReason

_SHARE = 0.05


def _cut(rows: Rows) -> Bools:
    cut: Bools = (rows.facts["truncated_turns"] > 0) | (rows.stop_reason == StopReason.LENGTH)
    return cut


def _missing(run: Run) -> str | None:
    known = ~np.isnan(run.rows.facts["truncated_turns"]) | (run.rows.stop_reason == StopReason.LENGTH)
    return None if known.any() else "why generations ended"


def _look(run: Run) -> Card | None:
    rows, limit = run.rows, run.threshold("truncation", _SHARE)
    cut = _cut(rows)
    share = float(cut.mean())
    if share <= limit:
        return None
    trend = run.all.by_step(_cut(run.all).astype(float))
    means = [float(np.nanmean(rows.reward[of])) if np.isfinite(rows.reward[of]).any() else np.nan for of in (cut, ~cut)]
    length = run.config.get("max_completion_length")
    said = [f"Cut off, a rollout gets {figure(means[0])}; else {figure(means[1])}."]
    if length is not None:
        said.append(
            f"max_completion_length is {length}; they have {figure(float(np.nanmean(rows.completion_tokens)))}."
        )
    return Card(
        id="truncation",
        title=f"{percent(share)} of rollouts are cut off at the token limit",
        cost=run.cost_of("truncation"),
        evidence=tuple(said),
        suggestion=f"Allow more tokens than {length or 'now'}, or reward short answers before the limit does.",
        where="truncated_turns>0",
        is_part=True,
        trend=trend,
        since_step=since(trend, lambda value: value > limit),
        explains=("dead_groups", "parse_failures", "never_solved", "never_acted"),
    )


DIAGNOSTIC = Diagnostic(
    "truncation",
    "Truncation",
    f"Share of rollouts with a turn that ended at the token limit, above {_SHARE:.0%}.",
    "AReaL's no_eos_ratio",
    _missing,
    _look,
)
