"""What a page does not wait for: questions that are asked again in a thread of their own, while pages show the answers
before. Only of an engine for which somebody said `begin`, as the dashboard does of its own.
"""

import logging
import threading
from collections.abc import Callable, Hashable
from concurrent.futures import ThreadPoolExecutor
from weakref import WeakKeyDictionary

from sqlalchemy import Connection, Engine

from logs_ui.recorder.queries.search.full_text import planning

_log = logging.getLogger(__name__)


class _Questions:
    """Of one engine, one after the other."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._lock = threading.Lock()
        self._waiting: set[Hashable] = set()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="logs-ui-figures")

    def ask(self, key: Hashable, question: Callable[[Connection], object]) -> None:
        with self._lock:
            if key in self._waiting:
                return
            self._waiting.add(key)
        self._thread.submit(self._asked, key, question)

    def close(self) -> None:
        self._thread.shutdown(cancel_futures=True)

    def _asked(self, key: Hashable, question: Callable[[Connection], object]) -> None:
        try:
            with self._engine.begin() as connection, planning(connection):
                question(connection)
        except Exception as error:  # noqa: BLE001 - a page that finds the answer too old asks itself, and says so
            _log.debug("not asked again: %s", error)
        finally:
            with self._lock:
                self._waiting.discard(key)


_known: "WeakKeyDictionary[Engine, _Questions]" = WeakKeyDictionary()


def begin(engine: Engine) -> None:
    """From now on questions of this engine may be asked later."""
    _known[engine] = _Questions(engine)


def end(engine: Engine) -> None:
    """Returns when the question that is being asked has its answer; the others are given up."""
    questions = _known.pop(engine, None)
    if questions is not None:
        questions.close()


def ask_later(engine: Engine, key: Hashable, question: Callable[[Connection], object]) -> bool:
    """Has a question asked in a transaction of its own, once however often it is wanted meanwhile.

    Args:
        engine: of the database.
        key: names the question.
        question: asks it of a connection, and keeps the answer where pages look for it.

    Returns:
        False where nobody would ask it.
    """
    questions = _known.get(engine)
    if questions is None:
        return False
    try:
        questions.ask(key, question)
    except RuntimeError:  # it ends just now
        return False
    return True
