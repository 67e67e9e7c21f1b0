"""Compiles SQL statements once and runs them as text, because SQLAlchemy's execution costs more than SQLite's work.

Many rows go in as one statement: the driver releases the GIL for each statement and must wait to take it again, which
costs the other threads more than the row itself.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import chain
from operator import itemgetter
from typing import Any, NamedTuple

from sqlalchemy import JSON, Connection, CursorResult, Dialect, column
from sqlalchemy import table as lightweight
from sqlalchemy.sql import ClauseElement
from sqlmodel import SQLModel

from logs_ui.recorder.snapshot import json_column
from logs_ui.recorder.storage.dialects import Insert, insert

_KEPT = 256  # statements
_ROWS = (128, 64, 32, 16, 8, 4, 2, 1)  # in one statement: few sizes, so that the driver's cache knows most statements

Row = dict[str, Any]
_Kind = tuple[str, str]  # a dialect's name and paramstyle
_dialects: dict[_Kind, Dialect] = {}

StatementOf = Callable[..., ClauseElement]
"""Builds a statement from hashable arguments."""


class _Prepared(NamedTuple):
    """Holds a statement as text, its parameters' names in order, and the values of its constants."""

    sql: str
    names: tuple[str, ...]
    constants: Row


def run(connection: Connection, values: Row, statement_of: StatementOf, *args: Any) -> CursorResult[Any]:
    """Run `statement_of(*args)`. The values are passed to the driver unchanged."""
    sql, names, constants = _prepared(_kind(connection), statement_of, *args)
    parameters = constants | values
    return connection.exec_driver_sql(sql, tuple([parameters[name] for name in names]))


def run_each(connection: Connection, rows: Iterable[Row], statement_of: StatementOf, *args: Any) -> None:
    """Run `statement_of(*args)` once for each row of values."""
    sql, names, constants = _prepared(_kind(connection), statement_of, *args)
    parameters = itemgetter(*names)
    tuples = [parameters(constants | values) for values in rows]
    if tuples:
        connection.exec_driver_sql(sql, tuples)


def run_many(connection: Connection, rows: Sequence[Row], statement_of: StatementOf, *args: Any) -> None:
    """Insert rows, given by parameter name and passed to the driver unchanged, by `statement_of(*args)`: an insert
    with parameters only in its VALUES.
    """
    sql, names, _ = _prepared(_kind(connection), statement_of, *args)
    _run_for(connection, sql, list(map(itemgetter(*names), rows)))


def upsert(
    connection: Connection, table: type[SQLModel], rows: list[Row], key: tuple[str, ...], fixed: tuple[str, ...] = ()
) -> None:
    """Insert rows, which must all have the same columns in the same order. If a row with this `key` exists, its
    columns are replaced, except `fixed`.
    """
    if rows:
        upsert_values(connection, table, tuple(rows[0]), [list(row.values()) for row in rows], key, fixed)


def upsert_values(
    connection: Connection,
    table: type[SQLModel],
    columns: tuple[str, ...],
    rows: list[list[Any]],
    key: tuple[str, ...],
    fixed: tuple[str, ...] = (),
) -> None:
    """Upsert rows that are lists of values in the columns' order; the lists are changed."""
    kind = _kind(connection)
    for place, convert in _conversions(kind, table, columns):
        for row in rows:
            row[place] = convert(row[place])
    _run_for(connection, _prepared(kind, _upsert, table, columns, key, fixed).sql, rows)


def _run_for(connection: Connection, sql: str, rows: Sequence[Sequence[Any]]) -> None:
    """Run an insert for rows whose values are in the order of its parameters."""
    for piece in _pieces(rows):
        connection.exec_driver_sql(_repeated(sql, len(piece)), tuple(chain.from_iterable(piece)))


def _pieces(rows: Sequence[Sequence[Any]]) -> Iterator[Sequence[Sequence[Any]]]:
    done = 0
    for count in _ROWS:
        while len(rows) - done >= count:
            yield rows[done : done + count]
            done += count


def _kind(connection: Connection) -> _Kind:
    """Keep one dialect of each kind to compile with: each engine has its own, and engines come and go."""
    kind = (connection.dialect.name, connection.dialect.paramstyle)
    _dialects.setdefault(kind, connection.dialect)
    return kind


@lru_cache(_KEPT)
def _prepared(kind: _Kind, statement_of: StatementOf, *args: Any) -> _Prepared:
    compiled: Any = statement_of(*args).compile(dialect=_dialects[kind])
    return _Prepared(str(compiled), tuple(compiled.positiontup), compiled.params)


@lru_cache(_KEPT)
def _conversions(
    kind: _Kind, table: type[SQLModel], columns: tuple[str, ...]
) -> list[tuple[int, Callable[[Any], Any]]]:
    """Return converters by the place of a column: of JSON, and on SQLite of numbers that are no Python floats."""
    dialect = _dialects[kind]
    types = [table.metadata.tables[str(table.__tablename__)].columns[name].type for name in columns]
    converters = [of_type.dialect_impl(dialect).bind_processor(dialect) for of_type in types]
    is_text = [isinstance(of_type, JSON) and dialect.name == "sqlite" for of_type in types]
    return [
        (place, _of_dicts(convert) if is_text[place] else convert)
        for place, convert in enumerate(converters)
        if convert is not None
    ]


def _of_dicts(convert: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return a faster converter for JSON columns, which nearly always hold a dict."""
    return lambda value: json_column(value) if type(value) is dict else convert(value)


def _upsert(table: type[SQLModel], columns: tuple[str, ...], key: tuple[str, ...], fixed: tuple[str, ...]) -> Insert:
    # Not the model's table: SQLAlchemy would add its defaults, which the database adds itself.
    statement = insert(lightweight(str(table.__tablename__), *map(column, columns))).inline()
    others = {name: statement.excluded[name] for name in columns if name not in {*key, *fixed}}
    return statement.on_conflict_do_update(index_elements=key, set_=others)


@lru_cache(_KEPT)
def _repeated(sql: str, count: int) -> str:
    """Repeat the VALUES for `count` rows. SQLAlchemy would take tens of milliseconds to compile that."""
    before, values, after = sql.partition(" VALUES ")
    # Without an ON CONFLICT both last parts are empty.
    row, conflict, action = after.partition(" ON CONFLICT ")
    return before + values + ", ".join([row] * count) + conflict + action
