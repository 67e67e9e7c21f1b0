"""Why a rollout ended, by every door: a last answer of an agent that is no action, an environment that never says
done, a tool's answer that had no room.
"""

import json
import re
from collections.abc import Callable
from contextlib import suppress
from itertools import product
from pathlib import Path
from typing import Any

import openai
import pytest

from logs_ui.recorder import current_row, diagnose, record, record_environment, record_trainer, start_run, trace_env
from tests.recorder.api.test_record_environment import Guessing, Seen, make_trainer, teach_tools
from tests.support import old_trl
from tests.support.exhaustive import cases
from tests.support.late import datasets, guess_env, openenv, tiny_model
from tests.support.model_server import TOOL_CALL, ModelServer, chat, chat_choice
from tests.support.stored import rows_of
from tests.support.tool_games import ToolGame
from tests.support.training import generate, guess_server

pytestmark = pytest.mark.versions

FINAL = "Final decision: accept"
TRL_SHAPE = {"name": "guess", "arguments": {"n": 4}}
CALLED = {"type": "call_tool", "tool_name": "guess", "arguments": {"n": 4}}
USED = {"type": "tool_use", "id": "1", "name": "guess", "input": {"n": 4}}
CALLS: list[Any] = [TRL_SHAPE, {"tool": "add", "args": [2, 3]}, CALLED, TOOL_CALL, USED]


def ends(db: Path) -> list[str]:
    return [str(row["stop_reason"]) for row in rows_of(db)]


def answering(content: str | None, *calls: Any) -> dict[str, Any]:
    """A chat completion with real tool calls, or none."""
    message: dict[str, Any] = {"content": content} | ({"tool_calls": list(calls)} if calls else {})
    return chat(chat_choice(ids=False, **message) | {"finish_reason": "tool_calls" if calls else "stop"}, ids=False)


def higher(n: int) -> str:
    return f"higher than {n}"


class Shop:
    """An environment whose step takes anything and never says done."""

    def reset(self) -> str:
        return "A shop."

    def step(self, action: Any) -> str:
        return f"bought {action}"


# --- A last answer that is no action


def test_a_last_answer_after_reported_tool_calls_is_a_stop(db: Path) -> None:
    lasts: list[dict[str, Any]] = [{}, {"reward": 1.0}, {"reward": 0.0, "done": False}]
    told = [*product(CALLS, ["stop", None], lasts)]
    with start_run(db=db) as run:
        for call, finish, last in told:
            with run.rollout("Review it.") as row:
                row.turn("I look.", finish=finish, action=call, observation="fine", done=False)
                row.turn(FINAL, finish=finish, **last)
                row.score(0.0)
    ended = [(row["stop_reason"], row["parse_failures"], row["env_steps"]) for row in rows_of(db)]
    assert ended == [("stop", 0, 1)] * len(told)


@pytest.mark.parametrize("act", ["trace_env", "turn", "openenv"])
def test_a_last_answer_after_real_tool_calls_of_a_traced_client_is_a_stop(
    db: Path, server: ModelServer, client: openai.OpenAI, moody: str, act: str
) -> None:
    server.gives(answering(None, TOOL_CALL), answering("Let me look again.", TOOL_CALL), answering(FINAL))
    with start_run(db=db) as run, run.rollout("Review it.") as row, openenv.GenericEnvClient(moody).sync() as env:
        shop = trace_env(Shop()) if act == "trace_env" else env
        _ = act == "turn" or shop.reset()
        messages: Any = [{"role": "user", "content": "Review it."}]
        for _ in range(3):
            said: Any = client.chat.completions.create(model="tiny", messages=messages).choices[0].message
            if not said.tool_calls:
                break
            action = {"message": said.tool_calls[0].function.arguments}
            if act == "turn":
                row.turn(action=action, observation="fine", done=False)
            else:
                shop.step(action)
            told = {"role": "tool", "tool_call_id": said.tool_calls[0].id, "content": "fine"}
            messages += [said.model_dump(exclude_none=True), told]
        row.score(0.0)
    (stored,) = rows_of(db)
    assert (stored["stop_reason"], stored["parse_failures"], stored["env_steps"]) == ("stop", 0, 2)
    assert stored["messages"][-1]["content"] == FINAL


def test_a_call_that_no_turn_was_left_for_is_no_last_answer(
    db: Path, server: ModelServer, client: openai.OpenAI
) -> None:
    """As of TRL's own loop: the loop ended, the model did not."""
    server.gives(answering(None, TOOL_CALL))
    look = trace_env(higher)
    with start_run(db=db) as run, run.rollout("Guess."):
        for place in range(2):
            client.chat.completions.create(model="tiny", messages=[{"role": "user", "content": "Guess."}])
            if not place:
                look(n=4)
    (row,) = rows_of(db)
    assert (row["stop_reason"], row["parse_failures"]) == ("turn_limit", 0)


FAILED_ACTIONS: list[tuple[str, Any, str]] = [
    ("guess 4", "guess 4", "I think it is 4"),
    ("guess 4", {"guess": 4}, "I think it is 4"),
    ('{"tool": "add", "args": [1]}', {"tool": "add", "args": [1]}, '{"tool": "add", "args": '),
    ('Action: {"name": "guess", "arguments": {}}', TRL_SHAPE, 'Action: {"name": guess}'),
    ("<tool_call>{}</tool_call>", TRL_SHAPE, "<tool_call>{oops"),
    ("", TRL_SHAPE, "tool_call: guess"),
]


def test_a_failed_action_is_none(db: Path) -> None:
    with start_run(db=db) as run:
        for first, action, last in FAILED_ACTIONS:
            with run.rollout("Guess.") as row:
                row.turn(first, finish="stop", action=action, observation="higher", done=False)
                row.turn(last, finish="stop")
                row.score(0.0)
    ended = [(row["stop_reason"], row["parse_failures"], row["parse_tail"]) for row in rows_of(db)]
    assert ended == [("no_action", 1, 1)] * len(FAILED_ACTIONS)


def test_an_unparsable_answer_to_a_real_server_is_none(
    db: Path, moody: str, server: ModelServer, client: openai.OpenAI
) -> None:
    """The same server, and the same last words, after words that were actions."""
    server.gives(answering("say hello"), answering(FINAL))
    with start_run(db=db) as run, run.rollout("Say it."), openenv.GenericEnvClient(moody).sync() as env:
        env.reset()
        for _ in range(2):
            said = client.chat.completions.create(model="tiny", messages=[{"role": "user", "content": "Say it."}])
            if found := re.match("say (.*)", said.choices[0].message.content or ""):
                env.step({"message": found[1]})
    assert ends(db) == ["no_action"]


@pytest.fixture(name="taught")
def _taught() -> tuple[Any, Any]:
    return teach_tools()


def called(text: str) -> int | None:
    found = re.search(r"<tool_call>\s*(\{.*?\})\s*</tool_call>", text, re.DOTALL)
    with suppress(ValueError, KeyError, TypeError):
        return int(json.loads(found[1])["arguments"]["number"]) if found else None
    return None


def calling(play: Callable[[int], str], begin: Callable[[], Any], seen: list[tuple[str, bool]]) -> Any:
    """Return a rollout function whose model calls the tool in its text; `seen` gets its last words and if a turn was
    left.
    """

    def rollout_func(prompts: list[Any], trainer: Any) -> dict[str, Any]:
        tokenizer, rows = trainer.processing_class, []
        for prompt in prompts:
            begin()
            options = {"tools": [Guessing.guess], "add_generation_prompt": True, "return_dict": False}
            context = tokenizer.apply_chat_template(prompt, **options)
            ids: list[int] = []
            mask: list[int] = []
            for turn in range(3):
                (made,) = generate(trainer, [context + ids])
                ids, mask = ids + made.ids, mask + [1] * len(made.ids)
                number = called(made.text)
                if number is None or turn == 2:
                    seen.append((made.text, number is None))
                    break
                told = f"<tool_response>\n{play(number)}\n</tool_response>"
                more = tokenizer(f"\n<|im_start|>user\n{told}<|im_end|>\n<|im_start|>assistant\n")["input_ids"]
                ids, mask = ids + more, mask + [0] * len(more)
            rows.append((context, ids, [-1.0] * len(ids), mask))
        names = ("prompt_ids", "completion_ids", "logprobs", "env_mask")
        return dict(zip(names, map(list, zip(*rows, strict=True)), strict=True))

    return rollout_func


@pytest.mark.exhaustive
@pytest.mark.parametrize("is_socket", cases([False, True], 1))
def test_a_model_that_called_tools_in_a_rollout_function_and_then_spoke_has_stopped(
    taught: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_socket: bool
) -> None:
    """Its calls are steps of a real OpenEnv server over its socket, or of an environment that never says done."""
    monkeypatch.setattr("logs_ui.rollout.demo.guess_rollout.MAX_NEW_TOKENS", 32)
    db, shop = tmp_path / "a.db", trace_env(Shop())
    seen: list[tuple[str, bool]] = []
    with guess_server() as url, guess_env.GuessEnv(base_url=url).sync() as env:

        def step(number: int) -> str:
            _ = env.step(guess_env.GuessAction(guess=number)) if is_socket else shop.step(number)
            return "higher"

        def begin() -> None:
            _ = env.reset(task="hard: 11-25", seed=1) if is_socket else shop.reset()

        prompts = [{"prompt": [tiny_model.say("user", f"Guess. Game {i}.")]} for i in range(8)]
        dataset = datasets.Dataset.from_list(prompts)
        trainer = make_trainer(taught, None, tmp_path / "out", Seen(), dataset=dataset, max_steps=2)
        trainer.rollout_func = record(calling(step, begin, seen), db=db)
        trainer.train()
    rows = rows_of(db)
    assert len(rows) == len(seen) == 16
    spoke = [(row, text) for row, (text, was_last) in zip(rows, seen, strict=True) if was_last and row["env_steps"]]
    assert spoke
    for row, text in spoke:
        assert (row["stop_reason"], row["parse_failures"]) == (("no_action", 1) if "tool_call" in text else ("stop", 0))
    assert "stop" in {row["stop_reason"] for row, _ in spoke}


def test_who_says_that_it_was_a_last_answer_is_believed_by_the_waterfall_too(db: Path, moody: str) -> None:
    with start_run(db=db) as run, openenv.GenericEnvClient(moody).sync() as env:
        for place in range(32):
            with run.rollout("Say it.", step=place // 4, group=str(place // 4)) as row:
                env.reset()
                for text in ("hello", "what?", FINAL):
                    row.turn(text, finish="stop")
                    if text == "hello":
                        env.step({"message": text})
                (row if place % 4 < 2 else current_row()).stop("stop")
                row.score(place % 2)
    rows = rows_of(db)
    assert {(row["stop_reason"], row["parse_failures"], row["parse_tail"]) for row in rows} == {("stop", 1, 0)}
    assert {share.cause.id for share in diagnose(db=db).fall.shares} == {"wrong_answer"}


# --- An environment that never says done


def test_an_environment_that_never_says_done_is_not_recorded(
    db: Path, server: ModelServer, client: openai.OpenAI
) -> None:
    server.gives(answering(None, TOOL_CALL))
    look = trace_env(higher)
    asked: Any = [{"role": "user", "content": "Guess."}]
    with start_run(db=db) as run:
        with run.rollout("tools"):
            for _ in range(2):
                client.chat.completions.create(model="tiny", messages=asked)
                look(n=4)
        with run.rollout("steps"):
            shop = trace_env(Shop())
            shop.reset()
            for _ in range(2):
                client.chat.completions.create(model="tiny", messages=asked)
                shop.step("tea")
        with run.rollout("reported") as row:
            for _ in range(2):
                row.turn("I look.", finish="stop", action=TRL_SHAPE, observation="fine")
        with run.rollout("no model heard"):
            for _ in range(3):
                shop.step("tea")
        with run.rollout("no model heard, tools"):
            for _ in range(3):
                look(n=4)
    assert ends(db) == ["not_recorded"] * 5


def test_an_environment_that_says_that_it_goes_on_has_a_turn_limit(db: Path, moody: str) -> None:
    """Also if the model was not heard."""
    with start_run(db=db) as run, openenv.GenericEnvClient(moody).sync() as env:
        for is_heard in (True, False):
            with run.rollout("Say it.") as row:
                env.reset()
                for _ in range(2):
                    if is_heard:
                        row.turn("hello", finish="stop")
                    env.step({"message": "hello"})
    assert ends(db) == ["turn_limit"] * 2


# --- A tool's answer that had no room


def told(number: int) -> str:
    """Return the answer of a tool, which for the number 3 no completion has room for."""
    return "higher" + " and higher" * (400 if number == 3 else 0)


class Wordy(ToolGame):
    """An environment that says much."""

    def _answer(self, number: int) -> Any:
        return told(number)


def guess(number: int) -> str:
    """Guesses the number.

    Args:
        number: What to guess.
    """
    return told(number)


@pytest.mark.exhaustive
@pytest.mark.skipif(old_trl.IS_OLD, reason="TRL 0.29 keeps the beginning of such an answer, and so cuts the completion")
@pytest.mark.parametrize("by_environment", [True, False])
def test_a_completion_without_room_for_a_tools_answer_is_not_truncated(
    taught: Any, tmp_path: Path, *, by_environment: bool
) -> None:
    db, seen = tmp_path / "a.db", Seen()
    factory, tools = (record_environment(Wordy, db=db), None) if by_environment else (None, [guess])
    rows = [{"prompt": [tiny_model.say("user", "Guess." if by_environment else f"Guess. Game {i}.")]} for i in range(8)]
    dataset = datasets.Dataset.from_list(rows)
    trainer = make_trainer(taught, factory, tmp_path / "out", seen, tools=tools, dataset=dataset, max_steps=4)
    if not by_environment:
        record_trainer(trainer, db=db)
    trainer.train()
    ended: dict[bool, list[Any]] = {True: [], False: []}
    for row in rows_of(db):
        calls = [action for action in row["actions"] if action["action"]]
        dropped = sum(message["role"] == "tool" for message in row["messages"]) < len(calls)
        assert not dropped or calls[-1]["action"]["arguments"] == {"number": 3}
        ended[dropped].append((row["stop_reason"], row["no_room"], row["truncated_turns"]))
    assert set(ended[True]) == {("length", 1, 0)}
    assert {no_room for _, no_room, _ in ended[False]} == {0}
    assert not [row for row in ended[False] if row[0] == "length"]
    report = diagnose(db=db)
    (said,) = [it.said for it in report.checked if it.id == "truncation"]
    assert said.startswith("0% of rollouts are truncated")


def test_a_generation_that_was_cut_is_truncated_whatever_a_tool_said(taught: Any, tmp_path: Path) -> None:
    """The model's next answer has some room, and less than it takes."""
    db, seen = tmp_path / "a.db", Seen()
    rows = datasets.Dataset.from_list([{"prompt": [tiny_model.say("user", "Guess.")]} for _ in range(8)])
    factory = record_environment(Wordy, db=db)
    make_trainer(taught, factory, tmp_path / "out", seen, dataset=rows, max_steps=2, max_completion_length=28).train()
    cut = [row for row in rows_of(db) if row["completion_ids"][-1] != taught[0].eos_token_id]
    assert cut
    assert {(row["stop_reason"], row["no_room"]) for row in cut} == {("length", 0)}
