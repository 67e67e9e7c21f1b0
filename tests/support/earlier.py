"""Makes of a database of today one that an earlier commit could have made."""

from collections.abc import Iterable

from sqlalchemy import Column, Table, text

from logs_ui.recorder.storage import tables
from logs_ui.recorder.storage.address import Address
from logs_ui.recorder.storage.database import disposed, writing_engine

LATER_TABLES = ("step_details", "row_tag", "image")
"""Tables that a test takes away: pages do without their rows."""


def later_columns() -> list[Column[object]]:
    """Return the columns that a later commit could have added, as many as SQLite can drop: no keys, none indexed."""
    indexed = {column for table in _tables() for index in table.indexes for column in index.columns}
    indexed.add(column("step_statistics.stale"))  # of a partial index
    columns = (it for table in _tables() for it in table.columns if it.nullable or it.server_default is not None)
    return [it for it in columns if not it.foreign_keys and it not in indexed]


def column(name: str) -> Column[object]:
    """Return a column by its name, such as `run.host`."""
    table, _, of_table = name.partition(".")
    return tables.Table.metadata.tables[table].columns[of_table]


def emptied(address: Address, columns: Iterable[Column[object]], without: Iterable[str] = ()) -> None:
    """Set columns to NULL, or their default, and delete all rows of tables."""
    defaults = {it: "NULL" if it.nullable else f"'{getattr(it.server_default, 'arg', '')}'" for it in columns}
    changes = [f'UPDATE {it.table.name} SET "{it.name}" = {default}' for it, default in defaults.items()]  # noqa: S608
    _run(address, [*changes, *(f"DELETE FROM {name}" for name in without)])  # noqa: S608


def taken_back(
    address: Address, columns: Iterable[Column[object]], without: Iterable[str] = (), indexes: Iterable[str] = ()
) -> None:
    """Drop columns, tables and indexes."""
    changes = [f'ALTER TABLE {it.table.name} DROP COLUMN "{it.name}"' for it in columns]
    changes += [f"DROP INDEX {name}" for name in indexes]
    _run(address, [*changes, *(f"DROP TABLE {name}" for name in without)])


def _tables() -> list[Table]:
    return tables.Table.metadata.sorted_tables


def _run(address: Address, changes: Iterable[str]) -> None:
    with disposed(writing_engine(address)) as engine, engine.begin() as connection:
        for change in changes:
            connection.execute(text(change))
