"""Marks on the rail of a long rollout."""

import pytest

from logs_ui.app.pages.rollout.long_timeline import Mark


@pytest.mark.parametrize(
    ("mark", "label", "height", "path"),
    [
        (Mark(3, 3, "t3", "bad", "error"), "turn 3: error", 1, "M0 2H40V3H0Z"),
        (Mark(3, 3, "t3", "positive", "reward +1"), "turn 3: reward +1", 1, "M20 2H40V3H20Z"),
        (Mark(11, 20, "t11", "band", "turns 11 to 20"), "turns 11 to 20", 10, "M0 10H40V20H0Z"),
    ],
)
def test_a_mark_covers_its_turns(mark: Mark, label: str, height: int, path: str) -> None:
    assert (mark.label, mark.height, mark.path) == (label, height, path)
