"""Explicit runs: rollouts of a loop that no wrapper knows, by hand and by what is seen inside."""

import asyncio
import contextvars
import math
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from datetime import UTC, datetime
from decimal import Decimal
from functools import partial
from itertools import pairwise
from pathlib import Path
from queue import SimpleQueue
from types import SimpleNamespace
from typing import Any

import numpy as np
import openai
import pytest

from logs_ui.recorder import (
    OpenRollout,
    current_row,
    flush,
    load_run,
    load_runs,
    load_scalars,
    row_scope,
    start_run,
    trace_env,
    unrecorded,
)
from logs_ui.recorder.capture import strands
from logs_ui.recorder.guard import RAISE_VARIABLE, guard
from tests.support.late import guess_env, guess_model, torch
from tests.support.model_server import chat, chat_choice, model_server
from tests.support.stored import only_run, rows_of

QUESTION: Any = [{"role": "user", "content": "2 + 2?"}]


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
    assert (stored["first_action"], stored["last_action"]) == ("left", "left")
    assert (stored["mean_logprob"], stored["stop_reason"]) == (-1.0, "length")


def test_the_limit_that_cut_an_answer_is_stored_with_its_length(db: Path) -> None:
    with start_run(db=db) as run:
        for tokens, limit in ((64, 64), (64, None), (None, None)):
            with run.rollout(QUESTION) as row:
                row.turn("left", finish="length", tokens=32, max_tokens=32, action="left", observation="wall")
                row.turn("and on", finish="length", tokens=tokens, max_tokens=limit, action="left", observation="wall")
                row.turn("well", finish="stop", tokens=2, max_tokens=64)
        with run.rollout(QUESTION) as row:  # the tokens of its only answer are its own
            row.turn("and so on", finish="length")
            row.tokens([1], [2, 3, 4])
    rows = load_run(db=db).astype(object).where(lambda it: it.notna(), None).sort_values("created", kind="stable")
    assert rows[["cut_tokens", "cut_limit", "completion_tokens"]].to_numpy().tolist() == [
        [64, 64, 98], [64, None, 98], [None, None, None], [3, None, 3],
    ]  # fmt: skip


def test_what_the_environment_says_of_the_end_is_stored(db: Path) -> None:
    with start_run(db=db) as run, run.rollout(QUESTION) as row:
        row.turn("left", action="left", observation="wall", done=False)
        row.turn("hm", action="noop", observation={"text": "a door", "success": True}, done=True)
    (stored,) = rows_of(db)
    assert (stored["env_success"], stored["action_tail"]) == (1, 1)
    assert (stored["unsaid_actions"], stored["unsaid_action"]) == (1, "noop")


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
    assert stored["messages"][-1] == {"role": "assistant", "content": "<b>well</b>\n"}


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
    assert stored["metadata"] == {"seed": 3, "attribution": "scope", "tags": ["easy"], "metrics": {"length": 2}}
    described = only_run(db)
    assert (described.name, described.state, described.config) == ("by hand", "finished", {"api_key": "***", "lr": 1})
    assert load_scalars(db=db).loc[1, "accuracy"] == 1.0


def test_calls_made_inside_are_the_rollouts_own(db: Path, game_url: str) -> None:
    tokenizer = guess_model.make_tokenizer()
    model = guess_model.make_model(tokenizer, 0)
    prompt_ids = tokenizer.apply_chat_template(QUESTION, add_generation_prompt=True, return_dict=False)
    with start_run(tokenizer=tokenizer, db=db) as run, guess_env.GuessEnv(base_url=game_url).sync() as client:
        with run.rollout(QUESTION) as row:
            client.reset(task="easy: 1-3", game=1)
            output = model.generate(input_ids=torch.tensor([prompt_ids]), max_new_tokens=4, do_sample=True)
            completion = output[0, len(prompt_ids) :].tolist()
            client.step(guess_env.GuessAction(guess=3))
            row.tokens(prompt_ids, completion, logprobs=[-1.0] * len(completion))
            row.score(0.5)
        client.reset(task="easy: 1-3", game=2)  # of no rollout
    (stored,) = rows_of(db)
    assert [action["turn"] for action in stored["actions"]] == [0, 1]
    assert stored["actions"][1]["action"]["guess"] == 3
    np.testing.assert_array_equal(stored["completion_ids"], completion)
    assert stored["reward"] == 0.5
    assert only_run(db).unattributed_calls == 0


def test_many_at_once_in_tasks_and_threads(db: Path, game_url: str) -> None:
    run = start_run(db=db)

    async def play(number: int) -> None:
        async with (
            run.rollout(f"game {number}", task=str(number)) as row,
            guess_env.GuessEnv(base_url=game_url) as client,
        ):
            await client.reset(task="easy: 1-3", game=1)
            await asyncio.sleep(0.001 * (number % 3))
            result = await asyncio.wait_for(client.step(guess_env.GuessAction(guess=number)), 30)
            row.turn(f"guess {number}")
            row.score(float(result.reward))

    async def all_of_them() -> None:
        await asyncio.gather(*(play(number) for number in range(4)))

    def play_in_a_thread(number: int) -> None:
        with run.rollout(f"game {number}", task=str(number)), guess_env.GuessEnv(base_url=game_url).sync() as client:
            client.reset(task="easy: 1-3", game=1)
            client.step(guess_env.GuessAction(guess=number))

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
        with start_run(db=db) as run, run.rollout("a", metadata={"source": "web"}) as row:
            row.turn("b")
            raise ValueError("lost")

    with pytest.raises(ValueError, match="lost"):
        loop()
    (stored,) = rows_of(db)
    assert (stored["status"], stored["stop_reason"], stored["error"]) == ("error", "exception", "ValueError: lost")
    assert "raise ValueError" in stored["metadata"]["traceback"]
    assert stored["metadata"]["source"] == "web"
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
        row.score({"right": 1.0, "short": 0.5}, weights={"short": 0.0})
        row.turn("b", reward="high", action=1)  # type: ignore[arg-type]
    assert (rows_of(db)[0]["status"], rows_of(db)[0]["rewards"], rows_of(db)[0]["reward"]) == (
        "ok",
        {"right": 1.0, "short": 0.5},
        1.0,
    )
    assert guard.errors == before + 3
    assert only_run(db).recorder_errors == 3
    other = db.with_name("other.db")
    start_run(db=other).finish()
    assert only_run(other).recorder_errors == 0, "what failed before is not this database's"


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


def test_what_came_back_is_kept_though_nothing_is_said_of_what_was_sent(db: Path) -> None:
    with start_run(db=db) as run:
        with run.rollout(QUESTION) as row:
            row.turn("4", reward=0.5, done=True)
        with run.rollout(QUESTION) as row:
            row.turn("5", observation="no")
        with run.rollout(QUESTION) as row:
            row.turn("6")
        with run.rollout(QUESTION) as row:
            row.turn("7", finish="stop")
    paid, told, alone, whole = rows_of(db)
    assert (paid["env_reward_sum"], paid["stop_reason"], len(paid["actions"])) == (0.5, "done", 1)
    assert (told["actions"][0]["observation"], told["env_steps"]) == ("no", None)
    assert (alone["actions"][0]["seconds"], alone["stop_reason"]) == (None, "not_recorded"), "nobody said that it ended"
    assert whole["stop_reason"] == "stop"


def test_an_error_of_an_explicit_rollout_keeps_the_end_of_the_servers_log(db: Path, tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    log.write_text("out of memory\n")
    with start_run(db=db, server_log=log) as run, run.rollout(QUESTION) as row:
        row.turn("4", error="ConnectionError: gone")
    (failed,) = rows_of(db)
    assert (failed["stop_reason"], failed["metadata"]["server_log"]) == ("environment_error", "out of memory\n")


def test_a_name_may_be_anything_that_has_a_text(db: Path) -> None:
    with start_run(db=db) as run, run.rollout(QUESTION, task=7, group=3, eval_name=1):  # type: ignore[arg-type]
        pass
    (stored,) = rows_of(db)
    assert (stored["task"], stored["group"], stored["eval_name"]) == ("7", f"{run.id}/eval/3", "1")


def test_odd_tool_calls_of_a_prompt_cost_no_messages(db: Path) -> None:
    custom = {"id": "1", "type": "custom", "custom": {"name": "x", "input": "y"}}
    with start_run("a", db=db) as run:
        for calls in (None, [custom]):
            asked = [*QUESTION, {"role": "assistant", "content": "4", "tool_calls": calls}]
            with run.rollout([*asked, *QUESTION]):
                pass
    assert [len(messages) for messages in load_run(run.id, db=db).messages] == [3, 3]


class OnAnotherDevice(list[int]):
    """As a tensor on a GPU: only a copy can be read."""

    def __array__(self, *_: Any, **__: Any) -> Any:
        raise TypeError("can't convert cuda:0 device type tensor to numpy")

    def detach(self) -> Any:
        return torch.tensor([*self])


def test_ids_may_be_on_another_device(db: Path) -> None:
    with start_run("a", db=db) as run, run.rollout("p") as row:
        row.tokens(OnAnotherDevice([1, 2]), torch.tensor([3]))
    ids = load_run(run.id, db=db).iloc[0]
    assert ([*ids.prompt_ids], [*ids.completion_ids]) == ([1, 2], [3])


ODD: tuple[Any, ...] = (
    np.int64(3), np.float32(1.5), 3.0, True, "x", "3", Decimal("1.5"), datetime(2026, 1, 1, tzinfo=UTC), Path("a"),
    b"ab", {1}, [1], 10**30, -1, None, math.nan, object(), np.arange(3), type("Text", (str,), {})("s"),
)  # fmt: skip


def test_values_of_another_type_cost_themselves_and_not_their_rollout(
    db: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(RAISE_VARIABLE, "0")
    methods: list[Callable[[OpenRollout, Any], None]] = [
        lambda row, odd: row.turn("a", reward=odd),
        lambda row, odd: row.turn("a", done=odd, seconds=odd),
        lambda row, odd: row.turn("a", action=odd, observation=odd),
        lambda row, odd: row.turn(odd, finish=odd),
        lambda row, odd: row.tokens(odd, odd),
        lambda row, odd: row.tokens([1], [odd]),
        lambda row, odd: row.tokens([1], [1], logprobs=[odd], mask=[odd]),
        lambda row, odd: row.score(odd),
        lambda row, odd: row.score(rewards={"a": odd}),
    ]
    with start_run("a", db=db) as run:
        for odd in ODD:
            for say in methods:
                with run.rollout("p") as row:
                    row.turn("an answer")
                    say(row, odd)
    rows = load_run(run.id, db=db)
    assert len(rows) == len(ODD) * len(methods)
    assert all(row[1]["content"] == "an answer" for row in rows.messages)


def test_a_step_that_is_no_number_is_refused_where_it_is_given(db: Path) -> None:
    with start_run("a", db=db) as run:
        for odd in ODD:
            for name in ("step", "generation", "mode"):
                with suppress(ValueError), run.rollout("p", **{name: odd}) as row:
                    row.turn("an answer")
        with pytest.raises(ValueError, match="step must be a whole number"):
            run.rollout("p", step="x")  # type: ignore[arg-type]
        with pytest.raises(ValueError, match='"train" or "eval"'):
            run.rollout("p", mode="val")
    rows = load_run(run.id, db=db)
    assert set(rows.step) == {0, 3, 1, -1}
    assert load_runs(db).dropped[0] == 0


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


def stepped() -> Any:
    return trace_env(SimpleNamespace(reset=lambda: "go", step=lambda _: {"observation": "low", "reward": 1.0}))


def actions_of(db: Path) -> list[list[Any]]:
    return [[entry["action"] for entry in row["actions"]] for row in rows_of(db)]


def test_a_thread_that_ends_within_a_rollout_is_the_rollouts_own(db: Path) -> None:
    env = stepped()

    class Stepping(threading.Thread):
        def run(self) -> None:
            env.step("of a class")
            inner = threading.Thread(target=env.step, args=("within",))
            inner.start()
            inner.join()

    with start_run(db=db) as run:
        for name in ("one", "two"):
            with run.rollout(QUESTION):
                handed = partial(contextvars.copy_context().run, env.step, "handed")
                made = [threading.Thread(target=env.step, args=(name,)), Stepping(), threading.Thread(target=handed)]
                for thread in made:
                    thread.start()
                    thread.join()
                with unrecorded():
                    judge = threading.Thread(target=env.step, args=("judged",))
                    judge.start()
                judge.join()
        outside = threading.Thread(target=env.step, args=("of no rollout",))
        outside.start()
        outside.join()
    assert actions_of(db) == [["one", "of a class", "within", "handed"], ["two", "of a class", "within", "handed"]]
    assert only_run(db).unattributed_calls == 0


def test_what_a_thread_calls_that_outlives_its_rollout_is_nobodys_and_counted(db: Path) -> None:
    env, asked, over = stepped(), SimpleQueue[str | None](), threading.Event()

    def serve() -> None:
        while (action := asked.get()) is not None:
            env.step(action)
            current_row().tag(action)
            over.set()

    service = threading.Thread(target=serve)
    with start_run(db=db) as run:
        with run.rollout(QUESTION):
            service.start()
            asked.put("anybody's")
            assert over.wait(60)
            env.step("own")
        asked.put("after it")
        asked.put(None)
        service.join()
    assert actions_of(db) == [["own"]]
    assert "tags" not in rows_of(db)[0]["metadata"]
    assert only_run(db).unattributed_calls == 2, "the step and the tag"


def test_a_pools_thread_is_not_that_of_the_rollout_in_which_it_was_started(db: Path) -> None:
    env = stepped()
    with start_run(db=db) as run, ThreadPoolExecutor(1) as pool, run.rollout(QUESTION):
        pool.submit(env.step, "first").result()
        elsewhere = contextvars.Context()
        elsewhere.run(pool.submit, env.step, "of no rollout").result()
    assert actions_of(db) == [["first"]]
    assert only_run(db).unattributed_calls == 0


def test_a_thread_that_cannot_be_followed_is_started(db: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(RAISE_VARIABLE)
    ran = threading.Event()

    class Fixed(threading.Thread):
        @property
        def run(self) -> Any:
            return ran.set

    with start_run(db=db) as run, run.rollout(QUESTION):
        thread = Fixed()
        thread.start()
        thread.join(60)
        with pytest.raises(RuntimeError, match="once"):
            thread.start()
    assert ran.is_set()


def test_of_rollouts_that_are_open_side_by_side_a_scope_says_whose_a_call_is(db: Path) -> None:
    env = stepped()
    with start_run(db=db) as run, ThreadPoolExecutor(1) as pool, ExitStack() as stack:
        rows = [stack.enter_context(run.rollout(QUESTION)) for _ in range(3)]
        for turn in range(2):
            for index, row in enumerate(rows):
                with row.scope(), row_scope(0):
                    pool.submit(env.step, (index, turn)).result()
                    current_row().tag(str(turn))
                row.metric("turn", turn)
    assert actions_of(db) == [[[index, turn] for turn in range(2)] for index in range(3)]
    assert [row["metadata"]["tags"] for row in rows_of(db)] == [["0", "1"]] * 3
    assert [row["metadata"]["metrics"] for row in rows_of(db)] == [{"turn": 1}] * 3
    assert only_run(db).unattributed_calls == 0


def test_of_rollouts_that_are_open_side_by_side_a_call_without_a_scope_is_nobodys_and_counted(
    db: Path, caplog: pytest.LogCaptureFixture
) -> None:
    env = stepped()
    strands._warn_of_open_rollouts.cache_clear()

    async def main(first: Any, second: Any) -> None:
        async with first, second:
            env.step("either's")
            await asyncio.gather(asyncio.to_thread(env.step, "either's task"))
            current_row().tag("either's")
            first.failed("it broke")

    with start_run(db=db) as run:
        asyncio.run(main(run.rollout(QUESTION), run.rollout(QUESTION)))
    assert actions_of(db) == [[], []]
    assert [row["status"] for row in rows_of(db)] == ["error", "ok"]
    assert only_run(db).unattributed_calls == 3
    (said,) = [message for message in caplog.messages if "several rollouts of a run are open" in message]
    assert "`with row.scope():`" in said


def test_rollouts_may_end_in_any_order(db: Path) -> None:
    env, names = stepped(), "abc"
    with start_run(db=db) as run:
        opened = [run.rollout(QUESTION, task=name) for name in names]
        opened[0].__enter__()
        for before, after in pairwise(opened):
            after.__enter__()
            before.__exit__(None, None, None)
            env.step("of the one that is open")
        opened[-1].__exit__(None, None, None)
        env.step("of none")
    assert [len(actions) for actions in actions_of(db)] == [0, 1, 1]
    assert only_run(db).unattributed_calls == 0


def test_a_task_of_a_rollout_has_rollouts_of_its_own(db: Path) -> None:
    env = stepped()

    async def inner(run: Any, name: str) -> None:
        with run.rollout(QUESTION, task=name):
            await asyncio.sleep(0)
            env.step(name)

    async def main(run: Any) -> None:
        async with run.rollout(QUESTION, task="outer"):
            await asyncio.gather(inner(run, "one"), inner(run, "two"))
            env.step("outer")

    with start_run(db=db) as run:
        asyncio.run(main(run))
    assert {row["task"]: row["actions"][0]["action"] for row in rows_of(db)} == {
        name: name for name in ("outer", "one", "two")
    }
    assert only_run(db).unattributed_calls == 0


def test_what_a_rollout_holds_stays_however_it_is_entered_again(db: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(RAISE_VARIABLE)
    env = stepped()
    with start_run(db=db) as run:
        row = run.rollout(QUESTION)
        with row:
            env.step(1)
            with row:
                row.turn("first")
            env.step(2)
        with row:
            env.step(3)
    (stored,) = rows_of(db)
    assert [(entry["text"], entry["action"]) for entry in stored["actions"]] == [(None, 1), ("first", 2)]
    assert only_run(db).recorder_errors == 2
    assert "entered a second time" in (only_run(db).last_recorder_error or "")


def called_in(scope: Any, action: Any) -> None:
    env = stepped()
    with scope:
        env.step(action)


@pytest.mark.parametrize(
    ("name", "tell"),
    [
        ("turn", lambda row: row.turn("late")),
        ("tokens", lambda row: row.tokens([1], [2])),
        ("stop", lambda row: row.stop("length")),
        ("note", lambda row: row.note(late=1)),
        ("tag", lambda row: row.tag("late")),
        ("metric", lambda row: row.metric("late", 1)),
        ("failed", lambda row: row.failed("late")),
        ("scope", lambda row: called_in(row.scope(), "late")),
    ],
)
def test_what_is_told_after_a_rollouts_end_is_said_to_be_lost(
    db: Path, monkeypatch: pytest.MonkeyPatch, name: str, tell: Callable[[Any], None]
) -> None:
    monkeypatch.delenv(RAISE_VARIABLE)
    with start_run(db=db) as run:
        with run.rollout(QUESTION) as row:
            row.turn("4", finish="stop")
        with run.rollout(QUESTION):
            tell(row)
        row.score(1.0)
    stored, other = rows_of(db)
    assert other["actions"] == []
    assert (stored["status"], stored["stop_reason"], stored["reward"]) == ("ok", "stop", 1.0)
    assert f"row.{name}() was called after the rollout had ended" in (only_run(db).last_recorder_error or "")
    assert only_run(db).recorder_errors == 1


def test_a_rollout_that_is_only_told_is_stored_as_it_was_told(db: Path) -> None:
    with start_run(db=db) as run:
        told, scored, begun = (run.rollout(QUESTION, task=task) for task in ("told", "scored", "begun"))
        told.turn("4", action=4, observation="yes", done=True)
        told.note(depth=1)
        called_in(told.scope(), 5)
        scored.score(0.5)
        begun.score(0.5)
        with begun:
            pass
    stored = {row["task"]: row for row in rows_of(db)}
    assert {task: (row["status"], row["stop_reason"]) for task, row in stored.items()} == {
        "told": ("ok", "done"),
        "scored": ("ok", "not_recorded"),
        "begun": ("ok", "not_recorded"),
    }
    assert [entry["action"] for entry in stored["told"]["actions"]] == [4, 5]
    assert (stored["told"]["actions"][0]["text"], stored["scored"]["reward"]) == ("4", 0.5)
    assert stored["told"]["metadata"]["notes"] == {"depth": 1}


def test_a_rollout_that_was_left_open_costs_another_run_nothing(tmp_path: Path) -> None:
    db, tool = tmp_path / "a.db", trace_env(len)

    def play() -> None:
        ExitStack().enter_context(start_run("left", db=db).rollout("never ended"))
        with start_run("next", db=db) as run, run.rollout("its own"):
            tool("four")

    contextvars.copy_context().run(play)
    assert flush()
    assert [len(actions) for actions in load_run("next", db).actions] == [1]
