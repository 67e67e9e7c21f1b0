"""litellm's completions, by its own HTTP client and by the openai package's: each is recorded once."""

import asyncio
import os
from collections.abc import Callable
from typing import Any

import orjson
import pytest

os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")  # it would ask the internet for one
litellm: Any = pytest.importorskip("litellm", reason="litellm is not installed")

from logs_ui.recorder.capture.instruments import concurrency  # noqa: E402
from logs_ui.recorder.capture.instruments import litellm as instrument  # noqa: E402
from logs_ui.recorder.capture.instruments import openai as openai_instrument  # noqa: E402
from tests.support.model_server import (  # noqa: E402
    TOOL_CALL,
    ModelServer,
    Reply,
    as_lists,
    chat,
    chat_choice,
    chat_stream,
    only,
    recording,
    refused,
    streamed,
)

MESSAGES = [{"role": "user", "content": "Guess."}]
PROVIDERS = {"hosted_vllm": "litellm", "openai": "openai"}
"""With the seam where their calls are recorded."""


@pytest.fixture(autouse=True)
def _installed() -> None:
    for library in (concurrency, openai_instrument, instrument):
        library.install()


def ask(server: ModelServer, provider: str, **more: Any) -> Any:
    given = {"api_base": f"{server.url}/v1", "api_key": "sk-secret", "messages": MESSAGES, "num_retries": 0}
    answer = litellm.completion(model=f"{provider}/tiny", temperature=0.5, **given, **more)
    return list(answer) if more.get("stream") else answer


def ask_async(server: ModelServer, provider: str, **more: Any) -> Any:
    async def main() -> Any:
        given = {"api_base": f"{server.url}/v1", "api_key": "sk-secret", "messages": MESSAGES, "num_retries": 0}
        answer = await litellm.acompletion(model=f"{provider}/tiny", temperature=0.5, **given, **more)
        return [chunk async for chunk in answer] if more.get("stream") else answer

    return asyncio.run(main())


both = pytest.mark.parametrize("call", [ask, ask_async])
each = pytest.mark.parametrize("provider", PROVIDERS)


@both
@each
def test_a_completion_is_recorded_once(server: ModelServer, call: Callable[..., Any], provider: str) -> None:
    server.gives(chat(chat_choice(tool_calls=[TOOL_CALL], reasoning="Low")))
    with recording() as seen:
        answer = call(server, provider)
    assert answer.choices[0].message.content == "4"
    generation, sequence = only(seen)
    assert (generation.seam, generation.sampling["temperature"]) == (PROVIDERS[provider], 0.5)
    assert as_lists(sequence)[:2] == [[1, 5, 6], [7, 2]]
    assert orjson.loads(sequence.messages or b"") == MESSAGES
    reply = orjson.loads(sequence.reply or b"")
    assert (reply["tool_calls"], reply["reasoning_content"], sequence.finish) == ([TOOL_CALL], "Low", "stop")


@both
@each
def test_a_stream_is_recorded_when_it_was_read(server: ModelServer, call: Callable[..., Any], provider: str) -> None:
    server.gives(streamed(*chat_stream()))
    with recording() as seen:
        chunks = call(server, provider, stream=True)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == "I say 4"
    _, sequence = only(seen)
    assert (sequence.text, sequence.finish) == ("I say 4", "stop")
    assert as_lists(sequence)[1] == [7, 8, 9, 2]


@both
@each
def test_an_error_is_recorded_and_raised(server: ModelServer, call: Callable[..., Any], provider: str) -> None:
    server.gives(Reply(refused("no such model"), status=400))
    with recording() as seen, pytest.raises(litellm.BadRequestError):
        call(server, provider)
    (generation,) = seen
    assert (generation.sequences, generation.is_failure) == ([], True)


def test_what_is_not_recorded_is_passed_on(server: ModelServer) -> None:
    server.gives(chat())
    assert ask(server, "hosted_vllm").choices[0].message.content == "4"
