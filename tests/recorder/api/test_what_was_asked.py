"""Whether the members of a group belong together is decided by what the group was asked, not by what an environment
showed then.
"""

import itertools
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from logs_ui.recorder import diagnose, flush, record, record_environment, start_run, trace_env
from tests.recorder.api.test_record_environment import Seen, make_trainer, teach_tools
from tests.support.exhaustive import cases
from tests.support.late import datasets, guess_env, tiny_model
from tests.support.stored import only_run
from tests.support.tool_games import ToolGame
from tests.support.training import generate, guess_server
from tests.support.training import make_trainer as make_guess_trainer

pytestmark = pytest.mark.versions

Message = dict[str, str]
DICE, PLACES = random.Random(0), itertools.count()


@pytest.fixture(scope="module")
def taught() -> tuple[Any, Any]:
    tokenizer, _ = teach_tools()
    return tokenizer, tiny_model.make_model(tokenizer)


class Board(ToolGame):
    """Begins anywhere: one of five boards, which all questions share."""

    def reset(self, **_: Any) -> str:
        return f" Game {DICE.randrange(5)}."


class Stepped(Board):
    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        return "over", 0.0, True, False, {}


@pytest.fixture(autouse=True)
def _says_little(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("logs_ui.rollout.demo.guess_rollout.MAX_NEW_TOKENS", 3)


@pytest.fixture
def socket_env() -> Iterator[Any]:
    with guess_server() as url, guess_env.GuessEnv(base_url=url).sync() as env:
        yield env


def both(prompt: list[Message], board: str) -> list[Message]:
    return [{**prompt[-1], "content": f"{prompt[-1]['content']}{board}"}]


def alone(_: list[Message], board: str) -> list[Message]:
    """A system message and what the environment showed, without the question."""
    return [{"role": "system", "content": "Guess."}, {"role": "user", "content": board}]


def question(prompt: list[Message], _: str) -> list[Message]:
    return prompt


def beginning(env: Any, kind: str) -> Callable[[], str]:
    """Return what begins an episode, and returns the observation."""
    dice = random.Random(1)

    def over_socket() -> str:
        seen = env.reset(task=dice.choice([*guess_env.TASKS]), seed=dice.randrange(8)).observation
        return f" From {seen.low} to {seen.high}."

    return over_socket if kind == "openenv" else env.reset


def playing(
    begin: Callable[[], str], act: Callable[[str], Any], build: Callable[[list[Message], str], list[Message]],
    order: Callable[[list[Any]], list[Any]],
) -> Any:  # fmt: skip
    """Return a rollout function of one turn, which returns its rows in this order."""

    def rollout_func(prompts: list[Any], trainer: Any) -> dict[str, Any]:
        rows = []
        for prompt in prompts:
            messages = build(prompt, begin())
            context = trainer.processing_class.apply_chat_template(
                messages, add_generation_prompt=True, return_dict=False
            )
            (made,) = generate(trainer, [context])
            act(made.text)
            rows.append((context, made.ids, made.logprobs))
        columns = zip(("prompt_ids", "completion_ids", "logprobs"), zip(*order(rows), strict=True), strict=True)
        return {name: list(column) for name, column in columns}

    return rollout_func


def same(rows: list[Any]) -> list[Any]:
    return rows


def with_examples(prompt: list[Message], board: str) -> list[Message]:
    """Two longer questions of the dataset, as examples, and then the question."""
    shown = [f"Guess number {i}" for i in (10, 11)]
    return [{**prompt[-1], "content": "\n".join([*shown, f"{prompt[-1]['content']}{board}"])}]


def interleaved(rows: list[Any]) -> list[Any]:
    """As a function that loops over generations, and over prompts inside."""
    return [*rows[::2], *rows[1::2]]


def of_one(rows: list[Any]) -> list[Any]:
    """As a function that answers one prompt only, the first or the last."""
    asked = rows[-(next(PLACES) % 2)][0]
    return [(asked, *row[1:]) for row in rows]


def questions(count: int = 8) -> Any:
    """Questions of which some begin like others."""
    return datasets.Dataset.from_list(
        [{"prompt": [tiny_model.say("user", f"Guess number {i}")]} for i in range(8, 8 + count)]
    )


def findings(db: Path) -> set[str]:
    """Return those about groups, also of too little cost for a card."""
    assert flush()
    report = diagnose(db=db)
    seen = {card.id for card in report.cards} | {it.id for it in report.checked if it.state == "cheap"}
    return seen & {"wiring", "unseeded", "first_prompt"}


@pytest.mark.parametrize(
    ("kind", "build", "order", "expected"),
    cases(
        [
            ("openenv", alone, same, {"unseeded"}),
            ("untraced", both, interleaved, {"wiring"}),
            ("untraced", with_examples, same, {"unseeded"}),
            ("untraced", both, same, {"unseeded"}),
            ("untraced", alone, same, {"unseeded"}),
            ("openenv", question, interleaved, {"wiring"}),
            ("traced", alone, same, {"unseeded"}),
            ("openenv", both, same, {"unseeded"}),
            ("traced", both, same, {"unseeded"}),
            ("traced", both, interleaved, {"wiring"}),
            ("untraced", question, interleaved, {"wiring"}),
            ("traced", question, same, set()),
        ],
        1,
    ),
)
def test_a_group_of_a_rollout_function_is_what_it_was_asked(
    taught: Any, tmp_path: Path, socket_env: Any, kind: str, build: Any, order: Any, expected: set[str]
) -> None:
    db = tmp_path / "a.db"
    env = {"openenv": socket_env, "traced": trace_env(Stepped()), "untraced": Stepped()}[kind]

    def act(text: str) -> None:
        env.step(guess_env.GuessAction(guess=len(text)) if kind == "openenv" else text)

    trainer = make_trainer(taught, None, tmp_path / "out", Seen(), dataset=questions(), max_steps=4)
    trainer.rollout_func = record(playing(beginning(env, kind), act, build, order), db=db)
    trainer.train()
    assert findings(db) == expected
    assert not only_run(db).unattributed_calls


@pytest.mark.exhaustive
@pytest.mark.parametrize(("build", "order", "expected"), [(alone, same, set()), (question, of_one, {"wiring"})])
def test_a_prompt_that_the_groups_of_a_step_share_may_be_an_observation(
    taught: Any, tmp_path: Path, build: Any, order: Any, expected: set[str]
) -> None:
    """Each step begins all games alike, or all rows have the prompt of one."""
    db, env, begun = tmp_path / "a.db", trace_env(Stepped()), itertools.count()

    def begin() -> str:
        env.reset()
        return f"Board {next(begun) // 8 % 5}"

    trainer = make_trainer(taught, None, tmp_path / "out", Seen(), dataset=questions(6), max_steps=12)
    trainer.rollout_func = record(playing(begin, env.step, build, order), db=db)
    trainer.train()
    assert findings(db) == expected


@pytest.mark.parametrize(("order", "expected"), cases([(interleaved, {"wiring"}), (same, {"unseeded"})], 1))
def test_a_tokenizer_that_does_not_know_all_words_is_no_obstacle(
    tmp_path: Path, order: Any, expected: set[str]
) -> None:
    board = Stepped()
    function = record(playing(board.reset, board.step, both, order), db=tmp_path / "a.db")
    make_guess_trainer(function, tmp_path / "out", max_steps=4, reward_funcs=[Seen().paid]).train()
    assert findings(tmp_path / "a.db") == expected


@pytest.mark.parametrize("is_named", cases([False, True], 1))
def test_a_group_of_an_environment_that_trl_plays_is_what_it_was_asked(
    taught: Any, tmp_path: Path, *, is_named: bool
) -> None:
    """Its tasks share a prompt, and so may what their environments show."""
    rows = [
        {"prompt": [tiny_model.say("user", "Guess.")], **({"task": f"game {i}"} if is_named else {})} for i in range(8)
    ]
    seen, db = Seen(), tmp_path / "a.db"
    factory = record_environment(Board, db=db)
    make_trainer(taught, factory, tmp_path / "out", seen, dataset=datasets.Dataset.from_list(rows), max_steps=4).train()
    assert findings(db) == {"unseeded"}


@pytest.mark.parametrize("kind", ["tasks", "prompts"])
def test_a_group_of_different_questions_is_mixed_by_other_doors(tmp_path: Path, kind: str) -> None:
    with start_run(db=tmp_path / "a.db") as run:
        for place in range(64):
            task, asked = (str(place % 2), "p") if kind == "tasks" else (None, f"p {place % 2}")
            with run.rollout(asked, step=place // 16, group=str(place // 4), task=task) as row:
                row.turn("a", finish="stop")
                row.score(place % 2)
    assert findings(tmp_path / "a.db") == {"wiring"}


def test_prompts_of_one_task_are_no_observations_where_no_reset_is_recorded(tmp_path: Path) -> None:
    """Each rollout has a sum of its own, under the name of one task."""
    with start_run(db=tmp_path / "a.db") as run:
        for place in range(64):
            asked, name = f"{place} + {place % 7}", f"sums {place // 4}"
            with run.rollout(asked, step=place // 16, group=str(place // 4), task=name) as row:
                row.turn(
                    "I add.", action={"name": "add", "arguments": {"a": place}}, observation=str(place + place % 7)
                )
                row.score(place % 2)
    assert flush()
    (card,) = [it for it in diagnose(db=tmp_path / "a.db").cards if it.id == "unseeded"]
    assert card.title == "In 100% of groups, rollouts of one task have different prompts"
    assert not any("What the dataset asks is the same" in it for it in card.evidence)
