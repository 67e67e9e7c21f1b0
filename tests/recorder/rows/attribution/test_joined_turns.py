"""Turns whose prompts and answers a row has one after the other."""

import numpy as np
import pytest

from logs_ui.recorder.capture.calls import Generation
from logs_ui.recorder.capture.model_answers import Sequence
from logs_ui.recorder.rows.attribution.chain import Chain
from logs_ui.recorder.rows.attribution.exact.joined_turns import take_joined
from logs_ui.recorder.rows.attribution.exact.row_match import RowTokens


def ids(*tokens: int) -> np.ndarray:
    return np.array(tokens, np.int32)


@pytest.mark.parametrize(("first_answer", "completion", "joined"), [
    (ids(7), ids(7, 45), [0]),
    (None, ids(45), []),  # 45 is the byte of "-"
    (ids(), ids(45), []),
])  # fmt: skip
def test_each_turn_of_a_row_has_an_answer(
    first_answer: np.ndarray | None, completion: np.ndarray, joined: list[int]
) -> None:
    parts = [
        (Generation(order, 0.0, 0.0, [], {}), Sequence(context, answer, None))
        for order, (context, answer) in enumerate([(ids(1, 2), first_answer), (ids(3, 4), ids(45))])
    ]
    chains = [Chain(None, None, True, [part]) for part in parts]
    assert list(take_joined(chains, [RowTokens(ids(1, 2, 3, 4), completion)])[1]) == joined
