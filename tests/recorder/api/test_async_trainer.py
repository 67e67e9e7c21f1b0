"""record_worker(): the real trainer of trl's AsyncGRPO, and what it makes of the rollouts of its real worker. Only its
forward is left out, whose attention is a CUDA kernel, and the model's server is a stand-in.
"""

import inspect
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from multiprocessing import reduction
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from logs_ui.recorder import flush, load_run, load_runs, load_scalars, record_worker, start_run
from logs_ui.recorder.api.async_grpo import trainer_channel
from logs_ui.recorder.api.async_grpo.trainer_channel import TrainerChannel, TrainerListener, TrainerRaised
from logs_ui.recorder.capture.instruments import trl_async
from logs_ui.recorder.guard import RAISE_VARIABLE
from logs_ui.recorder.queries import find_run
from logs_ui.recorder.storage.changes import RowChange
from logs_ui.recorder.storage.database import reading_engine
from tests.recorder.api.test_record_worker import GROUP, Policy, make_worker
from tests.recorder.api.test_record_worker import _has_async_grpo as _has_async_grpo  # noqa: PLC0414 - a fixture
from tests.recorder.api.test_record_worker import policy as policy  # noqa: PLC0414 - the fixture
from tests.support.changes import stored, wait_until
from tests.support.late import async_grpo, async_grpo_trainer, async_rollout_worker, datasets, tiny_model
from tests.support.quiet import QUIET

pytestmark = pytest.mark.versions

STEPS = 4
BUDGET = 10


class NoTransfer:
    def init_weight_transfer(self) -> None: ...
    def pause(self) -> None: ...
    def send_weights(self, iterator: Iterator[Any]) -> None: ...
    def resume(self) -> None: ...
    def destroy(self) -> None: ...


def make_trainer(worker: Any, model: Policy, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(
        "trl.experimental.async_grpo.async_grpo_trainer.get_peak_flops_per_device", lambda *_: None
    )  # it asks CUDA

    class Forwardless(async_grpo.AsyncGRPOTrainer):  # type: ignore[misc]
        """All but the forward. Keeps what TRL itself counts of the samples that it takes and drops."""

        breaks = False
        taken: Counter[float]
        stale: int

        def compute_loss(self, model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
            if self.breaks:
                raise ArithmeticError("the loss is no number")
            deadline = time.monotonic() + 60
            while self.rollout_queue.qsize() < 2 * GROUP and time.monotonic() < deadline:  # so that some become stale
                time.sleep(0.05)
            return sum(parameter.sum() for parameter in model.parameters()) * 0.0

        def log(self, logs: dict[str, float], *args: Any, **kwargs: Any) -> None:
            sink = self._metrics["train"]
            self.taken.update(sink.get("sample/staleness_mean", []))
            self.stale += len(sink.get("sample/dropped_stale_total", []))
            super().log(logs, *args, **kwargs)

    tiny_model.make_model(model.tokenizer).save_pretrained(folder / "model")
    model.worker = worker
    trainer = Forwardless(
        model=str(folder / "model"),
        args=async_grpo.AsyncGRPOConfig(
            output_dir=str(folder / "out"),
            max_steps=STEPS,
            per_device_train_batch_size=GROUP,
            num_generations=GROUP,
            token_budget=0,
            max_staleness=1,
            learning_rate=0.125,
            logging_steps=1,
            **QUIET,
        ),
        train_dataset=datasets.Dataset.from_list([{"prompt": [{"role": "user", "content": "Guess."}]}]),
        processing_class=model.tokenizer,
        rollout_worker=worker,
        weight_transfer=NoTransfer(),
    )
    trainer.taken, trainer.stale = Counter(), 0
    return trainer


@pytest.mark.exhaustive
def test_rows_know_how_stale_they_were_when_the_trainer_took_them_and_whether_it_dropped_them(
    policy: tuple[Policy, str], db: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, url = policy
    trainer = make_trainer(make_worker(model, url, None, monkeypatch), model, tmp_path, monkeypatch)
    record_worker(trainer.rollout_worker, name="mine", db=db)
    trainer.train()
    (run,) = load_runs(db=db).to_dict("records")
    assert (run["name"], run["state"], run["max_steps"], run["recorder_errors"]) == ("mine", "finished", STEPS, 0)
    assert (run["config"]["max_staleness"], run["config"]["max_tokens"]) == (1, 200), "the trainer's and the worker's"
    scalars = load_scalars(db=db)
    assert list(scalars.learning_rate.dropna()) == [0.125] * STEPS
    assert scalars["sample/dropped_stale_total"].sum() == trainer.stale > 0
    rows = load_run(db=db).to_dict("records")
    fates = [
        (row, row["staleness"], None if pd.isna(row["dropped"]) else row["dropped"]) for row in rows if is_taken(row)
    ]
    assert Counter(staleness for _, staleness, dropped in fates if dropped is None) == trainer.taken
    assert [staleness > 1 for _, staleness, dropped in fates if dropped == "stale"] == [True] * trainer.stale
    assert not any(dropped == "oversize" for *_, dropped in fates)
    for row, staleness, _ in fates:
        assert row["policy_step"] + staleness <= trainer.model_version
        assert row["messages"][-1]["content"] == "I give up.", "all else of the row stays"
        assert row["metadata"]["dataset"]["task"] == row["task"]
    assert [row for row in rows if not is_taken(row)], "what the training ended before"


def is_taken(row: Mapping[Any, Any]) -> bool:
    return not pd.isna(row["staleness"])


@pytest.mark.exhaustive
def test_an_exception_that_ends_the_training_ends_the_run(
    policy: tuple[Policy, str], db: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, url = policy
    trainer = make_trainer(make_worker(model, url, None, monkeypatch), model, tmp_path, monkeypatch)
    trainer.breaks = True
    record_worker(trainer.rollout_worker, db=db)
    with pytest.raises(ArithmeticError):
        trainer.train()
    (run,) = load_runs(db=db).to_dict("records")
    assert (run["state"], run["error"]) == ("failed", "ArithmeticError: the loss is no number")
    stored = find_run(reading_engine(db), run["run"])
    assert "in compute_loss" in (stored.traceback or ""), "the trainer's own, from the other process"


class Heard:
    def __init__(self) -> None:
        self.samples: list[tuple[Any, int, str | None]] = []
        self.errors: list[BaseException | None] = []

    def described(self, columns: dict[str, Any]) -> None: ...
    def logged(self, step: int, values: Any) -> None: ...

    def taken(self, row: Any, staleness: int, dropped: str | None) -> None:
        self.samples.append((row, staleness, dropped))

    def ended(self, error: BaseException | None) -> None:
        self.errors.append(error)


def sample(row: str | None, version: int, length: int = 4) -> Any:
    """As a worker makes it; of no row where it is not recorded."""
    made = async_rollout_worker.RolloutSample(
        prompt=[], completion=[], input_ids=np.arange(length), completion_mask=np.ones(length, int),
        old_log_probs=np.zeros(length), advantage=0.5, model_version=version, group_id=0, metrics={"reward": 1.0},
    )  # fmt: skip
    if row is not None:
        trl_async.mark(made, row)
    return made


def dataset_of(worker: Any, samples: list[Any], version: int) -> Any:
    """The trainer's, of policy `version`; it ends where the worker has no more."""

    def ends(_: float) -> None:
        raise EOFError

    def fill() -> None:
        for one in samples:
            worker.rollout_buffer.put(one)  # which waits for room

    threading.Thread(target=fill, daemon=True).start()
    return async_grpo_trainer.RolloutQueueDataset(
        worker.rollout_buffer, lambda: version, ends, 1.0, defaultdict(list), max_staleness=2, poll_interval_s=0.5
    )


@pytest.fixture
def worker(policy: tuple[Policy, str], monkeypatch: pytest.MonkeyPatch) -> Any:
    return make_worker(*policy, None, monkeypatch)


def all_of(samples: Iterable[Any]) -> list[Any]:
    found = []
    with suppress(EOFError):
        for one in samples:
            found.append(one)  # noqa: PERF402 - which ends by an exception
    return found


def test_a_sample_that_no_batch_has_room_for_is_dropped_as_oversize(worker: Any) -> None:
    trl_async.watch(worker, heard := Heard())
    samples = [
        sample("a", 5), sample("long", 5, 11), sample("b", 4), sample("c", 4), sample("longer", 5, 12), sample("d", 2),
        sample("e", 5),
    ]  # fmt: skip
    dataset = dataset_of(worker, samples, 5)
    batches = all_of(async_grpo_trainer.TokenBudgetBatcher(dataset, 1, BUDGET, dataset.metrics))
    assert batches, "rows are emitted when they are full"
    assert heard.samples == [
        ("a", 0, None), ("long", 0, None), ("long", 0, "oversize"), ("b", 1, None), ("c", 1, None),
        ("longer", 0, None), ("longer", 0, "oversize"), ("d", 3, "stale"), ("e", 0, None),
    ]  # fmt: skip
    assert dataset.queue is worker.rollout_buffer, "as it was"


def test_samples_of_nobody_pass_and_so_do_all_where_trl_changed(worker: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = dataset_of(worker, [sample(None, 5), sample("a", 5)], 5)
    assert len(all_of(plain)) == 2, "a worker that is not recorded"
    trl_async.watch(worker, heard := Heard())
    assert len(all_of(dataset_of(worker, [sample(None, 5), sample(None, 0)], 5))) == 1
    changed = dataset_of(worker, [sample("a", 5), sample("b", 5)], 5)
    monkeypatch.setattr(trl_async, "_OVERSIZE", "gone")
    assert len(all_of(changed)) == 2
    assert [row for row, *_ in heard.samples] == ["a", "b"]
    broken = dataset_of(worker, [sample("c", 5)], 5)
    monkeypatch.setenv(RAISE_VARIABLE, "0")
    monkeypatch.setattr(heard, "taken", None)
    assert len(all_of(broken)) == 1, "what fails is the recorder's, not the trainer's"


def test_a_rollout_of_several_samples_is_as_stale_as_the_stalest_and_dropped_where_one_is(
    db: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Loss(float):
        """A number whose class no other process has."""

    def stalest_is(number: int) -> Callable[[], bool]:
        return lambda: stored(db, "select staleness from evaluation_row") == [(number,)]

    channel, run = TrainerChannel(), start_run("r", db=db)
    with run.rollout("Guess.", group="0") as row:
        row.note(mine=1)
    identity: RowChange = row._call.change(0, {})
    assert flush()
    monkeypatch.setattr(trainer_channel, "_GATHER_SECONDS", 0.05)
    with run, TrainerListener(channel, run, db, {"config": {}}):
        for taken, stalest in (([(0, "oversize")], 0), ([(3, None), (2, None)], 3), ([(1, None)], 3)):
            for staleness, dropped in taken:
                channel.taken(identity, staleness, dropped)
            wait_until(stalest_is(stalest))
        channel.logged(7, {"loss": Loss(0.5), "is": True, "note": "text"})
        channel.ended(None)
    (only,) = load_run(db=db).to_dict("records")
    assert (only["staleness"], only["dropped"]) == (3, "oversize")
    assert only["metadata"]["notes"] == {"mine": 1}
    scalars = load_scalars(db=db)
    assert list(scalars.index) == [7]
    assert {"loss"} <= set(scalars.columns)
    assert not {"is", "note"} & set(scalars.columns)


@pytest.mark.parametrize(
    ("error", "state", "line"),
    [
        (KeyboardInterrupt(), "interrupted", "KeyboardInterrupt"),
        (ArithmeticError("no number"), "failed", "ArithmeticError: no number"),
    ],
)
def test_what_ends_the_trainer_ends_the_run(db: Path, error: BaseException, state: str, line: str) -> None:
    channel, run = TrainerChannel(), start_run("r", db=db)
    channel.ended(error)
    with pytest.raises(TrainerRaised) as raised, run, TrainerListener(channel, run, db, {"config": {}}):
        pass
    assert isinstance(raised.value, Exception) == isinstance(error, Exception)
    (ended,) = load_runs(db=db).to_dict("records")
    assert (ended["state"], ended["error"]) == (state, line)


def test_telling_never_waits_for_a_worker_that_does_not_listen(tmp_path: Path) -> None:
    channel, run = TrainerChannel(), start_run("r", db=tmp_path / "a.db")
    identity = run.rollout("Guess.")._call.change(0, {})
    began = time.perf_counter()
    for _ in range(12_000):
        channel.taken(identity, 1, None)
    assert time.perf_counter() - began < 60


# What is relied on in TRL. Each test says what is lost where it fails.


def test_metrics_go_with_a_sample_and_are_a_dict_of_its_own() -> None:
    names = inspect.signature(async_rollout_worker.RolloutSample).parameters
    assert {"metrics", "model_version", "completion", "advantage"} <= set(names), "no rollout's fate, no advantages"
    sent = reduction.ForkingPickler.loads(reduction.ForkingPickler.dumps(sample("a", 3)))
    assert (sent.metrics, sent.metrics.row) == ({"reward": 1.0}, "a"), "whose a sample is is lost between processes"


def test_a_trainer_asks_for_its_data_and_stops_its_worker() -> None:
    kind = async_grpo_trainer.AsyncGRPOTrainer
    assert "get_train_dataloader" in vars(kind), "get_train_dataloader: no scalars, no arguments"
    assert "rollout_queue" in inspect.getsource(kind.__init__), "rollout_queue: no scalars, no arguments"
    assert "rollout_worker.stop()" in inspect.getsource(kind._inner_training_loop), "runs end without their error"
