"""Marks on the rail of a long rollout."""

import pytest

from logs_ui.app.pages.rollout.long_timeline import Mark, Rail


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


def marks(kind: str, count: int) -> list[Mark]:
    return [Mark(n, n, f"t{n}", kind, kind) for n in range(1, count + 1)]


BANDS, ODD, PAID, MANY = marks("band", 30), marks("bad", 2), marks("positive", 22), marks("positive", 23)


@pytest.mark.parametrize(
    ("others", "listed", "more"),
    [
        ([], BANDS[:24], 0),
        (ODD, ODD, 0),
        (ODD + PAID, ODD + PAID, 0),
        (ODD + MANY, ODD, 23),
        (marks("bad", 30), marks("bad", 24), 6),
    ],
)
def test_a_rail_lists_24_marks_at_most(others: list[Mark], listed: list[Mark], more: int) -> None:
    rail = Rail(BANDS, others)
    assert (rail.turns, rail.listed_marks, rail.more) == (30, listed, more)
