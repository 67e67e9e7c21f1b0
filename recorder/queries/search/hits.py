"""Finds the place of a search's words in the rollouts that a page shows."""

import re
import time
from collections.abc import Sequence
from typing import NamedTuple

from sqlalchemy.orm import Session

from logs_ui.recorder.queries.common import Database
from logs_ui.recorder.queries.filters.fields import SEARCHED
from logs_ui.recorder.queries.filters.rollout_filter import RolloutFilter
from logs_ui.recorder.queries.search.index import CONTENTS
from logs_ui.recorder.queries.search.rollout_texts import parts_of
from logs_ui.recorder.queries.search.words import place_of
from logs_ui.recorder.storage.search_tables import COLUMNS

_AT_ONCE = 10  # payloads per SELECT
_BEFORE, _AFTER = 24, 160  # characters around the words


class Hit(NamedTuple):
    """The first place of the searched words in one rollout, with some text around them."""

    column: str  # one of `search_tables.COLUMNS`
    before: str
    words: str
    after: str


def searches(filter: RolloutFilter) -> list[tuple[str, str]]:  # noqa: A002
    """Return (field, phrase) for all that a filter searches for."""
    terms = (term for term in filter.terms if term.field in SEARCHED and not term.negated)
    return [(term.field, value) for term in terms for value in term.values if isinstance(value, str)]


def hits(db: Database, filter: RolloutFilter, ids: Sequence[int], *, seconds: float = 0.4) -> dict[int, Hit]:  # noqa: A002
    """Return hits by id, in those of the rollouts that it reads within `seconds`; empty without a search."""
    phrases, deadline = searches(filter), time.monotonic() + seconds
    by_id: dict[int, Hit] = {}
    with Session(db) as session:
        for begin in range(0, len(ids) if phrases else 0, _AT_ONCE):
            if time.monotonic() > deadline:
                break
            for row_id, *packed in session.execute(CONTENTS, {"ids": ids[begin : begin + _AT_ONCE]}):
                hit = _hit(dict(zip(COLUMNS, parts_of(*packed), strict=True)), phrases)
                by_id |= {row_id: hit} if hit else {}
    return by_id


def _hit(parts: dict[str, str], phrases: list[tuple[str, str]]) -> Hit | None:
    for field, phrase in phrases:
        for column in ("assistant", "tool", "prompt", "other") if field == "text" else (field,):
            text = parts[column]
            if place := place_of(phrase, text):
                start, end = place
                before = re.sub(r"^\S+\s", "", text[start - _BEFORE : start]) if start > _BEFORE else text[:start]
                return Hit(column, before, text[start:end], text[end : end + _AFTER])
    return None
