"""Makes the whole conversation of a row, in OpenAI's chat form."""

from collections.abc import Iterator, Sequence
from itertools import takewhile
from operator import itemgetter
from typing import Any

import orjson

from logs_ui.recorder.capture.calls import EnvironmentCall
from logs_ui.recorder.rows import chat_parser
from logs_ui.recorder.rows.actions import written_observation
from logs_ui.recorder.rows.attribution import RowCalls, Turn
from logs_ui.recorder.rows.rollout_call import RolloutCall
from logs_ui.recorder.rows.sent_prompt import compare_messages, compare_prompt
from logs_ui.recorder.rows.tokens import joined_turns, known_mask
from logs_ui.recorder.snapshot import column
from logs_ui.recorder.storage.payload import Tokens
from logs_ui.recorder.vocabulary import SentPrompt

_PREVIEW = 120
_order = itemgetter(0)


def prompt_of(call: RolloutCall, index: int) -> list[dict[str, Any]]:
    """Return the messages of row `index`'s prompt."""
    return chat_parser.prompt_messages(orjson.loads(call.prompts[index]))


def messages_of(
    call: RolloutCall, index: int, row: RowCalls, tokens: Tokens | None, spelling: chat_parser.Spelling | None
) -> tuple[list[dict[str, Any]], SentPrompt | None]:
    """Return a row's messages, from its tokens, else from those sent to the last generation, else from all calls; and
    how far the prompt in them is the dataset's, None if nothing tells what was sent.
    """
    if tokens is not None and spelling is not None:
        joined = joined_turns(row, tokens)
        # The prompt that was sent is the context of the answer with which the completion begins; the function may
        # have returned other ids as its prompt.
        heard = (turn.sequence.context for turn in row.turns if turn.start == 0)
        sent_ids = next((ids for ids in heard if ids is not None), tokens.prompt_ids)
        prompt, kind = spelling.prompt(call.prompts[index], sent_ids)
        if joined:
            spelled = ((spelling.whole(ids), spelling.whole(sampled), spelling.of(sampled)) for ids, sampled in joined)
            return chat_parser.linked(chat_parser.turns_messages(spelled, prompt)), kind
        answered = chat_parser.completion_messages(spelling, tokens.completion_ids, known_mask(row, tokens))
        return prompt + chat_parser.linked(answered), kind
    prompt_given = prompt_of(call, index)
    if not row.turns:
        return prompt_given, None
    sequences = [turn.sequence for turn in row.turns]
    # Each request was one text and no list of messages: its JSON begins with a quote.
    if all(sequence.text is not None and (sequence.messages or b"").startswith(b'"') for sequence in sequences):
        texts = [(orjson.loads(sequence.messages or b""), sequence.text or "") for sequence in sequences]
        whole = texts[0][0]
        prompt, kind = compare_prompt(prompt_given, chat_parser.templated(whole, with_open=True), whole)
        spelled = ((context, sampled, sampled) for context, sampled in texts)
        return chat_parser.linked(chat_parser.turns_messages(spelled, prompt)), kind
    last, first = row.turns[-1], _sent(row.turns[0])
    if last.sequence.messages is not None:
        sent = _sent(last)
        # A planner's call, or what was summarised, is not in what was sent last.
        kind = compare_messages(prompt_given, first if first and sent[: len(first)] == first else sent)
        return [*_with_reasoning(sent, row.turns[:-1]), *filter(None, [_reply(last)])], kind
    ordered = [(turn.order, _reply(turn)) for turn in row.turns]
    ordered += [(step.order, _observation_message(step)) for step in row.environment_calls if step.order < last.order]
    ordered.sort(key=_order)
    kind = compare_messages(prompt_given, first) if first else None
    return (first or prompt_given) + chat_parser.linked(
        [message for _, message in ordered if message is not None]
    ), kind


def _sent(turn: Turn) -> list[dict[str, Any]]:
    """Return the messages that a client sent; none if they are not known."""
    return chat_parser.prompt_messages(orjson.loads(turn.sequence.messages or b"[]"))


def _with_reasoning(sent: list[dict[str, Any]], turns: Sequence[Turn]) -> list[dict[str, Any]]:
    """Add the reasoning of earlier answers to the messages that were sent to the last generation: loops seldom send it
    back. If they contain as many answers as turns, the order decides; else equal texts and ids of tool calls do.
    """
    for message in sent:
        if isinstance(message.get("reasoning"), str):  # vLLM's name for it, in a message that was sent back as it came
            message.setdefault("reasoning_content", message.pop("reasoning"))
    replies = [_reply(turn) or {} for turn in turns]
    if any(reply.get("reasoning_content") for reply in replies):
        common = takewhile(lambda pair: pair[0] == pair[1], zip(sent, _sent(turns[0]), strict=False))
        count = sum(1 for _ in common)
        answers = [message for message in sent[count:] if message.get("role") == "assistant"]
        for message, reply in (
            zip(answers, replies, strict=True) if len(answers) == len(replies) else _match_replies(answers, replies)
        ):
            if reply.get("reasoning_content") and not message.get("reasoning_content"):
                message["reasoning_content"] = reply["reasoning_content"]
    return sent


def _match_replies(
    answers: Sequence[dict[str, Any]], replies: Sequence[dict[str, Any]]
) -> Iterator[tuple[dict[str, Any], ...]]:
    """Yield the messages with the replies that they repeat, in order."""
    texts, place = [*map(_content_and_ids, answers)], 0
    for reply in replies:
        if _content_and_ids(reply) in texts[place:]:
            place = texts.index(_content_and_ids(reply), place) + 1
            yield answers[place - 1], reply


def _content_and_ids(message: dict[str, Any]) -> tuple[Any, ...]:
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


def _observation_message(call: EnvironmentCall) -> dict[str, Any] | None:
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
