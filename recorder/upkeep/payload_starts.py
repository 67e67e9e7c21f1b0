"""Deletes shared payload starts that no payload refers to any more."""

from sqlalchemy import ColumnElement, delete, exists, func, or_, select
from sqlmodel import col

from logs_ui.recorder.storage.tables import PayloadStart, RolloutPayload
from logs_ui.recorder.upkeep.small_transactions import Steady, on_postgres


def is_unused() -> ColumnElement[bool]:
    """A condition on PayloadStart: true if no payload refers to it."""
    payload, start = RolloutPayload, col(PayloadStart.id)
    return ~or_(*(exists().where(col(name) == start) for name in (payload.content_start, payload.tokens_start)))


def sweep_starts(steady: Steady) -> int:
    """Deletes unused starts; returns their bytes. Rollouts that are recorded meanwhile keep theirs."""
    start, size = col(PayloadStart.id), func.length(col(PayloadStart.data))
    taken = 0
    last: int | None = -1
    while last is not None:
        with steady.piece() as connection:
            # Writers store a start before its payload, in the same transaction: so none is between the two now.
            on_postgres(connection, "LOCK TABLE payload_start IN SHARE ROW EXCLUSIVE MODE")
            some = connection.scalars(select(start).where(start > last).order_by(start).limit(steady.rows)).all()
            gone = delete(PayloadStart).where(start.in_(some), is_unused()).returning(size)
            taken += sum(connection.scalars(gone))
            last = max(some, default=None)
    return taken
