"""Extracts the searchable texts of a rollout, separately by who wrote them."""

from collections.abc import Iterator
from typing import Any

from logs_ui.recorder.storage.payload import first_answer, unpack_content
from logs_ui.recorder.storage.search_tables import COLUMNS
from logs_ui.recorder.vocabulary import SCORING

Parts = tuple[str, ...]
"""The texts of a rollout, in the order of `search_tables.COLUMNS`."""


def parts_of(turns: int | None, error: str | None, content: bytes | None, start: bytes | None) -> Parts:
    """Join the texts of a rollout, each once per column. The payload and its start are packed; a damaged one counts
    as empty.

    - tool: what came back: messages after the model's first answer, observations, and errors of calls;
    - assistant: what the model wrote from its first answer on: messages, reasoning, tool calls, and its actions;
    - prompt: the messages before the model's first answer;
    - other: the rollout's error, errors of model calls, and calls of reward functions.
    """
    try:
        unpacked = unpack_content(content, start)
    except Exception:  # noqa: BLE001 - zstd and JSON each raise errors of their own for damaged bytes
        unpacked = {}
    tool, assistant, prompt, other = columns = [list[str]() for _ in COLUMNS]
    other.append(error or "")
    messages = list(_dicts(unpacked.get("messages")))
    first = first_answer(messages, turns)
    for index, message in enumerate(messages):
        column = prompt if index < first else assistant if message.get("role") == "assistant" else tool
        column += _of_message(message)
    for action in _dicts(unpacked.get("actions")):
        outgoing, incoming = (other, other) if action.get("phase") == SCORING else (assistant, tool)
        outgoing += _of_fields(action, "text", "action")
        # The observation of a reset usually is the prompt, or a part of it.
        earlier = () if action.get("turn") else prompt
        incoming += (text for text in _of_fields(action, "observation", "error") if text not in earlier)
        if isinstance(call := action.get("generation"), dict):
            other += _strings(call.get("error"))
    # Most observations of an environment are messages, too.
    return tuple("\n".join(dict.fromkeys(filter(None, texts))) for texts in columns)


def _dicts(values: Any) -> Iterator[dict[str, Any]]:
    return (value for value in values if isinstance(value, dict)) if isinstance(values, list) else iter(())


def _of_message(message: dict[str, Any]) -> Iterator[str]:
    yield from _of_fields(message, "content", "reasoning_content", "reasoning")
    calls = message.get("tool_calls")
    for call in calls if isinstance(calls, list) else ():
        yield from _strings(call.get("function") if isinstance(call, dict) else call)


def _of_fields(value: dict[str, Any], *names: str) -> Iterator[str]:
    for name in names:
        yield from _strings(value.get(name))


def _strings(value: Any) -> Iterator[str]:
    """Return all strings in a tree of JSON, without the names of fields, and without the hashes of images."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        if "$image" not in value:
            for item in value.values():
                yield from _strings(item)
    elif isinstance(value, list):
        for item in value:
            yield from _strings(item)
