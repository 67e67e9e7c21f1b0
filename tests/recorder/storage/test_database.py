"""A database that cannot be used says in one line what, why and what to do; and a fault costs nothing recorded."""

import os
import socket
import sqlite3
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path
from typing import Self

import pytest
from sqlalchemy import URL, Connection, Engine, Select, create_engine, insert, literal, select, text
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
    needs_no_look,
    shown,
)
from logs_ui.recorder.storage.database import (
    errors_in_plain_words,
    is_rows_fault,
    migrating_engine,
    reading_engine,
    refuse_hopeless,
    writing_engine,
)
from logs_ui.recorder.storage.migrations import Migration
from logs_ui.recorder.storage.postgres import postgres_engine
from logs_ui.recorder.storage.schema import stamp_of
from logs_ui.recorder.storage.tables import Run, Table
from logs_ui.recorder.storage.writes import prepared_statements


def message(path: Path, *, write: bool) -> str:
    """Of the error, which `record()` gives as well before it begins."""
    with pytest.raises(RefusedDatabaseError) as caught:
        (writing_engine if write else reading_engine)(path)
    text = str(caught.value)
    assert "\n" not in text
    with pytest.raises(RefusedDatabaseError) as before:
        writer_for(path)
    assert str(before.value) == text
    return text


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


class Proxy:
    """Before a server's socket. Once it `loses`, what its connections bring goes nowhere; not so that of later ones."""

    def __init__(self, server: Path, folder: Path) -> None:
        self.loses = False
        self._server = str(server / ".s.PGSQL.5432")
        self._listening = socket.socket(socket.AF_UNIX)
        self._listening.bind(str(folder / ".s.PGSQL.5432"))
        self._listening.listen()
        threading.Thread(target=self._accept, daemon=True).start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, server = self._listening.accept()[0], socket.socket(socket.AF_UNIX)
                server.connect(self._server)
                is_lossy = not self.loses
                threading.Thread(target=self._pass_on, args=(client, server, False), daemon=True).start()
                threading.Thread(target=self._pass_on, args=(server, client, is_lossy), daemon=True).start()

    def _pass_on(self, source: socket.socket, target: socket.socket, is_lossy: bool) -> None:  # noqa: FBT001
        with suppress(OSError):
            while data := source.recv(65536):
                if not (is_lossy and self.loses):
                    target.sendall(data)
            target.shutdown(socket.SHUT_WR)


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


def test_a_url_of_another_database_is_refused() -> None:
    with pytest.raises(DatabaseError, match=r"^mysql databases are not supported"):
        database_address("mysql://host/runs")


@pytest.mark.parametrize("scheme", ["postgresql", "postgres", "postgresql+psycopg"])
def test_a_postgresql_server_is_named_by_its_url_and_its_password_never_shown(scheme: str) -> None:
    address = database_address(f"{scheme}://ann:s%40cret@host:5433/runs?sslmode=require&sslpassword=hush")
    assert database_address(address) == database_address(as_text(address)) == address
    assert "s%40cret" in as_text(address)
    assert shown(address) == "postgresql://ann:***@host:5433/runs?sslmode=require&sslpassword=***"


@pytest.mark.parametrize(
    "url", ["postgresql://ann:hush@host", "postgresql://ann:hush@host:port/runs", "postgresql:/ann:hush@host/runs"]
)
def test_a_url_that_names_no_database_says_so_without_its_password(url: str) -> None:
    with pytest.raises(DatabaseError, match=r"[Ww]rite postgresql://") as caught:
        database_address(url)
    assert "hush" not in str(caught.value)


def test_a_password_with_a_sign_of_urls_is_refused_and_not_shown() -> None:
    with pytest.raises(DatabaseError, match="@, / or : within a password as %40") as caught:
        database_address("postgresql://ann:hu@sh@host/runs")
    assert "sh@" not in str(caught.value)
    assert shown(database_address("postgresql://host/runs?password=hush")) == "postgresql://host/runs?password=***"


def test_a_look_at_a_server_whose_tables_are_locked_does_not_wait(
    postgres_url: URL, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres_engine, "_LOOK", 0.1)
    with create_engine(postgres_url, poolclass=NullPool).begin() as connection:
        connection.execute(text("LOCK TABLE logs_ui_schema IN ACCESS EXCLUSIVE MODE"))
        refuse_hopeless(postgres_url)


def test_a_server_that_is_slow_is_waited_for(postgres_url: URL) -> None:
    engine = writing_engine(postgres_url, patience=0.2)
    with engine.begin() as connection:
        assert connection.scalar(text("SELECT 1 FROM pg_sleep(1.5)")) == 1, "seven times as long as for a lock"
    engine.dispose()


@pytest.mark.parametrize(("longest", "hurried"), [(0.5, False), (60.0, True)])
def test_one_that_is_slow_for_too_long_is_given_up_and_stops(
    postgres_url: URL,
    monkeypatch: pytest.MonkeyPatch,
    longest: float,
    hurried: bool,  # noqa: FBT001 - a case
) -> None:
    monkeypatch.setattr(postgres_engine, "_LONGEST", longest)
    engine = writing_engine(postgres_url, 0.2, lambda: hurried)
    with pytest.raises(OperationalError, match=r"has not answered for \d+\.\d seconds") as caught, engine.begin() as it:
        it.execute(text("SELECT pg_sleep(60)"))
    assert not is_rows_fault(caught.value)
    with engine.begin() as connection:
        at_it = text(
            "SELECT count(*) FROM pg_stat_activity WHERE query LIKE 'SELECT pg_sleep(60)%' AND state = 'active'"
        )
        assert connection.scalar(at_it) == 0
    engine.dispose()


def test_a_migration_may_take_longer_than_any_other_statement(
    postgres_url: URL, monkeypatch: pytest.MonkeyPatch
) -> None:
    def takes_long(connection: Connection) -> None:
        connection.execute(text("SELECT pg_sleep(1.5)"))

    step = Migration(2, "nothing, for long", takes_long, oldest_reader=1, oldest_writer=1)
    monkeypatch.setattr(migrations, "MIGRATIONS", (step,))
    monkeypatch.setattr(postgres_engine, "_LONGEST", 0.5)
    engine = writing_engine(postgres_url, 0.2)
    with engine.connect() as connection:
        assert stamp_of(connection).version == 2
    engine.dispose()


def test_a_server_whose_answers_are_lost_is_given_up_and_tried_again(
    postgres_url: URL, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres_engine, "_LONGEST", 0.5)
    with Proxy(Path(str(postgres_url.query["host"])), tmp_path) as proxy:
        engine = writing_engine(postgres_url.set(query={"host": str(tmp_path)}), patience=0.2)
        with engine.connect() as connection:
            connection.execute(text("SELECT 1"))
            proxy.loses = True
            with pytest.raises(OperationalError, match=r"has not answered for \d+\.\d seconds"):
                connection.execute(text("SELECT 1"))
        with engine.begin() as connection:
            assert connection.scalar(text("SELECT 1")) == 1
        engine.dispose()


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


def test_a_connection_that_is_cut_off_is_said_in_a_sentence(postgres_url: URL) -> None:
    engine = writing_engine(postgres_url)
    with (
        pytest.raises(
            DatabaseError, match=r"used now: terminating connection due to administrator command\.$"
        ) as caught,
        errors_in_plain_words(postgres_url),
        engine.begin() as connection,
    ):
        connection.execute(text("SELECT pg_terminate_backend(pg_backend_pid())"))
    assert "Traceback" not in "".join(traceback.format_exception(caught.value)).partition("Traceback")[2]
    engine.dispose()


def test_a_user_that_the_server_does_not_know_is_hopeless(postgres_url: URL) -> None:
    with pytest.raises(
        RefusedDatabaseError, match="does not know this user: name another, or create it with createuser"
    ):
        refuse_hopeless(postgres_url.set(username="nobody"))


def test_nothing_is_prepared_on_a_server_that_a_pooler_may_take_away(postgres_url: URL) -> None:
    engine = writing_engine(postgres_url)
    with engine.begin() as connection:
        for _ in range(8):
            connection.execute(text("SELECT 1"))
        assert connection.scalar(text("SELECT count(*) FROM pg_prepared_statements")) == 0
    engine.dispose()


@pytest.mark.parametrize("open_engine", [writing_engine, reading_engine, migrating_engine])
def test_a_server_that_is_refused_is_let_go(postgres_url: URL, open_engine: Callable[[URL], Engine]) -> None:
    one = create_engine(postgres_url, poolclass=NullPool)
    with one.begin() as connection:
        connection.execute(text("UPDATE logs_ui_schema SET version = 999, oldest_reader = 999, oldest_writer = 999"))
    with pytest.raises(RefusedDatabaseError) as caught:
        open_engine(postgres_url)
    with one.connect() as connection:
        others = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
        until = time.monotonic() + 60  # the server learns of it a moment later
        while connection.scalar(text(others)) and time.monotonic() < until:
            connection.rollback()
            time.sleep(0.02)
        assert connection.scalar(text(others)) == 0, caught


def test_statements_are_compiled_once_for_all_engines(tmp_path: Path) -> None:
    found = []
    for name in ("a.db", "b.db"):
        engine = writing_engine(tmp_path / name)
        with engine.begin() as connection:
            found.append(prepared_statements.run(connection, {}, _one).scalar_one())
        engine.dispose()
    assert found == [1, 1]
    assert _compiled == ["once"]


_compiled: list[str] = []


def _one() -> Select[tuple[int]]:
    _compiled.append("once")
    return select(literal(1))


@pytest.mark.parametrize("url", ["sqlite://", "sqlite:///", "sqlite://runs.db"])
def test_a_url_without_a_path_is_told_so(url: str) -> None:
    with pytest.raises(DatabaseError, match=f"^{url} lacks the path. Write sqlite:///runs.db"):
        database_address(url)


@pytest.mark.parametrize("write", [True, False])
@pytest.mark.parametrize("text", [b"xy", b"SQLite format 3\0", b"not a database at all" * 100])
def test_a_file_that_is_no_database(tmp_path: Path, text: bytes, write: bool) -> None:  # noqa: FBT001
    path = tmp_path / "a.db"
    path.write_bytes(text)
    assert "is not an SQLite database" in message(path, write=write)
    assert contents(tmp_path) == {"a.db": text}


THEIRS = """
import os, sqlite3, sys
connection = sqlite3.connect(sys.argv[1], isolation_level=None)
connection.execute(f"pragma journal_mode={sys.argv[2]}")
connection.execute("create table theirs (x)")
if sys.argv[3] == "killed":
    os._exit(0)
connection.close()
"""


@pytest.mark.parametrize("write", [True, False])
@pytest.mark.parametrize("end", ["closed", "killed"])
@pytest.mark.parametrize("mode", ["delete", "wal"])
def test_somebody_elses_database_stays_as_it_was(tmp_path: Path, mode: str, end: str, write: bool) -> None:  # noqa: FBT001
    path = tmp_path / "a.db"
    subprocess.run([sys.executable, "-c", THEIRS, path, mode, end], check=True)
    before = contents(tmp_path)
    assert ("a.db-wal" in before) == (mode == "wal" and end == "killed")
    said = message(path, write=write)
    assert "not one of logs-ui" in said
    assert "(--db, db= or LOGS_UI_DB)" in said
    after = contents(tmp_path)
    assert after.keys() == before.keys()
    for name in before.keys() - {"a.db-shm"}:  # an index of the -wal, which each that opens it may bring up to date
        assert after[name] == before[name], name


@pytest.mark.parametrize("write", [True, False])
def test_somebody_elses_database_is_refused_while_it_is_locked(tmp_path: Path, write: bool) -> None:  # noqa: FBT001
    path = tmp_path / "a.db"
    theirs = sqlite3.connect(path, isolation_level=None)
    theirs.execute("create table theirs (x)")
    theirs.execute("BEGIN EXCLUSIVE")
    assert "not one of logs-ui" in message(path, write=write)
    theirs.execute("insert into theirs values (1)")
    theirs.execute("COMMIT")
    theirs.close()


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
    engine = writing_engine(path)
    holder = engine.raw_connection()
    holder.cursor().execute("BEGIN EXCLUSIVE")
    began = time.monotonic()
    refuse_hopeless(path)
    assert time.monotonic() - began < 20, "who writes would wait for 30 s"
    holder.close()
    engine.dispose()
    pages = path.read_bytes()
    path.write_bytes(pages[:100] + b"\xff" * (len(pages) - 100))
    refuse_hopeless(path)
    with pytest.raises(DatabaseError, match="is damaged"):
        writing_engine(path)


@pytest.mark.parametrize("write", [True, False])
@pytest.mark.parametrize(
    ("change", "lacks"),
    [("ALTER TABLE run DROP COLUMN host", "run.host"), ("DROP TABLE step_details", "step_details.run_id")],
)
def test_a_database_of_an_older_build_is_refused(tmp_path: Path, change: str, lacks: str, write: bool) -> None:  # noqa: FBT001
    path = tmp_path / "a.db"
    writing_engine(path).dispose()
    with sqlite3.connect(path) as connection:
        connection.execute(change)
    assert f"by an earlier logs-ui, before 0.1.0: it lacks {lacks}. Name another" in message(path, write=write)


@pytest.mark.parametrize("write", [True, False])
def test_a_newer_schema(tmp_path: Path, write: bool) -> None:  # noqa: FBT001
    path = tmp_path / "a.db"
    writing_engine(path).dispose()
    with sqlite3.connect(path) as connection:
        stamp = "update logs_ui_schema set version = ?1, oldest_reader = ?1, oldest_writer = ?1"
        connection.execute(stamp, [SCHEMA_VERSION + 1])
    assert "written by a newer logs-ui" in message(path, write=write)
    assert "pip install -U logs-ui" in message(path, write=write)


@pytest.mark.parametrize("write", [True, False])
def test_what_is_no_file(tmp_path: Path, write: bool) -> None:  # noqa: FBT001
    assert "is a folder" in message(tmp_path, write=write)
    os.mkfifo(tmp_path / "pipe")
    assert "is no regular file" in message(tmp_path / "pipe", write=write)
    (tmp_path / "file").touch()
    assert "Not a directory. Name another database" in message(tmp_path / "file" / "a.db", write=write)


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


def test_a_row_that_speaks_of_trouble_is_none(tmp_path: Path) -> None:
    engine = writing_engine(tmp_path / "a.db")
    text = "database or disk is full, locked, readonly, malformed, not a database, disk I/O error, unable to open"
    with pytest.raises(SQLAlchemyError) as caught, engine.begin() as connection:
        connection.execute(insert(Run).values(uid=text, name=None, created=1, heartbeat=1))
    engine.dispose()
    assert text not in str(caught.value)  # which may be logged
    assert is_rows_fault(caught.value)
    said = r"a\.db cannot be used: NOT NULL constraint failed: run\.name$"
    with pytest.raises(DatabaseError, match=said), errors_in_plain_words(tmp_path / "a.db"):
        raise caught.value


READ_ONLY = """
import os, sys
from pathlib import Path
from logs_ui.recorder.storage.database import reading_engine, writing_engine
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


READS = """
import os, sys
from pathlib import Path
from logs_ui.recorder.storage.database import reading_engine
os.setuid(65534)
with reading_engine(Path(sys.argv[1])).connect() as connection:
    print(connection.exec_driver_sql("select count(*) from run").scalar(), flush=True)
    sys.stdin.read()
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become a user who may not write")
@pytest.mark.parametrize("written", ["local", "network"])
def test_a_read_only_folder_on_a_network_file_system_is_read_with_locks(
    monkeypatch: pytest.MonkeyPatch, written: str
) -> None:
    import tempfile

    with tempfile.TemporaryDirectory(dir="/tmp") as name:
        folder, db = Path(name), Path(name) / "a.db"
        monkeypatch.setenv("LOGS_UI_FILE_SYSTEM", written)
        writing_engine(db).dispose()
        folder.chmod(0o555)
        monkeypatch.setenv("LOGS_UI_FILE_SYSTEM", "network")
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        with subprocess.Popen([sys.executable, "-c", READS, str(db)], **pipes) as reading:  # type: ignore[call-overload]
            assert reading.stdout.readline() == "0\n"
            if (
                written == "network"
            ):  # where others may write it; what was copied there with its log's mode, nobody does
                with (
                    closing(sqlite3.connect(db, timeout=0)) as other,
                    pytest.raises(sqlite3.OperationalError, match="lock"),
                ):
                    other.execute("BEGIN EXCLUSIVE")
            reading.stdin.close()
            assert reading.wait() == 0
