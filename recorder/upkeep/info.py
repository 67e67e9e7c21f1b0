"""A look at a database: where it is, what is in it, and what takes its room."""

import os
import shutil
import sqlite3
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Engine, func, select, text
from sqlalchemy.exc import OperationalError
from sqlmodel import col

from logs_ui.recorder.storage import schema
from logs_ui.recorder.storage.address import database_address, shown
from logs_ui.recorder.storage.notes_tables import NotesTable
from logs_ui.recorder.storage.sidecars import NOTES, SEARCH
from logs_ui.recorder.storage.spool.spool_ingest import take_in_before_reading
from logs_ui.recorder.storage.tables import (
    EvaluationRow,
    Image,
    PayloadStart,
    RolloutPayload,
    Run,
    SchemaVersion,
    StepStatistics,
    Table,
)
from logs_ui.recorder.upkeep.small_transactions import as_it_is, under_way

_SAMPLE = 500  # rollouts whose text and tokens are measured
_PLACES = 20  # at which they lie together, as most of the work is finding them


@dataclass(frozen=True)
class Info:
    """What there is to know of a database at a moment.

    Attributes:
        where: its path, or its URL without the password.
        engine: the database's program and version.
        schema: its number; `known` is what this logs-ui works with.
        created, oldest, newest: µs since the epoch: of the database, and of the first and the last rollout; None
            without one.
        bytes: all that it takes where it is stored; `log` of them are SQLite's write-ahead log, and `free` are unused.
        notes, search: of what lies beside it; 0 where nothing does yet.
        disk_free: of the disk that it lies on; None of a server's.
        tables: bytes by table, with their indexes; empty where the database's program cannot tell.
        text, tokens: bytes of a rollout's two payloads, over a sample of those that have any, without the prompts that
            they share; None without any.
        runs, rollouts, pruned: how many.
        projects: names of those that runs belong to, in alphabetical order.
        under_way: uids of the runs that somebody records into now.
    """

    where: str
    engine: str
    schema: int
    known: int
    created: int
    bytes: int
    log: int
    free: int
    notes: int
    search: int
    disk_free: int | None
    tables: dict[str, int]
    text: float | None
    tokens: float | None
    runs: int
    projects: list[str]
    rollouts: int
    pruned: int
    images: int
    oldest: int | None
    newest: int | None
    under_way: list[str]

    @property
    def prompts(self) -> float | None:
        """Bytes of the prompts that rollouts share, for each rollout with its text; None where that cannot be told."""
        table, whole = str(PayloadStart.__tablename__), self.rollouts - self.pruned
        return self.tables[table] / whole if whole > 0 and table in self.tables else None

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def look_at(db: str | os.PathLike[str] | None = None) -> Info:
    """Reads in well under a second what is known by itself, and measures the rest by a sample.

    Args:
        db: where the database is; LOGS_UI_DB or this user's own by default.

    Raises:
        DatabaseError: the database is missing, or cannot be read.
    """
    address = database_address(db)
    take_in_before_reading(address)
    with as_it_is(address) as engine:
        with engine.connect() as connection:
            stamp = schema.stamp_of(connection)
            created = connection.scalar(select(col(SchemaVersion.created))) or 0
            text_bytes, token_bytes = _sampled(connection)
            held = _of_file(address, connection) if isinstance(address, Path) else _of_server(connection)
            counted = _counted(connection)
        return Info(
            where=shown(address),
            engine=_program(engine),
            schema=stamp.version,
            known=schema.known(),
            created=created,
            text=text_bytes,
            tokens=token_bytes,
            under_way=under_way(engine),
            **held,
            **counted,
        )


def _program(engine: Engine) -> str:
    if engine.dialect.name == "sqlite":
        return f"SQLite {sqlite3.sqlite_version}"
    return f"PostgreSQL {'.'.join(map(str, engine.dialect.server_version_info or ()))}"


def _counted(connection: Connection) -> dict[str, Any]:
    row = EvaluationRow
    # The ids' order is that of writing: near enough, and no scan of a million rows.
    first, last = (
        connection.scalar(select(col(row.created)).order_by(order).limit(1))
        for order in (col(row.id), col(row.id).desc())
    )
    return {
        "runs": connection.scalar(select(func.count()).select_from(Run)),
        "projects": sorted(
            connection.scalars(select(col(Run.project)).where(col(Run.project).is_not(None)).distinct())
        ),
        "rollouts": connection.scalar(select(func.coalesce(func.sum(col(StepStatistics.rollouts)), 0))),
        "pruned": connection.scalar(select(func.coalesce(func.sum(col(Run.pruned)), 0))),
        "images": connection.scalar(select(func.count()).select_from(Image)),
        "oldest": first,
        "newest": last,
    }


def _sampled(connection: Connection) -> tuple[float | None, float | None]:
    """Mean bytes of text and of tokens."""
    payload = RolloutPayload
    ids = select(func.min(col(payload.row_id)), func.max(col(payload.row_id)))
    first, last = connection.execute(ids).one()
    if first is None:
        return None, None
    sizes = (func.length(col(payload.content)), func.length(col(payload.tokens)))
    found: dict[int, tuple[int, int]] = {}
    for place in range(_PLACES):
        begin = first + (last - first) * place // _PLACES
        query = select(col(payload.row_id), *sizes).where(col(payload.row_id) >= begin).order_by(col(payload.row_id))
        found |= {
            row_id: (content or 0, tokens or 0)
            for row_id, content, tokens in connection.execute(query.limit(_SAMPLE // _PLACES))
        }
    content, tokens = (sum(sizes[i] for sizes in found.values()) / len(found) for i in (0, 1))
    return content, tokens


def _of_file(path: Path, connection: Connection) -> dict[str, Any]:
    def pragma(name: str) -> int:
        return int(connection.exec_driver_sql(f"PRAGMA {name}").scalar_one())

    page, pages, free = pragma("page_size"), pragma("page_count"), pragma("freelist_count")
    log = _size(path.with_name(path.name + "-wal"))
    return {
        "bytes": _size(path) + log,
        "log": log,
        "free": page * free,
        "notes": _size(NOTES.readable(path)),
        "search": _size(SEARCH.readable(path)),
        "disk_free": shutil.disk_usage(path.absolute().parent).free,
        "tables": _tables_of_file(connection, page * (pages - free)),
    }


def _tables_of_file(connection: Connection, used: int) -> dict[str, int]:
    """By SQLite's dbstat, where it was built with it. All but the payloads are looked at, which are the rest."""
    payload = str(RolloutPayload.__tablename__)
    size = "SELECT coalesce(sum(pgsize), 0) FROM dbstat WHERE name = ? AND aggregate = TRUE"
    found: dict[str, int] = {}
    try:
        for table, tree in connection.exec_driver_sql("SELECT tbl_name, name FROM sqlite_master ORDER BY rootpage"):
            if table != payload:
                found[table] = found.get(table, 0) + connection.exec_driver_sql(size, (tree,)).scalar_one()
    except OperationalError:
        return {}
    return {**found, payload: max(0, used - sum(found.values()))}


def _of_server(connection: Connection) -> dict[str, Any]:
    size = text(
        "SELECT coalesce(sum(pg_total_relation_size(oid)), 0) FROM pg_class WHERE relnamespace = to_regnamespace(:it)"
    )

    def of_schema(name: str) -> int:
        return int(connection.scalar(size.bindparams(it=name)) or 0)

    tables = {
        table.name: int(connection.scalar(text(f"SELECT pg_total_relation_size('{table.name}')")) or 0)
        for table in Table.metadata.sorted_tables
    }
    return {
        "bytes": int(connection.scalar(text("SELECT pg_database_size(current_database())")) or 0),
        "log": 0,
        "free": 0,
        "notes": of_schema(str(NotesTable.metadata.schema)),
        "search": of_schema(SEARCH.schema),
        "disk_free": None,
        "tables": tables,
    }


def _size(file: Path | None) -> int:
    """Never opened for it: see `sidecars`."""
    try:
        return 0 if file is None else file.stat().st_size
    except OSError:
        return 0
