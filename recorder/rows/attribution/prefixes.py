"""Writes the prompt and answer of a generation as bytes.

The context of a follow-up begins with both, concatenated: to follow a chain of turns is a comparison of prefixes.
"""

from itertools import dropwhile, takewhile
from typing import Any

import orjson

from logs_ui.recorder.capture.model_answers import Ids, Sequence
from logs_ui.recorder.rows.text_compare import plain, texts_in


def bytes_of(ids: Ids | None) -> bytes | None:
    """Return the bytes of ids; None where they are unknown."""
    return None if ids is None else ids.tobytes()


def context_of(sequence: Sequence) -> bytes | None:
    """Return the bytes of what was asked: of ids, else of messages; None where neither is known."""
    if sequence.context is not None or sequence.messages is None:
        return bytes_of(sequence.context)
    messages = orjson.loads(sequence.messages)
    return b"".join(map(_message, messages)) if isinstance(messages, list) else None


def answer_of(sequence: Sequence) -> bytes | None:
    """Return the bytes of the answer, in the form that `context_of` uses."""
    if sequence.context is not None or sequence.messages is None:
        return bytes_of(sequence.sampled)
    reply = orjson.loads(sequence.reply) if sequence.reply else None
    return _message({"role": "assistant", "content": sequence.text} | (reply if isinstance(reply, dict) else {}))


def prompt_texts(messages: bytes) -> list[str]:
    """Return the texts before the first message of the model, as they are compared."""
    texts = [
        text
        for message in takewhile(_is_before_answer, _objects(messages))
        for text in texts_in(message.get("content"))
    ]
    return [compared for text in texts if (compared := plain(text))]


def texts_after_prompt(messages: bytes) -> list[str]:
    """Return the texts from the first message of the model on."""
    return [
        text
        for message in dropwhile(_is_before_answer, _objects(messages))
        for text in texts_in(message.get("content"))
    ]


def _objects(messages: bytes) -> list[dict[str, Any]]:
    values = orjson.loads(messages)
    return [message for message in values if isinstance(message, dict)] if isinstance(values, list) else []


def _is_before_answer(message: dict[str, Any]) -> bool:
    return message.get("role") != "assistant"


def _message(message: Any) -> bytes:
    """Return the bytes of a message, without the keys that clients drop or add when they send an answer back."""
    if not isinstance(message, dict):
        return orjson.dumps(message)
    content = message.get("content") or "", message.get("tool_calls") or []
    return orjson.dumps([message.get("role"), *content], option=orjson.OPT_SORT_KEYS) + b"\n"
