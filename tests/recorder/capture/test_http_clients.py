"""Clients of requests, httpx and aiohttp that are traced: they do what they did, and it is recorded."""

import asyncio
import copy
import json
import pickle
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import aiohttp
import httpx
import httpx2
import orjson
import pytest
import requests

from logs_ui.recorder import trace_client, untrace_client
from logs_ui.recorder.capture.calls import Collector, Generation, collecting
from logs_ui.recorder.capture.http import exchange
from tests.support.changes import wait_until
from tests.support.exhaustive import cases
from tests.support.model_server import (
    TOOL_CALL,
    TOOL_CALL_ITEM,
    ModelServer,
    Reply,
    as_lists,
    chat,
    chat_chunk,
    chat_stream,
    completion,
    events,
    only,
    recording,
    refused,
    response,
    streamed,
)

MESSAGES = [{"role": "user", "content": "Guess."}]
ASKED: Any = {"model": "tiny", "messages": MESSAGES, "temperature": 0.5, "return_token_ids": True}
CHAT = "/v1/chat/completions"
Answer = tuple[int, bytes]
"""Status and body."""


def by(make: Callable[[], Any]) -> Callable[[str, Any], Answer]:
    """Return what sends by a client that this makes, and reads all at once."""

    def send(url: str, body: Any) -> Answer:
        with trace_client(make()) as client:
            answer = client.post(url, json=body)
            return answer.status_code, answer.content

    return send


by_requests, by_httpx, by_httpx2 = by(requests.Session), by(httpx.Client), by(httpx2.Client)


def by_requests_read(url: str, body: Any) -> Answer:
    with trace_client(requests.Session()) as session, session.post(url, json=body, stream=True) as answer:
        return answer.status_code, b"".join(answer.iter_content(7))


def by_requests_text(url: str, body: Any) -> Answer:
    answer = trace_client(requests.Session()).request("post", url, json=body, stream=True)
    parts = list(answer.iter_content(None, decode_unicode=True))
    return answer.status_code, b"".join(part.encode() if isinstance(part, str) else part for part in parts)


def by_httpx_stream(url: str, body: Any) -> Answer:
    with trace_client(httpx.Client()) as client, client.stream("POST", url, json=body) as answer:
        return answer.status_code, b"".join(answer.iter_bytes())


def by_httpx_async(url: str, body: Any) -> Answer:
    async def main() -> Answer:
        async with trace_client(httpx.AsyncClient()) as client:
            answer = await client.post(url, json=body)
            return answer.status_code, answer.content

    return asyncio.run(main())


def by_httpx_async_stream(url: str, body: Any) -> Answer:
    async def main() -> Answer:
        async with trace_client(httpx.AsyncClient()) as client, client.stream("POST", url, json=body) as answer:
            return answer.status_code, await answer.aread()

    return asyncio.run(main())


def by_aiohttp(read: Callable[[aiohttp.ClientResponse], Any]) -> Callable[[str, Any], Answer]:
    async def main(url: str, body: Any) -> Answer:
        async with aiohttp.ClientSession() as session, trace_client(session).post(url, json=body) as answer:
            return answer.status, await read(answer)

    return lambda url, body: asyncio.run(main(url, body))


async def lines(answer: aiohttp.ClientResponse) -> bytes:
    return b"".join([line async for line in answer.content])


async def pieces(answer: aiohttp.ClientResponse) -> bytes:
    return b"".join([piece async for piece in answer.content.iter_chunked(n=5)])


async def any_pieces(answer: aiohttp.ClientResponse) -> bytes:
    return b"".join([piece async for piece in answer.content.iter_any()])


async def chunks(answer: aiohttp.ClientResponse) -> bytes:
    return b"".join([piece async for piece, _ in answer.content.iter_chunks()])


class Alike:
    def post(self, url: str, json: Any) -> requests.Response:
        return requests.post(url, json=json, timeout=10)


def by_another(url: str, body: Any) -> Answer:
    answer = trace_client(Alike()).post(url, json=body)
    return answer.status_code, answer.content


WHOLE: list[Callable[..., Answer]] = [by_requests, by_httpx, by_httpx2, by_httpx_async, by_another]
READ: list[Callable[..., Answer]] = [
    by_requests_read,
    by_requests_text,
    by_httpx_stream,
    by_httpx_async_stream,
    *map(by_aiohttp, [aiohttp.ClientResponse.read, lines, pieces, any_pieces, chunks]),
]
every_client = pytest.mark.parametrize("send", WHOLE + READ)
_FIRST = [by_requests_read, by_httpx, READ[-1], by_another]
each_library = pytest.mark.parametrize("send", cases([*dict.fromkeys([*_FIRST, *WHOLE, *READ])], len(_FIRST)))
"""For what is told by the texts alone, whoever reads them."""


@every_client
def test_a_chat_is_recorded(server: ModelServer, send: Callable[..., Answer]) -> None:
    server.gives(chat())
    with recording() as seen:
        status, body = send(server.url + CHAT, ASKED)
        assert len(seen) == 1
    assert (status, json.loads(body)) == (200, chat())
    generation, sequence = only(seen)
    assert as_lists(sequence)[:2] == [[1, 5, 6], [7, 2]]
    assert (sequence.text, sequence.finish, sequence.prompt_tokens) == ("4", "stop", 3)
    assert orjson.loads(sequence.messages or b"") == MESSAGES
    assert generation.sampling == {"model": "tiny", "temperature": 0.5}
    assert (generation.seam, generation.request_id) == ("http", "chatcmpl-row-17")


@every_client
def test_a_stream_of_events_is_recorded_when_it_was_read(server: ModelServer, send: Callable[..., Answer]) -> None:
    server.gives(streamed(*chat_stream()))
    with recording() as seen:
        _, body = send(server.url + CHAT, ASKED | {"stream": True})
        assert len(seen) == 1
    assert body.strip() == events(*chat_stream()).strip()
    _, sequence = only(seen)
    assert (sequence.text, as_lists(sequence)[1], sequence.completion_tokens) == ("I say 4", [7, 8, 9, 2], 2)


@each_library
def test_responses_are_recorded_whole_and_streamed(server: ModelServer, send: Callable[..., Answer]) -> None:
    thought = {"id": "rs_1", "type": "reasoning", "summary": [{"type": "summary_text", "text": "Low"}]}
    created, done = (
        {"type": f"response.{name}", "response": response(thought, id=name)} for name in ("created", "completed")
    )
    server.gives(
        response(thought, TOOL_CALL_ITEM), Reply([events(created, done, done=False)], kind="text/event-stream")
    )
    with recording() as seen:
        send(f"{server.url}/v1/responses", {"model": "tiny", "input": "Guess.", "instructions": "Be brief."})
        output = [{"type": "function_call_output", "call_id": "call_1", "output": "too low"}]
        send(f"{server.url}/v1/responses", {"input": output, "previous_response_id": "resp_1", "stream": True})
    called, said = (generation.sequences[0] for generation in seen)
    answer = {"role": "assistant", "content": None, "reasoning_content": "Low", "tool_calls": [TOOL_CALL]}
    assert orjson.loads(called.reply or b"") == answer
    assert orjson.loads(said.messages or b"") == [
        *MESSAGES,
        answer,
        {"role": "tool", "tool_call_id": "call_1", "content": "too low"},
    ]
    assert (orjson.loads(said.reply or b"")["reasoning_content"], said.finish) == ("Low", "stop")


@every_client
def test_a_refusal_is_an_error_and_the_next_a_call_of_its_own(server: ModelServer, send: Callable[..., Answer]) -> None:
    server.gives(Reply({"detail": "overloaded"}, status=500), Reply(refused(), status=400), chat())
    with recording() as seen:
        assert [send(server.url + CHAT, ASKED)[0] for _ in range(3)] == [500, 400, 200]
    errors = [generation.error for generation in seen]
    assert errors == ["HTTP 500: overloaded", "HTTP 400: max_tokens must be at least 1, got 0.", None]
    assert [len(generation.sequences) for generation in seen] == [0, 0, 1]


@each_library
def test_what_is_no_reply_is_ignored(server: ModelServer, send: Callable[..., Answer]) -> None:
    bodies = [b"no JSON", b"", b"[1]", b"{}", b'{"choices": [7]}', b"data: x\n\n", b"\xff\xfe\x00"]
    server.gives(*map(Reply, bodies))
    with recording() as seen:
        for body in bodies:
            status, read = send(server.url + CHAT, ASKED)
            assert (status, read.decode(errors="replace")) == (200, body.decode(errors="replace"))
    assert not seen


@each_library
def test_other_calls_are_left_alone(server: ModelServer, send: Callable[..., Answer]) -> None:
    server.gives(chat())
    with recording() as seen:
        send(server.url + "/v1/embeddings", ASKED)
        send(server.url + "/v1/chat/completions/render", ASKED)
        send(server.url + CHAT, {"model": "tiny"})
        send(server.url + CHAT, "Guess.")
    assert not seen


@every_client
def test_what_cannot_be_reached_is_an_error(send: Callable[..., Answer]) -> None:
    with recording() as seen, pytest.raises(Exception, match=r"(?i)connect|refused"):
        send("http://127.0.0.1:1" + CHAT + "?api-key=sk-secret", ASKED)
    (generation,) = seen
    assert generation.error
    assert generation.sampling["model"] == "tiny"
    assert "sk-secret" not in repr(seen)


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_a_reply_that_never_came_is_a_failed_generation(server: ModelServer, *, stream: bool) -> None:
    server.gives(Reply(streamed("yes") if stream else chat(), after=1.0))
    session = trace_client(requests.Session())

    def ask() -> None:
        for _ in session.post(server.url + CHAT, json=ASKED | {"stream": stream}, stream=stream).iter_content(1):
            pass

    executor = ThreadPoolExecutor(1)
    with recording() as seen:
        executor.submit(ask)
        wait_until(lambda: bool(server.asked))
    assert [(one.error, one.seam, one.sequences) for one in seen] == [
        ("TimeoutError: the rollout ended before this call came back", "http", [])
    ]
    assert seen[0].sampling["model"] == "tiny"
    executor.shutdown()
    assert len(seen) == 1


def test_a_stream_that_hangs_before_its_first_part_failed(server: ModelServer) -> None:
    """The status has come, so the request itself has come back."""
    begun, over = threading.Event(), threading.Event()

    def parts() -> Iterator[bytes]:
        begun.set()
        over.wait(30)
        yield b"data: [DONE]\n\n"

    transport = httpx.MockTransport(lambda _: httpx.Response(200, content=parts()))
    executor = ThreadPoolExecutor(1)

    def ask() -> None:
        with trace_client(httpx.Client(transport=transport)).stream("POST", server.url + CHAT, json=ASKED) as reply:
            reply.read()

    with recording() as seen:
        executor.submit(ask)
        assert begun.wait(60)
    over.set()
    executor.shutdown()
    assert [one.error for one in seen] == ["TimeoutError: the rollout ended before this call came back"]


def test_tokens_written_as_ids_are_ids(server: ModelServer) -> None:
    reply = completion("4", ids=False)
    reply["choices"][0]["logprobs"]["tokens"] = ["token_id:7", "token_id:2"]
    server.gives(reply)
    with recording() as seen:
        by_requests(server.url + "/v1/completions", {"prompt": [1, 5], "return_tokens_as_token_ids": True})
    assert as_lists(seen[0].sequences[0])[1] == [7, 2]


def test_vllms_tokens_in_and_tokens_out_are_recorded(server: ModelServer) -> None:
    entries = [{"token": "token_id:7", "logprob": -0.5}, {"token": "token_id:2", "logprob": -0.25}]
    choice = {"index": 0, "logprobs": {"content": entries}, "finish_reason": "stop", "token_ids": [7, 2]}
    server.gives({"request_id": "row-3", "choices": [choice], "prompt_logprobs": None, "kv_transfer_params": None})
    sent = {"token_ids": [1, 5], "sampling_params": {"temperature": 0.5, "max_tokens": 2}, "request_id": "row-3"}
    with recording() as seen:
        by_httpx(server.url + "/inference/v1/generate", sent)
    assert as_lists(seen[0].sequences[0]) == [[1, 5], [7, 2], [-0.5, -0.25]]
    assert (seen[0].sampling, seen[0].request_id) == ({"temperature": 0.5, "max_tokens": 2}, "row-3")


@pytest.mark.parametrize("logprobs", [[[-0.5, -0.25], [-1.0]], [[[-0.5], [-0.25]], [[-1.0]]]])
@pytest.mark.parametrize(
    ("path", "sent", "asked"),
    [("/generate/", {"prompts": ["Guess", "3"]}, "3"), ("/chat/", {"messages": [MESSAGES, MESSAGES]}, MESSAGES)],
)
def test_the_older_server_of_trl_is_known(
    server: ModelServer, path: str, sent: dict[str, Any], asked: Any, logprobs: list[Any]
) -> None:
    server.gives({"prompt_ids": [[1], [3, 4]], "completion_ids": [[7, 2], [8]], "logprobs": logprobs})
    with recording() as seen:
        by_requests(server.url + path, sent | {"n": 1, "max_tokens": 4, "generation_kwargs": {"seed": 3}})
    first, second = seen[0].sequences
    assert as_lists(first) == [[1], [7, 2], [-0.5, -0.25]]
    assert (as_lists(second)[1], second.finish, orjson.loads(second.messages or b"")) == ([8], None, asked)
    assert seen[0].sampling == {"n": 1, "max_tokens": 4, "seed": 3}


def test_why_an_answer_of_the_older_server_ended_is_told_by_its_ids(server: ModelServer) -> None:
    server.gives({"prompt_ids": [[1], [1], [1]], "completion_ids": [[7, 2], [7, 8, 9, 9], [7]], "logprobs": None})
    log = Collector(model=SimpleNamespace(generation_config=SimpleNamespace(eos_token_id=2)))
    with collecting(log):
        by_requests(server.url + "/generate/", {"prompts": ["a", "b", "c"], "n": 1, "max_tokens": 4})
    (one,) = log.records.generations
    assert [sequence.finish for sequence in one.sequences] == ["stop", "length", None]


def test_what_only_scores_is_no_generation(server: ModelServer) -> None:
    server.gives(completion("4"))
    with recording() as seen:
        by_requests(server.url + "/v1/completions", {"prompt": [1, 5], "max_tokens": 1, "prompt_logprobs": 5})
        by_requests(server.url + "/v1/completions", {"prompt": [1, 5], "max_tokens": 0, "echo": True})
    assert not seen


def test_trls_own_client_is_recorded_once(server: ModelServer) -> None:
    from trl.generation.vllm_client import VLLMClient

    client = VLLMClient.__new__(VLLMClient)  # its __init__ wants vLLM installed
    client.session, client.base_url, client.model = trace_client(requests.Session()), server.url, "tiny"
    reply = completion("4")
    reply["choices"][0]["logprobs"] |= {"tokens": ["token_id:7", "token_id:2"]}
    reply["choices"][0]["logprobs"]["top_logprobs"] = [{"token_id:7": -0.25}, {"token_id:2": -0.5}]
    server.gives(reply)
    with recording() as seen:
        output = client.generate([[1, 5, 6]])
    assert output["completion_ids"] == [[7, 2]]
    (generation,) = seen
    assert [as_lists(sequence)[1] for sequence in generation.sequences] == [[7, 2]]


def test_replies_are_as_they_were_to_libraries_and_users(server: ModelServer) -> None:
    server.gives(chat(), streamed(*chat_stream()))
    with recording():
        with trace_client(requests.Session()) as session:
            answer = session.post(server.url + CHAT, json=ASKED)
            assert pickle.loads(pickle.dumps(answer)).json() == chat()  # noqa: S301 - our own
            assert session.get_adapter(server.url) is copy.copy(session).get_adapter(server.url)
        with trace_client(httpx.Client()) as client:
            reply = client.post(server.url + CHAT, json=ASKED)
            assert pickle.loads(pickle.dumps(reply)).content == events(*chat_stream())  # noqa: S301


def test_only_the_client_that_is_named_is_traced(server: ModelServer) -> None:
    server.gives(chat())
    traced: Any = [trace_client(requests.Session()), trace_client(httpx.Client())]
    for client in traced:
        assert client.post(server.url + CHAT, json=ASKED).status_code == 200, "outside of a rollout"
    with recording() as seen:
        requests.post(server.url + CHAT, json=ASKED, timeout=10)
        requests.Session().post(server.url + CHAT, json=ASKED)
        httpx.Client().post(server.url + CHAT, json=ASKED)
    assert not seen


@pytest.mark.parametrize("make", [requests.Session, httpx.Client, Alike])
def test_a_client_is_traced_once_and_can_be_let_go(server: ModelServer, make: Callable[[], Any]) -> None:
    server.gives(chat())
    client = make()
    before = dict(vars(client))
    assert trace_client(trace_client(client)) is client
    with recording() as seen:
        client.post(server.url + CHAT, json=ASKED)
        assert len(seen) == 1
        assert untrace_client(client) is client
        client.post(server.url + CHAT, json=ASKED)
    assert len(seen) == 1
    assert vars(untrace_client(client)).keys() == before.keys()


def test_a_method_of_the_clients_own_is_put_back() -> None:
    session = requests.Session()
    own = session.send
    vars(session)["send"] = own
    untrace_client(trace_client(session))
    assert vars(session)["send"] is own


@pytest.mark.parametrize(
    ("client", "said"),
    [
        (requests, "the module requests|requests, which others use"),
        (httpx.Client, "Client, which others"),
        (3, "an? int"),
    ],
)
def test_what_is_no_client_is_refused(client: object, said: str) -> None:
    with pytest.raises(TypeError, match=said):
        trace_client(client)


def generations_after(log: Collector) -> list[Generation]:
    log.close()
    return log.records.generations


@asynccontextmanager
async def aiohttp_answer(url: str) -> AsyncIterator[aiohttp.ClientResponse]:
    async with aiohttp.ClientSession() as session, trace_client(session).post(url, json=ASKED) as answer:
        yield answer


def test_a_stream_that_is_left_is_recorded_as_far_as_it_was_read(server: ModelServer) -> None:
    part = events(chat_chunk(content="4", ids=[7]), done=False)
    server.gives(Reply([part, b": and so on\n\n"], kind="text/event-stream"))

    async def by_aiohttp() -> None:
        async with aiohttp_answer(server.url + CHAT) as answer:
            assert await answer.content.readexactly(len(part)) == part

    log = Collector()
    with collecting(log):
        left = trace_client(requests.Session()).post(server.url + CHAT, json=ASKED, stream=True)
        assert next(left.iter_content(len(part))) == part
        with trace_client(httpx.Client()) as client, client.stream("POST", server.url + CHAT, json=ASKED) as answer:
            assert next(answer.iter_bytes(len(part))) == part
        asyncio.run(by_aiohttp())
        unread = trace_client(requests.Session()).post(server.url + CHAT, json=ASKED, stream=True)
    assert [generation.sequences[0].text for generation in generations_after(log)] == ["4", "4", "4"]
    assert generations_after(log)[0].sequences[0].finish is None
    assert unread.raw.read() == part + b": and so on\n\n"
    assert len(generations_after(log)) == 3


def test_a_connection_that_breaks_is_an_error_to_both(server: ModelServer) -> None:
    part = events(chat_chunk(content="4"), done=False)
    server.gives(Reply([part], kind="text/event-stream", breaks=True))
    with recording() as seen:
        for send in READ:
            with pytest.raises(Exception, match=r"(?i)payload|connection|incomplete|peer|prematurely"):
                send(server.url + CHAT, ASKED)
    assert len(seen) == len(READ)
    assert all(generation.error and not generation.sequences for generation in seen)


def test_a_reply_beyond_all_bounds_is_not_kept(server: ModelServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exchange, "_LARGEST", 1000)
    huge = chat() | {"kv_transfer_params": "x" * 2000}
    server.gives(huge)
    with recording() as seen:
        for send in (by_requests, by_httpx_stream):
            assert json.loads(send(server.url + CHAT, ASKED)[1]) == huge
    assert not seen


def test_a_model_cannot_end_its_own_stream(server: ModelServer) -> None:
    said = "data: [DONE]" + " " * 52  # as much as is looked at
    first = events(chat_chunk(content=said), done=False)
    cut = first.index(said.encode()) + len(said)
    server.gives(Reply([first[:cut], first[cut:], events(chat_chunk(content="4", finish="stop"))]))
    with recording() as seen:
        by_httpx_stream(server.url + CHAT, ASKED)
    assert (seen[0].sequences[0].text, seen[0].sequences[0].finish) == (said + "4", "stop")


def test_a_generation_is_over_with_the_event_that_says_so(server: ModelServer) -> None:
    server.gives(Reply([events(*chat_stream()), b": bye\n\n"], kind="text/event-stream"))
    with recording() as seen:
        answer = trace_client(requests.Session()).post(server.url + CHAT, json=ASKED, stream=True)
        for line in answer.iter_lines():
            if line == b"data: [DONE]":
                break
        assert len(seen) == 1
