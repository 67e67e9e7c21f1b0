"""Models on a server by HTTP: ids in and out exactly, refusals in one line, and recorded without the user's help."""

import asyncio
import math
import warnings
from typing import Any

import pytest

from logs_ui.recorder.capture.instruments import install
from logs_ui.rollout import ServerModel
from logs_ui.rollout.models.backends import GenerationError, Sampling
from logs_ui.rollout.models.server_model import ChatModel
from tests.support.model_server import ModelServer, Reply, chat, chat_choice, completion, recording, refused


def ask(model: ServerModel, context: tuple[int, ...] = (1, 5, 6), row: int = 0, **sampling: Any) -> Any:
    async def one() -> Any:
        model.enter(row)
        try:
            return await model.answer(row, context, Sampling(**{"max_tokens": 4, **sampling}))
        finally:
            await model.leave(row)

    return asyncio.run(one())


def reply(model: ChatModel, **sampling: Any) -> Any:
    async def one() -> Any:
        model.enter(0)
        try:
            messages = [{"role": "user", "content": "Guess."}]
            return await model.reply(messages, Sampling(**{"max_tokens": 4, **sampling}))
        finally:
            await model.leave(0)

    return asyncio.run(one())


def test_ids_go_in_and_come_out_and_are_recorded_without_the_users_help(server: ModelServer) -> None:
    install()
    server.gives(completion("4"))
    with recording() as generations:
        answer = ask(ServerModel(server.url, "tiny"), temperature=0.7, top_k=5, stop=("\n",))
    assert (answer.ids, answer.logprobs, answer.finish, answer.text) == ([7, 2], [-0.25, -0.5], "length", "4")
    ((path, asked),) = server.asked
    assert path == "/v1/completions"
    assert asked == {
        "model": "tiny", "prompt": [1, 5, 6], "max_tokens": 4, "temperature": 0.7, "top_k": 5, "stop": ["\n"],
        "logprobs": 1, "return_token_ids": True, "include_stop_str_in_output": True,
    }  # fmt: skip
    (one,) = generations
    (sequence,) = one.sequences
    assert sequence.context is not None
    assert sequence.sampled is not None
    assert (sequence.context.tolist(), sequence.sampled.tolist()) == ([1, 5, 6], [7, 2])
    assert sequence.logprobs is not None
    assert sequence.logprobs.tolist() == [-0.25, -0.5]


def test_many_rows_are_asked_at_once_in_one_batch_after_another(server: ModelServer) -> None:
    server.gives(Reply(completion("4"), after=1.0))
    model = ServerModel(server.url + "/v1/", "tiny")

    async def row(i: int) -> list[int]:
        try:
            ids: list[int] = (await model.answer(i, [1, 5, 6], Sampling(4, seed=40 + i))).ids
            return ids
        finally:
            await model.leave(i)

    async def everyone() -> tuple[list[list[int]], float]:
        for i in range(12):
            model.enter(i)
        began = asyncio.get_running_loop().time()
        return await asyncio.gather(*(row(i) for i in range(12))), asyncio.get_running_loop().time() - began

    with warnings.catch_warnings():
        warnings.simplefilter("error", ResourceWarning)
        for _ in range(2):
            answers, seconds = asyncio.run(everyone())
            assert answers == [[7, 2]] * 12
            assert seconds < 12 / 2
    assert sorted(asked["seed"] for _, asked in server.asked) == sorted([*range(40, 52)] * 2)


@pytest.mark.usefixtures("_asks_again_at_once")
def test_a_server_that_is_unavailable_for_a_moment_is_asked_again(server: ModelServer) -> None:
    server.gives(Reply({}, status=503), Reply({}, status=429), Reply(completion("4"), breaks=True), completion("4"))
    assert ask(ServerModel(server.url, "tiny")).ids == [7, 2]
    assert len(server.asked) == 4


def test_a_refusal_is_said_in_one_line_and_not_repeated(server: ModelServer) -> None:
    server.gives(Reply(refused("This model's maximum context\nlength is 64 tokens."), status=400))
    url = server.url.replace("http://", "http://me:secret@")
    with pytest.raises(GenerationError) as caught:
        ask(ServerModel(url, "tiny"))
    said = (
        f"The model server {server.url}/v1 refused with status 400: This model's maximum context length is 64 tokens."
    )
    assert str(caught.value) == said
    assert len(server.asked) == 1


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (completion("4", ids=False), "returns no token ids, and what is trained on must be exactly what was sampled"),
        (completion("4", prompts=([5, 6],)), "changed the prompt"),
        (completion("4") | {"choices": []}, "returned no answer"),
        (Reply({"detail": "Not Found"}, status=404), r"status 404: .*Is the address right\? It mostly ends with /v1"),
        (Reply(b"<html>", kind="text/html"), "sent a reply that is not a completion"),
        (Reply({"error": {"message": "no"}}, status=401), "status 401: no. Set api_key."),
        (
            Reply(completion("4"), after=1.5),
            r"did not answer within 0.3 s. Lower .+ by model=ServerModel\(.+timeout=.+\)",
        ),
        (
            Reply(refused("\x1b[2Jno\x07"), status=400),
            "status 400: \N{REPLACEMENT CHARACTER}\\[2Jno\N{REPLACEMENT CHARACTER}.",
        ),
    ],
)
def test_what_a_server_cannot_do_says_what_to_do(server: ModelServer, given: Any, message: str) -> None:
    server.gives(given)
    timeout = 0.3 if isinstance(given, Reply) and given.after else 60.0
    with pytest.raises(GenerationError, match=message) as caught:
        ask(ServerModel(server.url, "tiny", timeout=timeout, retries=0))
    assert "\n" not in str(caught.value)
    assert str(caught.value).isprintable()
    assert f"{server.url}/v1" in str(caught.value)


def test_a_server_that_hangs_costs_its_timeout_once(server: ModelServer) -> None:
    server.gives(*[Reply(completion("4"), after=1.5)] * 5)
    with pytest.raises(GenerationError, match=r"did not answer within 0.4 s\."):
        ask(ServerModel(server.url, "tiny", timeout=0.4))
    assert len(server.asked) == 1
    server.gives(*[Reply({}, status=503)] * 9)
    with pytest.raises(GenerationError, match=r"did not answer within 0.4 s\."):
        ask(ServerModel(server.url, "tiny", timeout=0.4, retries=9))


@pytest.mark.parametrize(
    "url",
    [
        "http://h:port/v1", "http://h:99999", "http://h:0", "http://[::1", "http://", "ftp://h", "http://h\x1b/v1",
        "http://h\n/v1", "http://\ud800/v1", "http://ä..b/v1", "http://me:secret@h:99999/v1", None, 5, b"http://h",
    ],
)  # fmt: skip
def test_what_is_no_address_is_one_clear_line(url: Any) -> None:
    with pytest.raises(ValueError, match="base_url must be an address such as") as caught:
        ServerModel(url, "tiny")
    assert str(caught.value).isprintable()
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("timeout", [0, None, "600", math.inf])
def test_a_timeout_is_a_number_of_seconds(timeout: Any) -> None:
    with pytest.raises(ValueError, match="timeout must be a number of seconds"):
        ServerModel("http://127.0.0.1:9", "tiny", timeout=timeout)


def test_log_probs_must_be_as_many_as_the_ids(server: ModelServer) -> None:
    given = completion("4")
    given["choices"][0]["token_ids"] = [7, 8, 2]
    server.gives(given)
    with pytest.raises(GenerationError, match="2 log-probs for 3 token ids"):
        ask(ServerModel(server.url, "tiny"))


def test_a_server_that_is_not_there_is_named() -> None:
    with pytest.raises(
        GenerationError, match=r"The model server http://127.0.0.1:9/v1 cannot be reached \(.+\). Is the"
    ):
        ask(ServerModel("http://127.0.0.1:9", "tiny", retries=0))
    with pytest.raises(ValueError, match="must be an address such as"):
        ServerModel("127.0.0.1:8000", "tiny")


class Tokenizer:
    ids = (1, 5, 6)

    def __call__(self, text: str, *, add_special_tokens: bool) -> dict[str, list[int]]:
        assert not add_special_tokens
        return {"input_ids": list(self.ids)}


def preflight(server: ModelServer, tokenizer: Any = None, **sampling: Any) -> None:
    model = ServerModel(server.url, "tiny")
    asyncio.run(model.preflight(tokenizer or Tokenizer(), Sampling(**{"max_tokens": 4, **sampling})))


def greedy(logprob: float) -> Any:
    given = completion("4")
    given["choices"][0]["token_ids"] = [7]
    given["choices"][0]["logprobs"]["token_logprobs"] = [logprob]
    return given


def test_a_preflight_finds_what_would_fail_later(server: ModelServer) -> None:
    server.gives(greedy(0.0))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        preflight(server, temperature=0.7)
    assert server.asked[0][1]["max_tokens"] == 1
    assert server.asked[0][1]["add_special_tokens"] is False
    server.models = ["base", "other"]
    with pytest.raises(GenerationError, match=r"does not serve 'tiny'. It serves base, other: name one of these."):
        preflight(server)
    server.models = None  # a server that does not list them
    other = Tokenizer()
    other.ids = (1, 5, 7)
    with pytest.raises(GenerationError, match="tokenises text differently from the trainer's tokenizer"):
        preflight(server, other)
    server.gives(completion("4", ids=False))
    with pytest.raises(GenerationError, match="returns no token ids"):
        preflight(server)


def test_log_probs_from_before_temperature_are_warned_of_only_where_they_differ(server: ModelServer) -> None:
    server.gives(greedy(-1.5))
    with pytest.warns(UserWarning, match="--logprobs-mode processed_logprobs"):
        preflight(server, temperature=0.7)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        preflight(server, temperature=1.0)


def test_a_chat_model_answers_messages(server: ModelServer) -> None:
    install()
    call = {"id": "c", "type": "function", "function": {"name": "guess", "arguments": "{}"}}
    server.gives(chat(chat_choice(ids=False), ids=False), chat(chat_choice(ids=False, content=None, tool_calls=[call])))
    with recording() as generations:
        first = reply(ChatModel(server.url, "tiny", headers={"X-Team": "red"}), temperature=0.5)
        second = reply(ChatModel(server.url, "tiny"))
    assert (first.text, first.finish) == ("4", "stop")
    assert (second.text, second.message["tool_calls"][0]["function"]["name"]) == ("", "guess")
    assert server.asked[0][1] == {
        "model": "tiny", "messages": [{"role": "user", "content": "Guess."}], "max_tokens": 4, "temperature": 0.5,
    }  # fmt: skip
    assert server.headers[0]["x-team"] == "red"
    assert [one.sequences[0].text for one in generations] == ["4", None]


def test_a_chat_model_that_wants_another_name_for_the_limit_gets_it(server: ModelServer) -> None:
    message = "Unsupported parameter: 'max_tokens'. Use 'max_completion_tokens' instead."
    server.gives(Reply(refused(message), status=400), chat(ids=False))
    model = ChatModel(server.url, "tiny")
    assert reply(model).text == "4"
    assert reply(model).text == "4"
    assert ["max_completion_tokens" in asked for _, asked in server.asked] == [False, True, True]


def test_a_chat_models_preflight_asks_whether_it_is_served(server: ModelServer) -> None:
    asyncio.run(ChatModel(server.url, "tiny").preflight())
    with pytest.raises(GenerationError, match="does not serve 'huge'"):
        asyncio.run(ChatModel(server.url, "huge").preflight())
