"""What a rollout's task is called."""

import pytest

from logs_ui.recorder.errors import LogsUIError
from logs_ui.recorder.guard import RAISE_VARIABLE
from logs_ui.recorder.rows import task_names
from logs_ui.recorder.rows.task_names import name_task, prompt_task, returned_tasks


def test_the_usual_columns_name_a_task_and_else_the_prompt_does() -> None:
    assert name_task(None, {"task": "sums", "task_id": 3}, b"p") == "sums"
    assert name_task(None, {"task": None, "task_id": 3}, b"p") == "3"
    assert name_task(None, {"answer": 1}, b"p") == prompt_task(b"p")
    assert name_task("answer", {"answer": 1}, b"p") == "1"
    assert name_task(lambda row: row["answer"] * 2, {"answer": 1}, b"p") == "2"


def test_a_task_that_is_no_column_says_which_there_are() -> None:
    said = r"record\(task='typo'\) names no column of the dataset, which has answer, prompt\. Name one of them"
    with pytest.raises(LogsUIError, match=said):
        task_names._read_name("typo", {"prompt": "p", "answer": 1}, b"p")


def test_a_task_that_cannot_be_named_is_told_by_its_prompt(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(RAISE_VARIABLE)
    assert name_task(lambda row: row["typo"], {"answer": 1}, b"p") == prompt_task(b"p")


def test_a_task_that_the_rollout_function_chose_is_its_rows_unless_the_dataset_names_one() -> None:
    prompts = [b"p", b"q", b"r"]
    before = [prompt_task(b"p"), None, "sums"]
    assert returned_tasks(before, {"task": ["a", 2, "b"]}, prompts) == ["a", "2", "sums"]
    assert returned_tasks(before, {"task_id": [None, "c", "d"]}, prompts) == [prompt_task(b"p"), "c", "sums"]
    for nothing in ({}, {"task": "all"}, {"task": ["too few"]}):
        assert returned_tasks(before, nothing, prompts) == before
