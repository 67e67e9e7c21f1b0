"""record() round rollout functions as trl 0.25 to 0.29.0 called them."""

import threading
from collections.abc import Callable
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from logs_ui.recorder import flush, load_run, record
from logs_ui.recorder.api import trainer_run
from logs_ui.recorder.api.run_description import name_run
from logs_ui.recorder.capture.instruments import trl_shapes
from logs_ui.recorder.guard import RAISE_VARIABLE, guard
from tests.support.exhaustive import cases
from tests.support.late import guess_env, guess_model
from tests.support.old_calls import StandInTrainer, call_as_025, generating
from tests.support.stored import last_run
from tests.support.training import GROUP, ROWS, make_trainer, numbered, solved

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
        tokenizer.apply_chat_template(
            numbered(next(iter(guess_env.TASKS)), game), tokenize=False, add_generation_prompt=True
        )
        for game in range(count)
    ]


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


def test_a_call_that_no_trainer_makes_is_passed_on_and_said_not_to_be_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(RAISE_VARIABLE, "0")
    tokenizer = guess_model.make_tokenizer()
    seen: list[Any] = []
    given = (texts(tokenizer), SimpleNamespace(num_generations=GROUP), tokenizer)
    output = record(echo(seen), db=tmp_path / "a.db")(*given)
    assert seen == [given]
    assert len(output["prompt_ids"]) == GAMES
    assert "no trainer is generating" in (guard.last or "")
    assert not (tmp_path / "a.db").exists()


@pytest.mark.parametrize("alone", [False, True])
def test_the_trainer_that_is_generating_is_found_by_its_arguments(
    db: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, alone: bool
) -> None:
    """`alone`: with vLLM's server, where the main process calls it for all ranks, and rewards are of all of them."""
    monkeypatch.setattr(trl_shapes, "only_main_calls", lambda _: alone)
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
    db, tokenizer = tmp_path / "a.db", guess_model.make_tokenizer()

    @record(db=db)
    def broken(prompts: Any, args: Any, processing_class: Any) -> Any:
        raise OSError("no server")

    with pytest.raises(OSError, match="no server"):
        call_as_025(broken, texts(tokenizer), tokenizer, num_generations=2)
    flush()
    rows = load_run(db=db)
    assert list(rows.generation) == [0, 1] * GAMES
    assert (rows.status == "error").all()


def test_first_calls_from_two_threads_are_of_one_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    named: list[int] = []
    both = threading.Event()

    def name(address: Any) -> Any:
        named.append(threading.get_ident())
        if len(named) > 1:
            both.set()
        both.wait(0.5)  # so long the other thread may come here, too
        return name_run(address)

    monkeypatch.setattr(trainer_run, "name_run", name)
    db, tokenizer = tmp_path / "a.db", guess_model.make_tokenizer()
    recorded, trainer = record(echo([]), db=db), StandInTrainer(num_generations=2)
    threads = [threading.Thread(target=recorded, args=(texts(tokenizer, 1), trainer.args, tokenizer)) for _ in range(2)]
    with generating(trainer):
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    flush()
    assert len(named) == 1
    assert len(load_run(db=db)) == 4


def called_by(version: tuple[int, ...], mode: str, recorded: Callable[..., dict[str, Any]]) -> Callable[..., Any]:
    """Calls it as that release does with vLLM, and makes of what it returns what that one makes of it."""

    def rollout_func(prompts: list[Any], trainer: Any) -> dict[str, Any]:
        if version >= (0, 29, 1):
            return recorded(prompts, trainer)
        copies = trainer.num_generations if mode == "server" and version < (0, 28) else 1
        once = [
            trainer.processing_class.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
            for messages in prompts[::copies]
        ]
        output = recorded(once, trainer)
        return {**output, "prompt_ids": [ids for ids in output["prompt_ids"] for _ in range(copies)]}

    return rollout_func


def wanted(version: tuple[int, ...], mode: str) -> Callable[..., dict[str, Any]]:
    """A function for that release: as many completions as it takes, each paid by its place in the batch."""

    def rollout_func(prompts: list[Any], trainer: Any) -> dict[str, Any]:
        copies = trainer.num_generations if mode == "server" and version < (0, 28) else 1
        tokenizer, rows = trainer.processing_class, range(len(prompts) * copies)
        chats = [prompt if isinstance(prompt, str) else str(prompt[-1]["content"]) for prompt in prompts]
        ids = [tokenizer(f"guess {i}")["input_ids"] for i in rows]
        return {
            "prompt_ids": [tokenizer(chat)["input_ids"] for chat in chats],
            "completion_ids": ids,
            "logprobs": [[-0.5] * len(row) for row in ids],
            "env_reward": [float(i) for i in rows],
        }

    return rollout_func


def with_vllm(trainer: Any, mode: str) -> Any:
    """The trainer, as if it had a vLLM, which needs a GPU; a rollout function has it generate nothing."""
    trainer.use_vllm, trainer.vllm_mode = True, mode
    trainer.vllm_importance_sampling_correction, trainer._last_loaded_step = False, -1
    trainer.vllm_generation = SimpleNamespace(sync_weights=lambda: None)
    return trainer


RELEASES = [(0, 26, 2), (1, 16, 0), (0, 27, 2), (0, 28, 0), (0, 29, 0), (0, 29, 1)]


@pytest.mark.parametrize(("version", "mode"), cases([*product(RELEASES, ["server", "colocate"])], 3))
def test_rows_are_whole_whatever_the_release_hands_over(
    db: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: tuple[int, ...], mode: str
) -> None:
    monkeypatch.setattr(trl_shapes, "_trl", lambda: version)
    function = called_by(version, mode, record(wanted(version, mode), db=db))
    trainer = with_vllm(make_trainer(function, tmp_path / "out", reward_funcs=[solved], warm=0), mode)
    trainer.train()
    flush()
    rows = load_run(db=db)
    assert list(rows.step) == [1] * ROWS + [2] * ROWS
    assert (rows.status == "ok").all()
    assert list(rows.rollout_reward) == [*range(ROWS), *range(ROWS)]
    assert list(rows.reward) == list(rows.rollout_reward)
    assert [list(ids) for ids in rows.completion_ids] == [
        trainer.processing_class(f"guess {i}")["input_ids"] for i in [*range(ROWS)] * 2
    ]
    assert [row["dataset"]["task"] for row in rows.metadata] == list(rows.task)
    groups = [group for _, group in rows.groupby("group", sort=False)]
    assert len(groups) == 2 * ROWS // GROUP
    for group in groups:
        assert list(group.generation) == list(range(GROUP))
        assert (group.step.nunique(), group.task.nunique()) == (1, 1)
        assert len({str(messages[0]["content"]) for messages in group.messages}) == 1
        assert len({tuple(ids) for ids in group.prompt_ids}) == 1
        assert group.advantage.is_monotonic_increasing
        assert abs(group.advantage.sum()) < 1e-4
    run = last_run(db)
    assert (run.state, run.num_generations, run.recorder_errors) == ("finished", GROUP, 0)


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
    trainer = Trainer(use_vllm=True, vllm_mode=mode, accelerator=ranks, num_generations=4, rollout_func=print)
    asked = trl_shapes.read_arguments((list(range(prompts)), trainer), {}, {trainer: 4})
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
    asked = trl_shapes.read_arguments((["a", "b"], vars(mine)["args"], None), {}, {other: 4, mine: 4})
    assert asked.trainer is mine
    assert asked.prompts == ["a", "a", "b", "b"]
