"""Queues jobs in the training: any thread hands them over, the writer's thread takes them. Bounded in bytes."""

import logging
import threading
import time
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from logs_ui.recorder.guard import guard
from logs_ui.recorder.storage.changes import Change
from logs_ui.recorder.storage.limits import Limits

if TYPE_CHECKING:  # a training with a helper process makes no rows
    from logs_ui.recorder.rows.packing import RowDraft

logger = logging.getLogger("logs_ui")

_FOLLOW_UP = 1.0  # seconds until what goes on is written again; each time twice as long
_FOLLOW_UP_LONGEST = 60.0


class Job(Protocol):
    """Something to be written. It is turned into rows outside of the caller's thread."""

    @property
    def size(self) -> int:
        """About how many bytes it keeps alive."""
        ...

    def changes(self) -> "Iterable[Change | RowDraft]":
        """Make what is to be written."""
        ...

    def without_payload(self) -> "Job":
        """Releases texts and tokens, and returns the job to write instead: itself if it has none. Called by any thread,
        at most once, before `changes` and not while it runs; takes no longer than some milliseconds.
        """
        ...


class FollowedJob(Job, Protocol):
    """A job of something that goes on, and is written as it stands now and then."""

    @property
    def is_over(self) -> bool:
        """True once nothing more comes of it."""
        ...


@dataclass
class Followed:
    """A followed job is written next at `due`, and each time after twice the pause, so that all that is written of it
    is no more than about twice what is written last.
    """

    job: FollowedJob
    due: float
    pause: float


class JobQueue:
    """Drops what does not fit: first the payloads of what waits, oldest first, so that what happened last, as
    whatever ended a training, is still there in full; only if even the rest has no room, the newest job.

    Attributes:
        accepted: jobs that were taken in.
        done: those of them that are durable by now.
        dropped: jobs that had no room, and changes of others that were lost on their way.
        bytes: about how many the jobs that are not done keep alive.
        closed: True if all is dropped from now on.
        followed: see `follow`.
    """

    def __init__(self, limits: Limits, name: str) -> None:
        """`name` is the database's in log messages."""
        self.accepted = 0
        self.done = 0
        self.dropped = 0
        self.bytes = 0
        self.closed = False
        self.followed: list[Followed] = []
        self._limits, self._name = limits, name
        # Each job with the bytes that it was counted with. Those whose payload was dropped are the oldest.
        self._bare: deque[tuple[Job, int]] = deque()
        self._whole: deque[tuple[Job, int]] = deque()
        self._room_expected = True  # False after somebody waited for room in vain
        self._said_full = False
        self._hurry = False
        self._condition = threading.Condition()

    def put(self, job: Job) -> None:
        """Adds a job. Waits for room as long as the limits say, by default not at all; after it waited in vain, not
        again until something was done. Never raises.
        """
        size = job.size
        with self._condition:
            if self.bytes + size <= self._limits.queue_bytes and not self.closed:
                self._append(job, size)
            else:
                self._wait_for_room(size)
                self._squeeze_in(job, size)

    def follow(self, job: FollowedJob) -> None:
        """Adds a job in a second, and now and then until it is over."""
        with self._condition:
            self.followed.append(Followed(job, time.monotonic() + _FOLLOW_UP, _FOLLOW_UP))

    def follow_up(self) -> None:
        """Adds the followed jobs that are due. Does not wait for room, which only this thread makes."""
        now = time.monotonic()
        with self._condition:
            self._forget_what_is_over()
            due = [followed for followed in self.followed if followed.due <= now]
        for followed in due:
            followed.pause = min(2 * followed.pause, _FOLLOW_UP_LONGEST)
            followed.due = now + followed.pause
            with self._condition:
                self._squeeze_in(followed.job, followed.job.size)

    def wait_until_done(self, timeout: float | None) -> bool:
        """Return True once all that was accepted by now is done; False after the timeout (seconds; None waits on), or
        once the queue is closed.
        """
        with self._condition:
            wanted = self.accepted
            self._hurry = True
            self._condition.notify_all()
            self._condition.wait_for(lambda: self.closed or self.done >= wanted, timeout)
            return not self.closed and self.done >= wanted

    def wait_for_jobs(self, seconds: float) -> int:
        """Sleeps so long, less if somebody waits for the jobs; returns how many there are then."""
        with self._condition:
            self._condition.wait_for(lambda: self._hurry, seconds)
            self._hurry = False
            return len(self)

    def next(self) -> tuple[Job, int] | None:
        """Take out the oldest job; return it with its bytes, which are still counted. None if there is none."""
        with self._condition:
            jobs = self._bare or self._whole
            return jobs.popleft() if jobs else None

    def recount(self, change: int) -> None:
        """Corrects the bytes of jobs that were taken, once they are encoded: mostly downwards."""
        with self._condition:
            self.bytes += change
            self._condition.notify_all()

    def finish(self, jobs: int, size: int, dropped: int = 0) -> None:
        """Counts jobs as done and their bytes as free; `dropped` are changes of them that were dropped after all."""
        with self._condition:
            self.dropped += dropped
            self.bytes -= size
            self.done += jobs
            self._room_expected = True
            self._condition.notify_all()

    def close(self) -> None:
        """Drops all jobs, now and from now on."""
        with self._condition:
            self.closed = True
            self._bare.clear()
            self._whole.clear()
            self._condition.notify_all()

    def __len__(self) -> int:
        """The number of jobs that nobody has taken yet."""
        return len(self._bare) + len(self._whole)

    def _append(self, job: Job, size: int) -> None:
        self._whole.append((job, size))
        self.bytes += size
        self.accepted += 1

    def _has_room(self, size: int) -> bool:
        return self.bytes + size <= self._limits.queue_bytes

    def _wait_for_room(self, size: int) -> None:
        if self._limits.queue_seconds and self._room_expected and size <= self._limits.queue_bytes:
            self._hurry = True
            self._condition.notify_all()
            self._room_expected = self._condition.wait_for(
                lambda: self.closed or self._has_room(size), self._limits.queue_seconds
            )

    def _squeeze_in(self, job: Job, size: int) -> None:
        """Adds a job; drops payloads if there is no room without, and the job if there is none even so."""
        if not self.closed and not self._has_room(size):
            self._say_full_once()
            if size <= self._limits.queue_bytes:
                self._drop_payloads(size)
            if not self._has_room(size):
                job = _without_payload(job)
                size = job.size
                self._drop_payloads(size)
        if self.closed or not self._has_room(size):
            self.dropped += 1
            self._forget_what_is_over()
        else:
            self._append(job, size)

    def _drop_payloads(self, size: int) -> None:
        """Drops payloads of waiting jobs, oldest first, until there is room for so many bytes or none is left."""
        while self._whole and not self._has_room(size):
            job, before = self._whole[0]
            bare = _without_payload(job)
            after = bare.size
            self._whole.popleft()
            self._bare.append((bare, after))
            self.bytes += after - before

    def _forget_what_is_over(self) -> None:
        self.followed = [followed for followed in self.followed if not followed.job.is_over]

    def _say_full_once(self) -> None:
        if not self._said_full:
            self._said_full = True
            logger.warning(
                "logs-ui: more waits to be written to %s than the %d MiB that it may take. Rollouts lose their text "
                "now, the oldest first, and keep their figures; the run counts them. To keep more, find what holds up "
                "the disk, or set LOGS_UI_QUEUE_MB to what your memory allows.",
                self._name,
                self._limits.queue_bytes >> 20,
            )


def _without_payload(job: Job) -> Job:
    """Return the job as it is if that fails."""
    with guard("dropping a payload"):
        return job.without_payload()
    return job
