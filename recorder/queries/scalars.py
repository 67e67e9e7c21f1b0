"""Reads the figures that the trainer logged."""

from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from typing import Any

from sqlalchemy import func, or_, select
from sqlalchemy.orm import Session
from sqlmodel import col

from logs_ui.recorder.queries.common import Database
from logs_ui.recorder.storage.tables import Scalar


@dataclass(frozen=True)
class ScalarCurve:
    """A figure that the trainer logs, as (step, value); a value is None if it was not a finite number."""

    name: str
    points: tuple[tuple[int, float | None], ...]


def scalars(db: Database, run_id: int) -> list[Scalar]:
    """Return all scalars of a run, by name and step."""
    key = (col(Scalar.name), col(Scalar.step))
    with Session(db) as session:
        return list(session.scalars(select(Scalar).where(col(Scalar.run_id) == run_id).order_by(*key)))


def scalar_curves(db: Database, run_id: int, points: int = 200) -> list[ScalarCurve]:
    """Return curves by name. Longer ones are thinned to every n-th point and the last: at most `points` + 1."""
    name, step, of_run = col(Scalar.name), col(Scalar.step), col(Scalar.run_id) == run_id
    longest = select(func.count().label("number")).where(of_run).group_by(name).subquery()
    query: Any = select(name, step, col(Scalar.value)).where(of_run).order_by(name, step)
    with Session(db) as session:
        if (session.scalar(select(func.max(longest.c.number))) or 0) > points:
            place = (func.row_number().over(partition_by=name, order_by=step) - 1).label("place")
            counted = query.order_by(None).add_columns(place, func.count().over(partition_by=name).label("total"))
            columns = counted.subquery().c
            chosen = or_(
                columns.place % ((columns.total + points - 1) // points) == 0, columns.place == columns.total - 1
            )
            query = select(columns.name, columns.step, columns.value).where(chosen).order_by(columns.name, columns.step)
        # On the connection: the session's rows would take as long as all else on the page.
        rows = session.connection().execute(query).all()
    return [
        ScalarCurve(name, tuple([(step, value) for _, step, value in of_curve]))
        for name, of_curve in groupby(rows, itemgetter(0))
    ]


def last_logged_step(db: Database, run_id: int) -> int | None:
    """Return the highest step that has a scalar; None without scalars."""
    with Session(db) as session:
        return session.scalar(select(func.max(col(Scalar.step))).where(col(Scalar.run_id) == run_id))
