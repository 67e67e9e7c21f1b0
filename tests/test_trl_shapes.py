"""record() round rollout functions as trl 0.25 to 0.29.0 called them."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from sqlmodel import Session, col, select
from trl import GRPOConfig

from logs_ui.recorder import flush, load_run, record
from logs_ui.recorder.instruments import trl_shapes
from logs_ui.recorder.models import Run
from logs_ui.recorder.storage.database import reading_engine
from logs_ui.rollout.guess_env import TASKS
from logs_ui.rollout.guess_model import make_tokenizer
from tests.training import GROUP, ROWS, make_trainer, numbered, solved

pytestmark = pytest.mark.versions

GAMES = 3


def echo(seen: list[Any]) -> Callable[..., dict[str, Any]]:
    """As TRL's echo example of 0.25: every prompt answered `num_generations` times, rewards a completion's own."""

    def rollout_func(prompts: list[str], args: Any, processing_class: Any) -> dict[str, Any]:
        seen.append((prompts, args, processing_class))
        rows = [(i, copy) for i in range(len(prompts)) for copy in range(args.num_generations)]
        return {
            "prompt_ids": [processing_class(text)["input_ids"] for text in prompts],
            "completion_ids": [processing_class(f"guess {i + copy}")["input_ids"] for i, copy in rows],
            "logprobs": [[-0.5] * len(processing_class(f"guess {i + copy}")["input_ids"]) for i, copy in rows],
            "env_reward": [i + copy / 10 for i, copy in rows],
        }

    return rollout_func


def texts(tokenizer: Any, count: int = GAMES) -> list[str]:
    """Prompts as those versions hand them over: strings, the template applied."""
    return [
        tokenizer.apply_chat_template(numbered(next(iter(TASKS)), game), tokenize=False, add_generation_prompt=True)
        for game in range(count)
    ]


def last_run(db: Path) -> Run:
    with Session(reading_engine(db)) as session:
        run = session.exec(select(Run).order_by(col(Run.id).desc())).first()
    assert run is not None
    return run


def called_by_025(recorded: Callable[..., dict[str, Any]]) -> Callable[..., dict[str, Any]]:
    """Calls it as trl 0.25 does in its `_generate_single_turn`, and makes of what it returns what 0.25 makes of it; the
    trainer of today takes that.
    """

    def rollout_func(prompts: list[Any], trainer: Any) -> dict[str, Any]:
        tokenizer, copies = trainer.processing_class, trainer.num_generations
        once = [
            tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
            for messages in prompts[::copies]
        ]
        output = recorded(once, trainer.args, tokenizer)
        return {**output, "prompt_ids": [ids for ids in output["prompt_ids"] for _ in range(copies)]}

    return rollout_func


def test_unique_prompts_make_a_group_each_without_a_trainer(tmp_path: Path) -> None:
    db, tokenizer = tmp_path / "a.db", make_tokenizer()
    seen: list[Any] = []
    args = GRPOConfig(
        output_dir=str(tmp_path / "out"), run_name="old", num_generations=GROUP, per_device_train_batch_size=GROUP,
        use_cpu=True, bf16=False, report_to="none",
    )  # fmt: skip
    recorded = record(echo(seen), eval_name="echo", db=db)
    prompts = texts(tokenizer)
    outputs = [recorded(prompts, args, tokenizer) for _ in range(2)]
    assert seen == [(prompts, args, tokenizer)] * 2
    assert all(handed is given for call in seen for handed, given in zip(call, (prompts, args, tokenizer), strict=True))
    assert len(outputs[0]["prompt_ids"]) == GAMES, "what it returns is passed on as it is"
    flush()
    rows = load_run(db=db)
    assert len(rows) == 2 * GAMES * GROUP
    assert list(rows.step) == [1] * GAMES * GROUP + [2] * GAMES * GROUP
    assert (rows.status == "ok").all()
    for number, (_, group) in enumerate(rows.groupby("group", sort=False)):
        i = number % GAMES
        assert list(group.generation) == list(range(GROUP))
        assert all(prompts[i] in row[0]["content"] for row in group.messages)
        assert list(group.rollout_reward) == pytest.approx([i + copy / 10 for copy in range(GROUP)])
        assert [list(ids) for ids in group.prompt_ids] == [outputs[0]["prompt_ids"][i]] * GROUP
    assert rows.group.nunique() == 2 * GAMES
    run = last_run(db)
    assert (run.name, run.num_generations, run.model) == ("old", GROUP, None)
    assert run.config["num_generations"] == GROUP
    assert run.tokenizer is not None


@pytest.mark.parametrize("alone", [False, True])
def test_the_trainer_that_is_generating_is_found_by_its_arguments(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, alone: bool
) -> None:
    """`alone`: with vLLM's server, where the main process calls it for all ranks, and rewards are of all of them."""
    monkeypatch.setattr(trl_shapes, "only_main_calls", lambda _: alone)
    db = tmp_path / "a.db"
    trainer = make_trainer(called_by_025(record(echo([]), db=db)), tmp_path / "out", reward_funcs=[solved], warm=0)
    trainer.train()
    flush()
    rows = load_run(db=db)
    assert len(rows) == 2 * ROWS
    assert sorted(set(rows.step)) == [1, 2]
    assert rows.reward.tolist() == pytest.approx(rows.rollout_reward.tolist())
    assert rows.advantage.notna().all()
    assert [row["dataset"]["task"] for row in rows.metadata] == list(rows.task)
    for _, group in rows.groupby("group"):
        assert list(group.generation) == list(range(GROUP))
        assert abs(group.advantage.sum()) < 1e-4
        assert group.task.nunique() == 1
    assert last_run(db).state == "finished"
    assert last_run(db).model is not None


def test_an_older_function_that_raises_leaves_a_row_for_each_completion(tmp_path: Path) -> None:
    db, tokenizer = tmp_path / "a.db", make_tokenizer()

    @record(db=db)
    def broken(prompts: Any, args: Any, processing_class: Any) -> Any:
        raise OSError("no server")

    args = GRPOConfig(output_dir=str(tmp_path), num_generations=2, use_cpu=True, bf16=False, report_to="none")
    with pytest.raises(OSError, match="no server"):
        broken(texts(tokenizer), args, tokenizer)
    flush()
    rows = load_run(db=db)
    assert list(rows.generation) == [0, 1] * GAMES
    assert (rows.status == "error").all()


@pytest.mark.parametrize(
    ("version", "mode", "prompts", "copies", "alone"),
    [
        ((0, 26, 2), "server", 2, 4, True),  # 2 ranks of 4 rows in groups of 4: each prompt once
        ((0, 26, 2), "colocate", 4, 1, False),
        ((0, 29, 0), "server", 8, 1, True),  # each prompt four times, both ranks'
        ((0, 29, 0), "colocate", 4, 1, False),
        ((0, 29, 1), "server", 4, 1, False),
        ((1, 16, 0), "server", 4, 1, False),
    ],
)
def test_each_age_is_told_by_its_version_and_the_backend(
    monkeypatch: pytest.MonkeyPatch, version: tuple[int, ...], mode: str, prompts: int, copies: int, *, alone: bool
) -> None:
    monkeypatch.setattr(trl_shapes, "_trl", lambda: version)
    ranks = SimpleNamespace(num_processes=2, process_index=0)
    trainer = Trainer(use_vllm=True, vllm_mode=mode, accelerator=ranks, num_generations=4)
    asked = trl_shapes.asked((list(range(prompts)), trainer), {}, {trainer: 4})
    assert asked.trainer is trainer
    assert asked.copies == copies
    assert asked.prompts == [i for i in range(prompts) for _ in range(copies)]
    assert trl_shapes.only_main_calls(trainer) is alone


class Trainer:
    """What of a trainer is looked at to tell the age; one with vLLM needs a GPU."""

    def __init__(self, **attributes: Any) -> None:
        self.__dict__.update(attributes)


def test_two_trainers_at_once_are_told_apart(tmp_path: Path) -> None:
    ranks = SimpleNamespace(num_processes=1)
    mine, other = (Trainer(args=object(), accelerator=ranks, num_generations=2) for _ in range(2))
    asked = trl_shapes.asked((["a", "b"], vars(mine)["args"], None), {}, {other: 4, mine: 4})
    assert asked.trainer is mine
    assert asked.prompts == ["a", "a", "b", "b"]
