"""The trainer's own model: by transformers in a real training, and through TRL's real `VLLMGeneration`."""

import asyncio
import inspect
import math
import re
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest

from logs_ui.recorder import load_run, record, row_scope
from logs_ui.rollout.models.backends import GenerationError, Model, Sampling
from logs_ui.rollout.models.token_episode import Answer, Trajectory
from logs_ui.rollout.models.trainer_model import TrainerModel
from logs_ui.rollout.play.chat_template import Chat
from tests.recorder.capture.test_vllm import ENGINE, NAN, Server, generation_of, serving, without_engine
from tests.support.late import torch
from tests.support.ranks import run_on_two_ranks
from tests.support.training import make_trainer


async def play(
    model: Model, row: int, trajectory: Trajectory, chat: Chat, turns: int, limits: Callable[[int, int], Sampling]
) -> list[tuple[list[int], Answer]]:
    """So many turns of a row; what it asked, and what was answered."""
    heard: list[tuple[list[int], Answer]] = []
    try:
        with row_scope(row):
            for turn in range(turns):
                if turn:
                    trajectory.insert(chat.inserted(heard[-1][1].ids, [{"role": "user", "content": f"{row} left"}]))
                context = trajectory.context
                answer = await model.answer(row, context, limits(row, turn))
                heard.append((context, answer))
                trajectory.sample(answer)
    finally:
        await model.leave(row)
    return heard


def playing(
    turns: Callable[[int], int], limits: Callable[[int, int], Sampling], seen: list[Any]
) -> Callable[..., dict[str, Any]]:
    """A rollout function in which row i plays `turns(i)` turns."""

    def rollout_func(prompts: list[Any], trainer: Any) -> dict[str, Any]:
        chat = Chat.of_trainer(trainer)
        rows = [Trajectory(chat.prompt_ids(prompt)) for prompt in prompts]

        async def everyone() -> list[Any]:
            model = TrainerModel(trainer, len(rows))
            for i in range(len(rows)):
                model.enter(i)
            return await asyncio.gather(*(play(model, i, row, chat, turns(i), limits) for i, row in enumerate(rows)))

        heard = asyncio.run(everyone())
        seen.append((rows, heard, trainer))
        return {
            "prompt_ids": [row.prompt_ids for row in rows],
            "completion_ids": [row.completion_ids for row in rows],
            "logprobs": [row.logprobs for row in rows],
            "env_mask": [row.mask for row in rows],
            "env_reward": [float(i % 2) for i, _ in enumerate(rows)],
        }

    return rollout_func


def logprobs_of(model: Any, context: list[int], sampled: Sequence[int], temperature: float, top_k: int) -> list[float]:
    """(S,) by a plain forward pass."""
    with torch.no_grad():
        logits = model(torch.tensor([[*context, *sampled]])).logits[0, len(context) - 1 : -1] / temperature
    if top_k:
        lowest = logits.topk(top_k).values[:, -1:]
        logits = logits.masked_fill(logits < lowest, float("-inf"))
    values: list[float] = logits.log_softmax(-1).gather(-1, torch.tensor(sampled)[:, None]).squeeze(-1).tolist()
    return values


@pytest.mark.versions
def test_a_real_training_gets_what_its_model_sampled_with_the_log_probs_it_was_sampled_with(tmp_path: Path) -> None:
    seen: list[Any] = []
    problems: list[str] = []

    def checked(prompts: list[Any], trainer: Any) -> dict[str, Any]:
        output = played(prompts, trainer)
        model = trainer.accelerator.unwrap_model(trainer.model)
        for heard in seen[-1][1]:
            for context, answer in heard:
                expected = logprobs_of(model, context, answer.ids, 0.7, 5)
                if not torch.allclose(torch.tensor(answer.logprobs), torch.tensor(expected), atol=1e-4):
                    problems.append(f"{answer.logprobs} {expected}")
        return output

    played = playing(lambda i: 1 + i % 3, lambda row, _: Sampling(2 + row, top_k=5), seen)
    make_trainer(record(checked, db=tmp_path / "a.db"), tmp_path, temperature=0.7, ddp_backend=None).train()
    assert problems == []
    assert len(seen) == 2
    for rows, heard, trainer in seen:
        assert trainer.model.training
        for i, (row, answers) in enumerate(zip(rows, heard, strict=True)):
            assert len(answers) == 1 + i % 3
            for context, answer in answers:
                start = len(context) - len(row.prompt_ids)
                assert row.completion_ids[start : start + len(answer.ids)] == answer.ids
                assert 1 <= len(answer.ids) <= 2 + i
                ended = answer.ids[-1] == trainer.processing_class.eos_token_id
                assert (answer.finish == "stop") == ended
                assert ended or len(answer.ids) == 2 + i
                assert trainer.processing_class.eos_token_id not in answer.ids[:-1]
    run = load_run(db=tmp_path / "a.db")
    assert run["turns"].tolist() == [1 + i % 3 for i in range(8)] * 2
    assert [metadata["attribution"] for metadata in run["metadata"]] == ["context"] * 16


def test_answers_are_greedy_or_end_at_a_stop_text_and_scores_of_earlier_steps_are_not_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All rows answer greedily in their first turn, and with stop texts in their second."""
    seen: list[Any] = []
    turns = Sampling(6, temperature=0), Sampling(12, stop=("guess", "maybe"))
    trainer = make_trainer(playing(lambda _: 2, lambda _, turn: turns[turn], seen), tmp_path, max_steps=1)
    sizes: list[int] = []
    original = type(trainer.model).generate

    def generate(self: Any, *args: Any, **kwargs: Any) -> Any:
        output = original(self, *args, **kwargs)
        sizes.extend(score.untyped_storage().nbytes() for score in output.scores)
        return output

    monkeypatch.setattr(type(trainer.model), "generate", generate)
    trainer.train()
    ((_, heard, _),) = seen
    assert set(sizes) == {0}
    assert len({tuple(greedy.ids) for (_, greedy), _ in heard}) <= 2  # two groups
    ends = []
    for _, (_, answer) in heard:
        words = trainer.processing_class.convert_ids_to_tokens(answer.ids)
        assert not any(stop in word for word in words[:-1] for stop in ("guess", "maybe"))
        ends.append(words[-1].strip())
        assert answer.finish == ("length" if len(words) == 12 and "guess" not in answer.text else "stop")
    assert {"guess", "maybe"} & set(ends)


class Answering:
    """An engine that writes down how it is called."""

    in_step = False

    def __init__(self, error: Exception | None = None) -> None:
        self.stand_in = [0]
        self.calls: list[tuple[list[list[int]], list[int]]] = []
        self.error = error
        self.released = threading.Event()
        self.released.set()

    def enter_thread(self) -> None:
        pass

    def gather(self, value: Any) -> list[Any]:
        return [value]

    def generate(self, contexts: list[list[int]], limits: list[int], sampling: Sampling) -> list[Answer]:
        self.calls.append((contexts, limits))
        self.released.wait(10)
        if self.error is not None:
            raise self.error
        return [Answer([*context, limit], None, "stop", "") for context, limit in zip(contexts, limits, strict=True)]


def model_on(engine: Answering, rows: int, monkeypatch: pytest.MonkeyPatch) -> TrainerModel:
    monkeypatch.setattr("logs_ui.rollout.models.trainer_model.engine_of", lambda _: engine)
    model = TrainerModel(SimpleNamespace(), rows)
    for row in range(rows):
        model.enter(row)
    return model


async def test_rows_are_answered_together_once_all_that_have_not_left_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Answering()
    model = model_on(engine, 4, monkeypatch)

    async def row(i: int) -> list[list[int]]:
        answers = []
        for turn in range(i):
            await asyncio.sleep(0.01 * ((i + turn) % 3))
            answers.append((await model.answer(i, [i, turn], Sampling(4 + i))).ids)
        await model.leave(i)
        return answers

    answers = await asyncio.gather(*map(row, range(4)))
    assert [sorted(contexts) for contexts, _ in engine.calls] == [[[1, 0], [2, 0], [3, 0]], [[2, 1], [3, 1]], [[3, 2]]]
    assert answers == [[], [[1, 0, 5]], [[2, 0, 6], [2, 1, 6]], [[3, 0, 7], [3, 1, 7], [3, 2, 7]]]


async def test_a_row_that_is_given_up_does_not_hold_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Answering()
    engine.released.clear()
    model = model_on(engine, 2, monkeypatch)

    async def impatient() -> None:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(model.answer(0, [1], Sampling(4)), 0.05)
        engine.released.set()
        await model.leave(0)

    async def patient() -> list[int]:
        first = await model.answer(1, [2], Sampling(4))
        second = await model.answer(1, [3], Sampling(4))
        await model.leave(1)
        return first.ids + second.ids

    _, answers = await asyncio.gather(impatient(), patient())
    assert answers == [2, 4, 3, 4]


async def test_the_event_loop_lives_while_the_model_generates(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Answering()
    engine.released.clear()
    asking = asyncio.create_task(model_on(engine, 1, monkeypatch).answer(0, [1], Sampling(4)))
    await asyncio.sleep(0.1)
    assert engine.calls
    engine.released.set()  # by the loop, which is not held up
    assert (await asking).ids == [1, 4]


async def test_a_generation_that_fails_is_every_rows_error_and_no_row_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Answering(RuntimeError("CUDA\x1b[2J out\nof memory"))
    model = model_on(engine, 3, monkeypatch)

    async def row(i: int) -> str:
        try:
            await model.answer(i, [i], Sampling(4))
        except GenerationError as error:
            with pytest.raises(GenerationError):
                await model.answer(i, [i], Sampling(4))
            return str(error)
        finally:
            await model.leave(i)
        return ""

    said = "The trainer's model could not generate: RuntimeError: CUDA\N{REPLACEMENT CHARACTER}[2J out of memory"
    assert await asyncio.gather(*map(row, range(3))) == [said] * 3
    assert len(engine.calls) == 1


async def test_where_ranks_go_in_step_a_failure_ends_the_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    """The others wait for this rank: rows that only failed would leave them waiting."""
    engine = Answering(RuntimeError("lost"))
    engine.in_step = True
    model = model_on(engine, 2, monkeypatch)
    asked = [model.answer(row, [row], Sampling(4)) for row in range(2)]
    assert all(isinstance(one, GenerationError) for one in await asyncio.gather(*asked, return_exceptions=True))
    with pytest.raises(GenerationError, match="lost"):
        await asyncio.gather(model.leave(0), model.leave(1))


@pytest.mark.parametrize(
    ("others", "message"),
    [
        ({"seed": 1}, r"Set GRPOConfig\(seed"),
        ({"max_tokens": 0}, "at least 1, not 0"),
        ({"temperature": 0.5}, "same sampling parameters"),
    ],
)
async def test_what_cannot_be_sampled_is_refused(monkeypatch: pytest.MonkeyPatch, others: Any, message: str) -> None:
    model = model_on(Answering(), 2, monkeypatch)

    async def row(i: int, sampling: Sampling) -> None:
        try:
            await model.answer(i, [i], sampling)
        finally:
            await model.leave(i)

    asked = row(0, Sampling(4)), row(1, Sampling(**{"max_tokens": 4, **others}))
    error = next(filter(None, await asyncio.gather(*asked, return_exceptions=True)))
    assert isinstance(error, (ValueError, GenerationError))
    assert re.search(message, str(error))


@pytest.fixture
def server() -> Iterator[Server]:
    with serving() as server:
        yield server


def vllm_generation_of(monkeypatch: pytest.MonkeyPatch, **options: Any) -> Any:
    """As `generation_of`, of older releases of TRL too."""
    from trl.generation.vllm_generation import VLLMGeneration

    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    if "is_fsdp_enabled" in inspect.signature(VLLMGeneration).parameters:  # until trl 1.0
        options["processing_class"] = None
        for name in ("vllm", "vllm.sampling_params"):  # whose names it looks up for each call
            monkeypatch.setitem(sys.modules, name, MagicMock(__version__="0.12.0"))
    return generation_of(monkeypatch, **options)


class Words:
    """As much of a tokenizer as a trainer's generation by vLLM asks for."""

    eos_token_id = 17

    def decode(self, ids: list[int], **_: Any) -> str:
        return " ".join(map(str, ids))


def trainer_with(generation: Any) -> Any:
    parts = {"vllm_generation": generation, "accelerator": generation.accelerator}
    return SimpleNamespace(use_vllm=True, processing_class=Words(), model=None, **parts)


def rounds(
    trainer: Any, turns: Sequence[int], limit: int = 3, base: int = 100, **sampling: Any
) -> list[list[tuple[list[int], Answer]]]:
    """Row i plays `turns[i]` turns, each time after a context of its own."""

    async def row(model: TrainerModel, i: int) -> list[tuple[list[int], Answer]]:
        heard = []
        for turn in range(turns[i]):
            context = [9, base * (i + 1) + turn]
            heard.append((context, await model.answer(i, context, Sampling(limit - i % 2, **sampling))))
        await model.leave(i)
        return heard

    async def everyone() -> list[Any]:
        model = TrainerModel(trainer, len(turns))
        for i in range(len(turns)):
            model.enter(i)
        return await asyncio.gather(*(row(model, i) for i in range(len(turns))))

    return asyncio.run(everyone())


@pytest.mark.versions
def test_the_trainers_vllm_server_answers_with_log_probs_and_limits_of_each_row(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    generation = vllm_generation_of(
        monkeypatch, mode="server", server_base_url=server.url, logprobs=1, generation_kwargs={"top_p": 0.5}
    )
    played = rounds(trainer_with(generation), [2, 1], limit=2, temperature=0.25, stop=["111"])
    assert [[(context, answer.ids, answer.finish) for context, answer in row] for row in played] == [
        [([9, 100], [110, 111], "stop"), ([9, 101], [111, 112], "stop")],
        [([9, 200], [210], "length")],
    ]
    assert played[0][0][1].logprobs == [-1, -2]
    assert [len(post.get("prompt") or post["prompts"]) for post in server.posts] == [2, 1]
    assert [post["max_tokens"] for post in server.posts if "prompt" in post] in ([2, 2], [])
    assert generation.generation_kwargs == {"top_p": 0.5}


@pytest.mark.parametrize("trl", ["0.29.1", "1.10.0", "1.11.0", "2.0.0"])
async def test_a_nan_among_log_probs_costs_its_row_where_trl_would_learn_from_it(
    server: Server, monkeypatch: pytest.MonkeyPatch, trl: str
) -> None:
    generation = vllm_generation_of(monkeypatch, mode="server", server_base_url=server.url, logprobs=1)
    monkeypatch.setattr("importlib.metadata.version", lambda _: trl)

    model = TrainerModel(trainer_with(generation), 2)

    async def row(i: int) -> Answer:
        try:
            return await model.answer(i, [9, (NAN, 100)[i]], Sampling(2))
        finally:
            await model.leave(i)

    for i in range(2):
        model.enter(i)
    broken, sound = await asyncio.gather(*map(row, range(2)), return_exceptions=True)
    assert not isinstance(sound, BaseException)
    assert sound.logprobs == [-1, -2]
    if trl in {"0.29.1", "1.10.0"}:
        assert isinstance(broken, GenerationError)
        assert "log-probs contain NaN" in str(broken)
    else:
        assert not isinstance(broken, BaseException)
        assert [math.isnan(it) for it in broken.logprobs or ()] == [True, True]


@pytest.mark.versions
@without_engine
def test_the_trainers_own_vllm_engine_answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from trl.generation import vllm_generation

    space: dict[str, Any] = {}
    exec(ENGINE, space)  # noqa: S102
    monkeypatch.setattr(vllm_generation.VLLMGeneration, "_init_vllm", lambda _: None)
    asked: list[dict[str, Any]] = []

    def params(**given: Any) -> Any:
        asked.append(given)
        return space["SamplingParams"](n=given["n"], logprobs=given["logprobs"])

    monkeypatch.setattr(vllm_generation, "SamplingParams", params, raising=False)
    generation = vllm_generation_of(monkeypatch, mode="colocate", temperature=0.9)
    generation.llm = space["LLM"]()
    played = rounds(trainer_with(generation), [2, 1], top_k=7)
    assert [[answer.ids for _, answer in row] for row in played] == [[[110, 3], [111, 3]], [[210, 3]]]
    assert played[0][0][1].logprobs == [-1, -2]
    assert (asked[0]["max_tokens"], asked[0]["temperature"], asked[0]["top_k"], asked[0]["n"]) == (3, 0.9, 7, 1)


RANK = """
import sys
from pathlib import Path
import pytest
from accelerate import PartialState
from tests.rollout.test_rollout_model import rounds, trainer_with
from tests.recorder.capture.test_vllm import generation_of
rank = PartialState(cpu=True).process_index
with pytest.MonkeyPatch.context() as patch:
    generation = generation_of(patch, mode="server", server_base_url=sys.argv[1])
    for turns in ([[1, 2], [4, 0, 3]], [[3, 1], [0, 0]]):
        for row in rounds(trainer_with(generation), turns[rank], base=100 + 900 * rank):
            for context, answer in row:
                assert answer.ids[0] == context[-1] + 10, (rank, context, answer)
(Path(sys.argv[2]) / str(rank)).touch()
"""


def test_two_ranks_with_unequal_turns_and_rows_neither_wait_for_ever_nor_get_each_others_answers(
    server: Server, tmp_path: Path
) -> None:
    run_on_two_ranks(RANK, tmp_path, server.url, tmp_path)
    assert (tmp_path / "0").exists()
    assert (tmp_path / "1").exists()
    assert [len(post.get("prompt") or post["prompts"]) for post in server.posts] == [4, 4, 4, 2, 4, 2, 2]
