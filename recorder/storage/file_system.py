"""Finds out if a path lies on a network file system. If other machines write there, SQLite's write-ahead log cannot
work, because its processes share memory, and locks are unreliable (https://sqlite.org/wal.html, "Overview").
"""

import os
import re
from pathlib import Path
from typing import NamedTuple

from logs_ui.recorder.errors import LogsUIError
from logs_ui.recorder.storage.portable import IS_WINDOWS

VARIABLE = "LOGS_UI_FILE_SYSTEM"
"""Environment variable: `local` or `network` overrides what the system reports."""

_MOUNTS = Path("/proc/self/mountinfo")
_OCTAL = re.compile(r"\\([0-7]{3})")
_NETWORK = frozenset({
    "9p", "acfs", "afs", "beegfs", "ceph", "cifs", "coda", "dvs", "fuse.ceph-fuse", "fuse.cephfs",
    "fuse.curlftpfs", "fuse.gcsfuse", "fuse.glusterfs", "fuse.juicefs", "fuse.mountpoint-s3", "fuse.rclone",
    "fuse.s3fs", "fuse.sshfs", "fuse.weka", "gfs2", "glusterfs", "gpfs", "lustre", "moosefs", "ncpfs", "nfs",
    "nfs4", "ocfs2", "orangefs", "panfs", "pvfs2", "smb3", "smbfs", "vboxsf", "wekafs",
})  # fmt: skip
"""Types in mountinfo of file systems that several machines may mount at once."""


class Mount(NamedTuple):
    """Describes a mount point and the type of its file system."""

    point: str
    kind: str


def network_kind(path: Path) -> str | None:
    """Return the type of the network file system that the path lies on, such as `nfs4`; None if it lies on none, or if
    that is unknown. The path need not exist. LOGS_UI_FILE_SYSTEM overrides it; the type is then `network`. Raises
    LogsUIError if LOGS_UI_FILE_SYSTEM is neither `local` nor `network`.
    """
    choice = os.environ.get(VARIABLE, "").strip().lower()
    if choice not in {"", "local", "network"}:
        raise LogsUIError(f"{VARIABLE} is {choice[:40]!r}: it takes local or network. Without it, the system decides.")
    if choice:
        return choice if choice == "network" else None
    try:
        mounts = _MOUNTS.read_text(errors="surrogateescape")
    except OSError:  # not Linux
        return None
    mount = mount_of(os.path.realpath(path), mounts)
    return mount.kind if mount is not None and mount.kind in _NETWORK else None


def sync(path: Path) -> None:
    """Write a file or a folder to the disk, so that it survives a power failure. Raise OSError."""
    if IS_WINDOWS and path.is_dir():  # which it does by itself
        return
    descriptor = os.open(path, os.O_RDWR if IS_WINDOWS else os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def mount_of(path: str, mountinfo: str) -> Mount | None:
    """Return the mount that a path lies on: the longest mount point above it. Of equal ones the last covers the others.
    `path` is absolute and without links; `mountinfo` the text of /proc/self/mountinfo, see proc(5).
    """
    parsed = [mount for line in reversed(mountinfo.splitlines()) if (mount := _parsed(line))]
    above = [mount for mount in parsed if mount.point in {"/", path} or path.startswith(mount.point + "/")]
    return max(above, key=lambda mount: len(mount.point), default=None)


def _parsed(line: str) -> Mount | None:
    # The number of fields before the separator varies; the mount point is the fifth, the type the first after it.
    before, separator, after = line.partition(" - ")
    fields, kinds = before.split(" "), after.split(" ")
    if not separator or len(fields) < 6 or not kinds[0]:
        return None
    return Mount(_OCTAL.sub(lambda match: chr(int(match[1], 8)), fields[4]), kinds[0])
