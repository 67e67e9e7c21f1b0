"""Counts, limits and the reading of rows that several files of this package share."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from sqlalchemy import ColumnElement, Connection, Engine, Select, func, literal, select
from sqlalchemy.orm import Session
from sqlmodel import col

from logs_ui.recorder.queries.sql.liveness import lost_until
from logs_ui.recorder.queries.sql.matching import LOST_ERROR
from logs_ui.recorder.queries.sql.selection import Span
from logs_ui.recorder.storage.tables import EvaluationRow
from logs_ui.recorder.vocabulary import Status, StopReason

Database = Engine | Connection
"""The database to read. All queries on a connection see the same moment, that of its transaction; on an engine each
query takes a connection of its own and sees its own moment.
"""

COUNT_CAP = 10_000
"""Counts stop here (`Count.exact` is then False): of a million rows an exact count takes 260 ms, a capped one 1.5."""

LARGE = 100_000
"""Runs with more rollouts than this are diagnosed, and read for a pivot, in part only."""

MANY = 40_000
"""In runs with this many rollouts or more, a page does not scan all of them for a value that no index has: for so many
a scan takes 30 ms, and a page needs several.
"""

WINDOW = 10_000
"""The number of newest rollouts that are scanned instead."""

BOUND = 1e75

T = TypeVar("T")


@dataclass(frozen=True)
class Count:
    """Holds a number of rows; if it is not exact, there are at least `value`."""

    value: int
    exact: bool


def count_up_to_cap(session: Session, selected: list[ColumnElement[bool]]) -> Count:
    capped = select(literal(1)).select_from(EvaluationRow).where(*selected).limit(COUNT_CAP + 1).subquery()
    number = session.scalar(select(func.count()).select_from(capped)) or 0
    return Count(min(number, COUNT_CAP), number <= COUNT_CAP)


def newest_ids(session: Session, run_id: int, step_max: float | None, number: int) -> Span:
    """Return the first and last id of about `number` rollouts of a run: the newest up to a step."""
    row = EvaluationRow
    of_id: Any = col(row.id)
    of_run: list[Any] = [col(row.run_id) == run_id]
    top = select(func.max(of_id)).where(*of_run)
    if step_max is not None:
        last = select(func.max(col(row.step))).where(*of_run, col(row.step) <= step_max).scalar_subquery()
        # In an expression, so that SQLite looks the step up in its index and does not walk the whole run by id.
        top = select(func.max(of_id + 0)).where(*of_run, col(row.step) == last)
    high = session.scalar(top) or 0
    below = select(of_id).where(*of_run, of_id <= high).order_by(of_id.desc()).offset(number).limit(1)
    return (session.scalar(below) or 0) + 1, high


def as_shown(session: Session, run_id: int, stored: Iterable[EvaluationRow]) -> list[EvaluationRow]:
    """Detach rows from the session, and mark those whose process died as aborted: see `liveness.lost_until`."""
    rows = list(stored)
    running = [row for row in rows if row.status == Status.RUNNING]
    session.expunge_all()  # else it would write the marks to the database
    until = (session.scalar(select(lost_until(run_id))) or 0) if running else 0
    for row in running:
        if row.created <= until:
            row.status, row.stop_reason = Status.ABORTED.value, StopReason.ABORTED.value
            row.error = row.error or LOST_ERROR
    return rows


def distinct(column: Any, of_run: ColumnElement[bool]) -> Select[Any]:
    """Return the distinct values of an indexed column, by a look-up per value: DISTINCT would read all rows."""
    values = select(func.min(column).label("value")).where(of_run).cte("found", recursive=True)
    following = select(func.min(column)).where(of_run, column > values.c.value).scalar_subquery()
    values = values.union_all(select(following).where(values.c.value.is_not(None)))
    return select(values.c.value).where(values.c.value.is_not(None))


def bounded(value: float) -> float:
    """Return a number that is at most 1e75 from 0, so that sums, differences and squares stay finite; 0 for NaN."""
    if -BOUND < value < BOUND:  # nearly all, and a page has thousands
        return value
    return min(max(value, -BOUND), BOUND) if not math.isnan(value) else 0.0


def thinned(values: Sequence[T], most: int) -> Sequence[T]:
    """Return evenly chosen values, at most so many, with the first and the last."""
    places = (round(i * (len(values) - 1) / (most - 1)) for i in range(most))
    return values if len(values) <= most else [values[place] for place in places]
