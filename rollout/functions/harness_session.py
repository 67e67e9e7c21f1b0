"""Runs the environment's side of OpenEnv's harness: one row's session, whose calls have a timeout and are recorded."""

import time
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from logs_ui.recorder import current_row, trace_env
from logs_ui.rollout.environments.sessions import SessionError
from logs_ui.rollout.environments.sources import takes
from logs_ui.rollout.environments.threads import OwnThread
from logs_ui.rollout.models.one_line import one_line
from logs_ui.rollout.play.play import PAUSE_SECONDS
from logs_ui.rollout.play.tasks_and_seeds import Assignment

T = TypeVar("T")

_CLOSE_SECONDS = 5.0


@dataclass
class WatchedSession:
    """A `ResourceSession` of the user's, and the factory that makes it, for one row.

    All calls are made in the thread that created it. Wrong calls are reported to the model: an unknown tool, or a
    KeyError, TypeError or ValueError of the tool, as OpenEnv's own MCP bridge does.
    """

    factory: Any
    assigned: Assignment  # its task, instead of the prompt, and its seed
    timeout: float  # seconds that each call may take
    rewards: list[float | None] = field(default_factory=list)  # of each tool call; None for a call without one
    is_done: bool = False  # True once a tool reported that the episode is over
    is_rewarded: bool = False  # True once the environment gave any reward
    final_state: dict[str, Any] | None = None  # the argument of `verify`; None before
    _thread: OwnThread = field(default_factory=OwnThread)
    _session: Any = None
    _first: Any = None
    _known: list[str] = field(default_factory=list)
    _hangs: bool = False

    def __post_init__(self) -> None:
        # Tool calls go through a traced environment, so that the recorder sees each as an action with its
        # observation.
        self._tools = trace_env(_Tools(self._called))

    def __getattr__(self, name: str) -> Any:
        """Pass on any other attribute: a user's own harness may use it."""
        if name.startswith("_") or self._session is None:
            raise AttributeError(name)
        return getattr(self._session, name)

    def create(self, task: Any) -> "WatchedSession":
        """Create the session and return this object, as the factory does. If that fails, a second session is tried,
        because nothing has counted yet.
        """
        task = task if self.assigned.task is None else self.assigned.task
        try:
            self._begin(task)
        except Exception as error:  # noqa: BLE001 - the user's own function's
            current_row().note(first_session=one_line(error))
            time.sleep(PAUSE_SECONDS)
            # The first thread has ended, or a call that hangs still blocks it.
            self._thread, self._session, self._hangs = OwnThread(), None, False
            self._begin(task)
        return self

    def initial_messages(self) -> Any:
        """Return the session's first messages."""
        return self._first

    def list_tools(self) -> Any:
        tools = self._call("list_tools()", self._session.list_tools)
        self._known = [tool.name for tool in tools]
        return tools

    def call_tool(self, name: str, arguments: dict[str, Any]) -> Any:
        _, reward, is_done, _ = self._tools.step({"name": name, "arguments": arguments})
        self.rewards.append(reward)
        self.is_rewarded |= reward is not None
        self.is_done |= is_done
        return self._tools.result

    def verify(self, transcript: Any, final_state: dict[str, Any] | None = None) -> Any:
        """Pass on the environment's reward; 0.0 if there is none, because OpenEnv requires a number."""
        self.final_state = final_state
        verified = self._call("verify()", lambda: self._session.verify(transcript, final_state))
        self.is_rewarded |= verified.env_reward is not None
        return verified if self.is_rewarded else replace(verified, env_reward=0.0)

    def close(self) -> None:
        """Close the session; errors are ignored."""
        closing = self._thread.submit(self._session.close)
        self._thread.end()
        if not self._hangs:
            with suppress(Exception):
                closing.result(_CLOSE_SECONDS)

    def _begin(self, task: Any) -> None:
        """Make a session, and get its first messages."""
        options = {"seed": self.assigned.seed}
        if self.assigned.seed is None or not takes(self.factory.create, "seed"):
            options = {}
        making = self._thread.submit(lambda: self.factory.create(task=task, **options))
        try:
            self._session = self._result("create()", making)
            self._first = self._call("initial_messages()", self._session.initial_messages)
        except BaseException:
            self._thread.submit(lambda: _close(making))  # also where it comes late
            self._thread.end()
            raise

    def _called(self, name: str, arguments: dict[str, Any]) -> Any:
        """Return a tool's result, or what was wrong with the call."""
        from openenv.core.harness import ToolResult

        fault = f"There is no tool {name!r}; there are: {', '.join(self._known)}"
        if not self._known or name in self._known:
            try:
                return self._call(f"call_tool({name!r})", lambda: self._session.call_tool(name, arguments))
            except (KeyError, TypeError, ValueError) as error:
                fault = f"{type(error).__name__}: {error}"
        return ToolResult(data={"error": fault}, error=fault)

    def _call(self, name: str, call: Callable[[], T]) -> T:
        return self._result(name, self._thread.submit(call))

    def _result(self, name: str, future: "Future[T]") -> T:
        try:
            return future.result(self.timeout)
        except TimeoutError as error:
            if future.done():  # its own
                raise
            self._hangs = True
            raise SessionError(f"The session did not answer {name} within {self.timeout:g} s") from error


@dataclass
class _Tools:
    """A session's tools as an environment whose actions are calls."""

    call: Callable[[str, dict[str, Any]], Any]
    result: Any = None  # the result of the last call

    def step(self, action: dict[str, Any]) -> tuple[Any, float | None, bool, dict[str, Any]]:
        """Return observation, reward, done, and further information."""
        result = self.result = self.call(action["name"], dict(action["arguments"]))
        info = dict(result.metadata)
        if result.error is not None:
            info["error"] = result.error
        return result.data, _reward(result), bool(result.done), info


def _reward(result: Any) -> float | None:
    """Return the reward of a result, from where OpenEnv looks for it."""
    reward = result.metadata.get("reward")
    if reward is None and isinstance(result.data, dict):
        reward = result.data.get("reward")
    return None if reward is None else float(reward)


def _close(making: "Future[Any]") -> None:
    with suppress(BaseException):  # there may be none
        making.result().close()
