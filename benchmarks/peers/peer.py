"""Runs one peer in a process and an environment of its own:
`PYTHONPATH=. python benchmarks/peers/jsonl.py rows.jsonl folder`

Needs nothing but the standard library: logs-ui is not installed beside a peer. What is found is the last line that is
printed, as JSON.
"""

import json
import sys
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import Any

Row = dict[str, Any]
"""One rollout: id, step, group, generation, task, reward, messages; perhaps prompt_ids, completion_ids, logprobs."""

LIMIT = 50
BELOW = 0.1
TIMES = 5
TOKENS = ("prompt_ids", "completion_ids", "logprobs")


class Peer:
    """One logger. A query that it has no way to ask stays None, and the table says so."""

    package = ""
    below: Callable[[float, int], int] | None = None
    """How many of at most so many rollouts with a lower reward it gave, each with its messages or a preview of them."""
    word: Callable[[str, int], int] | None = None
    """How many of at most so many rollouts whose messages have that word it gave."""

    def __init__(self, folder: Path, rows: int) -> None:
        """Open it in an empty folder, for so many rollouts."""

    def log(self, row: Row) -> None:
        """One rollout, as the trainer's thread would."""
        raise NotImplementedError

    def stored(self) -> None:
        """Come back once all that was logged is stored, and a reader finds it."""
        raise NotImplementedError

    def count(self) -> int:
        """Return the number of rollouts that a reader finds."""
        raise NotImplementedError

    def opened(self, row_id: str) -> Row:
        """Return one rollout as the peer reads it: messages, reward, and its tokens if it keeps them."""
        raise NotImplementedError

    def prepare(self) -> None:
        """Do what is needed once before a word can be searched."""

    def close(self) -> None:
        """End what was started."""


def main(kind: type[Peer]) -> None:
    """Log and read the rows that the command line names."""
    lines = Path(sys.argv[1]).read_text().splitlines()
    rows = [json.loads(line) for line in lines]
    folder = Path(sys.argv[2])
    peer = kind(folder, len(rows))
    try:
        print(json.dumps(measured(peer, rows, folder)))
    finally:
        peer.close()


def measured(peer: Peer, rows: list[Row], folder: Path) -> dict[str, Any]:
    empty = size_of(folder)
    clock, each = time.perf_counter, []
    begun = clock()
    for row in rows:
        before = clock()
        peer.log(row)
        each.append(clock() - before)
    peer.stored()
    seconds = clock() - begun
    found = peer.count()
    assert found == len(rows), f"{found} of {len(rows)} rollouts are there"
    before_index = size_of(folder)
    indexed = timed(peer.prepare)
    some = [row["id"] for row in rows[:: max(1, len(rows) // TIMES)]][:TIMES]
    word = rarest_of(rows)
    return {
        "version": version(peer.package) if peer.package else "",
        "rows": len(rows),
        "rate": len(rows) / seconds,
        "log": 1e6 * median(each),
        "beside": empty + size_of(folder) - before_index,
        "below": None if peer.below is None else query(lambda: peer.below(BELOW, LIMIT)),  # type: ignore[misc]
        "word": None if peer.word is None else query(lambda: peer.word(word, LIMIT)),  # type: ignore[misc]
        "index": 1e3 * indexed,
        "open": 1e3 * median(timed(lambda it=it: peer.opened(it)) for it in some),  # type: ignore[misc]
        "kept": kept(peer.opened(rows[0]["id"]), rows[0]),
    }


def query(ask: Callable[[], int]) -> list[float]:
    """Milliseconds at the median, and how many rollouts were given. Asked once before it counts."""
    given = ask()
    return [1e3 * median(timed(ask) for _ in range(TIMES)), given]


def timed(work: Callable[[], Any]) -> float:
    begun = time.perf_counter()
    work()
    return time.perf_counter() - begun


def kept(given: Row, row: Row) -> dict[str, bool]:
    """Return what came back as it was logged; log-probs are compared to three digits."""
    ids = ("prompt_ids", "completion_ids")
    found = {"messages": given.get("messages") == row["messages"], "reward": given.get("reward") == row["reward"]}
    if "logprobs" in row:
        found["ids"] = all(given.get(name) is not None and list(given[name]) == row[name] for name in ids)
        pairs = zip(given.get("logprobs") or [], row["logprobs"], strict=False)
        near = [abs(a - b) <= 1e-3 * max(1.0, abs(b)) for a, b in pairs]
        found["logprobs"] = len(near) == len(row["logprobs"]) and all(near)
    return found


def rarest_of(rows: list[Row]) -> str:
    """Return a word that about one rollout in fifty has."""
    counts: dict[str, int] = {}
    for row in rows:
        text = " ".join(message["content"] for message in row["messages"])
        for word in {it for it in text.split() if it.isalpha() and it.islower() and len(it) > 5}:
            counts[word] = counts.get(word, 0) + 1
    return min(counts, key=lambda word: (abs(counts[word] - len(rows) / 50), word))


def size_of(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
