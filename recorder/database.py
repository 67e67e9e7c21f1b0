"""Connections and their settings, and SQL errors said in plain words. What is asked of the database stands in
`queries.py`, what is written in `writer.py`.
"""

import os
import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import orjson
import platformdirs
from sqlalchemy import Engine, create_engine, event, insert, inspect, select
from sqlalchemy.exc import DatabaseError as SQLAlchemyDatabaseError
from sqlalchemy.pool import NullPool, QueuePool
from sqlmodel import col

from logs_ui.recorder.errors import DatabaseError
from logs_ui.recorder.models import SCHEMA_VERSION, SchemaVersion, Table

_BUSY_TIMEOUT_MS = 30_000
_READ_PRAGMAS = ("busy_timeout=30000", "temp_store=MEMORY", "query_only=1", "mmap_size=268435456")
_WRITE_PRAGMAS = (
    "journal_mode=WAL",
    "synchronous=NORMAL",
    f"busy_timeout={_BUSY_TIMEOUT_MS}",
    "temp_store=MEMORY",
    "journal_size_limit=67108864",
    "wal_autocheckpoint=0",  # the writer checkpoints under a lock of its own: see Writer
)


def database_path(db: str | os.PathLike[str] | None = None) -> Path:
    """Where the database is: `db`, else LOGS_UI_DB, else one file of this user's, the same for `record()` and `serve`.

    Raises:
        DatabaseError: a URL of a database that is not supported.
    """
    given = os.fspath(db) if db is not None else os.environ.get("LOGS_UI_DB") or None
    if given is None:
        return Path(platformdirs.user_data_dir("logs-ui", appauthor=False)) / "logs-ui.db"
    if given.startswith("sqlite:///"):
        return Path(given.removeprefix("sqlite:///")).expanduser()
    if "://" in given:
        scheme = given.split("://", 1)[0]
        raise DatabaseError(f"{scheme} databases are not supported yet. Give a path, or a sqlite:///path URL.")
    return Path(given).expanduser()


def writing_engine(path: Path) -> Engine:
    """An engine for the writer's thread; makes the file, its folder and its tables where they are missing.

    Raises:
        DatabaseError: not a database of ours, of a newer schema, or not writable.
    """
    with errors_in_plain_words(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        engine = _engine(f"file:{_quoted(path)}", _WRITE_PRAGMAS, immediate=True, pooled=True)
        with engine.begin() as connection:
            _check_schema(path, connection)
            Table.metadata.create_all(connection)
            if connection.scalar(select(col(SchemaVersion.version))) is None:
                connection.execute(
                    insert(SchemaVersion), {"version": SCHEMA_VERSION, "created": time.time_ns() // 1000}
                )
    return engine


def reading_engine(path: Path) -> Engine:
    """An engine that cannot write. The file must exist; a WAL database in a read-only folder can be read too.

    Raises:
        DatabaseError: missing, not a database of ours, or of a newer schema.
    """
    with errors_in_plain_words(path):
        if not path.exists():
            raise DatabaseError(
                f"There is no database at {path}. Record a training into it first, or name another with --db."
            )
        engine = _engine(f"file:{_quoted(path)}?{_read_mode(path)}", _READ_PRAGMAS, immediate=False, pooled=True)
        with engine.connect() as connection:
            if not _check_schema(path, connection):
                raise DatabaseError(f"{path} is an SQLite database, but not one of logs-ui. Name another with --db.")
    return engine


@contextmanager
def errors_in_plain_words(path: Path) -> Iterator[None]:
    """Turns the database's and the system's errors into one line that a user can act on.

    Raises:
        DatabaseError: instead of them.
    """
    if path.is_dir():
        raise DatabaseError(f"{path} is a folder. Name a file in it with --db.")
    try:
        yield
    except (SQLAlchemyDatabaseError, sqlite3.Error) as error:
        raise DatabaseError(_explained(path, str(getattr(error, "orig", None) or error))) from error
    except OSError as error:
        raise DatabaseError(f"{path} cannot be used: {error.strerror or error}. Name another with --db.") from error


def is_disk_trouble(error: Exception) -> bool:
    """Whether to try again later rather than row by row: locked, full, failing or unmounted disk."""
    if isinstance(error, OSError):
        return True
    words = ("locked", "full", "disk I/O", "unable to open", "readonly", "malformed", "not a database")
    return isinstance(error, SQLAlchemyDatabaseError | sqlite3.Error) and any(word in str(error) for word in words)


def _explained(path: Path, message: str) -> str:
    known = {
        "file is not a database": "is not an SQLite database. Name another with --db.",
        "malformed": "is damaged. Restore it from a copy, or name another with --db.",
        "unable to open": "cannot be opened: check that it is a file, and that you may read and write its folder.",
        "readonly": "is not writable: check the permissions of the file and of its folder, or name another with --db.",
        "database or disk is full": "cannot grow: the disk is full. Free some space; recording goes on by itself.",
        "locked": "stays locked by another process. Find who holds it (fuser), or name another with --db.",
        "disk I/O error": "cannot be read or written: the disk answers with an error.",
    }
    for part, words in known.items():
        if part in message:
            return f"{path} {words}"
    return f"{path} cannot be used: {message}"


def _engine(uri: str, pragmas: tuple[str, ...], *, immediate: bool, pooled: bool) -> Engine:
    def connect() -> sqlite3.Connection:
        full = uri + ("&" if "?" in uri else "?") + "cache=private"
        connection = sqlite3.connect(full, uri=True, isolation_level=None, check_same_thread=False)
        for pragma in pragmas:
            connection.execute(f"PRAGMA {pragma}")
        return connection

    engine = create_engine(
        "sqlite://",
        creator=connect,
        poolclass=QueuePool if pooled else NullPool,
        json_serializer=lambda value: orjson.dumps(value).decode(),
        json_deserializer=orjson.loads,
    )
    if immediate:

        @event.listens_for(engine, "begin")
        def begin(connection: Any) -> None:
            # A deferred transaction that turns to writing fails at once when another has written meanwhile.
            connection.exec_driver_sql("BEGIN IMMEDIATE")

    return engine


def _read_mode(path: Path) -> str:
    """`mode=ro` cannot open a WAL database where the -shm file cannot be made; where there is no -wal nobody writes."""
    if not os.access(path.parent, os.W_OK) and not path.with_name(path.name + "-wal").exists():
        return "immutable=1"
    return "mode=ro"


def _check_schema(path: Path, connection: Any) -> bool:
    """Whether the tables are there already.

    Raises:
        DatabaseError: they are somebody else's, or newer than this program.
    """
    tables = set(inspect(connection).get_table_names())
    if not tables:
        return False
    if SchemaVersion.__tablename__ not in tables:
        raise DatabaseError(f"{path} is an SQLite database, but not one of logs-ui. Name another with --db.")
    version = connection.scalar(select(col(SchemaVersion.version)))
    if version is not None and version > SCHEMA_VERSION:
        raise DatabaseError(
            f"{path} was written by a newer logs-ui (schema {version}, this one knows {SCHEMA_VERSION}). "
            "Upgrade with: pip install -U logs-ui"
        )
    return True


def _quoted(path: Path) -> str:
    from urllib.parse import quote

    return quote(str(path.absolute()))
