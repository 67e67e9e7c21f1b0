"""Rollout functions that raised: no tokens tell rows apart, and most had no call yet."""

import random
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import numpy as np
import orjson
import pytest
from msgspec.structs import replace

from logs_ui.recorder.capture.calls import Collector, Generation, collecting
from logs_ui.recorder.capture.model_answers import Ids, Sequence
from logs_ui.recorder.capture.strands import Strand, StrandTree
from logs_ui.recorder.rows.attribution import Attribution, RowCalls, Seen, attribute_unfinished
from tests.recorder.rows.attribution.test_patterns import (
    IN_PART,
    WHOLE,
    Pattern,
    chunks,
    lockstep,
    reset_ahead,
    round_robin,
    sequential_with_a_client_each,
)
from tests.support.exhaustive import cases
from tests.support.world import (
    GROUP,
    HINT,
    MODES,
    ROWS,
    Client,
    Order,
    Row,
    World,
    answered,
    backward,
    decode,
    forward,
    shuffled,
)


class StopError(Exception):
    """What the function raised."""


class Cut(World):
    """Raises at its call number `limit`, and ever after."""

    def __init__(self, limit: int, mode: tuple[int, int], rows: int = ROWS, group: int = GROUP) -> None:
        super().__init__(limit, mode, rows, group)
        self._left = limit
        self._counting = threading.Lock()

    def _count(self) -> None:
        with self._counting:
            self._left -= 1
            if self._left < 0:
                raise StopError

    def generate(self, contexts: list[list[int]], pause: float = 0.0) -> list[list[int]]:
        self._count()
        return super().generate(contexts, pause)

    def call(self, *args: Any, **known: Any) -> float:
        self._count()
        return super().call(*args, **known)


def cut_off(pattern: Pattern, limit: int, mode: tuple[int, int]) -> tuple[World, Attribution]:
    world, log = Cut(limit, mode), Collector()
    with collecting(log), suppress(StopError):
        pattern(world)
    log.close()
    log.records.sort()
    prompts = [decode(np.array(row.prompt, np.int32)) for row in world.rows]
    seen = Seen(log.records.generations, log.records.environment_calls, log.records.notes)
    return world, attribute_unfinished(ROWS, seen, prompts, decode)


def groups_in(world: World, calls: RowCalls) -> set[int]:
    found = {int(turn.sequence.context[1]) for turn in calls.turns if turn.sequence.context is not None}
    return found | {world.rows.index(row) // GROUP for row in stepped_in(world, calls)}


def stepped_in(world: World, calls: RowCalls) -> list[Row]:
    rewards = {call.reward for call in calls.environment_calls}
    return [row for row in world.rows if rewards & {*row.resets, *row.rewards, *row.tries}]


def said_in(world: World, calls: RowCalls) -> list[Row]:
    made = dict(world.made)
    turns = [zip(turn.generation.sequences, made[turn.order], strict=True) for turn in calls.turns]
    answers = {
        id(answer)
        for turn, pairs in zip(calls.turns, turns, strict=True)
        for sequence, answer in pairs
        if sequence is turn.sequence
    }
    return [row for row in world.rows if answers & set(map(id, row.answers))]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize("pattern", [*WHOLE, *IN_PART], ids=lambda pattern: pattern.__name__)
def test_no_row_holds_anothers_calls_once_the_function_raised(pattern: Pattern) -> None:
    """Rows of a group are alike then: which of them a row's calls are on does not matter, as long as they are alone."""
    for limit, mode in cases([(20, MODES[2]), (41, MODES[0]), (7, MODES[0]), (20, MODES[0])], 2):
        world, found = cut_off(pattern, limit, mode)
        for place, calls in enumerate(found.rows):
            said, stepped = said_in(world, calls), stepped_in(world, calls)
            assert len(stepped) <= 1
            assert not said or all(row in said for row in stepped)
            assert groups_in(world, calls) <= {place // GROUP}


@pytest.mark.parametrize("pattern", [chunks, round_robin, sequential_with_a_client_each], ids=lambda p: p.__name__)
def test_what_went_in_order_is_found_once_the_function_raised(pattern: Pattern) -> None:
    world, found = cut_off(pattern, 41, MODES[0])
    assert found.unattributed == 0
    assert all(stepped_in(world, calls) in ([], [row]) for row, calls in zip(world.rows, found.rows, strict=True))


def test_resets_ahead_are_nobodys_once_the_function_raised() -> None:
    """Nothing shows yet in which order their rows are played."""
    _, found = cut_off(lockstep, 7, MODES[0])
    assert not any(calls.environment_calls for calls in found.rows)
    assert found.unattributed == 7


def test_resets_ahead_of_one_prompt_are_its_rows() -> None:
    world = Cut(3, MODES[0])
    log = Collector()
    with collecting(log), suppress(StopError):
        lockstep(world)
    found = attribute_unfinished(GROUP, Seen([], log.records.environment_calls), ["7 0"] * GROUP, decode)
    assert [len(calls.environment_calls) for calls in found.rows] == [1, 1, 1, 0]


def one_by_one(world: World, rows: list[Row], turns: int) -> None:
    for row in rows:
        client = Client()
        world.reset(row, client)
        for turn in range(turns):
            row.heard(*[HINT] * bool(turn))
            world.turn(row, client)


def in_batches(world: World, rows: list[Row], turns: int) -> None:
    pairs = reset_ahead(world, rows)
    for turn in range(turns):
        for row in rows if turn else ():
            row.heard(HINT)
        answered(world, rows)
        for row, client in pairs:
            world.step(row, client)


def turn_by_turn(world: World, rows: list[Row], turns: int) -> None:
    pairs = reset_ahead(world, rows)
    for turn in range(turns):
        for row, client in pairs:
            row.heard(*[HINT] * bool(turn))
            world.turn(row, client)


def turn_by_turn_in_an_executor(world: World, rows: list[Row], turns: int) -> None:
    with ThreadPoolExecutor(1) as pool:
        pairs = [(row, Client()) for row in rows]
        for row, client in pairs:
            pool.submit(world.reset, row, client).result()
        for turn in range(turns):
            for row, client in pairs:
                row.heard(*[HINT] * bool(turn))
                pool.submit(world.turn, row, client).result()


@pytest.mark.parametrize("order", [forward, backward, shuffled])
@pytest.mark.parametrize("play", [one_by_one, in_batches, turn_by_turn, turn_by_turn_in_an_executor])
def test_wherever_a_function_is_cut_off_no_row_holds_anothers_calls(
    play: Callable[[World, list[Row], int], None], order: Order
) -> None:
    """Two prompts. Which row of its prompt a row's calls are on does not matter, as long as they are one row's."""
    for seed in cases(range(6), 2):
        chance = random.Random(seed)
        group, turns, mode = chance.randint(2, 4), chance.randint(1, 3), chance.choice(MODES)
        for limit in range(2 * group * (1 + 2 * turns) + 1):
            world, log = Cut(limit, mode, 2 * group, group), Collector()
            with collecting(log), suppress(StopError):
                play(world, order(world.rows), turns)
            log.close()
            log.records.sort()
            prompts = [decode(np.array(row.prompt, np.int32)) for row in world.rows]
            seen = Seen(log.records.generations, log.records.environment_calls)
            found = attribute_unfinished(2 * group, seen, prompts, decode)
            assert wrong_in(world, found, group) == [], (seed, limit)


def wrong_in(world: World, found: Attribution, group: int) -> list[int]:
    """Rows with calls of several rows, or of another prompt's."""
    wrong = []
    for place, calls in enumerate(found.rows):
        asked = {int(turn.sequence.context[1]) for turn in calls.turns if turn.sequence.context is not None}
        stepped = stepped_in(world, calls)
        said = [turn.sequence.sampled.tolist() for turn in calls.turns if turn.sequence.sampled is not None]
        is_of_one = not stepped or (len(stepped) == 1 and stepped[0].answers[: len(said)] == said)
        if not is_of_one or (asked | {row.prompt[1] for row in stepped}) not in ({place // group}, set()):
            wrong.append(place)
    return wrong


PLAYED = 6
"""Rows of three prompts, two of each, all of which were asked in order; row 2's call failed."""


def asked_each(strands: list[Strand | None], said: str = "Guess\n{}.", *, decoded: bool) -> list[list[int]]:
    """The answers on each row; which row's an answer is, it says itself."""
    prompts = [f"Guess\n{row // 2}." for row in range(PLAYED)]
    made = []
    for row, strand in enumerate(strands):
        messages = orjson.dumps([{"role": "user", "content": said.format(row // 2)}])
        answer = Sequence(np.array([4, row // 2], np.int32), np.array([row, 2], np.int32), "stop", messages=messages)
        made.append(Generation(row, row, 0.1, [answer], {}, "openai", strand))
        if row == 2:
            made[-1] = replace(made[-1], sequences=[], error="E: 503", prompt=messages)

    def words(ids: Ids) -> str:
        return prompts[2 * int(ids[1])] if decoded else "?"

    found = attribute_unfinished(PLAYED, Seen(made, []), prompts, words)
    held = [[int(turn.sequence.sampled[0]) for turn in row.turns] for row in found.rows]  # type: ignore[index]
    assert sum(map(len, held)) + sum(len(row.failures) for row in found.rows) + found.unattributed == PLAYED
    return held


@pytest.mark.parametrize("said", ["Guess\n{}.", "?"])
@pytest.mark.parametrize("decoded", [True, False])
def test_a_task_whose_only_call_failed_shifts_no_other_tasks_answer(said: str, *, decoded: bool) -> None:
    tree = StrandTree(None)
    strands: list[Strand | None] = [tree.child(tree.root) for _ in range(PLAYED)]
    assert asked_each(strands, said, decoded=decoded) == [[0], [1], [], [3], [4], [5]]


@pytest.mark.parametrize("decoded", [True, False])
def test_a_failed_call_in_no_task_shifts_no_answer_to_another_prompts_row(*, decoded: bool) -> None:
    held = asked_each([None] * PLAYED, decoded=decoded)
    assert [[answer // 2 for answer in row] for row in held] == [[0], [0], [1], [], [2], [2]]


def test_what_came_after_a_failed_call_is_nobodys_where_nothing_tells_its_prompt() -> None:
    assert asked_each([None] * PLAYED, "?", decoded=False) == [[0], [1], [], [], [], []]


def test_tasks_that_were_not_started_in_order_are_no_rows() -> None:
    tree = StrandTree(None)
    strands = [tree.child(tree.root) for _ in range(PLAYED)]
    held = asked_each([*strands[::-1]], decoded=True)
    assert [{answer // 2 for answer in row} for row in held] == [{0}, {0}, {1}, set(), {2}, {2}]
