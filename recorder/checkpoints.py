"""Moves SQLite's write-ahead log into the database's file."""

import fcntl
import logging
import os
import sqlite3
from contextlib import suppress
from pathlib import Path

from sqlalchemy import Engine
from sqlalchemy.exc import SQLAlchemyError

from logs_ui.recorder import store
from logs_ui.recorder.address import Address

logger = logging.getLogger("logs_ui")


def checkpoint(address: Address, engine: Engine, beyond: int) -> None:
    """Where the log is larger than so many bytes; SQLite then begins it anew, and cuts its file to
    `sqlite.WAL_BYTES`. SQLite before 3.51.3 can corrupt a database when two processes do so at once, so all that write
    do it under one lock, and nobody waits for it. Where it fails, as on a full disk, nothing is lost: the log grows
    until a later one works.
    """
    if not isinstance(address, Path):
        return
    wal = address.with_name(address.name + "-wal")
    try:
        if wal.stat().st_size <= beyond:
            return
        with address.with_name(address.name + "-lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            store.checkpoint(engine)
    except (OSError, sqlite3.Error, SQLAlchemyError) as error:
        logger.debug("logs-ui: no checkpoint of %s: %s", address, error)


def sync_log(address: Address) -> None:
    """So that what is committed survives a power failure: SQLite itself (synchronous=NORMAL) syncs its log no sooner
    than it moves it. For whoever deletes what a transaction was made of.

    Raises:
        OSError: the disk answers with an error.
    """
    if not isinstance(address, Path):
        return
    with suppress(FileNotFoundError):  # all of it was moved, and synced
        for path in (address.with_name(address.name + "-wal"), address.parent):
            descriptor = os.open(path, os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
