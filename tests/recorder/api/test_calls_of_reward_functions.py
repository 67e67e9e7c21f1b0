"""What reward functions call in a real training, by each way to record one: an environment, a judge, a sandbox."""

import asyncio
import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import product
from pathlib import Path
from typing import Any

import httpx
import openai
import pandas as pd
import pytest
import requests

from logs_ui.recorder import flush, load_run, record, record_trainer, row_scope, trace_client, trace_env
from logs_ui.recorder.delivery.writer import Writer
from logs_ui.recorder.rows.jobs import ColumnsJob, ReturnedJob
from tests.support.exhaustive import cases
from tests.support.http_server import Answered, http_server
from tests.support.late import guess_env
from tests.support.model_server import chat, chat_choice
from tests.support.stored import last_run
from tests.support.training import ROWS, game_of, guess_server, make_trainer, solved

pytestmark = pytest.mark.versions

Function = Callable[..., Any]
Noted = list[tuple[str, Any]]


def answers(prompts: list[Any], trainer: Any) -> dict[str, Any]:
    """A rollout function whose answers are all different, and long enough to be found in what is sent."""
    tokenizer = trainer.processing_class
    ids = [
        tokenizer(f"guess {row + 1}, maybe {row + 21}, maybe {row + 41}")["input_ids"] for row in range(len(prompts))
    ]
    prompt_ids = [tokenizer.apply_chat_template(one, tokenize=True, return_dict=False) for one in prompts]
    return {
        "prompt_ids": prompt_ids,
        "completion_ids": ids,
        "logprobs": [[-0.5] * len(row) for row in ids],
        "env_reward": [0.5 * (row % 2) for row in range(len(prompts))],
    }


def text_of(completion: Any) -> str:
    return completion if isinstance(completion, str) else completion[-1]["content"]


def by_rollout_function(functions: list[Function], folder: Path) -> Any:
    return make_trainer(
        record(answers, eval_name="scored", db=folder / "runs.db"), folder, reward_funcs=[solved, *functions], warm=0
    )


def plain(functions: list[Function], folder: Path) -> Any:
    trainer = make_trainer(None, folder, reward_funcs=functions, warm=0, max_completion_length=8)
    return record_trainer(trainer, eval_name="scored", db=folder / "runs.db")


def ways(*options: Any) -> Any:
    """Each way to record with each option; by default each way with an option of its own."""
    few = [*zip((by_rollout_function, plain), options, strict=False)]
    return cases([*few, *(it for it in product((by_rollout_function, plain), options) if it not in few)], 2)


def recorded(trainer: Any, folder: Path) -> tuple[pd.DataFrame, int]:
    """Train, and return the rows with the number of unattributed calls."""
    trainer.train()
    return stored(folder)


def stored(folder: Path) -> tuple[pd.DataFrame, int]:
    assert flush()
    run = last_run(folder / "runs.db")
    assert not run.unattributed_calls  # checks of actions look at these
    return load_run("latest", db=folder / "runs.db"), run.unattributed_scoring


def scoring(rows: pd.DataFrame) -> list[list[dict[str, Any]]]:
    return [[it for it in actions if it.get("phase") == "scoring"] for actions in rows.actions]


@contextmanager
def judge() -> Iterator[str]:
    """A server of chat completions that answers with the length of the last message, and fails for some."""

    def answer(_path: str, _headers: dict[str, str], body: bytes) -> Answered:
        asked = json.loads(body)["messages"][-1]["content"]
        fails = "maybe 22" in asked
        reply = chat(chat_choice(ids=False, content=str(len(asked)))) | {"id": "chatcmpl-1"}
        said = json.dumps({"error": {"message": "overloaded"}} if fails else reply).encode()
        return 503 if fails else 200, {"Content-Type": "application/json"}, said

    with http_server(answer) as url:
        yield f"{url}/v1"


@pytest.mark.exhaustive
def test_a_sandbox_behind_any_address(tmp_path: Path) -> None:
    def checking(client: Any) -> Function:
        def checked(completions: list[Any], **_: Any) -> list[float]:
            bodies = [{"messages": [{"content": text_of(completion)}]} for completion in completions]
            replies = [client.post(f"{url}/check?key=secret", json=body) for body in bodies]
            return [float(reply.status_code == 200) for reply in replies]

        checked.__name__ = type(client).__name__
        return checked

    with judge() as url:
        functions = [checking(trace_client(it)) for it in (requests.Session(), httpx.Client())]
        rows, lost = recorded(plain(functions, tmp_path), tmp_path)
    made = scoring(rows)
    assert (lost, [[it["function"] for it in of_row] for of_row in made]) == (0, [["Session", "Client"]] * 2 * ROWS)
    for messages, calls, rewards in zip(rows.messages, made, rows.rewards, strict=True):
        for call in calls:
            assert call["action"]["name"] == f"POST {url}/check"
            assert call["action"]["arguments"]["body"]["messages"][0]["content"] == messages[-1]["content"]
            assert (call["observation"]["status"] == 200) == bool(rewards[call["function"]])
            assert "chatcmpl-1" in call["observation"]["text"] or not rewards[call["function"]]
            assert "secret" not in str(call)


@pytest.mark.parametrize(("make", "is_async"), ways(False, True))
def test_an_environment_that_is_stepped_to_score(make: Any, *, is_async: bool, tmp_path: Path) -> None:
    noted: Noted = []
    with guess_server() as url:
        clients = [guess_env.GuessEnv(base_url=url) for _ in range(1 if not is_async else ROWS)]

        def stepped(prompts: list[Any], completions: list[Any], **_: Any) -> list[float]:
            client = clients[0].sync()
            rewards = []
            for row, prompt in enumerate(prompts):
                client.reset(**game_of(prompt))
                result = client.step(guess_env.GuessAction(guess=row + 1))
                noted.append((result.observation.hint, result.reward))
                rewards.append(result.reward)
            return rewards

        async def stepped_async(prompts: list[Any], completions: list[Any], **_: Any) -> list[float]:
            async def one(row: int, prompt: Any) -> Any:
                async with guess_env.GuessEnv(base_url=url) as client:
                    await client.reset(**game_of(prompt))
                    await asyncio.sleep((ROWS - row) / 200)
                    result = await client.step(guess_env.GuessAction(guess=row + 1))
                    return result.observation.hint, result.reward

            found = await asyncio.gather(*(one(row, prompt) for row, prompt in enumerate(prompts)))
            noted.extend(found)
            return [reward for _, reward in found]

        stepped_async.__name__ = "stepped"
        rows, lost = recorded(make([stepped_async if is_async else stepped], tmp_path), tmp_path)
    made = scoring(rows)
    assert lost == 0
    assert [(of_row[-1]["observation"]["hint"], of_row[-1]["reward"]) for of_row in made] == noted
    assert [[it["turn"] for it in of_row] for of_row in made] == [[0, 1]] * 2 * ROWS
    assert [of_row[-1]["action"]["guess"] for of_row in made] == [*range(1, ROWS + 1)] * 2
    assert {it["function"] for of_row in made for it in of_row} == {"stepped"}
    assert all(it["seconds"] > 0 and it["error"] is None for of_row in made for it in of_row)
    assert [it["stepped"] for it in rows.rewards] == pytest.approx([reward for _, reward in noted])
    assert rows.advantage.notna().all()
    # They are no part of the rollout.
    assert rows[["env_steps", "env_reward_sum", "first_action", "action_streak"]].isna().all(axis=None)
    assert set(rows.tool_calls) == {0}
    assert set(rows.status) == {"ok"}
    assert not set(rows.stop_reason) & {"done", "environment_error", "turn_limit"}


@pytest.mark.parametrize(("make", "client"), ways("openai async", "httpx", "openai"))
def test_a_judge(make: Any, client: str, tmp_path: Path) -> None:  # noqa: C901 - each client as people write it
    def asked(text: str) -> list[dict[str, str]]:
        return [{"role": "system", "content": "Rate the answer."}, {"role": "user", "content": f"Answer: {text}"}]

    with judge() as url:
        sync = openai.OpenAI(base_url=url, api_key="none", max_retries=0)
        late = openai.AsyncOpenAI(base_url=url, api_key="none", max_retries=0)
        http = trace_client(httpx.Client(base_url=url))

        def judged(completions: list[Any], **_: Any) -> list[float]:
            scores = []
            for completion in completions:
                messages: Any = asked(text_of(completion))
                try:
                    if client == "openai":
                        reply = sync.chat.completions.create(model="judge", messages=messages)
                        scores.append(float(reply.choices[0].message.content or 0))
                    else:
                        sent = http.post("/chat/completions", json={"model": "judge", "messages": messages})
                        scores.append(float(sent.raise_for_status().json()["choices"][0]["message"]["content"]))
                except (openai.APIError, httpx.HTTPError):
                    scores.append(0.0)
            return scores

        async def judged_async(completions: list[Any], **_: Any) -> list[float]:
            async def one(completion: Any) -> float:
                messages: Any = asked(text_of(completion))
                try:
                    reply = await late.chat.completions.create(model="judge", messages=messages)
                except openai.APIError:
                    return 0.0
                return float(reply.choices[0].message.content or 0)

            return await asyncio.gather(*map(one, completions))

        judged_async.__name__ = "judged"
        rows, lost = recorded(make([judged_async if "async" in client else judged], tmp_path), tmp_path)
    made = scoring(rows)
    assert (lost, [len(of_row) for of_row in made]) == (0, [1] * 2 * ROWS)
    for messages, (call,), rewards in zip(rows.messages, made, rows.rewards, strict=True):
        assert call["action"] == asked(messages[-1]["content"])
        assert (call["function"], call["turn"], call["text"]) == ("judged", 1, None)
        if rewards["judged"]:
            assert float(call["observation"]) == rewards["judged"]
            assert call["metadata"] == {"model": "judge", "prompt_tokens": 3, "completion_tokens": 2, "finish": "stop"}
        else:
            assert "503" in call["error"] or "overloaded" in call["error"]
    assert any(call["error"] for (call,) in made) == (make is by_rollout_function)
    if make is by_rollout_function:  # whose tokens are all that is sampled: a judge's are not the policy's
        assert rows.turns.isna().all()
    assert set(rows.completion_tokens) == {len(ids) for ids in rows.completion_ids}
    assert set(rows.status) == {"ok"}
    assert [messages[-1]["role"] for messages in rows.messages] == ["assistant"] * 2 * ROWS
    assert rows.sampling.map(lambda it: it.get("model")).isna().all()


def test_a_sandbox_that_some_rows_reach_and_that_raises(tmp_path: Path) -> None:
    """Which row it was called for shows in what was sent."""

    class Sandbox:
        def __call__(self, code: str) -> int:
            if "maybe 25" in code:
                raise ConnectionError("the sandbox refused")
            return len(code)

    sandbox = trace_env(Sandbox().__call__)

    def ran(completions: list[Any], **_: Any) -> list[float | None]:
        def one(completion: Any) -> float | None:
            code = text_of(completion)
            try:
                return None if code.startswith("guess 3,") else sandbox(code)
            except ConnectionError:
                return -1.0

        with ThreadPoolExecutor(3) as pool:
            return list(pool.map(one, completions))

    rows, lost = recorded(by_rollout_function([ran], tmp_path), tmp_path)
    made = scoring(rows)
    assert (lost, [len(of_row) for of_row in made]) == (0, ([1] * 2 + [0] + [1] * 5) * 2)
    for messages, calls, rewards in zip(rows.messages, made, rows.rewards, strict=True):
        for call in calls:
            assert call["action"]["arguments"] == {"code": messages[-1]["content"]}
            assert call["evidence"] == "text"
            assert call["observation"] == (None if rewards["ran"] < 0 else rewards["ran"])
            assert call["error"] == ("ConnectionError: the sandbox refused" if rewards["ran"] < 0 else None)
    # An error that a reward function catches is not the rollout's.
    assert set(rows.status) == {"ok"}
    assert rows[["error", "env_errors"]].isna().all(axis=None)


def test_a_batch_is_unattributed_and_counted(tmp_path: Path) -> None:
    check: Any = trace_env(len)

    def checked(completions: list[Any], **_: Any) -> list[float]:
        return [float(check(list(map(text_of, completions))))] * len(completions)

    rows, lost = recorded(by_rollout_function([checked], tmp_path), tmp_path)
    assert (lost, scoring(rows)) == (2, [[]] * 2 * ROWS)


def test_a_scope_names_the_row_and_several_functions_are_apart(tmp_path: Path) -> None:
    check: Any = trace_env(lambda said: said)

    def scoped(completions: list[Any], **_: Any) -> list[float]:
        for row in reversed(range(len(completions))):
            with row_scope(row) as current:
                check(row)
                current.metric("looked_at", row)
                current.failed("no error of the rollout")
        return [0.0] * len(completions)

    async def other(completions: list[Any], **_: Any) -> list[float]:
        await asyncio.sleep(0)
        for row in range(len(completions)):
            check(10 + row)
        return [0.0] * len(completions)

    async def another(completions: list[Any], **_: Any) -> list[float]:
        for row in range(len(completions)):
            await asyncio.sleep(0.001)
            check(20 + row)
        return [0.0] * len(completions)

    rows, lost = recorded(by_rollout_function([scoped, other, another], tmp_path), tmp_path)
    found = [[(it["function"], it["evidence"], it["observation"]) for it in of_row] for of_row in scoring(rows)]
    assert [sorted(of_row) for of_row in found] == [
        [("another", "order", 20 + row), ("other", "order", 10 + row), ("scoped", "scope", row)] for row in range(ROWS)
    ] * 2
    assert [it["looked_at"] for it in rows.metrics] == [*range(ROWS)] * 2
    assert (lost, set(rows.status)) == (0, {"ok"})


def test_calls_of_a_reward_function_that_raises_are_kept(tmp_path: Path) -> None:
    def refuse(row: int) -> int:
        if row == 5:
            raise ConnectionError("the verifier is away")
        return row

    check: Any = trace_env(refuse)

    def verified(completions: list[Any], **_: Any) -> list[float]:
        for row in range(len(completions)):
            with row_scope(row):
                check(row)
        return [0.0] * len(completions)

    trainer = by_rollout_function([verified], tmp_path)
    with pytest.raises(ConnectionError, match="verifier is away"):
        trainer.train()
    rows, _ = stored(tmp_path)
    assert [len(of_row) for of_row in scoring(rows)] == [1] * 6 + [0] * 2
    assert scoring(rows)[5][0]["error"] == "ConnectionError: the verifier is away"
    assert set(rows.status) == {"ok"}
    assert rows.reward.isna().all()


def test_rows_are_handed_over_before_they_are_scored(tmp_path: Path) -> None:
    """Scoring may take minutes, and the process may be killed meanwhile."""
    seen: list[tuple[set[str], bool]] = []

    def looked(completions: list[Any], **_: Any) -> list[float]:
        rows = stored(tmp_path)[0]
        seen.append((set(rows.status[-ROWS:]), bool(rows.scored[-ROWS:].isna().all())))
        return [0.0] * len(completions)

    recorded(by_rollout_function([looked], tmp_path), tmp_path)
    assert seen == [({"ok"}, True)] * 2


@pytest.mark.parametrize("calls", [False, True])
def test_rows_are_written_once_more_only_if_something_was_called(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, *, calls: bool
) -> None:
    check: Any = trace_env(lambda row: row)
    put = Writer.put
    jobs: list[Any] = []

    def noted(writer: Writer, job: Any) -> None:
        jobs.append((type(job), getattr(job, "scoring", None) is not None))
        put(writer, job)

    def checked(completions: list[Any], **_: Any) -> list[float]:
        return [float(check(row)) if calls else 0.0 for row in range(len(completions))]

    monkeypatch.setattr(Writer, "put", noted)
    recorded(by_rollout_function([checked], tmp_path), tmp_path)
    again = [(ReturnedJob, True)] if calls else []
    assert [job for job in jobs if issubclass(job[0], ReturnedJob | ColumnsJob)] == [
        (ReturnedJob, False), *again, (ColumnsJob, False), (ColumnsJob, False),
    ] * 2  # fmt: skip


def test_a_full_queue_loses_the_calls_and_not_the_rows(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    check: Any = trace_env(lambda row: row)

    def checked(completions: list[Any], **_: Any) -> list[float]:
        return [float(check(row)) for row in range(len(completions))]

    put = Writer.put
    monkeypatch.setattr(
        Writer, "put", lambda self, job: put(self, job.without_payload() if getattr(job, "scoring", None) else job)
    )
    rows, _ = recorded(by_rollout_function([checked], tmp_path), tmp_path)
    assert scoring(rows) == [[]] * 2 * ROWS
    assert [len(messages) for messages in rows.messages] == [3] * 2 * ROWS
    assert rows.advantage.notna().all()
