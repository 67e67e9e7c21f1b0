"""Where a process's entries go: into the database, and onto the disk while that cannot be written."""

import logging
import threading
import time
from pathlib import Path

import msgspec
from sqlalchemy import Engine

from logs_ui.recorder.errors import DatabaseError, RefusedDatabaseError
from logs_ui.recorder.guard import guard
from logs_ui.recorder.storage.address import Address, shown
from logs_ui.recorder.storage.database import writing_engine
from logs_ui.recorder.storage.limits import Limits
from logs_ui.recorder.storage.spool import spool_entry as entries
from logs_ui.recorder.storage.spool.intake import Intake
from logs_ui.recorder.storage.spool.spool_entry import Entry
from logs_ui.recorder.storage.spool.spool_files import Spool, SpoolFullError
from logs_ui.recorder.storage.spool.spool_ingest import Ingester
from logs_ui.recorder.storage.spool_folder import spool_folder
from logs_ui.recorder.storage.sqlite.checkpoints import checkpoint, sync_log
from logs_ui.recorder.storage.sqlite.sqlite_engine import WAL_BYTES

logger = logging.getLogger("logs_ui")

_PAUSE = 0.2  # seconds between two tries, doubled each time
_PATIENCE = 5.0  # and at most; longer only where a try takes longer
_AT_ONCE = 1.0  # seconds of taking in what waited on disk, until what came meanwhile is put there, too


class Storage:
    """Of one process, for one database. For the writer's thread, but for `engine`, `settle`, `hurry` and `close`.

    Attributes:
        trouble: why the database cannot be written now; None where it can.
        refused: changes that neither database nor spool take.
    """

    def __init__(self, address: Address, limits: Limits, *, spools_always: bool, name: str, before: int = 0) -> None:
        """Opens nothing.

        Args:
            address: of the database.
            limits: how long to try, and how much disk to take.
            spools_always: whether nothing is written to the database from here, whoever may take it in.
            name: see `spool.new_writer_name`.
            before: how many processes wrote under this name, and have ended.
        """
        self.trouble: str | None = None
        self.refused = 0
        self.spools_always = spools_always
        self._address, self._limits = address, limits
        self._engine: Engine | None = None
        self._opened: tuple[int, int] | None = None  # the file that it was opened of
        self._opening = threading.Lock()
        self._using_spool = threading.Lock()
        self._hurried = threading.Event()
        self._since: float | None = None  # when the trouble began
        self._next_try, self._pause = 0.0, _PAUSE
        self._said_unwritable = False
        self._orphans: Ingester | None = None  # of processes that died
        self._has_orphans = True  # as far as is known
        self._intake = Intake(address, self.engine, name, is_own=True)
        self._spool = Spool(spool_folder(address), name, limits.spool_bytes, before)

    @property
    def running(self) -> bool:
        """Whether a run of this process may go on, as far as is known here."""
        return self.spools_always or self._intake.running

    @property
    def waiting(self) -> Path | None:
        """The folder in which entries wait for the database; None where none does."""
        return self._spool.folder if self._spool else None

    def engine(self) -> Engine:
        """Opens the database, and makes it where it is missing; anew where its file was deleted or replaced.

        Raises:
            DatabaseError: it cannot be used.
        """
        with self._opening:
            if self._engine is not None and _file_of(self._address) != self._opened:
                logger.warning(
                    "logs-ui: %s was deleted or replaced. What is recorded from now on goes into the one that is there "
                    "now; what was recorded before is not in it.",
                    shown(self._address),
                )
                self._engine.dispose()
                self._engine = None
            if self._engine is None:
                self._engine = writing_engine(self._address, self._patience(), self._hurried.is_set)
                self._opened = _file_of(self._address)
            return self._engine

    def store(self, entry: Entry) -> None:
        """Returns once it is durable: in the database, or on disk where others wait already, or where the database has
        been away for as long as the limits say. Where there is no room on disk either, it is tried again and again.

        Raises:
            RefusedDatabaseError: the database can never be written.
        """
        pause = _PAUSE
        while not self._is_stored(entry):
            if self._hurried.is_set():
                time.sleep(_PAUSE)
            else:
                self._hurried.wait(pause)
                pause = min(2 * pause, _PATIENCE)

    def beat(self, entry: Entry) -> None:
        """Stores an entry that only says that the process is alive, where that is possible now."""
        if self.spools_always:
            self._is_on_disk(entry)
        elif not self._spool:
            self._is_taken(entry)

    def catch_up(self) -> None:
        """Takes in some of what waits on disk, where there is a database: this process's own, and what others left."""
        if self._spool and not self.spools_always:
            self._is_drained(_AT_ONCE)
        elif self._has_orphans and self._engine is not None:
            until = time.monotonic() + _AT_ONCE
            self._has_orphans = False
            with guard("taking in what other processes left"):
                self._orphans = self._orphans or Ingester(self._address, self._hurried.is_set)
                self._has_orphans = not self._orphans.take_in(lambda: time.monotonic() > until).is_all

    def keep_alive(self) -> None:
        """A run of this process goes on, as far as is known."""
        self._intake.running = True

    def hurry(self, *, hurried: bool) -> None:
        """While the process may end at any time, what cannot be written goes to the disk at once."""
        if hurried:
            self._hurried.set()
        else:
            self._hurried.clear()

    def checkpoint(self) -> None:
        """Moves the write-ahead log into the database where it has grown."""
        if self._engine is not None:
            checkpoint(self._address, self._engine, WAL_BYTES)

    def settle(self) -> None:
        """Moves all that is committed into the database's file, so that this alone can be copied."""
        if self._engine is not None:
            checkpoint(self._address, self._engine, 0)

    def close(self) -> None:
        """Leaves what waits on disk to others, and of SQLite the one file, where nobody else has it open."""
        if self._using_spool.acquire(timeout=1.0):
            self._spool.close()
        if self._engine is not None:
            self._engine.dispose()

    def abandon(self) -> Engine | None:
        """In a child, after a fork: lets go of all that is its parent's, and gives the engine, to be kept unused."""
        self._spool.abandon()
        return self._engine

    def _patience(self) -> float:
        """Seconds that one try waits: short enough for another before the process has to end."""
        return max(0.1, min(self._limits.spool_seconds, self._limits.end_seconds / 2))

    def _is_stored(self, entry: Entry) -> bool:
        if self._goes_to_disk() and self._is_on_disk(entry):
            return True
        return not self.spools_always and self._is_drained(None) and self._is_taken(entry)

    def _goes_to_disk(self) -> bool:
        """Whether an entry does, if there is room."""
        if self.spools_always or self._spool:
            return True
        away = 0.0 if self._since is None else time.monotonic() - self._since
        return self._since is not None and (self._hurried.is_set() or away >= self._limits.spool_seconds)

    def _is_on_disk(self, entry: Entry) -> bool:
        data, refused = entries.encoded(entry)
        try:
            with self._using_spool:
                first = not self._spool
                self._spool.append(entry.number, data)
        except (OSError, SpoolFullError) as error:
            self._say_unwritable_once(error)
            return False
        self.refused += refused
        self._said_unwritable = False
        if first and not self.spools_always:
            logger.warning(
                "logs-ui: what is recorded waits in %s until the database can be written again.", self._spool.folder
            )
        return True

    def _is_drained(self, seconds: float | None) -> bool:
        """Takes in what waits on disk, for about so long; returns whether nothing waits there any more."""
        if not self._spool:
            return True
        began = time.monotonic()
        if began < self._next_try:
            return False
        try:
            with self._using_spool:
                while waiting := self._spool.first():
                    self.refused += self._intake.take([entries.decoded(frame.data) for frame in waiting])
                    self._spool.forget(waiting)
                    if seconds is not None and time.monotonic() - began > seconds:
                        return False
                sync_log(self._address)
                self._spool.clear()
        except RefusedDatabaseError:
            raise
        except (DatabaseError, OSError, msgspec.DecodeError) as error:
            self._failed(error, began)
            return False
        self._works()
        return True

    def _is_taken(self, entry: Entry) -> bool:
        began = time.monotonic()
        try:
            self.refused += self._intake.take([entry])
        except RefusedDatabaseError:
            raise
        except DatabaseError as error:
            self._failed(error, began)
            return False
        self._works()
        return True

    def _failed(self, error: Exception, began: float) -> None:
        now = time.monotonic()
        self._since = began if self._since is None else self._since
        self._next_try = now + max(self._pause, 2 * (now - began))
        self._pause = min(2 * self._pause, _PATIENCE)
        first, self.trouble = self.trouble is None, str(error)
        if first:  # a server that comes back says something else each time
            logger.error("logs-ui: %s Your training goes on; what it makes is kept, and tried again.", error)

    def _works(self) -> None:
        self._since, self._pause, self._next_try = None, _PAUSE, 0.0
        if self.trouble is not None:
            self.trouble = None
            logger.warning("logs-ui: %s can be written again.", shown(self._address))

    def _say_unwritable_once(self, error: Exception) -> None:
        if self._said_unwritable or not self._limits.spool_bytes:
            return
        self._said_unwritable = True
        if isinstance(error, SpoolFullError):
            logger.error(
                "logs-ui: %s has reached the %d MiB that it may take. What is recorded is kept in memory from now on; "
                "set LOGS_UI_SPOOL_MB to what your disk allows.",
                self._spool.folder,
                self._limits.spool_bytes >> 20,
            )
        else:
            logger.error(
                "logs-ui: %s cannot be written: %s. What is recorded is kept in memory; name a folder on another disk "
                "by LOGS_UI_SPOOL.",
                self._spool.folder,
                getattr(error, "strerror", None) or error,
            )


def _file_of(address: Address) -> tuple[int, int] | None:
    """Which one is there now; None where none is, and for a server, whose connections break."""
    if not isinstance(address, Path):
        return None
    try:
        found = address.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino
