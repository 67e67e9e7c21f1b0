"""Runs by scripted policies."""

import random
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from logs_ui.recorder.storage.payload import Tokens
from logs_ui.recorder.vocabulary import Mode
from tests.faults.recording import record
from tests.faults.runs import Rollout, Run, Turn


@dataclass(frozen=True)
class Shape:
    """How large a run is, and how much of it is recorded.

    Attributes:
        groups: of each step.
        size: rollouts of a group.
        tasks: how many there are; 0: none is named.
        ended: whether the run was finished.
        low, high: what the worst and the best rollout are paid.
        tokens: whether ids and log-probs are recorded.
        config: the run's.
        scalars: what is logged, by name: at each step the same, or that of the progress from 0 to 1.
        evaluated: plays the rollouts of an evaluation, with as many groups as a step has; None: there is none.
        every: steps between two evaluations.
        attempts: rollouts of a group in an evaluation; None: as many as in the training.
    """

    steps: int = 8
    groups: int = 4
    size: int = 4
    tasks: int = 4
    mode: Mode = Mode.TRAIN
    ended: bool = True
    low: float = 0.0
    high: float = 1.0
    tokens: bool = True
    config: Mapping[str, Any] = field(default_factory=dict)
    scalars: Mapping[str, float | Callable[[float], float]] = field(default_factory=dict)
    evaluated: "Script | None" = None
    every: int = 4
    attempts: int | None = None

    def paid(self, quality: float | None) -> float | None:
        """A reward of a quality from 0 to 1."""
        return None if quality is None else self.low + quality * (self.high - self.low)


@dataclass(frozen=True)
class Place:
    """Which rollout it is.

    Attributes:
        step: from 1.
        group: in its step.
        generation: in its group.
        number: of all, from 0.
        task: its number; of all of a group the same.
        progress: 0 at the first step, 1 at the last.
        random: its own; the same in every run.
    """

    step: int
    group: int
    generation: int
    number: int
    task: int
    progress: float
    random: random.Random


@dataclass(frozen=True)
class Played:
    """One rollout.

    Attributes:
        quality: 0 to 1, what its reward is made of; None: none is given.
        parts: rewards of several functions in place of one, as they are paid.
        weights: of those.
        stop: why it ended, where its turns do not show it.
        logprob: mean of its tokens.
        raises: what the exception that ended it says; it has no reward then.
        ids: of its completion; None: made of its texts.
        prompt: ids of its prompt; None: made of task and group.
        task: its name, in place of the group's.
        asked: the text of its prompt; None: made of task and group.
        context: the text of a user message before it; None: there is none.
        system: the system message before it; None: there is none.
        sent: system message and texts that the model was sent in their place; None: those.
        policy_step, staleness, metadata, eval: see `Rollout`.
        is_hit: True if the planted fault changed what is recorded of it.
    """

    turns: Sequence[Turn]
    quality: float | None = 0.0
    parts: Mapping[str, float | None] | None = None
    weights: Mapping[str, float] | None = None
    stop: str | None = None
    logprob: float = -0.8
    raises: str | None = None
    ids: Sequence[int] | None = None
    prompt: Sequence[int] | None = None
    task: str | None = None
    asked: str | None = None
    context: str | None = None
    system: str | None = None
    sent: tuple[str | None, *tuple[str, ...]] | None = None
    policy_step: int | None = None
    staleness: int | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict)
    is_hit: bool = False
    eval: str | None = None


Script = Callable[[Place], Played]


def play(db: Path, script: Script, shape: Shape) -> None:
    """Record a run of that shape, every rollout as the script has it."""
    record(db, generated(script, shape))


def generated(script: Script, shape: Shape) -> Run:
    """Return a run of that shape, every rollout as the script has it."""
    rollouts: list[Rollout] = []
    evaluation: list[Rollout] = []
    scalars: dict[str, dict[int, float]] = {name: {} for name in shape.scalars}
    for step in range(1, shape.steps + 1):
        progress = (step - 1) / max(shape.steps - 1, 1)
        for name, value in shape.scalars.items():
            scalars[name][step] = value(progress) if callable(value) else value
        rollouts += _step(step, script, shape, len(rollouts), f"{step}")
        if shape.evaluated is not None and step % shape.every == 0:
            alike = shape if shape.attempts is None else replace(shape, size=shape.attempts)
            evaluation += _step(step, shape.evaluated, alike, len(evaluation), f"evaluation {step}")
    return Run(
        "planted", "planted", rollouts, scalars, shape.config, mode=shape.mode, has_ended=shape.ended,
        evaluation=evaluation,
    )  # fmt: skip


def _step(step: int, script: Script, shape: Shape, number: int, seed: str) -> Iterator[Rollout]:
    """Yield the rollouts of one step; `number` is how many came before."""
    progress = (step - 1) / max(shape.steps - 1, 1)
    for group in range(shape.groups):
        for generation in range(shape.size):
            task = (step * shape.groups + group) % max(shape.tasks, 1)
            dice = random.Random(f"{seed}/{group}/{generation}")
            place = Place(step, group, generation, number, task, progress, dice)
            yield _rollout(place, script(place), shape)
            number += 1


def _rollout(place: Place, played: Played, shape: Shape) -> Rollout:
    values = {"solved": shape.paid(played.quality)} if played.parts is None else played.parts
    asked = played.asked or f"Task {place.task}, game {place.group} of step {place.step}."
    return Rollout(
        place.step, place.group, place.generation, played.task or (f"task {place.task}" if shape.tasks else None),
        _messages(played.system, *filter(None, [played.context, asked])), played.turns,
        None if played.raises is not None else values, weights=None if played.parts is None else played.weights,
        tokens=_tokens(place, played) if shape.tokens else None, stop=played.stop, raises=played.raises,
        policy_step=played.policy_step, staleness=played.staleness, metadata=played.metadata,
        is_hit=played.is_hit, eval=played.eval, sent=None if played.sent is None else _messages(*played.sent),
    )  # fmt: skip


def _messages(system: str | None, *asked: str) -> list[dict[str, str]]:
    first = [{"role": "system", "content": system}] if system else []
    return [*first, *({"role": "user", "content": text} for text in asked)]


def _tokens(place: Place, played: Played) -> Tokens:
    words = [word for turn in played.turns for word in turn.text.split()]
    ids = played.ids or [zlib.crc32(word.encode()) % 50_000 for word in words] or [2]
    prompt = played.prompt or [1, place.step, place.group, place.task]
    noise = [played.logprob * place.random.uniform(0.5, 1.5) for _ in ids]
    return Tokens(np.array(prompt, np.int32), np.array(ids, np.int32), np.array(noise, np.float16), None)
