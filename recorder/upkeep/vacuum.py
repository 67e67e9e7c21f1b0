"""Gives the disk space of pruned and deleted rollouts back, and forgets writers that ended long ago."""

import os
import shutil
import sqlite3
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sqlalchemy import URL, delete
from sqlalchemy.exc import DBAPIError
from sqlmodel import col

from logs_ui.recorder.errors import LogsUIError
from logs_ui.recorder.storage import clock
from logs_ui.recorder.storage.address import Address, database_address, masked_address
from logs_ui.recorder.storage.database import disposed, errors_in_plain_words, writing_engine
from logs_ui.recorder.storage.notes_tables import NotesTable
from logs_ui.recorder.storage.search_tables import POSTGRES_METADATA
from logs_ui.recorder.storage.spool.files import spool_files
from logs_ui.recorder.storage.spool_folder import spool_folder
from logs_ui.recorder.storage.sqlite import checkpoints
from logs_ui.recorder.storage.sqlite.checkpoints import log_of
from logs_ui.recorder.storage.tables import Table, WriterPosition
from logs_ui.recorder.upkeep import small_transactions
from logs_ui.recorder.upkeep.info import size_and_free

_NO_RIGHT = "42501"  # SQLSTATE
_FORGOTTEN_US = 30 * 24 * 3_600_000_000
_SPARE = 1.05  # of the space that is needed: others use the disk, too
_STEPS = 1_000  # instructions of SQLite's virtual machine between two checks for Ctrl-C: some 30 ms


@dataclass(frozen=True)
class Vacuumed:
    """Describes the result of a vacuum.

    Attributes:
        before, after: bytes of the database; SQLite's include its write-ahead log.
        tables: how many were to be vacuumed; SQLite's are one file.
        skipped: the tables that this user may not vacuum; PostgreSQL lets only their owner.
    """

    before: int
    after: int
    tables: int = 1
    skipped: tuple[str, ...] = ()


def vacuum(
    db: str | os.PathLike[str] | None = None, *, progress: small_transactions.Progress = small_transactions.unseen
) -> Vacuumed:
    """Rewrite the database without its unused pages (SQLite's `VACUUM`, PostgreSQL's `VACUUM FULL`). If it is
    interrupted, the database stays as it was. Meanwhile SQLite's readers read on; a recorder that starts keeps its rows
    in memory.

    Args:
        db: the database's path or URL; by default LOGS_UI_DB or this user's own database.
        progress: called with the name of the work, how much is done, and how much there is.

    Raises:
        LogsUIError: a run is being recorded, or the disk lacks twice the space that is in use.
        DatabaseError: the database is missing, or cannot be written.
    """
    address = database_address(db)
    with small_transactions.reading(address) as engine:
        small_transactions.refuse_under_way(engine, address, "vacuumed")
        with engine.connect() as connection:
            before, free = size_and_free(address, connection)
    tables, skipped = 1, list[str]()
    with errors_in_plain_words(address), small_transactions.alone(address):
        if isinstance(address, Path):
            forget_writers(address)
            _refuse_without_space(address, before - free)
            _vacuum_file(address, progress)
        else:
            tables, skipped = _vacuum_server(address, progress)
            if not skipped:  # whoever may not vacuum may not delete either
                forget_writers(address)
    with small_transactions.as_it_is(address) as engine, engine.connect() as connection:
        return Vacuumed(before, size_and_free(address, connection)[0], tables, tuple(skipped))


def forget_writers(address: Address) -> None:
    """Delete the positions of processes that wrote last a month ago and have no spool. There is a row for each process
    that ever recorded. If a spool of one turns up later, as on another machine, it is stored as if it were new.
    """
    position = WriterPosition
    waiting = {file.writer for file in spool_files(spool_folder(address))}
    with disposed(writing_engine(address)) as engine, engine.begin() as connection:
        old = col(position.written) < clock.now(connection) - _FORGOTTEN_US
        connection.execute(delete(position).where(old, col(position.writer).not_in(waiting)))


def _refuse_without_space(path: Path, used: int) -> None:
    # Both the copy and the log through which it gets into the file lie beside it.
    free, needed = shutil.disk_usage(path.parent).free, int(2 * used * _SPARE)
    if free < needed:
        raise LogsUIError(
            f"Vacuuming {masked_address(path)} needs {needed / 1e6:,.0f} MB of free disk space, but only "
            f"{free / 1e6:,.0f} MB are free. Free some, or skip the vacuum: new rollouts reuse the space of pruned "
            "ones."
        )


def _vacuum_file(path: Path, progress: small_transactions.Progress) -> None:
    def tick() -> int:
        progress("vacuuming", 0, 1)
        return 0

    with closing(sqlite3.connect(path, isolation_level=None, timeout=30)) as connection:
        # The copy is made beside the database: neither in memory, nor in a /tmp that may be small.
        folder = str(path.absolute().parent).replace("'", "''")
        for pragma in ("temp_store=FILE", f"temp_store_directory='{folder}'", "wal_autocheckpoint=0"):
            connection.execute(f"PRAGMA {pragma}")
        connection.set_progress_handler(tick, _STEPS)
        try:
            tick()
            connection.execute("VACUUM")
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode != sqlite3.SQLITE_INTERRUPT:
                raise
            raise KeyboardInterrupt from None  # SQLite drops the one that Ctrl-C raised in `tick`, and only stops
        finally:
            connection.set_progress_handler(None, 0)
            connection.execute("PRAGMA temp_store_directory=''")  # it is set for the whole process
        with suppress(FileNotFoundError), checkpoints.alone(log_of(path), waits=True):  # a rollback journal has no log
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    progress("vacuuming", 1, 1)


def _vacuum_server(url: URL, progress: small_transactions.Progress) -> tuple[int, list[str]]:
    """Return how many tables there are, and the names of those that this user may not vacuum."""
    metadata = (Table.metadata, NotesTable.metadata, *POSTGRES_METADATA)
    tables = [str(table) for schema in metadata for table in schema.sorted_tables]
    skipped, notices = list[str](), list[str]()
    with (
        disposed(writing_engine(url)) as engine,
        engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection,
    ):
        driver: Any = connection.connection.driver_connection
        driver.add_notice_handler(lambda notice: notices.append(notice.severity_nonlocalized))
        for number, table in enumerate(tables, 1):
            notices.clear()
            try:
                connection.exec_driver_sql(f"VACUUM (FULL, ANALYZE) {table}")
            except DBAPIError as error:
                if getattr(error.orig, "sqlstate", None) != _NO_RIGHT:  # the table's schema is closed to this user
                    raise
                skipped.append(table)
            if "WARNING" in notices:  # PostgreSQL only warns of a table that the user may not vacuum
                skipped.append(table)
            progress("vacuuming", number, len(tables))
    return len(tables), skipped
