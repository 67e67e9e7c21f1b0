"""Copies runs of other databases into one: from SQLite or PostgreSQL, into either."""

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from itertools import groupby
from typing import Any

import orjson
import zstandard
from sqlalchemy import JSON, Connection, Engine, Select, Text, and_, cast, func, null, select, tuple_
from sqlmodel import col

from logs_ui.recorder import queries
from logs_ui.recorder.errors import LogsUIError, RunNotFoundError
from logs_ui.recorder.queries.payloads import with_payloads
from logs_ui.recorder.storage.address import Address, absolute, database_address, masked_address
from logs_ui.recorder.storage.changes import (
    Batch,
    PayloadStartChange,
    RowChange,
    RunChange,
    ScalarsChange,
    Source,
    SourcesChange,
    StoredImage,
    TokenizerChange,
)
from logs_ui.recorder.storage.database import disposed, sidecar_engine
from logs_ui.recorder.storage.notes_tables import NotesTable
from logs_ui.recorder.storage.sidecars import NOTES
from logs_ui.recorder.storage.step_sums import OF_STEP
from logs_ui.recorder.storage.tables import EvaluationRow, Image, RolloutPayload, RowTag, Run, RunSource, Scalar
from logs_ui.recorder.storage.tables import Text as StoredText
from logs_ui.recorder.storage.writes import row_writes, run_writes, step_writes
from logs_ui.recorder.upkeep.small_transactions import Progress, Steady, reading, unseen, writing
from logs_ui.recorder.upkeep.sweeps import hashes_in, unpacked
from logs_ui.recorder.vocabulary import SourceKind, Status

Values = dict[str, Any]

_MOST = 512  # rollouts in one read; each has some 10 kB
_SCALARS = 5_000  # in one transaction
_OF_ROW = ("policy_step", "group", "generation", "process", "created", *OF_STEP)  # never change
_OWN = frozenset({"id", "run_id", "uid", "changed"})  # differ between databases, or are keys
_COUNTERS = (
    "recorder_errors", "dropped", "dropped_payloads", "pruned", "unattributed_calls", "unattributed_scoring",
)  # fmt: skip


@dataclass(frozen=True)
class MergedRun:
    """Describes the result for one run.

    Attributes:
        was_there: True if the database had it before.
        rollouts: how many were copied: new ones, and those that had changed since.
    """

    uid: str
    was_there: bool
    rollouts: int


def merge(
    sources: Sequence[str | os.PathLike[str]],
    into: str | os.PathLike[str],
    *,
    run: Sequence[str] = (),
    progress: Progress = unseen,
) -> list[MergedRun]:
    """Copy runs with everything that belongs to them: rollouts, figures, sources, tokenizers, images, stars, tags and
    notes. The sources stay as they are. Sums of steps are recomputed from the rollouts.

    Runs are recognised by uid, and rollouts by uid within a run: existing ones are kept, or updated if the source is
    further. So the same merge can be repeated, after an interruption or when a run has gone on, and files that several
    hosts wrote of one run become one.

    Args:
        sources: paths or URLs. If several have a run, its description comes from the last one.
        into: path or URL of the database to copy into; created if it is missing.
        run: names of runs, as in `load_run`, each copied from every source that has it; all runs by default.
        progress: called with the name of the work, how much is done, and how much there is.

    Raises:
        LogsUIError: a source is the database to copy into.
        RunNotFoundError: no source has the run, or the name is ambiguous. Nothing is copied then.
        DatabaseError: one of them is missing, or cannot be read or written.
    """
    target = absolute(database_address(into))
    addresses = [absolute(database_address(source)) for source in sources]
    for address in addresses:
        if _place(address) == _place(target):
            raise LogsUIError(f"{masked_address(address)} is the database to merge into. Name others.")
    _refuse_unknown(addresses, run)
    merged: dict[str, MergedRun] = {}
    for address in addresses:
        with reading(address) as engine:
            wanted = _wanted(engine, run)
            if not wanted:
                continue
            with writing(target) as steady:
                for run_merge in wanted:
                    copied, before = _Copy(engine, steady, run_merge).everything(progress), merged.get(run_merge.uid)
                    if before is not None:
                        copied = MergedRun(run_merge.uid, before.was_there, before.rollouts + copied.rollouts)
                    merged[run_merge.uid] = copied
                    _copy_notes(engine, target, run_merge.uid)
    return list(merged.values())


class _Copy:
    """Copies one run from one database into another."""

    def __init__(self, source: Engine, steady: Steady, run: Run) -> None:
        self._source = source
        self._steady = steady
        self._run = run
        self._run_id = run.id or 0
        self._new_id = 0
        self._images: set[str] = set()  # hashes of images that were copied
        with source.connect() as connection:
            self._has_images = connection.scalar(select(col(Image.hash)).limit(1)) is not None
            rows = select(func.count()).where(col(EvaluationRow.run_id) == run.id)
            self._total = connection.scalar(rows) or 0

    def everything(self, progress: Progress) -> MergedRun:
        was_there = self._begin()
        copied = done = 0
        for rows in self._rows():
            copied += self._write(rows, was_there=was_there)
            done += len(rows)
            progress(f"copying {self._run.uid}", min(done, self._total), self._total)
        self._figures()
        return MergedRun(self._run.uid, was_there, copied)

    def _begin(self) -> bool:
        """Copy the run's row, tokenizer and sources; return True if the run existed."""
        uid = self._run.uid
        with self._source.connect() as connection:
            (source_row,) = _read_rows(connection, _raw(Run).where(col(Run.id) == self._run_id))
            sources = SourcesChange(uid, tuple(_sources(connection, self._run_id)))
        tokenizer = None if self._run.tokenizer is None else queries.tokenizer_json(self._source, self._run.tokenizer)
        with self._steady.piece() as connection:
            was_there = connection.scalar(select(col(Run.id)).where(col(Run.uid) == uid)) is not None
            self._new_id = run_writes.run_ids(connection, [uid], self._run.heartbeat)[uid]
            run_writes.take_runs(connection, [self._new_id])  # before reading: what others write meanwhile stays
            (target_row,) = _read_rows(connection, _raw(Run).where(col(Run.id) == self._new_id))
            described = _as_written(Run, _newer(source_row, target_row) if was_there else source_row)
            run_writes.write_runs(connection, [RunChange(uid, described)])
            if tokenizer is not None:
                change = TokenizerChange(self._run.tokenizer or "", tokenizer.decode())
                run_writes.write_tokenizers(connection, [change])
            run_writes.write_sources(connection, [sources], {uid: self._new_id})
        return was_there

    def _rows(self) -> Iterator[list[Values]]:
        """Read rollouts by id, with payloads, in short transactions."""
        row, payload, last_id = EvaluationRow, RolloutPayload, 0
        query = with_payloads(_raw(row).add_columns(col(payload.content_start), col(payload.tokens_start)))
        query = query.where(col(row.run_id) == self._run_id).order_by(col(row.id))
        while True:
            with self._source.connect() as connection:
                following = query.where(col(row.id) > last_id).limit(min(self._steady.rows, _MOST))
                rows = _read_rows(connection, following)
            if not rows:
                return
            yield rows
            last_id = rows[-1]["id"]

    def _write(self, rows: list[Values], *, was_there: bool) -> int:
        row = EvaluationRow
        with self._source.connect() as connection:
            tags = _tags(connection, [values["id"] for values in rows])
            images = self._images_of(connection, rows) if self._has_images else {}
        with self._steady.piece() as connection:
            run_writes.take_runs(connection, [self._new_id])
            existing = col(row.run_id) == self._new_id, col(row.uid).in_([values["uid"] for values in rows])
            targets = (
                {values["uid"]: values for values in _read_rows(connection, _raw(row).where(*existing))}
                if was_there
                else {}
            )
            news = [values for values in rows if _is_news(values, targets.get(values["uid"]))]
            changes = [
                _change(
                    self._run.uid,
                    values,
                    targets.get(values["uid"]),
                    tags.get(values["id"], ()),
                    images.get(values["id"], ()),
                )
                for values in news
            ]
            if changes:
                row_writes.write_payload_starts(connection, _starts(news))
                # The run keeps its own heartbeat: to copy rollouts is no sign of life of its processes.
                heard = connection.scalar(select(col(Run.heartbeat)).where(col(Run.id) == self._new_id)) or 0
                row_writes.write_rows(connection, changes, {self._run.uid: self._new_id}, heard)
        return len(news)

    def _images_of(self, connection: Connection, rows: list[Values]) -> dict[int, tuple[StoredImage, ...]]:
        """Read images that were not copied yet, by the row that refers to them first."""
        images_by_row: dict[int, tuple[StoredImage, ...]] = {}
        for row in rows:
            hashes = hashes_in(unpacked(row["content"], row["before_content"])) - self._images
            if hashes:
                images = _read_rows(connection, _raw(Image).where(col(Image.hash).in_(hashes)))
                images_by_row[row["id"]] = tuple(StoredImage(**image) for image in images)
                self._images |= hashes
        return images_by_row

    def _figures(self) -> None:
        """Copy scalars, and recompute details of steps."""
        uid, runs = self._run.uid, {self._run.uid: self._new_id}
        for changes in _scalars(self._source, self._run_id, uid):
            with self._steady.piece() as connection:
                run_writes.take_runs(connection, [self._new_id])
                run_writes.write_scalars(connection, changes, runs)
        with self._steady.piece() as connection:
            run_writes.take_runs(connection, [self._new_id])
            # For a run that ends in the batch all stale details are recomputed, however young they are.
            ended = Batch(runs=[RunChange(uid, {"finished": self._run.heartbeat})])
            step_writes.write_details(connection, ended, runs, self._run.heartbeat)


def _refuse_unknown(addresses: Sequence[Address], names: Sequence[str]) -> None:
    """Raise RunNotFoundError if no source has a run of these names."""
    unknown: dict[str, RunNotFoundError] = {}
    known_names: set[str] = set()
    for address in addresses if names else ():
        with reading(address) as engine:
            for name in names:
                try:
                    queries.find_run(engine, name)
                    known_names.add(name)
                except RunNotFoundError as error:
                    unknown[name] = error
    for name in unknown.keys() - known_names:
        raise unknown[name]


def _wanted(engine: Engine, names: Sequence[str]) -> list[Run]:
    """Return the runs to copy, oldest first: all, or those with these names that the source has."""
    if not names:
        return [summary.run for summary in reversed(queries.all_runs(engine))]
    runs: dict[str, Run] = {}
    for name in names:
        with suppress(RunNotFoundError):
            run = queries.find_run(engine, name)
            runs[run.uid] = run
    return list(runs.values())


def _raw(table: Any) -> Select[Any]:
    """Select all columns, with JSON as text: a NULL differs from a JSON null."""
    columns = table.__table__.columns
    query: Select[Any] = select(
        *(cast(column, Text).label(column.name) if isinstance(column.type, JSON) else column for column in columns)
    )
    return query


def _read_rows(connection: Connection, query: Select[Any]) -> list[Values]:
    return [dict(row) for row in connection.execute(query).mappings()]


@cache
def _copied(table: Any) -> tuple[tuple[str, bool], ...]:
    """Return the columns to copy, each with True if it is JSON."""
    return tuple(
        (column.name, isinstance(column.type, JSON)) for column in table.__table__.columns if column.name not in _OWN
    )


def _as_written(table: Any, values: Mapping[str, Any]) -> Values:
    """Return values for `writes/`."""
    return {name: _json(values[name]) if is_json else values[name] for name, is_json in _copied(table)}


def _json(text: str | None) -> Any:
    return null() if text is None else orjson.Fragment(text)


def _newer(source_row: Values, target_row: Values) -> Values:
    """Return the description with the later heartbeat, with the higher of each count."""
    newer = dict(source_row if source_row["heartbeat"] >= target_row["heartbeat"] else target_row)
    return {**newer, **{name: max(source_row[name], target_row[name]) for name in _COUNTERS}}


def _is_news(source_row: Values, target_row: Values | None) -> bool:
    """Return True if a rollout differs from the existing one, and is not behind it."""
    if target_row is None:
        return True
    compared = target_row.keys() - {*_OWN, "pruned"}
    if all(source_row[name] == target_row[name] for name in compared):
        return False
    return _how_far(source_row) >= _how_far(target_row)


def _how_far(row: Values) -> tuple[bool, ...]:
    # The order in which a rollout is completed: it ends, is scored, and gets an advantage.
    return row["status"] != Status.RUNNING, row["scored"] is not None, row["advantage"] is not None


def _change(
    run_uid: str, source_row: Values, target_row: Values | None, tags: tuple[str, ...], images: tuple[StoredImage, ...]
) -> RowChange:
    written = _as_written(EvaluationRow, source_row)
    identity = {name: written.pop(name) for name in _OF_ROW}
    if target_row is not None and source_row["content"] is None:
        written["pruned"] = target_row["pruned"]  # the existing text stays
    # A start that the source has lost is not referred to.
    starts = {
        f"{name}_start": None if source_row[f"before_{name}"] is None else source_row[f"{name}_start"]
        for name in ("content", "tokens")
    }
    return RowChange(
        run_uid,
        source_row["uid"],
        identity,
        written,
        source_row["content"],
        source_row["tokens"],
        images,
        tags,
        **starts,
    )


def _starts(rows: Sequence[Values]) -> list[PayloadStartChange]:
    """Return the shared starts of payloads."""
    starts = {row[f"{name}_start"]: row[f"before_{name}"] for row in rows for name in ("content", "tokens")}
    return [PayloadStartChange(start, data) for start, data in starts.items() if data is not None]


def _tags(connection: Connection, ids: list[int]) -> dict[int, tuple[str, ...]]:
    query = select(col(RowTag.row_id), col(RowTag.tag)).where(col(RowTag.row_id).in_(ids)).order_by(col(RowTag.row_id))
    pairs = connection.execute(query).all()
    return {row_id: tuple(tag for _, tag in tags) for row_id, tags in groupby(pairs, lambda pair: pair[0])}


def _sources(connection: Connection, run_id: int) -> Iterator[Source]:
    source = RunSource
    query = select(col(source.kind), col(source.name), col(source.weight), col(StoredText.data))
    query = query.outerjoin(StoredText, and_(col(StoredText.hash) == col(source.hash)))
    for kind, name, weight, data in connection.execute(query.where(col(source.run_id) == run_id)):
        yield Source(SourceKind(kind), name, None if data is None else zstandard.decompress(data).decode(), weight)


def _scalars(db: Engine, run_id: int, uid: str) -> Iterator[list[ScalarsChange]]:
    step, name = col(Scalar.step), col(Scalar.name)
    query = select(step, name, col(Scalar.value)).where(col(Scalar.run_id) == run_id).order_by(step, name)
    last: tuple[int, str] | None = None
    while True:
        following = query if last is None else query.where(tuple_(step, name) > tuple_(*last))
        with db.connect() as connection:
            scalars = connection.execute(following.limit(_SCALARS)).all()
        if not scalars:
            return
        yield [
            ScalarsChange(uid, at, {name: value for _, name, value in figures})
            for at, figures in groupby(scalars, lambda figure: figure[0])
        ]
        last = scalars[-1][0], scalars[-1][1]


def _copy_notes(db: Engine, target: Address, uid: str) -> None:
    """Copy stars, tags and notes; the newer of two wins."""
    with db.connect() as connection:
        rows_by_table = {
            table: _read_rows(connection, select(*table.columns).where(table.c.run == uid))
            for table in NotesTable.metadata.sorted_tables
        }
    if not any(rows_by_table.values()):
        return
    with disposed(sidecar_engine(NOTES, target)) as engine, engine.begin() as connection:
        for table, rows in rows_by_table.items():
            for row in rows:
                is_same_row = and_(*(key == row[key.name] for key in table.primary_key))
                changed = connection.scalar(select(table.c.changed).where(is_same_row))
                if changed is None or changed < row["changed"]:
                    connection.execute(table.delete().where(is_same_row))
                    connection.execute(table.insert(), row)


def _place(address: Address) -> str:
    return os.path.realpath(address) if isinstance(address, os.PathLike) else masked_address(address)
