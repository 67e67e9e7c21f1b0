"""Inserts and updates runs and what belongs to them, in the transaction of the thread that writes."""

import hashlib
from collections import Counter
from collections.abc import Iterable, Mapping
from operator import attrgetter, itemgetter
from typing import Any

import zstandard
from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Connection,
    Select,
    bindparam,
    case,
    func,
    literal,
    or_,
    select,
    update,
)  # fmt: skip
from sqlmodel import col

from logs_ui.recorder.storage.changes import RunChange, ScalarsChange, SourcesChange, TokenizerChange
from logs_ui.recorder.storage.clock import now_us
from logs_ui.recorder.storage.dialects import insert, server_clock
from logs_ui.recorder.storage.tables import Run, RunSource, Scalar, Text, Tokenizer
from logs_ui.recorder.storage.writes.prepared_statements import run, upsert
from logs_ui.recorder.vocabulary import RunState

_END = {"state", "finished", "error", "traceback"}
_FOLLOW_ON = ("Connection closed by peer", "gloo/transport", "DistBackendError", "DistNetworkError", "DistStoreError")
"""Parts of what other ranks raise once one has failed: gloo's errors, and those of torch.distributed for NCCL."""
_ERRORS = 20  # different ones that are kept of a run's unattributed calls, the most frequent first


def write_runs(connection: Connection, changes: Iterable[RunChange], heard: int | None = None) -> None:
    """Write changes of runs. A change with `created` describes the run, the others update it. `heard` is as for
    `write_rows`: a clock that is ahead cannot set a later heartbeat.
    """
    latest = server_clock(now_us()) if heard is None else literal(heard)
    for change in changes:
        columns: dict[str, Any]
        if "created" in change.columns:
            parent = None
            if change.resumes is not None:
                others = select(col(Run.uid)).where(col(Run.output_dir) == change.resumes, col(Run.uid) != change.uid)
                parent = connection.scalar(others.order_by(col(Run.id).desc()).limit(1))
            description = {"uid": change.uid, "parent": parent, **change.columns}
            upsert(connection, Run, [description], ("uid",), fixed=("heartbeat",))
            columns = {}
        else:
            columns = {
                "unattributed_calls": col(Run.unattributed_calls) + change.unattributed_calls,
                "dropped_payloads": col(Run.dropped_payloads) + change.dropped_payloads,
                "unattributed_scoring": col(Run.unattributed_scoring) + change.unattributed_scoring,
                **change.columns,
            }
        if "finished" in columns and "state" in columns:
            has_failed = _has_failed_before(columns)
            # Where the stored failure stays, the columns of this end keep their stored values.
            ends = {
                name: case((has_failed, col(getattr(Run, name))), else_=columns[name]) for name in _END & columns.keys()
            }
            columns |= ends
        if change.unseen_sampling:
            columns["unseen_sampling"] = func.coalesce(col(Run.unseen_sampling), 0) + change.unseen_sampling
        if change.unattributed_errors:
            # The counts are one JSON value: the lock keeps another transaction from changing it between reading and
            # writing.
            counted = select(col(Run.unattributed_errors)).where(col(Run.uid) == change.uid).with_for_update()
            errors = Counter(connection.scalar(counted) or {}) + Counter(change.unattributed_errors)
            columns["unattributed_errors"] = dict(errors.most_common(_ERRORS))
        heartbeat = literal(change.columns.get("heartbeat", 0), BigInteger())
        columns["heartbeat"] = later(case((heartbeat < latest, heartbeat), else_=latest))
        connection.execute(update(Run).where(col(Run.uid) == change.uid).values(**columns))


def _has_failed_before(end: Mapping[str, Any]) -> ColumnElement[bool]:
    """Hold where a run's stored failure stays: it came first, or this end, another rank's, only follows from it."""
    follows = or_(*(col(Run.error).contains(mark) for mark in _FOLLOW_ON))
    is_earlier = col(Run.finished) <= literal(end["finished"], BigInteger())
    comes_first = ~follows & is_earlier
    if end.get("error") is None or any(mark in end["error"] for mark in _FOLLOW_ON):
        comes_first = ~follows | is_earlier
    return col(Run.state).in_((RunState.FAILED, RunState.INTERRUPTED)) & col(Run.error).is_not(None) & comes_first


def run_ids(connection: Connection, uids: Iterable[str], heard: int | None) -> dict[str, int]:
    """Return ids of runs by uid. A missing run is created with its uid only: another rank, or a retry, describes it.
    `heard` is as for `write_rows`.
    """
    now = server_clock(now_us()) if heard is None else heard
    wanted = set(uids)
    ids = known_runs(connection, wanted)
    for uid in sorted(wanted - ids.keys()):
        bare = {"uid": uid, "name": uid, "created": now, "heartbeat": now}
        connection.execute(insert(Run).values(**bare).on_conflict_do_nothing())
        run_id = connection.scalar(select(col(Run.id)).where(col(Run.uid) == uid))
        if run_id is not None:
            ids[uid] = run_id
    return ids


def known_runs(connection: Connection, uids: Iterable[str]) -> dict[str, int]:
    """Return ids of the runs that exist, by uid."""
    ids = ((uid, run(connection, {"of_uid": uid}, _id_of_run).scalar()) for uid in uids)
    return {uid: run_id for uid, run_id in ids if run_id is not None}


def _id_of_run() -> Select[Any]:
    """Take the parameter `of_uid`."""
    return select(col(Run.id)).where(col(Run.uid) == bindparam("of_uid"))


def take_runs(connection: Connection, run_ids: Iterable[int]) -> None:
    """Lock runs before a transaction writes to them or their rows; until it ends, no other process does. So ids of
    rows, and `changed`, rise in the order in which they become readable. Locks are always taken in the same order (runs
    by id, then shared rows), so there are no deadlocks. SQLite has only one writing transaction at a time.
    """
    if connection.dialect.name == "postgresql":
        of_runs = select(col(Run.id)).where(col(Run.id).in_(list(run_ids))).order_by(col(Run.id))
        connection.execute(of_runs.with_for_update(key_share=True)).all()


def write_heartbeat(connection: Connection, run_ids: Iterable[int], heard: int | None) -> bool:
    """Record that this process is alive, for runs that go on; return True if one does."""
    now = server_clock(now_us()) if heard is None else later(heard)
    running = update(Run).where(col(Run.id).in_(list(run_ids)), col(Run.state) == RunState.RUNNING)
    return connection.execute(running.values(heartbeat=now)).rowcount > 0


def count_failures(connection: Connection, run_id: int, *, errors: int, dropped: int, last: str | None) -> None:
    more = {"recorder_errors": col(Run.recorder_errors) + errors, "dropped": col(Run.dropped) + dropped}
    connection.execute(update(Run).where(col(Run.id) == run_id).values(**more, last_recorder_error=last))


def write_tokenizers(connection: Connection, changes: Iterable[TokenizerChange]) -> None:
    for change in sorted(changes, key=attrgetter("hash")):
        data = zstandard.compress(change.json.encode())
        connection.execute(insert(Tokenizer).values(hash=change.hash, data=data).on_conflict_do_nothing())


def write_sources(connection: Connection, changes: Iterable[SourcesChange], runs: Mapping[str, int]) -> None:
    """Write sources of runs, and their texts, which other runs may share."""
    sources = [(runs[change.run], source) for change in changes for source in change.sources]
    texts = {source.text: source.text.encode() for _, source in sources if source.text is not None}
    hashes = {written: hashlib.sha256(data).hexdigest() for written, data in texts.items()}
    for written, key in sorted(hashes.items(), key=itemgetter(1)):
        data = zstandard.compress(texts[written])
        connection.execute(insert(Text).values(hash=key, data=data).on_conflict_do_nothing())
    for run_id, source in sources:
        digest = None if source.text is None else hashes[source.text]
        row = {"run_id": run_id, "kind": source.kind, "name": source.name, "hash": digest}
        upsert(connection, RunSource, [row | {"weight": source.weight}], ("run_id", "kind", "name"))


def write_scalars(connection: Connection, changes: Iterable[ScalarsChange], runs: Mapping[str, int]) -> None:
    """Write logged figures; one that is logged twice at a step keeps its last value."""
    logged = ((runs[change.run], change.step, change.values.items()) for change in changes)
    values = {(run_id, step, name): value for run_id, step, figures in logged for name, value in figures}
    rows = [
        {"run_id": run_id, "step": step, "name": name, "value": value} for (run_id, step, name), value in values.items()
    ]
    upsert(connection, Scalar, rows, ("run_id", "step", "name"))


def later(heard: Any) -> Any:
    """Update a heartbeat, but never to an earlier time, as an entry that waited on disk would."""
    return case((col(Run.heartbeat) < heard, heard), else_=col(Run.heartbeat))
