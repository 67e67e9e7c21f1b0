"""Searches rollouts that contain some words, by the full-text index in the schema `search`.

`index.py` fills the index. A rollout that is not indexed yet is not found: `search_state()` tells how far it is.
"""

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import ColumnElement, Connection, and_, column, exists, literal, select, table
from sqlmodel import col

from logs_ui.recorder.queries.search import words as search_words
from logs_ui.recorder.storage.dialects import Function
from logs_ui.recorder.storage.search_tables import FORMAT, INDEXED_RUN, SOURCE
from logs_ui.recorder.storage.tables import EvaluationRow, Run, SchemaVersion

_FEW = 5_000  # words with no more hits drive a query, and are looked up by each SELECT

Within = tuple[Any, Any]
"""The first and last id of some rollouts: numbers, or scalar subqueries."""

# Maximum number of words that a prefix query expands to; each costs about 25 µs within the requested range of ids. If
# there are more, FTS5 merges all hits itself, which takes seconds in a million rollouts.
_BEGINNINGS = 2_000
_INSTANCES = "CREATE VIRTUAL TABLE IF NOT EXISTS temp.instances USING fts5vocab('search', 'texts', 'instance')"
# Jumps from word to word; a scan of the vocabulary would read every hit. char(1) sorts before all characters of words.
_BEGINNING = """WITH RECURSIVE words(word) AS (
SELECT (SELECT term FROM temp.instances WHERE term >= ?1 AND term < ?2 LIMIT 1) UNION ALL
SELECT (SELECT term FROM temp.instances WHERE term >= words.word || char(1) AND term < ?2 LIMIT 1) FROM words
WHERE words.word IS NOT NULL LIMIT ?3) SELECT word FROM words WHERE word IS NOT NULL"""
_OF_RUN = """rowid BETWEEN (SELECT min(id) FROM evaluation_row WHERE run_id = ?)
AND (SELECT max(id) FROM evaluation_row WHERE run_id = ?)"""
_TEXTS = table("texts", column("rowid"), schema="search")  # the same on both databases


class _matches(Function):  # noqa: N801 - a function of SQL
    """Tests if a row of `search.texts` contains words, given as FTS5's query and as PostgreSQL's. It is not typed as a
    Boolean: SQLAlchemy would add `= 1`, which FTS5 does not accept.
    """

    sqlite = "search.texts.texts MATCH {0}"
    postgresql = "search.texts.words @@ CAST({1} AS tsquery)"


class _between(Function):  # noqa: N801 - likewise
    """Tests if the id of a row of `search.texts` is in a range. FTS5 seeks the first id and stops after the last. For
    PostgreSQL it is TRUE: it intersects words and ids by itself, and would else read the words of each row in the
    range.
    """

    sqlite = "search.texts.rowid BETWEEN {0} AND {1}"
    postgresql = "TRUE"


_BY_INDEX = ("enable_seqscan", "jit")
"""Settings that are switched off for searches: PostgreSQL ignores the cost of reading a row's words from its TOAST
table, and compiles queries that would be finished sooner without.
"""


@dataclass(frozen=True)
class _Plan:
    """Holds a connection with its cached counts of hits, and its temporary tables of hits."""

    connection: Connection
    expressions: dict[tuple[str, str], str] = field(default_factory=dict)
    few: dict[str, bool] = field(default_factory=dict)
    lists: dict[tuple[str, int], str | None] = field(default_factory=dict)

    @property
    def is_sqlite(self) -> bool:
        return self.connection.dialect.name == "sqlite"

    def expression(self, text: str, name: str) -> str:
        """Return a `match_expression` whose prefix becomes an OR of words that begin so, unless they are too many."""
        if (text, name) not in self.expressions:
            begun = _expand_prefix(self.connection, text) if text.endswith("*") else []
            self.expressions[text, name] = match_expression(*(begun or [text]), name=name)
        return self.expressions[text, name]

    def is_few(self, expression: str) -> bool:
        """Return True if the phrase is selective enough to drive the query."""
        if expression not in self.few:
            # A prefix that was not expanded is slow to count: FTS5 merges its hits each time.
            count = "SELECT count(*) FROM (SELECT 1 FROM search.texts WHERE texts MATCH ? LIMIT ?)"
            hits = () if _is_prefix(expression) else self.connection.exec_driver_sql(count, (expression, _FEW + 1))
            self.few[expression] = any(number <= _FEW for (number,) in hits)
        return self.few[expression]

    def hits(self, expression: str, run_id: int) -> str | None:
        """Return the temporary table of a run's hits; None if there are few, or this database has no index."""
        key = expression, run_id
        if key not in self.lists:
            self.lists[key] = None if self.is_few(expression) else _kept_hits(self, *key)
        return self.lists[key]

    def by_index(self) -> None:
        """Set _BY_INDEX once per transaction; PostgreSQL's planner knows by itself which words are rare."""
        for setting in () if self.few else _BY_INDEX:
            self.connection.exec_driver_sql(f"SET LOCAL {setting} = off")
        self.few[""] = False


_planning: ContextVar[_Plan | None] = ContextVar("planning", default=None)


@dataclass(frozen=True)
class SearchState:
    """Tells how far a run is indexed: the number of its rollouts that can be found, and whether it has changes that
    were not read yet. If not, only rollouts are missing that have not ended or await their reward.
    """

    indexed: int
    behind: bool


def match_expression(*texts: str, name: str = "text") -> str:
    """Return FTS5's query for any of several phrases, words next to one another; with a `*` at the end the last word
    is a prefix. `name` is a field of a filter: "text" for all columns, or that of one column.

    The texts are quoted, so that FTS5's operators in them are separators between words, as they are in what is
    indexed.
    """
    halves = [(text[:-1], " *") if text.endswith("*") else (text, "") for text in texts]
    phrases = ['"' + phrase.replace('"', '""').replace("\0", " ") + '"' + star for phrase, star in halves]
    return " OR ".join(phrases) if name == "text" else f"{name} : ({' OR '.join(phrases)})"


def _is_prefix(expression: str) -> bool:
    return expression.endswith((" *", " *)"))


def contains(text: str, run_id: int, within: Within | None = None, name: str = "text") -> ColumnElement[bool]:
    """Return a condition: the text of a run's row contains these words (see `match_expression`).

    For words that most rows contain it is fast only if the range of ids is known, or within `planning`, which keeps a
    list of the run's hits.
    """
    plan = _planning.get()
    is_planned = plan is not None and plan.is_sqlite
    expression = plan.expression(text, name) if plan and is_planned else match_expression(text, name=name)
    hit_table = None
    if plan is not None and not plan.is_sqlite:
        plan.by_index()
    elif plan is not None and (within is None or _is_prefix(expression)):
        hit_table = plan.hits(expression, run_id)
    if hit_table is not None:
        # In an expression: rows that are read in order are looked up in the list; else the whole list would be sorted.
        return (col(EvaluationRow.id) + 0).in_(select(column("id")).select_from(table(hit_table, schema="temp")))
    words = _matches(literal(expression), literal(search_words.query(text, None if name == "text" else name)))
    in_range = [] if within is None else [_between(*within)]
    return col(EvaluationRow.id).in_(select(_TEXTS.c.rowid).where(words, *in_range, _is_ours()))


def _is_ours() -> ColumnElement[bool]:
    """Return a condition: the index has today's format, and is not an earlier database's of the same name."""
    return exists().where(SOURCE.c.created == col(SchemaVersion.created), SOURCE.c.format == FORMAT)


def is_rare(text: str, name: str) -> bool:
    """Return True if few rows contain these words: a query best starts from them then. False outside of `planning`."""
    plan = _planning.get()
    return plan is not None and plan.is_sqlite and plan.is_few(plan.expression(text, name))


@contextmanager
def planning(connection: Connection) -> Iterator[None]:
    """Let `contains` count hits on this reading connection, and keep long lists of hits in temporary tables, so that
    several SELECTs do not each collect them.
    """
    token = _planning.set(_Plan(connection))
    try:
        yield
    finally:
        _planning.reset(token)


def search_state(connection: Connection, run_id: int) -> SearchState:
    """Return the state of one run's index: one look-up by primary key."""
    columns = INDEXED_RUN.c
    of_run = and_(columns.run_id == col(Run.id), columns.uid == col(Run.uid))
    query = select(columns.texts, columns.changed < col(Run.changed)).join_from(INDEXED_RUN, Run, of_run)
    row = connection.execute(query.where(col(Run.id) == run_id, _is_ours())).first()
    return SearchState(row[0], bool(row[1])) if row else SearchState(0, behind=True)


def _expand_prefix(connection: Connection, text: str) -> list[str]:
    """Expand a text that ends with `*` to one text per word that begins so; empty if there are none, or too many."""
    words = search_words.words_of(text[:-1])
    if not words or any(map(search_words.is_shortened, words)):
        return []
    with _writing(connection):
        connection.exec_driver_sql(_INSTANCES)
    last = words[-1]
    expansions = connection.exec_driver_sql(_BEGINNING, (last, last + chr(0x10FFFF), _BEGINNINGS + 1)).scalars().all()
    return [] if len(expansions) > _BEGINNINGS else [" ".join([*words[:-1], word]) for word in expansions]


def _kept_hits(plan: _Plan, expression: str, run_id: int) -> str | None:
    """Make a temporary table of the ids of a run's hits, which SQLite can read in any order and without copying it."""
    ask = plan.connection.exec_driver_sql
    source = ask("SELECT created, version FROM search.source").first()
    if source is None or source.created != ask("SELECT max(created) FROM logs_ui_schema").scalar():
        return None
    # The name contains all that the hits depend on, so that a table is reused as long as nothing of it has changed.
    digest = hashlib.sha256(expression.encode()).hexdigest()[:16]
    name = f"hits_{digest}_{run_id}_{source.created}_{source.version}"
    lists = "SELECT name FROM temp.sqlite_master WHERE type = 'table' AND name LIKE 'hits!_%' ESCAPE '!'"
    names = set(ask(lists).scalars())
    if name not in names:
        with _writing(plan.connection):
            for earlier in names - set(plan.lists.values()):
                ask(f"DROP TABLE temp.{earlier}")
            ask(f"CREATE TEMP TABLE {name} (id INTEGER PRIMARY KEY)")
            collect = f"INSERT INTO temp.{name} SELECT rowid FROM search.texts WHERE texts MATCH ? AND {_OF_RUN}"  # noqa: S608 - a hash
            ask(collect, (expression, run_id, run_id))
    return name


@contextmanager
def _writing(connection: Connection) -> Iterator[None]:
    """Allow writes for a moment. The database was opened read-only, so that only temporary tables can be written."""
    connection.exec_driver_sql("PRAGMA query_only=0")
    try:
        yield
    finally:
        connection.exec_driver_sql("PRAGMA query_only=1")
