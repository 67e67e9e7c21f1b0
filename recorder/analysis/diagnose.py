"""A recorded run's diagnosis: what `diagnosis/` says of what the database holds."""

import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from logs_ui.recorder import queries
from logs_ui.recorder.analysis.diagnosis_columns import RunColumns
from logs_ui.recorder.analysis.frames import opened
from logs_ui.recorder.diagnosis import DIAGNOSTICS, Diagnostic, Report, Rows, Settings, diagnose_rows
from logs_ui.recorder.diagnosis.card import Trend
from logs_ui.recorder.diagnosis.user_checks import Guarded, all_limits
from logs_ui.recorder.errors import SettingsError
from logs_ui.recorder.queries import Database
from logs_ui.recorder.settings import check_thresholds
from logs_ui.recorder.storage.tables import Run
from logs_ui.recorder.vocabulary import Mode, RunState

_ALL_POINTS = 2**31  # of what the trainer logged


def diagnose(
    run: str = "latest",
    db: str | os.PathLike[str] | None = None,
    *,
    settings: Settings | None = None,
    diagnostics: Sequence[Diagnostic] = (),
    whole: bool = False,
) -> Report:
    """Why the rewards of a run are low.

    Of its training where it has any rollouts of one, else of its evaluations.

    Args:
        run: uid, `latest`, a name (the newest run of that name), or a unique beginning of a uid.
        db: where the database is; LOGS_UI_DB or this user's own by default.
        settings: in place of the run's own.
        diagnostics: your own, beside those that there are; what goes wrong in them is in `Report.failed`.
        whole: reads all rollouts of a run of more than 100,000, too: 1.2 GB of memory for a million, and minutes.
            Without it some 30,000 of them are looked at, as `Report.sample` says.

    Raises:
        RunNotFoundError: no such run.
        DatabaseError: the database is missing, or cannot be read.
        SettingsError: a threshold is of no diagnostic or out of range, or two diagnostics have the same id.
    """
    check_thresholds(settings or Settings(), all_limits(diagnostics))
    with opened(run, db) as (engine, found):
        return Diagnosis.of(engine, found, whole=whole).now(engine, found, settings, diagnostics).report


@dataclass(frozen=True)
class Diagnosed:
    """A report and what it was made of.

    Attributes:
        rows: all that came to an end.
        config: the trainer's arguments.
        scalars: what it logged, by name.
    """

    rows: Rows
    report: Report
    settings: Settings
    config: Mapping[str, Any]
    scalars: Mapping[str, Trend]


class Diagnosis:
    """One run's, to be asked again and again: only what has changed is read. One thread at a time."""

    def __init__(self, columns: RunColumns) -> None:
        self.columns = columns

    @classmethod
    def of(cls, db: Database, run: Run, *, whole: bool = False) -> "Diagnosis":
        """Of which run; `whole`: all of its rollouts, however many they are."""
        return cls(RunColumns(run.id or 0, queries.mode_of(db, run.id or 0), whole=whole))

    def now(
        self, db: Database, run: Run, settings: Settings | None = None, diagnostics: Sequence[Diagnostic] = ()
    ) -> Diagnosed:
        """As the run is now."""
        rows, scalars = self.columns.refresh(db), _scalars(db, run.id or 0)
        settings, guarded = settings or settings_of(db, run), Guarded(diagnostics)
        report = diagnose_rows(
            rows,
            settings,
            config=run.config,
            scalars=scalars,
            has_ended=queries.state_of(run, queries.now(db)) != RunState.RUNNING,
            within=_within(db, run, self.columns.mode),
            diagnostics=(*DIAGNOSTICS, *guarded.diagnostics),
        )
        of = self.columns.sample
        sample = None if of is None else f"{len(rows):,} of {of.rollouts:,} rollouts: {of}"
        report = replace(
            report, run=run.uid, failed=tuple(guarded.failed), sample=sample, unattributed=run.unattributed_calls
        )
        return Diagnosed(rows, report, settings, run.config, scalars)


def settings_of(db: Database, run: Run) -> Settings:
    """Those in force: what somebody saved for the run, else what it was recorded with, else each diagnostic's own. What
    cannot be read counts as not set.
    """
    saved = _read(queries.saved_settings(db, run.uid))
    return recorded_settings(run) if saved is None else saved


def recorded_settings(run: Run) -> Settings:
    """Those that it was recorded with, whatever somebody saved since; else each diagnostic's own."""
    return _read(run.diagnosis) or Settings()


def _read(values: Mapping[str, Any] | None) -> Settings | None:
    """None where there are none, or they cannot be read."""
    if values is not None:
        with suppress(SettingsError, TypeError):
            return Settings.of(values)
    return None


def _within(db: Database, run: Run, mode: Mode) -> str:
    modes = {series.mode for series in queries.step_series(db, run.id or 0)}
    return f"mode:{mode}" if len(modes) > 1 else ""


def _scalars(db: Database, run_id: int) -> dict[str, Trend]:
    curves = queries.scalar_curves(db, run_id, _ALL_POINTS)
    known = {it.name: tuple((step, value) for step, value in it.points if value is not None) for it in curves}
    return {name: points for name, points in known.items() if points}
