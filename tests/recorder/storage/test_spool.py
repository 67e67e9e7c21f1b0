"""What waits on disk for its database: every whole entry of it goes in, once, whoever takes it in."""

import errno
import fcntl
import logging
import os
import sqlite3
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from logs_ui.recorder import load_run
from logs_ui.recorder.api.run_record import ChangesJob
from logs_ui.recorder.delivery.writer import Writer
from logs_ui.recorder.guard import RAISE_VARIABLE
from logs_ui.recorder.storage.address import Address, database_address
from logs_ui.recorder.storage.changes import (
    Batch,
    RowChange,
    RunChange,
    ScalarsChange,
    Source,
    SourcesChange,
    StoredImage,
    TokenizerChange,
)
from logs_ui.recorder.storage.database import writing_engine
from logs_ui.recorder.storage.limits import Limits
from logs_ui.recorder.storage.spool import spool_files as spool
from logs_ui.recorder.storage.spool import spool_format, spool_ingest
from logs_ui.recorder.storage.spool.intake import Intake
from logs_ui.recorder.storage.spool.lease import Lease
from logs_ui.recorder.storage.spool.spool_entry import Entry, Failures, decoded, encoded
from logs_ui.recorder.storage.spool.spool_files import Spool, SpoolFullError, spool_files
from logs_ui.recorder.storage.spool.spool_format import FORMAT, Frame, NotASpoolError, frame_of, frames
from logs_ui.recorder.storage.spool.spool_ingest import Ingester
from logs_ui.recorder.storage.spool_folder import spool_folder
from logs_ui.recorder.vocabulary import RunState, SourceKind, Status
from tests.recorder.delivery.test_writer import storage_of
from tests.support.entries import nth
from tests.support.storage_faults import begun, check, locked, record, row_job

AT_ONCE = Limits(spool_seconds=0.0, end_seconds=0.4)


@pytest.fixture
def db(tmp_path: Path) -> Path:
    return tmp_path / "a.db"


def made(folder: Path, *sizes: int) -> Path:
    """A file with frames 1, 2, ... of so many bytes, whose process has died."""
    one = Spool(folder, "p", 1 << 30)
    for number, size in enumerate(sizes, 1):
        one.append(nth(number), bytes([number]) * size)
    one.abandon()
    (file,) = spool_files(folder)
    return file.path


def read(path: Path, start: int = 0) -> list[Frame]:
    with path.open("rb") as file:
        return list(frames(file, start))


def wait_until(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_what_is_appended_is_read_from_anywhere(tmp_path: Path) -> None:
    path = made(tmp_path, 10, 1, 70_000)
    found = read(path)
    assert [(frame.number.n, frame.data) for frame in found] == [(1, b"\1" * 10), (2, b"\2"), (3, b"\3" * 70_000)]
    assert found[-1].end == path.stat().st_size
    assert read(path, found[0].end) == found[1:]


def test_a_torn_end_is_cut_off_wherever_it_is_torn(tmp_path: Path) -> None:
    path = made(tmp_path, 10, 20)
    whole = path.read_bytes()
    first, second = read(path)
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        kept = [first] if length >= first.end else []
        assert read(path) == kept, length
        if length >= len(FORMAT):  # that is on the disk before the file has its name
            path.write_bytes(whole[:length] + bytes(len(whole) - length))  # as a disk leaves what it had no time for
            assert read(path) == kept, length
    path.write_bytes(whole)
    assert read(path) == [first, second]


def test_a_frame_that_changed_on_the_disk_is_none(tmp_path: Path) -> None:
    path = made(tmp_path, 10, 20, 30)
    whole = bytearray(path.read_bytes())
    first = read(path)[0]
    for place in range(first.end, first.end + 36):
        whole[place] ^= 1
        path.write_bytes(whole)
        assert read(path)[:1] == [first]
        assert len(read(path)) == 1, place
        whole[place] ^= 1


def test_a_file_of_another_format_is_told(tmp_path: Path) -> None:
    path = tmp_path / "p.000001.spool"
    path.write_bytes(b"logs-ui spool 1\n" + bytes(100))
    with pytest.raises(NotASpoolError):
        read(path)


def test_a_spool_is_a_series_of_files_that_go_as_they_are_taken_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spool, "_FILE_BYTES", 100)
    one = Spool(tmp_path / "s", "p", 1 << 20)
    for number in range(1, 8):
        one.append(nth(number), bytes(40))
    assert [file.part for file in spool_files(one.folder)] == [1, 2, 3, 4]
    assert one.size == sum(file.path.stat().st_size for file in spool_files(one.folder)) - 3 * 24  # of "nothing more"
    for numbers in ([1, 2], [3, 4], [5, 6]):
        assert [frame.number.n for frame in one.first()] == numbers
        assert [frame.number.n for frame in one.first()] == numbers, "until it is done with"
        one.forget(one.first())
    one.forget(one.first())
    assert [file.part for file in spool_files(one.folder)] == [4]
    assert one.first() == []
    one.clear()
    assert not one
    assert one.size == 0
    assert not one.folder.exists()
    one.append(nth(8), b"x")
    assert [frame.number.n for frame in one.first()] == [8]
    one.append(nth(9), b"x")
    one.forget(one.first()[:1])
    assert [frame.number.n for frame in one.first()] == [9]


def test_a_spool_has_a_bound(tmp_path: Path) -> None:
    one = Spool(tmp_path / "s", "p", 200)
    one.append(nth(1), bytes(100))
    with pytest.raises(SpoolFullError):
        one.append(nth(2), bytes(100))
    assert [frame.number.n for frame in one.first()] == [1]


def test_what_others_took_in_counts_no_more(tmp_path: Path) -> None:
    one = Spool(tmp_path / "s", "p", 200)
    for number in range(1, 4):
        one.append(nth(number), bytes(100))
        (file,) = spool_files(one.folder)
        assert one.size == file.path.stat().st_size
        file.path.unlink()


def test_a_system_that_cannot_sync_data_alone_syncs_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "fdatasync")
    one = Spool(tmp_path / "s", "p", 200)
    one.append(nth(1), b"x")
    one.close()
    assert [frame.number.n for frame in one.first()] == [1]


@pytest.mark.parametrize("is_own", [True, False])
def test_what_was_taken_in_is_on_the_disk_before_its_file_goes(
    db: Path, monkeypatch: pytest.MonkeyPatch, *, is_own: bool
) -> None:
    synced: list[int] = []
    sync = os.fsync

    def fsync(descriptor: int) -> None:
        sync(descriptor)
        if Path(f"/proc/self/fd/{descriptor}").readlink().name.endswith("-wal"):
            synced.append(len(spool_files(spool_folder(db))))

    monkeypatch.setattr(os, "fsync", fsync)
    if is_own:
        writer = Writer(db, AT_ONCE)
        writer.put(begun())
        assert writer.flush(60)
        with locked(db):
            record(writer, "a", range(3))
            assert writer.flush(60)
        wait_until(lambda: not spool_files(spool_folder(db)))
    else:
        died(db, range(3))
        assert Ingester(db).take_in().is_all
    assert synced == [1]


def test_a_frame_that_a_full_disk_takes_in_part_is_taken_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one = Spool(tmp_path / "s", "p", 1 << 20)
    one.append(nth(1), bytes(100))
    (file,) = spool_files(one.folder)
    size = file.path.stat().st_size
    write = spool._write_all

    def writes_a_part(to: Any, data: bytes) -> None:
        write(to, data[: len(data) // 2])
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as full:
        full.setattr(spool, "_write_all", writes_a_part)
        with pytest.raises(OSError, match="No space left"):
            one.append(nth(2), bytes(100))
    assert file.path.stat().st_size == size
    one.append(nth(2), b"again")
    assert [(frame.number.n, len(frame.data)) for frame in one.first()] == [(1, 100), (2, 5)]


def test_a_file_that_was_deleted_under_its_process_is_followed_by_another(tmp_path: Path) -> None:
    one = Spool(tmp_path / "s", "p", 1 << 20)
    one.append(nth(1), b"a")
    for file in spool_files(one.folder):
        file.path.unlink()
    one.append(nth(2), b"b")
    assert [frame.number.n for frame in one.first()] == [2]


def test_an_entry_is_the_same_on_disk_with_the_values_that_databases_take() -> None:
    image = StoredImage("h", "image/png", 1, 2, b"data")
    columns = {"status": Status.OK, "reward": np.float64(0.5), "turns": np.int64(3), "error": None, "odd": float("inf")}
    batch = Batch(
        [RunChange("r", {"state": RunState.FAILED, "versions": {"python": "3"}}, 2, "out", 1)],
        [RowChange("r", "u", {"created": 1}, {**columns, "rewards": {"a": None}}, b"\0c", None, (image,), ("t",))],
        [ScalarsChange("r", 1, {"loss": None, "kl": 0.5})],
        [TokenizerChange("h", "{}")],
        [SourcesChange("r", (Source(SourceKind.ROLLOUT, "n", "text", 0.5),))],
    )
    entry = Entry(nth(7), 8, batch, ("r",), (Failures("r", 1, 2, "last"),))
    data, refused = encoded(entry)
    assert refused == 0
    assert decoded(data) == entry


def test_what_cannot_be_put_on_disk_costs_nobody_else_anything(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(RAISE_VARIABLE, "0")
    rows = [
        RowChange("r", "a", {"created": 1}, {"turns": 1}),
        RowChange("r", "b", {"created": 1}, {"turns": object()}),
        RowChange("r", "c", {"created": 1}, {"preview": object(), "turns": 2}, b"text"),
    ]
    data, refused = encoded(Entry(nth(1), 1, Batch(rows=rows)))
    assert refused == 1
    kept = decoded(data).batch.rows
    assert [(row.uid, row.columns["turns"], row.content) for row in kept] == [("a", 1, None), ("c", 2, None)]


def test_no_test_leaves_anything_in_the_users_own_data_folder(tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = spool_folder(database_address("postgresql://db.example.org/runs"))
    assert folder.is_relative_to(tmp_path_factory.getbasetemp())


@pytest.mark.parametrize("given", [None, "spools"])
def test_a_spool_lies_beside_its_database_or_where_it_is_told_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: str | None
) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    if given:
        monkeypatch.setenv("LOGS_UI_SPOOL", str(tmp_path / given))
    url = "postgresql://ann:hush@db.example.org:5433/runs"
    folders = [spool_folder(database_address(each)) for each in (tmp_path / "a.db", url, url.replace("runs", "walks"))]
    parents = [tmp_path / given] * 3 if given else [tmp_path] + [tmp_path / "data" / "logs-ui" / "spool"] * 2
    assert [folder.parent for folder in folders] == parents
    assert folders[0].name.startswith("a.db-")
    assert folders[1].name.startswith("db.example.org-runs-")
    assert len(set(folders)) == 3
    assert "hush" not in str(folders)
    assert folders[1] == spool_folder(database_address(url.replace("ann:hush", "bob"))), "another user's is the same"


def test_a_locked_database_is_waited_for_on_disk_and_flush_for_that(db: Path, caplog: pytest.LogCaptureFixture) -> None:
    writer = Writer(db, Limits(spool_seconds=0.1))
    writer.put(begun())
    record(writer, "a", range(10))
    assert writer.flush(60)
    with caplog.at_level(logging.WARNING), locked(db):
        for start in range(10, 60, 10):
            record(writer, "a", range(start, start + 10))
            assert writer.flush(60)
        (file,) = spool_files(spool_folder(db))
        assert Ingester(db).take_in().entries == 0, "it is its process's, which is alive"
        assert read(file.path)
    wait_until(lambda: not file.path.exists())
    record(writer, "a", range(60, 70))
    assert writer.flush(60)
    assert check(db, {"a": 70}, exactly=True) == 70
    said = [record.getMessage() for record in caplog.records]
    assert sum("stays locked by another process" in line for line in said) == 1
    assert sum(f"waits in {db}-spool until the database can be written again" in line for line in said) == 1
    assert sum("can be written again." in line for line in said) == 2


def died(db: Address, rows: range) -> Path:
    """What a process leaves that could not write the database, and was killed."""
    one = Spool(spool_folder(db), "p", 1 << 30)
    one.append(nth(1), encoded(Entry(nth(1), 1, Batch.merged(begun().changes())))[0])
    for at, number in enumerate(rows, 2):
        one.append(nth(at), encoded(Entry(nth(at), at, Batch.merged(row_job(f"a/{number}", number).changes())))[0])
    one.abandon()
    (file,) = spool_files(one.folder)
    return file.path


def test_what_a_dead_process_left_is_taken_in_by_the_next_that_records(db: Path) -> None:
    died(db, range(30))
    writer = Writer(db)
    record(writer, "b", range(5))
    assert writer.flush(60)
    wait_until(lambda: not spool_files(spool_folder(db)))
    assert check(db, {"a": 30, "b": 5}, exactly=True) == 35


def test_what_a_dead_process_left_is_there_for_who_reads(db: Path) -> None:
    died(db, range(30))
    assert not db.exists()
    assert len(load_run(db=db)) == 30


def test_an_entry_goes_in_once_on_either_database(
    address: Address, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """However often its file is found: as where the machine fails between the commit and the deletion."""
    monkeypatch.setenv("LOGS_UI_SPOOL", str(tmp_path / "spools"))
    path = died(address, range(20))
    kept = path.read_bytes()
    for _ in range(3):
        assert check(address, {"a": 20}, exactly=True) == 20
        path.write_bytes(kept)
    path.write_bytes(kept[: read(path)[10].end])
    assert check(address, {"a": 20}, exactly=True) == 20


def test_entries_of_which_some_are_in_go_in_together_without_those(address: Address) -> None:
    """As where two take the same file in at once."""
    entries = [Entry(nth(1), 1, Batch.merged(begun().changes()))]
    entries += [Entry(nth(at), at, Batch.merged(row_job(f"a/{at - 2}", at - 2).changes())) for at in range(2, 8)]
    engine = writing_engine(address)
    for last in (3, 6, 5, 7):
        Intake(address, lambda: engine, "p", is_own=False).take(entries[:last])
    engine.dispose()
    assert check(address, {"a": 6}, exactly=True) == 6


def test_a_commit_that_is_not_heard_of_is_not_repeated(address: Address, monkeypatch: pytest.MonkeyPatch) -> None:
    """The connection breaks when the server has committed, and before it could say so."""
    writer = Writer(address)
    writer.put(begun())
    assert writer.flush(60)
    engine = storage_of(writer).engine()
    commit = engine.dialect.do_commit
    broken: list[int] = []

    def commits_and_breaks(connection: Any) -> None:
        commit(connection)
        if not broken:
            broken.append(1)
            if engine.dialect.name == "sqlite":
                error: Exception = sqlite3.OperationalError("disk I/O error")
                error.sqlite_errorcode = sqlite3.SQLITE_IOERR  # type: ignore[attr-defined]
                raise error
            import psycopg

            raise psycopg.OperationalError("server closed the connection unexpectedly")

    monkeypatch.setattr(engine.dialect, "do_commit", commits_and_breaks)
    record(writer, "a", range(3))
    assert writer.flush(60)
    assert broken
    record(writer, "a", range(3, 6))
    assert writer.flush(60)
    assert check(address, {"a": 6}, exactly=True) == 6


def test_a_torn_spool_is_taken_in_as_far_as_it_goes_and_that_is_said(
    db: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = died(db, range(10))
    with path.open("ab") as torn:
        torn.write(path.read_bytes()[16:70])
    with caplog.at_level(logging.WARNING):
        assert check(db, {"a": 10}, exactly=True) == 10
    assert f"the last 54 bytes of {path} are torn" in caplog.text
    assert not path.exists()
    assert path.with_suffix(".torn").exists(), "whole entries may lie behind"


@pytest.mark.parametrize("content", [b"logs-ui spool 2\n" + bytes(90), b"logs-ui spool 1\n", FORMAT])
def test_what_another_version_wrote_is_left_alone_and_named(
    db: Path, caplog: pytest.LogCaptureFixture, content: bytes
) -> None:
    died(db, range(10))
    other = spool_folder(db) / "other.000001.spool"
    other.write_bytes(content + (frame_of(nth(1), b"\x93\1\2\3") if content == FORMAT else b""))
    ingester = Ingester(db)
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            assert ingester.take_in().is_all
    assert caplog.text.count(f"{other} was written by another version of logs-ui") == 1
    assert [file.path for file in spool_files(spool_folder(db))] == [other]
    assert check(db, {"a": 10}, exactly=True) == 10


def test_a_poison_row_on_disk_costs_only_itself_and_is_told(
    db: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv(RAISE_VARIABLE, "0")
    one = Spool(spool_folder(db), "p", 1 << 20)
    rows = [change for number in range(3) for change in row_job(f"a/{number}", number).changes()]
    (begins,) = begun().changes()
    poison = RowChange("r", "poison", rows[0].identity, {"no_such_column": 1})  # type: ignore[union-attr]
    one.append(nth(1), encoded(Entry(nth(1), 1, Batch.merged([begins, *rows, poison])))[0])
    one.close()
    with caplog.at_level(logging.ERROR):
        done = Ingester(db).take_in()
    assert (done.entries, done.rollouts, done.refused, done.is_all) == (1, 4, 1, True)
    assert check(db, {"a": 3}, exactly=True) == 3
    with sqlite3.connect(db) as connection:
        ((errors, dropped, last),) = connection.execute("SELECT recorder_errors, dropped, last_recorder_error FROM run")
    assert (errors, dropped) == (1, 1)
    assert "writing one row" in last


def test_a_spool_that_cannot_be_written_leaves_it_to_memory(
    db: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("LOGS_UI_SPOOL", "/proc/nowhere")
    writer = Writer(db, AT_ONCE)
    writer.put(begun())
    assert writer.flush(60)
    with caplog.at_level(logging.WARNING), locked(db):
        record(writer, "a", range(10))
        assert not writer.flush(1)
    assert writer.flush(60)
    assert check(db, {"a": 10}, exactly=True) == 10
    said = [record.getMessage() for record in caplog.records if "LOGS_UI_SPOOL" in record.getMessage()]
    assert len(said) == 1
    assert said[0].startswith("logs-ui: /proc/nowhere/a.db-")
    assert "cannot be written: No such file or directory. Recorded data is kept in memory" in said[0]


def test_a_spool_that_reached_its_bound_says_so_and_leaves_it_to_memory(
    db: Path, caplog: pytest.LogCaptureFixture
) -> None:
    writer = Writer(db, Limits(spool_seconds=0.0, end_seconds=0.4, spool_bytes=8_000))
    writer.put(begun())
    assert writer.flush(60)
    with caplog.at_level(logging.WARNING), locked(db):
        record(writer, "a", range(3))
        assert writer.flush(60)
        record(writer, "a", range(3, 100))
        assert not writer.flush(1)
    assert writer.flush(60)
    assert check(db, {"a": 100}, exactly=True) == 100
    assert caplog.text.count("has reached its limit of 0 MiB") == 1


def test_a_child_after_a_fork_leaves_its_parents_spool_alone(db: Path) -> None:
    from logs_ui.recorder.delivery import writer as writers

    writer = Writer(db, AT_ONCE)
    writers._by_address[db] = writer
    writer.put(begun())
    assert writer.flush(60)
    with locked(db):
        record(writer, "parent", range(5))
        assert writer.flush(60)
        child = os.fork()
        if child == 0:
            record(writer, "child", range(5))
            os._exit(0 if writer.flush(20) else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        own, childs = sorted(spool_files(spool_folder(db)), key=lambda file: file.path.stat().st_ctime_ns)[:2]
        free = [_is_free(file.path) for file in (own, childs)]
        assert sorted(free) == [False, True], "the child has ended, and took no lock of its parent's with it"
        record(writer, "parent", range(5, 10))
        assert writer.flush(60)
    del writers._by_address[db]
    wait_until(lambda: sum(not _is_free(file.path) for file in spool_files(spool_folder(db))) == 0)
    assert check(db, {"parent": 10, "child": 5}, exactly=True) == 15


def _is_free(path: Path) -> bool:
    with path.open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True


@pytest.fixture
def network(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOGS_UI_FILE_SYSTEM", "network")


@pytest.mark.usefixtures("network")
def test_on_a_network_file_system_each_process_has_a_file_and_one_takes_them_in(
    db: Path, caplog: pytest.LogCaptureFixture
) -> None:
    writers = [Writer(db), Writer(db)]
    with caplog.at_level(logging.WARNING):
        writers[0].say_network()
    assert "a.db lies on a network file system (network)" in caplog.text
    ingester = Ingester(db)
    for start in range(0, 30, 10):
        for number, writer in enumerate(writers):
            writer.put(begun())
            record(writer, str(number), range(start, start + 10))
            assert writer.flush(60)
        assert not db.exists() or start
        assert ingester.take_in().rollouts == 20
        assert ingester.take_in().entries == 0
    assert len(spool_files(spool_folder(db))) == 2, "their processes live"
    assert check(db, {"0": 30, "1": 30}, exactly=True) == 60
    with sqlite3.connect(db) as connection:
        assert connection.execute("PRAGMA journal_mode").fetchone() == ("delete",)
    assert not list(db.parent.glob("*-wal"))
    for writer in writers:
        writer.close()
    assert ingester.take_in().is_all
    assert spool_files(spool_folder(db)) == [], "they said that nothing more comes"


@pytest.mark.usefixtures("network")
def test_on_a_network_file_system_readers_see_what_was_flushed_and_that_the_run_is_alive(
    db: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from logs_ui.recorder.delivery import committer

    monkeypatch.setattr(committer, "HEARTBEAT", 0.1)
    writer = Writer(db)
    writer.put(begun())
    record(writer, "a", range(3))
    assert writer.flush(60)
    assert len(load_run(db=db)) == 3

    def heartbeat() -> int:
        spool_ingest.take_in_before_reading(db)
        with sqlite3.connect(db) as connection:
            return int(connection.execute("SELECT heartbeat FROM run").fetchone()[0])

    before = heartbeat()
    wait_until(lambda: heartbeat() > before)


@pytest.mark.usefixtures("network")
def test_on_a_network_file_system_a_process_says_no_more_once_its_run_has_ended(
    db: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from logs_ui.recorder.delivery import committer

    monkeypatch.setattr(committer, "HEARTBEAT", 0.1)
    writer = Writer(db)
    writer.put(begun())
    writer.put(ChangesJob(lambda: [RunChange("r", {"state": RunState.FINISHED, "finished": 2})]))
    assert writer.flush(60)
    (file,) = spool_files(spool_folder(db))

    def is_quiet() -> bool:
        size = file.path.stat().st_size
        time.sleep(0.5)
        return file.path.stat().st_size == size

    wait_until(is_quiet)


@pytest.mark.usefixtures("network")
def test_a_dead_process_of_another_machine_is_told_by_its_silence(db: Path) -> None:
    """Its lock may be this machine's alone to know: the file is deleted when nobody has written to it for long."""
    path = died(db, range(3))
    assert Ingester(db).take_in().rollouts == 3
    assert path.exists()
    os.utime(path, (1, 1))
    assert Ingester(db).take_in().is_all
    assert not path.exists()


@pytest.mark.usefixtures("network")
def test_of_two_that_take_in_one_waits(db: Path) -> None:
    writer = Writer(db)
    writer.put(begun())
    record(writer, "a", range(3))
    assert writer.flush(60)
    with Lease(spool_folder(db) / "ingester").held():
        assert not Ingester(db).take_in().is_all
        assert not db.exists()
    assert Ingester(db).take_in().is_all


@pytest.mark.usefixtures("network")
def test_taking_in_stops_when_it_is_told_to_and_goes_on_where_it_was(db: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = Writer(db)
    writer.put(begun())
    monkeypatch.setattr(spool_format, "_GROUP_BYTES", 1)
    for start in range(0, 40, 10):
        record(writer, "a", range(start, start + 10))
        assert writer.flush(60)
    ingester = Ingester(db)
    first = ingester.take_in(lambda: True)
    assert (first.entries, first.is_all) == (1, False)
    while not ingester.take_in(lambda: True).is_all:
        pass
    assert check(db, {"a": 40}, exactly=True) == 40


@pytest.mark.usefixtures("network")
def test_a_database_that_was_deleted_is_made_of_what_still_lies_there(db: Path) -> None:
    writer = Writer(db)
    writer.put(begun())
    record(writer, "a", range(3))
    assert writer.flush(60)
    ingester = Ingester(db)
    assert ingester.take_in().rollouts == 3
    db.unlink()
    record(writer, "a", range(3, 5))
    assert writer.flush(60)
    assert ingester.take_in().rollouts == 5
    assert check(db, {"a": 5}, exactly=True) == 5


def test_what_keeps_it_from_being_taken_in_keeps_nobody_from_reading(
    db: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(spool_ingest, "_PATIENCE", 0.1)
    writer = Writer(db)
    writer.put(begun())
    record(writer, "b", range(3))
    assert writer.flush(60)
    writer.settle(30)
    died(db, range(3))
    other = sqlite3.connect(db, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with caplog.at_level(logging.WARNING):
        assert len(load_run(db=db)) == 3
    other.close()
    assert f"logs-ui: what waits in {db}-spool is not in the database yet: " in caplog.text
    assert "stays locked by another process" in caplog.text
    assert len(load_run(db=db)) == 6
