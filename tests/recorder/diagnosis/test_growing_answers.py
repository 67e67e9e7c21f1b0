"""Answers that grow while nothing is gained by it are found; a penalty of length is no fault of the set-up."""

from typing import Any

import numpy as np
import pytest

from logs_ui.recorder.diagnosis import Card, diagnose_rows
from logs_ui.recorder.diagnosis.checks.growing_answers import is_penalty
from tests.faults.columns import diagnosed
from tests.faults.growing import plans_without_moves
from tests.faults.scripts import Shape, generated
from tests.recorder.diagnosis.test_diagnosis import rows_of

COUNT, STEPS = 960, 40
DICE = np.random.default_rng(3)
GROUP, PLACE = np.arange(COUNT) // 8, np.arange(COUNT) / COUNT
SPREAD = DICE.uniform(0.7, 1.3, COUNT)
TOKENS = np.round((100 + 300 * np.clip((PLACE - 0.3) / 0.3, 0, 1)) * SPREAD)
CORRECT = (DICE.random(COUNT) < 0.5).astype(float)


def looked(correct: Any = CORRECT, tokens: Any = TOKENS, config: Any = None, **columns: Any) -> Card | None:
    parts = {"correct": correct, "overlong": -np.maximum(tokens - 150, 0) / 1000}
    given: dict[str, Any] = {
        "group": GROUP, "reward": sum(parts.values()), "parts": parts, "completion_tokens": tokens,
        "task": [f"task {it}" for it in GROUP], **columns,
    }  # fmt: skip
    report = diagnose_rows(rows_of(COUNT, steps=STEPS, **given), config=config)
    return next((it for it in report.cards if it.id == "length"), None)


def test_growth_is_told_from_where_it_begins_with_what_the_penalty_charges() -> None:
    found = looked()
    assert found is not None
    assert not found.is_setup
    share = np.mean(TOKENS[-COUNT // STEPS * 10 :] / 2 >= 101)  # two turns each
    assert found.extent == f"{share:.0%} of rollouts have 101+ tokens per turn"
    assert found.began.endswith(f"half of the rise in tokens per turn since step {found.half_step}")
    assert found.title.endswith("tokens per turn, and the outcome does not rise")
    assert abs((found.since_step or 0) - 0.3 * STEPS) <= 2
    assert found.cost == pytest.approx(0.25, abs=0.02)
    assert "overlong takes 0.2" in found.evidence[2]


@pytest.mark.parametrize("columns", [
    pytest.param({"correct": (DICE.random(COUNT) < 0.3 + 0.4 * PLACE).astype(float)}, id="the outcome rises"),
    pytest.param({"tokens": np.round(100 * SPREAD)}, id="answers stay as long as they are"),
    pytest.param({"tokens": TOKENS * 5, "turns": TOKENS / 20}, id="turns are more, and no longer"),
    pytest.param({"compression": np.where(PLACE > 0.4, 12.0, 2.0)}, id="their text repeats itself"),
    pytest.param({"task": [f"{'long' if it else 'short'} {n % 3}" for n, it in enumerate(TOKENS > 200)]},
                 id="other tasks take longer answers"),
    pytest.param({"correct": (TOKENS + DICE.uniform(-80, 80, COUNT) > 400 * SPREAD.mean()).astype(float)},
                 id="longer answers are better"),
])  # fmt: skip
def test_growth_that_is_for_something_is_silent(columns: dict[str, Any]) -> None:
    assert looked(**columns) is None


def test_answers_that_grow_into_the_limit_get_one_advice() -> None:
    config = {"max_completion_length": 400, "loss_type": "dapo"}
    tokens = np.minimum(TOKENS, 400)
    correct = np.where(tokens == 400, 0.0, CORRECT)
    rows = rows_of(
        COUNT, steps=STEPS, group=GROUP, reward=correct, parts={"correct": correct}, completion_tokens=tokens, turns=1,
        task=[f"task {it}" for it in GROUP], truncated_turns=(tokens == 400).astype(float),
    )  # fmt: skip
    cards = {it.id: it for it in diagnose_rows(rows, config=config).cards}
    growth, cut = cards["length"], cards["truncation"]
    assert "may be chance" not in growth.evidence[0]  # right answers go from a half to a quarter
    assert growth.suggestion == "Add a penalty of length that right answers of usual length do not pay."
    assert cut.suggestion.startswith("Stop answers from growing first")


def test_what_is_learned_in_place_of_the_outcome_stands_above_the_growth_that_comes_with_it() -> None:
    run = generated(plans_without_moves, Shape(steps=32, groups=8, tasks=0))
    report = diagnosed(run).report
    assert [it.id for it in report.cards][:2] == ["hacking", "length"]
    assert not any(it.explains for it in report.cards[:2]), "answers grew first, and by little"
    assert report.steps is not None
    hits = [it.is_hit for it in run.rollouts if it.step >= report.steps[0]]
    assert report.cards[0].share == np.mean(hits)
    assert report.cards[0].extent.startswith(f"{np.mean(hits):.0%} of rollouts have won below 0.")


@pytest.mark.parametrize(("config", "said"), [
    ({"loss_type": "grpo"}, 'With loss_type "grpo"'),
    ({}, 'If loss_type is "grpo"'),
    ({"loss_type": "dapo"}, "Give overlong more weight"),
])  # fmt: skip
def test_the_loss_is_named_only_where_unsolved_answers_are_longer(config: Any, said: str) -> None:
    longer = np.round(TOKENS * np.where(CORRECT > 0, 0.8, 1.2))
    found, others = looked(tokens=longer, config=config), looked(config=config)
    assert found is not None
    assert others is not None
    assert found.suggestion.startswith(said)
    assert others.suggestion.startswith("Give overlong more weight")


@pytest.mark.parametrize(("name", "values", "is_meant"), [
    ("overlong", -np.maximum(TOKENS - 150, 0), True),
    ("tokens", -TOKENS / 100, True),
    ("brevity", np.clip((400 - TOKENS) / 200, 0, 1), True),
    ("judge", 1 - TOKENS / 1000, False),
    ("detail", TOKENS / 100, False),
    ("correct", -np.maximum(TOKENS - 150, 0), False),
])  # fmt: skip
def test_a_penalty_can_only_take_from_long_answers(name: str, values: Any, *, is_meant: bool) -> None:
    rows = rows_of(COUNT, steps=STEPS, completion_tokens=TOKENS, parts={name: values}, reward=values)
    assert is_penalty(rows, name) is is_meant
