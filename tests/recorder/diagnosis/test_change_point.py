"""Since when a figure is beyond its threshold: the planted step, within two steps, and no step in mere noise."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from logs_ui.recorder.diagnosis import Card
from logs_ui.recorder.diagnosis.card import Trend
from logs_ui.recorder.diagnosis.change_point import above, below
from tests.faults import Fault
from tests.faults.columns import diagnosed
from tests.faults.registry import FAULTS
from tests.support.exhaustive import marked_cases

ROLLOUTS = 32  # of a step


def trend_of(*shares: float, seed: int | None = None) -> Trend:
    """The shares by step, as they are, or drawn with as many rollouts as a step has."""
    drawn = shares if seed is None else np.random.default_rng(seed).binomial(ROLLOUTS, shares) / ROLLOUTS
    return tuple((step, float(value)) for step, value in enumerate(drawn, 1))


def said(fields: dict[str, Any]) -> str:
    return replace(Card("mine", "", 0.0, (), "", ""), **fields).began


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize(("before", "after", "step"), [(0.05, 0.4, 12), (0.02, 0.3, 30), (0.05, 0.4, 38)])
def test_the_planted_step_is_found_in_noise(before: float, after: float, step: int, seed: int) -> None:
    trend = trend_of(*[before] * (step - 1), *[after] * (41 - step), seed=seed)
    found = above(trend, 0.1)
    assert abs(found["since_step"] - step) <= 2
    first, last = found["since_range"]
    assert first <= found["since_step"] <= last
    assert below(tuple((at, 1 - value) for at, value in trend), 0.9)["since_step"] == found["since_step"]


@pytest.mark.parametrize("seed", range(12))
def test_noise_about_a_constant_above_the_threshold_is_so_from_the_first_step_on(seed: int) -> None:
    found = above(trend_of(*[0.13] * 40, seed=seed), 0.1)
    assert (found["since_step"], found["since_range"]) == (1, None)
    assert said(found) == "from the first step on"


def test_a_constant_a_little_above_or_below_the_threshold_has_no_step_of_its_own() -> None:
    begun = {above(trend_of(*[0.11] * 40, seed=seed), 0.1)["since_step"] for seed in range(40)}
    assert begun <= {1, None}


def ramp(top: float, seed: int, *, steps: int = 70, begin: int = 30) -> Trend:
    """A share of 2%, which grows from a step on to `top` at the end."""
    rises = [max(0.0, (step - begin) / (steps - begin)) for step in range(1, steps + 1)]
    return trend_of(*(0.02 + (top - 0.02) * part for part in rises), seed=seed)


@pytest.mark.parametrize(("top", "limit", "width"), [
    pytest.param(0.4, 0.06, 14, id="it passes the limit"),
    pytest.param(0.9, 0.06, 8, id="it passes a low one"),
    pytest.param(0.15, 0.06, 30, id="it is hardly seen"),
    pytest.param(0.9, 0.5, 8, id="it begins long before it passes a high limit"),
])  # fmt: skip
def test_of_a_share_that_creeps_up_the_step_is_told_at_which_it_begins_to_rise(
    top: float, limit: float, width: int
) -> None:
    found = [above(ramp(top, seed), limit) for seed in range(40)]
    told = [it for it in found if it.get("half_step")]
    assert len(told) >= 20  # of a small ramp, two levels fit as well
    assert np.mean([it["since_range"][0] <= 31 <= it["since_range"][1] for it in told]) >= 0.9
    assert abs(np.median([it["since_step"] for it in told]) - 31) <= 1
    assert np.median([it["since_range"][1] - it["since_range"][0] for it in told]) <= width


@pytest.mark.parametrize("limit", [0.1, 0.5])
@pytest.mark.parametrize("end", [42, 54, 66])
def test_a_ramp_that_stays_at_its_height_begins_where_it_began(end: int, limit: float) -> None:
    shares = np.interp(np.arange(1, 81), [30, end], [0.03, 0.83])
    told = [above(trend_of(*shares, seed=seed), limit)["since_step"] for seed in range(40)]
    assert np.mean(np.abs(np.array(told) - 31) <= 4) >= 0.95


@pytest.mark.parametrize("size", [1.0, 1e-12, 1e200])
@pytest.mark.parametrize(("end", "half"), [(30, 18), (20, 15)])
def test_a_line_without_noise_begins_where_it_does(end: int, half: int, size: float) -> None:
    values = size * np.interp(np.arange(31), [10, end], [1.0, 4.0])
    found = above(tuple(enumerate(values.tolist())), 1.1 * size)
    assert found["since_step"] == 11
    assert found["since_range"] == (11, 11)
    assert found["half_step"] == half


def test_half_of_a_rise_is_half_of_what_came_beside_the_start() -> None:
    """From 250 to 650: 450 is reached half-way, in step 60, and 325, half of the last value, long before."""
    values = np.interp(np.arange(1, 81), [40, 80], [250.0, 650.0]) + 20 * np.random.default_rng(3).standard_normal(80)
    trend = tuple(zip(range(1, 81), values.tolist(), strict=True))
    middle = (values[:10].mean() + values[-10:].mean()) / 2
    half = above(trend, 300.0)["half_step"]
    assert half in {57, 58, 59}  # the mean of the last ten is 605
    assert np.mean(values[: half - 1] < middle) > 0.95 < np.mean(values[half - 1 :] >= middle)


def test_a_creeping_share_says_since_when_half_of_the_rise_is_there() -> None:
    assert said(above(ramp(0.6, 1), 0.05)) == "since step 30 (between 25 and 33), half of the rise since step 45"


@pytest.mark.parametrize("low", [0.0, 0.3])
def test_a_rise_begins_at_no_step_that_is_as_all_before(low: float) -> None:
    rises = [0.2, 0.45, 0.3, 0.65, 0.4, 0.6, 0.7, 0.7, 0.75, 0.8, 0.95]
    shares = [low] * 20 + [low + 0.05] + [low] * 39 + [low + (1 - low) * rise for rise in rises] + [1.0] * 29
    found = above(trend_of(*shares), 0.1 + low)
    assert found["half_step"]
    assert (found["since_step"], found["since_range"][0]) == (61, 61)


def test_a_jump_is_no_ramp() -> None:
    jumps = [above(trend_of(*[0.02] * 30, *[0.3] * 40, seed=seed), 0.05) for seed in range(40)]
    assert not any("half_step" in it for it in jumps)


def test_a_share_that_grows_from_above_the_limit_is_worse_since_it_grows() -> None:
    found = above(trend_of(*[0.2] * 30, *np.linspace(0.2, 0.9, 40), seed=2), 0.1)
    assert said(found) == "worse since step 30 (between 27 and 33), half of the rise since step 48"


def test_a_figure_that_was_beyond_before_is_worse_since() -> None:
    found = above(trend_of(*[0.15] * 20, *[0.6] * 20, seed=1), 0.1)
    assert said(found) == "worse since step 21"


def test_the_interval_is_shown_if_it_is_more_than_one_step() -> None:
    card = Card("mine", "", 0.0, (), "", "", trend=trend_of(0.0, 0.0, 0.2, 0.3), since_step=3, limit=0.1)
    assert replace(card, since_range=(2, 4)).began == "since step 3 (between 2 and 4)"
    assert replace(card, since_range=(3, 3)).began == card.began == "since step 3"
    assert replace(card, since_step=None).began == ""


@pytest.mark.parametrize("later", [[0.0] * 10, [0.0] * 10 + [0.02] * 10])
def test_what_has_recovered_has_no_step(later: list[float]) -> None:
    assert above(trend_of(*[0.02] * 10, *[0.4] * 20, *later), 0.1)["since_step"] is None


def test_what_was_bad_at_first_and_recovered_is_bad_since_the_last_change() -> None:
    found = above(trend_of(*[0.5] * 8, *[0.02] * 20, *[0.4] * 12, seed=3), 0.1)
    assert said(found) == "since step 29"


def test_what_becomes_better_but_not_good_is_bad_from_the_first_step_on() -> None:
    assert said(above(trend_of(*[0.8] * 20, *[0.4] * 20, seed=0), 0.1)) == "from the first step on"


def test_a_small_rise_below_the_threshold_does_not_count() -> None:
    assert above(trend_of(*[0.0] * 20, *[0.06] * 20), 0.1)["since_step"] is None


@pytest.mark.parametrize("trend", [(), trend_of(0.5), trend_of(0.0, 0.5, 0.5), trend_of(*[float("nan")] * 9)])
def test_too_few_points_have_no_step(trend: Trend) -> None:
    assert above(trend, 0.1)["since_step"] is None


def test_a_fault_that_was_not_there_at_first_is_not_said_to_be_from_the_first_step_on() -> None:
    """Shares of eight rollouts vary too much to find the step; but the first six steps had none."""
    shares = (0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.375, 0.125, 0.5, 0.25, 0.375, 0.875, 0.5, 0.125)
    assert above(tuple(enumerate(shares, 1)), 0.05)["since_step"] != 1


def test_a_mismatch_grows_since_the_sampler_keeps_its_policy() -> None:
    """Step 11 is the first that is sampled with the policy of step 9 again, and 0.05 nats are passed in step 12."""
    made = next(it.made for it in FAULTS if it.id == "stale policy: frozen")
    assert made is not None
    first, second = diagnosed(made()).report.cards[:2]
    assert (first.title, first.began) == ("The sampler has kept the policy of step 9 since step 11", "since step 11")
    assert (second.id, second.since_step) == ("mismatch", 11)
    assert first.explains == ("mismatch",)


MISMATCHES = [it for it in FAULTS if it.expected == "mismatch" and it.made]


@pytest.mark.parametrize("fault", marked_cases(MISMATCHES, 3, 10), ids=lambda it: it.id)
def test_a_mismatch_that_grows_from_0_while_samples_stay_as_they_are_is_of_old_weights(fault: Fault) -> None:
    assert fault.made is not None
    (mismatch,) = (card for card in diagnosed(fault.made()).report.cards if card.id == "mismatch")
    is_named = fault.id.startswith("weights never sent")
    assert mismatch.evidence[0].startswith("The mismatch grows from 0") is is_named
    assert mismatch.suggestion.startswith("Check that the sampler gets the weights") is ("weights" in fault.id)
