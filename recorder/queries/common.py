"""What several subjects' SELECTs share."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, Connection, Engine, func, literal, select
from sqlalchemy.orm import Session
from sqlmodel import col

from logs_ui.recorder.queries.sql.matching import LOST_ERROR
from logs_ui.recorder.queries.sql.selection import Span, lost_until
from logs_ui.recorder.storage.tables import EvaluationRow
from logs_ui.recorder.vocabulary import Status, StopReason

Database = Engine | Connection
"""What is read. A connection's transaction shows one moment, however many of these are asked; an engine, which takes a
connection for each, the moment of each.
"""

COUNT_CAP = 10_000
"""Counts stop here (`Count.exact` is then False): at a million rows an exact one takes 260 ms, a capped one 1.5."""


LARGE = 100_000
"""Rollouts of a run from which on not all of them are diagnosed, or read for a pivot."""

MANY = 40_000
"""Rollouts of a run from which on a page does not look at all of them for what no index has: of so many that takes
30 ms, and a page asks several times.
"""

WINDOW = 10_000
"""Rollouts that are looked at in place of all of those: the newest."""


@dataclass(frozen=True)
class Count:
    """How many rows; at least `value` where not exact."""

    value: int
    exact: bool


def counted(session: Session, selected: list[ColumnElement[bool]]) -> Count:
    capped = select(literal(1)).select_from(EvaluationRow).where(*selected).limit(COUNT_CAP + 1).subquery()
    found = session.scalar(select(func.count()).select_from(capped)) or 0
    return Count(min(found, COUNT_CAP), found <= COUNT_CAP)


def newest_ids(session: Session, run_id: int, step_max: float | None, number: int) -> Span:
    """Of so many rollouts of a run, those up to a step: the ids between which they lie, about."""
    row = EvaluationRow
    of_id: Any = col(row.id)
    of_run: list[Any] = [col(row.run_id) == run_id]
    top = select(func.max(of_id)).where(*of_run)
    if step_max is not None:
        last = select(func.max(col(row.step))).where(*of_run, col(row.step) <= step_max).scalar_subquery()
        top = select(func.max(of_id + 0)).where(*of_run, col(row.step) == last)
    high = session.scalar(top) or 0
    below = select(of_id).where(*of_run, of_id <= high).order_by(of_id.desc()).offset(number).limit(1)
    return (session.scalar(below) or 0) + 1, high


def shown(session: Session, run_id: int, stored: Iterable[EvaluationRow]) -> list[EvaluationRow]:
    """The same rows, no longer the session's; those of the run that are lost say so: see `selection.lost_until`."""
    rows = list(stored)
    running = [row for row in rows if row.status == Status.RUNNING]
    session.expunge_all()  # or it would try to write what is shown
    until = (session.scalar(select(lost_until(run_id))) or 0) if running else 0
    for row in running:
        if row.created <= until:
            row.status, row.stop_reason = Status.ABORTED.value, StopReason.ABORTED.value
            row.error = row.error or LOST_ERROR
    return rows
