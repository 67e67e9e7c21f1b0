"""asyncio, concurrent.futures and threading: what a rollout function starts gets a strand of its own, below the one it
was started from. Context variables alone would give all tasks the same, and threads none.
"""

import asyncio
import concurrent.futures
import contextvars
import functools
import threading
from collections.abc import Callable
from typing import Any

from logs_ui.recorder.capture.instruments import thread_pool
from logs_ui.recorder.capture.instruments.patch import patches
from logs_ui.recorder.capture.strands import (
    Strand,
    branch,
    carried,
    enter,
    leave,
    strand_of_thread,
    within,
)
from logs_ui.recorder.guard import guard


def install() -> None:
    """Patches asyncio's event loop, thread pools and threads. Another loop, as uvloop's, is told apart by its tasks."""
    patches.method(asyncio.BaseEventLoop, "create_task", _task_with_strand)
    patches.method(concurrent.futures.ThreadPoolExecutor, "submit", _work_with_strand)
    patches.method(threading.Thread, "start", _thread_with_strand)
    patches.when_imported("multiprocessing.pool", thread_pool.attach)


def _task_with_strand(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def create_task(self: Any, coro: Any, *args: Any, context: Any = None, **kwargs: Any) -> Any:
        # Whose context it is decides what is in it, and a factory of the user's own may not take one.
        strand = branch() if context is None and self.get_task_factory() is None else None
        if strand is None:
            given = {} if context is None else {"context": context}
            return original(self, coro, *args, **given, **kwargs)
        context = contextvars.copy_context()  # as a task makes its own
        context.run(enter, strand)
        return original(self, coro, *args, context=context, **kwargs)

    return create_task


def _work_with_strand(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def submit(self: Any, fn: Any, /, *args: Any, **kwargs: Any) -> Any:
        strand = branch()
        if strand is None:
            return original(self, fn, *args, **kwargs)
        entered = enter(None)  # a worker that begins with this takes others' work, too
        try:
            return original(self, carried(strand, fn), *args, **kwargs)
        finally:
            leave(entered)

    return submit


def _thread_with_strand(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def start(self: threading.Thread) -> None:
        with guard("following a thread"):
            if self.ident is None and (strand := strand_of_thread(self)) is not None:
                _run_in(self, strand)
        original(self)

    return start


def _run_in(thread: threading.Thread, strand: Strand) -> None:
    """Of the thread itself: its class may have a `run` of its own."""
    work = thread.run

    def run() -> None:
        del thread.run  # it holds the thread, the strand and its log
        with within(strand):
            work()

    thread.run = run  # type: ignore[method-assign]
