"""Findings: their trends, and the results of the checks of reward functions."""

import numpy as np
import pytest

from logs_ui.app.pages.why.changes import make_tables
from logs_ui.app.pages.why.reward_findings import Finding
from logs_ui.app.parts.figure_table import line
from logs_ui.app.web import urls
from logs_ui.recorder.diagnosis import diagnose_rows
from tests.recorder.diagnosis.test_diagnosis import rows_of


def test_a_line_opens_what_was_selected_and_its_place() -> None:
    count, selected = 640, 'eval:"a step:1"'
    solved = (np.arange(count) % 8 < np.where(np.arange(count) // 8 % 2, 1, 6)).astype(float)
    rows = rows_of(count, steps=8, reward=solved, task=[f"t{i // 8 % 2}" for i in range(count)])
    tables = {name: table for name, _, table in make_tables(diagnose_rows(rows, within=selected), "run")}
    assert tables["places"].lines[0].address == urls.matching("run", f"task:t1 {selected} step:1..8")


def test_a_trend_says_its_ends_and_marks_what_is_bad_wide_enough_to_be_seen() -> None:
    early, late = (line(((1, 0.25), (1_000, 0.5)), since) for since in (1, 1_000))
    assert early
    assert late
    assert (early.ends, early.steps) == ("0.25 at step 1, 0.5 at step 1,000", "steps 1\u20131,000")
    assert (early.bad_width, late.bad_width) == (177.0, 3.0)


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
