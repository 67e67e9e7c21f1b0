"""Measures the server's time for each page.

    logs-ui demo --no-serve --db demo.db
    python benchmarks/pages.py demo.db [--times 40] [--assert]

Asks for every kind of page in turn, in this process and without a network, and prints a Markdown table: the median and
the 9th decile of the time until the answer was there, the processor's time, the median of what its questions to the
database took together, and the size. A page is asked for once before it counts: what may be remembered of a run that
has not changed since is remembered then. Of a poll, nothing is new. "nothing" reads no database: so much of every row
is the client's, the threads' and the middleware's. The limits are for the demo's data; `--assert` exits with 1 above
them. `queries.py` asks the same while a training writes, at a million rollouts.
"""

import argparse
import re
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from html import unescape
from pathlib import Path
from statistics import median, quantiles
from typing import Any, NamedTuple

from starlette.testclient import TestClient

from logs_ui.app.main import create_app
from logs_ui.recorder import queries
from logs_ui.recorder.analysis.diagnosis_columns import RunColumns

sys.path.append(str(Path(__file__).parent.parent))
from tests.support.site import pages

LIMITS = {"rollouts": 15.0, "rollouts-filtered": 15.0, "rollout": 15.0, "overview": 40.0, "poll": 5.0}  # ms
_POLL = re.compile(r'hx-get="([^"]*\bseen=[^"]*)"')
_TARGETS = {"runs": "runs", "rollouts": "live", "overview": "overview", "rollout": "rollout", "groups": "live"}


class Times(NamedTuple):
    """Times of one page: seconds, processor seconds, seconds of its queries, bytes, and seconds of each query by its
    name.
    """

    wall: list[float]
    processor: list[float]
    asked: list[float]
    size: int
    by_query: dict[str, list[float]]


class Watch:
    """Adds up what is asked of `recorder.queries`.

    Attributes:
        by_query: seconds since the last `clear`, by the function's name; of one that calls others, with theirs.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self.by_query: dict[str, float] = defaultdict(float)
        self._depth = 0

    def clear(self) -> None:
        self.by_query.clear()

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Meanwhile the public functions of `queries`, and what reads the columns of a diagnosis, are measured."""
        named = [(queries, name) for name in vars(queries) if _is_function(getattr(queries, name))]
        places: list[tuple[Any, str]] = [*named, (RunColumns, "refresh")]
        kept = [(place, name, getattr(place, name)) for place, name in places]
        for place, name, function in kept:
            setattr(place, name, self._measured(name, function))
        try:
            yield
        finally:
            for place, name, function in kept:
                setattr(place, name, function)

    def _measured(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(function)
        def measured(*args: Any, **given: Any) -> Any:
            if self._depth:
                return function(*args, **given)
            began = self._clock()
            self._depth += 1
            try:
                return function(*args, **given)
            finally:
                self._depth -= 1
                self.by_query[name] += self._clock() - began

        return measured


def _is_function(value: Any) -> bool:
    return callable(value) and not isinstance(value, type)


def timed(
    client: TestClient, address: str, headers: dict[str, str], times: int, statuses: tuple[int, ...] = (200,), *,
    clock: Callable[[], float] = time.perf_counter,
) -> Times:  # fmt: skip
    """Return the answers' status must be one of these. The clock is that of the queries."""
    wall, processor, asked, size = [], [], [], 0
    by_query: dict[str, list[float]] = defaultdict(list)
    watch = Watch(clock)
    with watch.watching():
        for number in range(times + 1):
            watch.clear()
            began, spent = time.perf_counter(), time.process_time()
            answer = client.get(address, headers=headers)
            if number:
                wall.append(time.perf_counter() - began)
                processor.append(time.process_time() - spent)
                asked.append(sum(watch.by_query.values()))
                for name, seconds in watch.by_query.items():
                    by_query[name].append(seconds)
            assert answer.status_code in statuses, (address, answer.status_code, answer.text[:300])
            size = len(answer.content)
    return Times(wall, processor, asked, size, by_query)


def poll_of(client: TestClient, name: str, address: str) -> tuple[str, dict[str, str]] | None:
    """Return the address that a page polls, and its headers; None if it does not poll."""
    found = _POLL.search(client.get(address).text) if name in _TARGETS else None
    if found is None:
        return None
    return unescape(found[1]), {"HX-Request-Type": "partial", "HX-Target": f"div#{_TARGETS[name]}"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("db", type=Path)
    parser.add_argument("--times", type=int, default=40)
    parser.add_argument("--assert", action="store_true", dest="asserts", help="exit with 1 above the limits")
    given = parser.parse_args()
    found: dict[str, Times] = {}
    with TestClient(create_app(given.db), base_url="http://127.0.0.1") as client:
        found["nothing (/healthz)"] = timed(client, "/healthz", {}, given.times)
        for name, address in pages(given.db).items():
            found[name] = timed(client, address, {}, given.times)
            if (poll := poll_of(client, name, address)) is not None:
                found[f"{name}, poll"] = timed(client, *poll, given.times, (204,))
    print("| page | ms | 9th decile | processor | queries | kB | at most |\n|" + " --- |" * 7)
    over = 0
    for name, times in found.items():
        limit = LIMITS["poll"] if name.endswith("poll") else LIMITS.get(name)
        middle = 1e3 * median(times.wall)
        over += limit is not None and middle > limit
        decile, processor = 1e3 * quantiles(times.wall, n=10)[-1], 1e3 * median(times.processor)
        figures = f"{middle:.1f} | {decile:.1f} | {processor:.1f} | {1e3 * median(times.asked):.1f}"
        print(f"| {name} | {figures} | {times.size / 1e3:.0f} | {limit or ''} |")
    print("\nWithin the limits." if not over else f"\n{over} above the limits.")
    sys.exit(given.asserts and bool(over))


if __name__ == "__main__":
    main()
