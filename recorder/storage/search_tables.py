"""The tables of the full-text index: in the schema `search` of a PostgreSQL database, and in a database of its own
beside SQLite's: see `sidecars.py`.
"""

from sqlalchemy import BigInteger, CheckConstraint, Column, Index, Integer, MetaData, Table, Text
from sqlalchemy.dialects import sqlite
from sqlalchemy.dialects.postgresql import TSVECTOR
from sqlalchemy.schema import CreateTable

FORMAT = 1
"""Raised by one whenever what is indexed, or how, changes: an index of another format is made anew."""

TABLES = frozenset({"texts", "indexed_run", "source"})

TOKENIZER = "unicode61 remove_diacritics 2"
"""FTS5's: it splits at whatever is neither letter nor digit."""

METADATA = MetaData(schema="search")

INDEXED_RUN = Table(
    "indexed_run",
    METADATA,
    Column("run_id", BigInteger, primary_key=True, autoincrement=False),
    Column("uid", Text, nullable=False),
    Column("changed", BigInteger, nullable=False),  # of the last row that was looked at, in the order of (changed, id)
    Column("row_id", BigInteger, nullable=False),  # its id; the highest there can be where no row follows with the same
    Column("texts", BigInteger, nullable=False),  # how many of the run's rollouts are indexed
    Column("swept", BigInteger, nullable=False),  # id of the last row without a reward looked at, once the run was over
)
"""How far each run is indexed."""

SOURCE = Table(
    "source",
    METADATA,
    Column("id", Integer, CheckConstraint("id = 1"), primary_key=True, autoincrement=False),
    Column("format", Integer, nullable=False),
    Column("created", BigInteger, nullable=False),  # when the database was made: another one has another moment
    Column("version", BigInteger, nullable=False),  # grows with each change of the index
)
"""Of which database it is the index."""

_POSTGRES = MetaData(schema="search")

VECTORS = Table(
    "texts",
    _POSTGRES,
    Column("rowid", BigInteger, primary_key=True, autoincrement=False),  # the rollout's id
    Column("part", Integer, primary_key=True, autoincrement=False),  # 0, and more of a long text
    Column("words", TSVECTOR, nullable=False),
)
"""PostgreSQL's words of rollouts. SQLite's are an FTS5 table of the same name, by the same `rowid`."""

# kB that await being sorted in, and that every search reads through; sorting in each row at once takes eight times as
# long.
Index("texts_words", VECTORS.c.words, postgresql_using="gin", postgresql_with={"gin_pending_list_limit": 1024})

POSTGRES_METADATA = (METADATA, _POSTGRES)

# Contentless: the texts are in the payloads already.
_FTS5 = f"CREATE VIRTUAL TABLE IF NOT EXISTS search.texts USING fts5(body, content='', tokenize='{TOKENIZER}')"


def create_search() -> tuple[str, ...]:
    """SQLite's statements: the words of rollouts, by the rollout's id, without the texts themselves; how far each run
    is indexed; and of which database it is the index.
    """
    made = [CreateTable(table, if_not_exists=True) for table in METADATA.sorted_tables]
    return (_FTS5, *(str(statement.compile(dialect=sqlite.dialect())) for statement in made))
