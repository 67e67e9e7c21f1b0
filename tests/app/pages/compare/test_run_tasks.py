"""What the table of tasks of compared runs says, by its dataclasses."""

import pytest

from logs_ui.app.pages.compare.page import CompareChoice
from logs_ui.app.pages.compare.run_figures import Estimate
from logs_ui.app.pages.compare.run_tasks import TaskLine, TaskTable


def line(difference: float | None, *, is_clear: bool = True, runs: int = 2) -> TaskLine:
    cells = [Estimate(0.5, 0.1, 40, 10, is_clear=is_clear) for _ in range(runs)]
    return TaskLine("a task", [*cells], difference, 1, None)


@pytest.mark.parametrize(
    ("line", "tone"),
    [
        (line(0.2), "positive"),
        (line(-0.2), "negative"),
        (line(0.2, is_clear=False), "quiet"),
        (line(None), "quiet"),
        (line(0.0004), "quiet"),
    ],
)
def test_only_a_clear_difference_has_a_colour(line: TaskLine, tone: str) -> None:
    assert line.tone == tone


@pytest.mark.parametrize(
    ("tasks", "common", "apart", "is_part", "is_apart"),
    [
        (9, 9, [], False, False),
        (9, 4, [], True, False),
        (9, 4, [1], True, False),
        (9, 4, [1, 2], False, True),
        (9, 0, [], False, False),
    ],
)
def test_runs_may_share_some_of_their_tasks(
    tasks: int, common: int, apart: list[int], *, is_part: bool, is_apart: bool
) -> None:
    table = TaskTable([], line(0.2, runs=3), tasks, 0, 0, common, apart)
    assert (table.is_part, table.is_apart) == (is_part, is_apart)


@pytest.mark.parametrize(
    ("sort", "rises"), [("task", True), ("worse", True), ("mean2", True), ("better", False), ("difference", False)]
)
def test_an_order_of_tasks_rises_if_the_lowest_is_on_top(sort: str, *, rises: bool) -> None:
    assert CompareChoice((), sort=sort).rises == rises
