"""Takes what waits on disk into the database while the dashboard serves."""

import logging

from logs_ui.app.web.background import Background
from logs_ui.recorder.errors import LogsUIError
from logs_ui.recorder.storage.address import Address
from logs_ui.recorder.storage.spool.spool_ingest import Ingester

_log = logging.getLogger(__name__)
_PAUSE = 1.0  # seconds between two looks
_PATIENCE = 30.0  # after a failure


class Ingesting(Background):
    """In a thread of its own, while the dashboard serves. Begins with `start()`."""

    def __init__(self, address: Address) -> None:
        super().__init__("logs-ui-ingest", pause=_PAUSE, patience=_PATIENCE)
        self._ingester = Ingester(address)
        self._said: str | None = None

    def _look(self) -> bool:
        """Whether that was possible; what keeps it from being so is said once."""
        try:
            self._ingester.take_in(self._stop.is_set)
        except Exception as error:  # noqa: BLE001 - the thread must outlive it
            is_known = isinstance(error, LogsUIError | OSError)
            if str(error) != self._said:
                self._said = str(error)
                said = "What waits in %s cannot be taken into the database: %s"
                _log.warning(said, self._ingester.folder, error, exc_info=not is_known)
            return False
        self._said = None
        return True
