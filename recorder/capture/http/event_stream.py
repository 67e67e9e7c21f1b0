"""Joins a reply that a server streams as events into the reply that it would send without streaming."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

Json = dict[str, Any]

_ENDED = ("response.completed", "response.incomplete", "response.failed")


def joined(data: bytes, parse: Callable[[str], Any]) -> Json | None:
    """Return the whole reply, as far as it came; None if no event holds JSON.

    Args:
        data: Server-sent events.
        parse: Reads JSON; returns None for anything else.
    """
    events = [event for source in _events(data) if isinstance(event := parse(source), dict)]
    if not events:
        return None
    response = _response(events)
    return _completion(events) if response is None else response


def _events(data: bytes) -> Iterator[str]:
    """Return the data of each event."""
    lines: list[str] = []
    for line in [*data.decode(errors="replace").replace("\r\n", "\n").replace("\r", "\n").split("\n"), ""]:
        if line.startswith("data:"):
            lines.append(line.removeprefix("data:").removeprefix(" "))
        elif not line and lines:
            yield "\n".join(lines)
            lines = []


def _response(events: list[Json]) -> Json | None:
    """Return a reply of OpenAI's responses, whose last event holds all of it; None for another endpoint's events."""
    whole = [event.get("response") for event in events if event.get("type") in _ENDED]
    if whole and isinstance(whole[-1], dict):
        return whole[-1]
    if not str(events[0].get("type", "")).startswith("response."):
        return None
    text = "".join(_texts(event.get("delta") for event in events if event.get("type") == "response.output_text.delta"))
    parts = [{"type": "output_text", "text": text}]
    return {"id": _first(_inner(events, "response"), "id"), "output": [{"type": "message", "content": parts}]}


def _completion(events: list[Json]) -> Json:
    """Join the events of completions, chat completions and vLLM's tokens."""
    pieces: dict[int, list[Json]] = {}
    for event in events:
        choices = event.get("choices")
        for choice in choices if isinstance(choices, list) else []:
            if isinstance(choice, dict) and isinstance(index := choice.get("index", 0), int):
                pieces.setdefault(index, []).append(choice)
    return {
        **{name: _first(events, name) for name in ("id", "request_id", "prompt_token_ids", "error", "object")},
        "usage": _last(events, "usage"),
        "choices": [{"index": index, **_choice(pieces[index])} for index in sorted(pieces)],
    }


def _choice(pieces: list[Json]) -> Json:
    choice: dict[str, Any] = {
        "finish_reason": _last(pieces, "finish_reason"),
        "prompt_token_ids": _first(pieces, "prompt_token_ids"),
        "token_ids": _chained(pieces, "token_ids"),
        "logprobs": _logprobs([*_inner(pieces, "logprobs")]),
        "text": _text(pieces, "text"),
    }
    deltas = [*_inner(pieces, "delta")]
    if deltas:
        choice["message"] = {
            **{name: _text(deltas, name) for name in ("content", "reasoning_content", "reasoning", "refusal")},
            "tool_calls": _tool_calls(deltas),
        }
    return choice


def _logprobs(pieces: list[Json]) -> Json:
    return {name: _chained(pieces, name) for name in ("content", "tokens", "token_logprobs")}


def _tool_calls(deltas: list[Json]) -> list[Json]:
    """Join tool calls. A call comes in pieces: its name first, then its arguments bit by bit."""
    pieces: dict[int, list[Json]] = {}
    for delta in deltas:
        calls = delta.get("tool_calls")
        for call in calls if isinstance(calls, list) else []:
            if isinstance(call, dict) and isinstance(index := call.get("index", 0), int):
                pieces.setdefault(index, []).append(call)
    return [
        {
            "id": _first(pieces[index], "id"),
            "type": "function",
            "function": {
                "name": _first(_inner(pieces[index], "function"), "name"),
                "arguments": _text([*_inner(pieces[index], "function")], "arguments") or "",
            },
        }
        for index in sorted(pieces)
    ]


def _inner(pieces: Iterable[Json], name: str) -> Iterator[Json]:
    return (inner for piece in pieces if isinstance(inner := piece.get(name), dict))


def _first(pieces: Iterable[Json], name: str) -> Any:
    return next((value for piece in pieces if (value := piece.get(name)) is not None), None)


def _last(pieces: list[Json], name: str) -> Any:
    return _first(reversed(pieces), name)


def _text(pieces: list[Json], name: str) -> str | None:
    """Join the texts; None if no piece has one."""
    texts = [*_texts(piece.get(name) for piece in pieces)]
    return "".join(texts) if texts else None


def _texts(values: Iterable[Any]) -> Iterator[str]:
    return (value for value in values if isinstance(value, str))


def _chained(pieces: list[Json], name: str) -> list[Any] | None:
    """Join the lists; None if no piece has one."""
    lists = [value for piece in pieces if isinstance(value := piece.get(name), list)]
    return [item for values in lists for item in values] if lists else None
