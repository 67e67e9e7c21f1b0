"""`openenv_rollout_func`: real OpenEnv servers, a model that is told what to say, and real trainings."""

import asyncio
import contextlib
import logging
import math
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import is_dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest

from logs_ui.recorder import flush, load_run, load_runs, record
from logs_ui.recorder.snapshot import snapshot
from logs_ui.rollout import Sampling, environment_reward, harness_rollout_func, openenv_rollout_func, text_rollout_func
from logs_ui.rollout.play.batch import play_rows, run
from tests.support.exhaustive import cases
from tests.support.late import datasets, guess_env, guess_rollout, openenv
from tests.support.rollouts import Moody, Scripted, a_trainer, moody_server, prompts, refusing, script, served
from tests.support.training import guess_server, make_trainer


def word(text: str) -> dict[str, str] | None:
    """Any text but "?" is an action."""
    return None if text == "?" else {"message": text}


@pytest.fixture(autouse=True)
def _forget() -> None:
    Moody.played.clear()
    Moody.begun.clear()


def play(
    url: str, says: Callable[[int, int], str], rows: int = 4, *, budget: int = 200, **settings: Any
) -> tuple[dict[str, Any], Scripted]:
    """What the trainer gets of one batch, and the model."""
    model = Scripted(says)
    with playing(model, budget=budget, **{"base_url": url, "seed": None, **settings}) as batch:
        return batch(rows), model


@contextlib.contextmanager
def playing(model: Scripted, *, budget: int = 200, **settings: Any) -> Iterator[Callable[[int], dict[str, Any]]]:
    """A function that plays a batch of so many rows."""
    rollouts = openenv_rollout_func(model=model, **{"act": word, **settings})
    yield lambda rows: rollouts(prompts(rows), a_trainer(model, budget=budget))
    rollouts.close()


def test_the_trainer_gets_what_the_model_saw_and_sampled(moody: str) -> None:
    output, model = play(moody, lambda row, turn: "stop" if turn == row else "guess", rows=4)
    for row in range(4):
        assert output["prompt_ids"][row] + output["completion_ids"][row] == model.sequences[row]
        assert len(output["completion_ids"][row]) == len(output["env_mask"][row]) == len(output["logprobs"][row])
        assert output["step_rewards"][row] == [1.0] * (row + 1)
        sampled = [p for p, mask in zip(output["logprobs"][row], output["env_mask"][row], strict=True) if mask]
        assert sampled == [-0.5] * 2 * (row + 1)
        assert 0 in output["env_mask"][row] or row == 0
    assert output["env_reward"] == [1.0, 2.0, 3.0, 4.0] == environment_reward(**output)
    assert output["turns"] == [1, 2, 3, 4]
    assert output["error"] == [None] * 4
    assert "task" not in output


@pytest.mark.timeout(60)
def test_fewer_sessions_than_rows_are_no_deadlock_with_a_model_that_batches(moody: str) -> None:
    output, model = play(moody, lambda row, turn: "stop" if turn == row % 3 else "guess", rows=7, concurrency=2)
    assert output["turns"] == [1, 2, 3, 1, 2, 3, 1]
    assert max(map(len, model.batches)) == 2
    assert output["error"] == [None] * 7


def test_the_resets_observation_follows_the_prompt(moody: str) -> None:
    output, model = play(moody, script("stop"), rows=1, tasks=["easy"], seed=None)
    given = [{"role": "user", "content": "Find number 1\n\neasy None"}]
    expected = model.tokenizer.apply_chat_template(given, add_generation_prompt=True, return_dict=False)
    assert output["prompt_ids"] == [expected]
    assert output["task"] == ["easy"]


def test_observe_says_what_the_model_is_told(moody: str) -> None:
    heard: list[Any] = []

    def observe(observation: Any) -> list[dict[str, str]] | None:
        heard.append(observation["message"])
        return None if len(heard) == 1 else [{"role": "user", "content": "higher"}]

    output, model = play(moody, script("guess", "stop"), rows=1, observe=observe)
    assert heard == ["calm None", "heard guess"]
    (prompt,) = output["prompt_ids"]
    assert "Find number 1" in model.tokenizer.decode(prompt)
    assert "calm" not in model.tokenizer.decode(prompt)
    assert "higher" in model.tokenizer.decode(output["completion_ids"][0])


RETRY = {"on_unparsable": "retry", "unparsable_message": "I do not know", "max_turns": 3}


@pytest.mark.parametrize(
    ("says", "settings", "played"),
    [
        (("guess", "?"), {}, ["guess"]),
        (("?", "?", "stop"), RETRY, ["stop"]),
        (("?", "stop"), {"on_unparsable": "noop", "noop_action": {"message": "wait"}}, ["wait", "stop"]),
        (("guess",), {"act": lambda text: {"message": int(text)}}, []),
        (("guess",) * 3, {"max_turns": 3}, ["guess"] * 3),
    ],
    ids=["ends the episode", "is asked again", "is some other action", "of a parser that raises", "max_turns"],
)
def test_an_answer_without_action_is_what_the_user_says_and_turns_have_a_limit(
    moody: str, says: tuple[str, ...], settings: dict[str, Any], played: list[str]
) -> None:
    output, model = play(moody, script(*says), rows=1, **settings)
    assert [message for _, message in Moody.played] == played
    assert (output["turns"], output["error"]) == ([len(says)], [None])
    assert (output["step_rewards"], output["env_reward"]) == ([[1.0] * len(played)], [float(len(played))])
    assert output["env_mask"][0][-1] == 1, "nothing is inserted that nobody would read"
    told = model.tokenizer.decode(output["completion_ids"][0])
    assert told.count("I do not know") == (2 if settings is RETRY else 0)


@pytest.mark.parametrize("budget", cases([1, 22, 25, *range(4, 40, 3)], 3))
def test_the_budget_is_never_exceeded(moody: str, budget: int) -> None:
    for settings in ({"max_completion_tokens": budget}, {"budget": budget}):
        output, model = play(moody, lambda *_: "guess 1 2 3", rows=2, max_turns=50, **settings)
        assert all(1 <= len(ids) <= budget for ids in output["completion_ids"])
        assert max(model.limits) <= budget
        assert [mask[-1] for mask in output["env_mask"]] == [1, 1]


@pytest.mark.parametrize(
    ("sampling", "expected"),
    [
        ({"max_tokens": 5, "top_p": 0.5, "stop": "END"}, Sampling(5, top_p=0.5, stop=("END",))),
        ({"max_tokens": 9, "stop": ["x", "y"]}, Sampling(9, stop=("x", "y"))),
        (Sampling(9, stop=["x", "y"]), Sampling(9, stop=("x", "y"))),  # type: ignore[arg-type]
    ],
)
def test_sampling_is_passed_on_and_a_turn_has_its_own_limit(moody: str, sampling: Any, expected: Sampling) -> None:
    _, model = play(moody, script("guess", "stop"), rows=1, sampling=sampling)
    assert model.samplings == [expected] * 2
    assert isinstance(hash(model.samplings[0]), int)


def test_an_episodes_reward_is_the_users_choice(moody: str) -> None:
    rewards: dict[Any, float | None] = {"sum": 2.0, "last": 1.0, len: 2, (lambda _: None): None}
    for reward, expected in rewards.items():
        assert play(moody, script("guess", "stop"), rows=1, reward=reward)[0]["env_reward"] == [expected]


def test_log_probs_are_none_where_a_row_has_none(moody: str) -> None:
    class WithoutLogProbs(Scripted):
        async def answer(self, row: int, *args: Any) -> Any:
            answer = await super().answer(row, *args)
            return answer if row else type(answer)(answer.ids, None, answer.finish, answer.text)

    with playing(WithoutLogProbs(script("stop")), base_url=moody) as batch:
        assert batch(2)["logprobs"] is None


def test_sessions_are_kept_from_batch_to_batch(moody: str) -> None:
    made = []

    def client() -> Any:
        made.append(openenv.GenericEnvClient(base_url=moody))
        return made[-1]

    with playing(Scripted(script("stop")), environment=client) as batch:
        for _ in range(3):
            assert batch(4)["env_reward"] == [1.0] * 4
    assert len(made) == 4


def test_a_session_that_failed_is_not_used_again() -> None:
    made: list[Any] = []

    class Flaky:
        def __init__(self) -> None:
            made.append(self)

        def reset(self, **_: Any) -> Any:
            return SimpleNamespace(observation="begin", reward=None, done=False)

        def step(self, action: Any) -> Any:
            if self is made[0]:
                raise OSError("broken")
            return SimpleNamespace(observation="end", reward=1.0, done=True)

    with playing(Scripted(script("stop")), environment=Flaky) as batch:
        assert [batch(2)["env_reward"].count(1.0) for _ in range(3)] == [1, 2, 2]
    assert len(made) == 3


def test_a_model_has_rows_until_the_batch_is_through() -> None:
    """One that waits for other ranks ends with its last row."""

    class Watched(Scripted):
        emptied = 0

        async def leave(self, row: int) -> None:
            await super().leave(row)
            self.emptied += not self._live

    async def play_one(row: int) -> int:
        await asyncio.sleep(0)
        return row

    model = Watched(script())
    assert run(play_rows(5, model, 1, play_one)) == [0, 1, 2, 3, 4]
    assert model.emptied == 1


@pytest.mark.parametrize("task", ["hangs at step", "fails at step"])
def test_an_environment_that_breaks_costs_its_own_row(moody: str, task: str) -> None:
    output, _ = play(
        moody, script("guess", "stop"), rows=3, tasks=["calm", task, "calm"], request_timeout=2.0, max_turns=2
    )
    assert output["env_reward"] == [2.0, None, 2.0]
    assert [error is None for error in output["error"]] == [True, False, True]
    assert output["error"][1].startswith("SessionError: The environment")
    assert Moody.played.count((task, "guess")) == 1  # an action is never applied twice
    assert output["completion_ids"][1]  # what it had come to
    assert len(output["env_mask"][1]) == len(output["completion_ids"][1]) == len(output["logprobs"][1])


@pytest.mark.parametrize("task", ["hangs at reset", "fails at reset"])
def test_a_row_that_never_began_has_one_token_that_is_not_trained_on(moody: str, task: str) -> None:
    output, model = play(moody, script("stop"), rows=2, tasks=["calm", task], request_timeout=2)
    assert output["env_reward"] == [1.0, None]
    assert output["completion_ids"][1] == [model.tokenizer.eos_token_id]
    assert (output["env_mask"][1], output["logprobs"][1]) == ([0], [0.0])
    assert output["prompt_ids"][1]
    assert Moody.begun[task] == 2  # a fresh session was tried


def test_a_reset_that_hangs_once_is_made_again_in_a_fresh_session(moody: str) -> None:
    output, _ = play(moody, script("stop"), rows=2, tasks=["calm", "hangs once at reset"], request_timeout=2)
    assert output["env_reward"] == [1.0, 1.0]
    assert output["error"] == [None, None]


def test_a_server_that_comes_back_is_found_again() -> None:
    """The kept sessions are dead then, all of them."""
    server = moody_server()
    url = server.__enter__()
    with playing(Scripted(script("guess", "stop")), base_url=url) as batch:
        assert batch(4)["env_reward"] == [2.0] * 4
        server.__exit__(None, None, None)
        assert batch(4)["env_reward"] == [None] * 4
        with moody_server(port=int(url.rpartition(":")[2])):
            assert batch(4)["env_reward"] == [2.0] * 4


def test_an_action_never_reaches_an_environment_that_was_not_reset() -> None:
    """A client of openenv connects anew where the connection was lost, to an environment that knows nothing."""
    with contextlib.ExitStack() as first, contextlib.ExitStack() as second:
        url = first.enter_context(moody_server())

        def act(text: str) -> dict[str, str]:
            if text == "stop":
                first.close()
                second.enter_context(moody_server(port=int(url.rpartition(":")[2])))
            return {"message": text}

        output, _ = play(url, script("guess", "stop"), rows=1, act=act)
        assert Moody.played == []
        assert (output["env_reward"], output["step_rewards"]) == ([None], [[1.0]])


def test_a_training_in_which_no_rollout_can_be_made_ends() -> None:
    model = Scripted(script("stop"))
    with moody_server() as url:
        rollouts = openenv_rollout_func(base_url=url, model=model, act=word)
        rollouts(prompts(2), a_trainer(model))
    for _ in range(2):
        rollouts(prompts(2), a_trainer(model))
    with pytest.raises(RuntimeError, match="2 of 2 rollouts failed"):
        rollouts(prompts(2), a_trainer(model))
    rollouts.close()


def test_a_full_server_is_told_before_the_model_is_asked() -> None:
    model = Scripted(script("stop"))
    with moody_server(sessions=2) as url:
        full = r"took 2 of 4 sessions.*max_concurrent_envs.*concurrency"
        with playing(model, base_url=url) as batch, pytest.raises(RuntimeError, match=full) as raised:
            batch(4)
        assert "\n" not in str(raised.value)
        assert model.batches == []
        with playing(model, base_url=url, concurrency=2) as batch:
            assert batch(4)["env_reward"] == [1.0] * 4


def test_a_server_that_is_not_there_is_told_before_the_model_is_asked() -> None:
    model = Scripted(script("stop"))
    with (
        playing(model, base_url="http://127.0.0.1:9") as batch,
        pytest.raises(RuntimeError, match=r"reset.* failed: ConnectionError: Failed to connect to ws://127.0.0.1:9"),
    ):
        batch(2)
    assert model.batches == []


def test_the_model_is_tried_before_the_environment(moody: str) -> None:
    class Broken(Scripted):
        async def preflight(self, tokenizer: Any, sampling: Any) -> None:
            assert (tokenizer, sampling.max_tokens) == (self.tokenizer, 200)
            raise ConnectionError("no model there")

    with (
        playing(Broken(script("stop")), base_url=moody) as batch,
        pytest.raises(ConnectionError, match="no model there"),
    ):
        batch(2)
    assert not Moody.begun


def test_a_notebooks_batch_can_be_played_while_the_interpreter_ends() -> None:
    code = """
import asyncio, threading, time
from logs_ui.rollout.play.batch import run
async def one(): return "played"
async def notebook(): print(run(one()))
def late(): time.sleep(1); asyncio.run(notebook())
threading.Thread(target=late).start()
"""
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ended.stdout == "played\n", ended.stderr


def test_nothing_is_left_behind_when_it_is_forgotten(moody: str) -> None:
    model = Scripted(script("stop"))
    rollouts = openenv_rollout_func(base_url=moody, model=model, act=word)
    rollouts(prompts(2), a_trainer(model))
    assert any(thread.name == "logs-ui-sessions" for thread in threading.enumerate())
    del rollouts
    assert not any(thread.name == "logs-ui-sessions" for thread in threading.enumerate())


SERVER = {"base_url": "http://127.0.0.1:1", "act": word}
IMAGE = {"docker_image": "x", "act": word}


def seeds_of(url: str, rank: int, step: int = 0) -> list[int | None]:
    """Of two batches of three rows with two turns each, as the model is given them."""
    model = Scripted(script("go", "stop"))
    rollouts = openenv_rollout_func(base_url=url, model=model, act=word, sampling={"seed": 3})
    trainer = a_trainer(model, generations=3)
    trainer.accelerator = SimpleNamespace(num_processes=2, process_index=rank)
    trainer.state.global_step = step
    for _ in range(2):
        rollouts(prompts(3), trainer)
    rollouts.close()
    return [sampling.seed for sampling in model.samplings]


def test_a_seed_gives_each_answer_one_of_its_own_again(moody: str) -> None:
    seeds = [seeds_of(moody, rank, step) for rank in (0, 1) for step in (0, 5)]
    every = [seed for of_rank in seeds for seed in of_rank]
    assert len(set(every)) == len(every) == 4 * 2 * 3 * 2
    assert all(seed is not None and 0 <= seed < 2**31 for seed in every)
    assert seeds_of(moody, 1, 5) == seeds[3]


def test_what_an_environment_says_does_not_reach_a_terminal_raw(caplog: pytest.LogCaptureFixture) -> None:
    class Hostile:
        def reset(self, **_: Any) -> Any:
            return SimpleNamespace(observation="hello", reward=None, done=False)

        def step(self, action: str) -> Any:
            if action == "bad":
                raise RuntimeError("\x1b]0;owned\x07\x1b[2J \u202ebye\n \x9b2J naïve")
            return SimpleNamespace(observation="more", reward=1.0, done=True)

    model = Scripted(lambda row, _: "bad" if row else "ok")
    with caplog.at_level(logging.WARNING), playing(model, environment=Hostile, act=str) as batch:
        output = batch(2)
    assert output["error"][0] is None
    for said in (output["error"][1], caplog.messages[-1]):
        assert said.isprintable()
        assert "naïve" in said


class Started:
    """As much of a provider as can be seen before it starts anything."""

    def start_container(self) -> None:
        raise NotImplementedError


async def later(said: Any) -> Any:
    raise NotImplementedError


class Later:
    async def __call__(self, said: Any) -> Any:
        raise NotImplementedError


class Client:
    """A class of OpenEnv's clients, as it is told from others."""

    from_docker_image = None


WRONG: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"act": word}, ValueError, "needs a server: give base_url"),
    ({"act": word, "environment": Client}, ValueError, "Client needs a server"),
    ({**SERVER, "act": 1}, TypeError, "act must be a function"),
    ({**SERVER, "observe": "x"}, TypeError, "observe must be a function"),
    ({**SERVER, "docker_image": "x"}, ValueError, "one of the two"),
    ({**SERVER, "base_url": "localhost:8000"}, ValueError, "base_url must begin with http://"),
    ({**SERVER, "environment": "org/name"}, ValueError, "looked up and started"),
    ({**SERVER, "environment": lambda: None}, ValueError, "base_url: are for an environment that is connected"),
    ({"act": word, "environment": 5}, TypeError, "not an instance of int"),
    ({**SERVER, "environment": Client()}, TypeError, "an instance of Client"),
    ({**SERVER, "port": 80}, ValueError, "port: are for an environment that is started"),
    ({**SERVER, "environment_variables": {"A": "1"}}, ValueError, "environment_variables"),
    ({**IMAGE, "port": 0}, ValueError, "port must be a number"),
    ({**IMAGE, "port": 80, "tasks": ["a", "b"], "task_var": "T"}, ValueError, "cannot share one port"),
    ({**IMAGE, "provider": Started(), "tasks": ["a", "b"], "task_var": "T"}, ValueError, "provider as a class"),
    ({**SERVER, "request_timeout": 0}, ValueError, "request_timeout"),
    ({**SERVER, "concurrency": 0}, ValueError, "concurrency"),
    ({**SERVER, "max_turns": None}, ValueError, "max_turns"),
    ({**SERVER, "max_completion_tokens": 1.5}, ValueError, "max_completion_tokens"),
    ({**SERVER, "reward": "mean"}, ValueError, "reward must be 'sum'"),
    ({**SERVER, "on_unparsable": "ignore"}, ValueError, "'fail', 'retry' or 'noop'"),
    ({**SERVER, "on_unparsable": "noop"}, ValueError, "needs noop_action"),
    ({**SERVER, "noop_action": 1}, ValueError, "noop_action is for"),
    ({**SERVER, "unparsable_message": "x"}, ValueError, "unparsable_message is for"),
    ({**SERVER, "tasks": "easy"}, TypeError, "list of names"),
    ({**SERVER, "task_var": "task"}, ValueError, "there are none"),
    ({**SERVER, "model": "gpt"}, ValueError, "model: only for a model's server"),
    ({**SERVER, "api_key": "x"}, ValueError, "api_key: only"),
    ({**SERVER, "model_url": "http://127.0.0.1:1/v1"}, ValueError, "model_url needs model"),
    ({**SERVER, "model_url": "127.0.0.1", "model": "x"}, ValueError, "model_url must begin with"),
    ({**SERVER, "model": object()}, TypeError, "model must be a name"),
    ({**SERVER, "sampling": 0.5}, TypeError, "a Sampling or its fields"),
    ({**SERVER, "sampling": {"heat": 1}}, ValueError, "sampling has no heat; it has max_tokens"),
    ({**SERVER, "sampling": {"seed": 1}}, ValueError, "sampling.seed is for a model's server"),
    ({**SERVER, "sampling": {"seed": 1.5}}, ValueError, "sampling.seed must be a whole number, not 1.5"),
    ({**SERVER, "sampling": {"max_tokens": 0}}, ValueError, "sampling.max_tokens must be a whole number from 1, not 0"),
    ({**SERVER, "sampling": Sampling(0)}, ValueError, "sampling.max_tokens must be a whole number from 1, not 0"),
    ({**SERVER, "sampling": {"max_tokens": None}}, ValueError, "sampling.max_tokens must be a whole number"),
    ({**SERVER, "sampling": {"max_tokens": 2.5}}, ValueError, "sampling.max_tokens must be a whole number"),
    ({**SERVER, "sampling": {"max_tokens": True}}, ValueError, "sampling.max_tokens must be a whole number"),
    (
        {**SERVER, "sampling": {"temperature": "hot"}},
        ValueError,
        "sampling.temperature must be a number from 0, not 'hot'",
    ),
    ({**SERVER, "sampling": {"temperature": -1}}, ValueError, "sampling.temperature must be a number from 0"),
    ({**SERVER, "sampling": {"temperature": math.nan}}, ValueError, "sampling.temperature must be a number from 0"),
    ({**SERVER, "sampling": {"top_p": 7}}, ValueError, "sampling.top_p must be a number from 0 to 1"),
    ({**SERVER, "sampling": {"top_k": -2}}, ValueError, "sampling.top_k must be a whole number from 1, or 0 or -1"),
    ({**SERVER, "sampling": {"min_p": 2}}, ValueError, "sampling.min_p must be a number from 0 to 1"),
    (
        {**SERVER, "sampling": {"repetition_penalty": 0}},
        ValueError,
        "sampling.repetition_penalty must be a number above 0",
    ),
    ({**SERVER, "sampling": {"stop": 5}}, TypeError, "sampling.stop must be a list of non-empty strings"),
    ({**SERVER, "sampling": {"stop": ["x", 5]}}, TypeError, "sampling.stop must be a list of non-empty strings"),
    ({**SERVER, "sampling": {"stop": [""]}}, TypeError, "list of non-empty strings"),
    ({**SERVER, "seed": "abc"}, ValueError, "seed must be a whole number or None, not 'abc'"),
    ({**SERVER, "seed": 1.5}, ValueError, "seed must be a whole number or None, not 1.5"),
    ({**SERVER, "tasks": None}, TypeError, "tasks must be a list of names, not None"),
    ({**SERVER, "tasks": 5}, TypeError, "tasks must be a list of names, not 5"),
    ({**SERVER, "tasks": [""]}, TypeError, "tasks must be a list of names"),
    ({**SERVER, "headers": "x"}, TypeError, "headers must be a dict of strings, not 'x'"),
    ({**IMAGE, "environment_variables": "A=1"}, TypeError, "environment_variables must be a dict"),
    ({**IMAGE, "environment_variables": {"A": 1}}, TypeError, "the value of 'A' is int"),
    ({**IMAGE, "provider": "docker"}, TypeError, "provider must be one of openenv's"),
    ({**SERVER, "act": later}, TypeError, "act must be a plain function"),
    ({**SERVER, "act": Later()}, TypeError, "act must be a plain function"),
    ({**SERVER, "observe": later}, TypeError, "observe must be a plain function"),
    ({**SERVER, "reward": later}, TypeError, "reward must be a plain function"),
    ({**SERVER, "on_unparsable": "retry", "unparsable_message": 5}, TypeError, "unparsable_message must be a string"),
    ({**SERVER, "model_url": "http://h:port/v1", "model": "x"}, ValueError, "base_url must be an address"),
]


def test_what_does_not_go_together_is_one_clear_line() -> None:
    for settings, kind, message in WRONG:
        with refusing(kind, message):
            openenv_rollout_func(**settings)


def guess(text: str) -> Any | None:
    """Lenient: an untrained model is heard too."""
    number = re.search(r"\d+", text)
    return None if number is None else guess_env.GuessAction(guess=int(number[0]))


def games() -> Any:
    prompt = [{"role": "user", "content": "Find my number. Answer like this: guess 5"}]
    return datasets.Dataset.from_list([{"prompt": prompt}] * 8)


def trained(rollouts: Any, folder: Path, **config: Any) -> pd.DataFrame:
    trainer = make_trainer(record(rollouts), folder, reward_funcs=[environment_reward], warm=0, **config)
    trainer.train_dataset = games()
    trainer.train()
    rollouts.close()
    flush()
    return load_run()


@pytest.mark.versions
@pytest.mark.parametrize("concurrency", cases([3, None], 1))
def test_a_real_training_is_recorded_with_every_call(tmp_path: Path, concurrency: int | None) -> None:
    with guess_server() as url:
        rollouts = openenv_rollout_func(
            environment=guess_env.GuessEnv,
            base_url=url,
            act=guess,
            observe=guess_rollout.observe,
            tasks=list(guess_env.TASKS),
            max_turns=3,
            sampling={"max_tokens": 8},
            concurrency=concurrency,
        )
        rows = trained(rollouts, tmp_path)
    assert len(rows) == 16
    assert set(rows["status"]) == {"ok"}
    assert set(rows["eval_name"]) == {"GuessEnv"}
    assert [metadata["task"] for metadata in rows["metadata"]] == [task for task in guess_env.TASKS for _ in range(4)]
    assert np.allclose(rows["reward"], rows["rollout_reward"])
    assert rows["turns"].max() > 1
    assert {metadata["attribution"] for metadata in rows["metadata"]} <= {"scope", "context"}
    for _, group in rows.groupby("group"):
        resets = [actions[0]["metadata"]["reset"] for actions in group["actions"]]
        assert all(reset == resets[0] for reset in resets)
    for _, row in rows.iterrows():
        assert row["turns"] == row["metadata"]["turns"]
        steps = [action for action in row["actions"] if action["action"] is not None]
        assert [step["reward"] for step in steps] == row["metadata"]["step_rewards"]


def test_a_models_server_is_asked_in_each_rows_scope(tmp_path: Path) -> None:
    with guess_server() as url, served("guess 1") as model_url:
        rollouts = openenv_rollout_func(
            environment=guess_env.GuessEnv,
            base_url=url,
            act=guess,
            observe=guess_rollout.observe,
            max_turns=2,
            concurrency=5,
            model="tiny",
            model_url=model_url,
            sampling={"max_tokens": 8, "temperature": 0.0},
        )
        rows = trained(rollouts, tmp_path, max_steps=1)
    assert set(rows["status"]) == {"ok"}
    assert set(rows["turns"]) <= {1, 2}
    assert load_runs()["unattributed_calls"].tolist() == [0], "the call that tries the server is no rollout's"
    assert {metadata["attribution"] for metadata in rows["metadata"]} == {"scope"}
    assert [len(ids) for ids in rows["completion_ids"]] == [len(values) for values in rows["logprobs"]]


def test_answers_of_a_row_that_failed_are_not_trained_on_where_trl_would(
    moody: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """TRL before 1.6 takes a reward of None for 0."""
    masks = []
    for version in ("1.5.1", "1.6.0"):
        monkeypatch.setattr("importlib.metadata.version", {"trl": version}.get)
        output, _ = play(moody, script("stop"), rows=2, tasks=["calm", "fails at step"])
        masks.append([any(mask) for mask in output["env_mask"]])
    assert masks == [[True, False], [True, True]]


@pytest.mark.versions
def test_a_hung_environment_is_one_row_of_a_training_in_error(tmp_path: Path) -> None:
    with moody_server() as url:
        rollouts = openenv_rollout_func(
            base_url=url,
            act=word,
            observe=lambda _: "higher",
            tasks=["calm", "hangs at step"],
            seed=None,
            max_turns=2,
            request_timeout=1.0,
            sampling={"max_tokens": 8},
        )
        rows = trained(rollouts, tmp_path, max_steps=1, num_generations=2, per_device_train_batch_size=4)
    hung = np.array([metadata["task"] == "hangs at step" for metadata in rows["metadata"]])
    assert hung.tolist() == [False, False, True, True]
    assert set(rows[hung]["status"]) == {"error"}
    assert set(rows[hung]["stop_reason"]) == {"timeout"}
    assert set(rows[~hung]["status"]) == {"ok"}
    assert rows[~hung]["reward"].tolist() == [2.0] * 2


def test_what_observe_does_wrong_is_told_as_its_own(moody: str) -> None:
    output, _ = play(moody, script("guess", "guess"), rows=1, observe=lambda heard: heard.hint)
    assert "observe() raised AttributeError: 'dict' object has no attribute 'hint' for an obs" in output["error"][0]
    output, _ = play(moody, script("guess", "guess"), rows=1, observe=lambda _: 5)
    assert "observe() returns a text, a list of messages or None, not 5" in output["error"][0]


def test_an_act_that_raises_for_every_rollout_is_told(moody: str, caplog: pytest.LogCaptureFixture) -> None:
    play(moody, script("guess"), rows=1, act=lambda _: 1 / 0)
    assert "act() raised in all 1 rollouts" in caplog.text
    assert "ZeroDivisionError: division by zero" in caplog.text


def test_what_serialises_a_rollout_function_does_not_see_inside() -> None:
    variables = {"DB_URL": "hunter2"}
    rollouts = openenv_rollout_func(docker_image="image", act=word, environment_variables=variables)
    others = text_rollout_func(dict), harness_rollout_func(session_factory=SimpleNamespace(create=dict))
    assert not any(map(is_dataclass, (rollouts, *others)))
    assert b"hunter2" not in snapshot({"f": rollouts})
