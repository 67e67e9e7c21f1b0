"""Hooks of slime, miles, SkyRL and verl: each sample that they are given is a row, and the trainer goes on as before.

The objects have the fields of slime 624b824 (`Sample`), skyrl 0.3.0 (`GeneratorOutput`, `TrajectoryLogger.log`) and
verl 0.9.1 (`DataProto`, and what its agent loops put into TransferQueue), with which they were compared.
"""

import asyncio
import importlib
import json
import sqlite3
import subprocess
import sys
from argparse import Namespace
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest

from logs_ui.recorder import load_run, load_runs, load_scalars, start_run
from logs_ui.recorder.guard import RAISE_VARIABLE, guard
from logs_ui.recorder.trainers import samples as trainer_samples
from logs_ui.recorder.trainers import skyrl_hooks, slime_hooks, verl_hooks
from tests.support.factory import make_tokenizer
from tests.support.late import torch

CHAT = "<|im_start|>user\nGuess {}<|im_end|>\n<|im_start|>assistant\n"
HIGHER = "\n<|im_start|>user\nhigher<|im_end|>\n<|im_start|>assistant\n"


def ids(text: str) -> list[int]:
    return list(make_tokenizer().encode(text).ids)


FOUR, SEVEN, TOLD = ids("4<|im_end|>"), ids("7<|im_end|>"), ids(HIGHER)
TURNS, MASK = FOUR + TOLD + SEVEN, [1] * len(FOUR) + [0] * len(TOLD) + [1] * len(SEVEN)


@dataclass
class Processing:
    """A tokenizer of transformers, as far as SkyRL and verl pass one."""

    backend_tokenizer: Any = field(default_factory=make_tokenizer)
    pad_token_id: int = 0
    eos_token_id: int = FOUR[-1]

    def decode(self, tokens: Any) -> str:
        return str(self.backend_tokenizer.decode(list(tokens), skip_special_tokens=False))


class Status(Enum):
    PENDING = "pending"
    COMPLETED = "completed"
    TRUNCATED = "truncated"
    ABORTED = "aborted"
    FAILED = "failed"


@dataclass
class SpecInfo:
    spec_accept_token_num: int = 0
    spec_draft_token_num: int = 0
    spec_verify_ct: int = 0
    completion_token_num: int = 0


@dataclass
class PrefixCacheInfo:
    cached_tokens: int = 0
    total_prompt_tokens: int = 0


@dataclass
class Sample:
    """The fields of slime's, in its order."""

    group_index: int | None = None
    index: int | None = None
    rollout_id: int | None = None
    prompt: Any = ""
    tokens: list[int] = field(default_factory=list)
    multimodal_inputs: Any = None
    response: str = ""
    response_length: int = 0
    label: str | None = None
    reward: Any = None
    loss_mask: list[int] | None = None
    weight_versions: list[str] = field(default_factory=list)
    rollout_log_probs: list[float] | None = None
    remove_sample: bool = False
    teacher_log_probs: list[float] | None = None
    status: Status = Status.PENDING
    metadata: dict[str, Any] = field(default_factory=dict)
    generate_function_path: str | None = None
    train_metadata: dict[str, Any] | None = None
    session_id: str | None = None
    non_generation_time: float = 0.0
    spec_info: SpecInfo = field(default_factory=SpecInfo)
    prefix_cache_info: PrefixCacheInfo = field(default_factory=PrefixCacheInfo)


def sample(index: int, status: Status, reward: Any, completion: list[int] = SEVEN, **more: Any) -> Sample:
    prompt = ids(CHAT.format(index // 2))
    text = make_tokenizer().decode(completion, skip_special_tokens=False)
    known: dict[str, Any] = {"weight_versions": ["3"], "metadata": {"task": f"guess-{index // 2}"}, **more}
    return Sample(
        group_index=index // 2, index=index, rollout_id=index, prompt=[{"role": "user", "content": "Guess"}],
        tokens=prompt + completion, response=text, response_length=len(completion), label="7", reward=reward,
        rollout_log_probs=[-0.5] * len(completion), status=status, non_generation_time=0.5, **known,
    )  # fmt: skip


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    make_tokenizer().save(str(tmp_path / "tokenizer.json"))
    return tmp_path


@pytest.fixture(autouse=True)
def db(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("LOGS_UI_DB", str(tmp_path / "runs.db"))
    yield tmp_path / "runs.db"
    for trainer in ("slime", "skyrl", "verl"):
        trainer_samples.end_run(trainer)


def rows(trainer: str) -> pd.DataFrame:
    trainer_samples.end_run(trainer)
    return load_run("latest")


def arguments(checkpoint: Path, **more: Any) -> Namespace:
    return Namespace(
        hf_checkpoint=str(checkpoint), wandb_group="maze-4b", wandb_key="secret", rollout_temperature=0.8,
        rollout_max_response_len=64, eval_temperature=0.0, reward_key=None, **more,
    )  # fmt: skip


def test_slime_passes_its_samples_and_goes_on(checkpoint: Path, db: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOGS_UI_RUN", "night-3")
    samples = [
        sample(0, Status.COMPLETED, 1.0, TURNS, loss_mask=MASK, weight_versions=["2", "3"], session_id="s-1"),
        sample(1, Status.TRUNCATED, float("nan"), spec_info=SpecInfo(spec_verify_ct=9)),
        sample(2, Status.ABORTED, 0.0, remove_sample=True),
        sample(3, Status.FAILED, None),
    ]
    assert slime_hooks.log_rollout(5, arguments(checkpoint), samples, {"rollout/reward": 0.5}, 12.0) is False
    found = rows("slime")
    assert found.run.unique().tolist() == ["night-3"]
    assert (load_runs().name[0], load_runs().state[0]) == ("maze-4b", "finished")
    assert set(found["mode"]) == {"train"}
    assert set(found.step) == {5}
    assert found.policy_step.tolist() == [2, 3, 3, 3]
    assert found.staleness.tolist() == [1, 0, 0, 0]
    assert [name.rpartition("/")[2] for name in found.group] == ["0", "0", "1", "1"]
    assert found.generation.tolist() == [0, 1, 0, 1]
    assert found.task.tolist() == ["guess-0", "guess-0", "guess-1", "guess-1"]
    assert found.model.tolist() == [str(checkpoint)] * 4
    assert found.stop_reason.tolist() == ["stop", "length", "aborted", "exception"]
    assert found.status.tolist() == ["ok", "ok", "ok", "error"]
    assert found.error[3] == "the trainer marked the sample as failed"
    assert found.truncated_turns[:2].tolist() == [0, 1]
    assert found.turns.tolist() == [2, 1, 1, 1]
    assert found.rewards.tolist() == [{"reward": 1.0}, {"reward": None}, {"reward": 0.0}, {"reward": None}]
    assert found.odd_rewards.tolist() == [None, {"reward": "nan"}, None, None]
    assert found.completion_ids[0].tolist() == TURNS
    assert found["mask"][0].tolist() == MASK
    assert found.logprobs[1].tolist() == [-0.5] * len(SEVEN)
    assert found.messages[0] == [
        {"role": "user", "content": "Guess 0"},
        {"role": "assistant", "content": "4"},
        {"role": "user", "content": "higher"},
        {"role": "assistant", "content": "7"},
    ]
    assert found.sampling[0]["temperature"] == 0.8
    assert found.sampling[0]["max_tokens"] == 64
    about = found.metadata[0]
    names = {"task": "guess-0", "label": "7", "index": 0, "rollout_id": 0, "session_id": "s-1"}
    assert about["dataset"] == {**names, "weight_versions": ["2", "3"]}
    assert found.metadata[1]["metrics"] == {"non_generation_time": 0.5, "spec_verify_ct": 9.0}
    assert found.metadata[2]["metrics"]["remove_sample"] == 1.0
    assert load_scalars("night-3").loc[5].to_dict() == {"rollout/reward": 0.5, "rollout_time": 12.0}
    assert settings(db)["wandb_key"] == "***"


def settings(db: Path) -> Any:
    return json.loads(sqlite3.connect(db).execute("select config from run").fetchone()[0])


def test_a_dict_of_rewards_has_one_that_counts_and_metrics(checkpoint: Path) -> None:
    args = arguments(checkpoint)
    args.reward_key = "score"
    slime_hooks.log_rollout(0, args, [sample(0, Status.COMPLETED, {"score": 2.0, "format": 1, "why": "right"})])
    (found,) = rows("slime").to_dict("records")
    assert (found["reward"], found["rewards"]) == (2.0, {"score": 2.0})
    assert found["metadata"]["metrics"]["format"] == 1.0
    assert found["metadata"]["why"] == "right"


def test_an_evaluation_of_slime_has_rows_by_data_set(checkpoint: Path) -> None:
    samples = [sample(0, Status.COMPLETED, 1.0), sample(1, Status.COMPLETED, 0.0)]
    for it in samples:
        it.group_index = None  # slime numbers groups of the training only
    data = {
        "aime": {"rewards": [1.0, 0.0], "truncated": [False, False], "samples": samples},
        "gpqa": {"rewards": [1.0]},
    }
    assert slime_hooks.log_eval(2, arguments(checkpoint), data, {"eval/aime": 0.5}) is False
    found = rows("slime")
    assert found.eval_name.tolist() == ["aime", "aime"]
    assert set(found["mode"]) == {"eval"}
    assert len({*found.group}) == 1
    assert found.generation.tolist() == [0, 1]
    assert found.sampling[0]["temperature"] == 0.0


def test_without_a_tokenizer_the_text_of_slime_is_kept(tmp_path: Path) -> None:
    slime_hooks.log_rollout(0, arguments(tmp_path / "of-the-hub"), [sample(0, Status.COMPLETED, 1.0)])
    (found,) = rows("slime").to_dict("records")
    assert found["messages"][-1] == {"role": "assistant", "content": "7<|im_end|>"}


def test_a_sample_that_cannot_be_recorded_costs_itself(checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(RAISE_VARIABLE, "0")
    before = guard.errors
    samples = [sample(i, Status.COMPLETED, 1.0) for i in range(5)]
    samples[0].metadata = samples[1].weight_versions = None  # type: ignore[assignment]
    samples[2].tokens = None  # type: ignore[assignment]
    samples[3].prompt, samples[3].reward = CHAT, "not a number"
    assert slime_hooks.log_rollout(0, arguments(checkpoint), samples) is False
    assert slime_hooks.log_rollout(1, arguments(checkpoint), [object()]) is False
    assert slime_hooks.log_eval(1, object(), {}) is False
    assert guard.errors > before
    found = rows("slime")
    assert [it["dataset"]["index"] for it in found.metadata] == [0, 1, 3, 4]
    assert found.reward.tolist() == pytest.approx([1.0, 1.0, np.nan, 1.0], nan_ok=True)


class TrajectoryLogger:
    """SkyRL's, as far as it is called."""

    def __init__(self) -> None:
        self.logged: list[dict[str, Any]] = []

    def log(self, **given: Any) -> None:
        self.logged.append(given)


@dataclass(frozen=True)
class TrajectoryID:
    instance_id: str
    repetition_id: int


def skyrl_config(resampling: str | None = None) -> Any:
    sampling = SimpleNamespace(temperature=1.0, max_generate_length=64)
    model = SimpleNamespace(model=SimpleNamespace(path="Qwen/Qwen3-4B"))
    algorithm = SimpleNamespace(dynamic_sampling=SimpleNamespace(type=resampling))
    return SimpleNamespace(
        trainer=SimpleNamespace(run_name="sky", policy=model, algorithm=algorithm),
        generator=SimpleNamespace(
            n_samples_per_prompt=2, sampling_params=sampling,
            eval_n_samples_per_prompt=1, eval_sampling_params=SimpleNamespace(temperature=0.0),
        ),
    )  # fmt: skip


def output(**more: Any) -> dict[str, Any]:
    """`GeneratorOutput` of two prompts with two answers each, after `postprocess_generator_output`."""
    return {
        "prompt_token_ids": [ids(CHAT.format(i // 2)) for i in range(4)],
        "response_ids": [TURNS, SEVEN, FOUR, SEVEN],
        "rewards": [[0.0] * (len(TURNS) - 1) + [1.0], [0.0, 0.5], [0.0, 0.0], [float("nan"), 0.0]],
        "loss_masks": [MASK, [1, 1], [1, 1], [1, 1]],
        "stop_reasons": ["stop", "length", "abort", "stop"],
        "rollout_metrics": {"generate/avg_num_tokens": 3.0},
        "rollout_logprobs": [[-0.5] * len(TURNS), [-0.5] * 2, [-0.5] * 2, [-0.5] * 2],
        "trajectory_ids": None,
        "trajectory_generation_times": [1.0, 2.0, 3.0, 4.0],
        "rollout_expert_indices": None,
        "is_last_step": None,
        "env_metrics": [{"acc": 1.0, "why": "right"}] * 4,
        "pixel_values": None,
        "image_grid_thw": None,
        **more,
    }


def call(logger: Any, generator_output: Any, prompts: list[Any], step: int | None, key: str, **more: Any) -> None:
    logger.log(
        tracker=None, num_samples=0, prompts=prompts, generator_output=generator_output, tokenizer=Processing(),
        global_step=step, wandb_key=f"trajectories/{key}", **more,
    )  # fmt: skip


def test_skyrl_passes_its_trajectories_and_logs_as_before() -> None:
    logger = TrajectoryLogger()
    assert skyrl_hooks.recorded(logger, skyrl_config()) is logger
    prompts = [[{"role": "user", "content": f"Guess {i // 2}"}] for i in range(4)]
    call(logger, output(), prompts, 1, "train", include_idx=False)
    assert [given["num_samples"] for given in logger.logged] == [0]
    assert logger.logged[0]["include_idx"] is False
    call(logger, output(), prompts, None, "eval", num_turns_list=[2, 1, 1, 1])
    every = rows("skyrl")
    found, evaluated = (every[every["mode"] == mode].reset_index(drop=True) for mode in ("train", "eval"))
    assert (set(evaluated.step), evaluated.group.nunique()) == ({0}, 4)
    assert (evaluated.metadata[0]["metrics"]["num_turns"], evaluated.sampling[0]) == (2.0, {"temperature": 0.0})
    assert load_runs().name[0] == "sky"
    assert found[["mode", "step", "model"]].drop_duplicates().to_numpy().tolist() == [["train", 1, "Qwen/Qwen3-4B"]]
    assert [name.rpartition("/")[2] for name in found.group] == ["0", "0", "1", "1"]
    assert found.generation.tolist() == [0, 1, 0, 1]
    assert found.stop_reason.tolist() == ["stop", "length", "aborted", "stop"]
    assert found.reward.tolist()[:3] == [1.0, 0.5, 0.0]
    assert found.odd_rewards[3] == {"reward": "nan"}
    assert found.turns.tolist() == [2, 1, 1, 1]
    assert found["mask"][0].tolist() == MASK
    assert found.logprobs[0].tolist() == [-0.5] * len(TURNS)
    assert found.messages[0][0] == {"role": "user", "content": "Guess 0"}
    assert found.messages[0][2] == {"role": "user", "content": "higher"}
    assert found.metadata[1]["metrics"] == {"generation_time": 2.0, "acc": 1.0}
    assert found.metadata[1]["why"] == "right"
    assert found.sampling[0] == {"temperature": 1.0, "max_generate_length": 64}
    assert load_scalars(found.run[0]).loc[1].to_dict() == {"generate/avg_num_tokens": 3.0}


def test_of_a_trajectory_in_steps_the_last_is_a_row() -> None:
    """Its prompt has the tokens of the steps before it; SkyRL rewards it alone."""
    prompt = ids(CHAT.format(0))
    names = [TrajectoryID("u1", 0), TrajectoryID("u1", 0), TrajectoryID("u1", 1)]
    steps = {
        "prompt_token_ids": [prompt, prompt + FOUR + TOLD, prompt], "response_ids": [FOUR, SEVEN, SEVEN],
        "rewards": [0.0, 1.0, 0.0], "loss_masks": [[1, 1]] * 3, "stop_reasons": ["stop"] * 3, "trajectory_ids": names,
        "is_last_step": [False, True, True],
    }  # fmt: skip
    logger = skyrl_hooks.recorded(TrajectoryLogger(), skyrl_config())
    call(logger, steps, [[{"role": "user", "content": "Guess 0"}]] * 2, 3, "train")
    found = rows("skyrl")
    assert found.reward.tolist() == [1.0, 0.0]
    assert [name.rpartition("/")[2] for name in found.group] == ["u1", "u1"]
    assert found.messages[0][0]["content"] == CHAT.format(0) + "4<|im_end|>" + HIGHER


def test_prompts_of_the_last_batch_are_not_those_of_resampled_ones() -> None:
    logger = skyrl_hooks.recorded(TrajectoryLogger(), skyrl_config("filter"))
    call(logger, output(), [[{"role": "user", "content": "another"}]] * 4, 1, "train")
    assert "Guess 0" in rows("skyrl").messages[0][0]["content"]


class Trainer:
    """A trainer of verl, as far as it is recorded."""

    def __init__(self) -> None:
        self.config, self.tokenizer, self.global_steps = CONFIG, Processing(), 3
        self.calls: list[tuple[Any, ...]] = []

    def fit(self, fails: bool = False) -> str:  # noqa: FBT001, FBT002
        self._log_rollout_data(batch(), {}, {}, "folder")
        if fails:
            raise ValueError("out of memory")
        return "done"

    def _log_rollout_data(self, *given: Any) -> None:
        self.calls.append(given)


class Config(dict[str, Any]):
    """OmegaConf's, as far as verl's is read."""

    __getattr__ = dict.__getitem__


ROLLOUT = Config(n=2, temperature=1.0, top_p=0.9, top_k=-1, response_length=30)
CONFIG = Config(
    trainer=Config(experiment_name="gsm8k_grpo"), actor_rollout_ref=Config(model=Config(path="tiny"), rollout=ROLLOUT)
)
RESPONSES = [TURNS, SEVEN, [SEVEN[0]] * 30, FOUR]
SCORES = [1.0, 0.0, 0.5, float("nan")]


def batch() -> Any:
    """A `DataProto` as `fit()` has it: prompts padded on the left, responses on the right."""
    masks = [MASK, [1, 1], [1] * 30, [1, 1]]
    prompts = [ids(CHAT.format(i // 2)) for i in range(4)]
    right = [[*row, *[0] * (30 - len(row))] for row in RESPONSES]
    scores = [
        [0.0] * (len(row) - 1) + [score] + [0.0] * (30 - len(row)) for row, score in zip(RESPONSES, SCORES, strict=True)
    ]
    return SimpleNamespace(
        batch={
            "prompts": torch.tensor([[0] * (30 - len(row)) + row for row in prompts]),
            "responses": torch.tensor(right),
            "response_mask": torch.tensor([[*row, *[0] * (30 - len(row))] for row in masks]),
            "attention_mask": torch.tensor([
                [0] * (30 - len(prompt)) + [1] * (len(prompt) + len(row)) + [0] * (30 - len(row))
                for prompt, row in zip(prompts, RESPONSES, strict=True)
            ]),
            "token_level_scores": torch.tensor(scores),
            "rollout_log_probs": torch.full((4, 30), -0.5),
            "old_log_probs": torch.full((4, 30), -0.6),
            "advantages": torch.tensor([[0.7 * it for it in row] + [0.0] * (30 - len(row)) for row in masks]),
        },
        non_tensor_batch={
            "uid": np.array(["u1", "u1", "u2", "u2"], dtype=object),
            "raw_prompt": objects([{"role": "user", "content": "Guess"}] for _ in range(4)),
            "reward_model": np.array([{"ground_truth": "4", "style": "rule"}] * 4, dtype=object),
            "data_source": np.array(["openai/gsm8k"] * 4, dtype=object),
            "extra_info": np.array([{"index": i} for i in range(4)], dtype=object),
            "acc": np.array([True, False, False, True]),
            "pred": np.array(["4", "7", "x", "4"], dtype=object),
            "__num_turns__": np.array([4, 2, 2, 2], dtype=np.int32),
            "min_global_steps": np.array([1, 2, 2, None], dtype=object),
            "tools_kwargs": np.array([{"shell": {"create_kwargs": {}}}] * 4, dtype=object),
            "multi_modal_inputs": np.array([{}] * 4, dtype=object),
        },
    )  # fmt: skip


def objects(values: Iterator[Any] | Any) -> Any:
    found = [*values]
    array = np.empty(len(found), dtype=object)
    array[:] = found
    return array


@pytest.fixture
def verl(monkeypatch: pytest.MonkeyPatch) -> type[Trainer]:
    plain = SimpleNamespace(OmegaConf=SimpleNamespace(to_container=lambda config, resolve: dict(config)))
    monkeypatch.setitem(sys.modules, "omegaconf", plain)
    kind = type("RayPPOTrainer", (Trainer,), {name: Trainer.__dict__[name] for name in ("fit", "_log_rollout_data")})
    verl_hooks._attach(SimpleNamespace(RayPPOTrainer=kind))
    return kind


def test_verl_passes_its_batch_and_dumps_as_before(verl: type[Trainer]) -> None:
    trainer = verl()
    assert trainer.fit() == "done"
    assert [given[1:] for given in trainer.calls] == [({}, {}, "folder")]
    found = load_run("latest")
    assert (load_runs().name[0], load_runs().state[0]) == ("gsm8k_grpo", "finished")
    assert found[["mode", "step", "model", "eval_name"]].drop_duplicates().to_numpy().tolist() == [
        ["train", 3, "tiny", "openai/gsm8k"]
    ]
    assert [name.rpartition("/")[2] for name in found.group] == ["u1", "u1", "u2", "u2"]
    assert found.generation.tolist() == [0, 1, 0, 1]
    assert found.policy_step.tolist() == [1, 2, 2, 3]
    assert found.staleness.tolist()[:3] == [1, 0, 0]
    assert pd.isna(found.staleness[3])
    assert found.stop_reason.tolist() == ["stop", "stop", "length", "stop"]
    assert found.reward.tolist()[:3] == [1.0, 0.0, 0.5]
    assert found.odd_rewards[3] == {"score": "nan"}
    assert found.advantage.tolist() == pytest.approx([0.7] * 4)
    assert [len(it) for it in found.completion_ids] == [len(row) for row in RESPONSES]
    assert found.prompt_ids[0].tolist() == ids(CHAT.format(0))
    assert found["mask"][0].tolist() == MASK
    assert found.logprobs[0].tolist() == [-0.5] * len(TURNS)
    assert found.turns.tolist() == [2, 1, 1, 1]
    assert found.messages[0][-1] == {"role": "assistant", "content": "7"}
    about = found.metadata[0]
    assert about["metrics"] == {"acc": 1.0, "__num_turns__": 4.0}
    assert about["pred"] == "4"
    assert about["tools_kwargs"] == {"shell": {"create_kwargs": {}}}
    truth = {"ground_truth": "4", "style": "rule"}
    assert about["dataset"] == {"data_source": "openai/gsm8k", "reward_model": truth, "extra_info": {"index": 0}}
    assert found.sampling[0] == {"temperature": 1.0, "top_p": 0.9, "top_k": -1, "max_tokens": 30}


def test_an_exception_of_the_training_is_the_run_s_and_a_response_without_its_end_has_no_stop_reason(
    verl: type[Trainer],
) -> None:
    trainer = verl()
    trainer.tokenizer.eos_token_id = -1
    with pytest.raises(ValueError, match="out of memory"):
        trainer.fit(fails=True)
    assert load_runs().state[0] == "failed"
    assert load_run("latest").stop_reason.tolist() == ["not_recorded", "not_recorded", "length", "not_recorded"]


def test_a_batch_in_transfer_queue_is_read_from_it(verl: type[Trainer], monkeypatch: pytest.MonkeyPatch) -> None:
    """`KVBatchMeta` has keys `{prompt}_{session}_{output}` and tags; fields that nobody put are left out."""
    scores = [torch.zeros(len(row)) for row in RESPONSES]
    for row, score in zip(scores, SCORES, strict=True):
        row[-1] = score
    calls = [[0.0, 1.5, None, None], [1.5, 0.5, {"name": "add", "arguments": "{}"}, "2"], [2.0, 1.0, None, None]]
    passed = {"extras": {"logs_ui": {"calls": calls, "limit": "turn_limit"}}}
    stored = {
        "prompts": Column(torch.tensor(ids(CHAT.format(i // 2))) for i in range(4)),
        "responses": Column(map(torch.tensor, RESPONSES)),
        "loss_mask": Column(map(torch.tensor, [MASK, [1, 1], [1] * 30, [1, 1]])),
        "rm_scores": Column(scores),
        "advantages": Column(torch.full((len(row),), 0.7) for row in RESPONSES),
        "raw_prompt": objects([{"role": "user", "content": "Guess"}] for _ in range(4)),
        "num_turns": np.array([4, 2, 2, 2]),
        "extra_fields": objects({"reward_extra_info": {"acc": 1.0}, "turn_scores": [i], **passed} for i in range(4)),
        "routed_experts": "large",
    }

    def get(keys: list[str], partition_id: str, select_fields: list[str]) -> Any:
        assert (len(keys), partition_id) == (4, "train")
        return Fields({name: stored[name] for name in select_fields if name in stored})

    monkeypatch.setitem(sys.modules, "transfer_queue", SimpleNamespace(kv_batch_get=get))
    tags = [{"min_global_steps": 2}, {"min_global_steps": 1}, {"min_global_steps": None}, {"is_padding": True}]
    meta = SimpleNamespace(keys=["a_1_0_0", "a_1_1_0", "b_0_0", "b_1_0"], partition_id="train", tags=tags)
    verl()._log_rollout_data(meta, {}, "folder")
    found = rows("verl")
    assert [name.rpartition("/")[2] for name in found.group] == ["a_1", "a_1", "b"]
    assert found.generation.tolist() == [0, 1, 0]
    assert found.staleness.tolist()[:2] == [0, 1]
    assert found.reward.tolist() == [1.0, 0.0, 0.5]
    assert found.turns.tolist() == [2, 2, 2]
    assert found.stop_reason.tolist() == ["turn_limit"] * 3
    assert [it["observation"] for it in found.actions[0]] == ["2", None]
    assert found.seconds[0] == pytest.approx(3.0, abs=0.5)
    assert found.metadata[1]["metrics"] == {"num_turns": 2.0, "acc": 1.0, "output": 0.0}
    assert found.metadata[1]["turn_scores"] == [1]


class Fields(dict[str, Any]):
    """A `TensorDict`, as far as it is read: `get()` returns what has `tolist()`, and an index returns a list."""

    def __getitem__(self, name: str) -> list[Any]:
        return [*self.get(name)]  # type: ignore[misc]


class Column(list[Any]):
    """A nested tensor, as far as it is read."""

    def unbind(self) -> list[Any]:
        return self


CALL = '<tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call><|im_end|>'


class ToolAgentLoop:
    """The one of verl, as far as it is used: its methods and states, with a parser that finds CALL."""

    response_length, tools = 300, {"add": SimpleNamespace(tool_schema="schema")}

    def __init__(self, *answers: str, turns: int = 3, heard: str = "2") -> None:
        self.answers, self.turns, self.heard, self.tool_parser = [*answers], turns, heard, self

    async def extract_tool_calls(self, tokens: list[int], tools: list[str]) -> tuple[str, list[Any]]:
        assert tools == ["schema"]
        call = SimpleNamespace(name="add", arguments='{"a": 1}')
        return "", [call] * make_tokenizer().decode(tokens, skip_special_tokens=False).count("<tool_call>")

    async def run(self, sampling_params: dict[str, Any], priority: int = 0, **kwargs: Any) -> Any:
        data = SimpleNamespace(messages=[*kwargs["raw_prompt"]], response_mask=[], ids=[], _active_tools=self.tools)
        state = "generating"
        while state != "terminated":
            if state == "generating":
                state = await self._handle_generating_state(data, sampling_params)
            else:
                state = await self._handle_processing_tools_state(data)
        return SimpleNamespace(extra_fields={}, ids=data.ids, mask=data.response_mask)

    async def _handle_generating_state(
        self,
        agent_data: Any,
        sampling_params: dict[str, Any],
        ignore_termination: bool = False,  # noqa: FBT001, FBT002
    ) -> str:
        await asyncio.sleep(0.01)
        self.turns -= 1
        agent_data.response_ids = ids(self.answers.pop(0))
        agent_data.ids += agent_data.response_ids
        agent_data.response_mask += [1] * len(agent_data.response_ids)
        if self.turns == 0 or len(agent_data.ids) >= self.response_length:
            return "terminated"
        _, agent_data.calls = await self.extract_tool_calls(agent_data.response_ids, ["schema"])
        agent_data.messages.append({"role": "assistant", "content": ""})
        return "processing" if agent_data.calls else "terminated"

    async def _handle_processing_tools_state(self, agent_data: Any) -> str:
        answers = await asyncio.gather(*(self._call_tool(it, {}, agent_data) for it in agent_data.calls))
        agent_data.messages += [{"role": "tool", "content": it[0].text} for it in answers]
        heard = ids("".join(it[0].text for it in answers) + HIGHER)
        if len(agent_data.ids) + len(heard) >= self.response_length:
            return "terminated"
        agent_data.ids += heard
        agent_data.response_mask += [0] * len(heard)
        return "generating"

    async def _call_tool(self, tool_call: Any, tools_kwargs: dict[str, Any], agent_data: Any) -> Any:
        await asyncio.sleep(0.02)
        return SimpleNamespace(text=self.heard), 0.0, {}


@pytest.fixture
def agent_loop(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The recorded loop of `verl_agent_loop`, over the one above."""
    registered: dict[str, Any] = {}
    register = lambda name: lambda kind: registered.setdefault(name, kind)  # noqa: E731
    for name in ("agent_loop", "tool_agent_loop"):
        module = SimpleNamespace(register=register, ToolAgentLoop=ToolAgentLoop)
        monkeypatch.setitem(sys.modules, f"verl.experimental.agent_loop.{name}", module)
    monkeypatch.delitem(sys.modules, verl_hooks._LOOP, raising=False)
    importlib.import_module(verl_hooks._LOOP)
    monkeypatch.delitem(sys.modules, verl_hooks._LOOP)
    return registered["logs_ui_tool_agent"]


def played(loop: Any, **given: Any) -> Any:
    return asyncio.run(loop.run({}, raw_prompt=[{"role": "user", "content": "Guess"}], **given))


def pass_on(trainer: Trainer, output: Any, width: int = 400) -> None:
    """A rollout that an agent loop returned, as `fit()` does."""
    prompt, size = ids(CHAT.format(0)), len(output.ids)

    def padded(row: list[Any]) -> Any:
        return torch.tensor([[*row, *[0] * (width - size)]])

    tensors = {
        "prompts": torch.tensor([prompt]), "responses": padded(output.ids), "response_mask": padded(output.mask),
        "attention_mask": padded([1] * (len(prompt) + size)), "token_level_scores": padded([1.0] + [0.0] * (size - 1)),
    }  # fmt: skip
    others = {name: objects([value]) for name, value in {"uid": "u", **output.extra_fields}.items()}
    rollout = Config(ROLLOUT, response_length=ToolAgentLoop.response_length)
    trainer.config = Config(CONFIG, actor_rollout_ref=Config(model=Config(path="tiny"), rollout=rollout))
    trainer._log_rollout_data(SimpleNamespace(batch=tensors, non_tensor_batch=others), {}, {}, "folder")


def test_tool_calls_of_verl_s_loop_are_actions_with_their_answers_and_times(
    verl: type[Trainer], agent_loop: Any
) -> None:
    pass_on(verl(), played(agent_loop(CALL + CALL, "4<|im_end|>"), extra_info={"index": 1}))
    found = rows("verl").iloc[0]
    assert (found.status, found.stop_reason, found.turns) == ("ok", "stop", 2)
    sent = {"name": "add", "arguments": '{"a": 1}'}
    assert [(it["turn"], it["action"], it["observation"]) for it in found.actions] == [
        (1, sent, "2"), (1, sent, "2"), (2, None, None),
    ]  # fmt: skip
    assert all(0.02 <= it["seconds"] < 10 for it in found.actions[:2])
    assert found.actions[2]["generation"]["seconds"] >= 0.01
    assert 0.04 <= found.seconds < 10
    assert "extras" not in found.metadata


def test_the_stop_reason_of_verl_s_loop_is_the_limit_that_ended_it(verl: type[Trainer], agent_loop: Any) -> None:
    ends: list[tuple[list[str], str, str]] = [
        ([CALL, CALL, CALL], "2", "turn_limit"), ([CALL, CALL, "4<|im_end|>"], "2", "stop"),
        ([CALL], "2 " * 300, "length"), (["4" * 300], "2", "length"), ([CALL, ""], "2", "not_recorded"),
    ]  # fmt: skip
    for answers, heard, _ in ends:
        pass_on(verl(), played(agent_loop(*answers, heard=heard)))
    found = rows("verl")
    assert set(found.status) == {"ok"}
    told = [(reason, len(answers)) for answers, _, reason in ends]
    assert [*zip(found.stop_reason, found.turns, strict=True)] == told


def test_verl_s_loop_hides_nothing_from_reward_functions_and_fails_alone(
    agent_loop: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The fields of the output are added to the dataset's `extra_info`, which reward functions get."""
    assert played(agent_loop("4<|im_end|>"), extra_info={"extras": "its own"}).extra_fields == {}
    assert played(agent_loop("4<|im_end|>"), extra_info=None).extra_fields["extras"]["logs_ui"]["limit"] is None
    monkeypatch.setenv(RAISE_VARIABLE, "0")
    monkeypatch.setattr(ToolAgentLoop, "tools", {"add": None})
    assert played(agent_loop(CALL, CALL, CALL)).mask[0] == 1


def test_verl_imports_the_hooks_by_its_own_variable(tmp_path: Path) -> None:
    """Its `__init__` imports what VERL_USE_EXTERNAL_MODULES names before there is any trainer."""
    folder = tmp_path / "verl" / "trainer" / "ppo"
    folder.mkdir(parents=True)
    for package in (folder, folder.parent, folder.parent.parent):
        (package / "__init__.py").touch()
    external = "import importlib, os\nimportlib.import_module(os.environ['VERL_USE_EXTERNAL_MODULES'])\n"
    (tmp_path / "verl" / "__init__.py").write_text(external)
    trainer = "class RayPPOTrainer:\n    def fit(self): ...\n    def _log_rollout_data(self): ...\n"
    (folder / "ray_trainer.py").write_text(trainer)
    loops = tmp_path / "verl" / "experimental" / "agent_loop"
    loops.mkdir(parents=True)
    (loops / "agent_loop.py").write_text("def register(name):\n    print(name)\n    return lambda kind: kind\n")
    (loops / "tool_agent_loop.py").write_text("class ToolAgentLoop: ...\n")
    code = "from verl.trainer.ppo.ray_trainer import RayPPOTrainer as it; print(it.fit.__wrapped__)\n"
    code += "import verl.experimental.agent_loop.tool_agent_loop"
    environ = {"VERL_USE_EXTERNAL_MODULES": "logs_ui.recorder.trainers.verl_hooks", "PYTHONPATH": f"{tmp_path}:.dev"}
    ended = subprocess.run([sys.executable, "-c", code], env=environ, capture_output=True, text=True, check=True)
    assert "RayPPOTrainer.fit" in ended.stdout
    assert "logs_ui_tool_agent" in ended.stdout


def test_the_numbers_that_start_run_takes_for_it(tmp_path: Path) -> None:
    with start_run(db=tmp_path / "b.db") as run:
        with run.rollout("Guess", step=4, policy_step=2, staleness=1) as row:
            row.score(rewards={"a": float("inf"), "b": None, "c": 1.0})
        with suppress(RuntimeError), run.rollout("Guess", policy_step=3, staleness=2):
            raise RuntimeError
        with pytest.raises(ValueError, match="staleness"):
            run.rollout("Guess", staleness=0.5)  # type: ignore[arg-type]
    found, raised = (row for _, row in load_run(run.id, db=tmp_path / "b.db").iterrows())
    assert (raised.status, raised.policy_step, raised.staleness) == ("error", 3, 2)
    assert (found.step, found.policy_step, found.staleness) == (4, 2, 1)
    assert (np.isnan(found.reward), found.odd_rewards) == (True, {"a": "inf"}), "as with a trainer"
