"""Phoenix: its own server on its SQLite database, spans sent in batches by `phoenix.otel.register(batch=True)`.

The queue holds all rollouts: OpenTelemetry's default, 2,048 spans, drops what comes quicker than the server takes it.
"""

import json
import os
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any

FOLDER = Path(sys.argv[2]).absolute()


def free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])


PORT, GRPC = free_port(), free_port()
ADDRESS = f"http://127.0.0.1:{PORT}"
os.environ |= {
    "PHOENIX_WORKING_DIR": str(FOLDER),
    "PHOENIX_HOST": "127.0.0.1",
    "PHOENIX_PORT": str(PORT),
    "PHOENIX_GRPC_PORT": str(GRPC),
    "PHOENIX_TELEMETRY_ENABLED": "false",
    "PHOENIX_COLLECTOR_ENDPOINT": ADDRESS,
    "OTEL_BSP_MAX_QUEUE_SIZE": "1000000",
}
from phoenix.client import Client  # noqa: E402
from phoenix.client.types.spans import SpanQuery  # noqa: E402
from phoenix.otel import register  # noqa: E402

from benchmarks.peers.peer import Peer, Row, main  # noqa: E402

PROJECT = "bench"


class Phoenix(Peer):
    """A span for each rollout, its messages in OpenInference's form."""

    package = "arize-phoenix"

    def __init__(self, folder: Path, rows: int) -> None:
        super().__init__(folder, rows)
        command = [sys.executable, "-m", "phoenix.server.main", "serve"]
        self._server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self._rows, self._spans = rows, dict[str, str]()
        until = time.monotonic() + 600
        while not self._is_up():
            assert self._server.poll() is None, "the server ended"
            assert time.monotonic() < until, "the server does not answer"
            time.sleep(0.2)
        self._provider = register(endpoint=f"{ADDRESS}/v1/traces", project_name=PROJECT, batch=True, verbose=False)
        self._tracer, self._client = self._provider.get_tracer("bench"), Client(base_url=ADDRESS)

    def log(self, row: Row) -> None:
        said: dict[str, Any] = {"openinference.span.kind": "LLM", "reward": row["reward"], "rollout": row["id"]}
        for kind, messages in (("input", row["messages"][:2]), ("output", row["messages"][2:])):
            for number, message in enumerate(messages):
                for name, value in message.items():
                    said[f"llm.{kind}_messages.{number}.message.{name}"] = value
        rest = {name: value for name, value in row.items() if name not in {"messages", "reward", "id"}}
        said["metadata"] = json.dumps(rest)
        span = self._tracer.start_span("rollout", attributes=said)
        span.end()
        self._spans[row["id"]] = f"{span.get_span_context().span_id:016x}"

    def stored(self) -> None:
        self._provider.force_flush(600_000)
        until = time.monotonic() + 600
        while self.count() < self._rows and time.monotonic() < until:
            time.sleep(0.1)

    def count(self) -> int:
        asked = json.dumps({"query": "{projects{edges{node{name traceCount}}}}"}).encode()
        request = urllib.request.Request(f"{ADDRESS}/graphql", asked, {"Content-Type": "application/json"})  # noqa: S310
        with urllib.request.urlopen(request, timeout=60) as answer:  # noqa: S310 - this machine's
            edges = json.load(answer)["data"]["projects"]["edges"]
        return next((int(it["node"]["traceCount"]) for it in edges if it["node"]["name"] == PROJECT), 0)

    def opened(self, row_id: str) -> Row:
        (span,) = self._client.spans.get_spans(project_identifier=PROJECT, span_ids=[self._spans[row_id]], timeout=600)
        found = span["attributes"]
        metadata = found.get("metadata", {})
        rest = json.loads(metadata) if isinstance(metadata, str) else metadata
        rest |= {name.removeprefix("metadata."): it for name, it in found.items() if name.startswith("metadata.")}
        return {**rest, **_messages(found)}

    def below(self, reward: float, limit: int) -> int:
        query = SpanQuery().where(f"attributes['reward'] < {reward}")
        return len(
            self._client.spans.get_spans_dataframe(query=query, limit=limit, project_identifier=PROJECT, timeout=600)
        )

    def word(self, word: str, limit: int) -> int:
        query = SpanQuery().where(f"'{word}' in llm.output_messages")
        return len(
            self._client.spans.get_spans_dataframe(query=query, limit=limit, project_identifier=PROJECT, timeout=600)
        )

    def close(self) -> None:
        self._server.terminate()
        self._server.wait(60)

    def _is_up(self) -> bool:
        try:
            with urllib.request.urlopen(f"{ADDRESS}/healthz", timeout=5) as answer:  # noqa: S310 - this machine's
                return bool(answer.status == 200)
        except OSError:
            return False


def _messages(found: dict[str, Any]) -> Row:
    messages = []
    for kind in ("input", "output"):
        flat = {name: value for name, value in found.items() if name.startswith(f"llm.{kind}_messages.")}
        for number in range(len(flat)):
            role = flat.get(f"llm.{kind}_messages.{number}.message.role")
            if role is not None:
                messages.append({"role": role, "content": flat[f"llm.{kind}_messages.{number}.message.content"]})
    return {"messages": messages, "reward": found.get("reward")}


if __name__ == "__main__":
    main(Phoenix)
