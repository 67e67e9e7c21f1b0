"""Starts environments: by Docker, by another provider of openenv's, or by openenv's `AutoEnv`."""

import asyncio
import inspect
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from logs_ui.rollout.environments.threads import OwnThread

_STOP_SECONDS = 25.0
"""How long one may take to end: openenv gives Docker ten to stop a container, and ten to remove it."""

_starting = threading.Lock()
"""openenv names containers by the millisecond and looks for a free port before Docker takes it, and its `AutoEnv`
installs packages and asks whether it may: two at once get into each other's way.
"""


class Environment:
    """Manages a started environment. Its thread is made with it, because Python starts none while it shuts down."""

    def __init__(self, start: Callable[[], Any]) -> None:
        self._thread = OwnThread()
        self._started = self._thread.submit(start)
        # After a failed start there is nothing to end later, so the thread ends at once.
        self._started.add_done_callback(lambda _: self._thread.end() if self.has_failed else None)

    @property
    def has_failed(self) -> bool:
        return self._started.done() and self._started.exception() is not None

    async def owner(self) -> Any:
        """Return the client that owns the environment. Raise what its start raised."""
        return await asyncio.shield(asyncio.wrap_future(self._started))  # others may wait for it too

    async def end(self) -> None:
        """End the environment, or let it end as soon as it has started. Errors are ignored."""
        if self.has_failed:
            return
        # The thread makes its calls in order, so that this one runs only after a start that is still under way.
        ending = self._thread.submit(lambda: asyncio.run(_closed(self._started.result())))
        self._thread.end()
        with suppress(Exception):
            await asyncio.wait_for(asyncio.shield(asyncio.wrap_future(ending)), _STOP_SECONDS)


def docker_starter(kind: Any, image: str, *, port: int | None, provider: Any) -> Callable[[Mapping[str, str]], Any]:
    """Return a function that starts containers by openenv's `from_docker_image`. `provider` is an instance, a class,
    or None for Docker.
    """

    def start(variables: Mapping[str, str]) -> Any:
        options = {} if port is None else {"port": port}
        handle = kind.from_docker_image(image, provider=_docker_or(provider), env_vars=dict(variables), **options)
        return asyncio.run(_resting(handle))

    return start


def hub_starter(name: str, *, image: str | None, port: int | None, provider: Any) -> Callable[[Mapping[str, str]], Any]:
    """Return a function that starts what openenv's `AutoEnv` finds under a hub id or the name of an installed
    environment, one after another. If the hub runs a server of that id, `AutoEnv` uses it; that server takes no
    variables.
    """

    def start(variables: Mapping[str, str]) -> Any:
        from openenv import AutoEnv

        options: dict[str, Any] = {} if port is None else {"port": port}
        if image is not None:
            options["docker_image"] = image
        with _starting:
            client = AutoEnv.from_env(
                name, container_provider=_make_provider(provider), env_vars=dict(variables), **options
            )
        if variables and getattr(client, "_provider", None) is None:
            raise RuntimeError(
                f"{name} runs in its Hugging Face Space, which accepts no environment variables: "
                "start it here with docker_image=..., or give its tasks to reset(), without task_var"
            )
        return asyncio.run(_resting(client))

    return start


@dataclass(frozen=True)
class _OneAtATime:
    """A provider that starts one container after another. Waiting until they answer happens concurrently."""

    provider: Any

    def start_container(self, *args: Any, **options: Any) -> Any:
        with _starting:
            return self.provider.start_container(*args, **options)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.provider, name)


def _docker_or(provider: Any) -> Any:
    """Return an instance of the given provider, or of openenv's for Docker."""
    from openenv.core.containers.runtime import LocalDockerProvider

    instance = LocalDockerProvider() if provider is None else _make_provider(provider)
    return _OneAtATime(instance) if isinstance(instance, LocalDockerProvider) else instance


def _make_provider(provider: Any) -> Any:
    return provider() if isinstance(provider, type) else provider


async def _resting(client: Any) -> Any:
    """Return the client that owns an environment, without a session: a session would take a player's place."""
    owner = await client if inspect.isawaitable(client) else client
    await owner.disconnect()
    return owner


async def _closed(owner: Any) -> None:
    closing = owner.close()
    if inspect.isawaitable(closing):
        await closing
