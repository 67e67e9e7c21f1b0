"""Explains why rewards are low: pure functions over recorded rollouts. The checks are in `checks/`, by subject.

Each check states its definition, its threshold and the threshold's source. `waterfall.py` splits the lost reward by
cause, `run_checks.py` runs all checks, and `report.py` holds the result.
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
