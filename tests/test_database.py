"""A database that cannot be used says in one line what, why and what to do; and a fault costs nothing recorded."""

import os
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
from sqlalchemy import insert
from sqlalchemy.exc import SQLAlchemyError

from logs_ui.recorder.database import (
    database_path,
    errors_in_plain_words,
    is_disk_trouble,
    reading_engine,
    writing_engine,
)
from logs_ui.recorder.errors import DatabaseError
from logs_ui.recorder.models import SCHEMA_VERSION, Run


def message(path: Path, *, write: bool) -> str:
    with pytest.raises(DatabaseError) as caught:
        (writing_engine if write else reading_engine)(path)
    text = str(caught.value)
    assert "\n" not in text
    return text


def test_record_and_serve_meet_in_the_same_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("LOGS_UI_DB")
    assert database_path() == database_path(None)
    assert database_path().name == "logs-ui.db"
    monkeypatch.setenv("LOGS_UI_DB", str(tmp_path / "mine.db"))
    assert database_path() == tmp_path / "mine.db"
    assert database_path("other.db") == Path("other.db")
    assert database_path(f"sqlite:///{tmp_path}/url.db") == tmp_path / "url.db"


def test_a_url_of_another_database_is_refused() -> None:
    with pytest.raises(DatabaseError, match="postgresql databases are not supported yet"):
        database_path("postgresql://host/runs")


@pytest.mark.parametrize("write", [True, False])
def test_a_file_that_is_no_database(tmp_path: Path, write: bool) -> None:  # noqa: FBT001
    path = tmp_path / "a.db"
    path.write_bytes(b"not a database at all" * 100)
    assert "is not an SQLite database" in message(path, write=write)
    assert path.read_bytes() == b"not a database at all" * 100


@pytest.mark.parametrize("write", [True, False])
def test_somebody_elses_database(tmp_path: Path, write: bool) -> None:  # noqa: FBT001
    path = tmp_path / "a.db"
    with sqlite3.connect(path) as connection:
        connection.execute("create table theirs (x)")
    assert "not one of logs-ui" in message(path, write=write)
    with sqlite3.connect(path) as connection:
        assert connection.execute("select name from sqlite_master").fetchall() == [("theirs",)]


@pytest.mark.parametrize("write", [True, False])
def test_a_newer_schema(tmp_path: Path, write: bool) -> None:  # noqa: FBT001
    path = tmp_path / "a.db"
    writing_engine(path).dispose()
    with sqlite3.connect(path) as connection:
        connection.execute("update logs_ui_schema set version = ?", [SCHEMA_VERSION + 1])
    assert "written by a newer logs-ui" in message(path, write=write)
    assert "pip install -U logs-ui" in message(path, write=write)


@pytest.mark.parametrize("write", [True, False])
def test_a_folder(tmp_path: Path, write: bool) -> None:  # noqa: FBT001
    assert "is a folder" in message(tmp_path, write=write)


def test_a_missing_database_is_not_made_by_reading(tmp_path: Path) -> None:
    assert "There is no database at" in message(tmp_path / "a.db", write=False)
    assert not (tmp_path / "a.db").exists()


def test_a_path_below_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert "--db" in message(tmp_path / "file" / "a.db", write=True)


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (sqlite3.SQLITE_BUSY_SNAPSHOT, "locked by another process"),
        (sqlite3.SQLITE_LOCKED_SHAREDCACHE, "locked by another process"),
        (sqlite3.SQLITE_FULL, "the disk is full"),
        (sqlite3.SQLITE_IOERR_WRITE, "the disk answers with an error"),
        (sqlite3.SQLITE_CANTOPEN_ISDIR, "cannot be opened"),
        (sqlite3.SQLITE_READONLY_DBMOVED, "is not writable"),
        (sqlite3.SQLITE_CORRUPT_INDEX, "is damaged"),
        (sqlite3.SQLITE_NOTADB, "is not an SQLite database"),
    ],
)
def test_trouble_with_the_disk_is_known_by_its_code_and_explained(tmp_path: Path, code: int, words: str) -> None:
    error = sqlite3.OperationalError("in a language of its own")
    error.sqlite_errorcode = code
    assert is_disk_trouble(error)
    with pytest.raises(DatabaseError, match=words), errors_in_plain_words(tmp_path / "a.db"):
        raise error


def test_a_row_that_speaks_of_trouble_is_none(tmp_path: Path) -> None:
    engine = writing_engine(tmp_path / "a.db")
    text = "database or disk is full, locked, readonly, malformed, not a database, disk I/O error, unable to open"
    with pytest.raises(SQLAlchemyError) as caught, engine.begin() as connection:
        connection.execute(insert(Run).values(uid=text, name=None, created=1, heartbeat=1))
    engine.dispose()
    assert text in str(caught.value)
    assert not is_disk_trouble(caught.value)
    said = r"a\.db cannot be used: NOT NULL constraint failed: run\.name$"
    with pytest.raises(DatabaseError, match=said), errors_in_plain_words(tmp_path / "a.db"):
        raise caught.value


READ_ONLY = """
import os, sys
from pathlib import Path
from logs_ui.recorder.database import reading_engine, writing_engine
from logs_ui.recorder.errors import DatabaseError
path = Path(sys.argv[1])
os.setuid(65534)
with reading_engine(path).connect() as connection:
    print(connection.exec_driver_sql("select count(*) from run").scalar())
try:
    writing_engine(path)
except DatabaseError as error:
    print(error)
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become a user who may not write")
def test_a_read_only_folder_is_read_and_its_writing_explained(tmp_path: Path) -> None:
    import tempfile

    with tempfile.TemporaryDirectory(dir="/tmp") as name:
        folder = Path(name)
        writing_engine(folder / "a.db").dispose()
        folder.chmod(0o555)
        done = subprocess.run(
            [sys.executable, "-c", READ_ONLY, str(folder / "a.db")], capture_output=True, text=True, check=False
        )
        assert done.stdout.splitlines()[0] == "0", done.stderr
        assert "is not writable" in done.stdout
