"""Finds answers that are truncated at the token limit."""

import numpy as np

from logs_ui.recorder.diagnosis import contrast
from logs_ui.recorder.diagnosis.card import Card, Diagnostic, Run, above
from logs_ui.recorder.diagnosis.measures import mean
from logs_ui.recorder.diagnosis.rollout_rows import Bools, Rows
from logs_ui.recorder.diagnosis.wording import figure, percent
from logs_ui.recorder.settings import SHARE
from logs_ui.recorder.vocabulary import StopReason

_SHARE = 0.05
_FEW = 2  # rollouts: one alone is an accident


def _limit(run: Run) -> float | None:
    """Return the trainer's max_completion_length in tokens; None if it is not recorded."""
    length = run.config.get("max_completion_length")
    return float(length) if isinstance(length, int | float) and length > 0 else None


def _cut(rows: Rows, limit: float | None) -> Bools:
    """(N,) True for rollouts that the server reports as truncated; without a report, those that used all tokens."""
    turns = rows.facts["truncated_turns"]
    used_all = np.isnan(turns) & (rows.completion_tokens >= (np.inf if limit is None else limit))
    ended: Bools = rows.stop_reason == StopReason.LENGTH
    return ended | (turns > 0) | used_all


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
    part, whole = run.cost_of("truncation"), contrast.cost(run, cut)
    is_reported = (rows.facts["truncated_turns"][cut] > 0).any()
    rewards, tokens = (figure(mean(rows.reward[of])) for of in (cut, ~cut)), mean(rows.completion_tokens[cut])
    said = ["Mean reward: truncated {}, not truncated {}.".format(*rewards)]
    said += [f"max_completion_length is {figure(length)}."] if length else []
    said += [] if tokens is None else [f"Truncated completions have {figure(tokens)} tokens on average."]
    if guessed := float((cut & ~_cut(rows, None)).sum() / cut.sum()):
        said += [
            f"For {percent(guessed)} of them no stop reason is recorded. The waterfall counts those under other causes."
        ]
    return Card(
        id="truncation",
        title=f"{percent(share)} of rollouts are truncated at the token limit",
        cost=max(part, whole),
        evidence=tuple(said),
        suggestion=f"Raise max_completion_length{f' (now {figure(length)})' if length else ''}, or reward completions "
        "that finish within the limit.",
        where="truncated_turns>0" if is_reported else "stop:length" if part else f"completion_tokens>={length:g}",
        is_part=part >= whole,
        **above(run.all.by_step(_cut(run.all, length)), limit),
        own=cut,
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
