"""A server that speaks as much of OpenAI's chat interface as an evaluation needs. Use vLLM's instead."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import uvicorn
from fastapi import FastAPI

NAME = "tiny"


@contextmanager
def serve(model: Any, tokenizer: Any) -> Iterator[str]:
    """The address, up to /v1, of a server on 127.0.0.1. It answers one request at a time."""
    config = uvicorn.Config(_app(model, tokenizer), host="127.0.0.1", port=0, log_level="warning")
    listener = config.bind_socket()
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    yield f"http://127.0.0.1:{listener.getsockname()[1]}/v1"
    server.should_exit = True
    thread.join()


def _app(model: Any, tokenizer: Any) -> FastAPI:
    app, turn = FastAPI(), threading.Lock()

    @app.get("/v1/models")
    def models() -> dict[str, Any]:
        return {"object": "list", "data": [{"id": NAME, "object": "model"}]}

    @app.post("/v1/chat/completions")
    def chat(request: dict[str, Any]) -> dict[str, Any]:
        with turn:
            return _reply(model, tokenizer, request)

    return app


def _reply(model: Any, tokenizer: Any, request: dict[str, Any]) -> dict[str, Any]:
    given = tokenizer.apply_chat_template(
        request["messages"], add_generation_prompt=True, return_tensors="pt", return_dict=True
    )
    width, limit = given["input_ids"].shape[1], request.get("max_completion_tokens") or request.get("max_tokens") or 16
    model.eval()
    with torch.no_grad():
        output = model.generate(
            **given, do_sample=True, temperature=request.get("temperature") or 1.0, max_new_tokens=limit
        )
    answer = output[0, width:].tolist()
    message = {"role": "assistant", "content": tokenizer.decode(answer, skip_special_tokens=True)}
    finish = "stop" if answer[-1] == tokenizer.eos_token_id else "length"
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": int(time.time()),
        "model": NAME,
        "choices": [{"index": 0, "message": message, "finish_reason": finish}],
        "usage": {
            "prompt_tokens": width,
            "completion_tokens": len(answer),
            "total_tokens": width + len(answer),
        },
    }
