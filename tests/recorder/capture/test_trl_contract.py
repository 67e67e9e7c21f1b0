"""What recorder/ relies on in TRL that is private or may change. Each test fails on its own, and says what is lost.

No recorder here: a real trainer, and a subclass that looks on.
"""

import importlib
import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.support.late import torch, transformers, trl
from tests.support.training import GROUP, ROWS, make_trainer

pytestmark = pytest.mark.versions

EVAL_GROUP = 2


@dataclass
class Rollout:
    """One call of the rollout function, and where the trainer stood."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    training: bool
    step: int
    epoch: float | None
    generating: bool


@dataclass
class Seen:
    trainer: Any = None
    rollouts: list[Rollout] = field(default_factory=list)
    batches: list[Any] = field(default_factory=list)
    scored: list[Any] = field(default_factory=list)
    rewarded: list[tuple[tuple[Any, ...], dict[str, Any], Any]] = field(default_factory=list)
    generated: list[tuple[tuple[Any, ...], Any]] = field(default_factory=list)
    reward_kwargs: list[dict[str, Any]] = field(default_factory=list)
    logged: list[tuple[int, set[str]]] = field(default_factory=list)
    ended: int = 0
    generating: bool = False


seen = Seen()


def rolled_out(*args: Any, **kwargs: Any) -> dict[str, Any]:
    trainer = args[1] if len(args) == 2 else seen.trainer
    if not seen.rollouts:

        class Listening(transformers.TrainerCallback):  # type: ignore[misc]
            """Added in the middle of the training, as the recorder adds its own."""

            def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
                seen.logged.append((state.global_step, set(logs)))

            def on_train_end(self, *_: Any, **__: Any) -> None:
                seen.ended += 1

        trainer.add_callback(Listening())
    state = trainer.state
    where = (bool(trainer.model.training), state.global_step, state.epoch, seen.generating)
    seen.rollouts.append(Rollout(args, kwargs, *where))
    rows = range(len(args[0]))
    eos = trainer.processing_class.eos_token_id
    return {
        "prompt_ids": [[1, 2, 3] for _ in rows],
        "completion_ids": [[4, 5, i % 3 + 4, eos] for i in rows],
        "logprobs": [[-1.0] * 4 for _ in rows],
        "env_mask": [[1, 0, 1, 1] for _ in rows],
        "env_reward": [float(i % 3) for i in rows],
        "scalar": "same for all",
    }


def scores(env_reward: list[float], **kwargs: Any) -> list[float]:
    seen.reward_kwargs.append(kwargs)
    return env_reward


def declines(env_reward: list[float], **_: Any) -> list[float | None]:
    return [None, *env_reward[1:]]


@pytest.fixture(scope="module", autouse=True)
def training(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Seen]:
    """Two steps of training, an evaluation after each."""

    class Watched(trl.GRPOTrainer):  # type: ignore[misc]
        """Keeps what passes through the private methods that the recorder patches."""

        def _generate_and_score_completions(self, inputs: Any, *args: Any, **kwargs: Any) -> Any:
            seen.generating = True
            seen.batches.append(inputs)
            scored = super()._generate_and_score_completions(inputs, *args, **kwargs)
            seen.scored.append(scored)
            seen.generating = False
            return scored

        def _calculate_rewards(self, *args: Any, **kwargs: Any) -> Any:
            gathered = super()._calculate_rewards(*args, **kwargs)
            seen.rewarded.append((args, kwargs, gathered))
            return gathered

        def _generate(self, *args: Any, **kwargs: Any) -> Any:
            generated = super()._generate(*args, **kwargs)
            seen.generated.append((args, generated))
            return generated

    global seen  # noqa: PLW0603
    seen = Seen()
    seen.trainer = make_trainer(
        rolled_out,
        tmp_path_factory.mktemp("contract"),
        reward_funcs=[scores, declines],
        reward_weights=[1.0, 0.5],
        kind=Watched,
        warm=0,
        num_generations_eval=EVAL_GROUP,
        per_device_eval_batch_size=EVAL_GROUP,
        eval_strategy="steps",
        eval_steps=1,
        log_completions=False,
    )
    seen.trainer.train()
    yield seen
    seen = Seen()


def test_the_rollout_function_is_called_with_prompts_and_the_trainer() -> None:
    assert seen.rollouts, "rollout_func was not called: nothing is recorded"
    for call in seen.rollouts:
        assert len(call.args) == 2, (
            "rollout_func(prompts, trainer) is another call now: trl_shapes.asked cannot read it"
        )
        assert not call.kwargs, "rollout_func is called with keywords: trl_shapes.asked may not know them"
        assert call.args[1] is seen.trainer, "rollout_func's second argument is no trainer: no run, no step, no config"


def test_each_prompt_comes_num_generations_times_in_a_row_and_without_the_template() -> None:
    for call, inputs in zip(seen.rollouts, seen.batches, strict=True):
        group = GROUP if call.training else EVAL_GROUP
        assert call.args[0] == [row["prompt"] for row in inputs], "prompts are not the batch's: tasks are on other rows"
        for i, prompt in enumerate(call.args[0]):
            assert prompt == call.args[0][i // group * group], (
                "copies of a prompt are not side by side: groups are wrong"
            )


def test_the_batch_method_is_on_the_stack_of_the_rollout_function() -> None:
    assert seen.batches, "_generate_and_score_completions is gone: no advantages, no dataset columns, no batch number"
    assert all(call.generating for call in seen.rollouts), "the batch is not known while the rollout function runs"
    parameters = list(inspect.signature(trl.GRPOTrainer._generate_and_score_completions).parameters)
    assert parameters == ["self", "inputs"], "_generate_and_score_completions takes something else"


def test_a_batch_is_dataset_rows_with_all_their_columns() -> None:
    assert all(isinstance(inputs, list) for inputs in seen.batches), "the batch is no list: no dataset columns"
    assert len(seen.batches[0]) == ROWS
    assert {"prompt", "task", "answer"} <= set(seen.batches[0][0]), "columns are missing: tasks are told by prompt only"


def test_advantages_are_a_rows_own_number_each() -> None:
    assert seen.scored, "_generate_and_score_completions is gone: no advantages"
    for scored, inputs in zip(seen.scored, seen.batches, strict=True):
        assert "advantages" in scored, "no 'advantages' in what _generate_and_score_completions returns"
        assert scored["advantages"].shape == (len(inputs),), "advantages are not one for each row of the batch"


def test_rewards_come_by_row_and_function() -> None:
    assert seen.rewarded, "_calculate_rewards is gone: no rewards by function"
    parameters = list(inspect.signature(trl.GRPOTrainer._calculate_rewards).parameters)
    assert parameters == ["self", "inputs", "prompts", "completions", "completion_ids_list"], "other arguments"
    for args, kwargs, gathered in seen.rewarded:
        assert len(args) == 4, "_calculate_rewards(inputs, prompts, ...) is not called by position: rewards are lost"
        assert not kwargs, "_calculate_rewards is called with keywords: rewards are lost"
        assert gathered.shape == (len(args[1]), 2), "rewards are not (rows of all ranks, functions)"


def test_a_reward_of_none_becomes_nan() -> None:
    for _, _, gathered in seen.rewarded:
        assert gathered[0].isnan().tolist() == [False, True], "None is no NaN now: declined rewards look like numbers"


def test_reward_functions_are_called_from_the_list_of_them() -> None:
    functions = seen.trainer.reward_funcs
    assert functions == [scores, declines], "trainer.reward_funcs is gone: None and NaN look alike"
    called: list[int] = []

    def counting(**kwargs: Any) -> list[float]:
        called.append(1)
        return scores(**kwargs)

    seen.trainer.reward_funcs = [counting, declines]
    try:
        args, kwargs, _ = seen.rewarded[0]
        trl.GRPOTrainer._calculate_rewards(seen.trainer, *args, **kwargs)
    finally:
        seen.trainer.reward_funcs = functions
    assert called, "reward functions are not taken from trainer.reward_funcs: None and NaN look alike"


def test_rows_get_the_weighted_sum_that_the_recorder_makes_too() -> None:
    scored, gathered = seen.scored[0], seen.rewarded[0][2]
    totals = (gathered * torch.tensor([1.0, 0.5])).nansum(dim=1).view(-1, GROUP)
    centred = (totals - totals.mean(dim=1, keepdim=True)).flatten()
    assert torch.equal(scored["advantages"].sign(), centred.sign()), (
        "TRL sums rewards otherwise: `reward` is not its own"
    )


def test_other_fields_reach_the_reward_functions() -> None:
    kwargs = seen.reward_kwargs[0]
    assert kwargs["scalar"] == ["same for all"] * ROWS or kwargs["scalar"] == "same for all"
    assert kwargs["task"], "dataset columns do not reach reward functions"


def test_generated_tokens_come_first_in_what_generate_returns() -> None:
    assert seen.generated, "_generate is gone: what an environment factory's rollouts sampled is not recorded"
    (prompts, *_), (prompt_ids, completion_ids, mask, *_) = seen.generated[0]
    assert len(prompts) == len(prompt_ids) == len(completion_ids) == len(mask) == ROWS
    assert completion_ids[0][:3] == [4, 5, 4], "_generate returns other things first"


def steps(*, training: bool) -> list[int]:
    return [call.step for call in seen.rollouts if call.training == training]


RELIED_ON: dict[str, tuple[Callable[[], Any], Any]] = {
    "reward_func_names: rewards have no names": (lambda: seen.trainer.reward_func_names, ["scores", "declines"]),
    "reward_weights: a row's reward cannot be summed": (lambda: [*seen.trainer.reward_weights.tolist()], [1.0, 0.5]),
    "env_mask: environment text is trained on": (lambda: seen.scored[0]["tool_mask"].tolist()[0], [1, 0, 1, 1]),
    "state.global_step: steps are wrong": (lambda: steps(training=True), [0, 1]),
    "state.global_step: evaluations have wrong steps": (lambda: {*steps(training=False)}, {1, 2}),
    "state.epoch": (lambda: all(call.epoch is not None for call in seen.rollouts if call.training), True),
    "state.max_steps: no progress": (lambda: seen.trainer.state.max_steps, 2),
    "model.training: train and eval look alike": (lambda: {call.training for call in seen.rollouts}, {True, False}),
    "num_generations: no groups": (lambda: seen.trainer.num_generations, GROUP),
    "num_generations_eval: groups of evaluations are wrong": (lambda: seen.trainer.num_generations_eval, EVAL_GROUP),
    "process_index: groups of ranks are wrong": (lambda: seen.trainer.accelerator.process_index, 0),
    "num_processes: ranks write runs of their own": (lambda: seen.trainer.accelerator.num_processes, 1),
    "broadcast_object_list: ranks write runs of their own": (
        lambda: callable(importlib.import_module("accelerate.utils").broadcast_object_list), True,
    ),
    "args.to_dict: no config": (lambda: seen.trainer.args.to_dict()["num_generations"], GROUP),
    "args.run_name: runs have no names": (lambda: hasattr(seen.trainer.args, "run_name"), True),
    "args.output_dir: resumed runs have no parent": (lambda: Path(seen.trainer.args.output_dir).is_absolute(), True),
    "backend_tokenizer: no text": (lambda: bool(seen.trainer.processing_class.backend_tokenizer.to_str()), True),
    "on_log: no curves, or at other steps": (lambda: [it for it, names in seen.logged if "reward" in names], [1, 2]),
    "on_train_end: a run that ended is told from one that failed only by its process": (lambda: seen.ended, 1),
    "Trainer.train: what ended a training is not known": (lambda: "train" in vars(transformers.Trainer), True),
    "Trainer.evaluate: first batches of subclasses": (lambda: "evaluate" in vars(transformers.Trainer), True),
    "use_vllm: who calls the rollout function is not known before trl 0.29.1": (lambda: seen.trainer.use_vllm, False),
}  # fmt: skip
"""What is lost without it, where it is looked for, and what is there."""


@pytest.mark.parametrize("lost", RELIED_ON)
def test_a_trainer_shows_what_is_relied_on(lost: str) -> None:
    look, expected = RELIED_ON[lost]
    assert look() == expected, lost


@pytest.mark.parametrize(
    ("module", "name", "method", "needed"),
    [
        ("trl.generation.vllm_generation", "VLLMGeneration", "generate", ["prompts", "num_generations"]),
        ("trl.generation.vllm_client", "VLLMClient", "generate", ["prompts", "n", "generation_kwargs"]),
        ("trl.generation.vllm_client", "VLLMClient", "chat", ["messages", "n", "generation_kwargs"]),
    ],
)
def test_vllm_is_reached_through_these_methods(module: str, name: str, method: str, needed: list[str]) -> None:
    owner = getattr(importlib.import_module(module), name)
    assert method in vars(owner), f"{name}.{method}: generations of vLLM are not recorded"
    parameters = list(inspect.signature(getattr(owner, method)).parameters)
    assert [parameter for parameter in needed if parameter not in parameters] == [], f"{name}.{method} takes others"
