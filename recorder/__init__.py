"""Records the rollouts of a TRL training, and reads them back."""

from logs_ui.recorder.errors import DatabaseError, FilterError, LogsUIError, RolloutNotFoundError, RunNotFoundError
from logs_ui.recorder.filters import RolloutFilter
from logs_ui.recorder.frames import export_run, load_run, load_runs, load_scalars
from logs_ui.recorder.record import record
from logs_ui.recorder.writer import flush

__all__ = [
    "DatabaseError",
    "FilterError",
    "LogsUIError",
    "RolloutFilter",
    "RolloutNotFoundError",
    "RunNotFoundError",
    "export_run",
    "flush",
    "load_run",
    "load_runs",
    "load_scalars",
    "record",
]
