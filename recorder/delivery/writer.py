"""The training's end of delivery: any of its threads appends jobs to a queue, and the writer's thread hands them, in
parcels, to an outlet: the helper process, or a committer in this process if there is no helper process.

From a call to a commit, what is recorded is in five containers, one after the other:

    container   holds                                     made in, by
    job         calls, outputs, columns, as they were     the training's threads: rows/jobs.py
    parcel      jobs as bytes (MessagePack)               the writer's thread: helper/client.py, wire/jobs.py
    row draft   columns, messages, tokens of one row      the helper process: rows/changes.py, rows/builder.py
    batch       row changes: columns, packed payloads     the helper process: rows/draft_batches.py
    entry       a batch and its number                    the helper process: committer.py, spool/entry.py

The helper process decodes a parcel's bytes into the same jobs again. Without a helper process there are no bytes, and
the writer's thread does what the helper process does.
"""

import atexit
import logging
import threading
import time
from functools import partial
from multiprocessing import parent_process
from multiprocessing.util import Finalize, register_after_fork
from pathlib import Path
from typing import TYPE_CHECKING, Any

from logs_ui.recorder.delivery.helper.client import HelperClient, is_wanted
from logs_ui.recorder.delivery.job_queue import FollowedJob, Job, JobQueue
from logs_ui.recorder.delivery.outlet import Counts, Handover, Outlet
from logs_ui.recorder.delivery.wire.jobs import Wire
from logs_ui.recorder.errors import RefusedDatabaseError
from logs_ui.recorder.guard import guard
from logs_ui.recorder.storage.address import Address, absolute, db_option, masked_address, needs_no_look
from logs_ui.recorder.storage.file_system import network_kind
from logs_ui.recorder.storage.limits import Limits
from logs_ui.recorder.storage.portable import on_fork

if TYPE_CHECKING:
    from logs_ui.recorder.delivery.committer import Committer

logger = logging.getLogger("logs_ui")

LATE = "logs-ui git"  # name of threads whose last jobs the end of the process waits for
_INTERVAL = 0.2  # seconds between two transactions
_BATCHES = 4  # least number of parcels for a full queue: payloads that are encoded already cannot be dropped
_BATCH = 1_024  # changes in one transaction, more where a single job has more: see benchmarks/writer_backlog.py
_READING_SECONDS = 5.0  # a reader in the same process waits so long for what was recorded here
_LAST_SECONDS = 3.0  # at its end, this process waits so long for the writing, the helper process, and the disk


class Writer:
    """Writes what is recorded to one database, for all runs of this process.

    A job that was handed over is durable within a fraction of a second; `flush` waits for it. A locked, full or missing
    database is tried again for as long as the process lives. Meanwhile entries wait on disk (`spool/files.py`), and are
    stored once that is possible, by any process; if the disk is full, jobs wait in memory, bounded in bytes
    (`job_queue.py`). An address that can never be a database of logs-ui is given up: all jobs are dropped.
    """

    def __init__(self, address: Address, limits: Limits | None = None) -> None:
        """Make a writer, which starts with its first job. If `limits` is None, the environment's are taken. Raise as
        `Limits.from_environment`, `is_wanted` and `network_kind` do.
        """
        self._is_helped = is_wanted()
        self.address = address
        self._limits = limits or Limits.from_environment()
        self._network = network_kind(address) if isinstance(address, Path) else None
        self._reset()

    def _reset(self) -> None:
        """Set the state without a thread: at the start, and in a forked child."""
        self._queue = JobQueue(self._limits, masked_address(self.address))
        self._outlet: Outlet = self._new_outlet()
        self._starting = threading.Lock()
        self._thread: threading.Thread | None = None
        self._gave_up: str | None = None
        self._dropped_before = 0  # by helper processes, before a thread wrote
        self._in_vain: int | None = None  # jobs accepted when `flush_at_end` last waited in vain
        self._has_ended = False
        self._errors_before = guard.errors  # earlier failures are not about this database

    def _new_outlet(self) -> Outlet:
        if self._is_helped:
            return HelperClient(self.address, self._limits, spools_always=self._network is not None)
        return self._committer()

    def _committer(self, before: Handover | None = None) -> "Committer":
        """Make an outlet in this process. Loads SQL, which a training with a helper process lacks."""
        from logs_ui.recorder.delivery.committer import Committer

        return Committer(self.address, self._limits, spools_always=self._network is not None, before=before)

    @property
    def given_up(self) -> bool:
        """True if the database can never be written, in this process."""
        return self._gave_up is not None

    def put(self, job: Job) -> None:
        """Hand a job over. Wait for room in a full queue as long as the limits allow, by default not at all; after a
        wait in vain, it does not wait again until something was written. Never raises.
        """
        self._queue.put(job)
        if self._thread is None:
            with self._starting:
                if self._thread is None:
                    self._thread = threading.Thread(target=self._work, name="logs-ui writer", daemon=True)
                    self._thread.start()

    def follow(self, job: FollowedJob) -> None:
        """Write a job in a second, and now and then until it is over."""
        self._queue.follow(job)

    def flush(self, timeout: float | None = None) -> bool:
        """Wait until all that was handed over is durable: in the database, or, where that cannot be written now or
        lies on a network file system, on disk beside it, from where it is stored when the database is opened next.
        Nothing of it is lost then, whatever happens to this process.

        Args:
            timeout: seconds; None waits for as long as it takes.

        Returns:
            True once all is durable; False after the timeout, and at once if the database was given up.
        """
        return self._queue.wait_until_done(timeout)

    def flush_at_end(self) -> bool:
        """Flush at the end of a training, for as long as the limits allow, to the disk if need be."""
        deadline = time.monotonic() + self._limits.end_seconds
        self._outlet.hurry(hurried=True)
        try:
            is_durable = self.flush(self._limits.end_seconds)
        finally:
            self._outlet.hurry(hurried=False)
        self._in_vain = None if is_durable else self._queue.accepted
        if is_durable:
            self.settle(max(0.0, deadline - time.monotonic()))
        return is_durable

    def settle(self, seconds: float) -> None:
        """Move all that is committed into the database's file, which can then be copied; wait at most so long."""
        self._outlet.settle(seconds)

    def hurry(self) -> float:
        """Prepare for the end of the process. Return how many seconds it may wait: none if the end of a training has
        waited in vain, and nothing was recorded since.
        """
        self._outlet.hurry(hurried=True)
        return 0.0 if self._in_vain == self._queue.accepted else self._limits.end_seconds

    def close(self) -> None:
        """End the writer with the process; log how much of what was handed over is not in the database, and why."""
        if self._has_ended:
            return
        self._has_ended = True
        self._queue.wait_until_done(_LAST_SECONDS)
        self._outlet.close(_LAST_SECONDS)
        self._queue.wait_until_done(_LAST_SECONDS)  # then the rest is on disk
        unwritten = self._queue.accepted - self._queue.done
        if unwritten or self.given_up:
            why = self._gave_up or self._outlet.trouble or "there was no time. Raise LOGS_UI_END_SECONDS."
            dropped = self._queue.dropped + self._dropped_before + self._outlet.dropped
            logger.error(
                "logs-ui: %d recorded changes were not written before the process ended: %s", dropped + unwritten, why
            )
        waiting = self._outlet.waiting
        if waiting is not None and self._network is None:
            logger.warning(
                "logs-ui: the last recorded data waits in %s. The next training or dashboard that opens the database "
                "stores it. To store it now: logs-ui db ingest%s",
                waiting,
                db_option(self.address),
            )

    def say_network(self) -> None:
        """Warn if the database lies on a network file system, and say what that means."""
        if self._network is not None:
            logger.warning(
                "logs-ui: %s lies on a network file system (%s), where several machines cannot write one SQLite file. "
                "Each process appends to a file of its own beside it; the dashboard, load_run() or `logs-ui db ingest` "
                "stores these files in the database. To avoid this, use a path on a local disk, or a PostgreSQL "
                "database (db= or LOGS_UI_DB).",
                masked_address(self.address),
                self._network,
            )

    def after_fork(self) -> Any:
        """Release, in a forked child, what is the parent's: connections, files, the helper process. Return what must
        be kept referenced, and never be used.
        """
        remains = self._outlet.abandon()
        self._reset()
        return remains

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
        """Write the jobs that are in the queue by now, and do what is due."""
        waiting = self._queue.wait_for_jobs(_INTERVAL)
        while waiting > 0:
            waiting -= self._write_some()
        self._queue.follow_up()
        self._outlet.tick(self._counts())
        self._replace_failed_helper()

    def _write_some(self) -> int:
        """Write as many of the oldest jobs as one transaction takes; return how many they were."""
        parcel = self._outlet.parcel()
        # A parcel ends at so many changes, or at a part of the queue's bytes: its jobs have left the queue, and cannot
        # lose their payloads any more if it is full.
        jobs = before = 0
        while parcel.count < _BATCH and before <= self._limits.queue_bytes // _BATCHES:
            following = self._queue.next()
            if following is None:
                break
            job, size = following
            jobs += 1
            before += size
            with guard("encoding what was recorded"):
                parcel.add(job)
        after = parcel.close()
        # From here on the parcel's bytes are kept in memory, and not the jobs.
        self._queue.recount(after - before)
        parcel.write(self._counts(), partial(self._queue.finish, jobs, after))
        self._replace_failed_helper()
        return jobs

    def _replace_failed_helper(self) -> None:
        """Make this thread write what the last helper left, and later jobs, if no helper process can be started."""
        helper = self._outlet
        if not isinstance(helper, HelperClient) or not helper.has_failed or helper.is_closed:
            return
        logger.warning(
            "logs-ui: no helper process can be started: a thread of the training writes what is recorded, which slows "
            "the training down a little. Nothing is lost."
        )
        committer = self._committer(helper.handover)
        self._outlet, self._dropped_before = committer, helper.dropped
        committer.hurry(hurried=helper.is_hurried)
        # Parcels refer to tokenizers that were sent before them, so these are read first.
        wire = Wire()
        for frame in helper.tokenizers():
            wire.job(frame)
        for parcel in helper.outstanding:
            committer.commit_frames(wire, parcel.number, parcel.frames, self._counts)
            parcel.done(parcel.lost)

    def _counts(self) -> Counts:
        errors = guard.errors - self._errors_before
        return Counts(errors, self._queue.dropped, guard.last if errors else None)


def check_settings() -> None:
    """Check the environment variables about writing. Raise as `Limits.from_environment` and `is_wanted` do."""
    Limits.from_environment()
    is_wanted()


_by_address: dict[Address, Writer] = {}
_abandoned: list[Any] = []  # in a forked child, the parent's resources: kept, since unreferenced ones are closed


def writer_for(address: Address) -> Writer:
    """Return this process's only writer to that database. Raise as `Writer`, and RefusedDatabaseError if the address
    can never be a database of logs-ui.
    """
    address = absolute(address)
    if address not in _by_address or _by_address[address].given_up:
        if not needs_no_look(address):
            from logs_ui.recorder.storage.database import refuse_hopeless  # loads SQLAlchemy

            refuse_hopeless(address)
        _by_address[address] = Writer(address)
        _by_address[address].say_network()
    return _by_address[address]


def flush_before_reading(address: Address) -> None:
    """Wait, some seconds at most, until readers in this process can see what was recorded there."""
    writer = _by_address.get(absolute(address))
    if writer is not None:
        writer.flush(_READING_SECONDS)
    from logs_ui.recorder.delivery.committer import take_in_before_reading  # loads SQLAlchemy

    take_in_before_reading(address)


def flush(timeout: float | None = 30.0) -> bool:
    """Wait until everything recorded in this process is durable.

    Durable means: in its database; or, while that is away, locked, full or on a network file system, in files on the
    local disk, from which the next reader or training stores it (`load_run()`, the dashboard, `logs-ui db ingest`).
    Nothing of it is lost then, whatever happens to this process.

    Args:
        timeout: seconds; None waits for as long as it takes.

    Returns:
        True once everything is durable; False if neither the database nor the disk can be written in that time, and the
        log says why.

    Examples:
        >>> from logs_ui.recorder import flush, load_run, start_run
        >>> with start_run("sums", db="sums.db") as run:
        ...     with run.rollout("2+3", task="small") as row:
        ...         row.turn("5")
        ...         row.score(rewards={"right": 1.0})
        >>> flush()
        True
        >>> load_run(run.id, "sums.db").reward.tolist()
        [1.0]
    """
    deadline = None if timeout is None else time.monotonic() + timeout
    durable = [
        writer.flush(None if deadline is None else max(0.0, deadline - time.monotonic()))
        for writer in list(_by_address.values())
    ]
    return all(durable)


def _at_exit() -> None:
    # The threads that read git's output may still hand over the last jobs of a run.
    deadline = time.monotonic() + max([writer.hurry() for writer in _by_address.values()], default=0.0)
    for late in [thread for thread in threading.enumerate() if thread.name == LATE]:
        late.join(max(0.0, deadline - time.monotonic()))
    flush(max(0.0, deadline - time.monotonic()))
    for writer in _by_address.values():
        writer.close()


def _at_exit_of_child(_: object = None) -> None:
    """Register the end of a process that multiprocessing forked: it ends without `atexit`."""
    Finalize(None, _at_exit, exitpriority=0)


on_fork(after_in_child=lambda: _abandoned.extend([writer.after_fork() for writer in list(_by_address.values())]))
atexit.register(_at_exit)
# multiprocessing forgets the call when its first argument is collected, so that is a function that stays.
register_after_fork(_at_exit, _at_exit_of_child)
if parent_process() is not None:  # this file was first imported in such a child
    _at_exit_of_child()
