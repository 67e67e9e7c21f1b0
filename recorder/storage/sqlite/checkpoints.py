"""Moves SQLite's write-ahead log into the database's file, one process at a time."""

import logging
import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from sqlalchemy import Engine
from sqlalchemy.exc import SQLAlchemyError

from logs_ui.recorder.errors import DatabaseError
from logs_ui.recorder.storage import portable
from logs_ui.recorder.storage.address import Address

logger = logging.getLogger("logs_ui")


def checkpoint(address: Address, engine: Engine, beyond: int) -> bool:
    """Move the log if it is larger than `beyond` bytes; SQLite then starts it again, and cuts its file to `WAL_BYTES`.
    Return True if all that was committed before is in the database's own file now, and on the disk.

    SQLite before 3.51.3 can corrupt a database if two processes do this at once, so all writers use one lock, and none
    waits for it. If it fails, as on a full disk, nothing is lost: the log grows until a later checkpoint works.
    """
    if not isinstance(address, Path):
        return True
    log = log_of(address)
    try:
        size = log.stat().st_size
        # A small log is left as it is: then all is in the file only if the log is empty.
        if size <= beyond:
            return size == 0
        with alone(log, waits=False):
            return checkpoint_log(engine)
    except FileNotFoundError:  # a rollback journal has no log
        return True
    except (OSError, sqlite3.Error, SQLAlchemyError, DatabaseError) as error:
        logger.debug("logs-ui: no checkpoint of %s: %s", address, error)
        return False


def checkpoint_log(engine: Engine) -> bool:
    """Move as much of the write-ahead log into the database as no reader still needs; wait for nobody. Return True
    if that is all.
    """
    with closing(engine.raw_connection()) as connection:  # outside of any transaction: it cannot be part of one
        busy, in_log, moved = connection.cursor().execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
        return not busy and bool(in_log == moved)


@contextmanager
def alone(log: Path, *, waits: bool) -> Iterator[None]:
    """Lock the log file, on which SQLite itself takes no lock. It stays the same file while the database is open.
    Raise OSError if there is no log, or if another process has the lock and `waits` is False.
    """
    with log.open("rb") as lock:
        portable.lock(lock, waits=waits)
        yield


def log_of(path: Path) -> Path:
    """Return the path of SQLite's write-ahead log, which need not exist. SQLite follows links to find it."""
    return Path(f"{os.path.realpath(path)}-wal")
