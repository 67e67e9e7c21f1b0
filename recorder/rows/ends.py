"""Finds why a row ended, and what broke it."""

from collections.abc import Sequence
from operator import attrgetter
from typing import Any

import orjson

from logs_ui.recorder.capture.calls import EnvironmentCall
from logs_ui.recorder.capture.stop_causes import reason_of_text
from logs_ui.recorder.redaction import without_keys
from logs_ui.recorder.rows.attribution import RowCalls
from logs_ui.recorder.rows.rollout_call import RowOptions
from logs_ui.recorder.rows.row_numbers import MOVES
from logs_ui.recorder.vocabulary import Status, StopReason

_CUT_OFF = (None, "abort", "content_filter", "error")  # not seen to its end, or ended by another than the model
_done = attrgetter("done")

Moves = Sequence[EnvironmentCall]
Actions = Sequence[dict[str, Any]]
Raised = tuple[str, str | None]
"""An error, and its `raised.reason_of`."""


def end_of(row: RowCalls, moves: Moves, actions: Actions, *, by_tools: bool) -> dict[str, Any]:
    """Columns that tell how it ended.

    Args:
        row: its calls.
        moves: those that the model asked its environment for.
        actions: as they are stored.
        by_tools: see `acts_by_tools`.
    """
    broken, failure = _what_broke(row), _said_error(row) if row.notes else None
    unanswered = _unanswered(row, moves) if row.failures else None
    error = broken.error if broken else next((told for told, _ in filter(None, (failure, unanswered))), None)
    if broken:
        reason = error_reason(broken)
    elif failure:
        reason = _raised_reason(*failure)
    else:
        said = _said_reason(row) if row.notes else None
        seen = _raised_reason(*unanswered) if unanswered else _stop_reason(row, moves, actions, by_tools=by_tools)
        reason = said or seen
    return {"status": Status.ERROR if error else Status.OK, "stop_reason": reason, "error": error}


def acts_by_tools(moves: Moves, options: RowOptions) -> bool:
    """True if a row can only act by calling tools: then an answer without a call ends it."""
    return {call.kind for call in moves} == {"tool"} if moves else options.offers_tools


def error_reason(call: EnvironmentCall) -> StopReason:
    """The stop reason of a row whose environment call raised."""
    return call.reason or reason_of_text(call.error or "") or StopReason.ENVIRONMENT_ERROR


def _stop_reason(row: RowCalls, moves: Moves, actions: Actions, *, by_tools: bool) -> StopReason:
    """Why it ended, from the last answer and what the environment said to it."""
    if any(map(_done, _last_episode(row, moves))):
        return StopReason.DONE
    if not row.turns:
        return StopReason.TURN_LIMIT if moves else StopReason.NOT_RECORDED
    last = row.turns[-1]
    if last.sequence.finish == "length":
        return StopReason.LENGTH
    said = next((entry for entry in reversed(actions) if entry["text"] is not None), {})  # a reward may follow it
    unparsed = (said.get("metadata") or {}).get("parsed") is False
    answered = bool(moves) and moves[-1].order > last.order
    spoke = by_tools and not answered and not _calls_a_tool(actions)
    if not row.environment_calls or (spoke and not unparsed):
        return _end_of_answer(row, unparsed=unparsed)
    if not answered or unparsed:
        return StopReason.NO_ACTION
    # Of an environment that never says whether it is over nobody knows whether it would have gone on.
    says = by_tools or any(call.done is not None for call in (*moves, *row.children) if call.kind in MOVES)
    return StopReason.TURN_LIMIT if says else StopReason.NOT_RECORDED


def _end_of_answer(row: RowCalls, *, unparsed: bool) -> StopReason:
    """The stop reason of a row that ends with its last answer."""
    if not row.is_whole or row.turns[-1].sequence.finish in _CUT_OFF:
        return StopReason.NOT_RECORDED
    return StopReason.NO_ACTION if unparsed else StopReason.STOP


def _last_episode(row: RowCalls, moves: Moves) -> Moves:
    """The moves since the last reset, and those that they made themselves."""
    if len(moves) == len(row.environment_calls) and not row.children:
        return moves
    inner = [child for child in row.children if child.kind in MOVES]
    begin = max([call.order for call in row.environment_calls if call.kind == "reset"], default=-1)
    return [call for call in (*moves, *inner) if call.order > begin]


def _calls_a_tool(actions: Actions) -> bool:
    """True if the last answer tried to call a tool, in whatever format."""
    said = next((entry["text"] for entry in reversed(actions) if entry["text"] is not None), "")
    return "tool_call" in said


def _said_error(row: RowCalls) -> Raised | None:
    """The last error that the function itself reported for the row, and its reason."""
    said = [orjson.loads(note.values) for note in row.notes if note.kind == "error"]
    return (without_keys(said[-1]["error"]), said[-1].get("reason")) if said else None


def _said_reason(row: RowCalls) -> StopReason | None:
    """The stop reason that the function itself reported; None if it did not."""
    said = [StopReason(orjson.loads(note.values)["reason"]) for note in row.notes if note.kind == "stop"]
    return said[-1] if said else None


def _unanswered(row: RowCalls, moves: Moves) -> Raised | None:
    """The error of the last call of the model that plays the row, where nothing came after it and the episode was not
    over. Of two that were asked at once, where one answered, the other is no loss.
    """
    last = next((failure for failure in reversed(row.failures) if row.may_end_by(failure)), None)
    if last is None or last.error is None or any(call.order > last.order for call in row.environment_calls):
        return None
    if any(turn.generation.began + (turn.generation.seconds or 0.0) > last.began for turn in row.turns):
        return None
    return None if any(map(_done, _last_episode(row, moves))) else (without_keys(last.error), last.reason)


def _raised_reason(error: str, reason: str | None) -> StopReason:
    """The stop reason of an error that did not come from an environment."""
    timed_out = StopReason.TIMEOUT in (reason, reason_of_text(error))
    return StopReason.TIMEOUT if timed_out else StopReason.EXCEPTION


def _what_broke(row: RowCalls) -> EnvironmentCall | None:
    """The last environment call, where it raised, unless the model was told and answered."""
    last = row.environment_calls[-1] if row.environment_calls else None
    if last is None or not last.error or (row.turns and row.turns[-1].order > last.order):
        return None
    return last
