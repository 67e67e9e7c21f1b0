"""Measures upkeep, and its effect on a training that records meanwhile: figures for docs/upkeep.md.

    python benchmarks/rollouts.py some.db --rollouts 100000
    python benchmarks/upkeep.py some.db

The database is copied first. Printed are rollouts a second of each command, and how long `flush()` keeps a recorder
waiting: alone, and while `prune` takes half of the database's text.
"""

import argparse
import multiprocessing
import os
import sqlite3
import tempfile
import time
from collections.abc import Callable
from contextlib import closing
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np

from logs_ui.recorder import flush, start_run
from logs_ui.recorder.upkeep import check, merge, prune, vacuum

ROLLOUTS, EVERY = 40, 0.05  # of the recorder beside: so many, then a pause of so many seconds
PROMPT = [{"role": "user", "content": "x" * 3_000}]


def record(db: Path, ended: Connection) -> None:
    """Until something is sent; answers with the seconds that each flush took."""
    waited = []
    with start_run("beside", db=db) as run:
        while not ended.poll():
            for _ in range(ROLLOUTS):
                with run.rollout(PROMPT) as row:
                    row.turn("y" * 3_000)
                    row.score(1.0)
            began = time.monotonic()
            flush()
            waited.append(time.monotonic() - began)
            time.sleep(EVERY)
    ended.send(waited)


def beside(db: Path, work: Callable[[], Any]) -> Any:
    """Return the result of `work`, which runs while another process records."""
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(target=record, args=(db, theirs))
    process.start()
    time.sleep(5)
    found = work()
    ours.send("end")
    waited = np.quantile(ours.recv(), (0.5, 0.95, 1.0)) * 1_000
    process.join()
    print("    flush() beside it: p50 {:.0f} ms, p95 {:.0f}, longest {:.0f}".format(*waited))
    return found


def timed(what: str, work: Callable[[], int]) -> None:
    began = time.monotonic()
    rollouts = work()
    seconds = time.monotonic() - began
    print(f"{what:<24} {rollouts:>9,} rollouts {seconds:>7.1f} s {rollouts / seconds:>9,.0f}/s", flush=True)


def merged(db: Path, folder: str) -> int:
    return sum(run.rollouts for run in merge([db], Path(folder) / "merged.db"))


def checked(db: Path, rollouts: int) -> int:
    assert all(finding.is_whole for finding in check(db))
    return rollouts


def vacuumed(db: Path, rollouts: int) -> int:
    found = vacuum(db)
    print(f"    {found.before / 1e6:,.0f} MB before, {found.after / 1e6:,.0f} now")
    return rollouts


def measure(source: Path) -> None:
    """Measure on a copy, which is removed at the end."""
    with tempfile.TemporaryDirectory(dir=source.parent) as folder:
        db = Path(folder) / "copy.db"
        with closing(sqlite3.connect(f"{source.absolute().as_uri()}?mode=ro", uri=True)) as connection:
            connection.execute("VACUUM INTO ?", [str(db)])
            (rollouts,) = connection.execute("SELECT count(*) FROM evaluation_row").fetchone()
        with closing(sqlite3.connect(db)) as connection:  # whoever made it may have done so a moment ago
            connection.execute("UPDATE run SET state = 'finished', finished = heartbeat WHERE state = 'running'")
            connection.commit()
        timed("check", lambda: checked(db, rollouts))
        timed("merge into a new one", lambda: merged(db, folder))
        beside(db, lambda: time.sleep(10))
        timed("prune, dry run", lambda: prune(db, keep_every=2, dry_run=True).rollouts)
        timed("prune beside a recorder", lambda: beside(db, lambda: prune(db, keep_every=2).rollouts))
        timed("prune, alone", lambda: prune(db, where="step>=0").rollouts)
        timed("vacuum", lambda: vacuumed(db, rollouts))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("db", type=Path)
    given = parser.parse_args()
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}")
    measure(given.db)
