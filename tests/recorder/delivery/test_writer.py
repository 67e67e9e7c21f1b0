"""The background writer: what was flushed is there, one bad row costs one row, a bad disk costs nothing but time."""

import gc
import os
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
from sqlalchemy import URL, Connection, RootTransaction

from logs_ui.recorder import guard as guards
from logs_ui.recorder import load_run
from logs_ui.recorder.api.record import record
from logs_ui.recorder.api.run_record import ChangesJob
from logs_ui.recorder.capture.calls import CallRecords, Generation
from logs_ui.recorder.capture.model_answers import Sequence
from logs_ui.recorder.capture.rollout_output import checked_output
from logs_ui.recorder.delivery import committer, job_queue
from logs_ui.recorder.delivery import writer as writers
from logs_ui.recorder.delivery.committer import entry_of
from logs_ui.recorder.delivery.writer import Writer
from logs_ui.recorder.errors import LogsUIError
from logs_ui.recorder.guard import RAISE_VARIABLE
from logs_ui.recorder.rows import draft_batches as packing
from logs_ui.recorder.rows.jobs import ColumnsJob, ReturnedJob, RunningJob
from logs_ui.recorder.rows.rollout_call import RolloutCall
from logs_ui.recorder.snapshot import snapshot
from logs_ui.recorder.storage.address import Address
from logs_ui.recorder.storage.changes import Batch, Change, RowChange, RunChange, ScalarsChange
from logs_ui.recorder.storage.database import disposed, writing_engine
from logs_ui.recorder.storage.limits import Limits
from logs_ui.recorder.storage.spool import durable_outlet as storage
from logs_ui.recorder.storage.spool.entry import Entry, Failures
from logs_ui.recorder.storage.spool.ingest import Ingester
from logs_ui.recorder.storage.spool.intake import Intake
from logs_ui.recorder.storage.sqlite import checkpoints
from logs_ui.recorder.upkeep.delete import delete_run
from logs_ui.recorder.vocabulary import Mode
from tests.support.changes import BEGUN, begun, flushes, in_child, job, locked, nth, row, stored, wait_until, write
from tests.support.exhaustive import cases
from tests.support.payloads import pack_content

pytestmark = pytest.mark.usefixtures("in_thread")

ROOT = Path(__file__).parents[3]


def storage_of(writer: Writer) -> storage.Storage:
    assert isinstance(writer._outlet, committer.Committer)
    return writer._outlet


def only_pages(writer: Writer, most: int) -> None:
    """A disk that has room for so many pages of the database and no more."""
    raw = storage_of(writer).engine().raw_connection()
    raw.cursor().execute(f"PRAGMA max_page_count={most}")
    raw.close()


def test_what_was_flushed_is_there(address: Address) -> None:
    writer = Writer(address)
    writer.put(job(BEGUN))
    for i in range(1_000):
        writer.put(job(row(str(i), {"reward": float(i)}, pack_content({"messages": [i]}))))
    assert writer.flush(60)
    sums = "select count(*), sum(reward), count(content) from evaluation_row join rollout_payload on row_id = id"
    assert stored(address, sums) == [(1_000, 499_500.0, 1_000)]
    assert stored(address, "select rollouts, scored, reward_sum from step_statistics") == [(1_000, 1_000, 499_500.0)]


def test_later_changes_merge_field_by_field_and_what_identifies_a_row_stays(address: Address) -> None:
    writer = begun(address, row("a", {"status": "running", "task": "t"}, b"first"))
    writer.put(job(row("a", {"status": "ok", "turns": 2}, b"second")))
    write(writer, row("a", {"reward": 0.5}, step=2))
    write(writer, row("a", {"advantage": -1.0}))
    columns = "status, task, turns, reward, advantage, step, content"
    query = f"select {columns} from evaluation_row join rollout_payload on row_id = id"  # noqa: S608
    assert stored(address, query) == [("ok", "t", 2, 0.5, -1.0, 1, b"second")]


def test_ids_follow_the_order_in_which_rows_began_whatever_ended_first(address: Address) -> None:
    columns: dict[int, dict[str, Any]] = {3: {"turns": 2}, 1: {"reward": 1.0}, 2: {"turns": 1}, 4: {"reward": 0.0}}
    begun(address, *(row(str(number), of_row, created=number) for number, of_row in columns.items()))
    assert stored(address, "select uid from evaluation_row order by id") == [("1",), ("2",), ("3",), ("4",)]


def test_changed_grows_with_each_batch_and_is_the_runs_own(address: Address) -> None:
    writer = begun(address, row("a"))
    (first,) = stored(address, "select changed from evaluation_row")
    write(writer, row("b"))
    assert stored(address, "select changed from evaluation_row where uid = 'b'") > [first]
    assert stored(address, "select changed from run") == stored(address, "select max(changed) from evaluation_row")


def test_a_poison_row_costs_nobody_else_anything(
    address: Address, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.delenv(RAISE_VARIABLE)
    monkeypatch.setattr(guards.guard, "_seen", set())
    poison = row("b", {"task": object(), "preview": "database or disk is full, locked"})  # not waited for
    writer = begun(address)
    write(writer, row("a", {"reward": 1.0}), poison, row("c", {"reward": 3.0}))
    write(writer, row("d", {"reward": 4.0}))
    assert stored(address, "select uid from evaluation_row order by id") == [("a",), ("c",), ("d",)]
    ((errors, dropped, last),) = stored(address, "select recorder_errors, dropped, last_recorder_error from run")
    assert (errors > 0, dropped) == (True, 1)
    assert "writing one row" in last
    assert len([r for r in caplog.records if "writing one row" in r.getMessage()]) == 1, "logged once"


def test_a_full_disk_is_waited_for(db: Path, caplog: pytest.LogCaptureFixture) -> None:
    writer = begun(db)
    only_pages(writer, 60)
    writer.put(job(row("a", {}, os.urandom(1_000_000))))
    wait_until(lambda: "the disk is full" in caplog.text)
    assert not writer.flush(0.1)
    assert stored(db, "select count(*) from evaluation_row") == [(0,)]
    only_pages(writer, 1_000_000)
    assert writer.flush(60)
    assert "can be written again" in caplog.text
    assert stored(db, "select uid from evaluation_row") == [("a",)]


def test_a_disk_that_fills_while_rows_go_in_one_by_one_is_waited_for(db: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(RAISE_VARIABLE)
    writer = begun(db)
    only_pages(writer, 60)
    writer.put(job(row("a"), row("poison", {"task": object()}), row("c", {}, os.urandom(1_000_000))))
    wait_until(lambda: storage_of(writer).trouble is not None)
    only_pages(writer, 1_000_000)
    assert writer.flush(60)
    query = "select uid, length(content) from evaluation_row left join rollout_payload on row_id = id"
    assert stored(db, query) == [("a", None), ("c", 1_000_000)]
    assert storage_of(writer).dropped == 1


def test_a_checkpoint_that_fails_repeats_nothing(
    db: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    error = sqlite3.OperationalError("database or disk is full")
    error.sqlite_errorcode = sqlite3.SQLITE_FULL
    checkpoint = Mock(side_effect=error)
    monkeypatch.setattr(storage, "WAL_BYTES", 0)
    monkeypatch.setattr(checkpoints, "checkpoint_log", checkpoint)
    begun(db, row("a"), RunChange("r", {}, unattributed_calls=3))
    assert checkpoint.called
    assert caplog.text == ""
    assert stored(db, "select unattributed_calls, dropped, changed from run") == [(3, 0, 1)]


def test_statistics_count_each_steps_rows_as_they_are_now(address: Address) -> None:
    ended = row("e", {"status": "error", "stop_reason": "length"}, step=7)
    writer = begun(address, *(row(str(i), {"reward": 1.0}, step=i % 3) for i in range(6)), ended)
    write(writer, row("0", {"reward": 0.25}, step=0), row("e", {"status": "ok"}, step=7))
    sums = "select step, rollouts, scored, reward_sum, errors, truncated from step_statistics order by step"
    of_steps = [(0, 2, 2, 1.25, 0, 0), (1, 2, 2, 2.0, 0, 0), (2, 2, 2, 2.0, 0, 0), (7, 1, 0, 0.0, 0, 1)]
    assert stored(address, sums) == of_steps


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
    writer = begun(db, limits=Limits(queue_bytes=100_000, spool_bytes=0))
    with locked(db):
        writer.put(job(row("first")))
        wait_until(lambda: not writer._queue._whole)
        for i in range(9):
            writer.put(job(row(str(i)), size=10_000))
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


def test_what_can_never_be_written_is_given_up_and_said_once(db: Path, caplog: pytest.LogCaptureFixture) -> None:
    db.write_bytes(b"my precious notes" * 100)
    writer = Writer(db)
    began = time.monotonic()
    for change in (BEGUN, row("a")):
        writer.put(job(change))
        assert not writer.flush()
    assert time.monotonic() - began < 20
    assert caplog.text.count("is not an SQLite database") == 1
    assert "recording has stopped" in caplog.text
    writer.close()
    assert "2 recorded changes were not written before the process ended" in caplog.text
    assert db.read_bytes() == b"my precious notes" * 100
    assert list(db.parent.iterdir()) == [db]


def test_a_writer_that_gave_up_is_followed_by_another_once_the_path_is_free(db: Path) -> None:
    writer = writers.writer_for(db)
    db.write_bytes(b"my precious notes" * 100)
    writer.put(job(BEGUN))
    assert not writer.flush()
    db.unlink()
    assert writers.writer_for(db) is not writer
    writers.writer_for(db).put(job(BEGUN, row("a")))
    assert writers.flush(60)
    del writers._by_address[db]
    assert stored(db, "select uid from evaluation_row") == [("a",)]


ENDED = """
import logging, sys, time
from pathlib import Path
from logs_ui.recorder.delivery import writer as writers
from logs_ui.recorder.storage.limits import Limits
from tests.support.changes import BEGUN, job, row
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
    writer.put(job(row(str(i))))
print(time.time())
"""


@pytest.mark.exhaustive
@pytest.mark.parametrize("way", cases(["process", "thread"], 1))
@pytest.mark.parametrize(
    ("trouble", "lost", "why"), cases([("locked", 3, "stays locked"), ("a text", 4, "not an SQLite")], 1)
)
def test_a_process_says_at_its_end_what_was_lost(db: Path, *, trouble: str, lost: int, why: str, way: str) -> None:
    command = [sys.executable, "-c", ENDED, str(db), trouble]
    environment = os.environ | {"LOGS_UI_END_SECONDS": "0.5", "LOGS_UI_SPOOL_MB": "0", "LOGS_UI_WRITER": way}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True)
    assert time.time() - float(done.stdout) < 60, "no longer than it was told to wait"
    last = done.stderr.splitlines()[-1]
    assert f"{lost} recorded changes were not written before the process ended: {db} " in last
    assert why in last


DESCRIBED = """
import sys
from multiprocessing import get_context
from pathlib import Path
from logs_ui.recorder import start_run
folder = Path(sys.argv[1])
def record():
    start_run(db=folder / "a.db").finish()
    if sys.argv[2] != "no answer":
        (folder / "ending").touch()
if sys.argv[2] == "a child":
    child = get_context("fork").Process(target=record)
    child.start()
    child.join()
else:
    record()
"""
SLOW_GIT = """#!/bin/sh
until [ -e {0}/ending ]; do sleep 0.05; done
sleep 0.3
echo abc
"""


@pytest.mark.parametrize("process", ["a process", "a child"])
def test_the_commit_is_stored_that_git_tells_after_the_last_flush(tmp_path: Path, process: str) -> None:
    assert described(tmp_path, process).count("\n") == 1, "it only says where to browse the run"
    assert stored(tmp_path / "a.db", "select git_commit, git_dirty, state from run") == [("abc", 1, "finished")]


def test_git_that_does_not_answer_keeps_no_process_from_its_end(tmp_path: Path) -> None:
    said = described(tmp_path, "no answer", LOGS_UI_END_SECONDS="0.2")
    (tmp_path / "ending").touch()  # ends it
    assert "were not written" not in said
    Ingester(tmp_path / "a.db", entry_of).take_in()
    assert stored(tmp_path / "a.db", "select git_commit, state from run") == [(None, "finished")]


def described(folder: Path, process: str, **environment: str) -> str:
    git = folder / "bin" / "git"
    git.parent.mkdir()
    git.write_text(SLOW_GIT.format(folder))
    git.chmod(0o755)
    variables = os.environ | {"PATH": f"{git.parent}:{os.environ['PATH']}"} | environment
    command = [sys.executable, "-c", DESCRIBED, str(folder), process]
    return subprocess.run(command, env=variables, capture_output=True, text=True, check=True, timeout=60).stderr


def rollout(number: int, prompt: str = "a" * 2_000) -> RolloutCall:
    """A call with twice that prompt, and some text of its own."""
    sequence = Sequence(np.arange(500, dtype=np.int32), np.arange(200, dtype=np.int32), "stop")
    calls, seen = CallRecords(), Generation(0, 0.0, 1.0, [sequence], {})
    calls.keep(seen, seen.size)
    prompts = [snapshot(prompt)] * 2
    return RolloutCall("r", "l", "e", Mode.TRAIN, number, 0, number, prompts, ["t", "t"], generations=2, calls=calls)


def returned(call: RolloutCall) -> ReturnedJob:
    output = {
        "prompt_ids": [[1] * 300] * 2, "completion_ids": [[2] * 200] * 2, "logprobs": None, "env_reward": [0.5, 1],
        "env_mask": [[1] * 150 + [0] * 50] * 2,
    }  # fmt: skip
    return ReturnedJob(call, checked_output(output, 2), 7)


def test_a_full_queue_drops_the_oldest_payloads_and_keeps_all_headers(
    db: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(committer, "HEARTBEAT", 0.1)
    limit, steps = 1_000_000, 60
    writer = begun(db, limits=Limits(queue_bytes=limit, spool_bytes=0))
    calls, most, longest = [rollout(step) for step in range(steps)], 0, 0.0
    with locked(db):
        for call in calls:
            began = time.monotonic()
            for each in (returned(call), ColumnsJob(call, [{"reward": float(call.step)}] * 2)):
                writer.put(each)
                most = max(most, writer._queue.bytes)
            longest = max(longest, time.monotonic() - began)
            if call.step == 0:
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
    assert {*lost["error"]} == {"logs-ui dropped its text: what waited to be written took too much memory"}
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
    writer = begun(db, limits=Limits(queue_bytes=50_000, spool_bytes=0))
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
    write(writer, row("last"))
    assert stored(db, "select dropped from run") == [(100 - accepted,)]
    assert stored(db, "select count(*) from evaluation_row where uid != 'last'") == [(2 * accepted,)]


def test_what_the_writer_holds_leaves_room_for_headers(db: Path) -> None:
    """It is encoded by then, and as small as it is in the database."""
    writer = begun(db, limits=Limits(queue_bytes=200_000, spool_bytes=0))
    with locked(db):
        writer.put(returned(rollout(0, "0" * 60_000)))
        wait_until(lambda: writer._queue.bytes < 50_000)
        for step in range(1, 40):
            writer.put(returned(rollout(step)))
    assert writer.flush(60)
    assert writer._queue.dropped == 0
    assert stored(db, "select step, error is null from evaluation_row where step = 0") == [(0, 1)] * 2


def test_what_is_larger_than_the_queue_loses_its_own_payload_and_costs_no_other(db: Path) -> None:
    writer = begun(db, limits=Limits(queue_bytes=90_000, spool_bytes=0))
    large = rollout(2, "0" * 50_000)
    with locked(db):
        writer.put(returned(rollout(1)))
        writer.put(returned(large))
    assert writer.flush(60)
    assert large.prompts == [b"[]"] * 2
    assert stored(db, "select step, error is null from evaluation_row") == [(1, 1), (1, 1), (2, 0), (2, 0)]
    assert stored(db, "select dropped_payloads, dropped from run") == [(2, 0)]


def waits_of(writer: Writer, monkeypatch: pytest.MonkeyPatch) -> list[float | None]:
    waits: list[float | None] = []
    wait_for = writer._queue._condition.wait_for

    def waiting(is_so: Callable[[], bool], seconds: float | None = None) -> bool:
        waits.append(seconds)
        return wait_for(is_so, seconds)

    monkeypatch.setattr(writer._queue._condition, "wait_for", waiting)
    return waits


def test_room_in_a_full_queue_is_waited_for_once_up_to_the_limit(db: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = begun(db, limits=Limits(queue_bytes=10_000, queue_seconds=0.3, spool_bytes=0))
    waits = waits_of(writer, monkeypatch)
    with locked(db):
        for size in (2_500, 2_500, 2_500, 2_500, 9_000, 9_000):
            writer.put(job(row("a"), size=size))
    assert waits.count(0.3) == 1
    assert writer.flush(60)
    assert writer._queue.dropped == 2


def test_room_that_comes_in_time_costs_nothing(db: Path) -> None:
    writer = begun(db, limits=Limits(queue_bytes=10_000, queue_seconds=60, spool_bytes=0))
    for i in range(50):
        writer.put(job(row(str(i)), size=4_000))
    assert writer.flush(60)
    assert stored(db, "select count(*) from evaluation_row") == [(50,)]
    assert writer._queue.dropped == 0


def test_the_writers_own_thread_waits_for_no_room(db: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody else could make it."""
    writer = Writer(db, Limits(queue_bytes=1_500, queue_seconds=60, spool_bytes=0))
    writer._queue.bytes = 1_000
    writer._queue.followed = [job_queue.Followed(RunningJob(rollout(0)), 0.0, 1.0)]
    waits = waits_of(writer, monkeypatch)
    writer._queue.follow_up()
    assert waits == []
    assert writer._queue.dropped == 1


def test_the_end_of_a_training_waits_no_longer_than_the_limit(db: Path) -> None:
    writer = begun(db, limits=Limits(end_seconds=0.3, spool_bytes=0))
    with locked(db):
        writer.put(job(row("a")))
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
def test_a_limit_that_is_none_is_refused_before_recording(
    db: Path, monkeypatch: pytest.MonkeyPatch, value: str
) -> None:
    monkeypatch.setenv("LOGS_UI_QUEUE_MB", value)
    said = f"^LOGS_UI_QUEUE_MB is '{value}', but must be a number from 1 to 1,000,000. The default is 256.$"
    with pytest.raises(LogsUIError, match=said):
        record(lambda prompts, trainer: {}, db=db)
    assert not db.exists()


@pytest.fixture
def registered(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Writer:
    """A writer that a forked child begins anew."""
    is_on_both = "address" in request.fixturenames
    writer = Writer(request.getfixturevalue("address" if is_on_both else "db"))
    monkeypatch.setitem(writers._by_address, writer.address, writer)
    return writer


def test_a_forked_child_writes_for_itself_and_the_parent_goes_on(address: Address, registered: Writer) -> None:
    write(registered, BEGUN, row("parent"))
    in_child(lambda: flushes(registered, row("child"), RunChange("r", {"max_steps": 3})))
    write(registered, row("parent again"))
    assert {uid for (uid,) in stored(address, "select uid from evaluation_row")} == {"parent", "child", "parent again"}


@pytest.mark.parametrize("held", ["the writer's", "the guard's"])
def test_a_child_forked_while_a_thread_held_a_lock_writes_all_the_same(db: Path, registered: Writer, held: str) -> None:
    def record_in_child() -> bool:
        guards.guard.caught("testing", ValueError("counted in the child alone"))
        return flushes(registered, BEGUN, row("child"))

    with storage_of(registered)._opening if held == "the writer's" else guards.guard._lock:
        in_child(record_in_child)
    assert stored(db, "select uid from evaluation_row") == [("child",)]


def test_a_forked_child_leaves_the_parents_connection_open(db: Path, registered: Writer) -> None:
    """SQLite must not be called with it there, not even to close it."""
    write(registered, BEGUN)

    def files() -> set[Path]:
        return {link for link in Path("/proc/self/fd").iterdir() if link.exists() and link.samefile(db)}

    before = files()
    in_child(lambda: gc.collect() >= 0 and bool(before) and files() == before)


def test_a_heartbeat_goes_on_until_the_run_has_ended(address: Address, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(committer, "HEARTBEAT", 0.1)
    writer = begun(address, row("a"))
    before = stored(address, "select heartbeat from run")
    wait_until(lambda: stored(address, "select heartbeat from run") > before)
    write(writer, RunChange("r", {"state": "finished"}))
    transactions: list[Connection] = []
    engine, begin = storage_of(writer).engine(), Connection.begin

    def note_and_begin(connection: Connection) -> RootTransaction:
        transactions.extend([connection] * (connection.engine is engine))
        return begin(connection)

    # No event: to listen to an engine that another thread uses makes that thread fail, now and then.
    monkeypatch.setattr(Connection, "begin", note_and_begin)

    def is_quiet() -> bool:
        transactions.clear()
        before = stored(address, "select heartbeat from run")
        time.sleep(0.6)
        return not transactions and stored(address, "select heartbeat from run") == before

    wait_until(is_quiet)  # one transaction finds out


def test_the_database_of_a_writer_that_lives_is_not_waited_for(db: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = writers.writer_for(db)
    monkeypatch.setattr("logs_ui.recorder.storage.database.refuse_hopeless", lambda _: pytest.fail("looked at again"))
    assert writers.writer_for(db) is first


def test_after_trouble_with_the_disk_heartbeat_and_errors_are_told(db: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(RAISE_VARIABLE)
    monkeypatch.setattr(committer, "HEARTBEAT", 0.1)
    writer = begun(db, limits=Limits(spool_seconds=0.1, spool_bytes=0))
    with locked(db):
        guards.guard.caught("testing", ValueError("beside any row"))
        wait_until(lambda: storage_of(writer).trouble is not None)
    (before,) = stored(db, "select heartbeat from run")
    wait_until(lambda: stored(db, "select recorder_errors from run") == [(1,)])
    wait_until(lambda: stored(db, "select heartbeat from run") != [before])


def test_words_that_no_database_takes_cost_nobody_anything(address: Address, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(RAISE_VARIABLE)
    writer = begun(address)
    guards.guard.caught("testing", ValueError("half \ud83d of\0it"))
    write(writer, row("a"))
    assert stored(address, "select uid from evaluation_row") == [("a",)]
    told = "ValueError while testing: half \ufffd of\u2400it"
    assert stored(address, "select recorder_errors, last_recorder_error from run") == [(1, told)]
    intake = Intake(address, storage_of(writer).engine, "older", is_own=False)
    batch = Batch.merged([row("b")])
    assert intake.take([Entry(nth(1), 1, batch, failures=(Failures("r", 2, 0, "half \ud83d of\0it"),))]) == 0
    assert stored(address, "select uid from evaluation_row order by id") == [("a",), ("b",)]
    assert stored(address, "select recorder_errors from run") == [(3,)]


def test_whatever_fails_in_the_writers_thread_costs_only_itself(db: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(RAISE_VARIABLE)
    monkeypatch.setattr(committer, "HEARTBEAT", 0.1)
    packed = packing.packed

    def fails_for_one(changes: list[Change]) -> Batch:
        if any(isinstance(change, RowChange) and change.uid == "b" for change in changes):
            raise MemoryError
        return packed(changes)

    monkeypatch.setattr(committer, "packed", fails_for_one)
    writer = begun(db, row("a"), row("b"), row("c"))
    writer.put(ChangesJob(Mock(side_effect=ValueError("no"))))
    with monkeypatch.context() as broken:
        broken.setattr(storage_of(writer), "store", lambda _: 1 / 0)
        broken.setattr(storage_of(writer), "catch_up", lambda: 1 / 0)
        write(writer, row("d"))
    write(writer, row("e"))
    assert stored(db, "select uid from evaluation_row order by id") == [("a",), ("c",), ("e",)]
    wait_until(lambda: stored(db, "select dropped from run") == [(2,)])


def test_what_comes_of_a_deleted_run_lands_in_no_other(db: Path) -> None:
    writer = begun(db, row("a"), RunChange("r", {"state": "finished", "finished": 2}))
    delete_run("r", db)
    intake = Intake(db, storage_of(writer).engine, "another", is_own=True)
    intake.take([Entry(nth(1), 1, alive=("r",))])
    assert stored(db, "select uid from run") == [], "a heartbeat makes none"
    theirs = (replace(BEGUN, uid="s"), replace(row("theirs"), run="s"))
    intake.take([Entry(nth(2), 1, Batch.merged(theirs))])
    assert stored(db, "select uid, id > 1 from run") == [("s", 1)], "nor has another its id"
    write(writer, row("late"))
    of_run = "select run.uid, evaluation_row.uid, evaluation_row.id > 1 from evaluation_row join run on run.id = run_id"
    assert stored(db, f"{of_run} order by run.id") == [("s", "theirs", 1), ("r", "late", 1)]


@pytest.mark.parametrize(("gone", "is_replaced"), [("a.db*", False), ("a.db", False), ("a.db*", True)])
def test_a_file_that_is_taken_away_is_made_anew(
    db: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, gone: str, *, is_replaced: bool
) -> None:
    writer = begun(db, row("a"))
    other = tmp_path / "other" / "b.db"
    if is_replaced:
        writing_engine(other).dispose()
    for file in list(tmp_path.glob(gone)):
        if file.is_file():
            file.unlink()
    if is_replaced:
        other.rename(db)
    for uid in "bc":
        write(writer, row(uid))
    writer.settle(30)
    assert stored(db, "select uid from evaluation_row order by id") == [("a",), ("b",), ("c",)]
    assert caplog.text.count(f"a.db was {'replaced by another file' if is_replaced else 'deleted'}") == 1


def test_trouble_that_is_no_rows_fault_is_waited_for(address: Address) -> None:
    writer = begun(address, limits=Limits(spool_seconds=60))
    with disposed(writing_engine(address)) as engine:
        for before, after in (("rollout_payload", "elsewhere"), ("elsewhere", "rollout_payload")):
            with engine.begin() as connection:
                connection.exec_driver_sql(f"ALTER TABLE {before} RENAME TO {after}")
            if after == "elsewhere":
                writer.put(job(row("a", {}, b"text")))
                assert not writer.flush(0.5)
    assert writer.flush(60)
    assert stored(address, "select content from rollout_payload") == [(b"text",)]


def test_a_run_that_another_holds_keeps_nobody_from_another_run(postgres_url: URL) -> None:
    writer = begun(postgres_url, replace(BEGUN, uid="s"), limits=Limits(spool_seconds=60))
    with disposed(writing_engine(postgres_url)) as engine, engine.begin() as connection:
        connection.exec_driver_sql("SELECT id FROM run WHERE uid = 's' FOR UPDATE")
        writer.put(job(row("a")))
        assert writer.flush(50), "if it waited for that, it would go on for 60 s"


def test_scalars_keep_their_last_value_and_nan_is_null(address: Address) -> None:
    begun(address, ScalarsChange("r", 1, {"loss": 1.0}), ScalarsChange("r", 1, {"loss": 0.5, "kl": None}))
    assert sorted(stored(address, "select name, value from scalar")) == [("kl", None), ("loss", 0.5)]


def test_the_write_ahead_log_does_not_grow_for_ever(db: Path) -> None:
    writer = Writer(db)
    writer.put(job(BEGUN))
    for i in range(48):
        write(writer, row(str(i), {}, os.urandom(500_000)))
    assert db.with_name("a.db-wal").stat().st_size < 20_000_000
    assert db.stat().st_size > 20_000_000


def test_a_log_that_was_moved_is_not_moved_again_before_it_has_grown(db: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoint = Mock(wraps=checkpoints.checkpoint_log)
    monkeypatch.setattr(checkpoints, "checkpoint_log", checkpoint)
    writer = begun(db, row("large", {}, os.urandom(5_000_000)))
    for i in range(20):
        write(writer, row(str(i), {}, os.urandom(10_000)))
    assert checkpoint.call_count == 1


@pytest.mark.parametrize("count", [1, 3, 127, 300])
def test_any_number_of_rows_goes_in_at_once(address: Address, count: int) -> None:
    rewards = {"rewards": {"a": 0.5}, "odd_rewards": None}
    begun(address, *(row(str(i), {"reward": float(i), **rewards}, str(i).encode()) for i in range(count)))
    columns = "uid, reward, cast(rewards as text), cast(odd_rewards as text), content"
    query = f"select {columns} from evaluation_row join rollout_payload on row_id = id order by id"  # noqa: S608
    assert stored(address, query) == [(str(i), float(i), '{"a":0.5}', "null", str(i).encode()) for i in range(count)]


class SilentError(Exception):
    def __str__(self) -> str:
        raise ValueError("no")


@pytest.mark.parametrize(
    ("error", "last", "logged"),
    [
        (ValueError("boom"), "ValueError while testing: boom", "Your training goes on"),
        (LogsUIError("no column."), "no column.", "recording failed (no column). Your training goes on"),
        (SilentError(), None, "recording failed"),
    ],
)
def test_the_guard_swallows_logs_once_and_counts(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, error: Exception, last: str | None, logged: str
) -> None:
    monkeypatch.delenv(RAISE_VARIABLE)
    fresh = guards.Guard()
    for _ in range(3):
        with fresh("testing"):
            raise error
    assert fresh.errors == 3
    assert last in {fresh.last, None}
    (record,) = caplog.records
    assert logged in record.getMessage()
    assert (record.exc_info is None) == isinstance(error, LogsUIError), "a user's mistake is one line"


def test_the_guard_hides_nothing_from_these_tests() -> None:
    with pytest.raises(ValueError, match="boom"), guards.Guard()("testing"):
        raise ValueError("boom")
