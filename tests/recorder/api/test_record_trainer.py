"""record_trainer(): trainings with reward functions only, with tools, in environments, and by copies of the trainer."""

import functools
import inspect
import pickle
import re
import sys
import types
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from logs_ui.recorder import DiagnosisCallback, LogsUICallback, diagnose, load_run, load_runs, record, record_trainer
from logs_ui.recorder.capture.instruments.trl_parts import weights_of
from tests.support.exhaustive import cases
from tests.support.late import torch, trl
from tests.support.old_trl import IS_OLD
from tests.support.ranks import run_on_two_ranks
from tests.support.training import make_trainer

pytestmark = pytest.mark.versions


class Noted:
    """What a training computes, noted by a subclass of the trainer, and by its reward functions."""

    def __init__(self) -> None:
        self.prompts: list[Any] = []
        self.completion_ids: list[list[int]] = []
        self.texts: list[str] = []
        self.rewards: list[dict[str, float | None]] = []
        self.advantages: list[float] = []

    def trainer(self, base: Any = None) -> Any:
        noted = self

        class Noting(base or trl.GRPOTrainer):  # type: ignore[misc]
            def _generate_and_score_completions(self, inputs: Any) -> Any:
                noted.prompts += [row["prompt"] for row in inputs]
                scored = super()._generate_and_score_completions(inputs)
                noted.advantages += scored["advantages"].tolist()
                return scored

        return Noting

    def letters(self, completions: list[Any], completion_ids: list[list[int]], **_: Any) -> list[float]:
        self.completion_ids += [list(ids) for ids in completion_ids]
        self.texts += [completion[0]["content"] for completion in completions]
        values = [len(text) / 100 for text in self.texts[-len(completions) :]]
        self.rewards += [{"letters": value} for value in values]
        return values

    def sometimes(self, completions: list[Any], **_: Any) -> list[float | None]:
        values = [None if i % 3 == 0 else 0.5 for i in range(len(completions))]
        for row, value in zip(self.rewards[-len(completions) :], values, strict=True):
            row["sometimes"] = value
        return values

    def expect(self, db: Path, rows: int) -> Any:
        """Compare the recorded rows with the notes; return them."""
        recorded = load_run(db=db)
        assert len(recorded) == len(self.advantages) == len(self.prompts) == rows
        assert [messages[:-1] for messages in recorded.messages] == self.prompts
        assert [messages[-1]["content"] for messages in recorded.messages] == self.texts
        assert [list(ids) for ids in recorded.completion_ids] == self.completion_ids
        assert [pytest.approx(row) for row in self.rewards] == list(recorded.rewards)
        assert list(recorded.advantage) == pytest.approx(self.advantages)
        assert (recorded.status == "ok").all()
        assert not recorded.scored.isna().any()
        return recorded


def plain(noted: Noted, folder: Path, base: Any = None, **config: Any) -> Any:
    functions, kind = (noted.letters, noted.sometimes), noted.trainer(base)
    settings = {"max_completion_length": 24, "reward_weights": [1.0, 0.25], **config}
    return make_trainer(None, folder, reward_funcs=functions, kind=kind, warm=0, **settings)


def test_a_training_with_reward_functions_only_is_recorded_once_and_goes_as_without(tmp_path: Path) -> None:
    db, noted, other = tmp_path / "a.db", Noted(), Noted()
    trainer = plain(noted, tmp_path / "1", callbacks=[LogsUICallback(db=tmp_path / "b.db")])
    assert record_trainer(trainer, eval_name="letters", db=db) is trainer
    record_trainer(trainer, eval_name="again", db=tmp_path / "c.db")
    trainer.train()
    plain(other, tmp_path / "2").train()
    assert (noted.completion_ids, noted.advantages) == (other.completion_ids, other.advantages)
    assert not any((tmp_path / name).exists() for name in ("b.db", "c.db"))
    rows = noted.expect(db, 16)
    assert list(rows.step) == [1] * 8 + [2] * 8
    assert list(rows.generation) == [0, 1, 2, 3] * 4
    assert rows.group.nunique() == 4
    assert (rows.eval_name == "letters").all()
    assert set(rows.stop_reason) <= {"stop", "length"}
    assert rows.env_steps.isna().all()
    weights = rows.reward_weights[0]
    assert weights == {"letters": 1.0, "sometimes": 0.25}
    assert rows.sampling[0]["max_new_tokens"] == 24
    (run,) = load_runs(db=db).to_dict("records")
    assert (run["state"], run["unattributed_calls"]) == ("finished", 0)


@pytest.mark.exhaustive
@pytest.mark.skipif(IS_OLD, reason="TRL 0.29 calls it paged attention, which needs a GPU")
def test_continuous_batching_shows_why_answers_ended(tmp_path: Path) -> None:
    db, noted = tmp_path / "a.db", Noted()
    cache = {"num_blocks": 8, "max_batch_tokens": 256}  # else it takes, and clears, half of the machine's memory
    trainer = plain(
        noted, tmp_path, use_transformers_continuous_batching=True, transformers_continuous_batching_config=cache
    )
    record_trainer(trainer, db=db).train()
    rows = noted.expect(db, 16)
    end = trainer.processing_class.eos_token_id
    assert list(rows.stop_reason) == ["stop" if ids[-1] == end else "length" for ids in rows.completion_ids]
    assert rows.sampling[0]["max_new_tokens"] == 24


def test_an_evaluation_is_recorded_as_one(tmp_path: Path) -> None:
    db, noted = tmp_path / "a.db", Noted()
    trainer = record_trainer(plain(noted, tmp_path), db=db)
    trainer.evaluate()
    rows = noted.expect(db, len(noted.prompts))
    assert set(rows["mode"]) == {"eval"}
    assert (rows.eval_name == "rollouts").all()


def test_what_samples_no_completions_is_refused() -> None:
    for bad in (3, None, trl.SFTTrainer, object()):
        with pytest.raises(TypeError, match=r"^record_trainer\(\) takes a GRPOTrainer, RLOOTrainer, .* not "):
            record_trainer(bad)


def test_options_are_checked_before_anything_is_changed(tmp_path: Path) -> None:
    trainer = plain(Noted(), tmp_path, max_steps=1)
    with pytest.raises(TypeError, match="did you mean 'project'"):
        record_trainer(trainer, projekt="a")  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="did you mean 'project'"):
        LogsUICallback(projekt="a")  # type: ignore[call-arg]
    trainer.train()


def tokens(prompts: list[Any], trainer: Any) -> dict[str, Any]:
    texts = [trainer.processing_class.apply_chat_template(it, tokenize=False) for it in prompts]
    ids = trainer.processing_class(texts)["input_ids"]
    return {"prompt_ids": ids, "completion_ids": [row[:3] for row in ids], "logprobs": [[-0.5] * 3 for _ in ids]}


@pytest.mark.parametrize("door", cases(["record_trainer", "both", "wrapped", "record"], 3))
def test_a_rollout_function_is_recorded_once(door: str, tmp_path: Path) -> None:
    db, noted = tmp_path / "a.db", Noted()
    rollout_func: Any = tokens if door == "record_trainer" else record(tokens, db=db)
    if door == "wrapped":
        inner = rollout_func
        rollout_func = lambda prompts, trainer: inner(prompts, trainer)  # noqa: E731, PLW0108 - as in the wild
    trainer = make_trainer(rollout_func, tmp_path, reward_funcs=(noted.letters,), kind=noted.trainer(), warm=0)
    if door != "record":
        record_trainer(trainer, db=db)
    trainer.train()
    rows = load_run(db=db)
    assert [list(ids) for ids in rows.completion_ids] == noted.completion_ids
    assert list(rows.advantage) == pytest.approx(noted.advantages)
    assert (len(rows), len(load_runs(db=db))) == (16, 1)
    if door != "wrapped":
        assert (rows.eval_name == "tokens").all()


def copied(source: Any, name: str) -> Any:
    """Return a copy of a trainer's class in a module of its own, as Unsloth generates it: `_UnslothX`, renamed, and
    `UnslothX(_UnslothX)` over it, which takes the place of the original.
    """
    text = inspect.getsource(inspect.getmodule(source)).replace(f"class {name}(", f"class _Unsloth{name}(")  # type: ignore[arg-type]
    module = types.ModuleType(f"Unsloth{name}")
    module.__package__ = "trl.trainer"
    sys.modules[module.__name__] = module
    exec(compile(text, f"{module.__name__}.py", "exec"), vars(module))  # noqa: S102 - TRL's own source
    base = vars(module)[f"_Unsloth{name}"]
    return type(f"Unsloth{name}", (base,), {"__module__": module.__name__})


@pytest.mark.parametrize("order", cases(["before", "after"], 1))
def test_a_renamed_copy_of_the_trainer(order: str, tmp_path: Path) -> None:
    db, noted = tmp_path / "a.db", Noted()
    if order == "before":
        record(tokens, db=db)  # which attaches to the original
    trainer = plain(noted, tmp_path, copied(trl.GRPOTrainer, "GRPOTrainer"))
    assert not isinstance(trainer, trl.GRPOTrainer)
    record_trainer(trainer, db=db).train()
    noted.expect(db, 16)


def test_rloo(tmp_path: Path) -> None:
    db, noted = tmp_path / "a.db", Noted()
    record_trainer(plain(noted, tmp_path, trl.RLOOTrainer, arguments=trl.RLOOConfig, beta=0.0), db=db).train()
    noted.expect(db, 16)


@pytest.mark.skipif(IS_OLD, reason="TRL 0.29 has none")
def test_a_subclass_of_trls(tmp_path: Path) -> None:
    from trl.experimental.gmpo import GMPOConfig, GMPOTrainer

    db, noted = tmp_path / "a.db", Noted()
    record_trainer(plain(noted, tmp_path, GMPOTrainer, arguments=GMPOConfig), db=db).train()
    noted.expect(db, 16)


def test_weights_are_recorded_as_they_were_set() -> None:
    """TRL keeps them in single precision."""
    trainer = SimpleNamespace(reward_weights=torch.tensor([0.1, 2.0, 1e-8, 0.333]))
    assert weights_of(trainer) == [0.1, 2.0, 1e-8, 0.333]


def test_the_diagnosis_speaks_of_a_plain_training(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    db, noted = tmp_path / "a.db", Noted()
    trainer = plain(noted, tmp_path, max_completion_length=2, max_steps=8, callbacks=[DiagnosisCallback(every_steps=1)])
    record_trainer(trainer, db=db).train()
    noted.expect(db, 64)
    cards = diagnose(db=db).cards
    printed = re.sub(r"\d+", "", capsys.readouterr().err)  # each card once, with its figures of that step
    assert re.sub(r"\d+", "", cards[0].title) in printed
    assert "never_acted" not in {card.id for card in cards}, "it offers no tools"


@pytest.mark.exhaustive
def test_each_try_of_an_override_that_samples_again_has_its_own_rewards(tmp_path: Path) -> None:
    class Resampling(trl.GRPOTrainer):  # type: ignore[misc]
        """Samples twice, and goes on with the second try, as dynamic sampling does."""

        def _generate_and_score_completions(self, inputs: Any) -> Any:
            super()._generate_and_score_completions(inputs)
            return super()._generate_and_score_completions(inputs)

    db, noted = tmp_path / "a.db", Noted()
    functions = (noted.letters, noted.sometimes)
    trainer = make_trainer(None, tmp_path, reward_funcs=functions, kind=Resampling, warm=0, max_completion_length=24)
    record_trainer(trainer, db=db).train()
    rows = load_run(db=db)
    assert len(rows) == 32
    assert [list(ids) for ids in rows.completion_ids] == noted.completion_ids
    assert list(rows.rewards) == [pytest.approx(row) for row in noted.rewards]
    assert rows.advantage.notna().sum() == 16, "of the second tries"


class Judge:
    __name__ = "judge"
    level = 3

    async def __call__(self, completions: list[Any], **_: Any) -> list[float]:
        return [1.0 for _ in completions]


@pytest.mark.skipif(IS_OLD, reason="TRL 0.29 does not take such a function for an asynchronous one")
def test_reward_functions_look_as_they_are(db: Path, tmp_path: Path) -> None:
    class Looking(trl.GRPOTrainer):  # type: ignore[misc]
        """Looks at its reward functions, and pickles them, where it calls them."""

        def _calculate_rewards(self, *args: Any, **kwargs: Any) -> Any:
            inner = self.reward_funcs[0].func
            assert isinstance(inner, Judge)
            assert inner.level == Judge.level
            assert type(pickle.loads(pickle.dumps(self.reward_funcs[0]))) is functools.partial  # noqa: S301 - our own
            return super()._calculate_rewards(*args, **kwargs)

    judge = functools.partial(Judge())
    trainer = make_trainer(None, tmp_path, reward_funcs=(judge,), kind=Looking, warm=0, max_completion_length=8)
    record_trainer(trainer, db=db).train()
    rows = load_run(db=db)
    assert (len(rows), set(rows.reward)) == (16, {1.0})


def test_a_curriculum_may_change_the_reward_functions(tmp_path: Path) -> None:
    db, called = tmp_path / "a.db", []

    def second(completions: list[Any], **_: Any) -> list[float]:
        called.append("second")
        return [2.0 for _ in completions]

    def first(completions: list[Any], **_: Any) -> list[float]:
        called.append("first")
        trainer.reward_funcs = [second]
        return [1.0 for _ in completions]

    trainer = make_trainer(None, tmp_path, reward_funcs=(first,), warm=0, max_completion_length=8)
    record_trainer(trainer, db=db).train()
    assert called == ["first", "second"]
    assert list(load_run(db=db).reward) == [1.0] * 8 + [2.0] * 8


ONE_RANK = """
import os
import sys
from pathlib import Path
from logs_ui.recorder import flush, record_trainer
from logs_ui.recorder.capture.instruments import trl
from logs_ui.recorder.guard import RAISE_VARIABLE
from tests.support.ranks import run_on_two_ranks
from tests.support.training import make_trainer

def length(completions, **_):
    return [float(len(one[0]["content"])) for one in completions]

os.environ[RAISE_VARIABLE] = "0"
trl._WAIT_SECONDS = 2
db, rank, out = sys.argv[1:]
trainer = make_trainer(None, Path(out), reward_funcs=(length,), warm=0, max_completion_length=8,
    per_device_train_batch_size=4)
if trainer.accelerator.process_index == int(rank):
    record_trainer(trainer, db=db)
trainer.train()
flush()
"""


@pytest.mark.parametrize("rank", [0, 1])
def test_of_two_ranks_one_that_records_alone_holds_no_other_up(rank: int, db: Path, tmp_path: Path) -> None:
    run_on_two_ranks(ONE_RANK, tmp_path, db, rank, tmp_path / "out")
    if rank == 0:
        assert len(load_run(db=db)) == 8
    else:
        assert not db.exists() or load_runs(db=db).empty
