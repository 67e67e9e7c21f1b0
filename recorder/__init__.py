"""Records the rollouts of a TRL training, and reads them back."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from logs_ui.recorder.analysis.diagnose import diagnose
    from logs_ui.recorder.analysis.export.export_files import export_run
    from logs_ui.recorder.analysis.export.partitions import export_partitions
    from logs_ui.recorder.analysis.frames import load_image, load_run, load_runs, load_scalars
    from logs_ui.recorder.analysis.rescore.rescore import rescore
    from logs_ui.recorder.api.async_grpo.record_worker import record_worker
    from logs_ui.recorder.api.diagnosis_callback import DiagnosisCallback
    from logs_ui.recorder.api.options import RecordOptions
    from logs_ui.recorder.api.record import record
    from logs_ui.recorder.api.record_environment import record_environment
    from logs_ui.recorder.api.record_trainer import LogsUICallback, record_trainer
    from logs_ui.recorder.api.record_verifiers import record_verifiers
    from logs_ui.recorder.api.row_scope import CurrentRow, current_row, row_scope, unrecorded
    from logs_ui.recorder.api.start_run import OpenRollout, OpenRun, start_run
    from logs_ui.recorder.api.trace_env import trace_env
    from logs_ui.recorder.capture.instruments.http_clients import trace_client, untrace_client
    from logs_ui.recorder.delivery.writer import flush
    from logs_ui.recorder.diagnosis import Card, Diagnostic, Report, Settings
    from logs_ui.recorder.errors import (
        DatabaseError,
        FilterError,
        ImageNotFoundError,
        LogsUIError,
        RolloutNotFoundError,
        RunNotFoundError,
        SettingsError,
    )
    from logs_ui.recorder.queries.filters.rollout_filter import RolloutFilter

__all__ = [
    "Card",
    "CurrentRow",
    "DatabaseError",
    "DiagnosisCallback",
    "Diagnostic",
    "FilterError",
    "ImageNotFoundError",
    "LogsUICallback",
    "LogsUIError",
    "OpenRollout",
    "OpenRun",
    "RecordOptions",
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
    "record_trainer",
    "record_verifiers",
    "record_worker",
    "rescore",
    "row_scope",
    "start_run",
    "trace_client",
    "trace_env",
    "unrecorded",
    "untrace_client",
]

_HOMES = {
    "Card": "diagnosis.card",
    "CurrentRow": "api.row_scope",
    "DatabaseError": "errors",
    "DiagnosisCallback": "api.diagnosis_callback",
    "Diagnostic": "diagnosis.card",
    "FilterError": "errors",
    "ImageNotFoundError": "errors",
    "LogsUICallback": "api.record_trainer",
    "LogsUIError": "errors",
    "OpenRollout": "api.start_run",
    "OpenRun": "api.start_run",
    "RecordOptions": "api.options",
    "Report": "diagnosis.report",
    "RolloutFilter": "queries.filters.rollout_filter",
    "RolloutNotFoundError": "errors",
    "RunNotFoundError": "errors",
    "Settings": "settings",
    "SettingsError": "errors",
    "current_row": "api.row_scope",
    "diagnose": "analysis.diagnose",
    "export_partitions": "analysis.export.partitions",
    "export_run": "analysis.export.export_files",
    "flush": "delivery.writer",
    "load_image": "analysis.frames",
    "load_run": "analysis.frames",
    "load_runs": "analysis.frames",
    "load_scalars": "analysis.frames",
    "record": "api.record",
    "record_environment": "api.record_environment",
    "record_trainer": "api.record_trainer",
    "record_verifiers": "api.record_verifiers",
    "record_worker": "api.async_grpo.record_worker",
    "rescore": "analysis.rescore.rescore",
    "row_scope": "api.row_scope",
    "start_run": "api.start_run",
    "trace_client": "capture.instruments.http_clients",
    "trace_env": "api.trace_env",
    "unrecorded": "api.row_scope",
    "untrace_client": "capture.instruments.http_clients",
}


def __getattr__(name: str) -> Any:
    """Imports a public name on its first use: a training that records does not load what reads and diagnoses."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    found = globals()[name] = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    return found


def __dir__() -> list[str]:
    """Return all names, also those that were not used yet: for completion and help()."""
    return sorted({*globals(), *__all__})
