"""A loop that does not send reasoning back, as loops usually do not: every turn's stands on its message."""

from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from logs_ui.recorder import load_run, start_run, trace_client
from tests.support.model_server import ModelServer, chat, chat_choice, chat_chunk, response, streamed

QUESTION = [
    {"role": "user", "content": "Guess."},
    {"role": "assistant", "content": "4"},
    {"role": "user", "content": "So."},
]
"""The prompt has an answer as an example, equal to those of the model."""
THOUGHTS = ("Halve the rest.", "A little lower.", "It must be seven.")
CALLS = [{"id": f"call_{n}", "type": "function", "function": {"name": "guess", "arguments": "{}"}} for n in range(3)]

Ask = Callable[[str, list[Any]], dict[str, Any]]


def by_chat(server: ModelServer, url: str, messages: list[Any]) -> dict[str, Any]:
    with openai.OpenAI(base_url=f"{url}/v1", api_key="sk-secret") as client:
        message = client.chat.completions.create(model="tiny", messages=messages).choices[0].message
    return {
        "role": "assistant",
        "content": message.content,
        "tool_calls": [it.to_dict() for it in message.tool_calls or ()],
    }


def by_stream(server: ModelServer, url: str, messages: list[Any]) -> dict[str, Any]:
    with openai.OpenAI(base_url=f"{url}/v1", api_key="sk-secret") as client:
        parts = [*client.chat.completions.create(model="tiny", messages=messages, stream=True)]
    content = "".join(part.choices[0].delta.content or "" for part in parts if part.choices)
    return {"role": "assistant", "content": content}


def by_httpx(server: ModelServer, url: str, messages: list[Any]) -> dict[str, Any]:
    with httpx.Client() as client:
        answer = trace_client(client).post(f"{url}/v1/chat/completions", json={"model": "m", "messages": messages})
    message = answer.json()["choices"][0]["message"]
    return {"role": "assistant", "content": message["content"]}


def by_responses(server: ModelServer, url: str, messages: list[Any]) -> dict[str, Any]:
    with openai.OpenAI(base_url=f"{url}/v1", api_key="sk-secret") as client:
        text = client.responses.create(model="tiny", input=messages).output_text
    return {"role": "assistant", "content": text}


def chat_reply(name: str, n: int) -> Any:
    thought: dict[str, Any] = {name: THOUGHTS[n]}
    return chat(chat_choice(content="4", tool_calls=[CALLS[n]], ids=False, **thought), ids=False)


def stream_reply(name: str, n: int) -> Any:
    half = len(THOUGHTS[n]) // 2
    parts: list[dict[str, Any]] = [{name: part} for part in (THOUGHTS[n][:half], THOUGHTS[n][half:])]
    thought = [chat_chunk(**part) for part in parts]
    return streamed(chat_chunk(role="assistant"), *thought, chat_chunk(content="4"), chat_chunk(finish="stop"))


def response_reply(_: str, n: int) -> Any:
    thought = {"id": "rs_1", "type": "reasoning", "summary": [{"type": "summary_text", "text": THOUGHTS[n]}]}
    said = {"id": "m", "type": "message", "role": "assistant", "status": "completed"}
    return response(thought, said | {"content": [{"type": "output_text", "text": "4", "annotations": []}]})


WAYS = {
    "chat": (by_chat, chat_reply), "stream": (by_stream, stream_reply), "httpx": (by_httpx, chat_reply),
    "responses": (by_responses, response_reply),
}  # fmt: skip


def stored(db: Path, server: ModelServer, way: str, name: str, change: Callable[[list[Any]], list[Any]] = list) -> Any:
    """Play three turns; `change` is what the loop does to the conversation before each further turn."""
    ask, reply = WAYS[way]
    server.gives(*[reply(name, n) for n in range(3)])
    with start_run(db=db) as run, run.rollout(QUESTION):
        messages: list[Any] = [*QUESTION]
        for n in range(3):
            messages.append(ask(server, server.url, messages))
            messages.append({"role": "user", "content": f"wrong {n}"})
            messages = change(messages)
    return load_run(run.id, db=db).iloc[0]


def thoughts(row: Any) -> list[Any]:
    return [it.get("reasoning_content") for it in row.messages if it["role"] == "assistant"]


@pytest.mark.parametrize(("way", "name"), [*product(WAYS, ["reasoning"]), ("chat", "reasoning_content")])
def test_reasoning_of_every_turn_is_on_its_message(tmp_path: Path, server: ModelServer, way: str, name: str) -> None:
    row = stored(tmp_path / "a.db", server, way, name)
    assert thoughts(row) == [None, *THOUGHTS]
    assert [it["content"] for it in row.messages if it["role"] == "assistant"] == ["4"] * 4
    assert (row.turns, row.status, row.stop_reason) == (3, "ok", "stop")
    assert not any("reasoning_content" in message for _, body in server.asked for message in body.get("messages", ()))


def _rewritten(messages: list[Any]) -> list[Any]:
    """A loop that keeps only the action of an answer."""
    return [*messages[:-2], {"role": "assistant", "content": f"<{len(messages)}>"}, messages[-1]]


def _windowed(messages: list[Any]) -> list[Any]:
    """A loop that forgets the oldest turn, so that there are fewer answers than turns."""
    return messages if len(messages) < 7 else [*messages[:3], *messages[5:]]


def test_answers_that_the_loop_rewrote_are_known_by_their_place(tmp_path: Path, server: ModelServer) -> None:
    assert thoughts(stored(tmp_path / "a.db", server, "chat", "reasoning", _rewritten)) == [None, *THOUGHTS]


def test_of_a_window_the_answers_are_known_by_their_calls(tmp_path: Path, server: ModelServer) -> None:
    assert thoughts(stored(tmp_path / "a.db", server, "chat", "reasoning", _windowed)) == [None, *THOUGHTS[1:]]
