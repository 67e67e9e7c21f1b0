"""A model and environments as rollout functions use them, and what each row knows of itself.

Rows of a group share their prompt, answers are few, and every reward is another: rows that say the same are easily
taken for one another, and it shows.
"""

import itertools
import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import orjson
from msgspec.structs import replace

from logs_ui.recorder.capture.calls import Collector, EnvironmentCall, Generation, collecting
from logs_ui.recorder.capture.instruments import concurrency
from logs_ui.recorder.capture.model_answers import Ids, Sequence
from logs_ui.recorder.capture.strands import current_strand
from logs_ui.recorder.rows.attribution import Attribution, Seen, attribute
from logs_ui.recorder.rows.attribution.row_calls import Returned
from tests.support.exhaustive import cases

ROWS, GROUP, TURNS = 16, 4, 3
END, HINT, NEWLINE = 90, 91, 92
SIGHTS = 1_000
"""The first token of what environments show."""
FIRST = 50
"""The first token of answers."""
MODES = ((2, 0), (2, 1), (2, FIRST), (16, 1))
"""Numbers of different answers, and by how much the number that is sent is less: option 3 may be sent as 2, or as its
index in a list.
"""

concurrency.install()


@dataclass(eq=False)
class Row:
    """A row and what it did itself; `tries` are its rewards of resets and steps that came to nothing."""

    prompt: list[int]
    context: list[int] = field(default_factory=list)
    completion: list[int] = field(default_factory=list)
    answers: list[list[int]] = field(default_factory=list)
    rewards: list[float] = field(default_factory=list)
    resets: list[float] = field(default_factory=list)
    tries: list[float] = field(default_factory=list)
    sight: int = HINT

    def heard(self, *tokens: int) -> None:
        """A hint is what the environment showed last, if it shows anything."""
        self.completion += [self.sight if token == HINT else token for token in tokens]

    def said(self, answer: list[int]) -> None:
        self.completion += answer
        self.answers.append(answer)


class Client:
    """A client of an environment."""


class World:
    """A model and environments, as slow as chance has it; recorded as the instruments do it.

    Args:
        mode: see `MODES`.
        sights: how many different things environments show; 0 if they show nothing.
    """

    def __init__(
        self, seed: int, mode: tuple[int, int] = MODES[0], rows: int = ROWS, group: int = GROUP, sights: int = 0
    ) -> None:
        self._options, self._shift = mode
        self._sights = sights
        self.made: list[tuple[int, list[list[int]]]] = []  # orders of generations, and their answers
        self._chance = random.Random(seed)
        self._numbers = itertools.count(1)
        self._lock = threading.Lock()
        self.rows = [Row([7, i // group]) for i in range(rows)]

    def pause(self) -> float:
        with self._lock:
            return self._chance.choice((0.0, 0.0, 0.001, 0.002))

    def answers(self, count: int) -> list[list[int]]:
        with self._lock:
            return [[FIRST + self._chance.randrange(self._options), END] for _ in range(count)]

    def action(self, said: int) -> dict[str, int]:
        """Return what is sent to the environment after this answer."""
        return {"say": said - self._shift}

    def is_unparsable(self) -> bool:
        """True if the last answer cannot be parsed, so that it is never sent."""
        with self._lock:
            return self._chance.random() < 0.2

    def two_rows(self) -> list[Row]:
        with self._lock:
            return self._chance.sample(self.rows, 2)

    def is_over(self) -> bool:
        with self._lock:
            return self._chance.random() < 0.4

    def generate(self, contexts: list[list[int]], pause: float = 0.0) -> list[list[int]]:
        strand = current_strand()
        if strand is None:
            return self.answers(len(contexts))
        begun = strand.tree.collector.begin(strand, "generation")
        time.sleep(pause)
        answers = self.answers(len(contexts))
        pairs = zip(contexts, answers, strict=True)
        sequences = [Sequence(np.array(c, np.int32), np.array(a, np.int32), "stop") for c, a in pairs]
        self.made.append((begun.order, answers))
        strand.tree.collector.add(Generation(begun.order, begun.began, 0.0, sequences, {}, strand=strand))
        return answers

    def fail(self, context: list[int]) -> None:
        """A call of the model that raises."""
        strand = current_strand()
        assert strand is not None
        begun = strand.tree.collector.begin(strand, "generation")
        asked = np.array(context, np.int32).tobytes()
        made = Generation(begun.order, begun.began, 0.0, [], {}, strand=strand, error="E: 503", prompt=asked)
        strand.tree.collector.add(made)

    def reset(self, row: Row, client: object, pause: float = 0.0) -> None:
        row.resets.append(self.call(client, "reset", pause))

    def step(self, row: Row, client: object, pause: float = 0.0) -> None:
        """Sends what the row said last."""
        sight = self.sight()
        row.rewards.append(self.call(client, "step", pause, sent=self.action(row.answers[-1][0]), shown=sight))
        row.sight = sight

    def sight(self) -> int:
        if not self._sights:
            return HINT
        with self._lock:
            return SIGHTS + self._chance.randrange(self._sights)

    def call(
        self,
        client: object,
        kind: str,
        pause: float = 0.0,
        *,
        fails: bool = False,
        sent: object = None,
        shown: int = HINT,
    ) -> float:
        strand = current_strand()
        assert strand is not None
        action, observation = orjson.dumps(sent or {}), b"{}" if shown == HINT else orjson.dumps({"text": spelt(shown)})
        begun = strand.tree.collector.begin(strand, kind, client, action)
        time.sleep(pause)
        with self._lock:
            reward = float(next(self._numbers))
        strand.tree.collector.add(
            EnvironmentCall(
                begun.order, begun.began, 0.0, begun.client, kind, action, observation, reward, False, None,
                "ConnectionError: gone" if fails else None, strand,
            )
        )  # fmt: skip
        return reward

    def turn(self, row: Row, client: object, pause: float = 0.0) -> None:
        (answer,) = self.generate([row.prompt + row.completion], pause)
        row.said(answer)
        self.step(row, client, self.pause() if pause else 0.0)

    def play(self, row: Row, client: object, *, slowly: bool = True) -> None:
        self.reset(row, client, self.pause() if slowly else 0.0)
        for turn in range(TURNS):
            if turn:
                row.heard(HINT)
            self.turn(row, client, self.pause() if slowly else 0.0)
            if self.is_over():
                return


def answered(world: World, rows: list[Row]) -> list[Row]:
    """Return the rows, after each has answered, all in one batch."""
    for row, answer in zip(rows, world.generate([row.prompt + row.completion for row in rows]), strict=True):
        row.said(answer)
    return rows


def decode(ids: Ids) -> str:
    return " ".join(map(spelt, ids.tolist()))


def spelt(token: int) -> str:
    """Return a token in words if an environment shows it, else its number."""
    return f"a door to room {token}" if token >= SIGHTS else str(token)


def recorded(
    pattern: Callable[[World], None],
    seed: int,
    mode: tuple[int, int] = MODES[0],
    *,
    rows: int = ROWS,
    group: int = GROUP,
    sights: int = 0,
    seen_as: Callable[[Seen], Seen] = lambda seen: seen,
    returned: Callable[[World], Returned] = lambda _: {},
) -> tuple[World, Attribution]:
    """Return the world of a pattern and what attribution finds in it. Further arguments are
    those of `World`; `seen_as` changes what was seen.
    """
    world, log = World(seed, mode, rows, group, sights), Collector()
    with collecting(log):
        pattern(world)
    log.close()
    prompts = [np.array(row.prompt, np.int32) for row in world.rows]
    completions = [np.array(row.completion, np.int32) for row in world.rows]
    seen = seen_as(Seen(log.records.generations, log.records.environment_calls, log.records.notes))
    return world, attribute(prompts, completions, seen, decode, returned(world))


def worlds(alike: int) -> list[tuple[int, tuple[int, int]]]:
    """Return seeds and modes: one of each mode, and exhaustively the first mode with so many seeds."""
    every = [*enumerate(MODES[:1] * alike + MODES[1:])]
    return [*cases([*every[1 - len(MODES) :], *every[: 1 - len(MODES)]], len(MODES))]


Order = Callable[[list[Row]], list[Row]]
"""An order in which rows are played."""


def forward(rows: list[Row]) -> list[Row]:
    return rows


def backward(rows: list[Row]) -> list[Row]:
    return rows[::-1]


def shuffled(rows: list[Row]) -> list[Row]:
    return random.Random(len(rows)).sample(rows, len(rows))


def strangers(world: World, found: Attribution) -> list[int]:
    """Return the rows that have calls of other rows. A reset that was made for all rows belongs to all."""
    shared = set(range(1, 10_000)) - {n for row in world.rows for n in row.resets + row.tries}
    wrong = []
    for index, (row, calls) in enumerate(zip(world.rows, found.rows, strict=True)):
        steps = [c.reward for c in calls.environment_calls if c.kind == "step" and c.reward not in row.tries]
        resets = {c.reward for c in calls.environment_calls if c.kind == "reset"}
        answers = [turn.sequence.sampled.tolist() for turn in calls.turns if turn.sequence.sampled is not None]
        theirs = {*row.resets, *row.tries, *shared}
        if steps not in ([], row.rewards) or not resets <= theirs or not _is_subsequence(row.answers, answers):
            wrong.append(index)
    return wrong


def _is_subsequence(answers: list[list[int]], seen: list[list[int]]) -> bool:
    """True if all of the row's own answers are seen, in order, or none is; tries may lie between them."""
    left = iter(seen)
    return not seen or all(answer in left for answer in answers)


def without_ids(seen: Seen) -> Seen:
    """Return what is seen of a server that returns only texts, and is sent all messages each time."""
    generations = [replace(made, sequences=list(map(_text_of, made.sequences))) for made in seen.generations]
    return Seen(generations, seen.environment_calls, seen.notes)


def _text_of(one: Sequence) -> Sequence:
    assert one.context is not None
    assert one.sampled is not None
    prompt, *said = np.split(one.context, [2, *np.flatnonzero(one.context == END) + 1])
    messages = [{"role": "user", "content": decode(prompt)}]
    for part in filter(len, said):  # what was told, and the answer to it; at the end what was told alone
        told, answer = (part, part[:0]) if part[-1] != END else (part[:-2], part[-2:])
        messages += [{"role": "user", "content": decode(told)}] if len(told) else []
        messages += [{"role": "assistant", "content": decode(answer)}] if len(answer) else []
    return Sequence(None, None, "stop", text=decode(one.sampled), messages=orjson.dumps(messages))
