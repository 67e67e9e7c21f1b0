"""Giving the room of what was pruned and deleted back to the disk."""

import os
import shutil
import sqlite3
import threading
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sqlalchemy import URL, Connection, delete, text
from sqlalchemy.exc import DBAPIError
from sqlmodel import col

from logs_ui.recorder.errors import LogsUIError
from logs_ui.recorder.storage import clock
from logs_ui.recorder.storage.address import Address, database_address, shown
from logs_ui.recorder.storage.database import errors_in_plain_words, writing_engine
from logs_ui.recorder.storage.notes_tables import NotesTable
from logs_ui.recorder.storage.search_tables import POSTGRES_METADATA
from logs_ui.recorder.storage.spool.spool_files import spool_files, spool_folder
from logs_ui.recorder.storage.sqlite import checkpoints
from logs_ui.recorder.storage.sqlite.checkpoints import log_of
from logs_ui.recorder.storage.tables import Table, WriterPosition
from logs_ui.recorder.upkeep.small_transactions import Progress, alone, reading, refuse_under_way, unseen

_NO_RIGHT, _PLAIN_WARNING = "42501", "01000"  # SQLSTATE
_FORGOTTEN_US = 30 * 24 * 3_600_000_000
_SPARE = 1.05  # of the room that is needed, as others use the disk, too


@dataclass(frozen=True)
class Vacuumed:
    """What was done.

    Attributes:
        before, after: bytes of the database; of SQLite, its file and its write-ahead log.
        tables: how many were to be vacuumed; SQLite's are one file.
        skipped: those of them that the user may not vacuum, which PostgreSQL lets their owner alone.
    """

    before: int
    after: int
    tables: int = 1
    skipped: tuple[str, ...] = ()


def vacuum(db: str | os.PathLike[str] | None = None, *, progress: Progress = unseen) -> Vacuumed:
    """Writes the database anew without its free pages (SQLite's `VACUUM`, PostgreSQL's `VACUUM FULL`). It is whole or
    as it was, whatever ends it. Meanwhile readers read on, on SQLite; a recorder that begins keeps its rows in memory.

    Args:
        db: where the database is; LOGS_UI_DB or this user's own by default.
        progress: called with what is being done, how much of it is, and of how much.

    Raises:
        LogsUIError: somebody records into it, or the disk lacks the room: twice what is in use.
        DatabaseError: the database is missing, or cannot be written.
    """
    address = database_address(db)
    with reading(address) as engine:
        refuse_under_way(engine, address, "vacuumed")
    with errors_in_plain_words(address), alone(address):
        forget_writers(address)  # says so where it cannot be written
        return _file(address, progress) if isinstance(address, Path) else _server(address, progress)


def forget_writers(address: Address) -> None:
    """How far the writing of processes has come that wrote last long ago, and whose spools are gone: there is one for
    each process that ever recorded. What yet turns up of one, as on another machine, is taken in as if it were new.
    """
    position = WriterPosition
    waiting = {file.writer for file in spool_files(spool_folder(address))}
    engine = writing_engine(address)
    try:
        with engine.begin() as connection:
            old = col(position.written) < clock.now(connection) - _FORGOTTEN_US
            connection.execute(delete(position).where(old, col(position.writer).not_in(waiting)))
    except DBAPIError as error:
        if not _is_lack_of_rights(error):
            raise
    finally:
        engine.dispose()


def _file(path: Path, progress: Progress) -> Vacuumed:
    before = stored(path)
    with closing(sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=30)) as connection:
        # The copy is made beside the database, not in memory, nor in a /tmp that may be small.
        folder = str(path.absolute().parent).replace("'", "''")
        connection.execute("PRAGMA temp_store=FILE")
        connection.execute(f"PRAGMA temp_store_directory='{folder}'")
        connection.execute("PRAGMA wal_autocheckpoint=0")
        _check_room(path, used(connection))
        try:
            _in_background(connection, "VACUUM", progress)
        finally:
            connection.execute("PRAGMA temp_store_directory=''")  # it is the process's
        with suppress(FileNotFoundError), checkpoints.alone(log_of(path), waits=True):  # a rollback journal has none
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    return Vacuumed(before, stored(path))


def _server(url: URL, progress: Progress) -> Vacuumed:
    names = [
        str(table) for its in (Table.metadata, NotesTable.metadata, *POSTGRES_METADATA) for table in its.sorted_tables
    ]
    engine = writing_engine(url)
    try:
        with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            size = text("SELECT pg_database_size(current_database())")
            before = connection.scalar(size) or 0
            warnings = _warnings(connection)
            skipped: list[str] = []
            for number, name in enumerate(names):
                progress("vacuuming", number, len(names))
                if not _is_vacuumed(connection, name, warnings):
                    skipped.append(name)
            progress("vacuuming", len(names), len(names))
            return Vacuumed(before, connection.scalar(size) or 0, len(names), tuple(skipped))
    finally:
        engine.dispose()


def _is_vacuumed(connection: Connection, table: str, warnings: list[str]) -> bool:
    """Not one that the user has no right to: of those PostgreSQL only warns, unless all of their schema is closed."""
    try:
        connection.execute(text(f"VACUUM (FULL, ANALYZE) {table}"))
    except DBAPIError as error:
        if not _is_lack_of_rights(error):
            raise
        return False
    is_done = not warnings
    warnings.clear()
    return is_done


def _is_lack_of_rights(error: DBAPIError) -> bool:
    return getattr(error.orig, "sqlstate", None) == _NO_RIGHT


def _warnings(connection: Connection) -> list[str]:
    """Grows by what PostgreSQL warns of on this connection from now on."""
    found: list[str] = []

    def notice(said: Any) -> None:
        if said.sqlstate == _PLAIN_WARNING:
            found.append(said.message_primary)

    psycopg_connection: Any = connection.connection.driver_connection
    psycopg_connection.add_notice_handler(notice)
    return found


def used(connection: sqlite3.Connection) -> int:
    """Bytes of SQLite's pages that hold something."""
    size, pages, free = (connection.execute(f"PRAGMA {it}").fetchone()[0] for it in _PAGES)
    return int(size * (pages - free))


_PAGES = ("page_size", "page_count", "freelist_count")


def stored(path: Path) -> int:
    """Bytes of the file and of its write-ahead log."""
    return sum(file.stat().st_size for file in (path, log_of(path)) if file.exists())


def _check_room(path: Path, needed: int) -> None:
    """
    Raises:
        LogsUIError: the copy, and the log through which it gets into the file, do not fit beside it.
    """
    free, wanted = shutil.disk_usage(path.parent).free, int(2 * needed * _SPARE)
    if free < wanted:
        raise LogsUIError(
            f"{shown(path)} takes {wanted / 1e6:,.0f} MB of free disk to be vacuumed, and there are {free / 1e6:,.0f}. "
            "Make room, or go without: new rollouts fill what was pruned."
        )


def _in_background(connection: sqlite3.Connection, statement: str, progress: Progress) -> None:
    """So that Ctrl-C ends it at once: SQLite does not listen while it works."""
    failed: list[BaseException] = []

    def work() -> None:
        try:
            connection.execute(statement)
        except BaseException as error:  # noqa: BLE001 - raised below
            failed.append(error)

    thread = threading.Thread(target=work, name="logs-ui vacuum", daemon=True)
    thread.start()
    try:
        while thread.is_alive():
            progress("vacuuming", 0, 1)
            thread.join(0.1)
    except BaseException:
        connection.interrupt()
        thread.join()
        raise
    if failed:
        raise failed[0]
    progress("vacuuming", 1, 1)
