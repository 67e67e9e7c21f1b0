"""Connections and their settings, and SQL errors said in plain words. What is asked of the database stands in
`queries`, what is written in `store.py`.
"""

import os
import sqlite3
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import orjson
import platformdirs
from sqlalchemy import Engine, create_engine, event, insert, inspect, select
from sqlalchemy.exc import DatabaseError as SQLAlchemyDatabaseError
from sqlalchemy.pool import QueuePool
from sqlmodel import col

from logs_ui.recorder.errors import DatabaseError, NoDatabaseError, RefusedDatabaseError
from logs_ui.recorder.models import SCHEMA_VERSION, SchemaVersion, Table

WAL_BYTES = 4 << 20
"""Size of the write-ahead log from which it is moved into the database, and to which its file is cut then."""

_BUSY_TIMEOUT_MS = 30_000
_READ_PRAGMAS = ("busy_timeout=30000", "temp_store=MEMORY", "query_only=1", "mmap_size=268435456")
_WRITE_PRAGMAS = (
    "journal_mode=WAL",
    "synchronous=NORMAL",
    f"busy_timeout={_BUSY_TIMEOUT_MS}",
    "temp_store=MEMORY",
    f"journal_size_limit={WAL_BYTES}",
    "wal_autocheckpoint=0",  # the writer checkpoints under a lock of its own: see Writer
)
_ANOTHER = "another database (--db, db= or LOGS_UI_DB)"
_LOCKED = f"stays locked by another process. Find who holds it (fuser), or name {_ANOTHER}."
_DISK_TROUBLE = {  # by SQLite's primary result code
    sqlite3.SQLITE_NOTADB: f"is not an SQLite database. Name {_ANOTHER}.",
    sqlite3.SQLITE_CORRUPT: f"is damaged. Restore it from a copy, or name {_ANOTHER}.",
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


def database_path(db: str | os.PathLike[str] | None = None) -> Path:
    """Where the database is: `db`, else LOGS_UI_DB, else one file of this user's, the same for `record()` and `serve`.

    Raises:
        DatabaseError: a URL of a database that is not supported, or one without a path.
    """
    given = os.fspath(db) if db is not None else os.environ.get("LOGS_UI_DB") or None
    if given is None:
        return Path(platformdirs.user_data_dir("logs-ui", appauthor=False)) / "logs-ui.db"
    scheme, separator, rest = given.partition("://")
    if not separator:
        return Path(given).expanduser()
    if scheme != "sqlite":
        raise DatabaseError(f"{scheme} databases are not supported yet. Give a path, or a sqlite:///path URL.")
    slash, path = rest[:1], rest[1:]
    if slash != "/" or not path:
        raise DatabaseError(f"{given} lacks the path. Write sqlite:///runs.db, or sqlite:////folder/runs.db.")
    return Path(path).expanduser()


def refuse_hopeless(path: Path) -> None:
    """Looks at once, waiting for no lock, whether the path can ever be recorded into. Nothing is made or changed there.

    Raises:
        RefusedDatabaseError: it never can. What may change (a lock, a disk that is full or not mounted), or cannot be
            told now, passes.
    """
    try:
        _look(path, busy_timeout_ms=0)
    except RefusedDatabaseError:
        raise
    except DatabaseError:
        return


def writing_engine(path: Path) -> Engine:
    """An engine for the writer's thread; makes the file, its folder and its tables where they are missing.

    Raises:
        RefusedDatabaseError: not a database of ours, or of a newer schema. It is left as it was, to the byte.
        DatabaseError: not writable now.
    """
    with suppress(NoDatabaseError):
        _look(path)  # before the journal mode is set, which writes to the file
    with errors_in_plain_words(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        engine = _engine(f"file:{_quoted(path)}", _WRITE_PRAGMAS, immediate=True)
        with engine.begin() as connection:
            _check_schema(path, connection)
            Table.metadata.create_all(connection)
            if connection.scalar(select(col(SchemaVersion.version))) is None:
                connection.execute(
                    insert(SchemaVersion), {"version": SCHEMA_VERSION, "created": time.time_ns() // 1000}
                )
    return engine


def reading_engine(path: Path) -> Engine:
    """An engine that cannot write. A WAL database in a read-only folder can be read too.

    Raises:
        NoDatabaseError: no file, or an empty one.
        RefusedDatabaseError: not a database of ours, or of a newer schema. It is left as it was, to the byte.
        DatabaseError: not readable now.
    """
    _look(path)
    with errors_in_plain_words(path):
        return _engine(f"file:{_quoted(path)}?{_read_mode(path)}", _READ_PRAGMAS, immediate=False)


@contextmanager
def errors_in_plain_words(path: Path) -> Iterator[None]:
    """Turns the database's and the system's errors into one line that a user can act on.

    Raises:
        DatabaseError: instead of them; a RefusedDatabaseError where trying again is no use.
    """
    try:
        yield
    except (SQLAlchemyDatabaseError, sqlite3.Error) as error:
        kind = RefusedDatabaseError if _result_code(error) == sqlite3.SQLITE_NOTADB else DatabaseError
        raise kind(_explained(path, error)) from error
    except OSError as error:
        kind = RefusedDatabaseError if isinstance(error, NotADirectoryError) else DatabaseError
        raise kind(f"{path} cannot be used: {error.strerror or error}. Name {_ANOTHER}.") from error


def is_disk_trouble(error: Exception) -> bool:
    """Whether to try again later rather than row by row: locked, full, failing or unmounted disk."""
    return isinstance(error, OSError) or _result_code(error) in _DISK_TROUBLE


def _explained(path: Path, error: Exception) -> str:
    code = _result_code(error)
    if code in _DISK_TROUBLE:
        return f"{path} {_DISK_TROUBLE[code]}"
    return f"{path} cannot be used: {getattr(error, 'orig', error)}"


def _result_code(error: Exception) -> int:
    """SQLite's primary result code, -1 where it gave none. Never its words: those of SQLAlchemy hold the row's text."""
    code: int = getattr(getattr(error, "orig", error), "sqlite_errorcode", -1)
    return code if code < 0 else code & 0xFF


def _engine(uri: str, pragmas: tuple[str, ...], *, immediate: bool) -> Engine:
    def connect() -> sqlite3.Connection:
        full = uri + ("&" if "?" in uri else "?") + "cache=private"
        connection = sqlite3.connect(full, uri=True, isolation_level=None, check_same_thread=False)
        for pragma in pragmas:
            connection.execute(f"PRAGMA {pragma}")
        return connection

    engine = create_engine(
        "sqlite://",
        creator=connect,
        poolclass=QueuePool,
        json_serializer=lambda value: orjson.dumps(value).decode(),
        json_deserializer=orjson.loads,
    )
    # A deferred one shows the moment of its first SELECT, and cannot turn to writing once another has written since.
    begins = "BEGIN IMMEDIATE" if immediate else "BEGIN DEFERRED"

    @event.listens_for(engine, "begin")
    def begin(connection: Any) -> None:
        connection.exec_driver_sql(begins)

    return engine


def _read_mode(path: Path) -> str:
    """`mode=ro` cannot open a WAL database where the -shm file cannot be made; where there is no -wal nobody writes."""
    if not os.access(path.parent, os.W_OK) and not path.with_name(path.name + "-wal").exists():
        return "immutable=1"
    return "mode=ro"


def _look(path: Path, *, busy_timeout_ms: int = _BUSY_TIMEOUT_MS) -> None:
    """Whether the file holds tables of ours, of a schema that is known. Somebody else's stays as it was, to the byte,
    and nothing is left beside it, not even the -shm file that a reading connection makes: where there is no -wal,
    nobody writes to a WAL database, and `immutable` reads it, as any other, without locks and files of its own.

    Raises:
        NoDatabaseError: no file, or no tables in it.
        RefusedDatabaseError: no database, somebody else's, or newer than this program.
        DatabaseError: it cannot be told now.
    """
    with errors_in_plain_words(path):
        try:
            mode = path.stat().st_mode
        except FileNotFoundError:
            raise NoDatabaseError(
                f"There is no database at {path}. Record a training into it first, or name {_ANOTHER}."
            ) from None
        if not stat.S_ISREG(mode):
            what = "a folder" if stat.S_ISDIR(mode) else "no regular file"
            raise RefusedDatabaseError(f"{path} is {what}. Name {_ANOTHER}.")
        how = "mode=ro" if path.with_name(path.name + "-wal").exists() else "immutable=1"
        engine = _engine(f"file:{_quoted(path)}?{how}", (f"busy_timeout={busy_timeout_ms}",), immediate=False)
        try:
            with engine.connect() as connection:
                has_tables = _check_schema(path, connection)
        finally:
            engine.dispose()
        if not has_tables:
            raise NoDatabaseError(f"{path} is empty. Record a training into it first, or name {_ANOTHER}.")


def _check_schema(path: Path, connection: Any) -> bool:
    """Whether the tables are there already.

    Raises:
        RefusedDatabaseError: they are somebody else's, or newer than this program.
    """
    tables = set(inspect(connection).get_table_names())
    if not tables:
        return False
    if SchemaVersion.__tablename__ not in tables:
        raise RefusedDatabaseError(f"{path} is an SQLite database, but not one of logs-ui. Name {_ANOTHER}.")
    version = connection.scalar(select(col(SchemaVersion.version)))
    if version is not None and version > SCHEMA_VERSION:
        raise RefusedDatabaseError(
            f"{path} was written by a newer logs-ui (schema {version}, this one knows {SCHEMA_VERSION}). "
            "Upgrade with: pip install -U logs-ui"
        )
    return True


def _quoted(path: Path) -> str:
    from urllib.parse import quote

    return quote(str(path.absolute()))
