"""What a rollout function can say itself: which row it is at, and what it knows of it."""

from collections.abc import Iterator
from contextlib import contextmanager
from operator import index as as_index
from typing import Any

from logs_ui.recorder.capture.stop_causes import reason_of
from logs_ui.recorder.capture.strands import (
    NO_ROW,
    Strand,
    branch,
    branch_of_row,
    current_strand,
    scoped,
    within,
)
from logs_ui.recorder.errors import LogsUIError
from logs_ui.recorder.guard import guard
from logs_ui.recorder.snapshot import error_line, snapshot
from logs_ui.recorder.vocabulary import StopReason

_SHOWN = 40  # characters of what was given for an index


@contextmanager
def row_scope(index: int) -> Iterator["CurrentRow"]:
    """Calls made inside, in tasks and executor threads that are started there too, belong to one row.

    Only needed where logs-ui could not tell by itself: the dashboard shows how many calls of a run found no row.
    Where scopes of several rows are open in one task or thread, nested or in generators that take turns, none of them
    says whose a call is.
    Outside of a recorded rollout function it does nothing; nor does it in a rollout of `start_run()`, which is one row.

    Args:
        index: of the prompt in the list that the rollout function was given, from 0. What is called in the scope of
            one that no row has is nobody's, and the log says so once.
    """
    here = current_strand()
    strand = None if here is None or here.tree.is_one_row else branch_of_row(_row(index, here))
    if strand is None:
        yield CurrentRow()
        return
    with scoped(strand):
        yield CurrentRow(strand)


def _row(index: object, here: Strand) -> int:
    """`NO_ROW` for what is the index of none."""
    tree = here.tree
    try:
        row = NO_ROW if isinstance(index, bool) else as_index(index)  # type: ignore[arg-type]
    except TypeError:
        row = NO_ROW
    if row >= 0 and (tree.rows is None or row < tree.rows):
        return row
    given = repr(index)[:_SHOWN] if isinstance(index, int | float | str) else f"a {type(index).__name__}"
    named = "from 0" if tree.rows is None else f"0 to {tree.rows - 1}"
    guard.caught(
        "entering the scope of a row",
        LogsUIError(
            f"row_scope() was given {given}, which is no row's index, so that its calls are nobody's. "
            f"Give the prompt's place in the list that the rollout function got, {named}"
        ),
    )
    return NO_ROW


def current_row() -> "CurrentRow":
    """The row that the code runs for: that of the scope it is in, else the one whose generation or environment call
    was the last in the same task or thread. Say something before a row's first call inside `row_scope`.
    """
    return CurrentRow()


@contextmanager
def unrecorded() -> Iterator[None]:
    """Calls made inside, in tasks and executor threads that are started there too, belong to no rollout: a judge's, a
    check whether a server answers. Outside of a recorded rollout function it does nothing.
    """
    strand = branch(is_unseen=True)
    if strand is None:
        yield
        return
    with within(strand):
        yield


class CurrentRow:
    """Takes what a rollout function knows of its row. Outside of a recorded rollout function it forgets it."""

    def __init__(self, strand: Strand | None = None) -> None:
        """Of the row that the strand is of; None: of that which is the current one whenever something is said."""
        self._strand = strand

    def note(self, **values: Any) -> None:
        """Keeps values under `metadata["notes"]`; a name that comes again replaces the value."""
        self._say("note", values)

    def tag(self, *tags: str) -> None:
        """Adds to `metadata["tags"]`."""
        self._say("tag", [str(tag) for tag in tags])

    def metric(self, name: str, value: float) -> None:
        """Keeps a number under `metadata["metrics"]`."""
        self._say("metric", {name: value})

    def failed(self, error: BaseException | str) -> None:
        """The row came to nothing, though the function returns something for it: its status is `error`."""
        line, reason = (error, None) if isinstance(error, str) else (error_line(error), reason_of(error))
        self._say("error", {"error": line, "reason": reason})

    def stop(self, reason: str) -> None:
        """Why the row ended, where its calls do not show it: as `StopReason` has it, such as "length" where a budget of
        tokens is used up. An error of its environment stands above it.
        """
        self._say("stop", {"reason": StopReason(reason)})

    def _say(self, kind: str, values: Any) -> None:
        with guard("taking a note"):
            own = self._strand
            strand = current_strand() if own is None or not own.tree.is_open else own
            if strand is not None:
                strand.tree.log.note(strand, kind, snapshot(values))
