"""Stacked charts by step."""

from logs_ui.app.parts.step_stacks import Bins


def test_two_stacks_have_a_gap_between_them() -> None:
    first, second = (Bins(1, 2, 1).stack(place, ["a"], [1.0], [("a", "1")], "/") for place in (0, 1))
    assert (first.bar, second.bar) == ((3.5, 43.0), (53.5, 43.0))
