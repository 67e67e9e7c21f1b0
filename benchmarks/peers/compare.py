"""Records the same rollouts with logs-ui and with what a user would pick instead, in turn, and compares them.

    python benchmarks/peers/compare.py [--rows 2000] [--rounds 3] [--peers mlflow logs-ui] [-o table.md]

makes an environment for each peer, once, in the user's cache folder (2 GB in all; nothing else needs a network), writes
the rollouts that all of them get, and prints Markdown. A peer is used as its own docs do, in the quickest mode that
they name (see the file of each), runs in a process of its own, and takes its turn in every round, in another order each
time, so that whatever else the machine does hits all alike. Figures are medians over the rounds.
"""

import argparse
import json
import os
import platform
import random
import shutil
import subprocess
import sys
import tempfile
import zlib
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

sys.path.append(str(Path(__file__).parents[2]))
from benchmarks.peers.peer import BELOW, LIMIT, size_of
from benchmarks.peers.rows import write_rows

HERE = Path(__file__).parent
ROOT = HERE.parents[1]


@dataclass(frozen=True)
class Peer:
    """One logger.

    Attributes:
        script: in this folder.
        packages: for pip; none: this process's own environment has it.
    """

    title: str
    script: str
    packages: tuple[str, ...] = ()


PEERS = {
    "jsonl": Peer("JSONL, orjson", "jsonl.py"),
    "logs-ui": Peer("logs-ui", "logs_ui_run.py"),
    "trackio": Peer("trackio Trace", "trackio_trace.py", ("trackio==0.43.0",)),
    "inspect": Peer("inspect_ai .eval", "inspect_eval.py", ("inspect-ai==0.3.285",)),
    "phoenix": Peer("Phoenix, OTLP to SQLite", "phoenix_otlp.py", ("arize-phoenix==20.26.1",)),
    "eval-protocol": Peer("Eval Protocol's logger", "eval_protocol_logger.py", ("eval-protocol==0.3.33",)),
    "mlflow": Peer("MLflow tracing, SQLite", "mlflow_tracing.py", ("mlflow==3.17.2",)),
}
SETTINGS = {"messages": "Messages alone", "tokens": "With 2,000 token ids and 1,000 log-probs each"}

Figures = dict[str, Any]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=2_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--peers", nargs="+", choices=PEERS, default=list(PEERS))
    parser.add_argument("--output", "-o", type=Path, help="a file for the table; else it is printed alone")
    given = parser.parse_args()
    pythons = {name: python_of(name, PEERS[name]) for name in given.peers}
    with tempfile.TemporaryDirectory() as folder:
        paths = write_rows(Path(folder), given.rows)
        found = {setting: rounds(pythons, path, given.rounds) for setting, path in paths.items()}
        sizes = {setting: path.stat().st_size / given.rows for setting, path in paths.items()}
    table = markdown(found, sizes, given.rows, given.rounds)
    print(table)
    if given.output:
        given.output.write_text(table + "\n")


def python_of(name: str, peer: Peer) -> str:
    """Return the Python of an environment that has the peer."""
    if not peer.packages:
        return sys.executable
    key = zlib.crc32(" ".join([*peer.packages, platform.python_version()]).encode())
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = cache / "logs-ui" / "envs" / f"peer-{name}-{key:08x}"
    python = folder / "bin" / "python"
    if not (folder / "complete").exists():
        say(f"{name}: making {folder}")
        subprocess.run([sys.executable, "-m", "venv", "--clear", folder], check=True)
        installed = {key: value for key, value in os.environ.items() if not key.startswith("PIP_CONSTRAINT")}
        subprocess.run([python, "-m", "pip", "install", "--quiet", *peer.packages], check=True, env=installed)
        (folder / "complete").touch()
    return str(python)


def rounds(pythons: dict[str, str], rows: Path, count: int) -> dict[str, list[Figures]]:
    """Return the results of each round by peer. A round that failed is left out, and reported."""
    found: dict[str, list[Figures]] = {name: [] for name in pythons}
    for number in range(count):
        order = random.Random(number).sample(list(pythons), len(pythons))
        for name in order:
            load = os.getloadavg()[0]
            figures = once(pythons[name], PEERS[name].script, rows)
            if isinstance(figures, str):
                say(f"{rows.stem}, round {number + 1}, {name} failed: {figures}")
                continue
            found[name].append(figures | {"load": load})
            say(f"{rows.stem}, round {number + 1}, {name}: {figures['rate']:,.0f} rollouts/s (load before: {load:.1f})")
    return found


def once(python: str, script: str, rows: Path) -> Figures | str:
    """Return the result of one round, or the last line that the peer printed."""
    quiet = {"PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1", "DO_NOT_TRACK": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    folder = tempfile.mkdtemp(prefix="logs-ui-peer-")
    try:
        command = [python, str(HERE / script), str(rows), folder]
        done = subprocess.run(
            command, env=os.environ | quiet, cwd=folder, capture_output=True, text=True, timeout=1800, check=False
        )
        size = size_of(Path(folder))  # once it has closed its files
    except subprocess.TimeoutExpired:
        return "it took more than half an hour"
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if done.returncode or not lines:
        return (done.stderr.strip() or "nothing said").splitlines()[-1]
    figures: Figures = json.loads(lines[-1])
    return figures | {"bytes": (size - figures["beside"]) / figures["rows"]}


def markdown(found: dict[str, dict[str, list[Figures]]], sizes: dict[str, float], rows: int, count: int) -> str:
    machine = f"{os.cpu_count()} cores ({processor()}), Python {platform.python_version()}"
    title = (
        f"{rows:,} rollouts, {count} round{'' if count == 1 else 's'}; {machine}. Medians; in brackets the lowest and "
        f"highest of the rounds. Load of the machine before each turn: {loads(found)}."
    )
    parts = [title]
    for setting, by_peer in found.items():
        parts += ["", f"**{SETTINGS[setting]}**: {sizes[setting] / 1000:.1f} kB of JSON each", "", *HEAD]
        parts += [line(PEERS[name].title, rounds_) for name, rounds_ in by_peer.items()]
    return "\n".join(parts)


COLUMNS = (
    "",
    "version",
    "rollouts/s until stored",
    "µs for logging one",
    "bytes a rollout",
    f"ms for {LIMIT} with reward < {BELOW}",
    "ms for a word",
    "ms to open one",
    "kept",
)
HEAD = (f"| {' | '.join(COLUMNS)} |", f"|{' --- |' * len(COLUMNS)}")


def line(title: str, rounds_: list[Figures]) -> str:
    if not rounds_:
        return f"| {title} | | failed | | | | | | |"
    first = rounds_[0]
    rates = [it["rate"] for it in rounds_]
    cells = [
        title,
        first["version"],
        f"{median(rates):,.0f} ({min(rates):,.0f}-{max(rates):,.0f})",
        f"{middle(rounds_, 'log'):,.0f}",
        f"{middle(rounds_, 'bytes'):,.0f}",
        asked(rounds_, "below"),
        asked(rounds_, "word"),
        f"{middle(rounds_, 'open'):,.1f}",
        ", ".join(name if whole else f"no {name}" for name, whole in first["kept"].items()),
    ]
    return f"| {' | '.join(cells)} |"


def asked(rounds_: list[Figures], name: str) -> str:
    """Return the time of a query and the number of its rollouts; - if the peer has no such query."""
    if rounds_[0][name] is None:
        return "-"
    once_indexed = middle(rounds_, "index")
    index = f", indexed in {once_indexed:,.0f}" if name == "word" and once_indexed > 1 else ""
    return f"{median(it[name][0] for it in rounds_):,.1f} ({rounds_[0][name][1]} found{index})"


def middle(rounds_: list[Figures], name: str) -> float:
    return median(float(it[name]) for it in rounds_)


def loads(found: dict[str, dict[str, list[Figures]]]) -> str:
    each = [it["load"] for by_peer in found.values() for rounds_ in by_peer.values() for it in rounds_]
    return f"{min(each):.1f} to {max(each):.1f}" if each else "unknown"


def processor() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    text = cpuinfo.read_text() if cpuinfo.exists() else ""
    names = [line.partition(":")[2].strip() for line in text.splitlines() if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def say(what: str) -> None:
    print(what, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
