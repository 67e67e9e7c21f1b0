"""A database's file that is moved, replaced or overwritten: no acknowledged row is lost, no other file is changed."""

import os
import shutil
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine
from starlette.testclient import TestClient

from logs_ui.app.main import create_app
from logs_ui.recorder.delivery.committer import entry_of, take_in_before_reading
from logs_ui.recorder.delivery.writer import Writer
from logs_ui.recorder.storage.database import disposed, reading_engine, writing_engine
from logs_ui.recorder.storage.spool import durable_outlet
from logs_ui.recorder.storage.spool.durable_outlet import Storage
from logs_ui.recorder.storage.spool.ingest import Ingester
from logs_ui.recorder.storage.spool_folder import spool_folder
from logs_ui.recorder.storage.sqlite.checkpoints import log_of
from logs_ui.recorder.storage.sqlite.moved_files import MovedError
from logs_ui.recorder.upkeep import merge
from tests.recorder.delivery.test_writer import storage_of
from tests.support.changes import begun, stored, wait_until
from tests.support.command import typed
from tests.support.exhaustive import cases
from tests.support.storage_faults import Recording, put_rows, record, recording


@pytest.fixture
def db(tmp_path: Path) -> Path:
    return tmp_path / "runs.db"


def copy_to(path: Path, copy: Path) -> None:
    """As a person does in a shell: SQLite takes two names of one file within a process for two files."""
    code = "import sqlite3, sys; sqlite3.connect(sys.argv[1]).execute('VACUUM INTO ?', sys.argv[2:])"
    subprocess.run([sys.executable, "-c", code, str(path), str(copy)], check=True)


def other_program(path: Path) -> bytes:
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript("CREATE TABLE theirs (x); INSERT INTO theirs VALUES ('their data')")
    return path.read_bytes()


def rows_in(*paths: Path) -> set[str]:
    rows: set[str] = set()
    for path in paths:
        with closing(sqlite3.connect(path)) as connection:
            assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
            if connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'evaluation_row'").fetchone():
                rows |= {uid for (uid,) in connection.execute("SELECT uid FROM evaluation_row")}
    return rows


def acknowledged(process: Recording) -> set[str]:
    return {f"a/{number}" for number in range(process.acknowledged)}


def test_a_file_that_is_compacted_while_it_is_recorded_loses_nothing(db: Path, tmp_path: Path) -> None:
    with recording(db, tmp_path) as process:
        process.wait_for(100)
        copy_to(db, tmp_path / "copy.db")
        process.wait_for(200)
        (tmp_path / "copy.db").rename(db)
        process.wait_for(process.acknowledged + 100)
        process.end()
        (copy,) = tmp_path.glob("runs.replaced-*.db")
        assert f"logs-ui db merge {copy} --into {db}" in process.log.read_text()
        merge([copy], db)
        assert acknowledged(process) == rows_in(db)


def test_a_file_that_is_moved_away_has_what_was_recorded_until_then(db: Path, tmp_path: Path) -> None:
    archive = tmp_path / "archive.db"
    with recording(db, tmp_path) as process:
        process.wait_for(100)
        db.rename(archive)
        before = acknowledged(process)
        process.wait_for(process.acknowledged + 100)
        process.end()
        assert acknowledged(process) == rows_in(archive, db)
        assert before <= rows_in(archive)
        assert f"was moved to {archive}. " in process.log.read_text()


def test_the_file_of_another_program_stays_as_it_is(db: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.db"
    whole = other_program(other)
    with recording(db, tmp_path) as process:
        process.wait_for(100)
        other.rename(db)
        process.wait_until_it_says("recording has stopped")
        process.kill(all_of_it=True)
        (copy,) = tmp_path.glob("runs.replaced-*.db")
        assert acknowledged(process) <= rows_in(copy)
    assert db.read_bytes() == whole
    assert not log_of(db).exists()


@pytest.mark.exhaustive
def test_a_file_that_is_overwritten_gets_what_its_log_had(db: Path, tmp_path: Path) -> None:
    with recording(db, tmp_path) as process:
        process.wait_for(20)
        copy_to(db, tmp_path / "copy.db")
        process.wait_for(100)
        shutil.copyfile(tmp_path / "copy.db", db)
        process.wait_for(process.acknowledged + 100)
        process.end()
        assert acknowledged(process) == rows_in(db)
        assert "was overwritten by another file" in process.log.read_text()


@pytest.mark.usefixtures("in_thread")
@pytest.mark.parametrize("is_read", [False, True])
def test_no_log_is_left_where_a_file_was_moved_away(db: Path, *, is_read: bool) -> None:
    writer = begun(db)
    archive = db.with_name("archive.db")
    with disposed(reading_engine(db)) as engine, engine.connect() as reader:
        if is_read:
            reader.exec_driver_sql("SELECT count(*) FROM run").all()
        record(writer, "a", range(50))
        db.rename(archive)
        wait_until(lambda: not log_of(db).exists() or db.exists())
    record(writer, "a", range(50, 51))
    assert rows_in(archive, db) == {f"a/{number}" for number in range(51)}


@pytest.mark.usefixtures("in_thread")
@pytest.mark.parametrize("new", ["a copy", None])
def test_a_file_replaced_at_the_end_loses_nothing(db: Path, monkeypatch: pytest.MonkeyPatch, new: str | None) -> None:
    writer = Writer(db)
    record(writer, "a", range(50))
    copy_to(db, db.with_name("copy.db"))
    record(writer, "a", range(50, 100))
    monkeypatch.setattr(Storage, "catch_up", lambda _: None)  # the writer looks no more
    monkeypatch.setattr(Storage, "checkpoint", lambda _: None)
    if new is None:
        db.unlink()
    else:
        db.with_name("copy.db").replace(db)
    storage_of(writer).close()
    assert not log_of(db).exists()
    take_in_before_reading(db)
    replaced = list(db.parent.glob("runs.replaced-*.db"))
    assert rows_in(*filter(Path.exists, [db]), *replaced) == {f"a/{number}" for number in range(100)}


@pytest.mark.usefixtures("in_thread")
def test_where_a_log_cannot_be_taken_away_rows_wait_on_disk(db: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOGS_UI_SPOOL_SECONDS", "0.2")
    writer = Writer(db)
    record(writer, "a", range(50))
    with monkeypatch.context() as patch:
        patch.setattr(Path, "unlink", lambda path, **_: (_ for _ in ()).throw(PermissionError(1, "no", str(path))))
        db.rename(db.with_name("archive.db"))
        record(writer, "a", range(50, 60))
        assert "its log cannot be taken away" in (storage_of(writer).trouble or "")
    put_rows(writer, "a", range(60, 61))
    wait_until(lambda: writer.flush(60) and storage_of(writer).waiting is None)
    assert rows_in(db, db.with_name("archive.db")) == {f"a/{number}" for number in range(61)}


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, set[str]]:
    """A folder with a database and an earlier copy, and what was acknowledged when its process was killed."""
    folder = tmp_path_factory.mktemp("killed")
    with recording(folder / "runs.db", folder) as process:
        process.wait_for(60)
        copy_to(folder / "runs.db", folder / "copy.db")
        process.wait_for(160)
        process.kill(all_of_it=True)
        return folder, acknowledged(process)


@pytest.fixture
def rows(killed: tuple[Path, set[str]], tmp_path: Path) -> set[str]:
    """Of that database, all of which lies in this test's folder, too."""
    shutil.copytree(killed[0], tmp_path, dirs_exist_ok=True)
    return killed[1]


@pytest.mark.parametrize("replace", [shutil.move, shutil.copyfile])
def test_after_a_kill_a_copy_gets_what_the_log_had(db: Path, tmp_path: Path, rows: set[str], replace: Any) -> None:
    replace(tmp_path / "copy.db", db)
    assert Ingester(db, entry_of).take_in().entries > 0
    assert rows_in(db) >= rows
    assert not spool_folder(db).exists()
    assert replace is shutil.copyfile or [path.name[:26] for path in tmp_path.glob("*-wal*")] == [
        "runs.db-wal-of-another-fil"
    ]


def test_after_a_kill_a_new_file_gets_what_the_moved_one_lacks(db: Path, tmp_path: Path, rows: set[str]) -> None:
    archive = tmp_path / "archive.db"
    db.rename(archive)
    with recording(db, tmp_path, "b") as process:
        process.wait_for(20)
        process.end()
    assert rows_in(archive, db) >= rows


def test_after_a_kill_the_file_of_another_program_stays_as_it_is(db: Path, tmp_path: Path, rows: set[str]) -> None:
    archive = tmp_path / "archive.db"
    db.rename(archive)
    whole = other_program(db)
    assert typed("db", "info", "--db", db).returncode == 1
    assert db.read_bytes() == whole
    (tmp_path / "runs.db-spool").rename(tmp_path / "archive.db-spool")
    Ingester(archive, entry_of).take_in()
    assert rows_in(archive) >= rows


def test_a_log_beside_its_own_file_stays_there(db: Path, tmp_path: Path, rows: set[str]) -> None:
    folder = tmp_path / "elsewhere"
    shutil.copytree(tmp_path, folder)
    db.rename(tmp_path / "archive.db")
    log_of(db).rename(log_of(tmp_path / "archive.db"))
    for path in (tmp_path / "archive.db", folder / "runs.db"):
        reading_engine(path).dispose()
        assert rows_in(path) >= rows
    assert not list(tmp_path.rglob("*of-another-file*"))


@pytest.mark.exhaustive
def test_a_dashboard_survives_it(db: Path, tmp_path: Path) -> None:
    with recording(db, tmp_path) as process, TestClient(create_app(db), base_url="http://127.0.0.1") as client:
        process.wait_for(100)
        for name in cases(("archive.db", "another.db"), 1):
            assert client.get("/runs/r").status_code == 200
            db.rename(tmp_path / name)
            process.wait_until_it_says(f"to {tmp_path / name}")
            copy_to(tmp_path / name, tmp_path / "copy.db")
            (tmp_path / "copy.db").rename(db)
            deadline = time.monotonic() + 1
            while time.monotonic() < deadline:
                assert client.get("/runs/r").status_code in {200, 404, 503}  # for a moment
            process.wait_for(process.acknowledged + 60)  # what was printed late may be of the file before
            wait_until(lambda: client.get("/runs/r").status_code == 200)
        process.end()
        assert acknowledged(process) == rows_in(*tmp_path.glob("*.db"))


def test_no_connection_mixes_a_file_with_the_log_of_another(db: Path) -> None:
    record(begun(db), "a", range(50))
    copy_to(db, db.with_name("copy.db"))
    with disposed(reading_engine(db)) as engine:
        db.with_name("copy.db").rename(db)
        with pytest.raises(MovedError, match="moved or replaced just now"):
            engine.connect()


@pytest.mark.usefixtures("in_thread")
def test_a_file_that_is_replaced_while_it_is_opened_is_opened_anew(db: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begun(db.with_name("copy.db")).flush_at_end()
    copies = iter([db.with_name("copy.db")])

    def engine_of_a_file_that_is_replaced(*args: Any) -> Engine:
        engine = writing_engine(*args)
        for copy in copies:
            copy.rename(db)
        return engine

    monkeypatch.setattr(durable_outlet, "writing_engine", engine_of_a_file_that_is_replaced)
    record(begun(db), "a", range(50))
    assert rows_in(db) == {f"a/{number}" for number in range(50)}


def test_a_checkpoint_that_is_under_way_is_no_other_file(db: Path, tmp_path: Path, rows: set[str]) -> None:
    with (
        db.open("r+b") as file,
        log_of(db).open("rb") as log,
    ):  # the first page is moved first, and the file is too short
        log.seek(32)
        while log.read(24)[:4] != bytes([0, 0, 0, 1]):
            log.seek(4096, os.SEEK_CUR)
        file.write(log.read(4096))
    reading_engine(db).dispose()
    assert rows_in(db) >= rows
    assert not list(tmp_path.glob("*of-another-file*"))


def test_a_link_is_followed_to_the_log_of_its_file(db: Path, tmp_path: Path) -> None:
    link = tmp_path / "link.db"
    link.symlink_to(db)
    begun(link).flush_at_end()
    shutil.copyfile(db, tmp_path / "copy.db")
    assert stored(tmp_path / "copy.db", "SELECT uid FROM run") == [("r",)]


def test_a_log_that_its_last_user_deletes_while_a_reader_opens_the_file_is_no_move(db: Path) -> None:
    with disposed(writing_engine(db)) as writer, writer.begin() as connection:
        connection.exec_driver_sql("PRAGMA user_version")
        held = sqlite3.connect(db, isolation_level=None)
        held.execute("SELECT 1 FROM sqlite_master").fetchone()
    assert log_of(db).exists()
    with disposed(reading_engine(db)) as reader:  # which has seen the log
        held.close()
        log_of(db).unlink(missing_ok=True)  # as the last connection does that can write
        with reader.connect() as connection:
            assert connection.exec_driver_sql("SELECT count(*) FROM run").scalar() == 0


def test_a_log_that_is_begun_anew_while_a_reader_opens_the_file_is_no_move(db: Path) -> None:
    with disposed(writing_engine(db)) as first, first.begin() as connection:
        connection.exec_driver_sql("PRAGMA user_version = 7")
        reader = reading_engine(db)  # which has seen the log
        log = log_of(db).open("rb")  # else the next log may have the number that this one has
    assert not log_of(db).exists()
    with log, disposed(writing_engine(db)) as second, second.begin() as connection, disposed(reader):
        connection.exec_driver_sql("PRAGMA user_version = 8")
        with reader.connect() as reading:
            assert reading.exec_driver_sql("SELECT count(*) FROM run").scalar() == 0
