"""Checks the schema of a database, and migrates it.

Beside the number of the schema, the table `logs_ui_schema` stores which schema a program must know, at least, to read
and to write it: so older programs can decide, too.
"""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum, auto

from sqlalchemy import Connection, Engine, insert, inspect, select, update
from sqlmodel import col

from logs_ui.recorder.errors import RefusedDatabaseError
from logs_ui.recorder.storage import migrations
from logs_ui.recorder.storage.address import SCHEMA_VERSION, Address, db_option, shown
from logs_ui.recorder.storage.migrations import Migration
from logs_ui.recorder.storage.tables import SchemaVersion, Table

_ANOTHER = "another database (--db, db= or LOGS_UI_DB)"
_UPGRADE = "Upgrade with: pip install -U logs-ui"


class Purpose(Enum):
    """The reason why a database is opened."""

    READ = auto()
    RECORD = auto()
    """Additive migrations are applied then."""
    MIGRATE = auto()


@dataclass(frozen=True)
class Stamp:
    """Holds the stored version of a database's schema: see `SchemaVersion`."""

    version: int
    oldest_reader: int
    oldest_writer: int


def make(connection: Connection) -> None:
    """Creates all tables of the newest schema, in a database that has none of them."""
    Table.metadata.create_all(connection)
    stamp = {"version": known(), "oldest_reader": 1, "oldest_writer": 1, "created": time.time_ns() // 1000}
    for migration in migrations.MIGRATIONS:
        stamp |= {"oldest_reader": migration.oldest_reader, "oldest_writer": migration.oldest_writer}
    connection.execute(insert(SchemaVersion), stamp)


def known() -> int:
    """Returns the newest schema that this program knows."""
    return max([SCHEMA_VERSION, *(it.number for it in migrations.MIGRATIONS)])


def check(address: Address, connection: Connection, *, purpose: Purpose) -> bool:
    """Returns True if the schema exists. Raises RefusedDatabaseError if it may not be used for this purpose."""
    there, said = _columns(connection), shown(address)
    if SchemaVersion.__tablename__ not in {table for table, _ in there}:
        return False
    if lacking := _lacking(there, str(SchemaVersion.__tablename__)):
        raise _from_before(said, lacking)
    stamp = stamp_of(connection)
    if stamp.version > known():
        if known() < (stamp.oldest_reader if purpose == Purpose.READ else stamp.oldest_writer):
            raise RefusedDatabaseError(
                f"{said} was written by a newer logs-ui (schema {stamp.version}, this one knows {known()}). {_UPGRADE}"
            )
    elif stamp.version < known():
        are_additive = all(step.is_additive for step in pending(stamp))
        if purpose == Purpose.READ or (purpose == Purpose.RECORD and not are_additive):
            first = "" if are_additive else ", once no run is recorded into it any more"
            raise RefusedDatabaseError(
                f"{said} has schema {stamp.version}, and this logs-ui works with {known()}. "
                f"Bring it up to date{first}: logs-ui db migrate{db_option(address)}"
            )
    elif lacking := _lacking(there):
        raise _from_before(said, lacking)
    return True


def bring_up_to_date(engine: Engine) -> None:
    """Applies what is pending to a database that `check` lets a recorder write: additive migrations only."""
    for _ in migrate(engine, refuse=lambda _, __: None):
        pass


def is_behind(connection: Connection) -> bool:
    """True if a migration is pending."""
    return bool(pending(stamp_of(connection)))


def refuse_outgrown(said: str, connection: Connection) -> None:
    """Checks in each transaction of a recorder that the database was not migrated meanwhile. Raises
    RefusedDatabaseError if this program must not write it any more.
    """
    # As text: compiling and caching a statement costs more than SQLite's work does, and this runs in each transaction.
    stamped = connection.exec_driver_sql(f"SELECT version, oldest_writer FROM {SchemaVersion.__tablename__}")  # noqa: S608
    version, oldest_writer = stamped.one()
    if oldest_writer > known():
        raise RefusedDatabaseError(
            f"{said} was brought to schema {version} meanwhile, which takes a newer logs-ui to write (this one "
            f"knows {known()}). {_UPGRADE}"
        )


def stamp_of(connection: Connection) -> Stamp:
    table = SchemaVersion
    columns = (col(table.version), col(table.oldest_reader), col(table.oldest_writer))
    return Stamp(*connection.execute(select(*columns)).one())


def pending(stamp: Stamp) -> list[Migration]:
    """Returns the migrations that are still to be applied, in order."""
    return [step for step in migrations.MIGRATIONS if step.number > stamp.version]


def migrate(engine: Engine, refuse: Callable[[Connection, Migration], None]) -> Iterator[Migration]:
    """Applies what is pending, each migration in its own transaction: after an interruption the rest is applied next
    time. If several processes do so at once, each migration is applied once.

    `refuse` is called within the transaction, and raises if this migration must not be applied now. Yields each
    migration once it is applied, by this process or another.
    """
    with engine.connect() as connection:
        steps = pending(stamp_of(connection))
    for step in steps:
        with engine.begin() as connection:
            if connection.dialect.name == "postgresql":
                # Writers read this table in each transaction: those that have begun end first, others wait.
                connection.exec_driver_sql(f"LOCK TABLE {SchemaVersion.__tablename__} IN ACCESS EXCLUSIVE MODE")
            if stamp_of(connection).version < step.number:
                refuse(connection, step)
                step.apply(connection)
                stamp = {
                    "version": step.number,
                    "oldest_reader": step.oldest_reader,
                    "oldest_writer": step.oldest_writer,
                }
                connection.execute(update(SchemaVersion).values(**stamp, migrated=time.time_ns() // 1000))
        yield step


def _from_before(said: str, lacking: str) -> RefusedDatabaseError:
    return RefusedDatabaseError(
        f"{said} was written by an earlier logs-ui, before 0.1.0: it lacks {lacking}. Name {_ANOTHER}."
    )


def _columns(connection: Connection) -> set[tuple[str, str]]:
    """Returns all columns of the database's own schema, as (table, column)."""
    if connection.dialect.name == "sqlite":
        names = "SELECT tables.name, found.name FROM sqlite_master AS tables, pragma_table_info(tables.name) AS found"
        return {(table, column) for table, column in connection.exec_driver_sql(names)}
    found = inspect(connection).get_multi_columns().items()
    return {(table, column["name"]) for (_, table), columns in found for column in columns}


def _lacking(there: set[tuple[str, str]], only: str | None = None) -> str | None:
    """Returns the first of our columns, as `table.column`, that the database lacks; of one table, or of all."""
    tables = [table for table in Table.metadata.sorted_tables if only in {None, table.name}]
    wanted = ((table.name, column.name) for table in tables for column in table.columns)
    return next((f"{table}.{column}" for table, column in wanted if (table, column) not in there), None)
