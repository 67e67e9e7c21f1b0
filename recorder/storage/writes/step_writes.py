"""Inserts and updates the sums of steps. Runs in the thread that writes, inside its transaction."""

from collections.abc import Iterable, Mapping, Sequence
from operator import itemgetter
from typing import Any

from sqlalchemy import (
    Connection,
    Select,
    Update,
    and_,
    bindparam,
    delete,
    false,
    func,
    or_,
    outerjoin,
    select,
    text,
    update,
)
from sqlmodel import SQLModel, col

from logs_ui.recorder.storage import step_sums
from logs_ui.recorder.storage.changes import Batch, RowChange
from logs_ui.recorder.storage.dialects import Insert, insert
from logs_ui.recorder.storage.tables import StepDetails, StepStatistics
from logs_ui.recorder.storage.writes.prepared_statements import run, run_each

_DETAILS_EVERY = 1_000_000  # µs
_DETAILS_PAUSE = 100  # µs more for each rollout of the step, some twenty times what it costs
_OF_STEP = ("run_id", *step_sums.OF_STEP)
_step_of = itemgetter(*step_sums.OF_STEP)


def write_details(connection: Connection, batch: Batch, runs: Mapping[str, int], now: int) -> None:
    """Recompute details of steps whose rows have changed: at most once a second, less often for large steps, and once
    more when the run ends. Details from the future, after a clock was set back, are recomputed, too.
    """
    ended = {change.uid for change in batch.runs if change.columns.get("finished") is not None}
    for uid, run_id in runs.items():
        every, pause = (0, 0) if uid in ended else (_DETAILS_EVERY, _DETAILS_PAUSE)
        parameters = {"of_run": run_id, "now": now, "every": every, "pause": pause}
        stale = [{**_step_parameters(run_id, step), "now": now} for step in run(connection, parameters, _stale_steps)]
        run_each(connection, stale, _details_upsert)
        run_each(connection, stale, _details_are_fresh)


def write_statistics(
    connection: Connection, changes: Iterable[RowChange], run_id: int, left: Iterable[Sequence[Any]] = ()
) -> None:
    """Recompute the sums of the changed rows' steps from all of their rows: exact in whatever order these came. Steps
    that rows have left may have none any more.
    """
    steps = {_step_of(change.identity) for change in changes}
    for step in {*left} - steps:
        for table in (StepStatistics, StepDetails):
            of_step = [col(getattr(table, name)) == value for name, value in zip(step_sums.OF_STEP, step, strict=True)]
            connection.execute(delete(table).where(col(table.run_id) == run_id, *of_step))
        steps.add(step)
    run_each(connection, (_step_parameters(run_id, step) for step in steps), _statistics_upsert)


def _step_parameters(run_id: int, step: Sequence[Any]) -> dict[str, Any]:
    """Return the parameters of `step_sums`."""
    return {"of_run": run_id, **{f"of_{name}": value for name, value in zip(step_sums.OF_STEP, step, strict=True)}}


def _statistics_upsert() -> Insert:
    return _upsert(StepStatistics, step_sums.sums())


def _details_upsert() -> Insert:
    """Take the parameters of `step_sums.details`, and `now`."""
    return _upsert(StepDetails, step_sums.details().add_columns(bindparam("now").label("made")))


def _upsert(table: type[SQLModel], selected: Select[Any]) -> Insert:
    names = [column.name for column in selected.selected_columns]
    statement = insert(table).from_select(names, selected)
    replaced = {name: statement.excluded[name] for name in names if name not in _OF_STEP}
    return statement.on_conflict_do_update(index_elements=_OF_STEP, set_=replaced)


def _stale_steps() -> Select[Any]:
    """Select steps whose details are stale and older than `every` plus `pause` for each rollout, all in µs.
    Parameters: `of_run`, `now`, `every` and `pause`.
    """
    sums, details = StepStatistics, StepDetails
    now: Any = bindparam("now")
    every: Any = bindparam("every")
    last = func.coalesce(col(details.made), 0)
    key = [col(getattr(sums, name)) for name in step_sums.OF_STEP]
    conditions = [col(getattr(details, name)) == col(getattr(sums, name)) for name in _OF_STEP]
    return (
        select(*key)
        .select_from(outerjoin(sums, details, and_(*conditions)))
        .where(col(sums.run_id) == bindparam("of_run"), text("stale"))
        .where(or_(last <= now - every - col(sums.rollouts) * bindparam("pause"), last > now + every))
    )


def _details_are_fresh() -> Update:
    """Take the parameters of `step_sums.details`."""
    sums = StepStatistics
    key = [col(getattr(sums, name)) == bindparam(f"of_{name}") for name in step_sums.OF_STEP]
    return update(sums).where(col(sums.run_id) == bindparam("of_run"), *key).values(stale=false())
