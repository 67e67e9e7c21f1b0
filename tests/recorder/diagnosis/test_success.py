"""Which rollouts count as solved, on rewards as real runs have them."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from logs_ui.recorder.diagnosis import Settings, diagnose_rows
from logs_ui.recorder.diagnosis.scale import Scale
from logs_ui.recorder.diagnosis.success import Success, is_outcome
from logs_ui.recorder.diagnosis.tables.tasks import Label, figures, labels
from logs_ui.recorder.vocabulary import Mark
from tests.recorder.diagnosis.test_diagnosis import NAN, rows_of

COUNT = 96
PLACE = np.arange(COUNT)
RIGHT = (PLACE % 3 == 0).astype(float)
GRADED = np.random.default_rng(5).uniform(0, 1, COUNT)


def success(settings: Settings | None = None, **columns: Any) -> tuple[Success, np.ndarray]:
    """The definition for a run, and which of its rollouts are solved."""
    parts = columns.get("parts")
    if parts is not None and "reward" not in columns:
        weights = columns.get("weights", dict.fromkeys(parts, 1.0))
        columns["reward"] = sum(np.nan_to_num(part) for part in parts.values())
        columns["values"] = {name: part / (weights[name] or 1) for name, part in parts.items()}
    rows = rows_of(COUNT, **columns)
    found = Success.of(rows, settings or Settings())
    return found, found.solved(rows)


@pytest.mark.parametrize(
    "parts",
    [
        pytest.param({"correct": RIGHT, "length_penalty": -GRADED, "judge": 3 * GRADED}, id="agent"),
        pytest.param({"correctness_reward_func": 2 * RIGHT, "xmlcount": GRADED / 2, "int": RIGHT / 2}, id="gsm8k"),
        pytest.param({"accuracy": 2 * RIGHT - 1, "format_correct": np.ones(COUNT)}, id="minus one"),
        pytest.param({"score": RIGHT, "format": GRADED / 4}, id="any name"),
    ],
)
def test_a_function_that_says_yes_or_no_decides_whatever_is_in_the_sum(parts: dict[str, Any]) -> None:
    found, solved = success(parts=parts)
    assert found.description.startswith(f"{next(iter(parts))} \u2265 ")
    np.testing.assert_array_equal(solved, RIGHT == 1)


def test_the_best_hundredth_of_a_sum_is_never_a_definition() -> None:
    found, solved = success(parts={"judge": 10 * GRADED, "style": GRADED})
    assert not found.is_defined
    assert not solved.any()
    assert found.description.startswith("not defined")


def test_a_format_that_is_kept_solves_nothing() -> None:
    assert not success(parts={"format": RIGHT, "score": 10 * GRADED})[0].is_defined


def test_a_format_beside_a_function_that_never_pays_solves_nothing() -> None:
    formatted = np.resize([0.0, 0.2, 0.2, 0.2, 0.2], COUNT)
    assert not success(parts={"formatted": formatted, "boxed": 0 * RIGHT})[0].is_defined


@pytest.mark.parametrize("name", ["tests_pass", "acc", "val_acc"])
def test_a_metric_of_weight_0_may_decide(name: str) -> None:
    found, solved = success(
        parts={"judge": 9 * GRADED, name: 0 * RIGHT}, weights={"judge": 1.0, name: 0.0},
        reward=9 * GRADED, values={"judge": 9 * GRADED, name: RIGHT},
    )  # fmt: skip
    assert found.where == f"rewards.{name}>=0.999999"
    np.testing.assert_array_equal(solved, RIGHT == 1)


def test_each_task_of_a_mix_has_its_own_function() -> None:
    math, code = PLACE % 2 == 0, PLACE % 2 == 1
    parts = {"math_correct": np.where(math, RIGHT, NAN), "code_passes": np.where(code, RIGHT, NAN)}
    found, solved = success(parts=parts)
    assert len(found.marks) == 2
    assert found.where == ""
    np.testing.assert_array_equal(solved, RIGHT == 1)


def test_an_environment_of_a_smaller_scale_has_its_own_mark() -> None:
    code = np.arange(60) % 2
    paid = np.where(code == 0, np.arange(60) // 2 % 2 * 100.0, np.arange(60) // 2 % 4)
    rows = replace(rows_of(60, reward=paid, parts={"env_reward": paid}), eval=code, evals=["quest", "shop"])
    found = Success.of(rows, Settings())
    assert found.description == "quest: env_reward \u2265 100; shop: env_reward \u2265 3"
    assert found.solved(rows).tolist() == (paid == np.where(code == 0, 100, 3)).tolist()


def test_the_environments_word_counts_at_a_reward_of_three_quarters() -> None:
    shaped = np.where(RIGHT == 1, 0.75, 0.5 * GRADED)
    found, solved = success(parts={"shaping": shaped}, env_success=RIGHT)
    assert "environment" in found.description
    np.testing.assert_array_equal(solved, RIGHT == 1)


def test_the_environments_last_reward_of_1_is_its_word() -> None:
    found, _ = success(parts={"shaping": GRADED}, env_reward_last=RIGHT, stop_reason="done")
    assert found.marks == (Mark("env_reward_last", 1.0),)
    paid_each_turn = success(parts={"shaping": GRADED}, env_reward_last=RIGHT, stop_reason="turn_limit")
    assert not paid_each_turn[0].is_defined


def test_a_gap_in_the_rewards_defines_nothing() -> None:
    penalty = np.where(RIGHT == 1, 0.8 + 0.2 * GRADED, -17.0)
    assert not success(parts={"shaping": penalty})[0].is_defined


@pytest.mark.parametrize(
    "name", ["incorrect", "unsolved", "no_answer", "window_size", "copyright", "percentage_format", "accumulated"]
)
def test_a_name_is_read_word_by_word(name: str) -> None:
    assert not is_outcome(name)
    assert all(map(is_outcome, ("percentage_correct", "testsPassed", "is_solved", "resolved", "task_completed")))


def test_a_function_that_is_to_be_avoided_is_no_success() -> None:
    parts = {"is_toxic": -RIGHT, "quality": GRADED}
    assert "is_toxic" not in success(parts=parts, weights={"is_toxic": -1.0, "quality": 1.0})[0].description


def test_a_heavier_function_against_something_does_not_decide() -> None:
    parts = {"no_violation": 1.2 * RIGHT[::-1], "resolved": RIGHT}
    found = success(parts=parts, weights={"no_violation": 1.2, "resolved": 1.0})[0]
    assert found.description == "resolved \u2265 1"


def test_a_verdict_that_never_says_otherwise_is_none() -> None:
    assert not success(parts={"score": GRADED}, env_success=1.0)[0].is_defined


def test_tasks_of_a_mix_without_a_function_that_decides_are_not_never_solved() -> None:
    math = PLACE // 4 % 2 == 0
    parts = {"correct": np.where(math, RIGHT, NAN), "judge": np.where(math, NAN, GRADED)}
    rows = rows_of(
        COUNT, parts=parts, values=parts, reward=np.where(math, RIGHT, GRADED),
        task=[f"{'math' if it else 'code'}" for it in math],
    )  # fmt: skip
    found = labels(rows, Scale.of(rows, Settings()))
    assert dict(zip(rows.tasks, found.label, strict=True)) == {"math": Label.LEARNING, "code": Label.UNKNOWN}
    assert np.isnan(figures(rows, Scale.of(rows, Settings()), 4).share[rows.tasks.index("code")])


def test_a_rare_success_is_a_scale_and_a_perfect_run_has_no_fault() -> None:
    rare = diagnose_rows(rows_of(480, reward=np.where(np.arange(480) % 160 == 0, 1.0, 0.0)))
    assert not rare.scale.is_flat
    assert rare.fall.best == 1.0
    perfect = diagnose_rows(rows_of(reward=1.0))
    assert perfect.cards == ()
    assert perfect.fall.shares == ()


def test_huge_rewards_are_diagnosed() -> None:
    for reward in (1e308 * (PLACE % 2), 1e160 * GRADED):
        assert diagnose_rows(rows_of(COUNT, reward=reward)).steps is not None


def test_what_the_user_set_comes_first() -> None:
    parts = {"correct": RIGHT, "judge": GRADED}
    assert success(Settings(solved_at=1.5), parts=parts)[0].marks == (Mark("reward", 1.5),)
    assert success(Settings(max_reward=2.0), parts=parts)[0].description == "correct \u2265 1"
    found, solved = success(Settings(solved_at=0.5, solved_by="judge"), parts=parts)
    np.testing.assert_array_equal(solved, GRADED >= 0.5)
    assert found.description == "judge \u2265 0.5, as set"
    assert "which scored no rollout" in success(Settings(solved_by="jugde"), parts=parts)[0].description


def test_without_a_definition_no_statement_needs_it() -> None:
    rows = rows_of(COUNT, reward=10 * GRADED, parts={"judge": 10 * GRADED})
    scale = Scale.of(rows, Settings())
    assert set(labels(rows, scale).label) == {Label.UNKNOWN}
    assert np.isnan(figures(rows, scale, 4).share).all()
    report = diagnose_rows(rows)
    assert {"never_solved", "forgotten"} <= {it.id for it in report.checked if it.state == "not_judged"}
    assert report.as_dict()["solved_at"] is None


def test_a_task_that_is_solved_at_times_after_its_fall_has_regressed() -> None:
    """0.65 before step 12, and one in forty since: not "not once", and yet it is lost."""
    place, dice = np.arange(24 * 16), np.random.default_rng(3)
    step, task = 1 + place // 16, place // 4 % 4
    lost = (task == 1) & (step >= 12)
    right = (dice.uniform(size=len(place)) < np.where(lost, 0.03, 0.65)).astype(float)
    rows = rows_of(
        len(place), steps=24, task=[f"task {it}" for it in task],
        reward=right + 0.3 * dice.uniform(size=len(place)), parts={"tests_passed": right},
    )  # fmt: skip
    found = labels(rows, Scale.of(rows, Settings()))
    assert [rows.tasks[it] for it in np.flatnonzero(found.label == Label.FORGOTTEN).tolist()] == ["task 1"]
    assert abs(int(found.since[1]) - 12) <= 2
    card = next(it for it in diagnose_rows(rows).cards if it.id == "forgotten")
    assert card.title.startswith("1 of 4 tasks regressed")


def test_no_cost_is_above_the_loss_and_equal_rewards_have_none() -> None:
    flat = diagnose_rows(rows_of(reward=0.0, stop_reason="length", truncated_turns=1.0), has_ended=True)
    assert flat.scale.is_flat
    assert all(card.cost is None and card.share == 1.0 for card in flat.cards)
    assert [(it.cause.id, it.cost, it.rollouts) for it in flat.fall.shares] == [("truncation", 1.0, 48)]
    assert "no scale" in str(flat)
    values = flat.as_dict()
    assert (values["best"], values["lost"], values["waterfall"][0]["cost"]) == (None, None, None)
