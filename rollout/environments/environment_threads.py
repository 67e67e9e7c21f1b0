"""Where calls of an environment run: an event loop in a thread of its own, and threads for clients that block.

Both keep the caller's context variables, by which the recorder tells whose call it is.
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
    """An event loop that keeps running between batches, so that the connections in it stay alive: they answer the
    server's pings while the trainer's own thread learns.
    """

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="logs-ui-sessions", daemon=True)
        self._thread.start()

    async def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """The coroutine's result, from any other loop."""
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(coroutine, self._loop))

    def begin(self, coroutine: Coroutine[Any, Any, object]) -> None:
        """As `run`, from any thread, but nobody waits for it. What one thread begins, begins in that order."""
        asyncio.run_coroutine_threadsafe(coroutine, self._loop)

    def stop(self, last: Coroutine[Any, Any, object], seconds: float) -> None:
        """Runs one last coroutine, for so long at most, and ends the thread. Does not wait where it is itself the
        thread that it runs in, as the garbage collector's caller may be.
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
    """The result of a call that blocks.

    In a daemon thread of its own: asyncio's pool has few, which hung calls would take from the others, and Python waits
    for it at its end.
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
    """A thread in which calls are made one after another: what is bound to the thread that made it, as sqlite's
    connections and Playwright's browsers are, is made and used in it.

    Python does not wait for it at its end, so that a call that hangs is left alone.
    """

    def __init__(self) -> None:
        self._calls: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        threading.Thread(target=self._work, name="logs-ui-environment", daemon=True).start()

    def submit(self, call: Callable[[], T]) -> "Future[T]":
        """The result of a call that blocks, made in the caller's context."""
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
        """Once all that was submitted is done."""
        self._calls.put(None)

    def _work(self) -> None:
        while (work := self._calls.get()) is not None:
            work()
