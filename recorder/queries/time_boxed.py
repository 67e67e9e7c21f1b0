"""Searches large runs for rollouts that no index leads to, within a time limit."""

import time
from dataclasses import replace
from typing import Any

from sqlalchemy import func, select
from sqlalchemy.orm import Session
from sqlmodel import col

from logs_ui.recorder.queries.common import WINDOW, Count, Database, newest_ids
from logs_ui.recorder.queries.filters.rollout_filter import Order, RolloutFilter, Sort
from logs_ui.recorder.queries.rollout_list import Cursor, Neighbours, Page, in_order, page_of
from logs_ui.recorder.queries.sql.selection import Use, conditions, place_of
from logs_ui.recorder.storage.tables import EvaluationRow

_FIRST_PART, _LARGEST_PART = 2_000, 32_000  # rollouts that are scanned at once


def page_in_time(
    db: Database, run_id: int, filter: RolloutFilter, *, after: Cursor | None = None, limit: int = 50,  # noqa: A002
    seconds: float = 1.0,
) -> Page:  # fmt: skip
    """Read a page as `page` does, for a large run and a filter that no index serves. In an order by id it returns the
    rows that it finds within `seconds`, and the next page continues where the scan stopped; in any other order, those
    among the newest WINDOW rollouts.
    """
    with Session(db) as session:
        if filter.sort in {Sort.NEWEST, Sort.OLDEST}:
            return _scan_in_time(session, run_id, filter, after, limit, time.monotonic() + seconds)
        span = newest_ids(session, run_id, filter.range("step").high, WINDOW)
        place = None if after is None else (after.key, after.id)
        rows = in_order(session, run_id, filter, place, limit + 1, span=span)
        return page_of(session, rows, filter.sort, limit, WINDOW)


def neighbours_in_time(
    db: Database, run_id: int, filter: RolloutFilter, row: EvaluationRow, *, total: Count, seconds: float = 0.015  # noqa: A002
) -> Neighbours:  # fmt: skip
    """Act as `neighbours`, for a large run and a filter that no index serves. In an order by id it returns those that
    it finds within `seconds` each; in any other order, those among the newest WINDOW rollouts. The position is None.
    """
    orders = (Sort.NEWEST, Sort.OLDEST)
    unsure: tuple[str, ...] = ()
    with Session(db) as session:
        itself = conditions(run_id, filter, Use.ROWS, (row.id or 0, row.id or 0))
        inside = session.scalar(select(col(EvaluationRow.id)).where(*itself)) is not None
        if filter.sort in orders:
            cursor = Cursor(None, row.id or 0)
            # The row before this one is the first after it in the opposite order.
            pages = [
                _scan_in_time(session, run_id, replace(filter, sort=order), cursor, 1, time.monotonic() + seconds)
                for order in (orders if filter.sort == Sort.OLDEST else reversed(orders))
            ]
            both = [page.rows for page in pages]
            names = zip(("previous", "next"), pages, strict=True)
            unsure = tuple(name for name, page in names if not page.rows and page.looked_at is not None)
        else:
            span = newest_ids(session, run_id, filter.range("step").high, WINDOW)
            place = place_of(session, row, filter.sort)
            both = [
                in_order(session, run_id, filter, place, 1, backwards=backwards, span=span)
                for backwards in (True, False)
            ]
    previous, following = (rows[0].id if rows else None for rows in both)
    return Neighbours(previous, following, inside, None, total, unsure)


def _scan_in_time(
    session: Session, run_id: int, filter: RolloutFilter, after: Cursor | None, limit: int, deadline: float  # noqa: A002
) -> Page:  # fmt: skip
    """Scan the run by id in parts, each larger than the one before, until `until` (of `time.monotonic`)."""
    is_newest, row_id = filter.sort == Sort.NEWEST, col(EvaluationRow.id)
    of_run: Any = select(row_id).where(col(EvaluationRow.run_id) == run_id)
    rows: list[EvaluationRow] = []
    place, size = None if after is None else after.id, _FIRST_PART
    looked_at = after.key if after and isinstance(after.key, int) else 0
    begin, before = of_run if place is None else _behind(of_run, place, filter.sort), looked_at
    while True:
        began = time.monotonic()
        remaining = of_run if place is None else _behind(of_run, place, filter.sort)
        ids = remaining.order_by(row_id.desc() if is_newest else row_id).limit(size).subquery()
        low, high, number = session.execute(select(func.min(ids.c.id), func.max(ids.c.id), func.count())).one()
        if low is not None:
            rows += in_order(session, run_id, filter, None, limit + 1 - len(rows), span=(low, high))
            place = low if is_newest else high
        looked_at += number
        if len(rows) > limit:
            # The next page begins behind the last row of this one: what was scanned beyond it is scanned again.
            last = rows[limit - 1].id or 0
            through = begin.where(row_id >= last if is_newest else row_id <= last).subquery()
            before += session.scalar(select(func.count()).select_from(through)) or 0
            return Page(rows[:limit], Cursor(before, last))
        if number < size:
            return Page(rows, None)
        # A SELECT is not interrupted, so the time of this part tells whether the next one would end too late.
        now, larger = time.monotonic(), min(2 * size, _LARGEST_PART)
        if now + (now - began) * larger / size > deadline:
            return Page(rows, Cursor(looked_at, place or 0), looked_at)
        size = larger


def _behind(of_run: Any, place: int, sort: Order) -> Any:
    """Return the SELECT of the ids after one in the order."""
    row_id = col(EvaluationRow.id)
    return of_run.where(row_id < place if sort == Sort.NEWEST else row_id > place)
