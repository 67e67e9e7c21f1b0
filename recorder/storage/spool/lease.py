"""A lock with an expiry date between machines that share a folder, for file systems whose own locks are unreliable.

The lock is a file that only one process can create (O_EXCL, which NFS guarantees from version 3 on). Its holder renews
it. If it was not renewed for a minute, another process may take it over.
"""

import os
import secrets
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

STALE = 60.0
"""Seconds without renewal after which the holder is assumed to be dead."""


class Lease:
    """Holds a lease, as one holder sees it. Makes its folder, and deletes it at the end if nothing else is in it. All
    times are the file system's: the machines' clocks need not agree.
    """

    def __init__(self, path: Path) -> None:
        """Create no file yet."""
        self._path = path
        self._holder = f"{_life(os.getpid()) or socket.gethostname()} {secrets.token_hex(8)}"

    @contextmanager
    def hold(self) -> Iterator[bool]:
        """Yield True while it holds the lease, False if another process does. Raise OSError."""
        is_held = self._make() or (self._take_over() and self._make())
        try:
            yield is_held
        finally:
            if is_held and self._read_holder() == self._holder:
                with suppress(OSError):  # some entries may wait in the folder
                    self._path.unlink()
                    self._path.parent.rmdir()

    def renew(self) -> bool:
        """Renew the lease. Return False if another process has taken it over."""
        if self._read_holder() != self._holder:
            return False
        with suppress(OSError):
            os.utime(self._path)
        return True

    def now(self) -> float:
        """Return the file system's time in seconds since 1970. Only the holder may call it, as it renews the lease.
        Raise OSError if the lease's file is gone.
        """
        os.utime(self._path)
        return self._path.stat().st_mtime

    def _make(self) -> bool:
        self._path.parent.mkdir(parents=True, exist_ok=True)  # another process may have deleted it, as it was empty
        try:
            with self._path.open("x") as file:
                file.write(self._holder)
        except (FileExistsError, FileNotFoundError):
            return False
        return True

    def _take_over(self) -> bool:
        """Return True if the holder was dead and its file has been removed."""
        holder = self._read_holder()
        if holder is None or not self._is_dead(holder):
            return False
        aside = self._path.with_name(f"{self._path.name}-{secrets.token_hex(8)}")
        try:
            self._path.rename(aside)  # atomic: of several processes only one succeeds
        except OSError:
            return False
        was_dead = aside.read_text() == holder
        if not was_dead:  # another process took over since we read the file, and holds the lease: restore its file
            with suppress(OSError):
                os.link(aside, self._path)
        aside.unlink()
        return was_dead

    def _is_dead(self, holder: str) -> bool:
        if _has_ended(holder.partition(" ")[0]):
            return True
        # A new file gets the file system's time, which alone is comparable with the time of the last renewal.
        probe = self._path.with_name(f"{self._path.name}-{secrets.token_hex(8)}")
        try:
            probe.touch()
            return probe.stat().st_mtime - self._path.stat().st_mtime > STALE
        except OSError:
            return False
        finally:
            with suppress(OSError):
                probe.unlink()

    def _read_holder(self) -> str | None:
        try:
            return self._path.read_text()
        except OSError:
            return None


def _life(pid: int) -> str | None:
    """Return a globally unique id of a process: boot id, PID namespace, PID and start time.

    None if there is no such process, or the system has no /proc; see proc(5).
    """
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        # The name of the process, in brackets, may contain spaces. The start time is the 20th field after it.
        began = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]  # starttime
        return f"{boot}/{Path('/proc/self/ns/pid').readlink()}/{pid}/{began}"
    except (OSError, IndexError):
        return None


def _has_ended(life: str) -> bool:
    """Return True if that process has surely ended. False if it runs on another machine or in another container."""
    our_life = _life(os.getpid())
    if our_life is None or our_life.split("/")[:2] != life.split("/")[:2]:
        return False
    pid = life.split("/")[2:3]
    return pid != [] and pid[0].isdecimal() and _life(int(pid[0])) != life
