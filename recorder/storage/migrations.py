"""How the schema has changed since 0.1.0: numbered, in order. Before 0.1.0 it is edited in place, in `tables.py`, which
always has it as the last of these leaves it.

Once released, a migration stays as it is. Each runs in one transaction, on SQLite and on PostgreSQL; `schema.py`
applies them. One that is additive (a table, a column that may be NULL or has a default of the database's, an index)
stops nobody: older recorders go on writing, and the next recorder that opens the database applies it by itself. For any
other, a person has to ask, by `logs-ui db migrate`, and recorders that are older than `oldest_writer` stop.
"""

from collections.abc import Callable
from dataclasses import dataclass

from sqlalchemy import Column, Connection, Index, Table
from sqlalchemy.schema import CreateColumn, CreateIndex, CreateTable


@dataclass(frozen=True)
class Migration:
    """The step from the schema before to the one of its number.

    Attributes:
        number: one more than the last one's; the first is 2.
        what: it changes, in a few words, for people.
        apply: does it, in the transaction that it is given.
        oldest_reader, oldest_writer: programs that know at least this schema may read and write what it leaves behind,
            without knowing of it.
    """

    number: int
    what: str
    apply: Callable[[Connection], None]
    oldest_reader: int
    oldest_writer: int

    @property
    def is_additive(self) -> bool:
        """Whether it stops nobody who read or wrote before."""
        return max(self.oldest_reader, self.oldest_writer) < self.number


MIGRATIONS: tuple[Migration, ...] = ()


def add_column(connection: Connection, column: Column[object]) -> None:
    """Of a table that is there: milliseconds, however many rows it has."""
    table = connection.dialect.identifier_preparer.format_table(column.table)
    made = CreateColumn(column).compile(dialect=connection.dialect)
    connection.exec_driver_sql(f"ALTER TABLE {table} ADD COLUMN {made}")


def add_index(connection: Connection, index: Index) -> None:
    """1.7 s for a million rows, in which nobody writes."""
    connection.execute(CreateIndex(index))


def add_table(connection: Connection, table: Table) -> None:
    """With its indexes."""
    connection.execute(CreateTable(table))
    for index in sorted(table.indexes, key=lambda it: str(it.name)):
        connection.execute(CreateIndex(index))
