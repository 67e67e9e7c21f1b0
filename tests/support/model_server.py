"""A server that sends the replies that a test scripts, in the forms of vLLM 0.32, OpenAI and TRL's older server."""

import gzip
import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from logs_ui.recorder.capture.calls import Collector, Generation, collecting
from logs_ui.recorder.capture.model_answers import Sequence

USAGE = {"prompt_tokens": 3, "total_tokens": 5, "completion_tokens": 2, "prompt_tokens_details": None}
TOOL_CALL = {"id": "call_1", "type": "function", "function": {"name": "guess", "arguments": '{"n": 4}'}}

TOOL_CALL_ITEM = {
    "id": "fc_1", "type": "function_call", "status": "completed",
    "call_id": "call_1", "name": "guess", "arguments": '{"n": 4}',
}  # fmt: skip
"""The same call in OpenAI's Responses API."""


def chat_choice(index: int = 0, *, ids: bool = True, **message: Any) -> dict[str, Any]:
    """Return a choice of vLLM's chat, with the ids in it."""
    entries = [{"token": "4", "logprob": -0.5, "bytes": [52], "top_logprobs": []}] * 2
    return {
        "index": index,
        "message": {"role": "assistant", "content": "4", "refusal": None, "annotations": None} | message,
        "logprobs": {"content": entries} if ids else None,
        "finish_reason": "stop",
        "stop_reason": None,
        "token_ids": [7 + index, 2] if ids else None,
    }


def chat(*choices: dict[str, Any], ids: bool = True) -> dict[str, Any]:
    """A chat completion of vLLM's; the prompt's ids at its top."""
    return {
        "id": "chatcmpl-row-17",
        "object": "chat.completion",
        "created": 1,
        "model": "tiny",
        "choices": list(choices) or [chat_choice(ids=ids)],
        "service_tier": None,
        "usage": USAGE,
        "prompt_logprobs": None,
        "prompt_token_ids": [1, 5, 6] if ids else None,
        "kv_transfer_params": None,
    }


def chat_chunk(index: int = 0, *, finish: str | None = None, ids: list[int] | None = None, **delta: Any) -> Any:
    """An event of a streamed chat completion."""
    entries = [{"token": "4", "logprob": -0.5, "bytes": [52], "top_logprobs": []} for _ in ids or ()]
    choice = {
        "index": index,
        "delta": delta,
        "logprobs": {"content": entries} if ids else None,
        "finish_reason": finish,
        "token_ids": ids,
    }
    return {"id": "chatcmpl-row-17", "object": "chat.completion.chunk", "created": 1, "model": "tiny"} | {
        "choices": [choice]
    }


def chat_stream(*, ids: bool = True) -> list[Any]:
    """A streamed chat completion: role and prompt first, usage last."""
    first = chat_chunk(role="assistant", content="") | {"prompt_token_ids": [1, 5, 6] if ids else None}
    return [
        first,
        chat_chunk(reasoning="Low", ids=[7] if ids else None),
        chat_chunk(content="I say ", ids=[8, 9] if ids else None),
        chat_chunk(content="4", ids=[2] if ids else None, finish="stop"),
        {"id": "chatcmpl-row-17", "object": "chat.completion.chunk", "choices": [], "usage": USAGE},
    ]


def completion(*texts: str, prompts: tuple[list[int], ...] = ([1, 5, 6],), ids: bool = True) -> dict[str, Any]:
    """A completion of vLLM's: all ids in the choices."""
    copies = len(texts) // len(prompts)
    choices = [
        {
            "index": i,
            "text": said,
            "logprobs": {
                "text_offset": [0, 1],
                "token_logprobs": [-0.25, -0.5],
                "tokens": ["4", "</s>"],
                "top_logprobs": [{"4": -0.25}, {"</s>": -0.5}],
            },
            "finish_reason": "length",
            "stop_reason": None,
            "token_ids": [7 + i, 2] if ids else None,
            "prompt_logprobs": None,
            "prompt_token_ids": prompts[i // copies] if ids else None,
        }
        for i, said in enumerate(texts)
    ]
    return {"id": "cmpl-1", "object": "text_completion", "created": 1, "model": "tiny"} | {
        "choices": choices,
        "usage": USAGE,
        "kv_transfer_params": None,
    }


def completion_stream() -> list[Any]:
    """A streamed completion: the prompt's ids in the first choice."""

    def event(text: str, ids: list[int], prompt: list[int] | None = None, finish: str | None = None) -> Any:
        logprobs = {"text_offset": [0], "token_logprobs": [-0.5], "tokens": [text], "top_logprobs": [{text: -0.5}]}
        choice = {"index": 0, "text": text, "logprobs": logprobs, "finish_reason": finish, "token_ids": ids}
        return {"id": "cmpl-1", "object": "text_completion", "choices": [choice | {"prompt_token_ids": prompt}]}

    return [event("gu", [7], [1, 5, 6]), event("ess", [2], finish="stop")]


def response(*output: dict[str, Any], **more: Any) -> dict[str, Any]:
    """Return a response of OpenAI's Responses API."""
    text = {"type": "output_text", "text": "4", "annotations": []}
    message = {"id": "msg_1", "type": "message", "role": "assistant", "status": "completed", "content": [text]}
    return {
        "id": "resp_1",
        "object": "response",
        "created_at": 1,
        "model": "tiny",
        "status": "completed",
        "error": None,
        "incomplete_details": None,
        "instructions": None,
        "output": list(output) or [message],
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
        "usage": {"input_tokens": 3, "output_tokens": 2, "total_tokens": 5},
    } | more


def refused(message: str = "max_tokens must be at least 1, got 0.") -> dict[str, Any]:
    """Return a refusal of vLLM's."""
    return {"error": {"message": message, "type": "BadRequestError", "param": "max_tokens", "code": 400}}


def events(*parts: Any, done: bool = True) -> bytes:
    """Server-sent events as vLLM writes them."""
    said = "".join(f"data: {part if isinstance(part, str) else json.dumps(part)}\n\n" for part in parts)
    return (said + ("data: [DONE]\n\n" if done else "")).encode()


@dataclass
class Reply:
    """One scripted reply.

    Attributes:
        body: JSON, bytes as they are, bytes to send one by one, or a function of what was asked that makes these.
        breaks: closes the connection in the middle.
        encoded: compressed.
        after: seconds until it comes.
    """

    body: Any
    status: int = 200
    kind: str = "application/json"
    breaks: bool = False
    encoded: bool = False
    after: float = 0.0

    @property
    def parts(self) -> list[bytes]:
        if isinstance(self.body, list):
            return self.body
        data = self.body if isinstance(self.body, bytes) else json.dumps(self.body).encode()
        return [gzip.compress(data)] if self.encoded else [data]


def streamed(*parts: Any, **more: Any) -> Reply:
    """A reply in events, each sent by itself."""
    pieces = [events(part, done=False) for part in parts]
    return Reply([*pieces, events()], kind="text/event-stream; charset=utf-8", **more)


@dataclass
class ModelServer:
    """Gives its replies in order, the last for ever.

    Attributes:
        asked: path and body of what came.
        headers: of what came, their names in small letters.
        models: those that it lists; None where it does not know of lists.
    """

    url: str
    models: list[str] | None = field(default_factory=lambda: ["tiny"])
    headers: list[dict[str, str]] = field(default_factory=list)
    replies: list[Reply] = field(default_factory=list)
    asked: list[tuple[str, Any]] = field(default_factory=list)

    def gives(self, *replies: Any) -> None:
        self.replies = [reply if isinstance(reply, Reply) else Reply(reply) for reply in replies]


@contextmanager
def model_server() -> Iterator[ModelServer]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            served = [{"id": name, "object": "model", "created": 1, "owned_by": "vllm"} for name in server.models or ()]
            listed = self.path == "/v1/models" and server.models is not None
            data = json.dumps({"object": "list", "data": served} if listed else {"detail": "Not Found"}).encode()
            self.send_response(200 if listed else 404)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def do_POST(self) -> None:
            server.headers.append({name.lower(): value for name, value in self.headers.items()})
            body = self.rfile.read(int(self.headers.get("content-length", 0)))
            server.asked.append((self.path, json.loads(body)))
            reply = server.replies.pop(0) if len(server.replies) > 1 else server.replies[0]
            if callable(reply.body):
                reply = replace(reply, body=reply.body(json.loads(body)))
            time.sleep(reply.after)
            self.send_response(reply.status)
            self.send_header("Content-Type", reply.kind)
            if reply.encoded:
                self.send_header("Content-Encoding", "gzip")
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            for part in filter(None, reply.parts):
                self.wfile.write(f"{len(part):x}\r\n".encode() + part + b"\r\n")
                self.wfile.flush()
            if reply.breaks:
                self.connection.shutdown(socket.SHUT_RDWR)
                self.close_connection = True
                return
            self.wfile.write(b"0\r\n\r\n")

        def log_message(self, *_: Any) -> None:
            pass

    class Server(ThreadingHTTPServer):
        def handle_error(self, *_: Any) -> None:
            """A client that closes early is no error."""

    with Server(("127.0.0.1", 0), Handler) as http:
        server = ModelServer(f"http://127.0.0.1:{http.server_port}")
        thread = threading.Thread(target=http.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        try:
            yield server
        finally:
            http.shutdown()
            thread.join()


@contextmanager
def recording() -> Iterator[list[Generation]]:
    """Yield a list of the generations that are recorded inside, as they come; at the end it has all."""
    log = Collector()
    try:
        with collecting(log):
            yield log.records.generations
    finally:
        log.close()


def only(generations: list[Generation]) -> tuple[Generation, Sequence]:
    (generation,) = generations
    (sequence,) = generation.sequences
    return generation, sequence


def as_lists(sequence: Sequence) -> list[Any]:
    """Context, sampled ids and log-probs."""
    arrays = (sequence.context, sequence.sampled, sequence.logprobs)
    return [None if array is None else array.tolist() for array in arrays]
