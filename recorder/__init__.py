"""Records the rollouts of a TRL training, and reads them back."""

import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from logs_ui.recorder.analysis.diagnose import diagnose
    from logs_ui.recorder.analysis.export.files import export_run
    from logs_ui.recorder.analysis.export.partitions import export_partitions
    from logs_ui.recorder.analysis.frames import load_image, load_run, load_runs, load_scalars
    from logs_ui.recorder.analysis.rescore.rescore import rescore
    from logs_ui.recorder.api.async_grpo.record_worker import record_worker
    from logs_ui.recorder.api.diagnosis_callback import DiagnosisCallback
    from logs_ui.recorder.api.open_rollout import OpenRollout
    from logs_ui.recorder.api.options import RecordOptions
    from logs_ui.recorder.api.record import record
    from logs_ui.recorder.api.record_environment import record_environment
    from logs_ui.recorder.api.record_trainer import LogsUICallback, record_trainer
    from logs_ui.recorder.api.record_verifiers import record_verifiers
    from logs_ui.recorder.api.row_scope import CurrentRow, current_row, row_scope, unrecorded
    from logs_ui.recorder.api.start_run import OpenRun, start_run
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
    from logs_ui.recorder.importing.import_run import Imported, import_run
    from logs_ui.recorder.queries.filters.rollout_filter import RolloutFilter

if __name__ == "recorder":  # from the root of the source: a second copy, whose classes are not those of the first
    raise ImportError("Import logs_ui.recorder: the folder recorder is a part of the package logs_ui.")

__all__ = [
    "Card",
    "CurrentRow",
    "DatabaseError",
    "DiagnosisCallback",
    "Diagnostic",
    "FilterError",
    "ImageNotFoundError",
    "Imported",
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
    "import_run",
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

_NAMES = {
    "analysis.diagnose": ("diagnose",),
    "analysis.export.files": ("export_run",),
    "analysis.export.partitions": ("export_partitions",),
    "analysis.frames": ("load_image", "load_run", "load_runs", "load_scalars"),
    "analysis.rescore.rescore": ("rescore",),
    "api.async_grpo.record_worker": ("record_worker",),
    "api.diagnosis_callback": ("DiagnosisCallback",),
    "api.open_rollout": ("OpenRollout",),
    "api.options": ("RecordOptions",),
    "api.record": ("record",),
    "api.record_environment": ("record_environment",),
    "api.record_trainer": ("LogsUICallback", "record_trainer"),
    "api.record_verifiers": ("record_verifiers",),
    "api.row_scope": ("CurrentRow", "current_row", "row_scope", "unrecorded"),
    "api.start_run": ("OpenRun", "start_run"),
    "api.trace_env": ("trace_env",),
    "capture.instruments.http_clients": ("trace_client", "untrace_client"),
    "delivery.writer": ("flush",),
    "diagnosis.card": ("Card", "Diagnostic"),
    "diagnosis.report": ("Report",),
    "errors": (
        "DatabaseError",
        "FilterError",
        "ImageNotFoundError",
        "LogsUIError",
        "RolloutNotFoundError",
        "RunNotFoundError",
        "SettingsError",
    ),
    "importing.import_run": ("Imported", "import_run"),
    "queries.filters.rollout_filter": ("RolloutFilter",),
    "settings": ("Settings",),
}
_HOMES = {name: module for module, names in _NAMES.items() for name in names}


def __getattr__(name: str) -> Any:
    """Import a public name on its first use: a training that records does not load what reads and diagnoses."""
    if name == "__version__":
        from importlib.metadata import version

        return version("logs-ui")
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    value = globals()[name] = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    return value


def __dir__() -> list[str]:
    """Return all names, also those that were not used yet: for completion and help()."""
    return sorted({*globals(), *__all__})


class _AtTransformers:
    """A finder of modules that finds none. It has transformers know `report_to="logs_ui"` once that is imported."""

    waits = True

    def find_spec(self, name: str, _path: Any = None, _target: Any = None) -> None:
        if self.waits and name == "transformers":
            self.waits = False
            # Here: they take longer to import than all of this file.
            from logs_ui.recorder.guard import guard

            with guard("waiting for transformers"):
                from wrapt import register_post_import_hook

                register_post_import_hook(_make_known, "transformers.integrations.integration_utils")


def _make_known(module: Any) -> None:
    from logs_ui.recorder.guard import guard

    with guard("making report_to known"):
        from logs_ui.recorder.api.record_trainer import make_known

        make_known(module)


if "transformers" in sys.modules:
    _AtTransformers().find_spec("transformers")
else:
    sys.meta_path.insert(0, _AtTransformers())
