"""A lock between machines that share a folder, where the file system's own locks are not to be relied on: a file that
only one can make (O_EXCL, which NFS keeps to from version 3 on), renewed while it is held, and anybody's once it was
not renewed for long.
"""

import os
import secrets
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

STALE = 60.0
"""Seconds without renewal after which its holder is taken for dead."""


class Lease:
    """Of one holder. Times are those of the file system, so that the machines' clocks need not agree."""

    def __init__(self, path: Path) -> None:
        """Of a file in a folder that is there."""
        self._path = path
        self._holder = f"{socket.gethostname()} {os.getpid()} {secrets.token_hex(8)}"

    @contextmanager
    def held(self) -> Iterator[bool]:
        """Gives whether it is, from now on to the end of the block: not where another holds it.

        Raises:
            OSError: the folder cannot be written.
        """
        is_held = self._make() or (self._take_over() and self._make())
        try:
            yield is_held
        finally:
            if is_held and self._read() == self._holder:
                with suppress(OSError):
                    self._path.unlink()

    def renew(self) -> bool:
        """Says that its holder is alive; returns whether it still is the holder."""
        if self._read() != self._holder:
            return False
        with suppress(OSError):
            os.utime(self._path)
        return True

    def now(self) -> float:
        """The file system's time, in seconds. For a holder.

        Raises:
            OSError: the file is gone.
        """
        os.utime(self._path)
        return self._path.stat().st_mtime

    def _make(self) -> bool:
        try:
            with self._path.open("x") as file:
                file.write(self._holder)
        except FileExistsError:
            return False
        return True

    def _take_over(self) -> bool:
        """Whether the holder was dead, and the file is out of the way."""
        holder = self._read()
        if holder is None or not self._is_dead(holder):
            return False
        aside = self._path.with_name(f"{self._path.name}-{secrets.token_hex(8)}")
        try:
            self._path.rename(aside)
        except OSError:  # another was faster
            return False
        was_dead = aside.read_text() == holder
        if not was_dead:  # another was faster, and holds it: give it back
            with suppress(OSError):
                os.link(aside, self._path)
        aside.unlink()
        return was_dead

    def _is_dead(self, holder: str) -> bool:
        host, _, rest = holder.partition(" ")
        if host == socket.gethostname() and rest:
            return not Path(f"/proc/{rest.split()[0]}").exists() and Path("/proc/self").exists()
        probe = self._path.with_name(f"{self._path.name}-{secrets.token_hex(8)}")
        try:
            probe.touch()
            return probe.stat().st_mtime - self._path.stat().st_mtime > STALE
        except OSError:
            return False
        finally:
            with suppress(OSError):
                probe.unlink()

    def _read(self) -> str | None:
        try:
            return self._path.read_text()
        except OSError:
            return None
