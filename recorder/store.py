"""Every INSERT and UPDATE, and what is to be written as plain values. Runs in the writer's thread, inside its
transaction.
"""

import hashlib
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from itertools import groupby
from operator import attrgetter, itemgetter
from typing import Any

import zstandard
from sqlalchemy import (
    BigInteger,
    Connection,
    Engine,
    Select,
    Update,
    and_,
    bindparam,
    case,
    false,
    func,
    or_,
    outerjoin,
    select,
    text,
    update,
)
from sqlalchemy.sql.dml import ReturningUpdate
from sqlmodel import col

from logs_ui.recorder import step_sums
from logs_ui.recorder.diagnosis.facts import Facts, text_facts, token_facts
from logs_ui.recorder.dialects import Insert, insert, server_clock
from logs_ui.recorder.guard import guard
from logs_ui.recorder.images import StoredImage
from logs_ui.recorder.models import (
    EvaluationRow,
    Image,
    RolloutPayload,
    RowTag,
    Run,
    RunSource,
    RunState,
    Scalar,
    StepDetails,
    StepStatistics,
    Text,
    Tokenizer,
    WriterPosition,
)
from logs_ui.recorder.payload import Tokens, Unpacked, pack, unpacked_tokens
from logs_ui.recorder.prepared import run, run_many, upsert
from logs_ui.recorder.sources import Source

_CHANGE_BYTES = 1_400  # of a row's columns; measured
_DETAILS_EVERY = 1_000_000  # µs
_DETAILS_PAUSE = 100  # µs more for each rollout of the step, some twenty times as long as its share in making them
_OF_STEP = ("run_id", *step_sums.OF_STEP)


@dataclass(frozen=True)
class RunChange:
    """Columns of a run, made or changed. The first one of a run needs all that have no default.

    Attributes:
        unattributed_calls, dropped_payloads: added to those that the run has.
        resumes: output folder of a training that goes on; the newest other run that wrote there becomes the parent.
    """

    uid: str
    columns: Mapping[str, Any]
    unattributed_calls: int = 0
    resumes: str | None = None
    dropped_payloads: int = 0


@dataclass(slots=True)  # not frozen: that costs four times as much
class RowChange:
    """Columns of a row, made or changed; those that are not named stay as they are. Nobody changes it once it is made.

    Attributes:
        identity: the columns without default, the same in each change of the row, so that any of them can come first.
        content, tokens: payload, `Unpacked` or arrays until its batch is packed; None leaves what is there.
        images: those that the content refers to, and that may not be stored yet.
        tags: those that it has now, beside those that are there.
        answers: what the model said, as `facts.text_facts` takes it, until its batch is packed; None where that is
            measured already, or not known.
    """

    run: str
    uid: str
    identity: Mapping[str, Any]
    columns: Mapping[str, Any]
    content: bytes | None = None
    tokens: bytes | Tokens | None = None
    images: tuple[StoredImage, ...] = ()
    tags: tuple[str, ...] = ()
    answers: Sequence[str] | None = None

    def then(self, later: "RowChange") -> "RowChange":
        """Both as one."""
        return replace(
            later,
            columns={**self.columns, **later.columns},
            content=later.content or self.content,
            tokens=later.tokens or self.tokens,
            images=self.images + later.images,
            tags=later.tags or self.tags,
            answers=self.answers if later.answers is None else later.answers,
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


@dataclass(frozen=True)
class SourcesChange:
    """What a run is made of beside its arguments; one of the same kind and name takes the place of what is there."""

    run: str
    sources: tuple[Source, ...]


Change = RunChange | RowChange | ScalarsChange | TokenizerChange | SourcesChange


def kept_bytes(change: Change) -> int:
    """About how many a change keeps alive. Images have bounds of their own."""
    match change:
        case RowChange():
            packed = (part for part in (change.content, change.tokens) if isinstance(part, bytes))
            return _CHANGE_BYTES + sum(map(len, packed))
        case TokenizerChange():
            return len(change.json)
        case SourcesChange():
            return _CHANGE_BYTES + sum(len(source.text or "") for source in change.sources)
        case _:
            return _CHANGE_BYTES


@dataclass(frozen=True)
class Batch:
    """Changes for one transaction: at most one for each row."""

    runs: list[RunChange] = field(default_factory=list)
    rows: list[RowChange] = field(default_factory=list)
    scalars: list[ScalarsChange] = field(default_factory=list)
    tokenizers: list[TokenizerChange] = field(default_factory=list)
    sources: list[SourcesChange] = field(default_factory=list)

    @property
    def uids(self) -> set[str]:
        """Of the runs that it is about."""
        named: list[RowChange | ScalarsChange | SourcesChange] = [*self.rows, *self.scalars, *self.sources]
        return {*(run.uid for run in self.runs), *(change.run for change in named)}

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
                case SourcesChange():
                    batch.sources.append(change)
        batch.rows.extend(rows.values())
        return batch

    @classmethod
    def joined(cls, batches: Iterable["Batch"]) -> "Batch":
        """Several, in their order, as one."""
        return cls.merged(change for one in batches for kind in fields(one) for change in getattr(one, kind.name))

    @property
    def size(self) -> int:
        """About how many bytes it keeps alive."""
        changes: list[Change] = [*self.runs, *self.rows, *self.scalars, *self.tokenizers, *self.sources]
        return sum(map(kept_bytes, changes))

    def packed(self) -> "Batch":
        """With all texts and tokens measured, and all payloads compressed, together."""
        measured = _measured(self.rows)
        tokens = [unpacked_tokens(row.tokens) if isinstance(row.tokens, Tokens) else row.tokens for row in self.rows]
        whole = [payload for row, own in zip(self.rows, tokens, strict=True) for payload in (row.content, own)]
        compressed = iter(pack([payload for payload in whole if isinstance(payload, Unpacked)]))
        small = [next(compressed) if isinstance(payload, Unpacked) else payload for payload in whole]
        rows = [
            RowChange(row.run, row.uid, row.identity, {**row.columns, **facts}, content, own, row.images, row.tags)
            for row, facts, content, own in zip(self.rows, measured, small[::2], small[1::2], strict=True)
        ]
        return replace(self, rows=rows)

    def split(self) -> Iterable["Batch"]:
        """The same in pieces that fail on their own, in an order that keeps references whole."""
        yield from (Batch(runs=[change]) for change in self.runs)
        yield from (Batch(rows=[change]) for change in self.rows)
        yield from (Batch(scalars=[change]) for change in self.scalars)
        yield from (Batch(tokenizers=[change]) for change in self.tokenizers)
        yield from (Batch(sources=[change]) for change in self.sources)

    def without_payload(self) -> "Batch":
        """What is left to try for a row that the database refuses."""
        kept = [
            replace(
                row,
                content=None,
                tokens=None,
                images=(),
                tags=(),
                columns={**row.columns, "preview": None, "error": "not storable"},
            )
            for row in self.rows
        ]
        return replace(self, rows=kept)


def advance(connection: Connection, writer: str, number: int) -> bool:
    """Says that the entry of that number is in, with those before it; returns whether it was not in before. Another
    transaction that would say so waits for the end of this one.
    """
    return run(connection, {"writer": writer, "number": number}, _advance).rowcount > 0


def _measured(rows: Sequence[RowChange]) -> list[Facts]:
    """Columns of each that are found of all together; none of them where that fails."""
    found: list[Facts] = [{} for _ in rows]
    said = [(facts, row.answers) for facts, row in zip(found, rows, strict=True) if row.answers is not None]
    known = [(facts, row.tokens) for facts, row in zip(found, rows, strict=True) if isinstance(row.tokens, Tokens)]
    with guard("measuring texts"):
        for (facts, _), of_texts in zip(said, text_facts([answers for _, answers in said]), strict=True):
            facts.update(of_texts)
    with guard("measuring tokens"):
        for (facts, _), of_tokens in zip(known, token_facts([tokens for _, tokens in known]), strict=True):
            facts.update(of_tokens)
    return found


def positions(connection: Connection) -> dict[str, int]:
    """The number of the last entry that is in, by writer."""
    found = select(col(WriterPosition.writer), col(WriterPosition.number))
    return {row.writer: row.number for row in connection.execute(found)}


def write_runs(connection: Connection, changes: Iterable[RunChange]) -> None:
    """A change that names `created` describes the run, the others change what is there."""
    for change in changes:
        if "created" in change.columns:
            parent = None if change.resumes is None else _last_run_in(connection, change.resumes, change.uid)
            described = {"uid": change.uid, "parent": parent, **change.columns}
            upsert(connection, Run, [described], ("uid",), kept=("heartbeat",))
            of_run = update(Run).where(col(Run.uid) == change.uid)
            connection.execute(of_run.values(heartbeat=_later(change.columns.get("heartbeat", 0))))
        else:
            lost = {
                "unattributed_calls": col(Run.unattributed_calls) + change.unattributed_calls,
                "dropped_payloads": col(Run.dropped_payloads) + change.dropped_payloads,
            }
            connection.execute(update(Run).where(col(Run.uid) == change.uid).values(**lost, **change.columns))


def run_ids(connection: Connection, uids: Iterable[str], heard: int | None) -> dict[str, int]:
    """Ids of runs. One that is not there yet is made with what is known: another rank, or a later try, describes it.
    `heard` is as for `write_rows`.
    """
    now = server_clock(_now()) if heard is None else heard
    wanted = set(uids)
    ids = known_runs(connection, wanted)
    for uid in sorted(wanted - ids.keys()):
        bare = {"uid": uid, "name": uid, "created": now, "heartbeat": now}
        connection.execute(insert(Run).values(**bare).on_conflict_do_nothing())
        found = connection.scalar(select(col(Run.id)).where(col(Run.uid) == uid))
        if found is not None:
            ids[uid] = found
    return ids


def known_runs(connection: Connection, uids: Iterable[str]) -> dict[str, int]:
    """Ids of those that are there."""
    found = connection.execute(select(col(Run.uid), col(Run.id)).where(col(Run.uid).in_(list(uids))))
    return {uid: run_id for uid, run_id in found if run_id is not None}


def take_runs(connection: Connection, run_ids: Iterable[int]) -> None:
    """Before a transaction writes to runs, or to what is theirs: until it ends, no other process's does. Then the ids
    of a run's rows, and their `changed`, rise in the order in which they can be read; and as all take their runs, and
    after them what runs share, in one order, none waits for another that waits for it. On SQLite only one transaction
    writes anyway.
    """
    if connection.dialect.name == "postgresql":
        of_runs = select(col(Run.id)).where(col(Run.id).in_(list(run_ids))).order_by(col(Run.id))
        connection.execute(of_runs.with_for_update(key_share=True)).all()


def write_rows(
    connection: Connection, changes: Iterable[RowChange], runs: Mapping[str, int], heard: int | None
) -> None:
    """Upserts rows and payloads, and the statistics of their steps, so that none is ever seen without the other.

    Args:
        connection: in whose transaction.
        changes: of rows.
        runs: ids of theirs, by uid.
        heard: when who made them was last alive, in µs, by its own clock; None for now, by the database's.
    """
    by_run: dict[str, list[RowChange]] = defaultdict(list)
    for change in changes:
        by_run[change.run].append(change)
    for uid, rows in by_run.items():
        run_id = runs[uid]
        moment = {"of_run": run_id, "now": _now() if heard is None else heard}
        changed = run(connection, moment, _run_update, heard is None).scalar_one()
        _upsert_rows(connection, rows, run_id, changed)
        _upsert_payloads(connection, rows, run_id)
        _insert_tags(connection, rows, run_id)
        _upsert_statistics(connection, rows, run_id)
    _insert_images(connection, [image for rows in by_run.values() for change in rows for image in change.images])


def write_details(connection: Connection, batch: Batch, runs: Mapping[str, int], now: int) -> None:
    """Of the steps whose rows have changed: at most once a second while they do, of large steps less often, and at last
    when their run ends. Those of the future, as a clock that was set back leaves them, are made anew.
    """
    ended = {change.uid for change in batch.runs if change.columns.get("finished") is not None}
    for uid, run_id in runs.items():
        every, pause = (0, 0) if uid in ended else (_DETAILS_EVERY, _DETAILS_PAUSE)
        asked = {"of_run": run_id, "now": now, "every": every, "pause": pause}
        for step in run(connection, asked, _stale_steps).all():
            named = _named(run_id, step)
            run(connection, {**named, "now": now}, _details_upsert)
            run(connection, named, _details_are_fresh)


def write_tokenizers(connection: Connection, changes: Iterable[TokenizerChange]) -> None:
    for change in sorted(changes, key=attrgetter("hash")):
        data = zstandard.compress(change.json.encode())
        connection.execute(insert(Tokenizer).values(hash=change.hash, data=data).on_conflict_do_nothing())


def write_sources(connection: Connection, changes: Iterable[SourcesChange], runs: Mapping[str, int]) -> None:
    """A text that another run has is there already."""
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
    """A figure that is logged twice at one step keeps its last value."""
    values = {
        (runs[change.run], change.step, name): value for change in changes for name, value in change.values.items()
    }
    rows = [{"run_id": run, "step": step, "name": name, "value": value} for (run, step, name), value in values.items()]
    upsert(connection, Scalar, rows, ("run_id", "step", "name"))


def write_heartbeat(connection: Connection, run_ids: Iterable[int], heard: int | None) -> bool:
    """Says that this process is alive, for the runs that have not ended; returns whether there is one. `heard` is as
    for `write_rows`.
    """
    now = server_clock(_now()) if heard is None else _later(heard)
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


def _advance() -> Insert:
    """Takes `writer` and `number`."""
    position = WriterPosition
    statement = insert(position).inline().values(writer=bindparam("writer"), number=bindparam("number"))
    further = statement.excluded.number
    return statement.on_conflict_do_update(
        index_elements=["writer"], set_={"number": further}, where=col(position.number) < further
    )


def _last_run_in(connection: Connection, output_dir: str, but: str) -> str | None:
    others = select(col(Run.uid)).where(col(Run.output_dir) == output_dir, col(Run.uid) != but)
    return connection.scalar(others.order_by(col(Run.id).desc()).limit(1))


def _run_update(is_now: bool) -> ReturningUpdate[Any]:  # noqa: FBT001 - `run` passes on by place
    """Takes `of_run` and `now`; gives the `changed` that is this batch's."""
    of_run = update(Run).where(col(Run.id) == bindparam("of_run"))
    now = bindparam("now", type_=BigInteger())
    heard = server_clock(now) if is_now else _later(now)
    return of_run.values(changed=col(Run.changed) + 1, heartbeat=heard).returning(col(Run.changed))


def _later(heard: Any) -> Any:
    """A run's heartbeat: what waited on disk does not set it back."""
    return case((col(Run.heartbeat) < heard, heard), else_=col(Run.heartbeat))


def _now() -> int:
    return time.time_ns() // 1000


def _upsert_rows(connection: Connection, changes: list[RowChange], run_id: int, changed: int) -> None:
    """In the order in which they began, and of those that began together in that of the batch, which their ids then
    have, too; neighbours that name the same columns go in together. What identifies a row stays as its first change had
    it, so that only the indexes of what changes are written.
    """

    def names(change: RowChange) -> tuple[str, ...]:
        return *change.identity, "", *change.columns

    began = sorted(changes, key=lambda change: change.identity["created"])
    for rows in (list(alike) for _, alike in groupby(began, names)):
        values = [{"run_id": run_id, "uid": r.uid, "changed": changed, **r.identity, **r.columns} for r in rows]
        kept = tuple(name for name in rows[0].identity if name not in rows[0].columns)
        upsert(connection, EvaluationRow, values, ("run_id", "uid"), kept)


def _upsert_payloads(connection: Connection, changes: list[RowChange], run_id: int) -> None:
    """Of rows that are there."""
    heavy = [
        {"run": run_id, "uid": change.uid, "content": change.content, "tokens": change.tokens}
        for change in changes
        if change.content is not None or change.tokens is not None
    ]
    if heavy:
        run_many(connection, heavy, _payload_upsert)


def _payload_upsert() -> Insert:
    """Takes `run`, `uid`, `content` and `tokens`; None leaves what is there."""
    row, payload = EvaluationRow, RolloutPayload
    of_row = select(col(row.id)).where(col(row.run_id) == bindparam("run"), col(row.uid) == bindparam("uid"))
    statement = (
        insert(payload)
        .inline()
        .values(row_id=of_row.scalar_subquery(), content=bindparam("content"), tokens=bindparam("tokens"))
    )
    kept = {name: func.coalesce(statement.excluded[name], getattr(payload, name)) for name in ("content", "tokens")}
    return statement.on_conflict_do_update(index_elements=["row_id"], set_=kept)


def _insert_tags(connection: Connection, changes: list[RowChange], run_id: int) -> None:
    """Of rows that are there; a row has each tag once."""
    found = [{"run": run_id, "uid": change.uid, "tag": tag} for change in changes for tag in change.tags]
    if found:
        run_many(connection, found, _tag_insert)


def _tag_insert() -> Insert:
    """Takes `run`, `uid` and `tag`."""
    row = EvaluationRow
    of_row = select(col(row.id)).where(col(row.run_id) == bindparam("run"), col(row.uid) == bindparam("uid"))
    values = {"run_id": bindparam("run"), "tag": bindparam("tag"), "row_id": of_row.scalar_subquery()}
    return insert(RowTag).inline().values(**values).on_conflict_do_nothing()


def _insert_images(connection: Connection, images: list[StoredImage]) -> None:
    """One that is there already is the same."""
    for image in sorted(images, key=attrgetter("hash")):
        connection.execute(insert(Image).values(**asdict(image)).on_conflict_do_nothing())


def _upsert_statistics(connection: Connection, changes: list[RowChange], run_id: int) -> None:
    """Of the changed rows' steps, recomputed from all of their rows: exact whatever came in which order."""
    for step in {tuple(change.identity[name] for name in step_sums.OF_STEP) for change in changes}:
        run(connection, _named(run_id, step), _statistics_upsert)


def _named(run_id: int, step: Sequence[Any]) -> dict[str, Any]:
    """The parameters that `step_sums` takes."""
    return {"of_run": run_id, **{f"of_{name}": value for name, value in zip(step_sums.OF_STEP, step, strict=True)}}


def _statistics_upsert() -> Insert:
    selected = step_sums.sums()
    statement = insert(StepStatistics).from_select([column.name for column in selected.selected_columns], selected)
    replaced = {column.name: column for column in statement.excluded if column.name not in _OF_STEP}
    return statement.on_conflict_do_update(index_elements=_OF_STEP, set_=replaced)


def _stale_steps() -> Select[Any]:
    """Takes `of_run`, `now`, `every` and `pause`: the steps whose details are to be made, and were not made since
    `every` ago, and a pause for each of their rollouts.
    """
    sums, made = StepStatistics, StepDetails
    now: Any = bindparam("now")
    every: Any = bindparam("every")
    last = func.coalesce(col(made.made), 0)
    key = [col(getattr(sums, name)) for name in step_sums.OF_STEP]
    same = [col(getattr(made, name)) == col(getattr(sums, name)) for name in _OF_STEP]
    return (
        select(*key)
        .select_from(outerjoin(sums, made, and_(*same)))
        .where(col(sums.run_id) == bindparam("of_run"), text("stale"))
        .where(or_(last <= now - every - col(sums.rollouts) * bindparam("pause"), last > now + every))
    )


def _details_upsert() -> Insert:
    """Takes what `step_sums.details` does, and `now`."""
    selected = step_sums.details().add_columns(bindparam("now").label("made"))
    names = [column.name for column in selected.selected_columns]
    statement = insert(StepDetails).from_select(names, selected)
    replaced = {name: statement.excluded[name] for name in names if name not in _OF_STEP}
    return statement.on_conflict_do_update(index_elements=_OF_STEP, set_=replaced)


def _details_are_fresh() -> Update:
    """Takes what `step_sums.details` does."""
    sums = StepStatistics
    key = [col(getattr(sums, name)) == bindparam(f"of_{name}") for name in step_sums.OF_STEP]
    return update(sums).where(col(sums.run_id) == bindparam("of_run"), *key).values(stale=false())
