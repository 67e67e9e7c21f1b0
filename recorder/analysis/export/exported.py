"""Describes a rollout as the files of other tools need it: messages in one form, turns with their tokens, scores."""

import json
from collections import defaultdict
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from logs_ui.recorder.storage.tables import Run
from logs_ui.recorder.vocabulary import SCORING

TOKENS = ("prompt_ids", "completion_ids", "logprobs", "mask")
_ROLES = {"assistant": "assistant", "system": "system", "developer": "system", "tool": "tool", "function": "tool"}


class Turn(NamedTuple):
    """An answer of the model, and what the environment did with it."""

    place: int  # the answer's index among the messages
    call: dict[str, Any]  # `generation` of its entry in `actions`
    moves: list[dict[str, Any]]  # the environment's entries in `actions`
    span: list[int] | None  # begin and end of its tokens in the completion; None if they do not show it
    begin: int  # µs; only durations are recorded, so turns are laid end to end
    end: int


class Exported:
    """A rollout that is about to be written.

    Attributes:
        key: unique among all runs.
        columns: all but messages and tokens, without those that are None; and what an imported run's files lack.
        scores: value and weight by reward function; the value is None if it did not run, and may be NaN.
        messages: role (one of four), content (a text, or OpenAI's parts if there are images), and what else is known.
        sampled: (C,) True where the model sampled the token.
    """

    def __init__(self, row: dict[str, Any], run: Run) -> None:
        """Read a row of `frames.chunks`."""
        self.row, self.run, self.key = row, run, f"{run.uid}/{row['id']}"
        self.columns = without_none(**{name: value for name, value in row.items() if name not in ("messages", *TOKENS)})
        self.columns |= {"lacks": run.imported["lacks"]} if run.imported else {}
        values = (row["rewards"] or {}) | {name: float(odd) for name, odd in (row["odd_rewards"] or {}).items()}
        weights = row["reward_weights"] or {}
        self.scores: dict[str, tuple[float | None, float]] = {
            name: (value, weights.get(name, 1.0)) for name, value in values.items()
        }
        ids, mask = row["completion_ids"], row["mask"]
        self.sampled = np.ones(0 if ids is None else len(ids), bool) if mask is None else mask != 0
        answers = [place for place, message in enumerate(row["messages"] or ()) if message.get("role") == "assistant"]
        if row["turns"] is not None:  # a prompt may have answers, too, as examples
            answers = answers[max(0, len(answers) - row["turns"]) :]
        self.moves: dict[int, list[dict[str, Any]]] = defaultdict(list)  # by turn; 0 is the reset
        for entry in row["actions"] or ():
            if entry.get("phase") != SCORING:
                self.moves[min(entry.get("turn") or 0, len(answers))].append(entry)
        self.turns = list(self._turns(answers))
        self.messages = list(self._messages())

    def _turns(self, answers: list[int]) -> Iterator[Turn]:
        # Each run of sampled tokens has two edges, its begin and its end. If there are as many runs as answers,
        # each run is one answer.
        edges, clock = np.flatnonzero(np.diff(self.sampled, prepend=False, append=False)), self.row["created"]
        spans: Any = edges.reshape(-1, 2).tolist() if len(edges) == 2 * len(answers) else [None] * len(answers)
        for number, (place, span) in enumerate(zip(answers, spans, strict=True), 1):
            entries = self.moves[number]
            call: Any = next(
                (entry["generation"] for entry in entries if entry.get("generation") and entry.get("text") is not None),
                {},
            )
            moves = [
                entry
                for entry in entries
                if any(entry.get(key) is not None for key in ("action", "observation", "error"))
            ]
            end = clock + int(1e6 * (call.get("seconds") or 0))
            yield Turn(place, call, moves, span, clock, end)
            clock = end + int(1e6 * sum(entry.get("seconds") or 0 for entry in moves))

    def _messages(self) -> Iterator[dict[str, Any]]:
        for place, message in enumerate(self.row["messages"] or ()):
            content, role = message.get("content"), _ROLES.get(message.get("role"), "user")
            parts = [*map(_part, content if isinstance(content, list) else [] if content is None else [content])]
            text = "\n".join(part.get("text", "") for part in parts) if parts else None
            calls = [_call(call, f"call_{place}_{i}") for i, call in enumerate(message.get("tool_calls") or ())]
            yield without_none(
                role=role, content=parts if any("image_url" in part for part in parts) else text,
                name=message.get("name"),
                reasoning_content=message.get("reasoning_content") or message.get("reasoning"),
                tool_calls=calls or None,
                tool_call_id=str(message.get("tool_call_id") or "") if role == "tool" else None,
            )  # fmt: skip


def _part(part: Any) -> dict[str, Any]:
    """Return OpenAI's part: a text, or an image that has an address; JSON of anything else."""
    match part:
        case str(text) | {"text": str(text)}:
            return {"type": "text", "text": text}
        case {"image_url": {"url": str(url)}} | {"image_url": str(url)} if url:
            return {"type": "image_url", "image_url": {"url": url}}
    return {"type": "text", "text": json.dumps(part, ensure_ascii=False)}


def iso(moment: int) -> str:
    """Return a time in µs since the epoch as ISO 8601, in UTC."""
    return f"{np.datetime64(moment, 'us')}Z"


def without_none(**values: Any) -> dict[str, Any]:
    """Return the values without those that are None."""
    return {name: value for name, value in values.items() if value is not None}


def _call(call: dict[str, Any], default: str) -> dict[str, Any]:
    function = call.get("function") or call.get("custom") or call
    arguments = function.get("arguments", function.get("input", ""))
    written = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
    name_and_arguments = {"name": str(function.get("name")), "arguments": written}
    return {"id": str(call.get("id") or default), "type": "function", "function": name_and_arguments}
