"""Lets upkeep write while a training records: in short transactions, with longer pauses between them."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Engine, select
from sqlmodel import col

from logs_ui.recorder.delivery.committer import entry_of, take_in_before_reading
from logs_ui.recorder.errors import LogsUIError
from logs_ui.recorder.queries.sql.liveness import DIED_AFTER_US
from logs_ui.recorder.storage.address import Address, masked_address
from logs_ui.recorder.storage.clock import now_us
from logs_ui.recorder.storage.database import disposed, errors_in_plain_words, reading_engine, writing_engine
from logs_ui.recorder.storage.dialects import server_clock
from logs_ui.recorder.storage.spool.ingest import Ingester
from logs_ui.recorder.storage.spool.lease import Lease
from logs_ui.recorder.storage.spool_folder import spool_folder
from logs_ui.recorder.storage.sqlite.checkpoints import checkpoint
from logs_ui.recorder.storage.sqlite.engine import WAL_BYTES
from logs_ui.recorder.storage.sqlite.moved_files import OpenFile, Place
from logs_ui.recorder.storage.tables import Run
from logs_ui.recorder.vocabulary import RunState

Progress = Callable[[str, int, int], None]
"""Called with the name of the work, how much of it is done, and how much there is."""


def unseen(_what: str, _done: int, _total: int) -> None:
    """Ignore the progress."""


_FIRST, _FEWEST, _MOST = 128, 16, 4_096  # rows in one transaction
# Seconds of a transaction while somebody records: after a shorter one the next has more rows, after a longer one fewer.
_SHORT, _LONG = 0.01, 0.04
_ALONE = 20  # times as long if nobody records
_PAUSE, _LONGEST_PAUSE = 2, 0.5  # times the length of the transaction; seconds
_LOOK_EVERY = 2.0  # seconds between two checks whether somebody records
_PATIENCE, _POLL = 30.0, 0.1  # seconds to wait for another process that writes, and between two checks
_RENEWED = 5.0  # seconds between two renewals of the lease


def _take_in(address: Address) -> None:
    """Store what waits on disk, so that a command sees what was recorded last; raise LogsUIError if it takes long."""
    if not take_in_before_reading(address, _PATIENCE, is_patient=True):
        raise _is_busy(address)


def _is_busy(address: Address) -> LogsUIError:
    return LogsUIError(
        f"Another process has been writing {masked_address(address)} for a long time. Try again when it has ended."
    )


@contextmanager
def alone(address: Address) -> Iterator[Callable[[], None]]:
    """Make this process the only writer on a network file system, where locks are unreliable, by the ingester's lease.
    Elsewhere the database's own locks suffice. Yield a function to call before each transaction: it raises if the
    lease was lost. Raise LogsUIError if another process has been writing for a long time, or has taken over.
    """
    ingester = Ingester(address, entry_of)
    if not ingester.takes_from_living:
        yield lambda: None
        return
    lease, deadline, ended = Lease(ingester.folder / "ingester"), time.monotonic() + _PATIENCE, threading.Event()

    def still() -> None:
        if not lease.renew():
            raise LogsUIError(
                f"Another process writes {masked_address(address)} now, because this one was stopped for too long. "
                "Try again."
            )

    # A transaction that takes long must not cost the lease, so a thread renews it.
    def renew() -> None:
        while not ended.wait(_RENEWED):
            lease.renew()

    with errors_in_plain_words(address), ExitStack() as stack:
        while not stack.enter_context(lease.hold()):
            if time.monotonic() > deadline:
                raise _is_busy(address)
            time.sleep(_POLL)
        stack.callback(ended.set)
        threading.Thread(target=renew, name="logs-ui lease", daemon=True).start()
        yield still


@contextmanager
def reading(address: Address) -> Iterator[Engine]:
    """Open a reading engine after storing what waited on disk; raise as `_take_in` and `as_it_is`."""
    _take_in(address)
    with as_it_is(address) as engine:
        yield engine


@contextmanager
def as_it_is(address: Address) -> Iterator[Engine]:
    """Open a reading engine without storing what waits on disk; raise DatabaseError if that fails."""
    with errors_in_plain_words(address), disposed(reading_engine(address)) as engine:
        yield engine


@contextmanager
def writing(address: Address) -> Iterator["Steady"]:
    """Open a database for short transactions, after storing what waited on disk. Raise LogsUIError as `_take_in` and
    `alone`, DatabaseError if it cannot be written, and MovedError once its file is moved or replaced.
    """
    _take_in(address)
    place = Place(address) if isinstance(address, Path) else None
    with errors_in_plain_words(address), alone(address) as still_alone, disposed(writing_engine(address)) as engine:
        file = None if place is None else OpenFile(place, spool_folder(address) / "upkeep.log")
        try:
            yield Steady(address, engine, still_alone, place)
        finally:
            checkpoint(address, engine, 0)
            # A log must not stay beside another file, which SQLite would read it into.
            if file is not None and not file.is_at_its_place():
                file.release_log(engine, file.fate()[0])


def under_way(db: Engine | Connection) -> list[str]:
    """Return uids of the runs that are being recorded now."""
    heard = server_clock(now_us()) - DIED_AFTER_US
    runs = select(col(Run.uid)).where(col(Run.state) == RunState.RUNNING, col(Run.heartbeat) >= heard)
    if isinstance(db, Connection):
        return list(db.scalars(runs.order_by(col(Run.id))))
    with db.connect() as connection:
        return under_way(connection)


def refuse_under_way(db: Engine | Connection, address: Address, change: str) -> None:
    """Raise LogsUIError if a run is being recorded into the database, which therefore cannot be `what`."""
    uids = under_way(db)
    if uids:
        runs = f"run {uids[0]} is" if len(uids) == 1 else f"{len(uids)} runs are, as {uids[0]},"
        raise LogsUIError(
            f"{masked_address(address)} cannot be {change} while {runs} being recorded into it. Wait for its end."
        )


class Steady:
    """Writes a database in short transactions."""

    def __init__(self, address: Address, engine: Engine, still_alone: Callable[[], None], place: Place | None) -> None:
        self.address = address
        self._place = place  # of an SQLite file
        self._still_alone = still_alone
        self.engine = engine
        self.rows = _FIRST  # how many the next transaction should change
        self._pause = 0.0
        self._is_alone = False
        self._looked = -_LOOK_EVERY

    @contextmanager
    def piece(self) -> Iterator[Connection]:
        """Open one transaction, after a pause if somebody records."""
        time.sleep(min(self._pause, _LONGEST_PAUSE))
        self._still_alone()
        if self._place is not None:
            self._place.check()
        with self.engine.begin() as connection:
            if connection.dialect.name == "sqlite":
                # Some builds overwrite freed pages with zeros, which is most of the work.
                connection.exec_driver_sql("PRAGMA secure_delete=OFF")
            began = time.monotonic()
            if began - self._looked > _LOOK_EVERY:
                self._looked, self._is_alone = began, not under_way(connection)
            yield connection
        took = time.monotonic() - began
        # While somebody records, the pause is longer than the transaction was, and the next one has as many rows as fit
        # its time.
        self._pause = 0.0 if self._is_alone else _PAUSE * took
        longer = _ALONE if self._is_alone else 1
        if took < _SHORT * longer:
            self.rows = min(self.rows * 2, _MOST)
        elif took > _LONG * longer:
            self.rows = max(self.rows // 2, _FEWEST)
        checkpoint(self.address, self.engine, WAL_BYTES)


def on_postgres(connection: Connection, statement: str, *parameters: Any) -> None:
    """Run a statement that only PostgreSQL needs, such as a lock: SQLite has only one writer at a time."""
    if connection.dialect.name == "postgresql":
        connection.exec_driver_sql(statement, parameters)
