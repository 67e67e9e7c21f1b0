"""Every INSERT and UPDATE, and what is to be written as plain values. Runs in the writer's thread, inside its
transaction.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import zstandard
from sqlalchemy import Connection, Engine, case, func, select, tuple_, update
from sqlalchemy.dialects.sqlite import insert
from sqlmodel import SQLModel, col

from logs_ui.recorder.models import (
    EvaluationRow,
    RolloutPayload,
    Run,
    RunState,
    Scalar,
    Status,
    StepStatistics,
    StopReason,
    Tokenizer,
)

_VARIABLES = 500  # rows named in one statement


@dataclass(frozen=True)
class RunChange:
    """Columns of a run, made or changed. The first one of a run needs all that have no default.

    Attributes:
        unattributed_calls: added to those that the run has.
        resumes: output folder of a training that goes on; the newest other run that wrote there becomes the parent.
    """

    uid: str
    columns: Mapping[str, Any]
    unattributed_calls: int = 0
    resumes: str | None = None


@dataclass(frozen=True)
class RowChange:
    """Columns of a row, made or changed; those that are not named stay as they are.

    Attributes:
        identity: the columns without default, the same in each change of the row, so that any of them can come first.
        content, tokens: payload; None leaves what is there.
    """

    run: str
    uid: str
    identity: Mapping[str, Any]
    columns: Mapping[str, Any]
    content: bytes | None = None
    tokens: bytes | None = None

    def then(self, later: "RowChange") -> "RowChange":
        """Both as one."""
        return replace(
            later,
            columns={**self.columns, **later.columns},
            content=later.content or self.content,
            tokens=later.tokens or self.tokens,
        )


@dataclass(frozen=True)
class ScalarsChange:
    """Figures that the trainer logged at a step."""

    run: str
    step: int
    values: Mapping[str, float | None]


@dataclass(frozen=True)
class TokenizerChange:
    """A tokenizer's JSON, by its hash."""

    hash: str
    json: str


Change = RunChange | RowChange | ScalarsChange | TokenizerChange


@dataclass(frozen=True)
class Batch:
    """Changes for one transaction: at most one for each row."""

    runs: list[RunChange] = field(default_factory=list)
    rows: list[RowChange] = field(default_factory=list)
    scalars: list[ScalarsChange] = field(default_factory=list)
    tokenizers: list[TokenizerChange] = field(default_factory=list)

    @property
    def uids(self) -> set[str]:
        """Of the runs that it is about."""
        return {*(run.uid for run in self.runs), *(row.run for row in self.rows), *(s.run for s in self.scalars)}

    @classmethod
    def merged(cls, changes: Iterable[Change]) -> "Batch":
        """Several changes of one row become one."""
        batch = cls()
        rows: dict[tuple[str, str], RowChange] = {}
        for change in changes:
            match change:
                case RowChange():
                    key = (change.run, change.uid)
                    rows[key] = rows[key].then(change) if key in rows else change
                case RunChange():
                    batch.runs.append(change)
                case ScalarsChange():
                    batch.scalars.append(change)
                case TokenizerChange():
                    batch.tokenizers.append(change)
        batch.rows.extend(rows.values())
        return batch

    def split(self) -> Iterable["Batch"]:
        """The same in pieces that fail on their own, in an order that keeps references whole."""
        yield from (Batch(runs=[change]) for change in self.runs)
        yield from (Batch(rows=[change]) for change in self.rows)
        yield from (Batch(scalars=[change]) for change in self.scalars)
        yield from (Batch(tokenizers=[change]) for change in self.tokenizers)

    def without_payload(self) -> "Batch":
        """What is left to try for a row that the database refuses."""
        kept = [
            replace(row, content=None, tokens=None, columns={**row.columns, "preview": None, "error": "not storable"})
            for row in self.rows
        ]
        return replace(self, rows=kept)


def write_runs(connection: Connection, changes: Iterable[RunChange]) -> None:
    """A change that names `created` describes the run, the others change what is there."""
    for change in changes:
        if "created" in change.columns:
            parent = None if change.resumes is None else _last_run_in(connection, change.resumes, change.uid)
            _upsert(connection, Run, [{"uid": change.uid, "parent": parent, **change.columns}], ["uid"])
        else:
            lost = col(Run.unattributed_calls) + change.unattributed_calls
            connection.execute(
                update(Run).where(col(Run.uid) == change.uid).values(unattributed_calls=lost, **change.columns)
            )


def run_ids(connection: Connection, uids: Iterable[str], now: int) -> dict[str, int]:
    """Ids of runs. One that is not there yet is made with what is known: another rank, or a later try, describes it."""
    ids = {}
    for uid in uids:
        bare = {"uid": uid, "name": uid, "created": now, "heartbeat": now}
        connection.execute(insert(Run).values(**bare).on_conflict_do_nothing())
        found = connection.scalar(select(col(Run.id)).where(col(Run.uid) == uid))
        if found is not None:
            ids[uid] = found
    return ids


def write_rows(connection: Connection, changes: Iterable[RowChange], runs: Mapping[str, int], now: int) -> None:
    """Upserts rows and payloads, and the statistics of their steps, so that none is ever seen without the other."""
    by_run: dict[str, list[RowChange]] = defaultdict(list)
    for change in changes:
        by_run[change.run].append(change)
    for uid, rows in by_run.items():
        run_id = runs[uid]
        changed = connection.scalar(
            update(Run)
            .where(col(Run.id) == run_id)
            .values(changed=col(Run.changed) + 1, heartbeat=now)
            .returning(col(Run.changed))
        )
        _upsert_rows(connection, rows, run_id, changed)
        _upsert_payloads(connection, rows, run_id)
        _upsert_statistics(connection, rows, run_id)


def write_tokenizers(connection: Connection, changes: Iterable[TokenizerChange]) -> None:
    for change in changes:
        data = zstandard.compress(change.json.encode())
        connection.execute(insert(Tokenizer).values(hash=change.hash, data=data).on_conflict_do_nothing())


def write_scalars(connection: Connection, changes: Iterable[ScalarsChange], runs: Mapping[str, int]) -> None:
    """A figure that is logged twice at one step keeps its last value."""
    values = {
        (runs[change.run], change.step, name): value for change in changes for name, value in change.values.items()
    }
    rows = [{"run_id": run, "step": step, "name": name, "value": value} for (run, step, name), value in values.items()]
    _upsert(connection, Scalar, rows, ["run_id", "step", "name"])


def write_heartbeat(connection: Connection, run_ids: Iterable[int], now: int) -> bool:
    """Says that this process is alive, for the runs that have not ended; returns whether there is one."""
    running = update(Run).where(col(Run.id).in_(list(run_ids)), col(Run.state) == RunState.RUNNING)
    return connection.execute(running.values(heartbeat=now)).rowcount > 0


def count_failures(connection: Connection, run_id: int, *, errors: int, dropped: int, last: str | None) -> None:
    connection.execute(
        update(Run)
        .where(col(Run.id) == run_id)
        .values(
            recorder_errors=col(Run.recorder_errors) + errors,
            dropped=col(Run.dropped) + dropped,
            last_recorder_error=last,
        )
    )


def checkpoint(engine: Engine) -> None:
    """Moves what it can of the write-ahead log into the database, waiting for nobody."""
    connection = engine.raw_connection()  # outside of any transaction: a checkpoint cannot be part of one
    try:
        connection.cursor().execute("PRAGMA wal_checkpoint(PASSIVE)")
    finally:
        connection.close()


def _last_run_in(connection: Connection, output_dir: str, but: str) -> str | None:
    others = select(col(Run.uid)).where(col(Run.output_dir) == output_dir, col(Run.uid) != but)
    return connection.scalar(others.order_by(col(Run.id).desc()).limit(1))


def _upsert_rows(connection: Connection, changes: list[RowChange], run_id: int, changed: int | None) -> None:
    """Rows that name the same columns go in together."""
    by_columns: dict[tuple[str, ...], list[dict[str, Any]]] = defaultdict(list)
    for change in changes:
        values = {"run_id": run_id, "uid": change.uid, "changed": changed, **change.identity, **change.columns}
        by_columns[tuple(sorted(values))].append(values)
    for rows in by_columns.values():
        _upsert(connection, EvaluationRow, rows, ["run_id", "uid"])


def _upsert_payloads(connection: Connection, changes: list[RowChange], run_id: int) -> None:
    heavy = [change for change in changes if change.content is not None or change.tokens is not None]
    ids: dict[str, int] = {}
    for start in range(0, len(heavy), _VARIABLES):
        uids = [change.uid for change in heavy[start : start + _VARIABLES]]
        query = select(col(EvaluationRow.uid), col(EvaluationRow.id)).where(
            tuple_(col(EvaluationRow.run_id), col(EvaluationRow.uid)).in_([(run_id, uid) for uid in uids])
        )
        ids.update({uid: row_id for uid, row_id in connection.execute(query) if row_id is not None})
    for blob in ("content", "tokens"):
        rows = [
            {"row_id": ids[change.uid], blob: getattr(change, blob)}
            for change in heavy
            if getattr(change, blob) is not None
        ]
        _upsert(connection, RolloutPayload, rows, ["row_id"])


def _upsert_statistics(connection: Connection, changes: list[RowChange], run_id: int) -> None:
    """Of the changed rows' steps, recomputed from all of their rows: exact whatever came in which order."""
    row = EvaluationRow
    by_series: dict[tuple[str, str], set[int]] = defaultdict(set)
    for change in changes:
        by_series[change.identity["mode"], change.identity["eval_name"]].add(change.identity["step"])
    key = ("run_id", "mode", "eval_name", "step")
    columns = [getattr(row, name) for name in key]
    sums = {
        "rollouts": func.count(),
        "scored": func.count(col(row.reward)),
        "reward_sum": func.coalesce(func.sum(col(row.reward)), 0.0),
        "errors": func.sum(case((col(row.status) == Status.ERROR, 1), else_=0)),
        "truncated": func.sum(case((col(row.stop_reason) == StopReason.LENGTH, 1), else_=0)),
    }
    for (mode, eval_name), steps in by_series.items():
        of_series = (col(row.run_id) == run_id, col(row.mode) == mode, col(row.eval_name) == eval_name)
        counted = select(*columns, *sums.values()).where(*of_series, col(row.step).in_(steps)).group_by(*columns)
        statement = insert(StepStatistics).from_select([*key, *sums], counted)
        replaced = {name: statement.excluded[name] for name in sums}
        connection.execute(statement.on_conflict_do_update(index_elements=key, set_=replaced))


def _upsert(connection: Connection, table: type[SQLModel], rows: list[dict[str, Any]], key: list[str]) -> None:
    """Rows must all name the same columns; those outside the key replace what is there."""
    if not rows:
        return
    statement = insert(table)
    others = {name: statement.excluded[name] for name in rows[0] if name not in key}
    connection.execute(statement.on_conflict_do_update(index_elements=key, set_=others), rows)
