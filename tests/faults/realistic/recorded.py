"""Records each run once per process, for all tests that read it."""

import atexit
import shutil
import tempfile
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any

from logs_ui.recorder.analysis.diagnose import Diagnosed, Diagnosis
from logs_ui.recorder.queries import find_run
from logs_ui.recorder.storage.database import reading_engine
from tests.faults.realistic import Truth
from tests.faults.realistic.registry import PAGES, RUNS


@dataclass(frozen=True)
class Recorded:
    """A run in its own database, its truth, and its diagnosis."""

    db: Path
    truth: Truth

    @cached_property
    def diagnosed(self) -> Diagnosed:
        engine = reading_engine(self.db)
        try:
            run = find_run(engine, self.truth.run)
            return Diagnosis(engine, run).now(engine, run)
        finally:
            engine.dispose()

    @cached_property
    def last_steps(self) -> list[Any]:
        """Return the truth of the rollouts that the report is about."""
        steps = self.diagnosed.report.steps
        assert steps is not None
        return [it for it in self.truth.rollouts if steps[0] <= it["step"] <= steps[1]]


@cache
def recorded(name: str) -> Recorded:
    """Record a run at its first use in this process."""
    run = next(run for run in (*RUNS, *PAGES) if run.id == name)
    db = _folder() / f"{name}.db"
    return Recorded(db, run.record(db))


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
    a, b = (Recorded(db, run.record(db)) for run in runs)
    return a, b
