"""Sidecars: SQLite files beside the recorder's for notes and the full-text index, so that those who write them never
take the training's write lock. Readers see each as a schema of the database (`notes.star`).

To add one, add a `Sidecar` to `SIDECARS` and declare its tables under its schema (`MetaData(schema=...)`). Every
reading connection has it attached; `database.sidecar_engine()` writes it.
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
from sqlalchemy import MetaData
from sqlalchemy.dialects import sqlite
from sqlalchemy.schema import CreateTable

from logs_ui.recorder.storage.notes_tables import NotesTable
from logs_ui.recorder.storage.search_tables import COLUMNS, FTS5
from logs_ui.recorder.storage.search_tables import METADATA as SEARCH_METADATA
from logs_ui.recorder.storage.search_tables import TABLES as SEARCH_TABLES

_log = logging.getLogger(__name__)

_BUSY = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_PROTOCOL)

FileIdentity = tuple[int, ...]
"""Device and inode; for a file that is read without locks also: has a write-ahead log, time of change, size."""


@dataclass(frozen=True)
class Sidecar:
    """Describes one kind of sidecar."""

    schema: str  # its name in SQL, and part of its file's name: `runs.db` has a `runs.notes.db`
    tables: frozenset[str]  # a file that lacks one of them is not of this kind
    metadata: MetaData  # of its tables, but for a virtual one
    refuge: Callable[[], Path]  # returns the folder to use if the database's own cannot be written to
    virtual: tuple[str, ...] = ()  # the statement that creates that one
    probe: str = "SELECT 1"  # fails on a file that an earlier version made and this one cannot read

    @cache  # noqa: B019 - of two sidecars, which live as long as the process
    def create(self) -> tuple[str, ...]:
        """Return statements that create missing tables, with the schema in their names."""
        statements = [CreateTable(table, if_not_exists=True) for table in self.metadata.sorted_tables]
        return (*self.virtual, *(str(statement.compile(dialect=sqlite.dialect())) for statement in statements))

    def path(self, db: Path) -> Path:
        """Return the path that is written; the file need not exist."""
        beside = self.beside(db)
        if os.access(beside.parent, os.W_OK):
            return beside
        place = hashlib.sha256(os.path.realpath(db).encode()).hexdigest()[:12]
        return self.refuge() / f"{db.stem}-{place}.{self.schema}.db"

    def beside(self, db: Path) -> Path:
        """Return the path beside the database, used while that folder can be written to."""
        return db.with_name(f"{db.stem}.{self.schema}{db.suffix}")

    def readable(self, db: Path) -> Path | None:
        """Return the existing file; None if there is none yet. If the database's folder can no longer be written to,
        the file there counts until there is a newer one in the refuge.
        """
        return next((file for file in (self.path(db), self.beside(db)) if _size(file)), None)

    def attach(self, connection: sqlite3.Connection, db: Path) -> None:
        """Attach the file to a connection; if there is none, attach empty tables in memory."""
        file = self.readable(db)
        if file is not None and self._attach_file(connection, file):
            return
        connection.execute(f"ATTACH ':memory:' AS {self.schema}")
        for statement in self.create():
            connection.execute(statement)

    def _attach_file(self, connection: sqlite3.Connection, file: Path) -> bool:
        """Return True if the file is of this kind. A damaged sidecar must not break the pages."""
        try:
            _finish_rollback(file)
            connection.execute(f"ATTACH ? AS {self.schema}", [f"{file.absolute().as_uri()}?mode=ro"])
            if self.tables <= tables(connection, self.schema):
                connection.execute(self.probe)
                return True
            reason = "it holds something else"
        except sqlite3.DatabaseError as error:
            if error.sqlite_errorcode & 0xFF in _BUSY:
                raise
            reason = str(error)
        _log.warning("%s cannot be read, and its contents are not shown: %s", file, reason)
        with suppress(sqlite3.DatabaseError):  # such as one that was never attached
            connection.execute(f"DETACH {self.schema}")
        return False


def _finish_rollback(file: Path) -> None:
    # A process that was killed while it wrote leaves a journal, which a connection in mode=ro cannot roll back.
    if _size(file.with_name(f"{file.name}-journal")):
        with closing(sqlite3.connect(f"{file.absolute().as_uri()}?mode=rw", uri=True)) as connection:
            tables(connection, "main")


def tables(connection: sqlite3.Connection, schema: str) -> set[str]:
    """Return the names of a schema's tables."""
    return {name for (name,) in connection.execute(f"SELECT name FROM {schema}.sqlite_master WHERE type = 'table'")}  # noqa: S608 - a schema of ours


def identity(db: Path) -> tuple[FileIdentity | None, ...]:
    """Implement `database.identity`."""
    log = db.with_name(f"{db.name}-wal")  # of a file that was moved here, it may be another's for a moment
    return (
        file_identity(db, frozen=not os.access(db.parent, os.W_OK)),
        file_identity(log),
        *(file_identity(file) if (file := sidecar.readable(db)) else None for sidecar in SIDECARS),
    )


def file_identity(file: Path, *, frozen: bool = False) -> FileIdentity | None:
    # A file in a read-only folder is opened as if it never changed (see `sqlite.engine._read_mode`); if another user
    # writes it all the same, old connections must not be used any more.
    try:
        status = file.stat()
    except OSError:
        return None
    if not frozen:
        return status.st_dev, status.st_ino
    has_log = file.with_name(file.name + "-wal").exists()
    return status.st_dev, status.st_ino, has_log, status.st_mtime_ns, status.st_size


def _size(file: Path) -> int:
    # Not opened: to close the file again would drop the locks that this process holds on it.
    try:
        return file.stat().st_size
    except OSError:
        return 0


NOTES = Sidecar(
    schema="notes",
    tables=frozenset({"star", "tag", "note"}),  # earlier files lack the others
    metadata=NotesTable.metadata,
    # Not in the cache, which anybody may clear: people wrote them.
    refuge=lambda: Path(platformdirs.user_data_dir("logs-ui", appauthor=False)) / "notes",
)
SEARCH = Sidecar(
    schema="search",
    tables=SEARCH_TABLES,
    metadata=SEARCH_METADATA,
    virtual=(FTS5,),
    refuge=lambda: Path(platformdirs.user_cache_dir("logs-ui", appauthor=False)),
    probe=f"SELECT {', '.join(COLUMNS)} FROM search.texts LIMIT 0",  # noqa: S608 - ours
)
SIDECARS: tuple[Sidecar, ...] = (NOTES, SEARCH)
