"""Ingests spools: stores the entries that wait on disk in the database, and deletes their files.

A process ingests its own spool while it lives (`durable_outlet.py`). This file ingests spools of processes that have
died. On a network file system it ingests all spools, as no training writes to the database there.
"""

import logging
import os
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from typing import BinaryIO

import msgspec
from sqlalchemy import Engine

from logs_ui.recorder.storage import portable
from logs_ui.recorder.storage.address import Address
from logs_ui.recorder.storage.changes import NO_ENTRY
from logs_ui.recorder.storage.database import disposed, errors_in_plain_words, writing_engine
from logs_ui.recorder.storage.file_system import network_kind
from logs_ui.recorder.storage.spool import entry as entries
from logs_ui.recorder.storage.spool.entry import Entry, EntryOf
from logs_ui.recorder.storage.spool.files import SpoolFile, put_away, spool_files
from logs_ui.recorder.storage.spool.format import Frame, NotASpoolError, frames, grouped, is_ended
from logs_ui.recorder.storage.spool.intake import Intake
from logs_ui.recorder.storage.spool.lease import Lease
from logs_ui.recorder.storage.spool_folder import spool_folder
from logs_ui.recorder.storage.sqlite.checkpoints import checkpoint
from logs_ui.recorder.storage.tables import EvaluationRow, Run
from logs_ui.recorder.storage.writes import row_writes

logger = logging.getLogger("logs_ui")

_PATIENCE = 5.0  # seconds for a lock of the database
_RENEWED = 5.0  # seconds between two renewals of the lease
_IDLE_US = 3_600_000_000  # µs without a write after which a process on another machine is assumed to be dead; a live
# one writes a heartbeat to its spool every few seconds


@dataclass
class TakenIn:
    """Holds the result of an ingest."""

    entries: int = 0  # number of stored entries
    rollouts: int = 0  # number of changes of rollouts in them
    refused: int = 0  # number of changes that the database refused
    is_all: bool = True  # False if entries were left, for a later time or for another process that is ingesting now


class Ingester:
    """Ingests the spools of one database.

    Several processes may have one each. A lease makes sure that one of them works at a time, and the entries' numbers
    make sure that each entry is stored once.
    """

    def __init__(
        self, address: Address, entry_of: EntryOf, is_hurried: Callable[[], bool] = lambda: False
    ) -> None:  # fmt: skip
        """Open no file and no connection yet. For `is_hurried` see `database.writing_engine`."""
        self.address = address
        self.entry_of, self.is_hurried = entry_of, is_hurried
        self.folder = spool_folder(address)
        # A living process ingests its own spool, except on a network file system, where it never writes the database.
        self.takes_from_living = isinstance(address, Path) and network_kind(address) is not None
        self.is_shared = network_kind(self.folder) is not None
        self.ends: dict[Path, Frame] = {}  # for each file the last stored frame, without its data
        self.foreign: set[Path] = set()  # files of other versions of logs-ui

    def take_in(self, stopped: Callable[[], bool] = lambda: False) -> TakenIn:
        """Store all entries that wait now, until `stopped`, which is called after each transaction, returns True.
        Create the database if it is missing; do not open it if nothing waits. Raise DatabaseError.
        """
        files = [file for file in spool_files(self.folder) if file.path not in self.foreign]
        if not any(map(self._may_hold_more, files)):
            return TakenIn()
        lease = Lease(self.folder / "ingester")
        with errors_in_plain_words(self.address), lease.hold() as is_held:
            if not is_held:
                return TakenIn(is_all=False)
            with disposed(writing_engine(self.address, _PATIENCE, self.is_hurried)) as engine:
                sweep = _Sweep(self, engine, lease, stopped)
                sweep.take(files)
                if checkpoint(self.address, engine, 0):
                    sweep.put_away()
        return sweep.done

    def _may_hold_more(self, file: SpoolFile) -> bool:
        """Return True if a file may contain entries that are not stored yet and that this process may ingest."""
        try:
            with file.path.open("rb") as opened:
                size = os.fstat(opened.fileno()).st_size
                if not self.takes_from_living:
                    return _is_free(opened)
        except FileNotFoundError:
            return False
        # Where living processes do not store their own entries, a file is looked into again once it has grown.
        return file.path not in self.ends or self.ends[file.path].end != size


class _Sweep:
    """One pass of an `Ingester` over all files, while it holds the lease."""

    def __init__(self, ingester: Ingester, engine: Engine, lease: Lease, stopped: Callable[[], bool]) -> None:
        self.done = TakenIn()
        self._of, self._engine, self._lease, self._stopped = ingester, engine, lease, stopped
        self._renewed = time.monotonic()
        self._taken: list[SpoolFile] = []  # files of which all is in the database
        with engine.connect() as connection:
            self._positions = row_writes.positions(connection)

    def take(self, files: Iterable[SpoolFile]) -> None:
        for writer, series in groupby(files, attrgetter("writer")):
            intake = Intake(self._of.address, lambda: self._engine, writer, is_own=False)
            parts = list(series)
            for part in parts:
                if not self._take_file(part, intake, is_last=part is parts[-1]):
                    break  # entries of one writer are stored in order, so later files must wait
            if self._goes_no_further():
                return

    def _take_file(self, file: SpoolFile, intake: Intake, *, is_last: bool) -> bool:
        """Ingest a file. Return True if all of it is stored, so that the writer's next file may follow."""
        try:
            with file.path.open("rb") as opened:
                is_free = _is_free(opened)
                if not is_free and not self._of.takes_from_living:
                    return False
                intake.silence = partial(self._silence, opened)
                ended = self._take_frames(file, opened, intake)
                if ended is None:
                    self.done.is_all = False
                    return False
                # No more will be appended: the end mark is there, or a later file was begun, or the process is dead.
                if ended or not is_last or (is_free and self._is_dead(opened)):
                    self._taken.append(file)
        except FileNotFoundError:  # another process has ingested it
            return True
        except (NotASpoolError, msgspec.DecodeError):
            self._of.foreign.add(file.path)
            logger.warning(
                "logs-ui: %s was written by another version of logs-ui. Run `logs-ui db ingest` with that version.",
                file.path,
            )
            return False
        return True

    def _take_frames(self, file: SpoolFile, opened: BinaryIO, intake: Intake) -> bool | None:
        """Store a file's frames. Return True if the end mark follows them; None if it had to stop before the end."""
        position = self._positions.get(file.writer, NO_ENTRY)
        last = self._of.ends.get(file.path)
        if last is not None and last.number > position:  # the database was replaced: begin again
            last = None
        for group in grouped(frames(opened, last.end if last else 0)):
            if group[-1].number > position:
                self._take_group(intake, [self._decoded(frame.data) for frame in group if frame.number > position])
            self._of.ends[file.path] = last = group[-1]._replace(data=b"")
            if self._goes_no_further():
                return None
        return is_ended(opened, last.end if last else 0)

    def _decoded(self, data: bytes) -> Entry:
        """Raise msgspec.DecodeError or NotASpoolError for an entry of another version, as with later columns."""
        entry = entries.decoded(data, self._of.entry_of)
        for table, changes in ((Run, entry.batch.runs), (EvaluationRow, entry.batch.rows)):
            if any(not change.columns.keys() <= table.model_fields.keys() for change in changes):
                raise NotASpoolError
        return entry

    def _take_group(self, intake: Intake, group: Sequence[Entry]) -> None:
        self.done.refused += intake.take(group)
        self.done.entries += len(group)
        self.done.rollouts += sum(len(entry.batch.rows) for entry in group)

    def _goes_no_further(self) -> bool:
        if time.monotonic() - self._renewed > _RENEWED:
            self._renewed = time.monotonic()
            self.done.is_all = self.done.is_all and self._lease.renew()
        self.done.is_all = self.done.is_all and not self._stopped()
        return not self.done.is_all

    def _is_dead(self, opened: BinaryIO) -> bool:
        """Return True if the process of an unlocked file surely appends nothing more."""
        return not self._of.is_shared or self._silence(opened) > _IDLE_US

    def _silence(self, opened: BinaryIO) -> int:
        """Return for how many µs nothing was appended to a file.

        Times are by the file system's clock: the clocks of this machine and of the process's machine may differ.
        """
        return max(0, round((self._lease.now() - os.fstat(opened.fileno()).st_mtime) * 1e6))

    def put_away(self) -> None:
        """Delete the files of which all is in the database. Call it once that is in the database's own file."""
        for file in self._taken:
            last = self._of.ends.pop(file.path, None)
            torn = 0
            with suppress(FileNotFoundError):  # another process has ingested it
                torn = put_away(file.path, last.end if last else 0)
            if torn:
                logger.warning(
                    "logs-ui: the last %d bytes of %s are torn, because its process was killed or its machine lost "
                    "power during a write. The entries before them are in the database. The file is kept as %s; you "
                    "can delete it.",
                    torn,
                    file.path,
                    file.path.with_suffix(".torn").name,
                )
        # Without spool files all is in the database's own file, and the marks, which tell whose a log is, serve nobody.
        if self._taken and not spool_files(self._of.folder):
            for mark in self._of.folder.glob("*.log"):
                mark.unlink(missing_ok=True)


def _is_free(file: BinaryIO) -> bool:
    """Return True if the file's process no longer holds its lock.

    Try a shared lock: NFS does not grant an exclusive one on a file that is open for reading only.
    """
    try:
        portable.lock(file, is_shared=True)
    except BlockingIOError:
        return False
    except OSError:  # the file system has no locks
        return True
    return True
