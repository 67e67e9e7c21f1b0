"""A real vLLM server over HTTP: what it says it sampled, against transformers on the same weights. `make vllm` runs it.

Its environment takes gigabytes and its start a minute: too much for every change.
"""

import asyncio
import copy
import os
import warnings
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import openai
import pandas as pd
import pytest
import requests

from logs_ui.recorder import flush, load_run, load_runs, load_scalars, record, trace_client
from logs_ui.recorder.capture.instruments import install
from logs_ui.recorder.capture.model_answers import Sequence
from logs_ui.rollout import GenerationError, Sampling, environment_reward, openenv_rollout_func
from logs_ui.rollout.models.server_model import ChatModel, ServerModel
from logs_ui.rollout.models.token_episode import Answer
from logs_ui.rollout.play.tasks_and_seeds import Seeded
from tests.support.late import guess_env, guess_model, guess_rollout, torch, trl
from tests.support.model_server import recording
from tests.support.quiet import QUIET
from tests.support.training import GROUP, ROWS, dataset, guess_server, numbered
from tests.support.vllm_server import LENGTH, NAME, Served, vllm_server

if os.environ.get("LOGS_UI_TEST_VLLM") != "1":
    pytest.skip(
        "A real vLLM server, in an environment of its own of 3 GB: `make vllm` runs it (LOGS_UI_TEST_VLLM=1)",
        allow_module_level=True,
    )

EXACT = 1e-4
"""Nats that a log-prob may differ: two implementations in float32 differ by some 1e-6."""
KEPT = 2e-3
"""The same where it was recorded: as a half-precision number, relative to its size."""


@cache
def prompts() -> list[Any]:
    return [numbered(task, game) for task in guess_env.TASKS for game in (1, 2)]


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    with vllm_server("--logprobs-mode", "processed_logprobs") as served:
        yield served


@pytest.fixture
def contexts(served: Served) -> list[list[int]]:
    return [
        served.tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
        for messages in prompts()
    ]


def ask(served: Served, contexts: list[list[int]], **sampling: Any) -> list[Answer]:
    """All at once, as the rows of a batch."""
    model = Seeded(ServerModel(served.url, NAME), "batch", 0)

    async def row(i: int) -> Answer:
        try:
            return await model.answer(i, contexts[i], Sampling(**{"max_tokens": 12, **sampling}))
        finally:
            await model.leave(i)

    async def everyone() -> list[Answer]:
        for i in range(len(contexts)):
            model.enter(i)
        return await asyncio.gather(*(row(i) for i in range(len(contexts))))

    return asyncio.run(everyone())


@pytest.mark.parametrize(
    "sampling",
    [{"temperature": 0.5}, {"temperature": 1.0}, {"temperature": 1.7}, {"temperature": 0.8, "top_k": 5}],
    ids=str,
)
def test_log_probs_are_transformers_for_what_was_sampled_from(
    served: Served, contexts: list[list[int]], sampling: dict[str, Any]
) -> None:
    answers = ask(served, contexts * 4, **sampling)
    for context, answer in zip(contexts * 4, answers, strict=True):
        assert answer.logprobs == pytest.approx(served.logprobs(context, answer.ids, **sampling), abs=EXACT)
    assert len({tuple(answer.ids) for answer in answers}) > len(contexts)


def test_greedy_answers_are_transformers_token_by_token(served: Served, contexts: list[list[int]]) -> None:
    for context, answer in zip(contexts, ask(served, contexts, temperature=0.0), strict=True):
        given = torch.tensor([context])
        generated = served.model.generate(
            given, attention_mask=torch.ones_like(given), do_sample=False, max_new_tokens=12
        )
        assert answer.ids == generated[0, len(context) :].tolist()


def test_an_answer_ends_with_its_end_token_or_at_its_limit(served: Served, contexts: list[list[int]]) -> None:
    end = served.tokenizer.eos_token_id
    for limit in (2, 6):
        answers = ask(served, contexts * 4, temperature=1.0, max_tokens=limit)
        for answer in answers:
            assert (answer.finish == "stop") == (answer.ids[-1] == end)
            assert answer.finish == "stop" or len(answer.ids) == limit
            assert answer.text == served.tokenizer.decode(answer.ids, skip_special_tokens=True)
    assert {answer.finish for answer in answers} == {"stop", "length"}


def test_a_stop_text_ends_an_answer_and_stands_in_it(served: Served, contexts: list[list[int]]) -> None:
    (whole,) = ask(served, contexts[:1], temperature=0.0)
    word = served.tokenizer.decode(whole.ids[0])
    (stopped,) = ask(served, contexts[:1], temperature=0.0, stop=(word,))
    assert (stopped.ids, stopped.finish, stopped.text) == (whole.ids[:1], "stop", word)
    assert stopped.logprobs == pytest.approx(whole.logprobs[:1], abs=EXACT)  # type: ignore[index]


def test_a_seed_gives_each_row_an_answer_of_its_own_again(served: Served, contexts: list[list[int]]) -> None:
    once, again = (ask(served, contexts[:1] * 4, temperature=2.0, seed=3) for _ in range(2))
    assert [answer.ids for answer in once] == [answer.ids for answer in again]
    assert len({tuple(answer.ids) for answer in once}) > 1


def test_what_the_server_refuses_is_one_line(served: Served) -> None:
    with pytest.raises(GenerationError, match=f"status 400: .*maximum context length is {LENGTH} tokens"):
        ask(served, [[5] * (LENGTH + 1)])
    with pytest.raises(GenerationError, match=r"status 400: .*out of vocabulary"):
        ask(served, [[10_000]])


def test_a_preflight_passes_and_tells_another_name_or_tokenizer(served: Served) -> None:
    sampling = Sampling(8, temperature=0.7)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        asyncio.run(ServerModel(served.url, NAME).preflight(served.tokenizer, sampling))
    with pytest.raises(GenerationError, match=f"does not serve 'huge'. It serves {NAME}: name one of these."):
        asyncio.run(ServerModel(served.url, "huge").preflight(served.tokenizer, sampling))
    other = guess_model.make_tokenizer()
    other.add_tokens(["Hello"])
    with pytest.raises(GenerationError, match="tokenises text differently from the trainer's tokenizer"):
        asyncio.run(ServerModel(served.url, NAME).preflight(other, sampling))


def test_a_chat_model_is_given_messages_and_gives_one(served: Served, contexts: list[list[int]]) -> None:
    install()
    model = ChatModel(served.url, NAME)

    async def everyone() -> list[Any]:
        for i in range(len(prompts())):
            model.enter(i)
        replies = [model.reply(messages, Sampling(12, temperature=0.0)) for messages in prompts()]
        answers = await asyncio.gather(*replies)
        for i in range(len(prompts())):
            await model.leave(i)
        return answers

    with recording() as generations:
        replies = asyncio.run(everyone())
    expected = ask(served, contexts, temperature=0.0)
    assert [(reply.text, reply.finish) for reply in replies] == [(one.text, one.finish) for one in expected]
    assert {reply.message["role"] for reply in replies} == {"assistant"}
    texts = {one.sequences[0].text for one in generations}
    assert (len(generations), texts) == (len(prompts()), {reply.text for reply in replies})


BODY: dict[str, Any] = {"model": NAME, "max_tokens": 12, "temperature": 1.0, "return_token_ids": True}


def by_requests(served: Served, messages: Any) -> tuple[list[int], list[int]]:
    """A text completion, its prompt in ids."""
    ids = served.tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
    with trace_client(requests.Session()) as session:
        answer = session.post(f"{served.url}/completions", json={**BODY, "prompt": ids, "logprobs": 1}, timeout=60)
    return ids, answer.json()["choices"][0]["token_ids"]


def by_httpx(served: Served, messages: Any) -> tuple[list[int], list[int]]:
    with trace_client(httpx.Client(timeout=60)) as client:
        body = {**BODY, "messages": messages, "logprobs": True}
        reply = client.post(f"{served.url}/chat/completions", json=body).json()
    return reply["prompt_token_ids"], reply["choices"][0]["token_ids"]


def by_openai(served: Served, messages: Any) -> tuple[list[int], list[int]]:
    with openai.OpenAI(base_url=served.url, api_key="none") as client:
        reply = client.chat.completions.create(
            model=NAME, messages=messages, max_tokens=12, temperature=1.0, logprobs=True,
            extra_body={"return_token_ids": True},
        ).model_dump()  # fmt: skip
    return reply["prompt_token_ids"], reply["choices"][0]["token_ids"]


def by_openai_streamed(served: Served, messages: Any) -> tuple[list[int], list[int]]:
    with openai.OpenAI(base_url=served.url, api_key="none") as client:
        chunks = [
            chunk.model_dump()
            for chunk in client.chat.completions.create(
                model=NAME, messages=messages, max_tokens=12, temperature=1.0, logprobs=True, stream=True,
                extra_body={"return_token_ids": True},
            )
        ]  # fmt: skip
    choices = [choice for chunk in chunks for choice in chunk["choices"]]
    return chunks[0]["prompt_token_ids"], [token for choice in choices for token in choice.get("token_ids") or ()]


def exact(
    served: Served, sequence: Sequence, context: list[int], sampled: list[int], *, temperature: float = 1.0
) -> None:
    """Whether these ids are what was recorded, with transformers' log-probs and the right reason to end."""
    assert sequence.context is not None
    assert sequence.sampled is not None
    assert (sequence.context.tolist(), sequence.sampled.tolist()) == (context, sampled)
    expected = served.logprobs(context, sampled, temperature=temperature)
    assert sequence.logprobs == pytest.approx(expected, abs=EXACT)
    assert sequence.finish == ("stop" if sampled[-1] == served.tokenizer.eos_token_id else "length")


WAYS = [by_requests, by_httpx, by_openai, by_openai_streamed]
Way = Callable[[Served, Any], tuple[list[int], list[int]]]


@pytest.mark.parametrize("way", WAYS)
def test_a_users_own_calls_are_recorded_with_ids_and_log_probs(
    served: Served, contexts: list[list[int]], way: Way
) -> None:
    install()
    with recording() as generations:
        replies = [way(served, messages) for messages in prompts()]
    assert [context for context, _ in replies] == contexts
    for (context, sampled), generation in zip(replies, generations, strict=True):
        (sequence,) = generation.sequences
        exact(served, sequence, context, sampled)
        assert sequence.text == served.tokenizer.decode(sampled, skip_special_tokens=True)


def train(served: Served, rollout_func: Any, folder: Path, reward: Any, **config: Any) -> pd.DataFrame:
    """A training of the weights that are served, while the server's stay as they are; and what was recorded."""
    settings: dict[str, Any] = {
        "output_dir": str(folder),
        "seed": 0,
        "per_device_train_batch_size": ROWS,
        "num_generations": GROUP,
        "max_completion_length": 96,
        **QUIET,
        **config,
    }
    trainer = trl.GRPOTrainer(
        copy.deepcopy(served.model),
        reward_funcs=[reward],
        args=trl.GRPOConfig(**settings),
        train_dataset=dataset(),
        processing_class=served.tokenizer,
        rollout_func=rollout_func,
    )
    trainer.train()
    flush()
    assert load_runs()["unattributed_calls"].tolist() == [0]
    return load_run()


def train_on_games(served: Served, folder: Path, model: dict[str, Any], **config: Any) -> tuple[pd.DataFrame, float]:
    """What was recorded, and by how much a log-prob of a sampled token differs from transformers' at most. `model`
    says where answers come from.
    """
    batches: list[dict[str, Any]] = []
    with guess_server() as url:
        rollouts = openenv_rollout_func(
            environment=guess_env.GuessEnv,
            base_url=url,
            act=guess_rollout.act,
            observe=guess_rollout.observe,
            on_unparsable="retry",
            max_turns=3,
            tasks=list(guess_env.TASKS),
            sampling={"max_tokens": 8, "temperature": 1.0},
            **model,
        )

        def rollout_func(prompts: list[Any], trainer: Any) -> dict[str, Any]:
            batches.append(rollouts(prompts, trainer))
            return batches[-1]

        rows = train(served, record(rollout_func), folder, environment_reward, max_steps=3, **config)
        rollouts.close()
    returned = {key: [value for batch in batches for value in batch[key]] for key in batches[0]}
    worst = 0.0
    for i, (_, row) in enumerate(rows.iterrows()):
        context, ids, mask = (returned[key][i] for key in ("prompt_ids", "completion_ids", "env_mask"))
        sampled = np.array(mask, bool)
        expected = np.array(served.logprobs(context, ids))[sampled]
        worst = max(worst, np.abs(np.array(returned["logprobs"][i])[sampled] - expected).max())
        assert (row["prompt_ids"].tolist(), row["completion_ids"].tolist()) == (context, ids)
        assert row["logprobs"][sampled] == pytest.approx(expected, rel=KEPT, abs=EXACT)
        assert row["turns"] == row["metadata"]["turns"]
        steps = [action["reward"] for action in row["actions"] if action["action"] is not None]
        assert steps == row["metadata"]["step_rewards"]
    assert (len(rows), set(rows["status"])) == (3 * ROWS, {"ok"})
    assert rows["turns"].max() > 1
    assert {metadata["attribution"] for metadata in rows["metadata"]} <= {"scope", "context"}
    return rows, worst


def test_a_training_on_its_answers_is_exact_and_recorded(
    served: Served, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = {"model": NAME, "model_url": served.url}
    rows, worst = train_on_games(served, tmp_path, model, learning_rate=1e-3)
    with capsys.disabled():
        tokens = rows["completion_tokens"].sum()
        print(f"\n{tokens} sampled tokens of {len(rows)} rollouts: log-probs differ by {worst:.1e} at most")
    assert worst < EXACT


def without_weights_transfer(monkeypatch: pytest.MonkeyPatch) -> None:
    """What TRL does with its server, but for the transfer of weights, which needs CUDA."""
    from trl.generation import vllm_client, vllm_generation

    for module in (vllm_client, vllm_generation):
        monkeypatch.setattr(module, "is_vllm_available", lambda *_, **__: True)
    monkeypatch.setattr(vllm_client.VLLMClient, "init_communicator", lambda *_, **__: None)
    monkeypatch.setattr(vllm_generation.VLLMGeneration, "sync_weights", lambda *_, **__: None)


def test_a_training_by_trls_own_way_to_the_server_is_exact_and_recorded(
    served: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_weights_transfer(monkeypatch)
    _, worst = train_on_games(
        served,
        tmp_path,
        {},
        learning_rate=1e-9,
        use_vllm=True,
        vllm_mode="server",
        vllm_server_base_url=served.url.removesuffix("/v1"),
    )
    assert worst < EXACT
    ratios = load_scalars()["sampling/importance_sampling_ratio/mean"].dropna()
    assert ratios.to_numpy() == pytest.approx(1, abs=1e-3)


def test_answers_to_trls_client_are_recorded_with_ids_and_log_probs(
    served: Served, contexts: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    install()
    without_weights_transfer(monkeypatch)
    client = trl.generation.vllm_client.VLLMClient(base_url=served.url.removesuffix("/v1"))
    with recording() as generations:
        replies = [
            client.generate(contexts, n=2, max_tokens=12, temperature=0.7),
            client.chat(prompts(), n=2, max_tokens=12, temperature=0.7),
        ]
    for reply, generation in zip(replies, generations, strict=True):
        assert generation.seam == "trl-vllm"
        assert reply["prompt_ids"] == contexts
        for i, (sequence, ids) in enumerate(zip(generation.sequences, reply["completion_ids"], strict=True)):
            exact(served, sequence, contexts[i // 2], ids, temperature=0.7)
