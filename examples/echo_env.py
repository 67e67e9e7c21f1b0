"""The smallest OpenEnv environment: it says what it hears, and pays by the letter: 1.0 for twelve.

`with serve() as url:` runs its server, as OpenEnv environments run: sessions over a WebSocket.
"""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import uvicorn
from openenv.core import EnvClient
from openenv.core.client_types import StepResult
from openenv.core.env_server.http_server import create_app
from openenv.core.env_server.interfaces import Environment
from openenv.core.env_server.types import Action, Observation, State


class EchoAction(Action):  # type: ignore[misc]  # openenv carries no types
    """The text that the model says."""

    message: str


class EchoObservation(Observation):  # type: ignore[misc]
    """The environment's echo."""

    echoed_message: str = ""


class EchoEnvironment(Environment):  # type: ignore[misc]
    """A session's."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def reset(self, seed: int | None = None, episode_id: str | None = None, **_: Any) -> EchoObservation:  # noqa: ARG002
        """Begin."""
        return EchoObservation(echoed_message="ready")

    def step(self, action: EchoAction, timeout_s: float | None = None, **_: Any) -> EchoObservation:  # noqa: ARG002
        """Say something."""
        reward = min(1.0, len(action.message) / 12)
        return EchoObservation(echoed_message=action.message, reward=reward, done=True)

    @property
    def state(self) -> State:
        """It has none."""
        return State()


class EchoEnv(EnvClient):  # type: ignore[misc]
    """A session with the server."""

    def _step_payload(self, action: EchoAction) -> dict[str, Any]:
        return {"message": action.message}

    def _parse_result(self, payload: dict[str, Any]) -> Any:
        reward, done = payload.get("reward"), payload.get("done", False)
        observation = EchoObservation(**payload["observation"], reward=reward, done=done)
        return StepResult(observation=observation, reward=reward, done=done)

    def _parse_state(self, payload: dict[str, Any]) -> State:
        return State(**payload)


@contextmanager
def serve(sessions: int = 16) -> Iterator[str]:
    """The address of a server on 127.0.0.1, in a thread. For more than an example, serve from a process of its own."""
    app = create_app(EchoEnvironment, EchoAction, EchoObservation, env_name="echo", max_concurrent_envs=sessions)
    config = uvicorn.Config(app, host="127.0.0.1", port=0, log_level="warning")
    listener = config.bind_socket()
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    server.should_exit = True
    thread.join()
