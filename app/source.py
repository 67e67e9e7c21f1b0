"""The database as the pages see it: opened when the first page asks, and again when its file was replaced."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

from fastapi import Depends, Request
from sqlalchemy import Connection, Engine

from logs_ui.recorder.database import errors_in_plain_words, reading_engine
from logs_ui.recorder.errors import NoDatabaseError
from logs_ui.recorder.models import Run


class Source:
    """One database file, which may not exist yet, and may be deleted or replaced while the dashboard runs."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = threading.Lock()
        self._engine: Engine | None = None
        self._identity: tuple[int, int] | None = None

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        """One moment of it: what is written meanwhile shows in none of a page's figures, rather than in some.

        Raises:
            DatabaseError: missing, not one of ours, or it went wrong while it was read.
        """
        with errors_in_plain_words(self.path), self._opened().begin() as connection:
            yield connection

    def _opened(self) -> Engine:
        with self._lock:
            identity = self._file_identity()
            if self._engine is None or identity is None or identity != self._identity:
                self._close()
                self._engine = reading_engine(self.path)
                self._identity = identity
            return self._engine

    def exists(self) -> bool:
        """Whether there is anything to read yet.

        Raises:
            DatabaseError: there is, but not one of ours.
        """
        try:
            self._opened()
        except NoDatabaseError:
            return False
        return True

    def close(self) -> None:
        """Lets go of the file; the next `reading()` opens it again."""
        with self._lock:
            self._close()

    def _close(self) -> None:
        if self._engine is not None:
            self._engine.dispose()
        self._engine = None

    def _file_identity(self) -> tuple[int, int] | None:
        try:
            status = self.path.stat()
        except OSError:
            return None
        return status.st_dev, status.st_ino


def id_of(run: Run) -> int:
    """Its number in the database that it came from."""
    assert run.id is not None  # noqa: S101 - only one that was never stored has none
    return run.id


def _source(request: Request) -> Source:
    source: Source = request.app.state.source
    return source


SourceOfPages = Annotated[Source, Depends(_source)]
"""The database file."""
