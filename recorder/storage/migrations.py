"""Lists the numbered changes of the schema, in order; `tables.py` always describes the newest one.

A table, an index, or a column that may be NULL or has a server default needs none: it is declared in `tables.py`, and
the next recorder that opens the database adds it (`schema.missing`), before the migrations.

A released migration is never edited. Each runs in one transaction, on SQLite and on PostgreSQL; `schema.py` applies
them. An additive one stops nobody: older recorders go on writing, and the next recorder that opens the database applies
it. Any other needs a person to run `logs-ui db migrate`; then recorders that are older than `oldest_writer` stop.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from sqlalchemy import Column, Connection, Index, Table
from sqlalchemy.schema import CreateColumn


@dataclass(frozen=True)
class Migration:
    """Describes one step to the schema of its number."""

    number: int  # one more than the last one's; the first is 2. Of what needs no number it is 1
    what: str  # the change in a few words, for people
    apply: Callable[[Connection], None]  # applies it, in the transaction of the connection
    oldest_reader: int  # programs that know at least this schema may read the database after this step
    oldest_writer: int  # and these may write it

    @property
    def is_additive(self) -> bool:
        """True if older readers and writers can go on."""
        return max(self.oldest_reader, self.oldest_writer) < self.number


def addition(name: str, item: Table | Column[object] | Index) -> Migration:
    """Return the step that adds a table, a column or an index, without a number; not additive if it needs one."""
    is_required = isinstance(item, Column) and not item.nullable and item.server_default is None
    apply = partial(add_column, column=item) if isinstance(item, Column) else item.create
    return Migration(1, name, apply, oldest_reader=0, oldest_writer=int(is_required))


MIGRATIONS: tuple[Migration, ...] = ()


def add_column(connection: Connection, column: Column[object]) -> None:
    """Add a column to an existing table. Takes milliseconds, however many rows there are. Tables and indexes add
    themselves by `create(connection)`: an index takes 1.7 s for a million rows, and meanwhile nobody can write.
    """
    table = connection.dialect.identifier_preparer.format_table(column.table)
    definition = CreateColumn(column).compile(dialect=connection.dialect)
    # CreateColumn leaves out references, which SQLAlchemy writes as constraints of a whole table.
    keys = "".join(f" REFERENCES {key.column.table.name} ({key.column.name})" for key in column.foreign_keys)
    connection.exec_driver_sql(f"ALTER TABLE {table} ADD COLUMN {definition}{keys}")
