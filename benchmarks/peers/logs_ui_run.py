"""logs-ui, by the door for loops of one's own, start_run(); asked what a page of its dashboard asks."""

import os
from pathlib import Path

from benchmarks.peers.peer import TOKENS, Peer, Row, main
from logs_ui.recorder import flush, load_run, queries, start_run
from logs_ui.recorder.queries.filters.rollout_filter import parse_where
from logs_ui.recorder.queries.search.index import catch_up
from logs_ui.recorder.storage.address import database_address
from logs_ui.recorder.storage.database import reading_engine

os.environ["LOGS_UI_QUEUE_SECONDS"] = "600"


class LogsUi(Peer):
    """One run."""

    package = "logs-ui"

    def __init__(self, folder: Path, rows: int) -> None:
        super().__init__(folder, rows)
        self._db = folder / "logs-ui.db"
        self._run = start_run("bench", db=self._db)
        flush()
        self._reading = reading_engine(database_address(self._db))
        self._numbers: dict[str, int] = {}

    def log(self, row: Row) -> None:
        messages = row["messages"]
        with self._run.rollout(
            messages[:2], task=row["task"], step=row["step"], mode="train", group=row["group"],
            generation=row["generation"], metadata={"rollout": row["id"]},
        ) as made:  # fmt: skip
            for said, heard in zip(messages[2::2], [*messages[3::2], None], strict=False):
                observed = None if heard is None else heard["content"]
                made.turn(said["content"], action=None if heard is None else "go", observation=observed)
            if "logprobs" in row:
                made.tokens(row["prompt_ids"], row["completion_ids"], logprobs=row["logprobs"])
        made.score(row["reward"])

    def stored(self) -> None:
        assert flush(None)

    def count(self) -> int:
        frame = load_run(self._run.id, self._db)
        said = zip(frame["id"], frame["metadata"], frame["status"], frame["reward"].notna(), strict=True)
        self._numbers = {it["rollout"]: number for number, it, status, scored in said if status == "ok" and scored}
        return len(self._numbers)

    def prepare(self) -> None:
        catch_up(self._db, self._reading, queries.find_run(self._reading, "latest").id or 0, lambda *_: None)

    def opened(self, row_id: str) -> Row:
        run = queries.find_run(self._reading, "latest")
        found = queries.rollout(self._reading, run.id or 0, self._numbers[row_id])
        messages = [{"role": it["role"], "content": it["content"]} for it in found.messages]
        told: Row = {"messages": messages, "reward": found.row.reward}
        if found.tokens is not None and found.tokens.logprobs is not None:
            told |= {name: getattr(found.tokens, name).tolist() for name in TOKENS}
        return told

    def below(self, reward: float, limit: int) -> int:
        return self._page(f"reward<{reward}", limit)

    def word(self, word: str, limit: int) -> int:
        return self._page(f'text:"{word}"', limit)

    def close(self) -> None:
        self._reading.dispose()
        self._run.finish()

    def _page(self, where: str, limit: int) -> int:
        run = queries.find_run(self._reading, "latest")
        return len(queries.page(self._reading, run.id or 0, parse_where(where), limit=limit).rows)


if __name__ == "__main__":
    main(LogsUi)
