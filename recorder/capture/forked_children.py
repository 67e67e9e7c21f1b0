"""Counts calls made in forked children, whose copy of the collector never reaches the parent."""

import logging
import mmap
import os
import threading
from typing import Self

logger = logging.getLogger("logs_ui")

_SLOTS = mmap.PAGESIZE // 8
_MOST = 10_000  # calls that are taken at once; the others are taken the next time


class CallsOfChildren:
    """A count that children write and their parent reads. It is in shared memory, and not behind a file descriptor: a
    child may have closed that, and opened another file under its number.
    """

    def __init__(self) -> None:
        self._counts = memoryview(mmap.mmap(-1, mmap.PAGESIZE)).cast("Q")
        self._lock = threading.Lock()
        self._there_are = False
        self._taken = 0

    def there_are(self) -> None:
        """Note, in the parent, that a child was forked."""
        self._there_are = True

    def forked(self) -> Self:
        """Renew the lock in a child: another thread of the parent may have held it at the fork."""
        self._lock = threading.Lock()
        return self

    def add(self) -> None:
        """Count a call, in a child. If the PIDs of two children share a slot, a call may be missed."""
        with self._lock:
            # Processes share no lock here, so each child counts in a slot of its own.
            self._counts[os.getpid() % _SLOTS] += 1

    def take(self) -> int:
        """Return how many were made since the last time; log the first."""
        if not self._there_are:
            return 0
        with self._lock:
            new = min(sum(self._counts) - self._taken, _MOST)
            first = new > 0 and not self._taken
            self._taken += new
        if first:
            logger.warning(
                "logs-ui: a process that was forked while a rollout was recorded made calls. They are counted on the "
                "run, and not recorded. Play rows in threads or tasks, or in rollouts of start_run() in each process."
            )
        return new
