"""Deletes a run with everything that belongs to it."""

import os
from contextlib import suppress
from dataclasses import dataclass

import msgspec
from sqlalchemy import Connection, Engine, delete, func, select
from sqlmodel import col

from logs_ui.recorder import queries
from logs_ui.recorder.delivery.committer import entry_of
from logs_ui.recorder.errors import LogsUIError
from logs_ui.recorder.queries.search.index import SearchIndex
from logs_ui.recorder.storage import tables
from logs_ui.recorder.storage.address import Address, database_address, db_option
from logs_ui.recorder.storage.changes import NO_ENTRY
from logs_ui.recorder.storage.database import disposed, sidecar_engine
from logs_ui.recorder.storage.notes_tables import NotesTable
from logs_ui.recorder.storage.sidecars import NOTES
from logs_ui.recorder.storage.spool import entry as entries
from logs_ui.recorder.storage.spool.files import spool_files
from logs_ui.recorder.storage.spool.format import NotASpoolError, frames
from logs_ui.recorder.storage.spool_folder import spool_folder
from logs_ui.recorder.storage.writes import row_writes, run_writes
from logs_ui.recorder.upkeep.info import marked_rows, payload_bytes
from logs_ui.recorder.upkeep.small_transactions import (
    Progress,
    Steady,
    on_postgres,
    reading,
    under_way,
    unseen,
    writing,
)
from logs_ui.recorder.upkeep.sweeps import sweep_images, sweep_starts

_row = tables.EvaluationRow


@dataclass(frozen=True)
class Deleted:
    """A run that was deleted, or would be.

    Attributes:
        run: its uid.
        rollouts, bytes: how many, and the stored size of their text and tokens.
        said: how many of them people starred, tagged or noted; the run itself counts as one.
    """

    run: str
    rollouts: int
    bytes: int
    said: int


def delete_run(
    run: str, db: str | os.PathLike[str] | None = None, *, dry_run: bool = False, progress: Progress = unseen
) -> Deleted:
    """Delete a run with its rollouts, figures, sources, stars, tags and notes, and the images, texts and tokenizers
    that no other run has. It can be restored only from a backup of the database.

    It works in short transactions, while trainings record other runs. It can be interrupted at any moment; the next
    call continues.

    Args:
        run: uid, a name (the newest run of that name), or a unique beginning of a uid.
        db: the database's path or URL; by default LOGS_UI_DB or this user's own database.
        dry_run: deletes nothing, and returns what would be deleted.
        progress: called with the name of the work, how much is done, and how much there is.

    Raises:
        RunNotFoundError: no such run.
        LogsUIError: the run is being recorded now, or some of it waits on disk.
        DatabaseError: the database is missing, or cannot be read or written.
    """
    address = database_address(db)
    with reading(address) as engine:
        doomed = queries.find_run(engine, run)
        rows = select(func.count(), func.sum(payload_bytes())).select_from(_row).outerjoin(tables.RolloutPayload)
        with engine.connect() as connection:
            count, size = connection.execute(rows.where(col(_row.run_id) == doomed.id)).one()
            deleted = Deleted(doomed.uid, count, size or 0, len(set(connection.scalars(marked_rows(doomed.uid)))))
        if doomed.uid in under_way(engine):
            raise LogsUIError(f"Run {doomed.uid} is being recorded now. Wait for its end, or end it.")
        _refuse_waiting(engine, address, doomed.uid)
        if dry_run:
            return deleted
        # The run's row goes last: as long as it is there, the run is found, and an interrupted deletion can be
        # continued.
        with writing(address) as steady:
            _figures(steady, doomed.id or 0)
            _rollouts(steady, doomed.id or 0, deleted.rollouts, progress)
            with steady.piece() as connection:
                _itself(connection, doomed)
            sweep_starts(steady)
            sweep_images(engine, steady, progress)
        with disposed(sidecar_engine(NOTES, address)) as notes, notes.begin() as connection:
            for table in NotesTable.metadata.sorted_tables:
                connection.execute(delete(table).where(table.c.run == doomed.uid))
        # Filling the index empties it if one of its runs is gone: SQLite may give its rollouts' ids again.
        SearchIndex(address, engine.begin).fill(run_id=0)
    return deleted


def _refuse_waiting(db: Engine, address: Address, uid: str) -> None:
    """Raise LogsUIError if some of the run waits on disk: it would come back when that is stored."""
    with db.connect() as connection:
        positions = row_writes.positions(connection)
    for file in spool_files(spool_folder(address)):
        position = positions.get(file.writer, NO_ENTRY)
        with suppress(OSError, NotASpoolError, msgspec.DecodeError), file.path.open("rb") as stream:
            if any(
                frame.number > position and uid in entries.decoded(frame.data, entry_of).uids
                for frame in frames(stream)
            ):
                raise LogsUIError(
                    f"Part of run {uid} still waits in {file.path}: storing it later would restore the run. Wait for "
                    f"the process that wrote it, or end it; then run: logs-ui db ingest{db_option(address)}"
                )


def _figures(steady: Steady, run_id: int) -> None:
    """Delete sums first, so that a run that is deleted in part shows none."""
    with steady.piece() as connection:
        for table in (tables.StepStatistics, tables.StepDetails, tables.RunSource):
            connection.execute(delete(table).where(col(table.run_id) == run_id))
    step, of_run = col(tables.Scalar.step), col(tables.Scalar.run_id) == run_id
    while True:
        with steady.piece() as connection:
            # The next figures tell up to which step they reach: all figures of these steps are deleted.
            steps = select(step).where(of_run).order_by(step).limit(steady.rows)
            last = connection.scalar(select(func.max(steps.subquery().c.step)))
            if last is None:
                return
            connection.execute(delete(tables.Scalar).where(of_run, step <= last))


def _rollouts(steady: Steady, run_id: int, total: int, progress: Progress) -> None:
    done = 0
    while True:
        with steady.piece() as connection:
            query = select(col(_row.id)).where(col(_row.run_id) == run_id).order_by(col(_row.id)).limit(steady.rows)
            ids = connection.scalars(query).all()
            connection.execute(delete(tables.RolloutPayload).where(col(tables.RolloutPayload.row_id).in_(ids)))
            connection.execute(delete(tables.RowTag).where(col(tables.RowTag.row_id).in_(ids)))
            connection.execute(delete(_row).where(col(_row.id).in_(ids)))
        if not ids:
            return
        done += len(ids)
        progress("deleting", min(done, total), total)


def _itself(connection: Connection, run: tables.Run) -> None:
    """Delete the run's row, with texts and a tokenizer that no other run has."""
    run_writes.take_runs(connection, [run.id or 0])  # in the order of all writers: runs, then what they share
    # Under the lock no writer can store a text or a tokenizer that is unused now, and refer to it after it was deleted.
    on_postgres(connection, "LOCK TABLE text, tokenizer IN SHARE ROW EXCLUSIVE MODE")
    connection.execute(delete(tables.Run).where(col(tables.Run.id) == run.id))
    of_runs = select(col(tables.RunSource.hash)).where(col(tables.RunSource.hash).is_not(None))
    connection.execute(delete(tables.Text).where(col(tables.Text.hash).not_in(of_runs)))
    others = select(col(tables.Run.id)).where(col(tables.Run.tokenizer) == run.tokenizer)
    if run.tokenizer is not None and connection.scalar(others.limit(1)) is None:
        connection.execute(delete(tables.Tokenizer).where(col(tables.Tokenizer.hash) == run.tokenizer))
