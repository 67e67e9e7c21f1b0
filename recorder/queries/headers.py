"""Reads columns of many rollouts, without payloads, and without an object per row."""

from collections.abc import Iterator, Sequence
from typing import Any

import orjson
from sqlalchemy import JSON, cast, func, literal, select
from sqlalchemy.orm import Session
from sqlalchemy.types import String
from sqlmodel import col

from logs_ui.recorder.queries.common import Database
from logs_ui.recorder.queries.filters.rollout_filter import RolloutFilter
from logs_ui.recorder.queries.rollout_list import ids_after
from logs_ui.recorder.queries.search.full_text import planning
from logs_ui.recorder.queries.sql.liveness import lost_until
from logs_ui.recorder.queries.sql.matching import LOST_ERROR
from logs_ui.recorder.storage.tables import EvaluationRow
from logs_ui.recorder.vocabulary import Status, StopReason

_ALWAYS = ("id", "uid", "created")
_OF_LOST = ("status", "stop_reason", "error")  # columns that are replaced in rows whose process died
_AT_ONCE = 500  # rows fetched at once: with more, their Python objects no longer fit into the processor's cache

Values = dict[str, Sequence[Any]]
"""Values by column."""


def headers(
    db: Database, run_id: int, filter: RolloutFilter, names: Sequence[str], *, chunk: int = 4_000  # noqa: A002
) -> Iterator[Values]:  # fmt: skip
    """Read columns of `evaluation_row` of all rows of a filter, oldest first, a few hundred rows at a time.

    `id`, `uid` and `created` are always added, and with one of `status`, `stop_reason` and `error` the other two. Each
    SELECT reads `chunk` rows: a long read would keep the write-ahead log from being reused.
    """
    columns = list(dict.fromkeys((*_ALWAYS, *(() if set(_OF_LOST).isdisjoint(names) else _OF_LOST), *names)))
    stored = {name: getattr(EvaluationRow, name) for name in columns}
    nested = [name for name in columns if isinstance(stored[name].type, JSON)]
    # JSON as text: many values are parsed in one call.
    null = literal("null", literal_execute=True)
    stored |= {name: func.coalesce(cast(stored[name], String), null) for name in nested}
    last: int | None = 0
    while last is not None:
        with Session(db) as session:
            with planning(session.connection()):
                selected = col(EvaluationRow.id).in_(ids_after(run_id, filter, last, chunk))
            query = select(*stored.values()).where(selected).order_by(col(EvaluationRow.id))
            last = None
            # Straight from the driver: SQLAlchemy would convert each row, and each value of JSON.
            cursor = session.connection().execute(query).cursor
            while rows := cursor.fetchmany(_AT_ONCE):
                values: Values = dict(zip(columns, zip(*rows, strict=True), strict=True))
                values |= {name: orjson.loads(f"[{','.join(values[name])}]") for name in nested}
                if Status.RUNNING in values.get("status", ()):
                    values |= _mark_lost_as_aborted(values, session.scalar(select(lost_until(run_id))) or 0)
                last = values["id"][-1]
                yield values


def _mark_lost_as_aborted(values: Values, until: int) -> Values:
    """Replace status, stop_reason and error of rows whose process died: see `liveness.lost_until`."""
    columns: dict[str, list[Any]] = {name: list(values[name]) for name in _OF_LOST}
    for place, (status, created) in enumerate(zip(values["status"], values["created"], strict=True)):
        if status == Status.RUNNING and created <= until:
            columns["status"][place], columns["stop_reason"][place] = Status.ABORTED.value, StopReason.ABORTED.value
            columns["error"][place] = columns["error"][place] or LOST_ERROR
    return {**columns}
