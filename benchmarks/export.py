"""Measures the time and the memory of exports.

    python benchmarks/rollouts.py some.db --rollouts 100000
    python benchmarks/export.py some.db [--run latest] [--where 'step<1000'] [--folder /tmp]

Writes a run as each kind of file, each in a process of its own, and reads its columns alone into pandas; prints a
Markdown table: seconds, rollouts a second, MB written a second, the size, and the highest memory of that process.
"imports and nothing else" is what the process has before it reads a row. A file's memory does not grow with the rows:
`tests/recorder/analysis/test_frames.py` holds that. A frame's does: it is all there at once.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ONE = """
import json, resource, sys, time
from pathlib import Path
from logs_ui.recorder import export_partitions, export_run, load_run
from logs_ui.recorder.analysis.frames import PAYLOAD
from logs_ui.recorder.queries.rollout_columns import COLUMNS
import pandas, pyarrow.parquet
kind, db, run, where, output = sys.argv[1:]
headers = [column.name for column in COLUMNS if column.name not in PAYLOAD]
begun, rows = time.perf_counter(), 0
if kind in {"parquet", "csv", "jsonl"}:
    rows = export_run(run, kind, Path(output), db, where=where)
elif kind.startswith("step"):
    rows = export_partitions(run, Path(output), db, by=kind, where=where)
elif kind == "columns":
    rows = len(load_run(run, db, where=where, columns=headers))
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1 << 10 if sys.platform == "linux" else 1 << 20)
print(json.dumps({"seconds": time.perf_counter() - begun, "rows": rows, "peak": peak}))
"""
KINDS = {
    "nothing": "imports and nothing else",
    "columns": "load_run of all columns but payloads",
    "parquet": "Parquet",
    "step": "Parquet, `--partition-by step`",
    "step:100": "Parquet, `--partition-by step:100`",
    "jsonl": "JSONL",
    "csv": "CSV",
}


def measured(kind: str, given: argparse.Namespace) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(dir=given.folder) as folder:
        output = Path(folder) / "out"
        command = [sys.executable, "-c", ONE, kind, given.db, given.run, given.where, output]
        found: dict[str, Any] = json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout)
        files = [path for path in Path(folder).rglob("*") if path.is_file()]
        return found | {"bytes": sum(path.stat().st_size for path in files), "files": len(files)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("db", type=Path)
    parser.add_argument("--run", default="latest")
    parser.add_argument("--where", default="", help="only these rollouts")
    parser.add_argument("--folder", type=Path, help="where to write, and to remove it again; the system's by default")
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS))
    given = parser.parse_args()
    print(f"Load before: {os.getloadavg()[0]:.1f}, {os.cpu_count()} cores, {time.strftime('%Y-%m-%d')}\n")
    print("| | rollouts | seconds | rollouts/s | MB/s | MB | files | highest memory, MB |")
    print("|" + " --- |" * 8, flush=True)
    for kind in given.kinds:
        found = measured(kind, given)
        size, seconds = found["bytes"] / 1e6, max(found["seconds"], 1e-9)
        rate = f"{found['rows'] / seconds:,.0f}" if found["rows"] else ""
        written = f"{size / seconds:,.1f} | {size:,.0f} | {found['files']:,}" if found["files"] else " | | "
        cells = (KINDS[kind], f"{found['rows']:,}", f"{seconds:,.1f}", rate, written, f"{found['peak']:,.0f}")
        print(f"| {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
