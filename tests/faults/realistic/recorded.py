"""Judges and records each run once per process, for all tests that read it."""

import atexit
import shutil
import tempfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from logs_ui.recorder.analysis.diagnose import Diagnosed, Diagnosis
from logs_ui.recorder.queries import find_run
from logs_ui.recorder.storage.database import reading_engine
from tests.faults import columns
from tests.faults.realistic import Realistic, Truth
from tests.faults.realistic.registry import PAGES, RUNS


@dataclass(frozen=True)
class Judged:
    """A run's truth, and its diagnosis from columns."""

    truth: Truth
    diagnosed: Diagnosed

    @property
    def last_steps(self) -> list[Any]:
        """Return the truth of the rollouts that the report is about."""
        steps = self.diagnosed.report.steps
        assert steps is not None
        return [it for it in self.truth.rollouts if steps[0] <= it["step"] <= steps[1]]


@dataclass(frozen=True)
class Recorded(Judged):
    """The same of a run in a database of its own."""

    db: Path


@cache
def judged(name: str) -> Judged:
    """Judge a run at its first use in this process."""
    chosen = next(run for run in RUNS if run.id == name)
    run, truth = chosen.make(chosen)
    return Judged(truth, columns.diagnosed(run))


@cache
def recorded(name: str) -> Recorded:
    """Record a run at its first use in this process."""
    run = next(run for run in (*RUNS, *PAGES) if run.id == name)
    db = _folder() / f"{name}.db"
    return _recorded(run, db)


def _recorded(run: Realistic, db: Path) -> Recorded:
    truth, engine = run.record(db), reading_engine(db)
    try:
        found = find_run(engine, truth.run)
        return Recorded(truth, Diagnosis(engine, found).now(engine, found), db)
    finally:
        engine.dispose()


@cache
def _folder() -> Path:
    folder = Path(tempfile.mkdtemp(prefix="realistic-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


@cache
def recorded_pair(first: str, second: str) -> tuple[Recorded, Recorded]:
    """Record two runs into one database."""
    db = _folder() / f"{first}+{second}.db"
    runs = [next(run for run in (*RUNS, *PAGES) if run.id == name) for name in (first, second)]
    a, b = (_recorded(run, db) for run in runs)
    return a, b
