"""Why rewards are low: pure functions over recorded rows, one diagnostic a file.

Definitions, thresholds and whose they are stand with each diagnostic; `waterfall.py` says where the reward went, and
`report.py` puts all of it together.
"""

from logs_ui.recorder.diagnosis.card import Card, Diagnostic, Run
from logs_ui.recorder.diagnosis.report import Report
from logs_ui.recorder.diagnosis.rollout_rows import Rows
from logs_ui.recorder.diagnosis.run_checks import DIAGNOSTICS, diagnose_rows
from logs_ui.recorder.diagnosis.waterfall import CAUSES, Waterfall, waterfall
from logs_ui.recorder.settings import Settings

__all__ = [
    "CAUSES",
    "DIAGNOSTICS",
    "Card",
    "Diagnostic",
    "Report",
    "Rows",
    "Run",
    "Settings",
    "Waterfall",
    "diagnose_rows",
    "waterfall",
]
