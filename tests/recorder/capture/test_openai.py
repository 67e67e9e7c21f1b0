"""The openai package's own clients, against a server: what they return is untouched, and what it was is recorded."""

import asyncio
import json
import time
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import httpx2
import openai
import orjson
import pytest
from pydantic import BaseModel

from logs_ui.recorder import trace_client
from logs_ui.recorder.capture.instruments import concurrency
from logs_ui.recorder.capture.instruments import openai as instrument
from logs_ui.recorder.capture.model_answers import Sequence
from tests.support.model_server import (
    TOOL_CALL,
    TOOL_CALL_ITEM,
    ModelServer,
    Reply,
    as_lists,
    chat,
    chat_choice,
    chat_chunk,
    chat_stream,
    completion,
    completion_stream,
    events,
    only,
    recording,
    refused,
    response,
    streamed,
)

MESSAGES: Any = [{"role": "user", "content": "Guess."}]
EXTRA = {"return_token_ids": True, "top_k": 5}


@pytest.fixture(autouse=True)
def _installed() -> None:
    concurrency.install()
    instrument.install()


@pytest.fixture
def client(server: ModelServer) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="sk-secret", max_retries=2) as client:
        yield client


def ask(client: openai.OpenAI, **more: Any) -> Any:
    return client.chat.completions.create(model="tiny", messages=MESSAGES, temperature=0.5, extra_body=EXTRA, **more)


def test_a_chat_is_recorded_with_what_vllm_adds(server: ModelServer, client: openai.OpenAI) -> None:
    server.gives(Reply(chat(), after=0.05))
    with recording() as seen:
        answer = ask(client, max_tokens=2, logprobs=True)
    assert type(answer) is openai.types.chat.ChatCompletion
    assert answer.choices[0].message.content == "4"
    generation, sequence = only(seen)
    assert as_lists(sequence) == [[1, 5, 6], [7, 2], [-0.5, -0.5]]
    assert (sequence.text, sequence.reply, sequence.finish) == ("4", None, "stop")
    assert orjson.loads(sequence.messages or b"") == MESSAGES
    assert (sequence.prompt_tokens, sequence.completion_tokens) == (3, 2)
    assert (generation.seam, generation.request_id, generation.error) == ("openai", "chatcmpl-row-17", None)
    assert generation.sampling == {"model": "tiny", "temperature": 0.5, "max_tokens": 2, "top_k": 5}
    assert generation.strand is not None
    assert 0.05 <= (generation.seconds or 0) < 60


def test_messages_are_those_that_were_sent_whatever_becomes_of_them(server: ModelServer, client: openai.OpenAI) -> None:
    server.gives(chat())
    messages: Any = [{"role": "user", "content": "Guess."}]
    with recording() as seen:
        client.chat.completions.create(model="tiny", messages=messages)
        messages.append({"role": "user", "content": "Again."})
    assert orjson.loads(only(seen)[1].messages or b"") == MESSAGES


def test_several_answers_are_several_sequences(server: ModelServer, client: openai.OpenAI) -> None:
    server.gives(chat(chat_choice(0), chat_choice(1, content="5")))
    with recording() as seen:
        ask(client, n=2)
    assert [sequence.text for sequence in seen[0].sequences] == ["4", "5"]
    assert [as_lists(s)[:2] for s in seen[0].sequences] == [[[1, 5, 6], [7, 2]], [[1, 5, 6], [8, 2]]]
    assert [(s.prompt_tokens, s.completion_tokens) for s in seen[0].sequences] == [(3, None)] * 2  # counted together
    assert seen[0].sampling["n"] == 2


def test_tool_calls_and_reasoning_are_in_the_reply(server: ModelServer, client: openai.OpenAI) -> None:
    choice = chat_choice(content=None, reasoning="Low?", tool_calls=[TOOL_CALL]) | {"finish_reason": "tool_calls"}
    server.gives(chat(choice))
    with recording() as seen:
        ask(client, tool_choice="auto")
    _, sequence = only(seen)
    assert sequence.finish == "tool_calls"
    assert orjson.loads(sequence.reply or b"") == {
        "role": "assistant",
        "content": None,
        "reasoning_content": "Low?",
        "tool_calls": [TOOL_CALL],
    }


@pytest.mark.parametrize(("prompt", "words"), [("Guess.", b'"Guess."'), ([1, 5, 6], None)])
def test_completions_are_recorded(server: ModelServer, client: openai.OpenAI, prompt: Any, words: bytes | None) -> None:
    server.gives(completion("guess"))
    with recording() as seen:
        client.completions.create(model="tiny", prompt=prompt, logprobs=1, extra_body=EXTRA)
    _, sequence = only(seen)
    assert as_lists(sequence) == [[1, 5, 6], [7, 2], [-0.25, -0.5]]
    assert (sequence.text, sequence.finish, sequence.messages) == ("guess", "length", words)


def test_ids_that_were_sent_are_known_without_the_server(server: ModelServer, client: openai.OpenAI) -> None:
    server.gives(completion("a", "b", "c", "d", prompts=([], []), ids=False))
    with recording() as seen:
        client.completions.create(model="tiny", prompt=[[1, 2], [3]], n=2)
    assert [as_lists(s)[:2] for s in seen[0].sequences] == [[i, None] for i in ([1, 2], [1, 2], [3], [3])]
    assert [s.text for s in seen[0].sequences] == ["a", "b", "c", "d"]
    assert {s.prompt_tokens for s in seen[0].sequences} == {None}  # of two prompts together


def test_responses_are_recorded(server: ModelServer, client: openai.OpenAI) -> None:
    call = {"id": "fc_1", "type": "function_call", "call_id": "call_1", "name": "guess", "arguments": '{"n": 4}'}
    thought = {"id": "rs_1", "type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "Low"}]}
    server.gives(response(), response(thought, call))
    with recording() as seen:
        client.responses.create(model="tiny", input="Guess.", instructions="Be brief.", max_output_tokens=5)
        client.responses.create(model="tiny", input=MESSAGES)
    said, called = (generation.sequences[0] for generation in seen)
    assert orjson.loads(said.messages or b"") == [{"role": "system", "content": "Be brief."}, *MESSAGES]
    assert (said.text, said.finish, said.prompt_tokens, said.completion_tokens) == ("4", "stop", 3, 2)
    assert called.finish == "tool_calls"
    message = orjson.loads(called.reply or b"")
    assert (message["tool_calls"], message["reasoning_content"]) == ([TOOL_CALL], "Low")
    assert seen[0].request_id == "resp_1"


def test_a_stream_is_the_clients_own_and_recorded_when_it_ends(server: ModelServer, client: openai.OpenAI) -> None:
    server.gives(streamed(*chat_stream()))
    with recording() as seen:
        stream = ask(client, stream=True, stream_options={"include_usage": True})
        assert type(stream) is openai.Stream
        first = next(stream)
        assert not seen
        rest = list(stream)
        assert len(seen) == 1
    assert [type(chunk) for chunk in (first, *rest)] == [openai.types.chat.ChatCompletionChunk] * 5
    generation, sequence = only(seen)
    assert as_lists(sequence) == [[1, 5, 6], [7, 8, 9, 2], [-0.5] * 4]
    assert (sequence.text, sequence.finish) == ("I say 4", "stop")
    assert orjson.loads(sequence.reply or b"")["reasoning_content"] == "Low"
    assert (sequence.prompt_tokens, sequence.completion_tokens) == (3, 2)
    assert generation.request_id == "chatcmpl-row-17"


def test_streams_of_several_answers_are_told_apart(server: ModelServer, client: openai.OpenAI) -> None:
    chunks = [chat_chunk(i, content=bit, ids=[i]) for bit in ("a", "b") for i in (1, 0)]
    server.gives(streamed(*chunks))
    with recording() as seen:
        list(ask(client, stream=True, n=2))
    assert [(one.text, as_lists(one)[1]) for one in seen[0].sequences] == [("ab", [0, 0]), ("ab", [1, 1])]


def test_streamed_completions_and_responses_are_recorded(server: ModelServer, client: openai.OpenAI) -> None:
    delta = {"type": "response.output_text.delta", "delta": "4", "item_id": "msg_1", "output_index": 0}
    created = {"type": "response.created", "response": response(status="in_progress")}
    completed = {"type": "response.completed", "response": response()}
    server.gives(streamed(*completion_stream()), streamed(created, delta, completed), streamed(created, delta))
    with recording() as seen:
        list(client.completions.create(model="tiny", prompt="Guess.", stream=True, extra_body=EXTRA))
        list(client.responses.create(model="tiny", input="Guess.", stream=True))
        list(client.responses.create(model="tiny", input="Guess.", stream=True))
    written, said, cut = (generation.sequences[0] for generation in seen)
    assert (written.text, as_lists(written)[:2]) == ("guess", [[1, 5, 6], [7, 2]])
    assert (said.text, said.finish, said.completion_tokens) == ("4", "stop", 2)
    assert (cut.text, cut.finish) == ("4", None)


@pytest.mark.parametrize(
    "leave", [lambda stream: None, lambda stream: stream.close(), lambda stream: stream.__exit__(None, None, None)]
)
def test_a_stream_that_is_left_early_is_recorded_as_far_as_it_was_read(
    server: ModelServer, client: openai.OpenAI, leave: Callable[[Any], None]
) -> None:
    server.gives(Reply([events(chat_chunk(content="4", ids=[7]), done=False)] * 3, kind="text/event-stream"))
    with recording() as seen:
        stream = ask(client, stream=True)
        for _ in stream:
            break
        leave(stream)
    _, sequence = only(seen)
    assert sequence.finish is None
    assert sequence.text in {"4", "44", "444"}


def test_a_stream_that_breaks_is_an_error_to_both(server: ModelServer, client: openai.OpenAI) -> None:
    server.gives(Reply([events(chat_chunk(content="4"), done=False)], kind="text/event-stream", breaks=True))
    with recording() as seen, pytest.raises((openai.APIConnectionError, httpx.RemoteProtocolError)):
        list(ask(client, stream=True))
    assert seen[0].sequences == []
    assert "RemoteProtocolError" in (seen[0].error or "")


def test_an_error_that_a_stream_says_is_recorded(server: ModelServer, client: openai.OpenAI) -> None:
    server.gives(streamed(chat_chunk(content="4"), refused("The engine died")))
    with recording() as seen, pytest.raises(openai.APIError, match="engine died"):
        list(ask(client, stream=True))
    assert (seen[0].error, seen[0].sequences) == ("The server: The engine died", [])


def test_retries_are_one_generation_with_all_their_time(server: ModelServer, client: openai.OpenAI) -> None:
    server.gives(Reply({"error": {"message": "overloaded"}}, status=500), chat())
    with recording() as seen:
        began = time.perf_counter()
        ask(client)
        took = time.perf_counter() - began
    assert len(server.asked) == 2
    generation, _ = only(seen)
    assert generation.error is None
    assert 0.3 < (generation.seconds or 0) <= took


@pytest.mark.parametrize("stream", [False, True])
def test_an_error_is_recorded_and_raised(server: ModelServer, client: openai.OpenAI, stream: bool) -> None:  # noqa: FBT001
    server.gives(Reply(refused(), status=400))
    with recording() as seen, pytest.raises(openai.BadRequestError) as raised:
        ask(client, max_tokens=1, stream=stream)
    (generation,) = seen
    assert generation.error is not None
    assert generation.error.startswith("BadRequestError: Error code: 400")
    assert str(raised.value).startswith(generation.error.removeprefix("BadRequestError: ")[:100])
    assert (generation.sequences, generation.sampling["temperature"]) == ([], 0.5)


def test_raw_responses_are_recorded(server: ModelServer, client: openai.OpenAI) -> None:
    server.gives(chat(), chat(), streamed(*chat_stream()))
    with recording() as seen:
        raw = client.chat.completions.with_raw_response.create(model="tiny", messages=MESSAGES)
        assert raw.parse().choices[0].message.content == "4"
        with client.chat.completions.with_streaming_response.create(model="tiny", messages=MESSAGES) as unread:
            assert len(seen) == 1
            assert json.loads(unread.read())["id"] == "chatcmpl-row-17"
        parsed = client.chat.completions.with_raw_response.create(model="tiny", messages=MESSAGES, stream=True).parse()
        assert len(list(parsed)) == 5
    assert [generation.sequences[0].text for generation in seen] == ["4", "4", "I say 4"]


class Guess(BaseModel):
    n: int


def test_parsed_answers_and_helpers_are_recorded(server: ModelServer, client: openai.OpenAI) -> None:
    server.gives(chat(chat_choice(content='{"n": 4}')), streamed(*chat_stream(ids=False)))
    with recording() as seen:
        answer = client.chat.completions.parse(model="tiny", messages=MESSAGES, response_format=Guess)
        with client.chat.completions.stream(model="tiny", messages=MESSAGES) as stream:
            stream.until_done()
    assert answer.choices[0].message.parsed == Guess(n=4)
    assert [generation.sequences[0].text for generation in seen] == ['{"n": 4}', "I say 4"]
    assert seen[0].sequences[0].reply is None


CUT = {"content": '{"n": 4', "finish": "length"}
MISSHAPEN = {"content": '{"m": 4}', "finish": "stop"}
WITHHELD = {"content": "", "finish": "content_filter"}


@pytest.mark.parametrize("given", [CUT, MISSHAPEN, WITHHELD])
@pytest.mark.parametrize("how", ["parse", "async", "raw", "stream"])
def test_an_answer_that_its_client_refuses_is_the_answer(
    server: ModelServer, client: openai.OpenAI, given: dict[str, str], how: str
) -> None:
    reply = chat(chat_choice(content=given["content"]) | {"finish_reason": given["finish"]})
    parts = chat_chunk(content=given["content"], ids=[7, 2], finish=given["finish"])
    server.gives(
        streamed(chat_chunk(role="assistant") | {"prompt_token_ids": [1, 5, 6]}, parts) if how == "stream" else reply
    )
    asked = {"model": "tiny", "messages": MESSAGES, "response_format": Guess}

    async def main() -> None:
        async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="sk-secret") as other:
            await other.chat.completions.parse(**asked)

    def ask_for_json() -> None:
        if how == "async":
            asyncio.run(main())
        elif how == "raw":
            client.chat.completions.with_raw_response.parse(**asked).parse()
        elif how == "stream":
            with client.chat.completions.stream(**asked) as events_of_answer:
                events_of_answer.get_final_completion()
        else:
            client.chat.completions.parse(**asked)

    with recording() as seen, pytest.raises((openai.OpenAIError, ValueError)):
        ask_for_json()
    generation, sequence = only(seen)
    assert (generation.error, generation.reason) == (None, None)
    assert as_lists(sequence)[:2] == [[1, 5, 6], [7, 2]]
    assert (sequence.text, sequence.finish) == (given["content"], given["finish"])


def test_a_response_that_its_client_refuses_is_the_answer(server: ModelServer, client: openai.OpenAI) -> None:
    server.gives(response())  # its text is no JSON
    with recording() as seen, pytest.raises(ValueError, match="Guess"):
        client.responses.parse(model="tiny", input="Guess.", text_format=Guess)
    generation, sequence = only(seen)
    assert (generation.error, sequence.text, sequence.finish) == (None, "4", "stop")


def test_async_clients_are_recorded_each_call_on_its_own_strand(server: ModelServer) -> None:
    server.gives(chat(), chat(), streamed(*chat_stream()), Reply(refused(), status=400))

    async def main() -> None:
        async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="k", max_retries=0) as client:
            create = client.chat.completions.create
            await asyncio.gather(*(create(model="tiny", messages=MESSAGES) for _ in range(2)))
            stream = await create(model="tiny", messages=MESSAGES, stream=True)
            assert type(stream) is openai.AsyncStream
            async with stream:
                assert len([event async for event in stream]) == 5
            with pytest.raises(openai.BadRequestError):
                await create(model="tiny", messages=MESSAGES)

    with recording() as seen:
        asyncio.run(main())
    assert [[sequence.text for sequence in generation.sequences] for generation in seen] == [
        ["4"],
        ["4"],
        ["I say 4"],
        [],
    ]
    strands = [generation.strand for generation in seen]
    assert strands[0] is not strands[1]
    assert (seen[3].error or "").startswith("BadRequestError")


def test_a_cancelled_call_is_recorded_as_such(server: ModelServer) -> None:
    server.gives(Reply(chat(), after=0.5))

    async def main() -> None:
        async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="k") as client:
            await asyncio.wait_for(client.chat.completions.create(model="tiny", messages=MESSAGES), 0.1)

    with recording() as seen, pytest.raises(TimeoutError):
        asyncio.run(main())
    assert [generation.error for generation in seen] == ["CancelledError"]


def test_compressed_replies_are_read(server: ModelServer, client: openai.OpenAI) -> None:
    server.gives(Reply(chat(), encoded=True), Reply(events(*chat_stream()), kind="text/event-stream", encoded=True))
    with recording() as seen:
        ask(client)
        list(ask(client, stream=True))
    assert [generation.sequences[0].text for generation in seen] == ["4", "I say 4"]


def test_a_client_within_which_another_is_traced_is_recorded_once(server: ModelServer) -> None:
    server.gives(chat(), streamed(*chat_stream()))
    with (
        trace_client(httpx.Client()) as inner,
        openai.OpenAI(base_url=f"{server.url}/v1", api_key="k", http_client=inner) as client,  # type: ignore[arg-type]
        recording() as seen,
    ):
        ask(client)
        list(ask(client, stream=True))
    assert [generation.seam for generation in seen] == ["openai"] * 2


def test_no_key_is_recorded(server: ModelServer, client: openai.OpenAI) -> None:
    server.gives(chat(), Reply(refused(), status=401))
    with recording() as seen:
        ask(client, extra_headers={"X-Key": "sk-secret"}, extra_query={"api-key": "sk-secret"}, user="sk-secret")
        with pytest.raises(openai.AuthenticationError):
            ask(client)
    assert "sk-secret" not in repr(seen)


HOSTILE = [
    b"no JSON",
    b"",
    b"[1, 2]",
    b"{}",
    b'{"choices": null}',
    b'{"choices": [null, 3, {"index": "x"}, {"message": 4}]}',
    b'{"choices": [{"index": 99999999999999999999, "message": {"content": "4"}}]}',
]


@pytest.mark.parametrize("body", HOSTILE)
@pytest.mark.parametrize("stream", [False, True])
def test_a_reply_that_is_none_changes_nothing(
    server: ModelServer,
    client: openai.OpenAI,
    body: bytes,
    stream: bool,  # noqa: FBT001
) -> None:
    server.gives(Reply(body, kind="text/event-stream" if stream else "application/json"))

    def outcome() -> str:
        try:
            answer = ask(client, stream=stream)
            return repr(list(answer) if stream else answer)
        except Exception as error:  # noqa: BLE001 - the client's own, whichever
            return repr(error)

    expected = outcome()
    with recording() as seen:
        assert outcome() == expected
        assert len(seen) <= 1


def test_ids_and_figures_that_are_none_are_left_out(server: ModelServer, client: openai.OpenAI) -> None:
    choice = chat_choice() | {"token_ids": [1, -4, 2**40], "logprobs": {"content": [{"logprob": "x"}, 3]}}
    odd = chat(choice) | {"prompt_token_ids": [[1], [2, 3]], "usage": {"prompt_tokens": -1, "completion_tokens": "2"}}
    server.gives(odd | {"id": 17})
    with recording() as seen:
        client.chat.completions.create(model="tiny", messages=MESSAGES)
    generation, sequence = only(seen)
    assert sequence == Sequence(None, None, "stop", None, "4", sequence.messages)
    assert generation.request_id is None


def test_outside_of_a_rollout_nothing_is_looked_at(server: ModelServer, client: openai.OpenAI) -> None:
    server.gives(streamed(*chat_stream()))
    assert len(list(ask(client, stream=True))) == 5


def test_other_calls_are_no_generations(server: ModelServer, client: openai.OpenAI) -> None:
    server.gives({"object": "list", "data": [], "model": "tiny", "usage": {"prompt_tokens": 1, "total_tokens": 1}})
    with recording() as seen:
        client.embeddings.create(model="tiny", input="Guess.", encoding_format="float")
    assert not seen


THOUGHT = {
    "id": "rs_1", "type": "reasoning", "encrypted_content": "gAAAA",
    "summary": [{"type": "summary_text", "text": "Guess low."}, {"type": "summary_text", "text": "Then go up."}],
}  # fmt: skip
ENCRYPTED = {"id": "rs_2", "type": "reasoning", "summary": [], "encrypted_content": "gAAAA"}
SAID = {
    "id": "msg_1", "type": "message", "role": "assistant", "status": "completed",
    "content": [{"type": "output_text", "text": "I try 4.", "annotations": []}],
}  # fmt: skip
OUTPUT = {"type": "function_call_output", "call_id": "call_1", "output": "too low"}
ANSWERED = {
    "role": "assistant", "content": "I try 4.",
    "reasoning_content": "Guess low.\nThen go up.", "tool_calls": [TOOL_CALL],
}  # fmt: skip
HEARD = {"role": "tool", "tool_call_id": "call_1", "content": "too low"}


def streamed_response(*items: Any, **more: Any) -> list[Any]:
    """The events of a response, as the API sends them: its items one by one, each in pieces."""
    whole = response(*items, **more)
    events: list[Any] = [{"type": "response.created", "response": whole | {"status": "in_progress", "output": []}}]
    for index, item in enumerate(items):
        at = {"output_index": index, "item_id": item["id"]}
        empty = {key: "" if key == "arguments" else [] if key in {"content", "summary"} else item[key] for key in item}
        events.append({"type": "response.output_item.added", "output_index": index, "item": empty})
        pieces = {
            "reasoning": [("reasoning_summary_text", part["text"]) for part in item.get("summary", ())],
            "message": [("output_text", part["text"]) for part in item.get("content", ())],
            "function_call": [("function_call_arguments", item.get("arguments", ""))],
        }[item["type"]]
        for part, (name, text) in enumerate(pieces):
            halves = text[: len(text) // 2], text[len(text) // 2 :]
            at |= {"summary_index" if "summary" in name else "content_index": part}
            if item["type"] == "message":
                empty_part = {"type": "output_text", "text": "", "annotations": []}
                events.append({"type": "response.content_part.added", "part": empty_part, **at})
            events += [{"type": f"response.{name}.delta", "delta": half, "logprobs": [], **at} for half in halves]
            events.append({"type": f"response.{name}.done", name.rpartition("_")[2]: text, **at})
        events.append({"type": "response.output_item.done", "output_index": index, "item": item})
    events.append({"type": "response.completed", "response": whole})
    return [event | {"sequence_number": number} for number, event in enumerate(events)]


def test_items_of_a_response_are_one_answer_and_items_of_a_request_are_messages(
    server: ModelServer, client: openai.OpenAI
) -> None:
    server.gives(response(THOUGHT, SAID, TOOL_CALL_ITEM), response(ENCRYPTED, SAID))
    image = {"type": "input_image", "image_url": "data:image/png;base64,AA==", "detail": "auto"}
    shown = {"role": "user", "content": [{"type": "input_text", "text": "Guess."}, image]}
    asked: Any = [{"type": "message", "role": "developer", "content": "Be brief."}, shown]
    with recording() as seen:
        first = client.responses.create(model="tiny", input=asked, reasoning={"effort": "low"})
        items = [*asked, *[item.to_dict() for item in first.output], OUTPUT]
        client.responses.create(model="tiny", input=items)
    one, two = (generation.sequences[0] for generation in seen)
    assert orjson.loads(one.reply or b"") == ANSWERED
    assert (one.text, one.finish, seen[0].sampling["reasoning"]) == ("I try 4.", "tool_calls", {"effort": "low"})
    assert orjson.loads(two.messages or b"") == [
        {"role": "developer", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "Guess."}, image]},
        ANSWERED,
        HEARD,
    ]
    assert (two.text, two.reply, two.finish) == ("I try 4.", None, "stop")  # encrypted reasoning is no text


def test_other_items_are_kept_with_their_answer(server: ModelServer, client: openai.OpenAI) -> None:
    search = {
        "id": "ws_1",
        "type": "web_search_call",
        "status": "completed",
        "action": {"type": "search", "query": "4"},
    }
    patch = {"id": "ct_1", "type": "custom_tool_call", "call_id": "call_2", "name": "patch", "input": "- 3"}
    shell = {"id": "so_1", "type": "shell_call_output", "call_id": "call_3", "output": []}
    refusal = SAID | {"content": [{"type": "refusal", "refusal": "No."}]}
    server.gives(response(search, shell, SAID, patch, refusal))
    with recording() as seen:
        client.responses.create(model="tiny", input="Guess.")
        client.responses.create(
            model="tiny", input=[{"type": "custom_tool_call_output", "call_id": "c", "output": "ok"}]
        )
    answer = orjson.loads(seen[0].sequences[0].reply or b"")
    assert (answer["content"], answer["refusal"]) == ("I try 4.", "No.")
    assert [item["id"] for item in answer["items"]] == ["ws_1", "so_1"]
    assert answer["tool_calls"] == [{"id": "call_2", "type": "custom", "custom": {"name": "patch", "input": "- 3"}}]
    sent = orjson.loads(seen[1].sequences[0].messages or b"")
    assert sent == [{"role": "tool", "tool_call_id": "c", "content": "ok"}]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("named", [{"previous_response_id": "resp_1"}, {"conversation": "conv_1"}])
def test_a_request_that_goes_on_from_a_response_has_its_messages(
    server: ModelServer,
    client: openai.OpenAI,
    named: dict[str, Any],
    stream: bool,  # noqa: FBT001
) -> None:
    replies = [response(THOUGHT, SAID, TOOL_CALL_ITEM), response(SAID, id="resp_2"), response(SAID, id="resp_3")]
    server.gives(*[streamed(*streamed_response(*it["output"], id=it["id"])) if stream else it for it in replies])
    first: Any = {name: value for name, value in named.items() if name == "conversation"}
    output: Any = [OUTPUT]
    with recording() as seen:
        for sent in (
            {"input": "Guess.", "instructions": "Be brief.", **first},
            {"input": output, "instructions": "Be long.", **named},
            {"input": "And?", **{name: value.replace("resp_1", "resp_2") for name, value in named.items()}},
        ):
            answer: Any = client.responses.create(model="tiny", stream=stream, **sent)
            list(answer) if stream else None
    known = [orjson.loads(generation.sequences[0].messages or b"") for generation in seen]
    user = {"role": "user", "content": "Guess."}
    said = {"role": "assistant", "content": "I try 4."}
    assert known == [
        [{"role": "system", "content": "Be brief."}, user],
        [{"role": "system", "content": "Be long."}, user, ANSWERED, HEARD],
        [user, ANSWERED, HEARD, said, {"role": "user", "content": "And?"}],
    ]


def test_a_response_that_is_streamed_is_whole_wherever_its_reader_stops(
    server: ModelServer, client: openai.OpenAI
) -> None:
    events = streamed_response(THOUGHT, SAID, TOOL_CALL_ITEM)
    cuts = [place for place, event in enumerate(events) if event["type"].endswith((".delta", "output_item.done"))]
    answers = []
    for cut in cuts:
        server.gives(
            Reply([f"data: {json.dumps(event)}\n\n".encode() for event in events[: cut + 1]], kind="text/event-stream")
        )
        with recording() as seen:
            list(client.responses.create(model="tiny", input="Guess.", stream=True))
        sequence = seen[0].sequences[0]
        answers.append(orjson.loads(sequence.reply or orjson.dumps({"content": sequence.text})))
        assert sequence.finish is None
    assert answers[cuts.index(max(c for c in cuts if "output_text" in events[c]["type"]))]["content"] == "I try 4."
    assert {answer.get("reasoning_content") for answer in answers[-4:]} == {ANSWERED["reasoning_content"]}
    assert answers[-1] == ANSWERED
    server.gives(Reply([f"data: {json.dumps(event)}\n\n".encode() for event in events], kind="text/event-stream"))
    with recording() as seen, client.responses.stream(model="tiny", input="Guess.") as stream:  # the package's helper
        stream.until_done()
    assert orjson.loads(seen[0].sequences[0].reply or b"") == ANSWERED


def test_an_error_in_a_streamed_response_is_recorded(server: ModelServer, client: openai.OpenAI) -> None:
    created, *_ = streamed_response()
    failed = {"code": "server_error", "message": "The engine died"}
    server.gives(
        streamed(created, {"type": "error", "param": None, "sequence_number": 1, **failed}),
        streamed(created, {"type": "response.failed", "response": response(status="failed", error=failed)}),
    )
    with recording() as seen:
        for _ in range(2):
            list(client.responses.create(model="tiny", input="Guess.", stream=True))
    assert [generation.error for generation in seen] == ["The server: The engine died"] * 2


@pytest.mark.parametrize("path", ["/chat/completions", "/chat/completions/tokens"])
@pytest.mark.parametrize("cast_to", [openai.types.chat.ChatCompletion, dict[str, Any], object, str, "response"])
def test_what_post_casts_to_is_recorded_like_any_call(
    server: ModelServer, client: openai.OpenAI, path: str, cast_to: Any
) -> None:
    server.gives(chat())
    kind = httpx2.Response if cast_to == "response" else cast_to
    body = {"model": "tiny", "messages": MESSAGES, "temperature": 0.5, "tokens": [1, 5, 6]}
    with recording() as seen:
        client.post(path, body=body, cast_to=kind)
    generation, sequence = only(seen)
    assert as_lists(sequence) == [[1, 5, 6], [7, 2], [-0.5, -0.5]]
    assert (sequence.text, sequence.finish, orjson.loads(sequence.messages or b"")) == ("4", "stop", MESSAGES)
    assert generation.sampling == {"model": "tiny", "temperature": 0.5}


def test_post_streams_and_fails_as_the_usual_calls(server: ModelServer) -> None:
    server.gives(streamed(*chat_stream()), Reply(refused(), status=400))

    async def main() -> None:
        async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="k", max_retries=0) as client:
            body = {"model": "tiny", "messages": MESSAGES, "stream": True}
            chunk = openai.types.chat.ChatCompletionChunk
            stream = await client.post(
                "/chat/completions",
                body=body,
                cast_to=chunk,
                stream=True,
                stream_cls=openai.AsyncStream[openai.types.chat.ChatCompletionChunk],
            )
            assert len([event async for event in stream]) == 5
            with pytest.raises(openai.BadRequestError):
                await client.post("/chat/completions", body=body, cast_to=dict[str, Any])

    with recording() as seen:
        asyncio.run(main())
    assert [(it.error or "")[:15] for it in seen] == ["", "BadRequestError"]
    assert seen[0].sequences[0].text == "I say 4"
