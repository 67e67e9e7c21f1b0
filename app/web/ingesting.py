"""Stores recordings that wait on disk in the database while the dashboard serves."""

import logging

from logs_ui.app.web.background import Background
from logs_ui.recorder.errors import LogsUIError
from logs_ui.recorder.storage.address import Address
from logs_ui.recorder.storage.spool.spool_ingest import Ingester

_log = logging.getLogger(__name__)
_PAUSE = 1.0  # seconds between two looks
_PATIENCE = 30.0  # after a failure


class Ingesting(Background):
    """The thread that ingests; `start()` starts it."""

    def __init__(self, address: Address) -> None:
        super().__init__("logs-ui-ingest", pause=_PAUSE, patience=_PATIENCE)
        self._ingester = Ingester(address)
        self._said: str | None = None

    def _look(self) -> bool:
        """Ingests what waits. An error is logged once, until it changes."""
        try:
            self._ingester.take_in(self._stop.is_set)
        except Exception as error:  # noqa: BLE001 - the thread must outlive it
            is_known = isinstance(error, LogsUIError | OSError)
            if str(error) != self._said:
                self._said = str(error)
                said = "The changes that wait in %s cannot be stored in the database: %s"
                _log.warning(said, self._ingester.folder, error, exc_info=not is_known)
            return False
        self._said = None
        return True
