"""The background thread that turns jobs into committed rows. The trainer's thread only appends to its queue."""

import atexit
import logging
import os
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from sqlalchemy import Engine

from logs_ui.recorder.address import Address, absolute, shown
from logs_ui.recorder.database import refuse_hopeless
from logs_ui.recorder.entry import Entry, Failures
from logs_ui.recorder.errors import RefusedDatabaseError
from logs_ui.recorder.file_system import network_kind
from logs_ui.recorder.guard import guard
from logs_ui.recorder.job_queue import FollowedJob, Job, JobQueue
from logs_ui.recorder.limits import Limits
from logs_ui.recorder.storage import Storage
from logs_ui.recorder.store import Batch, Change

logger = logging.getLogger("logs_ui")

_INTERVAL = 0.2  # seconds between two transactions
_BATCHES = 4  # that a full queue is written in, at least: what is encoded already cannot be dropped
_BATCH = 512  # changes in one transaction, more where a single job has more: see benchmarks/writer_backlog.py
_HEARTBEAT = 5.0  # seconds


class Writer:
    """Writes to one database, for all runs of this process.

    A job that was handed over is durable within a fraction of a second; `flush` waits for it. A locked, full or missing
    database is tried again for as long as the process lives. What it makes meanwhile waits on disk (`spool.py`), and
    goes in once that is possible, by whichever process; what the disk does not take waits in memory, bounded in bytes
    (`job_queue.py`). An address that can never be a database of ours is given up: all is dropped.

    Attributes:
        address: of the database.
    """

    def __init__(self, address: Address, limits: Limits | None = None) -> None:
        """Limits of None are the environment's.

        Raises:
            LogsUIError: see `Limits.from_environment` and `file_system.network_kind`.
        """
        self.address = address
        self._limits = limits or Limits.from_environment()
        self._network = network_kind(address) if isinstance(address, Path) else None
        self._reset()

    def _reset(self) -> None:
        """A state without thread: at the start, and in a child after a fork."""
        self._queue = JobQueue(self._limits, shown(self.address))
        self._storage = Storage(self.address, self._limits, spools_always=self._network is not None)
        self._starting = threading.Lock()
        self._thread: threading.Thread | None = None
        self._gave_up: str | None = None
        self._lost = 0  # jobs, or changes of one, that could not even be tried
        self._number = 0  # of the last entry
        self._uids: dict[str, None] = {}  # of the runs that this process wrote to, in their order
        self._ended: set[str] = set()  # those of them that this process ended
        self._told = (guard.errors, 0)  # failures and drops that the run knows of; what failed before is another's
        self._last_heartbeat = time.monotonic()

    @property
    def given_up(self) -> bool:
        """Whether the database can never be written, in this process."""
        return self._gave_up is not None

    @property
    def end_seconds(self) -> float:
        """See `Limits`."""
        return self._limits.end_seconds

    def put(self, job: Job) -> None:
        """Hands a job over. Waits for room in a full queue as long as the limits say, by default not at all; not again
        after it waited in vain, until something was written. Never raises.
        """
        self._queue.put(job)
        if self._thread is None:
            self._start()

    def follow(self, job: FollowedJob) -> None:
        """Writes it in a second, and now and then until it is over."""
        self._queue.follow(job)

    def flush(self, timeout: float | None = None) -> bool:
        """Waits until all that was handed over is durable: in the database, or, where that cannot be written now or
        lies on a network file system, on disk beside it, from where it goes in as soon as somebody opens it. Whatever
        then happens to this process, nothing of it is lost.

        Args:
            timeout: seconds; None waits for as long as it takes.

        Returns:
            Whether it is. False after the timeout, and at once where it never can be.
        """
        return self._queue.wait_until_done(timeout)

    def flush_at_end(self) -> bool:
        """As `flush`, for the end of a training: as long as the limits say. The database is not waited for where the
        disk takes what is left.
        """
        self._storage.hurry(hurried=True)
        try:
            return self.flush(self._limits.end_seconds)
        finally:
            self._storage.hurry(hurried=False)
            self.settle()

    def settle(self) -> None:
        """Moves all that is committed into the database's file, so that this alone can be copied."""
        self._storage.settle()

    def hurry(self) -> None:
        """The process ends."""
        self._storage.hurry(hurried=True)

    def close(self) -> None:
        """For the end of the process: says how much of what was handed over is not in the database, and why."""
        lost = self._dropped
        unwritten = self._queue.accepted - self._queue.done
        if unwritten or self.given_up:
            why = self._gave_up or self._storage.trouble or "the process ended first."
            logger.error("logs-ui: %d recorded changes were never written: %s", lost + unwritten, why)
        waiting = self._storage.waiting
        if waiting is not None and self._network is None:
            logger.warning(
                "logs-ui: what was recorded last waits in %s. It goes into the database when a training or the "
                "dashboard opens it next, or by: logs-ui db ingest",
                waiting,
            )
        self.settle()
        self._storage.close()

    def say_network(self) -> None:
        """Says what it means that the database lies on a network file system, if it does."""
        if self._network is not None:
            logger.warning(
                "logs-ui: %s lies on a network file system (%s), where several machines cannot write one SQLite file. "
                "Each process appends to a file of its own beside it; the dashboard, load_run() or `logs-ui db ingest` "
                "takes them in. To do without, name a path on a local disk, or a PostgreSQL database (db= or "
                "LOGS_UI_DB).",
                shown(self.address),
                self._network,
            )

    def after_fork(self) -> Engine | None:
        """In the child: threads do not survive, and connection and files are still the parent's. Lets go of them;
        returns the connection's engine, which must be kept, and never be used.
        """
        engine = self._storage.abandon()
        self._reset()
        return engine

    def _start(self) -> None:
        with self._starting:
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="logs-ui writer", daemon=True)
                self._thread.start()

    def _work(self) -> None:
        while not self.given_up:
            with guard("writing what was recorded"):
                try:
                    self._write_as_it_comes()
                except RefusedDatabaseError as error:
                    logger.error("logs-ui: %s Your training goes on; recording has stopped.", error)  # noqa: TRY400 - one line
                    self._gave_up = str(error)
                    self._queue.close()

    def _write_as_it_comes(self) -> None:
        """What came by now, and what is due."""
        waiting = self._queue.wait_for_jobs(_INTERVAL)
        while waiting > 0:
            waiting -= self._write_some()
        self._queue.follow_up()
        self._storage.catch_up()
        if self._is_heartbeat_due():
            self._beat()

    def _write_some(self) -> int:
        """As many of the oldest jobs as one transaction takes; returns how many they were."""
        batch, jobs, size = self._encode_some()
        try:
            self._storage.store(self._entry(batch))
            self._storage.checkpoint()
        except RefusedDatabaseError:
            raise
        except Exception as error:  # noqa: BLE001 - whatever it is, what comes next must get in
            guard.caught("writing what was recorded", error)
            self._lost += jobs
        self._queue.finish(jobs, size)
        return jobs

    def _encode_some(self) -> tuple[Batch, int, int]:
        """One by one; returns also how many they were, and how many bytes are counted for them from now on."""
        changes: list[Change] = []
        jobs = before = 0
        while len(changes) < _BATCH and before <= self._limits.queue_bytes // _BATCHES:
            following = self._queue.next()
            if following is None:
                break
            job, size = following
            jobs += 1
            before += size
            with guard("encoding what was recorded"):
                changes += list(job.changes())  # all of them or none
        batch = self._packed(changes)
        after = batch.size
        self._queue.recount(after - before)
        return batch, jobs, after

    def _packed(self, changes: Sequence[Change]) -> Batch:
        """Without those that cannot be."""
        try:
            return Batch.merged(changes).packed()
        except Exception as error:  # noqa: BLE001 - whatever a row holds, the others must get in
            guard.caught("packing what was recorded", error)
        pieces = []
        for piece in Batch.merged(changes).split():
            try:
                pieces.append(piece.packed())
            except Exception as error:  # noqa: BLE001
                guard.caught("packing one row", error)
                self._lost += 1
        return Batch.joined(pieces)

    def _entry(self, batch: Batch) -> Entry:
        """The next one, with the process's heartbeat where that is due, and with what the run was not told yet."""
        for uid in sorted(batch.uids - self._uids.keys()):
            self._uids[uid] = None
        for change in batch.runs:
            if change.columns.get("finished") is not None:
                self._ended.add(change.uid)
            elif "created" in change.columns:
                self._ended.discard(change.uid)
        now = (guard.errors, self._dropped)
        failures: tuple[Failures, ...] = ()
        if now != self._told and self._uids:
            errors, dropped = (count - told for count, told in zip(now, self._told, strict=True))
            failures = (Failures(next(reversed(self._uids)), errors, dropped, guard.last),)
            self._told = now
        alive: tuple[str, ...] = ()
        if self._is_heartbeat_due():
            alive = tuple(uid for uid in self._uids if uid not in self._ended)
            self._last_heartbeat = time.monotonic()
        self._number += 1
        return Entry(self._number, time.time_ns() // 1000, batch, alive, failures)

    @property
    def _dropped(self) -> int:
        """What is not written, and never will be, while the writer lives."""
        return self._queue.dropped + self._storage.refused + self._lost

    def _is_heartbeat_due(self) -> bool:
        running = bool(self._uids.keys() - self._ended) and self._storage.running
        return running and time.monotonic() - self._last_heartbeat > _HEARTBEAT

    def _beat(self) -> None:
        entry = self._entry(Batch())
        if entry.failures:
            self._storage.store(entry)
        else:
            self._storage.beat(entry)


_by_address: dict[Address, Writer] = {}
_abandoned: list[Engine | None] = []  # by a child, of its parent: kept, as what nobody refers to is closed


def writer_for(address: Address) -> Writer:
    """This process's one writer to that database.

    Raises:
        RefusedDatabaseError: it can never be one.
        LogsUIError: see `Writer`.
    """
    address = absolute(address)
    if address not in _by_address or _by_address[address].given_up:
        refuse_hopeless(address)
        _by_address[address] = Writer(address)
        _by_address[address].say_network()
    return _by_address[address]


def flush(timeout: float | None = 30.0) -> bool:
    """Waits until everything recorded in this process is durable: in its database, or, where that is away, locked, full
    or on a network file system, on disk, from where it goes in as soon as somebody opens the database: `load_run()`,
    the dashboard, the next training, or `logs-ui db ingest`. Nothing of it is lost then, whatever happens to this
    process.

    Args:
        timeout: seconds; None waits for as long as it takes.

    Returns:
        Whether it is. False: neither can be written; the log says why.
    """
    deadline = None if timeout is None else time.monotonic() + timeout
    return all(
        writer.flush(None if deadline is None else max(0.0, deadline - time.monotonic()))
        for writer in list(_by_address.values())
    )


def _at_exit() -> None:
    for writer in _by_address.values():
        writer.hurry()
    flush(max((writer.end_seconds for writer in _by_address.values()), default=0.0))
    for writer in _by_address.values():
        writer.close()


def _after_fork_in_child() -> None:
    _abandoned.extend(writer.after_fork() for writer in list(_by_address.values()))


os.register_at_fork(after_in_child=_after_fork_in_child)
atexit.register(_at_exit)
