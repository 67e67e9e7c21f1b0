"""record_environment(): TRL's own tool loop, a tiny model that calls tools, a real OpenEnv server inside a tool."""

import asyncio
import copy
import functools
import inspect
import math
import pickle
import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any, ClassVar

import pytest
from pydantic import BaseModel

from logs_ui.recorder import Settings, load_run, record_environment, record_trainer
from logs_ui.recorder.capture.instruments.trl import NO_PROMPT
from logs_ui.recorder.capture.instruments.trl_shapes import tokens_of_generated
from tests.support import old_trl
from tests.support.late import datasets, guess_env, tiny_model, torch, transformers, trl
from tests.support.quiet import QUIET
from tests.support.ranks import run_on_two_ranks
from tests.support.stored import only_run
from tests.support.teaching import teach_once
from tests.support.training import guess_server

pytestmark = pytest.mark.versions

ROWS, GROUP = 8, 4
EASY = "easy: 1-3"
OWN_REWARD = [] if old_trl.IS_OLD else ["Guessing"]
asks_for_rewards = pytest.mark.skipif(old_trl.IS_OLD, reason="TRL 0.29 never calls get_reward: to it that is a tool")
plays_several = pytest.mark.skipif(old_trl.IS_OLD, reason="TRL 0.29 takes one factory, and no static method for a tool")


class Guessing:
    """A number to guess; the tools' environment notes itself what happens to it."""

    url: ClassVar[str]
    clients: ClassVar[list[Any]] = []

    def __init__(self) -> None:
        self.client = guess_env.GuessEnv(base_url=self.url).sync()
        self.client.connect()
        self.clients.append(self.client)
        self.episode: list[tuple[str, Any, Any]] = []
        self.resets = 0
        self.done = False
        self.reward = 0.0

    def reset(self, task: str, answer: int, **columns: Any) -> str:
        self.client.reset(task=task, seed=answer)
        self.resets += 1
        self.done, self.reward = False, 0.0
        said = f" Game {answer}."
        self.episode = [("reset", {"task": task, "answer": answer, **columns}, said)]
        return said

    def guess(self, number: int) -> str:
        """Guesses the number.

        Args:
            number: What to guess.
        """
        if self.done:
            self.episode.append(("guess", {"number": number}, "ValueError: The game is over"))
            raise ValueError("The game is over")
        result = self.client.step(guess_env.GuessAction(guess=number))
        self.done = result.done
        self.reward += result.reward
        said = str(result.observation.hint)
        self.episode.append(("guess", {"number": number}, said))
        return said

    if not old_trl.IS_OLD:  # which takes it for a tool

        def get_reward(self) -> float:
            return self._worth()

    def _worth(self) -> float:
        return self.reward + 0.25


class Counting:
    """Tools that are asynchronous, static, and that raise."""

    def __init__(self) -> None:
        self.episode: list[tuple[str, Any, Any]] = []
        self.reward = 0.0

    def reset(self, **columns: Any) -> None:
        self.episode = [("reset", columns, None)]
        self.reward = 0.0

    async def count(self, number: int) -> str:
        """Counts.

        Args:
            number: How far; no further than 2.
        """
        await asyncio.sleep(0)
        if number > 2:
            self.episode.append(("count", {"number": number}, "KeyError: 'I cannot count that far'"))
            raise KeyError("I cannot count that far")
        said = " ".join(map(str, range(1, number + 1)))
        self.reward += 0.5
        self.episode.append(("count", {"number": number}, said))
        return said

    @staticmethod
    def name(number: int) -> str:
        """Spells a number.

        Args:
            number: Which.
        """
        return ["one", "two", "three"][number - 1]


def lessons() -> list[Any]:
    """Conversations in which the tools are called, with arguments drawn at random."""
    dice = random.Random(0)
    taught: list[Any] = []
    done = {"role": "assistant", "content": "ok"}
    for _ in range(200):
        messages = [{"role": "user", "content": f"Guess. Game {dice.randint(0, 7)}."}]
        for _ in range(dice.randint(1, 4)):
            messages += [
                tiny_model.call("guess", number=dice.randint(1, 3)),
                tiny_model.answer("guess", dice.choice(["higher", "correct"])),
            ]
        taught.append(([*messages, done], [Guessing.guess]))
        name = dice.choice(["count", "count", "name"])
        number = dice.randint(2 if name == "count" else 1, 3)
        messages = [
            {"role": "user", "content": "Count."},
            tiny_model.call(name, number=number),
            tiny_model.answer(name, "1 2"),
            done,
        ]
        taught.append((messages, [Counting.count, Counting.name]))
    return taught


@functools.cache
def teach_tools() -> tuple[Any, Any]:
    """Return a tokenizer, and a model that calls the tools, one to four times; made once for all files of a process."""
    with old_trl.templates():
        tokenizer = tiny_model.make_tokenizer(lessons())
        model = tiny_model.make_model(tokenizer)
        teach = functools.partial(tiny_model.teach, model, tokenizer, lessons(), steps=100)
        teach_once(model, teach, __file__, "tools")
    return old_trl.readable(tokenizer), model


@pytest.fixture(name="taught")
def _taught() -> tuple[Any, Any]:
    return teach_tools()


@pytest.fixture(scope="module", autouse=True)
def _server() -> Iterator[None]:
    with guess_server() as url:
        Guessing.url = url
        yield


def guessing_rows() -> Any:
    rows = [{"prompt": [{"role": "user", "content": "Guess."}], "task": EASY, "answer": game} for game in range(8)]
    return datasets.Dataset.from_list(rows)


@pytest.fixture(autouse=True)
def _sessions_end() -> Iterator[None]:
    """The server has 64."""
    yield
    while Guessing.clients:
        Guessing.clients.pop().close()


def no_rows() -> Any:
    """As TRL makes them where the environment has all data."""
    return datasets.Dataset.from_dict({"prompt": [NO_PROMPT] * 8})


def mixed_rows() -> Any:
    rows = []
    for game in range(8):
        columns = {"task": EASY, "answer": game}
        rows.append({"prompt": [{"role": "user", "content": "Guess."}], "environment": "guessing", **columns})
        rows.append({"prompt": [{"role": "user", "content": "Count."}], "environment": "counting", **columns})
    return datasets.Dataset.from_list(rows)


@dataclass
class Seen:
    """What a reward function sees, row by row."""

    environments: list[Any] = field(default_factory=list)
    episodes: list[Any] = field(default_factory=list)
    completion_ids: list[Any] = field(default_factory=list)
    rewards: list[float] = field(default_factory=list)

    def paid(self, completion_ids: list[Any], environments: list[Any] | None = None, **_: Any) -> list[float]:
        if environments is None:
            return [float(len(ids)) for ids in completion_ids]
        self.environments += environments
        self.episodes += [list(environment.episode) for environment in environments]
        self.completion_ids += completion_ids
        rewards = [float(environment.reward) for environment in environments]
        self.rewards += rewards
        return rewards


def make_trainer(taught: tuple[Any, Any], factory: Any, folder: Path, seen: Seen, **config: Any) -> Any:
    """For 3 steps of 8 rollouts in groups of 4, unless `config` says otherwise."""
    tokenizer, model = taught
    tools = config.pop("tools", None)
    dataset = config.pop("dataset", None) or guessing_rows()
    settings: dict[str, Any] = {
        "output_dir": str(folder),
        "seed": 0,
        "max_steps": 3,
        "per_device_train_batch_size": ROWS,
        "per_device_eval_batch_size": ROWS,
        "num_generations": GROUP,
        "max_completion_length": 200,
        "max_tool_calling_iterations": 6,
        "learning_rate": 1e-4,
        "logging_steps": 1,
        **QUIET,
        **config,
    }
    return trl.GRPOTrainer(
        model=copy.deepcopy(model),
        processing_class=copy.deepcopy(tokenizer),
        reward_funcs=[seen.paid],
        environment_factory=factory,
        tools=tools,
        args=trl.GRPOConfig(**settings),
        train_dataset=dataset,
        eval_dataset=dataset.select(range(2)),
    )


def guess(number: int) -> str:
    """Guesses the number, which is 2.

    Args:
        number: What to guess.
    """
    if number == 3:
        raise ValueError("no such number")
    return "correct" if number == 2 else "higher"


class Toolless:
    reward = 0.0
    episode: ClassVar[list[Any]] = []

    def reset(self, **_: Any) -> None:
        """Nothing."""


@pytest.mark.parametrize("environment", [None, Toolless])
def test_tools_are_recorded_with_and_without_environments(
    environment: Any, taught: Any, db: Path, tmp_path: Path
) -> None:
    calls: list[Any] = []

    @functools.wraps(guess)
    def noting(number: int) -> str:
        calls.append(("guess", number))
        return guess(number)

    rows = datasets.Dataset.from_list(
        [{"prompt": [{"role": "user", "content": f"Guess. Game {i}."}]} for i in range(8)]
    )
    trainer = make_trainer(taught, environment, tmp_path / "out", Seen(), tools=[noting], dataset=rows, max_steps=2)
    record_trainer(trainer, db=db)
    trainer.train()
    assert {type(it) for it in trainer._sync_tool_dicts} == {dict}, "the trainer has its own again"
    rows = load_run(db=db)
    assert len(rows) == 2 * ROWS
    assert only_run(db).unattributed_calls == 0
    made = [action for actions in rows.actions for action in actions if action["action"] and action["turn"]]
    guesses = [action for action in made if action["action"]["name"] == "guess"]
    assert calls
    numbers = [("guess", action["action"]["arguments"].get("number")) for action in guesses]
    assert sorted(numbers, key=str) == sorted(calls, key=str)
    for action in guesses:
        number = action["action"]["arguments"]["number"]
        if number == 3:
            assert action["error"] == "ValueError: no such number"
        else:
            assert action["observation"] == guess(number)
    for row in rows.to_dict("records"):
        asked = [call for message in row["messages"] for call in message.get("tool_calls") or ()]
        assert len(asked) >= sum(action["action"] is not None for action in row["actions"] if action["turn"])
    parsed = [(action["metadata"] or {}).get("parsed") for action in made]
    assert False not in parsed, "what was executed is no parse failure"


def played(row: Mapping[Any, Any]) -> list[tuple[str, Any, Any]]:
    """A recorded row's episode, as the environments above note theirs: without calls that never came to them."""
    found = []
    for action in row["actions"]:
        if action["turn"] == 0:
            found.append(("reset", without_prompt(action["metadata"]["reset"]), action["observation"]))
        elif action["action"] is None or action["action"]["name"] == "get_reward":
            continue
        elif not (action["error"] or "").startswith("TypeError"):
            said = action["error"] or action["observation"]
            found.append((action["action"]["name"], action["action"]["arguments"], said))
    return found


def noted(episode: list[tuple[str, Any, Any]]) -> list[tuple[str, Any, Any]]:
    return [(name, without_prompt(arguments), said) for name, arguments, said in episode]


def without_prompt(columns: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in columns.items() if name != "prompt"}


def errors(row: Mapping[Any, Any]) -> list[str]:
    return [action["error"] for action in row["actions"] if action["error"]]


@pytest.mark.parametrize("by", ["record_environment", "record_trainer"])
def test_rows_hold_what_their_environments_noted(by: str, taught: Any, tmp_path: Path) -> None:
    db, seen, wanted = tmp_path / "a.db", Seen(), Settings(max_reward=1.0, thresholds={"loops": 0.5})
    if by == "record_environment":
        make_trainer(taught, record_environment(Guessing, diagnosis=wanted, db=db), tmp_path / "out", seen).train()
    else:
        record_trainer(make_trainer(taught, Guessing, tmp_path / "out", seen), diagnosis=wanted, db=db).train()
    rows = load_run(db=db)
    assert len(rows) == 3 * ROWS == len(seen.episodes)
    assert len({id(environment) for environment in seen.environments}) == ROWS, "instances are used again"
    assert (rows.eval_name == "Guessing").all()
    assert (rows.task == EASY).all()
    assert (rows.status == "ok").all()
    assert (only_run(db).unattributed_calls, only_run(db).diagnosis) == (0, wanted.as_dict())
    assert any(len(episode) > 2 for episode in seen.episodes), "there are rollouts of several turns"
    assert any("ValueError: The game is over" in errors(row) for row in rows.to_dict("records")), "and of early ends"
    for row, episode, ids, paid in zip(
        rows.to_dict("records"), seen.episodes, seen.completion_ids, seen.rewards, strict=True
    ):
        assert played(row) == noted(episode)
        assert list(row["completion_ids"]) == ids
        assert row["messages"][1]["content"] == "Guess." + episode[0][2], "the prompt is what the reset made of it"
        assert (row["messages"][0]["role"], row["sent_prompt"]) == ("system", "extended"), "with the tools"
        assert row["rewards"] == pytest.approx({"paid": paid, **dict.fromkeys(OWN_REWARD, paid + 0.25)})
        assert row["rollout_reward"] == pytest.approx(paid + 0.25 if OWN_REWARD else math.nan, nan_ok=True)
        assert row["metadata"]["environment"] == "Guessing"
        assert row["metadata"]["attribution"] == "context"
        stepped = [action for action in row["actions"] if action["observation"] in ("higher", "lower", "correct")]
        assert sum(action["reward"] for action in stepped) == pytest.approx(paid)
        assert [action["done"] for action in stepped] == [action["observation"] == "correct" for action in stepped]
        for action in stepped:
            (step,) = action["metadata"]["calls"]
            assert step["action"]["guess"] == action["action"]["arguments"]["number"]
        if OWN_REWARD:
            *others, last = row["actions"]
            assert last["action"] == {"name": "get_reward", "arguments": {}}, "no action of the model"
            assert (last["text"], last["turn"], last["reward"]) == (None, row["turns"], pytest.approx(paid + 0.25))
            assert row["env_reward_sum"] == pytest.approx(paid) or not paid
            assert (row["stop_reason"] == "done") == any(action["done"] for action in others)
            assert row["stop_reason"] != "turn_limit"


@pytest.mark.exhaustive
def test_training_is_the_same_with_the_recorder_and_without(taught: Any, tmp_path: Path) -> None:
    seen = {}
    for name, factory in (("plain", Guessing), ("recorded", record_environment(Guessing, db=tmp_path / "a.db"))):
        seen[name] = Seen()
        trainer = make_trainer(taught, factory, tmp_path / name, seen[name])
        trainer.train()
        assert trainer.reward_func_names == ["paid", *OWN_REWARD]
    assert seen["plain"].completion_ids == seen["recorded"].completion_ids
    assert seen["plain"].episodes == seen["recorded"].episodes
    assert seen["plain"].rewards == seen["recorded"].rewards


@pytest.mark.exhaustive
@plays_several
def test_each_row_of_a_dict_of_environments_holds_its_own(taught: Any, tmp_path: Path) -> None:
    db, seen = tmp_path / "a.db", Seen()
    factories = record_environment({"guessing": Guessing, "counting": Counting}, db=db)
    make_trainer(taught, factories, tmp_path / "out", seen, dataset=mixed_rows(), max_steps=8).train()
    rows = load_run(db=db)
    kinds = [type(environment).__name__ for environment in seen.environments]
    assert set(kinds) == {"Guessing", "Counting"}
    keys = [kind.lower() for kind in kinds]
    assert [row["metadata"]["environment"] for row in rows.to_dict("records")] == keys, "by the factory's key"
    assert (rows.eval_name == "guessing+counting").all()
    assert only_run(db).unattributed_calls == 0
    named = 0
    for row, episode, kind in zip(rows.to_dict("records"), seen.episodes, kinds, strict=True):
        static = [call for call in played(row) if call[0] == "name"]
        assert [call for call in played(row) if call[0] != "name"] == noted(episode)
        assert all(said == ["one", "two", "three"][given["number"] - 1] for _, given, said in static)
        named += len(static)
        assert (row["rewards"]["Guessing"] is None) == (kind == "Counting")
        assert row["status"] == "ok"
    assert named, "static tools were called"
    assert any("KeyError: 'I cannot count that far'" in errors(row) for row in rows.to_dict("records"))


@pytest.mark.exhaustive
def test_any_factory_and_an_evaluation(taught: Any, tmp_path: Path) -> None:
    class Easy(Guessing):
        __slots__ = ("level",)

        def __init__(self, level: int) -> None:
            super().__init__()
            self.level = level

    db, seen = tmp_path / "a.db", Seen()
    factory = record_environment(functools.partial(Easy, 3), eval_name="easy", task="answer", db=db)
    trainer = make_trainer(taught, factory, tmp_path / "out", seen, max_steps=1)
    trainer.evaluate()
    trainer.train()
    rows = load_run(db=db)
    assert list(rows["mode"]) == ["eval"] * 8 + ["train"] * ROWS
    assert list(rows.task) == [str(episode[0][1]["answer"]) for episode in seen.episodes]
    assert [played(row) for row in rows.to_dict("records")] == [noted(episode) for episode in seen.episodes]
    assert all(isinstance(environment, Easy) and environment.level == 3 for environment in seen.environments)


RANK = """
import sys
from pathlib import Path
import torch
from logs_ui.recorder import record_environment
from tests.recorder.api.test_record_environment import Guessing, Seen, make_trainer
torch.set_num_threads(1)
Guessing.url = sys.argv[1]
factory = record_environment(Guessing, task="answer", db=sys.argv[2])
taught = torch.load(sys.argv[3], weights_only=False)
try:
    make_trainer(
        taught, factory, Path(sys.argv[4]), Seen(), per_device_train_batch_size=6, max_steps=2, ddp_backend="gloo"
    ).train()
finally:
    while Guessing.clients:
        Guessing.clients.pop().close()
"""


@pytest.mark.exhaustive
def test_environments_of_two_ranks_are_of_one_run(taught: Any, tmp_path: Path) -> None:
    """Rows 0 to 5 are the first's: a group of four straddles them."""
    db, model = tmp_path / "a.db", tmp_path / "taught"
    torch.save(taught, model)
    run_on_two_ranks(RANK, tmp_path, Guessing.url, db, model, tmp_path / "out")
    run = only_run(db)
    assert (run.state, run.recorder_errors, run.unattributed_calls) == ("finished", 0, 0)
    rows = load_run(db=db)
    assert len(rows) == 2 * 12
    assert (rows.status == "ok").all()
    groups = [group.sort_values("generation") for _, group in rows.groupby(["step", "group"])]
    assert [list(group.process) for group in groups] == [[0] * 4, [0, 0, 1, 1], [1] * 4] * 2
    for group in groups:
        assert list(group.generation) == list(range(GROUP))
        assert group.task.nunique() == 1
        assert abs(group.advantage.sum()) < 1e-4
    for row in rows.to_dict("records"):
        (reset, *_), (_, arguments, _) = row["actions"], played(row)[0]
        assert (reset["turn"], str(arguments["answer"])) == (0, row["task"])
        assert row["metadata"]["attribution"] == "context"
        paid = [
            action["reward"] for action in row["actions"] if action["observation"] in ("higher", "lower", "correct")
        ]
        assert row["rewards"]["paid"] == pytest.approx(sum(paid))


def test_a_reset_that_raises_is_on_its_row(taught: Any, db: Path, tmp_path: Path) -> None:
    class Broken(Guessing):
        """Fails in its third row."""

        made: ClassVar[int] = 0

        def __init__(self) -> None:
            super().__init__()
            Broken.made += 1
            self.number = Broken.made

        def reset(self, task: str, answer: int, **columns: Any) -> str:
            if self.number == 3:
                raise ConnectionError("no server")
            return super().reset(task, answer, **columns)

    with pytest.raises(ConnectionError):
        make_trainer(taught, record_environment(Broken, db=db), tmp_path / "out", Seen()).train()
    rows = load_run(db=db)
    assert list(rows.status) == ["error"] * ROWS
    assert [bool(errors(row)) for row in rows.to_dict("records")] == [i == 2 for i in range(ROWS)]
    assert rows.stop_reason[2] == "environment_error"
    assert only_run(db).state == "failed"


@asks_for_rewards
def test_a_get_reward_that_raises_leaves_the_tokens(taught: Any, db: Path, tmp_path: Path) -> None:
    class Unworthy(Guessing):
        async def get_reward(self) -> float:  # type: ignore[override]
            await asyncio.sleep(0)
            if self.reward > 0:
                raise RuntimeError("not worth it")
            return 0.0

    with pytest.raises(RuntimeError):
        make_trainer(taught, record_environment(Unworthy, db=db), tmp_path / "out", Seen()).train()
    rows = load_run(db=db)
    broken = [row for row in rows.to_dict("records") if row["status"] == "error"]
    assert [row["stop_reason"] for row in broken] == ["environment_error"]
    assert broken[0]["error"] == "RuntimeError: not worth it"
    assert (rows.completion_tokens > 0).all()
    assert only_run(db).error == "RuntimeError: not worth it"


def test_the_environments_own_prompts_tell_tasks_apart(taught: Any, db: Path, tmp_path: Path) -> None:
    class Own(Guessing):
        def reset(self, **columns: Any) -> str:  # type: ignore[override]
            return "Guess." + super().reset(EASY, self.resets % 2)

    factory = record_environment(Own, db=db)
    make_trainer(taught, factory, tmp_path / "out", Seen(), dataset=no_rows(), max_steps=2).train()
    rows = load_run(db=db)
    assert [row["messages"][1]["content"] for row in rows.to_dict("records")] == [
        f"Guess. Game {step}." for step in range(2) for _ in range(ROWS)
    ]
    assert rows.task.nunique() == 2


class Tools:
    """What the two below have in common."""

    __slots__ = ()

    def reset(self, **_: Any) -> None:
        """Nothing."""

    async def wait(self, seconds: float = 0.5) -> str:
        """Waits.

        Args:
            seconds: How long.
        """
        return f"{seconds}"

    @staticmethod
    def spell(number: int) -> str:
        """Spells.

        Args:
            number: What.
        """
        return str(number)

    def _private(self) -> None:
        """No tool."""


@dataclass
class Plain(Tools):
    level: int = 1


@dataclass(slots=True, frozen=True)
class Slotted(Tools):
    level: int = 1


def described(kind: type) -> list[Any]:
    """All that TRL and transformers look at."""
    instance = kind()
    found: list[Any] = [kind.__name__, kind.__qualname__, kind.__module__, inspect.getdoc(kind)]
    for name, function in inspect.getmembers(kind, inspect.isfunction):
        member = getattr(instance, name)
        found += [name, inspect.ismethod(member), inspect.iscoroutinefunction(member)]
        if not name.startswith("_"):
            found += [str(inspect.signature(member)), inspect.getdoc(function), function.__qualname__]
            found += [member.__annotations__, member.__module__]
        if name in {"wait", "spell", "guess", "count", "name"}:
            found.append(transformers.utils.get_json_schema(member))
    return found


@pytest.mark.parametrize("kind", [Plain, Slotted, Guessing, Counting])
def test_what_is_recorded_is_of_the_type_that_was_given(kind: Any, tmp_path: Path) -> None:
    looks = described(kind)
    factory = record_environment(kind, db=tmp_path / "a.db")
    assert type(factory()) is type(factory()) is kind
    assert described(kind) == looks
    resets = kind.reset
    record_environment(kind, db=tmp_path / "a.db")()
    assert kind.reset is resets, "recorded twice"


def test_outside_of_a_training_calls_are_passed_on(tmp_path: Path) -> None:
    plain: Any = record_environment(Plain, db=tmp_path / "a.db")()
    assert plain.level == Plain().level
    assert plain.spell(3) == type(plain).spell(3) == "3"
    assert asyncio.run(plain.wait(seconds=2)) == "2"
    with pytest.raises(TypeError, match=r"Tools\.wait\(\) got an unexpected keyword argument 'second'"):
        asyncio.run(plain.wait(second=2))


def test_what_is_recorded_already_is_recorded_once(tmp_path: Path) -> None:
    again: Any = record_environment(record_environment(Plain, db=tmp_path / "a.db"), db=tmp_path / "b.db")
    assert again.make is Plain
    assert again.__name__ == "Plain"


def test_another_process_gets_the_factory_unrecorded(tmp_path: Path) -> None:
    sent = pickle.dumps(record_environment(Plain, db=tmp_path / "a.db"))
    assert pickle.loads(sent) is Plain  # noqa: S301 - our own


@pytest.mark.parametrize("bad", [3, [Plain], {"plain": Plain()}, None])
def test_what_makes_no_environments_is_refused(bad: Any) -> None:
    with pytest.raises(TypeError, match=r"^record_environment\(\) takes a class, a function that makes environments"):
        record_environment(bad)


def test_a_class_that_nothing_can_be_set_on_is_recorded(taught: Any, tmp_path: Path) -> None:
    class Final(type):
        def __setattr__(cls, name: str, value: object) -> None:
            raise TypeError("sealed")

        def mro(cls) -> list[type]:
            found = super().mro()
            if any(isinstance(one, Final) for one in found[1:]):
                raise TypeError("sealed")
            return found

    class Sealed(Guessing, metaclass=Final):
        """Refuses both."""

    db, seen = tmp_path / "a.db", Seen()
    make_trainer(taught, record_environment(Sealed, db=db), tmp_path / "out", seen, max_steps=1).train()
    rows = load_run(db=db)
    assert [list(row["completion_ids"]) for row in rows.to_dict("records")] == seen.completion_ids
    assert all(actions[0]["observation"].startswith(" Game") for actions in rows.actions)


class Reduced(Plain):
    def __reduce__(self) -> Any:
        return type(self), (self.level,)


class Modelled(BaseModel):
    level: int = 1

    def reset(self, **_: Any) -> None:
        """Nothing."""


@pytest.mark.parametrize("kind", [Plain, Slotted, Reduced, Modelled])
def test_it_is_pickled_and_copied_as_what_it_is(kind: Any, tmp_path: Path) -> None:
    one: Any = record_environment(kind, db=tmp_path / "a.db")()
    pickled = [pickle.loads(pickle.dumps(one, it)) for it in range(2, pickle.HIGHEST_PROTOCOL + 1)]  # noqa: S301
    sent = pickle.loads(ForkingPickler.dumps(one))  # noqa: S301 - our own
    assert all(type(copied) is kind and copied == one for copied in (*pickled, sent, copy.deepcopy(one)))


def test_tokens_are_found_in_what_each_age_of_trl_returns() -> None:
    ids, masks, logprobs = [[1], [2]], [[1], [1]], [[-1.0], [-2.0]]
    messages: list[list[Any]] = [[], []]
    new = tokens_of_generated((ids, ids, masks, messages, logprobs, {}, None, []))
    old = tokens_of_generated((ids, ids, masks, messages, torch.tensor(2), logprobs, {}))
    assert new == old == {"prompt_ids": ids, "completion_ids": ids, "env_mask": masks, "logprobs": logprobs}
    assert tokens_of_generated((ids, ids, masks, messages, torch.tensor(2), None, {}))["logprobs"] is None
    assert tokens_of_generated((ids, ids, masks, messages, None, {}, None, []))["logprobs"] is None
    without_tools = tokens_of_generated((ids, ids, torch.tensor(2), logprobs, {}))
    assert without_tools == {**new, "env_mask": None}
    rloo = tokens_of_generated((ids, ids, messages))
    assert rloo == tokens_of_generated((ids, ids)) == {**new, "env_mask": None, "logprobs": None}
