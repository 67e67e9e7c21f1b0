"""Opens SQLite files: connections, their settings, and errors in plain words; `database.py` documents its functions."""

import os
import sqlite3
import stat
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import orjson
from sqlalchemy import Engine, create_engine, event, inspect
from sqlalchemy.exc import DatabaseError as SQLAlchemyDatabaseError
from sqlalchemy.pool import QueuePool

from logs_ui.recorder.errors import DatabaseError, NoDatabaseError, RefusedDatabaseError
from logs_ui.recorder.snapshot import json_column
from logs_ui.recorder.storage import schema
from logs_ui.recorder.storage.file_system import network_kind
from logs_ui.recorder.storage.missing_columns import without_missing
from logs_ui.recorder.storage.schema import Lacks, Purpose
from logs_ui.recorder.storage.sidecars import SIDECARS, Sidecar, tables
from logs_ui.recorder.storage.spool_folder import what_to_do_first
from logs_ui.recorder.storage.sqlite.moved_files import MovedError, Place, keep_apart

WAL_BYTES = 4 << 20
"""Size from which the write-ahead log is moved into the database, and to which its file is then cut."""

_BUSY_TIMEOUT_MS = 30_000
_TRIES = 3  # to open a file and the log that belongs to it
# Not mapped: mapped parts of a large file count as the process's memory, for each connection again.
_READ_PRAGMAS = ("busy_timeout=30000", "temp_store=MEMORY", "query_only=1", "mmap_size=0", "cache_size=-4000")
_WRITE_PRAGMAS = (
    "synchronous=NORMAL",
    "temp_store=MEMORY",
    f"journal_size_limit={WAL_BYTES}",
    "wal_autocheckpoint=0",  # the writer checkpoints itself, under a lock: see `checkpoints.py`
)
_ANOTHER = "another database (--db, db= or LOGS_UI_DB)"
_LOCKED = f"stays locked by another process. Find that process (fuser), or name {_ANOTHER}."
_DISK_TROUBLE = {  # by SQLite's primary result code
    sqlite3.SQLITE_NOTADB: f"is not an SQLite database. Name {_ANOTHER}.",
    sqlite3.SQLITE_CORRUPT: f"is damaged: restore a copy, name {_ANOTHER}, or run: logs-ui db recover OLD NEW",
    sqlite3.SQLITE_CANTOPEN: "cannot be opened: check that it is a file, and that you may read and write its folder.",
    sqlite3.SQLITE_READONLY: (
        f"is not writable: check the permissions of the file and of its folder, or name {_ANOTHER}."
    ),
    sqlite3.SQLITE_FULL: "cannot grow: the disk is full. Free some space; recording goes on by itself.",
    sqlite3.SQLITE_BUSY: _LOCKED,
    sqlite3.SQLITE_LOCKED: _LOCKED,
    sqlite3.SQLITE_PROTOCOL: _LOCKED,
    sqlite3.SQLITE_IOERR: "cannot be read or written: the disk answers with an error.",
}

_ROWS_FAULTS = (sqlite3.SQLITE_CONSTRAINT, sqlite3.SQLITE_TOOBIG, sqlite3.SQLITE_MISMATCH, sqlite3.SQLITE_RANGE)
_OF_TABLES = ("no such table", "no such column", "has no column named")


def refuse_hopeless(path: Path, purpose: Purpose) -> None:
    try:
        _check_file(path, purpose=purpose, busy_timeout_ms=0)
    except RefusedDatabaseError:
        raise
    except DatabaseError:
        return


def writing_engine(path: Path, patience: float) -> Engine:
    """Implement `database.writing_engine`; `patience` is in seconds. On a network file system, where a write-ahead log
    cannot work, the file keeps a rollback journal.
    """
    busy_ms = round(patience * 1000)
    with suppress(NoDatabaseError):
        _check_file(
            path, purpose=Purpose.RECORD, busy_timeout_ms=busy_ms
        )  # first: to set the journal mode writes the file
    with errors_in_plain_words(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        place = Place(path)
        journal = "WAL" if network_kind(path) is None else "DELETE"
        pragmas = (f"busy_timeout={busy_ms}", f"journal_mode={journal}", *_WRITE_PRAGMAS)
        engine = _engine(path.absolute().as_uri(), pragmas, immediate=True, check=place.check)
        with ExitStack() as unless_it_works:
            unless_it_works.callback(engine.dispose)
            with engine.begin() as connection:
                if _check_schema(path, connection, purpose=Purpose.RECORD) is None:
                    schema.make(connection)
                is_behind = schema.is_behind(connection)
            if is_behind:
                schema.bring_up_to_date(engine)
            unless_it_works.pop_all()
    return engine


def migrating_engine(path: Path) -> Engine:
    _check_file(path, purpose=Purpose.MIGRATE)
    return _engine(path.absolute().as_uri(), (f"busy_timeout={_BUSY_TIMEOUT_MS}", *_WRITE_PRAGMAS), immediate=True)


def reading_engine(path: Path) -> Engine:
    """Implement `database.reading_engine`. A WAL database in a read-only folder can be read, too. Its connections have
    the sidecars attached that exist now: `sidecars.identity()` changes when they do.
    """
    place = Place(path)
    lacks = _check_file(path, purpose=Purpose.READ)
    with errors_in_plain_words(path):

        def attach(connection: sqlite3.Connection) -> None:
            for sidecar in SIDECARS:
                sidecar.attach(connection, path)

        uri = f"{path.absolute().as_uri()}?{_read_mode(path)}"
        return without_missing(_engine(uri, _READ_PRAGMAS, immediate=False, prepare=attach, check=place.check), lacks)


def sidecar_engine(sidecar: Sidecar, db: Path) -> Engine:
    """Implement `database.sidecar_engine`. The file keeps a rollback journal: writes are small and rare, it works on
    network file systems, and several processes may not checkpoint one write-ahead log.
    """
    path, beside = sidecar.path(db), sidecar.beside(db)

    def attach(connection: sqlite3.Connection) -> None:
        connection.execute(f"PRAGMA busy_timeout={_BUSY_TIMEOUT_MS}")
        connection.execute(f"ATTACH ? AS {sidecar.schema}", [path.absolute().as_uri()])
        names = tables(connection, sidecar.schema)
        if names and not names & sidecar.tables:
            raise RefusedDatabaseError(f"{path} is an SQLite database, but not one of logs-ui. Move it away.")

    path.parent.mkdir(parents=True, exist_ok=True)
    # The database's folder has become read-only: what was written beside it goes on in the refuge.
    if path != beside and not path.exists() and beside.exists():
        copy_file(beside, path)
    # The sidecar is attached to an empty database in memory, so that its tables have the same names as for readers.
    engine = _engine("file::memory:", (), immediate=True, prepare=attach)
    with ExitStack() as unless_it_works:
        unless_it_works.callback(engine.dispose)
        with engine.begin() as connection:
            for statement in sidecar.create():
                connection.exec_driver_sql(statement)
        unless_it_works.pop_all()
    return engine


@contextmanager
def errors_in_plain_words(path: Path) -> Iterator[None]:
    try:
        yield
    except (SQLAlchemyDatabaseError, sqlite3.Error) as error:
        kind = RefusedDatabaseError if _result_code(error) == sqlite3.SQLITE_NOTADB else DatabaseError
        raise kind(_explained(path, error)) from None
    except OSError as error:
        kind = RefusedDatabaseError if isinstance(error, NotADirectoryError) else DatabaseError
        raise kind(f"{path} cannot be used: {error.strerror or error}. Name {_ANOTHER}.") from None


def is_rows_fault(error: Exception) -> bool:
    """Return True if the value of a row caused the error; never if the tables are not ours. The driver's own errors,
    such as a value that it cannot pass on, have no code.
    """
    code, message = _result_code(error), str(getattr(error, "orig", error))
    if code < 0:
        return "closed database" not in message
    if code == sqlite3.SQLITE_ERROR:  # such as a sum that overflows
        return not any(words in message for words in _OF_TABLES)
    return code in _ROWS_FAULTS


def _explained(path: Path, error: Exception) -> str:
    code = _result_code(error)
    if code in _DISK_TROUBLE:
        return f"{path} {_DISK_TROUBLE[code]}"
    return f"{path} cannot be used: {getattr(error, 'orig', error)}"


def _result_code(error: Exception) -> int:
    """Return SQLite's primary result code, or -1. Not its message: SQLAlchemy's contains the row's text."""
    code: int = getattr(getattr(error, "orig", error), "sqlite_errorcode", -1)
    return code if code < 0 else code & 0xFF


def _engine(
    uri: str,
    pragmas: tuple[str, ...],
    *,
    immediate: bool,
    prepare: Callable[[sqlite3.Connection], None] = lambda _: None,
    check: Callable[[], None] = lambda: None,
) -> Engine:
    # `prepare` gets each connection before the pragmas, of which one may make it read-only. `check` raises if the file
    # or its log was moved: a connection that has opened one of each would read, or write, a mixture.

    def connect() -> sqlite3.Connection:
        for _ in range(_TRIES - 1):  # another process may just have closed the file, and a third begun its log anew
            with suppress(MovedError):
                return connect_once()
        return connect_once()

    def connect_once() -> sqlite3.Connection:
        full = uri + ("&" if "?" in uri else "?") + "cache=private"
        with ExitStack() as unless_it_works:
            connection = sqlite3.connect(full, uri=True, isolation_level=None, check_same_thread=False)
            unless_it_works.callback(connection.close)
            check()  # before the log is opened: to close a file with another's log would move that into it
            prepare(connection)
            for pragma in pragmas:
                connection.execute(f"PRAGMA {pragma}")
            connection.execute("SELECT 1 FROM sqlite_master").fetchone()  # which opens the log
            check()
            unless_it_works.pop_all()
        return connection

    engine = create_engine(
        "sqlite://",
        creator=connect,
        poolclass=QueuePool,
        hide_parameters=True,  # in error messages, which are logged
        json_serializer=json_column,
        json_deserializer=orjson.loads,
    )
    # A deferred transaction reads the moment of its first SELECT; it cannot write any more once another one has
    # written.
    begins = "BEGIN IMMEDIATE" if immediate else "BEGIN DEFERRED"

    @event.listens_for(engine, "begin")
    def begin(connection: Any) -> None:
        connection.exec_driver_sql(begins)

    return engine


def copy_file(source: Path, target: Path) -> None:
    """Copy a database that may be in a read-only folder."""
    with closing(sqlite3.connect(f"{source.absolute().as_uri()}?{_read_mode(source)}", uri=True)) as connection:
        connection.execute("VACUUM INTO ?", [str(target)])


def _read_mode(path: Path) -> str:
    """Return the URI parameter that opens a file only for reading. `mode=ro` cannot open a WAL database if the -shm
    file cannot be created; without a -wal file nobody writes. On a network file system another machine may write, with
    a rollback journal: `mode=ro` can always open that.
    """
    if os.access(path.parent, os.W_OK) or path.with_name(path.name + "-wal").exists():
        return "mode=ro"
    if network_kind(path) is None:
        return "immutable=1"
    try:
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as connection:
            tables(connection, "main")
    except sqlite3.Error as error:
        return "immutable=1" if _result_code(error) in {sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN} else "mode=ro"
    return "mode=ro"


def _check_file(path: Path, *, purpose: Purpose, busy_timeout_ms: int = _BUSY_TIMEOUT_MS) -> Lacks:
    """Check that the file has our tables, of a known schema; return what these lack. A foreign file stays as it was,
    to the byte, and nothing is left beside it, not even the -shm file of a reading connection: without a -wal file
    nobody writes, and `immutable` reads any database without locks or files of its own. Raise what `database.py`
    explains.
    """
    with errors_in_plain_words(path):
        keep_apart(path)
        try:
            mode = path.stat().st_mode
        except FileNotFoundError:
            raise NoDatabaseError(f"There is no database at {path}. {what_to_do_first(path)}") from None
        if not stat.S_ISREG(mode):
            kind = "a folder" if stat.S_ISDIR(mode) else "no regular file"
            raise RefusedDatabaseError(f"{path} is {kind}. Name {_ANOTHER}.")
        is_written = path.with_name(path.name + "-wal").exists() or network_kind(path) is not None
        how = _read_mode(path) if is_written else "immutable=1"
        engine = _engine(f"{path.absolute().as_uri()}?{how}", (f"busy_timeout={busy_timeout_ms}",), immediate=False)
        try:
            with engine.connect() as connection:
                lacks = _check_schema(path, connection, purpose=purpose)
        finally:
            engine.dispose()
        if lacks is None:
            raise NoDatabaseError(f"{path} is empty. {what_to_do_first(path)}")
        return lacks


def _check_schema(path: Path, connection: Any, *, purpose: Purpose) -> Lacks | None:
    """Return what the tables lack; None if there are none. Raise RefusedDatabaseError if they are foreign, or as
    `schema.check`.
    """
    if not inspect(connection).get_table_names():
        return None
    lacks = schema.check(path, connection, purpose=purpose)
    if lacks is None:
        raise RefusedDatabaseError(f"{path} is an SQLite database, but not one of logs-ui. Name {_ANOTHER}.")
    return lacks
