"""The helper process, which writes what a training records."""

import logging
import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import astuple, dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from multiprocessing import Pipe
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
import pandas as pd
import pytest
from tokenizers import Tokenizer, models, pre_tokenizers

from logs_ui.recorder import LogsUIError, current_row, load_run, load_runs, start_run
from logs_ui.recorder.capture.calls import CallRecords, Generation
from logs_ui.recorder.delivery.committer import Committer
from logs_ui.recorder.delivery.helper import spawn
from logs_ui.recorder.delivery.helper.client import HelperClient
from logs_ui.recorder.delivery.helper.process import _Training, _Work
from logs_ui.recorder.delivery.writer import Writer, writer_for
from logs_ui.recorder.guard import RAISE_VARIABLE, guard
from logs_ui.recorder.redaction import masked
from logs_ui.recorder.storage.address import Address, as_text
from logs_ui.recorder.storage.changes import RunChange
from logs_ui.recorder.storage.limits import Limits
from logs_ui.recorder.storage.payload import unpacked_content
from logs_ui.recorder.storage.spool.files import spool_files
from logs_ui.recorder.storage.spool_folder import spool_folder
from tests.support.changes import BEGUN, begun, flushes, in_child, job, locked, row, stored, wait_until, write
from tests.support.storage_faults import check, holds_nothing

TIMES = {"id", "created", "returned", "scored", "seconds", "run", "group"}
ROOT = Path(__file__).parents[3]


@pytest.fixture
def started_as_by_a_training(monkeypatch: pytest.MonkeyPatch, _helpers_are_forked: None) -> None:
    """Starts an interpreter for each helper process, where that is what a test is about: it takes a second."""
    monkeypatch.setattr(spawn, "subprocess", subprocess)


@pytest.fixture
def writer(db: Path) -> Iterator[Writer]:
    writer = begun(db)
    yield writer
    writer.close()


def run_python(code: str, *arguments: object, **variables: str) -> "subprocess.CompletedProcess[str]":
    """In a new process; variables are LOGS_UI's."""
    environment = os.environ | {f"LOGS_UI_{name}": value for name, value in variables.items()}
    command = [sys.executable, "-c", code, *map(str, arguments)]
    return subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=60, check=False, process_group=0
    )


def end_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets every helper process that starts from now on end before it does anything."""
    monkeypatch.setattr(spawn, "_CODE", "{0}; import os; os._exit(3)")


def kill_helper(writer: Writer) -> None:
    os.kill(pid_of(writer), signal.SIGKILL)


def helper_of(writer: Writer) -> HelperClient:
    assert isinstance(writer._outlet, HelperClient)
    return writer._outlet


def pid_of(writer: Writer) -> int:
    process = helper_of(writer)._process
    assert process is not None
    wait_until(lambda: helper_of(writer).pid is not None)
    pid = helper_of(writer).pid
    assert pid is not None
    return pid


def is_alive(pid: int) -> bool:
    """Not where only its name is left, for a parent that has not asked yet."""
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except FileNotFoundError:
        return False


def words() -> Tokenizer:
    spelling = Tokenizer(models.WordLevel({word: i for i, word in enumerate(("a", "b", "c"))}, unk_token="a"))  # noqa: S106 - a token, not a password
    spelling.pre_tokenizer = pre_tokenizers.Whitespace()
    return spelling


def played(db: Path) -> "pd.DataFrame":
    with start_run("kinds", db=db, tokenizer=words(), model="m", config={"api_key": "sk-secret"}) as run:
        with run.rollout("pictures", metadata={"of": np.float32(0.5), "when": {1, 2}}) as rollout:
            shot = np.arange(64 * 64 * 3, dtype=np.uint8).reshape(64, 64, 3)
            rollout.turn("look", action={"x": 1}, observation={"screen": shot}, reward=0.5, done=True)
            rollout.note(seen="a door")
            rollout.tag("picture")
            rollout.metric("steps", 1.0)
        with run.rollout([{"role": "user", "content": "tokens \ud800"}], group="g") as rollout:
            rollout.turn("a b")
            current_row().note(inside=True)
            rollout.tokens([0, 1], [1, 2, 1], logprobs=[-1.0, float("nan"), -3.0], mask=[1, 0, 1])
            rollout.score(rewards={"solved": 1.0, "odd": None}, weights={"solved": 2.0}, advantage=0.1)
        with run.rollout("ends", task="named", mode="train", step=3) as rollout:
            rollout.turn("c", finish="length", action=1, error="it broke")
            rollout.stop("timeout")
        with pytest.raises(ValueError, match="no"), run.rollout("fails"):
            raise ValueError("no")
        run.log(1, {"loss": 0.5})
    return load_run(run.id, db=db)


def test_all_that_a_thread_writes_a_process_writes_alike(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    beside = played(tmp_path / "process.db")
    monkeypatch.setenv("LOGS_UI_WRITER", "thread")
    within = played(tmp_path / "thread.db")
    same = [name for name in within.columns if name not in TIMES]
    for one, other in zip(beside[same].to_dict("records"), within[same].to_dict("records"), strict=True):
        assert repr(without_times(one)) == repr(without_times(other))
    kept = ("image", "tokenizer", "scalar", "row_tag", "rollout_payload")
    beside_it, within_it = (
        {table: stored(tmp_path / f"{way}.db", f"select count(*) from {table}") for table in kept}  # noqa: S608
        for way in ("process", "thread")
    )
    assert beside_it == within_it
    assert beside_it["image"] == [(1,)]


def without_times(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: without_times(held) for key, held in value.items() if key not in {"seconds", "traceback"}}
    return list(map(without_times, value)) if isinstance(value, list) else value


@pytest.mark.usefixtures("started_as_by_a_training")
def test_it_is_there_on_both_databases(address: Address) -> None:
    writer = begun(address, row("a", {"reward": 0.5}, b"text"))
    assert isinstance(writer._outlet, HelperClient)
    assert stored(address, "select uid, reward from evaluation_row") == [("a", 0.5)]
    pid = pid_of(writer)
    writer.close()
    wait_until(lambda: not is_alive(pid))


def test_the_users_own_functions_are_called_where_they_are(db: Path) -> None:
    asked: list[int] = []

    def parse(answer: str) -> object:
        asked.append(os.getpid())
        return None if answer == "no move" else answer

    def edit(stored_row: dict[str, Any]) -> dict[str, Any] | None:
        asked.append(os.getpid())
        return None if "drop" in str(stored_row["messages"]) else stored_row | {"preview": "edited"}

    with start_run(db=db, parse=parse, edit=edit) as run:
        for prompt in ("keep", "drop"):
            with run.rollout(prompt) as rollout:
                rollout.turn("no move", observation="?", action=None)
    rows = load_run(run.id, db=db)
    assert (len(rows), rows.parse_failures[0]) == (1, 1)
    assert stored(db, "select preview from evaluation_row") == [("edited",)]
    assert set(asked) == {os.getpid()}


def test_one_that_is_killed_costs_and_doubles_nothing(
    writer: Writer, db: Path, caplog: pytest.LogCaptureFixture
) -> None:
    killed = set()
    for i in range(300):
        writer.put(job(row(str(i), {"reward": float(i)}, b"text"), RunChange("r", {}, unattributed_calls=1)))
        if i % 75 == 20:
            assert writer.flush(60)
        if i % 75 == 40:
            killed.add(pid := pid_of(writer))
            os.kill(pid, signal.SIGKILL)
    assert writer.flush(60)
    assert len(killed) == 4
    assert stored(db, "select count(*), sum(reward) from evaluation_row") == [(300, 44_850.0)]
    assert stored(db, "select unattributed_calls from run") == [(300,)]
    assert "has ended too early" in caplog.text


def test_what_it_wrote_without_a_chance_to_say_so_is_not_written_again(writer: Writer, db: Path) -> None:
    hear_nothing_of(writer, "done")
    writer.put(job(row("a"), RunChange("r", {}, unattributed_calls=1)))
    wait_until(lambda: stored(db, "select count(*) from evaluation_row") == [(1,)])
    assert not writer.flush(0.2), "it is not known here yet"
    kill_helper(writer)
    assert writer.flush(60)
    assert stored(db, "select unattributed_calls from run") == [(1,)]


CRASHING = """import os, sys; os.fork() and os._exit(0); sys.path[:] = {}
from logs_ui.recorder.delivery.wire import jobs as wire
job = wire.Wire.job
wire.Wire.job = lambda self, frame: os.abort() if b"poison" in frame else job(self, frame)
from logs_ui.recorder.delivery.helper.process import main; main(int(sys.argv[1]))"""


@pytest.mark.exhaustive
@pytest.mark.usefixtures("started_as_by_a_training")
def test_what_crashes_compiled_code_is_given_up_and_never_tried_in_the_training(
    db: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.delenv(RAISE_VARIABLE)
    monkeypatch.setattr(spawn, "_CODE", CRASHING)
    writer = begun(db, row("before"))
    write(writer, row("poison"), row("with it", {}))
    assert isinstance(writer._outlet, HelperClient)
    write(writer, row("after"))
    assert stored(db, "select uid from evaluation_row order by uid") == [("after",), ("before",)]
    wait_until(lambda: stored(db, "select recorder_errors, dropped from run") == [(1, 3)])
    assert "3 recorded changes were given up: the helper process ended 3 times" in caplog.text
    assert "Traceback" not in caplog.text
    writer.close()


@pytest.mark.exhaustive
@pytest.mark.usefixtures("started_as_by_a_training")
def test_where_it_always_ends_a_thread_writes_all(db: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spawn, "_CODE", CRASHING)
    writer = begun(db, row("poison"))
    assert isinstance(writer._outlet, Committer)
    assert stored(db, "select uid from evaluation_row") == [("poison",)]
    writer.close()


ALONE = """
import os, signal, sys
import psutil
from logs_ui.recorder import flush, start_run
from logs_ui.recorder.delivery import writer as writers
run = start_run(db=sys.argv[1])
flush()
(writer,) = writers._by_address.values()
assert writer._outlet.pid is not None
assert not psutil.Process().children(recursive=True)
try:
    os.wait()
except ChildProcessError:
    print("nobody's child")
"""


def test_it_is_no_child_of_the_training(db: Path) -> None:
    assert run_python(ALONE, db).stdout == "nobody's child\n"


POOL = """
import multiprocessing, sys
from logs_ui.recorder import flush, load_run, start_run

def play(number):
    with run.rollout(str(number)) as row:
        row.turn("there")

run = start_run(db=sys.argv[1])
flush()
context = multiprocessing.get_context("fork")
pool = context.Pool(2)
pool.map(play, range(6), chunksize=1)
pool.close()
pool.join()
print(len(load_run(run.id, db=sys.argv[1])))
"""


def test_a_child_that_multiprocessing_forked_loses_nothing_at_its_end(db: Path) -> None:
    assert run_python(POOL, db).stdout == "6\n"


@dataclass
class Penalty:
    strength: float


class Named(NamedTuple):
    top: int


def test_what_json_lacks_is_stored_alike_by_a_process_and_by_a_thread() -> None:
    sampling = {
        "of": {7}, "when": datetime(2026, 1, 31, tzinfo=UTC), "for": timedelta(days=1), "exactly": Decimal("0.50"),
        "penalty": Penalty(0.5), "named": Named(3), "bytes": b"ab", "not": float("nan"),
        "nested": {"of": [{"deep": date(2026, 1, 31)}]},
    }  # fmt: skip
    sent = msgspec.msgpack.encode(CallRecords([Generation(0, 0.0, 0.0, [], sampling)]).plain())
    there = Generation(0, 0.0, 0.0, [], msgspec.msgpack.decode(sent)[0][0][4])
    assert unpacked_content({"sampling": masked(there.sampling)}) == unpacked_content({"sampling": masked(sampling)})
    assert there.sampling["exactly"] == "Decimal('0.50')"


def test_what_fails_in_it_and_what_cannot_be_sent_is_counted_on_the_run_and_said(
    writer: Writer, db: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.delenv(RAISE_VARIABLE)
    write(writer, row("bad", {"no_such_column": 1}), row("good"), RunChange("r", {"config": object()}))
    write(writer, row("next"))
    wait_until(lambda: stored(db, "select dropped, recorder_errors > 0 from run") == [(2, 1)])
    assert stored(db, "select uid from evaluation_row order by uid") == [("good",), ("next",)]
    assert "recording failed" in caplog.text


def test_the_end_of_a_training_waits_no_longer_than_it_may(writer: Writer, monkeypatch: pytest.MonkeyPatch) -> None:
    helper, waited = helper_of(writer), list[float]()

    def slow(timeout: float | None) -> bool:
        time.sleep(0.1)
        return timeout is not None

    monkeypatch.setattr(writer, "flush", slow)
    monkeypatch.setattr(helper, "settle", waited.append)
    assert writer.flush_at_end()
    assert [seconds < writer._limits.end_seconds for seconds in waited] == [True]
    monkeypatch.setattr(writer, "flush", lambda _: False)
    assert writer.hurry() == writer._limits.end_seconds
    assert not writer.flush_at_end()
    assert writer.hurry() == 0
    writer.put(job(row("a")))
    assert writer.hurry() == writer._limits.end_seconds


def test_it_says_that_it_settled_where_that_fails(db: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here, there = Pipe()
    work = _Work(_Training(there), str(db), list(astuple(Limits())), False, ["w", 0, 0, [0, 0, None], []])

    def fail() -> None:
        raise OSError("no")

    monkeypatch.setattr(work._writer, "settle", fail)
    with pytest.raises(OSError, match="no"):
        work._do(["settle"])
    assert msgspec.msgpack.decode(here.recv_bytes()) == ["settled"]


SLOW = """
CREATE TRIGGER slow AFTER INSERT ON evaluation_row WHEN new.uid = 'slow' BEGIN
    UPDATE run SET unattributed_calls = (SELECT count(*) FROM many a, many b, many c);
END
"""
UNDER_WAY = """
import os, sqlite3, sys, time
from contextlib import closing
from logs_ui.recorder.delivery.helper import spawn
patience = "import logs_ui.recorder.delivery.helper.process as it; it._LEAST_PATIENCE = 1.0; main(int("
spawn._CODE = spawn._CODE.replace("main(int(", patience)
from pathlib import Path
from tests.support.changes import begun, job, row
writer = begun(Path(sys.argv[1]), row("first"))
print(writer._outlet.pid, flush=True)
writer.put(job(row("slow")))
locked = 0  # times that it was, one after the other: a heartbeat's transaction is short
with closing(sqlite3.connect(sys.argv[1], timeout=0, isolation_level=None)) as other:
    while locked < 30:
        time.sleep(0.01)
        try:
            other.execute("BEGIN IMMEDIATE")
            other.execute("ROLLBACK")
            locked = 0
        except sqlite3.OperationalError:
            locked += 1
os._exit(1)
"""


@pytest.mark.exhaustive
def test_a_transaction_that_goes_on_is_not_cut_off_however_long_it_takes(writer: Writer, db: Path) -> None:
    with closing(sqlite3.connect(db)) as other:
        other.execute("CREATE TABLE many (n)")
        other.executemany("INSERT INTO many VALUES (?)", [(n,) for n in range(500)])
        other.execute(SLOW)
        other.commit()
    done = run_python(UNDER_WAY, db, END_SECONDS="0")
    wait_until(lambda: not is_alive(int(done.stdout)))
    assert stored(db, "select uid from evaluation_row order by uid") == [("first",), ("slow",)]


@pytest.mark.usefixtures("started_as_by_a_training")
def test_where_it_ends_again_and_again_a_thread_writes_what_it_had_not_and_adds_up_what_was_dropped(
    writer: Writer, db: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.delenv(RAISE_VARIABLE)
    bad = row("bad", {"no_such_column": 1})
    write(writer, bad)
    kill_helper(writer)
    write(writer, bad)
    hear_nothing_of(writer, "done")
    writer.put(job(row("a"), RunChange("r", {}, unattributed_calls=1)))
    wait_until(lambda: stored(db, "select count(*) from evaluation_row") == [(1,)])
    end_at_once(monkeypatch)
    kill_helper(writer)
    write(writer, row("b"), bad)
    assert isinstance(writer._outlet, Committer)
    wait_until(lambda: writer._queue.dropped + writer._dropped_before + writer._outlet.dropped == 3)
    assert stored(db, "select uid from evaluation_row") == [("a",), ("b",)]
    assert stored(db, "select unattributed_calls from run") == [(1,)]
    assert "a thread of the training writes" in caplog.text


@pytest.mark.usefixtures("started_as_by_a_training")
def test_where_none_can_be_started_a_thread_writes_all_of_it(db: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/nowhere/python3")
    with start_run(db=db, tokenizer=words()) as run, run.rollout("hello") as rollout:
        rollout.tokens([0], [1, 2])
    found = load_run(run.id, db=db)
    assert list(found.messages[0][1].values()) == ["assistant", "b c"]
    assert isinstance(writer_for(db)._outlet, Committer)


def hear_nothing_of(writer: Writer, kind: str) -> None:
    """From now on this side does not hear what its process says of that kind."""
    helper = helper_of(writer)
    process, heard = helper._process, helper._heard
    assert process is not None
    process._heard = lambda message: None if message[0] == kind else heard(message)


def test_what_a_killed_one_left_on_disk_goes_in_before_what_is_newer(db: Path) -> None:
    writer = begun(db, row("a", {"status": "running"}), limits=Limits(spool_seconds=0.3))
    with locked(db):
        (file,) = spool_files(spool_folder(db))
        before = file.path.stat().st_size
        writer.put(job(row("a", {"status": "running", "turns": 1}), RunChange("r", {}, unattributed_calls=1)))
        hear_nothing_of(writer, "done")
        wait_until(lambda: file.path.stat().st_size > before)
        killed = pid_of(writer)
        os.kill(killed, signal.SIGKILL)
        wait_until(lambda: pid_of(writer) != killed)
        write(writer, row("a", {"status": "ok", "turns": 2}))
    wait_until(lambda: holds_nothing(spool_folder(db)))
    assert stored(db, "select status, turns from evaluation_row") == [("ok", 2)]
    assert stored(db, "select unattributed_calls from run") == [(1,)]
    writer.close()


def test_a_successor_goes_on_with_the_heartbeat_and_repeats_no_error(db: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(RAISE_VARIABLE)
    monkeypatch.setenv("TESTS_HEARTBEAT", "0.2")
    writer = Writer(db)
    guard.caught("trying", ValueError("no"))
    write(writer, BEGUN)
    killed = pid_of(writer)
    os.kill(killed, signal.SIGKILL)
    wait_until(lambda: pid_of(writer) != killed)
    (before,) = stored(db, "select heartbeat from run")
    wait_until(lambda: stored(db, "select heartbeat from run") > [before])
    assert stored(db, "select recorder_errors from run") == [(1,)]
    writer.close()


def test_a_stopped_one_keeps_nobody_waiting_at_the_end(db: Path) -> None:
    writer = begun(db, limits=Limits(end_seconds=0.5))
    os.kill(pid_of(writer), signal.SIGSTOP)
    writer.put(job(row("a", {}, os.urandom(2_000_000))))
    wait_until(lambda: bool(helper_of(writer).outstanding))
    began = time.monotonic()
    assert not writer.flush_at_end()
    assert time.monotonic() - began < 60
    os.kill(pid_of(writer), signal.SIGCONT)
    assert writer.flush(60)
    writer.close()


@pytest.mark.usefixtures("started_as_by_a_training")
def test_logging_that_raises_and_a_path_that_is_no_text_stop_nothing(db: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(record: logging.LogRecord) -> bool:
        if record.threadName == "logs-ui listener":
            raise RuntimeError("no")
        return True

    monkeypatch.setattr(sys, "path", [*sys.path, Path("/nowhere")])
    writer = begun(db, limits=Limits(spool_seconds=0.3))
    assert isinstance(writer._outlet, HelperClient)
    monkeypatch.setattr(logging.getLogger("logs_ui"), "filters", [refuse])
    with locked(db):
        writer.put(job(row("a")))
        assert writer.flush(60), "on disk, which is said"
    assert writer.flush(60)
    write(writer, row("b"))
    writer.close()


NOBODY_READS = """
import os, sys
from pathlib import Path
from tests.support.changes import begun, job, row
writer = begun(Path(sys.argv[1]))
print(writer._outlet.pid, flush=True)
input()
writer.put(job(row("a")))
while not writer._outlet.outstanding:
    pass
os._exit(1)
"""


@pytest.mark.exhaustive
def test_it_ends_where_nothing_can_be_written_and_nobody_reads_that(db: Path) -> None:
    limits = {"LOGS_UI_SPOOL_MB": "0", "LOGS_UI_END_SECONDS": "0"}
    command = [sys.executable, "-c", NOBODY_READS, str(db)]
    pipe = subprocess.PIPE
    with subprocess.Popen(
        command, cwd=ROOT, env=os.environ | limits, text=True, stdin=pipe, stdout=pipe, stderr=pipe
    ) as training:
        assert training.stdout is not None
        assert training.stderr is not None
        pid = int(training.stdout.readline())
        training.stderr.close()
        with locked(db):
            training.communicate("\n")
            wait_until(lambda: not is_alive(pid))


def test_what_can_never_be_written_is_given_up_and_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    writer = Writer(tmp_path / "a.db")
    (tmp_path / "a.db").write_text("my precious notes")
    writer.put(job(BEGUN))
    assert not writer.flush(30)
    assert writer.given_up
    assert (tmp_path / "a.db").read_text() == "my precious notes"
    assert "recording has stopped" in caplog.text


ENDS = """
import os, signal, sys, time
from logs_ui.recorder import start_run
from logs_ui.recorder.delivery import writer as writers
from logs_ui.recorder.delivery.helper import client as helper
from logs_ui.recorder.storage.address import database_address
send, sent = helper.HelperClient._send, [0]
def sending(self, kind, *message, frames=()):
    send(self, kind, *message, frames=frames)
    if kind == "parcel":  # with all that was taken from the queue by then
        sent.append(writer._queue.accepted - len(writer._queue))
helper.HelperClient._send = sending
run = start_run("ends", db=sys.argv[1])
writer = writers.writer_for(database_address(sys.argv[1]))
child = os.fork() if sys.argv[2] == "with a child" else None
if child == 0:
    os.close(1), os.close(2)
    time.sleep(60)
    os._exit(0)
with run.rollout("hello") as row:
    row.turn("there")
while sent[-1] < writer._queue.accepted:
    time.sleep(0.01)
if sys.argv[2] == "interrupted":
    os.killpg(os.getpgrp(), signal.SIGINT)
print(child or 0, flush=True)
os._exit(1)
"""


@pytest.mark.parametrize("end", ["with a child", "interrupted"])
def test_it_writes_what_it_was_given_and_ends_whatever_became_of_the_training(db: Path, end: str) -> None:
    done = run_python(ENDS, db, end)
    wait_until(lambda: db.exists() and bool(stored_if_there(db)))
    assert stored(db, "select status from evaluation_row") == [("ok",)]
    if end == "with a child":
        child = int(done.stdout)
        assert is_alive(child)
        os.kill(child, signal.SIGKILL)


def stored_if_there(db: Path) -> list[tuple[Any, ...]]:
    try:
        return stored(db, "select status from evaluation_row where status != 'running'")
    except Exception:  # noqa: BLE001 - the tables may not be there yet
        return []


def test_a_forked_child_has_one_of_its_own(writer: Writer, db: Path) -> None:
    parents = pid_of(writer)

    def write_in_child() -> bool:
        writer.after_fork()
        return flushes(writer, row("child")) and pid_of(writer) != parents

    in_child(write_in_child)
    write(writer, row("parent"))
    assert pid_of(writer) == parents
    assert stored(db, "select uid from evaluation_row order by uid") == [("child",), ("parent",)]


def test_a_way_to_write_that_there_is_not_is_refused(db: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    monkeypatch.setenv("LOGS_UI_WRITER", "fork")
    with pytest.raises(LogsUIError, match="LOGS_UI_WRITER is 'fork', where process"):
        Writer(db)


QUIET = """
import os, sys, time
from logs_ui.recorder import start_run
with start_run(db=sys.argv[1]) as run, run.rollout("hello") as row:
    row.turn("there")
time.sleep(2.5)
os._exit(1)
"""


def test_a_training_that_was_quiet_before_it_died_has_lost_nothing_and_is_not_told_so(db: Path) -> None:
    assert "were not written" not in run_python(QUIET, db, END_SECONDS="0").stderr
    wait_until(lambda: not db.with_name("a.db-wal").exists())


LEFT = """
import logging, os, signal, sys
from logs_ui.recorder.delivery.writer import writer_for
from logs_ui.recorder.storage.address import database_address
from tests.support.changes import BEGUN, write
from tests.support.storage_faults import put_rows, record
logging.basicConfig(format="%(message)s")
writer = writer_for(database_address(sys.argv[1]))
write(writer, BEGUN)
record(writer, "a", range(20))
os.kill(writer._outlet.pid, signal.SIGSTOP)
put_rows(writer, "a", range(20, 700))  # more than fits into the connection
writer._queue.dropped += 7
print(writer._outlet.pid)
"""


@pytest.mark.exhaustive
def test_a_stopped_ones_rows_are_stored_once(address: Address, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOGS_UI_SPOOL", str(tmp_path / "spools"))
    done = run_python(LEFT, as_text(address), END_SECONDS="0.5")
    assert done.stderr.startswith(f"logs-ui: the last recorded data waits in {spool_folder(address)}. The next")
    wait_until(lambda: not is_alive(int(done.stdout)))
    check(address, {"a": 700}, exactly=True)
    assert stored(address, "select recorder_errors, dropped from run") == [(0, 7)]


def test_what_waits_on_disk_is_as_if_it_had_been_written(db: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOGS_UI_END_SECONDS", "0.5")
    with start_run(db=db, tokenizer=words()) as run:
        writer = writer_for(db)
        assert writer.flush(60)
        os.kill(pid_of(writer), signal.SIGSTOP)
        helper_of(writer).close(0)
        with run.rollout("hello") as rollout:
            rollout.tokens([0], [1, 2])
        rollout.score(rewards={"solved": 1.0})
    helper_of(writer)._spool.close()  # as the end of this process would do
    found = load_run(run.id, db=db)
    assert list(found.messages[0][1].values()) == ["assistant", "b c"]
    assert [*found.reward, *load_runs(db=db).state] == [1.0, "finished"]


@pytest.mark.exhaustive
def test_where_the_disk_takes_nothing_either_that_is_said(
    db: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("logs_ui.recorder.delivery.writer._LAST_SECONDS", 1.0)
    writer = begun(db, limits=Limits(end_seconds=0, spool_bytes=0))
    os.kill(pid_of(writer), signal.SIGSTOP)
    writer.put(job(row("a")))
    writer.close()
    kill_helper(writer)
    said = f"before the process ended: {spool_folder(db)} takes no more: LOGS_UI_SPOOL_MB is reached."
    assert f"1 recorded changes were not written {said}" in caplog.text
