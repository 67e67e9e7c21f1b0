"""How long does the server take for each page?

    logs-ui demo --no-serve --db demo.db
    python benchmarks/pages.py demo.db [--times 40] [--assert]

Asks for every kind of page in turn, in this process and without a network, and prints a Markdown table: the median and
the 9th decile of the time until the answer was there, the processor's time, and the size. A page is asked for once
before it counts: what may be remembered of a run that has not changed since is remembered then. Of a poll, nothing is
new. "nothing" reads no database: so much of every row is the client's, the threads' and the middleware's. The limits
are issue 5's, for the demo's data; `--assert` exits with 1 above them.
"""

import argparse
import re
import sys
import time
from html import unescape
from pathlib import Path
from statistics import median, quantiles
from typing import NamedTuple

from starlette.testclient import TestClient

from logs_ui.app.main import create_app

sys.path.append(str(Path(__file__).parent.parent))
from tests.site import pages

LIMITS = {"rollouts": 15.0, "rollouts-filtered": 15.0, "rollout": 15.0, "overview": 40.0, "poll": 5.0}  # ms
_POLL = re.compile(r'hx-get="([^"]*\bseen=[^"]*)"')
_TARGETS = {"runs": "runs", "rollouts": "live", "overview": "overview", "rollout": "rollout", "groups": "live"}


class Times(NamedTuple):
    """Of one page: seconds, seconds of the processor, and bytes."""

    wall: list[float]
    processor: list[float]
    size: int


def timed(client: TestClient, address: str, headers: dict[str, str], times: int, status: int) -> Times:
    wall, processor, size = [], [], 0
    for number in range(times + 1):
        began, spent = time.perf_counter(), time.process_time()
        answer = client.get(address, headers=headers)
        if number:
            wall.append(time.perf_counter() - began)
            processor.append(time.process_time() - spent)
        assert answer.status_code == status, (address, answer.status_code, answer.text[:300])
        size = len(answer.content)
    return Times(wall, processor, size)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("db", type=Path)
    parser.add_argument("--times", type=int, default=40)
    parser.add_argument("--assert", action="store_true", dest="asserts", help="exit with 1 above the limits")
    given = parser.parse_args()
    found: dict[str, Times] = {}
    with TestClient(create_app(given.db), base_url="http://127.0.0.1") as client:
        found["nothing (/healthz)"] = timed(client, "/healthz", {}, given.times, 200)
        for name, address in pages(given.db).items():
            found[name] = timed(client, address, {}, given.times, 200)
            polled = _POLL.search(client.get(address).text)
            if polled and name in _TARGETS:
                headers = {"HX-Request-Type": "partial", "HX-Target": f"div#{_TARGETS[name]}"}
                found[f"{name}, poll"] = timed(client, unescape(polled[1]), headers, given.times, 204)
    print("| page | ms | 9th decile | processor | kB | at most |\n| --- | --- | --- | --- | --- | --- |")
    over = 0
    for name, times in found.items():
        limit = LIMITS["poll"] if name.endswith("poll") else LIMITS.get(name)
        middle = 1e3 * median(times.wall)
        over += limit is not None and middle > limit
        decile, processor = 1e3 * quantiles(times.wall, n=10)[-1], 1e3 * median(times.processor)
        figures = f"{middle:.1f} | {decile:.1f} | {processor:.1f} | {times.size / 1e3:.0f}"
        print(f"| {name} | {figures} | {limit or ''} |")
    print("\nWithin the limits." if not over else f"\n{over} above the limits.")
    sys.exit(given.asserts and bool(over))


if __name__ == "__main__":
    main()
