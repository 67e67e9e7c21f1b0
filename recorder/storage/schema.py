"""Checks the schema of a database, and migrates it.

Beside the number of the schema, the table `logs_ui_schema` stores which schema a program must know, at least, to read
and to write it: so older programs can decide, too.
"""

import importlib.metadata
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum, auto

from sqlalchemy import Column, Connection, Engine, Index, insert, select, update
from sqlalchemy import Table as SQLTable
from sqlmodel import col

from logs_ui.recorder.errors import RefusedDatabaseError
from logs_ui.recorder.storage import migrations
from logs_ui.recorder.storage.address import SCHEMA_VERSION, Address, db_option, masked_address
from logs_ui.recorder.storage.migrations import Migration, addition
from logs_ui.recorder.storage.tables import SchemaVersion, Table

_ANOTHER = "another database (--db, db= or LOGS_UI_DB)"
_ON_POSTGRESQL = (
    "SELECT it.relname, part.attname FROM pg_class AS it JOIN pg_attribute AS part ON attrelid = it.oid "
    "JOIN pg_namespace AS place ON place.oid = relnamespace "
    "WHERE nspname = current_schema() AND attnum > 0 AND NOT attisdropped"
)

Lacks = dict[str, SQLTable | Column[object] | Index]
"""What `tables.py` declares and a database lacks, by its name for people, such as `column run.host`, in an order in
which it can be added.
"""


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
    """Create all tables of the newest schema, in a database that has none of them."""
    Table.metadata.create_all(connection)
    stamp = {"version": newest_schema(), "oldest_reader": 1, "oldest_writer": 1, "created": time.time_ns() // 1000}
    for migration in migrations.MIGRATIONS:
        stamp |= {"oldest_reader": migration.oldest_reader, "oldest_writer": migration.oldest_writer}
    connection.execute(insert(SchemaVersion).values(**stamp, release=_release()))


def newest_schema() -> int:
    """Return the newest schema that this program knows."""
    return max([SCHEMA_VERSION, *(migration.number for migration in migrations.MIGRATIONS)])


def check(address: Address, connection: Connection, *, purpose: Purpose) -> Lacks | None:
    """Return what the schema lacks; None if there is none. Raise RefusedDatabaseError if it may not be used for this
    purpose.
    """
    lacks, place = missing(connection), masked_address(address)
    if f"table {SchemaVersion.__tablename__}" in lacks:
        return None
    # What may be NULL or has a default can be added, or done without. The rest must be there, at first in the table of
    # the version, which is read next.
    required = [name for name, item in lacks.items() if not addition(name, item).is_additive]
    if of_stamp := [name for name in required if SchemaVersion.__tablename__ in name]:
        raise _from_before(place, of_stamp[0])
    stamp = stamp_of(connection)
    if stamp.version > newest_schema():
        if newest_schema() < (stamp.oldest_reader if purpose == Purpose.READ else stamp.oldest_writer):
            raise RefusedDatabaseError(
                f"{place} was written by a newer logs-ui (schema {stamp.version}, this one knows {newest_schema()}). "
                f"{_upgrade(connection)}"
            )
    # Readers cannot do without a migration that is pending; recorders apply it if it is additive.
    elif stamp.version < newest_schema():
        are_additive = all(step.is_additive for step in pending(connection))
        if purpose == Purpose.READ or (purpose == Purpose.RECORD and not are_additive):
            first = "" if are_additive else ", once no run is recorded into it any more"
            raise RefusedDatabaseError(
                f"{place} has schema {stamp.version}, and this logs-ui works with {newest_schema()}. "
                f"Bring it up to date{first}: logs-ui db migrate{db_option(address)}"
            )
    # A database with today's number lacks nothing that is required, unless it is older than the numbers.
    elif required:
        raise _from_before(place, required[0])
    return lacks


def bring_up_to_date(engine: Engine) -> None:
    """Apply what is pending to a database that `check` lets a recorder write: additive migrations only."""
    for _ in migrate(engine, refuse=lambda _, __: None):
        pass


def is_behind(connection: Connection) -> bool:
    """Return True if a migration is pending."""
    return bool(pending(connection))


def refuse_outgrown(place: str, connection: Connection) -> None:
    """Check in each transaction of a recorder that the database was not migrated meanwhile. Raise
    RefusedDatabaseError if this program must not write it any more.
    """
    # As text: compiling and caching a statement costs more than SQLite's work does, and this runs in each transaction.
    stamped = connection.exec_driver_sql(f"SELECT version, oldest_writer FROM {SchemaVersion.__tablename__}")  # noqa: S608
    version, oldest_writer = stamped.one()
    if oldest_writer > newest_schema():
        raise RefusedDatabaseError(
            f"{place} was brought to schema {version} meanwhile, which takes a newer logs-ui to write (this one "
            f"knows {newest_schema()}). {_upgrade(connection)}"
        )


def stamp_of(connection: Connection) -> Stamp:
    table = SchemaVersion
    columns = (col(table.version), col(table.oldest_reader), col(table.oldest_writer))
    return Stamp(*connection.execute(select(*columns)).one())


def missing(connection: Connection) -> Lacks:
    there = _columns(connection)
    names, declared = {name for name, _ in there}, Table.metadata.sorted_tables
    tables = [table for table in declared if table.name in names]
    columns = [column for table in tables for column in table.columns if (table.name, column.name) not in there]
    return {
        **{f"table {table.name}": table for table in declared if table.name not in names},
        **{f"column {column.table.name}.{column.name}": column for column in columns},
        **{f"index {index.name}": index for table in tables for index in table.indexes if index.name not in names},
    }


def _columns(connection: Connection) -> set[tuple[str, str]]:
    """Return the columns of all tables and indexes, as (table, column); for SQLite also their names without one."""
    if connection.dialect.name == "postgresql":
        return {(table, column) for table, column in connection.exec_driver_sql(_ON_POSTGRESQL)}
    listed = connection.exec_driver_sql("SELECT name, type FROM main.sqlite_master")
    kinds = {name: kind for name, kind in listed}  # noqa: C416 - rows are no pairs to mypy
    tables = (name for name, kind in kinds.items() if kind == "table")
    # Joined with pragma_table_info, SQLite aborts it when the tables of an attached file have just changed.
    parts = {name: connection.exec_driver_sql(f'PRAGMA main.table_info("{name}")').all() for name in tables}
    return {(name, "") for name in kinds} | {(name, part[1]) for name in parts for part in parts[name]}


def pending(connection: Connection) -> list[Migration]:
    """Return the additions and migrations that are still to be applied, in order."""
    version = stamp_of(connection).version
    additions = [addition(name, item) for name, item in missing(connection).items()]
    return [
        *(step for step in additions if step.is_additive),
        *(step for step in migrations.MIGRATIONS if step.number > version),
    ]


def migrate(engine: Engine, refuse: Callable[[Connection, Migration], None]) -> Iterator[Migration]:
    """Apply what is pending, each migration in its own transaction: after an interruption the rest is applied next
    time. If several processes do so at once, each migration is applied once.

    `refuse` is called within the transaction, and raises if this migration must not be applied now. Yield each
    migration once it is applied, by this process or another.
    """
    with engine.connect() as connection:
        steps = pending(connection)
    for step in steps:
        with engine.begin() as connection:
            if connection.dialect.name == "postgresql":
                # Writers read this table in each transaction: those that have begun end first, others wait.
                connection.exec_driver_sql(f"LOCK TABLE {SchemaVersion.__tablename__} IN ACCESS EXCLUSIVE MODE")
            if step.what in {pending_step.what for pending_step in pending(connection)}:
                refuse(connection, step)
                step.apply(connection)
                if step.number > 1:
                    oldest = {"oldest_reader": step.oldest_reader, "oldest_writer": step.oldest_writer}
                    now = {"release": _release(), "migrated": time.time_ns() // 1000}
                    connection.execute(update(SchemaVersion).values(version=step.number, **oldest, **now))
        yield step


def _release() -> str | None:
    return next((distribution.version for distribution in importlib.metadata.distributions(name="logs-ui")), None)


def _upgrade(connection: Connection) -> str:
    """Return what to do about a database of a newer release, which it names; earlier commits did not say theirs."""
    release = connection.exec_driver_sql(f"SELECT * FROM {SchemaVersion.__tablename__}").mappings().one().get("release")  # noqa: S608
    return "Upgrade with: pip install -U " + (f"'logs-ui>={release}'" if release else "logs-ui")


def _from_before(place: str, lacking: str) -> RefusedDatabaseError:
    return RefusedDatabaseError(
        f"{place} was written by an earlier logs-ui, before 0.1.0: it lacks the {lacking}. Name {_ANOTHER}."
    )
