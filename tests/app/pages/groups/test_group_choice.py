"""The order and kind of groups, as pages say and keep them."""

import pytest

from logs_ui.app.pages.groups.group_choice import GroupChoice
from logs_ui.recorder.queries import GroupSort


@pytest.mark.parametrize(
    ("choice", "kept"),
    [
        (GroupChoice(), {}),
        (GroupChoice(GroupSort.LOWEST_MEAN), {"sort": "lowest-mean"}),
        (GroupChoice(kind="dead"), {"kind": "dead"}),
        (GroupChoice(GroupSort.DEAD_FIRST, "mixed"), {"sort": "dead-first", "kind": "mixed"}),
    ],
)
def test_the_line_of_a_filter_keeps_what_is_not_usual(choice: GroupChoice, kept: dict[str, str]) -> None:
    assert choice.kept == kept
