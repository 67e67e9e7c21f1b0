"""Figures of the trainer that are NaN or infinite."""

from collections.abc import Mapping
from dataclasses import replace
from math import inf, nan
from pathlib import Path

import numpy as np
import pytest

from logs_ui.app.web import urls
from logs_ui.recorder.diagnosis import Card, Report, diagnose_rows
from logs_ui.recorder.vocabulary import FIRST_PROMPT
from tests.faults.breaking import FAULTS
from tests.recorder.diagnosis.test_diagnosis import rows_of
from tests.support.dashboard import dashboard

COUNT, STEPS = 320, 40


def report_of(scalars: Mapping[str, Mapping[int, float]], **config: object) -> Report:
    solved = np.arange(COUNT) % 2 * 1.0
    trends = {name: tuple(points.items()) for name, points in scalars.items()}
    return diagnose_rows(rows_of(COUNT, steps=STEPS, reward=solved), config=config, scalars=trends)


def card_of(scalars: Mapping[str, Mapping[int, float]], **config: object) -> Card | None:
    return next((it for it in report_of(scalars, **config).cards if it.id == "not_finite"), None)


@pytest.mark.parametrize(("points", "since", "where"), [
    pytest.param({0: 1.0, 1: nan, 2: nan, 3: inf}, 1, "step:1..1", id="finite at step 0"),
    pytest.param({0: nan, 1: nan, 2: nan}, None, "", id="three overflows at first"),
    pytest.param(dict.fromkeys(range(10), nan), 0, "step:0..0", id="ten of them"),
    pytest.param({10: 1.0, 20: 1.0, 30: nan, 40: nan, 50: nan}, 30, "step:21..30", id="logged every ten steps"),
    pytest.param({1: nan, 2: 1.0, 3: nan, 4: nan}, None, "", id="two at the end"),
    pytest.param({1: 1.0, 2: nan, 3: nan, 4: nan, 5: 1.0}, None, "", id="finite again"),
])  # fmt: skip
def test_a_gradient_that_is_none_up_to_the_last_step_is_found(
    points: Mapping[int, float], since: int | None, where: str
) -> None:
    card = card_of({"grad_norm": points})
    assert (since, where) == (None, "") if card is None else (card.since_step, card.where.split()[0]) == (since, where)


def test_a_kl_that_never_was_a_number_is_not_judged() -> None:
    assert card_of({"kl": dict.fromkeys(range(20), nan)}) is None
    assert card_of({"kl": {1: 0.1} | dict.fromkeys(range(2, 9), nan)}) is not None


def test_a_reward_that_is_none_right_before_is_named() -> None:
    rows = rows_of(COUNT, steps=STEPS, parts={"brevity": np.where(np.arange(COUNT) == 72, nan, 1.0)})
    rows = replace(rows, odd=np.isnan(rows.values["brevity"]))
    report = diagnose_rows(rows, scalars={"loss": ((8, 0.1), *((step, nan) for step in range(10, 41)))})
    assert report.cards[0].evidence[-1] == "brevity gave NaN or an infinity to 1 rollout of step 10: look there first."


def test_a_checkpoint_is_advised_only_where_one_was_sound() -> None:
    sound, broken = (card_of({"grad_norm": first | dict.fromkeys(range(9, 30), nan)}) for first in ({8: 1.0}, {}))
    assert sound
    assert broken
    assert "go back to a checkpoint of step 8 or before" in sound.suggestion
    assert "checkpoint" not in broken.suggestion


def test_the_trainers_filter_of_the_loss_is_named_where_it_is_set() -> None:
    scalars = {"loss": {1: 0.1, 2: 0.1}, "grad_norm": {1: 1.0, 2: nan, 3: nan, 4: nan}}
    texts = [card.evidence[-1] for set_to in (True, False) if (card := card_of(scalars, logging_nan_inf_filter=set_to))]
    assert [text.startswith("loss: finite") for text in texts] == [True, False]


@pytest.mark.parametrize("last", [38, 39])
def test_what_was_logged_before_it_broke_says_nothing_about_the_last_steps(last: int) -> None:
    """The last 10 of 40 steps are judged."""
    figures = {
        "entropy": 0.001, "grad_norm": 0.0, "kl": 2.0, "sampling/sampling_logp_difference/mean": 0.9, FIRST_PROMPT: 1.0,
    }  # fmt: skip
    sound = {name: dict.fromkeys(range(40), value) for name, value in figures.items()}
    sound["entropy"] = {step: 0.9 if step < 15 else 0.001 for step in range(40)}
    broken = {name: points | dict.fromkeys(range(20, last + 1), nan) for name, points in sound.items()}
    ids = {"diversity", "no_update", "mismatch", "first_prompt"}
    found, left = ({it.id for it in report_of(scalars).cards} & ids for scalars in (sound, broken))
    assert found == ids
    assert left == (set() if last == 39 else ids)


def test_figures_that_are_none_any_more_are_not_judged() -> None:
    report = report_of({"kl": {step: 0.1 if step < 20 else nan for step in range(40)}, "entropy": {0: 1.0, 39: inf}})
    (said,) = [it for it in report.checked if it.id == "mismatch"]
    assert (said.state, said.said) == ("not_judged", "What the trainer logged at the last steps is NaN or infinite.")
    assert not [it for it in report.checked if it.id == "diversity" and "Entropy" in it.said]


def test_a_selection_of_steps_has_the_finding_too(tmp_path: Path) -> None:
    run = next(it for it in FAULTS if it.id == "not finite: gradient")
    run.record(tmp_path / "a.db")
    address = urls.why("latest", step_min=11, step_max=20, wait="1")
    assert "grad_norm and entropy are NaN or infinite" in dashboard(tmp_path / "a.db").get(address).text
