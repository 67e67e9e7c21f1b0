"""Lets a rollout function say which row it works on, and record values, tags, metrics and errors of the row."""

from collections.abc import Iterator
from contextlib import contextmanager
from operator import index as as_index
from typing import Any

from logs_ui.recorder.capture.stop_causes import reason_of
from logs_ui.recorder.capture.strands import NO_ROW, Strand, branch, branch_of_row, current_strand, scoped, within
from logs_ui.recorder.errors import LogsUIError
from logs_ui.recorder.guard import guard
from logs_ui.recorder.snapshot import error_line, snapshot
from logs_ui.recorder.vocabulary import StopReason

_SHOWN = 40  # characters of a wrong index that the error message repeats


@contextmanager
def row_scope(index: int) -> Iterator["CurrentRow"]:
    """Assign the calls in a `with` block to one row, also those in tasks and executor threads started in the block.

    It is only needed where logs-ui cannot find out by itself: the dashboard shows how many calls of a run are
    unattributed. Do not open scopes of several rows in one task or thread at once, nested or in generators that take
    turns: none of them assigns a call then. It does nothing outside of a recorded rollout function, or in a rollout of
    `start_run()`, which is one row.

    Args:
        index: Index of the prompt in the list that the rollout function was called with, from 0. If there is no such
            row, the calls are unattributed, and the error is logged once.

    Yields:
        The row, to record values, tags, metrics and errors with.

    Examples:
        >>> from concurrent.futures import ThreadPoolExecutor
        >>> from logs_ui.recorder import flush, load_run, record, row_scope
        >>> @record(eval_name="guess", db="runs.db", announce=False)
        ... def rollout_func(prompts, trainer):
        ...     def play(index):
        ...         with row_scope(index) as row:  # calls of the model and of the environment belong here
        ...             row.metric("letters", len(prompts[index]))
        ...             return trainer.processing_class(prompts[index])["input_ids"]
        ...     with ThreadPoolExecutor(8) as pool:
        ...         ids = list(pool.map(play, range(len(prompts))))
        ...     return {"prompt_ids": ids, "completion_ids": ids, "logprobs": [[-0.5] * len(row) for row in ids]}
        >>> output = rollout_func(["Guess.", "Guess again."], trainer)  # as the trainer does
        >>> flush()
        True
        >>> [about["metrics"] for about in load_run("latest", db="runs.db").metadata]
        [{'letters': 6}, {'letters': 12}]
    """
    here = current_strand()
    strand = None if here is None or here.tree.is_one_row else branch_of_row(_row(index, here))
    if strand is None:
        yield CurrentRow()
        return
    with scoped(strand):
        yield CurrentRow(strand)


def _row(index: object, here: Strand) -> int:
    """Return the index as an int; `NO_ROW`, and log an error, if no row has it."""
    tree = here.tree
    try:
        row = NO_ROW if isinstance(index, bool) else as_index(index)  # type: ignore[arg-type]
    except TypeError:
        row = NO_ROW
    if row >= 0 and (tree.rows is None or row < tree.rows):
        return row
    text = repr(index)[:_SHOWN] if isinstance(index, int | float | str) else f"a {type(index).__name__}"
    possible = "from 0" if tree.rows is None else f"0 to {tree.rows - 1}"
    guard.caught(
        "entering the scope of a row",
        LogsUIError(
            f"row_scope() got {text}, which is not the index of a row, so its calls are unattributed. "
            f"Pass the prompt's index in the list that the rollout function got, {possible}"
        ),
    )
    return NO_ROW


def current_row() -> "CurrentRow":
    """Return the row that the calling code works on.

    That is the row of the scope in which the code runs, or else the row of the last generation or environment call in
    the same task or thread. Before a row's first call, use `row_scope`.

    Examples:
        >>> from logs_ui.recorder import current_row, load_run, start_run
        >>> def check(answer):
        ...     current_row().tag("empty" if not answer else "answered")
        >>> with start_run(db="runs.db") as run:
        ...     with run.rollout("Say something.") as row:
        ...         row.turn("Hello.")
        ...         check("Hello.")
        >>> load_run(run.id, db="runs.db").metadata[0]["tags"]
        ['answered']
    """
    return CurrentRow()


@contextmanager
def unrecorded() -> Iterator[None]:
    """Leave the calls in a `with` block out of all rollouts, also those in tasks and executor threads started in it.

    Use it for the calls of a judge, or for a check that a server answers. Outside of a recorded rollout function it
    does nothing.

    Examples:
        >>> from logs_ui.recorder import load_run, start_run, trace_env, unrecorded
        >>> search = trace_env(lambda query: f"results for {query}")
        >>> with start_run(db="runs.db") as run:
        ...     with run.rollout("Find logs-ui.") as row:
        ...         with unrecorded():
        ...             warm_up = search("anything")
        ...         found = search("logs-ui")
        >>> [action["action"]["arguments"] for action in load_run(run.id, db="runs.db").actions[0]]
        [{'query': 'logs-ui'}]
    """
    strand = branch(is_unseen=True)
    if strand is None:
        yield
        return
    with within(strand):
        yield


class CurrentRow:
    """Records what a rollout function knows about its row. `row_scope()` and `current_row()` return it.

    Outside of a recorded rollout function its methods do nothing. They raise nothing if recording fails.

    Examples:
        >>> from logs_ui.recorder import current_row, load_run, start_run
        >>> with start_run(db="runs.db") as run:
        ...     with run.rollout("What is 2 + 3?") as opened:
        ...         opened.turn("6")
        ...         row = current_row()
        ...         row.note(expected="5")
        ...         row.tag("arithmetic", "wrong")
        ...         row.metric("distance", 1.0)
        ...         row.stop("length")
        >>> rows = load_run(run.id, db="runs.db")
        >>> rows.metadata[0]["notes"], rows.metadata[0]["tags"], rows.stop_reason[0]
        ({'expected': '5'}, ['arithmetic', 'wrong'], 'length')
    """

    def __init__(self, strand: Strand | None = None) -> None:
        """`strand` is the strand of the row. None looks up the current row at each call of a method."""
        self._strand = strand

    def note(self, **values: Any) -> None:
        """Store values under `metadata["notes"]`. A name that comes again replaces its value.

        Args:
            **values: Values by name, of any type. They are copied now, as JSON.
        """
        self._say("note", values)

    def tag(self, *tags: str) -> None:
        """Add tags to `metadata["tags"]`. Rollouts can be filtered by them.

        Args:
            *tags: Texts on one line. Of longer ones the first 100 characters can be filtered by.
        """
        self._say("tag", [str(tag) for tag in tags])

    def metric(self, name: str, value: float) -> None:
        """Store a number under `metadata["metrics"]`.

        Args:
            name: Name of the metric. A name that comes again replaces its value.
            value: The number. NaN and infinities are stored as null.
        """
        self._say("metric", {name: value})

    def failed(self, error: BaseException | str) -> None:
        """Mark the row as failed, although the rollout function returns something for it: its status is `error`.

        Args:
            error: An exception, whose type decides the stop reason (a `TimeoutError`: "timeout"), or a message.
        """
        line, reason = (error, None) if isinstance(error, str) else (error_line(error), reason_of(error))
        self._say("error", {"error": line, "reason": reason})

    def stop(self, reason: str) -> None:
        """Record why the row ended, if its calls do not show it. An error of its environment overrides it.

        Args:
            reason: A value of `StopReason`, such as "length" if a budget of tokens is used up.

        Raises:
            ValueError: `reason` is not a `StopReason`.
        """
        self._say("stop", {"reason": StopReason(reason)})

    def _say(self, kind: str, values: Any) -> None:
        with guard("taking a note"):
            strand = self._strand
            if strand is None or not strand.tree.is_open:
                strand = current_strand()
            if strand is not None:
                strand.tree.collector.note(strand, kind, snapshot(values))
