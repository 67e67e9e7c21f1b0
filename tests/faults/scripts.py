"""Runs by scripted policies: each rollout is told to the recorder turn by turn, as any own loop would."""

import random
import zlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from logs_ui.recorder import flush, start_run


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
        turns: whether turns are, or only what is asked and paid.
        config: the run's.
        scalars: what is logged, by name: at each step the same, or that of the progress from 0 to 1.
    """

    steps: int = 8
    groups: int = 4
    size: int = 4
    tasks: int = 4
    mode: str = "train"
    ended: bool = True
    low: float = 0.0
    high: float = 1.0
    tokens: bool = True
    turns: bool = True
    config: Mapping[str, Any] = field(default_factory=dict)
    scalars: Mapping[str, float | Callable[[float], float]] = field(default_factory=dict)

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
class Turn:
    """What the model answered, and what came of it."""

    text: str
    action: Any = None
    observation: Any = None
    done: bool | None = None
    error: str | None = None
    reward: float | None = None


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


class BrokenError(Exception):
    """What ends a rollout that raises."""


Script = Callable[[Place], Played]


def play(db: Path, script: Script, shape: Shape) -> None:
    """Records a run of that shape, every rollout as the script has it."""
    run = start_run("planted", eval_name="planted", config=shape.config, db=db)
    number = 0
    for step in range(1, shape.steps + 1):
        progress = (step - 1) / max(shape.steps - 1, 1)
        logged = {name: value(progress) if callable(value) else value for name, value in shape.scalars.items()}
        if logged:
            run.log(step, logged)
        for group in range(shape.groups):
            for generation in range(shape.size):
                task = (step * shape.groups + group) % max(shape.tasks, 1)
                dice = random.Random(f"{step}/{group}/{generation}")
                place = Place(step, group, generation, number, task, progress, dice)
                _record(run, place, script(place), shape)
                number += 1
    if shape.ended:
        run.finish()
    else:
        flush()


def _record(run: Any, place: Place, played: Played, shape: Shape) -> None:
    rollout = run.rollout(
        [{"role": "user", "content": f"Task {place.task}, game {place.group} of step {place.step}."}],
        task=played.task or (f"task {place.task}" if shape.tasks else None),
        step=place.step,
        mode=shape.mode,
        group=f"{place.step}/{place.group}",
        generation=place.generation,
    )
    with suppress(BrokenError), rollout as row:
        _tell(row, place, played, shape)
    if played.raises is not None:
        return
    if played.parts is not None:
        rollout.score(rewards=played.parts, weights=played.weights)
    else:
        rollout.score(rewards={"solved": shape.paid(played.quality)})


def _tell(row: Any, place: Place, played: Played, shape: Shape) -> None:
    for turn in played.turns if shape.turns else ():
        row.turn(
            turn.text,
            action=turn.action,
            observation=turn.observation,
            reward=turn.reward,
            done=turn.done,
            error=turn.error,
        )
    if shape.tokens:
        words = [word for turn in played.turns for word in turn.text.split()]
        ids = played.ids or [zlib.crc32(word.encode()) % 50_000 for word in words] or [2]
        prompt = played.prompt or [1, place.step, place.group, place.task]
        noise = [played.logprob * place.random.uniform(0.5, 1.5) for _ in ids]
        row.tokens(prompt, ids, logprobs=noise)
    if played.stop is not None:
        row.stop(played.stop)
    if played.raises is not None:
        raise BrokenError(played.raises)
