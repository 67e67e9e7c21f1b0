"""What a rollout's page says beside its timeline."""

import pytest

from logs_ui.app.pages.rollout.rollout_facts import rivals, waits
from logs_ui.recorder.storage.tables import EvaluationRow


@pytest.mark.parametrize(
    ("rewards", "expected"),
    [
        ([0.5, 1.0, 0.0, None], [("the best", 2), ("the worst", 3)]),
        ([1.0, 1.0, 0.0], [("the worst", 3)]),
        ([0.0, 1.0, 1.0], [("the best", 3)]),
        ([1.0, 1.0, 1.0], [("another", 2)]),
        ([None, 1.0, 0.0], []),
        ([1.0, None], []),
    ],
)
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
