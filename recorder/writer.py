"""The background thread that turns jobs into committed rows. The trainer's thread only appends to its queue."""

import atexit
import fcntl
import logging
import os
import sqlite3
import threading
import time
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from sqlalchemy import Connection, Engine
from sqlalchemy.exc import SQLAlchemyError

from logs_ui.recorder import store
from logs_ui.recorder.database import errors_in_plain_words, is_disk_trouble, refuse_hopeless, writing_engine
from logs_ui.recorder.errors import DatabaseError, RefusedDatabaseError
from logs_ui.recorder.guard import guard
from logs_ui.recorder.store import Batch, Change

logger = logging.getLogger("logs_ui")

_INTERVAL = 0.2  # seconds between two transactions
_BATCH = 512  # changes in one transaction, more where a single job has more: see benchmarks/writer_backlog.py
_QUEUE_BYTES = 256 << 20  # beyond it new jobs are dropped, and counted
_HEARTBEAT = 5.0  # seconds
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
    is dropped, and counted on the run. A path that can never be a database of ours is given up: all is dropped.

    Attributes:
        given_up: whether it is, in this process.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._engine: Engine | None = None
        self._told = _Failures()  # to the run
        self._dropped = 0
        self._reset()

    def _reset(self) -> None:
        """A state without thread: at the start, and in a child after a fork."""
        self._opening = threading.Lock()
        self._jobs: deque[tuple[Job, int]] = deque()  # each with the bytes that it was counted with
        self._bytes = 0
        self._accepted = 0
        self._committed = 0
        self._condition = threading.Condition()
        self._thread: threading.Thread | None = None
        self._hurry = False
        self._trouble: str | None = None
        self.given_up = False
        self._runs: dict[str, int] = {}  # uid → id of the runs that this process keeps alive, as committed
        self._running = False  # whether one of them may be
        self._last_heartbeat = time.monotonic()

    def put(self, job: Job) -> None:
        """Hands a job over. Never blocks; never raises."""
        size = job.size
        with self._condition:
            if self.given_up or self._bytes + size > _QUEUE_BYTES:
                self._dropped += 1
                return
            self._jobs.append((job, size))
            self._bytes += size
            self._accepted += 1
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="logs-ui writer", daemon=True)
                self._thread.start()

    def flush(self, timeout: float | None = None) -> bool:
        """Waits until all that was handed over is committed.

        Args:
            timeout: seconds; None waits for as long as it takes.

        Returns:
            Whether it is. False after the timeout: the database cannot be written now; at once where it never can.
        """
        with self._condition:
            wanted = self._accepted
            self._hurry = True
            self._condition.notify_all()
            self._condition.wait_for(lambda: self.given_up or self._committed >= wanted, timeout)
            return not self.given_up and self._committed >= wanted

    def engine(self) -> Engine:
        """Opens the database, and makes it where it is missing.

        Raises:
            DatabaseError: it cannot be used.
        """
        with self._opening:
            if self._engine is None:
                self._engine = writing_engine(self.path)
            return self._engine

    def say_what_is_lost(self) -> None:
        """For the end of the process: how much of what was handed over is not in the database, and why."""
        unwritten = self._accepted - self._committed
        if unwritten or self.given_up:
            why = self._trouble or "the process ended first."
            logger.error("logs-ui: %d recorded changes were never written: %s", self._dropped + unwritten, why)

    def _work(self) -> None:
        try:
            self._write_as_it_comes()
        except RefusedDatabaseError as error:
            self._give_up(error)

    def _write_as_it_comes(self) -> None:
        while True:
            with self._condition:
                self._condition.wait_for(lambda: self._hurry, _INTERVAL)
                self._hurry = False
                waiting = len(self._jobs)
            while waiting > 0:
                waiting -= self._write_some()
            if self._is_heartbeat_due():
                self._write_all(Batch())

    def _write_some(self) -> int:
        """As many of the oldest jobs as one transaction takes, encoded one by one; returns how many they were."""
        changes: list[Change] = []
        jobs = size = 0
        while self._jobs and len(changes) < _BATCH:
            job, job_size = self._jobs.popleft()
            jobs += 1
            size += job_size
            with guard("encoding what was recorded"):
                changes += list(job.changes())  # all of them or none
        self._write_all(Batch.merged(changes))
        self._checkpoint()
        with self._condition:
            self._bytes -= size
            self._committed += jobs
            self._condition.notify_all()
        return jobs

    def _write_all(self, batch: Batch) -> None:
        """Together; where the database refuses that, one by one, and what it refuses then without its text."""
        try:
            self._write_when_possible(batch)
        except RefusedDatabaseError:
            raise
        except Exception as error:  # noqa: BLE001 - whatever a row holds, the others must get in
            guard.caught("writing a batch", error)
            for single in batch.split():
                self._write_single(single)

    def _write_single(self, single: Batch) -> None:
        for attempt in (single, single.without_payload()):
            try:
                self._write_when_possible(attempt)
            except RefusedDatabaseError:
                raise
            except Exception as error:  # noqa: BLE001
                guard.caught("writing one row", error)
            else:
                return
        self._dropped += 1

    def _write_when_possible(self, batch: Batch) -> None:
        """Tries for as long as the trouble is the disk's; any other, and one that does not pass, is raised."""
        pause = _INTERVAL
        while True:
            try:
                self._transact(batch)
            except RefusedDatabaseError:
                raise
            except DatabaseError as error:
                self._say_once(error)
                time.sleep(pause)
                pause = min(pause * 2, _PATIENCE)
            else:
                self._say_all_is_well()
                return

    def _transact(self, batch: Batch) -> None:
        """One transaction. What it found out is kept only once it is committed.

        Raises:
            DatabaseError: the disk's trouble: try again.
        """
        try:
            with self.engine().begin() as connection:
                runs = self._write(connection, batch)
                told = self._tell_failures(connection, runs)
        except Exception as error:
            if is_disk_trouble(error):
                with errors_in_plain_words(self.path):
                    raise
            raise
        self._runs, self._told = runs, told

    def _write(self, connection: Connection, batch: Batch) -> dict[str, int]:
        """Returns the ids of all runs that are known by now."""
        now = time.time_ns() // 1000
        runs = self._runs | store.run_ids(connection, batch.uids - self._runs.keys(), now)
        store.write_runs(connection, batch.runs)
        store.write_rows(connection, batch.rows, runs, now)
        store.write_tokenizers(connection, batch.tokenizers)
        store.write_scalars(connection, batch.scalars, runs)
        self._running = self._running or bool(batch.uids)
        if self._is_heartbeat_due():
            self._running = store.write_heartbeat(connection, runs.values(), now)
            self._last_heartbeat = time.monotonic()
        return runs

    def _is_heartbeat_due(self) -> bool:
        return self._running and time.monotonic() - self._last_heartbeat > _HEARTBEAT

    def _tell_failures(self, connection: Connection, runs: dict[str, int]) -> _Failures:
        """Adds to the newest run what it has not been told; returns what it has been told then."""
        now = _Failures(guard.errors, self._dropped)
        if now == self._told or not runs:
            return self._told
        store.count_failures(
            connection,
            max(runs.values()),
            errors=now.errors - self._told.errors,
            dropped=now.dropped - self._told.dropped,
            last=guard.last,
        )
        return now

    def _checkpoint(self) -> None:
        """Moves the write-ahead log into the database when it has grown. SQLite before 3.51.3 can corrupt a database
        when two processes do so at once, so all that write do it under one lock, and nobody waits for it. Where it
        fails, as on a full disk, nothing is lost: the log grows until a later one works.
        """
        wal = self.path.with_name(self.path.name + "-wal")
        try:
            if wal.stat().st_size < _CHECKPOINT_BYTES:
                return
            with self.path.with_name(self.path.name + "-lock").open("w") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                store.checkpoint(self.engine())
        except (OSError, sqlite3.Error, SQLAlchemyError) as error:
            logger.debug("logs-ui: no checkpoint of %s: %s", self.path, error)

    def _give_up(self, error: RefusedDatabaseError) -> None:
        logger.error("logs-ui: %s Your training goes on; recording has stopped.", error)
        with self._condition:
            self.given_up = True
            self._trouble = str(error)
            self._jobs.clear()
            self._condition.notify_all()

    def _say_once(self, error: DatabaseError) -> None:
        if self._trouble != str(error):
            self._trouble = str(error)
            logger.error("logs-ui: %s Your training goes on; what it makes is kept in memory, and tried again.", error)

    def _say_all_is_well(self) -> None:
        if self._trouble is not None:
            self._trouble = None
            logger.warning("logs-ui: %s can be written again.", self.path)


_by_path: dict[Path, Writer] = {}
_abandoned: list[Engine | None] = []  # by a child, of its parent: kept, as what nobody refers to is closed


def writer_for(path: Path) -> Writer:
    """This process's one writer to that database.

    Raises:
        RefusedDatabaseError: it can never be one.
    """
    path = path.absolute()
    refuse_hopeless(path)
    if path not in _by_path or _by_path[path].given_up:
        _by_path[path] = Writer(path)
    return _by_path[path]


def flush(timeout: float | None = 30.0) -> bool:
    """Waits until everything recorded in this process is committed to its database.

    Args:
        timeout: seconds; None waits for as long as it takes.

    Returns:
        Whether it is. False: the database cannot be written; the log says why.
    """
    deadline = None if timeout is None else time.monotonic() + timeout
    return all(
        writer.flush(None if deadline is None else max(0.0, deadline - time.monotonic()))
        for writer in list(_by_path.values())
    )


def _at_exit() -> None:
    flush(_EXIT_DEADLINE)
    for writer in _by_path.values():
        writer.say_what_is_lost()


def _after_fork_in_child() -> None:
    """Threads do not survive a fork, and the connection is still the parent's: let go of both, closing neither."""
    for writer in list(_by_path.values()):
        _abandoned.append(writer._engine)  # noqa: SLF001
        writer._engine = None  # noqa: SLF001
        writer._reset()  # noqa: SLF001


os.register_at_fork(after_in_child=_after_fork_in_child)
atexit.register(_at_exit)
