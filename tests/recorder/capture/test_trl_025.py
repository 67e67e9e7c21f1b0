"""record() with TRL 0.25 and record_trainer() with TRL 0.18.2 to 0.25, the oldest that they promise: TRL's own
GRPOTrainer trains. `.ci/versions trl025` runs this, with several of these releases.
"""

import importlib.metadata
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers

from logs_ui.recorder import flush, load_run, record, record_trainer, trace_env
from tests.support.judges import judge_of
from tests.support.late import datasets, transformers, trl
from tests.support.quiet import QUIET
from tests.support.stored import only_run

TRL = importlib.metadata.version("trl")
pytestmark = pytest.mark.skipif(not TRL.startswith("0."), reason="old releases of TRL in an environment of their own")
by_rollout_func = pytest.mark.skipif(not TRL.startswith("0.25."), reason="older releases have no rollout function")

GROUP, STEPS, PROMPTS = 4, 3, 2
ROWS = GROUP * PROMPTS
Batches = list[tuple[list[str], dict[str, Any]]]


def answering(batches: Batches) -> Callable[..., dict[str, Any]]:
    """A function of that release's shape: N prompts in, N prompts' ids and N x G completions out."""

    def rollout_func(prompts: list[str], args: Any, processing_class: Any) -> dict[str, Any]:
        ids = [processing_class(f"guess {copy}")["input_ids"] for _ in prompts for copy in range(args.num_generations)]
        output = {
            "prompt_ids": [processing_class(prompt)["input_ids"] for prompt in prompts],
            "completion_ids": ids,
            "logprobs": [[-0.5] * len(row) for row in ids],
            "env_reward": [len(batches) + row / 10 for row in range(len(ids))],
        }
        batches.append((list(prompts), output))
        return output

    return rollout_func


def solved(completions: list[Any], env_reward: list[float], **_: Any) -> list[float]:
    assert len(completions) == len(env_reward)
    return env_reward


def make_tokenizer() -> Any:
    """Words and a chat template, made on the spot: the demo's model needs an OpenEnv, which is of no use here."""
    words = ["<pad>", "<end>", "<unk>", "<user>", "<assistant>", "Find", "number", ".", "guess", *map(str, range(10))]
    tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, "<unk>"))
    tokenizer.add_special_tokens(words[:5])
    tokenizer.pre_tokenizer = pre_tokenizers.Split(r" ", "removed")
    template = (
        "{% for message in messages %}<{{ message['role'] }}>{{ message['content'] }}<end>{% endfor %}"
        "{% if add_generation_prompt %}<assistant>{% endif %}"
    )
    special = {"eos_token": "<end>", "pad_token": "<pad>"}
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, chat_template=template, padding_side="left", **special
    )


def make_model(tokenizer: Any) -> Any:
    config = transformers.Qwen3Config(
        vocab_size=len(tokenizer), hidden_size=32, intermediate_size=64, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=2, head_dim=16, max_position_embeddings=128, eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )  # fmt: skip
    return transformers.Qwen3ForCausalLM(config)


def make_trainer(rollout_func: Callable[..., Any], folder: Path, reward: Callable[..., list[float]] = solved) -> Any:
    """Return a trainer that seems to have a vLLM server: this release calls rollout functions only then."""
    tokenizer = make_tokenizer()
    rows = [{"prompt": [{"role": "user", "content": f"Find number {i}."}], "task": f"number {i}"} for i in range(6)]
    args = trl.GRPOConfig(
        output_dir=str(folder), run_name="oldest", seed=0, max_steps=STEPS, per_device_train_batch_size=ROWS,
        num_generations=GROUP, learning_rate=1e-3, logging_steps=1, max_completion_length=16, **QUIET,
    )  # fmt: skip
    trainer = trl.GRPOTrainer(
        make_model(tokenizer), reward_funcs=[reward], args=args, train_dataset=datasets.Dataset.from_list(rows),
        processing_class=tokenizer, rollout_func=rollout_func,
    )  # fmt: skip
    trainer.use_vllm, trainer.vllm_mode, trainer._last_loaded_step = True, "server", -1
    trainer.guided_decoding_regex = None
    trainer._move_model_to_vllm = lambda: None
    return trainer


@by_rollout_func
def test_a_training_with_its_own_trainer_is_recorded_row_by_row(db: Path, tmp_path: Path) -> None:
    batches: Batches = []
    trainer = make_trainer(record(answering(batches), eval_name="guess", db=db), tmp_path / "out")
    trainer.train()
    flush()
    rows = load_run(db=db)
    assert len(batches) == STEPS
    assert list(rows.step) == [step for step in range(1, STEPS + 1) for _ in range(ROWS)]
    assert (rows.status == "ok").all()
    assert (rows.eval_name == "guess").all()
    outputs = [output for _, output in batches]
    assert [list(ids) for ids in rows.completion_ids] == [ids for output in outputs for ids in output["completion_ids"]]
    assert [list(ids) for ids in rows.prompt_ids] == [
        ids for output in outputs for ids in output["prompt_ids"] for _ in range(GROUP)
    ]
    assert all(list(row) == [-0.5] * len(row) for row in rows.logprobs)
    rewards = [reward for output in outputs for reward in output["env_reward"]]
    assert list(rows.rollout_reward) == pytest.approx(rewards)
    assert list(rows.reward) == pytest.approx(rewards)
    assert [row["solved"] for row in rows.rewards] == pytest.approx(rewards)
    prompts = [prompt for asked, _ in batches for prompt in asked for _ in range(GROUP)]
    assert all(messages[0]["content"] in prompt for messages, prompt in zip(rows.messages, prompts, strict=True))
    assert [row["dataset"]["task"] for row in rows.metadata] == list(rows.task)
    for _, group in rows.groupby("group", sort=False):
        assert list(group.generation) == list(range(GROUP))
        assert (group.task.nunique(), group.step.nunique()) == (1, 1)
        assert group.advantage.is_monotonic_increasing
        assert abs(group.advantage.sum()) < 1e-4
        assert group.advantage.abs().min() > 0.1
    assert rows.group.nunique() == STEPS * PROMPTS
    run = only_run(db)
    assert (run.name, run.state, run.num_generations, run.recorder_errors) == ("oldest", "finished", GROUP, 0)
    assert run.versions["trl"] == TRL


@by_rollout_func
def test_what_a_reward_function_calls_is_on_the_row_that_is_scored(db: Path, tmp_path: Path) -> None:
    check: Any = trace_env(lambda number: number + 1)

    def checked(completions: list[Any], **_: Any) -> list[float]:
        return [float(check(number)) for number in range(len(completions))]

    make_trainer(record(answering([]), db=db), tmp_path / "out", checked).train()
    flush()
    rows = load_run(db=db)
    made = [[it for it in actions if it.get("phase") == "scoring"] for actions in rows.actions]
    assert [[it["observation"] for it in of_row] for of_row in made] == [[n + 1] for n in range(ROWS)] * STEPS
    assert list(rows.reward) == [n + 1 for n in range(ROWS)] * STEPS


@by_rollout_func
def test_a_function_that_raises_leaves_a_failed_row_for_each_completion(db: Path, tmp_path: Path) -> None:

    @record(db=db)
    def broken(prompts: list[str], args: Any, processing_class: Any) -> dict[str, Any]:
        raise OSError("no server")

    trainer = make_trainer(broken, tmp_path / "out")
    with pytest.raises(OSError, match="no server"):
        trainer.train()
    flush()
    rows = load_run(db=db)
    assert list(rows.generation) == [*range(GROUP)] * PROMPTS
    assert (rows.status == "error").all()


@pytest.mark.parametrize("masks", ["all", "truncated"])
def test_a_training_with_reward_functions_only(masks: str, db: Path, tmp_path: Path) -> None:
    advantages: list[float] = []
    ids: list[list[int]] = []
    letters: list[float] = []

    size: Any = trace_env(len)

    class Noting(trl.GRPOTrainer):  # type: ignore[misc]
        def _generate_and_score_completions(self, inputs: Any) -> Any:
            scored = super()._generate_and_score_completions(inputs)
            advantages.extend(scored["advantages"].tolist())
            return scored

    def length(completions: list[Any], completion_ids: list[Any], **_: Any) -> list[float]:
        ids.extend(list(map(int, row)) for row in completion_ids)
        values = [size(completion[0]["content"]) / 100 for completion in completions]
        letters.extend(values)
        return values

    def sometimes(completions: list[Any], **_: Any) -> list[float | None]:
        return [None if i % 3 == 0 else 0.5 for i in range(len(completions))]

    tokenizer = make_tokenizer()
    tokenizer.model_input_names = ["input_ids", "attention_mask"]
    rows = [{"prompt": [{"role": "user", "content": f"Find number {i}."}], "task": f"number {i}"} for i in range(6)]
    args = trl.GRPOConfig(
        output_dir=str(tmp_path / "out"), seed=0, max_steps=STEPS, per_device_train_batch_size=ROWS,
        num_generations=GROUP, logging_steps=1, max_completion_length=12, reward_weights=[1.0, 0.25],
        mask_truncated_completions=masks == "truncated", **QUIET,
    )  # fmt: skip
    trainer = Noting(
        make_model(tokenizer), reward_funcs=[length, sometimes], args=args,
        train_dataset=datasets.Dataset.from_list(rows), processing_class=tokenizer,
    )  # fmt: skip
    record_trainer(trainer, db=db).train()
    flush()
    recorded = load_run(db=db)
    assert len(recorded) == STEPS * ROWS == len(ids)
    assert [list(row) for row in recorded.completion_ids] == ids
    assert list(recorded.advantage) == pytest.approx(advantages)
    expected = [{"length": value, "sometimes": None if i % ROWS % 3 == 0 else 0.5} for i, value in enumerate(letters)]
    assert list(recorded.rewards) == [pytest.approx(row) for row in expected]
    assert all(weights == {"length": 1.0, "sometimes": 0.25} for weights in recorded.reward_weights)
    assert (recorded.status == "ok").all()
    made = [[it for it in actions if it.get("phase") == "scoring"] for actions in recorded.actions]
    assert [[it["observation"] / 100 for it in of_row] for of_row in made] == [[value] for value in letters]
    assert {it["function"] for of_row in made for it in of_row} == {"length"}
    assert recorded.env_steps.isna().all()
    assert {True, False} == {reason == "length" for reason in recorded.stop_reason}
    for ids_of_prompt, messages in zip(recorded.prompt_ids, recorded.messages, strict=True):
        text = tokenizer.apply_chat_template(messages[:1], tokenize=False, add_generation_prompt=True)
        assert list(ids_of_prompt) == tokenizer(text)["input_ids"]


def test_rewards_of_a_model(db: Path, tmp_path: Path) -> None:
    def length(completions: list[Any], **_: Any) -> list[float]:
        return [len(completion[0]["content"]) / 128 for completion in completions]

    tokenizer = make_tokenizer()
    tokenizer.model_input_names = ["input_ids", "attention_mask"]
    config = make_model(tokenizer).config
    config.num_labels, config._name_or_path = 1, "makers/judge"
    judge, given = judge_of(config)
    rows = [{"prompt": [{"role": "user", "content": f"Find number {i}."}]} for i in range(6)]
    args = trl.GRPOConfig(
        output_dir=str(tmp_path / "out"), seed=0, max_steps=STEPS, per_device_train_batch_size=ROWS,
        num_generations=GROUP, logging_steps=1, max_completion_length=12, **QUIET,
    )  # fmt: skip
    trainer = trl.GRPOTrainer(
        make_model(tokenizer), reward_funcs=[length, judge], args=args, processing_class=tokenizer,
        train_dataset=datasets.Dataset.from_list(rows), reward_processing_classes=[None, tokenizer],
    )  # fmt: skip
    trainer.model.eval()
    record_trainer(trainer, db=db).train()
    flush()
    recorded = load_run(db=db)
    assert set(recorded["mode"]) == {"train"}
    assert len(given) == len(recorded) == STEPS * ROWS
    assert [row["judge"] for row in recorded.rewards] == pytest.approx(given)
    assert list(recorded.reward) == pytest.approx([row["length"] + row["judge"] for row in recorded.rewards])
