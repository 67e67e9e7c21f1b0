"""Stores the entries of one process: in the database, or in the spool on disk while the database cannot be written.

The helper process calls it, or a thread of the training if there is no helper process.
"""

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

_PAUSE = 0.2  # seconds between the first two tries; doubled after each failure
_PATIENCE = 5.0  # maximum of that pause in seconds; it is longer only if a try itself takes longer
_AT_ONCE = 1.0  # seconds to ingest before new entries get their turn, so that the writer's queue does not grow


class Storage:
    """Stores the entries of one process in one database.

    Only the writer's thread may call it, except for `engine`, `settle`, `hurry` and `close`.
    """

    def __init__(self, address: Address, limits: Limits, *, spools_always: bool, name: str, before: int = 0) -> None:
        """Opens no file and no connection yet. With `spools_always` all entries go to the spool, and another process
        ingests them, as on a network file system. For `name` and `before` see `Spool`.
        """
        self.trouble: str | None = None  # why the database cannot be written now; None if it can
        self.dropped = 0  # number of changes that neither the database nor the spool could store
        self.spools_always = spools_always
        self._address, self._limits = address, limits
        self._engine: Engine | None = None
        self._opened: tuple[int, int] | None = None  # device and inode of the file that `_engine` has open
        self._opening = threading.Lock()
        self._using_spool = threading.Lock()
        self._hurried = threading.Event()
        self._since: float | None = None  # monotonic time at which the trouble began
        self._next_try, self._pause = 0.0, _PAUSE
        self._said_unwritable = False
        self._orphans: Ingester | None = None  # ingests the spools of processes that died
        self._has_orphans = True  # True until all that was found is ingested
        self._intake = Intake(address, self.engine, name, is_own=True)
        self._spool = Spool(spool_folder(address), name, limits.spool_bytes, before)

    @property
    def running(self) -> bool:
        """Returns True if, as far as this process knows, one of its runs is still going on."""
        return self.spools_always or self._intake.running

    @property
    def waiting(self) -> Path | None:
        """Returns the folder in which entries wait for the database; None if no entry waits."""
        return self._spool.folder if self._spool else None

    def engine(self) -> Engine:
        """Opens or creates the database, again if its file was deleted or replaced. Raises DatabaseError."""
        with self._opening:
            if self._engine is not None and _file_of(self._address) != self._opened:
                logger.warning(
                    "logs-ui: %s was deleted or replaced. From now on, data is recorded in the new file, which lacks "
                    "what was recorded before.",
                    shown(self._address),
                )
                self._engine.dispose()
                self._engine = None
            if self._engine is None:
                # The seconds that one try may wait; a second one must still fit in before the process has to end.
                patience = max(0.1, min(self._limits.spool_seconds, self._limits.end_seconds / 2))
                self._engine = writing_engine(self._address, patience, self._hurried.is_set)
                self._opened = _file_of(self._address)
            return self._engine

    def store(self, entry: Entry) -> None:
        """Stores an entry and returns once it is durable.

        The entry goes to the database. It goes to the spool if other entries already wait there (their order must be
        kept), or if the database has been away for `limits.spool_seconds`. If there is no room on disk either, tries
        both until one of them takes the entry. Raises RefusedDatabaseError if the database can never be written.
        """
        pause = _PAUSE
        while not (self._goes_to_disk() and self._is_on_disk(entry)):
            if not self.spools_always and self._is_drained(None) and self._is_taken(entry):
                return
            if self._hurried.is_set():
                time.sleep(_PAUSE)  # waiting for an event that is set would return at once
            else:
                self._hurried.wait(pause)
                pause = min(2 * pause, _PATIENCE)

    def beat(self, entry: Entry) -> None:
        """Stores a heartbeat if that is possible now, and drops it otherwise: a later one does as well."""
        if self.spools_always:
            self._is_on_disk(entry)
        elif not self._spool:
            self._is_taken(entry)

    def catch_up(self) -> None:
        """Ingests this process's own spool, or else those of dead processes, for about a second."""
        if self._spool and not self.spools_always:
            self._is_drained(_AT_ONCE)
        elif self._has_orphans and self._engine is not None:
            until = time.monotonic() + _AT_ONCE
            self._has_orphans = False
            with guard("ingesting the spools of other processes"):
                self._orphans = self._orphans or Ingester(self._address, self._hurried.is_set)
                self._has_orphans = not self._orphans.take_in(lambda: time.monotonic() > until).is_all

    def hurry(self, *, hurried: bool) -> None:
        """Sets whether the process may end at any time. If so, what the database does not take is spooled at once."""
        if hurried:
            self._hurried.set()
        else:
            self._hurried.clear()

    def checkpoint(self) -> None:
        """Moves SQLite's write-ahead log into the database's file if the log has grown large."""
        if self._engine is not None:
            checkpoint(self._address, self._engine, WAL_BYTES)

    def settle(self, seconds: float = 0.0) -> None:  # noqa: ARG002 - it is done in this thread
        """Moves all committed data into the database's file, so that this file alone can be copied."""
        if self._engine is not None:
            checkpoint(self._address, self._engine, 0)

    def close(self, seconds: float = 0.0) -> bool:  # noqa: ARG002
        """Closes the spool, whose entries other processes then ingest, and the database. Returns True.

        SQLite removes its log and index if no other process has the database open.
        """
        self.settle()
        if self._using_spool.acquire(timeout=1.0):  # the writer's thread may still be in a call that hangs
            self._spool.close()
        if self._engine is not None:
            self._engine.dispose()
        return True

    def abandon(self) -> Engine | None:
        """Releases the parent's files in a child, after a fork; returns the parent's engine. The child must keep a
        reference to it and never use it: to close its connections would break those of the parent.
        """
        self._spool.abandon()
        return self._engine

    def _goes_to_disk(self) -> bool:
        """Returns True if an entry is to be spooled, provided that there is room on disk."""
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
        self.dropped += refused
        self._said_unwritable = False
        if first and not self.spools_always:
            logger.warning(
                "logs-ui: recorded data waits in %s until the database can be written again.", self._spool.folder
            )
        return True

    def _is_drained(self, seconds: float | None) -> bool:
        """Ingests this process's own spool for about `seconds`. Returns True if the spool is empty now."""
        if not self._spool:
            return True
        began = time.monotonic()
        if began < self._next_try:
            return False
        try:
            with self._using_spool:
                while waiting := self._spool.first():
                    self.dropped += self._intake.take([entries.decoded(frame.data) for frame in waiting])
                    self._spool.forget(waiting)
                    if seconds is not None and time.monotonic() - began > seconds:
                        return False
                sync_log(self._address)  # before the spool is deleted: a power failure could lose the last commits
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
            self.dropped += self._intake.take([entry])
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
        if first:  # not for each new text: a server that is starting up reports several different errors
            logger.error("logs-ui: %s Your training goes on; its data is kept, and stored later.", error)

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
                "logs-ui: %s has reached its limit of %d MiB. From now on, recorded data is kept in memory; set "
                "LOGS_UI_SPOOL_MB to as much as your disk allows.",
                self._spool.folder,
                self._limits.spool_bytes >> 20,
            )
        else:
            logger.error(
                "logs-ui: %s cannot be written: %s. Recorded data is kept in memory; set LOGS_UI_SPOOL to a folder on "
                "another disk.",
                self._spool.folder,
                getattr(error, "strerror", None) or error,
            )


def _file_of(address: Address) -> tuple[int, int] | None:
    """Returns device and inode of the database's file.

    None if there is no file, and for a server: if that is replaced, its connections break anyway.
    """
    if not isinstance(address, Path):
        return None
    try:
        found = address.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino
