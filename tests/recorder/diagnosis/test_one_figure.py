"""A reward that is one recorded figure is said at once; graded rewards that merely go with one are not."""

from typing import Any

import numpy as np
import pytest

from logs_ui.recorder.diagnosis import Card, Report, diagnose_rows
from logs_ui.recorder.vocabulary import StopReason
from tests.recorder.diagnosis.test_diagnosis import NAN, rows_of

COUNT = 64
DICE = np.random.default_rng(5)
TOKENS = DICE.integers(50, 500, COUNT).astype(float)
TURNS = DICE.integers(2, 12, COUNT).astype(float)
NOISE = DICE.random(COUNT)


def looked(reward: Any, steps: int = 2, **columns: Any) -> Report:
    given = {"completion_tokens": TOKENS * TURNS, "turns": TURNS, "parts": {"judge": reward}, **columns}
    return diagnose_rows(rows_of(COUNT, steps=steps, group=np.arange(COUNT) // 8, reward=reward, **given))


def cards(report: Report) -> dict[str, Card]:
    return {card.id: card for card in report.cards}


def test_a_judge_that_pays_for_turns_is_said_from_the_first_steps_on() -> None:
    found = cards(looked(10 - TURNS))["proxy"]
    assert found.title == "The reward follows turns alone (r = \u22121 within groups)"
    assert found.evidence == ("64 rollouts in 8 groups were compared, without truncated and failed ones.",)
    assert (found.is_setup, found.may_remain) == (False, True), "each turn may cost by design"
    assert cards(looked(TURNS / 12))["proxy"].is_setup
    assert cards(looked(10 - TURNS, steps=8))["proxy"].began == "from the first step on"


def test_a_judge_that_pays_for_length_alone_needs_no_growth() -> None:
    report = looked(TOKENS / 100)
    assert "proxy" not in cards(report)
    (said,) = [it.said for it in report.checked if it.id == "proxy"]
    assert said == "It follows tokens per turn: see the check on length."
    title = "The reward follows the length of answers alone (r = 1 within groups)"
    assert cards(report)["length"].title == title


def test_one_function_of_several_is_named_with_its_share() -> None:
    found = cards(looked(TURNS / 10 + 0.4 * NOISE, parts={"judge": TURNS / 10, "other": 0.4 * NOISE}))["proxy"]
    assert found.title.startswith("judge follows turns alone (r = 1 ")
    assert found.evidence[1].startswith("It explains ")


def test_a_form_that_the_whole_reward_follows_is_a_figure_beside_an_outcome() -> None:
    parts = {"correct": 0.02 * NOISE, "format": TURNS / 10}
    found = cards(looked(parts["correct"] + parts["format"], parts=parts, turns=1, completion_tokens=NOISE))
    assert "format" in found["proxy"].title


@pytest.mark.parametrize(("reward", "columns"), [
    (TURNS / 10 + NOISE, {}),  # it goes with turns
    ((TURNS > 6).astype(float), {}),  # no grades
    (10 - TURNS, {"env_reward_sum": 10 - TURNS}),  # the environment's own
    (1.2 * NOISE, {"parts": {"correct": NOISE, "format": 0.2 * NOISE}}),  # a form that is paid with the outcome alone
    (np.where(TURNS > 8, 0, NOISE), {"stop_reason": np.where(TURNS > 8, StopReason.LENGTH, StopReason.DONE)}),
    (np.where(np.arange(COUNT) == 3, 50, 0.01 * NOISE), {"seconds": np.where(np.arange(COUNT) == 3, 900, 1.0)}),
    (NOISE, {"parts": {"judge": NOISE, "length_penalty": -TOKENS / 300}}),
])  # fmt: skip
def test_what_merely_goes_with_a_figure_or_is_meant_to_is_silent(reward: Any, columns: dict[str, Any]) -> None:
    assert not {"proxy", "length"} & cards(looked(reward, **columns)).keys()


def test_few_rollouts_are_not_judged() -> None:
    report = looked(np.where(np.arange(COUNT) < 40, NAN, 10 - TURNS))
    (said,) = [it for it in report.checked if it.id == "proxy"]
    assert (said.state, said.said) == (
        "not_judged", "32 scored rollouts without a known cut or error are needed; there are 24."
    )  # fmt: skip


def test_groups_of_two_are_judged_by_the_values_of_the_run() -> None:
    rows = rows_of(COUNT, steps=2, group=np.arange(COUNT) // 2, reward=TURNS / 10, turns=TURNS, parts={"j": TURNS / 10},
                   completion_tokens=TOKENS * TURNS)  # fmt: skip
    assert "proxy" in cards(diagnose_rows(rows))
