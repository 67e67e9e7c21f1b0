"""The background thread that turns jobs into committed rows. The trainer's thread only appends to its queue."""

import atexit
import fcntl
import functools
import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from sqlalchemy import Connection, Engine

from logs_ui.recorder import store
from logs_ui.recorder.database import errors_in_plain_words, is_disk_trouble, writing_engine
from logs_ui.recorder.errors import DatabaseError
from logs_ui.recorder.guard import guard
from logs_ui.recorder.store import Batch, Change

logger = logging.getLogger("logs_ui")

_INTERVAL = 0.2  # seconds between two transactions
_BATCH = 256  # rows in one transaction
_QUEUE_BYTES = 256 << 20  # beyond it new jobs are dropped, and counted
_HEARTBEAT = 5.0  # seconds
_STATISTICS = 1.0  # seconds between two recomputations of the steps that changed
_CHECKPOINT_BYTES = 4 << 20
_EXIT_DEADLINE = 10.0  # seconds that the process waits for the last rows
_PATIENCE = 5.0  # longest pause, in seconds, between two tries at a locked or full disk


class Job(Protocol):
    """Something to be written. It is encoded in the writer's thread, not the caller's."""

    @property
    def size(self) -> int:
        """About how many bytes it keeps alive."""
        ...

    def changes(self) -> Iterable[Change]:
        """What to write."""
        ...


@dataclass
class _Failures:
    """What the run has to be told about this process, as far as it has not been told yet."""

    errors: int = 0
    dropped: int = 0


class Writer:
    """Writes to one database, for all runs of this process.

    A job that was handed over is committed within a fraction of a second; `flush` waits for it. A locked, full or
    missing disk is tried again for as long as the process lives, while the queue is bounded in bytes: what does not fit
    is dropped, and counted on the run.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._engine: Engine | None = None
        self._opening = threading.Lock()
        self._runs: dict[str, int] = {}  # uid → id of the runs that this process keeps alive
        self._reported = self._telling = _Failures()
        self._dropped = 0
        self._reset()

    def _reset(self) -> None:
        """A state without thread: at the start, and in a child after a fork."""
        self._jobs: deque[Job] = deque()
        self._bytes = 0
        self._accepted = 0
        self._committed = 0
        self._condition = threading.Condition()
        self._thread: threading.Thread | None = None
        self._hurry = False
        self._trouble: str | None = None
        self._dirty: set[store.Step] = set()
        self._last_heartbeat = self._last_statistics = time.monotonic()

    def put(self, job: Job) -> None:
        """Hands a job over. Never blocks; never raises."""
        with self._condition:
            if self._bytes + job.size > _QUEUE_BYTES:
                self._dropped += 1
                return
            self._jobs.append(job)
            self._bytes += job.size
            self._accepted += 1
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="logs-ui writer", daemon=True)
                self._thread.start()

    def flush(self, timeout: float | None = None) -> bool:
        """Waits until all that was handed over is committed, and the steps' statistics with it.

        Args:
            timeout: seconds; None waits for as long as it takes.

        Returns:
            Whether it is. False after the timeout: the database cannot be written now.
        """
        with self._condition:
            wanted = self._accepted
            self._hurry = True
            self._condition.notify_all()
            return self._condition.wait_for(lambda: self._committed >= wanted and not self._dirty, timeout)

    def engine(self) -> Engine:
        """Opens the database, and makes it where it is missing.

        Raises:
            DatabaseError: it cannot be used.
        """
        with self._opening:
            if self._engine is None:
                self._engine = writing_engine(self.path)
            return self._engine

    def _work(self) -> None:
        while True:
            with self._condition:
                self._condition.wait_for(lambda: self._hurry, _INTERVAL)
                jobs = [self._jobs.popleft() for _ in range(min(_BATCH, len(self._jobs)))]
                hurry, self._hurry = self._hurry, self._hurry and bool(self._jobs)
            now = time.monotonic()
            statistics = hurry or now - self._last_statistics > _STATISTICS
            if jobs or (self._dirty and statistics) or now - self._last_heartbeat > _HEARTBEAT:
                self._write_until_done(Batch.merged(_encoded(jobs)), statistics=statistics)
            with self._condition:
                self._bytes -= sum(job.size for job in jobs)
                self._committed += len(jobs)
                self._condition.notify_all()

    def _write_until_done(self, batch: Batch, *, statistics: bool) -> None:
        """Tries for as long as the trouble is the disk's; a row that the database refuses is tried without its text."""
        pause = _INTERVAL
        while True:
            try:
                self._transact(lambda connection: self._write(connection, batch, statistics=statistics))
            except DatabaseError as error:
                self._say_once(error)
                time.sleep(pause)
                pause = min(pause * 2, _PATIENCE)
            except Exception as error:  # noqa: BLE001 - whatever a row holds, the others must get in
                guard.caught("writing a batch", error)
                self._write_one_by_one(batch)
                return
            else:
                self._say_all_is_well()
                return

    def _write_one_by_one(self, batch: Batch) -> None:
        for single in batch.split():
            for attempt in (single, single.without_payload()):
                try:
                    self._transact(functools.partial(self._write, batch=attempt, statistics=False))
                    break
                except Exception as error:  # noqa: BLE001
                    guard.caught("writing one row", error)
            else:
                self._dropped += 1

    def _transact(self, work: Callable[[Connection], None]) -> None:
        """One transaction.

        Raises:
            DatabaseError: the disk's trouble: try again.
        """
        try:
            with self.engine().begin() as connection:
                work(connection)
        except Exception as error:
            self._runs.clear()  # ids from a transaction that was rolled back mean nothing
            if is_disk_trouble(error):
                with errors_in_plain_words(self.path):
                    raise
            raise
        self._reported = self._telling
        self._checkpoint()

    def _write(self, connection: Connection, batch: Batch, *, statistics: bool) -> None:
        now = time.time_ns() // 1000
        self._runs.update(store.run_ids(connection, batch.uids - self._runs.keys(), now))
        store.write_runs(connection, batch.runs)
        self._dirty |= store.write_rows(connection, batch.rows, self._runs, now)
        store.write_tokenizers(connection, batch.tokenizers)
        store.write_scalars(connection, batch.scalars, self._runs)
        if statistics:
            store.write_statistics(connection, self._dirty)
            self._dirty.clear()
            self._last_statistics = time.monotonic()
        self._tell_failures(connection)
        if time.monotonic() - self._last_heartbeat > _HEARTBEAT:
            store.write_heartbeat(connection, self._runs.values(), now)
            self._last_heartbeat = time.monotonic()

    def _tell_failures(self, connection: Connection) -> None:
        now = _Failures(guard.errors, self._dropped)
        if now != self._reported and self._runs:
            store.count_failures(
                connection,
                max(self._runs.values()),
                errors=now.errors - self._reported.errors,
                dropped=now.dropped - self._reported.dropped,
                last=guard.last,
            )
            self._telling = now

    def _checkpoint(self) -> None:
        """Moves the write-ahead log into the database when it has grown. SQLite before 3.51.3 can corrupt a database
        when two processes do so at once, so all that write do it under one lock, and nobody waits for it.
        """
        wal = self.path.with_name(self.path.name + "-wal")
        with suppress(OSError):
            if wal.stat().st_size < _CHECKPOINT_BYTES:
                return
            with self.path.with_name(self.path.name + "-lock").open("w") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                store.checkpoint(self.engine())

    def _say_once(self, error: DatabaseError) -> None:
        if self._trouble != str(error):
            self._trouble = str(error)
            logger.error("logs-ui: %s Your training goes on; what it makes is kept in memory, and tried again.", error)

    def _say_all_is_well(self) -> None:
        if self._trouble is not None:
            self._trouble = None
            logger.warning("logs-ui: %s can be written again.", self.path)


def _encoded(jobs: Iterable[Job]) -> Iterable[Change]:
    for job in jobs:
        with guard("encoding what was recorded"):
            yield from list(job.changes())


_by_path: dict[Path, Writer] = {}


def writer_for(path: Path) -> Writer:
    """This process's one writer to that database."""
    path = path.absolute()
    if path not in _by_path:
        _by_path[path] = Writer(path)
    return _by_path[path]


def flush(timeout: float | None = 30.0) -> bool:
    """Waits until everything recorded in this process is committed to its database.

    Args:
        timeout: seconds; None waits for as long as it takes.

    Returns:
        Whether it is. False: the database cannot be written now; the log says why.
    """
    deadline = None if timeout is None else time.monotonic() + timeout
    return all(
        writer.flush(None if deadline is None else max(0.0, deadline - time.monotonic()))
        for writer in list(_by_path.values())
    )


def _after_fork_in_child() -> None:
    """Threads do not survive a fork, and the connection is still the parent's: let go of both, closing neither."""
    for writer in list(_by_path.values()):
        engine, writer._engine = writer._engine, None  # noqa: SLF001
        writer._runs = {}  # noqa: SLF001
        writer._reset()  # noqa: SLF001
        if engine is not None:
            engine.dispose(close=False)


os.register_at_fork(after_in_child=_after_fork_in_child)
atexit.register(flush, _EXIT_DEADLINE)
