"""Stores the entries of one process: in the database, or in the spool on disk while the database cannot be written.

An entry for an SQLite file goes into the spool first, and stays there until it is in the file itself, not only in
SQLite's log: if the file is moved while nobody is left to keep the log beside it, the log is lost (`moved_files.py`).

The helper process calls it, or a thread of the training if there is no helper process.
"""

import logging
import shlex
import sqlite3
import threading
import time
from contextlib import suppress
from pathlib import Path

import msgspec
from sqlalchemy import Engine

from logs_ui.recorder.errors import DatabaseError, RefusedDatabaseError
from logs_ui.recorder.guard import guard
from logs_ui.recorder.storage.address import Address, masked_address
from logs_ui.recorder.storage.database import writing_engine
from logs_ui.recorder.storage.limits import Limits
from logs_ui.recorder.storage.spool import entry as entries
from logs_ui.recorder.storage.spool.entry import Entry, EntryOf
from logs_ui.recorder.storage.spool.files import Spool, SpoolFullError
from logs_ui.recorder.storage.spool.ingest import Ingester
from logs_ui.recorder.storage.spool.intake import Intake
from logs_ui.recorder.storage.spool_folder import spool_folder
from logs_ui.recorder.storage.sqlite.checkpoints import checkpoint
from logs_ui.recorder.storage.sqlite.engine import WAL_BYTES
from logs_ui.recorder.storage.sqlite.moved_files import Fate, MovedError, OpenFile, Place

logger = logging.getLogger("logs_ui")

_PAUSE = 0.2  # seconds between the first two tries; doubled after each failure
_PATIENCE = 5.0  # maximum of that pause in seconds; it is longer only if a try itself takes longer
_GRACE = 1.0  # seconds after which a file that was deleted counts as gone
_LACKS = ", which lacks what was recorded before: that is all in the moved one"
_REPEATS = ", beginning with what was recorded last"
_COPIED = "What was recorded before was copied to %s; to bring it over: logs-ui db merge %s --into %s"
_LOST = " What only the overwritten file had is lost."
_AT_ONCE = 1.0  # seconds to ingest before new entries get their turn, so that the writer's queue does not grow


class Storage:
    """Stores the entries of one process in one database.

    Only the writer's thread may call it, except for `engine`, `settle`, `hurry` and `close`.
    """

    def __init__(
        self, address: Address, limits: Limits, entry_of: EntryOf, *, spools_always: bool, name: str, before: int = 0
    ) -> None:  # fmt: skip
        """Open no file and no connection yet. With `spools_always` all entries go to the spool, and another process
        ingests them, as on a network file system. For `name` and `before` see `Spool`.
        """
        self.trouble: str | None = None  # why the database cannot be written now; None if it can
        self.dropped = 0  # number of changes that neither the database nor the spool could store
        self.spools_always = spools_always
        self._address, self._limits, self._entry_of = address, limits, entry_of
        self._engine: Engine | None = None
        self._file: OpenFile | None = None  # that `_engine` has open; None for a server
        self._deleted_since: float | None = None  # monotonic time at which that file was found deleted
        self._opening = threading.Lock()
        self._using_spool = threading.RLock()
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
        """Return True if, as far as this process knows, one of its runs is still going on."""
        return self.spools_always or self._intake.running

    @property
    def waiting(self) -> Path | None:
        """Return the folder in which entries wait for the database; None if no entry waits."""
        return self._spool.folder if self._spool else None

    def engine(self) -> Engine:
        """Open or create the database. Raise DatabaseError; a MovedError if the file is not the one that is open."""
        with self._opening:
            if self._engine is None:
                # The seconds that one try may wait; a second one must still fit in before the process has to end.
                patience = max(0.1, min(self._limits.spool_seconds, self._limits.end_seconds / 2))
                place = None
                if isinstance(self._address, Path) and not self.spools_always:
                    with suppress(OSError):  # which is explained below
                        self._address.parent.mkdir(parents=True, exist_ok=True)
                        self._address.open("x").close()  # so that the place is known before SQLite opens it
                    place = Place(self._address)
                self._engine = writing_engine(self._address, patience, self._hurried.is_set)
                self._file = None if place is None else OpenFile(place, self._spool.mark)
            elif self._file is not None and not self._file.is_at_its_place():
                raise MovedError
            return self._engine

    def store(self, entry: Entry) -> None:
        """Store an entry and return once it is durable.

        The entry goes to the database. It goes to the spool if other entries already wait there (their order must be
        kept), or if the database has been away for `limits.spool_seconds`. If there is no room on disk either, tries
        both until one of them takes the entry. Raise RefusedDatabaseError if the database can never be written.
        """
        pause = _PAUSE
        while not (self._goes_to_disk() and self._is_on_disk(entry)):
            # The database gets the entry only once nothing waits before it: entries are stored in their order.
            if not self.spools_always and self._is_drained(None) and self._is_taken(entry):
                return
            if self._hurried.is_set():
                time.sleep(_PAUSE)  # waiting for an event that is set would return at once
            else:
                self._hurried.wait(pause)
                pause = min(2 * pause, _PATIENCE)

    def beat(self, entry: Entry) -> None:
        """Store a heartbeat if that is possible now, and drop it otherwise: a later one does as well."""
        if self.spools_always:
            self._is_on_disk(entry)
        elif not self._spool:
            self._is_taken(entry)

    def catch_up(self) -> None:
        """Ingest this process's own spool, or else those of dead processes, for about a second."""
        self._follow_file(closely=True)
        if self._spool and not self.spools_always:
            self._is_drained(_AT_ONCE)
        elif self._has_orphans and self._engine is not None:
            deadline = time.monotonic() + _AT_ONCE
            self._has_orphans = False
            with guard("ingesting the spools of other processes"):
                self._orphans = self._orphans or Ingester(self._address, self._entry_of, self._hurried.is_set)
                self._has_orphans = not self._orphans.take_in(lambda: time.monotonic() > deadline).is_all

    def hurry(self, *, hurried: bool) -> None:
        """Set whether the process may end at any time. If so, what the database does not take is spooled at once."""
        if hurried:
            self._hurried.set()
        else:
            self._hurried.clear()

    def checkpoint(self) -> None:
        """Move SQLite's write-ahead log into the database's file if the log, or the spool, has grown large. What is
        in the file then leaves the spool.
        """
        self._follow_file(closely=True)
        self._sweep(0 if self._spool.size > 2 * WAL_BYTES else WAL_BYTES)

    def _sweep(self, beyond: int) -> None:
        if self._engine is not None and checkpoint(self._address, self._engine, beyond):
            with self._using_spool:
                self._spool.sweep()

    def settle(self, seconds: float = 0.0) -> None:  # noqa: ARG002 - it is done in this thread
        """Move all committed data into the database's file, so that this file alone can be copied."""
        if self._engine is not None:
            checkpoint(self._address, self._engine, 0)

    def close(self, seconds: float = 0.0) -> None:  # noqa: ARG002
        """Close the spool, whose entries other processes then ingest, and the database.

        SQLite removes its log and index if no other process has the database open.
        """
        is_free = self._using_spool.acquire(timeout=1.0)  # the writer's thread may still be in a call that hangs
        if is_free:
            self._follow_file(closely=True, grace=0)
        is_whole = self._engine is not None and checkpoint(self._address, self._engine, 0)
        if is_free:
            # Spool files are deleted only if all is in the database's own file; what is left there is for an ingest.
            if is_whole and not self._spool:
                self._spool.remove()
            else:
                self._spool.close()
        if self._engine is not None:
            self._engine.dispose()

    def abandon(self) -> Engine | None:
        """Release the parent's files in a child, after a fork; return the parent's engine. The child must keep a
        reference to it and never use it: to close its connections would break those of the parent.
        """
        self._spool.abandon()
        return self._engine

    def _follow_file(self, *, closely: bool = False, grace: float = _GRACE) -> None:
        """Close a file that was moved, replaced or, if it looks `closely`, overwritten, so that the database is opened
        anew. All that is in its log only is stored in it before, or else waits in the spool for the new file. A file
        that was deleted is closed after `grace` seconds.
        """
        engine, file, path = self._engine, self._file, self._address
        if engine is None or file is None or not isinstance(path, Path):
            return
        if file.is_at_its_place() and not (closely and not file.is_as_left()):
            self._deleted_since = None
            return
        fate, place = file.fate()
        if fate == Fate.DELETED:  # for a second another file may be on its way
            self._deleted_since = self._deleted_since or time.monotonic()
            if time.monotonic() - self._deleted_since < grace:
                return
        with self._opening, self._using_spool:
            try:
                is_whole = file.release_log(engine, fate)
            except (OSError, sqlite3.Error) as error:
                trouble = f"{path} {fate}, and its log cannot be taken away ({error}). Move {path.name}-wal away."
                self._failed(DatabaseError(trouble), time.monotonic())
                return
            follows = f"From now on, data is recorded in the file at that path{_LACKS if is_whole else _REPEATS}."
            if fate in {Fate.REPLACED, Fate.DELETED} and (copy := file.copied(engine)) is not None:
                follows += f" {_COPIED % (copy, shlex.quote(str(copy)), shlex.quote(str(path)))}"
            follows += _LOST if fate == Fate.OVERWRITTEN else ""
            lies = f" to {place}" if fate == Fate.MOVED and place is not None else ""
            logger.warning("logs-ui: %s %s%s. %s", path, fate, lies, follows)
            # What was in the log alone waits for the new file.
            if not is_whole:
                self._spool.remember()
            elif not self._spool:
                self._spool.sweep()
            engine.dispose()
            self._engine = self._file = None

    def _goes_to_disk(self) -> bool:
        """Return True if an entry is to be spooled, provided that there is room on disk."""
        if self.spools_always:
            return True
        if self._spool:  # what a predecessor left there, or was meant for a file that was moved, is stored first
            # The entry goes behind those that wait if the database is away, or if a second does not store them all.
            return self._since is not None or not self._is_drained(_AT_ONCE)
        away = 0.0 if self._since is None else time.monotonic() - self._since
        return self._since is not None and (self._hurried.is_set() or away >= self._limits.spool_seconds)

    def _is_on_disk(self, entry: Entry, *, waits: bool = True) -> bool:
        """Append an entry to the spool, where it waits unless the database gets it next. Return False if that cannot
        be.
        """
        data, refused = entries.encoded(entry)
        first = waits and not self._spool and not self.spools_always
        try:
            with self._using_spool:
                self._spool.append(entry.number, data, waits=waits)
        except (OSError, SpoolFullError) as error:
            if waits:
                self._say_unwritable_once(error)
            return False
        self._said_unwritable = False
        self.dropped += refused if waits else 0
        if first:
            logger.warning(
                "logs-ui: recorded data waits in %s until the database can be written again.", self._spool.folder
            )
        return True

    def _is_drained(self, seconds: float | None) -> bool:
        """Ingest this process's own spool for about `seconds`. Return True if no entry waits now."""
        began = time.monotonic()
        if began < self._next_try:
            return False
        self._follow_file()
        if not self._spool:
            return True
        try:
            with self._using_spool:
                while waiting := self._spool.first():
                    decoded = [entries.decoded(frame.data, self._entry_of) for frame in waiting]
                    self.dropped += self._intake.take(decoded)
                    self._spool.forget(waiting)
                    self.checkpoint()
                    if seconds is not None and time.monotonic() - began > seconds:
                        return False
            # Once nothing waits, the log is moved into the file, so that the spool can be emptied.
            self._sweep(0)
        except RefusedDatabaseError:
            raise
        except (DatabaseError, OSError, msgspec.DecodeError) as error:
            self._failed(error, began)
            return False
        self._works()
        return True

    def _is_taken(self, entry: Entry) -> bool:
        began = time.monotonic()
        is_kept = False
        try:
            self.engine()
            # An entry for an SQLite file is in the spool, too, until the log is in the file. One that the database does
            # not take is cut off there again, since it is tried again.
            is_kept = self._file is not None and self._is_on_disk(entry, waits=False)
            self.dropped += self._intake.take([entry])
        except DatabaseError as error:
            if is_kept:
                with self._using_spool:
                    self._spool.retract()
            if isinstance(error, RefusedDatabaseError):
                raise
            self._failed(error, began)
            return False
        if is_kept:
            self._spool.forget_last()
        if self._file is not None:
            self._file.note_log()
        self._works()
        return True

    def _failed(self, error: Exception, began: float) -> None:
        if isinstance(error, MovedError):  # the next try closes the file first
            return
        now = time.monotonic()
        self._since = began if self._since is None else self._since
        # A try that takes long is followed by a pause twice as long, so that most of the time is left for other work.
        self._next_try = now + max(self._pause, 2 * (now - began))
        self._pause = min(2 * self._pause, _PATIENCE)
        first, self.trouble = self.trouble is None, str(error)
        if first:  # not for each new text: a server that is starting up reports several different errors
            logger.error("logs-ui: %s Your training goes on; its data is kept, and stored later.", error)

    def _works(self) -> None:
        self._since, self._pause, self._next_try = None, _PAUSE, 0.0
        if self.trouble is not None:
            self.trouble = None
            logger.warning("logs-ui: %s can be written again.", masked_address(self._address))

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
