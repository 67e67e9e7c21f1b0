"""Records generated rollouts by the public API, and keeps what is true of them."""

import itertools
import sqlite3
import statistics
import zlib
from collections.abc import Callable, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from random import Random
from typing import Any, Self

import httpx
import numpy as np

from logs_ui.recorder import start_run, trace_client
from tests.faults.realistic import Realistic, Rollout, Truth, Turn

_LINES = (
    "Traceback (most recent call last):", '  File "/testbed/src/core/handlers.py", line {}, in resolve',
    "    return self._cache[key]", "KeyError: 'field_{}'", "FAILED tests/test_forms.py::test_clean_{} - AssertionError",
    "PASSED tests/test_models.py::test_save_{}", "diff --git a/src/core/handlers.py b/src/core/handlers.py",
    "@@ -{},7 +{},9 @@ class Resolver:", "-        value = self.lookup(name_{})",
    "+        value = self.lookup(name_{}, None)",
    "    def get_prep_value_{}(self, value):", "        # see ticket {}", "collected {} items / 3 deselected",
)  # fmt: skip


@dataclass(frozen=True)
class Place:
    """Which rollout is to be made.

    Attributes:
        step: from 1.
        group: in its step.
        generation: in its group.
        number: of the group among all groups, from 0.
        progress: 0 at the first step, 1 at the last.
        random: the rollout's own; the same in every run.
        of_group: a generator that begins anew for each rollout of a group, so that they draw the same.
    """

    step: int
    group: int
    generation: int
    number: int
    progress: float
    random: Random
    of_group: Random


Script = Callable[[Place], Rollout]
Logged = Callable[[int], Mapping[str, float]]


@dataclass(frozen=True)
class Shape:
    """How large a run is.

    Attributes:
        weights: of the reward functions.
        logged: returns what the trainer logs at a step.
        tools: descriptions that calls of the model pass.
    """

    steps: int
    groups: int
    size: int
    weights: Mapping[str, float]
    config: Mapping[str, Any] = field(default_factory=dict)
    logged: Logged = lambda _: {}


def observed(dice: Random, size: int = 4_000) -> str:
    """Return a terminal's output of so many characters, like no other."""
    text = _noise()
    start = dice.randrange(len(text) - size)
    return text[start : start + size]


@cache
def _noise() -> str:
    dice = Random("terminal")
    return "\n".join(dice.choice(_LINES).replace("{}", str(dice.randrange(1_000))) for _ in range(8_000))


def write(db: Path, run: Realistic, shape: Shape, script: Script) -> Truth:
    """Record a run of that shape, each rollout as the script has it."""
    opened = start_run(run.id, eval_name=run.kind, model="Qwen3-8B", config=dict(shape.config), db=db)
    found: list[dict[str, Any]] = []
    scalars: dict[str, dict[int, float]] = {}
    number = 0
    with opened, _Model() as model:
        for step in range(1, shape.steps + 1):
            for group in range(shape.groups):
                rows = []
                for generation in range(shape.size):
                    place = Place(
                        step, group, generation, number, (step - 1) / max(shape.steps - 1, 1),
                        Random(f"{run.kind}/{step}/{group}/{generation}"),
                        Random(f"{run.kind}/{step}/{group}"),
                    )  # fmt: skip
                    rollout = script(place)
                    rows.append((_recorded(opened, model, place, rollout), _true(place, rollout, shape)))
                _score(rows, shape)
                found += [truth for _, truth in rows]
                number += 1
            if logged := shape.logged(step):
                opened.log(step, logged)
                for name, value in logged.items():
                    scalars.setdefault(name, {})[step] = value
    _tell_staleness(db, opened.id, found)
    return Truth(
        run.id, run.kind, opened.id, run.expected, run.since, run.also, found, shape.weights, scalars, shape.size
    )


class _Model:
    """A model behind HTTP that answers what it is told to."""

    def __init__(self) -> None:
        self.answer: dict[str, Any] = {}
        self.client = trace_client(httpx.Client(transport=httpx.MockTransport(self._reply)))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.client.close()

    def _reply(self, _: httpx.Request) -> httpx.Response:
        return httpx.Response(200, json=self.answer)

    def call(self, messages: list[Mapping[str, Any]], turn: Turn) -> None:
        message = {"role": "assistant", "content": turn.text}
        self.answer = {
            "id": "chatcmpl-1", "object": "chat.completion", "created": 1, "model": "Qwen3-8B",
            "choices": [{"index": 0, "message": message, "finish_reason": turn.finish}],
            "usage": {"prompt_tokens": 900, "completion_tokens": turn.tokens, "total_tokens": 900 + turn.tokens},
        }  # fmt: skip
        body = {"model": "Qwen3-8B", "messages": messages, "max_tokens": turn.limit, "temperature": 1.0}
        self.client.post("http://model/v1/chat/completions", json=body)


def _recorded(run: Any, model: _Model, place: Place, rollout: Rollout) -> Any:
    opened = run.rollout(
        list(rollout.prompt),
        task=rollout.task,
        step=place.step,
        mode="train",
        group=f"{place.step}/{place.group}",
        generation=place.generation,
        metadata={"dataset": dict(rollout.dataset), "metrics": dict(rollout.metrics)},
    )
    with suppress(RuntimeError), opened as row:
        _play(row, model, rollout)
        _tokens(row, place, rollout)
        if rollout.raises is not None:
            raise RuntimeError(rollout.raises)
    return opened


def _play(row: Any, model: _Model, rollout: Rollout) -> None:
    messages: list[Mapping[str, Any]] = list(rollout.prompt)
    for turn in rollout.turns:
        text: str | None = turn.text
        if turn.limit is not None:
            model.call(messages, turn)
            text = None
        row.turn(
            text, finish=turn.finish if text is not None else None, action=turn.action, observation=turn.observation,
            reward=turn.reward, done=turn.done, error=turn.error,
        )  # fmt: skip
        messages.append({"role": "assistant", "content": turn.text})
        if turn.observation is not None:
            messages.append({"role": "user", "content": str(turn.observation)})


def _tokens(row: Any, place: Place, rollout: Rollout) -> None:
    """Record the ids of prompt and completion; those of the environment are masked."""
    dice = np.random.default_rng(place.random.randrange(2**32))
    parts = []
    for turn in rollout.turns:
        parts += [np.ones(turn.tokens, np.int64)]
        parts += [] if turn.observation is None else [np.zeros(turn.heard, np.int64)]
    mask = np.concatenate(parts) if parts else np.ones(0, np.int64)
    ids = dice.integers(10, 150_000, len(mask)) if rollout.ids is None else np.array(rollout.ids)
    logprobs = None
    if rollout.nll is not None:
        logprobs = np.where(mask == 1, -dice.exponential(rollout.nll, len(mask)), 0.0)
    prompt = np.random.default_rng(zlib.crc32(rollout.task.encode())).integers(10, 150_000, 60)
    row.tokens(prompt, ids, logprobs=logprobs, mask=mask if (mask == 0).any() else None)


def _true(place: Place, rollout: Rollout, shape: Shape) -> dict[str, Any]:
    last = rollout.turns[-1] if rollout.turns else None
    cut = last if last is not None and last.finish == "length" else None
    actions = [str(turn.action) for turn in rollout.turns if turn.action is not None]
    streaks = [sum(1 for _ in same) for _, same in itertools.groupby(actions)]
    error = next((turn.error for turn in rollout.turns[-1:] if turn.error), None)
    values = rollout.values
    known = {name: value for name, value in (values or {}).items() if value is not None}
    return {
        "group": f"{place.step}/{place.group}", "generation": place.generation, "step": place.step,
        "task": rollout.task, "family": rollout.family, "values": values,
        "reward": sum(value * shape.weights[name] for name, value in known.items()) if known else None,
        "solved": rollout.solved, "truncated": cut is not None, "cut_tokens": cut and cut.tokens,
        "limit": cut and cut.limit, "errored": bool(error or rollout.raises),
        "error": error or (rollout.raises and f"RuntimeError: {rollout.raises}"),
        "staleness": rollout.staleness, "dropped": rollout.dropped, "turns": len(rollout.turns),
        "tokens": sum(turn.tokens for turn in rollout.turns), "actions": len(actions),
        "fallbacks": sum(turn.is_fallback for turn in rollout.turns),
        "streak": max(streaks, default=0), "ends_in_streak": bool(streaks) and streaks[-1] >= 3,
        "done": bool(last and last.done),
        "text": "".join(turn.text for turn in rollout.turns), "causes": rollout.causes, "advantage": None,
    }  # fmt: skip


def _score(rows: list[tuple[Any, dict[str, Any]]], shape: Shape) -> None:
    """Score a group, and compute its advantages as the trainer does: a rollout without a reward has none."""
    known = [truth["reward"] for _, truth in rows if truth["reward"] is not None]
    for row, truth in rows:
        if truth["values"] is None:
            continue
        if truth["reward"] is not None and len(known) > 1 and not truth["dropped"]:
            deviation = statistics.stdev(known)
            truth["advantage"] = (truth["reward"] - statistics.fmean(known)) / (deviation + 1e-4)
        row.score(
            rewards=truth["values"],
            weights={name: shape.weights[name] for name in truth["values"]},
            advantage=truth["advantage"],
        )


def _tell_staleness(db: Path, run: str, found: list[dict[str, Any]]) -> None:
    """Write the columns that only the process of an asynchronous trainer fills in."""
    told = [it for it in found if it["staleness"] is not None]
    if not told:
        return
    values = [
        (it["staleness"], "stale" if it["dropped"] else None, f"{run}/train/{it['group']}", it["generation"])
        for it in told
    ]
    with closing(sqlite3.connect(db)) as connection, connection:
        connection.executemany(
            'UPDATE evaluation_row SET staleness = ?, dropped = ? WHERE "group" = ? AND generation = ?', values
        )
