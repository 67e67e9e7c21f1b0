"""What a rollout's page says beside its timeline, and the marks on the rail of a long one."""

import pytest

from logs_ui.app.pages.rollout.long_timeline import Mark, Rail
from logs_ui.app.pages.rollout.rollout_facts import rivals, waits
from logs_ui.recorder.storage.tables import EvaluationRow


@pytest.mark.parametrize(
    ("rewards", "expected"),
    [
        ([0.5, 1.0, 0.0, None], [("the best", 2), ("the worst", 3)]), ([1.0, 1.0, 0.0], [("the worst", 3)]),
        ([0.0, 1.0, 1.0], [("the best", 3)]), ([1.0, 1.0, 1.0], [("another", 2)]), ([None, 1.0, 0.0], []),
        ([1.0, None], []),
    ],
)  # fmt: skip
def test_a_scored_rollout_is_compared_with_the_ends_of_its_group(
    rewards: list[float | None], expected: list[tuple[str, int]]
) -> None:
    group = [EvaluationRow(id=row_id, reward=reward) for row_id, reward in enumerate(rewards, 1)]  # type: ignore[call-arg]
    assert rivals(group[0], group) == expected


@pytest.mark.parametrize(
    ("returned", "scored", "expected"),
    [
        (None, None, []),
        (3_000_000, None, [("returned after", 2.0)]),
        (3_000_000, 3_500_000, [("returned after", 2.0), ("scored after", 0.5)]),
        (1_000_000, 1_500_000, [("scored after", 0.5)]),
        (3_000_000, 3_000_000, [("returned after", 2.0)]),
    ],
)
def test_only_what_took_time_is_listed(
    returned: int | None, scored: int | None, expected: list[tuple[str, float]]
) -> None:
    assert waits(EvaluationRow(created=1_000_000, returned=returned, scored=scored)) == expected  # type: ignore[call-arg]


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
        ([], BANDS[:24], 0), (ODD, ODD, 0), (ODD + PAID, ODD + PAID, 0), (ODD + MANY, ODD, 23),
        (marks("bad", 30), marks("bad", 24), 6),
    ],
)  # fmt: skip
def test_a_rail_lists_24_marks_at_most(others: list[Mark], listed: list[Mark], more: int) -> None:
    rail = Rail(BANDS, others)
    assert (rail.turns, rail.listed_marks, rail.more) == (30, listed, more)
