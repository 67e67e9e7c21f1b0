"""Makes the whole conversation of a row, in OpenAI's chat form."""

from collections.abc import Iterator, Sequence
from itertools import takewhile
from operator import itemgetter
from typing import Any

import orjson

from logs_ui.recorder.capture.calls import EnvironmentCall
from logs_ui.recorder.rows import chat_parser
from logs_ui.recorder.rows.attribution import RowCalls, Turn
from logs_ui.recorder.rows.rollout_call import RolloutCall
from logs_ui.recorder.rows.row_actions import written_observation
from logs_ui.recorder.rows.row_tokens import joined_turns, known_mask
from logs_ui.recorder.snapshot import column
from logs_ui.recorder.storage.payload import Tokens

_PREVIEW = 120
_order = itemgetter(0)


def prompt_of(call: RolloutCall, i: int) -> list[dict[str, Any]]:
    """Return the messages of row `i`'s prompt."""
    return chat_parser.prompt_messages(orjson.loads(call.prompts[i]))


def messages_of(
    call: RolloutCall, i: int, row: RowCalls, tokens: Tokens | None, spelling: chat_parser.Spelling | None
) -> list[dict[str, Any]]:
    """Return a row's messages: from its tokens, else from those sent to the last generation, else from all calls."""
    if tokens is not None and spelling is not None:
        if joined := joined_turns(row, tokens):
            return chat_parser.linked(chat_parser.turns_messages(spelling, joined))
        answered = chat_parser.completion_messages(spelling, tokens.completion_ids, known_mask(row, tokens))
        return _prompt(call, i, row, tokens, spelling) + chat_parser.linked(answered)
    if not row.turns:
        return prompt_of(call, i)
    last = row.turns[-1]
    sent = last.sequence.messages
    if sent is not None:
        said = _with_reasoning(chat_parser.prompt_messages(orjson.loads(sent)), row.turns[:-1])
        return [*said, *filter(None, [_reply(last)])]
    ordered = [(turn.order, _reply(turn)) for turn in row.turns]
    ordered += [(step.order, _observed(step)) for step in row.environment_calls if step.order < last.order]
    ordered.sort(key=_order)
    return prompt_of(call, i) + chat_parser.linked([message for _, message in ordered if message is not None])


def _with_reasoning(sent: list[dict[str, Any]], turns: Sequence[Turn]) -> list[dict[str, Any]]:
    """Add the reasoning of earlier answers to the messages that were sent to the last generation: loops seldom send it
    back. If they contain as many answers as turns, the order decides; else equal texts and ids of tool calls do.
    """
    for message in sent:
        if isinstance(message.get("reasoning"), str):  # vLLM's name for it, in a message that was sent back as it came
            message.setdefault("reasoning_content", message.pop("reasoning"))
    replies = [_reply(turn) or {} for turn in turns]
    if any(reply.get("reasoning_content") for reply in replies):
        first = chat_parser.prompt_messages(orjson.loads(turns[0].sequence.messages or b"[]"))
        given = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(sent, first, strict=False)))
        own = [message for message in sent[given:] if message.get("role") == "assistant"]
        for message, reply in zip(own, replies, strict=True) if len(own) == len(replies) else _matched(own, replies):
            if reply.get("reasoning_content") and not message.get("reasoning_content"):
                message["reasoning_content"] = reply["reasoning_content"]
    return sent


def _matched(own: Sequence[dict[str, Any]], replies: Sequence[dict[str, Any]]) -> Iterator[tuple[dict[str, Any], ...]]:
    """Yields the messages with the replies that they repeat, in order."""
    said, place = [*map(_said, own)], 0
    for reply in replies:
        if _said(reply) in said[place:]:
            place = said.index(_said(reply), place) + 1
            yield own[place - 1], reply


def _said(message: dict[str, Any]) -> tuple[Any, ...]:
    calls = message.get("tool_calls")
    ids = [call.get("id") for call in calls if isinstance(call, dict)] if isinstance(calls, list) else []
    return (str(message.get("content") or "").strip(), *ids)


def preview(messages: list[dict[str, Any]]) -> str | None:
    """Return the beginning of the model's last message, else of its tool calls or its reasoning; None without any."""
    for message in reversed(messages):
        if message["role"] == "assistant":
            calls = [call.get("function", call) for call in message.get("tool_calls") or ()]  # a custom tool has none
            called = " ".join(f"{function.get('name')}({function.get('arguments')})" for function in calls)
            return column(_beginning(message.get("content") or called or message.get("reasoning_content") or ""))
    return None


def _prompt(
    call: RolloutCall, i: int, row: RowCalls, tokens: Tokens, spelling: chat_parser.Spelling
) -> list[dict[str, Any]]:
    """Return the prompt, with the observations from before the first model call, which functions append to it."""
    first = row.turns[0].order if row.turns else -1
    if not row.environment_calls or row.environment_calls[0].order >= first:
        return prompt_of(call, i)
    return spelling.prompt(call.prompts[i], tokens.prompt_ids)


def _observed(call: EnvironmentCall) -> dict[str, Any] | None:
    """Return an observation as a message: its text, or JSON if it is no text; None for a reset, or without one."""
    if call.observation is None or call.kind == "reset":
        return None
    written = written_observation(call, call.observation)
    content = orjson.loads(written) if written.startswith(b'"') else written.decode()
    return {"role": "tool" if call.kind == "tool" else "user", "content": content}


def _reply(turn: Turn) -> dict[str, Any] | None:
    sequence = turn.sequence
    if sequence.reply is not None:
        return dict(orjson.loads(sequence.reply))
    return None if sequence.text is None else chat_parser.assistant_message(sequence.text)


def _beginning(words: str) -> str:
    """Return the beginning of a text, on one line. A long text is only split further if it begins with many blanks."""
    read = 2 * _PREVIEW  # characters: some of them are blanks
    beginning = " ".join(words[:read].split())
    if len(beginning) < _PREVIEW and len(words) > read:
        beginning = " ".join(words.split(maxsplit=_PREVIEW)[:_PREVIEW])
    return beginning[:_PREVIEW]
