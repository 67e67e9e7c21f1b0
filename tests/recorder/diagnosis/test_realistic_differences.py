"""The tables of differences of realistic runs are what their generators made."""

from collections.abc import Callable, Mapping
from functools import partial
from statistics import fmean
from typing import Any

import pytest

from logs_ui.recorder.diagnosis.figure_differences import FigureDifference
from tests.faults.realistic.counting import by, mean, tried
from tests.faults.realistic.recorded import Judged, judged
from tests.faults.realistic.registry import RUNS
from tests.support.exhaustive import cases

FIGURES: dict[str, Callable[[Mapping[str, Any]], float]] = {
    "turns": lambda it: it["turns"], "sampled tokens": lambda it: it["tokens"], "truncated": lambda it: it["truncated"],
}  # fmt: skip


def last_steps(run: Judged) -> list[Mapping[str, Any]]:
    first, last = run.diagnosed.report.steps or (0, 0)
    return [it for it in run.truth.rollouts if first <= it["step"] <= last]


def lines_of(run: Judged, name: str) -> tuple[FigureDifference, ...]:
    return next((it.lines for it in run.diagnosed.report.contrasts if it.id == name), ())


def within_groups(run: Judged, value: Callable[[Mapping[str, Any]], float | None]) -> tuple[float, float]:
    """Return the means of solved and of unsolved rollouts, over groups that have n and m of them, weighted by
    n m / (n + m).
    """
    sums = [0.0, 0.0, 0.0]
    for group in by("group", tried(last_steps(run))).values():
        known = [(it["solved"], number) for it in group if (number := value(it)) is not None]
        sides = [[float(number) for solved, number in known if bool(solved) is side] for side in (True, False)]
        if all(sides):
            weight = len(sides[0]) * len(sides[1]) / len(known)
            sums = [a + weight * b for a, b in zip(sums, (*map(fmean, sides), 1.0), strict=True)]
    return sums[0] / sums[2], sums[1] / sums[2]


SOLVED = ["tools-truncated", "coding-regressed", "mix-two", "vlm-truncated", "shaped-healthy", "web-regressed"]


@pytest.mark.parametrize("name", cases(SOLVED, 1))
def test_low_rollouts_differ_from_better_ones_of_their_groups_as_they_were_made(name: str) -> None:
    run = judged(name)
    functions = {it for rollout in run.truth.rollouts for it in rollout["values"] or ()}

    def value_of(figure: str, rollout: Mapping[str, Any]) -> float | None:
        return FIGURES[figure](rollout) if figure in FIGURES else (rollout["values"] or {}).get(figure)

    counted = {
        it.name: within_groups(run, partial(value_of, it.name))
        for it in lines_of(run, "groups")
        if it.name in {*functions, *FIGURES}
    }
    assert {it.name: (it.others, it.chosen) for it in lines_of(run, "groups") if it.name in counted} == {
        name: pytest.approx(means, abs=1e-6) for name, means in counted.items()
    }
    assert len(counted) >= 2


@pytest.mark.parametrize("name", cases([it.id for it in RUNS if it.kind in {"coding", "web", "shaped", "mix"}], 1))
def test_places_are_compared_with_all_others_as_they_were_made(name: str) -> None:
    run = judged(name)
    of_outcome = tried(last_steps(run))
    for it in lines_of(run, "places"):
        if it.place not in {"task", "family"} or not it.is_share:
            continue
        belongs = str.startswith if it.place == "family" else str.__eq__
        mine = [row for row in of_outcome if belongs(row["task"], it.name)]
        rest = [row for row in of_outcome if row not in mine]
        assert (it.chosen, it.others) == pytest.approx(
            (mean(r["solved"] for r in mine), mean(r["solved"] for r in rest))
        )


@pytest.mark.exhaustive
@pytest.mark.parametrize(("name", "where"), [
    ("coding-regressed", {"django-13551", "flask-5014"}), ("web-regressed", {"webarena/shopping_admin/"}),
])  # fmt: skip
def test_the_worst_places_of_a_run_that_forgot_are_those_that_it_forgot(name: str, where: set[str]) -> None:
    worse = {it.name for it in lines_of(judged(name), "places") if it.is_clear and it.chosen < 0.1}
    assert worse == where
