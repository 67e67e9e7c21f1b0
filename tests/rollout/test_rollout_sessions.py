"""Sessions of OpenEnv environments: where they come from, how they are called, when they end."""

import asyncio
import contextvars
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest

from logs_ui.rollout.environments import containers
from logs_ui.rollout.environments.sessions import Session, SessionError, Sessions
from logs_ui.rollout.environments.sources import Source, source_of
from tests.support.late import guess_env, openenv
from tests.support.ports import free_port
from tests.support.rollouts import moody_server

GAME = {"seed": 1, "task": "easy: 1-3"}


def source(environment: Any = None, *, seconds: float = 5.0, several: bool = False, **given: Any) -> Source:
    names = ("base_url", "docker_image", "provider", "port", "variables", "headers")
    return source_of(environment, timeout=seconds, several=several, **{**dict.fromkeys(names), **given})


@asynccontextmanager
async def opened(
    environment: Any = None, *, seconds: float = 5.0, variables: Mapping[str, str] | None = None, **given: Any
) -> AsyncIterator[Session]:
    sessions = Sessions(source(environment, seconds=seconds, **given), seconds)
    try:
        yield await sessions.open(variables or {})
    finally:
        sessions.close()


async def is_a_game(session: Session) -> bool:
    begun = await session.reset(**GAME)
    assert begun.observation.hint is None
    result = await session.step(guess_env.GuessAction(guess=1))
    assert (result.observation.hint, result.reward, result.done) == ("higher", 0.1, False)
    return True


async def connected(url: str) -> Any:
    client = guess_env.GuessEnv(base_url=url)
    await client.connect()
    return client


async def not_connected(url: str) -> Any:
    return guess_env.GuessEnv(base_url=url)


FACTORIES: list[Callable[[str], Any]] = [
    lambda url: guess_env.GuessEnv(base_url=url),
    lambda url: guess_env.GuessEnv(base_url=url).sync(),
    lambda url: guess_env.GuessEnv(base_url=url).sync().connect(),
    not_connected,
    connected,
]


@pytest.mark.versions
@pytest.mark.parametrize("factory", FACTORIES)
async def test_a_factory_may_give_a_client_of_any_kind(game_url: str, factory: Callable[[str], Any]) -> None:
    async with opened(lambda: factory(game_url)) as session:
        assert await is_a_game(session)
        assert await is_a_game(session)  # a reset begins another episode


@pytest.mark.versions
async def test_an_address_makes_sessions_of_a_class_and_alone_of_dicts(game_url: str) -> None:
    async with opened(guess_env.GuessEnv, base_url=game_url) as session:
        assert await is_a_game(session)
    async with opened(base_url=game_url) as session:
        await session.reset(**GAME)
        assert (await session.step({"guess": 1})).observation["hint"] == "higher"


async def test_clients_of_a_class_are_made_in_the_event_loop_in_the_order_of_the_rows(game_url: str) -> None:
    made: list[int] = []

    class Counting(openenv.GenericEnvClient):  # type: ignore[misc]
        def __init__(self, **settings: Any) -> None:
            super().__init__(**settings)
            asyncio.get_running_loop()
            number = len(made)
            time.sleep(0.01)  # two in parallel would get one number
            made.append(number)

    sessions = Sessions(source(Counting, base_url=game_url), 5)
    await asyncio.gather(*(sessions.open({}) for _ in range(3)))
    sessions.close()
    assert made == [0, 1, 2]


async def test_headers_open_the_connection() -> None:
    client = await source(guess_env.GuessEnv, base_url="http://127.0.0.1:1", headers={"A": "b"}).client({})
    assert client._headers == {"A": "b"}
    assert client._message_timeout == client._connect_timeout == 5.0


def test_headers_that_a_client_does_not_take_are_refused() -> None:
    class Old:
        from_docker_image = None

        def __init__(self, base_url: str) -> None: ...

    with pytest.raises(ImportError, match="Old takes no headers"):
        source(Old, base_url="http://127.0.0.1:1", headers={"A": "b"})


PERSON = contextvars.ContextVar[str]("person")


class Blocking:
    """An environment without coroutines."""

    def reset(self, **_: Any) -> Any:
        return SimpleNamespace(observation=PERSON.get(), reward=None, done=False)

    def step(self, action: str) -> Any:
        time.sleep(float(action))
        return SimpleNamespace(observation=threading.current_thread(), reward=1.0, done=True)


class Awaiting(Blocking):
    async def reset(self, **_: Any) -> Any:
        return super().reset()


@pytest.mark.parametrize("kind", [Blocking, Awaiting])
async def test_calls_keep_the_callers_context(kind: Any) -> None:
    async with opened(kind) as session:
        PERSON.set("me")
        assert (await session.reset()).observation == "me"


async def test_calls_that_block_do_so_in_threads_of_their_own() -> None:
    sessions = Sessions(source(Blocking), 5.0)
    many = [await sessions.open({}) for _ in range(40)]
    results = await asyncio.gather(*(session.step("0.3") for session in many))
    assert len({result.observation for result in results}) == 40
    sessions.close()


def test_a_call_that_blocks_for_ever_is_given_up_and_does_not_keep_the_interpreter() -> None:
    code = """if True:
        import asyncio, time
        from logs_ui.rollout.environments.sessions import Sessions, SessionError
        from logs_ui.rollout.environments.sources import Factory
        class Hung:
            def reset(self): time.sleep(60)
        async def play():
            sessions = Sessions(Factory(Hung), 0.2)
            session = await sessions.open({})
            try: await session.reset()
            except SessionError as error: print(error)
        asyncio.run(play())
    """
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert ended.stdout == "The environment did not answer reset() within 0.2 s\n", ended.stderr


@pytest.mark.versions
@pytest.mark.parametrize(
    ("task", "message"),
    [
        ("hangs at step", r"did not answer step\(\) within 2 s"),
        ("fails at step", r"step\(\) failed: RuntimeError: Server error: out of order"),
    ],
)
async def test_a_call_that_hangs_is_given_up_and_what_one_raises_is_said(moody: str, task: str, message: str) -> None:
    async with opened(base_url=moody, seconds=2.0) as session:
        await session.reset(task=task)
        with pytest.raises(SessionError, match=message):
            await session.step({"message": "guess"})


@pytest.mark.versions
@pytest.mark.parametrize("is_late", [False, True])
async def test_a_full_server_is_told_from_a_broken_one(*, is_late: bool) -> None:
    class Late(openenv.GenericEnvClient):  # type: ignore[misc]
        """Asks as a client of openenv 0.4 does, once a server that has no session has closed the connection."""

        async def _send_and_receive(self, message: dict[str, Any]) -> dict[str, Any]:
            await self._ensure_connected()
            with suppress(TimeoutError):
                await asyncio.wait_for(self._ws.wait_closed(), 1.0)
            await self._ws.send(json.dumps(message))
            response: dict[str, Any] = await self._receive()
            return response

    with moody_server(sessions=1) as url:
        sessions = Sessions(source(Late if is_late else openenv.GenericEnvClient, base_url=url), 5.0)
        await (await sessions.open({})).reset()
        with pytest.raises(SessionError) as raised:
            await (await sessions.open({})).reset()
        assert raised.value.is_full
        sessions.close()


@pytest.mark.versions
async def test_a_connection_that_is_lost_ends_the_episode_and_the_next_reset_connects_anew() -> None:
    with moody_server() as url:
        sessions = Sessions(source(base_url=url), 5.0)
        session = await sessions.open({})
        await session.reset()
    with moody_server(port=int(url.rpartition(":")[2])):
        with pytest.raises(SessionError, match=r"step\(\) failed: Connection"):
            await session.step({"message": "guess"})
        again = await sessions.open({})
        await again.reset()
        assert (await again.step({"message": "guess"})).reward == 1.0
    sessions.close()


async def test_a_session_that_was_kept_is_given_out_again_to_the_same_environment_alone() -> None:
    sessions = Sessions(source(Blocking), 5.0)
    first = await sessions.open({"TASK": "a"})
    sessions.keep(first)
    assert await sessions.open({"TASK": "b"}) is not first
    assert await sessions.open({"TASK": "a"}, fresh=True) is not first
    assert await sessions.open({"TASK": "a"}) is first
    assert await sessions.open({"TASK": "a"}) is not first
    sessions.close()


async def test_closing_frees_the_servers_sessions() -> None:
    with moody_server(sessions=1) as url:
        for _ in range(3):
            async with opened(base_url=url) as session:
                await session.reset()
            await asyncio.sleep(0.1)


async def test_a_factory_that_raises_is_said() -> None:
    def broken() -> None:
        raise OSError("no such place")

    with pytest.raises(SessionError, match="did not start: OSError: no such place"):
        async with opened(broken):
            pass


FAKE_DOCKER = f"""#!{sys.executable}
import os, subprocess, sys, time
from pathlib import Path
log = Path(os.environ["FAKE_DOCKER_LOG"])
args = sys.argv[1:]
with log.open("a") as file:
    file.write(" ".join(args) + chr(10))
if args[0] == "run":
    port = args[args.index("-p") + 1].split(":")[0]
    server = [sys.executable, "-m", "logs_ui.rollout.demo.guess_env", "--port", port]
    print(subprocess.Popen(server, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True).pid)
    time.sleep(0.1)
    with log.open("a") as file:
        file.write("ran" + chr(10))
elif args[0] == "stop":
    os.kill(int(args[1]), 15)
"""


@pytest.fixture
def docker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], list[str]]:
    """A `docker` command that starts the demo's server instead of a container; gives what it was told."""
    command = tmp_path / "docker"
    command.write_text(FAKE_DOCKER)
    command.chmod(0o755)
    log = tmp_path / "log"
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setenv("FAKE_DOCKER_LOG", str(log))
    return lambda: log.read_text().splitlines()


@pytest.mark.exhaustive
async def test_a_container_is_started_once_for_each_set_of_variables_and_one_after_another(
    docker: Callable[[], list[str]],
) -> None:
    """They are named by the millisecond; the command takes a tenth of a second."""
    sessions = Sessions(source(guess_env.GuessEnv, docker_image="org/guess:1", several=True), 60.0)
    wanted = [{"TASK": "a"}, {"TASK": "a"}, {"TASK": "b"}, {"TASK": "a"}]
    many = await asyncio.gather(*(sessions.open(variables) for variables in wanted))
    assert all(await asyncio.gather(*(is_a_game(session) for session in many)))
    runs = [line for line in docker() if line.startswith("run")]
    assert sorted(line.split("-e ")[1] for line in runs) == ["TASK=a org/guess:1", "TASK=b org/guess:1"]
    assert [line[:3] for line in docker() if line.startswith(("run", "ran"))] == ["run", "ran"] * 2
    sessions.close()
    assert sum(line.startswith("stop") for line in docker()) == 2


@pytest.mark.exhaustive
async def test_a_container_has_the_port_that_was_asked_for(docker: Callable[[], list[str]]) -> None:
    port = free_port()
    async with opened(docker_image="guess", port=port) as session:
        await session.reset(**GAME)
    assert f" -p {port}:8000 guess" in next(line for line in docker() if line.startswith("run"))


async def test_docker_that_is_not_there_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")

    with pytest.raises(SessionError, match="did not start: RuntimeError: Docker is not available"):
        async with opened(guess_env.GuessEnv, docker_image="guess"):
            pass


class Cloud:
    """A provider of the user's own."""

    url = ""
    started: ClassVar[list[tuple[str, dict[str, Any]]]] = []
    stopped = 0

    def start_container(self, image: str, **options: Any) -> str:
        Cloud.started.append((image, options))
        return Cloud.url

    def wait_for_ready(self, base_url: str, timeout_s: float = 30.0) -> None:
        assert base_url == Cloud.url

    def stop_container(self) -> None:
        Cloud.stopped += 1


@pytest.mark.parametrize("instance", [False, True])
async def test_a_provider_of_ones_own_starts_it(game_url: str, instance: bool) -> None:  # noqa: FBT001
    Cloud.url, Cloud.started, Cloud.stopped = game_url, [], 0

    provider = Cloud() if instance else Cloud
    async with opened(guess_env.GuessEnv, docker_image="guess", provider=provider, variables={"A": "1"}) as session:
        assert await is_a_game(session)
        assert Cloud.started == [("guess", {"env_vars": {"A": "1"}})]
    assert Cloud.stopped == 1


class Fleet(Cloud):
    """As many as are asked for; `waits` is called before each stops."""

    running: ClassVar[list[str]] = []
    waits: ClassVar[Callable[[], object]] = list

    def start_container(self, image: str, **options: Any) -> str:
        self.name = options["env_vars"]["TASK"]
        Fleet.running.append(self.name)
        return super().start_container(image, **options)

    def stop_container(self) -> None:
        Fleet.waits()
        Fleet.running.remove(self.name)


@pytest.fixture
def fleet(game_url: str) -> Sessions:
    Cloud.url, Cloud.started, Fleet.running, Fleet.waits = game_url, [], [], list
    return Sessions(source(guess_env.GuessEnv, docker_image="guess", provider=Fleet, several=True), 60.0)


async def until(is_so: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not is_so():  # noqa: ASYNC110 - it is another thread's
            await asyncio.sleep(0.02)


async def test_environments_that_no_row_needs_end_those_that_rest_for_longest_first(fleet: Sessions) -> None:
    for i in range(12):
        fleet.keep(await fleet.open({"TASK": str(i)}))
        fleet.keep(await fleet.open({"TASK": "0"}))  # as is used again and again
    await until(lambda: len(Fleet.running) == 8)
    assert Fleet.running == ["0", *(str(i) for i in range(5, 12))]
    assert await is_a_game(await fleet.open({"TASK": "1"}))
    assert Fleet.running[-1] == "1"
    fleet.close()
    assert Fleet.running == []


async def test_as_many_environments_run_as_rows_are_played_at_a_time(fleet: Sessions) -> None:
    for _ in range(2):
        many = await asyncio.gather(*(fleet.open({"TASK": str(i)}) for i in range(12)))
        assert all(await asyncio.gather(*(is_a_game(session) for session in many)))
        for session in many[1:]:
            fleet.keep(session)
        fleet.drop(many[0])
    assert len(Cloud.started) == 12
    await fleet.open({"TASK": "one more"})
    await until(lambda: len(Fleet.running) == 12)
    assert "0" not in Fleet.running  # its session was dropped, so that it is not in use
    fleet.close()


async def test_environments_end_at_the_same_time(fleet: Sessions) -> None:
    await asyncio.gather(*(fleet.open({"TASK": str(i)}) for i in range(8)))
    Fleet.waits = threading.Barrier(8, timeout=60).wait
    fleet.close()
    assert Fleet.running == []


async def test_an_environment_that_does_not_stop_is_left_alone(
    fleet: Sessions, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(containers, "_STOP_SECONDS", 0.2)

    await fleet.open({"TASK": "a"})
    may_stop = threading.Event()
    Fleet.waits = partial(may_stop.wait, 60)
    fleet.close()
    assert Fleet.running == ["a"]
    may_stop.set()


def test_all_is_closed_at_the_end_of_an_interpreter_that_starts_no_thread_any_more() -> None:
    """As from Python 3.12 on."""
    code = """if True:
        import asyncio, threading
        from logs_ui.rollout.environments.sessions import Sessions
        from logs_ui.rollout.environments.sources import Connection, Factory, Started
        start = threading.Thread.start
        def only_before_the_end(thread):
            if not threading.main_thread().is_alive():
                raise RuntimeError("can't create new thread at interpreter shutdown")
            start(thread)
        threading.Thread.start = only_before_the_end
        class Client:
            def __init__(self, base_url="owner", **_): self.name = base_url
            base_url = "client"
            def close(self): print(self.name)
        async def play(sessions):
            await sessions.open({})
        all = [Sessions(source, 5) for source in (Factory(Client), Started(lambda _: Client(), Connection(5)))]
        for sessions in all: asyncio.run(play(sessions))
    """
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert sorted(ended.stdout.split()) == ["client", "owner", "owner"], ended.stderr


async def test_what_starts_an_environment_takes_no_session_of_it() -> None:
    with moody_server(sessions=1) as Cloud.url:
        async with opened(docker_image="moody", provider=Cloud) as session:
            await session.reset()


async def test_an_environment_that_did_not_start_is_tried_anew(game_url: str) -> None:
    class Late(Cloud):
        def start_container(self, image: str, **options: Any) -> str:
            url = super().start_container(image, **options)
            if len(Cloud.started) == 1:
                raise RuntimeError("no machine is free")
            return url

    Cloud.url, Cloud.started = game_url, []

    sessions = Sessions(source(guess_env.GuessEnv, docker_image="guess", provider=Late), 5.0)
    with pytest.raises(SessionError, match="no machine is free"):
        await sessions.open({})
    assert await is_a_game(await sessions.open({}))
    sessions.close()


async def test_a_hub_id_is_given_to_openenv(game_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    def from_env(name: str, **options: Any) -> Any:
        asked.append((name, options))
        return guess_env.GuessEnv(base_url=game_url)

    monkeypatch.setattr("openenv.AutoEnv.from_env", from_env)

    async with opened("org/guess", docker_image="guess:2") as session:
        assert await is_a_game(session)
        assert asked == [("org/guess", {"container_provider": None, "env_vars": {}, "docker_image": "guess:2"})]
    with pytest.raises(SessionError, match="runs in its Hugging Face Space, which accepts no environment variables"):
        async with opened("org/guess", variables={"TASK": "a"}):
            pass


async def test_the_hubs_environments_are_found_one_after_another(
    game_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []

    def from_env(name: str, **_: Any) -> Any:
        said.append("begins")
        time.sleep(0.1)
        said.append("ends")
        return SimpleNamespace(_provider=1, base_url=game_url, disconnect=_nothing, close=_nothing)

    monkeypatch.setattr("openenv.AutoEnv.from_env", from_env)

    started = source("org/guess", several=True)
    await asyncio.gather(*(started.client({"TASK": str(i)}) for i in range(3)), return_exceptions=True)
    assert said == ["begins", "ends"] * 3


async def _nothing() -> None: ...


async def test_a_name_that_openenv_does_not_know_is_said_in_its_words() -> None:
    with pytest.raises(SessionError, match=r"did not start: ValueError: (No OpenEnv|Unknown) environment"):
        async with opened("no-such-game"):
            pass


@pytest.mark.versions
def test_what_is_used_of_openenvs_client_is_there() -> None:
    client = openenv.GenericEnvClient(base_url="http://127.0.0.1:1")
    assert (client._execution_mode, client._ws, client._provider) == (None, None, None)
    assert asyncio.iscoroutinefunction(client._ensure_connected)
    assert client.sync().async_client is client
