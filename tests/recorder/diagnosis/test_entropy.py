"""An entropy that collapses has a card, whoever logs it; a policy that learns or has learned has none."""

import numpy as np
import pytest

from logs_ui.recorder.diagnosis import Card, Report, diagnose_rows
from logs_ui.recorder.diagnosis.card import Trend
from logs_ui.recorder.diagnosis.tables.movement import signals
from tests.recorder.diagnosis.test_diagnosis import rows_of

STEPS = np.arange(1, 41)
PLACE = np.arange(320)
COLLAPSES = np.where(STEPS < 14, 0.97 - 0.006 * STEPS, np.where(STEPS == 14, 0.12, 0.023))
HALF = (PLACE % 2).astype(float)


def trend(values: np.ndarray) -> Trend:
    return tuple(zip(STEPS.tolist(), values.tolist(), strict=True))


def looked(values: np.ndarray, reward: np.ndarray = HALF, name: str = "entropy") -> Report:
    return diagnose_rows(rows_of(320, steps=40, reward=reward), scalars={name: trend(values)})


def card(report: Report) -> Card | None:
    return next((it for it in report.cards if it.id == "diversity"), None)


@pytest.mark.parametrize("name", ["entropy", "actor/entropy"])
def test_a_collapse_that_only_the_trainer_logs_is_found_with_its_step(name: str) -> None:
    found = card(looked(COLLAPSES, name=name))
    assert found is not None
    assert found.title == "Entropy collapsed: 0.023 nats per token, 2% of the initial median (0.937)"
    assert found.began == "since step 14"
    assert found.evidence[0] == "It is logged by the trainer."


@pytest.mark.parametrize(("last", "names"), [(6.0, ["diversity"]), (1.6, [])])
def test_an_entropy_that_explodes_is_the_cause_of_what_the_policy_does_then(last: float, names: list[str]) -> None:
    values = np.where(STEPS < 20, 0.58, last)
    late = PLACE // 8 >= 19
    rows = rows_of(320, steps=40, reward=np.where(late, 0.0, HALF))
    report = diagnose_rows(rows, scalars={"entropy": trend(values)})
    assert [it.id for it in report.cards if it.id == "diversity"] == names
    if names:
        assert report.cards[0].title == "Entropy exploded: 6 nats per token, 1034% of the initial median (0.58)"
        assert report.cards[0].since_step == 20
        assert report.cards[0].evidence[1] == "It is that of a choice among 403 equally likely tokens."


def test_the_samplers_log_probs_show_the_same() -> None:
    rows = rows_of(320, steps=40, mean_logprob=-COLLAPSES[PLACE // 8], completion_key=PLACE)
    found = card(diagnose_rows(rows))
    assert found is not None
    assert found.began == "since step 14"
    assert "the sampler's mean of -log p" in found.evidence[0]


def test_a_page_on_training_and_the_check_agree() -> None:
    for share in (1.0, 0.5, 0.2, 0.12, 0.08, 0.02):
        values = np.where(STEPS < 20, 0.9, 0.9 * share)
        (signal,) = [it for it in signals({"entropy": trend(values)}, {}) if it.name == "entropy"]
        assert signal.is_bad == (card(looked(values)) is not None) == (share < 0.1), share
    assert signal.sentence.endswith("collapsed at step 20.")


@pytest.mark.parametrize("reward", [
    np.maximum(HALF, PLACE % 16 > 0),  # nearly all solved
    np.random.default_rng(0).random(320) < PLACE / 320 * 0.7,  # still rising
])  # fmt: skip
def test_a_policy_that_has_learned_or_still_learns_may_be_sure(reward: np.ndarray) -> None:
    report = looked(COLLAPSES, reward.astype(float))
    assert card(report) is None
    (said,) = [it for it in report.checked if it.id == "diversity"]
    assert said.state == "below"
    assert said.said.endswith("The mean reward still rises, or is near the best.")


def test_entropy_is_not_recorded_only_without_any() -> None:
    assert "diversity" in {it.id for it in diagnose_rows(rows_of(320, steps=40)).missing}
    (said,) = [it for it in looked(np.full(40, 0.7)).checked if it.id == "diversity"]
    assert said.said == "Entropy (logged by the trainer): 0.7 nats per token, 100% of the initial median (0.7)."
