"""Opens a database, SQLite or PostgreSQL, and turns SQL errors into plain words. Queries are in `queries/`, writes in
`writes/`; `sqlite/engine.py` and `postgres/engine.py` hold what differs.

Where there is no file, or no tables in it yet, an engine that does not create them raises NoDatabaseError. Each raises
RefusedDatabaseError for a database that is not ours, of a newer schema or of before 0.1.0, which stays as it was, to
the byte; and DatabaseError for one that cannot be read, or written, now.
"""

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from sqlalchemy import Engine
from sqlalchemy.exc import DBAPIError

from logs_ui.recorder.storage import sidecars
from logs_ui.recorder.storage.address import Address
from logs_ui.recorder.storage.postgres import engine as postgres_engine
from logs_ui.recorder.storage.schema import Purpose
from logs_ui.recorder.storage.sidecars import FileIdentity, Sidecar
from logs_ui.recorder.storage.sqlite import engine as sqlite_engine

_PATIENCE = 30.0  # seconds


def refuse_hopeless(address: Address, purpose: Purpose = Purpose.RECORD) -> None:
    """Check at once, without waiting for a lock, whether this database can ever be recorded into, or read. Nothing is
    created or changed there.

    Raise RefusedDatabaseError if it never can, with this user's rights. What may change by itself (a lock, a disk that
    is full or not mounted, a server that is down), or is unknown now, passes.
    """
    if isinstance(address, Path):
        sqlite_engine.refuse_hopeless(address, purpose)
    else:
        postgres_engine.refuse_hopeless(address, purpose)


def writing_engine(
    address: Address, patience: float | None = None, is_hurried: Callable[[], bool] = lambda: False
) -> Engine:
    """Open an engine that writes; create the tables if they are missing, and SQLite's file and its folder.

    A statement waits `patience` seconds for a lock, and a connection for a server, which then has a minute to answer a
    statement. None: 30 seconds, and as long as an answer takes. `is_hurried` returns True if a minute is too long, as
    when the process is about to end: then `patience` and a fifth.
    """
    if isinstance(address, Path):
        return sqlite_engine.writing_engine(address, _PATIENCE if patience is None else patience)
    return postgres_engine.writing_engine(address, patience, is_hurried)


def reading_engine(address: Address) -> Engine:
    """Open an engine that cannot write. Each transaction shows the database at one moment. Its connections see notes
    and search as schemas of the database. On SQLite these are files, attached as they are now: see `identity()`.
    """
    if isinstance(address, Path):
        return sqlite_engine.reading_engine(address)
    return postgres_engine.checked_engine(address, Purpose.READ)


def migrating_engine(address: Address) -> Engine:
    """Open an engine that writes a database of any earlier schema, for `schema.migrate` only."""
    if isinstance(address, Path):
        return sqlite_engine.migrating_engine(address)
    return postgres_engine.checked_engine(address, Purpose.MIGRATE)


def sidecar_engine(sidecar: Sidecar, address: Address) -> Engine:
    """Open an engine that writes notes, or the full-text index, under their own schema; create SQLite's file, its
    folder and its tables if they are missing.
    """
    if isinstance(address, Path):
        return sqlite_engine.sidecar_engine(sidecar, address)
    return postgres_engine.sidecar_engine(address)


@contextmanager
def disposed(engine: Engine) -> Iterator[Engine]:
    """Yield an engine, and close its connections at the end."""
    try:
        yield engine
    finally:
        engine.dispose()


def errors_in_plain_words(address: Address) -> AbstractContextManager[None]:
    """Turn the database's and the system's errors into a DatabaseError of one line that a user can act on; a
    RefusedDatabaseError if a retry is no use.
    """
    if isinstance(address, Path):
        return sqlite_engine.errors_in_plain_words(address)
    return postgres_engine.errors_in_plain_words(address)


def is_rows_fault(error: Exception) -> bool:
    """Return True if a row caused the error, so that the others can be written now. All other errors are to be retried
    later: a disk that is locked, full, failing or unmounted, a server that is away or full, tables that are gone.
    """
    if isinstance(getattr(error, "orig", error), sqlite3.Error):
        return sqlite_engine.is_rows_fault(error)
    if isinstance(error, DBAPIError):
        return postgres_engine.is_rows_fault(error)
    return not isinstance(error, OSError | MemoryError)


def identity(address: Address) -> tuple[FileIdentity | None, ...]:
    """Identify the database's file and those attached to it: if it changes, connections must be opened again. None
    stands for a file that is missing or empty. A server's never changes: its connections break.
    """
    return sidecars.identity(address) if isinstance(address, Path) else ((0, 0),)
