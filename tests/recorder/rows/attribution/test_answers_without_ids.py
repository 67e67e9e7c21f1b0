"""Servers that return texts alone: what was asked and told before tells whose an answer is."""

import numpy as np
import orjson
import pytest

from logs_ui.recorder.capture.calls import Generation
from logs_ui.recorder.capture.model_answers import Sequence
from logs_ui.recorder.rows.attribution.chain import Chain
from logs_ui.recorder.rows.attribution.exact.row_match import RowTokens, fit
from logs_ui.recorder.rows.attribution.prefixes import context_of
from tests.recorder.rows.attribution.test_patterns import (
    WHOLE,
    Pattern,
    backwards,
    in_shuffled_order,
    shuffled_with_a_shared_client,
    workers_with_a_queue,
)
from tests.support.world import MODES, decode, recorded, strangers, without_ids


@pytest.mark.parametrize(
    "pattern",
    [*WHOLE, backwards, in_shuffled_order, shuffled_with_a_shared_client, workers_with_a_queue],
    ids=lambda pattern: pattern.__name__,
)
def test_each_answer_is_its_rows(pattern: Pattern) -> None:
    """Of rows that said and were told the same nobody can tell."""
    for seed, mode in enumerate([*MODES, (64, 0)]):
        world, found = recorded(pattern, seed, mode, sights=1_000, seen_as=without_ids)
        assert strangers(world, found) == []
        for row, calls in zip(world.rows, found.rows, strict=True):
            assert [turn.sequence.text for turn in calls.turns] == [decode(np.array(one)) for one in row.answers]


@pytest.mark.parametrize(
    ("told", "answer", "text", "is_whole"),
    [
        pytest.param([], "<answer>5</answer>", "<answer>5</answer>", True, id="ends with a tag of its own"),
        pytest.param([], "<answer>5</answer>", "<answer>5</answer><|im_end|>", True, id="and an end token"),
        pytest.param(["go on"], "a", "x user go on assistant a", True, id="stands in the template, too"),
        pytest.param(["go on"], "a", "x user go on assistant a, then b", False, id="goes on"),
        pytest.param([], "5", "It is 5", False, id="begins before"),
        pytest.param(["no"], "no", "x no", False, id="was told and not said"),
        pytest.param([], "a", "a" + "<a> " * 100_000, True, id="tags without number"),
        pytest.param([], "a", "a" + "<a> " * 100_000 + "b", False, id="tags that are no end"),
    ],
)
def test_an_answer_is_the_whole_of_what_is_left(told: list[str], answer: str, text: str, *, is_whole: bool) -> None:
    before = [{"role": "assistant", "content": "x"}, *({"role": "user", "content": one} for one in told)]
    messages = [{"role": "user", "content": "p"}, *(before if told else [])]
    sequence = Sequence(None, None, "stop", text=answer, messages=orjson.dumps(messages))
    chain = Chain(None, None, begins=True)
    chain.add(Generation(0, 0.0, 0.0, [sequence], {}), sequence, context_of(sequence))
    found = fit(chain, RowTokens(np.array([1], np.int32), np.array([2], np.int32)), lambda: text)
    assert found is not None
    assert found.is_whole == is_whole
