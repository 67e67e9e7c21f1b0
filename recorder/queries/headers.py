"""Columns of many rollouts without what only an open one needs: no payload is read, and no row becomes an object."""

from collections.abc import Iterator, Sequence
from typing import Any

import orjson
from sqlalchemy import JSON, ColumnElement, cast, func, literal, select
from sqlalchemy.orm import Session
from sqlalchemy.types import String
from sqlmodel import col

from logs_ui.recorder.queries.common import Database
from logs_ui.recorder.queries.filters.rollout_filter import RolloutFilter
from logs_ui.recorder.queries.rollout_list import ids_after
from logs_ui.recorder.queries.search.full_text import planning
from logs_ui.recorder.queries.sql.matching import LOST_ERROR
from logs_ui.recorder.queries.sql.selection import lost_until
from logs_ui.recorder.storage.tables import EvaluationRow
from logs_ui.recorder.vocabulary import Status, StopReason

_ALWAYS = ("id", "uid", "created")
_SAID = ("status", "stop_reason", "error")  # of rows that are lost
_AT_ONCE = 500  # rows that are Python's objects at a time: of more, the processor waits for memory

Values = dict[str, Sequence[Any]]
"""By column."""


def headers(
    db: Database, run_id: int, filter: RolloutFilter, names: Sequence[str], *, chunk: int = 4_000  # noqa: A002
) -> Iterator[Values]:  # fmt: skip
    """All rows of the filter, oldest first, in short reads, as `rows.rollouts` has them, a few at a time: columns of
    `evaluation_row`, those of `names` and `id`, `uid`, `created`; with one of `status`, `stop_reason`, `error` all of
    them.
    """
    wanted = list(dict.fromkeys((*_ALWAYS, *(() if set(_SAID).isdisjoint(names) else _SAID), *names)))
    nested = [name for name in wanted if isinstance(_column(name).type, JSON)]
    columns = [_text(name) if name in nested else _column(name) for name in wanted]
    last: int | None = 0
    while last is not None:
        with Session(db) as session:
            with planning(session.connection()):
                some = col(EvaluationRow.id).in_(ids_after(run_id, filter, last, chunk))
            query = select(*columns).where(some).order_by(col(EvaluationRow.id))
            last = None
            # As the driver has them: SQLAlchemy would go through every row, and every value of JSON.
            cursor = session.connection().execute(query).cursor
            while rows := cursor.fetchmany(_AT_ONCE):
                found: Values = dict(zip(wanted, zip(*rows, strict=True), strict=True))
                found |= {name: orjson.loads(f"[{','.join(found[name])}]") for name in nested}
                if Status.RUNNING in found.get("status", ()):
                    found |= _said_of_lost(found, session.scalar(select(lost_until(run_id))) or 0)
                last = found["id"][-1]
                yield found


def _column(name: str) -> Any:
    return getattr(EvaluationRow, name)


def _text(name: str) -> ColumnElement[str]:
    """Of JSON: many together are read at once."""
    return func.coalesce(cast(_column(name), String), literal("null", literal_execute=True))


def _said_of_lost(found: Values, until: int) -> Values:
    """What is said in place of it where a row will never return: see `selection.lost_until`."""
    said: dict[str, list[Any]] = {name: list(found[name]) for name in _SAID}
    for at, (status, created) in enumerate(zip(found["status"], found["created"], strict=True)):
        if status == Status.RUNNING and created <= until:
            said["status"][at], said["stop_reason"][at] = Status.ABORTED.value, StopReason.ABORTED.value
            said["error"][at] = said["error"][at] or LOST_ERROR
    return {**said}
