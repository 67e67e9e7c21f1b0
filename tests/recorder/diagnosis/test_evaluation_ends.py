"""Evaluations that end otherwise than the training are told with their figures, and those that end alike are not."""

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from logs_ui.recorder import diagnose, load_run
from logs_ui.recorder.analysis.diagnosis_columns import RunColumns
from logs_ui.recorder.diagnosis import Card, Report, Rows, diagnose_rows
from logs_ui.recorder.queries import Database
from logs_ui.recorder.vocabulary import Mode, StopReason
from tests.faults.evaluating import moves
from tests.faults.scripts import Shape, play
from tests.recorder.diagnosis.test_diagnosis import rows_of

COUNT, STEPS = 640, 20


def ended(count: int, steps: list[int], share: Any, evals: tuple[str, ...] = ("e",), seed: int = 1) -> Rows:
    """Return rollouts of which this share is cut off and worth nothing, in groups of four; each group is of a task of
    its own, and of the next of the evals.
    """
    dice = np.random.default_rng(seed)
    cut, right = dice.random(count) < share, dice.random(count) < 0.6
    stop = np.where(cut, StopReason.LENGTH, StopReason.DONE)
    tasks = [f"task {seed} {place // 4}" for place in range(count)]
    rows = rows_of(count, steps=len(steps), reward=np.where(cut, 0.0, right), stop_reason=stop, task=tasks)
    return replace(rows, step=np.array(steps)[rows.step - 1], eval=rows.group % len(evals), evals=list(evals))


def judged(trained: Rows, evaluated: Rows) -> tuple[Report, Card | None]:
    report = diagnose_rows(trained, evaluated=evaluated, has_ended=True)
    return report, next((card for card in report.cards if card.id == "evaluation_ends"), None)


def trained(share: Any = 0.02, **more: Any) -> Rows:
    """Return rollouts of a training with answers three times as long."""
    rows = ended(COUNT, list(range(1, STEPS + 1)), share, **more)
    return replace(rows, completion_tokens=np.full(COUNT, 300.0))


def test_the_filter_of_a_recorded_run_opens_exactly_these_rollouts(tmp_path: Path) -> None:
    shape = Shape(steps=4, groups=16, size=2, tasks=0, evaluated=partial(moves, limit=3), every=2, attempts=1)
    play(db := tmp_path / "a.db", partial(moves, limit=8), shape)
    report = diagnose(db=db)
    (found,) = report.cards
    assert found.id == "evaluation_ends"
    number, whole = found.evidence[0].split(" in ")[0].split(" of ")
    opened = load_run("latest", db=db, where=found.where)
    assert (len(opened), whole) == (int(number), "32 rollouts")
    assert set(opened.stop_reason) == {"turn_limit"}
    assert set(opened["mode"]) == {"eval"}
    assert not report.verdict.is_good


def test_evaluations_are_read_where_there_are_any(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[Mode] = []
    refresh = RunColumns.refresh

    def refresh_seen(self: RunColumns, db: Database) -> Rows:
        read.append(self.mode)
        return refresh(self, db)

    monkeypatch.setattr(RunColumns, "refresh", refresh_seen)
    for name, evaluated in (("a", None), ("b", partial(moves, limit=8))):
        play(db := tmp_path / f"{name}.db", partial(moves, limit=8), Shape(steps=2, evaluated=evaluated, every=2))
        diagnose(db=db)
    assert read == [Mode.TRAIN, Mode.TRAIN, Mode.EVAL]


def test_if_all_of_an_evaluation_is_cut_it_is_compared_with_the_training() -> None:
    report, found = judged(trained(), ended(64, [20], 1.0, seed=2))
    assert found is not None
    assert found.title == "100% of evaluation rollouts are truncated at the token limit, 1% of training rollouts"
    assert any(
        sentence.startswith("Mean reward: these rollouts 0, training rollouts that do not 0.")
        for sentence in found.evidence
    )
    assert found.since_step is None
    assert report.verdict.card == "evaluation_ends"


def test_answers_that_are_cut_at_the_limit_of_the_training_are_of_harder_tasks() -> None:
    limit = replace(trained(), completion_tokens=np.full(COUNT, 100.0))
    assert judged(limit, ended(192, [10, 20], 0.4, ("aime",), 2))[1] is None


def test_an_eval_that_is_not_trained_on_is_named() -> None:
    _, found = judged(trained(), ended(192, [10, 20], [0.5, 0.5, 0.5, 0.5, 0, 0, 0, 0] * 24, ("e", "aime")[::-1], 2))
    assert found is not None
    assert "evaluation rollouts of aime are truncated" in found.title
    assert found.where == "mode:eval eval:aime cause:truncation step:10..20"


def test_a_mix_of_evals_that_end_as_the_training_of_each_is_no_finding() -> None:
    share = np.where(np.arange(COUNT) // 4 % 8 == 0, 0.5, 0.02)  # one group in eight is of mathematics
    of_training = trained(share)
    is_maths = of_training.group % 8 == 0
    of_training = replace(of_training, eval=np.where(is_maths, 0, 1), evals=["maths", "game"])
    evaluated = ended(192, [10, 20], np.where(np.arange(192) // 4 % 2 == 0, 0.5, 0.02), ("maths", "game"), 2)
    assert judged(of_training, evaluated)[1] is None


@pytest.mark.parametrize("seed", range(3))
def test_answers_that_grow_into_the_limit_do_so_in_both(seed: int) -> None:
    share = 0.03 * np.arange(STEPS)
    evaluated = ended(4 * 96, [5, 10, 15, 20], np.repeat(share[[4, 9, 14, 19]], 96), seed=seed + 10)
    assert judged(trained(np.repeat(share, COUNT // STEPS), seed=seed), evaluated)[1] is None


def test_what_is_cut_in_the_evaluation_at_no_cost_is_no_finding() -> None:
    evaluated = ended(192, [10, 20], 0.5, seed=2)
    report, found = judged(trained(), replace(evaluated, reward=(np.arange(192) % 2).astype(float)))
    assert found is None
    (said,) = (check.said for check in report.checked if check.id == "evaluation_ends")
    assert said.endswith("(threshold: 10% of rollouts more than in training); it may be chance, or costs no reward.")


def test_an_evaluation_before_the_training_is_compared_with_its_first_steps() -> None:
    _, found = judged(trained(), ended(64, [0], 0.5, seed=2))
    assert found is not None
    assert found.evidence[1].endswith(" of 64 training rollouts, at most 2 steps away.")


def test_an_evaluation_far_from_the_training_is_not_judged() -> None:
    report, found = judged(trained(), ended(64, [40], 0.5, seed=2))
    assert found is None
    (check,) = (check for check in report.checked if check.id == "evaluation_ends")
    assert check.state == "not_judged"


@pytest.mark.parametrize("seed", range(3))
def test_a_policy_that_learns_to_end_does_so_in_both(seed: int) -> None:
    share = np.maximum(0.8 - 0.06 * np.arange(STEPS), 0.02)
    evaluated = ended(3 * 96, [4, 8, 12], np.repeat(share[[3, 7, 11]], 96), seed=seed + 10)
    assert judged(trained(np.repeat(share, COUNT // STEPS), seed=seed), evaluated)[1] is None
