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

from logs_ui.recorder.queries.search import search_words
from logs_ui.recorder.storage.search_tables import INDEXED_RUN, SOURCE
from logs_ui.recorder.storage.tables import EvaluationRow, Run, SchemaVersion

_FEW = 5_000  # hits, up to which they are the smaller side, and looked up for each SELECT anew

Within = tuple[Any, Any]
"""Ids of rollouts, the first and the last: numbers, or SELECTs of one."""

# Words that a beginning is taken for: to look for each, as far as the rows lie that are asked for, takes 25 µs or so.
# Of more, FTS5 brings all hits together itself: at a million rollouts in seconds.
_BEGINNINGS = 2_000
_INSTANCES = "CREATE VIRTUAL TABLE IF NOT EXISTS temp.instances USING fts5vocab('search', 'texts', 'instance')"
# From word to word: read one after the other, each of its hits would be read. A word has no character below a digit.
_BEGINNING = """WITH RECURSIVE words(word) AS (
SELECT (SELECT term FROM temp.instances WHERE term >= ?1 AND term < ?2 LIMIT 1) UNION ALL
SELECT (SELECT term FROM temp.instances WHERE term >= words.word || char(1) AND term < ?2 LIMIT 1) FROM words
WHERE words.word IS NOT NULL LIMIT ?3) SELECT word FROM words WHERE word IS NOT NULL"""
_OF_RUN = """rowid BETWEEN (SELECT min(id) FROM evaluation_row WHERE run_id = ?)
AND (SELECT max(id) FROM evaluation_row WHERE run_id = ?)"""
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


class _between(FunctionElement[Any]):  # noqa: N801 - likewise
    """Whether a row of `search.texts` lies between two ids. FTS5 seeks the first and ends behind the last. PostgreSQL,
    which brings the lists of words and ids together by itself, is not tempted to read the words of each row there.
    """

    inherit_cache = True


@compiles(_between, "sqlite")
def _by_rowid(element: _between, compiler: Any, **options: Any) -> str:
    low, high = (compiler.process(end, **options) for end in element.clauses)
    return f"search.texts.rowid BETWEEN {low} AND {high}"


@compiles(_between, "postgresql")
def _anywhere(_: _between, __: Any, **___: Any) -> str:
    return "TRUE"


_BY_INDEX = ("enable_seqscan", "jit")
"""What PostgreSQL must leave alone: it takes no account of what it costs to read a row's words from beside its table,
and compiles what is done sooner.
"""


@dataclass(frozen=True)
class _Plan:
    """A connection that is asked, what it said of how many rows have words, and its lists of those that have them."""

    connection: Connection
    expressions: dict[str, str] = field(default_factory=dict)
    few: dict[str, bool] = field(default_factory=dict)
    lists: dict[tuple[str, int], str | None] = field(default_factory=dict)

    @property
    def is_sqlite(self) -> bool:
        return self.connection.dialect.name == "sqlite"

    def expression(self, text: str) -> str:
        """As `match_expression`; a word's beginning as any of the words that begin so, where those are not too many."""
        if text not in self.expressions:
            begun = _begun(self.connection, text) if text.endswith("*") else []
            self.expressions[text] = " OR ".join(map(match_expression, begun)) or match_expression(text)
        return self.expressions[text]

    def is_few(self, expression: str) -> bool:
        """Whether so few rows have them that nothing else leads to fewer."""
        if expression not in self.few:
            # One that is left a beginning: its hits are brought together each time anew.
            self.few[expression] = not expression.endswith("*") and _count(self.connection, expression) <= _FEW
        return self.few[expression]

    def hits(self, expression: str, run_id: int) -> str | None:
        """The temporary table that has a run's; None where they are few, or there is no index of this database."""
        if (expression, run_id) not in self.lists:
            found = None if self.is_few(expression) else _kept_hits(self, expression, run_id)
            self.lists[expression, run_id] = found
        return self.lists[expression, run_id]

    def by_index(self) -> None:
        """PostgreSQL's planner knows by itself which words are rare."""
        for setting in () if self.few else _BY_INDEX:
            self.connection.exec_driver_sql(f"SET LOCAL {setting} = off")
        self.few[""] = False


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


def contains(text: str, run_id: int, within: Within | None = None) -> ColumnElement[bool]:
    """Whether the text of a run's row has these words: see `match_expression`. Of words that most rows have it is quick
    where the ids are known between which all rows lie that are asked for; and within `planning`, which keeps the list
    of the run's.
    """
    plan = _planning.get()
    expression = plan.expression(text) if plan is not None and plan.is_sqlite else match_expression(text)
    kept = None
    if plan is not None and not plan.is_sqlite:
        plan.by_index()
    elif plan is not None and (within is None or expression.endswith("*")):
        kept = plan.hits(expression, run_id)
    if kept is not None:
        # In an expression: rows that are read in an order are held against the list, rather than all of it sorted.
        return (col(EvaluationRow.id) + 0).in_(select(column("id")).select_from(table(kept, schema="temp")))
    words = _holds(literal(expression), literal(search_words.query(text)))
    there = [] if within is None else [_between(*within)]
    return col(EvaluationRow.id).in_(select(_TEXTS.c.rowid).where(words, *there, _is_ours()))


def _is_ours() -> ColumnElement[bool]:
    """Not the index of a database that stood here before."""
    return exists().where(SOURCE.c.created == col(SchemaVersion.created))


def is_rare(text: str) -> bool:
    """Whether so few rows have these words that all else is best asked of these alone; False where nobody knows."""
    plan = _planning.get()
    return plan is not None and plan.is_sqlite and plan.is_few(plan.expression(text))


@contextmanager
def planning(connection: Connection) -> Iterator[None]:
    """Meanwhile `contains` asks this reading connection how many rows have a word, and has it keep the list of many
    where all of them may be asked for, so that SELECTs that follow one another do not collect it each for itself.
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


def _count(connection: Connection, expression: str) -> int:
    """How many rows have these words, up to one more than _FEW."""
    query = "SELECT count(*) FROM (SELECT 1 FROM search.texts WHERE texts MATCH ? LIMIT ?)"
    return int(connection.exec_driver_sql(query, (expression, _FEW + 1)).scalar_one())


def _begun(connection: Connection, text: str) -> list[str]:
    """The texts that one with a `*` behind its last word stands for, one for each word that begins so; empty where
    there is no such word, or are too many.
    """
    words = search_words.words_of(text[:-1])
    if not words or any(map(search_words.is_shortened, words)):
        return []
    with _writing(connection):
        connection.exec_driver_sql(_INSTANCES)
    last = words[-1]
    found = connection.exec_driver_sql(_BEGINNING, (last, last + chr(0x10FFFF), _BEGINNINGS + 1)).scalars().all()
    return [] if len(found) > _BEGINNINGS else [" ".join([*words[:-1], word]) for word in found]


def _kept_hits(plan: _Plan, expression: str, run_id: int) -> str | None:
    """The temporary table of the ids of all rows of a run that have these words, and of those in between.

    SQLite takes the list from it in any order, and without a copy of its own.
    """
    ask = plan.connection.exec_driver_sql
    source = ask("SELECT created, version FROM search.source").first()
    if source is None or source.created != ask("SELECT max(created) FROM logs_ui_schema").scalar():
        return None
    digest = hashlib.sha256(expression.encode()).hexdigest()[:16]
    name = f"hits_{digest}_{run_id}_{source.created}_{source.version}"
    lists = "SELECT name FROM temp.sqlite_master WHERE type = 'table' AND name LIKE 'hits!_%' ESCAPE '!'"
    there = set(ask(lists).scalars())
    if name not in there:
        _keep(plan.connection, name, expression, run_id, there - set(plan.lists.values()))
    return name


def _keep(connection: Connection, name: str, expression: str, run_id: int, others: set[str]) -> None:
    """In the place of what was kept for questions before."""
    with _writing(connection):
        for other in others:
            connection.exec_driver_sql(f"DROP TABLE temp.{other}")
        connection.exec_driver_sql(f"CREATE TEMP TABLE {name} (id INTEGER PRIMARY KEY)")
        collect = f"INSERT INTO temp.{name} SELECT rowid FROM search.texts WHERE texts MATCH ? AND {_OF_RUN}"  # noqa: S608 - a hash
        connection.exec_driver_sql(collect, (expression, run_id, run_id))


@contextmanager
def _writing(connection: Connection) -> Iterator[None]:
    """The database itself was opened for reading alone: what can be written meanwhile is memory of this connection's
    own.
    """
    connection.exec_driver_sql("PRAGMA query_only=0")
    try:
        yield
    finally:
        connection.exec_driver_sql("PRAGMA query_only=1")
