"""Keeps failures of the recorder away from the training: they are logged and counted, and raised only in tests."""

import logging
import os
import threading
import traceback
from types import TracebackType

from logs_ui.recorder.errors import LogsUIError
from logs_ui.recorder.snapshot import one_line

logger = logging.getLogger("logs_ui")

RAISE_VARIABLE = "LOGS_UI_RAISE"
"""Environment variable that is 1 in the project's own tests, where a failure of the recorder must be raised."""


class Guard:
    """Swallows the recorder's failures: logs the first of each kind, and counts all."""

    def __init__(self) -> None:
        self.errors = 0  # number of failures so far in this process
        self.last: str | None = None  # the latest failure as one line that any database can store; None without any
        self._seen: set[tuple[str, type[Exception]]] = set()
        self._lock = threading.RLock()  # reentrant: a destructor that runs while it is locked may fail too

    def renew_lock(self) -> None:
        """Renew the lock in a forked child: a thread of the parent that held it does not exist here."""
        self._lock = threading.RLock()

    def __call__(self, doing: str) -> "_Guarded":
        """Return a context manager that swallows; `doing` is what is tried: "TypeError while {doing}"."""
        return _Guarded(self, doing)

    def swallow(self, doing: str, error: Exception) -> None:
        """Do the same in an `except`, where a `with` would take too long. Raise the error in our own tests."""
        self.caught(doing, error)
        if os.environ.get(RAISE_VARIABLE) == "1":
            raise error

    def caught(self, doing: str, error: Exception) -> None:
        """Count and log a failure that was caught elsewhere; a mistake of the user without its traceback."""
        is_users = isinstance(error, LogsUIError)
        message = str(traceback.TracebackException(type(error), error, None))  # also where its __str__ fails
        described = message if is_users else f"{type(error).__name__} while {doing}: {message}"
        line = next(iter(described.splitlines()), "")
        with self._lock:
            self.errors += 1
            self.last = one_line(line)
            kind = (doing, type(error))
            first = kind not in self._seen
            self._seen.add(kind)
        if first:
            logger.error(
                "logs-ui: recording failed (%s). Your training goes on, with less recorded; "
                "the same failure is not logged again, but counted on the run.",
                line.removesuffix("."),
                exc_info=None if is_users else error,
            )


class _Guarded:
    """Manages a `Guard`'s context. A class is faster than a generator, and each environment call enters some."""

    __slots__ = ("_doing", "_guard")

    def __init__(self, guard: Guard, doing: str) -> None:
        self._guard, self._doing = guard, doing

    def __enter__(self) -> None:
        pass

    def __exit__(self, _: type[BaseException] | None, error: BaseException | None, __: TracebackType | None) -> bool:
        if not isinstance(error, Exception):
            return False
        self._guard.caught(self._doing, error)
        return os.environ.get(RAISE_VARIABLE) != "1"


guard = Guard()
"""The guard of this process."""

if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(after_in_child=guard.renew_lock)
