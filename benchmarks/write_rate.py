"""Measures how many finished rollouts per second the recorder writes, and what limits it.

    python benchmarks/write_rate.py [--rollouts 4096] [--processes 1 4] [--assert]

Rollouts of three turns are played through `start_run()`, each with a reward: with 9 KB of messages and actions as JSON
and no tokens, and with 2,000 token ids and log-probs of half of them beside that. What is handed over when each of them
ends is kept until all are played. Then the clock starts: the recorder is given it as it would be given it by the
training, and all is waited for until it is committed. Several processes write one run each to one SQLite file, at the
same time: each has its share of the rollouts.

Prints a Markdown table: rollouts a second; and how many µs of processor time a rollout takes, by part, which a busy
machine changes little. What the training's process spends:

- handing over: `Writer.put`, on the caller's thread;
- sending: what was seen becomes bytes, and these go, in the writer's thread;

and, measured apart in one thread, what the helper process spends (see `recorder/delivery/helper/process.py`):

- encoding: the bytes become a row: attribution, messages, actions, facts of its actions, JSON (Python);
- packing: facts of its texts and tokens, compression (numpy, zstd);
- writing: SQL, from BEGIN to the end of COMMIT, and moving the log into the database (SQLite).

`--assert` exits with 1 below the limits: 8,000 a second without tokens, 3,000 with them, by one
process and by four together.
"""

import argparse
import gc
import multiprocessing
import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.synchronize import Barrier
from pathlib import Path
from pydoc_data import topics
from typing import Any, NamedTuple

import numpy as np
import orjson

from logs_ui.recorder import OpenRun, flush, load_run, start_run
from logs_ui.recorder.delivery import writer as writers
from logs_ui.recorder.delivery.committer import Committer, CommitterParcel
from logs_ui.recorder.delivery.helper.client import SentParcel
from logs_ui.recorder.delivery.helper.spawn import HelperProcess
from logs_ui.recorder.delivery.outlet import Counts
from logs_ui.recorder.delivery.wire.jobs import Wire
from logs_ui.recorder.delivery.writer import writer_for
from logs_ui.recorder.storage.limits import Limits

TURNS, GROUP, PER_STEP = 3, 8, 32
ANSWER, OBSERVATION, PROMPT = 950, 300, 800  # characters
LEAST = {"9 KB, no tokens": 8_000, "9 KB and 2,000 tokens": 3_000}  # rollouts a second
TOKENS = {"9 KB, no tokens": 0, "9 KB and 2,000 tokens": 2_000}
PROSE = " ".join(text for _, text in sorted(topics.topics.items()))
os.environ |= {"LOGS_UI_RAISE": "1", "LOGS_UI_QUEUE_MB": "16000"}  # as much as is played beforehand


class Kept:
    """Stands in for the writer while rollouts are played, and keeps what it is given."""

    def __init__(self) -> None:
        self.jobs: list[Any] = []

    def put(self, job: Any) -> None:
        self.jobs.append(job)

    def follow(self, job: Any) -> None:
        """Each is over before anything is written."""


class Passage:
    """English prose, of which each is another part."""

    def __init__(self) -> None:
        self._at = 0

    def __call__(self, length: int) -> str:
        self._at = (self._at + 997) % (len(PROSE) - length)
        return PROSE[self._at : self._at + length]


def played(run: OpenRun, rollouts: int, tokens: int) -> list[Any]:
    """Return what is handed over to the writer while so many rollouts are played."""
    random, passage, kept = np.random.default_rng(0), Passage(), Kept()
    writer, run._writer = run._writer, kept  # type: ignore[assignment]  # noqa: SLF001 - what is measured
    for number in range(rollouts):
        prompt = [{"role": "user", "content": passage(PROMPT)}]
        names: Any = {"task": f"task {number % 40}", "step": number // PER_STEP, "mode": "train"}
        group = f"{os.getpid()}/{number // GROUP}"
        with run.rollout(prompt, **names, group=group, generation=number % GROUP) as row:
            for turn in range(TURNS):
                move = {"move": passage(20)}
                row.turn(passage(ANSWER), action=move, observation={"text": passage(OBSERVATION)}, reward=0.1 * turn)
            if tokens:
                half = tokens // 2
                ids, logprobs = random.integers(0, 32_000, (2, half)).tolist(), random.normal(-1, 1, half).tolist()
                row.tokens(*ids, logprobs=logprobs, mask=[1] * half)
            row.score(rewards={"solved": number % 2, "format": 0.5}, advantage=0.1)
    run._writer = writer  # noqa: SLF001
    return kept.jobs


class Written(NamedTuple):
    """The result of a writing process: when it started and ended, in seconds of the machine's clock, and µs of
    processor time per rollout, by part.
    """

    begin: float
    end: float
    parts: dict[str, float]


def write(db: Path, rollouts: int, tokens: int, barrier: Barrier | None = None) -> Written:
    run = start_run("write rate", db=db)
    writer = writer_for(db)
    played(run, 2, tokens)
    for job in played(run, PER_STEP, tokens):
        writer.put(job)
    flush()
    jobs = played(run, rollouts, tokens)
    gc.freeze()  # no training has so many that wait: the collector need not look through them
    if barrier is not None:
        barrier.wait()
    spent: Counter[str] = Counter()
    with timed(spent, (SentParcel, "add", "sending"), (HelperProcess, "send", "sending")):
        begin, own = time.monotonic(), time.thread_time()
        for job in jobs:
            writer.put(job)
        spent["handing over"] = time.thread_time() - own  # type: ignore[assignment]
        flush(None)
        end = time.monotonic()
    run.finish()
    return Written(begin, end, {name: seconds * 1e6 / rollouts for name, seconds in spent.items()})


def parts(db: Path, rollouts: int, tokens: int) -> dict[str, float]:
    """Return the helper process's processor time per rollout in µs, by part."""
    run = start_run("parts", db=db)
    first = played(run, PER_STEP, tokens)  # of which statements are compiled, and tables made, once
    jobs = played(run, rollouts, tokens)
    run.finish()
    gc.freeze()
    there, spent = Wire(), Counter[str]()
    writer = Committer(db, Limits(), spools_always=False)

    def write_all(jobs: list[Any]) -> None:
        for frames in _parcels(jobs):
            writer.commit_frames(there, 0, frames, Counts)

    write_all(first)
    with timed(
        spent,
        (CommitterParcel, "add_frames", "encoding"),
        (CommitterParcel, "close", "packing"),
        (Committer, "commit", "writing"),
    ):
        write_all(jobs)
    writer.close()
    return {name: seconds * 1e6 / rollouts for name, seconds in spent.items()}


def _parcels(jobs: list[Any]) -> Iterator[list[bytes]]:
    """Return the frames of as many jobs as the writer sends together."""
    wire = Wire()
    frames: list[bytes] = []
    changes = 0
    for job in jobs:
        made, count = wire.frames(job)
        frames, changes = frames + made, changes + count
        if changes >= writers._BATCH:  # noqa: SLF001
            yield frames
            frames, changes = [], 0
    yield frames


@contextmanager
def timed(spent: Counter[str], *parts: tuple[type, str, str]) -> Iterator[None]:
    """Add up the processor time of methods, each under the name of a part."""
    before = [(owner, name, getattr(owner, name)) for owner, name, _ in parts]
    for owner, name, part in parts:
        setattr(owner, name, _timed(getattr(owner, name), spent, part))
    try:
        yield
    finally:
        for owner, name, function in before:
            setattr(owner, name, function)


def _timed(function: Callable[..., Any], spent: Counter[str], part: str) -> Callable[..., Any]:
    def measured(*args: Any) -> Any:
        begin = time.thread_time()
        try:
            return function(*args)
        finally:
            spent[part] += time.thread_time() - begin  # type: ignore[assignment]

    return measured


def _in_process(db: Path, rollouts: int, tokens: int, barrier: Barrier, results: Any) -> None:
    results.put(write(db, rollouts, tokens, barrier))


def together(db: Path, processes: int, rollouts: int, tokens: int) -> list[Written]:
    """Write with so many processes, each with its share of the rollouts."""
    if processes == 1:
        return [write(db, rollouts, tokens)]
    context = multiprocessing.get_context("spawn")
    barrier, results = context.Barrier(processes), context.Queue()
    args = (db, rollouts // processes, tokens, barrier, results)
    workers = [context.Process(target=_in_process, args=args) for _ in range(processes)]
    for worker in workers:
        worker.start()
    found = [results.get(timeout=600) for _ in workers]
    for worker in workers:
        worker.join()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rollouts", type=int, default=4096, help="of all processes together")
    parser.add_argument("--processes", type=int, nargs="+", default=[1, 4])
    parser.add_argument("--assert", action="store_true", dest="asserts", help="exit with 1 below the limits")
    given = parser.parse_args()
    names = ("handing over", "sending", "encoding", "packing", "writing")
    print(f"| rollouts | processes | a second | at least | {' | '.join(f'{name} µs' for name in names)} |")
    print(f"|{' --- |' * (4 + len(names))}")
    slow = []
    for kind, tokens in TOKENS.items():
        for processes in given.processes:
            with tempfile.TemporaryDirectory() as folder:
                db = Path(folder) / "a.db"
                found = together(db, processes, given.rollouts, tokens)
                rows = load_run(db=db)
            count = given.rollouts // processes * processes
            rate = count / (max(one.end for one in found) - min(one.begin for one in found))
            assert set(rows.status) == {"ok"}, set(rows.error)
            told = [""] * len(names)
            if processes == 1:
                with tempfile.TemporaryDirectory() as folder:
                    spent = found[0].parts | parts(Path(folder) / "a.db", given.rollouts, tokens)
                told = [f"{spent[name]:.0f}" for name in names]
            print(f"| {kind} | {processes} | {rate:,.0f} | {LEAST[kind]:,} | {' | '.join(told)} |", flush=True)
            if rate < LEAST[kind]:
                slow.append(f"{kind}, {processes} process(es): below {LEAST[kind]:,} a second")
    size = len(orjson.dumps([rows.iloc[0].messages, rows.iloc[0].actions]))
    print(f"\n{size:,} bytes of messages and actions as JSON.", *(slow or ["Within the limits."]), sep="\n")
    sys.exit(given.asserts and bool(slow))


if __name__ == "__main__":
    main()
