"""Runs a process that records while something breaks, and checks the database afterwards.

    python -m tests.support.storage_faults --kills 50 --rows 100000

kills a recording process at 50 random moments, on SQLite and on PostgreSQL, while the database is locked now and then,
and has a reader hold its moment through 100,000 writes. `test_storage_faults.py` does less of both, and the rest.

The process records rows whose names and payloads are known, and says of how many `flush()` has returned. Afterwards all
of those must be there, each once, with their payloads; counters and statistics must be those of the rows.
"""

import argparse
import hashlib
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from logs_ui.recorder.api.run_record import ChangesJob
from logs_ui.recorder.delivery.writer import Writer, writer_for
from logs_ui.recorder.storage.address import Address, as_text, database_address
from logs_ui.recorder.storage.changes import RunChange
from logs_ui.recorder.storage.spool.files import spool_files
from logs_ui.recorder.storage.spool.format import FORMAT
from tests.support.changes import BEGUN, begun, job, locked, row, stored, wait_until
from tests.support.payloads import pack_content

ROOT = Path(__file__).parents[2]
RUN = "r"
_PER_STEP = 50
_NAME = "LOGS_UI_TEST_RECORDING"
WAITS = "waits"
"""The process prints this about rows that were not written within a second."""


def words_of(uid: str) -> str:
    """Return the text of the row of this name."""
    return hashlib.sha256(uid.encode()).hexdigest() * 20


def row_job(uid: str, number: int) -> ChangesJob:
    """Return a row, and one more on a counter of its run, which shows whether the row was written once."""
    place = {"step": number // _PER_STEP, "group": f"g{number // 8}", "generation": number % 8, "created": number + 1}
    content = pack_content({"messages": [{"role": "user", "content": words_of(uid)}]})
    columns = {"status": "ok", "reward": number % 7 / 8}
    return job(row(uid, columns, content, **place), RunChange(RUN, {}, unattributed_calls=1), size=4_000)


def put_rows(writer: Writer, name: str, numbers: range) -> None:
    """Rows `name/number`."""
    for number in numbers:
        writer.put(row_job(f"{name}/{number}", number))


def record(writer: Writer, name: str, numbers: range) -> None:
    """Until they are flushed."""
    put_rows(writer, name, numbers)
    assert writer.flush(60)


@dataclass
class Recording:
    """A process that records without end, or a number of rows."""

    name: str
    process: "subprocess.Popen[str]"
    said: Path
    log: Path

    @property
    def acknowledged(self) -> int:
        """Return the number up to which rows were recorded and flushed."""
        lines = self.said.read_text().rpartition("\n")[0].split("\n")
        return max((int(line or 0) for line in lines if line != WAITS), default=0)

    def wait_until_it_waits(self) -> None:
        """Wait until it has recorded rows that it cannot flush now."""
        start = len(self.said.read_text())
        wait_until(lambda: WAITS in self.said.read_text()[start:], self.log)

    def wait_until_it_says(self, words: str) -> None:
        wait_until(lambda: words in self.log.read_text(), self.log)

    def wait_for(self, rows: int, seconds: float = 180) -> None:
        """Wait until so many rows are acknowledged."""
        deadline = time.monotonic() + seconds
        while self.acknowledged < rows:
            assert self.process.poll() is None or self.acknowledged >= rows, self.log.read_text()
            assert time.monotonic() < deadline, f"{self.acknowledged} of {rows}; {self.log.read_text()}"
            time.sleep(0.03)

    @property
    def processes(self) -> list[psutil.Process]:
        """Return the training's process, and its helper process: no child of it, but with the training's variables."""
        training = psutil.Process(self.process.pid)
        others = (it for it in psutil.process_iter(["environ"]) if it.pid != training.pid)
        return [training, *(it for it in others if (it.info["environ"] or {}).get(_NAME) == str(self.said))]

    def kill(self, *, all_of_it: bool = False) -> None:
        """The training; with `all_of_it` also, and first, the process that writes for it, which else writes what it was
        given, and ends.
        """
        training, *others = self.processes
        for process in others if all_of_it else []:
            process.kill()
        training.kill()
        self.process.wait()
        psutil.wait_procs(others, timeout=60)

    def end(self) -> None:
        """End the process as a training ends by itself."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        assert self.process.wait(180) == 0, self.log.read_text()


@contextmanager
def recording(
    address: Address, folder: Path, name: str = "a", prelude: str = "", **environment: str
) -> Iterator[Recording]:
    """Starts such a process; it is killed at the end of the block, if it lives.

    Args:
        address: where to.
        folder: for what it says.
        name: of the rows.
        prelude: Python that is run in it first.
        environment: names without `LOGS_UI_`, and their values.
    """
    said, log = folder / f"{name}.said", folder / f"{name}.log"
    variables = {_NAME: str(said), "LOGS_UI_RAISE": "0"} | {f"LOGS_UI_{key}": it for key, it in environment.items()}
    code = f"{prelude}\nfrom tests.support.storage_faults import go_on; go_on()"
    with said.open("w") as out, log.open("w") as errors:
        process = subprocess.Popen(
            [sys.executable, "-c", code, as_text(address), name],
            cwd=ROOT,
            env={**os.environ, **variables},
            stdin=subprocess.PIPE,
            stdout=out,
            stderr=errors,
            text=True,
        )
    try:
        yield Recording(name, process, said, log)
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()
        assert process.stdin is not None
        process.stdin.close()


def go_on() -> None:
    """Records in that process until its stdin is closed."""
    import select

    address, name = database_address(sys.argv[1]), sys.argv[2]
    writer = writer_for(address)
    writer.put(job(BEGUN))
    done = 0

    def is_over() -> bool:
        return bool(select.select([sys.stdin], [], [], 0)[0])

    while not is_over():
        put_rows(writer, name, range(done, done + 20))
        while not (is_durable := writer.flush(1)) and not is_over():
            print(WAITS, flush=True)
        if is_durable:
            done += 20
            print(done, flush=True)
        time.sleep(0.01)  # faster than any training even so


def holds_nothing(folder: Path) -> bool:
    """True if no entry is left in the spools of a folder."""
    sizes = []
    for file in spool_files(folder):
        with suppress(FileNotFoundError):  # it was taken in meanwhile
            sizes.append(file.path.stat().st_size)
    return all(size <= len(FORMAT) for size in sizes)


def check(address: Address, acknowledged: Mapping[str, int], *, exactly: bool = False) -> int:
    """Takes in what waits, and looks whether all that was acknowledged is there once; returns how many rows are.

    Args:
        address: of the database.
        acknowledged: how many rows of each process are to be there.
        exactly: whether no other may be.
    """
    from logs_ui.recorder.delivery.committer import entry_of
    from logs_ui.recorder.storage.payload import unpack_content
    from logs_ui.recorder.storage.spool.ingest import Ingester

    assert Ingester(address, entry_of).take_in().is_all
    content = "SELECT uid, content FROM evaluation_row LEFT JOIN rollout_payload ON row_id = id"
    rows = stored(address, content)
    uids = {uid for uid, _ in rows}
    wanted = {f"{name}/{number}" for name, count in acknowledged.items() for number in range(count)}
    assert wanted <= uids, f"{len(wanted - uids)} of {len(wanted)} are lost"
    assert not exactly or uids == wanted
    assert len(uids) == len(rows)
    for uid, packed in rows:
        assert unpack_content(packed)["messages"][0]["content"] == words_of(uid)
    times = sum(count for (count,) in stored(address, "SELECT unattributed_calls FROM run"))
    assert times == len(rows), f"{times} times for {len(rows)} rows"
    sums = "step, count(*), count(reward), coalesce(sum(reward), 0) FROM evaluation_row GROUP BY step"
    kept = "SELECT step, rollouts, scored, reward_sum FROM step_statistics ORDER BY step"
    assert stored(address, kept) == stored(address, f"SELECT {sums} ORDER BY step")
    if isinstance(address, Path):
        assert stored(address, "PRAGMA integrity_check") == [("ok",)]
    return len(rows)


def kill_at_random(address: Address, folder: Path, kills: int, chance: random.Random) -> int:
    """One process after the other, each once it has recorded something, some of them while the SQLite file is locked;
    with the process that writes for it, without, or first that alone. Returns how many rows there are.
    """
    acknowledged = {}
    for number in range(kills):
        with recording(address, folder, f"killed-{number}", SPOOL_SECONDS="0.1") as process:
            process.wait_for(20)
            time.sleep(chance.uniform(0, 0.3))
            if isinstance(address, Path) and chance.random() < 0.5 and address.exists():
                with locked(address):
                    time.sleep(chance.uniform(0.1, 0.5))
                    if chance.random() < 0.5:
                        process.kill(all_of_it=True)
                time.sleep(chance.uniform(0, 0.2))
            if process.process.poll() is None and chance.random() < 0.3:
                for beside in process.processes[1:]:
                    beside.kill()
                process.wait_for(process.acknowledged + 20)
            if process.process.poll() is None:
                process.kill(all_of_it=chance.random() < 0.5)
            acknowledged[process.name] = process.acknowledged
    return check(address, acknowledged)


def hold_a_moment(address: Address, rows: int) -> int:
    """A reader sees the database as it was at first while so many rows are written; returns what it saw at the end."""
    from sqlalchemy import text

    from logs_ui.recorder.storage.database import disposed, reading_engine

    writer = begun(address)
    record(writer, "before", range(10))
    count = text("SELECT count(*) FROM evaluation_row")
    with disposed(reading_engine(address)) as engine, engine.begin() as reader:
        assert reader.scalar(count) == 10
        for start in range(0, rows, 5_000):
            record(writer, "after", range(start, min(rows, start + 5_000)))
        seen = reader.scalar(count)
    assert check(address, {"before": 10, "after": rows}, exactly=True) == rows + 10
    assert seen is not None
    return int(seen)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--rows", type=int, default=100_000, help="that are written while a reader holds its moment")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    from tests.support.postgres import drop_database, make_database

    url = make_database()
    try:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            os.environ["LOGS_UI_SPOOL"] = str(folder / "spools")  # of PostgreSQL, too, not this user's own
            addresses: dict[str, Address] = {"SQLite": folder / "a.db", "PostgreSQL": url}
            for kind, address in addresses.items():
                began = time.monotonic()
                rows = kill_at_random(address, folder, given.kills, random.Random(given.seed))
                seconds = time.monotonic() - began
                print(f"{kind}: {given.kills} kills, {rows:,} rows, none lost, {seconds:.0f} s", flush=True)
            began = time.monotonic()
            assert hold_a_moment(folder / "b.db", given.rows) == 10
            print(f"SQLite: a reader through {given.rows:,} rows, {time.monotonic() - began:.0f} s")
    finally:
        drop_database(url)


if __name__ == "__main__":
    main()
