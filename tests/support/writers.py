"""Ends writers of this process before the process ends."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from logs_ui.recorder.delivery import writer
from logs_ui.recorder.delivery.committer import Committer
from logs_ui.recorder.delivery.helper.client import HelperClient
from logs_ui.recorder.delivery.writer import Writer


@contextmanager
def ending_writers() -> Iterator[None]:
    """Ends the writers that begin inside. In a training each lives as long as the process, and wakes five
    times a second: hundreds of them, as of so many tests, take longer than the tests themselves.
    """
    threads, addresses = set(_at_work()), set(writer._by_address)
    yield
    for thread, one in _at_work().items():
        if thread not in threads:
            _end(thread, one)
    for address in set(writer._by_address) - addresses:
        del writer._by_address[address]


def _at_work() -> dict[threading.Thread, Writer]:
    """Return each writer that has a thread, by its thread."""
    works = {thread: getattr(thread, "_target", None) for thread in threading.enumerate()}
    owners = {thread: getattr(work, "__self__", None) for thread, work in works.items()}
    return {thread: owner for thread, owner in owners.items() if isinstance(owner, Writer)}


def _end(thread: threading.Thread, one: Writer) -> None:
    """End a writer; it can be used again. One that waits for its database ends when the database comes back."""
    if isinstance(one._outlet, HelperClient):
        one.close()
    one._gave_up = "The test has ended."
    one._queue.wait_until_done(0)  # wakes it
    while thread.ident is None:  # another thread is starting it: join() refuses one that has not begun
        time.sleep(0.001)
    closing = threading.Thread(target=_close, args=(thread, one), daemon=True)
    closing.start()
    closing.join(2)


def _close(thread: threading.Thread, one: Writer) -> None:
    """Close a writer's files once its thread has ended: else they warn of it in whatever test comes then."""
    thread.join()
    if isinstance(one._outlet, Committer):
        one._outlet.close()
    one._reset()
