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
        self._holder = f"{_life(os.getpid()) or socket.gethostname()} {secrets.token_hex(8)}"

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
        if _has_ended(holder.partition(" ")[0]):
            return True
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


def _life(pid: int) -> str | None:
    """Of a process, what no other has, on whichever machine, in whichever container and at whatever time: the machine's
    boot, the namespace of the number, the number, and when it began. None where it is not there, or the system does not
    tell (/proc, see proc(5)).
    """
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        began = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
        return f"{boot}/{Path('/proc/self/ns/pid').readlink()}/{pid}/{began}"
    except (OSError, IndexError):
        return None


def _has_ended(life: str) -> bool:
    """Whether that process is known to. Of another machine or container nothing is."""
    own = _life(os.getpid())
    if own is None or own.split("/")[:2] != life.split("/")[:2]:
        return False
    pid = life.split("/")[2:3]
    return pid != [] and pid[0].isdecimal() and _life(int(pid[0])) != life
