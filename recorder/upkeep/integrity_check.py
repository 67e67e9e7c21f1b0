"""Checks whether a database is whole: its pages, and whether all that its rows refer to is there."""

import os
import shlex
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy import Engine, func, select
from sqlalchemy.exc import DatabaseError as SQLDatabaseError
from sqlmodel import col

from logs_ui.recorder.storage.address import Address, database_address, db_option, without_password
from logs_ui.recorder.storage.changes import NO_ENTRY
from logs_ui.recorder.storage.sidecars import SIDECARS
from logs_ui.recorder.storage.spool.files import spool_files
from logs_ui.recorder.storage.spool.format import NotASpoolError, frames
from logs_ui.recorder.storage.spool_folder import spool_folder
from logs_ui.recorder.storage.tables import PayloadStart, Run, Tokenizer
from logs_ui.recorder.storage.writes import row_writes
from logs_ui.recorder.upkeep.small_transactions import as_it_is
from logs_ui.recorder.upkeep.sweeps import is_unused

_RESTORE = "Restore it from a copy, or save what can be read: logs-ui db recover OLD NEW"
_RESTORE_SIDECAR = {
    "notes": "Restore the file from a copy, or move it away: then stars, tags and notes are lost.",
    "search": "Delete the file: the next search makes it again.",
}


@dataclass(frozen=True)
class Finding:
    """Describes the result of one check.

    Attributes:
        what: the name of what was checked, in a word or two.
        is_whole: whether it is undamaged.
        said: the result in one line; if it is damaged, also what to do.
    """

    what: str
    is_whole: bool
    said: str


def check(db: str | os.PathLike[str] | None = None, *, thorough: bool = False) -> Iterator[Finding]:
    """Run one check after the other: SQLite's own check of its files (PostgreSQL checks each page as it reads it),
    rows that refer to something missing, shared prompts that no rollout uses, and entries that wait on disk. Texts and
    token ids are not read. Nothing is changed, and a training may record meanwhile.

    Args:
        db: the database's path or URL; by default LOGS_UI_DB or this user's own database.
        thorough: also compares each index with its table (SQLite), which takes several times as long.

    Raises:
        DatabaseError: the database is missing, or cannot be read at all.
    """
    address = database_address(db)
    with as_it_is(address) as engine:
        checks: list[tuple[str, Callable[[], Iterator[Finding]]]] = [
            ("pages", lambda: _pages(address, engine, "integrity_check" if thorough else "quick_check")),
            ("references", lambda: _references(address, engine)),
            ("prompts", lambda: _unused_prompts(address, engine)),
            ("spool", lambda: _spool(address, engine)),
        ]
        for name, run_check in checks:
            try:
                yield from run_check()
            except SQLDatabaseError as error:  # a damaged page may stop a query: the other checks still run
                yield Finding(name, is_whole=False, said=f"cannot be read: {error.orig}. {_RESTORE}")


def _pages(address: Address, engine: Engine, pragma: str) -> Iterator[Finding]:
    for schema in ("main", *(sidecar.schema for sidecar in SIDECARS)) if isinstance(address, Path) else ():
        with engine.connect() as connection:
            problem = connection.exec_driver_sql(f"PRAGMA {schema}.{pragma}(1)").scalar_one()
        name = "pages" if schema == "main" else f"pages of {schema}"
        if problem == "ok":
            yield Finding(name, is_whole=True, said=f"whole ({pragma})")
        else:
            todo = _RESTORE if schema == "main" else _RESTORE_SIDECAR[schema]
            yield Finding(name, is_whole=False, said=f"damaged: {' '.join(problem.split())}. {todo}")


def _references(address: Address, engine: Engine) -> Iterator[Finding]:
    with engine.connect() as connection:
        broken = Counter[str]()
        if connection.dialect.name == "sqlite":  # PostgreSQL enforces foreign keys on every write
            broken.update(table for table, *_ in connection.exec_driver_sql("PRAGMA main.foreign_key_check"))
        exists = select(col(Tokenizer.hash)).where(col(Tokenizer.hash) == col(Run.tokenizer)).exists()
        lacking = connection.scalar(select(func.count()).where(col(Run.tokenizer).is_not(None), ~exists))
        broken["run"] += lacking or 0
    if tables := ", ".join(f"{count:,} of {table}" for table, count in broken.items() if count):
        copy = f"logs-ui db merge {shlex.quote(without_password(address))} --into NEW.db"
        sentence = f"{tables} refer to something that is missing. Copy what is whole into a new database: {copy}"
        yield Finding("references", is_whole=False, said=sentence)
    else:
        yield Finding("references", is_whole=True, said="all there")


def _unused_prompts(address: Address, engine: Engine) -> Iterator[Finding]:
    with engine.connect() as connection:
        unused = connection.scalar(select(func.count()).select_from(PayloadStart).where(is_unused()))
    if unused:
        sentence = (
            f"{unused:,} shared prompts are used by no rollout any more; logs-ui prune{db_option(address)} deletes them"
        )
        yield Finding("prompts", is_whole=True, said=sentence)


def _spool(address: Address, engine: Engine) -> Iterator[Finding]:
    folder = spool_folder(address)
    with engine.connect() as connection:
        positions = row_writes.positions(connection)
    for file in spool_files(folder):
        # A file of another version of logs-ui is not counted.
        with suppress(OSError, NotASpoolError), file.path.open("rb") as stream:
            if any(frame.number > positions.get(file.writer, NO_ENTRY) for frame in frames(stream)):
                waiting = f"some entries wait in {folder}, unchecked. Store them with: "
                yield Finding("spool", is_whole=True, said=f"{waiting}logs-ui db ingest{db_option(address)}")
                return
