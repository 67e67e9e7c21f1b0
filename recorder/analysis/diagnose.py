"""Diagnoses a recorded run: reads its columns from the database and runs the checks of `diagnosis/` over them."""

import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from math import nan
from typing import Any

import numpy as np

from logs_ui.recorder import queries
from logs_ui.recorder.analysis.audit import NewestAudit
from logs_ui.recorder.analysis.diagnosis_columns import (
    RunColumns,
    evaluated_texts_of,
    labels_of,
    prompt_ends_of,
    texts_of,
)
from logs_ui.recorder.analysis.opened_runs import opened
from logs_ui.recorder.analysis.references import compare_with
from logs_ui.recorder.diagnosis import DIAGNOSTICS, Diagnostic, Report, Rows, Settings, diagnose_rows
from logs_ui.recorder.diagnosis.card import Trend
from logs_ui.recorder.diagnosis.report import Failed
from logs_ui.recorder.diagnosis.run_checks import all_limits, guarded
from logs_ui.recorder.errors import SettingsError
from logs_ui.recorder.guard import RAISE_VARIABLE
from logs_ui.recorder.queries import Database
from logs_ui.recorder.settings import check_environments, check_thresholds
from logs_ui.recorder.storage.tables import Run
from logs_ui.recorder.vocabulary import Mode, RunState

_ALL_POINTS = 2**31  # logged points per scalar: all of them


def diagnose(
    run: str = "latest",
    db: str | os.PathLike[str] | None = None,
    *,
    settings: Settings | None = None,
    diagnostics: Sequence[Diagnostic] = (),
    whole: bool = False,
    against: Sequence[str] = (),
) -> Report:
    """Find out why the rewards of a run are low.

    If the run has training rollouts, only those are judged, else its evaluation rollouts.

    Args:
        run: a run's id, the beginning of one, a name (its newest run), or `latest`.
        db: the database's path or address; LOGS_UI_DB or the user's default by default.
        settings: replaces the run's own settings.
        diagnostics: diagnostics of your own, run after the built-in ones; their errors are in `Report.failed`.
        whole: True to read all rollouts of a run with more than 100,000: a million take minutes and 1.2 GB of memory.
            Otherwise a sample of some 30,000 is read, which `Report.sample` describes.
        against: other runs, as `run` names one, that `Report.against` compares it with.

    Returns:
        The report; `print` it, or use `cards`, `frame()` and `as_dict()`.

    Raises:
        RunNotFoundError: there is no such run, or it is compared with itself.
        DatabaseError: the database is missing or cannot be read.
        SettingsError: a threshold names no diagnostic or is out of range, two diagnostics have the same id, or settings
            of an environment name no eval of the run.

    Examples:
        >>> import tempfile
        >>> from logs_ui.recorder import Settings, diagnose, start_run
        >>> db = f"{tempfile.mkdtemp()}/runs.db"
        >>> with start_run(db=db) as run:
        ...     for i in range(16):
        ...         with run.rollout("What is 1 + 1?", task="sum") as row:
        ...             row.turn("no idea", finish="length" if i % 2 else "stop")
        ...             row.score(0.0 if i % 2 else 1.0)
        >>> report = diagnose(run.id, db, settings=Settings(max_reward=1.0))
        >>> report.cards[0].title
        '50% of rollouts are truncated at the token limit'
    """
    check_thresholds(settings or Settings(), all_limits(diagnostics))
    with opened(run, db) as (engine, stored_run):
        if settings is not None and settings.environments:
            check_environments(settings, queries.known_values(engine, stored_run.id or 0, ("eval",))["eval"])
        return Diagnosis(engine, stored_run, whole=whole).now(engine, stored_run, settings, diagnostics, against).report


@dataclass(frozen=True)
class Diagnosed:
    """A report and the data that it was made from."""

    rows: Rows  # all ended rollouts, or the sample
    report: Report
    settings: Settings
    config: Mapping[str, Any]  # the trainer's arguments
    scalars: Mapping[str, Trend]  # what the trainer logged, by name; NaN where that was no number
    # See `diagnosis.card.Run`.
    evaluations: Mapping[str, Trend] = field(default_factory=dict)
    evaluated: Rows | None = None


class Diagnosis:
    """The diagnosis of one run, which can be repeated: only what has changed is read. For one thread at a time."""

    def __init__(self, db: Database, run: Run, *, whole: bool = False) -> None:
        """Prepare diagnosing a run; `whole`: read all of its rollouts, however many there are."""
        self.columns = RunColumns(run.id or 0, queries.mode_of(db, run.id or 0), whole=whole)
        self._evaluated = RunColumns(run.id or 0, Mode.EVAL, whole=whole)
        self._audit = NewestAudit()

    def now(
        self, db: Database, run: Run, settings: Settings | None = None, diagnostics: Sequence[Diagnostic] = (),
        against: Sequence[str] = (), *, in_full: bool = True,
    ) -> Diagnosed:  # fmt: skip
        """Diagnose the run in its present state; for `in_full` see `diagnose_rows`."""
        rows, scalars = self.columns.refresh(db), _scalars(db, run.id or 0)
        in_force, failed = settings_of(db, run), list[Failed]()
        settings = settings or in_force
        of = self.columns.sample
        whole = len(rows) if of is None else of.rollouts
        # This estimates the number of attributed calls of the whole run from the rollouts that were read.
        calls = float(np.nansum(rows.turns) + np.nansum(rows.facts["env_steps"])) * whole / max(len(rows), 1)
        state = queries.state_of(run, queries.now(db))
        modes = {series.mode for series in queries.step_series(db, run.id or 0)}
        evaluations = queries.mean_rewards(db, run.id or 0, Mode.EVAL) if len(modes) > 1 else {}
        is_evaluated = self.columns.mode == Mode.TRAIN and Mode.EVAL in modes
        evaluated = self._evaluated.refresh(db) if is_evaluated else None
        report = diagnose_rows(
            rows,
            settings,
            config=run.config,
            scalars=scalars,
            evaluations=evaluations,
            evaluated=evaluated,
            has_ended=state != RunState.RUNNING,
            attributed=calls / (calls + run.unattributed_calls) if run.unattributed_calls else 1.0,
            error=run.error if state == RunState.FAILED else None,
            within=f"mode:{self.columns.mode}" if len(modes) > 1 else "",
            in_full=in_full,
            diagnostics=(*guard_checks(failed), *(guarded(diagnostic, failed) for diagnostic in diagnostics)),
            read_labels=partial(labels_of, db, run.id or 0),
            read_texts=partial(texts_of, db, run.id or 0),
            read_evaluated=partial(evaluated_texts_of, db, run.id or 0),
            read_prompt_ends=partial(prompt_ends_of, db, run),
            read_arithmetic=partial(self._audit.judge, db, run),
        )
        sample = None if of is None else f"{len(rows):,} of {of.rollouts:,} rollouts: {of}"
        report = replace(
            report, run=run.uid, failed=tuple(failed), sample=sample, unattributed=run.unattributed_calls,
            finds=settings == in_force, against=compare_with(db, run, rows, report.scale.success, against),
        )  # fmt: skip
        return Diagnosed(rows, report, settings, run.config, scalars, evaluations, evaluated)


def guard_checks(failed: list[Failed]) -> tuple[Diagnostic, ...]:
    """Return the checks that come with logs-ui, guarded: an error in one costs no report. Tests raise it."""
    if os.environ.get(RAISE_VARIABLE) == "1":
        return DIAGNOSTICS
    return tuple(guarded(diagnostic, failed) for diagnostic in DIAGNOSTICS)


def settings_of(db: Database, run: Run) -> Settings:
    """Return the settings in force: the saved ones, else the recorded ones, else the defaults. What is muted for the
    run's project is muted, too.

    Settings that cannot be read count as not set.
    """
    saved = _parse_settings(queries.saved_settings(db, run.uid))
    of_run = recorded_settings(run) if saved is None else saved
    return replace(of_run, muted={**muted_of(db, run.project), **of_run.muted})


def muted_of(db: Database, project: str | None) -> Mapping[str, str]:
    """Return what is muted for all runs of a project: the reasons by id."""
    saved = _parse_settings(queries.saved_settings(db, of_all(project))) if project else None
    return {} if saved is None else saved.muted


def of_all(project: str) -> str:
    """Return the key of the settings of a project, which stand in the place of a run's id."""
    return f"project:{project}"


def recorded_settings(run: Run) -> Settings:
    """Return the settings that the run was recorded with, else the defaults; saved ones are ignored."""
    return _parse_settings(run.diagnosis) or Settings()


def _parse_settings(values: Mapping[str, Any] | None) -> Settings | None:
    """Return the settings; None if there are none, or they cannot be read."""
    if values is not None:
        with suppress(SettingsError, TypeError):
            return Settings.of(values)
    return None


def _scalars(db: Database, run_id: int) -> dict[str, Trend]:
    """Return what the trainer logged, by name; NaN where that was NaN or infinite, which no database stores."""
    curves = queries.scalar_curves(db, run_id, _ALL_POINTS)
    return {
        curve.name: tuple((step, nan if value is None else value) for step, value in curve.points) for curve in curves
    }
