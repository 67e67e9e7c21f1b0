"""Opens PostgreSQL databases (15 or later): connections, their settings, and errors in plain words. `database.py`
documents its functions. psycopg comes with `logs-ui[postgres]`, and is imported when an engine is made.
"""

import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import orjson
from sqlalchemy import URL, Connection, Engine, create_engine, event, select, text
from sqlalchemy.exc import DBAPIError

from logs_ui.recorder.errors import DatabaseError, NoDatabaseError, RefusedDatabaseError
from logs_ui.recorder.snapshot import json_column
from logs_ui.recorder.storage import schema
from logs_ui.recorder.storage.address import masked_address
from logs_ui.recorder.storage.missing_columns import without_missing
from logs_ui.recorder.storage.notes_tables import NotesTable
from logs_ui.recorder.storage.postgres.rights import refuse_who_may_not_migrate, refuse_who_may_not_record
from logs_ui.recorder.storage.schema import Lacks, Purpose
from logs_ui.recorder.storage.search_tables import POSTGRES_METADATA
from logs_ui.recorder.storage.spool_folder import what_to_do_first

_CONNECT_SECONDS = 10
_SETTINGS = {  # of libpq; a connection breaks some 30 seconds after its other end has disappeared
    "application_name": "logs-ui",
    "connect_timeout": _CONNECT_SECONDS,
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 4,
    "tcp_user_timeout": 30_000,
    "prepare_threshold": None,  # of psycopg: behind a transaction pooler, statements prepared by name are lost
}
_PATIENCE = 30.0  # seconds
_LOOK = 2.0  # seconds that the start of a training waits to find out if it can be recorded
_LONGEST = 60.0  # seconds for one statement of a recorder, whose changes wait on disk then
_ENDING = 1.2  # times the patience for a lock, for one statement of a process that is about to end
_LOCK = 0x6C6F6773  # advisory lock while tables are created: any number that other programs do not use
_OLDEST = 15
_TEMPORARY = ("08", "53", "55", "57", "58", "40")
"""SQLSTATE classes after which a retry may work: connection, resources (disk, memory, connections), locks, shutdown by
an administrator, the server's system, and conflicts between transactions.
"""
_ROWS_FAULTS = ("21", "22", "23", "54", "42804", "42846", "42883", "42P08", "42P18")
"""SQLSTATE classes that the value of a row causes: a row met twice, data, constraints, limits, and wrong types."""
_HOPELESS = (
    "does not exist", "createdb", "createuser", "refuses this password", "asks for a password", "no pg_hba.conf entry",
    "is a pooler",
)  # fmt: skip
"""libpq reports a refused connection only in words. If these are in another language, it is tried again."""
_ABOUT_THE_CONNECTION = re.compile(
    r"^(connection (failed|is bad): |consuming input failed: |connection to server at .*? failed: |FATAL: +)+"
)
"""Parts of a message that repeat what the URL says."""
_IN_WORDS = {
    "42501": "does not let this user do that: its role lacks the right, which its owner can grant (docs/cluster.md)",
    "25006": "is read-only, as a standby is",
    "53100": "has no space left on its disk. Free some; recording goes on by itself",
    "53300": "has no free connection. Raise max_connections, or put a pooler before it",
}
_BY_ITS_WORDS = {
    "no password supplied": "asks for a password: set PGPASSWORD, or write it into ~/.pgpass",
    "password authentication failed": "refuses this password: set PGPASSWORD, or write it into ~/.pgpass",
    'database "[^"]*" does not exist|^no such database': "does not exist on that server: create it with createdb",
    'role "[^"]*" does not exist|^no such user': "does not know this user: name another, or create it with createuser",
    "transaction blocks not allowed": "is a pooler in statement mode, but logs-ui writes in transactions: set its "
    "pool_mode to transaction or session",
    "unsupported startup parameter": "is a pooler, which allows few parameters in a URL: leave them out (what "
    "`options` would set can be the role's: ALTER ROLE ... SET ...)",
}
"""By patterns of libpq's messages. The last two are PgBouncer's."""


def refuse_hopeless(url: URL, purpose: Purpose) -> None:
    try:
        with errors_in_plain_words(url), _connected(url) as connection:
            if purpose == Purpose.RECORD:
                refuse_who_may_not_record(url, connection)
            lacks = _check_schema(url, connection, purpose=purpose)
            if lacks is not None and purpose == Purpose.RECORD and schema.is_behind(connection):
                refuse_who_may_not_migrate(url, connection)
    except RefusedDatabaseError:
        raise
    except DatabaseError as error:
        if any(words in str(error) for words in _HOPELESS):
            raise RefusedDatabaseError(str(error)) from None


def writing_engine(url: URL, patience: float | None, is_hurried: Callable[[], bool]) -> Engine:
    seconds = _PATIENCE if patience is None else patience
    longest = None if patience is None else _LONGEST
    engine = _engine(url, read_only=False, patience=seconds, longest=longest, is_hurried=is_hurried)
    with _disposed_if_it_fails(url, engine):
        with engine.begin() as connection:
            if _check_schema(url, connection, purpose=Purpose.RECORD) is None:
                connection.execute(select(text(f"pg_advisory_xact_lock({_LOCK})")))
                # Another process may have created them.
                if _check_schema(url, connection, purpose=Purpose.RECORD) is None:
                    schema.make(connection)
                    for beside in (NotesTable.metadata, *POSTGRES_METADATA):
                        connection.execute(text(f"CREATE SCHEMA IF NOT EXISTS {beside.schema}"))
                        beside.create_all(connection)
            is_behind = schema.is_behind(connection)
        if is_behind:
            # To index a large table takes minutes: no limit for one statement.
            migrating = _engine(url, read_only=False, patience=seconds)
            try:
                schema.bring_up_to_date(migrating)
            finally:
                migrating.dispose()
    return engine


def checked_engine(url: URL, purpose: Purpose) -> Engine:
    """Implement `database.reading_engine` and `database.migrating_engine`."""
    engine = _engine(url, read_only=purpose == Purpose.READ)
    with _disposed_if_it_fails(url, engine), engine.connect() as connection:
        lacks = _check_schema(url, connection, purpose=purpose)
        if lacks is None:
            raise NoDatabaseError(f"{masked_address(url)} has no tables of logs-ui yet. {what_to_do_first(url)}")
        return without_missing(engine, lacks) if purpose == Purpose.READ else engine


def sidecar_engine(url: URL) -> Engine:
    """Implement `database.sidecar_engine`. Its tables were created with the others."""
    return _engine(url, read_only=False)


@contextmanager
def errors_in_plain_words(url: URL) -> Iterator[None]:
    try:
        yield
    except DBAPIError as error:
        raise DatabaseError(_explained(url, error)) from None  # the chain is long, and adds nothing


def is_trouble_of_the_server(error: Exception) -> bool:
    """Return True if a retry may work. A connection that failed or broke has no SQLSTATE of its own."""
    if not isinstance(error, DBAPIError) or not hasattr(error.orig, "sqlstate"):
        return False
    state = _state(error)
    return error.connection_invalidated or (
        state.startswith(_TEMPORARY) or state in _IN_WORDS if state else type(error).__name__ == "OperationalError"
    )


@contextmanager
def _disposed_if_it_fails(url: URL, engine: Engine) -> Iterator[None]:
    """Dispose of the engine if the block fails; errors are in plain words."""
    with errors_in_plain_words(url), ExitStack() as unless_it_works:
        unless_it_works.callback(engine.dispose)
        yield
        unless_it_works.pop_all()


def is_rows_fault(error: DBAPIError) -> bool:
    """Return True if the value of a row caused the error. Errors of psycopg itself have no SQLSTATE."""
    state = _state(error)
    if error.connection_invalidated:
        return False
    if not state:
        return type(error).__name__ not in {"OperationalError", "InterfaceError"}
    return state.startswith(_ROWS_FAULTS)


def _explained(url: URL, error: DBAPIError) -> str:
    state, reason = _state(error), _reason(error)
    if state in _IN_WORDS:
        return f"{masked_address(url)} {_IN_WORDS[state]}: {reason}."
    for pattern, words in _BY_ITS_WORDS.items():
        if re.search(pattern, reason):
            return f"{masked_address(url)} {words}."
    if is_trouble_of_the_server(error):
        return f"{masked_address(url)} cannot be reached or used now: {reason}."
    return f"{masked_address(url)} cannot be used: {reason}."


def _reason(error: DBAPIError) -> str:
    """Return the reason in one line without a full stop. libpq's messages have several lines; those after a tab are
    guesses. Of several attempts to connect, as to each address of a host, the last one counts.
    """
    primary = getattr(getattr(error.orig, "diag", None), "message_primary", None)
    message = primary or str(error.orig).partition("\nMultiple connection attempts failed")[0]
    lines = [line for line in message.splitlines() if line.strip() and not line.startswith("\t")]
    reason = _ABOUT_THE_CONNECTION.sub("", " ".join(lines[-1].split())) if lines else type(error.orig).__name__
    return reason[:300].rstrip(".")


def _state(error: BaseException | None) -> str:
    """Return the SQLSTATE; empty if there is none, as when there was no connection."""
    return str(getattr(getattr(error, "orig", error), "sqlstate", None) or "")


def _engine(
    url: URL,
    *,
    read_only: bool,
    patience: float | None = None,
    longest: float | None = None,
    is_hurried: Callable[[], bool] = lambda: False,
) -> Engine:
    """Make an engine that waits `patience` seconds for a lock or for a connection, and `longest` for the answer to one
    statement, or little more than `patience` if `is_hurried()`. None is as long as it takes. Raise
    RefusedDatabaseError if psycopg is not installed.
    """
    settings = _SETTINGS
    if patience is not None:
        settings = settings | {"connect_timeout": max(2, round(patience)), "tcp_user_timeout": round(patience * 1000)}
    # A reading transaction shows the database at one moment (`database.reading_engine`).
    moment: dict[str, Any] = {"isolation_level": "REPEATABLE READ"} if read_only else {}
    try:
        engine = create_engine(
            url,
            connect_args={name: value for name, value in settings.items() if name not in url.query},
            paramstyle="format",  # `prepared_statements.py` passes parameters by their places
            pool_pre_ping=True,
            hide_parameters=True,  # in error messages, which are logged
            json_serializer=json_column,
            json_deserializer=orjson.loads,
            **moment,
        )
    except ImportError as error:
        raise RefusedDatabaseError(
            "PostgreSQL needs the package psycopg. Install it with: pip install 'logs-ui[postgres]'"
        ) from error

    @event.listens_for(engine, "do_connect")
    def connect(_dialect: Any, _record: Any, args: tuple[Any, ...], arguments: dict[str, Any]) -> Any:
        from logs_ui.recorder.storage.postgres.psycopg_connection import ImpatientConnection, adapt

        connection = ImpatientConnection.connect(*args, **arguments)
        connection.longest, connection.is_hurried = longest, is_hurried
        connection.shortest = (patience or _PATIENCE) * _ENDING
        adapt(connection, read_only=read_only)
        return connection

    if patience is not None:
        # In each transaction anew: behind a pooler of transactions the next one has another connection, and what a
        # session sets stays with whoever gets its connection. Poolers refuse it as an option of the connection.
        @event.listens_for(engine, "begin")
        def begin(connection: Connection) -> None:
            if connection.get_execution_options().get("isolation_level") == "AUTOCOMMIT":
                return  # without a transaction PostgreSQL only warns
            connection.exec_driver_sql(f"SET LOCAL lock_timeout = {round(patience * 1000)}")

    return engine.execution_options(postgresql_readonly=True) if read_only else engine


@contextmanager
def _connected(url: URL) -> Iterator[Connection]:
    engine = _engine(url, read_only=True, patience=_LOOK, longest=_LOOK * _ENDING)
    try:
        with engine.connect() as connection:
            yield connection
    finally:
        engine.dispose()


def _check_schema(url: URL, connection: Connection, *, purpose: Purpose) -> Lacks | None:
    """Call `schema.check`, too. Raise RefusedDatabaseError as that does, and if the server is too old."""
    number = connection.dialect.server_version_info or (0,)
    if number < (_OLDEST,):
        raise RefusedDatabaseError(
            f"{masked_address(url)} is PostgreSQL {'.'.join(map(str, number))}: {_OLDEST} or later is needed."
        )
    return schema.check(url, connection, purpose=purpose)
