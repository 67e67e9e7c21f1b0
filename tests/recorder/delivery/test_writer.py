"""The background writer: what was flushed is there, one bad row costs one row, a bad disk costs nothing but time."""

import gc
import logging
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sqlalchemy import URL, event

from logs_ui.recorder import guard as guards
from logs_ui.recorder import load_run
from logs_ui.recorder.api.record import record
from logs_ui.recorder.api.run_record import ChangesJob
from logs_ui.recorder.capture.calls import CallRecords, Generation
from logs_ui.recorder.capture.model_answers import Sequence
from logs_ui.recorder.capture.rollout_output import checked_output
from logs_ui.recorder.delivery import committer, job_queue
from logs_ui.recorder.delivery import writer as writers
from logs_ui.recorder.delivery.writer import Writer
from logs_ui.recorder.errors import DatabaseError, LogsUIError
from logs_ui.recorder.guard import RAISE_VARIABLE
from logs_ui.recorder.rows import packing
from logs_ui.recorder.rows.rollout_call import RolloutCall
from logs_ui.recorder.rows.row_jobs import ColumnsJob, ReturnedJob, RunningJob
from logs_ui.recorder.snapshot import snapshot
from logs_ui.recorder.storage.address import Address
from logs_ui.recorder.storage.changes import Batch, Change, RowChange, RunChange, ScalarsChange
from logs_ui.recorder.storage.database import reading_engine, writing_engine
from logs_ui.recorder.storage.limits import Limits
from logs_ui.recorder.storage.spool import durable_outlet as storage
from logs_ui.recorder.storage.spool.intake import Intake
from logs_ui.recorder.storage.spool.spool_entry import Entry, Failures
from logs_ui.recorder.storage.sqlite import checkpoints
from logs_ui.recorder.upkeep.delete import delete_run
from logs_ui.recorder.vocabulary import Mode
from tests.support.entries import nth
from tests.support.exhaustive import cases
from tests.support.payloads import pack_content
from tests.support.writers import ending_writers

BEGUN = RunChange("r", {"name": "r", "created": 1, "heartbeat": 1})


@pytest.fixture
def db(tmp_path: Path) -> Path:
    return tmp_path / "a.db"


def row(uid: str, columns: dict[str, Any], content: bytes | None = None, *, step: int = 1) -> RowChange:
    identity = {
        "eval_name": "e",
        "mode": "train",
        "step": step,
        "policy_step": 0,
        "group": "r/train/0/0",
        "generation": 0,
        "process": 0,
        "created": 1,
    }
    return RowChange("r", uid, identity, columns, content)


def job(*changes: Change, size: int = 1_000) -> ChangesJob:
    return ChangesJob(lambda: changes, size)


def storage_of(writer: Writer) -> storage.Storage:
    """Of a writer in a thread of these tests."""
    assert isinstance(writer._outlet, committer.Committer)
    return writer._outlet


def only_pages(writer: Writer, most: int) -> None:
    """A disk that has room for so many pages of the database and no more."""
    raw = storage_of(writer).engine().raw_connection()
    raw.cursor().execute(f"PRAGMA max_page_count={most}")
    raw.close()


def stored(address: Address, query: str) -> list[tuple[Any, ...]]:
    engine = reading_engine(address)
    with engine.connect() as connection:
        found = [tuple(row) for row in connection.exec_driver_sql(query)]
    engine.dispose()
    return found


def test_what_was_flushed_is_there(address: Address) -> None:
    writer = Writer(address)
    writer.put(job(BEGUN))
    for i in range(1_000):
        writer.put(job(row(str(i), {"reward": float(i)}, pack_content({"messages": [i]}))))
    assert writer.flush(60)
    assert stored(address, "select count(*), sum(reward) from evaluation_row") == [(1_000, 499_500.0)]
    assert stored(address, "select count(*) from rollout_payload where content is not null") == [(1_000,)]
    assert stored(address, "select rollouts, scored, reward_sum from step_statistics") == [(1_000, 1_000, 499_500.0)]


def test_later_changes_merge_field_by_field(address: Address) -> None:
    writer = Writer(address)
    writer.put(job(BEGUN, row("a", {"status": "running", "task": "t"}, b"first")))
    assert writer.flush(60)
    writer.put(job(row("a", {"status": "ok", "turns": 2}, b"second")))
    writer.put(job(row("a", {"reward": 0.5})))
    assert writer.flush(60)
    writer.put(job(row("a", {"advantage": -1.0})))
    assert writer.flush(60)
    assert stored(address, "select status, task, turns, reward, advantage from evaluation_row") == [
        ("ok", "t", 2, 0.5, -1.0)
    ]
    assert stored(address, "select content from rollout_payload") == [(b"second",)]


def test_ids_follow_the_order_in_which_rows_began_whatever_ended_first(address: Address) -> None:
    changes = []
    for began, columns in ((3, {"turns": 2}), (1, {"reward": 1.0}), (2, {"turns": 1}), (4, {"reward": 0.0})):
        change = row(f"began {began}", columns)
        changes.append(replace(change, identity={**change.identity, "created": began}))
    writer = Writer(address)
    writer.put(job(BEGUN, *changes))
    assert writer.flush(60)
    assert stored(address, "select uid from evaluation_row order by id") == [(f"began {i}",) for i in (1, 2, 3, 4)]


def test_changed_grows_with_each_batch_and_is_the_runs_own(address: Address) -> None:
    writer = Writer(address)
    writer.put(job(BEGUN, row("a", {})))
    assert writer.flush(60)
    (first,) = stored(address, "select changed from evaluation_row")
    writer.put(job(row("b", {})))
    assert writer.flush(60)
    assert stored(address, "select changed from evaluation_row where uid = 'b'") > [first]
    assert stored(address, "select changed from run") == stored(address, "select max(changed) from evaluation_row")


def test_a_poison_row_costs_nobody_else_anything(
    address: Address, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.delenv(RAISE_VARIABLE)
    monkeypatch.setattr(guards.guard, "_seen", set())
    writer = Writer(address)
    writer.put(job(BEGUN))
    writer.put(job(row("a", {"reward": 1.0}), row("b", {"task": object()}), row("c", {"reward": 3.0})))
    with caplog.at_level(logging.ERROR):
        assert writer.flush(60)
    writer.put(job(row("d", {"reward": 4.0})))
    assert writer.flush(60)
    assert [uid for (uid,) in stored(address, "select uid from evaluation_row order by id")] == ["a", "c", "d"]
    ((errors, dropped, last),) = stored(address, "select recorder_errors, dropped, last_recorder_error from run")
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
    assert writer.flush(60)
    assert stored(db, "select uid from evaluation_row") == [("a",)]


def test_a_full_disk_is_waited_for(db: Path, caplog: pytest.LogCaptureFixture) -> None:
    writer = Writer(db)
    writer.put(job(BEGUN))
    assert writer.flush(60)
    only_pages(writer, 60)
    with caplog.at_level(logging.WARNING):
        writer.put(job(row("a", {}, os.urandom(1_000_000))))
        wait_until(lambda: "the disk is full" in caplog.text)
        assert not writer.flush(0.1)
        with sqlite3.connect(db) as other:
            assert other.execute("select count(*) from evaluation_row").fetchone() == (0,)
        only_pages(writer, 1_000_000)
        assert writer.flush(60)
    assert "can be written again" in caplog.text
    assert stored(db, "select uid from evaluation_row") == [("a",)]


def test_a_disk_that_is_full_while_rows_are_written_one_by_one_is_waited_for(
    db: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(RAISE_VARIABLE)
    writer = Writer(db)
    writer.put(job(BEGUN))
    assert writer.flush(60)
    only_pages(writer, 60)
    writer.put(job(row("a", {}), row("poison", {"task": object()}), row("c", {}, os.urandom(1_000_000))))
    assert not writer.flush(1)
    only_pages(writer, 1_000_000)
    assert writer.flush(60)
    assert stored(
        db, "select uid, (select length(content) from rollout_payload where row_id = id) from evaluation_row"
    ) == [
        ("a", None),
        ("c", 1_000_000),
    ]
    assert storage_of(writer).dropped == 1


def test_a_refused_row_that_speaks_of_a_full_disk_is_not_tried_for_ever(
    db: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(RAISE_VARIABLE)
    writer = Writer(db)
    writer.put(job(BEGUN, row("a", {}), row("b", {"task": object(), "preview": "database or disk is full, locked"})))
    assert writer.flush(60)
    assert stored(db, "select uid from evaluation_row") == [("a",)]


def test_a_checkpoint_that_fails_repeats_nothing(
    db: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    tried = []

    def fails(_: Any) -> None:
        tried.append(1)
        error = sqlite3.OperationalError("database or disk is full")
        error.sqlite_errorcode = sqlite3.SQLITE_FULL
        raise error

    monkeypatch.setattr(storage, "WAL_BYTES", 0)
    monkeypatch.setattr(checkpoints, "checkpoint_log", fails)
    writer = Writer(db)
    with caplog.at_level(logging.WARNING):
        writer.put(job(BEGUN, row("a", {}), RunChange("r", {}, unattributed_calls=3)))
        assert writer.flush(60)
    assert tried
    assert caplog.text == ""
    assert stored(db, "select unattributed_calls, dropped, changed from run") == [(3, 0, 1)]


KILLED = """
import sys
from pathlib import Path
from logs_ui.recorder.delivery.writer import Writer
from tests.recorder.delivery.test_writer import BEGUN, job, row
writer = Writer(Path(sys.argv[1]))
writer.put(job(BEGUN))
for i in range(100_000):
    writer.put(job(row(str(i), {"reward": 1.0})))
print("all", flush=True)
sys.stdin.read()
"""


def begun(db: Path) -> bool:
    """Whether the writer's thread has come as far as a row: its file and its tables are made there, not by put()."""
    try:
        return stored(db, "select count(*) from evaluation_row") != [(0,)]
    except (sqlite3.OperationalError, DatabaseError):
        return False


def test_the_statistics_of_a_process_that_was_killed_agree_with_its_rows(db: Path) -> None:
    command = [sys.executable, "-c", KILLED, str(db)]
    root = Path(__file__).parents[3]
    alone = os.environ | {"LOGS_UI_WRITER": "thread"}  # nobody writes on once it is killed
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, cwd=root, env=alone) as process:
        assert process.stdout is not None
        process.stdout.readline()
        while not begun(db):
            time.sleep(0.01)
        process.kill()
    ((rows,),) = stored(db, "select count(*) from evaluation_row")
    assert rows > 0
    assert stored(db, "select rollouts, scored, reward_sum from step_statistics") == [(rows, rows, float(rows))]


def test_statistics_count_each_steps_rows_as_they_are_now(address: Address) -> None:
    writer = Writer(address)
    ended = {"status": "error", "stop_reason": "length"}
    writer.put(job(BEGUN, *(row(str(i), {"reward": 1.0}, step=i % 3) for i in range(6)), row("e", ended, step=7)))
    assert writer.flush(60)
    writer.put(job(row("0", {"reward": 0.25}, step=0), row("e", {"status": "ok"}, step=7)))
    assert writer.flush(60)
    sums = "select step, rollouts, scored, reward_sum, errors, truncated from step_statistics order by step"
    assert stored(address, sums) == [
        (0, 2, 2, 1.25, 0, 0),
        (1, 2, 2, 2.0, 0, 0),
        (2, 2, 2, 2.0, 0, 0),
        (7, 1, 0, 0.0, 0, 1),
    ]


def test_a_transaction_has_a_bound_in_rows_however_many_a_job_has(db: Path) -> None:
    writer = Writer(db)
    writer.put(job(BEGUN))
    for i in range(30):
        writer.put(job(*(row(f"{i}/{n}", {}) for n in range(100))))
    assert writer.flush(60)
    in_one = [count for (count,) in stored(db, "select count(*) from evaluation_row group by changed")]
    assert sum(in_one) == 3_000
    assert max(in_one) < writers._BATCH + 100


def test_a_transaction_has_a_bound_in_bytes(db: Path) -> None:
    """What it holds is encoded already, so that nothing of it can be dropped."""
    writer = Writer(db, Limits(queue_bytes=100_000, spool_bytes=0))
    writer.put(job(BEGUN))
    assert writer.flush(60)
    with locked(db):
        writer.put(job(row("first", {})))
        wait_until(lambda: not writer._queue._whole)
        for i in range(9):
            writer.put(job(row(str(i), {}), size=10_000))
    assert writer.flush(60)
    in_one = [count for (count,) in stored(db, "select count(*) from evaluation_row group by changed")]
    assert (sum(in_one), max(in_one)) == (10, 3)


def test_the_bytes_in_the_queue_are_those_that_came_whatever_a_job_says_later(db: Path) -> None:
    class Shrinking:
        size = 1_000

        def changes(self) -> Iterable[Change]:
            self.size = 10
            return [BEGUN]

        def without_payload(self) -> "Shrinking":
            return self

    writer = Writer(db)
    writer.put(Shrinking())
    assert writer._queue.bytes == 1_000
    assert writer.flush(60)
    assert writer._queue.bytes == 0


def test_a_locked_database_is_waited_for_and_the_caller_is_not(db: Path) -> None:
    writer = Writer(db)
    writer.put(job(BEGUN))
    assert writer.flush(60)
    other = sqlite3.connect(db, isolation_level=None, check_same_thread=False)
    other.execute("BEGIN IMMEDIATE")
    began = time.monotonic()
    writer.put(job(row("a", {})))
    assert time.monotonic() - began < 10, "SQLite's own patience is 30 s"
    threading.Timer(1.5, lambda: other.execute("COMMIT")).start()
    assert writer.flush(60)
    assert stored(db, "select uid from evaluation_row") == [("a",)]


def test_what_can_never_be_written_is_given_up_at_once_and_said_once(
    db: Path, caplog: pytest.LogCaptureFixture
) -> None:
    db.write_bytes(b"my precious notes" * 100)
    writer = Writer(db)
    with caplog.at_level(logging.ERROR):
        writer.put(job(BEGUN))
        began = time.monotonic()
        assert not writer.flush()
        writer.put(job(row("a", {})))
        assert not writer.flush()
        assert time.monotonic() - began < 20
        assert caplog.text.count("is not an SQLite database") == 1
        assert "recording has stopped" in caplog.text
        writer.close()
    assert "2 recorded changes were never written" in caplog.text
    assert db.read_bytes() == b"my precious notes" * 100
    assert list(db.parent.iterdir()) == [db]


def test_recording_into_what_can_never_be_written_is_refused_before_it_begins(db: Path) -> None:
    db.write_bytes(b"my precious notes" * 100)
    with pytest.raises(DatabaseError, match=r"a\.db is not an SQLite database\. Name another database \(--db, db= or"):
        record(lambda prompts, trainer: {}, db=db)
    assert list(db.parent.iterdir()) == [db]


def test_a_writer_that_gave_up_is_followed_by_another_once_the_path_is_free(db: Path) -> None:
    writer = writers.writer_for(db)
    db.write_bytes(b"my precious notes" * 100)
    writer.put(job(BEGUN))
    assert not writer.flush()
    db.unlink()
    assert writers.writer_for(db) is not writer
    writers.writer_for(db).put(job(BEGUN, row("a", {})))
    assert writers.flush(60)
    del writers._by_address[db]
    assert stored(db, "select uid from evaluation_row") == [("a",)]


ENDED = """
import logging, sys, time
from pathlib import Path
from logs_ui.recorder.delivery import writer as writers
from logs_ui.recorder.storage.limits import Limits
from tests.recorder.delivery.test_writer import BEGUN, job, row
logging.basicConfig(format="%(message)s")
Limits.end_seconds = 600.0  # of whoever is told nothing
writer = writers.writer_for(Path(sys.argv[1]))
if sys.argv[2] == "a text":
    Path(writer.address).write_text("my precious notes")
writer.put(job(BEGUN))
assert writer.flush(60) == (sys.argv[2] == "locked")
if sys.argv[2] == "locked":
    import sqlite3
    other = sqlite3.connect(sys.argv[1], isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
for i in range(3):
    writer.put(job(row(str(i), {})))
print(time.time())
"""


@pytest.mark.parametrize("way", cases(["process", "thread"], 1))
@pytest.mark.parametrize(
    ("trouble", "lost", "why"), cases([("locked", 3, "stays locked"), ("a text", 4, "not an SQLite")], 1)
)
def test_the_end_of_a_process_says_how_much_was_never_written_and_why(
    db: Path, *, trouble: str, lost: int, why: str, way: str
) -> None:
    command = [sys.executable, "-c", ENDED, str(db), trouble]
    root = Path(__file__).parents[3]
    environment = os.environ | {"LOGS_UI_END_SECONDS": "0.5", "LOGS_UI_SPOOL_MB": "0", "LOGS_UI_WRITER": way}
    done = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True, check=True)
    assert time.time() - float(done.stdout) < 60, "no longer than it was told to wait"
    last = done.stderr.splitlines()[-1]
    assert f"{lost} recorded changes were never written: {db} " in last
    assert why in last


def rollout(number: int) -> RolloutCall:
    """A call with two prompts, and some text of its own."""
    sequence = Sequence(np.arange(500, dtype=np.int32), np.arange(200, dtype=np.int32), "stop")
    calls, seen = CallRecords(), Generation(0, 0.0, 1.0, [sequence], {})
    calls.keep(seen, seen.size)
    prompts, tasks = [snapshot("a" * 2_000)] * 2, ["t", "t"]
    return RolloutCall("r", "l", "e", Mode.TRAIN, number, 0, number, prompts, list(tasks), generations=2, calls=calls)


def returned(call: RolloutCall) -> ReturnedJob:
    output = {
        "prompt_ids": [[1] * 300] * 2,
        "completion_ids": [[2] * 200] * 2,
        "logprobs": None,
        "env_reward": [0.5, 1],
    }
    mask = [[1] * 150 + [0] * 50] * 2
    return ReturnedJob(call, checked_output(output | {"env_mask": mask}, 2), 7)


def rewarded(call: RolloutCall) -> ColumnsJob:
    return ColumnsJob(call, [{"reward": float(call.step)}] * 2)


def wait_until(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.03)


@contextmanager
def locked(db: Path) -> Iterator[None]:
    """By another connection; nobody can write, nor open it anew."""
    other = sqlite3.connect(db, isolation_level=None)
    other.execute("BEGIN EXCLUSIVE")
    try:
        yield
    finally:
        other.execute("ROLLBACK")
        other.close()


def test_a_full_queue_drops_the_oldest_payloads_and_keeps_all_headers(
    db: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(committer, "HEARTBEAT", 0.1)
    limit, steps = 1_000_000, 60
    writer = Writer(db, Limits(queue_bytes=limit, spool_bytes=0))
    writer.put(job(BEGUN))
    assert writer.flush(60)
    waits, most, longest = [], 0, 0.0
    with locked(db), caplog.at_level(logging.WARNING):
        for step in range(steps):
            call = rollout(step)
            began = time.monotonic()
            for each in (returned(call), rewarded(call)):
                writer.put(each)
                most = max(most, writer._queue.bytes)
            longest = max(longest, time.monotonic() - began)
            waits.append(call)
            if step == 0:
                wait_until(lambda: not writer._queue._whole)  # the writer has it, and waits for the lock
        assert not writer.flush(0.1)
    assert limit / 2 < most <= limit
    assert longest < 20
    assert writer.flush(60)
    assert writer._queue.bytes == 0
    frame = load_run(db=db).sort_values(["step", "id"])
    assert list(frame["step"]) == [step for step in range(steps) for _ in range(2)]
    assert (frame["reward"] == frame["step"]).all()
    for column, value in {"status": "ok", "prompt_tokens": 300, "completion_tokens": 150, "env_tokens": 50}.items():
        assert (frame[column] == value).all(), column
    assert list(frame["rollout_reward"]) == [0.5, 1.0] * steps
    lost = frame[frame["error"].notna()]
    assert 0 < len(lost) < 2 * steps - 2
    assert list(lost["step"]) == [1 + i // 2 for i in range(len(lost))], "the oldest of those that waited"
    assert lost["error"].unique().tolist() == [
        "logs-ui dropped its text: what waited to be written took too much memory"
    ]
    assert lost["messages"].str.len().sum() == 0
    assert lost["completion_ids"].isna().all()
    kept = frame[frame["error"].isna()]
    assert (kept["messages"].str.len() > 0).all()
    assert (kept["completion_ids"].map(len) == 200).all()
    assert stored(db, "select dropped_payloads, dropped from run") == [(len(lost), 0)]
    assert len([r for r in caplog.records if "rollouts now lose their text" in r.getMessage()]) == 1
    before = stored(db, "select heartbeat from run")
    wait_until(lambda: stored(db, "select heartbeat from run") > before)


def test_a_queue_that_is_full_of_headers_drops_what_comes_and_counts_it_apart(db: Path) -> None:
    writer = Writer(db, Limits(queue_bytes=50_000, spool_bytes=0))
    writer.put(job(BEGUN))
    assert writer.flush(60)
    with locked(db):
        for step in range(100):
            call = rollout(step)
            writer.follow(RunningJob(call))
            call.settled = True
            writer.put(returned(call))
            assert writer._queue.bytes <= 50_000
        assert writer._queue.followed == []
        accepted = writer._queue.accepted - 1
    assert 5 < accepted < 50
    assert writer.flush(60)
    writer.put(job(row("last", {})))
    assert writer.flush(60)
    assert stored(db, "select dropped from run") == [(100 - accepted,)]
    assert stored(db, "select count(*) from evaluation_row where uid != 'last'") == [(2 * accepted,)]


def test_what_the_writer_holds_leaves_room_for_headers(db: Path) -> None:
    """It is encoded by then, and as small as it is in the database."""
    writer = Writer(db, Limits(queue_bytes=200_000, spool_bytes=0))
    writer.put(job(BEGUN))
    assert writer.flush(60)
    large = rollout(0)
    large.prompts = [snapshot("0" * 60_000)] * 2
    with locked(db):
        writer.put(returned(large))
        wait_until(lambda: writer._queue.bytes < 50_000)
        for step in range(1, 40):
            writer.put(returned(rollout(step)))
    assert writer.flush(60)
    assert writer._queue.dropped == 0
    assert stored(db, "select step, error is null from evaluation_row where step = 0") == [(0, 1)] * 2


def test_what_is_larger_than_the_queue_loses_its_own_payload_and_costs_no_other(db: Path) -> None:
    writer = Writer(db, Limits(queue_bytes=90_000, spool_bytes=0))
    writer.put(job(BEGUN))
    assert writer.flush(60)
    large = rollout(2)
    large.prompts = [snapshot("0" * 50_000)] * 2
    with locked(db):
        writer.put(returned(rollout(1)))
        writer.put(returned(large))
    assert writer.flush(60)
    assert large.prompts == [b"[]"] * 2
    assert stored(db, "select step, error is null from evaluation_row") == [(1, 1), (1, 1), (2, 0), (2, 0)]
    assert stored(db, "select dropped_payloads, dropped from run") == [(2, 0)]


def test_a_full_queue_drops_and_counts_and_never_blocks(db: Path) -> None:
    blocked = sqlite3.connect(db, isolation_level=None)
    blocked.execute("BEGIN EXCLUSIVE")
    writer = Writer(db, Limits(queue_bytes=10_000, spool_bytes=0))
    for i in range(20):
        writer.put(job(BEGUN, row(str(i), {}), size=1_000))
    blocked.execute("ROLLBACK")
    blocked.close()
    assert writer.flush(60)
    writer.put(job(row("last", {})))
    assert writer.flush(60)
    assert stored(db, "select dropped from run") == [(10,)]
    assert stored(db, "select count(*) from evaluation_row") == [(11,)]


def test_room_in_a_full_queue_is_waited_for_as_long_as_the_limit_says_and_once(db: Path) -> None:
    writer = Writer(db, Limits(queue_bytes=10_000, queue_seconds=3, spool_bytes=0))
    writer.put(job(BEGUN))
    assert writer.flush(60)
    with locked(db):
        for _ in range(4):
            writer.put(job(row("a", {}), size=2_500))
        took = []
        for _ in range(2):
            began = time.monotonic()
            writer.put(job(row("b", {}), size=9_000))
            took.append(time.monotonic() - began)
    assert took[0] >= 3 > took[1]
    assert writer.flush(60)
    assert writer._queue.dropped == 2


def test_room_that_comes_in_time_costs_nothing(db: Path) -> None:
    writer = Writer(db, Limits(queue_bytes=10_000, queue_seconds=60, spool_bytes=0))
    writer.put(job(BEGUN))
    assert writer.flush(60)
    for i in range(50):
        writer.put(job(row(str(i), {}), size=4_000))
    assert writer.flush(60)
    assert stored(db, "select count(*) from evaluation_row") == [(50,)]
    assert writer._queue.dropped == 0


def test_the_writers_own_thread_waits_for_no_room(db: Path) -> None:
    """Nobody else could make it."""
    writer = Writer(db, Limits(queue_bytes=1_500, queue_seconds=60, spool_bytes=0))
    writer._queue.bytes = 1_000
    writer._queue.followed = [job_queue.Followed(RunningJob(rollout(0)), 0.0, 1.0)]
    began = time.monotonic()
    writer._queue.follow_up()
    assert time.monotonic() - began < 10
    assert writer._queue.dropped == 1


def test_the_end_of_a_training_waits_no_longer_than_the_limit(db: Path) -> None:
    writer = Writer(db, Limits(end_seconds=0.3, spool_bytes=0))
    writer.put(job(BEGUN))
    assert writer.flush(60)
    with locked(db):
        writer.put(job(row("a", {})))
        began = time.monotonic()
        assert not writer.flush_at_end()
        assert 0.3 <= time.monotonic() - began < 20


def test_the_environment_sets_the_limits(db: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert Limits.from_environment() == Limits(256 << 20, 0.0, 10.0)
    said = {"QUEUE_MB": "1.5", "QUEUE_SECONDS": "2", "END_SECONDS": " 0 ", "SPOOL_MB": "0", "SPOOL_SECONDS": "1"}
    for name, value in said.items():
        monkeypatch.setenv(f"LOGS_UI_{name}", value)
    assert Limits.from_environment() == Writer(db)._limits == Limits(3 << 19, 2.0, 0.0, 0, 1.0)


@pytest.mark.parametrize("value", ["much", "0", "-1", "nan", "inf", "1e9"])
def test_a_limit_that_is_none_is_refused_before_anything_is_recorded(
    db: Path, monkeypatch: pytest.MonkeyPatch, value: str
) -> None:
    monkeypatch.setenv("LOGS_UI_QUEUE_MB", value)
    said = f"^LOGS_UI_QUEUE_MB is '{value}', but must be a number from 1 to 1,000,000. The default is 256.$"
    with pytest.raises(LogsUIError, match=said):
        record(lambda prompts, trainer: {}, db=db)
    assert not db.exists()


def test_a_forked_child_writes_for_itself_and_the_parent_goes_on(address: Address) -> None:
    writer = Writer(address)
    writers._by_address[address] = writer
    writer.put(job(BEGUN, row("parent", {})))
    assert writer.flush(60)
    child = os.fork()
    if child == 0:
        writer.put(job(row("child", {}), RunChange("r", {"max_steps": 3})))
        os._exit(0 if writer.flush(60) else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    writer.put(job(row("parent again", {})))
    assert writer.flush(60)
    del writers._by_address[address]
    assert {uid for (uid,) in stored(address, "select uid from evaluation_row")} == {"parent", "child", "parent again"}


@pytest.mark.parametrize("held", ["the writer's", "the guard's"])
def test_a_child_forked_while_another_thread_held_a_lock_writes_all_the_same(db: Path, held: str) -> None:
    writer = Writer(db)
    writers._by_address[db] = writer
    with storage_of(writer)._opening if held == "the writer's" else guards.guard._lock:
        child = os.fork()
        if child == 0:
            signal.alarm(90)
            guards.guard.caught("testing", ValueError("counted in the child alone"))
            writer.put(job(BEGUN, row("child", {})))
            os._exit(0 if writer.flush(60) else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    del writers._by_address[db]
    assert stored(db, "select uid from evaluation_row") == [("child",)]


def test_a_forked_child_leaves_the_parents_connection_open(db: Path) -> None:
    """SQLite must not be called with it there, not even to close it."""
    writer = Writer(db)
    writers._by_address[db] = writer
    writer.put(job(BEGUN))
    assert writer.flush(60)

    def files() -> set[Path]:
        return {link for link in Path("/proc/self/fd").iterdir() if link.exists() and link.samefile(db)}

    before = files()
    child = os.fork()
    if child == 0:
        gc.collect()
        os._exit(0 if before and files() == before else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    del writers._by_address[db]


def test_a_heartbeat_goes_on_until_the_run_has_ended(address: Address, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(committer, "HEARTBEAT", 0.1)
    writer = Writer(address)
    writer.put(job(BEGUN, row("a", {})))
    assert writer.flush(60)
    before = stored(address, "select heartbeat from run")
    wait_until(lambda: stored(address, "select heartbeat from run") > before)
    writer.put(job(RunChange("r", {"state": "finished"})))
    assert writer.flush(60)
    begun: list[Any] = []
    event.listen(storage_of(writer).engine(), "begin", begun.append)

    def is_quiet() -> bool:
        begun.clear()
        before = stored(address, "select heartbeat from run")
        time.sleep(0.6)
        return not begun and stored(address, "select heartbeat from run") == before

    wait_until(is_quiet)  # one transaction finds out


def test_the_database_of_a_writer_that_lives_is_not_waited_for(db: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = writers.writer_for(db)
    monkeypatch.setattr("logs_ui.recorder.storage.database.refuse_hopeless", lambda _: pytest.fail("looked at again"))
    assert writers.writer_for(db) is first


def test_a_heartbeat_goes_on_after_trouble_with_the_disk(db: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(committer, "HEARTBEAT", 0.1)
    writer = Writer(db)
    writer.put(job(BEGUN))
    assert writer.flush(60)
    other = sqlite3.connect(db, isolation_level=None)
    raw = storage_of(writer).engine().raw_connection()
    raw.cursor().execute("PRAGMA busy_timeout=0")
    raw.close()
    other.execute("BEGIN IMMEDIATE")
    wait_until(lambda: storage_of(writer).trouble is not None)
    other.execute("ROLLBACK")
    (before,) = stored(db, "select heartbeat from run")
    wait_until(lambda: stored(db, "select heartbeat from run") != [before])


def test_what_failed_is_told_once_the_database_can_be_written_however_quiet_it_is(
    db: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(RAISE_VARIABLE)
    monkeypatch.setattr(committer, "HEARTBEAT", 0.1)
    writer = Writer(db, Limits(spool_seconds=0.1, spool_bytes=0))
    writer.put(job(BEGUN))
    assert writer.flush(60)
    with locked(db):
        guards.guard.caught("testing", ValueError("beside any row"))
        wait_until(lambda: storage_of(writer).trouble is not None)
    wait_until(lambda: stored(db, "select recorder_errors from run") == [(1,)])


def test_words_that_no_database_takes_cost_nobody_anything(address: Address, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(RAISE_VARIABLE)
    writer = Writer(address)
    writer.put(job(BEGUN))
    assert writer.flush(60)
    guards.guard.caught("testing", ValueError("half \ud83d of\0it"))
    writer.put(job(row("a", {})))
    assert writer.flush(60)
    assert stored(address, "select uid from evaluation_row") == [("a",)]
    told = "ValueError while testing: half \ufffd of\u2400it"
    assert stored(address, "select recorder_errors, last_recorder_error from run") == [(1, told)]
    intake = Intake(address, storage_of(writer).engine, "older", is_own=False)
    batch = Batch.merged([row("b", {})])
    assert intake.take([Entry(nth(1), 1, batch, failures=(Failures("r", 2, 0, "half \ud83d of\0it"),))]) == 0
    assert stored(address, "select uid from evaluation_row order by id") == [("a",), ("b",)]
    assert stored(address, "select recorder_errors from run") == [(3,)]


def test_an_error_that_cannot_say_what_it_is_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    class SilentError(Exception):
        def __str__(self) -> str:
            raise ValueError("no")

    monkeypatch.delenv(RAISE_VARIABLE)
    fresh = guards.Guard()
    with fresh("testing"):
        raise SilentError
    assert fresh.errors == 1


def test_whatever_fails_in_the_writers_thread_costs_only_itself(db: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(RAISE_VARIABLE)
    monkeypatch.setattr(committer, "HEARTBEAT", 0.1)
    packed = packing.packed

    def fails_for_one(changes: list[Change]) -> Batch:
        if any(isinstance(change, RowChange) and change.uid == "b" for change in changes):
            raise MemoryError
        return packed(changes)

    monkeypatch.setattr(committer, "packed", fails_for_one)
    writer = Writer(db)
    writer.put(job(BEGUN, row("a", {}), row("b", {}), row("c", {})))
    assert writer.flush(60)
    with monkeypatch.context() as broken:
        broken.setattr(storage_of(writer), "store", lambda _: 1 / 0)
        broken.setattr(storage_of(writer), "catch_up", lambda: 1 / 0)
        writer.put(job(row("d", {})))
        assert writer.flush(60)
    writer.put(job(row("e", {})))
    assert writer.flush(60)
    assert stored(db, "select uid from evaluation_row order by id") == [("a",), ("c",), ("e",)]
    wait_until(lambda: stored(db, "select dropped from run") == [(2,)])


def test_what_comes_of_a_deleted_run_lands_in_no_other(db: Path) -> None:
    writer = Writer(db)
    writer.put(job(BEGUN, row("a", {}), RunChange("r", {"state": "finished", "finished": 2})))
    assert writer.flush(60)
    delete_run("r", db)
    intake = Intake(db, storage_of(writer).engine, "another", is_own=True)
    intake.take([Entry(nth(1), 1, alive=("r",))])
    assert stored(db, "select uid from run") == [], "a heartbeat makes none"
    theirs = replace(row("theirs", {}), run="s")
    intake.take([Entry(nth(2), 1, Batch.merged([RunChange("s", {"name": "s", "created": 1, "heartbeat": 1}), theirs]))])
    assert stored(db, "select uid, id > 1 from run") == [("s", 1)], "nor has another its id"
    writer.put(job(row("late", {})))
    assert writer.flush(60)
    of_run = "select run.uid, evaluation_row.uid, evaluation_row.id > 1 from evaluation_row join run on run.id = run_id"
    assert stored(db, f"{of_run} order by run.id") == [("s", "theirs", 1), ("r", "late", 1)]


@pytest.mark.parametrize(
    ("gone", "is_replaced"),
    [("a.db*", False), ("a.db", False), ("a.db*", True)],
    ids=["deleted", "without its log", "replaced"],
)
def test_a_file_that_is_taken_away_is_made_anew(
    db: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, gone: str, *, is_replaced: bool
) -> None:
    writer = Writer(db)
    writer.put(job(BEGUN, row("a", {})))
    assert writer.flush(60)
    other = tmp_path / "other" / "b.db"
    if is_replaced:
        writing_engine(other).dispose()
    for file in list(tmp_path.glob(gone)):
        file.unlink()
    if is_replaced:
        other.rename(db)
    for uid in "bc":
        writer.put(job(row(uid, {})))
        assert writer.flush(60)
    writer.settle(30)
    assert stored(db, "select uid from evaluation_row order by id") == [("b",), ("c",)]
    assert caplog.text.count("a.db was deleted or replaced") == 1


def test_trouble_that_is_no_rows_fault_is_waited_for(address: Address) -> None:
    writer = Writer(address, Limits(spool_seconds=60))
    writer.put(job(BEGUN))
    assert writer.flush(60)
    engine = writing_engine(address)
    with engine.begin() as connection:
        connection.exec_driver_sql("ALTER TABLE rollout_payload RENAME TO elsewhere")
    writer.put(job(row("a", {}, b"text")))
    assert not writer.flush(0.5)
    with engine.begin() as connection:
        connection.exec_driver_sql("ALTER TABLE elsewhere RENAME TO rollout_payload")
    engine.dispose()
    assert writer.flush(60)
    assert stored(address, "select content from rollout_payload") == [(b"text",)]


def test_a_run_that_another_holds_keeps_nobody_from_another_run(postgres_url: URL) -> None:
    writer = Writer(postgres_url, Limits(spool_seconds=60))
    writer.put(job(BEGUN, RunChange("s", {"name": "s", "created": 1, "heartbeat": 1})))
    assert writer.flush(60)
    engine = writing_engine(postgres_url)
    with engine.begin() as connection:
        connection.exec_driver_sql("SELECT id FROM run WHERE uid = 's' FOR UPDATE")
        writer.put(job(row("a", {})))
        assert writer.flush(50), "if it waited for that, it would go on for 60 s"
    engine.dispose()


def test_scalars_keep_their_last_value_and_nan_is_null(address: Address) -> None:
    writer = Writer(address)
    writer.put(job(BEGUN, ScalarsChange("r", 1, {"loss": 1.0}), ScalarsChange("r", 1, {"loss": 0.5, "kl": None})))
    assert writer.flush(60)
    assert sorted(stored(address, "select name, value from scalar")) == [("kl", None), ("loss", 0.5)]


def test_the_write_ahead_log_does_not_grow_for_ever(db: Path) -> None:
    writer = Writer(db)
    writer.put(job(BEGUN))
    for i in range(60):
        writer.put(job(row(str(i), {}, os.urandom(500_000))))
        assert writer.flush(60)
    assert db.with_name("a.db-wal").stat().st_size < 20_000_000
    assert db.stat().st_size > 20_000_000


def test_a_write_ahead_log_that_was_moved_is_not_moved_again_before_it_has_grown(
    db: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    moved: list[int] = []
    checkpoint = checkpoints.checkpoint_log

    def counted(engine: Any) -> None:
        moved.append(1)
        checkpoint(engine)

    monkeypatch.setattr(checkpoints, "checkpoint_log", counted)
    writer = Writer(db)
    writer.put(job(BEGUN, row("large", {}, os.urandom(5_000_000))))
    assert writer.flush(60)
    for i in range(20):
        writer.put(job(row(str(i), {}, os.urandom(10_000))))
        assert writer.flush(60)
    assert len(moved) == 1


def test_what_identifies_a_row_stays_as_it_was_first_told(address: Address) -> None:
    """So that a later change writes only the indexes of what it changes."""
    writer = Writer(address)
    writer.put(job(BEGUN, row("a", {"reward": 1.0}, step=1)))
    assert writer.flush(60)
    writer.put(job(row("a", {"reward": 2.0}, step=2)))
    assert writer.flush(60)
    assert stored(address, "select step, reward from evaluation_row") == [(1, 2.0)]


@pytest.mark.parametrize("count", [1, 3, 127, 300])
def test_any_number_of_rows_goes_in_at_once(address: Address, count: int) -> None:
    writer = Writer(address)
    rewards = {"rewards": {"a": 0.5}, "odd_rewards": None}
    writer.put(job(BEGUN, *(row(str(i), {"reward": float(i), **rewards}, str(i).encode()) for i in range(count))))
    assert writer.flush(60)
    found = stored(
        address,
        "select uid, reward, cast(rewards as text), cast(odd_rewards as text), content "
        "from evaluation_row join rollout_payload on row_id = id"
        " order by id",
    )
    assert found == [(str(i), float(i), '{"a":0.5}', "null", str(i).encode()) for i in range(count)]


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


def test_a_mistake_of_the_users_is_one_line_without_a_traceback(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.delenv(RAISE_VARIABLE)
    fresh = guards.Guard()
    with caplog.at_level(logging.ERROR):
        for _ in range(2):
            with fresh("testing"):
                raise LogsUIError("there is no such column.")
    assert (fresh.errors, fresh.last) == (2, "there is no such column.")
    (logged,) = caplog.records
    assert logged.exc_info is None
    assert "recording failed (there is no such column). Your training goes on" in logged.getMessage()


def test_the_guard_hides_nothing_from_these_tests() -> None:
    with pytest.raises(ValueError, match="boom"), guards.Guard()("testing"):
        raise ValueError("boom")


def test_the_file_alone_holds_a_training_that_ended(db: Path, tmp_path: Path) -> None:
    writer = Writer(db)
    writer.put(job(BEGUN, row("a", {"reward": 0.5})))
    writer.flush_at_end()
    shutil.copy(db, tmp_path / "copy.db")
    assert stored(tmp_path / "copy.db", "select rollouts from step_statistics") == [(1,)]


def test_a_test_leaves_no_writer_at_work_and_whoever_holds_one_may_use_it_again(db: Path) -> None:
    with ending_writers():
        writer = writers.writer_for(db)
        writer.put(job(BEGUN, row("a", {})))
        assert writer.flush(60)
        thread = writer._thread
    assert thread is not None
    assert not thread.is_alive()
    assert db not in writers._by_address
    writer.put(job(row("b", {})))
    assert writer.flush(60)
    assert stored(db, "select uid from evaluation_row order by uid") == [("a",), ("b",)]
