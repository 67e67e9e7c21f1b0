"""Gives each task, pool item and thread that a rollout function starts a strand below the one it was started from.

It attaches to asyncio, concurrent.futures and threading. With context variables alone all tasks would have the same
strand, and threads none.
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
from logs_ui.recorder.capture.strands import Strand, branch, carried, enter, leave, strand_of_thread, within
from logs_ui.recorder.guard import guard


def install() -> None:
    """Patch asyncio's event loop, thread pools and threads. Tasks of other loops (uvloop) get stray strands."""
    patches.method(asyncio.BaseEventLoop, "create_task", _task_with_strand)
    patches.method(concurrent.futures.ThreadPoolExecutor, "submit", _work_with_strand)
    patches.method(threading.Thread, "start", _thread_with_strand)
    patches.when_imported("multiprocessing.pool", thread_pool.attach)


def _task_with_strand(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def create_task(self: Any, coro: Any, *args: Any, context: Any = None, **kwargs: Any) -> Any:
        # A context that the caller passes is the caller's to fill, and the user's task factory may not take one.
        strand = branch() if context is None and self.get_task_factory() is None else None
        if strand is None:
            passed = {} if context is None else {"context": context}
            return original(self, coro, *args, **passed, **kwargs)
        context = contextvars.copy_context()  # a task would do the same
        context.run(enter, strand)
        return original(self, coro, *args, context=context, **kwargs)

    return create_task


def _work_with_strand(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def submit(self: Any, fn: Any, /, *args: Any, **kwargs: Any) -> Any:
        strand = branch()
        if strand is None:
            return original(self, fn, *args, **kwargs)
        entered = enter(None)  # a worker thread that starts here will run items of other rows too
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
    """Wrap `run` of this thread, and not of its class, which may define its own."""
    work = thread.run

    def run() -> None:
        del thread.run  # else it would keep the thread, the strand and its log in memory
        with within(strand):
            work()

    thread.run = run  # type: ignore[method-assign]
