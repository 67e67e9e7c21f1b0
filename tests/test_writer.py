"""The background writer: what was flushed is there, one bad row costs one row, a bad disk costs nothing but time."""

import logging
import os
import sqlite3
import threading
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from logs_ui.recorder import guard as guards
from logs_ui.recorder import writer as writers
from logs_ui.recorder.guard import RAISE_VARIABLE
from logs_ui.recorder.payload import pack_content
from logs_ui.recorder.recording import ChangesJob
from logs_ui.recorder.store import Change, RowChange, RunChange, ScalarsChange
from logs_ui.recorder.writer import Writer

BEGUN = RunChange("r", {"name": "r", "created": 1, "heartbeat": 1})


@pytest.fixture
def db(tmp_path: Path) -> Path:
    return tmp_path / "a.db"


def row(uid: str, columns: dict[str, Any], content: bytes | None = None) -> RowChange:
    identity = {
        "eval_name": "e",
        "mode": "train",
        "step": 1,
        "policy_step": 0,
        "group": "r/train/0/0",
        "generation": 0,
        "process": 0,
        "created": 1,
    }
    return RowChange("r", uid, identity, columns, content)


def job(*changes: Change, size: int = 1_000) -> ChangesJob:
    return ChangesJob(lambda: changes, size)


def stored(db: Path, query: str) -> list[tuple[Any, ...]]:
    with sqlite3.connect(f"file:{db}?mode=ro", uri=True) as connection:
        return connection.execute(query).fetchall()


def test_what_was_flushed_is_there(db: Path) -> None:
    writer = Writer(db)
    writer.put(job(BEGUN))
    for i in range(1_000):
        writer.put(job(row(str(i), {"reward": float(i)}, pack_content({"messages": [i]}))))
    assert writer.flush(30)
    assert stored(db, "select count(*), sum(reward) from evaluation_row") == [(1_000, 499_500.0)]
    assert stored(db, "select count(*) from rollout_payload where content is not null") == [(1_000,)]
    assert stored(db, "select rollouts, scored, reward_sum from step_statistics") == [(1_000, 1_000, 499_500.0)]


def test_later_changes_merge_field_by_field(db: Path) -> None:
    writer = Writer(db)
    writer.put(job(BEGUN, row("a", {"status": "running", "task": "t"}, b"first")))
    assert writer.flush(30)
    writer.put(job(row("a", {"status": "ok", "turns": 2}, b"second")))
    writer.put(job(row("a", {"reward": 0.5})))
    assert writer.flush(30)
    writer.put(job(row("a", {"advantage": -1.0})))
    assert writer.flush(30)
    assert stored(db, "select status, task, turns, reward, advantage from evaluation_row") == [
        ("ok", "t", 2, 0.5, -1.0)
    ]
    assert stored(db, "select content from rollout_payload") == [(b"second",)]


def test_changed_grows_with_each_batch_and_is_the_runs_own(db: Path) -> None:
    writer = Writer(db)
    writer.put(job(BEGUN, row("a", {})))
    assert writer.flush(30)
    (first,) = stored(db, "select changed from evaluation_row")
    writer.put(job(row("b", {})))
    assert writer.flush(30)
    assert stored(db, "select changed from evaluation_row where uid = 'b'") > [first]
    assert stored(db, "select changed from run") == stored(db, "select max(changed) from evaluation_row")


def test_a_poison_row_costs_nobody_else_anything(
    db: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.delenv(RAISE_VARIABLE)
    writer = Writer(db)
    writer.put(job(BEGUN))
    writer.put(job(row("a", {"reward": 1.0}), row("b", {"task": object()}), row("c", {"reward": 3.0})))
    with caplog.at_level(logging.ERROR):
        assert writer.flush(30)
    writer.put(job(row("d", {"reward": 4.0})))
    assert writer.flush(30)
    assert [uid for (uid,) in stored(db, "select uid from evaluation_row")] == ["a", "c", "d"]
    ((errors, dropped, last),) = stored(db, "select recorder_errors, dropped, last_recorder_error from run")
    assert errors > 0
    assert dropped == 1
    assert "writing one row" in last
    assert len([r for r in caplog.records if "writing one row" in r.getMessage()]) == 1, "logged once"


def test_a_job_that_cannot_be_encoded_costs_only_itself(db: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(RAISE_VARIABLE)

    def fails() -> Iterable[Change]:
        raise ValueError("no")

    writer = Writer(db)
    writer.put(job(BEGUN))
    writer.put(ChangesJob(fails))
    writer.put(job(row("a", {})))
    assert writer.flush(30)
    assert stored(db, "select uid from evaluation_row") == [("a",)]


def test_a_full_disk_is_waited_for(db: Path, caplog: pytest.LogCaptureFixture) -> None:
    writer = Writer(db)
    writer.put(job(BEGUN))
    assert writer.flush(30)
    with writer.engine().connect() as connection:
        connection.exec_driver_sql("PRAGMA max_page_count=60")
    with caplog.at_level(logging.WARNING):
        writer.put(job(row("a", {}, os.urandom(1_000_000))))
        assert not writer.flush(1)
        assert "the disk is full" in caplog.text
        with sqlite3.connect(db) as other:
            assert other.execute("select count(*) from evaluation_row").fetchone() == (0,)
        raw = writer.engine().raw_connection()
        raw.cursor().execute("PRAGMA max_page_count=1000000")
        raw.close()
        assert writer.flush(30)
    assert "can be written again" in caplog.text
    assert stored(db, "select uid from evaluation_row") == [("a",)]


def test_a_locked_database_is_waited_for_and_the_caller_is_not(db: Path) -> None:
    writer = Writer(db)
    writer.put(job(BEGUN))
    assert writer.flush(30)
    other = sqlite3.connect(db, isolation_level=None, check_same_thread=False)
    other.execute("BEGIN IMMEDIATE")
    began = time.monotonic()
    writer.put(job(row("a", {})))
    assert time.monotonic() - began < 1
    threading.Timer(1.5, lambda: other.execute("COMMIT")).start()
    assert writer.flush(30)
    assert stored(db, "select uid from evaluation_row") == [("a",)]


def test_a_file_that_is_no_database_is_said_once_and_left_alone(db: Path, caplog: pytest.LogCaptureFixture) -> None:
    db.write_bytes(b"my precious notes" * 100)
    writer = Writer(db)
    with caplog.at_level(logging.ERROR):
        writer.put(job(BEGUN))
        assert not writer.flush(1)
    assert caplog.text.count("is not an SQLite database") == 1
    assert db.read_bytes() == b"my precious notes" * 100


def test_a_full_queue_drops_and_counts_and_never_blocks(db: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writers, "_QUEUE_BYTES", 10_000)
    blocked = sqlite3.connect(db, isolation_level=None)
    blocked.execute("BEGIN EXCLUSIVE")
    writer = Writer(db)
    for i in range(20):
        writer.put(job(BEGUN, row(str(i), {}), size=1_000))
    blocked.execute("ROLLBACK")
    blocked.close()
    assert writer.flush(60)
    writer.put(job(row("last", {})))
    assert writer.flush(30)
    assert stored(db, "select dropped from run") == [(10,)]
    assert stored(db, "select count(*) from evaluation_row") == [(11,)]


def test_a_forked_child_writes_for_itself_and_the_parent_goes_on(db: Path) -> None:
    writer = Writer(db)
    writers._by_path[db] = writer
    writer.put(job(BEGUN, row("parent", {})))
    assert writer.flush(30)
    child = os.fork()
    if child == 0:
        writer.put(job(row("child", {}), RunChange("r", {"max_steps": 3})))
        os._exit(0 if writer.flush(20) else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    writer.put(job(row("parent again", {})))
    assert writer.flush(30)
    del writers._by_path[db]
    assert {uid for (uid,) in stored(db, "select uid from evaluation_row")} == {"parent", "child", "parent again"}


def test_scalars_keep_their_last_value_and_nan_is_null(db: Path) -> None:
    writer = Writer(db)
    writer.put(job(BEGUN, ScalarsChange("r", 1, {"loss": 1.0}), ScalarsChange("r", 1, {"loss": 0.5, "kl": None})))
    assert writer.flush(30)
    assert sorted(stored(db, "select name, value from scalar")) == [("kl", None), ("loss", 0.5)]


def test_the_write_ahead_log_does_not_grow_for_ever(db: Path) -> None:
    writer = Writer(db)
    writer.put(job(BEGUN))
    for i in range(60):
        writer.put(job(row(str(i), {}, os.urandom(500_000))))
        assert writer.flush(30)
    assert db.with_name("a.db-wal").stat().st_size < 20_000_000
    assert db.stat().st_size > 20_000_000


def test_the_guard_swallows_logs_once_and_counts(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.delenv(RAISE_VARIABLE)
    fresh = guards.Guard()
    with caplog.at_level(logging.ERROR):
        for _ in range(3):
            with fresh("testing"):
                raise ValueError("boom")
    assert (fresh.errors, fresh.last) == (3, "ValueError while testing: boom")
    assert len(caplog.records) == 1
    assert "Your training goes on" in caplog.text


def test_the_guard_hides_nothing_from_these_tests() -> None:
    with pytest.raises(ValueError, match="boom"), guards.Guard()("testing"):
        raise ValueError("boom")
