"""What all trainers that are recorded must show alike: which batches were trained on, and what reward models gave."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from logs_ui.recorder import LogsUICallback, load_run, load_runs, load_scalars, record_trainer
from tests.support.exhaustive import cases
from tests.support.judges import judge_of
from tests.support.late import datasets, guess_model, online_dpo, torch, transformers, trl
from tests.support.quiet import QUIET

pytestmark = pytest.mark.versions

STEPS = 3
KINDS = ["grpo", "rollout_func", "rloo", "online_dpo"]
TEXTS = [f"Find number {number}." for number in range(8)]
CHATS = [[{"role": "user", "content": text}] for text in TEXTS]


def tokens(prompts: list[Any], trainer: Any) -> dict[str, Any]:
    ids = [trainer.processing_class(f"Find number {i}")["input_ids"] for i in range(len(prompts))]
    return {"prompt_ids": ids, "completion_ids": [row[-3:] for row in ids], "logprobs": [[-0.5] * 3 for _ in ids]}


def length(completions: list[Any], **_: Any) -> list[float]:
    return [float(len(completion[0]["content"])) for completion in completions]


def make(kind: str, folder: Path, functions: list[Any], prompts: list[Any] = CHATS, **more: Any) -> Any:
    """Return a trainer of 3 steps of 8 completions. Its model is in the mode in which `from_pretrained` returns one."""
    torch.set_num_threads(1)
    tokenizer = guess_model.make_tokenizer()
    callbacks = more.pop("callbacks", [])
    is_pair = kind == "online_dpo"
    sizes = {"max_new_tokens": 6} if is_pair else {"max_completion_length": 6, "num_generations": 4, "beta": 0.0}
    settings = {
        "output_dir": str(folder), "max_steps": STEPS, "per_device_train_batch_size": 4 if is_pair else 8,
        "learning_rate": 1e-3, "logging_steps": 1, **QUIET, **sizes, **more,
    }  # fmt: skip
    if is_pair:
        made, arguments = online_dpo.OnlineDPOTrainer, online_dpo.OnlineDPOConfig
    else:
        made, arguments = (trl.RLOOTrainer, trl.RLOOConfig) if kind == "rloo" else (trl.GRPOTrainer, trl.GRPOConfig)
    trainer = made(
        model=guess_model.make_model(tokenizer, 0), processing_class=tokenizer, reward_funcs=functions,
        args=arguments(**settings), train_dataset=datasets.Dataset.from_list([{"prompt": text} for text in prompts]),
        reward_processing_classes=[tokenizer if hasattr(judge, "forward") else None for judge in functions],
        callbacks=callbacks, **({"rollout_func": tokens} if kind == "rollout_func" else {}),
    )  # fmt: skip
    trainer.model.eval()
    return trainer


def reward_model(tokenizer: Any) -> tuple[Any, list[float]]:
    size = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "head_dim": 8}
    config = transformers.Qwen3Config(
        vocab_size=len(tokenizer), num_labels=1, pad_token_id=tokenizer.pad_token_id,
        num_attention_heads=2, num_key_value_heads=2, name_or_path="makers/judge", **size,
    )  # fmt: skip
    torch.manual_seed(1)
    model, given = judge_of(config)
    torch.nn.init.normal_(model.score.weight, std=5.0)  # so that its rewards differ
    return model, given


def by_prompt(kind: str, values: list[Any]) -> list[Any]:
    """Return values in the order of rows: OnlineDPO makes all first completions of a batch before all second ones."""
    if kind != "online_dpo":
        return values
    return [values[step * 8 + copy * 4 + prompt] for step in range(STEPS) for prompt in range(4) for copy in range(2)]


def evaluating_callback() -> Any:
    """It leaves the model in evaluation mode after each step, as those that log samples do."""

    class Evaluates(transformers.TrainerCallback):  # type: ignore[misc]
        def on_step_end(self, *_: Any, model: Any, **__: Any) -> None:
            model.eval()

    return Evaluates()


@pytest.mark.exhaustive
@pytest.mark.parametrize("kind", KINDS)
def test_report_to_records_batches_that_are_trained_on_as_no_evaluations(kind: str, tmp_path: Path) -> None:
    trainer = make(kind, tmp_path, [length], callbacks=[evaluating_callback()], report_to="logs_ui")
    for _ in range(2):  # the second time as a run of its own
        trainer.train()
    runs = load_runs()  # of LOGS_UI_DB
    assert list(runs.state) == ["finished"] * 2
    for run in runs.run:
        rows = load_run(run)
        assert (list(rows["mode"]), list(rows.step)) == (["train"] * 24, [1] * 8 + [2] * 8 + [3] * 8)
        assert list(rows.policy_step) == [0] * 8 + [1] * 8 + [2] * 8
        assert set(rows.status) == {"ok"}
        assert rows.reward.notna().all()


MORE = [("rloo", CHATS), ("online_dpo", CHATS), ("grpo", TEXTS)]


@pytest.mark.parametrize(
    ("kind", "prompts"),
    [("rollout_func", CHATS), ("online_dpo", TEXTS), *(pytest.param(*of, marks=pytest.mark.exhaustive) for of in MORE)],
)
def test_rewards_of_models_are_recorded(kind: str, prompts: list[Any], db: Path, tmp_path: Path) -> None:
    noted: list[float | None] = []
    padded: list[list[int]] = []

    def letters(completions: list[Any], completion_ids: list[list[int]], **_: Any) -> list[float | None]:
        texts = [one if isinstance(one, str) else one[0]["content"] for one in completions]
        padded.extend(completion_ids)
        noted.extend(None if i % 4 == 1 else len(text) / 128 for i, text in enumerate(texts))
        return noted[-len(texts) :]

    judge, given = reward_model(guess_model.make_tokenizer())
    trainer = make(kind, tmp_path, [letters, judge], prompts, reward_weights=[1.0, 0.25])
    record_trainer(trainer, db=db).train()
    rows = load_run(db=db)
    assert len(rows) == len(given) == len(noted) == 24
    assert set(rows.handed) == {"text"}
    assert len({round(value, 5) for value in given}) > 4, "its rewards differ"
    assert [row["judge"] for row in rows.rewards] == pytest.approx(by_prompt(kind, given))
    assert [row["letters"] for row in rows.rewards] == by_prompt(kind, noted)
    sums = [(count or 0) + 0.25 * score for count, score in zip(noted, given, strict=True)]
    assert list(rows.reward) == pytest.approx(by_prompt(kind, sums), abs=1e-6)
    assert not judge._forward_hooks
    if kind == "online_dpo":
        assert (list(rows.generation), rows.group.nunique()) == ([0, 1] * 12, 12)
        assert rows.advantage.isna().all()
        for ids, whole in zip(rows.completion_ids, by_prompt(kind, padded), strict=True):
            assert list(ids) == whole[: len(ids)]
            assert set(whole[len(ids) :]) <= {trainer.processing_class.pad_token_id}
        scores = load_scalars(db=db)["objective/scores"].dropna()
        assert list(scores) == pytest.approx(list(rows.groupby("step").reward.mean()), abs=1e-5)


def test_a_step_that_an_override_calls_is_one_batch(db: Path, tmp_path: Path) -> None:
    class Overriding(online_dpo.OnlineDPOTrainer):  # type: ignore[misc]
        def training_step(self, *args: Any, **kwargs: Any) -> Any:
            return super().training_step(*args, **kwargs)

        def _calculate_rewards_from_functions(self, *args: Any, **kwargs: Any) -> Any:
            return super()._calculate_rewards_from_functions(*args, **kwargs)

    judge, given = reward_model(guess_model.make_tokenizer())
    trainer = make("online_dpo", tmp_path, [judge])
    trainer.__class__ = Overriding
    record_trainer(trainer, db=db).train()
    rows = load_run(db=db)
    assert (set(rows.status), set(rows["mode"])) == ({"ok"}, {"train"})
    assert list(rows.reward) == pytest.approx(by_prompt("online_dpo", given))


@pytest.mark.parametrize("kind", cases(KINDS[::-1], 2))
def test_a_reward_model_alone_that_raises_leaves_its_error(kind: str, db: Path, tmp_path: Path) -> None:
    judge, given = reward_model(guess_model.make_tokenizer())
    trainer = make(kind, tmp_path, [judge])
    judge.forward = None
    with pytest.raises(TypeError):
        record_trainer(trainer, db=db).train()
    rows = load_run(db=db)
    assert (len(rows), given) == (8, [])
    assert rows.reward.isna().all()
    assert not judge._forward_hooks


def test_options_of_a_callback_count_beside_report_to(db: Path, tmp_path: Path) -> None:
    callback: Any = LogsUICallback(eval_name="mine", db=db)
    assert isinstance(callback, transformers.TrainerCallback)
    make("grpo", tmp_path, [length], report_to=["logs_ui"], callbacks=[callback]).train()
    assert set(load_run(db=db).eval_name) == {"mine"}
    assert not Path(os.environ["LOGS_UI_DB"]).exists()


def test_a_trainer_without_completions_takes_report_to_as_well(tmp_path: Path) -> None:
    tokenizer = guess_model.make_tokenizer()
    settings = QUIET | {"output_dir": str(tmp_path), "max_steps": 1, "per_device_train_batch_size": 2}
    arguments = trl.SFTConfig(**settings | {"report_to": "logs_ui"})
    trainer = trl.SFTTrainer(
        guess_model.make_model(tokenizer, 0), args=arguments, processing_class=tokenizer,
        train_dataset=datasets.Dataset.from_list([{"text": text} for text in TEXTS]),
    )  # fmt: skip
    trainer.train()
    assert not Path(os.environ["LOGS_UI_DB"]).exists()


IMPORTS = [
    ("import logs_ui.recorder", "import transformers.trainer"),
    ("import transformers", "import logs_ui.recorder"),
    ("import transformers.trainer", "import logs_ui.recorder"),
    ("from logs_ui.recorder import load_run, record", "from trl import GRPOConfig"),
    ("from logs_ui.recorder.capture.instruments import install; install()", "from trl import GRPOConfig"),
]


@pytest.mark.exhaustive
@pytest.mark.parametrize("order", cases(IMPORTS, 1))
def test_the_order_of_imports_does_not_matter_for_report_to(order: tuple[str, str]) -> None:
    code = "; ".join([*order, "from transformers.integrations import get_reporting_integration_callbacks as known"])
    code += "; made = known(['logs_ui', 'tensorboard'])[0]()"
    code += "; from transformers import TrainerCallback; print(isinstance(made, TrainerCallback), type(made).__name__)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout.endswith("True LogsUICallback\n"), done.stderr


def test_an_import_of_the_recorder_loads_little() -> None:
    code = "import sys; before = set(sys.modules); import logs_ui.recorder; print(*(set(sys.modules) - before))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not {"wrapt", "numpy", "transformers"} & set(done.stdout.split())
