"""Explicit runs: rollouts of a loop that no wrapper knows, by hand and by what is seen inside."""

import asyncio
import contextvars
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import openai
import pytest
import torch
from sqlmodel import Session, col, select

from logs_ui.recorder import current_row, load_run, load_scalars, row_scope, start_run, trace_env
from logs_ui.recorder.guard import RAISE_VARIABLE, guard
from logs_ui.recorder.models import Run
from logs_ui.recorder.storage.database import reading_engine
from logs_ui.rollout.guess_env import GuessAction, GuessEnv
from logs_ui.rollout.guess_model import make_model, make_tokenizer
from tests.model_server import chat, chat_choice, model_server
from tests.training import guess_server

QUESTION: Any = [{"role": "user", "content": "2 + 2?"}]


@pytest.fixture
def db(tmp_path: Path) -> Path:
    return tmp_path / "a.db"


@pytest.fixture(scope="module")
def server() -> Any:
    with guess_server() as url:
        yield url


def rows_of(db: Path) -> list[dict[str, Any]]:
    return [{str(k): v for k, v in row.items()} for row in load_run(db=db).to_dict("records")]


def only_run(db: Path) -> Run:
    with Session(reading_engine(db)) as session:
        return session.exec(select(Run).order_by(col(Run.id).desc())).one()


def test_a_run_says_what_it_is(db: Path) -> None:
    run = start_run("guess", project="maze", db=db)
    assert repr(run) == f"<OpenRun {run.id} 'guess' in project 'maze', running>"
    run.finish()
    assert repr(run) == f"<OpenRun {run.id} 'guess' in project 'maze', finished>"
    with pytest.raises(ValueError, match="no"), start_run(db=db) as other:
        raise ValueError("no")
    assert repr(other) == f"<OpenRun {other.id}, failed>"


def test_what_the_diagnosis_asks_of_a_rollout_is_worked_out_of_its_turns(db: Path) -> None:
    with start_run(db=db) as run, run.rollout(QUESTION) as row:
        row.turn("left", action={"go": "left"}, observation="wall")
        row.turn("left!", action={"go": "left"}, observation="wall")
        row.turn("hm", finish="stop")
        row.turn("and so on", finish="length")
        row.tokens([1, 2], [3, 4], logprobs=[-0.5, -1.5])
    (stored,) = rows_of(db)
    assert {name: stored[name] for name in ("env_steps", "action_streak", "repeats", "truncated_turns")} == {
        "env_steps": 2,
        "action_streak": 2,
        "repeats": 0.0,  # before the first was the start, and before the second the wall
        "truncated_turns": 1,
    }
    assert (stored["parse_failures"], stored["parse_tail"], stored["parse_streak"]) == (2, 2, 2)
    assert (stored["first_action"], stored["last_action"]) == ('{"go":"left"}', '{"go":"left"}')
    assert (stored["mean_logprob"], stored["stop_reason"]) == (-1.0, "length")


def test_what_an_environment_said_is_heard_as_text_and_what_is_none_as_json(db: Path) -> None:
    with start_run(db=db) as run, run.rollout(QUESTION) as row:
        for heard in ('he said "hm"\n', {"b": [1, None], "a": "é"}, None):
            row.turn("go", action={"go": 1}, observation=heard)
        row.turn("<b>well</b>\n")
    (stored,) = rows_of(db)
    assert [message["content"] for message in stored["messages"] if message["role"] == "user"][-2:] == [
        'he said "hm"\n',
        '{"b":[1,null],"a":"é"}',
    ]
    assert stored["messages"][-1] == {"role": "assistant", "content": "<b>well</b>"}


def test_turns_that_are_told_by_hand(db: Path) -> None:
    with start_run("by hand", eval_name="sums", model="tiny", config={"api_key": "k", "lr": 1}, db=db) as run:
        with run.rollout(QUESTION, task="2+2", group="g", generation=1, metadata={"seed": 3}) as row:
            row.turn("is it 5?", action={"say": 5}, observation="no", reward=0.0, done=False)
            row.turn("4", action={"say": 4}, observation="yes", reward=1.0, done=True, seconds=0.5)
            row.tag("easy")
            row.metric("length", 2)
        row.score(rewards={"right": 1.0, "short": 0.5, "none": None}, weights={"short": 0.1}, advantage=0.25)
        run.log(1, {"accuracy": 1.0})
    (stored,) = rows_of(db)
    assert stored["messages"] == [
        *QUESTION,
        {"role": "assistant", "content": "is it 5?"},
        {"role": "user", "content": "no"},
        {"role": "assistant", "content": "4"},
    ]
    assert [(a["turn"], a["text"], a["action"], a["reward"]) for a in stored["actions"]] == [
        (1, "is it 5?", {"say": 5}, 0.0),
        (2, "4", {"say": 4}, 1.0),
    ]
    assert (stored["status"], stored["stop_reason"], stored["reward"], stored["advantage"]) == (
        "ok",
        "done",
        1.05,
        0.25,
    )
    assert (stored["eval_name"], stored["task"], stored["group"]) == ("sums", "2+2", f"{run.id}/eval/g")
    assert (stored["generation"], stored["env_reward_sum"]) == (1, 1.0)
    assert stored["metadata"] == {
        "seed": 3,
        "attribution": "scope",
        "tags": ["easy"],
        "metrics": {"length": 2},
    }
    described = only_run(db)
    assert (described.name, described.state, described.config) == ("by hand", "finished", {"api_key": "***", "lr": 1})
    assert load_scalars(db=db).loc[1, "accuracy"] == 1.0


def test_calls_made_inside_are_the_rollouts_own(db: Path, server: str) -> None:
    tokenizer = make_tokenizer()
    model = make_model(tokenizer, 0)
    prompt_ids = tokenizer.apply_chat_template(QUESTION, add_generation_prompt=True, return_dict=False)
    with start_run(tokenizer=tokenizer, db=db) as run, GuessEnv(base_url=server).sync() as client:
        with run.rollout(QUESTION) as row:
            client.reset(task="easy: 1-3", game=1)
            output = model.generate(input_ids=torch.tensor([prompt_ids]), max_new_tokens=4, do_sample=True)
            completion = output[0, len(prompt_ids) :].tolist()
            client.step(GuessAction(guess=3))
            row.tokens(prompt_ids, completion, logprobs=[-1.0] * len(completion))
            row.score(0.5)
        client.reset(task="easy: 1-3", game=2)  # of no rollout
    (stored,) = rows_of(db)
    assert [action["turn"] for action in stored["actions"]] == [0, 1]
    assert stored["actions"][1]["action"]["guess"] == 3
    np.testing.assert_array_equal(stored["completion_ids"], completion)
    assert stored["reward"] == 0.5
    assert only_run(db).unattributed_calls == 0


def test_many_at_once_in_tasks_and_threads(db: Path, server: str) -> None:
    run = start_run(db=db)

    async def play(number: int) -> None:
        async with run.rollout(f"game {number}", task=str(number)) as row, GuessEnv(base_url=server) as client:
            await client.reset(task="easy: 1-3", game=1)
            await asyncio.sleep(0.001 * (number % 3))
            result = await asyncio.wait_for(client.step(GuessAction(guess=number)), 30)
            row.turn(f"guess {number}")
            row.score(float(result.reward))

    async def all_of_them() -> None:
        await asyncio.gather(*(play(number) for number in range(4)))

    def play_in_a_thread(number: int) -> None:
        with run.rollout(f"game {number}", task=str(number)), GuessEnv(base_url=server).sync() as client:
            client.reset(task="easy: 1-3", game=1)
            client.step(GuessAction(guess=number))

    asyncio.run(all_of_them())
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(play_in_a_thread, range(4, 8)))
    run.finish()
    stored = rows_of(db)
    assert len(stored) == 8
    for row in stored:
        assert [a["action"]["guess"] for a in row["actions"] if a["action"]] == [int(row["task"])]
        assert [a["turn"] for a in row["actions"] if a["observation"] and not a["action"]] == [0]


def test_an_exception_is_the_rows_and_the_runs(db: Path) -> None:
    def loop() -> None:
        with start_run(db=db) as run, run.rollout("a") as row:
            row.turn("b")
            raise ValueError("lost")

    with pytest.raises(ValueError, match="lost"):
        loop()
    (stored,) = rows_of(db)
    assert (stored["status"], stored["stop_reason"], stored["error"]) == ("error", "exception", "ValueError: lost")
    assert "raise ValueError" in stored["metadata"]["traceback"]
    assert (only_run(db).state, only_run(db).error) == ("failed", "ValueError: lost")


def test_a_reason_that_calls_do_not_show_can_be_told(db: Path) -> None:
    with start_run(db=db) as run, run.rollout("a") as row:
        row.turn("b", action=1)
        row.stop("length")
        with pytest.raises(ValueError, match="tired"):
            row.stop("tired")
    assert rows_of(db)[0]["stop_reason"] == "length"


def test_what_cannot_be_recorded_does_not_stop_the_loop(db: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(RAISE_VARIABLE)
    before = guard.errors
    with start_run(db=db) as run, run.rollout("a") as row:
        row.tokens([1], [])
        row.score("much")  # type: ignore[arg-type]
        row.turn("b", reward="high", action=1)  # type: ignore[arg-type]
    assert rows_of(db)[0]["status"] == "ok"
    assert guard.errors == before + 3
    assert only_run(db).recorder_errors == 3
    other = db.with_name("other.db")
    start_run(db=other).finish()
    assert only_run(other).recorder_errors == 0, "what failed before is not this database's"


def test_a_note_reaches_its_rollout_from_anywhere_below(db: Path) -> None:
    def helper() -> None:
        current_row().note(depth=2)

    with start_run(db=db) as run, run.rollout("a"):
        helper()
        with row_scope(5):
            pass
    assert rows_of(db)[0]["metadata"]["notes"] == {"depth": 2}


def test_a_rollout_that_was_interrupted_is_aborted_whatever_its_environment_did(db: Path) -> None:
    class Stopped:
        def step(self, action: int) -> int:
            raise KeyboardInterrupt

    run = start_run(db=db)
    with pytest.raises(KeyboardInterrupt), run.rollout("a"):
        trace_env(Stopped()).step(1)
    run.finish()
    (stored,) = rows_of(db)
    assert (stored["status"], stored["stop_reason"]) == ("aborted", "aborted")
    assert stored["actions"][0]["error"] == "KeyboardInterrupt"


def test_an_environment_that_hangs_is_the_rollouts_timeout(db: Path) -> None:
    over = threading.Event()

    class Hangs:
        def step(self, action: int) -> int:
            over.wait(30)
            return action

    executor = ThreadPoolExecutor(1)
    with start_run(db=db) as run, run.rollout("b") as row:
        row.turn("c")
        env = trace_env(Hangs())
        with pytest.raises(TimeoutError):
            executor.submit(env.step, 2).result(timeout=0.1)
    over.set()
    executor.shutdown()
    (stored,) = rows_of(db)
    assert (stored["status"], stored["stop_reason"]) == ("error", "timeout")
    assert stored["actions"][-1]["error"] == "TimeoutError: the rollout ended before this call came back"


def test_what_came_back_is_kept_though_nothing_is_said_of_what_was_sent(db: Path) -> None:
    with start_run(db=db) as run:
        with run.rollout(QUESTION) as row:
            row.turn("4", reward=0.5, done=True)
        with run.rollout(QUESTION) as row:
            row.turn("5", observation="no")
        with run.rollout(QUESTION) as row:
            row.turn("6")
    paid, told, alone = rows_of(db)
    assert (paid["env_reward_sum"], paid["stop_reason"], len(paid["actions"])) == (0.5, "done", 1)
    assert (told["actions"][0]["observation"], told["env_steps"]) == ("no", None)
    assert (alone["actions"][0]["seconds"], alone["stop_reason"]) == (None, "stop")


def test_a_name_may_be_anything_that_has_a_text(db: Path) -> None:
    with start_run(db=db) as run, run.rollout(QUESTION, task=7, group=3, eval_name=1):  # type: ignore[arg-type]
        pass
    (stored,) = rows_of(db)
    assert (stored["task"], stored["group"], stored["eval_name"]) == ("7", f"{run.id}/eval/3", "1")


def test_a_scope_within_a_rollout_is_the_rollouts_own(db: Path) -> None:
    env = trace_env(SimpleNamespace(reset=lambda: "go", step=lambda _: {"observation": "low", "reward": 1.0}))

    def play(index: int) -> None:
        with row_scope(index) as row:
            row.tag(f"row {index}")
            env.reset()
            env.step(index)

    with start_run(db=db) as run:
        for index in range(2):
            with run.rollout(QUESTION):
                play(index)
    assert [(row["metadata"]["tags"], row["env_reward_sum"]) for row in rows_of(db)] == [(["row 0"], 1), (["row 1"], 1)]
    assert only_run(db).unattributed_calls == 0


def test_log_probs_times_and_ends_of_model_calls_are_kept_with_their_turns(db: Path) -> None:
    replies = [
        chat(chat_choice() | {"token_ids": [7, 8]}) | {"prompt_token_ids": [1, 5]},
        chat(chat_choice() | {"token_ids": [9, 2], "finish_reason": "length"}) | {"prompt_token_ids": [1, 5, 7, 8, 3]},
    ]
    extra = {"return_token_ids": True}
    with model_server() as server, openai.OpenAI(base_url=f"{server.url}/v1", api_key="sk-x") as client:
        server.gives(*replies)
        with start_run(db=db) as run, run.rollout(QUESTION):
            for temperature in (0.5, 1.0):
                client.chat.completions.create(
                    model="m", messages=QUESTION, logprobs=True, temperature=temperature, extra_body=extra
                )
    (stored,) = rows_of(db)
    assert stored["completion_ids"].tolist() == [7, 8, 3, 9, 2]
    assert stored["mask"].tolist() == [1, 1, 0, 1, 1]
    assert stored["logprobs"].tolist() == pytest.approx([-0.5, -0.5, np.nan, -0.5, -0.5], nan_ok=True)
    assert stored["mean_logprob"] == -0.5
    first, second = (entry["generation"] for entry in stored["actions"])
    assert (first["finish"], second["finish"]) == ("stop", "length")
    assert first["seconds"] > 0
    assert (first["sampling"], stored["sampling"]) == ({"temperature": 0.5}, {"model": "m", "temperature": 1.0})
    assert "sampling" not in second


def test_a_thread_that_is_handed_the_context_is_the_rollouts_own(db: Path) -> None:
    env = trace_env(SimpleNamespace(reset=lambda: "go", step=lambda _: {"observation": "low", "reward": 1.0}))
    with start_run(db=db) as run, run.rollout(QUESTION):
        for target in (partial(contextvars.copy_context().run, env.step, "handed"), partial(env.step, "bare")):
            thread = threading.Thread(target=target)
            thread.start()
            thread.join()
    (stored,) = rows_of(db)
    assert [entry["action"] for entry in stored["actions"]] == ["handed"], "as docs/recording.md says"
