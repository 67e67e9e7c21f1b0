"""An environment with moods, of OpenEnv's own classes, which take seconds to import."""

import asyncio
from typing import Any

from openenv.core.env_server.http_server import create_app
from openenv.core.env_server.interfaces import Environment
from openenv.core.env_server.types import Action, Observation, State

from tests.support.rollouts import FOR_EVER, Moody


class Said(Action):  # type: ignore[misc]
    message: str = ""


class Heard(Observation):  # type: ignore[misc]
    message: str = ""


class MoodyEnvironment(Environment):  # type: ignore[misc]
    """Echoes, and pays 1.0 for each word; "stop" ends the episode. Its task says when it hangs or fails."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self) -> None:
        super().__init__()
        self._task = ""

    async def reset_async(self, seed: int | None = None, episode_id: str | None = None, **options: Any) -> Heard:
        self._task = options.get("task", "calm")
        Moody.begun[self._task] += 1
        await self._mood("reset")
        return Heard(message=f"{self._task} {seed}")

    async def step_async(self, action: Said, timeout_s: float | None = None, **_: Any) -> Heard:
        Moody.played.append((self._task, action.message))
        await self._mood("step")
        return Heard(message=f"heard {action.message}", reward=1.0, done=action.message == "stop")

    async def _mood(self, call: str) -> None:
        if self._task == f"hangs at {call}":
            await asyncio.sleep(FOR_EVER)
        if self._task == f"hangs once at {call}" and Moody.begun[self._task] == 1:
            await asyncio.sleep(FOR_EVER)
        if self._task == f"fails at {call}":
            raise ValueError("out of order")

    def reset(self, seed: int | None = None, episode_id: str | None = None, **_: Any) -> Heard:
        raise NotImplementedError

    def step(self, action: Said, timeout_s: float | None = None, **_: Any) -> Heard:
        raise NotImplementedError

    @property
    def state(self) -> State:
        return State(episode_id="1")


def moody_app(sessions: int) -> Any:
    """Return a server's application for so many sessions at once."""
    return create_app(MoodyEnvironment, Said, Heard, env_name="moody", max_concurrent_envs=sessions)
