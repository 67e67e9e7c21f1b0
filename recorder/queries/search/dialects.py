"""Hides how the full-text index differs between SQLite and PostgreSQL: locking, and writing of texts."""

import os
from collections.abc import Collection, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from pathlib import Path

from sqlalchemy import Connection, Engine, Text, bindparam, cast, delete, insert, select, text
from sqlalchemy.dialects.postgresql import TSVECTOR

from logs_ui.recorder.queries.search.rollout_texts import Parts
from logs_ui.recorder.queries.search.words import vectors
from logs_ui.recorder.storage import portable
from logs_ui.recorder.storage.address import Address
from logs_ui.recorder.storage.database import disposed, errors_in_plain_words, sidecar_engine
from logs_ui.recorder.storage.file_system import network_kind
from logs_ui.recorder.storage.search_tables import COLUMNS, FTS5, VECTORS
from logs_ui.recorder.storage.sidecars import SEARCH
from logs_ui.recorder.storage.sqlite.checkpoints import log_of

_HASH_BYTES = 8 << 20  # bytes that FTS5 collects before it writes a segment
_LOCK = 0x6C6F6774  # PostgreSQL's advisory lock of the process that fills the index


def texts_of(address: Address) -> "Texts":
    return _SqliteTexts(address) if isinstance(address, Path) else Texts(address)


class Texts:
    """Writes the indexed texts of one database, here of PostgreSQL's. It uses a lock of the transaction: one of the
    session would not work through a pooler.
    """

    def __init__(self, db: Address) -> None:
        self._db = db
        self._place = db  # named in errors

    @contextmanager
    def opened(self) -> Iterator[Engine | None]:
        """Open an engine to write texts with; None if another process or thread fills the index. Raise DatabaseError
        if the index cannot be written.
        """
        with errors_in_plain_words(self._place), self._hold_lock() as has_lock:
            if not has_lock:
                yield None
                return
            with disposed(sidecar_engine(SEARCH, self._db)) as engine:
                self._set_up(engine)
                yield engine

    def settle(self) -> None:
        """Do what `SearchIndex.settle` promises."""

    def is_alone(self, index: Connection) -> bool:
        """Return True if no other process fills the index during this transaction."""
        return bool(index.scalar(select(text(f"pg_try_advisory_xact_lock({_LOCK})"))))

    def clear(self, index: Connection) -> None:
        """Remove all texts."""
        index.execute(delete(VECTORS))

    def indexed_ids(self, index: Connection, ids: Collection[int]) -> set[int]:
        """Return the ids among these whose rollouts are indexed."""
        return set(index.scalars(select(VECTORS.c.rowid).where(VECTORS.c.rowid.in_(ids))))

    def add(self, index: Connection, texts: list[tuple[int, Parts]]) -> None:
        """Add (id, texts) of rollouts that are not indexed."""
        rows = [
            {"rowid": row_id, "part": part, "words": words}
            for row_id, parts in texts
            for part, words in enumerate(vectors(parts))
        ]
        words = cast(bindparam("words", type_=Text), TSVECTOR)
        index.execute(insert(VECTORS).values(rowid=bindparam("rowid"), part=bindparam("part"), words=words), rows)

    def _hold_lock(self) -> AbstractContextManager[bool]:
        """Return a context manager that gives False if another process or thread has the lock."""
        return nullcontext(True)

    def _set_up(self, engine: Engine) -> None:
        pass


class _SqliteTexts(Texts):
    """Does the same in SQLite's file beside the database, with a lock of a file."""

    def __init__(self, db: Path) -> None:
        super().__init__(db)
        self._place = self._path = SEARCH.path(db)

    def settle(self) -> None:
        """Merge the write-ahead log into the file, unless a reader, which cannot do so itself, is still connected."""
        if log_of(self._path).exists():
            with self.opened():
                pass

    def is_alone(self, index: Connection) -> bool:  # noqa: ARG002 - the file's lock says so
        return True

    def clear(self, index: Connection) -> None:
        index.exec_driver_sql("DROP TABLE search.texts")  # of an earlier format it has other columns
        index.exec_driver_sql(FTS5)

    def indexed_ids(self, index: Connection, ids: Collection[int]) -> set[int]:
        numbers = ", ".join(str(int(row_id)) for row_id in ids)
        rows = index.exec_driver_sql(f"SELECT id FROM search.texts_docsize WHERE id IN ({numbers})")  # noqa: S608
        return set(rows.scalars())

    def add(self, index: Connection, texts: list[tuple[int, Parts]]) -> None:
        insertion = f"INSERT INTO search.texts (rowid, {', '.join(COLUMNS)}) VALUES (?, ?, ?, ?, ?)"  # noqa: S608 - ours
        index.exec_driver_sql(insertion, [(row_id, *parts) for row_id, parts in texts])

    @contextmanager
    def _hold_lock(self) -> Iterator[bool]:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        lock_path = self._path.with_name(self._path.name + "-lock")
        with lock_path.open("w") as lock_file:
            try:
                portable.lock(lock_file)
                has_lock = os.path.samestat(os.fstat(lock_file.fileno()), lock_path.stat())
            except (BlockingIOError, FileNotFoundError):
                has_lock = False
            if not has_lock:  # another process holds the lock, or has deleted its file since
                yield False
                return
            try:
                yield True
            finally:
                with suppress(OSError):  # Windows deletes no open file
                    lock_path.unlink()

    def _set_up(self, engine: Engine) -> None:
        """Set the journal mode. With a write-ahead log, readers do not wait for the writer, and a power failure costs
        the last steps, which are repeated. A network file system does not support one, and there readers wait.
        """
        has_wal = network_kind(self._path) is None
        journal, synchronous = ("WAL", "NORMAL") if has_wal else ("DELETE", "FULL")
        connection = engine.raw_connection()
        try:
            cursor = connection.cursor()
            cursor.execute(f"PRAGMA search.journal_mode={journal}")
            cursor.execute(f"PRAGMA search.synchronous={synchronous}")
            cursor.execute("INSERT INTO search.texts (texts, rank) VALUES ('hashsize', ?)", (_HASH_BYTES,))
        finally:
            connection.close()
