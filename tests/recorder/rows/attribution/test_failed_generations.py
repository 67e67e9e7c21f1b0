"""Model calls that bring no answer, made by the openai package's own client: they are on their rows, or counted."""

import asyncio
import json
import random
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import openai
import pytest

from logs_ui.recorder import flush, load_runs, record, start_run, trace_env
from logs_ui.recorder.capture.calls import Generation
from logs_ui.recorder.capture.model_answers import Sequence as Answer
from logs_ui.recorder.errors import NoDatabaseError, RunNotFoundError
from logs_ui.recorder.queries.search.rollout_texts import parts_of
from logs_ui.recorder.rows.attribution import RowCalls, Turn
from logs_ui.recorder.rows.tokens import with_logprobs
from logs_ui.recorder.storage.payload import Tokens
from tests.support.changes import wait_until
from tests.support.exhaustive import cases
from tests.support.late import guess_model
from tests.support.model_server import ModelServer, Reply, chat, chat_choice, completion
from tests.support.old_calls import StandInTrainer, call_as_025, generating
from tests.support.payloads import pack_content
from tests.support.stored import only_run, rows_of

QUESTION: Any = [{"role": "user", "content": "Guess."}]
REFUSED = Reply({"error": {"message": "no GPU is left", "code": 503}}, status=503)
REFUSAL = "InternalServerError: Error code: 503"

Play = Callable[[int], None]
END, INSERTED = 2, 3


class Held(list[bytes]):
    """The parts of a reply, which come once they may."""

    def __init__(self, data: bytes, may_come: threading.Event) -> None:
        super().__init__([data])
        self._may_come = may_come

    def __iter__(self) -> Iterator[bytes]:
        assert self._may_come.wait(60)
        return super().__iter__()


def held() -> tuple[Reply, threading.Event]:
    may_come = threading.Event()
    return Reply(Held(json.dumps(chat()).encode(), may_come)), may_come


def ask(client: Any, messages: Any = QUESTION, model: str = "tiny", **more: Any) -> Any:
    try:
        return client.chat.completions.create(model=model, messages=messages, **more)
    except openai.APIStatusError:
        return None


def rows_so_far(db: Path) -> list[dict[str, Any]]:
    with suppress(NoDatabaseError, RunNotFoundError):
        return rows_of(db)
    return []


def attempts(row: dict[str, Any]) -> list[tuple[int, str]]:
    """Of its failed calls the turn, and what the error begins with."""
    told = [(entry["turn"], entry["generation"]) for entry in row["actions"] if "error" in entry.get("generation", ())]
    assert all(entry["seconds"] >= 0 for _, entry in told)
    return [(turn, entry["error"][: len(REFUSAL)]) for turn, entry in told]


def played(
    db: Path, server: ModelServer, client: openai.OpenAI, each: Callable[[Play, int], None], scripts: Sequence[str]
) -> list[dict[str, Any]]:
    """The rows of a rollout function, two of each prompt, each of which asks the model as its script says: "+" is
    answered, and "-" refused, most often to be asked again; "j" asks a judge, which is refused.
    """
    prompts = [[{"role": "user", "content": f"Guess {row // 2}."}] for row in range(len(scripts))]
    ids = [[4, 5 + row // 2] for row in range(len(scripts))]
    replies, completions = [], []
    for row, script in enumerate(scripts):
        given = list(ids[row])
        for number, outcome in enumerate(script):
            sampled = [20 + 10 * number + row, END]
            choice = chat_choice() | {"token_ids": sampled}
            replies.append(chat(choice) | {"prompt_token_ids": list(given)} if outcome == "+" else REFUSED)
            given += [*sampled, INSERTED] if outcome == "+" else []
        completions.append(given[2:-1] or [END])
    server.gives(*replies)

    def play(row: int) -> None:
        messages = [*prompts[row]]
        for outcome in scripts[row]:
            model = "judge" if outcome == "j" else "tiny"
            answer = ask(client, messages, model, extra_body={"return_token_ids": True})
            assert (answer is None) == (outcome != "+")
            messages += [] if answer is None else [{"role": "user", "content": f"no, {row}"}]

    def rollout(_given: list[Any], _args: Any, _processing: Any) -> dict[str, Any]:
        each(play, len(scripts))
        logprobs = [[0.0] * len(completion) for completion in completions]
        return {"prompt_ids": ids[::2], "completion_ids": completions, "logprobs": logprobs}

    recorded = record(rollout, eval_name="guess", db=db, announce=False)
    call_as_025(recorded, prompts[::2], guess_model.make_tokenizer(), num_generations=2)
    assert flush()
    return rows_of(db)


def one_by_one(play: Play, count: int) -> None:
    for row in range(count):
        play(row)


def in_tasks(play: Play, count: int) -> None:
    with ThreadPoolExecutor(1) as pool:
        list(pool.map(play, range(count)))


def test_a_rollout_whose_only_call_failed_says_so(db: Path, server: ModelServer, client: openai.OpenAI) -> None:
    server.gives(REFUSED)
    with start_run(db=db) as run, run.rollout(QUESTION) as row:
        assert ask(client) is None
        row.score(0.0)
    (stored,) = rows_of(db)
    assert attempts(stored) == [(1, REFUSAL)]
    assert (stored["status"], stored["stop_reason"], stored["turns"]) == ("error", "exception", None)
    assert "no GPU is left" in stored["error"]
    assert stored["seconds"] > 0
    assert (stored["env_steps"], stored["env_errors"]) == (None, None), "it is not the environment's"
    assert only_run(db).unattributed_calls == 0


def test_one_that_was_tried_again_is_no_error_of_the_row(db: Path, server: ModelServer, client: openai.OpenAI) -> None:
    server.gives(chat(), REFUSED, chat())
    with start_run(db=db) as run, run.rollout(QUESTION) as row:
        ask(client)
        row.turn(action={"guess": 4}, observation="low")
        ask(client)
        ask(client)
    (stored,) = rows_of(db)
    assert (stored["status"], stored["turns"], stored["error"]) == ("ok", 2, None)
    assert [(entry["turn"], entry["text"]) for entry in stored["actions"]] == [(1, "4"), (2, None), (2, "4")]
    assert attempts(stored) == [(2, REFUSAL)]


def test_what_was_given_up_is_a_timeout(db: Path, server: ModelServer) -> None:
    reply, may_come = held()
    server.gives(reply)

    async def play() -> None:
        async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="sk-x", max_retries=0) as client:
            with start_run(db=db) as run, run.rollout(QUESTION), pytest.raises(TimeoutError):
                await asyncio.wait_for(ask(client), 0.05)

    asyncio.run(play())
    may_come.set()
    (stored,) = rows_of(db)
    assert (stored["status"], stored["stop_reason"]) == ("error", "timeout")
    assert stored["error"].startswith("CancelledError")


def test_one_that_is_asked_beside_another_that_answers_is_no_loss(
    db: Path, server: ModelServer, client: openai.OpenAI
) -> None:
    reply, may_come = held()
    server.gives(reply, REFUSED)
    with start_run(db=db) as run, run.rollout(QUESTION), ThreadPoolExecutor(2) as pool:
        slow = pool.submit(ask, client)
        try:
            wait_until(lambda: len(server.replies) <= 1)
            assert pool.submit(ask, client).result() is None
        finally:
            may_come.set()
        assert slow.result() is not None
    (stored,) = rows_of(db)
    assert (stored["status"], len(attempts(stored))) == ("ok", 1)


@pytest.mark.exhaustive
def test_a_row_shows_the_model_that_it_waits_for(db: Path, server: ModelServer, client: openai.OpenAI) -> None:
    reply, may_come = held()
    server.gives(reply)
    with start_run(db=db) as run, ThreadPoolExecutor(1) as pool, run.rollout(QUESTION):
        hangs = pool.submit(ask, client)
        try:
            wait_until(lambda: any(row["actions"] for row in rows_so_far(db)))
            actions = [entry for row in rows_so_far(db) for entry in row["actions"]]
        finally:
            may_come.set()
        assert hangs.result() is not None
    assert [(entry["turn"], entry["generation"]) for entry in actions] == [(1, {"waiting": True})]
    (stored,) = rows_of(db)
    assert [(entry["turn"], entry["text"]) for entry in stored["actions"]] == [(1, "4")]


def test_it_is_told_by_the_task_that_it_was_made_in(db: Path, server: ModelServer, client: openai.OpenAI) -> None:
    rows = played(db, server, client, in_tasks, ["+", "--+", "-", "+-"])
    assert [attempts(row) for row in rows] == [[], [(1, REFUSAL)] * 2, [(1, REFUSAL)], [(2, REFUSAL)]]
    assert [row["status"] for row in rows] == ["ok", "ok", "error", "error"]
    assert only_run(db).unattributed_calls == 0


def test_it_is_told_by_what_was_asked_again(db: Path, server: ModelServer, client: openai.OpenAI) -> None:
    rows = played(db, server, client, one_by_one, ["+-+", "++-+", "+-+", "+-+"])
    assert [attempts(row) for row in rows] == [[(2, REFUSAL)], [(3, REFUSAL)], [(2, REFUSAL)], [(2, REFUSAL)]]
    assert [row["metadata"]["attribution"] for row in rows] == ["context"] * 4
    assert only_run(db).unattributed_calls == 0


@pytest.mark.parametrize("each", [one_by_one, in_tasks])
def test_a_judges_failure_is_no_rows(
    db: Path, server: ModelServer, client: openai.OpenAI, each: Callable[[Play, int], None]
) -> None:
    rows = played(db, server, client, each, ["+j", "+-+j"])
    assert [attempts(row) for row in rows] == [[], [(2, REFUSAL)]]
    assert [row["status"] for row in rows] == ["ok", "ok"]
    assert only_run(db).unattributed_calls == 2


def test_a_judges_failure_is_not_that_of_the_row_in_whose_scope_it_is(
    db: Path, server: ModelServer, client: openai.OpenAI
) -> None:
    server.gives(chat(), REFUSED)
    with start_run(db=db) as run, run.rollout(QUESTION):
        ask(client)
        ask(client, model="judge")
    (stored,) = rows_of(db)
    assert (stored["status"], attempts(stored), only_run(db).unattributed_calls) == ("ok", [], 1)


@pytest.mark.parametrize("simulator", ["user", "tiny"])
def test_what_failed_within_an_environment_is_no_turn(
    db: Path, server: ModelServer, client: openai.OpenAI, simulator: str
) -> None:
    server.gives(chat(chat_choice() | {"token_ids": [20, END]}) | {"prompt_token_ids": [4, 5]}, REFUSED, REFUSED)

    class Environment:
        def step(self, _action: Any) -> str:
            assert ask(client, model=simulator) is None
            return "go on"

    def rollout(_given: list[Any], _args: Any, _processing: Any) -> dict[str, Any]:
        ask(client, extra_body={"return_token_ids": True})
        trace_env(Environment()).step({"say": 4})
        ask(client, model="judge")
        return {"prompt_ids": [[4, 5]], "completion_ids": [[20, END]], "logprobs": None}

    call_as_025(record(rollout, db=db, announce=False), [QUESTION], guess_model.make_tokenizer())
    assert flush()
    (stored,) = rows_of(db)
    assert (stored["status"], attempts(stored), only_run(db).unattributed_calls) == ("ok", [], 2)


def test_no_key_that_a_server_repeats_is_stored(db: Path, server: ModelServer, client: openai.OpenAI) -> None:
    key = "sk-" + "a1" * 20
    server.gives(Reply({"error": {"message": f"api_key={key} is not {key}", "code": 401}}, status=401))
    with start_run(db=db) as run, run.rollout(QUESTION):
        ask(client)
    (stored,) = rows_of(db)
    assert key[:10] not in repr(stored)
    assert "api_key=*** is not ***" in stored["error"]
    assert stored["actions"][0]["generation"]["error"] == stored["error"]


@pytest.mark.parametrize("kept", [4, 3, 2, 1])
def test_a_turn_that_the_rows_end_cuts_keeps_its_logprobs(kept: int) -> None:
    prompt, sampled = np.array([1, 2], np.int32), np.array([5, 6, 7, 8], np.int32)
    sequence = Answer(prompt, sampled, "length", np.array([-1, -2, -3, -4], np.float32))
    row = RowCalls([Turn(0, Generation(0, 0, 1, [sequence], {}), sequence, 0)])
    found = with_logprobs(row, Tokens(prompt, sampled[:kept], None, None))
    assert found is not None
    assert found.logprobs is not None
    assert found.logprobs.tolist() == [-1, -2, -3, -4][:kept]
    other = np.array([9], np.int32)
    assert with_logprobs(row, tokens := Tokens(prompt, other, None, None)) is tokens


def test_those_of_nobody_are_counted_with_their_errors(db: Path, server: ModelServer, client: openai.OpenAI) -> None:
    rows = played(db, server, client, one_by_one, ["+", "+", "--", "+"])
    assert [attempts(row) for row in rows] == [[]] * 4, "the last row may have asked the second one"
    run = only_run(db)
    assert (run.unattributed_calls, list((run.unattributed_errors or {}).values())) == (2, [2])
    (error,) = run.unattributed_errors or {}
    assert error.startswith(REFUSAL)
    (listed,) = load_runs(db).unattributed_errors
    assert listed == run.unattributed_errors


@pytest.mark.exhaustive
def test_several_batches_are_counted_together_and_the_most_frequent_errors_kept(
    db: Path, server: ModelServer, client: openai.OpenAI
) -> None:
    named = [f"refused {chr(65 + i // 3)}" for i in range(69)]  # 23 errors, three times each, and the last a fourth
    server.gives(*[Reply({"error": {"message": it, "code": 503}}, status=503) for it in [*named, named[-1]]])

    def rollout(given: list[Any], _args: Any, _processing: Any) -> dict[str, Any]:
        for _ in range(35):
            ask(client, [{"role": "user", "content": "a judge's"}])
        return {"prompt_ids": [[4]] * 2, "completion_ids": [[5, END]] * 2, "logprobs": None}

    recorded = record(rollout, db=db, announce=False)
    trainer = StandInTrainer(guess_model.make_tokenizer())
    for _ in range(2):
        with generating(trainer):
            recorded([QUESTION] * 2, trainer.args, trainer.processing_class)
    assert flush()
    run = only_run(db)
    assert run.unattributed_calls == 70
    errors = run.unattributed_errors or {}
    assert len(errors) == 20
    assert max(errors, key=lambda it: errors[it]).endswith("refused W")
    assert sum(errors.values()) == 61


IN_TURN = {
    "single turns": ["+", "-", "+", "+", "-", "-", "+", "-"],
    "the first and the last": ["-", "+", "+", "-"],
    "all": ["-", "-", "-", "-"],
    "later turns": ["+-", "++", "+", "+-", "++-", "+"],
    "tried again": ["-+", "--+", "+-+", "-+"],
    "some of each": ["+", "-", "+", "+-", "+", "-+"],
}


@pytest.mark.parametrize("scripts", IN_TURN.values(), ids=IN_TURN)
def test_those_of_a_loop_are_of_the_row_between_whose_calls_they_lie(
    db: Path, server: ModelServer, client: openai.OpenAI, scripts: list[str]
) -> None:
    rows = played(db, server, client, one_by_one, scripts)
    for row, script in zip(rows, scripts, strict=True):
        turns = [1 + script[:place].count("+") for place, outcome in enumerate(script) if outcome == "-"]
        assert attempts(row) == [(turn, REFUSAL) for turn in turns]
    assert [row["status"] for row in rows] == ["error" if script[-1] == "-" else "ok" for script in scripts]
    assert (only_run(db).unattributed_calls, only_run(db).unattributed_errors) == (0, None)


def test_so_is_one_that_sent_a_text(db: Path, server: ModelServer, client: openai.OpenAI) -> None:
    server.gives(completion("4", prompts=([4],)), REFUSED, completion("4", prompts=([5],)))

    def rollout(_given: list[Any], _args: Any, _processing: Any) -> dict[str, Any]:
        for prompt in ("Guess 0.", "Guess 1.", "Guess 1."):
            with suppress(openai.APIStatusError):
                client.completions.create(model="tiny", prompt=prompt)
        return {"prompt_ids": [[4], [5]], "completion_ids": [[7, END]] * 2, "logprobs": None}

    prompts = [[{"role": "user", "content": f"Guess {row}."}] for row in range(2)]
    call_as_025(record(rollout, db=db, announce=False), prompts, guess_model.make_tokenizer(), num_generations=1)
    assert flush()
    assert [attempts(row) for row in rows_of(db)] == [[], [(1, REFUSAL)]]


def test_a_call_that_asks_something_else_is_of_no_row_without_calls(
    db: Path, server: ModelServer, client: openai.OpenAI
) -> None:
    server.gives(chat(chat_choice() | {"token_ids": [20, END]}) | {"prompt_token_ids": [4]}, REFUSED)
    prompts = [[{"role": "user", "content": f"Guess {row}."}] for row in range(2)]

    def rollout(_given: list[Any], _args: Any, _processing: Any) -> dict[str, Any]:
        ask(client, prompts[0], extra_body={"return_token_ids": True})
        ask(client, [{"role": "user", "content": "Judge the answer of Guess 0."}])  # the second answer is from a cache
        return {"prompt_ids": [[4], [5]], "completion_ids": [[20, END], [30, END]], "logprobs": None}

    tokenizer = guess_model.make_tokenizer()
    call_as_025(record(rollout, db=db, announce=False), prompts, tokenizer, num_generations=1)
    assert flush()
    assert [row["status"] for row in rows_of(db)] == ["ok", "ok"]
    assert only_run(db).unattributed_calls == 1


@pytest.mark.parametrize("seed", cases(range(40), 2))
def test_none_is_on_the_row_of_another(db: Path, server: ModelServer, client: openai.OpenAI, seed: int) -> None:
    ways = ["+", "-", "--", "-+", "--+", "+-", "++", "+-+", "+--+"]
    scripts = random.Random(seed).choices(ways, k=8)
    rows = played(db, server, client, one_by_one, scripts)
    placed = [len(attempts(row)) for row in rows]
    assert all(count <= script.count("-") for count, script in zip(placed, scripts, strict=True)), scripts
    lost = only_run(db)
    assert sum(placed) + lost.unattributed_calls == "".join(scripts).count("-")
    assert sum((lost.unattributed_errors or {}).values()) == lost.unattributed_calls


def test_another_models_failure_is_on_a_row_of_both_and_does_not_end_it(
    db: Path, server: ModelServer, client: openai.OpenAI
) -> None:
    for last in ("judge", "tiny"):
        server.gives(chat(), chat(), REFUSED)
        with start_run(db=db) as run, run.rollout(QUESTION):
            ask(client)
            ask(client, model="judge")
            ask(client, model=last)
        (stored,) = rows_of(db)
        assert attempts(stored) == [(3, REFUSAL)]
        assert stored["status"] == ("ok" if last == "judge" else "error")


@pytest.mark.parametrize("before", [0, 2])
def test_one_that_ends_the_function_is_told_on_all_rows_and_those_before_it_with_its_words_are_counted(
    db: Path, server: ModelServer, client: openai.OpenAI, before: int
) -> None:
    server.gives(REFUSED, REFUSED, REFUSED)

    def rollout(_prompts: list[Any], _args: Any, _processing: Any) -> Any:
        assert [ask(client) for _ in range(before)] == [None] * before
        return client.chat.completions.create(model="tiny", messages=QUESTION)

    with pytest.raises(openai.InternalServerError):
        call_as_025(record(rollout, db=db, announce=False), [QUESTION], guess_model.make_tokenizer(), num_generations=2)
    assert flush()
    assert [row["error"][: len(REFUSAL)] for row in rows_of(db)] == [REFUSAL] * 2
    assert only_run(db).unattributed_calls == before, "that the last one is of neither alone is no riddle"


def test_one_that_never_came_back_is_the_rollouts_timeout(db: Path, server: ModelServer, client: openai.OpenAI) -> None:
    reply, may_come = held()
    server.gives(reply)
    with start_run(db=db) as run, ThreadPoolExecutor(1) as pool:
        with run.rollout(QUESTION):
            hangs = pool.submit(ask, client)
            wait_until(lambda: bool(server.asked))
        may_come.set()
        assert hangs.result() is not None
    (stored,) = rows_of(db)
    assert stored["error"] == "TimeoutError: the rollout ended before this call came back"
    assert (stored["status"], stored["stop_reason"], len(stored["actions"])) == ("error", "timeout", 1)
    assert stored["actions"][0]["generation"]["error"] == stored["error"]


def test_what_it_raised_is_found_by_its_words() -> None:
    failed = {"turn": 1, "text": None, "generation": {"seconds": 1.0, "error": "InternalServerError: no GPU is left"}}
    content = pack_content({"actions": [failed, {"turn": 1, "generation": ["odd"]}]})
    assert parts_of(None, None, content, None) == ("", "", "", "InternalServerError: no GPU is left")
