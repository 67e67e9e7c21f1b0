"""What a rollout's task is called."""

import pytest

from logs_ui.recorder import tasks
from logs_ui.recorder.errors import LogsUIError
from logs_ui.recorder.guard import RAISE_VARIABLE
from logs_ui.recorder.tasks import name_task, prompt_task


def test_the_usual_columns_name_a_task_and_else_the_prompt_does() -> None:
    assert name_task(None, {"task": "sums", "task_id": 3}, b"p") == "sums"
    assert name_task(None, {"task": None, "task_id": 3}, b"p") == "3"
    assert name_task(None, {"answer": 1}, b"p") == prompt_task(b"p")
    assert name_task("answer", {"answer": 1}, b"p") == "1"
    assert name_task(lambda row: row["answer"] * 2, {"answer": 1}, b"p") == "2"


def test_a_task_that_is_no_column_says_which_there_are() -> None:
    said = r"record\(task='typo'\) names no column of the dataset, which has answer, prompt\. Name one of them"
    with pytest.raises(LogsUIError, match=said):
        tasks._named("typo", {"prompt": "p", "answer": 1}, b"p")


def test_a_task_that_cannot_be_named_is_told_by_its_prompt(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(RAISE_VARIABLE)
    assert name_task(lambda row: row["typo"], {"answer": 1}, b"p") == prompt_task(b"p")
