"""record() round a real training: real GRPOTrainer, real OpenEnv server over its WebSocket."""

import functools
import gc
import os
import types
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zstandard
from sqlmodel import Session, select
from tokenizers import Tokenizer as Spelling

from logs_ui.recorder import flush, load_run, record, record_environment
from logs_ui.recorder.guard import RAISE_VARIABLE, guard
from logs_ui.recorder.queries import run_sources, source_texts
from logs_ui.recorder.rows.rollout_call import RolloutCall
from logs_ui.recorder.storage.database import reading_engine
from logs_ui.recorder.storage.tables import Run, Scalar, Tokenizer
from logs_ui.recorder.vocabulary import SourceKind
from logs_ui.rollout.demo.demo import GuessServer
from tests.support.exhaustive import cases
from tests.support.late import guess_rollout, torch, transformers, trl
from tests.support.stored import last_run
from tests.support.training import GROUP, ROWS, logged_by_trl, make_trainer, sequential, solved


def picky(env_reward: list[float], **_: Any) -> list[float | None]:
    """Scores every second row only."""
    return [reward / 2 if i % 2 else None for i, reward in enumerate(env_reward)]


def measuring(env_reward: list[float], log_metric: Any, **_: Any) -> list[float]:
    """Logs a figure of its own."""
    log_metric("best", max(env_reward))
    return env_reward


@pytest.fixture
def recorded(game_url: str, db: Path, tmp_path: Path) -> Callable[..., Any]:
    """Train with the sequential function, recorded into `db`; return the rollouts."""

    def train(options: dict[str, Any] | None = None, **config: Any) -> Any:
        make_trainer(record(sequential(game_url), db=db, **options or {}), tmp_path / "out", **config).train()
        return load_run(db=db)

    return train


def nothing(env_reward: list[float], **_: Any) -> list[None]:
    return [None for _ in env_reward]


def first_row_only(env_reward: list[float], **_: Any) -> list[float | None]:
    return [1.0 if i == 0 else None for i, _ in enumerate(env_reward)]


@pytest.mark.exhaustive
@pytest.mark.versions
def test_a_sequential_function_is_recorded_as_it_saw_itself(game_url: str, db: Path, tmp_path: Path) -> None:
    seen: list[Any] = []
    make_trainer(record(sequential(game_url, seen), eval_name="guess", db=db), tmp_path / "out").train()
    rows = load_run(db=db)
    assert len(rows) == 2 * ROWS == len(seen)
    for row, (texts, hints, logprobs) in zip(rows.to_dict("records"), seen, strict=True):
        assert [m["content"] for m in row["messages"] if m["role"] == "assistant"] == texts
        turns = [action for action in row["actions"] if action["turn"] > 0]
        assert [action["text"] for action in turns] == texts
        assert [a["observation"]["hint"] for a in turns if a["observation"]] == hints
        assert row["actions"][0]["turn"] == 0
        assert row["actions"][0]["metadata"]["reset"]["task"] == row["task"]
        assert row["metadata"]["attribution"] in ("context", "generation")
        # Half precision: a relative error of at most 2**-11.
        np.testing.assert_allclose(row["logprobs"], np.array(logprobs), rtol=2**-11)
        assert row["completion_tokens"] == sum(value != 0 for value in logprobs)
    assert (rows.status == "ok").all()
    assert last_run(db).unattributed_calls == 0


@pytest.mark.versions
def test_rewards_and_advantages_are_what_trl_logged_row_by_row(game_url: str, tmp_path: Path) -> None:
    db, out = tmp_path / "a.db", tmp_path / "out"
    trainer = make_trainer(
        record(sequential(game_url), db=db), out, reward_funcs=[solved, picky], reward_weights=[1.0, 0.3]
    )
    trainer.train()
    rows, logged = load_run(db=db), logged_by_trl(out)
    assert list(rows.step) == list(logged.step)
    np.testing.assert_array_equal(rows.advantage.to_numpy(float), logged.advantage.to_numpy(float))
    for name in ("solved", "picky"):
        stored = np.array([row[name] if row[name] is not None else np.nan for row in rows.rewards], float)
        np.testing.assert_array_equal(stored, logged[name].to_numpy(float))
    expected = np.nansum(np.stack([logged.solved, logged.picky * 0.3]), axis=0)
    np.testing.assert_allclose(rows.reward.to_numpy(float), expected, rtol=1e-6)
    assert rows.reward_weights[0] == {"solved": 1.0, "picky": pytest.approx(0.3)}


@pytest.mark.versions
def test_a_reward_that_is_no_number_is_told_from_one_that_was_declined(recorded: Callable[..., Any]) -> None:
    def declines(env_reward: list[float], **_: Any) -> list[float | None]:
        return [None, *env_reward[1:]]

    def odd(env_reward: list[float], **_: Any) -> Any:
        return torch.tensor([float("nan"), float("inf"), *env_reward[2:]])

    async def odd_and_async(env_reward: list[float], **_: Any) -> list[float | None]:
        return [None, float("nan"), *env_reward[2:]]

    functions = [declines, odd, odd_and_async]
    rows = recorded(reward_funcs=functions, max_steps=1)
    assert rows.rewards[0] == {"declines": None, "odd": None, "odd_and_async": None}
    assert rows.odd_rewards[0] == {"odd": "nan"}
    assert rows.odd_rewards[1] == {"odd": "inf", "odd_and_async": "nan"}
    assert rows.odd_rewards[2:].isna().all()


@pytest.mark.exhaustive
def test_a_row_that_no_function_scored_has_no_reward_but_is_not_awaited(recorded: Callable[..., Any]) -> None:
    rows = recorded(reward_funcs=[nothing, first_row_only], max_steps=1)
    assert rows.reward[0] == 1.0
    assert rows.reward[1:].isna().all()
    assert rows.scored.notna().all()
    assert (rows.advantage[1:] == 0).all()


@dataclass
class Once:
    """A training of one step, which several tests read: its trainer, what its rollout function was called with and
    returned, within record() and outside of it, and what was recorded.
    """

    db: Path
    trainer: Any = None
    inside: list[Any] = field(default_factory=list)
    outside: list[Any] = field(default_factory=list)
    rows: Any = None

    def run(self) -> Run:
        return last_run(self.db)


@pytest.fixture(scope="module")
def once(game_url: str, tmp_path_factory: pytest.TempPathFactory) -> Once:
    class ByName(trl.GRPOTrainer):  # type: ignore[misc]
        def _generate_and_score_completions(self, inputs: Any, **_: Any) -> Any:
            return super()._generate_and_score_completions(inputs=inputs)

        def _calculate_rewards(self, inputs: Any, prompts: Any, completions: Any, completion_ids_list: Any) -> Any:
            return super()._calculate_rewards(
                inputs=inputs, prompts=prompts, completions=completions, completion_ids_list=completion_ids_list
            )

    inner, it = sequential(game_url), Once(tmp_path_factory.mktemp("once") / "a.db")

    @record(db=it.db, task=lambda row: f"{row['task']}!")
    def rollout_func(prompts: Any, trainer: Any) -> Any:
        """Its docstring."""
        it.inside.append((prompts, trainer, inner(prompts, trainer)))
        return it.inside[-1][-1]

    def spy(prompts: Any, trainer: Any) -> Any:
        it.outside.append((prompts, trainer, rollout_func(prompts, trainer)))
        return it.outside[-1][-1]

    twins = [lambda env_reward, **_: env_reward, lambda env_reward, **_: [2.0 for _ in env_reward]]
    settings: dict[str, Any] = {"reward_funcs": [measuring, *twins], "reward_weights": [1.0, 1.0, 0.5]}
    settings |= {"run_name": "my run", "max_steps": 1, "shuffle_dataset": False}
    assert (rollout_func.__name__, rollout_func.__doc__) == ("rollout_func", "Its docstring.")
    it.trainer = make_trainer(rollout_func, it.db.with_name("out"), kind=ByName, **settings)
    it.trainer.rollout_func = spy
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LOGS_UI_RUN", "first")
        it.trainer.train()
    it.rows = load_run(db=it.db)
    return it


def test_the_run_keeps_what_its_trainer_was(once: Once) -> None:
    run, trainer = once.run(), once.trainer
    assert (run.uid, run.name, run.state, run.parent) == ("first", "my run", "finished", None)
    assert (run.max_steps, run.num_generations) == (1, GROUP)
    assert run.config["learning_rate"] == 1e-3
    assert run.versions["torch"] == torch.torch_version.__version__
    assert run.git_commit is None or len(run.git_commit) == 40
    engine = reading_engine(once.db)
    (found,) = run_sources(engine, [run.id or 0]).values()
    texts = source_texts(engine, [source.hash for source in found if source.hash])
    made_of = {source.kind: texts[source.hash or ""] for source in found}
    of_reward = next(source for source in found if source.name == "measuring")
    assert (of_reward.kind, of_reward.weight) == (SourceKind.REWARD, 1.0)
    assert texts[of_reward.hash or ""].startswith("def measuring(")
    assert "def spy(prompts" in made_of[SourceKind.ROLLOUT]
    assert made_of[SourceKind.CHAT_TEMPLATE] == trainer.processing_class.chat_template
    assert f"rows: {len(trainer.train_dataset)}" in made_of[SourceKind.DATASET]
    with Session(engine) as session:
        scalars = {(s.step, s.name): s.value for s in session.exec(select(Scalar))}
    logged = {(entry["step"], name): value for entry in trainer.state.log_history for name, value in entry.items()}
    for name in ("loss", "grad_norm", "learning_rate", "entropy", "reward", "clip_ratio/region_mean", "best"):
        assert scalars[1, name] == pytest.approx(logged[1, name])


def test_the_stored_tokenizer_spells_the_stored_ids(once: Once) -> None:
    with Session(reading_engine(once.db)) as session:
        (stored,) = session.exec(select(Tokenizer)).all()
    spelling = Spelling.from_str(zstandard.decompress(stored.data).decode())
    for ids in once.rows.completion_ids:
        assert spelling.decode(ids, skip_special_tokens=False) == once.trainer.processing_class.decode(ids)


def test_the_function_gets_the_same_arguments_and_gives_the_same_object(once: Once) -> None:
    for inside, outside in zip(once.inside, once.outside, strict=True):
        assert all(one is other for one, other in zip(inside, outside, strict=True))
    assert once.inside[0][1] is once.trainer
    assert set(once.rows.eval_name) == {"rollout_func"}


def test_the_user_names_the_task(once: Once) -> None:
    assert "easy: 1-3!" in set(once.rows.task)


def test_two_reward_functions_of_one_name_both_count(once: Once) -> None:
    assert [values["<lambda>_2"] for values in once.rows.rewards] == [2.0] * ROWS
    assert once.rows.reward_weights[0] == {"measuring": 1.0, "<lambda>": 1.0, "<lambda>_2": 0.5}


def test_a_subclass_that_calls_what_it_overrides_by_name_is_recorded(once: Once) -> None:
    assert once.rows.advantage.notna().all()
    assert once.rows.reward.notna().all()


@pytest.mark.exhaustive
@pytest.mark.versions
def test_groups_stay_apart_where_a_step_repeats(recorded: Callable[..., Any]) -> None:
    """Gradient accumulation and evaluation call the function several times at one global step."""
    rows = recorded(
        gradient_accumulation_steps=2, steps_per_generation=1, eval_strategy="steps", eval_steps=1, max_steps=2
    )
    sizes = rows.groupby("group").size()
    assert (sizes == GROUP).all()
    assert (rows.groupby("group").generation.apply(sorted).apply(list) == sizes.apply(range).apply(list)).all()
    assert rows.groupby("group").task.nunique().max() == 1
    train, evaluated = rows[rows["mode"] == "train"], rows[rows["mode"] == "eval"]
    assert list(train.groupby("step").size()) == [2 * ROWS, 2 * ROWS]
    assert set(evaluated.step) == {1, 2}
    assert (train.step == train.policy_step + 1).all()
    assert (evaluated.step == evaluated.policy_step).all()
    assert evaluated.reward.notna().all()
    assert evaluated.advantage.notna().all()


def trained(rollout_func: Any, folder: Path) -> list[Any]:
    """The model's parameters, after two steps."""
    trainer = make_trainer(rollout_func, folder)
    trainer.train()
    return [parameter.detach().clone() for parameter in trainer.model.parameters()]


@pytest.fixture(scope="module")
def plain(game_url: str, tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    """What a training comes to that nothing records."""
    return trained(sequential(game_url), tmp_path_factory.mktemp("plain"))


def test_recording_changes_nothing_in_the_training(game_url: str, plain: list[Any], tmp_path: Path) -> None:
    recorded = trained(record(db=tmp_path / "a.db")(sequential(game_url)), tmp_path / "recorded")
    assert all(torch.equal(a, b) for a, b in zip(plain, recorded, strict=True))


@pytest.mark.versions
def test_rows_of_a_function_that_raises_halfway_are_kept_as_errors(game_url: str, tmp_path: Path) -> None:
    db, inner = tmp_path / "a.db", sequential(game_url)

    @record(db=db)
    def dies(prompts: Any, trainer: Any) -> Any:
        inner(prompts[:3], trainer)
        raise RuntimeError("the parser gave up")

    with pytest.raises(RuntimeError, match="the parser gave up"):
        make_trainer(dies, tmp_path / "out").train()
    rows = load_run(db=db)
    assert len(rows) == ROWS
    assert (rows.status == "error").all()
    assert (rows.stop_reason == "exception").all()
    assert (rows.error == "RuntimeError: the parser gave up").all()
    assert all("the parser gave up" in metadata["traceback"] for metadata in rows.metadata)
    assert [any(m["role"] == "assistant" for m in messages) for messages in rows.messages] == [True] * 3 + [False] * 5
    assert rows.task.notna().all()
    assert last_run(db).state == "failed"


@pytest.mark.exhaustive
@pytest.mark.versions
def test_an_environment_that_dies_is_named(game_url: str, db: Path, tmp_path: Path) -> None:
    with GuessServer() as doomed:
        inner = sequential(doomed.wait_until_ready())

    @record(db=db)
    def rollout_func(prompts: Any, trainer: Any) -> Any:
        return inner(prompts, trainer)

    with pytest.raises(Exception):  # noqa: B017, PT011 - whatever the client raises
        make_trainer(rollout_func, tmp_path / "out").train()
    rows = load_run(db=db)
    assert set(rows.stop_reason) == {"environment_error"}
    assert rows.error.str.len().gt(0).all()
    assert set(rows.status) == {"error"}
    assert last_run(db).unattributed_calls == 0, "the call that ended all rows is told on all of them"


def test_a_wrong_return_is_said_on_the_rows(game_url: str, tmp_path: Path) -> None:
    db, inner = tmp_path / "a.db", sequential(game_url)

    @record(db=db)
    def rollout_func(prompts: Any, trainer: Any) -> Any:
        output = inner(prompts, trainer)
        output["completion_ids"].pop()
        return output

    with pytest.raises(Exception):  # noqa: B017, PT011 - TRL's own, of several kinds
        make_trainer(rollout_func, tmp_path / "out").train()
    flush()
    rows = load_run(db=db)
    assert len(rows) == ROWS
    assert rows.error.str.contains("7 'completion_ids' for 8 prompts").all()
    assert (rows.status == "error").all()


@pytest.mark.exhaustive
def test_what_is_changed_after_the_return_changes_nothing_recorded(game_url: str, tmp_path: Path) -> None:
    db, inner = tmp_path / "a.db", sequential(game_url)
    outputs: list[Any] = []

    def keeping(prompts: Any, trainer: Any) -> Any:
        outputs.append(inner(prompts, trainer))
        return outputs[-1]

    recorded = record(keeping, db=db)

    def rollout_func(prompts: Any, trainer: Any) -> Any:
        output = recorded(prompts, trainer)
        kept = [list(ids) for ids in output["completion_ids"]]
        for ids in output["completion_ids"]:
            ids[:] = [1] * len(ids)
        outputs[-1] = kept
        return {**output, "completion_ids": kept}

    make_trainer(rollout_func, tmp_path / "out", max_steps=1).train()
    rows = load_run(db=db)
    assert [list(ids) for ids in rows.completion_ids] == outputs[0]


@pytest.mark.exhaustive
def test_what_a_subclass_makes_of_the_advantages_is_what_is_stored(game_url: str, db: Path, tmp_path: Path) -> None:
    class Sevens(trl.GRPOTrainer):  # type: ignore[misc]  # trl is not there for the type checker
        def _generate_and_score_completions(self, inputs: Any) -> Any:
            scored = super()._generate_and_score_completions(inputs)
            scored["advantages"] = torch.full_like(scored["advantages"], 7.0)
            return scored

        def _calculate_rewards(self, *args: Any) -> Any:
            return super()._calculate_rewards(*args) + 1

    make_trainer(record(sequential(game_url), db=db), tmp_path / "out", kind=Sevens).train()
    rows = load_run(db=db)
    assert set(rows.advantage) == {7.0}, "the first batch included"
    assert (rows.reward == rows.rollout_reward.astype("float32") + 1).all()


class Other:
    """A trainer that is none of TRL's, with methods of the same names and of its own shapes."""

    num_generations = 1
    made: list[Any]
    rollout_func: Any

    def _generate(self, *, count: int) -> tuple[list[int], list[int]]:
        return [1] * count, [2] * count

    def _calculate_rewards(self, **columns: Any) -> int:
        return len(columns)

    def _generate_and_score_completions(self) -> str:
        self.made.append((self._generate(count=2), self._calculate_rewards(x=1)))
        if self.rollout_func is not None:
            self.made.append(self.rollout_func(["a"], self))
        self.made.append((self._generate(count=1), self._calculate_rewards(x=1, y=2)))
        return "scored"

    def compute_loss(self, model: Any, inputs: Any, *_: Any, **__: Any) -> Any:
        self.made.append(self._generate_and_score_completions())
        return model(inputs["x"]).sum()


def made_by(methods: type[Other], folder: Path, rollout_func: Any = None) -> list[Any]:
    """What its methods returned in a step."""
    args = transformers.TrainingArguments(
        str(folder), max_steps=1, report_to="none", use_cpu=True, remove_unused_columns=False, disable_tqdm=True,
        save_strategy="no", per_device_train_batch_size=2,
    )  # fmt: skip
    kind, rows = type("Kind", (methods, transformers.Trainer), {}), [{"x": torch.ones(2)}] * 2
    trainer = kind(model=torch.nn.Linear(2, 1), args=args, train_dataset=rows)
    trainer.made, trainer.rollout_func = [], rollout_func
    trainer.train()
    return list(trainer.made)


MADE = [(([1, 1], [2, 2]), 1), (([1], [2]), 2), "scored"]


def test_a_trainer_that_nobody_records_is_left_alone(tmp_path: Path) -> None:
    class Unrelated(Other):
        """Its own class: another test's is recorded."""

        _generate = copied(Other._generate)
        _calculate_rewards = copied(Other._calculate_rewards)

    class Game:
        def reset(self, **_: Any) -> None:
            """Nothing."""

    before, own = guard.errors, dict(vars(Unrelated))
    record(lambda prompts, trainer: {}, db=tmp_path / "a.db")
    record_environment(Game, db=tmp_path / "a.db")
    assert made_by(Unrelated, tmp_path) == MADE
    assert guard.errors == before
    assert all(vars(Unrelated)[name] is value for name, value in own.items()), "none of its methods is patched"


def copied(function: Any) -> Any:
    return types.FunctionType(function.__code__, function.__globals__, function.__name__, None, function.__closure__)


def test_a_recorded_trainer_has_methods_of_any_shape(db: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(RAISE_VARIABLE, "0")
    output = {"prompt_ids": [[1]], "completion_ids": [[2]], "logprobs": [[-1.0]]}
    made = made_by(Other, tmp_path, record(lambda prompts, trainer: output, db=db))
    assert made == [MADE[0], output, *MADE[1:]]
    flush()
    assert list(load_run(db=db).status) == ["ok"]


@pytest.mark.exhaustive
def test_of_a_training_that_ended_no_call_is_kept(game_url: str, tmp_path: Path) -> None:
    from logs_ui.recorder.api import trainer_run

    def kept() -> list[RolloutCall]:
        gc.collect()
        return [one for one in gc.get_objects() if type(one) is RolloutCall and one.run == run]

    trainer = make_trainer(record(sequential(game_url), db=tmp_path / "a.db"), tmp_path / "out", max_steps=1)
    trainer.train()
    flush()
    run = last_run(tmp_path / "a.db").uid
    assert kept() == []
    assert all(one.run != run for one in trainer_run._recordings)
    trainer.evaluate()
    flush()
    assert kept() == []
    assert all(one.run != run for one in trainer_run._recordings)


@pytest.mark.exhaustive
@pytest.mark.versions
def test_each_training_is_a_run_and_an_evaluation_after_it_is_not(game_url: str, db: Path, tmp_path: Path) -> None:
    trainer = make_trainer(record(sequential(game_url), db=db), tmp_path / "out", max_steps=1)
    trainer.train()
    first = last_run(db).uid
    trainer.evaluate()
    assert flush()
    assert last_run(db).uid == first
    assert last_run(db).state == "finished"
    trainer.train()
    second = last_run(db).uid
    assert second != first
    assert load_run(first, db).groupby("mode").size().to_dict() == {"eval": 2 * ROWS, "train": ROWS}
    assert load_run(second, db).groupby("mode").size().to_dict() == {"train": ROWS}
    with Session(reading_engine(db)) as session:
        assert len(session.exec(select(Scalar).where(Scalar.name == "loss")).all()) == 2


@pytest.mark.exhaustive
def test_a_name_that_is_taken_takes_nothing_away(
    game_url: str, db: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOGS_UI_RUN", "mine")
    for _ in range(2):
        make_trainer(record(sequential(game_url), db=db), tmp_path / "out", max_steps=1).train()
    assert last_run(db).uid == "mine.2"
    assert len(load_run("mine", db)) == len(load_run("mine.2", db)) == ROWS


@pytest.mark.exhaustive
def test_the_parent_is_of_the_same_folder_not_of_the_same_words(
    game_url: str, db: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:

    def train(project: str, steps: int, **options: Any) -> Run:
        (tmp_path / project).mkdir(exist_ok=True)
        monkeypatch.chdir(tmp_path / project)
        trainer = make_trainer(
            record(sequential(game_url), db=db), Path("out"), save_strategy="steps", save_steps=1, max_steps=steps
        )
        trainer.train(**options)
        return last_run(db)

    of_b = train("b", 1)
    train("a", 1)
    resumed = train("b", 2, resume_from_checkpoint=True)
    assert (resumed.parent, of_b.parent) == (of_b.uid, None)
    assert set(load_run(resumed.uid, db).step) == {2}


def test_a_training_that_anything_else_ends_has_failed(game_url: str, db: Path, tmp_path: Path) -> None:
    def broken(env_reward: list[float], **_: Any) -> list[float]:
        raise ValueError(f"no reward for {len(env_reward)}")

    with pytest.raises(ValueError, match="no reward"):
        make_trainer(record(sequential(game_url), db=db), tmp_path / "out", reward_funcs=[broken]).train()
    run = last_run(db)
    assert (run.state, run.error) == ("failed", f"ValueError: no reward for {ROWS}")
    assert "in broken" in (run.traceback or "")
    rows = load_run(db=db)
    assert set(rows.status) == {"ok"}
    assert rows.scored.isna().all(), "awaited, not unscored"


@pytest.mark.parametrize("announce", [True, False])
def test_an_interrupt_aborts_the_rows_that_it_stops(
    game_url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], *, announce: bool
) -> None:
    db, inner = tmp_path / "a.db", sequential(game_url)

    @record(db=db, announce=announce)
    def interrupted(prompts: Any, trainer: Any) -> Any:
        inner(prompts[:1], trainer)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        make_trainer(interrupted, tmp_path / "out").train()
    rows = load_run(db=db)
    assert set(rows.status) == set(rows.stop_reason) == {"aborted"}
    assert set(rows.error) == {"KeyboardInterrupt"}
    run = last_run(db)
    assert (run.state, run.error) == ("interrupted", "KeyboardInterrupt")
    line = f"logs-ui: recording run {run.uid}; browse it with: logs-ui serve --db {db}\n"
    assert (line in capsys.readouterr().err) == announce


@pytest.mark.exhaustive
def test_a_function_that_is_called_again_after_it_raised_keeps_both_attempts(game_url: str, tmp_path: Path) -> None:
    db, inner, calls = tmp_path / "a.db", sequential(game_url), []

    @record(db=db)
    def flaky(prompts: Any, trainer: Any) -> Any:
        calls.append(len(prompts))
        if len(calls) == 1:
            raise TimeoutError("once")
        return inner(prompts, trainer)

    def retried(prompts: Any, trainer: Any) -> Any:
        try:
            return flaky(prompts, trainer)
        except TimeoutError:
            return flaky(prompts, trainer)

    make_trainer(retried, tmp_path / "out").train()
    rows = load_run(db=db)
    assert rows.groupby("status").size().to_dict() == {"error": ROWS, "ok": 2 * ROWS}
    good = rows[rows.status == "ok"]
    assert (good.groupby("group").size() == GROUP).all()
    assert (good.groupby("group").step.nunique() == 1).all()
    assert good.reward.notna().all()
    assert last_run(db).state == "finished"


def test_a_decorator_on_a_recorded_function_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def function(prompts: Any, trainer: Any) -> str:
        return "bare"

    recorded = record(function, db=tmp_path / "a.db")

    @functools.wraps(recorded)
    def decorated(prompts: Any, trainer: Any) -> str:
        return f"decorated {recorded(prompts, trainer)}"

    stranger: Any = object()  # no trainer: nothing is recorded, and everything works
    monkeypatch.delenv(RAISE_VARIABLE)
    assert record(decorated, db=tmp_path / "a.db")([], stranger) == "decorated bare"
    assert record(recorded, db=tmp_path / "a.db")([], stranger) == "bare"


def test_a_forked_child_says_nothing_of_its_parents_run(game_url: str, tmp_path: Path) -> None:
    from logs_ui.recorder.api import trainer_run

    db, inner = tmp_path / "a.db", sequential(game_url)
    left: list[int] = []

    @record(db=db)
    def forking(prompts: Any, trainer: Any) -> Any:
        child = os.fork()
        if child == 0:
            os._exit(len(trainer_run._recordings))
        left.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        return inner(prompts, trainer)

    make_trainer(forking, tmp_path / "out", max_steps=1).train()
    assert left == [0]
    assert last_run(db).state == "finished"


TOGETHER = ["advantages", "rewards", "logged", "train_ended", "_describe"]
"""Seams of which each is reached though the others fail."""


@pytest.mark.parametrize("seams", cases([TOGETHER, ["open"], ["returned"], *([one] for one in TOGETHER)], 2))
def test_a_fault_at_any_seam_changes_nothing_in_the_training(
    game_url: str, plain: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seams: list[str]
) -> None:
    failed = set()

    def fault(seam: str, *_: Any, **__: Any) -> None:
        failed.add(seam)
        raise OSError("injected")

    monkeypatch.delenv(RAISE_VARIABLE)
    for seam in seams:
        monkeypatch.setattr(f"logs_ui.recorder.api.trainer_run.Recording.{seam}", functools.partial(fault, seam))
    before = guard.errors
    recorded = trained(record(db=tmp_path / "a.db")(sequential(game_url)), tmp_path / "recorded")
    assert failed == {*seams}
    assert guard.errors >= before + len(seams)
    assert all(torch.equal(a, b) for a, b in zip(plain, recorded, strict=True))


@pytest.mark.exhaustive
def test_a_row_keeps_the_facts_of_its_rollout(game_url: str, tmp_path: Path) -> None:
    db, out = tmp_path / "a.db", tmp_path / "out"
    make_trainer(record(sequential(game_url), db=db), out, eval_strategy="steps", eval_steps=2, warm=80).train()
    rows = load_run(db=db)
    assert set(rows.model) == {"guess-qwen3-80k"}
    assert rows.epoch.notna().all()
    assert (rows.seconds > 0).all()
    for row in rows.to_dict("records"):
        sampled = [action for action in row["actions"] if action["text"] is not None]
        steps = [action for action in row["actions"] if action["action"] is not None]
        assert row["turns"] == len(sampled) > 0
        assert row["prompt_tokens"] == len(row["prompt_ids"])
        assert row["env_tokens"] == (np.array(row["mask"]) == 0).sum()
        assert row["sampling"]["max_new_tokens"] == guess_rollout.MAX_NEW_TOKENS
        assert row["metadata"]["dataset"]["task"] == row["task"]
        assert all(action["seconds"] > 0 for action in steps)
        if steps:
            assert row["env_reward_last"] == steps[-1]["reward"]
    evaluated = rows[rows["mode"] == "eval"]
    spread = evaluated.groupby("group").reward.transform("std")
    centred = evaluated.reward - evaluated.groupby("group").reward.transform("mean")
    np.testing.assert_allclose(evaluated.advantage, centred / (spread + 1e-4), atol=1e-5)


@pytest.mark.exhaustive
def test_a_task_as_long_as_a_problem_is_shortened(game_url: str, db: Path, tmp_path: Path) -> None:
    long = "Prove that " + "very " * 100_000
    recorded = record(sequential(game_url), db=db, task=lambda row: long + row["task"])
    make_trainer(recorded, tmp_path / "out", max_steps=1, shuffle_dataset=False).train()
    tasks = set(load_run(db=db).task)
    assert len(tasks) == 2, "still told apart"
    assert all(task.startswith("Prove that very") and len(task) < 200 for task in tasks)
