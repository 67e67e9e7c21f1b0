"""The order and kind of groups, as pages say and keep them."""

import pytest

from logs_ui.app.pages.groups.choice import GroupChoice
from logs_ui.recorder.queries import GroupSort


@pytest.mark.parametrize(
    ("choice", "parameters", "kind_name"),
    [
        (GroupChoice(), {}, ""),
        (GroupChoice(GroupSort.LOWEST_MEAN), {"sort": "lowest-mean"}, ""),
        (GroupChoice(kind="dead"), {"kind": "dead"}, "zero-variance"),
        (GroupChoice(kind="level"), {"kind": "level"}, "all equal"),
        (GroupChoice(GroupSort.DEAD_FIRST, "mixed"), {"sort": "dead-first", "kind": "mixed"}, "mixed"),
    ],
)
def test_a_choice_is_kept_unless_it_is_usual(choice: GroupChoice, parameters: dict[str, str], kind_name: str) -> None:
    assert (choice.parameters, choice.kind_name) == (parameters, kind_name)
