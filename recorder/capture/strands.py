"""Tracks in which strand a call is made: the rollout function, a task, a thread, a pool's item, or a row's scope.

Strands form a tree under the call of the rollout function. A task or thread that a strand starts gets a strand of its
own below it, so that calls of one row have a deeper common ancestor than calls of two rows.
`instruments/concurrency.py` starts them. The current strand is in a context variable.
"""

import asyncio
import functools
import itertools
import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar, Token
from dataclasses import dataclass
from typing import Any

from msgspec import Struct

from logs_ui.recorder.storage.portable import on_fork

logger = logging.getLogger("logs_ui")

NO_ROW = -1
"""Stands for a row's index where there is no such row: calls are unattributed."""


class StrandTree:
    """Holds all strands of one call of a rollout function."""

    def __init__(self, collector: Any = None) -> None:
        self.collector = collector  # the `calls.Collector` of its calls; None in the helper process
        self.closed = False  # True once the function returned: what still runs then belongs to no row
        self.rows: int | None = None  # number of rows; None if it is not known
        self.is_one_row = False  # True if all calls belong to one row, so that a scope inside cannot name another
        # Threads that were started within the one row, with their strands, until the collector is closed.
        self.threads: list[tuple[threading.Thread, Strand]] = []
        self.numbers = itertools.count()  # of the strands
        self._process = _process
        self._strays: dict[tuple[object, object], Strand] = {}
        self.root = Strand(self, None, next(self.numbers))  # the rollout function itself

    @property
    def is_open(self) -> bool:
        """Return True if it takes calls: the function has not returned, and this process is not a forked child."""
        return not self.closed and self._process is _process

    def child(self, parent: "Strand", **differs: Any) -> "Strand":
        """Make a strand below `parent`, with the parent's attributes unless they are in `differs`."""
        child = Strand(
            self, parent, next(self.numbers),
            parent.row, parent.generating, parent.call, parent.is_stray, parent.is_unseen,
        )  # fmt: skip
        for name, value in differs.items():
            if name != "row" or not self.is_one_row:
                setattr(child, name, value)
        return child

    def calling(self, parent: "Strand", order: int) -> "Strand":
        """Make a strand for the calls that the environment call `order` makes. Like `child`, in half the time."""
        return Strand(
            self, parent, next(self.numbers),
            parent.row, parent.generating, order, parent.is_stray, parent.is_unseen,
        )  # fmt: skip

    def stray(self) -> "Strand":
        """Return the strand of a thread or task whose start was not seen."""
        key = _place()
        if key not in self._strays:
            self._strays[key] = self.child(self.root, is_stray=True)
        return self._strays[key]


class Strand(Struct, eq=False, array_like=True):  # a dataclass takes twice as long, for each environment call
    """Represents a strand: a thread, asyncio task or pool's item in which the rollout function makes calls, or a row's
    scope inside it. Calls of one strand usually belong to one row. It is never changed, except for the row of a thread
    that outlived its row.
    """

    tree: StrandTree
    parent: "Strand | None"
    number: int  # counts the strands of the tree in the order in which they were started
    # Index of the row whose scope this is in; `NO_ROW` if its calls are unattributed, None outside of a scope.
    row: int | None = None
    generating: bool = False  # True while a generation is being recorded: generations inside are parts of it
    call: int | None = None  # order of the environment call that is under way; None outside of one
    is_stray: bool = False  # True if its start was not seen, so that its number says nothing about the order of rows
    is_unseen: bool = False  # True if its calls are not to be recorded

    @property
    def path(self) -> tuple["Strand", ...]:
        """Return the strands from the root to this one."""
        path = [self]
        while path[-1].parent is not None:
            path.append(path[-1].parent)
        return tuple(reversed(path))


def common(paths: list[tuple[Strand, ...]]) -> tuple[Strand, ...]:
    """Return the path to the deepest strand that is in all of the paths; () if there is none."""
    shared = []
    for level in zip(*paths, strict=False):
        if any(strand is not level[0] for strand in level):
            break
        shared.append(level[0])
    return tuple(shared)


@dataclass(eq=False)
class Scope:
    """A row's scope that was entered. Scopes that were entered in one context and not left form a chain: they may be
    nested, or open side by side, such as in generators that take turns.
    """

    strand: Strand  # the strand of the row in this scope
    before: "Strand | Scope | None"  # the current strand or scope when this one was entered
    place: tuple[object, object]  # the thread and the task in which it was entered
    is_explicit: bool  # True if the user opened it to assign calls (`row.scope()`), and not only began a row
    run: object  # identifies the run: scopes of rows of different runs do not contradict each other
    left: bool = False  # True once it was left

    @property
    def is_open(self) -> bool:
        """Return True if it applies here. An explicit scope applies even if its row has ended. One that was left in
        another thread or task still applies in those that were started inside it, which copied its context.
        """
        tree = self.strand.tree
        return (tree.is_open or (self.is_explicit and tree.closed)) and not (self.left and self.place == _place())


_here: ContextVar[Strand | Scope | None] = ContextVar("logs_ui_strand", default=None)
_open: list[StrandTree] = []
_process = object()


def _in_forked_child() -> None:
    """Count a forked child's calls only: they cannot reach the parent's collector, and would fill the child's
    copy of it.
    """
    global _process  # noqa: PLW0603 - it identifies the process, so that trees of the parent are not open here
    # The parent's strand must be looked up before `_process` changes, by which all trees of the parent are closed here.
    strand = _whereabouts()
    _process = object()
    _open.clear()
    if strand is not None and not strand.is_unseen:
        _open.append(StrandTree(strand.tree.collector.of_forked_child()))


on_fork(after_in_child=_in_forked_child)


def _place() -> tuple[object, object]:
    task = None
    with suppress(RuntimeError):  # outside of an event loop
        task = asyncio.current_task()
    return threading.current_thread(), task


def current_strand() -> Strand | None:
    """Return the strand of the caller; None if its calls are not recorded.

    A thread or task of unknown origin belongs to the rollout call that is open: a trainer makes one at a time.
    """
    here: Strand | Scope | None = _here.get()
    # Nearly always it is a strand of an open tree, which is found here at once; everything else is looked up.
    if type(here) is not Strand or here.tree.closed or here.tree._process is not _process:  # noqa: SLF001 - `is_open`
        here = _whereabouts()
    return None if here is None or here.is_unseen else here


def _whereabouts() -> Strand | None:
    here = _here.get()
    if isinstance(here, Scope):
        is_alone = not here.left and not isinstance(here.before, Scope)  # as nearly always: a fifth of the time
        here = here.strand if is_alone else _within_scopes(here)
    if here is not None and here.tree.is_open:
        return here
    return _open[-1].stray() if _open else None


def _within_scopes(scope: Scope) -> Strand | None:
    """Return the strand of the row that all open scopes of this context name. If they name several rows, they
    assign no call. Scopes outside of the outermost explicit one do not count, nor do rows that ended before another
    began, nor rows of another run: a rollout that was left open there must not cost this one its calls.
    """
    strands: list[Strand] = []
    counted = 0
    run: object = None
    here: Strand | Scope | None = scope
    # From the innermost scope outwards: the first open one decides the run, and others count if they are of this run
    # and their rollout has not ended. `counted` is the number of strands up to the outermost explicit scope.
    while isinstance(here, Scope):
        if here.is_open and (not strands or (here.run == run and here.strand.tree.is_open)):
            run = here.run
            strands.append(here.strand)
            counted = len(strands) if here.is_explicit else counted
        here = here.before
    outside = here
    if not strands:
        return outside
    strands = strands[: counted or None]
    last = strands[0]
    if all(strand.tree is last.tree and strand.row == last.row for strand in strands):
        return last
    # Rollouts of `start_run()` contradict each other, and nothing else says whose the call is. Scopes inside one
    # rollout function only lose their say: the call keeps the strand outside of them, and other evidence may place it.
    if outside is None or any(strand.tree is not outside.tree for strand in strands):
        _warn_of_open_rollouts()
        return Strand(last.tree, last.tree.root, next(last.tree.numbers), NO_ROW)
    return outside if outside.row is None else outside.tree.child(outside, row=None)


@functools.cache
def _warn_of_open_rollouts() -> None:
    """Log the warning once in a process: the function is cached."""
    logger.warning(
        "logs-ui: several rollouts of a run are open in one task or thread, so a call cannot be assigned to one of "
        "them: it is counted on the run as unattributed. Make it inside `with row.scope():`, or end the others before."
    )


def strand_of_thread(thread: threading.Thread) -> Strand | None:
    """Make a strand for a thread that is about to be started in a rollout of `start_run()`; None elsewhere.

    A thread of a rollout function gets none: its calls belong to the function anyway, and it may serve all rows.
    """
    here = None if _here.get() is None else _whereabouts()
    if here is None or not here.tree.is_one_row:
        return None
    strand = here.tree.child(here)
    here.tree.threads.append((thread, strand))
    return strand


def enter(strand: Strand | None) -> Token[Any]:
    """Set the current strand in this context; undo with `leave`. None clears it."""
    return _here.set(strand)


def leave(entered: Token[Any]) -> None:
    """Set the strand that was current before `enter`."""
    try:  # noqa: SIM105 - a third of the time
        _here.reset(entered)
    except (ValueError, LookupError):
        pass  # a generator was closed in another context, whose value is not ours


def enter_scope(strand: Strand, run: object = None, *, is_explicit: bool = False) -> Scope:
    """Enter a row's scope, to be left in any order. Without a `run` it is of one of several rows of the tree."""
    # Scopes that were left are cut out of the chain: in a task that lives long it would grow with each row.
    here = _not_left(_here.get())
    if isinstance(here, Scope):
        here.before = _not_left(here.before)
    scope = Scope(strand, here, _place(), is_explicit, strand.tree if run is None else run)
    _here.set(scope)
    return scope


def leave_scope(scope: Scope) -> None:
    """Leave a scope. Scopes that were entered later stay open."""
    scope.left = True
    if _here.get() is scope:
        _here.set(_not_left(scope.before))


def _not_left(here: Strand | Scope | None) -> Strand | Scope | None:
    """Return the first of a chain of scopes that was not left, or what is before them."""
    while isinstance(here, Scope) and here.left:
        here = here.before
    return here


@contextmanager
def scoped(strand: Strand, run: object = None) -> Iterator[None]:
    """Assign the calls in the block to the strand's row."""
    scope = enter_scope(strand, run, is_explicit=True)
    try:
        yield
    finally:
        leave_scope(scope)


def carried(strand: Strand, function: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a function so that it runs in the strand, wherever it is called."""

    @functools.wraps(function, updated=())
    def work(*args: Any, **kwargs: Any) -> Any:
        with within(strand):
            return function(*args, **kwargs)

    return work


class within:  # noqa: N801 - used like a function
    """A context manager in which the strand is the current one; no generator, for speed: each call enters one."""

    __slots__ = ("_entered", "_strand")

    def __init__(self, strand: Strand) -> None:
        self._strand = strand

    def __enter__(self) -> Strand:
        self._entered = enter(self._strand)
        return self._strand

    def __exit__(self, *_: object) -> None:
        leave(self._entered)


def branch(**differs: Any) -> Strand | None:
    """Make a strand below the current one, for a task or thread; None outside of a recorded rollout function."""
    strand = _whereabouts()
    return None if strand is None else strand.tree.child(strand, **differs)


def branch_of_row(row: int) -> Strand | None:
    """Make a strand of a row below the strand outside of all scopes: a scope inside another is no part of it."""
    here = _here.get()
    while isinstance(here, Scope):
        here = here.before
    strand = here if here is not None and here.tree.is_open else _whereabouts()
    return None if strand is None else strand.tree.child(strand, row=row)


@contextmanager
def opened(tree: StrandTree) -> Iterator[None]:
    """Record calls in the block in the tree, also those of threads whose start was not seen."""
    _open.append(tree)
    try:
        with within(tree.root):
            yield
    finally:
        tree.closed = True
        with suppress(ValueError):  # in a child that was forked inside
            _open.remove(tree)
