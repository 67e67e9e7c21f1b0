"""Never break a training, always break the project's own tests."""

import logging
import os
import threading
import traceback
from types import TracebackType

from logs_ui.recorder.errors import LogsUIError
from logs_ui.recorder.snapshot import one_line

logger = logging.getLogger("logs_ui")

RAISE_VARIABLE = "LOGS_UI_RAISE"
"""Set to 1 where a failure inside the recorder must not be swallowed: in the project's own tests."""


class Guard:
    """Swallows the recorder's own failures: logs each kind once, loudly, and counts all.

    Attributes:
        errors: failures so far, in this process.
        last: the latest, in one line that any database takes; None while there was none.
    """

    def __init__(self) -> None:
        self.errors = 0
        self.last: str | None = None
        self._seen: set[tuple[str, type[Exception]]] = set()
        self._lock = threading.RLock()  # a destructor that runs within it may fail, too

    def renew_lock(self) -> None:
        """For a child: at the fork another of the parent's threads may have held it, and that thread is not here."""
        self._lock = threading.RLock()

    def __call__(self, doing: str) -> "_Guarded":
        """`doing` says what was tried: "recording failed while {doing}"."""
        return _Guarded(self, doing)

    def swallow(self, doing: str, error: Exception) -> None:
        """As the `with` does, for an `except` where that takes too long.

        Raises:
            Exception: `error`, in the project's own tests.
        """
        self.caught(doing, error)
        if os.environ.get(RAISE_VARIABLE) == "1":
            raise error

    def caught(self, doing: str, error: Exception) -> None:
        """Counts and logs a failure that was caught elsewhere; the user's own mistake without its traceback."""
        is_users = isinstance(error, LogsUIError)
        message = str(traceback.TracebackException(type(error), error, None))  # also where its __str__ fails
        said = message if is_users else f"{type(error).__name__} while {doing}: {message}"
        line = next(iter(said.splitlines()), "")
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
    """One thing that is tried. No generator: some are entered for each call of an environment."""

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
"""The process's one guard."""

os.register_at_fork(after_in_child=guard.renew_lock)
