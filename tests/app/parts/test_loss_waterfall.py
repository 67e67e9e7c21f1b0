"""The waterfall of lost reward in one line, and charts stacked by step."""

import math

import pytest

from logs_ui.app.parts.loss_waterfall import Fall, Stair
from logs_ui.app.parts.step_stacks import Bins


def fall(kept: float, *shares: float, mean: float = 0.5) -> Fall:
    stairs = [Stair("loop", "Loop", "", "repeat", -0.1, share, 1, 0, 0, None, 0, None) for share in shares]
    return Fall(1.0, mean, 0.5, 0.0, stairs, 0.0, kept, is_flat=False)


@pytest.mark.parametrize(
    ("drawn", "bars"),
    [
        (fall(0.4, 0.75, 0.25), [(0, 40), (40, 45), (85, 15)]),
        (fall(0.0, 1.0), [(0, 0), (0, 100)]),
        (fall(1.2), [(0, 100)]),
    ],
)
def test_the_mean_and_the_causes_fill_the_line(drawn: Fall, bars: list[tuple[float, float]]) -> None:
    assert [(x, width) for _, x, width in drawn.thin_bars] == bars


def test_without_a_reward_there_is_no_mean() -> None:
    assert (fall(0.4).has_mean, fall(0.0, mean=math.nan).has_mean) == (True, False)


def test_two_stacks_have_a_gap_between_them() -> None:
    first, second = (Bins(1, 2, 1).stack(place, ["a"], [1.0], [("a", "1")], "/") for place in (0, 1))
    assert (first.bar, second.bar) == ((3.5, 43.0), (53.5, 43.0))
