"""`python -m tests.faults --table`: what was planted against the cards that were found, as Markdown.

The first table is of small games, the second of generated realistic runs.
"""

import argparse
import contextlib
import itertools
import os
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

for _name, _value in {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "LOGS_UI_RAISE": "1"}.items():
    os.environ.setdefault(_name, _value)

from logs_ui.recorder.analysis.diagnose import diagnose  # noqa: E402
from logs_ui.recorder.diagnosis import Report  # noqa: E402
from logs_ui.recorder.diagnosis.wording import figure  # noqa: E402
from tests.faults import Fault  # noqa: E402
from tests.faults.realistic.registry import RUNS  # noqa: E402
from tests.faults.registry import FAULTS  # noqa: E402

_HEAD = "| planted | first card | runs | cost | others |\n| --- | --- | ---: | ---: | --- |"


def found(fault: Fault, folder: Path) -> Report:
    """What the diagnosis says of it."""
    db = folder / f"{''.join(c if c.isalnum() else '-' for c in fault.id)}.db"
    with contextlib.redirect_stdout(sys.stderr):  # what a trainer prints
        fault.make(db)
    return diagnose(db=db)


def first(report: Report) -> str | None:
    """The id of the first card."""
    return report.cards[0].id if report.cards else None


def line(runs: Sequence[tuple[Fault, Report]]) -> str:
    """Of the table: the variants of one cause together, and what was found first instead of what was planted."""
    hits = [report for fault, report in runs if first(report) == fault.expected]
    named = f"`{runs[0][0].expected}`" if runs[0][0].expected else "none"
    misses = Counter(first(report) or "none" for fault, report in runs if first(report) != fault.expected)
    missed = "".join(f"; **missed**: `{name}` in {count}" for name, count in misses.items())
    costs = sorted(lost for report in hits if report.cards and (lost := report.cards[0].cost) is not None)
    cost = "" if not costs else figure(costs[0]) if len(costs) == 1 else f"{figure(costs[0])} to {figure(costs[-1])}"
    others = Counter(card.id for _, report in runs for card in report.cards[1:])
    below = ", ".join(f"`{name}`" for name, _ in others.most_common())
    return f"| {runs[0][0].planted} | {named}{missed} | {len(hits)} of {len(runs)} | {cost} | {below} |"


def table(faults: Iterable[Fault], folder: Path) -> Iterable[str]:
    """Its lines, each as soon as its runs are made."""
    yield _HEAD
    for _, variants in itertools.groupby(faults, lambda fault: fault.id.partition(":")[0]):
        yield line([(fault, found(fault, folder)) for fault in variants])


def main() -> None:
    """Parse the command line and print."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description=__doc__)
    parser.add_argument("--table", action="store_true", help="print the table (default)")
    parser.add_argument("--only", default="", help="faults whose id begins so")
    parser.add_argument("--shelf", choices=("games", "realistic"), help="one of the two tables")
    options = parser.parse_args()
    shelves = {"games": FAULTS, "realistic": tuple(run.as_fault() for run in RUNS)}
    with tempfile.TemporaryDirectory() as folder:
        for name, shelf in shelves.items():
            chosen = [fault for fault in shelf if fault.id.startswith(options.only) and options.shelf in {name, None}]
            for said in table(chosen, Path(folder)) if chosen else ():
                print(said, flush=True)
            print(end="\n" if chosen else "")


if __name__ == "__main__":
    main()
