"""What is seen of generation through vLLM: its engine, TRL's client of its server, and TRL's way to both.

TRL's classes are the real ones, against a server that answers as vLLM 0.32 does. vLLM's engine is the real one where it
is installed, and elsewhere a stand-in with its signatures.
"""

import importlib.util
import json
import os
import site
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from logs_ui.recorder.capture.calls import Collector, Generation, collecting
from logs_ui.recorder.capture.instruments import install, trl_vllm
from logs_ui.recorder.capture.model_answers import Sequence
from tests.support.environments import python_of
from tests.support.http_server import Answered, http_server
from tests.support.model_server import as_lists
from tests.support.ranks import run_on_two_ranks
from tests.support.vllm_server import VARIABLES

REAL_ENGINE = importlib.util.find_spec("vllm") is not None

NAN, FLAKY, BROKEN = 66, 53, 40
"""Last tokens of prompts at which the server gives no number, is unavailable once, or refuses."""


@dataclass
class Server:
    """Its address, and what it was sent."""

    url: str
    posts: list[dict[str, Any]]


@contextmanager
def serving() -> Iterator[Server]:
    """Speaks what TRL's client asks of `vllm serve`. A prompt that ends with token t is answered with t + 10 (k + 1)
    and the numbers after it: the first choice ends after two tokens, the others at the limit.
    """
    posts: list[dict[str, Any]] = []

    def answer(path: str, _headers: dict[str, str], body: bytes) -> Answered:
        if not body:
            return 200, {}, b'{"data": [{"id": "tiny"}]}'
        posts.append(asked := json.loads(body))
        status, reply = reply_to(path, asked, is_first=len(posts) == 1)
        return status, {}, json.dumps(reply).encode()

    with http_server(answer) as url:
        yield Server(url, posts)


def reply_to(path: str, asked: dict[str, Any], *, is_first: bool) -> tuple[int, dict[str, Any]]:
    if path == "/v1/chat/completions":
        ids = ids_of(asked["messages"])
        time.sleep(0.1 if "slow" in asked["messages"][-1]["content"] else 0)
        return 200, {"choices": choices(ids, asked), "prompt_token_ids": ids}
    prompts = [ids_of(one) for one in asked.get("prompt") or asked.get("prompts") or asked["messages"]]
    lasts = {ids[-1] for ids in prompts}
    if BROKEN in lasts:
        return 400, {"error": {"message": "the prompt is too long"}}
    if FLAKY in lasts and is_first:
        return 503, {}
    if path == "/v1/completions":
        each = [{**choice, "prompt_token_ids": ids} for ids in prompts for choice in choices(ids, asked)]
        return 200, {"choices": [{**choice, "index": i} for i, choice in enumerate(each)]}
    return 200, reply_before_1_11(prompts, asked)


def ids_of(prompt: Any) -> list[int]:
    """Of ids, a text or a conversation."""
    if isinstance(prompt, str):
        return list(prompt.encode())
    return ids_of(prompt[-1]["content"]) if isinstance(prompt[-1], dict) else prompt


def answers(prompt: list[int], asked: dict[str, Any]) -> Iterator[tuple[list[int], list[dict[int, float]] | None]]:
    """Sampled ids, and the log-probs at each, where asked for: the sampled one's first, which is not the highest."""
    wanted = asked.get("top_logprobs", asked["logprobs"])
    for k in range(asked["n"]):
        sampled = [prompt[-1] + 10 * (k + 1) + i for i in range(asked["max_tokens"] if k else 2)]
        numbers = [float("nan") if prompt[-1] == NAN else -float(i + 1) for i in range(len(sampled))]
        tops = [
            {token: number, **({7: -0.5} if wanted else {})} for token, number in zip(sampled, numbers, strict=True)
        ]
        yield sampled, None if wanted is None else tops


def choices(prompt: list[int], asked: dict[str, Any]) -> list[dict[str, Any]]:
    """Of `vllm serve`: a chat's have messages too, which TRL does not read."""
    found = []
    for k, (sampled, every) in enumerate(answers(prompt, asked)):
        logprobs: dict[str, Any] | None = None
        if every is not None:
            tops = [{f"token_id:{token}": number for token, number in top.items()} for top in every]
            firsts = [next(iter(top.items())) for top in tops]
            logprobs = {
                "tokens": [token for token, _ in firsts],
                "token_logprobs": [number for _, number in firsts],
                "top_logprobs": tops,
            }
            if "messages" in asked:
                entries = [[{"token": token, "logprob": number} for token, number in top.items()] for top in tops]
                logprobs = {"content": [{**entry[0], "top_logprobs": entry} for entry in entries]}
        finish = "length" if k else "stop"
        found.append({"index": k, "token_ids": sampled, "finish_reason": finish, "logprobs": logprobs})
    return found


def reply_before_1_11(prompts: list[list[int]], asked: dict[str, Any]) -> dict[str, Any]:
    """Of TRL's own server, which says nothing of why an answer ended."""
    every = [answer for ids in prompts for answer in answers(ids, asked)]
    ranked = [[sorted(top.items(), key=lambda pair: -pair[1]) for top in tops or ()] for _, tops in every]
    reply: dict[str, Any] = {"prompt_ids": prompts, "completion_ids": [sampled for sampled, _ in every]}
    if asked["logprobs"] is None:
        return reply | {"logprobs": None, "logprob_token_ids": None}
    numbers = [[[None if np.isnan(n) else n for _, n in top] for top in tops] for tops in ranked]
    return reply | {
        "logprobs": numbers,
        "logprob_token_ids": [[[token for token, _ in top] for top in tops] for tops in ranked],
    }


@pytest.fixture
def server() -> Iterator[Server]:
    with serving() as server:
        yield server


@pytest.fixture
def client(server: Server, monkeypatch: pytest.MonkeyPatch) -> Any:
    """TRL's own, which is recorded. It refuses to start where vLLM is not installed."""
    from trl.generation import vllm_client

    install()
    monkeypatch.setattr(vllm_client, "is_vllm_available", lambda *_, **__: True)
    return vllm_client.VLLMClient(base_url=server.url)


def generation_of(monkeypatch: pytest.MonkeyPatch, **options: Any) -> Any:
    """A real `VLLMGeneration` without the transfer of weights, which needs CUDA."""
    from accelerate import Accelerator
    from trl.generation import vllm_client, vllm_generation

    install()
    for module in (vllm_client, vllm_generation):
        monkeypatch.setattr(module, "is_vllm_available", lambda *_, **__: True)
    monkeypatch.setattr(vllm_client.VLLMClient, "init_communicator", lambda *_, **__: None)
    return vllm_generation.VLLMGeneration(None, Accelerator(), None, max_completion_length=3, **options)


@contextmanager
def recorded() -> Iterator[list[Generation]]:
    log = Collector()
    with collecting(log):
        yield log.records.generations


def finishes() -> tuple[str | None, str | None]:
    """Of the first answer to a prompt and of the others, as far as this version of TRL hears of it."""
    from trl.generation.vllm_client import VLLMClient

    return ("stop" if hasattr(VLLMClient, "_post") else None), "length"  # which the ids alone show


def shown(sequence: Sequence) -> tuple[Any, ...]:
    context, sampled, logprobs = as_lists(sequence)
    return context, sampled, sequence.finish, logprobs


@pytest.mark.versions
def test_why_an_answer_ended_is_told_by_its_ids_where_the_server_does_not_say_it(
    client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trl_vllm, "tell", lambda _: None)  # as before trl 1.11
    for ends, seen in (([99, 17], ["stop", "length"]), (28, [None, "stop"]), (None, [None, "length"])):
        log = Collector(model=SimpleNamespace(generation_config=SimpleNamespace(eos_token_id=ends)))
        with collecting(log):
            client.generate([[5, 6]], n=2, max_tokens=3)
        (one,) = log.records.generations
        assert [shown(sequence)[1] for sequence in one.sequences] == [[16, 17], [26, 27, 28]]
        assert [sequence.finish for sequence in one.sequences] == seen


@pytest.mark.versions
def test_the_clients_answers_to_ids_are_recorded_each_with_its_prompt(client: Any) -> None:
    with recorded() as generations:
        reply = client.generate([[5, 6], [8]], n=2, max_tokens=3, temperature=0.7, generation_kwargs={"seed": 1})
    (one,) = generations
    first, other = finishes()
    assert reply["completion_ids"] == [[16, 17], [26, 27, 28], [18, 19], [28, 29, 30]]
    assert [shown(sequence) for sequence in one.sequences] == [
        ([5, 6], [16, 17], first, [-1, -2]),
        ([5, 6], [26, 27, 28], other, [-1, -2, -3]),
        ([8], [18, 19], first, [-1, -2]),
        ([8], [28, 29, 30], other, [-1, -2, -3]),
    ]
    assert one.sampling == {
        "temperature": 0.7, "top_p": 1.0, "top_k": 0, "min_p": 0.0, "repetition_penalty": 1.0,
        "max_tokens": 3, "n": 2, "seed": 1,
    }  # fmt: skip
    assert (one.seam, one.error) == ("trl-vllm", None)
    assert 0 < (one.seconds or 0) < 60


@pytest.mark.versions
def test_of_rivals_logprobs_those_of_the_sampled_tokens_are_kept(client: Any) -> None:
    with recorded() as generations:
        reply = client.generate(["ab"], max_tokens=2, logprobs=1)
        client.generate([[5, NAN]], max_tokens=2)
        client.generate([[5]], max_tokens=2, logprobs=None)
    assert reply["logprobs"] == [[[-0.5, -1], [-0.5, -2]]]  # the most probable first, and that was not sampled
    tops, missing, none = generations
    finish = finishes()[0] or "length"  # it has as many tokens as it may have
    assert shown(tops.sequences[0]) == ([97, 98], [108, 109], finish, [-1, -2])
    assert np.isnan(missing.sequences[0].logprobs).all()  # type: ignore[arg-type]
    assert none.sequences[0].logprobs is None


@pytest.mark.versions
def test_conversations_answered_out_of_order_keep_their_answers(client: Any) -> None:
    said = [[{"role": "user", "content": text}] for text in ("slow", "fast", "!")]
    with recorded() as generations:
        client.chat(said, n=2, max_tokens=3)
    (one,) = generations
    assert len(one.sequences) == 6
    for i, sequence in enumerate(one.sequences):
        context, sampled, finish, _ = shown(sequence)
        assert bytes(context).decode() == said[i // 2][0]["content"]
        assert sampled[0] == context[-1] + 10 * (1 + i % 2)
        assert finish == finishes()[i % 2]


def test_calls_of_several_threads_are_told_apart(client: Any) -> None:
    with recorded() as generations, ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda i: client.generate([[i]], n=2, max_tokens=3), range(100, 108)))
    assert len(generations) == 8
    for one in generations:
        (context, *_), (same, *_) = shown(one.sequences[0]), shown(one.sequences[1])
        assert context == same
        assert [sequence.finish for sequence in one.sequences] == ["stop", "length"]


def test_what_is_sent_again_is_recorded_once(client: Any, server: Server) -> None:
    with recorded() as generations:
        client.generate([[FLAKY]])
    assert len(server.posts) == 2
    assert len(generations) == 1
    assert generations[0].sequences[0].finish == "stop"


def test_a_refusal_is_recorded_and_raised(client: Any) -> None:
    with recorded() as generations, pytest.raises(Exception, match="Request failed: 400"):
        client.generate([[BROKEN]])
    (one,) = generations
    assert one.sequences == []
    assert one.error is not None
    assert one.error.startswith("Exception: Request failed: 400")


def test_outside_of_a_rollout_the_client_is_left_alone(client: Any) -> None:
    with recorded() as generations:
        pass
    assert client.generate([[5]], max_tokens=2)["completion_ids"] == [[15, 16]]
    assert generations == []


def test_a_trainers_generation_by_the_server_is_recorded_once(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    generation = generation_of(
        monkeypatch, mode="server", server_base_url=server.url, top_k=5, generation_kwargs={"temperature": 0.5}
    )
    with recorded() as generations:
        generation.generate([[5], [5], [6], [6]], None, 2)
    (one,) = generations
    assert [shown(sequence)[:3] for sequence in one.sequences] == [
        ([5], [15, 16], "stop"),
        ([5], [25, 26, 27], "length"),
        ([6], [16, 17], "stop"),
        ([6], [26, 27, 28], "length"),
    ]
    assert (one.sampling["n"], one.sampling["max_tokens"]) == (2, 3)
    assert (one.sampling["temperature"], one.sampling["top_k"]) == (0.5, 5)
    assert one.seam == "trl-vllm"


RANK = """
import sys
from pathlib import Path
import pytest
from accelerate import PartialState
from tests.recorder.capture.test_vllm import generation_of, recorded, shown
rank = PartialState(cpu=True).process_index
with pytest.MonkeyPatch.context() as patch, recorded() as generations:
    generation = generation_of(patch, mode="server", server_base_url=sys.argv[1])
    generation.generate([[5 + rank], [5 + rank]], None, 2)
seen = [[shown(sequence)[:3] for sequence in one.sequences] for one in generations]
(Path(sys.argv[2]) / str(rank)).write_text(str(seen))
"""


@pytest.mark.exhaustive
def test_each_of_two_ranks_records_its_own_slice(server: Server, tmp_path: Path) -> None:
    run_on_two_ranks(RANK, tmp_path, server.url, tmp_path)
    assert (tmp_path / "0").read_text() == "[[([5], [15, 16], 'stop'), ([5], [25, 26, 27], 'length')]]"
    # The main rank alone hears from the server; of the other's, the ids show that one is as long as it may be.
    assert (tmp_path / "1").read_text() == "[[([6], [16, 17], None), ([6], [26, 27, 28], 'length')]]"
    assert len(server.posts) == 1


ENGINE = '''
"""vLLM's engine, as far as the recorder sees it: names and signatures of 0.32."""

from types import SimpleNamespace


class SamplingParams:
    def __init__(self, n=1, temperature=1.0, max_tokens=16, seed=None, stop=None, logprobs=None):
        vars(self).update(n=n, temperature=temperature, max_tokens=max_tokens, seed=seed, stop=stop, logprobs=logprobs)


class LLM:
    calls = 0

    def get_default_sampling_params(self):
        return SamplingParams(temperature=0.6)

    def generate(
        self, prompts, sampling_params=None, *, use_tqdm=True, lora_request=None, priority=None,
        tokenization_kwargs=None, mm_processor_kwargs=None,
    ):
        if not isinstance(prompts, list):
            prompts = [prompts]
        return self._run([prompt["prompt_token_ids"] for prompt in prompts], sampling_params)

    def chat(
        self, messages, sampling_params=None, use_tqdm=True, lora_request=None, priority=None, chat_template=None,
        chat_template_content_format="auto", add_generation_prompt=True, continue_final_message=False, tools=None,
        chat_template_kwargs=None, tokenization_kwargs=None, mm_processor_kwargs=None,
    ):
        ids = list(messages[-1]["content"].encode())
        return self.generate([{"prompt_token_ids": ids}], sampling_params)

    def enqueue(self, prompts, sampling_params=None):
        self.waiting = [prompt["prompt_token_ids"] for prompt in prompts]

    def wait_for_completion(self, output_type=None, *, use_tqdm=True):
        return [*self._run(self.waiting, None), SimpleNamespace(outputs=SimpleNamespace(data=1.0))]

    def _run(self, prompts, params):
        if not prompts:
            raise ValueError("no prompts")
        params = params or self.get_default_sampling_params()
        every = params if isinstance(params, list) else [params] * len(prompts)
        return [self._answers(ids, one) for ids, one in zip(prompts, every)]

    def _answers(self, ids, params):
        self.calls += 1
        answers = []
        for k in range(params.n):
            sampled = [ids[-1] + 10 * (k + 1), 3]
            logprobs = None
            if params.logprobs is not None:
                logprobs = [
                    {7: SimpleNamespace(logprob=-0.5, rank=1), token: SimpleNamespace(logprob=-1.0 - i, rank=2)}
                    for i, token in enumerate(sampled)
                ]
            finish = "length" if k else "stop"
            answers.append(SimpleNamespace(token_ids=sampled, text=f"a{k}", logprobs=logprobs, finish_reason=finish))
        return SimpleNamespace(request_id=str(self.calls), prompt_token_ids=ids, outputs=answers)
'''


@pytest.fixture
def engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The stand-in's module, patched by its import as the real one is."""
    import trl.generation.vllm_generation  # noqa: F401 - looks whether there is a vllm, and there is none

    entrypoints = tmp_path / "vllm" / "entrypoints"
    entrypoints.mkdir(parents=True)
    (tmp_path / "vllm" / "__init__.py").touch()
    (entrypoints / "__init__.py").touch()
    (entrypoints / "llm.py").write_text(ENGINE)
    monkeypatch.syspath_prepend(tmp_path)
    install()
    yield importlib.import_module("vllm.entrypoints.llm")
    for name in ("vllm", "vllm.entrypoints", "vllm.entrypoints.llm"):
        del sys.modules[name]


without_engine = pytest.mark.skipif(REAL_ENGINE, reason="the real vLLM is here, and tested")


@without_engine
def test_the_engines_answers_are_recorded(engine: Any) -> None:
    params = engine.SamplingParams(n=2, temperature=0.7, max_tokens=2, seed=0, stop=["x"], logprobs=0)
    with recorded() as generations:
        engine.LLM().generate([{"prompt_token_ids": [5, 6]}, {"prompt_token_ids": [8]}], params)
    (one,) = generations
    assert [shown(sequence) for sequence in one.sequences] == [
        ([5, 6], [16, 3], "stop", [-1, -2]),
        ([5, 6], [26, 3], "length", [-1, -2]),
        ([8], [18, 3], "stop", [-1, -2]),
        ([8], [28, 3], "length", [-1, -2]),
    ]
    assert [sequence.text for sequence in one.sequences] == ["a0", "a1", "a0", "a1"]
    assert one.sampling == {"temperature": 0.7, "max_tokens": 2, "n": 2, "seed": 0, "stop": ["x"]}
    assert (one.seam, one.request_id, one.error) == ("vllm", None, None)


@without_engine
def test_a_chat_that_generates_is_recorded_once_with_what_the_engine_set(engine: Any) -> None:
    with recorded() as generations:
        engine.LLM().chat([{"role": "user", "content": "a"}])
    (one,) = generations
    assert shown(one.sequences[0]) == ([97], [107, 3], "stop", None)
    assert one.sampling == {"temperature": 0.6, "max_tokens": 16, "n": 1}
    assert one.request_id == "1"


@without_engine
def test_of_prompts_with_parameters_of_their_own_the_common_ones_are_recorded(engine: Any) -> None:
    with recorded() as generations:
        engine.LLM().generate(
            [{"prompt_token_ids": [5]}, {"prompt_token_ids": [6]}],
            [engine.SamplingParams(seed=1, temperature=0.3), engine.SamplingParams(seed=2, temperature=0.3)],
        )
    assert generations[0].sampling == {"temperature": 0.3, "max_tokens": 16, "n": 1}


@without_engine
def test_what_was_enqueued_is_recorded_when_it_is_waited_for_and_an_error_where_it_raises(engine: Any) -> None:
    llm = engine.LLM()
    with recorded() as generations:
        llm.enqueue([{"prompt_token_ids": [5]}])
        llm.wait_for_completion()
        with pytest.raises(ValueError, match="no prompts"):
            llm.generate([])
    waited, failed = generations
    assert [shown(sequence)[:2] for sequence in waited.sequences] == [([5], [15, 3])]
    assert waited.sampling == {}
    assert (failed.sequences, failed.error) == ([], "ValueError: no prompts")


@without_engine
def test_a_trainers_generation_by_its_own_engine_is_recorded_once(engine: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from trl.generation import vllm_generation

    monkeypatch.setattr(vllm_generation.VLLMGeneration, "_init_vllm", lambda _: None)
    made: Any = lambda n, temperature, max_tokens, logprobs, **_: engine.SamplingParams(  # noqa: E731
        n, temperature, max_tokens, None, None, logprobs
    )
    monkeypatch.setattr(vllm_generation, "SamplingParams", made, raising=False)
    generation = generation_of(monkeypatch, mode="colocate", temperature=0.9, logprobs=1)
    generation.llm = engine.LLM()
    with recorded() as generations:
        generation.generate([[5], [5]], None, 2)
    (one,) = generations
    assert [shown(sequence) for sequence in one.sequences] == [([5], [15, 3], "stop", [-1, -2])] * 2
    assert (one.seam, one.sampling["n"], one.sampling["temperature"]) == ("trl-vllm", 1, 0.9)


CLIENT_27 = '''
class VLLMClient:
    """As in trl 0.25 to 0.27, there in `trl.extras.vllm_client`."""

    def generate(
        self, prompts, images=None, n=1, repetition_penalty=1.0, temperature=1.0, top_p=1.0, top_k=-1, min_p=0.0,
        max_tokens=16, truncate_prompt_tokens=None, guided_decoding_regex=None, generation_kwargs=None,
    ):
        ids = [[10 + i] for i in range(len(prompts) * n)]
        asked = [list(prompt.encode()) for prompt in prompts]
        return {"prompt_ids": asked, "completion_ids": ids, "logprobs": [[-1.0]] * len(ids)}
'''


def test_older_clients_are_recorded_without_what_their_server_does_not_say(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import trl.extras

    (tmp_path / "vllm_client.py").write_text(CLIENT_27)
    monkeypatch.setattr(trl.extras, "__path__", [*trl.extras.__path__, str(tmp_path)])
    install()
    module = importlib.import_module("trl.extras.vllm_client")
    with recorded() as generations:
        module.VLLMClient().generate(["a", "b"], n=2, top_k=3)
    assert [shown(sequence) for sequence in generations[0].sequences] == [
        (context, [sampled], None, [-1]) for context, sampled in (([97], 10), ([97], 11), ([98], 12), ([98], 13))
    ]
    assert generations[0].sampling["top_k"] == 3


def test_trl_0_28_returned_other_fields_where_ids_of_rivals_are_now() -> None:
    class VLLMGeneration:
        mode = "server"
        max_completion_length = 4
        generation_kwargs = None

        def generate(self, prompts: list[Any], num_generations: int, profiler: object = None) -> tuple[Any, ...]:
            return [[5], [5]], [[6], [7]], [[-1.0], [-2.0]], {"env_reward": [0.0, 1.0]}

    trl_vllm._attach_generation(SimpleNamespace(VLLMGeneration=VLLMGeneration))
    with recorded() as generations:
        VLLMGeneration().generate(["a", "a"], 2)
    assert [shown(it) for it in generations[0].sequences] == [([5], [6], None, [-1]), ([5], [7], None, [-2])]


ENGINE_RUN = """
import site, sys
for behind in sys.argv[2:]:
    site.addsitedir(behind)
import numpy as np
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM
from logs_ui.recorder.capture.calls import Collector, collecting
from logs_ui.recorder.capture.instruments import trl_vllm, vllm

def make(path):
    words = {word: i for i, word in enumerate(["<end>", "<unk>", *"abcdefghijklmnopqrstuvwxyz"])}
    backend = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend, eos_token="<end>", unk_token="<unk>", pad_token="<end>",
        chat_template="{% for message in messages %}{{ message['content'] }} {% endfor %}",
    )
    tokenizer.save_pretrained(path)
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=len(words), hidden_size=64, intermediate_size=64, num_hidden_layers=1, num_attention_heads=1,
        num_key_value_heads=1, head_dim=64, max_position_embeddings=64, eos_token_id=0, pad_token_id=0,
        bos_token_id=None,
    )
    model = Qwen3ForCausalLM(config)
    model.save_pretrained(path)
    return model, tokenizer

def check(generation, outputs):
    pairs = [(output, answer) for output in outputs for answer in output.outputs]
    assert len(generation.sequences) == len(pairs)
    for sequence, (output, answer) in zip(generation.sequences, pairs):
        assert sequence.context.tolist() == list(output.prompt_token_ids)
        assert sequence.sampled.tolist() == list(answer.token_ids)
        assert (sequence.finish, sequence.text) == (answer.finish_reason, answer.text or None)
        if sequence.logprobs is not None:
            assert np.isclose(sequence.logprobs.sum(), answer.cumulative_logprob, atol=1e-3)

def main(path):
    model, tokenizer = make(path)
    vllm.install()
    trl_vllm.install()
    from vllm import LLM, SamplingParams
    llm = LLM(path, enforce_eager=True, max_model_len=64, dtype="float32", gpu_memory_utilization=0.2)
    log = Collector()
    with collecting(log):
        many = llm.generate(["a b", "c"], SamplingParams(n=2, max_tokens=5, logprobs=2, seed=1, stop_token_ids=[4]))
        ids = llm.generate({"prompt_token_ids": [5, 6, 7]})
        chat = llm.chat([{"role": "user", "content": "a"}], SamplingParams(max_tokens=4, logprobs=0, detokenize=False))
        try:
            llm.generate({"prompt_token_ids": [5] * 100})
        except Exception as error:
            refused = type(error).__name__
    for generation, outputs in zip(log.records.generations[:3], (many, ids, chat), strict=True):
        assert generation.seam == "vllm"
        check(generation, outputs)
    first, _, last, failed = log.records.generations
    assert all(len(sequence.logprobs) == len(sequence.sampled) for sequence in first.sequences + last.sequences)
    assert (first.sampling["n"], first.sampling["seed"], first.sampling["stop_token_ids"]) == (2, 1, [4])
    assert failed.error.startswith(refused), failed.error
    print("recorded")

if __name__ == "__main__":
    main(sys.argv[1])
"""


@pytest.mark.skipif(
    not REAL_ENGINE and os.environ.get("LOGS_UI_TEST_VLLM") != "1",
    reason="vLLM is not installed; the stand-in's tests run. `make vllm` runs it in an environment of its own of 3 GB",
)
@pytest.mark.timeout(900)
def test_the_real_engine_is_recorded(tmp_path: Path) -> None:
    script = tmp_path / "run.py"
    script.write_text(ENGINE_RUN)
    # In vLLM's own environment the recorder and what it needs are looked for behind all that is vLLM's.
    python, behind = (sys.executable, sys.path) if REAL_ENGINE else (python_of("vllm"), site.getsitepackages())
    variables = os.environ | VARIABLES | {"VLLM_ENABLE_V1_MULTIPROCESSING": "0"}
    variables.pop("PYTHONDONTWRITEBYTECODE", None)  # the environment was installed without
    command = [python, str(script), str(tmp_path / "model"), *behind]
    done = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=840, check=False)
    assert done.returncode == 0, done.stderr[-3_000:]
    assert "recorded" in done.stdout.splitlines()
