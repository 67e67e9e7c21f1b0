"""Which thread of control a call is made in: the rollout function's own, a task's, an executor's, a row's scope.

Strands form a tree under the rollout function call. What a strand starts gets a strand of its own below it, so that
calls of one row have a deeper ancestor in common than calls of two (`instruments/concurrency.py` starts them).
"""

import asyncio
import functools
import itertools
import logging
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar, Token
from dataclasses import dataclass
from typing import Any

from msgspec import Struct

logger = logging.getLogger("logs_ui")

NO_ROW = -1
"""In place of a row's index: that of none, so that what is called is nobody's."""


class StrandTree:
    """All strands of one rollout function call.

    Attributes:
        log: where its calls are kept; a `calls.Collector`; None of a tree that was received by the helper process.
        root: the rollout function's own.
        closed: True once it returned: what is still running then belongs to nothing.
        rows: how many it is about; None where that is not known.
        is_one_row: whether all that is called is one row's own, so that a scope within it names no other.
        threads: those that were started within one row, and the strand of each; empty once their calls were judged.
        numbers: of its strands.
    """

    def __init__(self, log: Any = None) -> None:
        self.log = log
        self.closed = False
        self.rows: int | None = None
        self.is_one_row = False
        self.threads: list[tuple[threading.Thread, Strand]] = []
        self.numbers = itertools.count()
        self._process = _process
        self._strays: dict[tuple[object, object], Strand] = {}
        self.root = Strand(self, None, next(self.numbers))

    @property
    def is_open(self) -> bool:
        """Whether it takes calls: the function has not returned, and this is no child of its process."""
        return not self.closed and self._process is _process

    def child(self, parent: "Strand", **differs: Any) -> "Strand":
        """A strand below `parent`; row and call are the parent's unless they differ."""
        child = Strand(
            self, parent, next(self.numbers),
            parent.row, parent.generating, parent.call, parent.is_stray, parent.is_unseen,
        )  # fmt: skip
        for name, value in differs.items():
            if name != "row" or not self.is_one_row:
                setattr(child, name, value)
        return child

    def calling(self, parent: "Strand", order: int) -> "Strand":
        """One below `parent`, in which the environment call of that order is under way: what is called there is made by
        it. As `child`, in half the time.
        """
        return Strand(
            self, parent, next(self.numbers),
            parent.row, parent.generating, order, parent.is_stray, parent.is_unseen,
        )  # fmt: skip

    def stray(self) -> "Strand":
        """For a thread or a task that was started where nobody saw it."""
        key = _place()
        if key not in self._strays:
            self._strays[key] = self.child(self.root, is_stray=True)
        return self._strays[key]


class Strand(
    Struct, eq=False, array_like=True
):  # no dataclass, which takes twice as long, for each call of an environment
    """One thread of control. Nobody changes it once it is made, but for the row of a thread that outlived it.

    Attributes:
        number: in the order in which strands were started.
        row: index of the row whose scope this is in; `NO_ROW` in the scope of none, None outside of one.
        generating: whether a generation that is recorded is under way: those within it are parts of it.
        call: order of the environment call that is under way; None outside of one.
        is_stray: whether nobody saw it start: its number then says nothing of the order in which rows were begun.
        is_unseen: whether nothing that is called in it is to be recorded.
    """

    tree: StrandTree
    parent: "Strand | None"
    number: int
    row: int | None = None
    generating: bool = False
    call: int | None = None
    is_stray: bool = False
    is_unseen: bool = False

    @property
    def path(self) -> tuple["Strand", ...]:
        """From the root to this one."""
        path = [self]
        while path[-1].parent is not None:
            path.append(path[-1].parent)
        return tuple(reversed(path))


def common(paths: list[tuple[Strand, ...]]) -> tuple[Strand, ...]:
    """The path down to the deepest strand that all of them pass; empty where there is none."""
    shared = []
    for level in zip(*paths, strict=False):
        if any(strand is not level[0] for strand in level):
            break
        shared.append(level[0])
    return tuple(shared)


@dataclass(eq=False)
class Scope:
    """A row's scope as it is the current one. Scopes that were entered in one context, and not left, stand in a chain:
    they may be nested, or side by side, as in generators that take turns.

    Attributes:
        strand: the row's, in this scope.
        before: what was the current one when it was entered.
        place: thread and task that it was entered in.
        is_said: whether it says whose calls are, and not only that a row was begun.
        run: what its row is of: rows of others are not mistaken for it.
        left: whether it was.
    """

    strand: Strand
    before: "Strand | Scope | None"
    place: tuple[object, object]
    is_said: bool
    run: object
    left: bool = False

    @property
    def is_open(self) -> bool:
        """Whether it holds here: also where what it says is that calls are those of a row that has ended. One that was
        left elsewhere holds on in what was started inside with its context.
        """
        tree = self.strand.tree
        return (tree.is_open or (self.is_said and tree.closed)) and not (self.left and self.place == _place())

    def skip_left(self) -> "Strand | Scope | None":
        """What was before it, without scopes that were left."""
        while isinstance(self.before, Scope) and self.before.left:
            self.before = self.before.before
        return self.before


_here: ContextVar[Strand | Scope | None] = ContextVar("logs_ui_strand", default=None)
_open: list[StrandTree] = []
_process = object()


def _in_forked_child() -> None:
    """A child's calls cannot reach the parent's log, and would only fill its copy: they are told to be counted."""
    global _process  # noqa: PLW0603 - what is open belongs to one process
    strand = _whereabouts()
    _process = object()
    _open.clear()
    if strand is not None and not strand.is_unseen:
        _open.append(StrandTree(strand.tree.log.of_forked_child()))


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_forked_child)


def _place() -> tuple[object, object]:
    return threading.current_thread(), _current_task()


def _current_task() -> object:
    """None outside of asyncio."""
    with suppress(RuntimeError):
        return asyncio.current_task()
    return None


def current_strand() -> Strand | None:
    """Where the caller is; None outside of what is recorded.

    A thread or task of unknown origin belongs to the call that is open: a trainer makes one at a time.
    """
    here: Strand | Scope | None = _here.get()
    if type(here) is not Strand or here.tree.closed or here.tree._process is not _process:  # noqa: SLF001 - `is_open`
        here = _whereabouts()
    return None if here is None or here.is_unseen else here


def _whereabouts() -> Strand | None:
    here = _here.get()
    if isinstance(here, Scope):
        is_alone = not here.left and not isinstance(here.before, Scope)  # as nearly all are: a fifth of the time
        here = here.strand if is_alone else _within_scopes(here)
    if here is not None and here.tree.is_open:
        return here
    return _open[-1].stray() if _open else None


def _within_scopes(scope: Scope) -> Strand | None:
    """The row's that the scopes of the context are of, if they are of one; else nobody knows whose calls these are.
    Where some say whose calls are, rows that were begun before are not asked; nor are rows that ended where one was
    begun since, and those of another run: one that was left open there costs this one nothing.
    """
    strands: list[Strand] = []
    asked = 0
    run: object = None
    here: Strand | Scope | None = scope
    while isinstance(here, Scope):
        if here.is_open and (not strands or (here.run == run and here.strand.tree.is_open)):
            run = here.run
            strands.append(here.strand)
            asked = len(strands) if here.is_said else asked
        here = here.before
    outside = here
    if not strands:
        return outside
    strands = strands[: asked or None]
    last = strands[0]
    if all(strand.tree is last.tree and strand.row == last.row for strand in strands):
        return last
    if outside is None or any(strand.tree is not outside.tree for strand in strands):
        _say_whose()
        return Strand(last.tree, last.tree.root, next(last.tree.numbers), NO_ROW)
    return outside if outside.row is None else outside.tree.child(outside, row=None)


@functools.cache
def _say_whose() -> None:
    """Once in a process."""
    logger.warning(
        "logs-ui: several rollouts of a run are open in one task or thread, and nothing says whose a call is: it is no "
        "rollout's, and counted on the run. Make it inside `with row.scope():`, or end the rollouts that came before."
    )


def strand_of_thread(thread: threading.Thread) -> Strand | None:
    """For one that is about to be started in a rollout of an explicit run. None elsewhere: what a thread of a rollout
    function calls belongs to the function anyway, and whoever starts a thread may have it serve all rows.
    """
    here = None if _here.get() is None else _whereabouts()
    if here is None or not here.tree.is_one_row:
        return None
    strand = here.tree.child(here)
    here.tree.threads.append((thread, strand))
    return strand


def enter(strand: Strand | None) -> Token[Any]:
    """Makes it the current one of the context in which this runs, until `leave`; None: there is none."""
    return _here.set(strand)


def leave(entered: Token[Any]) -> None:
    """Makes that before it the current one again."""
    try:  # noqa: SIM105 - a third of the time
        _here.reset(entered)
    except (ValueError, LookupError):
        pass  # another context, where a generator was closed from elsewhere: the value there is not ours


def enter_scope(strand: Strand, run: object = None, *, is_said: bool = False) -> Scope:
    """As `enter`, for a row's scope: it may be left in any order with others that were entered in the same context.
    Without a `run` it is one of several rows of the strand's tree.
    """
    here = _here.get()
    while isinstance(here, Scope) and here.left:
        here = here.before
    if isinstance(here, Scope):
        here.skip_left()
    scope = Scope(strand, here, _place(), is_said, strand.tree if run is None else run)
    _here.set(scope)
    return scope


def leave_scope(scope: Scope) -> None:
    """Those that were entered later stay open."""
    scope.left = True
    if _here.get() is scope:
        _here.set(scope.skip_left())


@contextmanager
def scoped(strand: Strand, run: object = None) -> Iterator[None]:
    """Calls made inside are the row's that the strand is of."""
    scope = enter_scope(strand, run, is_said=True)
    try:
        yield
    finally:
        leave_scope(scope)


def carried(strand: Strand, function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, for whoever calls it elsewhere: what it calls is called in the strand."""

    @functools.wraps(function, updated=())
    def work(*args: Any, **kwargs: Any) -> Any:
        with within(strand):
            return function(*args, **kwargs)

    return work


def within(strand: Strand) -> "_Within":
    """Makes it the current one."""
    return _Within(strand)


class _Within:
    """No generator: one is entered for each call of an environment."""

    __slots__ = ("_entered", "_strand")

    def __init__(self, strand: Strand) -> None:
        self._strand = strand

    def __enter__(self) -> Strand:
        self._entered = enter(self._strand)
        return self._strand

    def __exit__(self, *_: object) -> None:
        leave(self._entered)


def branch(**differs: Any) -> Strand | None:
    """A new strand below the current one, for what is started here; None outside of a recorded rollout function."""
    strand = _whereabouts()
    return None if strand is None else strand.tree.child(strand, **differs)


def branch_of_row(row: int) -> Strand | None:
    """As `branch`, below what no scope is around: a scope within another, or beside it, is no part of that one."""
    here = _here.get()
    while isinstance(here, Scope):
        here = here.before
    strand = here if here is not None and here.tree.is_open else _whereabouts()
    return None if strand is None else strand.tree.child(strand, row=row)


@contextmanager
def opened(tree: StrandTree) -> Iterator[None]:
    """Calls made inside belong to the tree, also those of threads that nobody saw start."""
    _open.append(tree)
    try:
        with within(tree.root):
            yield
    finally:
        tree.closed = True
        with suppress(ValueError):  # in a child that was forked inside
            _open.remove(tree)
