"""A database that cannot be used says in one line what, why and what to do; and a fault costs nothing recorded."""

import os
import re
import sqlite3
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest
from sqlalchemy import URL, Engine, Select, create_engine, insert, literal, select, text
from sqlalchemy.exc import OperationalError, SQLAlchemyError
from sqlalchemy.pool import NullPool

from logs_ui.recorder.delivery.writer import writer_for
from logs_ui.recorder.errors import DatabaseError, NoDatabaseError, RefusedDatabaseError
from logs_ui.recorder.storage import migrations
from logs_ui.recorder.storage.address import (
    SCHEMA_COLUMNS,
    SCHEMA_VERSION,
    as_text,
    database_address,
    masked_address,
    needs_no_look,
)
from logs_ui.recorder.storage.database import (
    disposed,
    errors_in_plain_words,
    is_rows_fault,
    migrating_engine,
    reading_engine,
    refuse_hopeless,
    writing_engine,
)
from logs_ui.recorder.storage.migrations import Migration
from logs_ui.recorder.storage.postgres import engine as postgres_engine
from logs_ui.recorder.storage.schema import stamp_of
from logs_ui.recorder.storage.tables import Run, Table
from logs_ui.recorder.storage.writes import prepared_statements
from tests.support.changes import wait_until
from tests.support.earlier import column, taken_back


def message(path: Path) -> str:
    """Of the error of who writes, who reads and who is about to record: one line, and the same of all."""
    said = set()
    for open_database in (writing_engine, reading_engine, writer_for):
        with pytest.raises(RefusedDatabaseError) as caught:
            open_database(path)
        said.add(str(caught.value))
    (line,) = said
    assert "\n" not in line
    return line


def test_what_needs_no_look_is_missing_or_has_the_tables_of_today(tmp_path: Path) -> None:
    assert sum(len(table.columns) for table in Table.metadata.sorted_tables) == SCHEMA_COLUMNS
    path, file = tmp_path / "a.db", tmp_path / "file"
    assert needs_no_look(path)
    writing_engine(path).dispose()
    assert needs_no_look(path)
    path.with_name("a.db-wal").touch()
    assert not needs_no_look(path), "what is in the log may be newer"
    file.touch()
    assert not needs_no_look(file)
    assert not needs_no_look(file / "a.db")
    with pytest.raises(RefusedDatabaseError, match="Not a directory"):
        writer_for(file / "a.db")


@pytest.fixture
def made(db: Path) -> Path:
    writing_engine(db).dispose()
    return db


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_record_and_serve_meet_in_the_same_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("LOGS_UI_DB")
    assert database_address() == database_address(None)
    assert Path(as_text(database_address())).name == "logs-ui.db"
    monkeypatch.setenv("LOGS_UI_DB", str(tmp_path / "mine.db"))
    assert database_address() == tmp_path / "mine.db"
    assert database_address("other.db") == Path("other.db")
    assert database_address(f"sqlite:///{tmp_path}/url.db") == tmp_path / "url.db"


@pytest.mark.parametrize("scheme", ["postgresql", "postgres", "postgresql+psycopg"])
def test_a_postgresql_server_is_named_by_its_url_and_its_password_never_shown(scheme: str) -> None:
    address = database_address(f"{scheme}://ann:s%40cret@host:5433/runs?sslmode=require&sslpassword=hush")
    assert database_address(address) == database_address(as_text(address)) == address
    assert "s%40cret" in as_text(address)
    assert masked_address(address) == "postgresql://ann:***@host:5433/runs?sslmode=require&sslpassword=***"
    assert (
        masked_address(database_address(f"{scheme}://host/runs?password=hush")) == "postgresql://host/runs?password=***"
    )


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("mysql://host/runs", "^mysql databases are not supported"),
        *(
            (url, f"^{url} lacks the path. Write sqlite:///runs.db")
            for url in ("sqlite://", "sqlite:///", "sqlite://runs.db")
        ),
        ("postgresql://ann:hush@host", "[Ww]rite postgresql://"),
        ("postgresql://ann:hush@host:port/runs", "[Ww]rite postgresql://"),
        ("postgresql:/ann:hush@host/runs", "[Ww]rite postgresql://"),
        ("postgresql://ann:hu@sh@host/runs", "@, / or : within a password as %40"),
    ],
)
def test_a_url_that_cannot_be_is_refused_without_its_password(url: str, said: str) -> None:
    with pytest.raises(DatabaseError, match=said) as caught:
        database_address(url)
    assert not re.search("hush|sh@", str(caught.value))


def test_a_look_at_a_server_with_locked_tables_does_not_wait(
    postgres_url: URL, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres_engine, "_LOOK", 0.1)
    with create_engine(postgres_url, poolclass=NullPool).begin() as connection:
        connection.execute(text("LOCK TABLE logs_ui_schema IN ACCESS EXCLUSIVE MODE"))
        refuse_hopeless(postgres_url)


@pytest.fixture
def patient(postgres_url: URL) -> Iterator[Engine]:
    """It waits for a lock for a fifth of a second."""
    with disposed(writing_engine(postgres_url, patience=0.2)) as engine:
        yield engine


def test_a_server_that_is_slow_is_waited_for(patient: Engine) -> None:
    with patient.begin() as connection:
        assert connection.scalar(text("SELECT 1 FROM pg_sleep(0.8)")) == 1, "four times as long as for a lock"


@pytest.mark.parametrize(("longest", "is_hurried"), [(0.5, False), (60.0, True)])
def test_one_that_is_slow_for_too_long_is_given_up_and_stops(
    postgres_url: URL, monkeypatch: pytest.MonkeyPatch, *, longest: float, is_hurried: bool
) -> None:
    monkeypatch.setattr(postgres_engine, "_LONGEST", longest)
    with disposed(writing_engine(postgres_url, 0.2, lambda: is_hurried)) as engine:
        unanswered = pytest.raises(OperationalError, match=r"has not answered for \d+\.\d seconds")
        with unanswered as caught, engine.begin() as connection:
            connection.execute(text("SELECT pg_sleep(60)"))
        assert not is_rows_fault(caught.value)
        active = "SELECT count(*) FROM pg_stat_activity WHERE query LIKE 'SELECT pg_sleep(60)%' AND state = 'active'"
        with engine.begin() as connection:
            assert connection.scalar(text(active)) == 0


def test_a_migration_may_take_longer_than_other_statements(postgres_url: URL, monkeypatch: pytest.MonkeyPatch) -> None:
    sleeps = Migration(2, "", lambda it: it.execute(text("SELECT pg_sleep(1)")), oldest_reader=1, oldest_writer=1)  # type: ignore[arg-type]
    monkeypatch.setattr(migrations, "MIGRATIONS", (sleeps,))
    monkeypatch.setattr(postgres_engine, "_LONGEST", 0.3)
    with disposed(writing_engine(postgres_url, 0.2)) as engine, engine.connect() as connection:
        assert stamp_of(connection).version == 2


NO_SOCKET = 'connection to server on socket "/nowhere/.s.PGSQL.5432" failed: No such file or directory'


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("postgresql://a@127.0.0.1:1/x", "cannot be reached or used now: Connection refused."),
        ("postgresql://a@127.0.0.1,127.0.0.2:1/x", "cannot be reached or used now: Connection refused."),
        ("postgresql://a@/x?host=/nowhere", f"cannot be reached or used now: {NO_SOCKET}."),
        ("postgresql://a@127.0.0.1:1/x?foo=1", 'cannot be used: invalid connection option "foo".'),
    ],
)
def test_of_what_libpq_says_the_reason_is_said(url: str, said: str) -> None:
    with pytest.raises(DatabaseError) as caught:
        writing_engine(database_address(url), patience=1.0)
    assert str(caught.value) == f"{url} {said}"


def test_a_connection_that_is_cut_off_is_said_in_a_sentence(postgres_url: URL, patient: Engine) -> None:
    said = pytest.raises(DatabaseError, match=r"used now: terminating connection due to administrator command\.$")
    with said as caught, errors_in_plain_words(postgres_url), patient.begin() as connection:
        connection.execute(text("SELECT pg_terminate_backend(pg_backend_pid())"))
    assert "Traceback" not in "".join(traceback.format_exception(caught.value)).partition("Traceback")[2]


def test_a_user_that_the_server_does_not_know_is_hopeless(postgres_url: URL) -> None:
    said = "does not know this user: name another, or create it with createuser"
    with pytest.raises(RefusedDatabaseError, match=said):
        refuse_hopeless(postgres_url.set(username="nobody"))


def test_nothing_is_prepared_on_a_server_that_a_pooler_may_take_away(patient: Engine) -> None:
    with patient.begin() as connection:
        for _ in range(8):
            connection.execute(text("SELECT 1"))
        assert connection.scalar(text("SELECT count(*) FROM pg_prepared_statements")) == 0


@pytest.mark.parametrize("open_engine", [writing_engine, reading_engine, migrating_engine])
def test_a_server_that_is_refused_is_let_go(postgres_url: URL, open_engine: Callable[[URL], Engine]) -> None:
    engine = create_engine(postgres_url, poolclass=NullPool, isolation_level="AUTOCOMMIT")
    others = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
    with engine.connect() as connection:
        connection.execute(text("UPDATE logs_ui_schema SET version = 999, oldest_reader = 999, oldest_writer = 999"))
        with pytest.raises(RefusedDatabaseError) as caught:
            open_engine(postgres_url)
        wait_until(lambda: connection.scalar(text(others)) == 0)  # the server learns of it a moment later
    assert caught


def test_statements_are_compiled_once_for_all_engines(tmp_path: Path) -> None:
    compiled: list[str] = []

    def one() -> Select[tuple[int]]:
        compiled.append("once")
        return select(literal(1))

    for name in ("a.db", "b.db"):
        with disposed(writing_engine(tmp_path / name)) as engine, engine.begin() as connection:
            assert prepared_statements.run(connection, {}, one).scalar_one() == 1
    assert compiled == ["once"]


@pytest.mark.parametrize("text", [b"xy", b"SQLite format 3\0", b"not a database at all" * 100])
def test_a_file_that_is_no_database(db: Path, text: bytes) -> None:
    db.write_bytes(text)
    assert "is not an SQLite database" in message(db)
    assert contents(db.parent) == {"a.db": text}


THEIRS = """
import os, sqlite3, sys
connection = sqlite3.connect(sys.argv[1], isolation_level=None)
connection.execute(f"pragma journal_mode={sys.argv[2]}")
connection.execute("create table theirs (x)")
if sys.argv[3] == "killed":
    os._exit(0)
connection.close()
"""


@pytest.mark.parametrize("end", ["closed", "killed"])
@pytest.mark.parametrize("mode", ["delete", "wal"])
def test_somebody_elses_database_stays_as_it_was(tmp_path: Path, mode: str, end: str) -> None:
    path = tmp_path / "a.db"
    subprocess.run([sys.executable, "-c", THEIRS, path, mode, end], check=True)
    before = contents(tmp_path)
    assert ("a.db-wal" in before) == (mode == "wal" and end == "killed")
    said = message(path)
    assert "not one of logs-ui" in said
    assert "(--db, db= or LOGS_UI_DB)" in said
    after = contents(tmp_path)
    assert after.keys() == before.keys()
    for name in before.keys() - {"a.db-shm"}:  # an index of the -wal, which each that opens it may bring up to date
        assert after[name] == before[name], name


def test_somebody_elses_database_is_refused_while_it_is_locked(db: Path) -> None:
    with closing(sqlite3.connect(db, isolation_level=None)) as theirs:
        theirs.execute("create table theirs (x)")
        theirs.execute("BEGIN EXCLUSIVE")
        assert "not one of logs-ui" in message(db)
        theirs.execute("insert into theirs values (1)")
        theirs.execute("COMMIT")


@pytest.mark.parametrize("tables", ["no file", "0 bytes", "none"])
def test_an_empty_database_is_as_none_to_readers_and_filled_by_the_writer(tmp_path: Path, tables: str) -> None:
    path = tmp_path / "a.db"
    if tables == "0 bytes":
        path.touch()
    if tables == "none":
        with sqlite3.connect(path) as connection:
            connection.execute("create table gone (x)")
            connection.execute("drop table gone")
    with pytest.raises(NoDatabaseError, match=r"Record a training into it first, or name another database"):
        reading_engine(path)
    refuse_hopeless(path)
    assert path.exists() == (tables != "no file")
    writing_engine(path).dispose()
    reading_engine(path).dispose()


def test_what_may_heal_or_cannot_be_told_is_not_hopeless(tmp_path: Path) -> None:
    refuse_hopeless(tmp_path / "not mounted yet" / "a.db")
    assert list(tmp_path.iterdir()) == []
    path = tmp_path / "a.db"
    with disposed(writing_engine(path)) as engine:
        holder = engine.raw_connection()
        holder.cursor().execute("BEGIN EXCLUSIVE")
        began = time.monotonic()
        refuse_hopeless(path)
        assert time.monotonic() - began < 20, "who writes would wait for 30 s"
        holder.close()
    pages = path.read_bytes()
    path.write_bytes(pages[:100] + b"\xff" * (len(pages) - 100))
    refuse_hopeless(path)
    with pytest.raises(DatabaseError, match="is damaged"):
        writing_engine(path)


@pytest.mark.parametrize("lacks", ["run.name", "logs_ui_schema.oldest_writer"])
def test_a_database_of_an_older_build_is_refused(made: Path, lacks: str) -> None:
    taken_back(made, [column(lacks)])
    assert f"by an earlier logs-ui, before 0.1.0: it lacks the column {lacks}. Name another" in message(made)


def test_a_newer_schema(made: Path) -> None:
    stamp = "update logs_ui_schema set version = ?1, oldest_reader = ?1, oldest_writer = ?1, release = '0.3.0'"
    with sqlite3.connect(made) as connection:
        connection.execute(stamp, [SCHEMA_VERSION + 1])
    assert message(made) == (
        f"{made} was written by a newer logs-ui (schema 2, this one knows 1). "
        "Upgrade with: pip install -U 'logs-ui>=0.3.0'"
    )
    with sqlite3.connect(made) as connection:
        connection.execute("ALTER TABLE logs_ui_schema DROP COLUMN release")
    assert message(made).endswith("Upgrade with: pip install -U logs-ui")


def test_what_is_no_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "file").touch()
    assert "is a folder" in message(tmp_path)
    assert "is no regular file" in message(tmp_path / "pipe")
    assert "Not a directory. Name another database" in message(tmp_path / "file" / "a.db")


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
    assert not is_rows_fault(error)
    with pytest.raises(DatabaseError, match=words), errors_in_plain_words(tmp_path / "a.db"):
        raise error


def test_a_row_that_speaks_of_trouble_is_none(db: Path) -> None:
    uid = "database or disk is full, locked, readonly, malformed, not a database, disk I/O error, unable to open"
    with disposed(writing_engine(db)) as engine, pytest.raises(SQLAlchemyError) as caught, engine.begin() as connection:
        connection.execute(insert(Run).values(uid=uid, name=None, created=1, heartbeat=1))
    assert uid not in str(caught.value)  # which may be logged
    assert is_rows_fault(caught.value)
    said = r"a\.db cannot be used: NOT NULL constraint failed: run\.name$"
    with pytest.raises(DatabaseError, match=said), errors_in_plain_words(db):
        raise caught.value


READS = """
import os, sys
from pathlib import Path
from logs_ui.recorder.errors import DatabaseError
from logs_ui.recorder.storage.database import reading_engine, writing_engine
os.setuid(65534)
try:
    writing_engine(Path(sys.argv[1]))
except DatabaseError as error:
    print(error)
with reading_engine(Path(sys.argv[1])).connect() as connection:
    print(connection.exec_driver_sql("select count(*) from run").scalar(), flush=True)
    sys.stdin.read()
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become a user who may not write")
@pytest.mark.parametrize(("written", "read"), [("local", "local"), ("local", "network"), ("network", "network")])
def test_a_read_only_folder_is_read_with_locks(monkeypatch: pytest.MonkeyPatch, written: str, read: str) -> None:
    with tempfile.TemporaryDirectory(dir="/tmp") as name:
        db = Path(name) / "a.db"
        monkeypatch.setenv("LOGS_UI_FILE_SYSTEM", written)
        writing_engine(db).dispose()
        db.parent.chmod(0o555)
        monkeypatch.setenv("LOGS_UI_FILE_SYSTEM", read)
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        with subprocess.Popen([sys.executable, "-c", READS, str(db)], **pipes) as reading:  # type: ignore[call-overload]
            if written == "local":
                assert "is not writable" in reading.stdout.readline()
            assert reading.stdout.readline() == "0\n"
            if written == "network":  # what was copied there with its log's mode, nobody writes
                with (
                    closing(sqlite3.connect(db, timeout=0)) as other,
                    pytest.raises(sqlite3.OperationalError, match="lock"),
                ):
                    other.execute("BEGIN EXCLUSIVE")
            reading.stdin.close()
            assert reading.wait() == 0
