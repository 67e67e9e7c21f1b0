"""A run against references: runs are the units, and what left them is outside of their range since a step."""

from typing import Any

import numpy as np
import pytest

from logs_ui.recorder.diagnosis.against import Against, ComparedFigure, RunGroups, compare_runs
from logs_ui.recorder.diagnosis.rollout_rows import Floats

STEPS, GROUPS = 40, 5


def run_of(seed: int, *, steps: int = STEPS, less: float = 0.0, since: int = 21, **more: Floats) -> RunGroups:
    """A run whose answers have about 100 tokens, by `less` fewer `since` a step; it drifts by a level of its own."""
    dice, step = np.random.default_rng(seed), np.repeat(np.arange(1, steps + 1), GROUPS)
    tokens = dice.normal(100 + dice.normal(0, 2), 3, len(step)) - less * (step >= since)
    reward = dice.normal(0.5, 0.1, len(step))
    task = np.array([f"task {it}" for it in dice.integers(0, 9, len(step))], object)
    return RunGroups(step, task, {"reward": reward, "tokens per turn": tokens, **more})


def references(count: int = 4, **options: Any) -> dict[str, RunGroups]:
    return {f"run {seed}": run_of(seed, **options) for seed in range(1, count + 1)}


def test_a_run_that_leaves_its_references_is_told_with_its_step_and_figure() -> None:
    against = compare_runs(run_of(0, less=30), references())
    (left,) = [it for it in against.figures if it.since_step is not None]
    assert (against.id, left.name, left.since_step) == ("left", "tokens per turn", 21)
    assert left.value == pytest.approx(70, abs=5)
    assert against.verdict.startswith("differs from them from step 21 on: tokens per turn ")


def test_a_run_that_differs_by_its_seed_is_within_its_references() -> None:
    against = compare_runs(run_of(0), references())
    assert (against.id, against.verdict) == ("within", "within what they do (steps 1 to 40, 2 figures)")


def test_a_run_unlike_its_references_from_the_beginning_did_not_leave_them_later() -> None:
    against = compare_runs(run_of(0, less=60, since=1), references())
    assert against.verdict.startswith("differs from them from step 1 on: tokens per turn ")


def test_a_level_of_its_own_is_no_difference_where_references_have_some() -> None:
    wide = {name: run_of(seed, less=20.0 * seed, since=1) for seed, name in enumerate("abcd")}
    assert compare_runs(run_of(9, less=90, since=1), wide).id == "within"


def test_two_references_give_differences_and_no_verdict() -> None:
    against = compare_runs(run_of(0, less=30), references(2))
    assert (against.id, [it.since_step for it in against.figures]) == ("not_judged", [None, None])
    assert against.verdict == "no verdict, which needs 3 references; means over the last third of steps 1 to 40"


def test_runs_are_compared_up_to_the_last_step_that_all_have() -> None:
    against = compare_runs(run_of(0, less=30, since=31), {**references(3), "short": run_of(4, steps=28)})
    assert (against.id, against.steps) == ("within", [1, 28])


def test_a_figure_that_a_reference_lacks_is_not_compared() -> None:
    judge = np.random.default_rng(5).normal(0, 1, STEPS * GROUPS)
    against = compare_runs(run_of(0, judge=judge), {**references(3, judge=judge), "other": run_of(7)})
    assert (against.not_compared, against.notes) == (["judge"], "Not compared: judge.")


LATER = RunGroups(np.arange(90, 95), np.full(5, "task 1", object), {"reward": np.zeros(5)})


@pytest.mark.parametrize("other", [run_of(1, steps=0), LATER], ids=["empty", "later"])
def test_runs_without_a_common_step_are_not_compared(other: RunGroups) -> None:
    against = compare_runs(run_of(0), {**references(3), "other": other})
    assert (against.id, against.steps) == ("not_judged", None)
    assert against.verdict == "not compared, as the runs share too few groups by step"


def test_figures_are_named_in_the_order_in_which_they_left() -> None:
    figures = [
        ComparedFigure("tokens per turn", 212.0, [380.0, 420.0, 400.0], is_share=False, since_step=41),
        ComparedFigure("turns", 2.0, [3.0, 3.0, 3.0], is_share=False, since_step=41),
        ComparedFigure("solved", 0.31, [0.45, 0.52, 0.5], is_share=True, since_step=52),
        ComparedFigure("reward", 0.3, [0.5, 0.6, 0.5], is_share=False, since_step=53),
    ]
    assert Against("left", ["a", "b", "c"], [1, 80], figures).verdict == (
        "differs from them from step 41 on: tokens per turn 212 (references 380 to 420), turns 2 (references 3); "
        "from step 52 on: solved 31% (references 45% to 52%); and 1 more (steps 1 to 80)"
    )
    assert [it.difference for it in figures] == ["\u2212188", "\u22121", "\u221218 pp", "\u22120.233"]
