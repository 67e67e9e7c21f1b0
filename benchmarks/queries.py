"""Measures the dashboard's pages at a million rollouts, while a training writes a thousand per second.

    python benchmarks/rollouts.py million.db
    python benchmarks/queries.py million.db [--times 20] [--rate 1000] [--assert]

First it fills the full-text index, as the dashboard does, and says how far it is. Then another process adds rollouts to
the latest run, through the recorder, and every kind of page is asked for in turn, as `pages.py` does. It prints a
Markdown table: the median and the 95th percentile of the whole page, those of all its questions to the database
together, and which of them takes most of that. A page is asked for once before it counts. At last `logs-ui serve` is
started, all pages are opened, and its memory (the resident set's peak) is read.

`--assert` exits with 1 where the 95th percentile of a page's queries is above 50 ms, of the whole overview or a
search above 100 ms, the memory above 300 MB, or a rollout takes more than 8 kB of the file. What no index leads to is
looked for, newest first, until a page is full or 30 ms are over; the page then goes on by itself, in parts of 200 ms,
which are not measured. What no index has is counted in the newest 10,000 rollouts.
"""

import argparse
import math
import multiprocessing
import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median, quantiles
from urllib.error import HTTPError, URLError
from urllib.request import urlopen

from starlette.testclient import TestClient

from logs_ui.app.main import create_app
from logs_ui.app.parts.view import View, ViewKind, print_view
from logs_ui.app.web import urls
from logs_ui.recorder import queries
from logs_ui.recorder.queries import Dimension, Measure
from logs_ui.recorder.queries.filters.rollout_filter import RolloutFilter, Sort, parse_where
from logs_ui.recorder.queries.search.index import catch_up
from logs_ui.recorder.storage.database import reading_engine

sys.path.append(str(Path(__file__).parent.parent))
from benchmarks.pages import Times, poll_of, timed
from benchmarks.rollouts import keep_writing
from tests.support.site import pages

QUERIES_MS, OVERVIEW_MS, SEARCH_MS, MEMORY_MB, ROLLOUT_BYTES = 50.0, 100.0, 100.0, 300.0, 8_000.0
_FILTERS = {
    "task": 'task:"shell task 0"',
    "step": "step:100..200 reward<0.5",
    "turns": "turns>=7",
    "tokens": "completion_tokens>1500 reward>0.5",
    "seconds": "seconds>60",
    "part of a reward": "rewards.format<0",
    "metric": "metrics.commands>=7",
    "error": "error:ConnectionError",
    "error, none such": "error:nonsense",
    "tag": "tag:odd",
    "repeats": "repeats>0.5",
    "spread": "spread:0 step:1..50",
    "eval, misspelt": "eval:shel",
    "word": "text:exception",
    "word, of most": "text:the",
    "two words": 'text:"generator iterator" reward>0.5',
    "word, none such": "text:zzyzx",
    "beginning of words": "text:deco*",
    "word, of a role": "tool:exception",
    "word, of most of a role": "assistant:the",
    "beginning of words, of a role": "assistant:deco*",
}
_PIVOTS = {
    "task by stop reason": (Dimension.TASK, Dimension.STOP, Measure.COUNT),
    "eval by step": (Dimension.EVAL, Dimension.STEP, Measure.REWARD),
    "task by step, tokens": (Dimension.TASK, Dimension.STEP, Measure.TOKENS),
    "tag by status": (Dimension.TAG, Dimension.STATUS, Measure.COUNT),
}
_ALLOWED = {"filter: eval, misspelt": 422}


def addresses(db: Path) -> dict[str, str]:
    """Return the addresses of the pages of `tests/support/site.py`, and of more filters, orders and pivots of the
    table of rollouts.
    """
    engine = reading_engine(db)
    run = queries.find_run(engine, "latest").uid
    row_id = queries.newest_row(engine, queries.find_run(engine, run).id or 0, RolloutFilter())
    engine.dispose()
    found = pages(db)
    found |= {f"filter: {name}": urls.rollouts(run, parse_where(where)) for name, where in _FILTERS.items()}
    opened = ("task", "turns", "error, none such", "word, of most", "two words")
    found |= {f"rollout of {name}": urls.rollout(run, row_id, parse_where(_FILTERS[name])) for name in opened}
    sorts = [sort for sort in Sort if sort != Sort.NEWEST]
    found |= {f"order: {sort}": urls.rollouts(run, RolloutFilter(sort=sort)) for sort in sorts}
    for name, (rows, columns, of) in _PIVOTS.items():
        view = View(kind=ViewKind.PIVOT, rows=rows, columns=columns, of=of)
        found[f"pivot: {name}"] = urls.rollouts(run, view=print_view(view))
    return found


def limit_of(name: str) -> tuple[float, float]:
    """Milliseconds of a page's queries, and of the whole page."""
    if name in {"overview", "overview, poll"}:
        return math.inf, OVERVIEW_MS
    is_search = name == "rollouts-searched" or "word" in name
    return (math.inf, SEARCH_MS) if is_search else (QUERIES_MS, math.inf)


def fill(db: Path) -> None:
    """Have the full-text index hold all of the latest run that has come to an end."""
    engine = reading_engine(db)
    run_id = queries.find_run(engine, "latest").id or 0
    began = said = time.monotonic()

    def show(done: int, total: int) -> None:
        nonlocal said
        took = time.monotonic() - began
        if time.monotonic() - said < 1.0 and done < total:
            return
        said = time.monotonic()
        sys.stderr.write(f"\r{done:,} of {total:,} rollouts indexed, {took:.0f} s   ")

    catch_up(db, engine, run_id, show)
    engine.dispose()
    sys.stderr.write("\n")


@contextmanager
def writing(db: Path, rate: float) -> Iterator[None]:
    """Meanwhile another process adds so many rollouts a second to the latest run."""
    context = multiprocessing.get_context("spawn")
    begun, stop = context.Event(), context.Event()
    writer = context.Process(target=keep_writing, args=(db, "latest", rate, begun, stop))
    if rate:
        writer.start()
        while not begun.wait(1.0):
            if not writer.is_alive():
                sys.exit("The writer did not begin: see above.")
    try:
        yield
    finally:
        stop.set()
        if rate:
            writer.join()


def measure(db: Path, times: int, only: str, clock: Callable[[], float]) -> dict[str, Times]:
    """Measure each page whose name matches, in order."""
    found: dict[str, Times] = {}
    with TestClient(create_app(db), base_url="http://127.0.0.1") as client:
        for name, address in addresses(db).items():
            if not re.search(only, name):
                continue
            found[name] = timed(client, address, {}, times, (_ALLOWED.get(name, 200),), clock=clock)
            _show(name, found[name])
            if (poll := poll_of(client, name, address)) is not None:
                found[f"{name}, poll"] = timed(client, *poll, times, (200, 204), clock=clock)
                _show(f"{name}, poll", found[f"{name}, poll"])
    return found


def memory(db: Path) -> float:
    """Resident memory of a dashboard after all pages were opened twice: its peak, in MB (10**6 bytes)."""
    port = _free_port()
    command = [sys.executable, "-m", "logs_ui.app.commands.cli", "serve", "--db", str(db), "--port", str(port)]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        for address in ["/healthz", *addresses(db).values(), *addresses(db).values()]:
            _open(f"http://127.0.0.1:{port}{address}")
        status = Path(f"/proc/{server.pid}/status").read_text()
    finally:
        server.terminate()
        server.wait()
    peak = re.search(r"VmHWM:\s+(\d+) kB", status)
    return int(peak[1]) * 1024 / 1e6 if peak else math.nan


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
    return port


def _open(address: str) -> None:
    for _ in range(100):
        try:
            with urlopen(address) as answer:  # noqa: S310 - ours
                answer.read()
        except HTTPError:
            return
        except URLError:  # it is starting
            time.sleep(0.2)
        else:
            return
    sys.exit(f"{address} does not answer.")


def _show(name: str, times: Times) -> None:
    """Return a line of the table."""
    slowest = max(times.by_query, key=lambda query: median(times.by_query[query]), default="")
    share = f"{slowest} {1e3 * median(times.by_query[slowest]):.0f}" if slowest else ""
    (wall, wall_95), (asked, asked_95) = _figures(times.wall), _figures(times.asked)
    mark = " **above**" if _is_above(name, times) else ""
    print(f"| {name} | {wall:.0f} / {wall_95:.0f} | {asked:.0f} / {asked_95:.0f}{mark} | {share} |", flush=True)


def _figures(seconds: list[float]) -> tuple[float, float]:
    """Median and 95th percentile, in milliseconds."""
    return 1e3 * median(seconds), 1e3 * quantiles(seconds, n=20, method="inclusive")[-1]


def _is_above(name: str, times: Times) -> bool:
    queries_ms, page_ms = limit_of(name)
    return _figures(times.asked)[1] > queries_ms or _figures(times.wall)[1] > page_ms


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("db", type=Path)
    parser.add_argument("--times", type=int, default=20)
    parser.add_argument("--rate", type=float, default=1000.0, help="rollouts a second that are written meanwhile; or 0")
    parser.add_argument("--only", default="", help="a regular expression: the pages that are asked for")
    parser.add_argument("--no-index", action="store_true", help="do not fill the full-text index first")
    parser.add_argument("--processor", action="store_true", help="of queries, the processor's time: on a busy machine")
    parser.add_argument("--assert", action="store_true", dest="asserts", help="exit with 1 above the limits")
    given = parser.parse_args()
    if not given.no_index:
        fill(given.db)
    engine = reading_engine(given.db)
    rollouts = sum(summary.rollouts for summary in queries.all_runs(engine))
    engine.dispose()
    size = given.db.stat().st_size / rollouts
    print(f"{rollouts:,} rollouts, {size:,.0f} bytes each; load {os.getloadavg()[0]:.1f}\n")
    print("| page | whole, ms: median / p95 | its queries | of them |\n| --- | --- | --- | --- |", flush=True)
    with writing(given.db, given.rate):
        clock = time.thread_time if given.processor else time.perf_counter
        found = measure(given.db, given.times, given.only, clock)
    over = [name for name, times in found.items() if _is_above(name, times)]
    over += ["the file"] if size > ROLLOUT_BYTES else []
    if not given.only:
        resident = memory(given.db)
        over += ["memory"] if resident > MEMORY_MB else []
        print(f"\nMemory of the dashboard: {resident:.0f} MB. Load {os.getloadavg()[0]:.1f}.")
    print("\nWithin the limits." if not over else f"\nAbove the limits: {', '.join(over)}.")
    sys.exit(given.asserts and bool(over))


if __name__ == "__main__":
    main()
