"""Formats of figures."""

import pytest

from logs_ui.app.parts import figures


@pytest.mark.parametrize(
    ("covered", "said"),
    [(None, "all rollouts"), ((7, 7), "step 7"), ((1_200, 1_300), "steps 1,200\u20131,300")],
)
def test_the_steps_that_figures_cover(covered: tuple[int, int] | None, said: str) -> None:
    assert figures.window(covered) == said
