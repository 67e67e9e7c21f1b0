"""trace_env(): environments and tools of any make as they are recorded, and how what it returns stands in."""

import asyncio
import copy
import functools
import gc
import inspect
import math
import pickle
import weakref
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any, NamedTuple, Protocol, Self, get_type_hints, runtime_checkable

import gymnasium
import numpy as np
import orjson
import pytest
from gymnasium import spaces

from logs_ui.recorder import trace_env
from logs_ui.recorder.capture.calls import Collector, EnvironmentCall, collecting
from logs_ui.recorder.capture.instruments import concurrency
from tests.support.played_calls import environment_calls


def json(value: bytes | None) -> Any:
    return None if value is None else orjson.loads(value)


def pickled(value: Any) -> Any:
    return pickle.loads(pickle.dumps(value))  # noqa: S301


def only(play: Callable[[], Any]) -> EnvironmentCall:
    (call,) = environment_calls(play)
    return call


class Corridor(gymnasium.Env[str, Any]):
    """Three steps to the right, and out; five steps in all."""

    observation_space = spaces.Text(20)
    action_space = spaces.Discrete(2)

    def __init__(self) -> None:
        self.position = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        super().reset(seed=seed)
        self.position = 0
        return "at 0", {"goal": 3}

    def step(self, action: Any) -> tuple[str, float, bool, bool, dict[str, Any]]:
        if action not in {0, 1}:
            raise ValueError(f"no action {action}")
        self.position += action
        return f"at {self.position}", float(self.position == 3), self.position == 3, False, {}


def test_gymnasiums_environments_are_recorded_as_they_answer() -> None:
    env = trace_env(Corridor())

    def play() -> None:
        assert env.reset(seed=7, options={"lamp": "on"}) == ("at 0", {"goal": 3})
        assert env.step(1) == ("at 1", 0.0, False, False, {})
        assert env.step(action=1)[0] == "at 2"
        assert env.step(np.int64(1)) == ("at 3", 1.0, True, False, {})

    calls = environment_calls(play)
    assert [(call.kind, json(call.sent), json(call.observation), call.reward, call.done) for call in calls] == [
        ("reset", {"seed": 7, "options": {"lamp": "on"}}, "at 0", None, None),
        ("step", 1, "at 1", 0.0, False),
        ("step", 1, "at 2", 0.0, False),
        ("step", 1, "at 3", 1.0, True),
    ]
    assert [json(call.metadata) for call in calls] == [{"goal": 3}, None, None, None]
    assert {call.client for call in calls} == {0}


def test_an_episode_that_was_cut_off_is_done_and_says_so() -> None:
    env = trace_env(gymnasium.wrappers.TimeLimit(Corridor(), max_episode_steps=2))
    calls = environment_calls(lambda: (env.reset(), env.step(0), env.step(0)))
    assert [(call.done, json(call.metadata)) for call in calls[1:]] == [(False, None), (True, {"truncated": True})]


def test_a_wrapper_of_gymnasiums_takes_a_traced_environment() -> None:
    env = gymnasium.wrappers.TimeLimit(trace_env(Corridor()), max_episode_steps=2)
    assert [call.kind for call in environment_calls(lambda: (env.reset(), env.step(0)))] == ["reset", "step"]


def test_a_vector_environment_keeps_its_rewards_beside_the_observation() -> None:
    env = trace_env(gymnasium.make_vec("CartPole-v1", num_envs=2, vectorization_mode="sync"))
    _, step = environment_calls(lambda: (env.reset(seed=1), env.step(np.array([0, 1]))))
    assert (step.reward, step.done) == (None, None)
    assert json(step.sent) == [0, 1]
    assert json(step.metadata)["reward"] == [1.0, 1.0]
    assert json(step.metadata)["done"] == [False, False]


class TimeStep(NamedTuple):
    """dm_env 1.6's, exactly: `step_type` is its IntEnum of FIRST, MID and LAST."""

    step_type: int
    reward: float | None
    discount: float | None
    observation: Any

    def last(self) -> bool:
        return self.step_type == 2


class Result:
    def __init__(self, **parts: Any) -> None:
        vars(self).update(parts)


class ServerObservation:
    """OpenEnv's on the server's side: reward and end are parts of what is observed."""

    def __init__(self) -> None:
        self.hint, self.done, self.reward = "higher", True, 0.5

    def model_dump(self) -> dict[str, Any]:
        return vars(self)


@pytest.mark.parametrize(
    ("result", "observation", "reward", "done", "metadata"),
    [
        (("seen", 1, True, {"n": 1}), "seen", 1.0, True, {"n": 1}),
        (("seen", 1, True, {"TimeLimit.truncated": True}), "seen", 1, True,
         {"TimeLimit.truncated": True, "truncated": True}),
        (("seen", 0.5, False), "seen", 0.5, False, None),
        (("seen", np.float32(0.5), np.bool_(True), np.bool_(False), {}), "seen", 0.5, True, None),
        (TimeStep(2, 1.0, 0.0, [1, 2]), [1, 2], 1.0, True, {"discount": 0.0}),
        (TimeStep(0, None, None, "seen"), "seen", None, False, {"discount": None}),
        (Result(observation="seen", reward=1, done=True, info={"n": 1}), "seen", 1.0, True, {"n": 1}),
        (Result(observation="seen", reward=1, terminated=False, truncated=True), "seen", 1.0, True,
         {"truncated": True}),
        ({"observation": "seen", "reward": 0.25, "done": False}, "seen", 0.25, False, None),
        (ServerObservation(), {"hint": "higher", "done": True, "reward": 0.5}, 0.5, True, None),
        ("just words", "just words", None, None, None),
        (("two", "words"), ["two", "words"], None, None, None),
        (None, None, None, None, None),
    ],
)  # fmt: skip
def test_steps_of_all_makes_are_understood(
    result: Any, observation: Any, reward: float | None, done: Any, metadata: Any
) -> None:
    class Env:
        def step(self, action: str) -> Any:
            return result

    env = trace_env(Env())
    call = only(lambda: env.step("go"))
    assert (json(call.sent), json(call.observation), json(call.metadata)) == ("go", observation, metadata)
    assert (call.reward, call.done) == (reward, done)
    assert env.step("go") is result


class Chat:
    """All coroutines, and a context of its own."""

    def __init__(self) -> None:
        self.entered = 0

    async def __aenter__(self) -> Self:
        self.entered += 1
        return self

    async def __aexit__(self, *raised: object) -> None:
        self.entered -= 1

    async def reset(self, topic: str, turns: int = 3) -> tuple[str, dict[str, Any]]:
        await asyncio.sleep(0)
        return f"about {topic}", {}

    async def step(self, action: str, patience: float | None = None) -> tuple[str, float, bool, dict[str, Any]]:
        await asyncio.sleep(0)
        if action == "hang":
            await asyncio.Event().wait()
        return f"{action}!", 1.0, True, {}


def test_coroutines_are_recorded_when_they_run() -> None:
    log = Collector()

    async def play() -> None:
        async with trace_env(Chat()) as env:
            assert inspect.iscoroutinefunction(env.step)
            waiting = env.reset("weather", turns=2)
            assert inspect.iscoroutine(waiting)
            assert log.so_far().environment_calls == []
            assert await waiting == ("about weather", {})
            assert await env.step("rain", patience=2) == ("rain!", 1.0, True, {})
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(env.step("hang"), 0.05)
            assert env.entered == 1

    with collecting(log):
        asyncio.run(play())
    log.close()
    calls = log.records.environment_calls
    assert [json(call.sent) for call in calls] == [
        {"topic": "weather", "turns": 2}, {"action": "rain", "patience": 2}, "hang",
    ]  # fmt: skip
    assert [(json(call.observation), call.done, call.error) for call in calls] == [
        ("about weather", None, None), ("rain!", True, None), (None, None, "CancelledError"),
    ]  # fmt: skip


def test_a_function_that_only_makes_a_coroutine_is_recorded_once() -> None:
    chat = Chat()

    class Relay:
        def step(self, action: str) -> Any:
            return chat.step(action)

    env = trace_env(Relay())
    call = only(lambda: asyncio.run(env.step("rain")))
    assert (json(call.observation), call.done) == ("rain!", True)


def test_calls_at_once_are_told_apart_by_where_they_are_made() -> None:
    concurrency.install()
    env = trace_env(Chat())

    async def play() -> None:
        await asyncio.gather(*(env.step(word) for word in "abc"))

    calls = environment_calls(lambda: asyncio.run(play()))
    assert len({call.strand for call in calls}) == 3


def test_an_error_is_recorded_and_raised_as_it_is() -> None:
    env = trace_env(Corridor())
    with pytest.raises(ValueError, match="no action 9") as raised:
        env.step(9)

    def play() -> None:
        with pytest.raises(ValueError, match="no action 9") as again:
            env.step(9)
        assert type(again.value) is type(raised.value)
        with pytest.raises(TypeError):
            env.step()  # type: ignore[call-arg]

    first, second = environment_calls(play)
    assert (json(first.sent), first.observation, first.error) == (9, None, "ValueError: no action 9")
    assert (json(second.sent), (second.error or "")[:9]) == ({}, "TypeError")


@trace_env
def lookup(word: str, *more: str, lang: str = "en", **options: Any) -> tuple[str, int]:
    if word == "none":
        raise KeyError(word)
    return f"{word} in {lang}", 200


async def search(query: str) -> list[str]:
    await asyncio.sleep(0)
    return [query, query]


def test_a_tools_arguments_and_result_are_recorded_as_they_are() -> None:
    traced_sqrt = trace_env(math.sqrt)

    def play() -> None:
        assert lookup("cat", lang="de") == ("cat in de", 200)
        lookup("cat", "dog", "cow", lang="de", fast=True)
        with pytest.raises(KeyError):
            lookup(word="none")
        assert asyncio.run(trace_env(search)("owl")) == ["owl", "owl"]
        assert traced_sqrt(4.0) == 2.0
        assert trace_env(functools.partial(_weather, city="Ulm"))() == "rain in Ulm"

    calls = environment_calls(play)
    assert {call.kind for call in calls} == {"tool"}
    assert [json(call.sent) for call in calls] == [
        {"name": "lookup", "arguments": {"word": "cat", "lang": "de"}},
        {"name": "lookup", "arguments": {"word": "cat", "more": ["dog", "cow"], "lang": "de", "fast": True}},
        {"name": "lookup", "arguments": {"word": "none"}},
        {"name": "search", "arguments": {"query": "owl"}},
        {"name": "sqrt", "arguments": {"x": 4.0}},
        {"name": "_weather", "arguments": {}},
    ]
    assert [json(call.observation) for call in calls] == [
        ["cat in de", 200], ["cat in de", 200], None, ["owl", "owl"], 2.0, "rain in Ulm",
    ]  # fmt: skip
    assert [call.error for call in calls][2] == "KeyError: 'none'"
    assert {call.reward for call in calls} == {None}


class Shelf:
    """An object with a tool, as TRL's environment_factory takes them."""

    def __init__(self) -> None:
        self.books = ["Emma"]

    @trace_env
    def borrow(self, title: str) -> str:
        self.books.remove(title)
        return "yours"


def test_a_decorated_method_is_a_tool_of_its_object() -> None:
    shelves = Shelf(), Shelf()
    calls = environment_calls(lambda: [shelf.borrow("Emma") for shelf in shelves])
    assert [json(call.sent) for call in calls] == [{"name": "borrow", "arguments": {"title": "Emma"}}] * 2
    assert [call.client for call in calls] == [0, 1]
    assert trace_env(shelves[0].borrow) == shelves[0].borrow
    assert inspect.signature(Shelf.borrow) == inspect.signature(Shelf.borrow.__wrapped__)  # type: ignore[attr-defined]


def test_a_call_within_a_call_is_its_child_and_the_outer_one_is_the_rollouts() -> None:
    inner = trace_env(Corridor())

    class Outer:
        def reset(self) -> Any:
            return inner.reset()

        def step(self, action: int) -> Any:
            inner.step(action)
            return inner.step(action)

    outer = trace_env(Outer())
    calls = environment_calls(lambda: (outer.reset(), outer.step(1), inner.step(0)))
    assert [(call.order, call.within) for call in calls] == [
        (0, None), (1, 0), (2, None), (3, 2), (4, 2), (5, None),
    ]  # fmt: skip


class Everything:
    """An environment that can be entered, counted, called, ordered and changed."""

    def __init__(self, size: int = 3) -> None:
        self.size = size

    def reset(self) -> str:
        return "begun"

    def step(self, action: int) -> str:
        return f"{action} of {self.size}"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self.size = 0

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.size))

    def __len__(self) -> int:
        return self.size

    def __call__(self, number: int) -> int:
        return number + self.size

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Everything) and self.size == other.size

    def __hash__(self) -> int:
        return self.size


def test_what_is_returned_stands_in_for_the_environment() -> None:
    original = Everything()
    env = trace_env(original)
    assert isinstance(env, Everything)
    assert env.__class__ is Everything
    assert (list(env), len(env), env(1), env == original, hash(env)) == ([0, 1, 2], 3, 4, True, 3)
    assert (repr(env), dir(env)) == (repr(original), dir(original))
    assert (env.__doc__, env.__module__) == (original.__doc__, original.__module__)
    env.size = 5
    assert original.size == 5
    assert env.step == original.step
    assert not hasattr(env, "no_such_thing")
    assert trace_env(env) is env
    with env as entered:
        assert entered is env
        assert only(lambda: entered.step(1)).observation == b'"1 of 5"'
    assert original.size == 0


@runtime_checkable
class Steps(Protocol):
    def step_async(self, action: Any) -> Any: ...


@runtime_checkable
class Resets(Protocol):
    def reset(self) -> Any: ...


def test_it_claims_no_method_that_the_environment_lacks() -> None:
    class OnlySteps:
        def step(self, action: int) -> int:
            return action

    assert not isinstance(trace_env(Everything()), Steps)
    assert not isinstance(trace_env(OnlySteps()), Steps | Resets)
    assert only(lambda: trace_env(OnlySteps()).step(1)).observation == b"1"


def test_a_method_that_was_replaced_is_the_one_that_is_called(monkeypatch: pytest.MonkeyPatch) -> None:
    env = trace_env(Everything())
    assert only(lambda: env.step(1)).observation == b'"1 of 3"'
    assert env.step is env.step
    env.__wrapped__.step = lambda action: f"{action} of its own"  # type: ignore[attr-defined]
    assert only(lambda: env.step(1)).observation == b'"1 of its own"'
    env.step = lambda action: f"{action} of another"  # type: ignore[method-assign]
    assert only(lambda: env.step(1)).observation == b'"1 of another"'
    del env.step
    assert not hasattr(env, "step_async")
    monkeypatch.setattr(Everything, "step", lambda _, action: f"{action} of all")
    assert only(lambda: env.step(1)).observation == b'"1 of all"'


def test_an_environment_is_let_go_of_with_its_last_reference() -> None:
    environments = [trace_env(Everything())]
    gone = weakref.ref(environments[0].__wrapped__)  # type: ignore[attr-defined]
    gc.disable()
    try:
        assert only(lambda: environments[0].step(1)).observation == b'"1 of 3"'
        environments.clear()
        assert gone() is None
    finally:
        gc.enable()


@pytest.mark.parametrize("duplicate", [copy.copy, copy.deepcopy, pickled])
def test_copies_and_pickles_are_traced_and_apart(duplicate: Callable[[Any], Any]) -> None:
    env = trace_env(Everything())
    other = duplicate(env)
    other.size = 9
    assert (env.size, other.size, isinstance(other, Everything)) == (3, 9, True)
    assert only(lambda: other.step(1)).observation == b'"1 of 9"'
    assert pickled(other.step)(2) == "2 of 9"


def test_tools_are_copied_and_pickled_as_functions_are() -> None:
    assert pickled(lookup) is lookup
    again = pickled(trace_env(search))
    assert json(only(lambda: asyncio.run(again("owl"))).observation) == ["owl", "owl"]
    assert copy.copy(lookup) == copy.deepcopy(lookup) == lookup
    assert pickled(Shelf().borrow)("Emma") == "yours"
    with pytest.raises((pickle.PicklingError, AttributeError)):
        pickle.dumps(trace_env(lambda: None))


def test_a_tool_keeps_what_a_trainer_makes_its_schema_of() -> None:
    from transformers.utils import get_json_schema

    traced = trace_env(_weather)
    assert get_json_schema(traced) == get_json_schema(_weather)
    for name in ("__name__", "__qualname__", "__doc__", "__module__", "__annotations__", "__defaults__"):
        assert getattr(traced, name) == getattr(_weather, name)


def test_what_is_asked_of_a_class_hides_nothing_of_what_it_wraps() -> None:
    tool, environment = trace_env(_weather), trace_env(Corridor())
    for proxy in (tool, environment, environment.step):
        assert type(proxy).__annotations__ == {}
        assert get_type_hints(type(proxy)) == {}
    assert get_type_hints(tool) == {"city": str, "return": str}
    assert tool.__annotations__ == _weather.__annotations__
    assert get_type_hints(environment.step) == get_type_hints(Corridor.step)
    assert not hasattr(trace_env(SimpleNamespace(step=len)), "__annotations__")


def _weather(city: str) -> str:
    """Tells the weather.

    Args:
        city: where.
    """
    return f"rain in {city}"


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (5, "trace_env() takes an environment with reset() or step(), or a function, not a int"),
        (Corridor, "trace_env() takes an environment, not a class: give it Corridor(...)"),
    ],
)
def test_what_is_neither_is_refused_in_one_line(given: Any, said: str) -> None:
    with pytest.raises(TypeError) as raised:
        trace_env(given)
    assert str(raised.value) == said


def test_an_awaitable_of_another_kind_is_passed_on_and_leaves_nothing_open() -> None:
    class Remote:
        def step(self, action: int) -> Any:
            return asyncio.get_running_loop().create_future()

    async def play() -> None:
        assert isinstance(trace_env(Remote()).step(1), asyncio.Future)

    assert environment_calls(lambda: asyncio.run(play())) == []


class Hostile:
    def __getattr__(self, name: str) -> Any:
        raise RuntimeError(name)

    def __float__(self) -> float:
        raise RuntimeError("float")

    def __bool__(self) -> bool:
        raise RuntimeError("bool")


def test_hostile_answers_are_passed_on_and_recorded_as_far_as_they_can_be() -> None:
    hostile = Hostile()

    class Env:
        def step(self, action: Any) -> Any:
            return ("seen", hostile, hostile, {})

    call = only(lambda: trace_env(Env()).step("go"))
    assert (json(call.observation), call.reward, call.done) == ("seen", None, None)
    assert set(json(call.metadata)) == {"reward", "done"}
