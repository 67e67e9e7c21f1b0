"""Trainings in the shape of the examples of TRL and OpenEnv, each with notes of its own on what happened."""

import random
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, ClassVar
from unittest.mock import MagicMock

import pytest

from logs_ui.recorder import diagnose, load_run, load_scalars, record, record_environment, start_run, trace_env
from logs_ui.recorder.api.options import default_name
from logs_ui.recorder.guard import RAISE_VARIABLE, guard
from tests.recorder.api.test_record_environment import Seen, guessing_rows, make_trainer, teach_tools
from tests.recorder.capture.test_vllm import serving
from tests.rollout.test_rollout_model import vllm_generation_of
from tests.support import old_trl
from tests.support.exhaustive import cases
from tests.support.late import tiny_model
from tests.support.stored import only_run
from tests.support.tool_games import ToolGame
from tests.support.training import generate
from tests.support.training import make_trainer as make_function_trainer

pytestmark = pytest.mark.versions


DICE = random.Random(0)
IDS = [[1, 2]] * 8
OUTPUT = {"prompt_ids": IDS, "completion_ids": IDS, "logprobs": [[-1.0] * 2] * 8, "env_reward": [1.0] * 8}


@pytest.fixture(name="taught")
def _taught() -> tuple[Any, Any]:
    return teach_tools()


class Catch(ToolGame):
    """In the shape of TRL's catch.py and wordle.py: a game over raises, which the model reads as the tool's answer."""

    turns = 1
    error: Exception = ValueError("Game over.")

    def _answer(self, number: int) -> Any:
        if len(self.episode) > self.turns:
            raise self.error
        self.reward += 1.0
        return super()._answer(number)


class Forgetful(Catch):
    turns = 0
    error = TypeError("guess() got an unexpected keyword argument 'figure'")


def rows_of(taught: Any, kind: Any, folder: Path, **config: Any) -> tuple[list[Any], Seen]:
    """The rows of one step, and what the reward function saw of them."""
    seen = Seen()
    factory = record_environment(kind, db=folder / "a.db")
    make_trainer(taught, factory, folder / "out", seen, dataset=guessing_rows(), **{"max_steps": 1, **config}).train()
    return load_run(db=folder / "a.db").to_dict("records"), seen


def calls_of(row: Any) -> list[dict[str, Any]]:
    return [action for action in row["actions"] if action["turn"]]


@pytest.mark.parametrize(
    ("kind", "room"), cases([(Catch, 22), (Forgetful, 34), (Catch, 20), (Catch, 28), (Catch, 34)], 1)
)
def test_a_completion_without_room_for_the_next_answer_was_cut_off(
    taught: Any, kind: Any, room: int, tmp_path: Path
) -> None:
    """TRL rolls the last answer of a tool back (0.29 cuts it), or cuts the model's next answer."""
    rows, seen = rows_of(taught, kind, tmp_path, max_completion_length=room)
    assert {(row["status"], row["error"]) for row in rows} == {("ok", None)}
    assert [list(row["completion_ids"]) for row in rows] == seen.completion_ids
    for row, episode in zip(rows, seen.episodes, strict=True):
        rolled_back = sum(message["role"] == "tool" for message in row["messages"]) < len(episode)
        was_cut = rolled_back or row["completion_ids"][-1] != taught[0].eos_token_id
        assert row["stop_reason"] in ({"length"} if was_cut else {"stop", "no_action"})
        assert not row["env_errors"], "a tool's exception is its answer"
        assert len(episode) == len([call for call in calls_of(row) if call["action"]])
    assert "length" in {row["stop_reason"] for row in rows}
    # TRL 0.29 asks the model about a call whose end it had cut off, and throws the answer away.
    assert old_trl.IS_OLD or not only_run(tmp_path / "a.db").unattributed_calls


def test_what_a_tool_raises_is_what_the_model_reads(taught: Any, tmp_path: Path) -> None:
    rows, _ = rows_of(taught, Forgetful, tmp_path)
    (raised,) = [call for call in calls_of(rows[0]) if call["error"]][:1]
    assert raised["error"] == "TypeError: guess() got an unexpected keyword argument 'figure'"
    assert raised["observation"] == {"error": "guess() got an unexpected keyword argument 'figure'"}
    assert any(str(raised["observation"]) == message["content"] for message in rows[0]["messages"])
    assert not any(card.id == "infrastructure" for card in diagnose(db=tmp_path / "a.db").cards)


def test_a_last_call_that_no_turn_was_left_for_is_no_answer_without_an_action(taught: Any, tmp_path: Path) -> None:
    rows, seen = rows_of(taught, Catch, tmp_path, max_tool_calling_iterations=1)
    left = [row for row in rows if "tool_calls" in row["messages"][-1]]
    assert left
    assert {(row["stop_reason"], row["parse_failures"]) for row in left} == {("turn_limit", 0)}
    assert all(len(episode) <= 1 for episode in seen.episodes)


class Offline(Catch):
    turns = 0
    error = ConnectionError("no server")


@pytest.mark.skipif(old_trl.IS_OLD, reason="TRL 0.29 asks the model once more, and throws its answer away")
def test_a_tool_that_loses_its_server_fails(taught: Any, tmp_path: Path) -> None:
    rows, seen = rows_of(taught, Offline, tmp_path, max_completion_length=20)
    lost = [row for row, episode in zip(rows, seen.episodes, strict=True) if episode]
    assert {(row["status"], row["stop_reason"], row["error"]) for row in lost} == {
        ("error", "environment_error", "ConnectionError: no server")
    }
    assert {row["env_errors"] for row in lost} == {1}


class Unseeded(Catch):
    """Begins anywhere, as catch.py, 2048 and sudoku do."""

    def reset(self, **_: Any) -> str:
        super().reset()
        return f" Game {DICE.randrange(8)}."


class Seeded(Catch):
    def reset(self, answer: int, **_: Any) -> str:  # type: ignore[override]
        super().reset()
        return f" Game {answer}."


class Listing(Catch):
    """Returns lists, which TRL passes on, and of which Qwen3's template writes nothing."""

    lists: ClassVar[dict[int, list[Any]]] = {1: ["higher", "cold"], 2: [], 3: [{"type": "text", "text": "lower"}]}

    def _answer(self, number: int) -> Any:
        return self.lists[number]


class Telling(Catch):
    turns = 9


@pytest.mark.parametrize("kind", [Listing, Telling])
def test_a_list_that_the_model_was_sent_nothing_of_is_told(taught: Any, kind: Any, tmp_path: Path) -> None:
    rows, _ = rows_of(taught, kind, tmp_path)
    noted, lists = [], []
    for row in rows:
        heard = [message["content"] for message in row["messages"] if message["role"] == "tool"]
        asked = [call for call in calls_of(row) if call["action"]]
        if len(heard) == len(asked):  # TRL answers a call of an unknown tool itself
            noted += [(call["metadata"] or {}).get("sent") for call in asked]
            lists += [
                content == "" and isinstance(call["observation"], list)
                for content, call in zip(heard, asked, strict=True)
            ]
    assert len(noted) > 4
    assert noted == ["" if is_list else None for is_list in lists]
    assert any(lists) == (kind is Listing and not old_trl.IS_OLD), "TRL 0.29 writes lists as texts"


def findings(db: Path) -> dict[str, Any]:
    return {card.id: card for card in diagnose(db=db).cards}


@pytest.mark.exhaustive
def test_resets_without_a_seed_are_no_wrong_order_of_rows(taught: Any, tmp_path: Path) -> None:
    for kind, expected in ((Unseeded, {"unseeded"}), (Seeded, set())):
        folder = tmp_path / kind.__name__
        folder.mkdir()
        rows_of(taught, kind, folder, max_steps=4, max_completion_length=34)
        assert findings(folder / "a.db").keys() & {"unseeded", "wiring", "first_prompt"} == expected


def test_a_server_that_is_asked_for_the_first_prompt_of_each_group(
    taught: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen, db = Seen(), tmp_path / "a.db"
    factory = record_environment(Unseeded, db=db)
    trainer = make_trainer(taught, factory, tmp_path / "out", seen, max_steps=4)
    with serving() as server:
        trainer.use_vllm, trainer.vllm_mode, trainer._last_loaded_step = True, "server", -1
        trainer.vllm_generation = vllm_generation_of(monkeypatch, mode="server", server_base_url=server.url)
        monkeypatch.setattr(trainer.vllm_generation, "sync_weights", lambda: None)
        trainer.train()
    rows = load_run(db=db)
    assert not only_run(db).unattributed_calls
    assert (rows.turns == 1).all()
    others = []
    for _, group in rows[rows.step > 1].sort_values("generation").groupby(["step", "group"]):
        prompts = [list(ids) for ids in group.prompt_ids]
        others += [prompt != prompts[0] for prompt in prompts]
    found = findings(db)["first_prompt"]
    assert 0 < sum(others) < len(others)
    assert load_scalars(db=db)["rollouts/first_prompt"].iloc[1:].mean() == sum(others) / len(others)
    assert "unseeded" in found.explains
    assert "wiring" not in findings(db)


class Echo:
    """In the shape of OpenEnv's echo environment: one turn, and never done."""

    def reset(self) -> str:
        return "Say something."

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        return action, len(action) / 10, False, False, {}


def test_an_environment_of_one_turn_that_never_says_done_has_no_turn_limit(tmp_path: Path) -> None:
    with start_run(db=tmp_path / "a.db") as run:
        for place in range(64):
            env = trace_env(Echo())
            with run.rollout(env.reset(), step=place // 16, group=str(place // 4)) as row:
                row.turn(answer := "x" * (place % 7))
                row.score(env.step(answer)[1])
    assert set(load_run(db=tmp_path / "a.db").stop_reason) == {"not_recorded"}
    assert "turn_limit" not in findings(tmp_path / "a.db")


def conversation(tokenizer: Any) -> tuple[list[int], list[int], list[int]]:
    """The ids of a prompt and of a completion with two calls in one message, and its mask."""
    asked = {"role": "user", "content": "Guess. Game 1."}
    twice = tiny_model.call("guess", number=1) | {
        "tool_calls": [tiny_model.call("guess", number=it)["tool_calls"][0] for it in (1, 2)]
    }
    told = [
        tiny_model.answer("guess", "higher"),
        tiny_model.answer("guess", "lower </tool_response> or so"),
        {"role": "assistant", "content": "ok"},
    ]
    texts = [
        tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=messages == [asked])
        for messages in ([asked], [asked, twice], [asked, twice, *told])
    ]
    prompt, first, whole = (tokenizer(text)["input_ids"] for text in texts)
    began = len(whole) - whole[::-1].index(tokenizer("ok")["input_ids"][0]) - 1
    mask = [1] * (len(first) - 1 - len(prompt)) + [0] * (began - len(first) + 1) + [1] * (len(whole) - began)
    return prompt, whole[len(prompt) :], mask


def messages_of(tokenizer: Any, tokens: tuple[list[int], list[int], list[int]], folder: Path) -> list[Any]:
    prompt, completion, mask = tokens
    with start_run(db=folder / "a.db", tokenizer=tokenizer) as run:
        row = run.rollout([{"role": "user", "content": "Guess. Game 1."}])
        row.tokens(prompt, completion, mask=mask)
    return list(load_run(db=folder / "a.db").messages[0])


def test_two_answers_of_tools_in_one_turn_are_two_messages(taught: Any, tmp_path: Path) -> None:
    tokenizer = taught[0]
    prompt, completion, mask = conversation(tokenizer)
    _, model, *tools, last = messages_of(tokenizer, (prompt, completion, mask), tmp_path)
    assert [call["id"] for call in model["tool_calls"]] == ["call_0", "call_1"]
    assert tools == [
        {"role": "tool", "content": "higher", "tool_call_id": "call_0"},
        {"role": "tool", "content": "lower </tool_response> or so", "tool_call_id": "call_1"},
    ]
    assert {**last, "content": last["content"].strip()} == {
        "role": "assistant",
        "content": "ok",
    }  # the template's newline


def test_an_answer_of_a_tool_that_was_cut_off_is_the_tools(taught: Any, tmp_path: Path) -> None:
    tokenizer = taught[0]
    prompt, completion, mask = conversation(tokenizer)
    end = mask.index(0) + completion[mask.index(0) :].index(tokenizer("higher")["input_ids"][0]) + 1
    *_, tool = messages_of(tokenizer, (prompt, completion[:end], mask[:end]), tmp_path)
    assert tool["role"] == "tool"
    assert "higher".startswith(tool["content"])


class Falling:
    """A ball, in the shape of OpenSpiel's catch: three turns from a place that the seed says."""

    def reset(self, seed: int | None = None) -> tuple[str, dict[str, Any]]:
        self.left, self.at = 3, DICE.randrange(5) if seed is None else seed % 5
        return self._board(), {}

    def step(self, action: int) -> tuple[str, float, bool, bool, dict[str, Any]]:
        self.left -= 1
        self.at = (self.at + action - 1) % 5
        return self._board(), float(self.left == 0 and self.at == 2), self.left == 0, False, {}

    def _board(self) -> str:
        return f"Ball {self.at}, {self.left} left"


@dataclass
class Played:
    """What the function itself knows of a row."""

    asked: list[str] = field(default_factory=list)
    said: list[str] = field(default_factory=list)
    prompt_ids: list[int] = field(default_factory=list)
    completion_ids: list[int] = field(default_factory=list)
    reward: float = 0.0


def joining(env: Any, notes: list[Played], *, in_words: bool, seed: int | None) -> Any:
    """In the shape of TRL's catch.py and wordle.py up to 0.27: each turn has a prompt of its own, and the prompts and
    answers of all turns are joined.
    """

    def rollout_func(prompts: list[Any], trainer: Any) -> dict[str, Any]:
        tokenizer = trainer.processing_class
        played = [Played() for _ in prompts]
        for prompt, row in zip(prompts, played, strict=True):
            base = prompt[-1]["content"]
            (board, _), done = env.reset(seed=seed), False
            while not done:
                messages = [{"role": "user", "content": f"{base}\n\n{board}"}]
                if in_words:
                    asked = f"{messages[0]['content']} Guess"
                    context = tokenizer(asked)["input_ids"]
                else:
                    asked = messages[0]["content"]
                    context = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
                row.asked.append(tokenizer.decode(tokenizer(asked)["input_ids"]).strip())
                (made,) = generate(trainer, [context])
                row.prompt_ids += context
                row.completion_ids += made.ids
                row.said.append(made.text)
                board, reward, done, _, _ = env.step(sum(map(ord, made.text)) % 3)
                row.reward += reward
        notes.extend(played)
        return {
            "prompt_ids": [row.prompt_ids for row in played],
            "completion_ids": [row.completion_ids for row in played],
            "logprobs": [[-1.0] * len(row.completion_ids) for row in played],
            "env_reward": [row.reward for row in played],
        }

    return rollout_func


@pytest.mark.exhaustive
@pytest.mark.parametrize(("traced", "in_words"), cases([(False, True), (True, False), (False, False), (True, True)], 2))
def test_turns_whose_prompts_were_joined_are_told_apart(
    monkeypatch: pytest.MonkeyPatch, *, traced: bool, in_words: bool, tmp_path: Path
) -> None:
    monkeypatch.setattr("logs_ui.rollout.demo.guess_rollout.MAX_NEW_TOKENS", 4)
    notes: list[Played] = []
    env = trace_env(Falling()) if traced else Falling()
    function = record(joining(env, notes, in_words=in_words, seed=3), db=tmp_path / "a.db")
    make_function_trainer(function, tmp_path / "out").train()
    rows = load_run(db=tmp_path / "a.db").to_dict("records")
    assert not only_run(tmp_path / "a.db").unattributed_calls
    for row, note in zip(rows, notes, strict=True):
        assert row["turns"] == len(note.said)
        assert [it["role"] for it in row["messages"]] == ["user", "assistant"] * len(note.said)
        assert [it["content"].strip() for it in row["messages"][::2]] == note.asked
        assert [action["text"] for action in row["actions"] if action["turn"]] == note.said
    mixed = findings(tmp_path / "a.db").keys() & {"wiring", "unseeded"}
    assert not mixed, "the prompts of the first turns are the same"


def test_a_mock_is_recorded_as_a_function(tmp_path: Path) -> None:
    mock = MagicMock(return_value=OUTPUT)
    make_function_trainer(record(mock, db=tmp_path / "a.db"), tmp_path / "out", max_steps=1).train()
    assert mock.call_count == 1
    rows = load_run(db=tmp_path / "a.db")
    assert list(rows.status) == ["ok"] * 8
    assert set(rows.eval_name) == {"MagicMock"}


def score(completions: list[Any], **_: Any) -> list[float]:
    return [1.0 for _ in completions]


def test_a_reward_function_is_refused_and_told_its_door(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match=r"this is a reward function\. .*record_trainer\(trainer\) \(score"):
        record(score, db=tmp_path / "a.db")


def test_a_reward_function_without_names_is_told_its_door_at_its_first_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv(RAISE_VARIABLE, "0")
    monkeypatch.setattr(guard, "_seen", set())  # a failure is logged once in a process
    recorded: Any = record(lambda **columns: [0.5 for _ in columns["completions"]], db=tmp_path / "a.db")
    assert recorded(prompts=["a"], completions=["b"], trainer_state=None) == [0.5]
    assert "this is a reward function. To record a training" in caplog.text
    assert "Traceback" not in caplog.text


def test_a_lambda_is_named_by_its_module() -> None:
    assert default_name(lambda prompts, trainer: OUTPUT) == "test_scripts_of_others"
    assert default_name(partial(score, weight=1)) == "score"


class Chained:
    """Returns itself, as trl-env's environments do."""

    def reset(self, seed: int) -> "Chained":
        self.left = seed
        return self

    def step(self, action: str) -> "tuple[Chained, str]":
        self.left -= 1
        return self, f"{action}: {self.left} left"


def test_an_environment_that_returns_itself_stays_recorded(tmp_path: Path) -> None:
    with start_run(db=tmp_path / "a.db") as run, run.rollout("Count.") as row:
        env = trace_env(Chained()).reset(seed=2)
        for answer in ("one", "two"):
            row.turn(answer)
            env, said = env.step(answer)
            assert said.startswith(answer)
    assert isinstance(env, Chained)
    (actions,) = load_run(db=tmp_path / "a.db").actions
    assert [(action["action"], action["observation"]) for action in actions] == [
        (None, None), ("one", "one: 1 left"), ("two", "two: 0 left"),
    ]  # fmt: skip


class Scoreboard:
    """An environment without a tool of its own, beside `tools=`."""

    def reset(self, **_: Any) -> str:
        self.episode, self.reward = list[str](), 0.0
        return " Game 1."


def test_calls_of_tools_beside_an_environment_are_actions(taught: Any, tmp_path: Path) -> None:
    def guess(number: int) -> str:
        """Guesses the number.

        Args:
            number: What to guess.
        """
        return "higher" if number < 3 else "lower"

    rows, _ = rows_of(taught, Scoreboard, tmp_path, max_steps=2, tools=[guess])
    for row in rows:
        # The model may name another tool, which TRL answers with an error.
        answered = sum(it["role"] == "tool" and it["content"] in ("higher", "lower") for it in row["messages"])
        assert answered == len([call for call in calls_of(row) if call["action"]]) == row["env_steps"]
        assert row["parse_failures"] <= row["turns"] - answered
    assert sum(row["env_steps"] for row in rows) > len(rows)
