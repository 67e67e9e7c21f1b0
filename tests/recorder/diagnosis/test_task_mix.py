"""Runs whose last steps have other tasks than the first."""

import tracemalloc
from types import SimpleNamespace
from typing import Any

import numpy as np

from logs_ui.recorder.diagnosis import Report, diagnose_rows
from logs_ui.recorder.diagnosis.contrast import compare_successive
from tests.recorder.diagnosis.test_diagnosis import card, rows_of

PLACE = np.arange(480)  # 20 steps of 24 rollouts, in groups of four
GROUP = PLACE // 4
LATE = PLACE >= 240


def diagnosed(task: Any, reward: Any) -> Report:
    return diagnose_rows(rows_of(480, steps=20, task=[f"task {it}" for it in task], reward=reward))


def checked(report: Report) -> tuple[str, str]:
    (found,) = (it for it in report.checked if it.id == "task_mix")
    return found.state, found.said


def test_a_collapse_on_the_tasks_that_both_sides_have_is_no_harder_mix() -> None:
    report = diagnosed(np.where(GROUP % 3 == 0, 0, np.where(LATE, 3, 1)), np.where(LATE, 0.0, PLACE % 2))
    state, said = checked(report)
    assert state == "not_judged"
    assert "too few tasks in common" in said


def test_a_task_that_only_one_side_has_is_not_counted() -> None:
    task = np.where(GROUP % 4 > 0, GROUP % 4, np.where(LATE, 9, 0))
    state, said = checked(diagnosed(task, np.where(task == 9, 0.0, PLACE % 2)))
    of_both = " among tasks of both, which have 75% of the rollouts"
    assert (state, said) == ("below", f"Since the first steps{of_both}: task-mix change 0, within-task change 0.")


def test_other_tasks_with_lower_rewards_are_told_without_a_reason() -> None:
    task = np.where(LATE, 2, 0) + GROUP % 2
    report = diagnosed(task, np.where(LATE, PLACE % 4 == 0, PLACE % 4 > 0))
    found = card(report, "task_mix")
    assert found.title == "100% of the last rollouts are of new tasks: mean reward lower by 0.5"
    assert report.verdict.said.endswith(
        "new tasks: mean reward lower by 0.5; no fault shows: solved 25%; at the same tasks of the last steps "
        "25% \u2192 25% (the first half of their rollouts against the second)"
    )
    assert (found.cost, found.since_step) == (0.5, 11)
    assert found.where == 'task:"task 2","task 3" step:11..20'
    assert found.evidence[0].startswith("Mean reward 0.25 in 60 groups of tasks that the first steps lack, 0.75 in 60 ")
    assert "These steps do not show" in found.evidence[1]
    assert found.evidence[2] == "New: task 2 and task 3."
    state, said = checked(diagnosed(task, PLACE % 2))
    assert state == "below"
    assert "are of tasks that the first steps lack; their mean reward is 0.5, " in said


def test_a_few_new_tasks_are_not_the_last_steps() -> None:
    task = np.where(GROUP % 5 == 0, np.where(LATE, 9, 8), np.where(LATE | (GROUP % 5 == 1), 0, 1 + GROUP % 3))
    state, _ = checked(diagnosed(task, np.where(task == 9, 0.0, PLACE % 2)))
    assert state == "not_judged"


def test_of_tasks_that_both_sides_have_the_share_is_said() -> None:
    easy = np.where(LATE, GROUP % 4 == 0, GROUP % 4 > 0)
    task = np.where(GROUP % 8 < 2, np.where(LATE, 9, 8), easy * 1)
    found = card(diagnosed(task, np.where(task == 1, 1.0, np.where(task == 0, 0.0, PLACE % 2))), "task_mix")
    assert found.title.endswith(" among tasks of both, which have 73% of the rollouts")


def test_tasks_that_successive_parts_share_tell_a_better_policy_from_harder_tasks() -> None:
    place = np.arange(1920)  # 40 steps of twelve groups of four; the first ten have tasks 0 to 11, the last 20 to 31
    step, dice = place // 48, np.random.default_rng(5).random(1920)
    task = step * 2 // 3 + place // 4 % 6
    names = [f"task {it}" for it in task]
    better, worse = (
        diagnose_rows(rows_of(1920, steps=40, task=names, reward=dice < chance))
        for chance in (0.7 + 0.02 * step - 0.04 * task, np.where(step < 20, 0.9, 0.3))
    )
    state, said = checked(better)
    assert (state, better.verdict.id) == ("below", "improving")
    assert (
        "but in the tasks that two parts share it rises from each of 4 parts of the run to the next: on average 0."
        in said
    )
    assert better.verdict.said.endswith("% (mean over 4 parts of the steps, each against the next, same mix)")
    assert (worse.cards, worse.verdict.id) == ((), "worse")


def test_a_long_run_is_compared_part_by_part_without_a_mask_of_each() -> None:
    """400 parts of 32,000 rollouts: a mask of each of them takes 13 MB."""
    rows = rows_of(32_000, steps=2_000)
    run: Any = SimpleNamespace(all=rows, rows=rows.last_steps(5, 32))
    rows.groups  # noqa: B018 - cached
    tracemalloc.start()
    compare_successive(run, rows.reward)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1_000_000
