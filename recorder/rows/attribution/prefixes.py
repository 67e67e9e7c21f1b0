"""What a generation was given and what it answered, as bytes: what goes on from it was given both in a row."""

from itertools import dropwhile, takewhile
from typing import Any

import orjson

from logs_ui.recorder.capture.calls import Ids, Sequence
from logs_ui.recorder.rows.attribution.text_compare import plain, texts_in


def bytes_of(ids: Ids | None) -> bytes | None:
    """None for those that are not known."""
    return None if ids is None else ids.tobytes()


def context_of(sequence: Sequence) -> bytes | None:
    """Of ids; where the server returned none, of messages; None where it was given neither."""
    if sequence.context is not None or sequence.messages is None:
        return bytes_of(sequence.context)
    messages = orjson.loads(sequence.messages)
    return b"".join(map(_message, messages)) if isinstance(messages, list) else None


def answer_of(sequence: Sequence) -> bytes | None:
    """As `context_of` has what it was given."""
    if sequence.context is not None or sequence.messages is None:
        return bytes_of(sequence.sampled)
    reply = orjson.loads(sequence.reply) if sequence.reply else None
    return _message({"role": "assistant", "content": sequence.text} | (reply if isinstance(reply, dict) else {}))


def told_first(messages: bytes) -> list[str]:
    """What stands in these before the model first spoke, as it is compared."""
    told = [text for one in takewhile(_is_told, _objects(messages)) for text in texts_in(one.get("content"))]
    return [said for text in told if (said := plain(text))]


def said_after_the_prompt(messages: bytes) -> list[str]:
    """What the model said in these, and was told since it first spoke."""
    return [text for one in dropwhile(_is_told, _objects(messages)) for text in texts_in(one.get("content"))]


def _objects(messages: bytes) -> list[dict[str, Any]]:
    found = orjson.loads(messages)
    return [message for message in found if isinstance(message, dict)] if isinstance(found, list) else []


def _is_told(message: dict[str, Any]) -> bool:
    return message.get("role") != "assistant"


def _message(message: Any) -> bytes:
    """Without what clients leave out, or add, when they send an answer back."""
    if not isinstance(message, dict):
        return orjson.dumps(message)
    said = message.get("content") or "", message.get("tool_calls") or []
    return orjson.dumps([message.get("role"), *said], option=orjson.OPT_SORT_KEYS) + b"\n"
