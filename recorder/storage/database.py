"""Connections to a database, wherever it is, and SQL errors said in plain words. What is asked of it stands in
`queries`, what is written in `row_writes.py`; what is SQLite's alone in `sqlite_engine.py`, and PostgreSQL's in
`postgres_engine.py`.
"""

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from sqlalchemy import Engine
from sqlalchemy.exc import DBAPIError

from logs_ui.recorder.storage import sidecars
from logs_ui.recorder.storage.address import Address
from logs_ui.recorder.storage.postgres import postgres_engine
from logs_ui.recorder.storage.schema import Purpose
from logs_ui.recorder.storage.sidecars import FileIdentity, Sidecar
from logs_ui.recorder.storage.sqlite import sqlite_engine

_PATIENCE = 30.0  # seconds


def refuse_hopeless(address: Address, purpose: Purpose = Purpose.RECORD) -> None:
    """Looks at once, waiting for no lock, whether there can ever be recorded, or read. Nothing is made or changed
    there.

    Raises:
        RefusedDatabaseError: never, as things are and this user's rights. What may change by itself (a lock, a disk
            that is full or not mounted, a server that is not up), or cannot be told now, passes.
    """
    if isinstance(address, Path):
        sqlite_engine.refuse_hopeless(address, purpose)
    else:
        postgres_engine.refuse_hopeless(address, purpose)


def writing_engine(
    address: Address, patience: float | None = None, is_hurried: Callable[[], bool] = lambda: False
) -> Engine:
    """An engine for the writer's thread; makes the tables where they are missing, and SQLite's file and its folder.

    Args:
        address: of the database.
        patience: seconds that a statement waits for a lock, a connection for a server, and either, some more, for an
            answer; None for 30, and for an answer as long as it takes. A server that is slow, and not away, is given a
            minute.
        is_hurried: tells whether even that is too long, as where the process is about to end.

    Raises:
        RefusedDatabaseError: not a database of ours, or of a newer schema. It is left as it was, to the byte.
        DatabaseError: not writable now.
    """
    if isinstance(address, Path):
        return sqlite_engine.writing_engine(address, _PATIENCE if patience is None else patience)
    return postgres_engine.writing_engine(address, patience, is_hurried)


def reading_engine(address: Address) -> Engine:
    """An engine that cannot write. Each of its transactions shows one moment. To its connections notes and search are
    schemas of the database; SQLite has them attached as their files are now: `identity()` tells when they are others.

    Raises:
        NoDatabaseError: no file, or no tables in it yet.
        RefusedDatabaseError: not a database of ours, or of a newer schema. It is left as it was, to the byte.
        DatabaseError: not readable now.
    """
    if isinstance(address, Path):
        return sqlite_engine.reading_engine(address)
    return postgres_engine.reading_engine(address)


def migrating_engine(address: Address) -> Engine:
    """An engine that writes a database of whichever schema there has been, as it is. For `schema.migrate` alone.

    Raises:
        NoDatabaseError: no file, or no tables in it yet.
        RefusedDatabaseError: not a database of ours, of a newer schema, or of before 0.1.0.
        DatabaseError: not writable now.
    """
    if isinstance(address, Path):
        return sqlite_engine.migrating_engine(address)
    return postgres_engine.migrating_engine(address)


def sidecar_engine(sidecar: Sidecar, address: Address) -> Engine:
    """An engine that writes notes, or the full-text index, under their own schema; makes SQLite's file, its folder and
    its tables where they are missing.

    Raises:
        RefusedDatabaseError: the file is somebody else's. It is left as it was.
        DatabaseError: not writable now.
    """
    if isinstance(address, Path):
        return sqlite_engine.sidecar_engine(sidecar, address)
    return postgres_engine.sidecar_engine(address)


@contextmanager
def errors_in_plain_words(address: Address) -> Iterator[None]:
    """Turns the database's and the system's errors into one line that a user can act on.

    Raises:
        DatabaseError: instead of them; a RefusedDatabaseError where trying again is no use.
    """
    said = (
        sqlite_engine.errors_in_plain_words(address)
        if isinstance(address, Path)
        else postgres_engine.errors_in_plain_words(address)
    )
    with said:
        yield


def is_rows_fault(error: Exception) -> bool:
    """Whether a row brought it about, and the others can be written now. All else is to be tried again later: a disk
    that is locked, full, failing or unmounted, a server that is away or out of room, tables that are gone.
    """
    if isinstance(getattr(error, "orig", error), sqlite3.Error):
        return sqlite_engine.is_rows_fault(error)
    if isinstance(error, DBAPIError):
        return postgres_engine.is_rows_fault(error)
    return not isinstance(error, OSError | MemoryError)


def identity(address: Address) -> tuple[FileIdentity | None, ...]:
    """Of the database and of what is attached to it: connections that were made when it was another must be made anew.
    None stands for a file that is not there, or is empty still. A server's never changes: its connections break.
    """
    return sidecars.identity(address) if isinstance(address, Path) else ((0, 0),)
