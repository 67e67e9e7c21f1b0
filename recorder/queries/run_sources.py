"""Reads the sources of runs: code of functions, templates, changes of the working tree; and their tokenizers."""

from collections import defaultdict
from collections.abc import Collection, Iterable

import zstandard
from sqlalchemy import select
from sqlalchemy.orm import Session
from sqlmodel import col

from logs_ui.recorder.queries.common import Database
from logs_ui.recorder.storage.tables import RunSource, Text, Tokenizer


def run_sources(db: Database, run_ids: Collection[int]) -> dict[int, list[RunSource]]:
    """Return sources of runs, without their texts, by the run's number; in the order of kind and name."""
    query = select(RunSource).where(col(RunSource.run_id).in_(run_ids))
    query = query.order_by(col(RunSource.kind), col(RunSource.name))
    sources: dict[int, list[RunSource]] = defaultdict(list)
    with Session(db) as session:
        for source in session.scalars(query):
            sources[source.run_id].append(source)
    return dict(sources)


def source_texts(db: Database, hashes: Iterable[str]) -> dict[str, str]:
    """Return texts by hash; missing ones are left out."""
    with Session(db) as session:
        stored = session.execute(select(col(Text.hash), col(Text.data)).where(col(Text.hash).in_(list(hashes))))
        return {digest: zstandard.decompress(data).decode() for digest, data in stored}


def tokenizer_json(db: Database, hash: str) -> bytes | None:  # noqa: A002
    """Return a tokenizer's JSON, as the library `tokenizers` writes it; None if the database has none of that hash."""
    with Session(db) as session:
        row = session.get(Tokenizer, hash)
    return None if row is None else zstandard.decompress(row.data)
