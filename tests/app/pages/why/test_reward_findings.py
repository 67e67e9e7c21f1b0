"""Results of the checks of reward functions."""

import pytest

from logs_ui.app.pages.why.reward_findings import Finding


@pytest.mark.parametrize(
    ("state", "icon", "result"),
    [
        ("found", "triangle-alert", "found"),
        ("below", "check", "below threshold"),
        ("not_judged", "circle-help", "not judged"),
        ("not_recorded", "circle-help", "not recorded"),
    ],
)
def test_a_state_has_an_icon_and_a_name(state: str, icon: str, result: str) -> None:
    finding = Finding("proxy", state, "", (), "")
    assert (finding.icon, finding.result) == (icon, result)
