"""record_worker(): the real worker of trl's AsyncGRPO, in the process that it spawns. Only the model's server is a
stand-in: vLLM, and the trainer's own forward, want a GPU.
"""

import json
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from fastapi import FastAPI

from logs_ui.recorder import Settings, diagnose, load_run, load_runs, record_trainer, record_worker
from logs_ui.recorder.api.record_trainer import is_recorded_trainer
from logs_ui.recorder.errors import LogsUIError, SettingsError
from tests.support.late import accelerate, async_rollout_worker, datasets, guess_env, tiny_model
from tests.support.rollouts import served_app
from tests.support.training import guess_server

pytestmark = pytest.mark.versions

GROUP = 2
GAMES = 3


@pytest.fixture(autouse=True)
def _has_async_grpo() -> None:
    pytest.importorskip("trl.experimental.async_grpo", reason="this release of TRL has no AsyncGRPO")


class Guessing:
    """An environment that is played through a client of a real OpenEnv server."""

    def __init__(self, url: str = "") -> None:
        self.url = url

    def __call__(self) -> "Guessing":
        """The instance is the factory: a closure could not be pickled."""
        return Guessing(self.url)

    def reset(self, answer: int, **_: Any) -> None:
        self.client = guess_env.GuessEnv(base_url=self.url).sync()
        self.client.connect()
        self.client.reset(task="easy: 1-3", seed=answer)

    def guess(self, number: int) -> str:
        """Guesses a number.

        Args:
            number: the guess.
        """
        if number == 2:
            raise ValueError("two is unlucky")
        hint = self.client.step(guess_env.GuessAction(guess=number)).observation.hint
        return str(hint)


class Slotted:
    """An environment without a dict of its own, which says itself what it was worth."""

    __slots__ = ("guesses",)

    def reset(self, **_: Any) -> str:
        self.guesses = 0
        return " Begin."

    def guess(self, number: int) -> str:
        """Guesses a number.

        Args:
            number: the guess.
        """
        self.guesses += number
        return "higher"

    def get_reward(self) -> float:
        return self.guesses / 10


class Hanging:
    go_on = threading.Event()

    def reset(self, **_: Any) -> None:
        assert self.go_on.wait(120)
        raise ConnectionError("the server is gone")

    def guess(self, number: int) -> str:
        """Guesses a number.

        Args:
            number: the guess.
        """
        return str(number)


def named(row: dict[str, Any]) -> str:
    return f"number {row['answer']}"


def called(answer: str) -> str | None:
    return answer if "tool_call" in answer else None


def edited(row: dict[str, Any]) -> dict[str, Any]:
    return row | {"metadata": row["metadata"] | {"edited": True}}


def talks(completions: list[Any], **_: Any) -> list[float]:
    return [float(sum(message["role"] == "tool" for message in messages)) for messages in completions]


def declines(completions: list[Any], **_: Any) -> list[None]:
    return [None for _ in completions]


class Policy:
    """Answers as vLLM's completions endpoint does: guesses 1, then 2, then 3, and stops with words. While it answers
    for the second time, the trainer sends new weights.
    """

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer
        self.worker: Any = None
        self.broken = False
        self.app = FastAPI()
        self.app.post("/v1/completions")(self.complete)

    def complete(self, request: dict[str, Any]) -> dict[str, Any]:
        if self.broken:
            return {"choices": []}
        tries = self.tokenizer.decode(request["prompt"]).count("<tool_response>")
        if tries == 1 and self.worker.model_version == 0:
            self.worker.update_model_version(1)
        text = "I give up." if tries == guess_env.TURNS else self.called(tries + 1)
        ids = self.tokenizer(text + "<|im_end|>", add_special_tokens=False)["input_ids"]
        logprobs = [-0.25 * (i + 1) for i in range(len(ids))]
        return {"choices": [{"token_ids": ids, "text": text, "logprobs": {"token_logprobs": logprobs}}]}

    def called(self, number: int) -> str:
        return f"<tool_call>\n{json.dumps({'name': 'guess', 'arguments': {'number': number}})}\n</tool_call>"


@pytest.fixture
def policy() -> Iterator[tuple[Policy, str]]:
    lesson = [{"role": "user", "content": "Guess."}, tiny_model.call("guess", number=1)]
    policy = Policy(tiny_model.make_tokenizer([(lesson, [Guessing("").guess])] * 4))
    with served_app(policy.app) as url:
        yield policy, url


def make_worker(policy: Policy, url: str, environment: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(
        "trl.experimental.async_grpo.async_rollout_worker.is_vllm_available", lambda: True
    )  # only its server is asked
    accelerate.PartialState(cpu=True)  # as a trainer makes it
    rows = [
        {"prompt": [{"role": "user", "content": "Guess."}], "task": f"game {game}", "answer": game}
        for game in range(GAMES)
    ]
    return async_rollout_worker.AsyncRolloutWorker(
        dataset=datasets.Dataset.from_list(rows),
        reward_funcs=[talks, declines],
        environment_factory=environment,
        queue_maxsize=2 * GROUP,
        log_completions=False,
        **worker_settings(policy, url),
    )


def worker_settings(policy: Policy, url: str) -> dict[str, Any]:
    return {
        "model_name": "tiny", "vllm_server_url": url, "max_tokens": 200, "temperature": 0.7,
        "processing_class": policy.tokenizer, "eos_token_ids": [policy.tokenizer.eos_token_id],
        "num_generations": GROUP, "max_inflight_tasks": GROUP,
    }  # fmt: skip


@pytest.mark.exhaustive
def test_rollouts_of_a_spawned_worker_are_recorded_where_they_are_made(
    policy: tuple[Policy, str], db: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, url = policy
    with guess_server() as environment:
        worker = make_worker(model, url, Guessing(environment), monkeypatch)
        settings = Settings(max_reward=4.0)
        recorded = record_worker(
            worker, name="async", eval_name="guess", task=named, parse=called, edit=edited, diagnosis=settings, db=db
        )
        assert record_worker(recorded, db=db) is worker
        model.worker = worker
        worker.start()
        try:
            samples = [worker.rollout_buffer.get(timeout=120) for _ in range(2 * GROUP)]
            worker.check_health(60)
        finally:
            worker.stop()
    (run,) = load_runs(db=db).to_dict("records")
    assert (run["name"], run["state"], run["config"]["num_generations"]) == ("async", "finished", GROUP)
    assert diagnose(db=db).scale.best == settings.max_reward
    rows = load_run(db=db)
    rows = rows[rows.scored.notna()]
    assert len(rows) >= 2 * GROUP
    by_group = [rows for _, rows in rows.groupby("group", sort=False)]
    for game, group in enumerate(by_group[:2]):
        made = [sample for sample in samples if sample.group_id == game]
        assert sorted(group.generation) == [0, 1]
        assert set(group.task) == {f"number {game}"}, "as the user's function says"
        last = [actions[-1] for actions in group.actions]
        assert [action["metadata"] for action in last] == [{"parsed": False}] * GROUP, "the user's parser finds none"
        assert all(metadata["edited"] for metadata in group.metadata)
        assert set(group.advantage) == {sample.advantage for sample in made}
        assert set(group.policy_step) == {sample.model_version for sample in made}
        for row in group.to_dict("records"):
            assert row["status"] == "ok"
            assert row["eval_name"] == "guess"
            assert (row["reward"], row["rewards"]) == (3.0, {"talks": 3.0, "declines": None})
            assert row["turns"] == guess_env.TURNS + 1
            assert row["metadata"]["dataset"]["answer"] == game
            whole = np.concatenate([row["prompt_ids"], row["completion_ids"]])
            sample = next(sample for sample in made if np.array_equal(sample.input_ids, whole))
            np.testing.assert_array_equal(row["mask"], sample.completion_mask[len(row["prompt_ids"]) :])
            np.testing.assert_allclose(row["logprobs"], sample.old_log_probs[len(row["prompt_ids"]) :], rtol=2**-11)
            assert row["sampling"]["temperature"] == 0.7
            reset = row["actions"][0]
            assert (reset["turn"], reset["metadata"]["reset"]["answer"], reset["observation"]) == (0, game, None)
            assert 0 < reset["seconds"] < row["seconds"]
            tools = [action for action in row["actions"] if action["action"]]
            assert [tool["action"] for tool in tools] == [
                {"name": "guess", "arguments": {"number": number}} for number in (1, 2, 3)
            ]
            for tool in (tools[0], tools[2]):
                (step,) = tool["metadata"]["calls"]
                assert step["action"]["guess"] == tool["action"]["arguments"]["number"]
                assert step["observation"]["hint"] == tool["observation"]
            assert tools[1]["error"] == "ValueError: two is unlucky"
    policies = [metadata["notes"]["policy"] for metadata in by_group[0].metadata]
    # The other rollout of the group may still wait for its first answer when the weights change.
    first = next(policy for policy in policies if policy["turns"][:2] == [[0, 0], [0, 1]])
    assert first["version"] == 0
    assert first["staleness"] == 1, "the policy went on while the rollout was under way"
    assert first["turns"][-1] == [1, 1]
    later = by_group[1].metadata.iloc[0]["notes"]["policy"]
    assert (later["version"], later["staleness"]) == (1, 0)


def test_a_worker_that_fails_says_so_on_its_run(
    policy: tuple[Policy, str], db: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, url = policy
    model.broken = True
    trainer = SimpleNamespace(rollout_worker=make_worker(model, url, None, monkeypatch))  # its forward needs a GPU
    assert record_trainer(trainer, db=db) is trainer
    assert is_recorded_trainer(trainer)
    record_trainer(trainer, db=tmp_path / "b.db")
    with pytest.raises(IndexError):
        loop_of(trainer.rollout_worker).run()
    assert not (tmp_path / "b.db").exists()
    (run,) = load_runs(db=db).to_dict("records")
    assert (run["state"], run["error"]) == ("failed", "IndexError: list index out of range")
    rows = load_run(db=db)
    assert "error" in set(rows.status) <= {"error", "aborted"}
    assert rows.error.str.startswith(("IndexError", "CancelledError")).all()


def test_a_rollout_is_there_while_its_environment_is_reset_and_an_error_where_that_raises(
    policy: tuple[Policy, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    db, log = tmp_path / "a.db", tmp_path / "server.log"
    log.write_text("out of memory\n")
    worker = record_worker(make_worker(*policy, Hanging, monkeypatch), server_log=log, db=db)
    loop = loop_of(worker)
    with ThreadPoolExecutor(1) as thread:
        running = thread.submit(loop.run)
        try:
            (waiting,) = row_once(db, lambda row: len(row["actions"]) > 0)["actions"]
        finally:
            Hanging.go_on.set()
        with pytest.raises(ConnectionError):
            running.result(120)
    assert (waiting["turn"], waiting["metadata"]["waiting"], waiting["metadata"]["reset"]["answer"]) == (0, True, 0)
    (row,) = load_run(db=db).to_dict("records")
    assert (row["status"], row["stop_reason"]) == ("error", "environment_error")
    assert row["error"] == row["actions"][0]["error"] == "ConnectionError: the server is gone"
    assert (row["metadata"]["server_log"], row["metadata"]["dataset"]["answer"]) == ("out of memory\n", 0)
    (run,) = load_runs(db=db).to_dict("records")
    assert (run["state"], run["recorder_errors"]) == ("failed", 0)


def test_what_an_environment_pays_is_a_call_of_its_rollout(
    policy: tuple[Policy, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    db, (model, url) = tmp_path / "a.db", policy
    worker = record_worker(make_worker(model, url, Slotted, monkeypatch), parse=called, db=db)
    model.worker = worker
    loop = loop_of(worker)
    with ThreadPoolExecutor(1) as thread:
        running = thread.submit(loop.run)
        try:
            samples = [worker.rollout_buffer.get(timeout=120) for _ in range(GROUP)]
        finally:
            loop._loop.call_soon_threadsafe(loop._stop_event.set)
        running.result(120)
    assert {sample.metrics["rewards/Slotted"] for sample in samples} == {0.6}, "TRL still finds whose reward it is"
    assert all(sample.metrics.row for sample in samples), "the trainer can say what it did with the row"
    rows = load_run(db=db)
    for row in rows[rows.scored.notna()].to_dict("records"):
        assert (row["status"], row["stop_reason"]) == ("ok", "no_action"), "the parser finds none in the last words"
        assert row["rewards"] == {"talks": 3.0, "declines": None, "Slotted": 0.6}
        assert (row["rollout_reward"], row["metadata"]["env_reward"], row["handed"]) == (0.6, 0.6, "messages")
        reset, *_, last = row["actions"]
        assert (reset["turn"], reset["observation"]) == (0, " Begin.")
        assert (last["reward"], last["action"]["name"]) == (0.6, "get_reward")
        assert row["messages"][1]["content"] == "Guess. Begin."
        assert row["metadata"]["environment"] == "Slotted"
    assert not {"running"} & set(rows.status)


def loop_of(worker: Any) -> Any:
    return worker._loop_cls(
        **worker._loop_kwargs,
        rollout_buffer=worker.rollout_buffer,
        model_version_value=worker._model_version_value,
        heartbeat_value=worker._heartbeat_value,
        failed_event=worker._failed_event,
        exception_info_queue=worker._exception_info_queue,
        metrics_queue=worker.metrics_queue,
    )


def row_once(db: Path, holds: Callable[[dict[Any, Any]], bool]) -> dict[Any, Any]:
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        with suppress(LogsUIError):  # there is no run yet
            rows = load_run(db=db).to_dict("records")
            if rows and holds(rows[0]):
                return rows[0]
        time.sleep(0.1)
    raise AssertionError("it never became so")


def test_what_is_no_such_worker_is_refused(
    policy: tuple[Policy, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(TypeError, match="not a dict"):
        record_worker({})
    assert record_worker(None) is None
    worker = make_worker(*policy, None, monkeypatch)
    with pytest.raises(SettingsError, match="did you mean 'truncation'"):
        record_worker(worker, diagnosis=Settings(thresholds={"trunctaion": 1}), db=tmp_path / "a.db")
    with pytest.raises(TypeError, match=r"record_worker\(edit=...\) goes to the worker's process"):
        record_worker(worker, edit=lambda row: row, db=tmp_path / "a.db")
    worker._process = object()
    with pytest.raises(RuntimeError, match=r"before trainer\.train"):
        record_worker(worker, db=tmp_path / "a.db")
