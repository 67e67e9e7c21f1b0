"""Rollout functions as people write them: what is recorded of a row is what the row itself noted, or nobody's."""

import asyncio
import queue
import random
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.pool import ThreadPool
from typing import Any

import pytest

from logs_ui.recorder.api.row_scope import current_row, row_scope, unrecorded
from logs_ui.recorder.rows.attribution import Attribution
from tests.support.exhaustive import cases
from tests.support.troubled import TOLD, TOLD_IN_PART
from tests.support.world import (
    END,
    FIRST,
    GROUP,
    HINT,
    NEWLINE,
    ROWS,
    TURNS,
    Client,
    Row,
    World,
    answered,
    recorded,
    strangers,
    worlds,
)

Pattern = Callable[[World], None]


def sequential_with_a_shared_client(world: World) -> None:
    client = Client()
    for row in world.rows:
        world.play(row, client, slowly=False)


def sequential_with_a_client_each(world: World) -> None:
    for row in world.rows:
        world.play(row, Client(), slowly=False)


def sequential_with_inserted_newlines(world: World) -> None:
    """A token between the turns that nobody sampled and no environment said."""
    for row in world.rows:
        client = Client()
        world.reset(row, client)
        for _ in range(2):
            world.turn(row, client)
            row.heard(NEWLINE)


def batched(world: World) -> None:
    """All generate, then each is stepped."""
    client = Client()
    for row in answered(world, world.rows):
        world.reset(row, client)
        world.step(row, client)


def reset_ahead(world: World, rows: list[Row]) -> list[tuple[Row, Client]]:
    pairs = [(row, Client()) for row in rows]
    for row, client in pairs:
        world.reset(row, client)
    return pairs


def lockstep(world: World) -> None:
    going = reset_ahead(world, world.rows)
    for turn in range(TURNS):
        for row, _ in going if turn else ():
            row.heard(HINT)
        answered(world, [row for row, _ in going])
        for row, client in going:
            world.step(row, client)
        going = [pair for pair in going if not world.is_over()]
        if not going:
            return


def lockstep_with_an_answer_that_nobody_could_parse(world: World) -> None:
    """What is sent then stands in no answer of the row, and in some of others'."""
    pairs = reset_ahead(world, world.rows)
    answered(world, world.rows)
    for index, (row, client) in enumerate(pairs):
        said = FIRST if index % 5 == 0 else row.answers[-1][0]
        row.rewards.append(world.call(client, "step", sent=world.action(said)))


def chunks(world: World) -> None:
    for rows in parts(world.rows):
        _chunk(world, rows)


def parts(rows: list[Row]) -> list[list[Row]]:
    return [rows[i : i + GROUP] for i in range(0, ROWS, GROUP)]


def _chunk(world: World, rows: list[Row]) -> None:
    clients = [Client() for _ in rows]
    for row, client in zip(rows, clients, strict=True):
        world.reset(row, client, world.pause())
    answered(world, rows)
    for row, client in zip(rows, clients, strict=True):
        world.step(row, client, world.pause())


def chunks_in_a_pool(world: World) -> None:
    with ThreadPoolExecutor(3) as pool:
        list(pool.map(lambda rows: _chunk(world, rows), parts(world.rows)))


def round_robin(world: World) -> None:
    """One after the other, turn by turn, in one thread."""
    pairs = reset_ahead(world, world.rows)
    for turn in range(2):
        for row, client in pairs:
            row.heard(*[HINT] * turn)
            world.turn(row, client)


async def _async_play(world: World, row: Row, within: asyncio.Semaphore, carry: Callable[..., Any]) -> None:
    async with within:
        client = Client()
        await carry(world.reset, row, client)
        for turn in range(TURNS):
            if turn:
                row.heard(HINT)
            (answer,) = await carry(world.generate, [row.prompt + row.completion])
            row.said(answer)
            await carry(world.step, row, client)
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


def thread_pool_of_multiprocessing(world: World) -> None:
    """With several rows in one of its tasks."""
    with ThreadPool(4) as pool:
        pool.map(lambda row: world.play(row, Client()), world.rows, chunksize=3)


def thread_pool_with_one_client_for_all(world: World) -> None:
    """It has a session for each thread: a reset of one does not end the others' episodes."""
    client = Client()
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda row: world.play(row, client), world.rows))


def environments_from_a_pool(world: World) -> None:
    """Tasks that wait for one of a few environments."""

    async def main() -> None:
        free: asyncio.Queue[Client] = asyncio.Queue()
        for _ in range(4):
            free.put_nowait(Client())

        async def one(row: Row) -> None:
            client = await free.get()
            await asyncio.to_thread(world.play, row, client)
            free.put_nowait(client)

        await asyncio.gather(*map(one, world.rows))

    asyncio.run(main())


def batch_then_a_pool(world: World) -> None:
    """All answers at once; then each row's environment, side by side."""

    def play(row: Row) -> None:
        world.pause()
        client = Client()
        world.reset(row, client, world.pause())
        world.step(row, client)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(play, answered(world, world.rows)))


def lockstep_in_a_pool(world: World) -> None:
    """Each turn's generation is a batch, its steps go through a pool, as its resets did."""
    pairs = [(row, Client()) for row in world.rows]
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda pair: world.reset(pair[0], pair[1], world.pause()), pairs))
        for turn in range(2):
            for row in world.rows if turn else ():
                row.heard(HINT)
            answered(world, world.rows)
            list(pool.map(lambda pair: world.step(pair[0], pair[1], world.pause()), pairs))


def retried(world: World) -> None:
    """A step that fails is tried again in a new episode, with the answer that is there."""
    for i, row in enumerate(world.rows):
        row.tries.append(world.call(Client(), "reset"))
        (answer,) = world.generate([row.prompt])
        row.said(answer)
        client = Client()
        if i % 3 == 0:
            row.tries.append(world.call(client, "reset"))
            row.tries.append(world.call(client, "step", fails=True))
        world.reset(row, client)
        world.step(row, client)


def a_row_that_fails(world: World) -> None:
    def guarded(row: Row) -> None:
        client = Client()
        if world.rows.index(row) == 5:
            row.tries.append(world.call(client, "reset", fails=True))
            row.heard(END)
        else:
            world.play(row, client)

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


WHOLE: list[Pattern] = [
    sequential_with_a_shared_client, sequential_with_a_client_each, sequential_with_inserted_newlines, batched,
    lockstep,
    chunks, chunks_in_a_pool, round_robin, asyncio_with_a_semaphore,
    asyncio_with_a_timeout_around_each_call, asyncio_to_thread, run_in_executor, thread_pool,
    thread_pool_of_multiprocessing, thread_pool_with_one_client_for_all, environments_from_a_pool, batch_then_a_pool,
    lockstep_in_a_pool, retried, a_row_that_fails, scoped, *TOLD,
]  # fmt: skip
"""Everything of them is found."""


def threads_of_their_own(world: World) -> None:
    _in_threads(lambda row: world.play(row, Client()), world.rows)


def _in_threads(play: Callable[[Row], None], rows: Iterable[Row]) -> None:
    threads = [threading.Thread(target=play, args=(row,)) for row in rows]
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
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda row: world.play(row, Client()), shuffled(world.rows)))


def shuffled(rows: list[Row]) -> list[Row]:
    return random.Random(1).sample(rows, len(rows))


def backwards(world: World) -> None:
    for row in reversed(world.rows):
        world.play(row, Client(), slowly=False)


def shuffled_with_a_shared_client(world: World) -> None:
    client = Client()
    for row in shuffled(world.rows):
        world.play(row, client, slowly=False)


def a_batch_backwards(world: World) -> None:
    client = Client()
    for row in answered(world, world.rows[::-1]):
        world.reset(row, client)
        world.step(row, client)


def a_batch_then_its_steps_in_another_order(world: World) -> None:
    client = Client()
    for row in shuffled(answered(world, world.rows)):
        world.reset(row, client)
        world.step(row, client)


def clients_for_all_stepped_in_another_order(world: World) -> None:
    pairs = reset_ahead(world, world.rows)
    answered(world, world.rows)
    for row, client in sorted(pairs, key=lambda pair: -pair[0].answers[0][0]):
        world.step(row, client)


def one_environment_stepped_in_another_order(world: World) -> None:
    client = Client()
    world.call(client, "reset")
    for row in shuffled(answered(world, world.rows)):
        world.step(row, client)


def one_environment_stepped_from_a_pool(world: World) -> None:
    client = Client()
    world.call(client, "reset")
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda row: world.step(row, client, world.pause()), answered(world, world.rows)))


def a_batch_then_threads(world: World) -> None:
    def play(row: Row) -> None:
        client = Client()
        world.reset(row, client, world.pause())
        world.step(row, client)

    _in_threads(play, answered(world, world.rows))


def each_played_twice(world: World) -> None:
    """The second is returned."""
    for row in world.rows:
        for kept in (False, True):
            client = Client()
            reset = world.call(client, "reset")
            (answer,) = world.generate([row.prompt])
            if kept:
                row.said(answer)
            step = world.call(client, "step", sent=world.action(answer[0]))
            (row.resets if kept else row.tries).append(reset)
            (row.rewards if kept else row.tries).append(step)


def some_played_twice(world: World) -> None:
    """One try broke off in its second turn."""
    for i, row in enumerate(world.rows):
        if i % 3 == 0:
            client = Client()
            row.tries.append(world.call(client, "reset"))
            (answer,) = world.generate([row.prompt])
            row.tries.append(world.call(client, "step", sent=world.action(answer[0])))
            world.generate([[*row.prompt, *answer, HINT]])
            row.tries.append(world.call(client, "step", fails=True))
        world.play(row, Client(), slowly=False)


def some_played_twice_in_a_pool(world: World) -> None:
    def play(row: Row) -> None:
        if world.rows.index(row) % 3 == 0:
            client = Client()
            row.tries.append(world.call(client, "reset"))
            world.generate([row.prompt], world.pause())
            row.tries.append(world.call(client, "step", world.pause(), fails=True))
        world.play(row, Client())

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(play, world.rows))


def the_better_of_two_answers(world: World) -> None:
    for row in world.rows:
        client = Client()
        world.reset(row, client)
        row.said(max(world.generate([row.prompt, row.prompt])))
        world.step(row, client)


def unparsable_answers_have_no_episode(world: World) -> None:
    for row in answered(world, world.rows):
        if row.answers[-1][0] != FIRST:
            client = Client()
            world.reset(row, client)
            world.step(row, client)


def a_batch_for_each_prompt_then_a_pool(world: World) -> None:
    with ThreadPoolExecutor(4) as pool:
        for rows in parts(world.rows):

            def play(row: Row) -> None:
                client = Client()
                world.reset(row, client, world.pause())
                world.step(row, client)

            list(pool.map(play, answered(world, rows)))


def resets_ahead_in_another_order(world: World) -> None:
    pairs = [(row, Client()) for row in world.rows]
    for row, client in random.Random(1).sample(pairs, ROWS):
        world.reset(row, client)
    answered(world, world.rows)
    for row, client in pairs:
        world.step(row, client)


def resets_ahead_and_steps_in_another_order(world: World) -> None:
    pairs = reset_ahead(world, shuffled(world.rows))
    answered(world, world.rows)
    for row, client in pairs:
        world.step(row, client)


def each_call_given_to_an_executor_backwards(world: World) -> None:
    with ThreadPoolExecutor(1) as pool:
        for row in reversed(world.rows):
            client = Client()
            pool.submit(world.reset, row, client).result()
            for turn in range(2):
                row.heard(*[HINT] * bool(turn))
                (answer,) = pool.submit(world.generate, [row.prompt + row.completion]).result()
                row.said(answer)
                pool.submit(world.step, row, client).result()


IN_PART: dict[Pattern, int] = {
    threads_of_their_own: ROWS // 4, workers_with_a_queue: ROWS // 4, in_shuffled_order: ROWS // 4, backwards: 4,
    shuffled_with_a_shared_client: 4, a_batch_backwards: 0, a_batch_then_its_steps_in_another_order: 0,
    clients_for_all_stepped_in_another_order: ROWS, one_environment_stepped_in_another_order: 0,
    one_environment_stepped_from_a_pool: 0, a_batch_then_threads: 0, each_played_twice: 0, some_played_twice: 2,
    some_played_twice_in_a_pool: 2, the_better_of_two_answers: 0, unparsable_answers_have_no_episode: 0,
    a_batch_for_each_prompt_then_a_pool: ROWS, lockstep_with_an_answer_that_nobody_could_parse: 0,
    resets_ahead_in_another_order: 0, resets_ahead_and_steps_in_another_order: 0,
    each_call_given_to_an_executor_backwards: 0, **TOLD_IN_PART,
}  # fmt: skip
"""What can be told of them is found, at least in so many rows; the rest is nobody's."""


@pytest.mark.parametrize("pattern", WHOLE, ids=lambda pattern: pattern.__name__)
def test_each_call_is_its_rows(pattern: Pattern) -> None:
    for seed, mode in worlds(5):
        world, found = recorded(pattern, seed, mode)
        assert strangers(world, found) == []
        assert found.unattributed == 0
        assert with_their_steps(world, found) == sum(bool(row.rewards) for row in world.rows)
        assert all(len(calls.turns) == len(row.answers) for row, calls in zip(world.rows, found.rows, strict=True))


def with_their_steps(world: World, found: Attribution) -> int:
    """Rows that have all their steps."""
    pairs = zip(world.rows, found.rows, strict=True)
    return sum(
        bool(row.rewards) and row.rewards[-1] in {c.reward for c in calls.environment_calls} for row, calls in pairs
    )


@pytest.mark.parametrize("pattern", IN_PART, ids=lambda pattern: pattern.__name__)
def test_what_cannot_be_told_is_nobodys(pattern: Pattern) -> None:
    for seed, mode in worlds(9):
        world, found = recorded(pattern, seed, mode)
        assert strangers(world, found) == []
        assert with_their_steps(world, found) >= IN_PART[pattern]


def test_an_answer_that_nobody_could_parse_does_not_hide_what_the_others_show() -> None:
    for seed in cases(range(6), 2):
        _, found = recorded(lockstep_with_an_answer_that_nobody_could_parse, seed)
        assert found.unattributed == 0


def test_notes_in_a_scope_are_the_rows() -> None:
    _, found = recorded(scoped, 0)
    for index, row in enumerate(found.rows):
        assert [note.values for note in row.notes] == [b'{"index":%d}' % index, b'["played"]']
        assert row.evidence == "scope"


def test_notes_outside_of_a_recorded_function_are_forgotten() -> None:
    current_row().note(a=1)
    with row_scope(0) as row:
        row.metric("x", 1.0)
    with unrecorded():
        current_row().tag("forgotten")


def test_what_is_not_to_be_recorded_is_not_in_its_tasks_and_executors_either() -> None:
    def judged(world: World) -> None:
        with unrecorded(), ThreadPoolExecutor(1) as pool:
            world.generate([[1, 2]])
            pool.submit(world.generate, [[1, 2]]).result()
            asyncio.run(asyncio.to_thread(world.generate, [[1, 2]]))
        lockstep(world)

    world, found = recorded(judged, 0)
    assert (strangers(world, found), found.unattributed) == ([], 0)


def test_twins_that_said_in_their_scopes_what_they_did_keep_it() -> None:
    """One batch for all rows, whose first answers are alike; then each row's environment in its own scope."""

    def scoped_steps(world: World) -> None:
        answered(world, world.rows[::-1])
        for index in shuffled_places():
            row, client = world.rows[index], Client()
            with row_scope(index):
                world.reset(row, client)
                world.step(row, client)

    for seed in cases(range(6), 2):
        world, found = recorded(scoped_steps, seed)
        assert (strangers(world, found), found.unattributed) == ([], 0)
        assert with_their_steps(world, found) == ROWS


def shuffled_places() -> list[int]:
    return random.Random(3).sample(range(ROWS), ROWS)
