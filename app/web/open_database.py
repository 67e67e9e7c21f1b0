"""The database as the pages see it: opened by the first page, and reopened when its file or one beside it was
replaced.
"""

import math
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Annotated

from fastapi import Depends, Request
from sqlalchemy import Connection, Engine

from logs_ui.recorder.errors import NoDatabaseError, RolloutNotFoundError
from logs_ui.recorder.queries import background_refresh, find_run
from logs_ui.recorder.queries.search.full_text import planning
from logs_ui.recorder.storage.address import Address
from logs_ui.recorder.storage.database import errors_in_plain_words, reading_engine
from logs_ui.recorder.storage.database import identity as identity_of
from logs_ui.recorder.storage.missing_columns import is_outdated
from logs_ui.recorder.storage.postgres.rights import NONE, Rights, rights_of
from logs_ui.recorder.storage.sidecars import FileIdentity
from logs_ui.recorder.storage.tables import Run


class Source:
    """One database, which may not exist yet; an SQLite file may be deleted or replaced while the dashboard runs."""

    def __init__(self, address: Address, *, read_only: bool = False) -> None:
        self.address = address
        self._read_only = read_only
        self._rights = NONE
        self._lock = threading.Lock()
        self._engine: Engine | None = None
        self._identity: tuple[FileIdentity | None, ...] = ()
        self._counting = threading.Lock()
        self._pages = 0  # that read it now
        self._read_at = -math.inf  # by a page, at last: of `time.monotonic`

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        """Yield a connection with a snapshot for a page, so that a concurrent write shows in none of its figures,
        rather than in some. Raise DatabaseError if the database is missing, is not one of ours, or failed while it was
        read.
        """
        with self._counting:
            self._pages += 1
        try:
            with self.reading_beside() as connection:
                yield connection
        finally:
            with self._counting:
                self._pages -= 1
                self._read_at = time.monotonic()

    @contextmanager
    def reading_run(self, run_reference: str) -> Iterator[tuple[Connection, Run]]:
        """Yield a connection as `reading` does, and the run of that name. Raise RunNotFoundError."""
        with self.reading() as db:
            yield db, find_run(db, run_reference)

    @property
    def quiet(self) -> float:
        """Return seconds since a page last read it; 0 while one does."""
        return 0.0 if self._pages else time.monotonic() - self._read_at

    @contextmanager
    def reading_beside(self) -> Iterator[Connection]:
        """Yield a connection, for work that gives way to pages. Raise DatabaseError as `reading` does."""
        with errors_in_plain_words(self.address), self._open_engine().begin() as connection, planning(connection):
            yield connection

    def _open_engine(self) -> Engine:
        # The lock is released before the stack closes the former engine, which may wait: see `_close`.
        with ExitStack() as behind_the_lock, self._lock:
            identity, before = identity_of(self.address), self._identity
            if before[1:2] == (None,):  # to read an SQLite file that has no log begins one
                before = before[0], *identity[1:2], *before[2:]
            is_same = self._engine is not None and identity[0] is not None and identity == before
            if self._engine is None or not is_same or is_outdated(self._engine):
                behind_the_lock.callback(_close, self._engine)
                if self._engine is not None:  # else new connections would share its index of an earlier log
                    self._engine.dispose()
                self._engine = None
                self._engine = reading_engine(self.address)
                background_refresh.begin(self._engine)
                self._rights = NONE if self._read_only else rights_of(self._engine)
            self._identity = identity
            return self._engine

    def exists(self) -> bool:
        """Return True if there is a database. Raise DatabaseError if there is one, but not one of ours."""
        try:
            with errors_in_plain_words(self.address):
                self._open_engine()
        except NoDatabaseError:
            return False
        return True

    def rights(self) -> Rights:
        """Return what the dashboard may write, as of the database's opening. Raise DatabaseError as `reading`."""
        with errors_in_plain_words(self.address):
            self._open_engine()
        return self._rights

    def refusal(self) -> str | None:
        """Return why notes cannot be written, for people; None if they can, and before the database is opened."""
        if self._rights.notes or (self._engine is None and not self._read_only):
            return None
        if self._read_only:
            return "This dashboard is read-only: stars, tags, notes and settings cannot be changed."
        return "The database user may only read: stars, tags, notes and settings cannot be changed."

    def close(self) -> None:
        """Close the database; the next `reading()` opens it again."""
        with self._lock:
            before, self._engine = self._engine, None
        _close(before)


def _close(engine: Engine | None) -> None:
    """Close an engine. Called without the lock: it waits for a background query, and pages must not."""
    if engine is not None:
        background_refresh.end(engine)
        engine.dispose()


def id_of(run: Run) -> int:
    """Return the run's id in its database."""
    assert run.id is not None  # noqa: S101 - only one that was never stored has none
    return run.id


def storable(row_id: int) -> int:
    """Return the id if a database can store it. Raise RolloutNotFoundError if no row can have that id."""
    if not 0 <= row_id < 2**63:
        raise RolloutNotFoundError(f"no rollout has the id {str(row_id)[:30]}")
    return row_id


def _source(request: Request) -> Source:
    source: Source = request.app.state.source
    return source


SourceOfPages = Annotated[Source, Depends(_source)]
"""The database, as a dependency of a page."""
