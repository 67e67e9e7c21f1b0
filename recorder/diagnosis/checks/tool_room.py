"""Finds rollouts that end because the completion had no room for a tool's answer, which TRL then drops."""

import numpy as np

from logs_ui.recorder.diagnosis import contrast
from logs_ui.recorder.diagnosis.card import Card, Diagnostic, Outcome, Run, quiet
from logs_ui.recorder.diagnosis.change_point import above
from logs_ui.recorder.diagnosis.wording import percent
from logs_ui.recorder.settings import SHARE

_SHARE = 0.05  # as for truncation


def _look(run: Run) -> Outcome:
    own, limit = run.rows.facts["no_room"] == 1, run.threshold("no_room", _SHARE)
    share = float(own.mean())
    if share <= limit or contrast.is_fine(run, own):
        return quiet(share, "of rollouts end because a tool's answer had no room", limit)
    length = run.config.get("max_completion_length")
    most = f", of max_completion_length={length} tokens," if isinstance(length, int) else ""
    return Card(
        id="no_room",
        title=f"{percent(share)} of rollouts end because a tool's answer had no room",
        cost=contrast.cost(run, own),
        evidence=(
            f"In {own.sum()} of {len(own)} rollouts the last answer is whole and calls a tool.",
            f"The completion{most} had no room for what the tool answered.",
        ),
        suggestion="Raise max_completion_length, or shorten what the tool answers.",
        where="no_room:1",
        **above(run.all.by_step(run.all.facts["no_room"] == 1), limit),
        own=own,
    )


DIAGNOSTIC = Diagnostic(
    "no_room",
    "Room for tools' answers",
    f"Share of rollouts that end because the completion had no room for a tool's answer, above {_SHARE:.0%}, unless "
    "they do as well as the others.",
    "ours",
    lambda run: (
        None if np.isfinite(run.rows.facts["no_room"][run.rows.facts["tool_calls"] > 0]).any() else "tool calls"
    ),
    _look,
    limits=SHARE,
    position=105,
    explained_by=("infrastructure",),
    needs_calls=True,
)
