"""Whatever a server replies and a client sends, reading it raises nothing and makes up nothing."""

from typing import Any

import numpy as np
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from logs_ui.recorder.capture.http.replies import Request, error_of, parsed, reply_of, request_id, request_of
from logs_ui.recorder.capture.model_answers import Sequence
from tests.support.model_server import TOOL_CALL, chat, chat_stream, completion, completion_stream, events, response

SENT: dict[str, Any] = {
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "Guess."}]},
    "/v1/completions": {"prompt": ["a", [1, 2]], "n": 2},
    "/v1/responses": {"input": "Guess."},
    "/inference/v1/generate": {"token_ids": [1, 2]},
    "/generate/": {"prompts": ["a", "b"], "n": 2},
    "/chat/": {"messages": [[{"role": "user", "content": "Guess."}]]},
}
REPLIES = [
    chat(),
    completion("a", "b", "c", "d", prompts=([1], [2])),
    response({"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}),
    {"prompt_ids": [[1], [2]], "completion_ids": [[3]] * 4, "logprobs": [[-1.0]] * 4},
    *chat_stream(),
    *completion_stream(),
    {"type": "response.output_text.delta", "delta": "4"},
    {"type": "response.completed", "response": response()},
]
NAMES = sorted({name for reply in REPLIES for name in reply} | {"error", "detail", "message", "text", "status"})
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.sampled_from(REPLIES),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(NAMES), inner, max_size=4),
    max_leaves=8,
)


def question(path: str) -> Request:
    found = request_of(f"http://host{path}", SENT[path])
    assert found is not None
    return found


def mixed(reply: dict[str, Any], name: str, value: Any) -> dict[str, Any]:
    """The reply with something else somewhere in it."""
    if name in reply:
        return reply | {name: value}
    return {
        key: [mixed(one, name, value) if isinstance(one, dict) else one for one in inner]
        if isinstance(inner, list)
        else mixed(inner, name, value)
        if isinstance(inner, dict)
        else inner
        for key, inner in reply.items()
    }


INNER = ["index", "message", "delta", "logprobs", "token_ids", "prompt_token_ids", "tool_calls", "content", "function"]


@given(reply=st.sampled_from(REPLIES), name=st.sampled_from(NAMES + INNER), value=values, status=st.integers(100, 599))
def test_no_reply_makes_reading_fail(reply: dict[str, Any], name: str, value: Any, status: int) -> None:
    odd = mixed(reply, name, value)
    for path in SENT:
        for read in (odd, reply_of(events(reply, odd, reply)) or {}):
            sequences = question(path).sequences(read)
            assert all(isinstance(sequence, Sequence) and sequence.size >= 0 for sequence in sequences)
            error_of(read, status)
            request_id(read)


@given(path=st.sampled_from(list(SENT)), name=st.sampled_from(["messages", "prompt", "prompts", "input"]), value=values)
def test_no_request_makes_reading_fail(path: str, name: str, value: Any) -> None:
    found = request_of(path, SENT[path] | {name: value, "n": value})
    assert found is None or found.copies >= 1


@given(st.binary(max_size=40))
def test_no_bytes_make_reading_fail(data: bytes) -> None:
    reply_of(data)
    reply_of(b"data: " + data)
    request_of("/v1/completions", data)


@pytest.mark.parametrize(
    "url",
    ["/v1/embeddings", "http://[::1", "/v1/chat/completions/render", "/completions-of-mine", "/v1/responses/resp_1"],
)
def test_other_addresses_are_no_generation_endpoints(url: str) -> None:
    assert request_of(url, SENT["/v1/chat/completions"] | {"prompt": "a", "input": "a"}) is None


@pytest.mark.parametrize(
    "url", ["https://host/openai/deployments/d/chat/completions?api-version=1", "/chat/completions/"]
)
def test_generation_endpoints_are_known_wherever_they_stand(url: str) -> None:
    assert request_of(url, orjson.dumps(SENT["/v1/chat/completions"])) is not None


def test_json_that_orjson_refuses_is_read() -> None:
    assert parsed(b'{"x": "\\ud800"}') == {"x": "\ud800"}
    assert np.isnan(parsed("[NaN]")[0])
    assert parsed("[" * 100_000) is None
    assert parsed(None) is None


def test_text_that_no_database_holds_is_mended() -> None:
    reply = reply_of(b'{"choices": [{"index": 0, "text": "a\\ud800"}]}')
    assert question("/v1/completions").sequences(reply or {})[0].text == "a\ufffd"


def test_a_reply_is_the_same_streamed_or_whole() -> None:
    whole = chat()
    whole["choices"][0]["message"] |= {"tool_calls": [TOOL_CALL], "content": None}
    first, second = '{"n"', ": 4}"
    call = TOOL_CALL | {"function": {"name": "guess", "arguments": first}}

    def chunk(delta: dict[str, Any], token: int, finish: str | None = None) -> dict[str, Any]:
        logprobs = {"content": [{"token": "4", "logprob": -0.5}]}
        choice = {"index": 0, "delta": delta, "token_ids": [token], "logprobs": logprobs, "finish_reason": finish}
        return {"id": whole["id"], "choices": [choice]}

    parts = [
        chunk({"tool_calls": [call | {"index": 0}]}, 7) | {"prompt_token_ids": [1, 5, 6]},
        chunk({"tool_calls": [{"index": 0, "function": {"arguments": second}}]}, 2, "stop"),
        {"id": whole["id"], "choices": [], "usage": whole["usage"]},
    ]
    ask = question("/v1/chat/completions")
    (expected,) = ask.sequences(whole)
    (found,) = ask.sequences(reply_of(events(*parts).replace(b"\n", b"\r\n")) or {})
    assert repr(found) == repr(expected)


def test_an_error_is_told_in_one_line() -> None:
    assert error_of({"error": {"message": "no\nroom", "type": "x"}}, 200) == "The server: no room"
    assert error_of({"object": "error", "message": "no room", "code": 400}, 400) == "HTTP 400: no room"
    assert error_of({"detail": [{"loc": ["body"]}]}, 422) == 'HTTP 422: [{"loc":["body"]}]'
    assert error_of(None, 502) == "HTTP 502"
    assert error_of({"error": None}, 200) is None
