"""Defines what passes between the writer's thread and its outlet, which writes what the thread hands over.

There are two kinds of outlets, with the same methods. `HelperClient` (helper/helper_client.py) sends jobs to the helper
process. `Committer` (committer.py) turns them into committed rows itself: in the helper process, and in the training if
no helper process can be started or none is wanted.
"""

from typing import NamedTuple


class Counts(NamedTuple):
    """Counts of what a process failed to record so far."""

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
