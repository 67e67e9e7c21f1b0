"""Defines `Outlet`, which the writer's thread writes to. There are two kinds, and the writer treats them alike.

`HelperClient` (helper/helper_client.py) sends jobs to the helper process. `Committer` (committer.py) turns them into
committed rows itself: in the helper process, and in the training if no helper process can be started or none is wanted.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from logs_ui.recorder.delivery.job_queue import Job


class Counts(NamedTuple):
    """Counts of what a process failed to record so far.

    Attributes:
        errors: number of failures.
        dropped: number of changes that will never be written.
        last: the latest error, in one line; None if there was none.
    """

    errors: int = 0
    dropped: int = 0
    last: str | None = None


class Parcel(Protocol):
    """Jobs that are written in one transaction. It is filled, then closed, then written once.

    Attributes:
        count: about how many changes it has.
    """

    count: int

    def add(self, job: Job) -> None:
        """Adds all changes of a job, or none of them and raises."""
        ...

    def close(self) -> int:
        """Return how many bytes it keeps alive from now on."""
        ...

    def write(self, counts: Counts, done: Callable[[int], None]) -> None:
        """Writes it, or has it written. May wait for earlier parcels.

        Args:
            counts: counts of the training's process.
            done: called, in any thread, once all that can be stored is durable; with the number of changes that are
                lost beyond those that the outlet counts as `dropped`.

        Raises:
            RefusedDatabaseError: the database can never be written.
        """
        ...


class Outlet(Protocol):
    """Writes to one database for one process. `parcel` and `tick` are for the writer's thread, the rest for any."""

    @property
    def pid(self) -> int | None:
        """Return the PID of the helper process; None if there is none, and until it can write."""
        ...

    @property
    def dropped(self) -> int:
        """Count the changes that were handed over and will never be written."""
        ...

    @property
    def trouble(self) -> str | None:
        """Return the reason why the database cannot be written now; None if no reason is known."""
        ...

    @property
    def waiting(self) -> Path | None:
        """Return the folder in which entries wait for the database; None if none do."""
        ...

    def parcel(self) -> Parcel:
        """Return an empty parcel, for the jobs to be written next."""
        ...

    def tick(self, counts: Counts) -> None:
        """Does what is due now and then, such as heartbeats.

        Raises:
            RefusedDatabaseError: the database can never be written.
        """
        ...

    def hurry(self, *, hurried: bool) -> None:
        """Sets or ends the hurry. While hurried, entries that cannot be stored are written to the disk at once, since
        the training may end at any time.
        """
        ...

    def settle(self, seconds: float) -> None:
        """Moves all that is committed into the database's file; waits at most so many seconds."""
        ...

    def close(self, seconds: float) -> bool:
        """Ends it, and waits at most so many seconds; returns True if it has ended. A helper process that has not goes
        on by itself.
        """
        ...

    def abandon(self) -> Any:
        """Return, in a forked child, the parent's resources, which must be kept referenced and never used."""
        ...


class Handover(NamedTuple):
    """The state from which a replacement continues, under the same name: so the database knows which entries it has
    already, and entries that a predecessor left on disk are stored first.

    Attributes:
        name: the writer's name in the database.
        processes: number of predecessors.
        number: number of the last parcel that is known to be durable.
        counted: the training's counts that were recorded on the run with that parcel.
        alive: uids of the runs that had not ended by then.
    """

    name: str
    processes: int = 0
    number: int = 0
    counted: Counts = Counts()
    alive: list[str] = []  # noqa: RUF012 - it is never changed
