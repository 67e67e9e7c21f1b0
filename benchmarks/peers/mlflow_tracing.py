"""MLflow's tracing into its SQLite store, asynchronously, as it does by default; the reward is a feedback, which its
filters compare as a number.
"""

import os
import sys
from pathlib import Path

os.environ |= {
    "MLFLOW_TRACKING_URI": f"sqlite:///{Path(sys.argv[2]).absolute()}/mlflow.db",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_ENABLE_ASYNC_TRACE_LOGGING": "true",
    "MLFLOW_ASYNC_TRACE_LOGGING_MAX_QUEUE_SIZE": "1000000",  # its default, 1,000, drops what comes quicker
}
import mlflow

from benchmarks.peers.peer import Peer, Row, main


class Mlflow(Peer):
    """A trace of one span for each rollout."""

    package = "mlflow"

    def __init__(self, folder: Path, rows: int) -> None:
        super().__init__(folder, rows)
        experiment = mlflow.set_experiment("bench")
        self._places, self._ids = [experiment.experiment_id], dict[str, str]()

    def log(self, row: Row) -> None:
        with mlflow.start_span("rollout") as span:
            span.set_inputs(row["messages"][:2])
            span.set_outputs(row["messages"][2:])
            span.set_attributes({name: value for name, value in row.items() if name != "messages"})
            mlflow.log_feedback(trace_id=span.trace_id, name="reward", value=row["reward"])
        self._ids[row["id"]] = span.trace_id

    def stored(self) -> None:
        mlflow.flush_trace_async_logging()

    def count(self) -> int:
        return len(mlflow.search_traces(locations=self._places, return_type="list", include_spans=False))

    def opened(self, row_id: str) -> Row:
        (span,) = mlflow.get_trace(self._ids[row_id]).data.spans
        rest = {name: value for name, value in span.attributes.items() if not name.startswith("mlflow.")}
        return {**rest, "messages": [*span.inputs, *span.outputs]}

    def below(self, reward: float, limit: int) -> int:
        return self._found(f"feedback.reward < {reward}", limit)

    def word(self, word: str, limit: int) -> int:
        return self._found(f"trace.text LIKE '%{word}%'", limit)

    def _found(self, said: str, limit: int) -> int:
        return len(
            mlflow.search_traces(locations=self._places, filter_string=said, max_results=limit, return_type="list")
        )


if __name__ == "__main__":
    main(Mlflow)
