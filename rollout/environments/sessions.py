"""Opens sessions of an environment: each call has a timeout, and sessions are reused from batch to batch."""

import asyncio
import inspect
import weakref
from collections import Counter, defaultdict
from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import orjson

from logs_ui.rollout.environments.sources import START_SECONDS, Source, Variables
from logs_ui.rollout.environments.threads import BackgroundLoop, in_thread

_FULL = ("CAPACITY_REACHED", "at capacity")  # openenv's words for a server that has no session left
_CLOSE_SECONDS = 5.0
_END_SECONDS = 40.0  # of all sessions, and of containers that have to stop
_KEPT_ENVIRONMENTS = 8
"""Of those that are started here, each with its own variables, so many are kept running though few are in use."""

_NONE: Mapping[str, Any] = {}
_Key = frozenset[tuple[str, str]]


class SessionError(RuntimeError):
    """A call of an environment failed; the message says which, and why."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.is_full = any(words in message for words in _FULL)  # True if the server had no session left


def _what_to_do(message: str, arguments: Mapping[str, Any]) -> str:
    if "Failed to connect" in message or "Connection refused" in message:
        return ". Is its server running, at that address? base_url is the server's root, without a path"
    options = ", ".join(f"{name}={value!r}" for name, value in arguments.items() if name != "seed")
    return f". It was reset with {options}" if options else ""


class Session:
    """Wraps one client of an environment; its calls are made one after another.

    Clients of openenv run in the background loop, unless they were used synchronously before. Any other client runs
    there if its methods are coroutines, and in threads otherwise.
    """

    def __init__(self, client: Any, variables: Variables, loop: BackgroundLoop, timeout: float) -> None:
        self.variables = variables  # of its environment
        self._client = _unwrapped(client)
        self._loop = loop
        self._timeout = timeout

    async def reset(self, **arguments: Any) -> Any:
        """Start an episode. Return the client's result: `observation`, `reward`, `done`. Raise SessionError."""
        return await self._loop.run(self._within_timeout("reset", lambda: self._reset(arguments), arguments))

    async def step(self, action: Any) -> Any:
        """Apply an action, once. Return the client's result. Raise SessionError."""
        return await self._loop.run(self._within_timeout("step", lambda: _called(self._client, "step", action)))

    async def close(self) -> None:
        """Close the client in the background loop; errors are ignored."""
        with suppress(Exception):
            await asyncio.wait_for(_called(self._client, "close"), _CLOSE_SECONDS)

    async def _reset(self, arguments: dict[str, Any]) -> Any:
        # The reset of a new episode may connect again, so the method of the client's class is restored for it.
        with suppress(AttributeError):
            del self._client._ensure_connected  # noqa: SLF001 - see `_forbid_reconnecting`
        result = await _called(self._client, "reset", **arguments)
        _forbid_reconnecting(self._client)
        return result

    async def _within_timeout(self, name: str, call: Callable[[], Any], arguments: Mapping[str, Any] = _NONE) -> Any:
        try:
            return await asyncio.wait_for(call(), self._timeout)
        except TimeoutError as error:
            raise SessionError(f"The environment did not answer {name}() within {self._timeout:g} s") from error
        except Exception as error:
            message = f"The environment's {name}() failed: {type(error).__name__}: {error}"
            message += await _last_words(self._client)
            raise SessionError(message + _what_to_do(message, arguments)) from error


@dataclass
class _Kept:
    """Everything that must be closed at the end."""

    source: Source
    loop: BackgroundLoop | None = None
    sessions: set[Session] = field(default_factory=set)  # all that are open
    closing: set["asyncio.Task[Any]"] = field(default_factory=set)  # ends of sessions and environments, not awaited

    def begin(self, closing: Coroutine[Any, Any, None]) -> None:
        """Start a coroutine in the background loop, in the order of these calls."""
        # Without a loop nothing was opened. Closing the coroutine avoids Python's warning that it was never
        # awaited.
        if self.loop is None:
            closing.close()
        else:
            self.loop.begin(self._noted(closing))

    async def end(self, variables: Variables, sessions: list[Session]) -> None:
        """End one environment, and its sessions. From the first moment on no caller gets it any more."""
        await self.source.end(variables)
        await asyncio.gather(*(session.close() for session in sessions))

    async def close(self) -> None:
        await asyncio.gather(*(session.close() for session in self.sessions))
        self.sessions.clear()
        await asyncio.gather(*self.closing, self.source.close())

    async def _noted(self, closing: Coroutine[Any, Any, None]) -> None:
        task = asyncio.current_task()
        assert task is not None  # noqa: S101 - for mypy
        self.closing.add(task)
        task.add_done_callback(self.closing.discard)
        await closing


class Sessions:
    """Holds all sessions of an environment. They end with `close()`, with the interpreter, or when nothing refers to
    this object.

    Of environments that are started here (one for each set of variables) at most as many run as sessions were ever in
    use at the same time, or 8. Beyond that, the least recently used one is ended.
    """

    def __init__(self, source: Source, timeout: float) -> None:
        self._kept = _Kept(source)
        self._timeout = timeout
        self._free: defaultdict[_Key, list[Session]] = defaultdict(list)
        self._in_use: Counter[_Key] = Counter()
        self._most_in_use = _KEPT_ENVIRONMENTS
        self._running: dict[_Key, Variables] = {}  # by when they were asked for, the latest last
        # The finalizer holds only `_kept`: if it held this object, the object would never be collected.
        weakref.finalize(self, _end, self._kept)

    async def open(self, variables: Variables, *, fresh: bool = False) -> Session:
        """Return a free session with these variables, or a new one, which connects later. Raise SessionError."""
        key = frozenset(variables.items())
        # The use is counted before anything is awaited, so that another call's `_make_room` does not end this
        # environment.
        self._in_use[key] += 1
        try:
            self._make_room(key, variables)
            free = self._free[key]
            return free.pop() if free and not fresh else await self._new(variables)
        except BaseException:
            self._in_use[key] -= 1
            raise

    def keep(self, session: Session) -> None:
        """Keep the session for a later episode."""
        key = frozenset(session.variables.items())
        self._in_use[key] -= 1
        self._free[key].append(session)

    def drop(self, session: Session) -> None:
        """Close a session that failed, without waiting: a late answer would be taken for that to a later call."""
        self._in_use[frozenset(session.variables.items())] -= 1
        self._kept.sessions.discard(session)
        self._kept.begin(session.close())

    def close(self) -> None:
        """Close all sessions, and end what was started. A later `open` starts anew."""
        self._free.clear()
        self._in_use.clear()
        self._running.clear()
        _end(self._kept)

    async def _new(self, variables: Variables) -> Session:
        loop = self._kept.loop = self._kept.loop or BackgroundLoop()
        try:
            client = await loop.run(asyncio.wait_for(self._kept.source.client(variables), START_SECONDS))
        except TimeoutError as error:
            raise SessionError(f"The environment did not start within {START_SECONDS:g} s") from error
        except Exception as error:
            raise SessionError(f"The environment did not start: {type(error).__name__}: {error}") from error
        session = Session(client, variables, loop, self._timeout)
        self._kept.sessions.add(session)
        return session

    def _make_room(self, key: _Key, variables: Variables) -> None:
        """End other environments, without waiting, to make room for the requested one."""
        # A dict keeps the order of insertion: removing the key and adding it again makes it the latest.
        self._running.pop(key, None)
        self._running[key] = variables
        self._most_in_use = max(self._most_in_use, self._in_use.total())
        unused = [other for other in self._running if self._in_use[other] <= 0]
        for other in unused[: max(0, len(self._running) - self._most_in_use)]:
            free = self._free.pop(other, [])
            self._kept.sessions.difference_update(free)
            self._kept.begin(self._kept.end(self._running.pop(other), free))


def _end(worker: _Kept) -> None:
    loop, worker.loop = worker.loop, None
    if loop is not None:
        loop.stop(worker.close(), _END_SECONDS)


def _unwrapped(client: Any) -> Any:
    """Return the asynchronous client behind openenv's synchronous one, unless that is already in use."""
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
    """Disable reconnecting. A client of openenv opens a new connection if it loses the old one; in the middle of an
    episode that is another environment, which was never reset, so the action must fail instead.
    """
    connection = getattr(client, "_ws", None)
    if connection is None or not hasattr(client, "_ensure_connected"):
        return

    async def ensure_connected() -> None:
        if client._ws is not connection:  # noqa: SLF001 - openenv has no public word for it
            raise ConnectionError("The connection was lost in the middle of the episode")

    client._ensure_connected = ensure_connected  # noqa: SLF001


async def _last_words(client: Any) -> str:
    """Return what a server said before it closed the connection, as one that is full does. A client of an older
    openenv does not read it if the connection is closed before its request.
    """
    connection: Any = getattr(client, "_ws", None)
    if getattr(connection, "close_code", None) is not None:
        with suppress(Exception):  # most often it said nothing
            return f". Before, it said: {orjson.loads(await connection.recv())['data']['message']}"
    return ""
