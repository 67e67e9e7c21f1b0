"""Parses and prints the address of a database: an SQLite file or a PostgreSQL URL."""

import os
import shlex
import sqlite3
import stat
from contextlib import closing, suppress
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import platformdirs

from logs_ui.recorder.errors import DatabaseError

if TYPE_CHECKING:
    from sqlalchemy import URL

Address: TypeAlias = "Path | URL"
"""The path of an SQLite file, which need not exist, or the URL of a PostgreSQL database. The URL may contain a
password: print it with `masked_address`.
"""

SCHEMA_VERSION = 1
"""Grows by one with each numbered migration."""

SCHEMA_COLUMNS = 171
"""Number of columns of all tables, by which a database of another commit is told from today's; a test holds it."""

DRIVER = "postgresql+psycopg"
_POSTGRES = frozenset({"postgresql", "postgres", DRIVER})
_UNREADABLE = (
    "The PostgreSQL URL cannot be read: write postgresql://user:password@host:5432/database, and @, / or : "
    "within a password as %40, %2F and %3A."
)


def database_address(db: "str | os.PathLike[str] | URL | None" = None) -> Address:
    """Return the address of `db`, else of LOGS_UI_DB, else of this user's default file. `db` is a path,
    `sqlite:///path`, or `postgresql://user@host/database` as in libpq. Raise DatabaseError for a URL of an unsupported
    database, or one that lacks a part.
    """
    if db is not None and not isinstance(db, str | os.PathLike):
        return db
    text = os.fspath(db) if db is not None else os.environ.get("LOGS_UI_DB") or None
    if text is None:
        return _own_file()
    scheme, separator, rest = text.partition("://")
    if not separator:
        if text.partition(":")[0] in _POSTGRES or text.partition("//")[0] in _POSTGRES:
            raise DatabaseError(_UNREADABLE)
        return Path(text).expanduser()
    if scheme in _POSTGRES:
        return _postgres(f"{DRIVER}://{rest}")
    if scheme != "sqlite":
        raise DatabaseError(
            f"{scheme} databases are not supported. Give a path, sqlite:///path or postgresql://user@host/database."
        )
    slash, path = rest[:1], rest[1:]
    if slash != "/" or not path:
        raise DatabaseError(f"{text} lacks the path. Write sqlite:///runs.db, or sqlite:////folder/runs.db.")
    return Path(path).expanduser()


def needs_no_look(address: Address) -> bool:
    """Return True if recording can begin there, as far as a look shows that does without SQLAlchemy, whose import takes
    a training half a second: a file that is missing, or one that nobody writes and that has today's tables.
    """
    if not isinstance(address, Path):
        return False
    try:
        if not stat.S_ISREG(address.stat().st_mode) or Path(f"{address}-wal").exists():
            return False
    except OSError as error:
        return isinstance(error, FileNotFoundError)
    # One query reads the version, and how many columns all tables but SQLite's own have.
    query = "SELECT count(*) FROM sqlite_master AS it, pragma_table_info(it.name) WHERE it.type = 'table'"
    query = f"SELECT version, ({query} AND it.name NOT LIKE 'sqlite%') FROM logs_ui_schema"  # noqa: S608 - no input
    uri = f"{address.absolute().as_uri()}?immutable=1"  # leaves nothing beside the file
    with suppress(sqlite3.Error), closing(sqlite3.connect(uri, uri=True)) as connection:
        return bool(connection.execute(query).fetchone() == (SCHEMA_VERSION, SCHEMA_COLUMNS))
    return False


def absolute(address: Address) -> Address:
    """Return an address that is independent of the working directory."""
    return address.absolute() if isinstance(address, Path) else address


def masked_address(address: Address) -> str:
    """Return the address as text for people, with `***` for a password."""
    if isinstance(address, Path):
        return str(address)
    hidden = {name: "***" for name in address.query if name in {"password", "sslpassword"}}
    url = address.set(drivername="postgresql").update_query_dict(hidden)
    # A socket's folder is a query parameter with slashes.
    return url.render_as_string(hide_password=True).replace("%2A%2A%2A", "***").replace("%2F", "/")


def without_password(address: Address) -> str:
    """Return the address for a line that people copy: libpq finds the password in PGPASSWORD, or in ~/.pgpass."""
    if isinstance(address, Path):
        return str(address)
    secrets = [name for name in ("password", "sslpassword") if name in address.query]
    from sqlalchemy import URL  # see `_postgres`

    url = URL.create("postgresql", address.username, None, address.host, address.port, address.database, address.query)
    return url.difference_update_query(secrets).render_as_string(hide_password=False).replace("%2F", "/")


def db_option(address: Address) -> str:
    """Return the option that a copied command needs in any terminal: empty for the default file, unless LOGS_UI_DB
    names another; else ` --db ...`, quoted for a shell.
    """
    with suppress(DatabaseError):  # LOGS_UI_DB is no address
        if absolute(address) == _own_file() == absolute(database_address()):
            return ""
    return f" --db {shlex.quote(without_password(address))}"


def as_text(address: Address) -> str:
    """Return text, including the password, that `database_address` reads in another process."""
    if isinstance(address, Path):
        return str(address.absolute())
    return address.render_as_string(hide_password=False)


def _own_file() -> Path:
    """Return this user's default file."""
    return Path(platformdirs.user_data_dir("logs-ui", appauthor=False)) / "logs-ui.db"


def _postgres(text: str) -> "URL":
    """Parse a PostgreSQL URL; raise DatabaseError if it names no database."""
    from sqlalchemy import make_url  # `import logs_ui.recorder` does not load SQLAlchemy
    from sqlalchemy.exc import ArgumentError

    try:
        url = make_url(text)
    except (ArgumentError, ValueError) as error:
        raise DatabaseError(_UNREADABLE) from error  # without the error's text, which may contain the password
    if "@" in (url.host or ""):  # the end of the password
        raise DatabaseError(_UNREADABLE)
    if not url.database and "dbname" not in url.query and "service" not in url.query:
        raise DatabaseError(f"{masked_address(url)} names no database. Write postgresql://user@host/database.")
    return url
