"""Which thread of control a call is made in: the rollout function's own, a task's, an executor's, a row's scope.

Strands form a tree under the rollout function call. What a strand starts gets a strand of its own below it, so that
calls of one row have a deeper ancestor in common than calls of two (`instruments/concurrency.py` starts them).
"""

import asyncio
import itertools
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar, Token
from dataclasses import dataclass, field
from typing import Any

from msgspec import Struct

NO_ROW = -1
"""In place of a row's index: that of none, so that what is called is nobody's."""


@dataclass(eq=False)
class StrandTree:
    """All strands of one rollout function call.

    Attributes:
        log: where its calls are kept; a `calls.CallLog`.
        root: the rollout function's own.
        closed: True once it returned: what is still running then belongs to nothing.
        rows: how many it is about; None where that is not known.
        is_one_row: whether all that is called is one row's own, so that a scope within it names no other.
    """

    log: Any
    closed: bool = False
    rows: int | None = None
    is_one_row: bool = False
    root: "Strand" = field(init=False)
    _process: object = field(init=False)
    _numbers: Iterator[int] = field(default_factory=itertools.count, init=False)
    _strays: dict[tuple[object, object], "Strand"] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        self._process = _process
        self.root = Strand(self, None, next(self._numbers))

    @property
    def is_open(self) -> bool:
        """Whether it takes calls: the function has not returned, and this is no child of its process."""
        return not self.closed and self._process is _process

    def child(self, parent: "Strand", **differs: Any) -> "Strand":
        """A strand below `parent`; row and call are the parent's unless they differ."""
        child = Strand(
            self, parent, next(self._numbers),
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
            self, parent, next(self._numbers),
            parent.row, parent.generating, order, parent.is_stray, parent.is_unseen,
        )  # fmt: skip

    def stray(self) -> "Strand":
        """For a thread or a task that was started where nobody saw it."""
        key = (threading.current_thread(), _current_task())
        if key not in self._strays:
            self._strays[key] = self.child(self.root, is_stray=True)
        return self._strays[key]


class Strand(Struct, eq=False):  # no dataclass, which takes twice as long, for each call of an environment
    """One thread of control. Nobody changes it once it is made.

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


_here: ContextVar[Strand | None] = ContextVar("logs_ui_strand", default=None)
_open: list[StrandTree] = []
_process = object()


def _in_forked_child() -> None:
    """A child's calls cannot reach the parent's log, and would only fill its copy."""
    global _process  # noqa: PLW0603 - what is open belongs to one process
    _process = object()
    _open.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_forked_child)


def _current_task() -> object:
    """None outside of asyncio."""
    with suppress(RuntimeError):
        return asyncio.current_task()
    return None


def current_strand() -> Strand | None:
    """Where the caller is; None outside of what is recorded.

    A thread or task of unknown origin belongs to the call that is open: a trainer makes one at a time.
    """
    strand = _whereabouts()
    return None if strand is None or strand.is_unseen else strand


def _whereabouts() -> Strand | None:
    strand = _here.get()
    if strand is not None and strand.tree.is_open:
        return strand
    return _open[-1].stray() if _open else None


def enter(strand: Strand) -> Token[Strand | None]:
    """Makes it the current one of the context in which this runs, until `leave`."""
    return _here.set(strand)


def leave(entered: Token[Strand | None]) -> None:
    """Makes that before it the current one again."""
    try:  # noqa: SIM105 - a third of the time
        _here.reset(entered)
    except (ValueError, LookupError):
        pass  # another context, where a generator was closed from elsewhere: the value there is not ours


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


@contextmanager
def opened(tree: StrandTree, *, everywhere: bool) -> Iterator[None]:
    """Calls made inside belong to the tree; with `everywhere` also those of threads that nobody saw start."""
    if everywhere:
        _open.append(tree)
    try:
        with within(tree.root):
            yield
    finally:
        tree.closed = True
        if everywhere:
            with suppress(ValueError):  # in a child that was forked inside
                _open.remove(tree)
