"""Whether a difference of means may be chance: against scipy's figures, and on runs that differ by their seed alone."""

import numpy as np
import pytest

from logs_ui.app.pages.compare.run_figures import Estimate, estimate, mark_clear
from logs_ui.recorder.diagnosis.mean_difference import Difference, Mean, chance, chance_limit, compare, student_tail

SIZE = 8  # of a group


def means_of(dice: np.random.Generator, tasks: int, groups: int, shares: float = 0.5) -> list[Estimate | None]:
    """The means of tasks, each of so many groups, whose rollouts mostly end alike."""
    won = dice.beta(shares * 2, (1 - shares) * 2, (tasks, groups))
    return [estimate([(SIZE, float(it)) for it in dice.binomial(SIZE, of_task)]) for of_task in won]


def clear(table: list[list[Estimate | None]]) -> int:
    return sum(cells[1].is_clear for cells in mark_clear(table) if cells[1])


@pytest.mark.parametrize(  # scipy.stats.t.sf
    ("t", "free", "expected"),
    [(2.306, 8, 0.05), (0.5, 4.5, 0.6404), (3.0, 5, 0.03010), (2.0, 30.2, 0.05457), (0.0, 9, 1.0)],
)
def test_the_tail_is_students(t: float, free: float, expected: float) -> None:
    assert student_tail(t, free) == pytest.approx(expected, rel=0.05)


def test_welchs_test_is_that_of_groups() -> None:
    a, b = Mean(0.2, 0.05, 6, 6.0), Mean(0.5, 0.10, 8, 8.0)  # t = 2.683, 10.2 degrees of freedom
    assert chance(a, b) == pytest.approx(0.0226, rel=0.03)


@pytest.mark.parametrize("scale", [1e-300, 1e-90, 1e80, 1e160])
def test_a_difference_is_as_likely_at_any_scale(scale: float) -> None:
    a, b = Mean(0.2, 0.05, 6, 6.0), Mean(0.5, 0.10, 8, 8.0)
    scaled = (it._replace(value=it.value * scale, error=it.error * scale) for it in (a, b))
    assert chance(*scaled) == pytest.approx(chance(a, b))


def test_what_floats_do_not_hold_is_not_judged() -> None:
    flat = Mean(-1.5e308, 0.0, 5, 5.0)
    assert chance(flat, flat._replace(value=1.5e308)) is None
    assert chance(flat._replace(value=0.0), flat._replace(value=5e-324)) is None


@pytest.mark.parametrize("few", [1, 4])
def test_under_five_groups_nothing_is_judged(few: int) -> None:
    assert chance(Mean(0.0, 0.01, few, few), Mean(1.0, 0.01, 50, 50.0)) is None


def test_equal_means_and_sides_without_spread() -> None:
    flat = Mean(1.0, 0.0, 5, 5.0)
    assert chance(flat, Mean(1.0 - 1e-16, 0.0, 5, 5.0)) == 1.0
    assert chance(flat, Mean(0.0, 0.0, 5, 5.0)) == pytest.approx(0.0004, abs=0.0003)
    assert (chance(flat, Mean(0.0, 0.0, 5, 5.0)) or 0) > (chance(flat._replace(groups=20), Mean(0.0, 0.0, 20, 20)) or 0)
    assert chance(flat, Mean(1.0, float("inf"), 9, 9.0)) is None


@pytest.mark.parametrize(
    ("chances", "limit"), [([], -1), ([0.04], 0.04), ([0.04, 0.5], -1), ([0.02, 0.04], 0.04), ([0.9, 0.01, 0.04], 0.01)]
)
def test_the_number_of_comparisons_is_corrected_for(chances: list[float], limit: float) -> None:
    assert chance_limit(chances) == limit


@pytest.mark.exhaustive
@pytest.mark.parametrize(("groups", "most"), [(5, 0.12), (10, 0.09), (40, 0.09)])  # 5% are expected, of many groups
def test_of_runs_that_differ_by_their_seed_few_have_a_task_that_differs(groups: int, most: float) -> None:
    dice, pairs = np.random.default_rng(0), 200
    tables = [list(zip(means_of(dice, 40, groups), means_of(dice, 40, groups), strict=True)) for _ in range(pairs)]
    assert sum(clear([list(cells) for cells in table]) > 0 for table in tables) <= most * pairs


def test_a_tasks_fall_is_found() -> None:
    dice, hits = np.random.default_rng(1), 0
    for _ in range(100):
        table = list(zip(means_of(dice, 20, 20), means_of(dice, 20, 20), strict=True))
        fallen = means_of(dice, 1, 20, shares=0.1)
        hits += mark_clear([*map(list, table), [means_of(dice, 1, 20)[0], fallen[0]]])[-1][1].is_clear  # type: ignore[union-attr]
    assert hits >= 80


GROUPS = np.repeat(np.arange(40), SIZE)


def of_groups(seed: int, shift: float = 0.0) -> Difference:
    """Compare the later half of 40 groups, whose rollouts end mostly alike, with the first, within twelve tasks."""
    dice = np.random.default_rng(seed)
    task, ability = dice.integers(0, 12, 40), dice.uniform(0.1, 0.8, 12)
    late = np.arange(40) >= 20
    won = dice.beta(2 * ability[task], 2 * (1 - ability[task])) - shift * late
    values = (dice.random(len(GROUPS)) < won[GROUPS]).astype(float)
    found = compare(values, late[GROUPS], GROUPS, task[GROUPS])
    assert found is not None
    return found


def test_of_differences_between_equals_one_in_twenty_is_called_one() -> None:
    found = [of_groups(seed).chance for seed in range(300)]
    assert sum(it is not None and it < 0.05 for it in found) == 16, "15 are expected; with rollouts as units, 88"
    shifted = [of_groups(seed, 0.35).chance for seed in range(50)]
    assert sum(it is not None and it < 0.05 for it in shifted) == 35


def test_within_strata_both_sides_have_the_same_mix() -> None:
    task = np.array([0, 0, 0, 0, 1, 1, 1, 1, 1, 1])
    chosen = np.array([1, 0, 0, 0, 1, 1, 1, 0, 0, 0], bool)
    values = np.array([5.0, 4, 4, 4, 1, 1, 1, 0, 0, 0])
    found = compare(values, chosen, np.arange(10), task)
    assert found is not None
    # weights: 1 · 3 / 4 of the first task, 3 · 3 / 6 of the second
    assert found.chosen == pytest.approx((0.75 * 5 + 1.5 * 1) / 2.25)
    assert found.value == pytest.approx(1.0)
    whole = compare(values, chosen, np.arange(10))
    assert whole is not None
    assert whole.value == pytest.approx(0.0)
    assert found.groups == (4, 6)
    assert found.chance is None, "four units are too few"


def test_what_cannot_be_compared_is_not() -> None:
    x, unit = np.arange(12.0), np.arange(12)
    assert compare(x, np.ones(12, bool), unit) is None
    assert compare(np.full(12, np.nan), unit < 6, unit) is None
    assert compare(x, unit < 6, unit, unit // 6) is None, "no stratum has both"
    equal = compare(np.full(12, 0.1), unit < 6, unit)
    assert equal is not None
    assert (equal.t, equal.chance) == (0.0, 1.0)
    still = compare(np.where(unit < 6, 1e300, 0.0), unit < 6, unit)
    assert still is not None
    assert still.chance == pytest.approx(0.0003, abs=0.0005)
