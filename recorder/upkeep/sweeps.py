"""Deletes stored images and shared prompts that no rollout refers to any more."""

import re
from collections.abc import Iterable, Iterator, Sequence

import zstandard
from sqlalchemy import ColumnElement, Connection, Engine, delete, exists, func, or_, select
from sqlmodel import col

from logs_ui.recorder.queries.payloads import with_contents
from logs_ui.recorder.storage.payload import unpack_json
from logs_ui.recorder.storage.tables import EvaluationRow, Image, PayloadStart, RolloutPayload, Run
from logs_ui.recorder.upkeep.small_transactions import Progress, Steady, on_postgres, unseen

_AT_ONCE = 500  # contents in one read
_DELETED = 50  # images in one transaction
_HASH = re.compile(rb"(?<![0-9a-f])[0-9a-f]{64}(?![0-9a-f])")

_Packed = Sequence[bytes | None]  # a content and its start


def sweep_images(db: Engine, steady: Steady, progress: Progress = unseen) -> tuple[int, int]:
    """Delete unused images; return how many, and their bytes. Rollouts that are recorded meanwhile keep theirs."""
    # One transaction reads both: `_named_since` then finds all rollouts that were written after this moment.
    with db.connect() as connection:
        unused = set(connection.scalars(select(col(Image.hash))))
        changed = _changes(connection)
    if not unused:
        return 0, 0
    for contents in _contents(db, progress):
        unused -= _named_in(contents)
        if not unused:
            return 0, 0
    with db.connect() as connection:  # rows written meanwhile, so that `_delete` has few left to read under its lock
        unused -= _named_since(connection, changed)
    return _delete(steady, unused, changed)


def unpacked(content: bytes | None, start: bytes | None) -> bytes:
    """Return a packed content's JSON with its start; empty if there is none, or it is damaged."""
    try:
        return unpack_json(content, start)
    except zstandard.ZstdError:
        return b""


def hashes_in(json: bytes) -> set[str]:
    """Return everything that may be the hash of an image, anywhere in the text."""
    return {match.decode() for match in _HASH.findall(json)}


def _delete(steady: Steady, unused: set[str], changed: dict[int, int]) -> tuple[int, int]:
    count = size = 0
    while unused:
        with steady.piece() as connection:
            # Writers store images before their rollout, in the same transaction: so none is between the two now.
            on_postgres(connection, "LOCK TABLE image IN SHARE ROW EXCLUSIVE MODE")
            unused -= _named_since(connection, changed)
            hashes = sorted(unused)[:_DELETED]
            of_them = col(Image.hash).in_(hashes)
            totals = connection.execute(
                select(func.count(), func.sum(func.length(col(Image.data)))).where(of_them)
            ).one()
            connection.execute(delete(Image).where(of_them))
        count, size = count + totals[0], size + (totals[1] or 0)
        unused -= set(hashes)
    return count, size


def _changes(connection: Connection) -> dict[int, int]:
    return {row.id: row.changed for row in connection.execute(select(col(Run.id), col(Run.changed)))}


def _named_since(connection: Connection, changed: dict[int, int]) -> set[str]:
    """Return hashes in rollouts that were written after `changed`, which is updated."""
    hashes: set[str] = set()
    for run_id, now in _changes(connection).items():
        before = changed.get(run_id, -1)
        if now > before:
            rows = select(col(EvaluationRow.id)).where(
                col(EvaluationRow.run_id) == run_id, col(EvaluationRow.changed) > before
            )
            contents = with_contents(select().select_from(RolloutPayload).where(col(RolloutPayload.row_id).in_(rows)))
            hashes |= _named_in(connection.execute(contents))
            changed[run_id] = now
    return hashes


def _contents(db: Engine, progress: Progress) -> Iterator[Iterable[_Packed]]:
    row_id = col(RolloutPayload.row_id)
    last, most = 0, -1
    while True:
        with db.connect() as connection:
            if most < 0:
                most = connection.scalar(select(func.max(col(RolloutPayload.row_id)))) or 0
            query = with_contents(select(row_id)).where(row_id > last).order_by(row_id).limit(_AT_ONCE)
            rows = connection.execute(query).all()
        if not rows:
            return
        yield [packed for _, *packed in rows]
        last = rows[-1][0]
        progress("looking for images that are used", min(last, most), most)


def _named_in(contents: Iterable[_Packed]) -> set[str]:
    return {name for packed in contents for name in hashes_in(unpacked(*packed))}


def is_unused() -> ColumnElement[bool]:
    """Return a condition on PayloadStart: true if no payload refers to it."""
    payload, start = RolloutPayload, col(PayloadStart.id)
    return ~or_(*(exists().where(col(name) == start) for name in (payload.content_start, payload.tokens_start)))


def sweep_starts(steady: Steady) -> int:
    """Delete unused starts; return their bytes. Rollouts that are recorded meanwhile keep theirs."""
    start, size = col(PayloadStart.id), func.length(col(PayloadStart.data))
    freed = 0
    last: int | None = -1
    while last is not None:
        with steady.piece() as connection:
            # Writers store a start before its payload, in the same transaction: so none is between the two now.
            on_postgres(connection, "LOCK TABLE payload_start IN SHARE ROW EXCLUSIVE MODE")
            some = connection.scalars(select(start).where(start > last).order_by(start).limit(steady.rows)).all()
            gone = delete(PayloadStart).where(start.in_(some), is_unused()).returning(size)
            freed += sum(connection.scalars(gone))
            last = max(some, default=None)
    return freed
