"""Keeps the full-text index up to date while the dashboard serves."""

import time
from contextlib import suppress

from logs_ui.app.web.background import Background
from logs_ui.app.web.open_database import Source
from logs_ui.recorder.errors import LogsUIError
from logs_ui.recorder.queries.search.index import SearchIndex
from logs_ui.recorder.storage.address import Address

_STEP_REST = 0.02  # seconds after each step
_QUIET = 0.05  # seconds since a page last read
_LONGEST_REST = 3.0  # seconds, however many pages read: one in twenty then meets a step of 200 rollouts, at most


class Indexer(Background):
    """The thread that fills the index; `start()` starts it."""

    def __init__(self, db: Address, source: Source) -> None:
        super().__init__("logs-ui-index", pause=2.0)
        self._has_filled = False
        self._steps = 0  # of this turn
        self._gave_way = False
        self._source = source
        self._index = SearchIndex(db, source.reading_beside)

    def stop(self) -> None:
        """Stop, and close the database, since no page is requested any more."""
        super().stop()
        self._source.close()
        if self._has_filled:
            with suppress(LogsUIError, OSError):
                self._index.settle()

    def _do_work(self) -> bool:
        """Fill the index, if there is a database."""
        try:
            if not self._source.exists():
                return True
        except LogsUIError:  # every page says so
            return False
        if not self._source.rights().search:
            self.trouble = (
                "this dashboard is read-only. Another dashboard, or load_run(where=...), has to build the index."
            )
            return False
        self._has_filled = True
        self._fill()
        self.trouble = None
        return True

    def _warning(self, reason: str) -> str | None:  # noqa: ARG002 - any
        warning = "Texts cannot be indexed, so new rollouts cannot be searched"
        return warning if self.trouble is None else None

    def _fill(self) -> None:
        """Fill the index with all final texts. While pages read, which share processor and interpreter with this
        thread, it works one step at a time; in between another process may fill the index.
        """
        while not self._stop.is_set():
            self._steps, self._gave_way = 0, False
            self._index.fill(stopped=self._turn_is_over)
            if not self._gave_way:
                return
            self._rest()

    def _turn_is_over(self) -> bool:
        """Return True to give way to pages; called before each step."""
        self._steps += 1
        self._gave_way = self._steps > 1 and (self._stop.wait(_STEP_REST) or self._source.quiet < _QUIET)
        return self._gave_way

    def _rest(self) -> None:
        latest = time.monotonic() + _LONGEST_REST
        while not self._stop.wait(_STEP_REST) and self._source.quiet < _QUIET and time.monotonic() < latest:
            pass
