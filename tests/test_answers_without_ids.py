"""Servers that return texts alone: what was asked and told before tells whose an answer is."""

import numpy as np
import pytest

from logs_ui.recorder.attribution import Attribution, Seen, attribute
from logs_ui.recorder.calls import CallLog, collecting
from tests.test_patterns import (
    WHOLE,
    Pattern,
    backwards,
    in_shuffled_order,
    shuffled_with_a_shared_client,
    workers_with_a_queue,
)
from tests.world import MODES, World, decode, strangers, without_ids


def recorded(pattern: Pattern, seed: int, mode: tuple[int, int]) -> tuple[World, Attribution]:
    world, log = World(seed, mode, sights=1_000), CallLog()
    with collecting(log):
        pattern(world)
    log.close()
    prompts = [np.array(row.prompt, np.int32) for row in world.rows]
    completions = [np.array(row.completion, np.int32) for row in world.rows]
    seen = without_ids(Seen(log.generations, log.environment_calls, log.notes))
    return world, attribute(prompts, completions, seen, decode)


@pytest.mark.parametrize(
    "pattern",
    [*WHOLE, backwards, in_shuffled_order, shuffled_with_a_shared_client, workers_with_a_queue],
    ids=lambda pattern: pattern.__name__,
)
def test_each_answer_is_its_rows(pattern: Pattern) -> None:
    """Of rows that said and were told the same nobody can tell."""
    for seed, mode in enumerate([*MODES, (64, 0)]):
        world, found = recorded(pattern, seed, mode)
        assert strangers(world, found) == []
        for row, calls in zip(world.rows, found.rows, strict=True):
            assert [turn.sequence.text for turn in calls.turns] == [decode(np.array(one)) for one in row.answers]
