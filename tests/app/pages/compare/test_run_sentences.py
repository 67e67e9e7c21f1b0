"""What the comparison of runs says, by its dataclasses: its sentence, and its table of tasks."""

import pytest

from logs_ui.app.pages.compare.page import CompareChoice
from logs_ui.app.pages.compare.run_differences import RunSetting, RunSettings
from logs_ui.app.pages.compare.run_figures import Estimate
from logs_ui.app.pages.compare.run_sentences import compare_run, name_differences
from logs_ui.app.pages.compare.run_tasks import TaskLine, TaskTable


def of(mean: float, error: float | None = 0.03, *, is_clear: bool = False) -> Estimate:
    return Estimate(mean, error, 80, 10, is_clear=is_clear)


@pytest.mark.parametrize(
    ("figures", "sentence"),
    [
        ({"reward": [of(0.5), of(0.7, 0.04, is_clear=True)]}, "B is better than A: mean reward +0.2 ± 0.05 (steps 1)."),
        (
            {"reward": [of(0.5), of(0.7, 0.04, is_clear=True)], "solved": [of(0.6), of(0.2, 0.04, is_clear=True)]},
            "B is worse than A: solved \u221240 ± 5 pp, mean reward +0.2 ± 0.05 (steps 1).",
        ),
        (
            {"reward": [of(0.5), of(0.5, 0.04)]},
            "B does not differ from A beyond chance: mean reward 0 ± 0.05 (steps 1).",
        ),
        ({"reward": [of(0.5), of(0.9, None)]}, ""),
        ({"reward": [of(0.5), None]}, ""),
        ({}, ""),
    ],
    ids=["better", "more reward, less solved", "alike", "one group", "nothing", "no figures"],
)
def test_the_outcome_decides_which_run_is_better(figures: dict[str, list[Estimate | None]], sentence: str) -> None:
    assert compare_run(figures, 1, "B", "steps 1") == sentence


def test_what_differs_is_named() -> None:
    settings = [RunSetting("beta", ["0", "0.1"]), RunSetting("seed", ["1", "1"])]
    assert name_differences(RunSettings(settings, 1, 2), []) == "What differs: beta."
    assert name_differences(RunSettings([], 0, 2), []) == "No argument and no source that is stored differs."
    assert name_differences(RunSettings([], 0, 0), []) == ""


def line(difference: float | None, *, is_clear: bool = True, runs: int = 2) -> TaskLine:
    cells = [Estimate(0.5, 0.1, 40, 10, is_clear=is_clear) for _ in range(runs)]
    return TaskLine("a task", [*cells], difference, 1, None)


@pytest.mark.parametrize(
    ("line", "tone"),
    [
        (line(0.2), "positive"), (line(-0.2), "negative"), (line(0.2, is_clear=False), "quiet"), (line(None), "quiet"),
        (line(0.0004), "quiet"),
    ],
)  # fmt: skip
def test_only_a_clear_difference_has_a_colour(line: TaskLine, tone: str) -> None:
    assert line.tone == tone


@pytest.mark.parametrize(
    ("tasks", "common", "apart", "is_part", "is_apart"),
    [
        (9, 9, [], False, False), (9, 4, [], True, False), (9, 4, [1], True, False), (9, 4, [1, 2], False, True),
        (9, 0, [], False, False),
    ],
)  # fmt: skip
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
