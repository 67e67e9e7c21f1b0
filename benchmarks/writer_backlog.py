"""Measures how long a backlog takes, and how long each transaction blocks a second writing process.

    python benchmarks/writer_backlog.py --rows 20000 --batches 256 512 1024

prints a Markdown table: changes in a transaction, seconds for all, changes a second, and of the transactions, from
BEGIN to the end of COMMIT, the median, the 9th decile and the longest, in milliseconds. The rows carry payloads, 64
rows a step, and each is changed once more, as by its rewards.

On two quiet cores 256, 512 and 1024 changes took 12, 19 and 42 ms at the median, and 32, 86 and 144 at most; all were
written in 1.31, 1.13 and 1.24 seconds.
"""

import argparse
import os
import tempfile
import time
from pathlib import Path
from statistics import median, quantiles
from typing import Any

from sqlalchemy import event

from logs_ui.recorder.api.run_record import ChangesJob
from logs_ui.recorder.delivery import writer as writers
from logs_ui.recorder.delivery.committer import Committer
from logs_ui.recorder.storage.changes import Change, RowChange, RunChange

PER_STEP = 64
os.environ["LOGS_UI_WRITER"] = "thread"  # of this process


def changes_of(rows: int, payload: int) -> list[Change]:
    """All rows, and then the reward of each."""
    made: list[Change] = []
    scored: list[Change] = []
    for number in range(rows):
        step = number // PER_STEP
        identity: dict[str, Any] = {"eval_name": "e", "mode": "train", "step": step, "policy_step": step}
        identity |= {"group": f"r/{number // 8}", "generation": number % 8, "process": 0, "created": 1}
        content, tokens = os.urandom(payload // 2), os.urandom(payload // 2)
        columns = {"task": f"task {number % 10}", "status": "ok", "stop_reason": "done", "turns": 3}
        made.append(RowChange("r", str(number), identity, columns, content, tokens))
        rewards = {"reward": 0.5, "rewards": {"solved": 0.5}, "scored": 2}
        scored.append(RowChange("r", str(number), identity, rewards))
    return made + scored


def write(changes: list[Change], folder: Path) -> tuple[float, list[float]]:
    """Seconds in all, and of each transaction."""
    writer = writers.Writer(folder / "a.db")
    outlet = writer._outlet  # noqa: SLF001 - its transactions are what is measured
    assert isinstance(outlet, Committer)
    engine = outlet.engine()
    begun: list[float] = []
    lengths: list[float] = []
    event.listen(engine, "begin", lambda _: begun.append(time.perf_counter()))
    # SQLAlchemy's own event comes before the COMMIT; the connection goes back to the pool right after it, and once more
    # after a checkpoint, which keeps nobody waiting.
    event.listen(engine.pool, "checkin", lambda *_: lengths.extend(time.perf_counter() - begun.pop() for _ in begun[:]))
    writer.put(ChangesJob(lambda: [RunChange("r", {"name": "r", "created": 1, "heartbeat": 1})]))
    writer.flush()
    lengths.clear()
    start = time.perf_counter()
    for change in changes:
        writer.put(ChangesJob([change].copy))
    writer.flush()
    return time.perf_counter() - start, lengths


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=10_000)
    parser.add_argument("--payload", type=int, default=4_000, help="bytes a row")
    parser.add_argument("--batches", type=int, nargs="+", default=[256, 512, 1024])
    options = parser.parse_args()
    changes = changes_of(options.rows, options.payload)
    print("| changes | seconds | changes/s | median ms | p90 ms | longest ms |\n| --- | --- | --- | --- | --- | --- |")
    for batch in options.batches:
        writers._BATCH = batch  # noqa: SLF001 - what is measured
        with tempfile.TemporaryDirectory() as folder:
            seconds, lengths = write(changes, Path(folder))
        figures = (median(lengths), quantiles(lengths, n=10)[-1], max(lengths))
        times = " | ".join(f"{1000 * figure:.0f}" for figure in figures)
        print(f"| {batch} | {seconds:.2f} | {len(changes) / seconds:,.0f} | {times} |", flush=True)


if __name__ == "__main__":
    main()
