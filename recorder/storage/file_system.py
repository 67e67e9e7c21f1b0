"""Which file system a path lies on: where other machines write too, SQLite's write-ahead log cannot work, as it needs
memory that all of its processes share, and locks are not to be relied on (https://sqlite.org/wal.html, "Overview").
"""

import os
import re
from pathlib import Path
from typing import NamedTuple

from logs_ui.recorder.errors import LogsUIError

VARIABLE = "LOGS_UI_FILE_SYSTEM"
"""`local` or `network` in place of what the system says of the file system that the database lies on."""

_MOUNTS = Path("/proc/self/mountinfo")
_OCTAL = re.compile(r"\\([0-7]{3})")
_NETWORK = frozenset(
    {
        "9p",
        "acfs",
        "afs",
        "beegfs",
        "ceph",
        "cifs",
        "coda",
        "dvs",
        "fuse.ceph-fuse",
        "fuse.cephfs",
        "fuse.curlftpfs",
        "fuse.gcsfuse",
        "fuse.glusterfs",
        "fuse.juicefs",
        "fuse.mountpoint-s3",
        "fuse.rclone",
        "fuse.s3fs",
        "fuse.sshfs",
        "fuse.weka",
        "gfs2",
        "glusterfs",
        "gpfs",
        "lustre",
        "moosefs",
        "ncpfs",
        "nfs",
        "nfs4",
        "ocfs2",
        "orangefs",
        "panfs",
        "pvfs2",
        "smb3",
        "smbfs",
        "vboxsf",
        "wekafs",
    }
)
"""As mountinfo calls those that several machines may have mounted at once."""


class Mount(NamedTuple):
    """A file system, and where it is mounted."""

    point: str
    kind: str


def network_kind(path: Path) -> str | None:
    """What network file system the path lies on, as `nfs4`; None where it lies on none, or cannot be told. The path
    need not exist. LOGS_UI_FILE_SYSTEM overrules it: `network` is then the kind, too.

    Raises:
        LogsUIError: LOGS_UI_FILE_SYSTEM is neither `local` nor `network`.
    """
    said = os.environ.get(VARIABLE, "").strip().lower()
    if said not in {"", "local", "network"}:
        raise LogsUIError(f"{VARIABLE} is {said[:40]!r}: it takes local or network. Without it the system is asked.")
    if said:
        return said if said == "network" else None
    try:
        mounts = _MOUNTS.read_text(errors="surrogateescape")
    except OSError:  # no Linux
        return None
    mount = mount_of(os.path.realpath(path), mounts)
    return mount.kind if mount is not None and mount.kind in _NETWORK else None


def mount_of(path: str, mountinfo: str) -> Mount | None:
    """The last of the mounts that the longest prefix of an absolute path, without links, names: it covers the others.

    Args:
        path: as `os.path.realpath` gives it.
        mountinfo: text of /proc/self/mountinfo, as proc(5) describes it.
    """
    found: Mount | None = None
    for line in mountinfo.splitlines():
        mount = _parsed(line)
        if mount is not None and _covers(mount.point, path) and (found is None or len(mount.point) >= len(found.point)):
            found = mount
    return found


def _parsed(line: str) -> Mount | None:
    """Fields before the separator vary in number; the mount point is the fifth, the type the first after it."""
    before, separator, after = line.partition(" - ")
    fields, kinds = before.split(" "), after.split(" ")
    if not separator or len(fields) < 6 or not kinds[0]:
        return None
    return Mount(_OCTAL.sub(lambda found: chr(int(found[1], 8)), fields[4]), kinds[0])


def _covers(point: str, path: str) -> bool:
    return point in {"/", path} or path.startswith(point + "/")
