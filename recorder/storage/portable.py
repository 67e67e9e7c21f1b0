"""Hides what Windows lacks: forks, and locks of whole files. It was tried there by simulation only."""

import os
from typing import IO, Any

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

IS_WINDOWS = fcntl is None
_FAR = 0x7FFF_FFFE  # offset of the byte that is locked on Windows, where others cannot read what is locked


def on_fork(**calls: Any) -> None:
    """Call `os.register_at_fork` where processes can fork."""
    if not IS_WINDOWS:
        os.register_at_fork(**calls)


def lock(file: IO[bytes] | IO[str], *, is_shared: bool = False, waits: bool = False) -> None:
    """Lock a file until it is closed. Raise BlockingIOError if another process has it locked, and another OSError if
    the file system has no locks. On Windows no lock is shared, and after a wait of 10 s it raises OSError.
    """
    if not IS_WINDOWS:
        fcntl.flock(file, (fcntl.LOCK_SH if is_shared else fcntl.LOCK_EX) | (0 if waits else fcntl.LOCK_NB))
        return
    import msvcrt

    place = os.lseek(file.fileno(), 0, os.SEEK_CUR)
    try:
        os.lseek(file.fileno(), _FAR, os.SEEK_SET)
        msvcrt.locking(file.fileno(), msvcrt.LK_LOCK if waits else msvcrt.LK_NBLCK, 1)  # type: ignore[attr-defined]
    except PermissionError as error:
        raise BlockingIOError(*error.args) from None
    finally:
        os.lseek(file.fileno(), place, os.SEEK_SET)
