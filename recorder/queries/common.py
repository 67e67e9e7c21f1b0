"""What several subjects' SELECTs share."""

from collections.abc import Iterable
from dataclasses import dataclass

from sqlalchemy import ColumnElement, Connection, Engine, func, literal, select
from sqlalchemy.orm import Session

from logs_ui.recorder.matching import LOST_ERROR
from logs_ui.recorder.models import (
    EvaluationRow,
    Status,
    StopReason,
)
from logs_ui.recorder.selection import (
    lost_until,
)

Database = Engine | Connection
"""What is read. A connection's transaction shows one moment, however many of these are asked; an engine, which takes a
connection for each, the moment of each.
"""

COUNT_CAP = 10_000
"""Counts stop here (`Count.exact` is then False): at a million rows an exact one takes 260 ms, a capped one 1.5."""


@dataclass(frozen=True)
class Count:
    """How many rows; at least `value` where not exact."""

    value: int
    exact: bool


def counted(session: Session, selected: list[ColumnElement[bool]]) -> Count:
    capped = select(literal(1)).select_from(EvaluationRow).where(*selected).limit(COUNT_CAP + 1).subquery()
    found = session.scalar(select(func.count()).select_from(capped)) or 0
    return Count(min(found, COUNT_CAP), found <= COUNT_CAP)


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
