"""SQL statements that are compiled once and run as text: SQLAlchemy's own way costs more than SQLite's work does.

Many rows go in as one statement. The driver lets go of the GIL for each statement's run, and has to wait for it again,
which costs the other threads more than the row does.
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
_ROWS = (128, 64, 32, 16, 8, 4, 2, 1)  # in one statement: few sizes, so that the driver knows most of them already

Row = dict[str, Any]
_Kind = tuple[str, str]  # of a dialect: its name and paramstyle
_dialects: dict[_Kind, Dialect] = {}

StatementOf = Callable[..., ClauseElement]
"""Makes a statement of hashable arguments."""


class _Prepared(NamedTuple):
    """A statement as text, the names of its parameters in order, and the values of those that are its own constants."""

    sql: str
    names: tuple[str, ...]
    constants: Row


def run(connection: Connection, values: Row, statement_of: StatementOf, *args: Any) -> CursorResult[Any]:
    """Runs `statement_of(*args)`. The values are given to the driver as they are."""
    sql, names, constants = _prepared(_kind(connection), statement_of, *args)
    given = constants | values
    return connection.exec_driver_sql(sql, tuple([given[name] for name in names]))


def run_each(connection: Connection, rows: Iterable[Row], statement_of: StatementOf, *args: Any) -> None:
    """Runs `statement_of(*args)` once for each of some values, and gives nothing back."""
    sql, names, constants = _prepared(_kind(connection), statement_of, *args)
    parameters = itemgetter(*names)
    given = [parameters(constants | values) for values in rows]
    if given:
        connection.exec_driver_sql(sql, given)


def run_many(connection: Connection, rows: Sequence[Row], statement_of: StatementOf, *args: Any) -> None:
    """Inserts rows by `statement_of(*args)`.

    Args:
        connection: in whose transaction.
        rows: the values of each, by the name of their parameter; given to the driver as they are.
        statement_of: gives an insert that takes its parameters in its VALUES alone.
        args: its arguments.
    """
    sql, names, _ = _prepared(_kind(connection), statement_of, *args)
    _run_for(connection, sql, list(map(itemgetter(*names), rows)))


def upsert(
    connection: Connection, table: type[SQLModel], rows: list[Row], key: tuple[str, ...], kept: tuple[str, ...] = ()
) -> None:
    """Rows must all name the same columns, in one order. Where one is there already, those outside of `key` and `kept`
    replace its own.
    """
    if rows:
        upsert_values(connection, table, tuple(rows[0]), [list(row.values()) for row in rows], key, kept)


def upsert_values(
    connection: Connection,
    table: type[SQLModel],
    columns: tuple[str, ...],
    rows: list[list[Any]],
    key: tuple[str, ...],
    kept: tuple[str, ...] = (),
) -> None:
    """The same of rows that are values alone, in the columns' order; they are changed."""
    kind = _kind(connection)
    for place, convert in _conversions(kind, table, columns):
        for row in rows:
            row[place] = convert(row[place])
    _run_for(connection, _prepared(kind, _upsert, table, columns, key, kept).sql, rows)


def _run_for(connection: Connection, sql: str, rows: Sequence[Sequence[Any]]) -> None:
    """Values of rows are in the order of the statement's parameters."""
    for piece in _pieces(rows):
        connection.exec_driver_sql(_repeated(sql, len(piece)), tuple(chain.from_iterable(piece)))


def _pieces(rows: Sequence[Sequence[Any]]) -> Iterator[Sequence[Sequence[Any]]]:
    done = 0
    for count in _ROWS:
        while len(rows) - done >= count:
            yield rows[done : done + count]
            done += count


def _kind(connection: Connection) -> _Kind:
    """Each engine has a dialect of its own, and engines come and go: one of each kind is kept, to compile with."""
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
    """What the driver may not take as it is, by its place: JSON, and on SQLite numbers that are no Python floats."""
    dialect = _dialects[kind]
    types = [table.metadata.tables[str(table.__tablename__)].columns[name].type for name in columns]
    found = [of_type.dialect_impl(dialect).bind_processor(dialect) for of_type in types]
    is_text = [isinstance(of_type, JSON) and dialect.name == "sqlite" for of_type in types]
    return [
        (place, _of_dicts(convert) if is_text[place] else convert)
        for place, convert in enumerate(found)
        if convert is not None
    ]


def _of_dicts(convert: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """The same, sooner for what is nearly always there."""
    return lambda value: json_column(value) if type(value) is dict else convert(value)


def _upsert(table: type[SQLModel], columns: tuple[str, ...], key: tuple[str, ...], kept: tuple[str, ...]) -> Insert:
    # Not the model's table: SQLAlchemy would add its defaults, which the database has itself.
    statement = insert(lightweight(str(table.__tablename__), *map(column, columns))).inline()
    others = {name: statement.excluded[name] for name in columns if name not in {*key, *kept}}
    return statement.on_conflict_do_update(index_elements=key, set_=others)


@lru_cache(_KEPT)
def _repeated(sql: str, count: int) -> str:
    """For so many rows. Compiled as such it takes SQLAlchemy tens of milliseconds."""
    before, values, after = sql.partition(" VALUES ")
    row, conflict, action = after.partition(" ON CONFLICT ")
    return before + values + ", ".join([row] * count) + conflict + action
