"""Turns jobs into committed rows, in the thread that calls it: one of the training's process, or of the process beside
it.
"""

import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

from logs_ui.recorder.delivery.job_queue import Job
from logs_ui.recorder.delivery.wire.wire_jobs import Wire
from logs_ui.recorder.errors import RefusedDatabaseError
from logs_ui.recorder.guard import guard
from logs_ui.recorder.rows.packing import packed
from logs_ui.recorder.storage.address import Address
from logs_ui.recorder.storage.changes import Batch, Change
from logs_ui.recorder.storage.clock import now_us
from logs_ui.recorder.storage.limits import Limits
from logs_ui.recorder.storage.spool.durable_outlet import Storage
from logs_ui.recorder.storage.spool.spool_entry import Entry, Failures
from logs_ui.recorder.storage.spool.spool_files import new_writer_name

HEARTBEAT = 5.0
"""Seconds between two signs of life of a process that has nothing to write."""


_ENTRIES = 20  # bits: of each parcel's number there are that many entries, its own and heartbeats until the next
_BEATS = 16  # bits: of these each process that takes another's place has so many


class Counts(NamedTuple):
    """What a process failed to record, so far.

    Attributes:
        errors: failures.
        dropped: changes that are not written, and never will be.
        last: the latest error, in one line; None while there was none.
    """

    errors: int
    dropped: int
    last: str | None


class Before(NamedTuple):
    """What one that takes another's place goes on from, under the same name: the database then knows what is in, and
    what the others left on disk goes in first.

    Attributes:
        name: of the writer that the database knows.
        processes: how many there were.
        number: of the last parcel that is known to be durable.
        told: of the training's counts, what the run was told with it.
        alive: uids of the runs that had not ended by then.
    """

    name: str
    processes: int
    number: int
    told: Counts
    alive: list[str]


class Parcel:
    """Jobs that are written in one transaction.

    Attributes:
        number: by which the database tells whether it is in already; 0 where nobody sends it twice.
        count: changes in it.
        lost: those that could not be packed.
        batch: once it is closed.
    """

    def __init__(self, number: int) -> None:
        self.number = number
        self.count = self.lost = 0
        self.batch = Batch()
        self._changes: list[Change] = []

    def add(self, job: Job) -> None:
        """All of its changes or none, where making them raises."""
        changes = list(job.changes())
        self._changes += changes
        self.count += len(changes)

    def add_frames(self, wire: Wire, frames: Iterable[bytes]) -> None:
        """Jobs that another process, or this one, made into frames."""
        for frame in frames:
            with guard("encoding what was recorded"):
                job = wire.job(frame)
                if job is not None:
                    self.add(job)

    def close(self) -> int:
        """Packs it; returns how many bytes it keeps alive from now on."""
        self.batch = self._packed()
        self._changes.clear()
        return self.batch.size

    def _packed(self) -> Batch:
        """Without those that cannot be."""
        try:
            return packed(Batch.merged(self._changes))
        except Exception as error:  # noqa: BLE001 - whatever a row holds, the others must get in
            guard.caught("packing what was recorded", error)
        pieces = []
        for piece in Batch.merged(self._changes).split():
            try:
                pieces.append(packed(piece))
            except Exception as error:  # noqa: BLE001
                guard.caught("packing one row", error)
                self.lost += 1
        return Batch.joined(pieces)


class JobWriter:
    """Of one process, for one database.

    Attributes:
        storage: where what it writes goes.
    """

    def __init__(self, address: Address, limits: Limits, *, spools_always: bool, before: Before | None = None) -> None:
        """See `Storage`; `before` of None: it takes nobody's place."""
        before = before or Before(new_writer_name(), 0, 0, Counts(0, 0, None), [])
        self.storage = Storage(address, limits, spools_always=spools_always, name=before.name, before=before.processes)
        self._lost = 0  # changes that could not even be tried
        last = min(before.processes, (1 << _ENTRIES - _BEATS) - 1)
        self._number = (before.number << _ENTRIES) + (last << _BEATS)  # of the last entry
        self._uids: dict[str, None] = dict.fromkeys(before.alive)  # of the runs that were written to, in their order
        self._ended: set[str] = set()  # those of them that this process ended
        self._told = before.told
        if before.alive:
            self.storage.keep_alive()
        self._last_heartbeat = time.monotonic()

    @property
    def dropped(self) -> int:
        """What was handed over, is not written, and never will be."""
        return self.storage.refused + self._lost

    @property
    def trouble(self) -> str | None:
        """Why the database cannot be written now; None where it can."""
        return self.storage.trouble

    @property
    def waiting(self) -> Path | None:
        """The folder in which entries wait for the database; None where none does."""
        return self.storage.waiting

    @property
    def alive(self) -> list[str]:
        """Uids of the runs that go on."""
        return [uid for uid in self._uids if uid not in self._ended]

    def parcel(self, number: int = 0) -> Parcel:
        """For jobs to be written next."""
        return Parcel(number)

    def write(self, parcel: Parcel, counts: Counts, done: Callable[[], None]) -> None:
        """Calls `done` once it is durable, or what of it can be.

        Args:
            parcel: closed.
            counts: of the process, beside what was dropped here.
            done: called in this thread.

        Raises:
            RefusedDatabaseError: the database can never be written.
        """
        self._lost += parcel.lost
        try:
            self.storage.store(self._entry(parcel.batch, counts, parcel.number))
            self.storage.checkpoint()
        except RefusedDatabaseError:
            raise
        except Exception as error:  # noqa: BLE001 - whatever it is, what comes next must get in
            guard.caught("writing what was recorded", error)
            self._lost += parcel.count
        done()

    def write_frames(
        self, wire: Wire, number: int, frames: Iterable[bytes], counts: Callable[[], Counts], done: Callable[[], None]
    ) -> None:
        """As `write`, of a parcel that was made into frames; `counts` has what fails in reading them, too."""
        parcel = self.parcel(number)
        parcel.add_frames(wire, frames)
        parcel.close()
        self.write(parcel, counts(), done)

    def tick(self, counts: Counts) -> None:
        """What is due now and then: takes in what waits on disk, and tells that the process is alive.

        Raises:
            RefusedDatabaseError: as `write`.
        """
        self.storage.catch_up()
        if self._is_heartbeat_due():
            entry = self._entry(Batch(), counts)
            if entry.failures:
                self.storage.store(entry)
            else:
                self.storage.beat(entry)

    def hurry(self, *, hurried: bool) -> None:
        """See `Storage`."""
        self.storage.hurry(hurried=hurried)

    def settle(self, _: float = 0.0) -> None:
        """See `Storage`."""
        self.storage.settle()

    def close(self, _: float = 0.0) -> bool:
        """Leaves what waits on disk to others; returns that it has."""
        self.settle()
        self.storage.close()
        return True

    def abandon(self) -> Any:
        """See `Storage`."""
        return self.storage.abandon()

    def _entry(self, batch: Batch, counts: Counts, parcel: int = 0) -> Entry:
        """The next one, with the process's heartbeat where that is due, and with what the run was not told yet."""
        for uid in sorted(batch.uids - self._uids.keys()):
            self._uids[uid] = None
        for change in batch.runs:
            if change.columns.get("finished") is not None:
                self._ended.add(change.uid)
            elif "created" in change.columns:
                self._ended.discard(change.uid)
        alive: tuple[str, ...] = ()
        if self._is_heartbeat_due():
            alive = tuple(self.alive)
            self._last_heartbeat = time.monotonic()
        self._number = max(self._number + 1, parcel << _ENTRIES)
        return Entry(self._number, now_us(), batch, alive, self._untold(counts))

    def _untold(self, counts: Counts) -> tuple[Failures, ...]:
        """What the latest run does not know of yet."""
        now = counts._replace(dropped=counts.dropped + self.dropped)
        errors, dropped = now.errors - self._told.errors, now.dropped - self._told.dropped
        if not (errors or dropped) or not self._uids:
            return ()
        self._told = now
        return (Failures(next(reversed(self._uids)), errors, dropped, now.last),)

    def _is_heartbeat_due(self) -> bool:
        running = bool(self._uids.keys() - self._ended) and self.storage.running
        return running and time.monotonic() - self._last_heartbeat > HEARTBEAT
