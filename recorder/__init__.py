"""Records the rollouts of a TRL training, and reads them back."""

from logs_ui.recorder.current import CurrentRow, current_row, row_scope, unrecorded
from logs_ui.recorder.diagnose import diagnose
from logs_ui.recorder.diagnosis import Card, Diagnostic, Report, Settings
from logs_ui.recorder.diagnosis_callback import DiagnosisCallback
from logs_ui.recorder.environment_factory import record_environment
from logs_ui.recorder.errors import (
    DatabaseError,
    FilterError,
    ImageNotFoundError,
    LogsUIError,
    RolloutNotFoundError,
    RunNotFoundError,
    SettingsError,
)
from logs_ui.recorder.files import export_run
from logs_ui.recorder.filters import RolloutFilter
from logs_ui.recorder.frames import load_image, load_run, load_runs, load_scalars
from logs_ui.recorder.instruments.http import trace_client, untrace_client
from logs_ui.recorder.open_run import OpenRollout, OpenRun, start_run
from logs_ui.recorder.partitions import export_partitions
from logs_ui.recorder.record import record
from logs_ui.recorder.rescore import rescore
from logs_ui.recorder.rollout_worker import record_worker
from logs_ui.recorder.trace import trace_env
from logs_ui.recorder.writer import flush

__all__ = [
    "Card",
    "CurrentRow",
    "DatabaseError",
    "DiagnosisCallback",
    "Diagnostic",
    "FilterError",
    "ImageNotFoundError",
    "LogsUIError",
    "OpenRollout",
    "OpenRun",
    "Report",
    "RolloutFilter",
    "RolloutNotFoundError",
    "RunNotFoundError",
    "Settings",
    "SettingsError",
    "current_row",
    "diagnose",
    "export_partitions",
    "export_run",
    "flush",
    "load_image",
    "load_run",
    "load_runs",
    "load_scalars",
    "record",
    "record_environment",
    "record_worker",
    "rescore",
    "row_scope",
    "start_run",
    "trace_client",
    "trace_env",
    "unrecorded",
    "untrace_client",
]
