"""Turns jobs into committed rows, in the thread that calls it: the helper process's main thread, or the writer's thread
of a training without a helper process.

The last part of a job's path: a job becomes changes (`rows/changes.py`), these a packed batch
(`rows/draft_batches.py`), and the batch an entry, which goes into the database or onto the disk
(`storage/spool/durable_outlet.py`).
"""

import logging
import time
from collections.abc import Callable, Iterable
from dataclasses import replace

from logs_ui.recorder.delivery.job_queue import Job, changes_of
from logs_ui.recorder.delivery.outlet import Counts, Handover
from logs_ui.recorder.delivery.wire.jobs import Wire
from logs_ui.recorder.errors import LogsUIError, RefusedDatabaseError
from logs_ui.recorder.guard import guard
from logs_ui.recorder.rows.draft_batches import RowDraft, packed
from logs_ui.recorder.storage.address import Address
from logs_ui.recorder.storage.changes import Batch, Change, EntryNumber
from logs_ui.recorder.storage.clock import now_us
from logs_ui.recorder.storage.limits import Limits
from logs_ui.recorder.storage.spool.durable_outlet import Storage
from logs_ui.recorder.storage.spool.entry import Entry, Failures
from logs_ui.recorder.storage.spool.files import new_writer_name
from logs_ui.recorder.storage.spool.ingest import Ingester

logger = logging.getLogger("logs_ui")

HEARTBEAT = 5.0
"""Seconds between two heartbeats of a process that has nothing to write."""

_POLL = 0.1  # seconds between two checks for the end of another process's ingest
_BEFORE_READING = 10.0  # seconds that a reader waits for the latest entries


class CommitterParcel:
    """Implements `outlet.Parcel` in this thread."""

    def __init__(self, committer: "Committer") -> None:
        self.count = self.lost = 0  # number of its changes, and of those that could not be packed
        self.batch = Batch()  # all changes, once the parcel is closed
        self._committer = committer
        self._changes: list[Change | RowDraft] = []

    def add(self, job: Job) -> None:
        changes = list(changes_of(job))
        self._changes += changes
        self.count += len(changes)

    def add_frames(self, wire: Wire, frames: Iterable[bytes]) -> None:
        """Add jobs that were encoded, mostly by another process."""
        for frame in frames:
            with guard("encoding what was recorded"):
                job = wire.job(frame)
                if job is not None:
                    self.add(job)

    def close(self) -> int:
        self.batch, self.lost = _packed(self._changes)
        self._changes.clear()
        return self.batch.size

    def write(self, counts: Counts, done: Callable[[int], None]) -> None:
        self._committer.commit(self, 0, counts)
        done(0)


def _packed(changes: list[Change | RowDraft]) -> tuple[Batch, int]:
    """Pack all changes into one batch, without those that cannot be packed; also return how many these are."""
    with guard("packing what was recorded"):  # one bad row must not keep the others out
        return packed(changes), 0
    # The guard swallows what is raised above: then each change is packed alone, and only those that fail are lost.
    pieces = []
    for change in changes:
        with guard("packing one row"):
            pieces.append(packed([change]))
    return Batch.joined(pieces), len(changes) - len(pieces)


def entry_of(left: Entry) -> Entry:
    """Make the batch of an entry that has frames only. Raise msgspec.DecodeError as `spool.entry.decoded`."""
    wire, changes = Wire(), list[Change | RowDraft]()
    for job in map(wire.job, left.frames):  # not under the guard: what cannot be read stays on disk
        with guard("encoding what was recorded"):
            changes += [] if job is None else list(changes_of(job))
    batch, lost = _packed(changes)
    # The training did not know the runs of the frames (see `HelperClient._put_on_disk`): its failures, and those of
    # this decoding, are counted on one of them.
    failures = [
        replace(failure, run=max(batch.uids), dropped=failure.dropped + lost) for failure in left.failures if batch.uids
    ]
    return replace(left, batch=batch, failures=tuple(failures), frames=())


def take_in_before_reading(address: Address, seconds: float = _BEFORE_READING, *, is_patient: bool = False) -> bool:
    """Ingest for at most so many seconds, so that a reader sees the latest entries. Return False if some are left.

    An error is only logged, because reading is still possible. With `is_patient`, only the wait for another process
    that ingests is limited.
    """
    ingester = Ingester(address, entry_of)
    deadline = time.monotonic() + seconds
    try:
        while not ingester.take_in(lambda: not is_patient and time.monotonic() > deadline).is_all:
            if time.monotonic() > deadline:
                return False
            time.sleep(_POLL)
    except (LogsUIError, OSError) as error:
        logger.warning("logs-ui: what waits in %s is not in the database yet: %s", ingester.folder, error)
    return True


class Committer(Storage):
    """Implements `outlet.Outlet` in this process: makes entries of jobs, and stores them itself."""

    def __init__(
        self, address: Address, limits: Limits, *, spools_always: bool, before: Handover | None = None
    ) -> None:
        """Open nothing, see `Storage`. `before` is None for a process that replaces no other."""
        before = before or Handover(new_writer_name())
        super().__init__(
            address, limits, entry_of, spools_always=spools_always, name=before.name, before=before.processes
        )
        self._process = before.processes
        self._number = EntryNumber(before.number, self._process)  # of the last entry
        self._uids: dict[str, None] = dict.fromkeys(before.alive)  # of the runs that were written to, in their order
        self._ended: set[str] = set()  # those of them that this process ended
        self._counted = before.counted
        # The predecessor's runs go on, so that heartbeats are due before the database has been asked about them.
        if before.alive:
            self._intake.running = True
        self._last_heartbeat = time.monotonic()

    @property
    def alive(self) -> list[str]:
        """Return uids of the runs that go on."""
        return [uid for uid in self._uids if uid not in self._ended]

    def parcel(self) -> CommitterParcel:
        return CommitterParcel(self)

    def commit(self, parcel: CommitterParcel, number: int, counts: Counts) -> None:
        """Return once a closed parcel is durable, or all of it that can be. `number` is 0 unless it may be sent twice.
        Raise RefusedDatabaseError if the database can never be written.
        """
        self.dropped += parcel.lost
        try:
            self.store(self._entry(parcel.batch, counts, number))
            self.checkpoint()
        except RefusedDatabaseError:
            raise
        except Exception as error:  # noqa: BLE001 - one bad parcel must not keep the next ones out
            guard.caught("writing what was recorded", error)
            self.dropped += parcel.count

    def commit_frames(self, wire: Wire, number: int, frames: Iterable[bytes], counts: Callable[[], Counts]) -> None:
        """Commit jobs that were encoded. `counts` is called last, so that it includes what fails in decoding them."""
        parcel = self.parcel()
        parcel.add_frames(wire, frames)
        parcel.close()
        self.commit(parcel, number, counts())

    def tick(self, counts: Counts) -> None:
        """Ingest some of what waits on disk, and write a heartbeat if one is due. Raise as `commit`."""
        self.catch_up()
        if self._is_heartbeat_due():
            entry = self._entry(Batch(), counts)
            if entry.failures:
                self.store(entry)
            else:
                self.beat(entry)

    def _entry(self, batch: Batch, counts: Counts, parcel: int = 0) -> Entry:
        """Return the next entry, with a heartbeat if one is due, and with the failures that are not on the run yet."""
        for uid in sorted(batch.uids - self._uids.keys()):
            self._uids[uid] = None
        # A run that is described again, as when a training is resumed under its id, goes on.
        for change in batch.runs:
            if change.columns.get("finished") is not None:
                self._ended.add(change.uid)
            elif "created" in change.columns:
                self._ended.discard(change.uid)
        alive: tuple[str, ...] = ()
        if self._is_heartbeat_due():
            alive = tuple(self.alive)
            self._last_heartbeat = time.monotonic()
        last = self._number
        # A parcel's number is the same whichever process stores it, so that it is not stored again by the next one if
        # a process dies after its commit.
        self._number = (
            EntryNumber(parcel) if parcel > last.parcel else EntryNumber(last.parcel, self._process, last.n + 1)
        )
        return Entry(self._number, now_us(), batch, alive, self._uncounted(counts))

    def _uncounted(self, counts: Counts) -> tuple[Failures, ...]:
        """Return the failures that are not counted on a run yet: they go to the latest one."""
        now = counts._replace(dropped=counts.dropped + self.dropped)
        errors, dropped = now.errors - self._counted.errors, now.dropped - self._counted.dropped
        if not (errors or dropped) or not self._uids:
            return ()
        self._counted = now
        return (Failures(next(reversed(self._uids)), errors, dropped, now.last),)

    def _is_heartbeat_due(self) -> bool:
        running = bool(self._uids.keys() - self._ended) and self.running
        return running and time.monotonic() - self._last_heartbeat > HEARTBEAT
