"""Reads what can be read of a damaged SQLite file, row by row, into a new one."""

import os
import shutil
import sqlite3
from collections import Counter
from contextlib import closing, suppress
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import orjson
import sqlalchemy as sa
import zstandard

from logs_ui.recorder.errors import LogsUIError, RefusedDatabaseError
from logs_ui.recorder.storage import schema, sidecars
from logs_ui.recorder.storage.address import database_address
from logs_ui.recorder.storage.database import errors_in_plain_words, writing_engine
from logs_ui.recorder.storage.payload import unpack_content, unpack_tokens
from logs_ui.recorder.storage.sqlite.engine import copy_file
from logs_ui.recorder.storage.tables import Table
from logs_ui.recorder.upkeep.merge import merge
from logs_ui.recorder.upkeep.small_transactions import Progress, unseen
from logs_ui.recorder.vocabulary import Mode, RunState, SourceKind, Status, StopReason

_NOTES = sidecars.NOTES
_MADE_ANEW = {"step_statistics", "step_details", "writer_position", "logs_ui_schema"}
_PROBES, _MOST = 10_000, 10_000_000  # ids that are tried behind the last that is known, and in all
_SHOWN = 1_000  # rows between two reports of progress
# The ways to read a table, each with the key of a row: from its first row on, and from its last one back. `row_tag` has
# no row ids, but an index that has all of its columns.
_ROWS = [("rowid", f"NOT INDEXED ORDER BY rowid {order}") for order in ("ASC", "DESC")]
_TAGS = [("printf('%d %d %s', run_id, row_id, tag)", path) for path in ("NOT INDEXED", "INDEXED BY tag_by_row")]
_KINDS: dict[type, Any] = {bool: int, float: int | float}  # where SQLite returns another one
_WORDS = {"kind": SourceKind, "mode": Mode, "state": RunState, "status": Status, "stop_reason": StopReason}


@dataclass
class Recovered:
    """Describes what was read of a table; the file of notes counts as one.

    Attributes:
        rows: how many the new file has of it.
        missing: how many others are damaged, refer to something that is lost, or are named by an index only.
        is_sure: False if nothing that is whole says how many there were: then more may be missing.
    """

    name: str
    rows: int = 0
    missing: int = 0
    is_sure: bool = False


def recover(old: str | os.PathLike[str], new: str | os.PathLike[str], progress: Progress = unseen) -> list[Recovered]:
    """Read all that can be read of a damaged SQLite file and the -wal beside it, and merge it into a new file, as
    `merge` does. It works with a copy, and never writes the damaged file, which no process may record into meanwhile.
    An interruption leaves nothing behind.

    Raises:
        LogsUIError: one of them is no SQLite file's path, or there is something at `new`.
        DatabaseError: `old` is no database of logs-ui, or its list of tables cannot be read.
    """
    source, target = database_address(old), database_address(new)
    if not isinstance(source, Path) or not isinstance(target, Path):
        raise LogsUIError("Only an SQLite file can be recovered, into another. Restore PostgreSQL from a backup.")
    if there := next((path for path in (target, _NOTES.path(target)) if path.exists()), None):
        raise LogsUIError(f"{there} exists already. Name a new file.")
    with (
        errors_in_plain_words(target),
        TemporaryDirectory(dir=target.absolute().parent, prefix=f"{target.name}-") as folder,
    ):
        # A copy of the damaged file, the rows that can be read of it, and what a merge takes of these.
        damaged, read, merged = (Path(folder, f"{name}.db") for name in ("damaged", "read", "made"))
        with errors_in_plain_words(source):
            shutil.copyfile(source, damaged)
            for ending in ("-wal", "-journal"):
                with suppress(FileNotFoundError):
                    shutil.copyfile(f"{source}{ending}", f"{damaged}{ending}")
            tables = _read_tables(source, damaged, read, progress)
        if (notes := _NOTES.readable(source)) is not None:
            try:
                copy_file(notes, _NOTES.path(read))
            except sqlite3.DatabaseError:
                _NOTES.path(read).unlink(missing_ok=True)
                tables.append(Recovered("notes"))
        writing_engine(merged).dispose()
        merge([read], merged, progress=progress)
        for path, place in ((_NOTES.path(merged), _NOTES.path(target)), (merged, target)):
            with suppress(FileNotFoundError):  # without notes
                path.rename(place)
    return tables


def _read_tables(source: Path, damaged: Path, read: Path, progress: Progress) -> list[Recovered]:
    """Copy the rows that can be read into a new file; the merge leaves out those that refer to something lost."""
    writing_engine(read).dispose()
    with closing(sqlite3.connect(damaged, isolation_level=None)) as db, closing(sqlite3.connect(read)) as into, into:
        db.text_factory = lambda text: text.decode(errors="replace")
        db.execute("PRAGMA writable_schema=ON")  # else a file whose end is cut off is refused
        _refuse_foreign(source, db)
        db.execute("BEGIN")  # else each query takes locks anew
        wanted = [table for table in Table.metadata.sorted_tables if table.name not in _MADE_ANEW]
        recovered = [_copy_table(db, into, table, progress) for table in wanted]
        _stand_in(db, into)
        # A run may do without its tokenizer, and a source without its text: only the reference goes.
        for table, column, parent in (("run", "tokenizer", "tokenizer"), ("run_source", "hash", "text")):
            lost = f"{column} NOT IN (SELECT hash FROM {parent})"  # noqa: S608
            into.execute(f"UPDATE {table} SET {column} = NULL WHERE {lost}")  # noqa: S608
        orphans = Counter(table for table, *_ in into.execute("PRAGMA foreign_key_check"))
        for copy in recovered:
            copy.rows, copy.missing = copy.rows - orphans[copy.name], copy.missing + orphans[copy.name]
    return recovered


def _refuse_foreign(source: Path, db: sqlite3.Connection) -> None:
    try:
        there = sidecars.tables(db, "main")
    except sqlite3.DatabaseError:
        raise RefusedDatabaseError(
            f"{source} is no SQLite database, or the list of its tables is damaged, without which no row can be found. "
            "Restore it from a copy."
        ) from None
    if not {"run", "evaluation_row"} <= there:
        raise RefusedDatabaseError(f"{source} is no database of logs-ui.")
    with suppress(sqlite3.Error):  # the page of its version may be what is damaged
        for (oldest,) in db.execute("SELECT oldest_reader FROM logs_ui_schema").fetchall():
            if isinstance(oldest, int) and oldest > schema.newest_schema():
                raise RefusedDatabaseError(f"{source} was written by a newer logs-ui. Recover it with that one.")


def _stand_in(db: sqlite3.Connection, into: sqlite3.Connection) -> None:
    """Add a run for each whose row is lost and whose rollouts are not. The index of uids may still have its uid."""
    uids: dict[int, str] = {}
    with suppress(sqlite3.Error):
        uids.update(db.execute("SELECT id, uid FROM run INDEXED BY sqlite_autoindex_run_1"))
    of_lost = "SELECT run_id, min(created), max(created) FROM evaluation_row GROUP BY 1 HAVING run_id NOT IN"
    for run_id, first, last in into.execute(f"{of_lost} (SELECT id FROM run)").fetchall():  # noqa: S608
        values = [run_id, *[uids.get(run_id, f"recovered-{run_id}")] * 2, RunState.FINISHED, first, last, last]
        names = "id, uid, name, state, created, heartbeat, finished"
        into.execute(f"INSERT INTO run ({names}) VALUES (?, ?, ?, ?, ?, ?, ?)", values)  # noqa: S608


def _copy_table(db: sqlite3.Connection, into: sqlite3.Connection, table: sa.Table, progress: Progress) -> Recovered:
    name, is_payload, recovered, seen = table.name, table.name == "rollout_payload", Recovered(table.name), set[Any]()
    there = {column for _, column, *_ in db.execute(f"PRAGMA table_info({name})")}
    columns = [column for column in table.columns if column.name in there]
    names = ", ".join(f'"{column.name}"' for column in columns)
    insertion = f"INSERT OR IGNORE INTO {name} ({names}) VALUES ({', '.join('?' * len(columns))})"  # noqa: S608
    # Indexes may still have the ids of rows whose own pages are damaged. Payloads have the ids of their rollouts.
    listed_ids, owner = set[int](), "evaluation_row" if is_payload else name
    for _, index, *_ in db.execute(f"PRAGMA index_list({owner})").fetchall():
        with suppress(sqlite3.Error):  # it is damaged, or has only some of the rows, or these have no ids
            listed_ids.update(row_id for (row_id,) in db.execute(f'SELECT rowid FROM {owner} INDEXED BY "{index}"'))  # noqa: S608
            recovered.is_sure = True

    def copy(key: Any, row: tuple[Any, ...]) -> None:
        if key not in seen:
            seen.add(key)
            is_new = _is_whole(into, columns, row) and into.execute(insertion, row).rowcount > 0
            recovered.rows, recovered.missing = recovered.rows + is_new, recovered.missing + (not is_new)
            if len(seen) % _SHOWN == 0:
                progress(f"reading {name}", len(seen), max(len(seen), len(listed_ids)))

    for key, path in _TAGS if name == "row_tag" else _ROWS:  # from both ends, up to what is damaged
        with suppress(sqlite3.Error, MemoryError):  # a damaged length may be huge
            for row in db.execute(f"SELECT {key}, {names} FROM {name} {path}"):  # noqa: S608
                copy(row[0], row[1:])
            recovered.is_sure = True
            break
    # If no way was whole, rows in between are tried one by one: those that an index names, and if no index was whole,
    # all ids up to some behind the last known one.
    last = max((row_id for row_id in listed_ids | seen if isinstance(row_id, int)), default=0)  # tags have none
    tried = listed_ids if recovered.is_sure else listed_ids.union(range(min(last, _MOST) + _PROBES))
    for row_id in sorted(tried - seen):
        # A row that an index names is missing if it cannot be read, or is not there: but not every rollout has a
        # payload.
        row, is_missing = None, row_id in listed_ids
        with suppress(sqlite3.Error, MemoryError):
            row = db.execute(f"SELECT {names} FROM {name} NOT INDEXED WHERE rowid = ?", [row_id]).fetchone()  # noqa: S608
            is_missing &= row is None and not is_payload  # which not every rollout has
        recovered.missing += is_missing
        if row:
            copy(row_id, row)
    return recovered


def _is_whole(into: sqlite3.Connection, columns: list[sa.Column[Any]], row: tuple[Any, ...]) -> bool:
    """Return True if each value fits its column, packed ones can be unpacked, and hashes are right."""
    table, values = columns[0].table.name, dict(zip((column.name for column in columns), row, strict=True))
    with suppress(Exception):  # zstd, JSON and numpy each raise errors of their own
        if table == "rollout_payload":
            # `row[1:3]` are the ids of both starts.
            starts = dict(into.execute("SELECT id, data FROM payload_start WHERE id IN (?, ?)", row[1:3]).fetchall())
            content = unpack_content(values["content"], starts.get(values["content_start"]))
            unpack_tokens(values["tokens"], starts.get(values["tokens_start"]))
            for action in content.get("actions") or ():  # without checksums, names may be wrong
                _ = action["action"], action["observation"], action["error"]
        elif "hash" in values and "data" in values:
            data = values["data"] if table == "image" else zstandard.decompress(values["data"])
            return bool(values["hash"] == sha256(data).hexdigest())
        return all(_fits(column, values[column.name]) for column in columns)
    return False


def _fits(column: sa.Column[Any], value: Any) -> bool:
    if value is None:
        return bool(column.nullable)
    if isinstance(column.type, sa.JSON):
        return isinstance(orjson.loads(value), dict | None)
    kind = column.type.python_type
    return isinstance(value, _KINDS.get(kind, kind)) and value in (*_WORDS.get(column.name, [value]),)
