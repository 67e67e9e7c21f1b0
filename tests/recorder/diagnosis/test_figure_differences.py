"""Differences are compared with groups as the units, and their step is that of the trends."""

import numpy as np
import pytest

from logs_ui.recorder.diagnosis import Report, diagnose_rows
from logs_ui.recorder.diagnosis.figure_differences import FigureDifference, parted_at
from tests.recorder.diagnosis.test_diagnosis import rows_of

COUNT, STEPS = 1_600, 20
STEP = np.arange(COUNT) // (COUNT // STEPS)
DICE = np.random.default_rng(5)


def lines_of(report: Report, name: str) -> tuple[FigureDifference, ...]:
    return next((it.lines for it in report.contrasts if it.id == name), ())


def test_a_figure_that_changed_is_first_with_its_step() -> None:
    solved = (DICE.uniform(size=COUNT) < np.where(STEP < 12, 0.3, 0.8)).astype(float)
    report = diagnose_rows(rows_of(COUNT, steps=STEPS, reward=solved, turns=3.0 + (DICE.uniform(size=COUNT) < 0.5)))
    lines = lines_of(report, "time")
    by_name = {it.name: it for it in lines}
    first = by_name["reward"]
    assert (first.name, first.is_clear, first.since) == ("reward", True, 13)
    assert first.others == pytest.approx(solved[STEP < 10].mean(), abs=0.01)
    assert first.chosen == pytest.approx(solved[STEP >= 10].mean(), abs=0.01)
    assert [it.name for it in lines if it.is_clear] == [*by_name][: sum(it.is_clear for it in lines)]
    assert not by_name["turns"].is_clear
    assert len(by_name) == len(lines), "a function may be called as a share is"


def test_a_family_of_tasks_that_changed_is_listed_with_what_is_solved_of_it() -> None:
    task = [f"{'web' if i // 8 % 2 else 'code'}/{i // 8}" for i in range(COUNT)]
    is_web = np.array([it.startswith("web") for it in task])
    solved = (DICE.uniform(size=COUNT) < np.where(is_web & (STEP >= 12), 0.9, 0.3)).astype(float)
    report = diagnose_rows(rows_of(COUNT, steps=STEPS, reward=solved, task=task))
    families = {it.name: (it.is_clear, it.since) for it in lines_of(report, "time") if it.place == "family"}
    assert families == {"web/": (True, 13), "code/": (False, None)}


def test_what_never_varies_and_a_single_step_have_no_change() -> None:
    assert diagnose_rows(rows_of(COUNT, steps=STEPS, reward=0.5)).contrasts == ()
    short = diagnose_rows(rows_of(64, steps=1, reward=DICE.uniform(size=64)), has_ended=True)
    assert lines_of(short, "time") == ()


def test_low_rollouts_are_compared_with_better_ones_of_their_groups() -> None:
    solved = DICE.integers(0, 2, COUNT).astype(float)
    turns = np.where(solved == 1, 3.0, 5.0) + DICE.integers(0, 2, COUNT)
    found = {
        it.name: it for it in lines_of(diagnose_rows(rows_of(COUNT, steps=STEPS, reward=solved, turns=turns)), "groups")
    }
    assert found["turns"].is_clear
    assert (found["turns"].others, found["turns"].chosen) == pytest.approx((3.5, 5.5), abs=0.15)
    assert "reward" not in found, "low rollouts have less of it by definition"


def test_a_task_is_compared_with_all_others() -> None:
    task = [f"t{i // 8 % 8}" for i in range(COUNT)]
    is_hard = np.array(task) == "t3"
    solved = (DICE.uniform(size=COUNT) < np.where(is_hard, 0.1, 0.7)).astype(float)
    first = lines_of(diagnose_rows(rows_of(COUNT, steps=STEPS, reward=solved, task=task)), "places")[0]
    assert (first.name, first.place, first.is_clear) == ("t3", "task", True)
    is_last = STEP >= STEPS - 10
    assert first.chosen == pytest.approx(solved[is_last & is_hard].mean())
    assert first.others == pytest.approx(solved[is_last & ~is_hard].mean())


def test_a_task_may_be_called_as_a_function_is() -> None:
    task = [("solved", "other (share)")[i // 8 % 2] for i in range(COUNT)]
    solved = (DICE.uniform(size=COUNT) < np.where(np.array(task) == "solved", 0.1, 0.7)).astype(float)
    report = diagnose_rows(rows_of(COUNT, steps=STEPS, reward=solved, task=task))
    assert {(it.name, it.place, it.is_share) for it in lines_of(report, "places")} >= {
        ("solved", "task", True), ("other (share)", "task", True),
    }  # fmt: skip


def test_curves_within_groups_do_not_show_what_differs_between_groups() -> None:
    group = np.arange(COUNT) // 8
    is_hard, solved = group % 2 == 1, np.arange(COUNT) % 8 < np.where(group % 2 == 1, 2, 6)
    turns = np.where(is_hard, 20.0, 5.0) - 2.0 * ~solved + DICE.uniform(size=COUNT)
    report = diagnose_rows(rows_of(COUNT, steps=STEPS, reward=solved.astype(float), turns=turns))
    line = next(it for it in lines_of(report, "groups") if it.name == "turns")
    assert line.chosen - line.others == pytest.approx(-2.0, abs=0.2)
    gaps = [low - better for (_, low), (_, better) in zip(line.trend, line.trend_of_others, strict=True)]
    assert max(gaps) < 0


def test_two_trends_part_where_their_difference_grows() -> None:
    level = tuple((step, 0.5 + 0.01 * (step % 2)) for step in range(1, 21))
    falling = tuple((step, 0.5 if step < 12 else 0.2) for step in range(1, 21))
    assert parted_at(falling, level) == 12
    assert parted_at(level, level) is None
    assert parted_at(tuple((21 - step, value) for step, value in reversed(falling)), level) is None, "they meet"
