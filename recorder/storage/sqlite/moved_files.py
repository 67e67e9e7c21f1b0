"""Keeps a database and SQLite's write-ahead log together if the file is moved, replaced or overwritten.

SQLite finds the log by its name alone: it reads the log into any other file of that name, and damages it
(https://sqlite.org/howtocorrupt.html, "Separating a database file from its hot journal"). So a process that records
notices a moved file (`OpenFile`), and whoever opens a file looks first whether the log beside it is its own
(`keep_apart`).

To compare file and log without SQLite: the numbers in the file's header (`_header`) stay as they were when the log
began until a checkpoint writes them anew, as they stand in the log. What they were then is written down, with the
log's own random numbers (`_salts`), in a small file in the spool's folder.
"""

import json
import logging
import os
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from enum import StrEnum
from pathlib import Path

from sqlalchemy import Engine
from sqlalchemy.exc import SQLAlchemyError

from logs_ui.recorder.errors import DatabaseError
from logs_ui.recorder.storage.sidecars import FileIdentity, file_identity
from logs_ui.recorder.storage.spool_folder import spool_folder
from logs_ui.recorder.storage.sqlite.checkpoints import log_of

logger = logging.getLogger("logs_ui")

_PATIENCE = 2.0  # seconds for a living process that has the log open to take it away itself
_POLL = 0.05
_LOOKS = 4  # that must all find another file's header
_BUSY_MS = 500  # for readers that still need the log of a file that was moved
_LOG_HEADER, _FRAME_HEADER = 32, 24  # bytes; https://sqlite.org/fileformat2.html, "The WAL File Format"
_OPEN_FILES = Path("/dev/fd")

Header = tuple[int, ...]
"""Page size, number of pages, of free pages, and version of the schema, as the header of a database has them."""


class Fate(StrEnum):
    """Describes what happened to a file that is open, in words for people."""

    MOVED = "was moved"
    RELINKED = "is a link, which leads to another file now; what was recorded stays where it is"
    OVERWRITTEN = "was overwritten by another file"
    REPLACED = "was replaced by another file"
    DELETED = "was deleted"


class MovedError(DatabaseError):
    """The file at a path is not the one that was opened there, or the log beside it is another."""


class Place:
    """The files that lie at a database's path: its own, and its log. Look before the database is opened, and again
    after it: SQLite opens one after the other, each by its name.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._log = log_of(path)
        self.files = self._now()

    def is_same(self) -> bool:
        """Return True if neither file was moved or replaced since. One that was missing may have begun."""
        now = self._now()
        is_same = all(before in {None, file} for before, file in zip(self.files, now, strict=True))
        self.files = now if is_same else self.files
        return is_same

    def check(self) -> None:
        """Raise MovedError if a file was moved or replaced since. A log that is gone beside the same file is none of
        these: who closes a database last moves its log into it, and deletes that. Another log beside the same file was
        begun after that: it is taken up, and is right at the next try.
        """
        file, log = self._now()
        is_same_file = file == self.files[0]
        if is_same_file and log is None:
            self.files = file, log
        if not self.is_same():
            if is_same_file:
                self.files = file, log
            raise MovedError(f"{self.path} was moved or replaced just now. Try again.")

    def _now(self) -> tuple[FileIdentity | None, FileIdentity | None]:
        return file_identity(self.path), file_identity(self._log)


class OpenFile:
    """The file of a database that this process has open for writing."""

    def __init__(self, place: Place, mark: Path) -> None:
        """Look at a file that was just opened; `place` is from before that. `note_log` writes in the file `mark`."""
        self.path = Path(os.path.realpath(place.path))  # as SQLite does: the log lies there
        self._place, self._link, self._mark = place, place.path, mark
        place.is_same()  # takes up what was begun meanwhile
        self._file, self._log = place.files
        self._salts: bytes | None = None
        self._headers = {header} if (header := _header(self.path)) else set[Header]()  # that the file may have

    def note_log(self) -> None:
        """Write down which log belongs to the file, if that has changed. Call it after each commit."""
        salts, header = _salts(log_of(self.path)), None
        if salts != self._salts:
            header = _header(self.path)
        if header is None or not self.is_at_its_place():  # else they are those of another file
            return
        self._salts, self._headers = salts, {header}
        with suppress(OSError):
            if salts is not None:
                self._mark.parent.mkdir(parents=True, exist_ok=True)
                self._mark.write_text(json.dumps([salts.hex(), *header]))

    def is_at_its_place(self) -> bool:
        """Return True if neither the file nor its log was moved or replaced since it was opened."""
        return self._place.is_same()

    def is_as_left(self) -> bool:
        """Return True unless somebody has overwritten the file at its place. Takes half a millisecond, or
        200 ms if that is doubtful.
        """
        for _ in range(_LOOKS):
            self.note_log()
            header = _header(self.path)
            if header not in self._headers:  # a checkpoint changes it, or somebody else
                self._headers |= {*_headers_in(log_of(self.path))}
            if _fits(header, self._headers) or not self.is_at_its_place():
                return True
            time.sleep(_POLL)  # another process may have begun the log anew between two of these looks
        return False

    def fate(self) -> tuple[Fate, Path | None]:
        """Return what happened to a file that is not as it was left, and where it lies now; None if nowhere, or if
        the system does not tell.
        """
        if file_identity(self.path) == self._file:
            is_elsewhere = file_identity(self._link) != self._file and self.is_as_left()
            return (Fate.RELINKED if is_elsewhere else Fate.OVERWRITTEN), self.path
        # One of this process's descriptors is that of the file: it shows if the file still has a name, and on Linux
        # which one.
        for number in _OPEN_FILES.iterdir() if _OPEN_FILES.exists() else ():
            with suppress(OSError, ValueError):
                status = os.fstat(int(number.name))
                if (status.st_dev, status.st_ino) != self._file:
                    continue
                if not status.st_nlink:
                    return (Fate.REPLACED if self._link.exists() else Fate.DELETED), None
                place = number.readlink()  # only Linux tells
                return Fate.MOVED, place if file_identity(place) == self._file else None
        return Fate.MOVED, None

    def release_log(self, engine: Engine, fate: Fate) -> bool:
        """Take the log out of the way of the file that lies at the path now. Return True if all that was committed
        is in the opened file: not if a reader still needs the log. Open connections go on as before.
        """
        log, index = log_of(self.path), Path(f"{self.path}-shm")
        is_own = file_identity(log) == self._log  # else another process was faster
        if fate == Fate.RELINKED:
            return True
        if fate == Fate.OVERWRITTEN:
            if is_own:
                _set_aside(self.path)
            # Without another connection SQLite would move the log into the file when it closes the last one.
            with closing(sqlite3.connect(f"{self.path.as_uri()}?mode=ro", uri=True)) as other:
                with suppress(sqlite3.Error):
                    other.execute("SELECT 1 FROM sqlite_master").fetchone()
                engine.dispose()
            return False
        is_whole = fate == Fate.MOVED and _is_emptied(engine)
        if is_own:
            log.unlink(missing_ok=True)
            index.unlink(missing_ok=True)
        return is_whole

    def copied(self, engine: Engine) -> Path | None:
        """Copy a file that has no name any more, for which only open connections are left, to one beside its path.
        Return None if that fails, or if its folder was deleted, too.
        """
        if not self.path.parent.is_dir():
            return None
        copy = self.path.with_name(f"{self.path.stem}.replaced-{os.urandom(3).hex()}{self.path.suffix}")
        try:
            with closing(engine.raw_connection()) as connection:
                connection.cursor().execute("VACUUM INTO ?", [str(copy)])
        except (sqlite3.Error, SQLAlchemyError, DatabaseError) as error:
            logger.warning("logs-ui: what was recorded in %s cannot be copied: %s", self.path, error)
            return None
        return copy


def _is_emptied(engine: Engine) -> bool:
    """Move all of the log into the opened file. Return False if that fails, as where a reader still needs the log."""
    with suppress(sqlite3.Error, SQLAlchemyError, DatabaseError), closing(engine.raw_connection()) as connection:
        cursor = connection.cursor()
        cursor.execute(f"PRAGMA busy_timeout={_BUSY_MS}")
        # SQLite returns if it was busy, the pages in the log, and those of them that were moved: all 0 once the log is
        # empty.
        return bool(cursor.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone() == (0, 0, 0))
    return False


def keep_apart(path: Path) -> None:
    """Move a log aside that belongs to another file than the one at the path, after two seconds in which a process
    that has it open may take it away itself. Raise DatabaseError if it cannot.
    """
    deadline = time.monotonic() + _PATIENCE
    while _is_foreign(path):
        if time.monotonic() < deadline:
            time.sleep(_POLL)
            continue
        log = log_of(path)
        try:
            aside = _set_aside(path)
        except OSError as error:
            raise DatabaseError(
                f"{path} was moved or replaced, and {log} belongs to the earlier file. SQLite would read it into "
                f"this one, and it cannot be renamed ({error.strerror}). Move it away."
            ) from None
        logger.warning(
            "logs-ui: %s was moved or replaced after its last recording had been killed. SQLite's log of the earlier "
            "file is kept as %s. What was recorded last waits in %s, and is stored in this file.",
            path,
            aside,
            spool_folder(path),
        )


def _is_foreign(path: Path) -> bool:
    """Return True if it is known that the log beside the file belongs to another file."""
    log = log_of(path)
    salts = _salts(log)
    if salts is None:
        return False
    headers = set[Header]()
    for mark in spool_folder(path).glob("*.log"):
        with suppress(OSError, ValueError):  # a process may have been killed while it wrote
            of_log, *header = json.loads(mark.read_text())
            headers |= {tuple(header)} if of_log == salts.hex() else set()
    return bool(headers) and not _fits(_header(path), headers | {*_headers_in(log)})


def _fits(header: Header | None, headers: set[Header]) -> bool:
    """Return True if a file may have its header, by those that it had. While a checkpoint works, and after one that
    was killed, the file may have fewer pages than its header says: any number between is right.
    """
    # Without known headers there is nothing to compare. What is no database fits none of those that are known.
    if header is None or not headers:
        return not headers
    size, pages, *others = header
    counts = sorted(earlier[1] for earlier in headers)
    return (
        any([earlier[0], *earlier[2:]] == [size, *others] for earlier in headers) and counts[0] <= pages <= counts[-1]
    )


def _set_aside(path: Path) -> Path:
    """Rename the log, and delete its index. Return the new name."""
    log = log_of(path)
    aside = log.with_name(f"{log.name}-of-another-file-{os.urandom(3).hex()}")
    log.rename(aside)
    Path(f"{os.path.realpath(path)}-shm").unlink(missing_ok=True)
    return aside


def _header(path: Path) -> Header | None:
    """Return what stands in the file itself, whatever its log holds; None if it is no SQLite database. SQLite reads
    it: to open and close the file here would drop the locks that this process holds on it.
    """
    names = ("page_size", "page_count", "freelist_count", "schema_version")
    with (
        suppress(sqlite3.Error),
        closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro&immutable=1", uri=True)) as connection,
    ):
        connection.execute("PRAGMA writable_schema=ON")  # else a file that is shorter than its header says is refused
        return tuple(connection.execute(f"PRAGMA {name}").fetchone()[0] for name in names)
    return None


def _salts(log: Path) -> bytes | None:
    """Return the random numbers that a log has got at its beginning; None if there is no log, or an empty one."""
    with suppress(OSError), log.open("rb") as file:
        return file.read(_LOG_HEADER)[16:24] or None
    return None


def _headers_in(log: Path) -> Iterator[Header]:
    """Yield the header of each version of the first page in a log."""
    with suppress(OSError), log.open("rb") as file:
        begin = file.read(_LOG_HEADER)
        size, salts = int.from_bytes(begin[8:12]), begin[16:24]
        # Frames with other salts are left from before the log was begun anew. Of page 1 the numbers of `Header` are
        # read, at the places where the header of a database has them.
        while len(frame := file.read(_FRAME_HEADER)) == _FRAME_HEADER and frame[8:16] == salts:
            if int.from_bytes(frame[:4]) == 1:
                page = file.read(size)
                yield (size, *(int.from_bytes(page[at : at + 4]) for at in (28, 36, 40)))
            else:
                file.seek(size, os.SEEK_CUR)
