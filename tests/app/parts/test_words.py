"""The words that pages choose for a rollout and for a run."""

from typing import Any

import pytest

from logs_ui.app.parts import words
from logs_ui.recorder.queries.filters.rollout_filter import read_sort
from logs_ui.recorder.storage.tables import EvaluationRow, Run


@pytest.mark.parametrize(
    ("row", "word"),
    [
        ({"status": "ok", "reward": 1.0, "stop_reason": "length"}, "length"),
        ({"status": "ok", "reward": 1.0, "stop_reason": None}, "ok"),
        ({"status": "ok", "reward": None, "stop_reason": "length"}, "awaiting"),
        ({"status": "ok", "reward": None, "stop_reason": "length", "scored": 7}, "no reward"),
        ({"status": "error", "reward": 0.0, "stop_reason": "exception"}, "error"),
        ({"status": "running", "reward": None, "stop_reason": None}, "running"),
    ],
)
def test_a_scored_rollout_has_the_word_of_its_end(row: dict[str, Any], word: str) -> None:
    assert words.ending(EvaluationRow(**row), "running").text == word


@pytest.mark.parametrize(
    ("run", "trouble"),
    [
        ({}, ""), ({"unattributed_errors": {"KeyError": 2}}, ""), ({"unseen_sampling": 3}, "Sampling was not seen"),
        ({"unseen_sampling": 3, "unattributed_scoring": 1}, "Unattributed calls"),
        ({"unattributed_calls": 1}, "Unattributed calls"), ({"unattributed_calls": 1, "dropped": 2}, "Recorder errors"),
        ({"dropped_payloads": 2}, "Recorder errors"), ({"last_recorder_error": "OSError: full"}, "Recorder errors"),
    ],
)  # fmt: skip
def test_the_first_trouble_of_a_run_is_named(run: dict[str, Any], trouble: str) -> None:
    assert words.trouble(Run(**run)) == trouble


@pytest.mark.parametrize(
    ("order", "rises"),
    [
        ("newest", False), ("oldest", True), ("lowest-reward", True), ("longest", False), ("turns", True),
        ("-turns", False),
    ],
)  # fmt: skip
def test_an_order_rises_if_the_lowest_is_on_top(order: str, *, rises: bool) -> None:
    assert words.rises(read_sort(order)) == rises
