"""Takes into a database what waits for it on disk: of processes that have died, and on a network file system of all."""

import fcntl
import logging
import os
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from typing import BinaryIO

import msgspec
from sqlalchemy import Engine

from logs_ui.recorder.errors import LogsUIError
from logs_ui.recorder.storage.address import Address
from logs_ui.recorder.storage.changes import NO_ENTRY
from logs_ui.recorder.storage.database import errors_in_plain_words, writing_engine
from logs_ui.recorder.storage.file_system import network_kind
from logs_ui.recorder.storage.spool import spool_entry as entries
from logs_ui.recorder.storage.spool.intake import Intake
from logs_ui.recorder.storage.spool.lease import Lease
from logs_ui.recorder.storage.spool.spool_entry import Entry
from logs_ui.recorder.storage.spool.spool_files import SpoolFile, put_away, spool_files
from logs_ui.recorder.storage.spool.spool_format import Frame, NotASpoolError, frames, grouped, is_ended
from logs_ui.recorder.storage.spool_folder import spool_folder
from logs_ui.recorder.storage.sqlite.checkpoints import checkpoint, sync_log
from logs_ui.recorder.storage.writes import row_writes

logger = logging.getLogger("logs_ui")

_PATIENCE = 5.0  # seconds for a lock of the database
_POLL = 0.1  # seconds between two looks whether another has ended
_BEFORE_READING = 10.0  # seconds that a reader waits for what was recorded last
_RENEWED = 5.0  # seconds between two signs of life to others who would take in
_IDLE_US = 3_600_000_000  # without a word after which a process on another machine is taken for dead: its heartbeat
# goes into its spool every few seconds


@dataclass
class TakenIn:
    """What was done.

    Attributes:
        entries: that were taken in.
        rollouts: changes of rollouts in them.
        refused: changes that the database refused.
        is_all: whether nothing was left to another who is at it, or to a later time.
    """

    entries: int = 0
    rollouts: int = 0
    refused: int = 0
    is_all: bool = True


class Ingester:
    """Of one database. However many there are, in whichever processes: one is at work at a time, and what is in is in
    once.
    """

    def __init__(self, address: Address, is_hurried: Callable[[], bool] = lambda: False) -> None:
        """Opens nothing; for `is_hurried` see `database.writing_engine`."""
        self.address = address
        self.is_hurried = is_hurried
        self.folder = spool_folder(address)
        # A process that can write the database takes its own in, as long as it lives.
        self.takes_from_living = isinstance(address, Path) and network_kind(address) is not None
        self.is_shared = network_kind(self.folder) is not None
        self.ends: dict[Path, Frame] = {}  # of each file the last frame that went in, without its data
        self.foreign: set[Path] = set()  # files that this program cannot read

    def take_in(self, stopped: Callable[[], bool] = lambda: False) -> TakenIn:
        """All that waits now. The database is made where it is missing, and not touched where nothing waits.

        Args:
            stopped: whether to leave the rest for later; asked after each transaction.

        Raises:
            DatabaseError: the database, or the folder, cannot be written now, or never.
        """
        files = [file for file in spool_files(self.folder) if file.path not in self.foreign]
        if not any(map(self._may_hold_more, files)):
            return TakenIn()
        lease = Lease(self.folder / "ingester")
        with errors_in_plain_words(self.address), lease.held() as is_held:
            if not is_held:
                return TakenIn(is_all=False)
            engine = writing_engine(self.address, _PATIENCE, self.is_hurried)
            try:
                sweep = _Sweep(self, engine, lease, stopped)
                sweep.take(files)
                checkpoint(self.address, engine, 0)
            finally:
                engine.dispose()
        return sweep.done

    def _may_hold_more(self, file: SpoolFile) -> bool:
        """Of what is for this program to take in."""
        try:
            with file.path.open("rb") as opened:
                size = os.fstat(opened.fileno()).st_size
                if not self.takes_from_living:
                    return _is_free(opened)
        except FileNotFoundError:
            return False
        return file.path not in self.ends or self.ends[file.path].end != size


class _Sweep:
    """One time that it takes in all there is."""

    def __init__(self, ingester: Ingester, engine: Engine, lease: Lease, stopped: Callable[[], bool]) -> None:
        self.done = TakenIn()
        self._of, self._engine, self._lease, self._stopped = ingester, engine, lease, stopped
        self._renewed = time.monotonic()
        with engine.connect() as connection:
            self._positions = row_writes.positions(connection)

    def take(self, files: Iterable[SpoolFile]) -> None:
        for writer, series in groupby(files, attrgetter("writer")):
            intake = Intake(self._of.address, lambda: self._engine, writer, is_own=False)
            parts = list(series)
            for part in parts:
                if not self._take_file(part, intake, is_last=part is parts[-1]):
                    break  # what follows must not go in before it
            if self._goes_no_further():
                return

    def _take_file(self, file: SpoolFile, intake: Intake, *, is_last: bool) -> bool:
        """Whether all of it is in, and those that follow it may be."""
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
                if ended or not is_last or (is_free and self._is_dead(opened)):
                    self._put_away(file)
        except FileNotFoundError:  # another has taken it in
            return True
        except (NotASpoolError, msgspec.DecodeError):
            self._of.foreign.add(file.path)
            logger.warning(
                "logs-ui: %s was written by another version of logs-ui: take it in with that one (logs-ui db ingest).",
                file.path,
            )
            return False
        return True

    def _take_frames(self, file: SpoolFile, opened: BinaryIO, intake: Intake) -> bool | None:
        """Whether its process said that nothing more comes; None where it was told to stop."""
        position = self._positions.get(file.writer, NO_ENTRY)
        last = self._of.ends.get(file.path)
        if last is not None and last.number > position:  # the database is another one than it was
            last = None
        for group in grouped(frames(opened, last.end if last else 0)):
            if group[-1].number > position:
                self._take_group(intake, [entries.decoded(frame.data) for frame in group if frame.number > position])
            self._of.ends[file.path] = last = group[-1]._replace(data=b"")
            if self._goes_no_further():
                return None
        return is_ended(opened, last.end if last else 0)

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
        """Whether the process of a file that is not locked can be relied on to add nothing any more."""
        return not self._of.is_shared or self._silence(opened) > _IDLE_US

    def _silence(self, opened: BinaryIO) -> int:
        """For how many µs nothing was added to a file, by the clock of the file system: those of the process's machine
        and of this one may differ.
        """
        return max(0, round((self._lease.now() - os.fstat(opened.fileno()).st_mtime) * 1e6))

    def _put_away(self, file: SpoolFile) -> None:
        sync_log(self._of.address)
        last = self._of.ends.pop(file.path, None)
        if torn := put_away(file.path, last.end if last else 0):
            logger.warning(
                "logs-ui: the last %d bytes of %s are torn, as a process leaves them that is killed while it writes, "
                "or a machine that loses its power. What stood before them is in the database; the file is kept as "
                "%s, which you can delete.",
                torn,
                file.path,
                file.path.with_suffix(".torn").name,
            )


def take_in_before_reading(address: Address) -> None:
    """What waits on disk, as far as that is possible within some seconds: readers then see what was recorded last.
    Whatever keeps it from being taken in is said, and keeps nobody from reading.
    """
    ingester = Ingester(address)
    deadline = time.monotonic() + _BEFORE_READING
    try:
        while not ingester.take_in(lambda: time.monotonic() > deadline).is_all and time.monotonic() < deadline:
            time.sleep(_POLL)
    except (LogsUIError, OSError) as error:
        logger.warning("logs-ui: what waits in %s is not in the database yet: %s", ingester.folder, error)


def _is_free(file: BinaryIO) -> bool:
    """Whether its process does not hold it any more. A lock for readers, which NFS gives for a file that is opened for
    reading.
    """
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:  # a file system without locks
        return True
    return True
