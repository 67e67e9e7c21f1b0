"""Answers in which no action is found."""

import numpy as np

from logs_ui.recorder.diagnosis.card import Card, Diagnostic, Run, since
from logs_ui.recorder.diagnosis.rows import Floats, Rows
from logs_ui.recorder.diagnosis.say import percent

_SHARE = 0.1
_STREAK = 3


def _share(rows: Rows) -> Floats:
    """(N,) of each rollout's turns."""
    share: Floats = rows.facts["parse_failures"] / np.maximum(rows.turns, 1)
    return share


def _missing(run: Run) -> str | None:
    return None if (~np.isnan(run.rows.facts["parse_failures"])).any() else "actions: record(parse=...) tells"


def _look(run: Run) -> Card | None:
    rows, limit = run.rows, run.threshold("parse_failures", _SHARE)
    failures, turns = rows.facts["parse_failures"], rows.turns
    known = ~np.isnan(failures)
    share = float(np.nansum(failures[known]) / max(np.nansum(turns[known]), 1))
    if share <= limit:
        return None
    ended = rows.facts["parse_tail"] > 0
    trend = run.all.by_step(_share(run.all))
    streaks = float((rows.facts["parse_streak"][known] >= _STREAK).mean())
    return Card(
        id="parse_failures",
        title=f"No action is found in {percent(share)} of the model's answers",
        cost=run.cost_of("parse_failure"),
        evidence=(
            f"{percent(float(ended.mean()))} of rollouts end so; {percent(streaks)} have {_STREAK} or more in a row.",
        ),
        suggestion="Open one and compare the answer with what the parser wants; show the format in the prompt.",
        where="parse_failures>0",
        is_part=True,
        trend=trend,
        since_step=since(trend, lambda value: value > limit),
        explains=("dead_groups", "never_solved", "never_acted"),
    )


DIAGNOSTIC = Diagnostic(
    "parse_failures",
    "Parse failures",
    f"Share of turns whose answer gave no action, above {_SHARE:.0%}; streaks of {_STREAK} or more.",
    "evalscope's budget, verl PR 7697",
    _missing,
    _look,
)
