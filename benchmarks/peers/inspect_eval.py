"""inspect_ai's .eval log, by the recorder that its own eval() writes with, and flushes as often as that does.

Ids and log-probs go into the sample's metadata. A list of samples is the log's summaries, which have scores.
"""

import asyncio
import logging
from pathlib import Path

from inspect_ai.log import (
    EvalPlan,
    EvalResults,
    EvalSample,
    EvalSpec,
    EvalStats,
    read_eval_log_sample,
    read_eval_log_sample_summaries,
)
from inspect_ai.log._recorders.eval import EvalRecorder
from inspect_ai.model import ChatMessageAssistant, ChatMessageSystem, ChatMessageUser
from inspect_ai.scorer import Score

from benchmarks.peers.peer import Peer, Row, main

KINDS = {"system": ChatMessageSystem, "user": ChatMessageUser, "assistant": ChatMessageAssistant}
logging.disable()


class Inspect(Peer):
    """One sample for each rollout."""

    package = "inspect_ai"

    def __init__(self, folder: Path, rows: int) -> None:
        super().__init__(folder, rows)
        self._recorder = EvalRecorder(str(folder))
        dataset = {"samples": rows}
        self._eval = EvalSpec(created="2026-01-01T00:00:00+00:00", task="bench", dataset=dataset, model="m", config={})
        self._often = self._recorder.default_log_buffer(rows, high_throughput=True)
        self._waiting = 0
        self._loop = asyncio.new_event_loop()
        self._path = self._loop.run_until_complete(self._recorder.log_init(self._eval))
        self._loop.run_until_complete(self._recorder.log_start(self._eval, EvalPlan()))

    def log(self, row: Row) -> None:
        rest = {name: value for name, value in row.items() if name != "messages"}
        messages = [KINDS[it["role"]](content=it["content"]) for it in row["messages"]]
        sample = EvalSample(
            id=row["id"], epoch=1, input="", target="", messages=messages, metadata=rest,
            scores={"reward": Score(value=row["reward"])},
        )  # fmt: skip
        self._loop.run_until_complete(self._recorder.log_sample(self._eval, sample))
        self._waiting += 1
        if self._waiting == self._often:
            self._waiting = 0
            self._loop.run_until_complete(self._recorder.flush(self._eval))

    def stored(self) -> None:
        ended = self._recorder.log_finish(self._eval, "success", EvalStats(), EvalResults(), None)
        self._loop.run_until_complete(ended)

    def count(self) -> int:
        return len(read_eval_log_sample_summaries(self._path))

    def opened(self, row_id: str) -> Row:
        sample = read_eval_log_sample(self._path, id=row_id, epoch=1)
        messages = [{"role": it.role, "content": it.text} for it in sample.messages]
        return {**sample.metadata, "messages": messages, "reward": sample.scores["reward"].value}

    def below(self, reward: float, limit: int) -> int:
        found = read_eval_log_sample_summaries(self._path)
        return len([it for it in found if it.scores["reward"].value < reward][:limit])


if __name__ == "__main__":
    main(Inspect)
