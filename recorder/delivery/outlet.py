"""Defines `Outlet`, which the writer's thread writes to. There are two kinds, and the writer treats them alike.

`HelperClient` (helper/client.py) sends jobs to the helper process. `Committer` (committer.py) turns them into
committed rows itself: in the helper process, and in the training if no helper process can be started or none is wanted.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from logs_ui.recorder.delivery.job_queue import Job


class Counts(NamedTuple):
    """Counts what a process failed to record so far."""

    errors: int = 0  # number of failures
    dropped: int = 0  # number of changes that will never be written
    last: str | None = None  # the latest error, in one line; None if there was none


class Handover(NamedTuple):
    """The state from which a replacement continues, under the same name: so the database knows which entries it has
    already, and entries that a predecessor left on disk are stored first.
    """

    name: str  # the writer's name in the database
    processes: int = 0  # number of predecessors
    number: int = 0  # number of the last parcel that is known to be durable
    counted: Counts = Counts()  # the training's counts that were recorded on the run with that parcel
    alive: list[str] = []  # noqa: RUF012 - uids of the runs that had not ended by then; it is never changed


class Parcel(Protocol):
    """Jobs that are written in one transaction. It is filled, then closed, then written once."""

    count: int  # of its changes, about

    def add(self, job: Job) -> None:
        """Add all changes of a job, or none of them and raise."""

    def close(self) -> int:
        """Return how many bytes it keeps alive from now on."""

    def write(self, counts: Counts, done: Callable[[int], None]) -> None:
        """Write it, or have it written, with the counts of the training's process. May wait for earlier parcels.

        `done` is called, in any thread, once all that can be stored is durable; with the number of changes that are
        lost beyond those that the outlet counts as `dropped`. Raise RefusedDatabaseError if the database can never be
        written.
        """


class Outlet(Protocol):
    """Writes to one database for one process. `parcel` and `tick` are for the writer's thread, the rest for any."""

    dropped: int  # number of changes that were handed over and will never be written
    trouble: str | None  # why the database cannot be written now; None if no reason is known

    @property
    def waiting(self) -> Path | None:
        """Return the folder in which entries wait for the database; None if none do."""

    def parcel(self) -> Parcel:
        """Return an empty parcel, for the jobs to be written next."""

    def tick(self, counts: Counts) -> None:
        """Do what is due now and then: replace a helper process that has ended, or write a heartbeat."""

    def hurry(self, *, hurried: bool) -> None:
        """Set or end the hurry: entries that cannot be stored go to the disk at once, as the training may end."""

    def settle(self, seconds: float) -> None:
        """Move all that is committed into the database's file; wait at most so many seconds."""

    def close(self, seconds: float) -> None:
        """End it; wait for its end at most so many seconds. What is not written then goes to the disk."""

    def abandon(self) -> Any:
        """Return, in a forked child, the parent's resources, which must be kept referenced and never used."""
