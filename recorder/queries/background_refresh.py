"""Refreshes slow figures in a background thread, while pages show the ones before. It works only for engines that were
passed to `begin`, as the dashboard does with its own.
"""

import logging
import threading
from collections.abc import Callable, Hashable
from concurrent.futures import ThreadPoolExecutor
from weakref import WeakKeyDictionary

from sqlalchemy import Connection, Engine

from logs_ui.recorder.queries.search.full_text import planning

_log = logging.getLogger(__name__)


class _Refresher:
    """Runs the queries of one engine, one after the other."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._lock = threading.Lock()
        self._waiting: set[Hashable] = set()
        self.thread = ThreadPoolExecutor(1, thread_name_prefix="logs-ui-figures")

    def submit(self, key: Hashable, query: Callable[[Connection], object]) -> None:
        with self._lock:
            if key in self._waiting:
                return
            self._waiting.add(key)
        self.thread.submit(self._run, key, query)

    def _run(self, key: Hashable, query: Callable[[Connection], object]) -> None:
        try:
            with self._engine.begin() as connection, planning(connection):
                query(connection)
        except Exception as error:  # noqa: BLE001 - a page that finds the figure too old queries itself, and reports errors
            _log.debug("not refreshed: %s", error)
        finally:
            with self._lock:
                self._waiting.discard(key)


_refreshers: "WeakKeyDictionary[Engine, _Refresher]" = WeakKeyDictionary()


def begin(engine: Engine) -> None:
    """Start a background thread for an engine."""
    _refreshers[engine] = _Refresher(engine)


def end(engine: Engine) -> None:
    """Stop an engine's background thread after the query that is running; the others are dropped."""
    if (refresher := _refreshers.pop(engine, None)) is not None:
        refresher.thread.shutdown(cancel_futures=True)


def ask_later(engine: Engine, key: Hashable, query: Callable[[Connection], object]) -> bool:
    """Queue a query, which runs in a transaction of its own and stores its result where pages look for it. A key that
    is queued already is not queued again. Return False if the engine has no background thread.
    """
    if (refresher := _refreshers.get(engine)) is None:
        return False
    try:
        refresher.submit(key, query)
    except RuntimeError:  # the thread is being stopped
        return False
    return True
