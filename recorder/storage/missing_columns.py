"""Reads databases of earlier commits as they are. Where one lacks a column that `tables.py` declares, a statement has
NULL in its place, or the column's default; where it lacks a table, one without rows.
"""

from typing import Any

import sqlalchemy as sa

from logs_ui.recorder.storage import schema


def without_missing(engine: sa.Engine, lacks: schema.Lacks) -> sa.Engine:
    """Let a reading engine do without what its database lacks, and return it."""
    # An index that is missing changes no statement. The dialect is this engine's, so its compiler may be replaced.
    if any(not isinstance(item, sa.Index) for item in lacks.values()):
        base: Any = engine.dialect.statement_compiler
        engine.dialect.statement_compiler = type(base.__name__, (_Compiler, base), {"lacks": lacks})
    return engine


def is_outdated(engine: sa.Engine) -> bool:
    """Return True if the database has meanwhile got something that this engine does without. Free for others."""
    lacks = getattr(engine.dialect.statement_compiler, "lacks", None)
    if lacks is None:
        return False
    with engine.connect() as connection:
        return bool(schema.missing(connection).keys() != lacks.keys())


class _Compiler:
    """Writes NULL for what the database lacks; mixed into the compiler of a dialect."""

    lacks: dict[str, Any]
    dialect: Any
    process: Any

    def visit_table(self, table: Any, *args: Any, **kw: Any) -> str:
        written: str = super().visit_table(table, *args, **kw)  # type: ignore[misc]
        # Only what a statement selects from is replaced. If an alias encloses it, that one gives it a name.
        if not kw.get("asfrom") or table.schema or f"table {table.name}" not in self.lacks:
            return written
        return "(SELECT NULL WHERE 1 = 0)" + ("" if kw.get("enclosing_alias") is not None else f" AS {written}")

    def visit_column(self, column: Any, *args: Any, **kw: Any) -> str:
        written: str = super().visit_column(column, *args, **kw)  # type: ignore[misc]
        table = column.table
        while isinstance(table, sa.Alias):
            table = table.element
        if not isinstance(table, sa.Table) or table.schema:
            return written
        lacked = self.lacks.get(f"column {table.name}.{column.name}", self.lacks.get(f"table {table.name}"))
        if lacked is None:
            return written
        value: Any = sa.null()
        if (default := getattr(lacked, "server_default", None)) is not None:  # which a table has not
            key = next(iter(column.table.primary_key))  # NULL where an outer join has no row
            value = sa.case((key.is_not(None), sa.literal_column(f"'{default.arg}'")))
        # SQLite would cast to JSON as to a number.
        is_text = self.dialect.name == "sqlite" and isinstance(column.type, sa.JSON)
        # A selected column keeps its name in the result; in an expression, or under a label, only the value is written.
        null: str = self.process(sa.cast(value, sa.String() if is_text else column.type))
        is_selected = kw.get("within_columns_clause") and not kw.get("within_label_clause")
        return f"{null} AS {self.process(sa.column(column.name))}" if is_selected else null
