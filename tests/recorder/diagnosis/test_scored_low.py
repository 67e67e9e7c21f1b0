"""What is said of rollouts that ended normally and scored low."""

from collections.abc import Callable

import numpy as np
import pytest

from logs_ui.recorder.diagnosis import Report, diagnose_rows
from logs_ui.recorder.diagnosis.rollout_rows import Floats, Ints
from logs_ui.recorder.diagnosis.task_families import by_family, families
from tests.recorder.diagnosis.test_diagnosis import rows_of

COUNT = 320
PLACE = np.arange(COUNT)
GROUP = PLACE // 4
DICE = np.random.default_rng(11)
RIGHT = (DICE.uniform(size=COUNT) < 0.5).astype(float)
JUDGE = 0.2 * DICE.uniform(size=COUNT)


def test_the_loss_of_rollouts_that_ended_is_split_by_function_task_and_habit() -> None:
    hard = GROUP % 4 == 1
    right = (DICE.uniform(size=COUNT) < np.where(hard, 0.2, 0.8)).astype(float)
    rows = rows_of(
        COUNT, steps=10, reward=right + JUDGE, parts={"correct": right, "judge": JUDGE}, stop_reason="done",
        task=[f"task {it % 4}" for it in GROUP], turns=np.where(right == 1, 6.0, 12.0) + PLACE % 3,
    )  # fmt: skip
    report = diagnose_rows(rows)
    card = report.scored_low
    assert card is not None
    assert card.title == "Ended below best: 100% of the lost reward, at least half of it in correct"
    said = " ".join(card.evidence)
    lost = float((rows.reward < report.fall.best).mean())
    shortfall = (1.0 - right[rows.reward < report.fall.best].mean()) * lost
    assert f"correct {shortfall:.3g}" in said
    assert (
        "By tasks, rollouts that ended normally lose more in task 1 (mean reward 0.303); elsewhere it is 0.919." in said
    )
    assert "turns 13, in better ones 7" in said
    assert said.endswith("beyond chance: 14 figures over time (steps 1\u20133 against 8\u201310, same task mix).")
    assert card.where == f"cause:wrong_answer -reward>={report.fall.best:.9g}"


def test_the_headline_is_the_largest_cause_and_not_the_first_finding() -> None:
    """A tenth of the rollouts is truncated; most of the loss is of rollouts that ended."""
    cut = PLACE % 10 == 0
    rows = rows_of(
        COUNT, steps=10, reward=np.where(cut, 0.0, RIGHT), stop_reason=np.where(cut, "length", "done").astype(object),
        truncated_turns=cut.astype(float),
    )  # fmt: skip
    report = diagnose_rows(rows)
    assert [it.id for it in report.cards] == ["truncation"]
    assert report.headline is report.scored_low
    assert report.as_dict()["scored_low"]["id"] == "scored_low"
    short = diagnose_rows(rows, in_full=False)
    assert (short.scored_low, short.contrasts, short.verdict) == (None, (), report.verdict)
    mostly = diagnose_rows(
        rows_of(COUNT, steps=10, reward=np.where(PLACE % 10 < 6, 0.0, RIGHT), truncated_turns=(PLACE % 10 < 6) * 1.0,
                stop_reason=np.where(PLACE % 10 < 6, "length", "done").astype(object))
    )  # fmt: skip
    assert mostly.headline is not None
    assert mostly.headline.id == "truncation"


def test_a_run_that_loses_little_or_has_no_scale_needs_no_explanation() -> None:
    assert diagnose_rows(rows_of(COUNT, steps=10, reward=1.0 * (PLACE % 50 > 0))).scored_low is None
    assert diagnose_rows(rows_of(COUNT, steps=10, reward=0.0)).scored_low is None


def test_weights_that_drown_the_outcome_are_named() -> None:
    parts = {"correct": 0.02 * RIGHT, "a": DICE.uniform(size=COUNT), "b": DICE.uniform(size=COUNT)}
    values = {"correct": RIGHT, "a": parts["a"], "b": parts["b"]}
    rows = rows_of(
        COUNT, steps=10, reward=sum(parts.values()), parts=parts, values=values,
        weights={"correct": 0.02, "a": 1.0, "b": 1.0},
    )  # fmt: skip
    first = diagnose_rows(rows).cards[0]
    assert first.id == "reward_parts"
    assert first.title.startswith("correct, which defines solved, explains")
    assert "correct 0.02, " in " ".join(first.evidence)
    assert first.where == "rewards.correct<0.999999"


@pytest.mark.parametrize(
    ("tasks", "expected"),
    [
        ([f"web/shop_{n % 3}/{n}" for n in range(30)], {"web/shop_0/", "web/shop_1/", "web/shop_2/"}),
        ([f"gsm8k/train/{n:05}" for n in range(100)], None),
        (["django-1", "django-2", "pytest-1", "flask-7"], None),
        ([f"django-{n}" for n in range(9)] + [f"pytest-{n}" for n in range(9)], {"django-", "pytest-"}),
        ([], None),
    ],
)
def test_a_family_is_the_beginning_of_names(tasks: list[str], expected: set[str] | None) -> None:
    found = families(tasks)
    assert (None if found is None else set(found)) == expected


def test_a_family_that_is_not_solved_any_more_is_found_though_each_task_comes_once() -> None:
    place = np.arange(800)
    step, family = 1 + place // 20, place // 4 % 5
    right = (np.random.default_rng(2).uniform(size=800) < 0.6) & ~((family == 2) & (step >= 21))
    rows = rows_of(
        800, steps=40, reward=right.astype(float), task=[f"web/site{it}/{at // 4}" for at, it in enumerate(family)]
    )
    grouped = by_family(rows)
    assert grouped is not None
    assert len(grouped.tasks) == 5
    card = next(it for it in diagnose_rows(rows).cards if it.id == "forgotten")
    assert card.title.startswith("1 of 5 task families regressed")
    assert card.where.startswith("family:web/site2/")
    assert card.since_step is not None
    assert abs(card.since_step - 21) <= 2


def test_a_whole_family_that_regressed_is_told_as_one_though_its_tasks_come_often() -> None:
    group = np.arange(1600) // 4
    step, number = 1 + group // 10, group % 60  # 60 tasks of five families, each in six or seven groups
    right = (np.random.default_rng(2).uniform(size=1600) < 0.5) & ~((number % 5 == 2) & (step >= 21))
    rows = rows_of(1600, steps=40, reward=right.astype(float), task=[f"web/site{it % 5}/{it}" for it in number])
    card = next(it for it in diagnose_rows(rows).cards if it.id == "forgotten")
    assert (card.where, card.title[:34]) == ("family:web/site2/ step:31..40", "1 of 5 task families regressed: 0%")


@pytest.mark.parametrize(("rest", "is_found"), [(0.25, False), (0.75, True)])
def test_a_fall_of_all_tasks_is_no_regression_of_a_few(rest: float, *, is_found: bool) -> None:
    """Of 41 mazes four come often, and are solved at 0.75 before step 21, at 0.03 since; the others at `rest` then."""
    group = np.arange(2400) // 6
    step, often = 1 + group // 10, group % 10 < 2
    number = np.where(often, group // 10 % 2 * 2 + group % 10, 4 + group * 8 // 10 % 36)
    number[-1] = 40  # tried once: it cannot be judged
    chance = np.where(step < 21, 0.75, np.where(number < 4, 0.03, rest))
    right = np.random.default_rng(4).uniform(size=2400) < chance
    rows = rows_of(2400, steps=40, group=group, reward=right.astype(float), task=[f"maze {it}" for it in number])
    report = diagnose_rows(rows)
    card = next((it for it in report.cards if it.id == "forgotten"), None)
    if is_found:
        assert card is not None
        assert card.title.startswith("4 of 40 tasks with 10+ attempts after their first step regressed: ")
        return
    assert card is None
    checked = next(it for it in report.checked if it.id == "forgotten")
    assert checked.said == "4 tasks fell for certain, and the others fell, too, then or before: solved 74% \u2192 24%."
    assert report.verdict.said.startswith("Getting worse")


def fallen_families(chance: Callable[[Ints, Ints], Floats]) -> Report:
    """Return the report on four families of 100 groups of 60 steps; `chance` is that of families and steps."""
    group = np.arange(3200) // 8
    step, family = 1 + group * 60 // 400, group * 7919 % 4
    right = np.random.default_rng(6).uniform(size=3200) < chance(family, step)
    task = [f"site{of}/{number}" for of, number in zip(family.tolist(), group.tolist(), strict=True)]
    return diagnose_rows(rows_of(3200, steps=60, group=group, reward=right.astype(float), task=task))


def test_a_family_is_not_named_if_the_others_fell_before() -> None:
    report = fallen_families(
        lambda family, step: np.where(step < 30, 0.65, np.where((family == 2) & (step >= 50), 0.03, 0.33))
    )
    assert "forgotten" not in {it.id for it in report.cards}
    checked = next(it for it in report.checked if it.id == "forgotten")
    assert checked.said.startswith("1 task family fell for certain, and the others fell, too, then or before: solved ")


@pytest.mark.parametrize(
    ("slowly", "begins"), [(1, "Look first at what changed there about step 30: "), (25, "Return ")]
)
def test_what_is_solved_no_more_from_one_step_on_may_be_graded_wrong(slowly: int, begins: str) -> None:
    """One family falls to 0 from step 30 on, at once or in 25 steps."""
    report = fallen_families(
        lambda family, step: np.where(family == 2, 0.6 * np.clip(1 - (step - 29) / slowly, 0, 1), 0.6)
    )
    card = next(it for it in report.cards if it.id == "forgotten")
    assert card.suggestion.startswith(begins)


def test_a_fall_of_every_task_names_none() -> None:
    place = np.arange(960)
    right = np.random.default_rng(5).uniform(size=960) < np.where(place < 480, 0.8, 0.05)
    report = diagnose_rows(rows_of(960, steps=40, reward=right.astype(float)))
    checked = next((it for it in report.checked if it.id == "forgotten"), None)
    assert checked is not None
    assert (checked.state, checked.said) == ("below", "3 of 3 tasks fell, and there are no others to compare with.")
