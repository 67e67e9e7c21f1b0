"""What SQLite and PostgreSQL say in different words, or understand differently by the same ones. What is made of these
parts is one SQL expression to both; all other SQL of ours stands in words that they share.

`insert` is PostgreSQL's, with ON CONFLICT: SQLite has the same clause, word for word.
"""

from typing import Any

from sqlalchemy import (
    DDL,
    BigInteger,
    Double,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Text,
    TypeDecorator,
    case,
    cast,
    event,
    or_,
)
from sqlalchemy.dialects.postgresql import Insert, insert
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.functions import FunctionElement
from sqlalchemy.sql.selectable import TableValuedAlias

__all__ = [
    "Insert",
    "insert",
    "json_array",
    "json_each",
    "json_object",
    "mean",
    "number",
    "number_in",
    "product",
    "server_clock",
    "spread",
    "suit",
    "total",
    "whole",
    "whole_sum",
]


def suit(metadata: MetaData) -> None:
    """Gives the columns of these tables types that hold on PostgreSQL what they hold on SQLite: integers of 64 bits,
    and text that is told apart and sorted by its characters, whatever the database's own order is. What we compressed
    is not compressed a second time.
    """
    for table in metadata.tables.values():
        for column in table.columns:
            stored = column.type.impl if isinstance(column.type, TypeDecorator) else column.type
            if isinstance(stored, String):
                column.type = String().with_variant(Text(collation="C"), "postgresql")
            elif isinstance(stored, Integer) and not isinstance(stored, BigInteger):
                column.type = Integer().with_variant(BigInteger(), "postgresql")
            elif isinstance(stored, LargeBinary):
                sql = f"ALTER TABLE %(fullname)s ALTER COLUMN {column.name} SET STORAGE EXTERNAL"
                external = DDL(sql)  # type: ignore[no-untyped-call]
                event.listen(table, "after_create", external.execute_if(dialect="postgresql"))


def json_each(column: Any, name: str | None = None) -> TableValuedAlias:
    """The entries of a JSON object: `key`, `type` as SQLite names it (of a number "real", or "integer"), and `value`,
    of which `number` makes a number; of an array or an object its JSON, NULL of a null. No entries of what is no
    object, or one whose key is NULL.
    """
    return _JsonEach(column).table_valued("key", "type", "value", name=name)


def number(entry: TableValuedAlias) -> Any:
    """Of an entry of `json_each`; NULL where it is none."""
    return case((or_(entry.c.type == "integer", entry.c.type == "real"), cast(entry.c.value, Double)))


class number_in(FunctionElement[Any]):  # noqa: N801 - a function of SQL
    """The number that a JSON object has under a key; NULL where it has none. The key never is part of a path."""

    type = Double()
    inherit_cache = True


class json_object(FunctionElement[Any]):  # noqa: N801
    """Aggregates keys and their values, which may be JSON, into an object; an empty one of no rows. The keys of
    grouped rows are in order.
    """

    inherit_cache = True


class json_array(FunctionElement[Any]):  # noqa: N801
    """Of these values."""

    inherit_cache = True


class total(FunctionElement[Any]):  # noqa: N801
    """The sum of floats, infinite ones among them; NULL where there is none, or where it is no number. On PostgreSQL,
    which gives up where a sum has no room in a float, one beyond 1e290 counts as infinite, and one below as 0.
    """

    type = Double()
    inherit_cache = True


class whole_sum(FunctionElement[Any]):  # noqa: N801
    """Of whole numbers, as one; NULL where there is none. PostgreSQL's sum() of them is a decimal number."""

    type = BigInteger()
    inherit_cache = True


class whole(FunctionElement[Any]):  # noqa: N801
    """A number without its fraction. A CAST cuts that off on SQLite, and rounds on PostgreSQL."""

    type = BigInteger()
    inherit_cache = True


class product(FunctionElement[Any]):  # noqa: N801
    """Of two floats; NULL where it is no number. On PostgreSQL, which gives up where one has no room in a float, a
    factor beyond 1e150 counts as infinite, and one below 1e-150 as 0.
    """

    type = Double()
    inherit_cache = True


class server_clock(FunctionElement[Any]):  # noqa: N801
    """Now, in µs since 1970, by the clock that all who use the database have in common: PostgreSQL's own; on SQLite
    the machine's, which is given, in µs too.
    """

    type = BigInteger()
    inherit_cache = True


class spread(FunctionElement[Any]):  # noqa: N801
    """Between the highest and the lowest of floats; NULL where there is none, or both are the same infinity."""

    type = Double()
    inherit_cache = True


class mean(FunctionElement[Any]):  # noqa: N801
    """Of floats; NULL where there is none, else as `total`."""

    type = Double()
    inherit_cache = True


class _JsonEach(FunctionElement[Any]):
    inherit_cache = True


@compiles(_JsonEach)
def _(element: _JsonEach, compiler: Any, **kw: Any) -> str:
    return f"json_each({compiler.process(element.clauses, **kw)})"


@compiles(_JsonEach, "postgresql")
def _(element: _JsonEach, compiler: Any, **kw: Any) -> str:
    column = compiler.process(element.clauses, **kw)
    kind = "CASE json_typeof(value) WHEN 'string' THEN 'text' WHEN 'number' THEN 'real' WHEN 'boolean' THEN "
    kind += "value #>> '{}' ELSE json_typeof(value) END"
    entries = f"json_each(CASE json_typeof({column}) WHEN 'object' THEN {column} END)"
    return f"LATERAL (SELECT key COLLATE \"C\" AS key, {kind} AS type, value #>> '{{}}' AS value FROM {entries})"  # noqa: S608


@compiles(number_in)
def _(element: number_in, compiler: Any, **kw: Any) -> str:
    column, key = (compiler.process(part, **kw) for part in element.clauses)
    return f"(SELECT value FROM json_each({column}) WHERE key = {key} AND type IN ('integer', 'real'))"  # noqa: S608


@compiles(number_in, "postgresql")
def _(element: number_in, compiler: Any, **kw: Any) -> str:
    column, key = (compiler.process(part, **kw) for part in element.clauses)
    return f"CASE json_typeof({column} -> {key}) WHEN 'number' THEN ({column} ->> {key})::float8 END"


@compiles(json_object)
def _(element: json_object, compiler: Any, **kw: Any) -> str:
    key, value = (compiler.process(part, **kw) for part in element.clauses)
    return f"json_group_object({key}, json({value}))"


@compiles(json_object, "postgresql")
def _(element: json_object, compiler: Any, **kw: Any) -> str:
    key, value = (compiler.process(part, **kw) for part in element.clauses)
    return f"coalesce(json_object_agg({key}, {value} ORDER BY {key}), '{{}}')"


@compiles(json_array)
def _(element: json_array, compiler: Any, **kw: Any) -> str:
    return f"json_array({compiler.process(element.clauses, **kw)})"


@compiles(json_array, "postgresql")
def _(element: json_array, compiler: Any, **kw: Any) -> str:
    return f"json_build_array({compiler.process(element.clauses, **kw)})"


@compiles(total)
def _(element: total, compiler: Any, **kw: Any) -> str:
    return f"sum({compiler.process(element.clauses, **kw)})"


@compiles(total, "postgresql")
def _(element: total, compiler: Any, **kw: Any) -> str:
    return f"nullif(sum({_bounded(compiler.process(element.clauses, **kw), 290)}), 'NaN')"


@compiles(whole_sum)
def _(element: whole_sum, compiler: Any, **kw: Any) -> str:
    return f"sum({compiler.process(element.clauses, **kw)})"


@compiles(whole_sum, "postgresql")
def _(element: whole_sum, compiler: Any, **kw: Any) -> str:
    return f"CAST(sum({compiler.process(element.clauses, **kw)}) AS BIGINT)"


@compiles(mean)
def _(element: mean, compiler: Any, **kw: Any) -> str:
    return f"avg({compiler.process(element.clauses, **kw)})"


@compiles(mean, "postgresql")
def _(element: mean, compiler: Any, **kw: Any) -> str:
    column = compiler.process(element.clauses, **kw)  # PostgreSQL's avg() squares what it adds up
    return f"(nullif(sum({_bounded(column, 290)}), 'NaN') / count({column}))"


@compiles(whole)
def _(element: whole, compiler: Any, **kw: Any) -> str:
    return f"CAST({compiler.process(element.clauses, **kw)} AS INTEGER)"


@compiles(whole, "postgresql")
def _(element: whole, compiler: Any, **kw: Any) -> str:
    return f"CAST(trunc({compiler.process(element.clauses, **kw)}) AS BIGINT)"


@compiles(product)
def _(element: product, compiler: Any, **kw: Any) -> str:
    return "(" + " * ".join(f"({compiler.process(part, **kw)})" for part in element.clauses) + ")"


@compiles(product, "postgresql")
def _(element: product, compiler: Any, **kw: Any) -> str:
    factors = " * ".join(_bounded(compiler.process(part, **kw), 150) for part in element.clauses)
    return f"nullif({factors}, 'NaN')"


@compiles(server_clock)
def _(element: server_clock, compiler: Any, **kw: Any) -> str:
    return str(compiler.process(element.clauses, **kw))


@compiles(server_clock, "postgresql")
def _(element: server_clock, compiler: Any, **kw: Any) -> str:  # noqa: ARG001
    return "CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT)"


@compiles(spread)
def _(element: spread, compiler: Any, **kw: Any) -> str:
    column = compiler.process(element.clauses, **kw)
    return f"(max({column}) - min({column}))"


@compiles(spread, "postgresql")
def _(element: spread, compiler: Any, **kw: Any) -> str:
    highest, lowest = (_bounded(f"{end}({compiler.process(element.clauses, **kw)})", 290) for end in ("max", "min"))
    return f"nullif({highest} - {lowest}, 'NaN')"


def _bounded(number: str, digits: int) -> str:
    """A float that PostgreSQL can add to others, or multiply."""
    beyond = f"WHEN {number} > 1e{digits} THEN 'Infinity'::float8 WHEN {number} < -1e{digits} THEN '-Infinity'"
    return f"(CASE {beyond} WHEN abs({number}) < 1e-{digits} THEN 0 ELSE {number} END)"
