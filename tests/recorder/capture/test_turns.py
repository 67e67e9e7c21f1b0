"""Rollout functions that send each turn of all rows through a pool, or gather it: no task and no thread is a row's."""

import asyncio
import random
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from logs_ui.recorder.api.row_scope import current_row
from logs_ui.recorder.rows.attribution import Attribution
from tests.recorder.rows.attribution import test_patterns
from tests.recorder.rows.attribution.test_cut_off import cut_off
from tests.support.exhaustive import cases
from tests.support.world import GROUP, HINT, MODES, ROWS, TURNS, Client, Row, World, answered, recorded, strangers

Pattern = Callable[[World], None]
Pair = tuple[Row, Client]
Every = Callable[[Callable[[Pair], Any], list[Pair]], Any]


def _ask(world: World, pair: Pair) -> None:
    row, _ = pair
    (answer,) = world.generate([row.prompt + row.completion], world.pause())
    row.said(answer)


def _step(world: World, pair: Pair) -> None:
    world.step(*pair, world.pause())


def _rounds(world: World, pairs: list[Pair]) -> Iterator[list[Pair]]:
    """Those that go on, turn by turn; some end before others."""
    for turn in range(TURNS):
        for row, _ in pairs if turn else ():
            row.heard(HINT)
        yield pairs
        pairs = [pair for pair in pairs if not world.is_over()]


def _turn_by_turn(world: World, every: Every, pairs: list[Pair] | None = None) -> None:
    """All are asked, then all are stepped."""
    pairs = [(row, Client()) for row in world.rows] if pairs is None else pairs
    every(lambda pair: world.reset(*pair, world.pause()), pairs)
    for going_on in _rounds(world, pairs):
        every(lambda pair: _ask(world, pair), going_on)
        every(lambda pair: _step(world, pair), going_on)


def pool_for_each_turn(world: World) -> None:
    with ThreadPoolExecutor(4) as pool:
        _turn_by_turn(world, lambda work, pairs: list(pool.map(work, pairs)))


def _gathered(work: Callable[[Pair], Any], pairs: list[Pair]) -> None:
    async def main() -> None:
        await asyncio.gather(*(asyncio.to_thread(work, pair) for pair in pairs))

    asyncio.run(main())


def gather_for_each_turn(world: World) -> None:
    _turn_by_turn(world, _gathered)


def pool_for_answers_alone(world: World) -> None:
    """Environments are called in the function's own thread."""
    with ThreadPoolExecutor(4) as pool:
        pairs = [(row, Client()) for row in world.rows]
        for pair in pairs:
            world.reset(*pair)
        for going_on in _rounds(world, pairs):
            list(pool.map(lambda pair: _ask(world, pair), going_on))
            for pair in going_on:
                world.step(*pair)


def whole_turns_gathered(world: World) -> None:
    """An answer and its step in one task."""
    pairs = [(row, Client()) for row in world.rows]
    for pair in pairs:
        world.reset(*pair)
    for going_on in _rounds(world, pairs):
        _gathered(lambda pair: world.turn(*pair, world.pause()), going_on)


def chunks_in_a_pool_for_each_turn(world: World) -> None:
    pairs = [(row, Client()) for row in world.rows]
    with ThreadPoolExecutor(4) as pool:
        for pair in pairs:
            world.reset(*pair)
        for turn in range(2):
            for row in world.rows if turn else ():
                row.heard(HINT)
            list(pool.map(lambda rows: answered(world, rows), test_patterns.parts(world.rows)))
            list(pool.map(lambda pair: _step(world, pair), pairs))


def a_batch_then_a_pool_of_further_turns(world: World) -> None:
    pairs = [(row, Client()) for row in world.rows]
    for pair in pairs:
        world.reset(*pair)
    answered(world, world.rows)

    def go_on(pair: Pair) -> None:
        _step(world, pair)
        pair[0].heard(HINT)
        world.turn(*pair, world.pause())

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(go_on, pairs))


def each_call_given_to_an_executor(world: World) -> None:
    """As where each has a timeout."""
    with ThreadPoolExecutor(1) as pool:
        for row in world.rows:
            client = Client()
            world.reset(row, client)
            for turn in range(TURNS):
                if turn:
                    row.heard(HINT)
                pool.submit(_ask, world, (row, client)).result()
                world.step(row, client)
                if world.is_over():
                    break


WHOLE: list[Pattern] = [
    pool_for_each_turn, gather_for_each_turn, pool_for_answers_alone, whole_turns_gathered,
    chunks_in_a_pool_for_each_turn, a_batch_then_a_pool_of_further_turns, each_call_given_to_an_executor,
]  # fmt: skip


def _has_all_turns(world: World, found: Attribution) -> bool:
    pairs = zip(world.rows, found.rows, strict=True)
    return all([turn.sequence.sampled.tolist() for turn in calls.turns] == row.answers for row, calls in pairs)  # type: ignore[union-attr]


@pytest.mark.parametrize("pattern", WHOLE, ids=lambda pattern: pattern.__name__)
def test_each_turn_and_each_step_is_its_rows(pattern: Pattern) -> None:
    whole, every = 0, cases([(3, MODES[-1]), (0, MODES[0]), (1, MODES[0]), (2, MODES[0])], 2)
    for seed, mode in every:
        world, found = recorded(pattern, seed, mode)
        assert strangers(world, found) == []
        assert _has_all_turns(world, found)
        steps = [[call.reward for call in row.environment_calls if call.kind == "step"] for row in found.rows]
        whole += found.unattributed == 0 and steps == [row.rewards for row in world.rows]
    # Threads beside each other may begin in another order, and then some calls are nobody's.
    assert whole >= (len(every) if pattern is each_call_given_to_an_executor else 1)


def shuffled_pool_for_each_turn(world: World) -> None:
    pairs = random.Random(1).sample([(row, Client()) for row in world.rows], ROWS)
    with ThreadPoolExecutor(4) as pool:
        _turn_by_turn(world, lambda work, pairs: list(pool.map(work, pairs)), pairs)


def pool_for_each_turn_of_two_tries(world: World) -> None:
    """The second is returned; nothing tells which of two that say the same it is."""
    for _ in range(2):
        for row in world.rows:
            row.tries += row.resets + row.rewards
            row.completion, row.answers, row.rewards, row.resets = [], [], [], []
        pool_for_each_turn(world)


@pytest.mark.parametrize("pattern", [shuffled_pool_for_each_turn, pool_for_each_turn_of_two_tries])
def test_where_nothing_tells_whose_a_step_is_the_turns_are_still_their_rows(pattern: Pattern) -> None:
    for seed in cases(range(4), 2):
        world, found = recorded(pattern, seed)
        assert strangers(world, found) == []
        assert _has_all_turns(world, found)


def test_a_note_beside_a_turns_answer_is_its_rows() -> None:
    def noted(world: World) -> None:
        def ask(pair: Pair) -> None:
            _ask(world, pair)
            current_row().note(row=world.rows.index(pair[0]))

        with ThreadPoolExecutor(4) as pool:
            pairs = [(row, Client()) for row in world.rows]
            for turn in range(2):
                for row, _ in pairs if turn else ():
                    row.heard(HINT)
                list(pool.map(ask, pairs))

    world, found = recorded(noted, 0, (64, 0))  # rows that say the same share what is said of them
    for index, calls in enumerate(found.rows):
        alike = {i for i, row in enumerate(world.rows) if row.prompt == world.rows[index].prompt}
        assert {int(note.values.split(b":")[1][:-1]) for note in calls.notes} <= alike
    assert found.unattributed == 0


@pytest.mark.parametrize("pattern", [*WHOLE, *test_patterns.WHOLE], ids=lambda pattern: pattern.__name__)
def test_rows_of_a_function_that_raised_hold_answers_to_their_prompt_that_follow_one_another(pattern: Pattern) -> None:
    """Of the rows of one prompt nobody knows which is whose."""
    for limit in cases((41, 20, 70, 7), 2):
        world, found = cut_off(pattern, limit, MODES[0])
        for row, held in zip(world.rows, found.rows, strict=True):
            before: list[int] = []
            for context, sampled in _turns(held.turns):
                assert context[: len(row.prompt)] == row.prompt
                assert context[: len(before)] == before
                before = context + sampled


def _turns(turns: Iterable[Any]) -> list[tuple[list[int], list[int]]]:
    return [(turn.sequence.context.tolist(), turn.sequence.sampled.tolist()) for turn in turns]


def test_turns_of_a_function_that_raised_go_on_from_pool_to_pool() -> None:
    def nobody_ends_early(world: World) -> None:  # else chance decides how many are cut off in their second turn
        world.is_over = lambda: False  # type: ignore[method-assign]
        pool_for_each_turn(world)

    _, found = cut_off(nobody_ends_early, 3 * ROWS + 8, (1_000, 1))  # hardly any say the same, and are a guess
    assert sum(len(row.turns) == 2 for row in found.rows) >= GROUP
