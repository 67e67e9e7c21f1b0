"""How many calls children made that were forked while a rollout was recorded: of its log they have but a copy."""

import logging
import mmap
import os
import threading
from typing import Self

logger = logging.getLogger("logs_ui")

_SLOTS = mmap.PAGESIZE // 8
_MOST = 10_000  # that are taken at once: the next time takes the others


class CallsOfChildren:
    """A count that children write and their parent reads: memory that is shared over a fork, and no file descriptor,
    which a child may have closed and given to another file.
    """

    def __init__(self) -> None:
        self._counts = memoryview(mmap.mmap(-1, mmap.PAGESIZE)).cast("Q")
        self._lock = threading.Lock()
        self._there_are = False
        self._taken = 0

    def there_are(self) -> None:
        """In the parent: a child was forked."""
        self._there_are = True

    def forked(self) -> Self:
        """Itself, in a child: at the fork another of the parent's threads may have held the lock."""
        self._lock = threading.Lock()
        return self

    def add(self) -> None:
        """In a child: one call. Of two children whose numbers (PIDs) share a slot, one's may be missed."""
        with self._lock:
            self._counts[os.getpid() % _SLOTS] += 1

    def take(self) -> int:
        """How many were made since the last time; the log says so at the first."""
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
