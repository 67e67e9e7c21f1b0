"""Moves SQLite's write-ahead log into the database's file."""

import fcntl
import logging
import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from sqlalchemy import Engine
from sqlalchemy.exc import SQLAlchemyError

from logs_ui.recorder.storage.address import Address

logger = logging.getLogger("logs_ui")


def checkpoint(address: Address, engine: Engine, beyond: int) -> None:
    """Where the log is larger than so many bytes; SQLite then begins it anew, and cuts its file to
    `sqlite.WAL_BYTES`. SQLite before 3.51.3 can corrupt a database when two processes do so at once, so all that write
    do it under one lock, and nobody waits for it. Where it fails, as on a full disk, nothing is lost: the log grows
    until a later one works.
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
    """Under a lock of the log itself, on which SQLite has none of its own; it stays the same file as long as somebody
    has the database open.

    Raises:
        OSError: there is no log; or, unless that is waited for, another holds the lock.
    """
    with log.open("rb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX if waits else fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield


def log_of(path: Path) -> Path:
    """SQLite's write-ahead log, which need not be there."""
    return path.with_name(f"{path.name}-wal")


def sync_log(address: Address) -> None:
    """So that what is committed survives a power failure: SQLite itself (synchronous=NORMAL) syncs its log no sooner
    than it moves it. For whoever deletes what a transaction was made of.

    Raises:
        OSError: the disk answers with an error.
    """
    if not isinstance(address, Path):
        return
    with suppress(FileNotFoundError):  # all of it was moved, and synced
        for path in (log_of(address), address.parent):
            descriptor = os.open(path, os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
