"""Runs calls of an environment in threads: one event loop, and threads for clients that block.

Both keep the caller's context variables, because the recorder uses them to attribute a call to its row.
"""

import asyncio
import contextvars
import functools
import queue
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, TypeVar

T = TypeVar("T")


class BackgroundLoop:
    """An event loop that keeps running between batches, so that its connections stay alive: they answer the server's
    pings while the trainer's own thread trains.
    """

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="logs-ui-sessions", daemon=True)
        self._thread.start()

    async def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Return the coroutine's result, from any other loop."""
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(coroutine, self._loop))

    def begin(self, coroutine: Coroutine[Any, Any, object]) -> None:
        """Start the coroutine without waiting for it. Those that one thread starts, start in that order."""
        asyncio.run_coroutine_threadsafe(coroutine, self._loop)

    def stop(self, last: Coroutine[Any, Any, object], seconds: float) -> None:
        """Run one last coroutine, with a time limit, and end the thread. It does not wait if it is called in that
        very thread, which the garbage collector can do.
        """
        ended = asyncio.run_coroutine_threadsafe(last, self._loop)
        if threading.current_thread() is self._thread:
            ended.add_done_callback(lambda _: self._loop.stop())
            return
        with suppress(Exception):
            ended.result(seconds)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(seconds)
        if not self._thread.is_alive():
            self._loop.close()


async def in_thread(call: Callable[[], T]) -> T:
    """Return the result of a blocking call.

    It runs in a new daemon thread, because asyncio's pool is small, hung calls would block it for others, and Python
    waits for that pool when it exits.
    """
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()
    context = contextvars.copy_context()

    def work() -> None:
        try:
            settle = functools.partial(future.set_result, context.run(call))
        except StopIteration as error:  # no future takes one
            settle = functools.partial(future.set_exception, RuntimeError(repr(error)))
        except BaseException as error:  # noqa: BLE001 - the caller's business, not this thread's
            settle = functools.partial(future.set_exception, error)
        with suppress(RuntimeError):  # the loop has ended: nobody waits any more
            loop.call_soon_threadsafe(lambda: None if future.done() else settle())

    try:
        threading.Thread(target=work, name="logs-ui-call", daemon=True).start()
    except RuntimeError:
        if threading.main_thread().is_alive():
            raise
        work()  # the interpreter ends, and from Python 3.12 on it starts no thread any more
    return await future


class OwnThread:
    """A thread in which calls are made one after another, for objects that are bound to the thread that created them,
    such as sqlite's connections and Playwright's browsers.

    Python does not wait for it when it exits, so that a call that hangs is left alone.
    """

    def __init__(self) -> None:
        self._calls: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        threading.Thread(target=self._work, name="logs-ui-environment", daemon=True).start()

    def submit(self, call: Callable[[], T]) -> "Future[T]":
        """Return the result of a blocking call, which runs in the caller's context."""
        future: Future[T] = Future()
        context = contextvars.copy_context()

        def work() -> None:
            if not future.set_running_or_notify_cancel():
                return
            try:
                result = context.run(call)
            except BaseException as error:  # noqa: BLE001 - the caller's business, not this thread's
                is_plain = isinstance(error, Exception) and not isinstance(error, StopIteration)
                future.set_exception(error if is_plain else RuntimeError(repr(error)))  # no loop survives the others
            else:
                future.set_result(result)

        self._calls.put(work)
        return future

    def end(self) -> None:
        """End the thread once everything that was submitted is done."""
        self._calls.put(None)

    def _work(self) -> None:
        while (work := self._calls.get()) is not None:
            work()
