"""Creates clients of an environment, from a running server, a factory, a Docker image or the hub."""

import asyncio
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from logs_ui.rollout.environments.containers import Environment, docker_starter, hub_starter
from logs_ui.rollout.environments.threads import in_thread

Variables = Mapping[str, str]
"""Environment variables of an environment that is started here; none for any other."""

START_SECONDS = 300.0
"""How long a factory, or the start of an environment, may take: it may have to pull an image."""


@dataclass(frozen=True)
class Connection:
    """Holds the parameters of a client's connection."""

    timeout: float  # seconds, of each call and of connecting
    headers: Mapping[str, str] | None = None  # of the request that opens it

    def client(self, kind: Callable[..., Any], base_url: str) -> Any:
        """Return a client that is not connected yet. A class of the user gets the arguments that it accepts."""
        options = {"connect_timeout_s": self.timeout, "message_timeout_s": self.timeout}
        accepted = {name: value for name, value in options.items() if takes(kind, name)}
        return kind(base_url=base_url, **accepted, **({"headers": dict(self.headers)} if self.headers else {}))


def takes(function: Callable[..., Any], name: str) -> bool:
    """Return True if the callable accepts an argument of that name."""
    parameters = inspect.signature(function).parameters
    return name in parameters or any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters.values())


@dataclass(frozen=True)
class Factory:
    """Clients that a function makes, which may be a coroutine function: the user's own, or one that connects to a
    running server. Nothing is started here.
    """

    make: Callable[[], Any]

    starts: ClassVar[bool] = False

    async def client(self, variables: Variables) -> Any:  # noqa: ARG002
        """Return one more client. Raise what the function raises."""
        client = self.make() if inspect.iscoroutinefunction(self.make) else await in_thread(self.make)
        return await client if inspect.isawaitable(client) else client

    async def end(self, variables: Variables) -> None:
        """Do nothing: what the function started, the function or its clients end."""

    async def close(self) -> None:
        """Do nothing, as `end`."""


@dataclass
class Started:
    """Environments that are started here: one for each distinct set of variables, with as many clients as needed."""

    start: Callable[[Variables], Any]  # starts one and gives the client that owns it; blocks
    connection: Connection
    _environments: dict[frozenset[tuple[str, str]], Environment] = field(default_factory=dict)

    starts: ClassVar[bool] = True

    async def client(self, variables: Variables) -> Any:
        """Return one more client of the environment with these variables. Raise what openenv raises."""
        key = frozenset(variables.items())
        environment = self._environments.get(key)
        if environment is None or environment.has_failed:
            environment = self._environments[key] = Environment(lambda: self.start(variables))
        owner = await environment.owner()
        return self.connection.client(type(owner), owner.base_url)

    async def end(self, variables: Variables) -> None:
        """End the environment with these variables, if it was started. A later request starts it again."""
        environment = self._environments.pop(frozenset(variables.items()), None)
        if environment is not None:
            await environment.end()

    async def close(self) -> None:
        """End all environments concurrently."""
        environments = list(self._environments.values())
        self._environments.clear()
        await asyncio.gather(*(environment.end() for environment in environments))


Source = Factory | Started
"""Creates clients, none of which is in use yet. Its coroutines run in one background loop. `starts` is True if
environments are started here, which then take variables.
"""


def source_of(
    environment: Any,
    *,
    base_url: str | None,
    docker_image: str | None,
    provider: Any,
    port: int | None,
    variables: Mapping[str, str] | None,
    headers: Mapping[str, str] | None,
    timeout: float,
    several: bool,
) -> Source:
    """Return the source of clients for the arguments of `openenv_rollout_func`, which have the same names. Start
    nothing. `several` is True if environments with different variables are needed. Raise TypeError or ValueError, in
    one line, if they do not go together, and ImportError if openenv is not installed, or too old for `headers`.
    """
    check_seconds("request_timeout", timeout)
    if base_url is not None and docker_image is not None:
        raise ValueError("base_url names a running server, docker_image one that is started here: give one of the two")
    starting = {"provider": provider, "port": port, "environment_variables": variables}
    connecting = {"base_url": base_url, "docker_image": docker_image, "headers": headers}
    if isinstance(environment, str):
        if base_url is not None:
            raise ValueError(f"{environment!r} is looked up and started: with base_url, give its client class instead")
        _check_started(provider, port, several=several)
        kind = _openenv().EnvClient
        start = hub_starter(environment, image=docker_image, port=port, provider=provider)
        return Started(start, _connection(kind, timeout, headers))
    is_client_class = isinstance(environment, type) and hasattr(environment, "from_docker_image")
    if environment is not None and not is_client_class:
        if not callable(environment):
            raise TypeError(
                "environment must be a client class, a function that returns a client, or a name, "
                f"not an instance of {type(environment).__name__}: each rollout needs a client of its own"
            )
        _refuse({**connecting, **starting}, "are for an environment that is connected to here, not for a function")
        return Factory(environment)
    kind = environment or _openenv().GenericEnvClient
    if docker_image is not None:
        _check_started(provider, port, several=several)
        start = docker_starter(kind, docker_image, port=port, provider=provider)
        return Started(start, _connection(kind, timeout, headers))
    if base_url is None:
        needs = "An environment" if environment is None else environment.__name__
        raise ValueError(f"{needs} needs a server: give base_url of a running one, or docker_image to start one")
    check_url("base_url", base_url, ("http://", "https://", "ws://", "wss://"))
    _refuse(starting, "are for an environment that is started here, by docker_image or a name, not for base_url")
    connection = _connection(kind, timeout, headers)

    async def connect() -> Any:
        # In the event loop, one after another: a client's constructor may use the loop, or state that clients share.
        return connection.client(kind, base_url)

    return Factory(connect)


def check_seconds(name: str, seconds: object) -> None:
    """Raise ValueError unless the timeout is a positive number of seconds."""
    if not isinstance(seconds, int | float) or isinstance(seconds, bool) or not 0 < seconds < float("inf"):
        raise ValueError(f"{name} must be a number of seconds above 0, not {seconds!r}")


def check_url(name: str, url: object, schemes: tuple[str, ...]) -> None:
    """Raise ValueError unless the address is an HTTP or WebSocket URL."""
    if not isinstance(url, str) or not url.startswith(schemes):
        raise ValueError(f"{name} must begin with {' or '.join(schemes)}, not {url!r}")


def _check_started(provider: Any, port: int | None, *, several: bool) -> None:
    if port is not None and (isinstance(port, bool) or not isinstance(port, int) or not 0 < port < 65_536):
        raise ValueError(f"port must be a number from 1 to 65535, not {port!r}")
    if several and port is not None:
        raise ValueError("Each task's environment is started by itself, and cannot share one port: leave out port")
    if several and provider is not None and not isinstance(provider, type):
        raise ValueError("Each task's environment is started by itself: give provider as a class, not as an instance")


def _refuse(options: Mapping[str, Any], why: str) -> None:
    names = [name for name, value in options.items() if value is not None]
    if names:
        raise ValueError(f"{', '.join(names)}: {why}")


def _connection(kind: Callable[..., Any], timeout: float, headers: Mapping[str, str] | None) -> Connection:
    if headers and not takes(kind, "headers"):
        raise ImportError(f"{kind.__name__} takes no headers: they need a newer openenv (pip install -U openenv)")
    return Connection(float(timeout), headers)


def _openenv() -> Any:
    try:
        import openenv.core
    except ImportError as error:
        raise ImportError('openenv is not installed: pip install "logs-ui[trl]"') from error
    return openenv.core
