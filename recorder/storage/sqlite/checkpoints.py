"""Moves SQLite's write-ahead log into the database's file, one process at a time."""

import fcntl
import logging
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from sqlalchemy import Engine
from sqlalchemy.exc import SQLAlchemyError

from logs_ui.recorder.storage.address import Address
from logs_ui.recorder.storage.file_system import sync

logger = logging.getLogger("logs_ui")


def checkpoint(address: Address, engine: Engine, beyond: int) -> None:
    """Moves the log if it is larger than `beyond` bytes; SQLite then starts it again, and cuts its file to `WAL_BYTES`.

    SQLite before 3.51.3 can corrupt a database if two processes do this at once, so all writers use one lock, and none
    waits for it. If it fails, as on a full disk, nothing is lost: the log grows until a later checkpoint works.
    """
    if not isinstance(address, Path):
        return
    log = log_of(address)
    try:
        if log.stat().st_size <= beyond:
            return
        with alone(log, waits=False):
            checkpoint_log(engine)
    except (OSError, sqlite3.Error, SQLAlchemyError) as error:
        logger.debug("logs-ui: no checkpoint of %s: %s", address, error)


def checkpoint_log(engine: Engine) -> None:
    """Moves as much of the write-ahead log into the database as no reader still needs; waits for nobody."""
    connection = engine.raw_connection()  # outside of any transaction: a checkpoint cannot be part of one
    try:
        connection.cursor().execute("PRAGMA wal_checkpoint(PASSIVE)")
    finally:
        connection.close()


@contextmanager
def alone(log: Path, *, waits: bool) -> Iterator[None]:
    """Locks the log file, on which SQLite itself takes no lock. It stays the same file while the database is open.
    Raises OSError if there is no log, or if another process has the lock and `waits` is False.
    """
    with log.open("rb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX if waits else fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield


def log_of(path: Path) -> Path:
    """Returns the path of SQLite's write-ahead log, which need not exist."""
    return path.with_name(f"{path.name}-wal")


def sync_log(address: Address) -> None:
    """Writes the log to the disk, so that commits survive a power failure. SQLite (synchronous=NORMAL) does so only
    before a checkpoint. Call it before deleting a file whose contents were committed. Raises OSError if the disk
    answers with an error.
    """
    if not isinstance(address, Path):
        return
    with suppress(FileNotFoundError):  # a checkpoint moved and synced all of it
        for path in (log_of(address), address.parent):
            sync(path)
