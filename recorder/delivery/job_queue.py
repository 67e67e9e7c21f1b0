"""Queues jobs in the training: any thread hands them over, the writer's thread takes them. Bounded in bytes."""

import logging
import threading
import time
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, cast

from logs_ui.recorder.guard import guard
from logs_ui.recorder.rows.jobs import RowsJob
from logs_ui.recorder.storage.changes import Change
from logs_ui.recorder.storage.limits import Limits

if TYPE_CHECKING:  # a training with a helper process makes no rows
    from logs_ui.recorder.rows.draft_batches import RowDraft

logger = logging.getLogger("logs_ui")

_FOLLOW_UP = 1.0  # seconds until a followed job is written; each pause is twice the one before
_FOLLOW_UP_LONGEST = 60.0


class Job(Protocol):
    """Describes something to be written. `changes_of` turns it into changes, outside of the caller's thread."""

    @property
    def size(self) -> int:
        """Estimate how many bytes it keeps alive."""

    def without_payload(self) -> "Job":
        """Release texts and tokens, and return the job to write instead: itself if it has none. Called by any thread,
        at most once, and before its changes are made; takes no longer than some milliseconds.
        """


class FollowedJob(Job, Protocol):
    """A job about something that goes on; its present state is written now and then."""

    @property
    def is_over(self) -> bool:
        """True once it has nothing more to write."""


class ChangesJob(Job, Protocol):
    """A job that is no `RowsJob`."""

    def changes(self) -> "Iterable[Change]":
        """Make its changes."""


def changes_of(job: Job) -> "Iterable[Change | RowDraft]":
    """Make the changes of a job: a `RowsJob` is turned into rows, any other is a `ChangesJob`."""
    if not isinstance(job, RowsJob):
        return cast("ChangesJob", job).changes()
    # Loads attribution and tokenizers, which a training with a helper process does not need.
    from logs_ui.recorder.rows import changes as row_changes

    return row_changes.changes_of(job)


@dataclass
class Followed:
    """Schedules a followed job: it is written next at `due`, and then after pauses that double, so that all its writing
    together costs no more than about twice the last one.
    """

    job: FollowedJob
    due: float
    pause: float


class JobQueue:
    """A queue that drops what does not fit. It first drops payloads of waiting jobs, oldest first, so that the latest
    events, such as the error that ended a training, stay complete; only if that is not enough, the newest job.
    """

    def __init__(self, limits: Limits, name: str) -> None:
        """Make an empty queue; `name` is the database's name in log messages."""
        self.accepted = 0  # number of jobs that were added
        self.done = 0  # number of these that are durable by now
        self.dropped = 0  # jobs that had no room, and changes of others that were lost on their way
        self.bytes = 0  # estimate of what the jobs that are not done keep alive
        self.closed = False  # True if every job is dropped from now on
        self.followed: list[Followed] = []  # see `follow`
        self._limits, self._name = limits, name
        # Each job with the bytes that it was counted with. Those whose payload was dropped are the oldest.
        self._bare: deque[tuple[Job, int]] = deque()
        self._whole: deque[tuple[Job, int]] = deque()
        self._room_expected = True  # False after a thread waited for room in vain
        self._said_full = False
        self._hurry = False
        self._condition = threading.Condition()

    def put(self, job: Job) -> None:
        """Add a job. Wait for room as long as the limits allow, by default not at all; after a wait in vain, it does
        not wait again until some job is done. Never raises.
        """
        size = job.size
        with self._condition:
            if not self._has_room(size):
                self._wait_for_room(size)
            self._squeeze_in(job, size)

    def follow(self, job: FollowedJob) -> None:
        """Add a job in a second, and now and then until it is over."""
        with self._condition:
            self.followed.append(Followed(job, time.monotonic() + _FOLLOW_UP, _FOLLOW_UP))

    def follow_up(self) -> None:
        """Add the followed jobs that are due. Do not wait for room, which only this thread makes."""
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
        """Sleep for some seconds, less if a thread waits for the jobs; return how many jobs there are then."""
        with self._condition:
            self._condition.wait_for(lambda: self._hurry, seconds)
            self._hurry = False
            return len(self)

    def next(self) -> tuple[Job, int] | None:
        """Take out the oldest job; return it with its bytes, which are still counted. None if there is none."""
        with self._condition:
            # Jobs that lost their payload are older than those that have it.
            jobs = self._bare or self._whole
            return jobs.popleft() if jobs else None

    def recount(self, change: int) -> None:
        """Correct the bytes of jobs that were taken, once they are encoded: mostly downwards."""
        with self._condition:
            self.bytes += change
            self._condition.notify_all()

    def finish(self, jobs: int, size: int, dropped: int = 0) -> None:
        """Count jobs as done and their bytes as free; `dropped` are changes of them that were dropped after all."""
        with self._condition:
            self.dropped += dropped
            self.bytes -= size
            self.done += jobs
            self._room_expected = True
            self._condition.notify_all()

    def close(self) -> None:
        """Drop all jobs, now and from now on."""
        with self._condition:
            self.closed = True
            self._bare.clear()
            self._whole.clear()
            self._condition.notify_all()

    def __len__(self) -> int:
        """Return the number of jobs that were not taken out yet."""
        return len(self._bare) + len(self._whole)

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
        """Add a job; drop payloads if there is no room without, and the job if there is none even so."""
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
            self._whole.append((job, size))
            self.bytes += size
            self.accepted += 1

    def _drop_payloads(self, size: int) -> None:
        """Drop payloads of waiting jobs, oldest first, until there is room for so many bytes or none is left."""
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
                "logs-ui: the queue for %s is full (%d MiB). Waiting rollouts now lose their text, the oldest first, "
                "and keep their figures; the run counts them. Find out why writing is slow, or raise LOGS_UI_QUEUE_MB "
                "to what your memory allows.",
                self._name,
                self._limits.queue_bytes >> 20,
            )


def _without_payload(job: Job) -> Job:
    """Return the job as it is if that fails."""
    with guard("dropping a payload"):
        return job.without_payload()
    return job
