"""Finds answers in which no action was found."""

import numpy as np

from logs_ui.recorder.diagnosis import contrast
from logs_ui.recorder.diagnosis.card import Card, Diagnostic, Run, above
from logs_ui.recorder.diagnosis.rollout_rows import Floats, Rows
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
    return np.where(np.isnan(known) & (rows.stop_reason == StopReason.NO_ACTION), 1.0, known)


def _look(run: Run) -> Card | None:
    rows, limit = run.rows, run.threshold("parse_failures", _SHARE)
    failures = _failures(rows)
    known = ~np.isnan(failures)
    share = float(failures[known].sum() / max(np.fmax(rows.turns[known], 1).sum(), 1))
    bad = failures > 0
    if share <= limit or contrast.is_fine(run, bad):
        return None
    streaks = percent(float((rows.facts["parse_streak"] >= _STREAK).mean()))
    tail = (rows.facts["parse_tail"] > 0) & (rows.stop_reason != StopReason.LENGTH)
    ends = percent(float((tail | (rows.stop_reason == StopReason.NO_ACTION)).mean()))
    share_of_turns = np.minimum(_failures(run.all) / np.fmax(run.all.turns, 1), 1.0)
    part, whole = run.cost_of("parse_failure"), contrast.cost(run, bad)
    return Card(
        id="parse_failures",
        title=f"No action is found in {percent(share)} of the model's answers",
        cost=max(part, whole),
        evidence=(
            f"{int(bad.sum())} of {len(rows)} rollouts are affected.",
            f"{ends} of rollouts end with such an answer; {streaks} have {_STREAK}+ in a row.",
        ),
        suggestion="Open one and compare the answer with what the parser expects; show the format in the prompt.",
        where="parse_failures>0" if (rows.facts["parse_failures"] > 0).any() else "stop:no_action",
        is_part=part >= whole,
        **above(run.all.by_step(share_of_turns), limit),
        own=bad,
    )


DIAGNOSTIC = Diagnostic(
    "parse_failures",
    "Parse failures",
    f"Share of turns whose answer gave no action, and was not truncated, above {_SHARE:.0%}.",
    "evalscope's budget, verl PR 7697",
    lambda run: None if (~np.isnan(_failures(run.rows))).any() else "actions, as record(parse=...) finds them",
    _look,
    limits=SHARE,
    position=90,
    explained_by=("infrastructure", "diversity:cold", "degenerate_text"),
    is_behaviour=True,
)
