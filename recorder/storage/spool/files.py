"""Writes and deletes the spool of a process: files with the entries that the database's own file does not hold yet.
They wait for a database that is away, or they are stored, and SQLite's log has not been moved into the file yet.

Only the process appends to its spool, a series of files (`HOST-PID-LETTERS.000001.spool`, ...), see `format.py`.
If the process was killed, or its machine lost power, the last frame may be incomplete. It is cut off; `flush()` had not
returned for it. The process holds a lock (flock) on a file for as long as it may append to it.
"""

import logging
import os
import re
import secrets
import socket
from collections.abc import Sequence
from contextlib import suppress
from io import FileIO
from pathlib import Path
from typing import NamedTuple

from logs_ui.recorder.storage import portable
from logs_ui.recorder.storage.changes import NO_ENTRY, EntryNumber
from logs_ui.recorder.storage.file_system import sync
from logs_ui.recorder.storage.spool.format import FORMAT, Frame, frame_of, frames, grouped, is_ended

logger = logging.getLogger("logs_ui")

_PARTS = 100_000  # file numbers reserved for each process that replaces an ended one, so that no file name recurs
_FILE_BYTES = 64 << 20  # size at which the next file is begun; a file is deleted once all of it is in the database
_NAME = re.compile(r"(?P<writer>.+)\.(?P<part>\d{6,})\.spool")


class SpoolFile(NamedTuple):
    """Describes a file in a spool's folder."""

    path: Path
    writer: str  # name of the process that wrote the file
    part: int  # number of the file among those of its process; they are stored in this order


def new_writer_name() -> str:
    """Return a unique name, in which people can see the host and the process id."""
    host = re.sub(r"[^\w-]+", "-", socket.gethostname().partition(".")[0], flags=re.ASCII)
    return f"{host[:40] or 'host'}-{os.getpid()}-{secrets.token_hex(6)}"


def spool_files(folder: Path) -> list[SpoolFile]:
    """List the spool files in a folder by writer and part. Empty if the folder is missing or cannot be read."""
    try:
        paths = list(folder.iterdir())
    except OSError:
        return []
    matches = ((path, _NAME.fullmatch(path.name)) for path in paths)
    files = [SpoolFile(path, match["writer"], int(match["part"])) for path, match in matches if match]
    return sorted(files, key=lambda file: (file.writer, file.part))


class Spool:
    """Keeps the spool of this process. It is not thread-safe."""

    def __init__(self, folder: Path, writer: str, most_bytes: int, before: int = 0) -> None:
        """Create no file, nor the folder, before the first frame. `most_bytes` is the maximum size of all files
        together; `before` the number of processes that wrote under this name and have ended, whose files this one takes
        over.
        """
        self.folder, self.mark = folder, folder / f"{writer}.log"  # for `OpenFile.note_log`
        self.size = 0  # bytes in its files
        self._writer, self._most = writer, most_bytes
        self._file: FileIO | None = None  # the last of `_files`, opened for appending
        self._files: list[Path] = []
        self._part = before * _PARTS
        self._begin_of_last = self._end = 0  # offsets of the last whole frame of `_file`, and behind it
        self._taken: dict[Path, int] = {}  # for each file the offset up to which all is in the database
        self._first: Path | None = None  # the file that `first` read last
        self._waits = False
        if before:
            self._files = [file.path for file in spool_files(folder) if file.writer == writer]
            self._waits = bool(self._files)
            self._measure()

    def __bool__(self) -> bool:
        """Return True if entries may wait for the database."""
        return self._waits

    def append(self, number: EntryNumber, data: bytes, *, waits: bool = True) -> None:
        """Append an entry, and return once it is on the disk; one that does not wait is only safe from the end of
        this process. Raise SpoolFullError if the spool would become larger than it may be, and OSError if the entry
        cannot be written, which damages no earlier one.
        """
        frame = frame_of(number, data)
        if self.size + len(frame) > self._most:
            self._measure()  # another process may have ingested and deleted some files
            if self.size + len(frame) > self._most:
                raise SpoolFullError
        # A file that was deleted, as by an ingest, would lose what is appended: a new one is begun.
        if self._file is not None and (self._end >= _FILE_BYTES or not _is_there(self._file)):
            self.close()
        if self._file is None:
            self._begin()
        self._write(frame, synced=waits)
        self._waits = self._waits or waits

    def retract(self) -> None:
        """Cut off the entry that was appended last: the database did not take it."""
        assert self._file is not None  # noqa: S101
        self.size -= self._end - self._begin_of_last
        self._end = self._begin_of_last
        self._cut(self._file)

    def first(self) -> list[Frame]:
        """Return the oldest frames that wait, as many as fit in one transaction; none if none wait. Until `forget` is
        called, it returns the same frames again. Raise OSError if a file cannot be read.
        """
        for path in self._files:
            with suppress(FileNotFoundError), path.open("rb") as file:  # another process may have ingested it
                if waiting := next(grouped(frames(file, self._taken.get(path, 0))), None):
                    self._first = path
                    return waiting
        self._waits = False
        return []

    def forget(self, frames: Sequence[Frame]) -> None:
        """Note that the frames which `first` returned are in the database."""
        assert self._first is not None  # noqa: S101
        self._taken[self._first] = frames[-1].end

    def forget_last(self) -> None:
        """Note that the entry which was appended last is in the database, as all before it."""
        self._taken[self._files[-1]] = self._end

    def remember(self) -> None:
        """Let all entries wait again, for another database."""
        self._taken.clear()
        self._waits = bool(self._files)

    def sweep(self) -> None:
        """Delete the entries that are in the database. Call it once they are in its own file, not only in its log."""
        # While entries wait, all files before the one that `first` read last are stored; otherwise all are, and the
        # open one is only emptied.
        if self._waits:
            done = self._files[: self._files.index(self._first)] if self._first in self._files else []
        else:
            done = self._files[: None if self._file is None else -1]
        for path in done:
            self._delete(path)
        if self._file is not None and not self._waits:  # to empty a file takes less time than to begin one
            self._end = self.size = self._taken[self._files[-1]] = len(FORMAT)
            self._cut(self._file)

    def remove(self) -> None:
        """Delete all files, as `sweep`, and the folder."""
        self.close()
        for path in self._files.copy():
            self._delete(path)
        with suppress(OSError):  # files of other processes are in it
            self.mark.unlink(missing_ok=True)
            self.folder.rmdir()

    def abandon(self) -> None:
        """Close the open file in a child, after a fork. File and lock are the parent's."""
        if self._file is not None:
            self._file.close()

    def _measure(self) -> None:
        """Update the list of files and their size: other processes may have ingested and deleted some."""
        sizes: dict[Path, int] = {}
        for path in self._files:
            with suppress(FileNotFoundError):
                sizes[path] = path.stat().st_size
        self._files, self.size = [*sizes], sum(sizes.values())

    def _begin(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        self._part += 1
        path = self.folder / f"{self._writer}.{self._part:06d}.spool"
        # It gets its real name once it is locked, so that no ingest finds it unlocked. Windows renames no open file.
        new_path = path if portable.IS_WINDOWS else path.with_suffix(".new")
        try:
            file = FileIO(new_path, "x")
        except FileNotFoundError:  # another process has just deleted the empty folder
            self.folder.mkdir(parents=True, exist_ok=True)
            file = FileIO(new_path, "x")
        try:
            with suppress(OSError):  # the file system has no locks
                portable.lock(file)
            _write_all(file, FORMAT)
            os.fsync(file.fileno())
            if new_path != path:
                new_path.rename(path)
            with suppress(OSError):  # some network file systems cannot do this
                sync(self.folder)  # so that the names of its files survive a power failure
        except OSError:
            file.close()
            with suppress(OSError):
                new_path.unlink()
            raise
        self._file, self._end = file, len(FORMAT)
        self._files.append(path)
        self.size += self._end

    def _write(self, frame: bytes, *, synced: bool) -> None:
        file = self._file
        assert file is not None  # noqa: S101
        try:
            _write_all(file, frame)
            if synced:
                _sync(file)
        except OSError:
            self._cut(file)
            raise
        self._begin_of_last = self._end
        self._end += len(frame)
        self.size += len(frame)

    def _cut(self, file: FileIO) -> None:
        """Cut off a frame that was written in part. If that fails, too, the next frame begins a new file."""
        try:
            os.ftruncate(file.fileno(), self._end)
            file.seek(self._end)
        except OSError:
            file.close()
            self._file = None

    def close(self) -> None:
        """Mark the open file as ended, and close it. Another process ingests the files that are left."""
        if self._file is not None:
            with suppress(OSError):  # without the mark, the file counts as one of a killed process
                _write_all(self._file, frame_of(NO_ENTRY, b""))
                _sync(self._file)
            self._file.close()
            self._file = None

    def _delete(self, path: Path) -> None:
        with suppress(OSError):
            size = path.stat().st_size
            put_away(path, self._taken.get(path, 0))
            self.size -= size
        self._files.remove(path)
        self._taken.pop(path, None)
        if not self._files:
            self.size = 0


class SpoolFullError(Exception):
    """The spool has reached its maximum size."""


def put_away(path: Path, end: int) -> int:
    """Delete a file whose entries, up to an offset, are in the database.

    If a torn frame follows, whole entries may lie behind it. The file is then renamed to `.torn` and kept; no process
    ingests it. Return the number of bytes from the torn frame on; 0 if the file was deleted. Raise OSError, a
    FileNotFoundError if another process deleted it.
    """
    with path.open("rb") as file:
        # Bytes that follow the last stored entry are the end mark, or a torn frame.
        torn = os.fstat(file.fileno()).st_size - max(end, len(FORMAT))
        if torn > 0 and is_ended(file, end):
            torn = 0
    if torn > 0:
        path.rename(path.with_suffix(".torn"))
        return torn
    path.unlink()
    return 0


def _write_all(file: FileIO, data: bytes) -> None:
    """Write all bytes. An unbuffered file may write only a part of them at a time, as on a disk that becomes full."""
    rest = memoryview(data)
    while rest:
        rest = rest[file.write(rest) :]


def _is_there(file: FileIO) -> bool:
    """Return True if an open file has not been deleted."""
    try:
        return os.fstat(file.fileno()).st_nlink > 0
    except OSError:  # on a network file system, if another machine deleted it
        return False


def _sync(file: FileIO) -> None:
    """Write a file's data to the disk. macOS has no fdatasync, so fsync is used there."""
    getattr(os, "fdatasync", os.fsync)(file.fileno())
