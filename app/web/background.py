"""Runs threads that work now and then while the dashboard serves."""

import logging
import threading
from abc import ABC, abstractmethod

from logs_ui.recorder.delivery.committer import entry_of
from logs_ui.recorder.errors import LogsUIError
from logs_ui.recorder.storage.address import Address
from logs_ui.recorder.storage.spool.ingest import Ingester

_log = logging.getLogger(__name__)
_PATIENCE = 30.0  # seconds after a failure


class Background(ABC):
    """A thread that calls `_do_work` until it is stopped; `start()` starts it."""

    def __init__(self, name: str, *, pause: float) -> None:
        """Prepare the thread; `pause` is in seconds, between two calls."""
        self.trouble: str | None = None  # the error that keeps it from its work, in one line
        self._pause = pause
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Return when the current step has ended."""
        self._stop.set()
        self._thread.join()

    @abstractmethod
    def _do_work(self) -> bool:
        """Do the work that is due; return False if it cannot be done now."""

    @abstractmethod
    def _warning(self, reason: str) -> str | None:
        """Return what to log about an error, whose text is `reason`; None if it is logged already."""

    def _run(self) -> None:
        while not self._stop.is_set():
            self._stop.wait(self._pause if self._try() else _PATIENCE)

    def _try(self) -> bool:
        try:
            return self._do_work()
        except Exception as error:  # noqa: BLE001 - the thread must outlive it: pages wait for what it does
            reason = str(error) or type(error).__name__
            if (warning := self._warning(reason)) is not None:
                _log.warning("%s: %s", warning, reason, exc_info=not isinstance(error, LogsUIError | OSError))
            self.trouble = reason
            return False


class Ingesting(Background):
    """The thread that stores recordings that wait on disk in the database."""

    def __init__(self, address: Address) -> None:
        super().__init__("logs-ui-ingest", pause=1.0)
        self._ingester = Ingester(address, entry_of)

    def _do_work(self) -> bool:
        self._ingester.take_in(self._stop.is_set)
        self.trouble = None
        return True

    def _warning(self, reason: str) -> str | None:
        is_known = reason == self.trouble
        return (
            None if is_known else f"The changes that wait in {self._ingester.folder} cannot be stored in the database"
        )
