"""OpenEnv's clients, as they are recorded: the installed one's against real servers, those of older versions by classes
of their exact shape (each was run against its own server when this was written).
"""

import asyncio
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import orjson
import pytest
from fastmcp import FastMCP

from logs_ui.recorder.capture.calls import Collector, EnvironmentCall, collecting
from logs_ui.recorder.capture.instruments import concurrency, openenv
from logs_ui.recorder.capture.instruments.patch import patches
from tests.support.late import guess_env, mcp_types
from tests.support.played_calls import environment_calls
from tests.support.rollouts import served_app

pytestmark = pytest.mark.versions

GAME = {"seed": 1, "task": "easy: 1-3"}


@pytest.fixture(scope="module", autouse=True)
def _attached() -> None:
    openenv.install()
    concurrency.install()


def add(a: int, b: int) -> int:
    return a + b


def broken() -> str:
    raise ValueError("out of order")


@pytest.fixture(scope="module")
def calculator() -> Iterator[str]:
    from openenv.core.env_server.http_server import create_app
    from openenv.core.env_server.mcp_environment import MCPEnvironment
    from openenv.core.env_server.types import Observation, State

    class Calculator(MCPEnvironment):  # type: ignore[misc]
        SUPPORTS_CONCURRENT_SESSIONS = True

        def __init__(self) -> None:
            tools = FastMCP("calculator")
            tools.tool()(add)
            tools.tool()(broken)
            super().__init__(tools)

        def reset(self, seed: int | None = None, episode_id: str | None = None, **_: Any) -> Any:
            return Observation(done=False)

        def _step_impl(self, action: Any, timeout_s: float | None = None, **_: Any) -> Any:
            return Observation(done=False)

        @property
        def state(self) -> Any:
            return State(episode_id="1")

    kinds = mcp_types.CallToolAction, mcp_types.CallToolObservation
    with served_app(create_app(Calculator, *kinds, env_name="calculator", max_concurrent_envs=4)) as url:
        yield url


def told(calls: list[EnvironmentCall]) -> list[Any]:
    return [(call.kind, orjson.loads(call.sent)) for call in calls]


RESET = ("reset", GAME)
STEP = ("step", {"metadata": {}, "guess": 1})


def is_a_game(calls: list[EnvironmentCall]) -> bool:
    assert told(calls) == [RESET, STEP]
    assert [orjson.loads(call.observation or b"")["hint"] for call in calls] == [None, "higher"]
    assert [(call.reward, call.done, call.error, call.client) for call in calls] == [
        (None, False, None, 0),
        (0.1, False, None, 0),
    ]
    return True


def by_sync_client(url: str) -> None:
    with guess_env.GuessEnv(base_url=url).sync() as env:
        env.reset(**GAME)
        assert env.step(guess_env.GuessAction(guess=1)).reward == 0.1
        env.state()  # no call of the rollout's


def by_bare_client(url: str) -> None:
    env = guess_env.GuessEnv(base_url=url)
    env.reset(**GAME)
    env.step(guess_env.GuessAction(guess=1))
    env.close()


def by_async_client(url: str) -> None:
    async def play() -> None:
        async with guess_env.GuessEnv(base_url=url) as env:
            await env.reset(**GAME)
            await env.step(guess_env.GuessAction(guess=1))
            await env.state()

    asyncio.run(play())


@pytest.mark.parametrize("play", [by_sync_client, by_bare_client, by_async_client])
def test_clients_of_today_are_recorded(game_url: str, play: Callable[[str], None]) -> None:
    assert is_a_game(environment_calls(lambda: play(game_url)))


def test_a_call_that_nobody_awaits_is_recorded_when_it_runs(game_url: str) -> None:
    log = Collector()

    async def play() -> None:
        env = guess_env.GuessEnv(base_url=game_url)
        result = env.reset(**GAME)
        assert log.so_far().environment_calls == []
        assert result.done is False  # reading it is what makes the call
        assert len(log.records.environment_calls) == 1
        assert result.observation.hint is None
        assert env.step(guess_env.GuessAction(guess=1)).reward == 0.1
        env.close()

    with collecting(log):
        asyncio.run(play())
    assert is_a_game(log.records.environment_calls)


def test_an_error_of_the_server_is_recorded_and_raised(game_url: str) -> None:
    def play() -> None:
        with guess_env.GuessEnv(base_url=game_url).sync() as env, pytest.raises(RuntimeError, match="Unknown task"):
            env.reset(task="none such")

    (call,) = environment_calls(play)
    assert (call.kind, call.sent, call.observation) == ("reset", b'{"task":"none such"}', None)
    assert call.error is not None
    assert call.error.startswith("RuntimeError: Server error: Unknown task 'none such'")


def test_calls_of_a_tool_client_are_actions_by_their_names(calculator: str) -> None:
    def play() -> None:
        from openenv.core.mcp_client import MCPToolClient

        with MCPToolClient(base_url=calculator).sync() as env:
            env.reset()
            env.list_tools()
            assert env.call_tool("add", a=1, b=2) == 3
            with pytest.raises(RuntimeError, match="out of order"):
                env.call_tool("broken")

    made = environment_calls(play)
    calls = [call for call in made if call.within is None]
    assert {call.kind for call in made if call not in calls} <= {"step"}, "how older clients call a tool"
    assert told(calls) == [
        ("reset", {}),
        ("tool", {"name": "add", "arguments": {"a": 1, "b": 2}}),
        ("tool", {"name": "broken", "arguments": {}}),
    ]
    assert [call.observation for call in calls][1:] == [b"3", None]
    assert "out of order" in (calls[2].error or "")
    assert {call.client for call in calls} == {0}


def test_a_step_that_is_cancelled_is_recorded_as_an_error_and_stays_cancelled() -> None:
    async def never(client: object, action: dict[str, int]) -> None:
        await asyncio.Event().wait()

    step = openenv._step(never)
    log = Collector()
    with collecting(log), pytest.raises(TimeoutError):
        asyncio.run(asyncio.wait_for(step(object(), {"guess": 1}), 0.05))
    (call,) = log.records.environment_calls
    assert (call.sent, call.observation, call.error) == (b'{"guess":1}', None, "CancelledError")


def old_result(hint: str, reward: float | None, *, done: bool) -> Any:
    """`StepResult` before 0.4: without metadata."""
    return SimpleNamespace(observation={"hint": hint}, reward=reward, done=done)


class HTTPEnvClient:
    """openenv-core 0.1.0 and 0.1.1, `openenv_core.http_env_client`: over HTTP, without arguments for the reset."""

    def reset(self) -> Any:
        return old_result("begin", None, done=False)

    def step(self, action: Any) -> Any:
        return old_result("higher", 0.1, done=True)


class SyncEnvClient:
    """openenv and openenv-core 0.2.0 and 0.2.1, `EnvClient`: over a WebSocket."""

    def reset(self, **kwargs: Any) -> Any:
        return old_result("begin", None, done=False)

    def step(self, action: Any, **kwargs: Any) -> Any:
        return old_result("higher", 0.1, done=True)


class AsyncEnvClient:
    """0.2.2 to 0.3.1, `EnvClient`: the same as coroutines; `.sync()` runs them in a loop of its own."""

    async def reset(self, **kwargs: Any) -> Any:
        return old_result("begin", None, done=False)

    async def step(self, action: Any, **kwargs: Any) -> Any:
        return old_result("higher", 0.1, done=True)


class SteppingToolClient(AsyncEnvClient):
    """`MCPToolClient` up to 0.4.2, in its own default mode."""

    async def call_tool(self, name: str, **kwargs: Any) -> Any:
        return (await self.step({"tool_name": name, "arguments": kwargs})).observation


def is_an_old_game(calls: list[EnvironmentCall], reset: dict[str, Any]) -> bool:
    assert told(calls) == [("reset", reset), ("step", {"guess": 1})]
    assert [orjson.loads(call.observation or b"") for call in calls] == [{"hint": "begin"}, {"hint": "higher"}]
    assert [(call.reward, call.done, call.metadata) for call in calls] == [(None, False, None), (0.1, True, None)]
    return True


@pytest.mark.parametrize(("kind", "arguments"), [(HTTPEnvClient, {}), (SyncEnvClient, {"seed": 1})])
def test_clients_of_0_1_and_0_2_0_are_recorded(kind: type, arguments: dict[str, Any]) -> None:
    openenv._attach(kind)
    env: Any = kind()
    calls = environment_calls(lambda: (env.reset(**arguments), env.step(action={"guess": 1})))
    assert is_an_old_game(calls, arguments)


def test_clients_of_0_2_2_to_0_3_are_recorded() -> None:
    openenv._attach(AsyncEnvClient)
    patches.method(SteppingToolClient, "call_tool", openenv._tool)

    async def play() -> None:
        env = AsyncEnvClient()
        await env.reset(seed=1)
        await env.step({"guess": 1})

    assert asyncio.iscoroutinefunction(AsyncEnvClient.step)
    assert is_an_old_game(environment_calls(lambda: asyncio.run(play())), {"seed": 1})
    tool, step = environment_calls(lambda: asyncio.run(SteppingToolClient().call_tool("add", a=1)))
    assert told([tool, step]) == [
        ("tool", {"name": "add", "arguments": {"a": 1}}),
        ("step", {"tool_name": "add", "arguments": {"a": 1}}),
    ]
    assert step.within == tool.order
    assert step.done is True
