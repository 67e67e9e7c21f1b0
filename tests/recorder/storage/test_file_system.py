"""Which file system a path lies on, by what Linux says of its mounts."""

from pathlib import Path

import pytest

from logs_ui.recorder.errors import LogsUIError
from logs_ui.recorder.storage.file_system import Mount, mount_of, network_kind

MOUNTS = r"""
22 1 259:2 / / rw,relatime shared:1 - ext4 /dev/nvme0n1p2 rw,errors=remount-ro
29 22 0:25 / /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate
95 22 0:52 / /home rw,relatime shared:47 - nfs4 filer:/export/home rw,vers=4.2,rsize=1048576,clientaddr=10.0.0.7
101 95 0:60 / /home/ann/data\040sets rw,relatime - ceph 10.0.0.1,10.0.0.2:/data rw,name=ann
103 95 259:3 /scratch /home/ann/scratch rw,noatime shared:51 - xfs /dev/nvme1n1 rw,attr2
110 22 0:71 / /lustre rw,flock shared:60 master:2 propagate_from:1 - lustre mgs@o2ib:/work rw
111 22 0:72 / /mnt/laptop rw - fuse.sshfs ann@laptop:/ rw,user_id=1000
120 22 0:80 / /over rw - tmpfs tmpfs rw
121 120 0:81 / /over rw - nfs filer:/b rw,vers=3
130 22 0:82 / /unfinished
"""


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/etc/hosts", "ext4"),
        ("/home", "nfs4"),
        ("/home/ann/runs.db", "nfs4"),
        ("/homeless/runs.db", "ext4"),
        ("/home/ann/data sets/runs.db", "ceph"),
        ("/home/ann/scratch/runs.db", "xfs"),
        ("/lustre/runs/deep/runs.db", "lustre"),
        ("/mnt/laptop/runs.db", "fuse.sshfs"),
        ("/over/runs.db", "nfs"),
    ],
)
def test_the_longest_prefix_tells_and_of_equal_ones_the_last(path: str, kind: str) -> None:
    found = mount_of(path, MOUNTS)
    assert found is not None
    assert found.kind == kind


def test_what_says_nothing_tells_nothing() -> None:
    assert mount_of("/a", "") is None
    assert mount_of("/a", "nonsense - \n\n - \n1 2 3 - nfs x y") is None
    assert mount_of("/a", MOUNTS) == Mount("/", "ext4")


def test_this_machine_is_asked_and_overruled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LOGS_UI_FILE_SYSTEM", raising=False)
    assert network_kind(Path("/proc/a.db")) is None
    monkeypatch.setenv("LOGS_UI_FILE_SYSTEM", "network")
    assert network_kind(tmp_path / "not there" / "a.db") == "network"
    monkeypatch.setenv("LOGS_UI_FILE_SYSTEM", "local")
    assert network_kind(tmp_path) is None
    monkeypatch.setenv("LOGS_UI_FILE_SYSTEM", "nfs")
    with pytest.raises(LogsUIError, match="LOGS_UI_FILE_SYSTEM is 'nfs': it takes local or network"):
        network_kind(tmp_path)


def test_a_link_is_followed_to_where_the_file_lies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from logs_ui.recorder.storage import file_system

    (tmp_path / "far").mkdir()
    (tmp_path / "near").symlink_to(tmp_path / "far")
    mounts = tmp_path / "mountinfo"
    mounts.write_text(f"1 0 8:1 / / rw - ext4 /dev/sda rw\n2 1 0:9 / {tmp_path / 'far'} rw - nfs4 filer:/ rw\n")
    monkeypatch.setattr(file_system, "_MOUNTS", mounts)
    assert network_kind(tmp_path / "near" / "a.db") == "nfs4"
    assert network_kind(tmp_path / "a.db") is None
