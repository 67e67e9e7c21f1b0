"""Whether a database is whole."""

import math
import os
import shlex
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Engine, case, func, select
from sqlalchemy.exc import DatabaseError as SQLDatabaseError
from sqlmodel import col

from logs_ui.recorder.queries.payloads import with_contents, with_tokens
from logs_ui.recorder.queries.search.full_text import search_state
from logs_ui.recorder.storage.address import Address, database_address, db_option, without_password
from logs_ui.recorder.storage.dialects import total
from logs_ui.recorder.storage.payload import unpack_content, unpack_tokens
from logs_ui.recorder.storage.sidecars import SIDECARS
from logs_ui.recorder.storage.spool.spool_files import SpoolFile, spool_files, spool_folder
from logs_ui.recorder.storage.spool.spool_format import NotASpoolError, frames
from logs_ui.recorder.storage.step_sums import OF_STEP
from logs_ui.recorder.storage.tables import (
    EvaluationRow,
    Image,
    PayloadStart,
    RolloutPayload,
    Run,
    StepStatistics,
    Tokenizer,
)
from logs_ui.recorder.storage.writes import row_writes
from logs_ui.recorder.upkeep.payload_starts import is_unused
from logs_ui.recorder.upkeep.small_transactions import Progress, as_it_is, unseen
from logs_ui.recorder.upkeep.unused_images import hashes_in, images_in, unpacked
from logs_ui.recorder.vocabulary import Status, StopReason

_AT_ONCE = 200  # payloads in one read
_NAMED = 10  # ids, or steps, that a line names
_MOST_FOUND = 1_000  # damaged rollouts that are kept to be named
_FIGURES = ("rollouts", "scored", "reward_sum", "errors", "truncated")


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at.

    Attributes:
        what: in a word.
        is_whole: whether all is well with it.
        said: what was found, in one line; of what is damaged also what to do.
    """

    what: str
    is_whole: bool
    said: str


def check(
    db: str | os.PathLike[str] | None = None, *, thorough: bool = False, progress: Progress = unseen
) -> Iterator[Finding]:
    """Looks at one thing after the other: the file's pages (SQLite), whether all that is referred to is there, whether
    each rollout's text and tokens can be read, whether a step's sums are those of its rollouts, and the search index.
    Nothing is changed, and a training may record meanwhile.

    Args:
        db: where the database is; LOGS_UI_DB or this user's own by default.
        thorough: also holds each index against its table, which takes some times as long.
        progress: called with what is being done, how much of it is, and of how much.

    Raises:
        DatabaseError: the database is missing, or cannot be read at all.
    """
    address = database_address(db)
    with as_it_is(address) as engine:
        looks: list[tuple[str, Callable[[], Iterator[Finding]]]] = [
            ("pages", lambda: _pages(address, engine, thorough=thorough)),
            ("references", lambda: _references(address, engine)),
            ("rollouts", lambda: _rollouts(address, engine, progress)),
            ("prompts", lambda: _prompts(address, engine)),
            ("figures", lambda: _figures(address, engine, progress)),
            ("search", lambda: _search(engine)),
            ("spool", lambda: _spool(address, engine)),
        ]
        for what, look in looks:
            try:
                yield from look()
            except SQLDatabaseError as error:  # of pages that cannot be read, as the first of them said
                yield Finding(what, is_whole=False, said=f"cannot be read: {error.orig}. {_RESTORE}")


_RESTORE = "Restore it from a copy, or save what can be read: sqlite3 OLD .recover | sqlite3 NEW"


def _copied(address: Address) -> str:
    return f"Copy what is whole into a new one: logs-ui db merge {shlex.quote(without_password(address))} --into NEW.db"


def _pages(address: Address, engine: Engine, *, thorough: bool) -> Iterator[Finding]:
    """SQLite's own look at its file, and at those beside it. PostgreSQL looks at each page as it reads it."""
    if not isinstance(address, Path):
        return
    pragma = "integrity_check" if thorough else "quick_check"
    for schema in ("main", *(it.schema for it in SIDECARS)):
        with engine.connect() as connection:
            said = connection.exec_driver_sql(f"PRAGMA {schema}.{pragma}({_NAMED})").scalars().all()
        what = "pages" if schema == "main" else f"pages of {schema}"
        if said == ["ok"]:
            yield Finding(what, is_whole=True, said="whole" if thorough else "whole, as far as a quick look shows")
        else:
            todo = _RESTORE if schema == "main" else _BESIDE[schema]
            yield Finding(what, is_whole=False, said=f"damaged: {' '.join(said[0].split())}. {todo}")


_BESIDE = {
    "notes": "Restore the file from a copy, or move it away: stars, tags and notes are lost then.",
    "search": "Delete the file: the next search makes it anew.",
}


def _references(address: Address, engine: Engine) -> Iterator[Finding]:
    with engine.connect() as connection:
        broken: dict[str, int] = {}
        if connection.dialect.name == "sqlite":  # the other keeps them itself
            for table, *_ in connection.exec_driver_sql("PRAGMA main.foreign_key_check"):
                broken[table] = broken.get(table, 0) + 1
        there = select(col(Tokenizer.hash)).where(col(Tokenizer.hash) == col(Run.tokenizer)).exists()
        named = select(func.count()).where(col(Run.tokenizer).is_not(None), ~there)
        if lacking := connection.scalar(named):
            broken["run"] = lacking
    if broken:
        said = ", ".join(f"{count:,} of {table}" for table, count in broken.items())
        yield Finding("references", is_whole=False, said=f"{said} refer to what is not there. {_copied(address)}")
    else:
        yield Finding("references", is_whole=True, said="all there")


def _rollouts(address: Address, engine: Engine, progress: Progress) -> Iterator[Finding]:
    damaged: list[int] = []
    looked = 0
    with engine.connect() as connection:
        stored = set(connection.scalars(select(col(Image.hash))))
    unused, lost = set(stored), set[str]()
    for row_id, content, content_start, tokens, tokens_start in _payloads(engine, progress):
        looked += 1
        if not _can_be_read((content, content_start), (tokens, tokens_start)) and len(damaged) < _MOST_FOUND:
            damaged.append(row_id)
        if stored:
            json = unpacked(content, content_start)
            unused -= hashes_in(json)
            lost |= images_in(json) - stored
    if damaged:
        ids, more = ",".join(map(str, damaged[:_NAMED])), "" if len(damaged) <= _NAMED else " and others"
        todo = f"Restore them from a copy, or keep their figures alone: logs-ui prune --where id:{ids} --keep nothing"
        said = f"{len(damaged):,} of {looked:,} cannot be read: {ids}{more}. {todo}{db_option(address)}"
        yield Finding("rollouts", is_whole=False, said=said)
    else:
        yield Finding("rollouts", is_whole=True, said=f"text and tokens of all {looked:,} can be read")
    if lost:
        said = f"{len(lost):,} are not there that rollouts refer to, as {min(lost)}. Restore the database from a copy"
        yield Finding("images", is_whole=False, said=f"{said}; all else of those rollouts is there")
    if unused:
        said = f"{len(unused):,} of {len(stored):,} are of no rollout any more; {_taken_along(address)}"
        yield Finding("images", is_whole=True, said=said)


def _prompts(address: Address, engine: Engine) -> Iterator[Finding]:
    """Those that rollouts share. That one which is named is there says the reading of rollouts."""
    with engine.connect() as connection:
        unused, stored = (
            connection.scalar(select(func.count()).select_from(PayloadStart).where(*which)) or 0
            for which in ([is_unused()], [])
        )
    if unused:
        said = f"{unused:,} of {stored:,} shared ones are of no rollout any more; {_taken_along(address)}"
        yield Finding("prompts", is_whole=True, said=said)


def _taken_along(address: Address) -> str:
    return f"logs-ui prune{db_option(address)} takes them along"


def _payloads(engine: Engine, progress: Progress) -> Iterator[Sequence[Any]]:
    payload = RolloutPayload
    row_id = col(payload.row_id)
    query = with_tokens(with_contents(select(row_id))).order_by(row_id).limit(_AT_ONCE)
    with engine.connect() as connection:
        first, most = connection.execute(select(func.min(row_id), func.max(row_id))).one()
    last = (first or 1) - 1
    while True:
        with engine.connect() as connection:
            found = connection.execute(query.where(row_id > last)).all()
        if not found:
            return
        yield from found
        last = found[-1][0]
        progress("reading rollouts", min(last, most) - first + 1, most - first + 1)


def _can_be_read(content: Sequence[bytes | None], tokens: Sequence[bytes | None]) -> bool:
    try:
        unpack_content(*content)
        unpack_tokens(*tokens)
    except Exception:  # noqa: BLE001 - zstd, JSON and numpy have each their own for bytes that are not what they were
        return False
    return True


def _figures(address: Address, engine: Engine, progress: Progress) -> Iterator[Finding]:
    """Each run at one moment: its sums change in the transactions that change its rollouts."""
    with engine.connect() as connection:
        runs = connection.execute(select(col(Run.id), col(Run.uid)).order_by(col(Run.id))).all()
    odd: list[str] = []
    steps = 0
    for number, (run_id, uid) in enumerate(runs, 1):
        with engine.connect() as connection:
            stored, found = _stored(connection, run_id or 0), _summed(connection, run_id or 0)
        steps += len(found)
        odd += [f"{uid} {key[0]} {key[1]} step {key[2]}" for key in _unequal(stored, found)]
        progress("adding up steps", number, len(runs))
    if odd:
        more = "" if len(odd) <= _NAMED else " and others"
        said = f"{len(odd):,} of {steps:,} steps are not the sum of their rollouts: {'; '.join(odd[:_NAMED])}{more}"
        yield Finding("figures", is_whole=False, said=f"{said}. {_copied(address)}")
    else:
        yield Finding("figures", is_whole=True, said=f"all {steps:,} steps are the sum of their rollouts")


_Sums = dict[tuple[Any, ...], tuple[Any, ...]]


def _stored(connection: Connection, run_id: int) -> _Sums:
    sums = StepStatistics
    columns = [col(getattr(sums, name)) for name in (*OF_STEP, *_FIGURES)]
    rows = connection.execute(select(*columns).where(col(sums.run_id) == run_id))
    return {tuple(row[: len(OF_STEP)]): tuple(row[len(OF_STEP) :]) for row in rows}


def _summed(connection: Connection, run_id: int) -> _Sums:
    row = EvaluationRow
    key = [col(getattr(row, name)) for name in OF_STEP]
    figures = (
        func.count(),
        func.count(col(row.reward)),
        func.coalesce(total(col(row.reward)), 0.0),
        func.sum(case((col(row.status) == Status.ERROR, 1), else_=0)),
        func.sum(case((col(row.stop_reason) == StopReason.LENGTH, 1), else_=0)),
    )
    rows = connection.execute(select(*key, *figures).where(col(row.run_id) == run_id).group_by(*key))
    return {tuple(row[: len(OF_STEP)]): tuple(row[len(OF_STEP) :]) for row in rows}


def _unequal(stored: _Sums, found: _Sums) -> list[tuple[Any, ...]]:
    """Sums of the same numbers in another order differ in their last digits."""

    def same(key: tuple[Any, ...]) -> bool:
        ours, theirs = stored.get(key), found.get(key)
        if ours is None or theirs is None:
            return False
        return all(
            a == b or math.isclose(a or 0, b or 0, rel_tol=1e-9, abs_tol=1e-9)
            for a, b in zip(ours, theirs, strict=True)
        )

    return sorted(key for key in {*stored, *found} if not same(key))


def _search(engine: Engine) -> Iterator[Finding]:
    with engine.connect() as connection:
        runs = connection.execute(select(col(Run.id))).scalars().all()
        behind = sum(search_state(connection, run_id or 0).behind for run_id in runs)
    said = (
        f"{behind:,} of {len(runs):,} runs are not indexed to the end; the next search does it"
        if behind
        else "up to date"
    )
    yield Finding("search", is_whole=True, said=said)


def _spool(address: Address, engine: Engine) -> Iterator[Finding]:
    folder = spool_folder(address)
    with engine.connect() as connection:
        taken = row_writes.positions(connection)
    if any(_holds_more(file, taken.get(file.writer, 0)) for file in spool_files(folder)):
        todo = f"logs-ui db ingest{db_option(address)}"
        yield Finding("spool", is_whole=True, said=f"some waits in {folder}, and is not looked at. Take it in: {todo}")


def _holds_more(file: SpoolFile, taken: int) -> bool:
    """Than is in the database; not known of what another version of logs-ui wrote."""
    with suppress(OSError, NotASpoolError), file.path.open("rb") as opened:
        return any(frame.number > taken for frame in frames(opened))
    return False
