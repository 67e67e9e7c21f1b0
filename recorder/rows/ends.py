"""Finds why a row ended, and what broke it."""

from collections.abc import Sequence
from operator import attrgetter
from typing import Any

import orjson

from logs_ui.recorder.action_text import tool_of
from logs_ui.recorder.capture.calls import EnvironmentCall
from logs_ui.recorder.capture.stop_causes import reason_of_text
from logs_ui.recorder.redaction import without_keys
from logs_ui.recorder.rows.attribution import RowCalls, Turn
from logs_ui.recorder.rows.chat_parser import calls_in
from logs_ui.recorder.rows.numbers import MOVES, is_answer
from logs_ui.recorder.rows.rollout_call import RowOptions
from logs_ui.recorder.storage.payload import Tokens
from logs_ui.recorder.vocabulary import Status, StopReason

_CUT_OFF = (None, "abort", "content_filter", "error")  # its end was not recorded, or was not the model's decision
_done = attrgetter("done")

Moves = Sequence[EnvironmentCall]
Actions = Sequence[dict[str, Any]]
Raised = tuple[str, str | None]
"""An error, and its `raised.reason_of`."""


def end_of(
    row: RowCalls, moves: Moves, actions: Actions, tokens: Tokens | None, options: RowOptions, *, by_tools: bool
) -> dict[str, Any]:
    """Return the columns about a row's end: status, stop reason, error, and whether a tool's answer had no room.
    `actions` are its stored entries, and `by_tools` says if it `acts_by_tools`.
    """
    broken, failed = _failed_call(row), _read_reported(row, "error")
    failure = (without_keys(failed["error"]), failed.get("reason")) if failed else None
    unanswered = _find_unanswered(row, moves) if row.failures else None
    error = broken.error if broken else next((line for line, _ in filter(None, (failure, unanswered))), None)
    # The first that applies decides: a call of the environment that broke the row, what the function reported
    # itself, a call of the model that failed last, and otherwise what the calls show.
    if broken:
        reason = error_reason(broken)
    elif failure:
        reason = _raised_reason(*failure)
    elif reported := _read_reported(row, "stop").get("reason"):
        reason = StopReason(reported)
    elif unanswered:
        reason = _raised_reason(*unanswered)
    else:
        reason = _stop_reason(row, moves, actions, tokens, options, by_tools=by_tools)
    # The last answer is whole, and no token of the row follows it: a tool's answer to it would have followed.
    is_whole = bool(row.turns) and row.turns[-1].sequence.finish == "stop" and _room(row.turns[-1], tokens) == 0
    no_room = int(options.offers_tools and reason == StopReason.LENGTH and is_whole) if row.turns else None
    return {"status": Status.ERROR if error else Status.OK, "stop_reason": reason, "error": error, "no_room": no_room}


def acts_by_tools(row: RowCalls, moves: Moves, actions: Actions, options: RowOptions) -> bool:
    """Return True if a row can only act by calling tools: then an answer without a call ends it. A step is a call if
    the answer before it holds calls; or if its action names a tool, unless the last answer may be a broken call.
    """
    if not moves or {call.kind for call in moves} == {"tool"}:
        return bool(moves) or options.offers_tools
    acting = [entry for entry in actions if entry["turn"] and entry["action"] is not None]
    are_held = True
    for entry in acting:
        if not (row.turns and _holds_calls(row.turns[entry["turn"] - 1], entry["text"])):
            are_held = False
            if not tool_of(entry["action"]):
                return False
    return bool(acting) and (are_held or "{" not in _last_answer(actions).get("text", ""))


def ended_well(actions: Actions) -> Actions:
    """Return the entries of a row that its last answer ended: that one is no action that could not be parsed."""
    last = _last_answer(actions)
    return [
        action | {"metadata": {**(action["metadata"] or {}), "parsed": True}} if action is last else action
        for action in actions
    ]


def error_reason(call: EnvironmentCall) -> StopReason:
    """Return the stop reason of a row whose environment call raised."""
    return call.reason or reason_of_text(call.error or "") or StopReason.ENVIRONMENT_ERROR


def _stop_reason(
    row: RowCalls, moves: Moves, actions: Actions, tokens: Tokens | None, options: RowOptions, *, by_tools: bool
) -> StopReason:
    """Infer the stop reason from the last answer and the environment's response to it."""
    if any(map(_done, _last_episode(row, moves))):
        return StopReason.DONE
    # If an environment never reports `done`, nobody knows if it would have gone on. One of a single turn often says
    # False for ever.
    reports_end = any(call.done is not None for call in (*moves, *row.children) if call.kind in MOVES)
    at_limit = StopReason.TURN_LIMIT if reports_end and len(row.turns or moves) > 1 else StopReason.NOT_RECORDED
    if not row.turns:
        return at_limit
    last = row.turns[-1]
    answered = any(call.order > last.order and not _is_reward(call) for call in moves)
    # A trainer's own loop asks the model again after each call, unless a completion has no room for the tool's answer.
    if last.sequence.finish == "length" or (options.offers_tools and (answered or _room(last, tokens) < 0)):
        return StopReason.LENGTH
    answer = _last_answer(actions)
    unparsed = (answer.get("metadata") or {}).get("parsed") is False
    calls = _holds_calls(last, answer.get("text"))
    spoke = by_tools and not (answered or calls or unparsed or "tool_call" in answer.get("text", ""))  # in any format
    if spoke or all(map(_is_reward, row.environment_calls)):
        return _end_of_answer(row, unparsed=unparsed, spoke=spoke)
    if not answered or unparsed:
        return StopReason.TURN_LIMIT if by_tools and calls and not unparsed else StopReason.NO_ACTION
    return at_limit


def _is_reward(call: EnvironmentCall) -> bool:
    """Return True for a reward that came without an action."""
    return call.kind == "step" and (call.sent, call.observation, call.error) == (b"null", None, None)


def _last_answer(actions: Actions) -> dict[str, Any]:
    return next((entry for entry in reversed(actions) if entry["text"] is not None), {})  # a reward may follow it


def _holds_calls(turn: Turn, text: str | None) -> bool:
    """Return True if an answer holds calls of tools: those of its message, or those in its text that can be read."""
    return b'"tool_calls"' in (turn.sequence.reply or b"") or calls_in(text or "")


def _room(turn: Turn, tokens: Tokens | None) -> float:
    """Return the number of the row's tokens after an answer; below 0 if they end before it does; NaN if not known."""
    if tokens is None or turn.start is None or turn.sequence.sampled is None:
        return float("nan")
    return len(tokens.completion_ids) - turn.start - len(turn.sequence.sampled)


def _end_of_answer(row: RowCalls, *, unparsed: bool, spoke: bool) -> StopReason:
    """Return the stop reason of a row that ends with its last answer."""
    last = row.turns[-1]  # if it was reported by hand and called no tool, that ended the loop, and nobody has to say so
    by_hand = spoke and last.generation.seam == "turn" and last.sequence.finish is None
    if not row.is_whole or (last.sequence.finish in _CUT_OFF and not by_hand):
        return StopReason.NOT_RECORDED
    return StopReason.NO_ACTION if unparsed else StopReason.STOP


def _last_episode(row: RowCalls, moves: Moves) -> Moves:
    """Return the moves since the last reset, and the calls that these made."""
    if len(moves) == len(row.environment_calls) and not row.children:
        return moves
    inner = [child for child in row.children if child.kind in MOVES]
    begin = max([call.order for call in row.environment_calls if call.kind == "reset"], default=-1)
    return [call for call in (*moves, *inner) if call.order > begin]


def _read_reported(row: RowCalls, kind: str) -> dict[str, Any]:
    """Return the last "error" or "stop" that the function itself reported for the row; {} without any."""
    notes = [note.values for note in row.notes if note.kind == kind]
    return dict(orjson.loads(notes[-1])) if notes else {}


def _find_unanswered(row: RowCalls, moves: Moves) -> Raised | None:
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
