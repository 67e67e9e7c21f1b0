"""The floor: a line of JSON for each rollout, by orjson, in one file that is never forced to the disk."""

from pathlib import Path

import orjson

from benchmarks.peers.peer import Peer, Row, main


class Jsonl(Peer):
    """Reads the whole file for every question."""

    package = "orjson"

    def __init__(self, folder: Path, rows: int) -> None:
        super().__init__(folder, rows)
        self._path = folder / "rollouts.jsonl"
        self._file = self._path.open("ab")

    def log(self, row: Row) -> None:
        self._file.write(orjson.dumps(row) + b"\n")

    def stored(self) -> None:
        self._file.flush()

    def count(self) -> int:
        return len(self._path.read_bytes().splitlines())

    def opened(self, row_id: str) -> Row:
        with self._path.open("rb") as file:
            return next(row for line in file if (row := orjson.loads(line))["id"] == row_id)

    def below(self, reward: float, limit: int) -> int:
        with self._path.open("rb") as file:
            return len([row for line in file if (row := orjson.loads(line))["reward"] < reward][:limit])

    def word(self, word: str, limit: int) -> int:
        with self._path.open("rb") as file:
            return len([orjson.loads(line) for line in file if word.encode() in line][:limit])


if __name__ == "__main__":
    main(Jsonl)
