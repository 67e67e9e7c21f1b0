"""Columns of many rollouts without what only an open one needs: no payload is read, and no row becomes an object."""

from collections.abc import Iterator, Sequence
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session
from sqlmodel import col

from logs_ui.recorder.filters import RolloutFilter
from logs_ui.recorder.matching import LOST_ERROR
from logs_ui.recorder.models import EvaluationRow, Status, StopReason
from logs_ui.recorder.queries.common import Database
from logs_ui.recorder.queries.rows import ids_after
from logs_ui.recorder.search import planning
from logs_ui.recorder.selection import lost_until

_ALWAYS = ("id", "uid", "created")
_SAID = ("status", "stop_reason", "error")  # of rows that are lost


def headers(
    db: Database, run_id: int, filter: RolloutFilter, names: Sequence[str], *, chunk: int = 4_000  # noqa: A002
) -> Iterator[dict[str, list[Any]]]:  # fmt: skip
    """All rows of the filter, oldest first, in short reads, as `rows.rollouts` has them: by column of `evaluation_row`,
    those of `names` and `id`, `uid`, `created`; with one of `status`, `stop_reason`, `error` all of them.
    """
    wanted = list(dict.fromkeys((*_ALWAYS, *(() if set(_SAID).isdisjoint(names) else _SAID), *names)))
    columns, of_id = [getattr(EvaluationRow, name) for name in wanted], col(EvaluationRow.id)
    last: int | None = 0
    while last is not None:
        with Session(db) as session, planning(session.connection()):
            some = of_id.in_(ids_after(run_id, filter, last, chunk))
            # As Core: the session would go through every row.
            rows = session.connection().execute(select(*columns).where(some).order_by(of_id)).all()
            found = dict(zip(wanted, map(list, zip(*rows, strict=True)), strict=True)) if rows else {}
            if Status.RUNNING in found.get("status", ()):
                _say_lost(found, session.scalar(select(lost_until(run_id))) or 0)
        last = found["id"][-1] if found else None
        if found:
            yield found


def _say_lost(found: dict[str, list[Any]], until: int) -> None:
    """Of those that will never return: see `selection.lost_until`."""
    for at, (status, created) in enumerate(zip(found["status"], found["created"], strict=True)):
        if status == Status.RUNNING and created <= until:
            found["status"][at], found["stop_reason"][at] = Status.ABORTED.value, StopReason.ABORTED.value
            found["error"][at] = found["error"][at] or LOST_ERROR
