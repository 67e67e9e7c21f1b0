"""`@evaluation`: one definition, trained on with a real trainer and run offline against a real model server."""

import asyncio
import math
import os
import statistics
import threading
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import openai
import pandas as pd
import pytest

from logs_ui.recorder import Settings, diagnose, flush, load_run, load_runs, load_scalars
from logs_ui.rollout import Evaluation, EvaluationRow, Report, evaluation
from logs_ui.rollout.environments.sessions import SessionError
from logs_ui.rollout.models.backends import GenerationError
from tests.support.evaluations import ROWS, Echo, says, sums, word
from tests.support.late import datasets, guess_env, guess_rollout
from tests.support.model_server import ModelServer, Reply, refused
from tests.support.rollouts import Moody, Scripted, a_trainer, moody_server
from tests.support.training import make_trainer, numbered


def in_order(report: Report) -> pd.DataFrame:
    """Rows are stored as they end."""
    return report.frame.sort_values(["group", "generation"], ignore_index=True)


def games(each: int = 1) -> list[dict[str, Any]]:
    tasks = guess_env.TASKS
    return [{"prompt": numbered(task, game), "task": task, "game": game} for task in tasks for game in range(each)]


def guessing(url: str, seen: list[EvaluationRow] | None = None, **settings: Any) -> Evaluation:
    """The demo's game, with two scores."""

    @evaluation(
        "guess",
        **{
            "dataset": games(),
            "environment": guess_env.GuessEnv,
            "base_url": url,
            "act": guess_rollout.act,
            "observe": guess_rollout.observe,
            "max_turns": 3,
            "sampling": {"max_tokens": 8},
            "weights": {"solved": 1.0, "brief": 0.5},
            **settings,
        },
    )
    def guess(row: EvaluationRow) -> dict[str, float | None]:
        """How it went."""
        if seen is not None:
            seen.append(row)
        return {"solved": row.env_reward, "brief": 1.0 / row.turns}

    return guess


def echo(moody: str, **settings: Any) -> Evaluation:
    """The moody environment, paid by the word."""
    rows = [{"prompt": f"Game {i}"} for i in range(3)]

    @evaluation("echo", **{"dataset": rows, "base_url": moody, "act": word, "seed": None, "max_turns": 2, **settings})
    def scored(row: EvaluationRow) -> float | None:
        return row.env_reward

    return scored


def test_offline_rollouts_are_scored_and_recorded_with_the_environments_calls(
    game_url: str, server: ModelServer
) -> None:
    server.gives(*says("guess 1", "guess 2", "guess 3", "guess 4", "?"))
    seen: list[EvaluationRow] = []
    report = guessing(game_url, seen).run(model="tiny", model_url=server.url, samples=4, concurrency=1)
    rows = in_order(report)
    assert set(rows["eval_name"]) == {"guess"}
    assert set(rows["mode"]) == {"eval"}
    assert set(rows["model"]) == {"tiny"}
    assert set(rows["status"]) == {"ok"}
    assert list(rows["task"]) == [task for task in guess_env.TASKS for _ in range(4)]
    assert list(rows["generation"]) == [0, 1, 2, 3] * 4
    assert rows["group"].nunique() == 4
    for (_, row), given, sample in zip(rows.iterrows(), seen, report.samples, strict=True):
        assert row["reward"] == pytest.approx(sample.reward)
        assert row["rewards"] == {"solved": given.env_reward, "brief": pytest.approx(1 / given.turns)}
        assert row["reward"] == pytest.approx((given.env_reward or 0.0) + 0.5 / given.turns)
        assert row["reward_weights"] == {"solved": 1.0, "brief": 0.5}
        assert [message["content"] for message in row["messages"]] == [message["content"] for message in given.messages]
        assert row["messages"][-1]["content"] == given.answer
        assert row["metadata"]["dataset"]["game"] == given["game"] == 0
        assert row["actions"][0]["metadata"]["reset"]["task"] == row["task"] == given.task
        steps = [action["reward"] for action in row["actions"][1:] if action["action"] is not None]
        assert steps == list(given.step_rewards)
    for _, group in rows.groupby("group"):
        assert len({actions[0]["metadata"]["reset"]["seed"] for actions in group["actions"]}) == 1
    assert {asked["max_tokens"] for _, asked in server.asked} == {8}
    (run,) = load_runs().to_dict("records")
    assert (run["name"], run["state"], run["config"]["samples"]) == ("guess: tiny", "finished", 4)
    logged = load_scalars().iloc[0]
    assert logged["reward"] == pytest.approx(report.mean) == pytest.approx(rows["reward"].mean())
    assert logged["pass@4"] == pytest.approx(report.pass_at(4))
    assert logged["rewards/solved"] == pytest.approx(statistics.fmean(row.env_reward or 0.0 for row in seen))


def test_the_same_seeds_are_played_in_every_evaluation(game_url: str, server: ModelServer) -> None:
    server.gives(*says("?"))
    frames = [guessing(game_url).run(model="tiny", model_url=server.url, limit=2).frame for _ in range(2)]
    resets = [[actions[0]["metadata"]["reset"] for actions in frame["actions"]] for frame in frames]
    assert resets[0] == resets[1]
    assert len(resets[0]) == 2


@pytest.mark.versions
@pytest.mark.exhaustive
def test_training_and_offline_evaluation_stand_side_by_side(game_url: str, server: ModelServer, tmp_path: Path) -> None:
    seen: list[EvaluationRow] = []
    settings = Settings(max_reward=1.5)
    guess = guessing(game_url, seen, dataset=games(each=2), diagnosis=settings)
    rollout_func = guess.rollout_func(announce=False)
    weights = guess.reward_weights
    trainer = make_trainer(rollout_func, tmp_path, reward_funcs=guess.rewards, warm=120, reward_weights=weights)
    trainer.train_dataset = guess.dataset
    trainer.train()
    rollout_func.close()
    flush()
    trained, in_training = load_run(), list(seen)
    server.gives(*says("guess 1"))
    evaluated = guess.run(model="tiny", model_url=server.url).frame
    assert set(trained["eval_name"]) == set(evaluated["eval_name"]) == {"guess"}
    assert (set(trained["mode"]), set(evaluated["mode"])) == ({"train"}, {"eval"})
    assert set(trained["rewards"][0]) == set(evaluated["rewards"][0]) == {"solved", "brief"}
    assert set(trained["task"]) <= set(guess_env.TASKS)
    assert len(trained) == len(in_training) == 16
    for (_, row), given in zip(trained.iterrows(), in_training, strict=True):
        assert row["actions"][0]["metadata"]["reset"]["task"] == row["task"] == given.task == given["task"]
        assert row["reward"] == pytest.approx((given.env_reward or 0.0) + 0.5 / given.turns)
        assert row["turns"] == given.turns == sum(message["role"] == "assistant" for message in given.messages)
        assert row["messages"][-1]["content"].split() == given.answer.split()
        assert "messages" not in row["metadata"]
    assert trained["turns"].max() > 1
    runs = load_runs().run
    assert len(runs) == 2
    assert all(diagnose(run).scale.best == settings.max_reward for run in runs)


@pytest.mark.versions
def test_single_turn_work_needs_no_environment(server: ModelServer, tmp_path: Path) -> None:
    answers: list[str] = []

    def score(row: EvaluationRow) -> float:
        answers.append(row.answer)
        return float(len(row["right"]))

    one = sums(score)
    rollout_func = one.rollout_func(announce=False)
    trainer = make_trainer(rollout_func, tmp_path, reward_funcs=one.rewards, max_completion_length=6)
    trainer.train_dataset = one.dataset
    trainer.train()
    rollout_func.close()
    flush()
    trained = load_run()
    assert len(trained) == 16
    assert set(trained["eval_name"]) == {"sums"}
    assert [dict(rewards) for rewards in trained["rewards"]] == [{"sums": 1.0}] * 16
    assert set(trained["stop_reason"]) <= {"stop", "length"}
    assert trained["rollout_reward"].isna().all()
    assert [row["messages"][-1]["content"] for _, row in trained.iterrows()] == answers
    assert (trained["turns"] == 1).all()

    server.gives(*says("1", "2", "5", "4"))
    report = sums().run(model="tiny", model_url=server.url, concurrency=1)
    assert [sample.reward for sample in report.samples] == [1.0, 1.0, 0.0, 1.0]
    assert report.mean == 0.75
    assert set(report.frame["stop_reason"]) == {"stop"}
    assert report.tasks == {}


def test_a_server_that_fails_a_row_costs_that_row(server: ModelServer) -> None:
    server.gives(*says("1"), Reply(refused("too long"), status=400), *says("3", "5"))
    report = sums().run(model="tiny", model_url=server.url, concurrency=1)
    assert [sample.reward for sample in report.samples] == [1.0, None, 1.0, 0.0]
    assert report.mean == pytest.approx(2 / 3)
    assert len(report.errors) == 1
    assert "too long" in report.errors[0]
    rows = in_order(report)
    assert list(rows["status"]) == ["ok", "error", "ok", "ok"]
    assert "too long" in rows["error"][1]


@pytest.mark.parametrize("task", ["hangs at step", "fails at reset"])
def test_an_environment_that_breaks_costs_its_own_row(moody: str, server: ModelServer, task: str) -> None:
    server.gives(*says("stop"))
    rows = [{"prompt": f"Game {name}", "task": name} for name in ("calm", task, "merry")]
    report = echo(moody, dataset=rows, request_timeout=1.0).run(model="tiny", model_url=server.url, samples=2)
    assert [sample.reward for sample in report.samples] == [1.0, 1.0, None, None, 1.0, 1.0]
    assert {sample.task for sample in report.samples if sample.error} == {task}
    frame = report.frame
    assert set(frame[frame["task"] == task]["status"]) == {"error"}
    assert set(frame[frame["task"] != task]["status"]) == {"ok"}
    assert {name: figures.mean for name, figures in report.tasks.items() if name != task} == {"calm": 1.0, "merry": 1.0}
    assert math.isnan(report.tasks[task].mean)


def test_scoring_that_raises_costs_its_own_row(server: ModelServer) -> None:
    server.gives(*says("1", "two", "3", "nan"))
    report = sums(lambda row: float(row.answer)).run(model="tiny", model_url=server.url, concurrency=1)
    assert [sample.reward for sample in report.samples] == [1.0, None, 3.0, None]
    assert report.errors[0].startswith("sums() failed: ValueError: could not convert")
    assert report.errors[1] == "sums() failed: ValueError: returned nan as the score sums"
    rows = in_order(report)
    assert list(rows["status"]) == ["ok"] * 4
    assert rows["metadata"][1]["notes"]["scoring"] == report.errors[0]
    assert rows["scored"].notna().all()


def test_a_judge_that_scoring_asks_is_no_generation_of_the_rollout(server: ModelServer) -> None:
    def judged(row: EvaluationRow) -> float:
        client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none")
        client.chat.completions.create(model="judge", messages=[{"role": "user", "content": "Is it right?"}])
        return 1.0

    server.gives(*says("1"))
    rows = sums(judged).run(model="tiny", model_url=server.url, limit=2).frame
    assert [asked["model"] for _, asked in server.asked].count("judge") == 2
    assert list(rows["turns"]) == [1, 1]


def test_sampling_of_the_definition_can_be_changed(server: ModelServer) -> None:
    server.gives(*says("1"))
    one = sums(sampling={"temperature": 0.5, "top_p": 0.9})
    for _ in range(2):
        one.run(model="tiny", model_url=server.url, sampling={"temperature": 0.0, "seed": 7}, concurrency=1, limit=2)
    (_, first), (_, second), *again = server.asked
    assert (first["temperature"], first["top_p"], first["max_tokens"]) == (0.0, 0.9, 1024)
    assert first["seed"] != second["seed"]
    assert [asked["seed"] for _, asked in again] == [first["seed"], second["seed"]]


def test_the_key_is_that_of_the_environment(server: ModelServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-very-secret")
    server.gives(*says("1"))
    report = sums().run(model="tiny", model_url=server.url, limit=1)
    assert server.headers[0]["authorization"] == "Bearer sk-very-secret"
    assert "sk-very-secret" not in str(load_runs()["config"][0])
    assert "sk-very-secret" not in str(report.frame.to_dict())


@pytest.mark.usefixtures("_asks_again_at_once")
def test_what_is_missing_is_told_before_anything_is_recorded(moody: str, server: ModelServer) -> None:
    with pytest.raises(GenerationError, match=r"does not serve 'big'. It serves tiny"):
        sums().run(model="big", model_url=server.url)
    with pytest.raises(GenerationError, match=r"http://127.0.0.1:9/v1 cannot be reached"):
        sums().run(model="tiny", model_url="http://127.0.0.1:9")
    with pytest.raises(SessionError, match=r"Failed to connect to ws://127.0.0.1:9"):
        echo("http://127.0.0.1:9").run(model="tiny", model_url=server.url)
    with moody_server(sessions=2) as small, pytest.raises(SessionError, match=r"took 2 of 3 sessions"):
        echo(small).run(model="tiny", model_url=server.url)
    assert server.asked == []
    assert not Path(os.environ["LOGS_UI_DB"]).exists()


def test_the_definitions_concurrency_limits_the_sessions(server: ModelServer) -> None:
    server.gives(*says("stop"))
    with moody_server(sessions=2) as small:
        report = echo(small, concurrency=2).run(model="tiny", model_url=server.url, samples=3)
    assert [sample.reward for sample in report.samples] == [1.0] * 9


def test_it_runs_where_an_event_loop_runs_already(server: ModelServer) -> None:
    async def notebook() -> Report:
        return sums().run(model="tiny", model_url=server.url, limit=1)

    server.gives(*says("1"))
    assert asyncio.run(notebook()).mean == 1.0


def test_progress_is_told_with_each_rollout(server: ModelServer) -> None:
    told: list[tuple[float | None, int]] = []
    server.gives(*says("1"))
    sums().run(
        model="tiny",
        model_url=server.url,
        concurrency=1,
        progress=lambda sample, total: told.append((sample.reward, total)),
    )
    assert told == [(1.0, 4), (0.0, 4), (0.0, 4), (0.0, 4)]


def test_the_task_of_the_dataset_is_what_the_environment_plays_in_training(moody: str) -> None:
    rows = [{"prompt": [{"role": "user", "content": f"Game {name}"}], "task": name} for name in ("calm", "merry")]
    one = echo(moody, dataset=datasets.Dataset.from_list(rows))
    rollouts = one.rollouts(model=Scripted(lambda *_: "stop"))
    asked = [rows[1]["prompt"], [{"role": "user", "content": "Game calm", "name": None}]]
    output = rollouts(asked, a_trainer(Scripted(lambda *_: "stop")))
    assert output["task"] == ["merry", "calm"]
    assert set(Moody.begun) >= {"merry", "calm"}
    with pytest.raises(ValueError, match="not in the evaluation's dataset"):
        rollouts([[{"role": "user", "content": "Another"}]], a_trainer(Scripted(lambda *_: "stop")))
    rollouts.close()


def test_tasks_can_rotate_instead(moody: str, server: ModelServer) -> None:
    server.gives(*says("stop"))
    report = echo(moody, tasks=["merry", "sad"]).run(model="tiny", model_url=server.url)
    assert [sample.task for sample in report.samples] == ["merry", "sad", "merry"]


def test_text_environments_are_defined_in_the_same_way(server: ModelServer) -> None:
    seen: list[EvaluationRow] = []

    def pays(row: EvaluationRow) -> float | None:
        seen.append(row)
        return row.env_reward

    rows = [{"prompt": f"Game {i}", "task": "words"} for i in range(2)]
    words = evaluation("words", dataset=rows, env_factory=Echo, system_prompt="Say words", seed=3)(pays)
    server.gives(*says("go", "stop"))
    report = words.run(model="tiny", model_url=server.url, concurrency=1)
    assert [sample.reward for sample in report.samples] == [2.0, 1.0]
    roles = [message["role"] for message in seen[0].messages]
    assert roles == ["system", "user", "user", "assistant", "user", "assistant"]
    assert seen[0].messages[4]["content"] == "heard go"
    assert seen[0].step_rewards == [1.0, 2.0]
    frame = in_order(report)
    assert list(frame["stop_reason"]) == ["done", "done"]
    assert list(frame["task"]) == ["words", "words"]
    assert [action["reward"] for action in frame["actions"][0][1:]] == [1.0, 2.0]
    model = Scripted(lambda *_: "stop")
    rollouts = words.rollouts(model=model)
    assert rollouts([[{"role": "user", "content": "x"}]], a_trainer(model))["env_reward"] == [1.0]
    rollouts.close()


def test_a_processor_is_for_training_alone() -> None:
    class Template:
        init_system_input = append_user_input = staticmethod(str)

        def parse_agent_output(self, completion: str) -> tuple[str, str]:
            return "", completion

    words = evaluation("words", dataset=ROWS, env_factory=Echo, processor=Template())(lambda _: 0.0)
    with pytest.raises(ValueError, match="A processor writes the model's template"):
        words.run(model="tiny", model_url="http://127.0.0.1:9")


def test_where_the_rows_are(server: ModelServer, tmp_path: Path) -> None:
    server.gives(*says("1"))
    db = tmp_path / "other.db"
    report = sums().run(model="tiny", model_url=server.url, limit=1, db=db, name="mine")
    assert isinstance(report.frame, pd.DataFrame)
    assert load_runs(db)["name"][0] == "mine"
    assert not Path(os.environ["LOGS_UI_DB"]).exists()


def test_scoring_that_waits_does_not_hold_up_the_others(server: ModelServer) -> None:
    """All four judges are in at once: none gets on before the last."""
    together = threading.Barrier(4, timeout=60)

    def waits(_: EvaluationRow) -> float:
        together.wait()
        return 1.0

    server.gives(*says("1"))
    report = sums(waits).run(model="tiny", model_url=server.url, concurrency=4)
    assert report.errors == []
    assert report.mean == 1.0


def test_scoring_sees_the_callers_context(server: ModelServer) -> None:
    judge = ContextVar("judge", default="none")
    judge.set("mine")
    server.gives(*says("1"))
    report = sums(lambda _: float(judge.get() == "mine")).run(model="tiny", model_url=server.url, limit=1)
    assert report.mean == 1.0


@pytest.mark.parametrize("is_list", [True, False])
def test_a_prompt_that_is_a_text_is_the_users_message_everywhere(server: ModelServer, *, is_list: bool) -> None:
    rows = [{"prompt": "guess 1", "right": "2"}]
    one = sums(lambda _: 1.0, dataset=rows if is_list else datasets.Dataset.from_list(rows))
    message = {"role": "user", "content": "guess 1"}
    assert one.dataset[:] == {"prompt": [[message]], "right": ["2"]}
    server.gives(*says("2"))
    one.run(model="tiny", model_url=server.url)
    assert server.asked[0][1]["messages"] == [message]
    model = Scripted(lambda *_: "2")
    rollouts, trainer = one.rollouts(model=model), a_trainer(model)
    (of_text,) = rollouts(["guess 1"], trainer)["prompt_ids"]
    (of_message,) = rollouts([[message]], trainer)["prompt_ids"]
    rollouts.close()
    assert of_text == of_message


def test_each_of_several_evaluation_datasets_begins_anew(tmp_path: Path) -> None:
    seeds: list[str] = []

    class Seeded(Echo):
        def reset(self, seed: Any) -> str:
            seeds.append(str(seed))
            return super().reset(seed)

    one = evaluation("words", dataset=ROWS * 2, env_factory=Seeded, max_turns=1)(lambda _: 1.0)
    rollouts = one.rollouts()
    trainer = make_trainer(
        rollouts, tmp_path, reward_funcs=one.rewards, warm=0, max_completion_length=16, per_device_eval_batch_size=4
    )
    trainer.evaluate({"first": one.dataset, "second": one.dataset})
    rollouts.close()
    assert len(seeds) == 16
    assert sorted(seeds[:8]) == sorted(seeds[8:])
    assert len(set(seeds)) == 2
