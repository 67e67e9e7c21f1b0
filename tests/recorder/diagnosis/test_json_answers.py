"""A field of a JSON answer that has its reference's value in another form is named, and another value is not."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import orjson
import pytest

from logs_ui.recorder.diagnosis import diagnose_rows
from logs_ui.recorder.diagnosis.card import Texts
from tests.recorder.diagnosis.test_diagnosis import rows_of

COUNT = 160
GROUP = np.arange(COUNT) // 4


@pytest.mark.parametrize(
    ("answer", "reference", "is_named"),
    [
        pytest.param("1234.50", "1,234.5", 1, id="separator"),
        pytest.param(7, "7", 0, id="type"),
        pytest.param("7 May 2026", "2026-05-07", 1, id="date"),
        pytest.param("DE", "de", 1, id="case"),
        pytest.param("<=", ">=", 0, id="operator"),
        pytest.param("A-", "A+", 0, id="grade"),
        pytest.param("5 g", "5 kg", 0, id="unit"),
        pytest.param([1, 23], [12, 3], 0, id="list"),
        pytest.param("1" * 5_000, "1", 0, id="long"),
    ],
)
def test_a_field_in_another_form_is_named(answer: Any, reference: Any, is_named: int) -> None:
    def read_texts(ids: Sequence[int]) -> dict[int, Texts]:
        """Give the answer where it does not count, in every second group, and the reference elsewhere."""
        return {
            row: Texts(
                [{"role": "assistant", "content": orjson.dumps({"x": answer if odd else reference}).decode()}],
                (),
                dataset={"reference": orjson.dumps({"x": reference}).decode()},
            )
            for row in ids
            for odd in [GROUP[row - 1] % 2]
        }

    report = diagnose_rows(rows_of(COUNT, steps=10, reward=(GROUP + 1) % 2), read_texts=read_texts)
    titles = [card.title for card in report.cards if card.id == "final_answers"]
    named = "0 of 80 answers count whose field x has another form than the reference's; of those that equal it 100% do"
    assert titles == [named] * is_named
    assert not report.failed


def test_a_field_that_is_too_deep_to_be_written_is_another_value() -> None:
    deep = '{"x": %s}' % ("[" * 300 + "]" * 300)

    texts = Texts([{"role": "assistant", "content": deep}], (), dataset={"reference": '{"x": 1}'})
    assert not diagnose_rows(rows_of(COUNT, steps=10), read_texts=lambda ids: dict.fromkeys(ids, texts)).failed
