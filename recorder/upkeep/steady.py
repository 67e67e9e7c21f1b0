"""How upkeep reads and writes beside a training that writes, too: in short transactions, with more time between them
than they took.
"""

import fcntl
import logging
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Engine, select
from sqlalchemy.exc import SQLAlchemyError
from sqlmodel import col

from logs_ui.recorder import store
from logs_ui.recorder.address import Address, shown
from logs_ui.recorder.database import errors_in_plain_words, reading_engine, writing_engine
from logs_ui.recorder.errors import LogsUIError
from logs_ui.recorder.models import Run, RunState
from logs_ui.recorder.selection import DIED_AFTER_US
from logs_ui.recorder.sqlite import WAL_BYTES

Progress = Callable[[str, int, int], None]
"""Is told what is being done, how much of it is, and of how much."""


def unseen(_what: str, _done: int, _total: int) -> None:
    """The progress that nobody looks at."""


_FIRST, _FEWEST, _MOST = 128, 16, 4_096  # rows in one transaction
_SHORT, _LONG = 0.01, 0.04  # seconds that one takes beside a training: below it takes more rows, above fewer
_ALONE = 20  # times as long where nobody records
_PAUSE, _LONGEST_PAUSE = 2, 0.5  # times as long as one took; seconds
_LOOK_EVERY = 2.0  # seconds

_log = logging.getLogger(__name__)


@contextmanager
def reading(address: Address) -> Iterator[Engine]:
    """Raises DatabaseError: it cannot be read."""
    with errors_in_plain_words(address):
        engine = reading_engine(address)
        try:
            yield engine
        finally:
            engine.dispose()


@contextmanager
def writing(address: Address) -> Iterator["Steady"]:
    """Raises DatabaseError: it cannot be written."""
    with errors_in_plain_words(address):
        engine = writing_engine(address)
        try:
            yield Steady(address, engine)
        finally:
            move_log(address, engine)
            engine.dispose()


def under_way(db: Engine | Connection) -> list[str]:
    """Uids of the runs that somebody records into now."""
    heard = time.time_ns() // 1000 - DIED_AFTER_US
    runs = select(col(Run.uid)).where(col(Run.state) == RunState.RUNNING, col(Run.heartbeat) >= heard)
    if isinstance(db, Connection):
        return list(db.scalars(runs.order_by(col(Run.id))))
    with db.connect() as connection:
        return under_way(connection)


def refuse_under_way(db: Engine | Connection, address: Address, what: str) -> None:
    """
    Raises:
        LogsUIError: somebody records into the database, so that `what` must wait.
    """
    uids = under_way(db)
    if uids:
        runs = f"run {uids[0]} is" if len(uids) == 1 else f"{len(uids)} runs are, as {uids[0]},"
        raise LogsUIError(f"{shown(address)} cannot be {what} while {runs} being recorded into it. Wait for its end.")


class Steady:
    """Writes a database in pieces.

    Attributes:
        rows: how many the next piece should have.
    """

    def __init__(self, address: Address, engine: Engine) -> None:
        self.address = address
        self.engine = engine
        self.rows = _FIRST
        self._pause = 0.0
        self._is_alone = False
        self._looked = -_LOOK_EVERY

    @contextmanager
    def piece(self) -> Iterator[Connection]:
        """One transaction."""
        time.sleep(min(self._pause, _LONGEST_PAUSE))
        with self.engine.begin() as connection:
            if connection.dialect.name == "sqlite":
                # Pages that are given up are not overwritten with zeros, as some builds do: that is most of the work.
                connection.exec_driver_sql("PRAGMA secure_delete=OFF")
            began = time.monotonic()
            if began - self._looked > _LOOK_EVERY:
                self._looked, self._is_alone = began, not under_way(connection)
            yield connection
        took = time.monotonic() - began
        self._pause = 0.0 if self._is_alone else _PAUSE * took
        longer = _ALONE if self._is_alone else 1
        if took < _SHORT * longer:
            self.rows = min(self.rows * 2, _MOST)
        elif took > _LONG * longer:
            self.rows = max(self.rows // 2, _FEWEST)
        move_log(self.address, self.engine, WAL_BYTES)


def move_log(address: Address, engine: Engine, beyond: int = 0) -> None:
    """Moves SQLite's write-ahead log into the database once it has grown: see `Writer`, which does the same."""
    if not isinstance(address, Path):
        return
    wal, lock_file = (address.with_name(address.name + suffix) for suffix in ("-wal", "-lock"))
    try:
        if wal.stat().st_size <= beyond:
            return
        with lock_file.open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            store.checkpoint(engine)
    except (OSError, sqlite3.Error, SQLAlchemyError) as error:
        _log.debug("logs-ui: no checkpoint of %s: %s", address, error)


def on_postgres(connection: Connection, statement: str, *parameters: Any) -> None:
    """Runs a statement that only PostgreSQL needs; SQLite's writer is alone as it is."""
    if connection.dialect.name == "postgresql":
        connection.exec_driver_sql(statement, parameters)
