"""Rollout functions as people write them: what is recorded of each row is what the row itself noted, or it is nobody's.

Rows of a group share their prompt, answers are few, and every reward is another: rows that say the same are easily
taken for one another, and it shows.
"""

import asyncio
import itertools
import queue
import random
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from logs_ui.recorder.attribution import Attribution, Seen, attribute
from logs_ui.recorder.calls import CallLog, EnvironmentCall, Generation, Sequence, collecting
from logs_ui.recorder.current import current_row, row_scope
from logs_ui.recorder.instruments import concurrency
from logs_ui.recorder.strands import current_strand

ROWS, GROUP, TURNS = 16, 4, 3
END, HINT, NEWLINE = 90, 91, 92
ANSWERS = (50, 51)

concurrency.install()


@dataclass
class Row:
    """What a row knows of itself."""

    prompt: list[int]
    context: list[int] = field(default_factory=list)
    completion: list[int] = field(default_factory=list)
    answers: list[list[int]] = field(default_factory=list)
    rewards: list[float] = field(default_factory=list)

    def heard(self, *tokens: int) -> None:
        self.completion += tokens


class World:
    """A model and environments, as slow as chance has it; recorded as the instruments do it."""

    def __init__(self, seed: int) -> None:
        self._chance = random.Random(seed)
        self._rewards = itertools.count(1)
        self._lock = threading.Lock()
        self.rows = [Row([7, i // GROUP]) for i in range(ROWS)]

    def pause(self) -> float:
        with self._lock:
            return self._chance.choice((0.0, 0.0, 0.001, 0.002))

    def answers(self, count: int) -> list[list[int]]:
        with self._lock:
            return [[self._chance.choice(ANSWERS), END] for _ in range(count)]

    def is_over(self) -> bool:
        with self._lock:
            return self._chance.random() < 0.4

    def generate(self, contexts: list[list[int]], pause: float = 0.0) -> list[list[int]]:
        strand = current_strand()
        assert strand is not None
        begun = strand.tree.log.begin(strand, "generation")
        time.sleep(pause)
        answers = self.answers(len(contexts))
        pairs = zip(contexts, answers, strict=True)
        sequences = [Sequence(np.array(c, np.int32), np.array(a, np.int32), "stop") for c, a in pairs]
        strand.tree.log.add(Generation(begun.order, begun.began, 0.0, sequences, {}, strand=strand))
        return answers

    def call(self, client: object, kind: str, pause: float = 0.0, *, fails: bool = False) -> float:
        strand = current_strand()
        assert strand is not None
        begun = strand.tree.log.begin(strand, kind, client, b"{}")
        time.sleep(pause)
        with self._lock:
            reward = float(next(self._rewards))
        strand.tree.log.add(
            EnvironmentCall(
                begun.order, begun.began, 0.0, begun.client, kind, b"{}", b"{}", None if fails else reward, False, None,
                "ConnectionError: gone" if fails else None, strand,
            )
        )  # fmt: skip
        if fails:
            raise ConnectionError
        return reward

    def turn(self, row: Row, client: object, pause: float = 0.0) -> None:
        (answer,) = self.generate([row.prompt + row.completion], pause)
        row.heard(*answer)
        row.answers.append(answer)
        row.rewards.append(self.call(client, "step", self.pause() if pause else 0.0))

    def play(self, row: Row, client: object, *, slowly: bool = True) -> None:
        self.call(client, "reset", self.pause() if slowly else 0.0)
        for turn in range(TURNS):
            if turn:
                row.heard(HINT)
            self.turn(row, client, self.pause() if slowly else 0.0)
            if self.is_over():
                return


class Client:
    """An environment's."""


def sequential_with_a_shared_client(world: World) -> None:
    client = Client()
    for row in world.rows:
        world.play(row, client, slowly=False)


def sequential_with_a_client_each(world: World) -> None:
    for row in world.rows:
        world.play(row, Client(), slowly=False)


def batched(world: World) -> None:
    """All generate, then each is stepped."""
    answers = world.generate([row.prompt for row in world.rows])
    client = Client()
    for row, answer in zip(world.rows, answers, strict=True):
        world.call(client, "reset")
        row.heard(*answer)
        row.answers.append(answer)
        row.rewards.append(world.call(client, "step"))


def lockstep(world: World) -> None:
    clients = [Client() for _ in world.rows]
    for client in clients:
        world.call(client, "reset")
    going = list(zip(world.rows, clients, strict=True))
    for turn in range(TURNS):
        for row, _ in going if turn else ():
            row.heard(HINT)
        answers = world.generate([row.prompt + row.completion for row, _ in going])
        for (row, client), answer in zip(going, answers, strict=True):
            row.heard(*answer)
            row.answers.append(answer)
            row.rewards.append(world.call(client, "step"))
        going = [pair for pair in going if not world.is_over()]
        if not going:
            return


def round_robin(world: World) -> None:
    """One after the other, turn by turn, in one thread."""
    clients = [Client() for _ in world.rows]
    for client in clients:
        world.call(client, "reset")
    for turn in range(2):
        for row, client in zip(world.rows, clients, strict=True):
            if turn:
                row.heard(HINT)
            world.turn(row, client)


async def _async_play(world: World, row: Row, within: asyncio.Semaphore, carry: Callable[..., Any]) -> None:
    async with within:
        client = Client()
        await carry(world.call, client, "reset")
        for turn in range(TURNS):
            if turn:
                row.heard(HINT)
            (answer,) = await carry(world.generate, [row.prompt + row.completion])
            row.heard(*answer)
            row.answers.append(answer)
            row.rewards.append(await carry(world.call, client, "step"))
            if world.is_over():
                return


def _gathered(world: World, carry: Callable[..., Any], at_once: int = 5) -> None:
    async def main() -> None:
        within = asyncio.Semaphore(at_once)
        await asyncio.gather(*(_async_play(world, row, within, carry) for row in world.rows))

    asyncio.run(main())


def asyncio_with_a_semaphore(world: World) -> None:
    async def carry(function: Callable[..., Any], *args: Any) -> Any:
        await asyncio.sleep(world.pause())
        return function(*args)

    _gathered(world, carry)


def asyncio_with_a_timeout_around_each_call(world: World) -> None:
    async def carry(function: Callable[..., Any], *args: Any) -> Any:
        async def work() -> Any:
            await asyncio.sleep(world.pause())
            return function(*args)

        return await asyncio.wait_for(work(), 30)

    _gathered(world, carry)


def asyncio_to_thread(world: World) -> None:
    _gathered(world, asyncio.to_thread)


def run_in_executor(world: World) -> None:
    with ThreadPoolExecutor(4) as pool:

        async def carry(function: Callable[..., Any], *args: Any) -> Any:
            return await asyncio.get_running_loop().run_in_executor(pool, function, *args)

        _gathered(world, carry)


def thread_pool(world: World) -> None:
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda row: world.play(row, Client()), world.rows))


def threads_of_their_own(world: World) -> None:
    threads = [threading.Thread(target=lambda row=row: world.play(row, Client())) for row in world.rows]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def workers_with_a_queue(world: World) -> None:
    waiting: queue.Queue[Row] = queue.Queue()
    for row in world.rows:
        waiting.put(row)

    def work() -> None:
        client = Client()
        while True:
            try:
                row = waiting.get_nowait()
            except queue.Empty:
                return
            world.play(row, client)

    with ThreadPoolExecutor(3) as pool:
        for _ in range(3):
            pool.submit(work)


def in_shuffled_order(world: World) -> None:
    rows = random.Random(1).sample(world.rows, len(world.rows))
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda row: world.play(row, Client()), rows))


def retried(world: World) -> None:
    """A step that fails is tried again in a new episode, with the answer that is there."""
    for i, row in enumerate(world.rows):
        world.call(Client(), "reset")
        (answer,) = world.generate([row.prompt])
        row.heard(*answer)
        row.answers.append(answer)
        client = Client()
        if i % 3 == 0:
            world.call(client, "reset")
            with pytest.raises(ConnectionError):
                world.call(client, "step", fails=True)
        world.call(client, "reset")
        row.rewards.append(world.call(client, "step"))


def a_row_that_fails(world: World) -> None:
    def guarded(row: Row) -> None:
        client = Client()
        try:
            if world.rows.index(row) == 5:
                world.call(client, "reset", fails=True)
            world.play(row, client)
        except ConnectionError:
            row.heard(END)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(guarded, world.rows))


def scoped(world: World) -> None:
    def play(index: int) -> None:
        with row_scope(index) as row:
            world.play(world.rows[index], Client())
            row.note(index=index)
            row.tag("played")

    with ThreadPoolExecutor(3) as pool:
        list(pool.map(play, random.Random(2).sample(range(ROWS), ROWS)))


WHOLE = [
    sequential_with_a_shared_client, sequential_with_a_client_each, batched, lockstep, round_robin,
    asyncio_with_a_semaphore, asyncio_with_a_timeout_around_each_call, asyncio_to_thread, run_in_executor, thread_pool,
    retried, a_row_that_fails, scoped,
]  # fmt: skip
IN_PART = [threads_of_their_own, workers_with_a_queue, in_shuffled_order]


def recorded(pattern: Callable[[World], None], seed: int) -> tuple[World, Attribution]:
    world, log = World(seed), CallLog()
    with collecting(log):
        pattern(world)
    log.close()
    prompts = [np.array(row.prompt, np.int32) for row in world.rows]
    completions = [np.array(row.completion, np.int32) for row in world.rows]
    return world, attribute(prompts, completions, Seen(log.generations, log.environment_calls, log.notes))


def wrong(world: World, found: Attribution) -> list[int]:
    """Rows that hold what is not theirs."""
    strangers = []
    for index, (row, calls) in enumerate(zip(world.rows, found.rows, strict=True)):
        rewards = [c.reward for c in calls.environment_calls if c.kind == "step" and c.error is None]
        answers = [list(turn.sequence.sampled) for turn in calls.turns if turn.sequence.sampled is not None]
        if rewards not in ([], row.rewards) or answers not in ([], row.answers):
            strangers.append(index)
    return strangers


@pytest.mark.parametrize("pattern", WHOLE, ids=lambda pattern: pattern.__name__)
def test_each_call_is_its_rows(pattern: Callable[[World], None]) -> None:
    for seed in range(6):
        world, found = recorded(pattern, seed)
        assert wrong(world, found) == []
        assert found.unattributed == 0
        for row, calls in zip(world.rows, found.rows, strict=True):
            rewards = [c.reward for c in calls.environment_calls if c.kind == "step" and c.error is None]
            assert (rewards, len(calls.turns)) == (row.rewards, len(row.answers))


@pytest.mark.parametrize("pattern", IN_PART, ids=lambda pattern: pattern.__name__)
def test_what_cannot_be_told_is_nobodys(pattern: Callable[[World], None]) -> None:
    for seed in range(6):
        world, found = recorded(pattern, seed)
        assert wrong(world, found) == []
        assert sum(bool(row.environment_calls) for row in found.rows) > ROWS // 4


def test_notes_in_a_scope_are_the_rows() -> None:
    _, found = recorded(scoped, 0)
    for index, row in enumerate(found.rows):
        assert [note.values for note in row.notes] == [b'{"index":%d}' % index, b'["played"]']
        assert row.evidence == "scope"


def test_notes_outside_of_a_recorded_function_are_forgotten() -> None:
    current_row().note(a=1)
    with row_scope(0) as row:
        row.metric("x", 1.0)


def batch_then_a_pool(world: World) -> None:
    """All answers at once; then each row's environment, in no order that anyone could tell from the calls."""
    answers = world.generate([row.prompt for row in world.rows])

    def play(row: Row, answer: list[int]) -> None:
        time.sleep(world.pause())
        client = Client()
        world.call(client, "reset", world.pause())
        row.heard(*answer)
        row.answers.append(answer)
        row.rewards.append(world.call(client, "step"))

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(play, world.rows, answers))


def batch_then_threads(world: World) -> None:
    answers = world.generate([row.prompt for row in world.rows])

    def play(row: Row, answer: list[int]) -> None:
        time.sleep(world.pause())
        row.heard(*answer)
        row.answers.append(answer)
        client = Client()
        world.call(client, "reset")
        row.rewards.append(world.call(client, "step"))

    threads = [threading.Thread(target=play, args=pair) for pair in zip(world.rows, answers, strict=True)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def one_client_stepped_from_a_pool(world: World) -> None:
    answers = world.generate([row.prompt for row in world.rows])
    client = Client()
    world.call(client, "reset")

    def play(row: Row, answer: list[int]) -> None:
        time.sleep(world.pause())
        row.heard(*answer)
        row.answers.append(answer)
        row.rewards.append(world.call(client, "step"))

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(play, world.rows, answers))


@pytest.mark.parametrize("pattern", [batch_then_a_pool, batch_then_threads, one_client_stepped_from_a_pool])
def test_environments_that_are_called_side_by_side_after_one_generation(pattern: Callable[[World], None]) -> None:
    for seed in range(6):
        world, found = recorded(pattern, seed)
        assert wrong(world, found) == []
        if pattern is batch_then_a_pool:
            assert found.unattributed == 0
