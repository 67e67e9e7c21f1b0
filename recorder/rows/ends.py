"""Finds why a row ended, and what broke it."""

from collections.abc import Sequence
from operator import attrgetter
from typing import Any

import orjson

from logs_ui.recorder.capture.calls import EnvironmentCall
from logs_ui.recorder.capture.stop_causes import reason_of_text
from logs_ui.recorder.redaction import without_keys
from logs_ui.recorder.rows.attribution import RowCalls, Turn
from logs_ui.recorder.rows.chat_parser import calls_in
from logs_ui.recorder.rows.rollout_call import RowOptions
from logs_ui.recorder.rows.row_numbers import MOVES, is_answer
from logs_ui.recorder.storage.payload import Tokens
from logs_ui.recorder.vocabulary import Status, StopReason

_CUT_OFF = (None, "abort", "content_filter", "error")  # its end was not recorded, or was not the model's decision
_done = attrgetter("done")

Moves = Sequence[EnvironmentCall]
Actions = Sequence[dict[str, Any]]
Raised = tuple[str, str | None]
"""An error, and its `raised.reason_of`."""


def end_of(row: RowCalls, moves: Moves, actions: Actions, tokens: Tokens | None, options: RowOptions) -> dict[str, Any]:
    """Return the columns about a row's end: status, stop reason and error. `actions` are its entries, as stored."""
    broken, failed = _failed_call(row), _reported(row, "error")
    failure = (without_keys(failed["error"]), failed.get("reason")) if failed else None
    unanswered = _unanswered(row, moves) if row.failures else None
    error = broken.error if broken else next((line for line, _ in filter(None, (failure, unanswered))), None)
    if broken:
        reason = error_reason(broken)
    elif failure:
        reason = _raised_reason(*failure)
    else:
        reported = _reported(row, "stop").get("reason")
        inferred = _raised_reason(*unanswered) if unanswered else _stop_reason(row, moves, actions, tokens, options)
        reason = StopReason(reported) if reported else inferred
    return {"status": Status.ERROR if error else Status.OK, "stop_reason": reason, "error": error}


def acts_by_tools(moves: Moves, options: RowOptions) -> bool:
    """True if a row can only act by calling tools: then an answer without a call ends it."""
    return {call.kind for call in moves} == {"tool"} if moves else options.offers_tools


def error_reason(call: EnvironmentCall) -> StopReason:
    """Return the stop reason of a row whose environment call raised."""
    return call.reason or reason_of_text(call.error or "") or StopReason.ENVIRONMENT_ERROR


def _stop_reason(
    row: RowCalls, moves: Moves, actions: Actions, tokens: Tokens | None, options: RowOptions
) -> StopReason:
    """Infers the stop reason from the last answer and the environment's response to it."""
    by_tools = acts_by_tools(moves, options)
    if any(map(_done, _last_episode(row, moves))):
        return StopReason.DONE
    if not row.turns:
        return StopReason.TURN_LIMIT if len(moves) > 1 else StopReason.NOT_RECORDED
    last = row.turns[-1]
    answered = bool(moves) and moves[-1].order > last.order
    # A trainer's own loop asks the model again after each call, unless a completion has no room for the tool's answer.
    if last.sequence.finish == "length" or (options.offers_tools and (answered or _is_cut(last, tokens))):
        return StopReason.LENGTH
    answer = next((entry for entry in reversed(actions) if entry["text"] is not None), {})  # a reward may follow it
    unparsed = (answer.get("metadata") or {}).get("parsed") is False
    spoke = by_tools and not answered and "tool_call" not in answer.get("text", "")  # in whatever format
    if not row.environment_calls or (spoke and not unparsed):
        return _end_of_answer(row, unparsed=unparsed)
    if not answered or unparsed:
        was_refused = options.offers_tools and not unparsed and calls_in(answer.get("text", ""))
        return StopReason.TURN_LIMIT if was_refused else StopReason.NO_ACTION
    # If an environment never reports `done`, nobody knows if it would have gone on. One of a single turn often says
    # False for ever.
    reports_end = any(call.done is not None for call in (*moves, *row.children) if call.kind in MOVES)
    reports_end = by_tools or (reports_end and len(row.turns) > 1)
    return StopReason.TURN_LIMIT if reports_end else StopReason.NOT_RECORDED


def _is_cut(turn: Turn, tokens: Tokens | None) -> bool:
    """Return True if the row's tokens end before the answer's."""
    if tokens is None or turn.start is None or turn.sequence.sampled is None:
        return False
    return turn.start + len(turn.sequence.sampled) > len(tokens.completion_ids)


def _end_of_answer(row: RowCalls, *, unparsed: bool) -> StopReason:
    """Return the stop reason of a row that ends with its last answer."""
    if not row.is_whole or row.turns[-1].sequence.finish in _CUT_OFF:
        return StopReason.NOT_RECORDED
    return StopReason.NO_ACTION if unparsed else StopReason.STOP


def _last_episode(row: RowCalls, moves: Moves) -> Moves:
    """Return the moves since the last reset, and the calls that these made."""
    if len(moves) == len(row.environment_calls) and not row.children:
        return moves
    inner = [child for child in row.children if child.kind in MOVES]
    begin = max([call.order for call in row.environment_calls if call.kind == "reset"], default=-1)
    return [call for call in (*moves, *inner) if call.order > begin]


def _reported(row: RowCalls, kind: str) -> dict[str, Any]:
    """Return the last "error" or "stop" that the function itself reported for the row; {} without any."""
    notes = [note.values for note in row.notes if note.kind == kind]
    return dict(orjson.loads(notes[-1])) if notes else {}


def _unanswered(row: RowCalls, moves: Moves) -> Raised | None:
    """Return the error of the last call of the model that plays the row, if nothing came after it and the episode was
    not over; else None. A failed call is no loss if another one, made at the same time, was answered.
    """
    last = next((failure for failure in reversed(row.failures) if row.may_end_by(failure)), None)
    if last is None or last.error is None or any(call.order > last.order for call in row.environment_calls):
        return None
    if any(turn.generation.began + (turn.generation.seconds or 0.0) > last.began for turn in row.turns):
        return None
    return None if any(map(_done, _last_episode(row, moves))) else (without_keys(last.error), last.reason)


def _raised_reason(error: str, reason: str | None) -> StopReason:
    """Return the stop reason of an error that did not come from an environment."""
    timed_out = StopReason.TIMEOUT in (reason, reason_of_text(error))
    return StopReason.TIMEOUT if timed_out else StopReason.EXCEPTION


def _failed_call(row: RowCalls) -> EnvironmentCall | None:
    """Return the last environment call if it failed, unless the model answered after it; else None."""
    last = row.environment_calls[-1] if row.environment_calls else None
    if last is None or not last.error or (row.turns and row.turns[-1].order > last.order):
        return None
    return None if is_answer(last, row) else last
