"""Joins a reply that a server streams as events into the reply that it would send without streaming."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

Json = dict[str, Any]

_ENDED = ("response.completed", "response.incomplete", "response.failed")


def joined(data: bytes, parse: Callable[[str], Any]) -> Json | None:
    """Return the whole reply of server-sent events, as far as it came; None if `parse` finds no JSON in any event."""
    events = [event for source in _events(data) if isinstance(event := parse(source), dict)]
    if not events:
        return None
    response = _response(events)
    return _completion(events) if response is None else response


def _events(data: bytes) -> Iterator[str]:
    """Return the data of each event."""
    lines: list[str] = []
    # An empty line ends an event. One is added for the last event of a stream that was cut off.
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
    error = next((event for event in events if event.get("type") == "error"), None)
    # It was cut off. Of an item that is not complete, only the text is used.
    done = [i for i, event in enumerate(events) if event.get("type") == "response.output_item.done"]
    items = [events[i].get("item") for i in done]
    rest = [event for event in events[max(done, default=0) :] if event.get("type") == "response.output_text.delta"]
    # `rest` are the pieces of text that came after the last complete item.
    text = "".join(_texts(event.get("delta") for event in rest))
    if text or not items:
        items.append({"type": "message", "content": [{"type": "output_text", "text": text}]})
    return {"id": _first(_inner(events, "response"), "id"), "error": error, "output": items}


def _completion(events: list[Json]) -> Json:
    """Join the events of completions, chat completions and vLLM's tokens."""
    # The first events tell the ids, the last one tells the usage.
    return {
        **{name: _first(events, name) for name in ("id", "request_id", "prompt_token_ids", "error", "object")},
        "usage": _first(reversed(events), "usage"),
        "choices": [{"index": index, **_choice(pieces)} for index, pieces in _by_index(events, "choices")],
    }


def _choice(pieces: list[Json]) -> Json:
    # Log-probabilities are in "content" for chat completions, in the two other lists for completions.
    logprobs, deltas = [*_inner(pieces, "logprobs")], [*_inner(pieces, "delta")]
    choice: dict[str, Any] = {
        "finish_reason": _first(reversed(pieces), "finish_reason"),
        "prompt_token_ids": _first(pieces, "prompt_token_ids"),
        "token_ids": _chained(pieces, "token_ids"),
        "logprobs": {name: _chained(logprobs, name) for name in ("content", "tokens", "token_logprobs")},
        "text": _text(pieces, "text"),
    }
    if deltas:
        choice["message"] = {
            **{name: _text(deltas, name) for name in ("content", "reasoning_content", "reasoning", "refusal")},
            "tool_calls": _tool_calls(deltas),
        }
    return choice


def _tool_calls(deltas: list[Json]) -> list[Json]:
    """Join tool calls. A call comes in pieces: its name first, then its arguments bit by bit."""
    calls = []
    for _, pieces in _by_index(deltas, "tool_calls"):
        functions = [*_inner(pieces, "function")]
        function = {"name": _first(functions, "name"), "arguments": _text(functions, "arguments") or ""}
        calls.append({"id": _first(pieces, "id"), "type": "function", "function": function})
    return calls


def _by_index(events: list[Json], name: str) -> list[tuple[int, list[Json]]]:
    """Collect the pieces in a list of each event by their index, and sort them by it."""
    pieces_by_index: dict[int, list[Json]] = {}
    for event in events:
        pieces = event.get(name)
        for piece in pieces if isinstance(pieces, list) else []:
            if isinstance(piece, dict) and isinstance(index := piece.get("index", 0), int):
                pieces_by_index.setdefault(index, []).append(piece)
    return sorted(pieces_by_index.items())


def _inner(pieces: Iterable[Json], name: str) -> Iterator[Json]:
    return (inner for piece in pieces if isinstance(inner := piece.get(name), dict))


def _first(pieces: Iterable[Json], name: str) -> Any:
    return next((value for piece in pieces if (value := piece.get(name)) is not None), None)


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
