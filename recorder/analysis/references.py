"""Reads the runs that another run is compared with."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from logs_ui.recorder import queries
from logs_ui.recorder.analysis.diagnosis_columns import RunColumns
from logs_ui.recorder.diagnosis.against import Against, RunGroups, compare_runs
from logs_ui.recorder.diagnosis.rollout_rows import Rows
from logs_ui.recorder.diagnosis.success import Success
from logs_ui.recorder.errors import RunNotFoundError
from logs_ui.recorder.queries import Database
from logs_ui.recorder.storage.tables import Run

_OF_A_RUN = {"output_dir", "logging_dir", "run_name"}  # arguments that every run has for itself


def compare_with(db: Database, run: Run, rows: Rows, success: Success, names: Sequence[str]) -> Against | None:
    """Compare a run, of which `rows` are read, with the runs of these names; None without any. Raises
    RunNotFoundError.
    """
    others = {other.uid: other for other in (queries.find_run(db, name) for name in names)}
    if run.uid in others:
        raise RunNotFoundError(f"{run.uid} cannot be compared with itself: name other runs.")
    mode = queries.mode_of(db, run.id or 0)
    references = {
        uid: RunGroups.of(RunColumns(other.id or 0, mode).refresh(db), success) for uid, other in others.items()
    }
    if not references:
        return None
    against = compare_runs(RunGroups.of(rows, success), references)
    return replace(against, differing=_differing(db, [run, *others.values()]))


def _differing(db: Database, runs: Sequence[Run]) -> list[str]:
    """Return the names of the arguments that differ; also of the sources, such as a dataset, if all runs have some."""
    stored = queries.run_sources(db, [run.id or 0 for run in runs])
    parts = [dict[str, Any](run.config) for run in runs]
    if len(stored) == len(runs):
        for part, run in zip(parts, runs, strict=True):
            part |= {
                f"{source.kind} {source.name}".replace("_", " ", 1).strip(): (source.hash, source.weight)
                for source in stored[run.id or 0]
            }
    names = sorted({name for part in parts for name in part} - _OF_A_RUN)
    return [name for name in names if any(part.get(name) != parts[0].get(name) for part in parts)]
