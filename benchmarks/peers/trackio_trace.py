"""trackio's Trace: what its README logs conversations with. Ids and log-probs go into the trace's metadata.

Its dashboard's own query, SQLiteStorage.get_traces(), is asked: by step and text, not by a number.
"""

import os
import sys
from pathlib import Path

os.environ["TRACKIO_DIR"] = str(Path(sys.argv[2]).absolute())
import trackio
from trackio.sqlite_storage import SQLiteStorage

from benchmarks.peers.peer import Peer, Row, main

PROJECT, RUN = "bench", "bench"


class Trackio(Peer):
    """Its own thread writes batches."""

    package = "trackio"

    def __init__(self, folder: Path, rows: int) -> None:
        super().__init__(folder, rows)
        self._ids: dict[str, int] = {}
        trackio.init(project=PROJECT, name=RUN, auto_log_gpu=False, auto_log_cpu=False, embed=False)

    def log(self, row: Row) -> None:
        said = {name: value for name, value in row.items() if name != "messages"}
        trackio.log({"rollout": trackio.Trace(row["messages"], metadata=said), "reward": row["reward"]})
        self._ids[row["id"]] = len(self._ids)

    def stored(self) -> None:
        trackio.finish()

    def count(self) -> int:
        return len(SQLiteStorage.get_traces(PROJECT, RUN))

    def opened(self, row_id: str) -> Row:
        (trace,) = SQLiteStorage.get_traces(PROJECT, RUN, step=self._ids[row_id])
        return {**trace["metadata"], "messages": trace["messages"]}

    def word(self, word: str, limit: int) -> int:
        return len(SQLiteStorage.get_traces(PROJECT, RUN, search=word, limit=limit))


if __name__ == "__main__":
    main(Trackio)
