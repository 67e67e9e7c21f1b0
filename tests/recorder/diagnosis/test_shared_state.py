"""Generations that share a state: exactly one of a group is solved, more often than independent ones can be."""

from typing import Any

import numpy as np
import pytest

from logs_ui.recorder.diagnosis import Report, Settings, diagnose_rows
from logs_ui.recorder.diagnosis.card import Texts
from tests.recorder.diagnosis.test_diagnosis import card, rows_of
from tests.recorder.diagnosis.test_states import checked

COUNT = 960
PLACE = np.arange(COUNT)
GROUP = PLACE // 8
FIRST = PLACE % 8 == 3
DICE = np.random.default_rng(5).uniform(size=COUNT)
KIND = GROUP % 4


def said(line: str, *, to_solved: bool = False) -> Any:
    """Return what reads one observation of failed rollouts, or of all."""
    return lambda ids: {
        it: Texts((), [{"observation": line if to_solved or not FIRST[it - 1] else "ok"}]) for it in ids
    }


def report_on(solved: Any, *, steps: int = 12, settings: Settings | None = None, **read: Any) -> Report:
    tasks = [f"{'abcd'[kind]}/{group}" for kind, group in zip(KIND.tolist(), GROUP.tolist(), strict=True)]
    rows = rows_of(COUNT, steps=steps, group=GROUP, reward=np.asarray(solved, float), task=tasks)
    return diagnose_rows(rows, settings, **read)


@pytest.mark.parametrize(
    ("line", "is_told"),
    [
        ("Error: seat 4 is already booked", True),
        ("sqlite3.OperationalError: database is locked", True),
        ("FileExistsError: [Errno 17] File exists: 'a'", True),
        ("Error: no such seat", False),
        ("Error in user code", False),
        ("the seat is already booked", False),  # no error
    ],
)
def test_one_winner_in_all_groups_is_judged_by_what_the_others_read(line: str, is_told: bool) -> None:  # noqa: FBT001 - of a table
    report = report_on(FIRST, read_texts=said(line))
    assert ("shared_state" in {it.id for it in report.cards}) is is_told
    if is_told:
        found = card(report, "shared_state")
        assert (found.title, found.is_setup) == ("Exactly one of 8 rollouts is solved in 120 of 120 groups", True)
    else:
        assert "the reward may rank a group" in checked(report, "shared_state").said


def test_an_error_that_the_winners_read_tells_nothing() -> None:
    report = report_on(FIRST, read_texts=said("Error: seat 4 is already booked", to_solved=True))
    assert checked(report, "shared_state").state == "not_judged"


def test_a_place_is_told_from_others_without_an_error_if_some_of_their_groups_are_unsolved() -> None:
    others = np.where(GROUP % 8 == 1, 0.0, 0.6) > DICE
    found = card(report_on(np.where(KIND == 2, FIRST, others)), "shared_state")
    assert (found.title.partition(" in ")[2], found.is_setup) == ("30 of 30 groups of c/", False)
    report = report_on(np.where(KIND == 2, FIRST, DICE < 0.8))
    assert checked(report, "shared_state").state == "not_judged"


def test_groups_of_other_sizes_elsewhere_hide_nothing() -> None:
    group = np.where(KIND == 2, GROUP, COUNT + PLACE // 4)
    tasks = [
        f"{'c' if kind == 2 else 'a'}/{number}" for kind, number in zip(KIND.tolist(), group.tolist(), strict=True)
    ]
    solved = np.where(KIND == 2, FIRST, DICE < 0.6)
    rows = rows_of(COUNT, steps=12, group=group, reward=solved, task=tasks)
    found = card(diagnose_rows(rows, read_texts=said("Error: seat 4 is already booked")), "shared_state")
    assert found.title == "Exactly one of 8 rollouts is solved in 30 of 30 groups of c/"


def test_what_has_ended_is_no_finding() -> None:
    solved = np.where(GROUP < 90, FIRST, DICE < 0.6)
    report = report_on(solved, settings=Settings(steps=3), read_texts=said("Error: already booked"))
    assert checked(report, "shared_state").state == "below"


@pytest.mark.parametrize("chance", [0.05, 1 / 8, 0.2])
@pytest.mark.parametrize("seed", range(5))
def test_independent_generations_are_no_finding(chance: float, seed: int) -> None:
    solved = np.random.default_rng(seed).uniform(size=COUNT) < chance
    report = report_on(
        solved, read_texts=said("Error: already booked"), settings=Settings(thresholds={"shared_state": 0})
    )
    assert checked(report, "shared_state").state == "below"
