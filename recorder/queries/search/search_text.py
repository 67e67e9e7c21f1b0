"""Extracts the searchable text of a rollout."""

from collections.abc import Iterator
from typing import Any

from logs_ui.recorder.storage.payload import unpack_content


def text_of(error: str | None, content: bytes | None, start: bytes | None) -> str:
    """Joins all texts of a rollout, each once: messages with reasoning and tool calls, actions, observations, errors.
    The payload and its start are packed; a damaged one counts as empty.
    """
    try:
        unpacked = unpack_content(content, start)
    except Exception:  # noqa: BLE001 - zstd and JSON each raise errors of their own for damaged bytes
        unpacked = {}
    texts = [error or "", *_of_messages(unpacked.get("messages")), *_of_actions(unpacked.get("actions"))]
    # Most observations of an environment are messages, too.
    return "\n".join(dict.fromkeys(text for text in texts if text))


def _of_messages(messages: Any) -> Iterator[str]:
    for message in messages if isinstance(messages, list) else ():
        if isinstance(message, dict):
            for name in ("content", "reasoning_content", "reasoning"):
                yield from _strings(message.get(name))
            calls = message.get("tool_calls")
            for call in calls if isinstance(calls, list) else ():
                yield from _strings(call.get("function") if isinstance(call, dict) else call)


def _of_actions(actions: Any) -> Iterator[str]:
    for action in actions if isinstance(actions, list) else ():
        if isinstance(action, dict):
            for name in ("text", "action", "observation", "error"):
                yield from _strings(action.get(name))
            if isinstance(call := action.get("generation"), dict):
                yield from _strings(call.get("error"))


def _strings(value: Any) -> Iterator[str]:
    """Returns all strings in a tree of JSON, without the names of fields, and without the hashes of images."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        if "$image" not in value:
            for item in value.values():
                yield from _strings(item)
    elif isinstance(value, list):
        for item in value:
            yield from _strings(item)
