"""Measures how many rollouts per second `import_run()` reads and stores, and how much memory it takes.

    python benchmarks/import_rate.py [--rollouts 20000] [--twice] [--assert]

The files are verl's: one flat row per rollout without tokens, 1,024 of a step in a file, with a prompt of 800 and an
answer of 1,500 characters. Prints a Markdown table with a line for a first import and one for the same again: rollouts
and megabytes per second, µs of processor time per rollout, and the most memory that the process took; `--twice` adds
the same for twice as many rollouts, whose memory must be the same.

`--assert` exits with 1 below 5,000 rollouts a second.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from pydoc_data import topics
from random import Random

LEAST = 5_000
STEP, GROUP, PROMPT, ANSWER = 1_024, 16, 800, 1_500
PROSE = " ".join(text for _, text in sorted(topics.topics.items()))
IMPORT = """
import resource, sys, time
from logs_ui.recorder import import_run
began, busy = time.perf_counter(), time.process_time()
found = import_run(sys.argv[1], db=sys.argv[2])
print(found.rollouts, time.perf_counter() - began, time.process_time() - busy)
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""


def write(folder: Path, rollouts: int) -> int:
    """Write files as verl does; return their size in bytes."""
    dice = Random(1)

    def passage(length: int) -> str:
        at = dice.randrange(len(PROSE) - length)
        return PROSE[at : at + length]

    for step in range(1, rollouts // STEP + 1):
        prompt = ""
        with (folder / f"{step}.jsonl").open("w", encoding="utf-8") as file:
            for place in range(STEP):
                prompt = passage(PROMPT) if place % GROUP == 0 else prompt
                row = {"input": prompt, "output": passage(ANSWER), "gts": "x", "score": dice.random(), "step": step}
                file.write(json.dumps({**row, "acc": float(place % 2)}) + "\n")
    return sum(file.stat().st_size for file in folder.iterdir())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rollouts", type=int, default=20_000)
    parser.add_argument("--twice", action="store_true")
    parser.add_argument("--assert", dest="checks", action="store_true")
    given = parser.parse_args()
    print("| rollouts | import | rollouts/s | MB/s | µs of processor time each | memory, MB |")
    print("| --- | --- | --- | --- | --- | --- |")
    slowest = float("inf")
    for count in (given.rollouts, 2 * given.rollouts)[: 1 + given.twice]:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name, "rollouts")
            folder.mkdir()
            size = write(folder, count)
            for which in ("first", "again"):
                command = [sys.executable, "-c", IMPORT, str(folder), f"{name}/runs.db"]
                out = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()
                rollouts, seconds, busy, memory = int(out[0]), *map(float, out[1:])
                slowest = min(slowest, rollouts / seconds)
                rate = f"{rollouts / seconds:,.0f} | {size / seconds / 1e6:.0f} | {busy / rollouts * 1e6:.0f}"
                print(f"| {rollouts:,} | {which} | {rate} | {memory / 1024:.0f} |", flush=True)
    if given.checks and slowest < LEAST:
        sys.exit(f"{slowest:,.0f} rollouts a second are fewer than {LEAST:,}")


if __name__ == "__main__":
    main()
