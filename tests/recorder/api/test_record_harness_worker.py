"""record_worker() on the HarnessRolloutWorker of trl's AsyncGRPO, in both modes: TRL's own worker in its own process,
and OpenEnv's own adapter. Only the model's server is a stand-in.
"""

import functools
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from logs_ui.recorder import load_run, load_runs, record_worker
from tests.recorder.api import test_record_worker
from tests.recorder.api.test_record_worker import GROUP, Policy, worker_settings
from tests.support.late import accelerate, datasets, harness, tiny_model
from tests.support.training import tool

policy = test_record_worker.policy

ASKED = "Find my number."  # and not what the dataset asks


class Game:
    """One game; its number says how it goes wrong."""

    def __init__(self, number: int, tokenizer: Any) -> None:
        self.number, self.guesses, self.tokenizer = number, 0, tokenizer

    def initial_messages(self) -> list[Any]:
        return [{"role": "user", "content": ASKED}]

    def list_tools(self) -> list[Any]:
        return [tool("guess", "number", "integer")]

    def call_tool(self, name: str, arguments: dict[str, Any]) -> Any:
        self.guesses += arguments["number"]
        return harness.ToolResult("higher", done=False, metadata={"reward": 0.25})

    def verify(self, transcript: list[Any], final_state: Any = None) -> Any:
        if self.number == 2:
            raise ConnectionError("the verifier is gone")
        return harness.VerifyResult(self.guesses / 10, done=True, metrics={"guesses": self.guesses})

    def close(self) -> None:
        pass


class AgentsGame(Game):
    """An agent that plays by itself, and whose calls were captured."""

    def wait_for_completion(self, timeout_s: float | None = None) -> int:
        if self.number == 1:
            raise TimeoutError("the agent hangs")
        if self.number == 3:
            raise OSError("the sandbox is gone")
        return 0

    def fetch_training_trace(self) -> Any:
        asked: list[Any] = [{"role": "user", "content": ASKED}]
        turns: list[Any] = []
        for message in (tiny_model.call("guess", number=2), {"role": "assistant", "content": "I give up."}):
            ids = self.tokenizer.apply_chat_template(asked, add_generation_prompt=True, return_dict=False)
            whole = self.tokenizer.apply_chat_template([*asked, message], return_dict=False)
            sampled = whole[len(ids) : whole.index(self.tokenizer.eos_token_id, len(ids)) + 1]
            turns.append(
                harness.TrainingTurn(
                    node_id=str(len(turns)),
                    prompt_token_ids=ids,
                    completion_token_ids=sampled,
                    per_token_logps=[-0.5] * len(sampled),
                    loss_mask=[0] * len(ids) + [1] * len(sampled),
                    request={"model": "tiny", "messages": list(asked), "temperature": 0.7},
                    response={"id": "r", "choices": [{"index": 0, "message": message, "finish_reason": "stop"}]},
                )
            )
            asked += [message, {"role": "tool", "name": "guess", "content": "higher"}]
        return harness.TrainingTrace(turns=turns)


class Games:
    def __init__(self, kind: type[Game], tokenizer: Any, **_: Any) -> None:
        self.kind, self.tokenizer = kind, tokenizer

    def create(self, task: Any, seed: int | None = None, episode_id: str | None = None) -> Game:
        if seed == 4:
            raise RuntimeError("no sandbox is free")
        return self.kind(seed or 0, self.tokenizer)


def doubled(outcome: Any) -> float | None:
    return None if outcome.env_reward is None else 2 * outcome.env_reward


def trained(
    policy: tuple[Policy, str], kind: type[Game], db: Path, monkeypatch: pytest.MonkeyPatch, **loop: Any
) -> tuple[dict[int, list[Any]], dict[int, list[Any]]]:
    """Run a recorded worker; return its samples and its rows by group."""
    monkeypatch.setattr("trl.experimental.async_grpo.async_rollout_worker.is_vllm_available", lambda: True)
    accelerate.PartialState(cpu=True)  # as a trainer makes it
    model, url = policy
    name = "trl.experimental.async_grpo.openenv_harness"
    worker_module = pytest.importorskip(name, reason="this release of TRL has no HarnessRolloutWorker")
    worker = worker_module.HarnessRolloutWorker(
        dataset=datasets.Dataset.from_list([{"prompt": [{"role": "user", "content": "Guess."}]}]),
        reward_funcs=[],
        queue_maxsize=0,
        harness_session_factory=functools.partial(Games, kind, model.tokenizer),
        **worker_settings(model, url),
        **loop,
    )
    model.worker = worker
    record_worker(worker, eval_name="harness", db=db)
    worker.start()
    samples: dict[int, list[Any]] = {}
    try:
        while len(samples.get(5, [])) < GROUP or max(samples) == 5:  # the next may end before
            sample = worker.rollout_buffer.get(timeout=120)
            samples.setdefault(sample.group_id, []).append(sample)
            worker.check_health(60)
    finally:
        worker.stop()
    rows: dict[int, list[Any]] = {}
    for row in load_run(db=db).to_dict("records"):
        rows.setdefault(int(row["group"].rsplit("/", 1)[1]), []).append(row)
    return samples, rows


def check(rows: list[Any], samples: list[Any]) -> None:
    assert len(rows) == len(samples) == GROUP
    for row in rows:
        whole = np.concatenate([row["prompt_ids"], row["completion_ids"]])
        sample = next(sample for sample in samples if np.array_equal(sample.input_ids, whole))
        start = len(row["prompt_ids"])
        np.testing.assert_array_equal(row["mask"], sample.completion_mask[start:])
        np.testing.assert_allclose(row["logprobs"], sample.old_log_probs[start:], rtol=2**-11)
        assert (row["status"], row["advantage"]) == ("ok", sample.advantage)
        asked = next(message["content"] for message in row["messages"] if message["role"] == "user")
        assert (asked, row["sent_prompt"]) == (ASKED, "other")
        assert row["metadata"]["dataset_prompt"] == [{"role": "user", "content": "Guess."}]
        assert row["reward"] == pytest.approx(sample.metrics["reward"])
        assert row["rewards"] == {"harness_reward": pytest.approx(sample.metrics["rewards/harness_reward"])}


@pytest.mark.exhaustive
def test_an_adapters_turns_tools_and_verdict_are_recorded(
    policy: tuple[Policy, str], db: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    samples, rows = trained(policy, Game, db, monkeypatch, harness_adapter=harness.MCPHarnessAdapter())
    (run,) = load_runs(db=db).to_dict("records")
    assert (run["state"], run["unattributed_calls"], run["recorder_errors"]) == ("finished", 0, 0)
    for group in (0, 1, 3, 5):
        check(rows[group], samples[group])
    for row in rows[0]:
        roles = [message["role"] for message in row["messages"]]
        assert roles == ["system", "user", *["assistant", "tool"] * 3, "assistant"], "the first has the tools"
        assert (row["turns"], row["tool_calls"]) == (4, 3)
        tools = [entry["action"] for entry in row["actions"] if entry["text"] and entry["action"]]
        assert tools == [{"name": "guess", "arguments": {"number": number}} for number in (1, 2, 3)]
        verdict = row["actions"][-1]
        assert (verdict["reward"], verdict["done"], verdict["metadata"]) == (0.6, True, {"guesses": 6})
        assert (row["metadata"]["env_reward"], row["rollout_reward"], row["reward"]) == (0.6, 0.6, 0.6)
        assert row["metadata"]["notes"]["harness"]["tool_calls"] == 3
        assert row["metadata"]["notes"]["policy"]["turns"][0] == [0, 0] or row["metadata"]["notes"]["policy"]["turns"]
    for group, error in ((2, "ConnectionError: the verifier is gone"), (4, "RuntimeError: no sandbox is free")):
        assert group not in samples
        for row in rows[group]:
            assert (row["status"], row["stop_reason"], row["error"]) == ("error", "environment_error", error)
            assert (row["reward"] is None or np.isnan(row["reward"]), row["turns"]) == (True, 4 if group == 2 else None)


@pytest.mark.exhaustive
def test_the_turns_of_an_agent_that_owns_its_loop_are_recorded(
    policy: tuple[Policy, str], db: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    samples, rows = trained(policy, AgentsGame, db, monkeypatch, rollout_reward_fn=doubled)
    (run,) = load_runs(db=db).to_dict("records")
    assert (run["state"], run["unattributed_calls"], run["recorder_errors"]) == ("finished", 0, 0)
    for group in (0, 1, 5):
        check(rows[group], samples[group])
        for row in rows[group]:
            assert [message["role"] for message in row["messages"]] == ["user", "assistant", "tool", "assistant"]
            assert row["stop_reason"] == ("timeout" if group == 1 else "stop")
            assert (row["turns"], row["sampling"]["temperature"]) == (2, 0.7)
    for group, error, reason in (
        (2, "ConnectionError: the verifier is gone", "environment_error"),
        (3, "OSError: the sandbox is gone", "exception"),
        (4, "RuntimeError: no sandbox is free", "environment_error"),
    ):
        assert group not in samples
        assert {(row["status"], row["error"], row["stop_reason"]) for row in rows[group]} == {("error", error, reason)}
