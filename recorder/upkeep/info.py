"""Reports where a database is and what is in it."""

import os
import sqlite3
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sqlalchemy import ColumnElement, CompoundSelect, Connection, func, select, union_all
from sqlmodel import col

from logs_ui.recorder.delivery.committer import take_in_before_reading
from logs_ui.recorder.storage import schema
from logs_ui.recorder.storage.address import Address, database_address, masked_address
from logs_ui.recorder.storage.notes_tables import Note, PersonalTag, Star
from logs_ui.recorder.storage.sqlite.checkpoints import log_of
from logs_ui.recorder.storage.tables import Image, PayloadStart, RolloutPayload, Run, StepStatistics
from logs_ui.recorder.upkeep.small_transactions import as_it_is, under_way


@dataclass(frozen=True)
class Info:
    """Describes the contents of a database at a moment.

    Attributes:
        where: its path, or its URL without the password.
        engine: the database program and its version.
        schema: the number of its schema; `known` is the one that this logs-ui works with.
        bytes: its size, including SQLite's write-ahead log; `free` of them are unused pages (SQLite; 0 on PostgreSQL).
        runs, rollouts, pruned, images, prompts: how many; prompts are those that several rollouts share.
        under_way: uids of the runs that are being recorded now.
    """

    where: str
    engine: str
    schema: int
    known: int
    bytes: int
    free: int
    runs: int
    rollouts: int
    pruned: int
    images: int
    prompts: int
    under_way: list[str]


def look_at(db: str | os.PathLike[str] | None = None) -> Info:
    """Count what a database holds, in well under a second.

    Args:
        db: the database's path or URL; by default LOGS_UI_DB or this user's own database.

    Raises:
        DatabaseError: the database is missing, or cannot be read.
    """
    address = database_address(db)
    take_in_before_reading(address)
    with as_it_is(address) as engine, engine.connect() as connection:

        def count(expression: object) -> int:
            return int(connection.scalar(select(expression)) or 0)  # type: ignore[call-overload]

        program = "SQLite" if isinstance(address, Path) else "PostgreSQL"
        version = sqlite3.sqlite_version_info if isinstance(address, Path) else connection.dialect.server_version_info
        size, free = size_and_free(address, connection)
        return Info(
            where=masked_address(address),
            engine=f"{program} {'.'.join(map(str, version or ()))}",
            schema=schema.stamp_of(connection).version,
            known=schema.newest_schema(),
            bytes=size,
            free=free,
            runs=count(func.count(col(Run.id))),
            rollouts=count(func.sum(col(StepStatistics.rollouts))),
            pruned=count(func.sum(col(Run.pruned))),
            images=count(func.count(col(Image.hash))),
            prompts=count(func.count(col(PayloadStart.id))),
            under_way=under_way(connection),
        )


def payload_bytes() -> ColumnElement[int]:
    """Return the stored size of a rollout's text and tokens, as SQL over RolloutPayload."""
    sizes = [func.length(col(column)) for column in (RolloutPayload.content, RolloutPayload.tokens)]
    return func.coalesce(sizes[0], 0) + func.coalesce(sizes[1], 0)


def marked_rows(run_uid: str) -> CompoundSelect[str]:
    """Select the uids of a run's rollouts that people starred, tagged or noted; "" is the run itself."""
    tables: tuple[Any, ...] = (Star, PersonalTag, Note)
    return union_all(*(select(col(table.row)).where(col(table.run) == run_uid) for table in tables))


def size_and_free(address: Address, connection: Connection) -> tuple[int, int]:
    """Return the bytes of a database, and how many of them are unused."""
    if not isinstance(address, Path):
        return connection.exec_driver_sql("SELECT pg_database_size(current_database())").scalar_one(), 0
    page, free = (
        connection.exec_driver_sql(f"PRAGMA {pragma}").scalar_one() for pragma in ("page_size", "freelist_count")
    )
    # stat() only: to open the file and close it again would drop the locks that this process holds on it.
    return sum(file.stat().st_size for file in (address, log_of(address)) if file.exists()), page * free
