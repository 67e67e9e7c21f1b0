"""Defines what the writer's thread writes to: the `Outlet`. There are two, and the writer does not know which it has.

`HelperClient` (helper/helper_client.py) sends jobs to the helper process. `Committer` (committer.py) turns them into
committed rows itself: in the helper process, and in the training if no helper process can be started or none is wanted.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from logs_ui.recorder.delivery.job_queue import Job


class Counts(NamedTuple):
    """Counts what a process failed to record, so far.

    Attributes:
        errors: failures.
        dropped: changes that are not written, and never will be.
        last: the latest error, in one line; None while there was none.
    """

    errors: int = 0
    dropped: int = 0
    last: str | None = None


class Parcel(Protocol):
    """Jobs that are written in one transaction: filled, then closed, then written once.

    Attributes:
        count: changes in it, about.
    """

    count: int

    def add(self, job: Job) -> None:
        """Adds all changes of a job, or none of them and raises."""
        ...

    def close(self) -> int:
        """Return how many bytes it keeps alive from now on."""
        ...

    def write(self, counts: Counts, done: Callable[[int], None]) -> None:
        """Has it written. May wait for earlier parcels.

        Args:
            counts: of the training's process.
            done: called, in whichever thread, once all of it is durable that can be; with how many changes are lost
                beyond those that the outlet counts as `dropped`.

        Raises:
            RefusedDatabaseError: the database can never be written.
        """
        ...


class Outlet(Protocol):
    """Writes to one database for one process. `parcel` and `tick` are for the writer's thread, the rest for any."""

    @property
    def pid(self) -> int | None:
        """Number (PID) of the helper process; None if there is none, and until it can write."""
        ...

    @property
    def dropped(self) -> int:
        """Changes that were handed over and will never be written."""
        ...

    @property
    def trouble(self) -> str | None:
        """Why the database cannot be written now; None if it can, as far as is known."""
        ...

    @property
    def waiting(self) -> Path | None:
        """The folder in which entries wait for the database; None if none do."""
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
        """While hurried, what cannot be written goes to the disk at once: the training may end at any time."""
        ...

    def settle(self, seconds: float) -> None:
        """Moves all that is committed into the database's file; waits so long at most."""
        ...

    def close(self, seconds: float) -> bool:
        """Ends it; returns True if it has ended after so many seconds. A helper process goes on by itself."""
        ...

    def abandon(self) -> Any:
        """Return, in a forked child, the parent's resources, which must be kept referenced and never used."""
        ...


class Handover(NamedTuple):
    """The state that a replacement continues from, under the same name: the database then knows which entries are in,
    and what its predecessors left on disk goes in first.

    Attributes:
        name: of the writer that the database knows.
        processes: how many predecessors there were.
        number: of the last parcel that is known to be durable.
        counted: of the training's counts, what was recorded on the run with it.
        alive: uids of the runs that had not ended by then.
    """

    name: str
    processes: int = 0
    number: int = 0
    counted: Counts = Counts()
    alive: list[str] = []  # noqa: RUF012 - nobody adds to it
