"""Eval Protocol's own logger: its SQLite adapter, one row at a time on the caller's thread.

It gives all rows or one by its id; anything else is filtered by whoever asked. Its event bus writes every row a second
time, to another database, for its dashboard; that is part of its log().
"""

import os
import sys
from pathlib import Path

os.environ["HOME"] = str(Path(sys.argv[2]).absolute())  # where it keeps its databases
os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # its dependency asks the network when it is imported, else
from eval_protocol.dataset_logger import default_logger
from eval_protocol.models import EvaluateResult, EvaluationRow, ExecutionMetadata, InputMetadata, Message

from benchmarks.peers.peer import TOKENS, Peer, Row, main


class EvalProtocol(Peer):
    """Ids and log-probs go into `dataset_info`, which takes anything."""

    package = "eval-protocol"

    def log(self, row: Row) -> None:
        default_logger.log(
            EvaluationRow(
                messages=[Message(**message) for message in row["messages"]],
                input_metadata=InputMetadata(
                    row_id=row["id"], dataset_info={name: row[name] for name in (*TOKENS, "task") if name in row}
                ),
                evaluation_result=EvaluateResult(score=row["reward"]),
                execution_metadata=ExecutionMetadata(rollout_id=row["id"], run_id="bench"),
            )
        )

    def stored(self) -> None:
        """Do nothing: it was written row by row."""

    def count(self) -> int:
        return len(default_logger.read())

    def opened(self, row_id: str) -> Row:
        (row,) = default_logger.read(row_id)
        messages = [{"role": it.role, "content": it.content} for it in row.messages]
        return {**row.input_metadata.dataset_info, "messages": messages, "reward": row.evaluation_result.score}

    def below(self, reward: float, limit: int) -> int:
        return len([it for it in default_logger.read() if it.evaluation_result.score < reward][:limit])

    def word(self, word: str, limit: int) -> int:
        return len([it for it in default_logger.read() if any(word in m.content for m in it.messages)][:limit])


if __name__ == "__main__":
    main(EvalProtocol)
