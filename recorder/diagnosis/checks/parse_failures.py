"""Finds answers in which no action was found."""

import numpy as np

from logs_ui.recorder.diagnosis import contrast
from logs_ui.recorder.diagnosis.card import Card, Diagnostic, Run, since
from logs_ui.recorder.diagnosis.rollout_rows import Bools, Floats, Rows
from logs_ui.recorder.diagnosis.wording import percent
from logs_ui.recorder.settings import SHARE
from logs_ui.recorder.vocabulary import StopReason

_SHARE = 0.1
_STREAK = 3


def _failures(rows: Rows) -> Floats:
    """(N,) turns without an action that were not truncated; 1 if only the stop reason says that there is one."""
    failures, cut = rows.facts["parse_failures"], np.nan_to_num(rows.facts["truncated_turns"])
    cut = np.maximum(cut, rows.stop_reason == StopReason.LENGTH)
    known = np.maximum(failures - cut, 0.0)
    found: Floats = np.where(np.isnan(known) & (rows.stop_reason == StopReason.NO_ACTION), 1.0, known)
    return found


def _share(rows: Rows) -> Floats:
    """(N,) share of each rollout's turns."""
    share: Floats = np.minimum(_failures(rows) / np.fmax(rows.turns, 1), 1.0)
    return share


def _ended(rows: Rows) -> Bools:
    """(N,) True for rollouts whose last answer gave no action, and was not truncated."""
    tail = (rows.facts["parse_tail"] > 0) & (rows.stop_reason != StopReason.LENGTH)
    ended: Bools = tail | (rows.stop_reason == StopReason.NO_ACTION)
    return ended


def _missing(run: Run) -> str | None:
    return None if (~np.isnan(_failures(run.rows))).any() else "actions, as record(parse=...) finds them"


def _look(run: Run) -> Card | None:
    rows, limit = run.rows, run.threshold("parse_failures", _SHARE)
    failures = _failures(rows)
    known = ~np.isnan(failures)
    share = float(failures[known].sum() / max(np.fmax(rows.turns[known], 1).sum(), 1))
    bad = failures > 0
    if share <= limit or contrast.is_fine(run, bad):
        return None
    trend = run.all.by_step(_share(run.all))
    streaks = float((rows.facts["parse_streak"] >= _STREAK).mean())
    ends = percent(float(_ended(rows).mean()))
    part, whole = run.cost_of("parse_failure"), contrast.cost(run, bad)
    return Card(
        id="parse_failures",
        title=f"No action is found in {percent(share)} of the model's answers",
        cost=max(part, whole),
        evidence=(
            f"{int(bad.sum())} of {len(rows)} rollouts are affected.",
            f"{ends} of rollouts end with such an answer; {percent(streaks)} have {_STREAK}+ in a row.",
        ),
        suggestion="Open one and compare the answer with what the parser expects; show the format in the prompt.",
        where="parse_failures>0" if (rows.facts["parse_failures"] > 0).any() else "stop:no_action",
        is_part=part >= whole,
        trend=trend,
        since_step=since(trend, lambda value: value > limit),
        limit=limit,
        own=bad,
    )


DIAGNOSTIC = Diagnostic(
    "parse_failures",
    "Parse failures",
    f"Share of turns whose answer gave no action, and was not truncated, above {_SHARE:.0%}.",
    "evalscope's budget, verl PR 7697",
    _missing,
    _look,
    limits=SHARE,
    position=90,
    explained_by=("infrastructure", "diversity:cold", "degenerate_text"),
    is_behaviour=True,
)
