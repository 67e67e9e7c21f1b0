"""What waits on disk for its database: every whole entry of it goes in, once, whoever takes it in."""

import errno
import fcntl
import os
import sqlite3
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from logs_ui.recorder import load_run
from logs_ui.recorder.delivery import committer
from logs_ui.recorder.delivery import writer as writers
from logs_ui.recorder.delivery.committer import entry_of
from logs_ui.recorder.delivery.writer import Writer
from logs_ui.recorder.guard import RAISE_VARIABLE
from logs_ui.recorder.storage.address import Address, database_address
from logs_ui.recorder.storage.changes import (
    Batch,
    Change,
    RowChange,
    RunChange,
    ScalarsChange,
    Source,
    SourcesChange,
    StoredImage,
    TokenizerChange,
)
from logs_ui.recorder.storage.database import disposed, reading_engine, writing_engine
from logs_ui.recorder.storage.limits import Limits
from logs_ui.recorder.storage.spool import files as spool
from logs_ui.recorder.storage.spool import format as spool_format
from logs_ui.recorder.storage.spool import ingest as spool_ingest
from logs_ui.recorder.storage.spool.entry import Entry, Failures, decoded, encoded
from logs_ui.recorder.storage.spool.files import Spool, SpoolFullError, spool_files
from logs_ui.recorder.storage.spool.format import FORMAT, Frame, NotASpoolError, frame_of, frames
from logs_ui.recorder.storage.spool.ingest import Ingester, TakenIn
from logs_ui.recorder.storage.spool.intake import Intake
from logs_ui.recorder.storage.spool.lease import Lease
from logs_ui.recorder.storage.spool_folder import spool_folder
from logs_ui.recorder.vocabulary import RunState, SourceKind, Status
from tests.recorder.delivery.test_writer import storage_of
from tests.support.changes import BEGUN, begun, flushes, in_child, locked, nth, row, stored, wait_until, write
from tests.support.storage_faults import check, holds_nothing, put_rows, record, row_job

AT_ONCE = Limits(spool_seconds=0.0, end_seconds=0.4)


@pytest.fixture
def one(tmp_path: Path) -> Spool:
    one = Spool(tmp_path / "s", "p", 200)
    one.append(nth(1), bytes(100))
    return one


def made(folder: Path, *sizes: int) -> Path:
    """A file with frames 1, 2, ... of so many bytes, whose process has died."""
    one = Spool(folder, "p", 1 << 30)
    for number, size in enumerate(sizes, 1):
        one.append(nth(number), bytes([number]) * size)
    one.abandon()
    (file,) = spool_files(folder)
    return file.path


def numbers(one: Spool) -> list[int]:
    return [frame.number.n for frame in one.first()]


def read(path: Path, start: int = 0) -> list[Frame]:
    with path.open("rb") as file:
        return list(frames(file, start))


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


def test_a_spool_is_a_series_of_files_that_go_once_taken_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spool, "_FILE_BYTES", 100)
    one = Spool(tmp_path / "s", "p", 1 << 20)
    for number in range(1, 8):
        one.append(nth(number), bytes(40))
    assert [file.part for file in spool_files(one.folder)] == [1, 2, 3, 4]
    assert one.size == sum(file.path.stat().st_size for file in spool_files(one.folder)) - 3 * 24  # of "nothing more"
    for expected in ([1, 2], [3, 4], [5, 6]):
        assert numbers(one) == expected
        assert numbers(one) == expected, "until it is done with"
        one.forget(one.first())
    one.forget(one.first())
    one.sweep()
    assert [file.part for file in spool_files(one.folder)] == [4]
    assert one.first() == []
    assert not one
    one.remove()
    assert one.size == 0
    assert not one.folder.exists()
    one.append(nth(8), b"x")
    assert numbers(one) == [8]
    one.append(nth(9), b"x")
    one.forget(one.first()[:1])
    assert numbers(one) == [9]


def test_a_spool_has_a_bound(one: Spool) -> None:
    with pytest.raises(SpoolFullError):
        one.append(nth(2), bytes(100))
    assert numbers(one) == [1]


def test_what_others_took_in_counts_no_more(one: Spool) -> None:
    for number in (2, 3):
        for file in spool_files(one.folder):
            file.path.unlink()
        one.append(nth(number), bytes(100))
        assert numbers(one) == [number]
        assert one.size == sum(file.path.stat().st_size for file in spool_files(one.folder))


def test_a_system_that_cannot_sync_data_alone_syncs_all(one: Spool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "fdatasync")
    one.append(nth(2), b"x")
    one.close()
    assert numbers(one) == [1, 2]


@pytest.mark.usefixtures("in_thread")
@pytest.mark.parametrize("is_own", [True, False])
def test_an_entry_leaves_its_file_once_it_is_in_the_databases_own(db: Path, *, is_own: bool) -> None:
    writing_engine(db).dispose()
    with reading_engine(db).begin() as reader:
        reader.exec_driver_sql("SELECT count(*) FROM run").all()  # it needs the log
        if is_own:
            storage = storage_of(Writer(db, AT_ONCE))
            storage.store(Entry(nth(1), 1, Batch(runs=[RunChange("r", {"name": "r"})])))
            storage.close()
        else:
            died(db, range(3))
            assert Ingester(db, entry_of).take_in().is_all
        (file,) = spool_files(spool_folder(db))
        assert [frame.number for frame in read(file.path) if frame.data][:1] == [nth(1)]
    Ingester(db, entry_of).take_in()
    assert spool_files(spool_folder(db)) == []


def test_a_frame_that_a_full_disk_takes_in_part_is_taken_back(one: Spool, monkeypatch: pytest.MonkeyPatch) -> None:
    (file,) = spool_files(one.folder)
    size, write_all = file.path.stat().st_size, spool._write_all

    def write_a_part(to: Any, data: bytes) -> None:
        write_all(to, data[: len(data) // 2])
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(spool, "_write_all", write_a_part)
    with pytest.raises(OSError, match="No space left"):
        one.append(nth(2), bytes(10))
    monkeypatch.setattr(spool, "_write_all", write_all)
    assert file.path.stat().st_size == size
    one.append(nth(2), b"again")
    assert [(frame.number.n, len(frame.data)) for frame in one.first()] == [(1, 100), (2, 5)]


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
    assert decoded(data, entry_of) == entry


def test_what_cannot_be_put_on_disk_costs_nobody_else_anything(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(RAISE_VARIABLE, "0")
    rows = [
        RowChange("r", "a", {"created": 1}, {"turns": 1}),
        RowChange("r", "b", {"created": 1}, {"turns": object()}),
        RowChange("r", "c", {"created": 1}, {"preview": object(), "turns": 2}, b"text"),
    ]
    data, refused = encoded(Entry(nth(1), 1, Batch(rows=rows)))
    assert refused == 1
    kept = decoded(data, entry_of).batch.rows
    assert [(row.uid, row.columns["turns"], row.content) for row in kept] == [("a", 1, None), ("c", 2, None)]


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
    writer = begun(db, limits=Limits(spool_seconds=0.1))
    record(writer, "a", range(10))
    with locked(db):
        for start in range(10, 60, 10):
            record(writer, "a", range(start, start + 10))
        (file,) = spool_files(spool_folder(db))
        assert Ingester(db, entry_of).take_in().entries == 0, "it is its process's, which is alive"
        assert read(file.path)
    wait_until(lambda: holds_nothing(spool_folder(db)))
    record(writer, "a", range(60, 70))
    assert check(db, {"a": 70}, exactly=True) == 70
    said = [record.getMessage() for record in caplog.records]
    assert sum("stays locked by another process" in line for line in said) == 1
    assert sum(f"waits in {db}-spool until the database can be written again" in line for line in said) == 1
    assert sum("can be written again." in line for line in said) == 2


def entry(at: int, *changes: Change) -> Entry:
    return Entry(nth(at), at, Batch.merged(changes))


def entries(rows: range) -> list[Entry]:
    return [entry(1, BEGUN), *(entry(at, *row_job(f"a/{it}", it).changes()) for at, it in enumerate(rows, 2))]


def died(db: Address, rows: range) -> Path:
    """What a process leaves that could not write the database, and was killed."""
    one = Spool(spool_folder(db), "p", 1 << 30)
    for each in entries(rows):
        one.append(each.number, encoded(each)[0])
    one.abandon()
    return one.folder / "p.000001.spool"


def test_what_a_dead_process_left_is_taken_in_by_the_next_that_records(db: Path) -> None:
    path = died(db, range(30))
    record(Writer(db), "b", range(5))
    wait_until(lambda: not path.exists())
    assert check(db, {"a": 30, "b": 5}, exactly=True) == 35


def test_an_entry_goes_in_once(address: Address, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """However often its file is found: as where the machine fails between the commit and the deletion."""
    monkeypatch.setenv("LOGS_UI_SPOOL", str(tmp_path / "spools"))
    path = died(address, range(20))
    kept = path.read_bytes()
    for _ in range(3):
        assert check(address, {"a": 20}, exactly=True) == 20
        path.parent.mkdir()  # the folder went with its last file
        path.write_bytes(kept)
    path.write_bytes(kept[: read(path)[10].end])
    assert check(address, {"a": 20}, exactly=True) == 20


def test_entries_of_which_some_are_in_go_in_together_without_those(address: Address) -> None:
    """As where two take the same file in at once."""
    with disposed(writing_engine(address)) as engine:
        for last in (3, 6, 5, 7):
            Intake(address, lambda: engine, "p", is_own=False).take(entries(range(6))[:last])
    assert check(address, {"a": 6}, exactly=True) == 6


@pytest.mark.usefixtures("in_thread")
def test_a_commit_that_is_not_heard_of_is_not_repeated(address: Address, monkeypatch: pytest.MonkeyPatch) -> None:
    """The connection breaks when the server has committed, and before it could say so."""
    writer = begun(address)
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
    assert broken
    record(writer, "a", range(3, 6))
    assert check(address, {"a": 6}, exactly=True) == 6


def test_a_torn_spool_is_taken_in_as_far_as_it_goes_and_named(db: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = died(db, range(10))
    with path.open("ab") as torn:
        torn.write(path.read_bytes()[16:70])
    assert check(db, {"a": 10}, exactly=True) == 10
    assert f"the last 54 bytes of {path} are torn" in caplog.text
    assert not path.exists()
    assert path.with_suffix(".torn").exists(), "whole entries may lie behind"


@pytest.mark.parametrize("content", [b"logs-ui spool 2\n" + bytes(90), b"logs-ui spool 1\n", FORMAT])
def test_another_versions_file_is_left_and_named(db: Path, caplog: pytest.LogCaptureFixture, content: bytes) -> None:
    died(db, range(10))
    other = spool_folder(db) / "other.000001.spool"
    other.write_bytes(content + (frame_of(nth(1), b"\x93\1\2\3") if content == FORMAT else b""))
    ingester = Ingester(db, entry_of)
    for _ in range(2):
        assert ingester.take_in().is_all
    assert caplog.text.count(f"{other} was written by another version of logs-ui") == 1
    assert [file.path for file in spool_files(spool_folder(db))] == [other]
    assert check(db, {"a": 10}, exactly=True) == 10


def test_a_row_with_a_column_of_a_later_commit_waits_for_that(db: Path, caplog: pytest.LogCaptureFixture) -> None:
    later = Spool(spool_folder(db), "later", 1 << 20)
    later.append(nth(1), encoded(entry(1, BEGUN, row("a/0", {"colour": "red"})))[0])
    later.close()
    assert Ingester(db, entry_of).take_in() == TakenIn()
    assert "later.000001.spool was written by another version of logs-ui" in caplog.text
    assert [file.writer for file in spool_files(spool_folder(db))] == ["later"]


def test_a_poison_row_on_disk_costs_only_itself_and_is_told(db: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(RAISE_VARIABLE, "0")
    one = Spool(spool_folder(db), "p", 1 << 20)
    rows = [change for number in range(3) for change in row_job(f"a/{number}", number).changes()]
    one.append(nth(1), encoded(entry(1, BEGUN, *rows, row("poison", {"turns": {"no": "number"}})))[0])
    one.close()
    done = Ingester(db, entry_of).take_in()
    assert (done.entries, done.rollouts, done.refused, done.is_all) == (1, 4, 1, True)
    assert check(db, {"a": 3}, exactly=True) == 3
    ((errors, dropped, last),) = stored(db, "SELECT recorder_errors, dropped, last_recorder_error FROM run")
    assert (errors, dropped) == (1, 1)
    assert "writing one row" in last


@pytest.mark.parametrize(
    ("folder", "most", "said"),
    [
        ("/proc/nowhere", 1 << 30, "cannot be written: No such file or directory. Recorded data is kept in memory"),
        ("", 8_000, "has reached its limit of 0 MiB"),
    ],
)
def test_a_spool_that_takes_nothing_leaves_it_to_memory(
    db: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, folder: str, most: int, said: str
) -> None:
    monkeypatch.setenv("LOGS_UI_SPOOL", folder)
    writer = begun(db, limits=Limits(spool_seconds=0.0, end_seconds=0.4, spool_bytes=most))
    with locked(db):
        put_rows(writer, "a", range(100))
        wait_until(lambda: said in caplog.text)
        assert not writer.flush(0.1)
    assert writer.flush(60)
    assert check(db, {"a": 100}, exactly=True) == 100
    (line,) = [record.getMessage() for record in caplog.records if said in record.getMessage()]
    assert line.startswith(f"logs-ui: {folder or db.parent}/a.db-")


@pytest.mark.usefixtures("in_thread")
def test_a_child_after_a_fork_leaves_its_parents_spool_alone(db: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = begun(db, limits=AT_ONCE)
    monkeypatch.setitem(writers._by_address, db, writer)
    with locked(db):
        record(writer, "parent", range(5))
        with storage_of(writer)._using_spool:  # SQLite hangs in a child of a fork while another thread is inside it
            in_child(lambda: flushes(writer, *(it for n in range(5) for it in row_job(f"child/{n}", n).changes())))
        own, childs = sorted(spool_files(spool_folder(db)), key=lambda file: file.path.stat().st_ctime_ns)[:2]
        free = [_is_free(file.path) for file in (own, childs)]
        assert sorted(free) == [False, True], "the child has ended, and took no lock of its parent's with it"
        record(writer, "parent", range(5, 10))
    parent = (own, childs)[free.index(False)].path
    wait_until(lambda: parent.stat().st_size == len(FORMAT))
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
def test_on_a_network_each_process_has_a_file_and_one_takes_them_in(db: Path, caplog: pytest.LogCaptureFixture) -> None:
    both = [Writer(db), Writer(db)]
    both[0].say_network()
    assert "a.db lies on a network file system (network)" in caplog.text
    ingester = Ingester(db, entry_of)
    for start in range(0, 30, 10):
        for number, writer in enumerate(both):
            write(writer, BEGUN)
            record(writer, str(number), range(start, start + 10))
        assert not db.exists() or start
        assert ingester.take_in().rollouts == 20
        assert ingester.take_in().entries == 0
    assert len(spool_files(spool_folder(db))) == 2, "their processes live"
    assert check(db, {"0": 30, "1": 30}, exactly=True) == 60
    assert stored(db, "PRAGMA journal_mode") == [("delete",)]
    assert not list(db.parent.glob("*-wal"))
    for writer in both:
        writer.close()
    assert ingester.take_in().is_all
    assert spool_files(spool_folder(db)) == [], "they said that nothing more comes"


@pytest.mark.usefixtures("network", "in_thread")
def test_on_a_network_a_run_is_alive_for_readers_until_it_has_ended(db: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(committer, "HEARTBEAT", 0.1)
    writer = begun(db)
    record(writer, "a", range(3))
    assert len(load_run(db=db)) == 3

    def heartbeat() -> list[tuple[Any, ...]]:
        committer.take_in_before_reading(db)
        return stored(db, "SELECT heartbeat FROM run")

    before = heartbeat()
    wait_until(lambda: heartbeat() > before)
    write(writer, RunChange("r", {"state": RunState.FINISHED, "finished": 2}))
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
    assert Ingester(db, entry_of).take_in().rollouts == 3
    assert path.exists()
    os.utime(path, (1, 1))
    assert Ingester(db, entry_of).take_in().is_all
    assert not path.exists()


@pytest.mark.usefixtures("network")
def test_of_two_that_take_in_one_waits(db: Path) -> None:
    record(begun(db), "a", range(3))
    with Lease(spool_folder(db) / "ingester").hold():
        assert not Ingester(db, entry_of).take_in().is_all
        assert not db.exists()
    assert Ingester(db, entry_of).take_in().is_all


@pytest.mark.usefixtures("network")
def test_taking_in_stops_when_it_is_told_to_and_goes_on_where_it_was(db: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = begun(db)
    monkeypatch.setattr(spool_format, "_GROUP_BYTES", 1)
    for start in range(0, 40, 10):
        record(writer, "a", range(start, start + 10))
    ingester = Ingester(db, entry_of)
    first = ingester.take_in(lambda: True)
    assert (first.entries, first.is_all) == (1, False)
    while not ingester.take_in(lambda: True).is_all:
        pass
    assert check(db, {"a": 40}, exactly=True) == 40


@pytest.mark.usefixtures("network")
def test_a_database_that_was_deleted_is_made_of_what_still_lies_there(db: Path) -> None:
    writer = begun(db)
    record(writer, "a", range(3))
    ingester = Ingester(db, entry_of)
    assert ingester.take_in().rollouts == 3
    db.unlink()
    record(writer, "a", range(3, 5))
    assert ingester.take_in().rollouts == 5
    assert check(db, {"a": 5}, exactly=True) == 5


@pytest.mark.usefixtures("in_thread")
def test_what_keeps_it_from_being_taken_in_keeps_nobody_from_reading(
    db: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(spool_ingest, "_PATIENCE", 0.1)
    writer = begun(db)
    record(writer, "b", range(3))
    writer.settle(30)
    wait_until(lambda: not storage_of(writer)._has_orphans)
    died(db, range(3))
    with locked(db):
        assert len(load_run(db=db)) == 3
    assert f"logs-ui: what waits in {db}-spool is not in the database yet: " in caplog.text
    assert "stays locked by another process" in caplog.text
    assert len(load_run(db=db)) == 6
