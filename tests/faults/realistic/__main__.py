"""`python -m tests.faults.realistic --db PATH ID` records one run; without an id it lists all."""

import argparse
import sys
from pathlib import Path

from tests.faults.realistic.registry import PAGES, RUNS


def main() -> None:
    """Parse the command line, and record or list."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults.realistic", description=__doc__)
    parser.add_argument("--db", type=Path, help="the database to record into; it may hold other runs")
    parser.add_argument("ids", nargs="*", help="ids of runs; `all` for all of them")
    options = parser.parse_args()
    if not options.ids:
        for run in (*RUNS, *PAGES):
            since = "" if run.since is None else f" (since step {run.since})"
            sys.stdout.write(f"{run.id:<20} {run.expected or 'no card':<16} {run.planted}{since}\n")
        return
    if options.db is None:
        parser.error("--db is needed to record")
    chosen = [run for run in (*RUNS, *PAGES) if run.id in options.ids or options.ids == ["all"]]
    if unknown := set(options.ids) - {run.id for run in chosen} - {"all"}:
        parser.error(f"there is no run {', '.join(sorted(unknown))}; without an id all are listed")
    for run in chosen:
        truth = run.record(options.db)
        sys.stdout.write(f"{run.id}: {truth.run}, {len(truth.rollouts)} rollouts, expected {run.expected}\n")


if __name__ == "__main__":
    main()
