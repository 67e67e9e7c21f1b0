"""Gives each task, pool item and thread that a rollout function starts a strand below the one it was started from.

It attaches to asyncio, concurrent.futures, threading and multiprocessing's ThreadPool. With context variables alone all
tasks would have the same strand, and threads none.
"""

import asyncio
import concurrent.futures
import contextvars
import functools
import threading
from collections.abc import Iterable
from types import ModuleType
from typing import Any

from logs_ui.recorder.capture.instruments.patch import Method, patch, patches
from logs_ui.recorder.capture.strands import Strand, branch, carried, enter, leave, strand_of_thread, within
from logs_ui.recorder.guard import guard


def install() -> None:
    """Patch asyncio's event loop, thread pools and threads. Tasks of other loops (uvloop) get stray strands."""
    patches.method(asyncio.BaseEventLoop, "create_task", _task_with_strand)
    patches.method(concurrent.futures.ThreadPoolExecutor, "submit", _work_with_strand)
    patches.method(threading.Thread, "start", _thread_with_strand)
    patches.when_imported("multiprocessing.pool", _attach_pools)


def _attach_pools(module: ModuleType) -> None:
    """Patch `multiprocessing.pool`. Its pools of processes share these methods; their calls are passed on."""
    pool, threads = module.Pool, module.ThreadPool
    patches.method(pool, "apply_async", patch(functools.partial(_one_with_strand, threads)))
    for name in ("map", "map_async", "imap", "imap_unordered", "starmap", "starmap_async"):
        patches.method(pool, name, patch(functools.partial(_each_with_strand, threads, is_star="star" in name)))


@patch
def _task_with_strand(
    create_task: Method, loop: Any, /, coro: Any, *args: Any, context: Any = None, **kwargs: Any
) -> Any:
    # A context that the caller passes is the caller's to fill, and the user's task factory may not take one.
    strand = branch() if context is None and loop.get_task_factory() is None else None
    if strand is None:
        passed = {} if context is None else {"context": context}
        return create_task(loop, coro, *args, **passed, **kwargs)
    context = contextvars.copy_context()  # a task would do the same
    context.run(enter, strand)
    return create_task(loop, coro, *args, context=context, **kwargs)


@patch
def _work_with_strand(submit: Method, pool: Any, fn: Any, /, *args: Any, **kwargs: Any) -> Any:
    strand = branch()
    if strand is None:
        return submit(pool, fn, *args, **kwargs)
    entered = enter(None)  # a worker thread that starts here will run items of other rows too
    try:
        return submit(pool, carried(strand, fn), *args, **kwargs)
    finally:
        leave(entered)


@patch
def _thread_with_strand(start: Method, thread: threading.Thread) -> None:
    with guard("following a thread"):
        if thread.ident is None and (strand := strand_of_thread(thread)) is not None:
            _run_in(thread, strand)
    start(thread)


def _run_in(thread: threading.Thread, strand: Strand) -> None:
    """Wrap `run` of this thread, and not of its class, which may define its own."""
    work = thread.run

    def run() -> None:
        del thread.run  # else it would keep the thread, the strand and its collector in memory
        with within(strand):
            work()

    thread.run = run  # type: ignore[method-assign]


def _one_with_strand(threads: type, apply_async: Method, pool: Any, /, func: Any, *args: Any, **kwargs: Any) -> Any:
    strand = branch() if isinstance(pool, threads) else None
    return apply_async(pool, func if strand is None else carried(strand, func), *args, **kwargs)


def _each_with_strand(
    threads: type, map_: Method, pool: Any, func: Any, iterable: Iterable[Any], *args: Any, is_star: bool, **kwargs: Any
) -> Any:
    """Run each item in a strand of its own; `is_star` is True for the methods whose items are several arguments."""
    above = branch() if isinstance(pool, threads) else None
    if above is None:
        return map_(pool, func, iterable, *args, **kwargs)

    # A pool passes its worker only the item, so each item carries its strand. The starmap methods unpack it into
    # arguments, the others pass it as one tuple.
    def work(*item: Any) -> Any:
        strand, *arguments = item if is_star else item[0]
        with within(strand):
            return func(*arguments)

    items = ((above.tree.child(above), *(item if is_star else [item])) for item in iterable)
    return map_(pool, work, items, *args, **kwargs)
