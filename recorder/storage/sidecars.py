"""Databases beside the recorder's, each in a file of its own: whoever fills them never takes the training's write lock,
and never touches its file. To readers each is a schema of the one database (`notes.star`).

A further one is a `Sidecar` in `SIDECARS`. Its tables are declared under its schema (`MetaData(schema=...)`, or written
so in its statements); every reading connection has it attached; `database.sidecar_engine()` writes it.
"""

import hashlib
import logging
import os
import sqlite3
from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import platformdirs
from sqlalchemy.dialects import sqlite
from sqlalchemy.schema import CreateTable

from logs_ui.recorder.storage.notes_tables import NotesTable, SavedSettings
from logs_ui.recorder.storage.search_tables import TABLES as SEARCH_TABLES
from logs_ui.recorder.storage.search_tables import create_search

_log = logging.getLogger(__name__)

_BUSY = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_PROTOCOL)

FileIdentity = tuple[int, ...]
"""Device and inode; of what is read without locks also whether it has a write-ahead log, when it changed, and its size.
"""


@dataclass(frozen=True)
class Sidecar:
    """One kind of them.

    Attributes:
        schema: its name in SQL, and within the file's: `runs.db` has a `runs.notes.db`.
        tables: a file that lacks one of them is not of its kind.
        create: gives the statements that make them where they are missing, each name with the schema before it.
        refuge: gives the folder that it lies in where the database's own cannot be written to.
    """

    schema: str
    tables: frozenset[str]
    create: Callable[[], tuple[str, ...]]
    refuge: Callable[[], Path]

    def path(self, db: Path) -> Path:
        """Where it is written. It need not be there."""
        beside = self.beside(db)
        if os.access(beside.parent, os.W_OK):
            return beside
        place = hashlib.sha256(os.path.realpath(db).encode()).hexdigest()[:12]
        return self.refuge() / f"{db.stem}-{place}.{self.schema}.db"

    def beside(self, db: Path) -> Path:
        """Where it lies as long as the database's folder can be written to."""
        return db.with_name(f"{db.stem}.{self.schema}{db.suffix}")

    def readable(self, db: Path) -> Path | None:
        """The file that there is; None where it has yet to be written. In a folder that can no longer be written to,
        what was written there counts until something newer lies elsewhere.
        """
        return next((file for file in (self.path(db), self.beside(db)) if _size(file)), None)

    def attach(self, connection: sqlite3.Connection, db: Path) -> None:
        """Lets a connection read it: the file, else empty tables in memory, so that there always are some."""
        file = self.readable(db)
        if file is not None and self._attach_file(connection, file):
            return
        connection.execute(f"ATTACH ':memory:' AS {self.schema}")
        for statement in self.create():
            connection.execute(statement)

    def _attach_file(self, connection: sqlite3.Connection, file: Path) -> bool:
        """Whether it is one of this kind. A damaged one must not take the pages with it that it is only beside."""
        try:
            _finish_rollback(file)
            connection.execute(f"ATTACH ? AS {self.schema}", [f"{file.absolute().as_uri()}?mode=ro"])
            if self.tables <= tables(connection, self.schema):
                return True
            reason = "it holds something else"
        except sqlite3.DatabaseError as error:
            if error.sqlite_errorcode & 0xFF in _BUSY:
                raise
            reason = str(error)
        _log.warning("%s cannot be read, and what it holds is not shown: %s", file, reason)
        with suppress(sqlite3.DatabaseError):  # as where it could not be attached
            connection.execute(f"DETACH {self.schema}")
        return False


def _finish_rollback(file: Path) -> None:
    """Of a process that was killed while it wrote: readers that may not write cannot."""
    if _size(file.with_name(f"{file.name}-journal")):
        with closing(sqlite3.connect(f"{file.absolute().as_uri()}?mode=rw", uri=True)) as connection:
            tables(connection, "main")


def tables(connection: sqlite3.Connection, schema: str) -> set[str]:
    """Names of those that a schema has."""
    return {name for (name,) in connection.execute(f"SELECT name FROM {schema}.sqlite_master WHERE type = 'table'")}  # noqa: S608 - a schema of ours


def identity(db: Path) -> tuple[FileIdentity | None, ...]:
    """Of the database's file and of those beside it: connections that were made when it was another must be made anew.
    None stands for a file that is not there, or is empty still.
    """
    return _identity(db, frozen=not os.access(db.parent, os.W_OK)), *(
        _identity(file) if (file := it.readable(db)) else None for it in SIDECARS
    )


def _identity(file: Path, *, frozen: bool = False) -> FileIdentity | None:
    """A database that is taken for frozen, as in a folder that may not be written to (see `sqlite.reading_engine`), may
    be written by others all the same: a connection sees it as it was.
    """
    try:
        status = file.stat()
    except OSError:
        return None
    if not frozen:
        return status.st_dev, status.st_ino
    has_log = file.with_name(file.name + "-wal").exists()
    return status.st_dev, status.st_ino, has_log, status.st_mtime_ns, status.st_size


def _size(file: Path) -> int:
    """Never opened for it: closing the file again would drop the locks that this process holds on it."""
    try:
        return file.stat().st_size
    except OSError:
        return 0


@cache
def _create_notes() -> tuple[str, ...]:
    made = [CreateTable(table, if_not_exists=True) for table in NotesTable.metadata.sorted_tables]
    return tuple(str(statement.compile(dialect=sqlite.dialect())) for statement in made)


NOTES = Sidecar(
    schema="notes",
    tables=frozenset(table.name for table in NotesTable.metadata.sorted_tables) - {SavedSettings.__tablename__},
    create=_create_notes,
    # Not the cache's, which anybody may clear: somebody wrote them.
    refuge=lambda: Path(platformdirs.user_data_dir("logs-ui", appauthor=False)) / "notes",
)
SEARCH = Sidecar(
    schema="search",
    tables=SEARCH_TABLES,
    create=create_search,
    refuge=lambda: Path(platformdirs.user_cache_dir("logs-ui", appauthor=False)),
)
SIDECARS: tuple[Sidecar, ...] = (NOTES, SEARCH)
