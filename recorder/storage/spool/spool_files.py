"""Files in which what is recorded waits for its database: for each process its own, appended to by it alone.

A process's spool is a series of files (`HOST-PID-LETTERS.000001.spool`, ...), see `spool_format.py`. What a killed
process, or a machine that lost its power, left of a last frame is cut off: `flush()` had not returned for it. A file is
held under a lock (flock) for as long as its process may append to it.
"""

import fcntl
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

from logs_ui.recorder.storage.changes import NO_ENTRY, EntryNumber
from logs_ui.recorder.storage.spool.spool_format import FORMAT, Frame, frame_of, frames, grouped, is_ended

logger = logging.getLogger("logs_ui")

_PARTS = 100_000  # of each process that writes in the place of one that ended: no name is used again
_FILE_BYTES = 64 << 20  # from which the next file is begun, so that what is in the database can be deleted
_NAME = re.compile(r"(?P<writer>.+)\.(?P<part>\d{6,})\.spool")


class SpoolFile(NamedTuple):
    """One that is there.

    Attributes:
        writer: name of the process that wrote it.
        part: the how manieth of its files.
    """

    path: Path
    writer: str
    part: int


def new_writer_name() -> str:
    """Unique, and tells people which process it was."""
    host = re.sub(r"[^\w-]+", "-", socket.gethostname().partition(".")[0], flags=re.ASCII)
    return f"{host[:40] or 'host'}-{os.getpid()}-{secrets.token_hex(6)}"


def spool_files(folder: Path) -> list[SpoolFile]:
    """Those that are there, each process's in their order; none where there is no folder, or it cannot be read."""
    try:
        paths = list(folder.iterdir())
    except OSError:
        return []
    named = ((path, _NAME.fullmatch(path.name)) for path in paths)
    found = [SpoolFile(path, match["writer"], int(match["part"])) for path, match in named if match]
    return sorted(found, key=lambda file: (file.writer, file.part))


class Spool:
    """Of this process. Not for several threads at once.

    Attributes:
        size: bytes in its files.
    """

    def __init__(self, folder: Path, writer: str, most_bytes: int, before: int = 0) -> None:
        """Nothing is made before the first frame. What so many processes `before` it left under the same name is its
        own.
        """
        self.folder = folder
        self.size = 0
        self._writer, self._most = writer, most_bytes
        self._file: FileIO | None = None  # the last of `_files`, which is appended to
        self._files: list[Path] = []
        self._part = before * _PARTS
        self._end = 0  # of the last whole frame
        self._taken = 0  # of the first file, up to this offset
        if before:
            self._files = [file.path for file in spool_files(folder) if file.writer == writer]
            self._measure()

    def __bool__(self) -> bool:
        """Whether anything waits in it."""
        return bool(self._files)

    def append(self, number: EntryNumber, data: bytes) -> None:
        """Returns once it is on the disk.

        Raises:
            SpoolFullError: it would be larger than it may.
            OSError: it cannot be written. What stood before it is whole.
        """
        frame = frame_of(number, data)
        if self.size + len(frame) > self._most:
            self._measure()
            if self.size + len(frame) > self._most:
                raise SpoolFullError
        if self._file is not None and (self._end >= _FILE_BYTES or not _is_there(self._file)):
            self._finish()
        if self._file is None:
            self._begin()
        self._write(frame)

    def first(self) -> list[Frame]:
        """The oldest frames, as many as go into one transaction; none where it holds none any more. Until `forget` the
        same are given.

        Raises:
            OSError: a file cannot be read.
        """
        while self._files:
            with suppress(FileNotFoundError), self._files[0].open("rb") as file:  # another may have taken it in
                if found := next(grouped(frames(file, self._taken)), None):
                    return found
            if len(self._files) == 1:
                break
            self._delete(self._files[0])
        return []

    def forget(self, taken: Sequence[Frame]) -> None:
        """Of the frames that `first` gave: they are in the database."""
        self._taken = taken[-1].end

    def clear(self) -> None:
        """Once all of it is in the database."""
        self._finish()
        for path in self._files.copy():
            self._delete(path)
        with suppress(OSError):  # others are in it
            self.folder.rmdir()

    def close(self) -> None:
        """Leaves its files to whoever takes them in."""
        self._finish()

    def abandon(self) -> None:
        """In a child, after a fork: the files are its parent's, and so is the lock, which the child shares."""
        if self._file is not None:
            self._file.close()

    def _measure(self) -> None:
        """Others may have taken files in, and deleted them."""
        sizes: dict[Path, int] = {}
        for path in self._files:
            with suppress(FileNotFoundError):
                sizes[path] = path.stat().st_size
        if self._files and self._files[0] not in sizes:
            self._taken = 0
        self._files, self.size = [*sizes], sum(sizes.values())

    def _begin(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        self._part += 1
        path = self.folder / f"{self._writer}.{self._part:06d}.spool"
        made = path.with_suffix(".new")  # nobody looks for it before it is locked
        try:
            file = FileIO(made, "x")
        except FileNotFoundError:  # another process has taken the empty folder away
            self.folder.mkdir(parents=True, exist_ok=True)
            file = FileIO(made, "x")
        try:
            with suppress(OSError):  # a file system without locks
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            _write_all(file, FORMAT)
            os.fsync(file.fileno())
            made.rename(path)
            _sync_folder(self.folder)
        except OSError:
            file.close()
            with suppress(OSError):
                made.unlink()
            raise
        self._file, self._end = file, len(FORMAT)
        self._files.append(path)
        self.size += self._end

    def _write(self, frame: bytes) -> None:
        file = self._file
        assert file is not None  # noqa: S101
        try:
            _write_all(file, frame)
            _sync(file)
        except OSError:
            self._cut(file)
            raise
        self._end += len(frame)
        self.size += len(frame)

    def _cut(self, file: FileIO) -> None:
        """Takes back a frame that was written in part; where that fails, too, the next one begins another file."""
        try:
            os.ftruncate(file.fileno(), self._end)
            file.seek(self._end)
        except OSError:
            file.close()
            self._file = None

    def _finish(self) -> None:
        """Says that nothing more comes in the file that is appended to."""
        if self._file is not None:
            with suppress(OSError):  # then it counts as one whose process was killed
                _write_all(self._file, frame_of(NO_ENTRY, b""))
                _sync(self._file)
            self._file.close()
            self._file = None

    def _delete(self, path: Path) -> None:
        with suppress(OSError):
            size = path.stat().st_size
            put_away(path, self._taken)
            self.size -= size
        self._files.remove(path)
        self._taken = 0
        if not self._files:
            self.size = 0


class SpoolFullError(Exception):
    """It may not grow any more."""


def put_away(path: Path, end: int) -> int:
    """Deletes a file that is in the database up to an offset. Where what follows is torn, whole entries may lie behind
    it: the file is kept then, as `.torn`, which nobody takes in.

    Returns:
        How many bytes of it are torn.

    Raises:
        OSError: it cannot be deleted; a FileNotFoundError where another did.
    """
    with path.open("rb") as file:
        torn = os.fstat(file.fileno()).st_size - max(end, len(FORMAT))
        if torn > 0 and is_ended(file, end):
            torn = 0
    if torn > 0:
        path.rename(path.with_suffix(".torn"))
        return torn
    path.unlink()
    return 0


def _write_all(file: FileIO, data: bytes) -> None:
    """Unbuffered files write what they can, which on a disk that becomes full is a part."""
    rest = memoryview(data)
    while rest:
        rest = rest[file.write(rest) :]


def _is_there(file: FileIO) -> bool:
    """Whether it has not been deleted."""
    try:
        return os.fstat(file.fileno()).st_nlink > 0
    except OSError:  # as of a network file system where another machine deleted it
        return False


def _sync(file: FileIO) -> None:
    """As macOS can, too."""
    getattr(os, "fdatasync", os.fsync)(file.fileno())


def _sync_folder(folder: Path) -> None:
    """So that the file's name survives a power failure, too."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        with suppress(OSError):  # some network file systems know no such thing
            os.fsync(descriptor)
    finally:
        os.close(descriptor)
