"""How upkeep reads and writes beside a training that writes, too: in short transactions, with more time between them
than they took.
"""

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

from sqlalchemy import Connection, Engine, select
from sqlmodel import col

from logs_ui.recorder.errors import DatabaseError, LogsUIError
from logs_ui.recorder.queries.sql.selection import DIED_AFTER_US
from logs_ui.recorder.storage.address import Address, shown
from logs_ui.recorder.storage.clock import now_us
from logs_ui.recorder.storage.database import errors_in_plain_words, reading_engine, writing_engine
from logs_ui.recorder.storage.dialects import server_clock
from logs_ui.recorder.storage.spool.lease import Lease
from logs_ui.recorder.storage.spool.spool_ingest import Ingester
from logs_ui.recorder.storage.sqlite.checkpoints import checkpoint
from logs_ui.recorder.storage.sqlite.sqlite_engine import WAL_BYTES
from logs_ui.recorder.storage.tables import Run
from logs_ui.recorder.vocabulary import RunState

Progress = Callable[[str, int, int], None]
"""Is told what is being done, how much of it is, and of how much."""


def unseen(_what: str, _done: int, _total: int) -> None:
    """The progress that nobody looks at."""


_FIRST, _FEWEST, _MOST = 128, 16, 4_096  # rows in one transaction
_SHORT, _LONG = 0.01, 0.04  # seconds that one takes beside a training: below it takes more rows, above fewer
_ALONE = 20  # times as long where nobody records
_PAUSE, _LONGEST_PAUSE = 2, 0.5  # times as long as one took; seconds
_LOOK_EVERY = 2.0  # seconds
_PATIENCE, _POLL = 30.0, 0.1  # seconds: for another process that writes, and between two looks whether it has ended
_RENEWED = 5.0  # seconds between two signs of life to those who would write, too

_log = logging.getLogger(__name__)


def take_in(address: Address) -> None:
    """All that waits on disk for the database, so that a command works with what was recorded last. That the database,
    or the folder, cannot be written is said, and keeps nobody from reading.

    Raises:
        LogsUIError: another process is at it for long.
    """
    ingester, deadline = Ingester(address), time.monotonic() + _PATIENCE
    try:
        while not ingester.take_in().is_all:
            _wait(address, deadline)
    except (DatabaseError, OSError) as error:
        _log.warning("logs-ui: what waits in %s is not in the database yet: %s", ingester.folder, error)


@contextmanager
def alone(address: Address) -> Iterator[Callable[[], None]]:
    """On a network file system, whose locks are not to be relied on, one process writes at a time: whoever holds the
    ingester's lease. Elsewhere the database's own locks do. Gives what tells before each transaction that it is so yet.

    Raises:
        LogsUIError: another process is at it for long, or has taken over.
        DatabaseError: the folder cannot be written.
    """
    ingester = Ingester(address)
    if not ingester.takes_from_living:
        yield lambda: None
        return
    lease, deadline, ended = Lease(ingester.folder / "ingester"), time.monotonic() + _PATIENCE, threading.Event()

    def still() -> None:
        if not lease.renew():
            raise LogsUIError(f"Another process writes {shown(address)} now: this one stood still for too long.")

    def renew() -> None:
        while not ended.wait(_RENEWED):
            lease.renew()

    with errors_in_plain_words(address), ExitStack() as stack:
        ingester.folder.mkdir(parents=True, exist_ok=True)
        while not stack.enter_context(lease.held()):
            _wait(address, deadline)
        stack.callback(ended.set)
        threading.Thread(target=renew, name="logs-ui lease", daemon=True).start()
        yield still
    with suppress(OSError):  # something waits in it
        ingester.folder.rmdir()


def _wait(address: Address, deadline: float) -> None:
    """Raises LogsUIError: for longer than that."""
    if time.monotonic() > deadline:
        raise LogsUIError(f"Another process has been writing {shown(address)} for long. Try again once it has ended.")
    time.sleep(_POLL)


@contextmanager
def reading(address: Address) -> Iterator[Engine]:
    """With what waited on disk.

    Raises:
        LogsUIError: another process takes that in, for long.
        DatabaseError: it cannot be read.
    """
    take_in(address)
    with as_it_is(address) as engine:
        yield engine


@contextmanager
def as_it_is(address: Address) -> Iterator[Engine]:
    """Raises DatabaseError: it cannot be read."""
    with errors_in_plain_words(address):
        engine = reading_engine(address)
        try:
            yield engine
        finally:
            engine.dispose()


@contextmanager
def writing(address: Address) -> Iterator["Steady"]:
    """With what waited on disk.

    Raises:
        LogsUIError: another process writes, for long.
        DatabaseError: it cannot be written.
    """
    take_in(address)
    with errors_in_plain_words(address), alone(address) as still_alone:
        engine = writing_engine(address)
        try:
            yield Steady(address, engine, still_alone)
        finally:
            checkpoint(address, engine, 0)
            engine.dispose()


def under_way(db: Engine | Connection) -> list[str]:
    """Uids of the runs that somebody records into now."""
    heard = server_clock(now_us()) - DIED_AFTER_US
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

    def __init__(self, address: Address, engine: Engine, still_alone: Callable[[], None]) -> None:
        self.address = address
        self._still_alone = still_alone
        self.engine = engine
        self.rows = _FIRST
        self._pause = 0.0
        self._is_alone = False
        self._looked = -_LOOK_EVERY

    @contextmanager
    def piece(self) -> Iterator[Connection]:
        """One transaction."""
        time.sleep(min(self._pause, _LONGEST_PAUSE))
        self._still_alone()
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
        checkpoint(self.address, self.engine, WAL_BYTES)


def on_postgres(connection: Connection, statement: str, *parameters: Any) -> None:
    """Runs a statement that only PostgreSQL needs; SQLite's writer is alone as it is."""
    if connection.dialect.name == "postgresql":
        connection.exec_driver_sql(statement, parameters)
