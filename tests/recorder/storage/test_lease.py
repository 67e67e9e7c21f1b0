"""The lock between machines that share a folder."""

import os
import socket
from pathlib import Path

import pytest

from logs_ui.recorder.storage.spool.lease import STALE, Lease, _life

OWN = _life(os.getpid()) or ""


def test_one_holds_it_at_a_time(tmp_path: Path) -> None:
    path = tmp_path / "lease"
    with Lease(path).hold() as first:
        with Lease(path).hold() as second:
            assert (first, second) == (True, False)
        assert path.exists(), "who did not get it leaves it alone"
    assert not tmp_path.exists(), "the folder goes with it"
    with Lease(path).hold() as third:
        assert third


HOLDERS = {
    "another has its number": (f"{OWN.rpartition('/')[0]}/1 ab", 0.0, True),
    "dead here": (f"{'/'.join(OWN.split('/')[:2])}/999999999/1 ab", 0.0, True),
    "alive here": (f"{OWN} ab", STALE / 2, False),
    "stuck here": (f"{OWN} ab", 2 * STALE, True),
    "in another container": (f"{OWN.split('/')[0]}/pid:[1]/999999999/1 ab", STALE / 2, False),
    "no /proc": (f"{socket.gethostname()} {os.getpid()} ab", 2 * STALE, True),
    "renewed elsewhere": ("another-host 1 ab", STALE / 2, False),
    "silent elsewhere": ("another-host 1 ab", 2 * STALE, True),
    "nobody": ("", 2 * STALE, True),
}


@pytest.mark.parametrize(("holder", "age", "is_taken"), HOLDERS.values(), ids=HOLDERS)
def test_a_dead_holders_is_taken_over(tmp_path: Path, holder: str, age: float, *, is_taken: bool) -> None:
    """Of this machine it is known who has died; who is alive renews it."""
    path = tmp_path / "lease"
    path.write_text(holder)
    then = path.stat().st_mtime - age
    os.utime(path, (then, then))
    with Lease(path).hold() as held:
        assert held == is_taken
    assert [file.read_text() for file in tmp_path.glob("*")] == ([] if is_taken else [holder])


def test_it_lives_as_long_as_it_is_renewed_and_whoever_lost_it_learns_of_it(tmp_path: Path) -> None:
    path = tmp_path / "lease"
    lease = Lease(path)
    with lease.hold() as held:
        assert held
        os.utime(path, (1, 1))
        assert lease.renew()
        assert path.stat().st_mtime > 1
        assert lease.now() == path.stat().st_mtime
        path.write_text("another-host 1 ab")
        assert not lease.renew()
    assert path.read_text() == "another-host 1 ab", "it is not given back by who lost it"


def test_of_two_who_find_it_dead_one_gets_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The slower one has looked before the faster one took it over."""
    path = tmp_path / "lease"
    path.write_text("another-host 1 ab")
    faster, slower = Lease(path), Lease(path)
    is_dead = slower._is_dead

    def looks_and_is_overtaken(holder: str) -> bool:
        os.utime(path, (1, 1))
        dead = is_dead(holder)
        overtaking.__enter__()
        return dead

    overtaking = faster.hold()
    monkeypatch.setattr(slower, "_is_dead", looks_and_is_overtaken)
    with slower.hold() as held:
        assert not held
        assert faster.renew()
    overtaking.__exit__(None, None, None)
    assert not tmp_path.exists(), "the folder goes with it"
