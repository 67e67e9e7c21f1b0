"""Full-text search: which rollouts hold some words, by the index that the schema `search` holds.

`search_index.py` fills it. What it does not hold yet is not found: `search_state()` tells how far it is.
"""

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import ColumnElement, Connection, and_, column, exists, literal, select, table
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.functions import FunctionElement
from sqlmodel import col

from logs_ui.recorder import search_words
from logs_ui.recorder.models import EvaluationRow, Run, SchemaVersion
from logs_ui.recorder.search_tables import INDEXED_RUN, SOURCE

_FEW = 5_000  # hits, up to which they are the smaller side, and looked up for each SELECT anew
_TEXTS = table("texts", column("rowid"), schema="search")  # of both


class _holds(FunctionElement[Any]):  # noqa: N801 - a function of SQL
    """Whether a row of `search.texts` has words: given as FTS5's query, and as PostgreSQL's. No Boolean: FTS5 bears no
    `= 1` behind it.
    """

    inherit_cache = True


@compiles(_holds, "sqlite")
def _fts5(element: _holds, compiler: Any, **options: Any) -> str:
    expression, _ = element.clauses
    return f"search.texts.texts MATCH {compiler.process(expression, **options)}"


@compiles(_holds, "postgresql")
def _tsquery(element: _holds, compiler: Any, **options: Any) -> str:
    _, words = element.clauses
    return f"search.texts.words @@ CAST({compiler.process(words, **options)} AS tsquery)"


_BY_INDEX = ("enable_seqscan", "jit")
"""What PostgreSQL must leave alone: it takes no account of what it costs to read a row's words from beside its table,
and compiles what is done sooner.
"""


@dataclass(frozen=True)
class _Plan:
    """A connection that is asked, and by what is looked for its list of the hits; None where those are few."""

    connection: Connection
    kept: dict[str, str | None] = field(default_factory=dict)

    @property
    def is_sqlite(self) -> bool:
        return self.connection.dialect.name == "sqlite"

    def hits(self, expression: str) -> str | None:
        """The temporary table that has them. PostgreSQL's planner knows by itself which words are rare."""
        if not self.is_sqlite:
            for setting in () if self.kept else _BY_INDEX:
                self.connection.exec_driver_sql(f"SET LOCAL {setting} = off")
            return self.kept.setdefault(expression, None)
        if expression not in self.kept:
            self.kept[expression] = _kept_hits(self, expression)
        return self.kept[expression]


_planning: ContextVar[_Plan | None] = ContextVar("planning", default=None)


@dataclass(frozen=True)
class SearchState:
    """How far the index is with one run.

    Attributes:
        indexed: how many of its rollouts can be found.
        behind: whether there are changes of the run that it has not looked at. Where there are none, only rollouts
            are missing that have not come to an end, or await their reward.
    """

    indexed: int
    behind: bool


def match_expression(text: str) -> str:
    """FTS5's query for words that stand beside one another; a `*` at the end takes the last one for a beginning.

    Whatever else FTS5 would take for its own syntax is a separator between words, as it is in the texts.
    """
    phrase, star = (text[:-1], " *") if text.endswith("*") else (text, "")
    return '"' + phrase.replace('"', '""').replace("\0", " ") + '"' + star


def contains(text: str) -> ColumnElement[bool]:
    """Whether a row's text has these words: see `match_expression`. Within `planning` it is quick for words, too, that
    most rows have.
    """
    expression, plan = match_expression(text), _planning.get()
    kept = plan.hits(expression) if plan is not None else None
    if kept is not None:
        # In an expression: rows that are read in an order are held against the list, rather than all of it sorted.
        return (col(EvaluationRow.id) + 0).in_(select(column("id")).select_from(table(kept, schema="temp")))
    words = _holds(literal(expression), literal(search_words.query(text)))
    return col(EvaluationRow.id).in_(select(_TEXTS.c.rowid).where(words, _is_ours()))


def _is_ours() -> ColumnElement[bool]:
    """Not the index of a database that stood here before."""
    return exists().where(SOURCE.c.created == col(SchemaVersion.created))


def is_rare(text: str) -> bool:
    """Whether so few rows have these words that all else is best asked of these alone; False where nobody knows."""
    plan = _planning.get()
    return plan is not None and plan.is_sqlite and plan.hits(match_expression(text)) is None


@contextmanager
def planning(connection: Connection) -> Iterator[None]:
    """Meanwhile `contains` asks this reading connection how many rows have a word, and has it keep the list of many, so
    that SELECTs that follow one another do not collect it each for itself.
    """
    token = _planning.set(_Plan(connection))
    try:
        yield
    finally:
        _planning.reset(token)


def search_state(connection: Connection, run_id: int) -> SearchState:
    """One look-up by primary key."""
    known = INDEXED_RUN.c
    of_run = and_(known.run_id == col(Run.id), known.uid == col(Run.uid))
    asked = select(known.texts, known.changed < col(Run.changed)).join_from(INDEXED_RUN, Run, of_run)
    found = connection.execute(asked.where(col(Run.id) == run_id, _is_ours())).first()
    return SearchState(found[0], bool(found[1])) if found else SearchState(0, behind=True)


def _kept_hits(plan: _Plan, expression: str) -> str | None:
    """The temporary table of the ids of all rows that have these words; None where they are few.

    SQLite takes the list from it in any order, and without a copy of its own.
    """
    ask = plan.connection.exec_driver_sql
    query = "SELECT count(*) FROM (SELECT 1 FROM search.texts WHERE texts MATCH ? LIMIT ?)"
    # A word's beginning is many words, whose hits are brought together each time anew.
    if not expression.endswith("*") and ask(query, (expression, _FEW + 1)).scalar_one() <= _FEW:
        return None
    source = ask("SELECT created, version FROM search.source").first()
    if source is None or source.created != ask("SELECT max(created) FROM logs_ui_schema").scalar():
        return None
    name = f"hits_{hashlib.sha256(expression.encode()).hexdigest()[:16]}_{source.created}_{source.version}"
    lists = "SELECT name FROM temp.sqlite_master WHERE type = 'table' AND name LIKE 'hits!_%' ESCAPE '!'"
    there = set(ask(lists).scalars())
    if name not in there:
        _keep(plan.connection, name, expression, there - set(plan.kept.values()))
    return name


def _keep(connection: Connection, name: str, expression: str, others: set[str]) -> None:
    """In the place of what was kept for questions before. The database itself was opened for reading alone: what can be
    written meanwhile is memory of this connection's own.
    """
    connection.exec_driver_sql("PRAGMA query_only=0")
    try:
        for other in others:
            connection.exec_driver_sql(f"DROP TABLE temp.{other}")
        connection.exec_driver_sql(f"CREATE TEMP TABLE {name} (id INTEGER PRIMARY KEY)")
        collect = f"INSERT INTO temp.{name} SELECT rowid FROM search.texts WHERE texts MATCH ?"  # noqa: S608 - a hash
        connection.exec_driver_sql(collect, (expression,))
    finally:
        connection.exec_driver_sql("PRAGMA query_only=1")
