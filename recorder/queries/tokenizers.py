"""Reads stored tokenizers."""

import zstandard
from sqlalchemy.orm import Session

from logs_ui.recorder.queries.common import Database
from logs_ui.recorder.storage.tables import Tokenizer


def tokenizer_json(db: Database, hash: str) -> bytes | None:  # noqa: A002
    """The JSON of a tokenizer, as the library `tokenizers` writes it; None if the database has none of that hash."""
    with Session(db) as session:
        found = session.get(Tokenizer, hash)
    return None if found is None else zstandard.decompress(found.data)
