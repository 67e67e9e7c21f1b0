"""SQL that SQLite and PostgreSQL write differently, or understand differently in the same words. Each class is one SQL
function; the same expression compiles for both. All other SQL of the package uses words that both share.

`insert` is PostgreSQL's, with ON CONFLICT: SQLite has the same clause, word for word.
"""

from collections.abc import Sequence
from typing import Any, ClassVar

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import ARRAY, Insert, insert
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.functions import FunctionElement
from sqlalchemy.sql.selectable import TableValuedAlias

__all__ = ["Insert", "insert"]  # imported here for others


def suit(metadata: sa.MetaData) -> None:
    """Change the columns' types so that PostgreSQL stores what SQLite stores: integers of 64 bits, and text that is
    compared and sorted by its characters, whatever the database's collation is. PostgreSQL does not compress bytes that
    logs-ui compressed.
    """
    for table in metadata.tables.values():
        for column in table.columns:
            stored = column.type.impl if isinstance(column.type, sa.TypeDecorator) else column.type
            if isinstance(stored, sa.String):
                column.type = sa.String().with_variant(sa.Text(collation="C"), "postgresql")
            elif isinstance(stored, sa.Integer) and not isinstance(stored, sa.BigInteger):
                column.type = sa.Integer().with_variant(sa.BigInteger(), "postgresql")
            elif isinstance(stored, sa.LargeBinary):
                sql = f"ALTER TABLE %(fullname)s ALTER COLUMN {column.name} SET STORAGE EXTERNAL"
                external = sa.DDL(sql)  # type: ignore[no-untyped-call]
                sa.event.listen(table, "after_create", external.execute_if(dialect="postgresql"))


class Function(FunctionElement[Any]):
    """A function as each database writes it: `{0}` is the first argument, `{1}` the second."""

    sqlite: ClassVar[str]
    postgresql: ClassVar[str]
    inherit_cache = True

    def __init_subclass__(cls, **kw: Any) -> None:
        super().__init_subclass__(**kw)
        cls.inherit_cache = True  # SQLAlchemy wants each class to say so itself


@compiles(Function)
def _(element: Function, compiler: Any, **kw: Any) -> str:
    template = element.postgresql if compiler.dialect.name == "postgresql" else element.sqlite
    # An argument that is compiled, but not used, would be left over among the parameters.
    is_used = (f"{{{place}}}" in template for place in range(len(element.clauses)))
    parts = zip(element.clauses, is_used, strict=True)
    return template.format(*(compiler.process(part, **kw) if used else "" for part, used in parts))


def _bounded(number: str, digits: int) -> str:
    """Return a float that PostgreSQL can add or multiply without failing where SQLite gives infinity, or 0."""
    beyond = f"WHEN {number} > 1e{digits} THEN 'Infinity'::float8 WHEN {number} < -1e{digits} THEN '-Infinity'"
    return f"(CASE {beyond} WHEN abs({number}) < 1e-{digits} THEN 0 ELSE {number} END)"


class _JsonEach(Function):
    sqlite = "json_each({0})"
    # Doubled braces are single ones after `format`: `value #>> '{}'` is the whole value as text. Of a column that is no
    # object the CASE makes NULL, which has no entries.
    postgresql = (
        'LATERAL (SELECT key COLLATE "C" AS key, '
        "CASE json_typeof(value) WHEN 'string' THEN 'text' WHEN 'number' THEN 'real' "
        "WHEN 'boolean' THEN value #>> '{{}}' ELSE json_typeof(value) END AS type, value #>> '{{}}' AS value "
        "FROM json_each(CASE json_typeof({0}) WHEN 'object' THEN {0} END))"
    )


def json_each(column: Any, name: str | None = None) -> TableValuedAlias:
    """Return the entries of a JSON object as rows: `key`, `type` as SQLite names it ("real" or "integer" of a number),
    and `value`, from which `number` makes a number: JSON if it is an array or an object, NULL if it is null. There are
    no rows if the column is no object, and none for a key that is NULL.
    """
    return _JsonEach(column).table_valued("key", "type", "value", name=name)


def number(entry: TableValuedAlias) -> Any:
    """Return the number of an entry of `json_each`; NULL if it is none."""
    return sa.case((sa.or_(entry.c.type == "integer", entry.c.type == "real"), sa.cast(entry.c.value, sa.Double)))


class number_in(Function):  # noqa: N801 - a function of SQL, as all below
    """The number that a JSON object has under a key; NULL if it has none. The key is never part of a path."""

    type = sa.Double()
    sqlite = "(SELECT value FROM json_each({0}) WHERE key = {1} AND type IN ('integer', 'real'))"
    postgresql = "CASE json_typeof({0} -> {1}) WHEN 'number' THEN ({0} ->> {1})::float8 END"


class text_in(Function):  # noqa: N801
    """The text, number or boolean of a JSON object under a key, as text; NULL without one. The key is no path."""

    type = sa.String()
    sqlite = (
        "(SELECT CASE WHEN type IN ('true', 'false') THEN type ELSE CAST(value AS TEXT) END FROM json_each({0}) "
        "WHERE key = {1})"
    )
    postgresql = '(({0} ->> {1}) COLLATE "C")'


class is_among(Function):  # noqa: N801
    """True if a value is in an array, which is one parameter, whatever its length: see `array`."""

    sqlite = "({0} IN (SELECT value FROM json_each({1})))"
    postgresql = "({0} = ANY({1}))"


def array(values: Sequence[int] | Sequence[str]) -> Any:
    """Return a parameter of integers or texts: JSON on SQLite."""
    item = sa.BigInteger() if isinstance(values[0], int) else sa.Text()
    return sa.literal(list(values), sa.JSON().with_variant(ARRAY(item), "postgresql"))


class is_within(Function):  # noqa: N801
    """True if a column of a run's rollouts is within any of many ranges, a JSON array [[low, high], ...]; then the run.
    The run's values are sorted together with the lower ends. Those up to the highest upper end before them are within.
    """

    # `reach` is the highest upper end of all ranges that begin at the value, or before it: `is_row` puts the lower ends
    # before equal values. Formatted twice: the braces with a number stay for `Function`.
    _swept = (
        "({{0}} IN (SELECT at FROM (SELECT at, is_row, max(high) OVER (ORDER BY at, is_row) AS reach FROM ("
        "SELECT {} AS at, {} AS high, 0 AS is_row FROM {} UNION ALL "
        "SELECT DISTINCT {{0}}, CAST(NULL AS NUMERIC), 1 FROM evaluation_row WHERE run_id = {{2}}) AS ends) AS swept "
        "WHERE is_row = 1 AND at <= reach))"
    )
    sqlite = _swept.format("json_extract(value, '$[0]')", "json_extract(value, '$[1]')", "json_each({1})")
    postgresql = _swept.format("(value ->> 0)::numeric", "(value ->> 1)::numeric", "json_array_elements({1})")


class json_object(Function):  # noqa: N801
    """Aggregates keys and their values, which may be JSON, into an object; an empty one if there are no rows. The keys
    of grouped rows are in order.
    """

    sqlite = "json_group_object({0}, json({1}))"
    postgresql = "coalesce(json_object_agg({0}, {1} ORDER BY {0}), '{{}}')"


class json_array(Function):  # noqa: N801
    """Makes an array of three values."""

    sqlite = "json_array({0}, {1}, {2})"
    postgresql = "json_build_array({0}, {1}, {2})"


class total(Function):  # noqa: N801
    """The sum of floats, which may be infinite; NULL if there is none, or if it is no number. On PostgreSQL a float
    beyond 1e290 counts as infinite, and one below 1e-290 as 0.
    """

    type = sa.Double()
    sqlite = "sum(({0}) * 1.0)"  # a sum of integers fails beyond 64 bits
    postgresql = f"nullif(sum({_bounded('{0}', 290)}), 'NaN')"


class mean(Function):  # noqa: N801
    """Computes the mean of floats; NULL if there is none, else with the limits of `total`."""

    type = sa.Double()
    sqlite = "avg({0})"
    postgresql = f"({total.postgresql} / count({{0}}))"  # PostgreSQL's avg() squares what it adds up


class product(Function):  # noqa: N801
    """Computes the product of two floats; NULL if it is no number. On PostgreSQL a factor beyond 1e150 counts as
    infinite, and one below 1e-150 as 0.
    """

    type = sa.Double()
    sqlite = "(({0}) * ({1}))"
    postgresql = f"nullif({_bounded('{0}', 150)} * {_bounded('{1}', 150)}, 'NaN')"


class spread(Function):  # noqa: N801
    """Computes the highest of floats minus the lowest; NULL if there is none, or if both are the same infinity."""

    type = sa.Double()
    sqlite = "(max({0}) - min({0}))"
    postgresql = f"nullif({_bounded('max({0})', 290)} - {_bounded('min({0})', 290)}, 'NaN')"


class whole_sum(Function):  # noqa: N801
    """Computes the sum of integers, as one; NULL if there is none. PostgreSQL's sum() of them is a decimal number."""

    type = sa.BigInteger()
    sqlite = "sum({0})"
    postgresql = "CAST(sum({0}) AS BIGINT)"


class whole(Function):  # noqa: N801
    """Takes a number without its fraction. A CAST cuts that off on SQLite, and rounds on PostgreSQL."""

    type = sa.BigInteger()
    sqlite = "CAST({0} AS INTEGER)"
    postgresql = "CAST(trunc({0}) AS BIGINT)"


class server_clock(Function):  # noqa: N801
    """Now, in µs since 1970, by the clock of all users: PostgreSQL's own; on SQLite the machine's, the argument."""

    type = sa.BigInteger()
    sqlite = "{0}"
    postgresql = "CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT)"
