"""Sessions of an environment: each call has its timeout, and each session is kept from batch to batch."""

import asyncio
import inspect
import weakref
from collections import defaultdict
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from logs_ui.rollout.background import BackgroundLoop, in_thread
from logs_ui.rollout.sources import START_SECONDS, Source, Variables

_FULL = ("CAPACITY_REACHED", "at capacity")  # openenv's words for a server that has no session left
_CLOSE_SECONDS = 5.0
_END_SECONDS = 30.0  # of all sessions, and of containers that have to stop


class SessionError(RuntimeError):
    """A call of an environment failed: which, and why.

    Attributes:
        is_full: whether the server had no session left.
    """

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.is_full = any(words in message for words in _FULL)


class Session:
    """One client of an environment; its calls come one after another.

    Clients of openenv run in the background loop, unless they were used synchronously before; any other does where its
    methods are coroutines, and in threads else.
    """

    def __init__(self, client: Any, loop: BackgroundLoop, timeout: float) -> None:
        self._client = _unwrapped(client)
        self._loop = loop
        self._timeout = timeout

    async def reset(self, **arguments: Any) -> Any:
        """Begins an episode. Gives what the client gives, with `observation`, `reward` and `done`.

        Raises SessionError.
        """
        return await self._loop.run(self._within_timeout("reset", lambda: self._reset(arguments)))

    async def step(self, action: Any) -> Any:
        """Applies an action, once. Gives what the client gives; raises SessionError."""
        return await self._loop.run(self._within_timeout("step", lambda: _called(self._client, "step", action)))

    async def close(self) -> None:
        """In the background loop; what it raises is nobody's business any more."""
        with suppress(Exception):
            await asyncio.wait_for(_called(self._client, "close"), _CLOSE_SECONDS)

    async def _reset(self, arguments: dict[str, Any]) -> Any:
        _let_reconnect(self._client)
        result = await _called(self._client, "reset", **arguments)
        _forbid_reconnecting(self._client)
        return result

    async def _within_timeout(self, name: str, call: Callable[[], Any]) -> Any:
        try:
            return await asyncio.wait_for(call(), self._timeout)
        except TimeoutError as error:
            raise SessionError(f"The environment did not answer {name}() within {self._timeout:g} s") from error
        except Exception as error:
            raise SessionError(f"The environment's {name}() failed: {type(error).__name__}: {error}") from error


@dataclass
class _Kept:
    """What has to be closed at the end.

    Attributes:
        sessions: all that are open.
        closing: those that were dropped, while they say goodbye.
    """

    source: Source
    loop: BackgroundLoop | None = None
    sessions: set[Session] = field(default_factory=set)
    closing: set["asyncio.Task[None]"] = field(default_factory=set)

    async def close(self) -> None:
        await asyncio.gather(*(session.close() for session in self.sessions), *self.closing)
        self.sessions.clear()
        await self.source.close()


class Sessions:
    """All sessions of an environment. They end with `close()`, with the interpreter, or when nothing refers to this."""

    def __init__(self, source: Source, timeout: float) -> None:
        self._kept = _Kept(source)
        self._timeout = timeout
        self._free: defaultdict[frozenset[tuple[str, str]], list[Session]] = defaultdict(list)
        weakref.finalize(self, _end, self._kept)

    async def open(self, variables: Variables, *, fresh: bool = False) -> Session:
        """A free session of the environment with these variables, else a new one, which connects at its first reset.

        Raises SessionError.
        """
        free = self._free[frozenset(variables.items())]
        if free and not fresh:
            return free.pop()
        loop = self._kept.loop = self._kept.loop or BackgroundLoop()
        try:
            client = await loop.run(asyncio.wait_for(self._kept.source.client(variables), START_SECONDS))
        except TimeoutError as error:
            raise SessionError(f"The environment did not start within {START_SECONDS:g} s") from error
        except Exception as error:
            raise SessionError(f"The environment did not start: {type(error).__name__}: {error}") from error
        session = Session(client, loop, self._timeout)
        self._kept.sessions.add(session)
        return session

    def keep(self, session: Session, variables: Variables) -> None:
        """For a later episode."""
        self._free[frozenset(variables.items())].append(session)

    async def drop(self, session: Session) -> None:
        """Closes, without waiting for it, a session that failed: an answer that comes late would be taken for that to
        a later call.
        """
        self._kept.sessions.discard(session)
        if self._kept.loop is not None:
            await self._kept.loop.run(_begin_closing(self._kept, session))

    def close(self) -> None:
        """Closes all, and ends what was started. Opening one later begins anew."""
        self._free.clear()
        _end(self._kept)


def _end(kept: _Kept) -> None:
    loop, kept.loop = kept.loop, None
    if loop is not None:
        loop.stop(kept.close(), _END_SECONDS)


async def _begin_closing(kept: _Kept, session: Session) -> None:
    task = asyncio.create_task(session.close())
    kept.closing.add(task)
    task.add_done_callback(kept.closing.discard)


def _unwrapped(client: Any) -> Any:
    """The asynchronous client behind openenv's synchronous one, unless that is in use already."""
    inner = getattr(client, "async_client", None)
    return client if inner is None or getattr(inner, "_execution_mode", None) == "sync" else inner


async def _called(client: Any, name: str, *args: Any, **kwargs: Any) -> Any:
    method: Any = getattr(client, name, None)
    if method is None and name == "close":
        return None
    if inspect.iscoroutinefunction(method) or getattr(client, "_execution_mode", "sync") != "sync":
        return await method(*args, **kwargs)
    result = await in_thread(lambda: method(*args, **kwargs))
    return await result if inspect.isawaitable(result) else result


def _forbid_reconnecting(client: Any) -> None:
    """A client of openenv opens a new connection where the old one is lost. In the middle of an episode that is another
    environment, which never was reset: the action must fail instead.
    """
    connection = getattr(client, "_ws", None)
    if connection is None or not hasattr(client, "_ensure_connected"):
        return

    async def ensure_connected() -> None:
        if client._ws is not connection:  # noqa: SLF001 - openenv has no public word for it
            raise ConnectionError("The connection was lost in the middle of the episode")

    client._ensure_connected = ensure_connected  # noqa: SLF001


def _let_reconnect(client: Any) -> None:
    with suppress(AttributeError):
        del client._ensure_connected  # noqa: SLF001
