"""Batches in which actions are made of answers, and show whether environments are in the order of the rows."""

import random
from collections.abc import Callable
from functools import partial

from logs_ui.recorder.rows.attribution import Attribution
from logs_ui.recorder.rows.attribution.inferred.episode_comparison import beats_shuffles
from tests.support.exhaustive import cases
from tests.support.world import HINT, Client, Order, Row, World, answered, forward, recorded, strangers


def played(
    play: Callable[[World, list[Row]], None], order: Order, seed: int, mode: tuple[int, int], rows: int
) -> tuple[World, Attribution]:
    return recorded(lambda world: play(world, order(world.rows)), seed, mode, rows=rows, group=rows)


def reset_ahead(world: World, rows: list[Row], turns: int = 1) -> None:
    """The model is asked in the order of the rows."""
    pairs = [(row, Client()) for row in rows]
    for row, client in pairs:
        world.reset(row, client)
    for turn in range(turns):
        for row in world.rows:
            row.heard(*[HINT] * bool(turn))
        answered(world, world.rows)
        for row, client in pairs:
            world.step(row, client)


def test_few_rows_that_repeat_themselves_show_their_order() -> None:
    for seed in cases(range(1, 5), 2):
        world, found = played(lambda world, rows: reset_ahead(world, rows, 3), forward, seed, (2, 50), 8)
        assert (strangers(world, found), found.unattributed) == ([], 0)


def test_one_answer_sent_as_two_numbers_is_no_accident_of_the_order() -> None:
    """Of sixteen rows a few repeat themselves, and all but one of these agree by chance."""
    for seed in cases(range(40), 8):
        order = partial(random.Random(seed).sample, k=16)
        world, found = played(reset_ahead, order, seed, (16, 50), 16)
        assert strangers(world, found) == [], seed


def test_an_order_that_shuffles_often_equal_is_an_accident() -> None:
    assert not beats_shuffles(lambda places: int(places[0] < 6), range(12), 1)
    assert beats_shuffles(lambda places: int([*places] == [*range(12)]), range(12), 1)
