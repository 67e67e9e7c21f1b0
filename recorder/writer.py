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
from logs_ui.recorder.address import Address, absolute, shown
from logs_ui.recorder.database import (
    errors_in_plain_words,
    is_disk_trouble,
    refuse_hopeless,
    writing_engine,
)
from logs_ui.recorder.errors import DatabaseError, RefusedDatabaseError
from logs_ui.recorder.guard import guard
from logs_ui.recorder.limits import Limits
from logs_ui.recorder.sqlite import WAL_BYTES
from logs_ui.recorder.store import Batch, Change

logger = logging.getLogger("logs_ui")

_INTERVAL = 0.2  # seconds between two transactions
_BATCHES = 4  # that a full queue is written in, at least: what is encoded already cannot be dropped
_BATCH = 512  # changes in one transaction, more where a single job has more: see benchmarks/writer_backlog.py
_HEARTBEAT = 5.0  # seconds
_FOLLOW_UP = 1.0  # seconds until what goes on is written again; each time twice as long
_FOLLOW_UP_LONGEST = 60.0
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

    def without_payload(self) -> "Job":
        """Lets go of texts and tokens, and returns what to write then: itself where it has none. Called by any thread,
        at most once, before `changes` and not while it runs; takes no longer than some milliseconds.
        """
        ...


class FollowedJob(Job, Protocol):
    """Something that goes on, and is written as it stands now and then."""

    @property
    def is_over(self) -> bool:
        """Whether nothing more comes of it."""
        ...


@dataclass
class _Followed:
    """Written next at `due`, and after twice the pause then: all that is written of it is then no more than about twice
    its last.
    """

    job: FollowedJob
    due: float
    pause: float


@dataclass
class _Failures:
    """What the run has to be told about this process, as far as it has not been told yet."""

    errors: int = 0
    dropped: int = 0


class Writer:
    """Writes to one database, for all runs of this process.

    A job that was handed over is committed within a fraction of a second; `flush` waits for it. A locked, full or
    missing disk is tried again for as long as the process lives, while the queue is bounded in bytes. What does not fit
    is dropped, and counted on the run: first the payloads of what waits, oldest first, so that what happened last, as
    whatever ended a training, is still there in full; only where even the rest has no room, the newest job. A path that
    can never be a database of ours is given up: all is dropped.

    Attributes:
        given_up: whether it is, in this process.
    """

    def __init__(self, address: Address, limits: Limits | None = None) -> None:
        """Limits of None are the environment's.

        Raises:
            LogsUIError: see `Limits.from_environment`.
        """
        self.address = address
        self._limits = limits or Limits.from_environment()
        self._engine: Engine | None = None
        self._told = _Failures(guard.errors)  # to the run; what failed before is another database's
        self._dropped = 0
        self._reset()

    def _reset(self) -> None:
        """A state without thread: at the start, and in a child after a fork."""
        self._opening = threading.Lock()
        # Each job with the bytes that it was counted with. Those whose payload was dropped are the oldest.
        self._bare: deque[tuple[Job, int]] = deque()
        self._whole: deque[tuple[Job, int]] = deque()
        self._bytes = 0
        self._room_expected = True  # until somebody waited for it in vain
        self._said_full = False
        self._accepted = 0
        self._committed = 0
        self._followed: list[_Followed] = []
        self._condition = threading.Condition()
        self._thread: threading.Thread | None = None
        self._hurry = False
        self._trouble: str | None = None
        self.given_up = False
        self._runs: dict[str, int] = {}  # uid → id of the runs that this process keeps alive, as committed
        self._running = False  # whether one of them may be
        self._last_heartbeat = time.monotonic()

    def put(self, job: Job) -> None:
        """Hands a job over. Waits for room in a full queue as long as the limits say, by default not at all; not again
        after it waited in vain, until something was written. Never raises.
        """
        size = job.size
        with self._condition:
            if self._bytes + size <= self._limits.queue_bytes and not self.given_up:
                self._append(job, size)
            else:
                self._wait_for_room(size)
                self._squeeze_in(job, size)

    def follow(self, job: FollowedJob) -> None:
        """Writes it in a second, and now and then until it is over."""
        with self._condition:
            self._followed.append(_Followed(job, time.monotonic() + _FOLLOW_UP, _FOLLOW_UP))

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

    def flush_at_end(self) -> bool:
        """As `flush`, for the end of a training: as long as the limits say."""
        committed = self.flush(self._limits.end_seconds)
        self.settle()
        return committed

    def settle(self) -> None:
        """Moves all that is committed into the database's file, so that this alone can be copied."""
        if self._engine is not None:
            self._checkpoint(beyond=0)

    @property
    def end_seconds(self) -> float:
        """See `Limits`."""
        return self._limits.end_seconds

    def engine(self) -> Engine:
        """Opens the database, and makes it where it is missing.

        Raises:
            DatabaseError: it cannot be used.
        """
        with self._opening:
            if self._engine is None:
                self._engine = writing_engine(self.address)
            return self._engine

    def say_what_is_lost(self) -> None:
        """For the end of the process: how much of what was handed over is not in the database, and why."""
        unwritten = self._accepted - self._committed
        if unwritten or self.given_up:
            why = self._trouble or "the process ended first."
            logger.error("logs-ui: %d recorded changes were never written: %s", self._dropped + unwritten, why)

    def _append(self, job: Job, size: int) -> None:
        self._whole.append((job, size))
        self._bytes += size
        self._accepted += 1
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="logs-ui writer", daemon=True)
            self._thread.start()

    def _has_room(self, size: int) -> bool:
        return self._bytes + size <= self._limits.queue_bytes

    def _wait_for_room(self, size: int) -> None:
        if self._limits.queue_seconds and self._room_expected and size <= self._limits.queue_bytes:
            self._hurry = True
            self._condition.notify_all()
            self._room_expected = self._condition.wait_for(
                lambda: self.given_up or self._has_room(size), self._limits.queue_seconds
            )

    def _squeeze_in(self, job: Job, size: int) -> None:
        """Drops payloads as far as there is no room without; the job where there is none even so."""
        if not self.given_up and not self._has_room(size):
            self._say_full_once()
            if size <= self._limits.queue_bytes:
                self._drop_payloads(size)
            if not self._has_room(size):
                job = _without_payload(job)
                size = job.size
                self._drop_payloads(size)
        if self.given_up or not self._has_room(size):
            self._dropped += 1
            self._followed = [followed for followed in self._followed if not followed.job.is_over]
        else:
            self._append(job, size)

    def _drop_payloads(self, size: int) -> None:
        """Of what waits, oldest first, until there is room for so many bytes or none is left."""
        while self._whole and not self._has_room(size):
            job, before = self._whole[0]
            bare = _without_payload(job)
            after = bare.size
            self._whole.popleft()
            self._bare.append((bare, after))
            self._bytes += after - before

    def _next(self) -> tuple[Job, int] | None:
        """The oldest job, out of the queue; its bytes are still counted."""
        with self._condition:
            jobs = self._bare or self._whole
            return jobs.popleft() if jobs else None

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
                waiting = len(self._bare) + len(self._whole)
            while waiting > 0:
                waiting -= self._write_some()
            self._follow_up()
            if self._is_heartbeat_due():
                self._write_all(Batch())

    def _follow_up(self) -> None:
        now = time.monotonic()
        with self._condition:
            self._followed = [followed for followed in self._followed if not followed.job.is_over]
            due = [followed for followed in self._followed if followed.due <= now]
        for followed in due:
            followed.pause = min(2 * followed.pause, _FOLLOW_UP_LONGEST)
            followed.due = now + followed.pause
            with self._condition:  # and no waiting for room, which this thread alone can make
                self._squeeze_in(followed.job, followed.job.size)

    def _write_some(self) -> int:
        """As many of the oldest jobs as one transaction takes; returns how many they were."""
        batch, jobs, size = self._encode_some()
        self._write_all(batch)
        self._checkpoint(WAL_BYTES)
        with self._condition:
            self._bytes -= size
            self._committed += jobs
            self._room_expected = True
            self._condition.notify_all()
        return jobs

    def _encode_some(self) -> tuple[Batch, int, int]:
        """One by one; returns also how many they were, and how many bytes are counted for them from now on."""
        changes: list[Change] = []
        jobs = before = 0
        while len(changes) < _BATCH and before <= self._limits.queue_bytes // _BATCHES:
            following = self._next()
            if following is None:
                break
            job, size = following
            jobs += 1
            before += size
            with guard("encoding what was recorded"):
                changes += list(job.changes())  # all of them or none
        batch = Batch.merged(changes).packed()
        after = batch.size
        with self._condition:
            self._bytes += after - before
            self._condition.notify_all()
        return batch, jobs, after

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
                with errors_in_plain_words(self.address):
                    raise
            raise
        self._runs, self._told = runs, told

    def _write(self, connection: Connection, batch: Batch) -> dict[str, int]:
        """Returns the ids of all runs that are known by now."""
        now = time.time_ns() // 1000
        runs = self._runs | store.run_ids(connection, batch.uids - self._runs.keys(), now)
        store.write_runs(connection, batch.runs)
        store.write_rows(connection, batch.rows, runs, now)
        store.write_details(connection, batch, runs, now)
        store.write_tokenizers(connection, batch.tokenizers)
        store.write_scalars(connection, batch.scalars, runs)
        store.write_sources(connection, batch.sources, runs)
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

    def _checkpoint(self, beyond: int) -> None:
        """Moves the write-ahead log into the database when it has grown; SQLite then begins it anew, and cuts its file
        to `WAL_BYTES`. SQLite before 3.51.3 can corrupt a database when two processes do so at once, so all that write
        do it under one lock, and nobody waits for it. Where it fails, as on a full disk, nothing is lost: the log grows
        until a later one works.
        """
        if not isinstance(self.address, Path):
            return
        wal = self.address.with_name(self.address.name + "-wal")
        try:
            if wal.stat().st_size <= beyond:
                return
            with self.address.with_name(self.address.name + "-lock").open("w") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                store.checkpoint(self.engine())
        except (OSError, sqlite3.Error, SQLAlchemyError) as error:
            logger.debug("logs-ui: no checkpoint of %s: %s", self.address, error)

    def _give_up(self, error: RefusedDatabaseError) -> None:
        logger.error("logs-ui: %s Your training goes on; recording has stopped.", error)
        with self._condition:
            self.given_up = True
            self._trouble = str(error)
            self._bare.clear()
            self._whole.clear()
            self._condition.notify_all()

    def _say_once(self, error: DatabaseError) -> None:
        if self._trouble != str(error):
            self._trouble = str(error)
            logger.error("logs-ui: %s Your training goes on; what it makes is kept in memory, and tried again.", error)

    def _say_full_once(self) -> None:
        if not self._said_full:
            self._said_full = True
            logger.warning(
                "logs-ui: more waits to be written to %s than the %d MiB that it may take. Rollouts lose their text "
                "now, the oldest first, and keep their figures; the run counts them. To keep more, find what holds up "
                "the disk, or set LOGS_UI_QUEUE_MB to what your memory allows.",
                shown(self.address),
                self._limits.queue_bytes >> 20,
            )

    def _say_all_is_well(self) -> None:
        if self._trouble is not None:
            self._trouble = None
            logger.warning("logs-ui: %s can be written again.", shown(self.address))


def _without_payload(job: Job) -> Job:
    """The job as it is where that fails."""
    with guard("dropping a payload"):
        return job.without_payload()
    return job


_by_address: dict[Address, Writer] = {}
_abandoned: list[Engine | None] = []  # by a child, of its parent: kept, as what nobody refers to is closed


def writer_for(address: Address) -> Writer:
    """This process's one writer to that database.

    Raises:
        RefusedDatabaseError: it can never be one.
        LogsUIError: see `Limits.from_environment`.
    """
    address = absolute(address)
    refuse_hopeless(address)
    if address not in _by_address or _by_address[address].given_up:
        _by_address[address] = Writer(address)
    return _by_address[address]


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
        for writer in list(_by_address.values())
    )


def _at_exit() -> None:
    flush(max((writer.end_seconds for writer in _by_address.values()), default=0.0))
    for writer in _by_address.values():
        writer.say_what_is_lost()
        writer.settle()


def _after_fork_in_child() -> None:
    """Threads do not survive a fork, and the connection is still the parent's: let go of both, closing neither."""
    for writer in list(_by_address.values()):
        _abandoned.append(writer._engine)  # noqa: SLF001
        writer._engine = None  # noqa: SLF001
        writer._reset()  # noqa: SLF001


os.register_at_fork(after_in_child=_after_fork_in_child)
atexit.register(_at_exit)
