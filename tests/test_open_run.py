"""Explicit runs: rollouts of a loop that no wrapper knows, by hand and by what is seen inside."""

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sqlmodel import Session, col, select

from logs_ui.recorder import current_row, load_run, load_scalars, row_scope, start_run, trace_env
from logs_ui.recorder.database import reading_engine
from logs_ui.recorder.guard import RAISE_VARIABLE, guard
from logs_ui.recorder.models import Run
from logs_ui.rollout.guess_env import GuessAction, GuessEnv
from logs_ui.rollout.guess_model import make_model, make_tokenizer
from tests.training import guess_server

QUESTION = [{"role": "user", "content": "2 + 2?"}]


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
