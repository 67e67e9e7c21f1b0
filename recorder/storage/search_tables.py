"""Defines the tables of the full-text index: a schema of PostgreSQL, or a file beside SQLite's (`sidecars.py`)."""

from sqlalchemy import BigInteger, CheckConstraint, Column, Index, Integer, MetaData, Table, Text
from sqlalchemy.dialects.postgresql import TSVECTOR

FORMAT = 2
"""Grows by one whenever the indexed text, or the index, changes: an index of another format is rebuilt."""

TABLES = frozenset({"texts", "indexed_run", "source"})

TOKENIZER = "unicode61 remove_diacritics 2"
"""The tokenizer of FTS5: it splits at all but letters and digits."""

COLUMNS = ("tool", "assistant", "prompt", "other")
"""Columns of FTS5's table, and weights A to D of PostgreSQL's words: texts are indexed separately by who wrote them.
Words of FTS5's first column take the least room, so the longest texts are there. One column alone takes 13 % less.
"""

METADATA = MetaData(schema="search")

INDEXED_RUN = Table(
    "indexed_run",
    METADATA,
    Column("run_id", BigInteger, primary_key=True, autoincrement=False),
    Column("uid", Text, nullable=False),
    Column("changed", BigInteger, nullable=False),  # of the last row that was read, in the order of (changed, id)
    # That row's id; the highest possible id if no row with the same `changed` follows.
    Column("row_id", BigInteger, nullable=False),
    Column("texts", BigInteger, nullable=False),  # number of indexed rollouts of the run
    # Id of the last row without a reward that was read after the run's end.
    Column("swept", BigInteger, nullable=False),
)
"""The progress of the index by run."""

SOURCE = Table(
    "source",
    METADATA,
    Column("id", Integer, CheckConstraint("id = 1"), primary_key=True, autoincrement=False),
    Column("format", Integer, nullable=False),
    Column("created", BigInteger, nullable=False),  # of the database: tells it from another one
    Column("version", BigInteger, nullable=False),  # grows with each change of the index
)
"""The database that this index belongs to."""

_POSTGRES = MetaData(schema="search")

VECTORS = Table(
    "texts",
    _POSTGRES,
    Column("rowid", BigInteger, primary_key=True, autoincrement=False),  # the rollout's id
    Column("part", Integer, primary_key=True, autoincrement=False),  # 0; long texts have more parts
    Column("words", TSVECTOR, nullable=False),
)
"""The words of rollouts on PostgreSQL. SQLite has an FTS5 table of the same name and `rowid`."""

# kB of unsorted entries, which every search scans. To sort each row in at once takes eight times as long.
Index("texts_words", VECTORS.c.words, postgresql_using="gin", postgresql_with={"gin_pending_list_limit": 1024})

POSTGRES_METADATA = (METADATA, _POSTGRES)

# Contentless: the texts are in the payloads already.
FTS5 = (
    "CREATE VIRTUAL TABLE IF NOT EXISTS search.texts "
    f"USING fts5({', '.join(COLUMNS)}, content='', tokenize='{TOKENIZER}')"
)
