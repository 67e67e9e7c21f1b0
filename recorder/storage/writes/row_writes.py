"""Inserts and updates rollouts with payloads, tags and images, in the transaction of the thread that writes."""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from itertools import groupby
from operator import attrgetter
from typing import Any

from sqlalchemy import BigInteger, Connection, bindparam, case, delete, func, select, tuple_, update
from sqlalchemy.sql.dml import ReturningUpdate
from sqlmodel import col

from logs_ui.recorder.storage import tables
from logs_ui.recorder.storage.changes import EntryNumber, PayloadStartChange, RowChange
from logs_ui.recorder.storage.clock import now_us
from logs_ui.recorder.storage.dialects import Insert, insert, server_clock
from logs_ui.recorder.storage.step_sums import OF_STEP
from logs_ui.recorder.storage.writes.prepared_statements import run, run_many, upsert_values
from logs_ui.recorder.storage.writes.run_writes import later, take_runs
from logs_ui.recorder.storage.writes.step_writes import write_statistics


def advance(connection: Connection, writer: str, number: EntryNumber) -> bool:
    """Record that the entry of this number, and all before it, are stored; return True if it was not before. Another
    transaction that records the same waits for the end of this one.
    """
    return run(connection, {"writer": writer, **number._asdict(), "now": now_us()}, _advance).rowcount > 0


def positions(connection: Connection) -> dict[str, EntryNumber]:
    """Return the number of the last stored entry by writer."""
    at = tables.WriterPosition
    query = select(col(at.writer), col(at.parcel), col(at.process), col(at.n))
    return {writer: EntryNumber(*number) for writer, *number in connection.execute(query)}


def write_payload_starts(connection: Connection, changes: Iterable[PayloadStartChange]) -> None:
    """Insert shared prompts; one that exists is the same. Sorted by id, so that transactions cannot deadlock."""
    rows = [{"id": change.id, "data": change.data} for change in sorted(changes, key=attrgetter("id"))]
    if rows:
        run_many(connection, rows, _start_insert)


def write_rows(
    connection: Connection, changes: Iterable[RowChange], runs: Mapping[str, int], heard: int | None
) -> None:
    """Upsert rows and payloads, and the statistics of their steps in the same transaction. `runs` are the ids of their
    runs by uid. `heard` is when the process that made them was last alive, in µs by its own clock; None for now, by the
    database's.
    """
    by_run: dict[str, list[RowChange]] = defaultdict(list)
    for change in changes:
        by_run[change.run].append(change)
    for uid, rows in by_run.items():
        run_id = runs[uid]
        moment = {"of_run": run_id, "now": now_us() if heard is None else heard}
        # The batch gets the next number of the run: readers ask for rows that changed since a number.
        changed = run(connection, moment, _run_update, heard is None).scalar_one()
        left = _imported_again(connection, rows, run_id)
        _upsert_rows(connection, rows, run_id, changed)
        _upsert_payloads(connection, rows, run_id)
        tags = [{"run": run_id, "uid": change.uid, "tag": tag} for change in rows for tag in change.tags]
        if tags:
            run_many(connection, tags, _tag_insert)
        write_statistics(connection, rows, run_id, left)
    images = [image for rows in by_run.values() for change in rows for image in change.images]
    for image in sorted(images, key=attrgetter("hash")):
        connection.execute(
            insert(tables.Image).values(**asdict(image)).on_conflict_do_nothing()
        )  # one that exists is the same


def delete_rows(connection: Connection, run_uid: str, uids: Iterable[str]) -> None:
    """Delete rollouts of a run, with what belongs to them, and recompute the sums of their steps."""
    row_table, run_id = (
        tables.EvaluationRow,
        connection.scalar(select(col(tables.Run.id)).where(col(tables.Run.uid) == run_uid)),
    )
    take_runs(connection, [run_id or 0])
    is_selected = col(row_table.run_id) == run_id, col(row_table.uid).in_([*uids])
    steps = connection.execute(
        select(*(col(getattr(row_table, name)) for name in OF_STEP)).where(*is_selected).distinct()
    ).all()
    ids = select(col(row_table.id)).where(*is_selected)
    for table in (tables.RolloutPayload, tables.RowTag):
        connection.execute(delete(table).where(col(table.row_id).in_(ids)))
    connection.execute(delete(row_table).where(*is_selected))
    write_statistics(connection, [], run_id or 0, steps)


def _advance() -> Insert:
    """Take the parameters `writer`, the parts of an `EntryNumber` and `now`."""
    position, now = tables.WriterPosition, server_clock(bindparam("now", type_=BigInteger()))
    statement = (
        insert(position)
        .inline()
        .values(writer=bindparam("writer"), **{name: bindparam(name) for name in EntryNumber._fields}, written=now)
    )
    further = statement.excluded
    last = tuple_(position.parcel, position.process, position.n)
    # An entry that is not later than the last one changes nothing, so that no row is counted.
    return statement.on_conflict_do_update(
        index_elements=["writer"],
        set_={name: further[name] for name in (*EntryNumber._fields, "written")},
        where=last < tuple_(*(further[name] for name in EntryNumber._fields)),
    )


def _run_update(is_now: bool) -> ReturningUpdate[Any]:  # noqa: FBT001 - `run` passes arguments by position
    """Take the parameters `of_run` and `now`; return the `changed` of this batch."""
    of_run = update(tables.Run).where(col(tables.Run.id) == bindparam("of_run"))
    now = bindparam("now", type_=BigInteger())
    heard = server_clock(now) if is_now else later(now)
    return of_run.values(changed=col(tables.Run.changed) + 1, heartbeat=heard).returning(col(tables.Run.changed))


def _upsert_rows(connection: Connection, changes: list[RowChange], run_id: int, changed: int) -> None:
    """Upsert rows in the order in which they began, else in the batch's order; so their ids have this order, too.
    Neighbours with the same columns go in together. What identifies a row is not updated, unless it is among the
    columns, too, so that only the indexes of other columns are written.
    """
    began = sorted(changes, key=lambda change: change.identity["created"])
    for (identity, columns), alike in groupby(began, lambda change: (tuple(change.identity), tuple(change.columns))):
        rows = [(change.uid, {**change.identity, **change.columns}) for change in alike]
        names = ("run_id", "uid", "changed", *rows[0][1])
        values = [[run_id, uid, changed, *columns.values()] for uid, columns in rows]
        fixed = tuple(name for name in identity if name not in columns)
        upsert_values(connection, tables.EvaluationRow, names, values, ("run_id", "uid"), fixed)


def _imported_again(connection: Connection, changes: list[RowChange], run_id: int) -> set[tuple[Any, ...]]:
    """Delete the tags of stored rows that are imported again, which may have others now; return their steps, which
    they may leave.
    """
    row_table, tag_table = tables.EvaluationRow, tables.RowTag
    # Only what is imported has the step among its columns: others have it in their identity, which never changes.
    uids = [change.uid for change in changes if "step" in change.columns]
    if not uids:
        return set()
    is_selected = col(row_table.run_id) == run_id, col(row_table.uid).in_(uids)
    steps = connection.execute(
        select(*(col(getattr(row_table, name)) for name in OF_STEP)).where(*is_selected).distinct()
    )
    old_steps = {tuple(step) for step in steps}
    if old_steps:
        connection.execute(
            delete(tag_table).where(col(tag_table.row_id).in_(select(col(row_table.id)).where(*is_selected)))
        )
    return old_steps


def _upsert_payloads(connection: Connection, changes: list[RowChange], run_id: int) -> None:
    """Upsert payloads; their rows and starts must exist."""
    names = ("uid", "content_start", "tokens_start", "content", "tokens")
    heavy = [change for change in changes if change.content is not None or change.tokens is not None]
    rows = [{"run": run_id, **{name: getattr(change, name) for name in names}} for change in heavy]
    if rows:
        run_many(connection, rows, _payload_upsert)


def _start_insert() -> Insert:
    """Take the parameters `id` and `data`."""
    values: dict[str, Any] = {"id": bindparam("id"), "data": bindparam("data")}
    return insert(tables.PayloadStart).inline().values(**values).on_conflict_do_nothing()


def _payload_upsert() -> Insert:
    """Take `run`, `uid`, `content`, `tokens` and their starts; None leaves a payload and its start unchanged."""
    row_table, payload_table = tables.EvaluationRow, tables.RolloutPayload
    of_row = select(col(row_table.id)).where(
        col(row_table.run_id) == bindparam("run"), col(row_table.uid) == bindparam("uid")
    )
    names = ("content", "tokens")
    parameters: dict[str, Any] = {name: bindparam(name) for part in names for name in (f"{part}_start", part)}
    statement = insert(payload_table).inline().values(row_id=of_row.scalar_subquery(), **parameters)
    new = statement.excluded
    updates: dict[str, Any] = {name: func.coalesce(new[name], getattr(payload_table, name)) for name in names}
    for name in names:
        start = f"{name}_start"
        updates[start] = case((new[name].is_(None), getattr(payload_table, start)), else_=new[start])
    return statement.on_conflict_do_update(index_elements=["row_id"], set_=updates)


def _tag_insert() -> Insert:
    """Take the parameters `run`, `uid` and `tag`. A row has each tag once."""
    row_table = tables.EvaluationRow
    of_row = select(col(row_table.id)).where(
        col(row_table.run_id) == bindparam("run"), col(row_table.uid) == bindparam("uid")
    )
    values = {"run_id": bindparam("run"), "tag": bindparam("tag"), "row_id": of_row.scalar_subquery()}
    return insert(tables.RowTag).inline().values(**values).on_conflict_do_nothing()
