"""record() round OpenEnv's own rollout functions: its harness, a real OpenEnv server, a real trainer."""

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from logs_ui.recorder import load_run, record
from tests.support.late import guess_env, guess_rollout, harness, llm_client
from tests.support.training import GROUP, ROWS, game_of, generate, make_trainer, tool

pytestmark = pytest.mark.versions


class Games:
    """A game of its own for each prompt, through OpenEnv's adapter for clients."""

    def __init__(self, url: str) -> None:
        self.url = url

    def create(self, task: Any, seed: int | None = None, episode_id: str | None = None) -> Any:
        return harness.StepEnvSessionAdapter(
            guess_env.GuessEnv(base_url=self.url),
            task=task,
            tool_specs=[tool("guess", "number", "integer")],
            action_builder=lambda _, arguments: guess_env.GuessAction(guess=arguments["number"]),
            initial_messages_builder=lambda _, messages: [dict(message) for message in messages],
            tool_result_builder=heard,
            verify_builder=verified,
            reset_kwargs=game_of(task),
        )


class CheckedGames(Games):
    """As a user may have it: what it overrides is called."""

    def create(self, task: Any, seed: int | None = None, episode_id: str | None = None) -> Any:
        return super().create(task, seed, episode_id)


def heard(name: str, arguments: dict[str, Any], result: Any, state: Any) -> Any:
    told = None if result.done else guess_rollout.feedback(result.observation)
    return harness.ToolResult(told, done=result.done, metadata={"reward": result.reward}, error=None)


def verified(messages: list[dict[str, Any]], final: Any, last: Any, state: Any) -> Any:
    tries = sum(message["role"] == "tool" for message in messages)
    return harness.VerifyResult(0.0 if last is None else last.reward, metrics={"tries": tries})


def playing(seen: list[Any]) -> Callable[[Any, Any], Callable[..., Any]]:
    """Builds model steps; `seen` collects, a list for each session, the context, the answer and the text of each."""

    def build(trainer: Any, session: Any) -> Callable[..., Any]:
        tokenizer = trainer.processing_class
        steps: list[Any] = []
        seen.append(steps)

        def step(messages: Any, tools: Any, sampling: Any) -> Any:
            context = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
            (answer,) = generate(trainer, [context])
            steps.append((context, answer.ids, answer.text))
            guess = guess_rollout.parse_guess(answer.text)
            calls = [] if guess is None else [llm_client.ToolCall(f"call-{len(steps)}", "guess", {"number": guess})]
            said = llm_client.LLMResponse(answer.text, calls)
            return harness.ModelStepResult(said, context, answer.ids, answer.logprobs)

        return step

    return build


@pytest.mark.exhaustive
@pytest.mark.parametrize(("factory", "reward_key"), [(CheckedGames, "score"), (Games, "env_reward")])
def test_turns_tools_metrics_and_reward_are_on_their_rows(
    game_url: str, db: Path, tmp_path: Path, factory: type[Games], reward_key: str
) -> None:
    seen: list[Any] = []
    returned: list[dict[str, Any]] = []
    rollout_func = harness.build_harness_rollout_func(
        session_factory=factory(game_url),
        harness_adapter=harness.MCPHarnessAdapter(),
        model_step_builder=playing(seen),
        limits=harness.HarnessRunLimits(max_turns=guess_env.TURNS),
        reward_key=reward_key,
    )

    @functools.wraps(rollout_func)
    def decorated(*args: Any) -> Any:
        return rollout_func(*args)

    recorded = record(rollout_func if factory is Games else decorated, eval_name="harness", db=db)

    def noting(prompts: Any, trainer: Any) -> Any:
        returned.append(recorded(prompts, trainer))
        return returned[-1]

    def score(**columns: Any) -> list[float]:
        rewards: list[float] = columns[reward_key]
        return rewards

    make_trainer(noting, tmp_path / "out", reward_funcs=[score], warm=200).train()
    rows = load_run(db=db).to_dict("records")
    assert len(rows) == 2 * ROWS == len(seen)
    assert [set(output) for output in returned] == [
        {"prompt_ids", "completion_ids", "logprobs", reward_key, "verify_metrics"}
    ] * 2, "what the function returns is passed on as it is"
    rewards = [reward for output in returned for reward in output[reward_key]]
    metrics = [metric for output in returned for metric in output["verify_metrics"]]
    joined = []
    for i, (row, steps) in enumerate(zip(rows, seen, strict=True)):
        assert row["generation"] == i % GROUP
        assert row["metadata"]["attribution"] == "scope"
        assert row["turns"] == len(steps)
        turns = [action for action in row["actions"] if action["turn"] > 0]
        assert [action["text"] for action in turns] == [text for *_, text in steps]
        guesses = [guess_rollout.parse_guess(text) for *_, text in steps]
        assert [action["action"] for action in turns] == [
            None if guess is None else {"name": "guess", "arguments": {"number": guess}} for guess in guesses
        ]
        for action in turns:
            if action["action"] is not None:
                (step,) = action["metadata"]["calls"]
                assert step["action"]["guess"] == action["action"]["arguments"]["number"]
                assert step["reward"] == action["reward"] == action["metadata"]["reward"]
                told = None if action["done"] else feedback_of(step["observation"])
                assert action["observation"] == told
        assert row["actions"][0]["metadata"]["reset"]["task"] == row["task"]
        assert row["metadata"]["verify_metrics"] == metrics[i]
        assert row["rollout_reward"] == rewards[i]
        assert row["rewards"]["score"] == pytest.approx(rewards[i])
        assert row["metadata"]["notes"]["harness"] == {
            "turns": len(steps),
            "tool_calls": sum(guess is not None for guess in guesses),
        }
        assert row["tool_calls"] == sum(guess is not None for guess in guesses)
        np.testing.assert_array_equal(row["prompt_ids"], [token for context, *_ in steps for token in context])
        assert ("prompt_ids" in row["metadata"]["notes"]) == (len(steps) > 1)
        joined.append(len(steps) > 1)
    assert set(joined) == {True, False}, "some rows have one turn, some more"


def feedback_of(observation: dict[str, Any]) -> str:
    return f"{observation['hint']}. {observation['turns_left']} left, {observation['low']} to {observation['high']}"


class Broken:
    """A session that is no client of OpenEnv's, and whose tool fails twice: it says so, then it raises."""

    def __init__(self, messages: Any) -> None:
        self.messages = messages
        self.calls = 0

    def initial_messages(self) -> Any:
        return [dict(message) for message in self.messages]

    def list_tools(self) -> Any:
        return [tool("guess", "number", "integer")]

    def call_tool(self, name: str, arguments: dict[str, Any]) -> Any:
        self.calls += 1
        if self.calls == 2:
            raise OSError("the table broke")
        return harness.ToolResult({"reward": 0.25}, error="not your turn")

    def verify(self, transcript: Any, final_state: Any = None) -> Any:
        return harness.VerifyResult()

    def close(self) -> None:
        """Nothing to close."""


class Tables:
    def create(self, task: Any, seed: int | None = None, episode_id: str | None = None) -> Any:
        return Broken(task)


@pytest.mark.exhaustive
def test_tools_that_fail_are_on_the_row_that_they_failed_in(db: Path, tmp_path: Path) -> None:

    def build(trainer: Any, session: Any) -> Callable[..., Any]:
        response = llm_client.LLMResponse("", [llm_client.ToolCall("1", "guess", {"number": 7})])
        return lambda *_: harness.ModelStepResult(response, [1], [2], [0.0])

    rollout_func = record(
        harness.build_harness_rollout_func(
            session_factory=Tables(), harness_adapter=harness.MCPHarnessAdapter(), model_step_builder=build
        ),
        db=db,
    )
    trainer = make_trainer(rollout_func, tmp_path / "out", warm=0)
    with pytest.raises(OSError, match="the table broke"):
        trainer.train()
    rows = load_run(db=db)
    first = rows.actions[0]
    assert [action["action"] for action in first] == [{"name": "guess", "arguments": {"number": 7}}] * 2
    assert first[0]["reward"] == 0.25
    assert first[0]["metadata"]["error"] == "not your turn"
    assert first[0]["error"] is None
    assert first[1]["error"] == "OSError: the table broke"
    assert all(len(actions) == 0 for actions in rows.actions[1:])
    assert rows.stop_reason[0] == "environment_error"


@pytest.mark.exhaustive
def test_a_function_of_ones_own_may_use_the_same_parts_in_any_order(game_url: str, db: Path, tmp_path: Path) -> None:
    """Rows are told by the sessions' order in the harness's own function alone."""
    build, adapter, games = playing([]), harness.MCPHarnessAdapter(), Games(game_url)

    @record(db=db)
    def backwards(prompts: Any, trainer: Any) -> Any:
        rows = []
        for prompt in reversed(prompts):
            session = games.create(prompt)
            result = adapter.run_white_box(build(trainer, session), session, harness.HarnessRunLimits(max_turns=1))
            rows.append((result.prompt_ids, result.completion_ids, result.logprobs))
            session.close()
        columns = zip(*reversed(rows), strict=True)
        return dict(zip(("prompt_ids", "completion_ids", "logprobs"), map(list, columns), strict=True))

    make_trainer(backwards, tmp_path / "out", reward_funcs=[lambda prompts, **_: [0.0] * len(prompts)]).train()
    rows = load_run(db=db).to_dict("records")
    assert {row["metadata"]["attribution"] for row in rows}.isdisjoint({"scope"})
    for row in rows:
        assert row["actions"][0]["metadata"]["reset"]["task"] == row["task"]
