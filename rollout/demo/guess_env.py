"""Defines the demo's OpenEnv environment: guess a number, hear "higher" or "lower", guess again.

`python -m logs_ui.rollout.demo.guess_env --port N` serves it on 127.0.0.1: OpenEnv sessions over a WebSocket.
"""

import argparse
import os
import random
import sys
import threading
from collections.abc import Sequence
from typing import Any, Literal
from uuid import uuid4

from openenv.core import EnvClient
from openenv.core.client_types import StepResult
from openenv.core.env_server.interfaces import Environment
from openenv.core.env_server.types import Action, Observation, State

TASKS = {"easy: 1-3": (1, 3), "fair: 4-10": (4, 10), "hard: 11-25": (11, 25), "hopeless: 1-60": (1, 60)}
"""Each task's name, and the lowest and the highest number its secret can be."""

TURNS = 3
"""Guesses a player has in one episode."""

MAX_SESSIONS = 64
"""Players the server seats at once: one for each rollout of the largest batch, and some to spare."""

HIT_REWARD = 1.0
TURN_COST = 0.2
MISS_REWARD = 0.1


class GuessAction(Action):  # type: ignore[misc]  # openenv carries no types
    """The player makes one guess."""

    guess: int


class GuessObservation(Observation):  # type: ignore[misc]
    """Answers a player: a hint (none after a reset), and the range that remains."""

    hint: Literal["higher", "lower", "correct"] | None = None
    turns_left: int = TURNS
    low: int
    high: int


class GuessState(State):  # type: ignore[misc]
    """Describes the episode as the environment knows it."""

    task: str = ""
    secret: int = 0
    low: int = 0  # the secret can still be from here ...
    high: int = 0  # ... to here, by the task's range and the hints so far


class GuessEnvironment(Environment):  # type: ignore[misc]
    """Plays one player's game.

    A hit gives 1.0 on the first turn and 0.2 less on each later one. A miss gives 0.1 where the number was still
    possible, and nothing where the task's range or an earlier hint had ruled it out. Only a hit ends the episode: when
    `turns_left` is 0, it is the player's to stop.
    """

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self) -> None:
        super().__init__()
        self._state = GuessState(episode_id=str(uuid4()))

    def reset(self, seed: int | None = None, episode_id: str | None = None, **options: Any) -> GuessObservation:
        """Draw the secret. `task` (one of `TASKS`) and `seed` decide it: the same two give the same secret."""
        task = options.get("task", next(iter(TASKS)))
        if task not in TASKS:
            raise ValueError(f"Unknown task {task!r}; there are {', '.join(TASKS)}.")
        low, high = TASKS[task]
        secret = random.Random(f"{task}/{seed}").randint(low, high)  # noqa: S311 (a game, not a key)
        self._state = GuessState(episode_id=episode_id or str(uuid4()), task=task, secret=secret, low=low, high=high)
        return GuessObservation(low=low, high=high)

    def step(self, action: GuessAction, timeout_s: float | None = None, **_: Any) -> GuessObservation:  # noqa: ARG002
        """Answer one guess."""
        state, guess = self._state, action.guess
        hit, possible = guess == state.secret, state.low <= guess <= state.high
        if hit:
            hint, reward = "correct", max(0.0, HIT_REWARD - TURN_COST * state.step_count)
        else:
            hint, reward = "higher" if guess < state.secret else "lower", MISS_REWARD if possible else 0.0
        if guess < state.secret:
            state.low = max(state.low, guess + 1)
        elif guess > state.secret:
            state.high = min(state.high, guess - 1)
        state.step_count += 1
        turns_left = max(0, TURNS - state.step_count)
        return GuessObservation(
            hint=hint, turns_left=turns_left, low=state.low, high=state.high, done=hit, reward=reward
        )

    async def reset_async(self, seed: int | None = None, episode_id: str | None = None, **options: Any) -> Any:
        """Do the same as `reset`; OpenEnv runs the async form without a hop to a thread."""
        return self.reset(seed=seed, episode_id=episode_id, **options)

    async def step_async(self, action: GuessAction, timeout_s: float | None = None, **options: Any) -> Any:
        """Do the same as `step`; OpenEnv runs the async form without a hop to a thread."""
        return self.step(action, timeout_s=timeout_s, **options)

    @property
    def state(self) -> GuessState:
        """Return the episode, secret included."""
        return self._state


class GuessEnv(EnvClient):  # type: ignore[misc]
    """Connects a player with the server: one WebSocket, one episode at a time."""

    def _step_payload(self, action: GuessAction) -> dict[str, Any]:
        return {"guess": action.guess}

    def _parse_result(self, payload: dict[str, Any]) -> Any:
        reward, done = payload.get("reward"), payload.get("done", False)
        observation = GuessObservation(**payload["observation"], reward=reward, done=done)
        return StepResult(observation=observation, reward=reward, done=done)

    def _parse_state(self, payload: dict[str, Any]) -> GuessState:
        return GuessState(**payload)


def serve(port: int) -> None:
    """Serve games on 127.0.0.1 until told to stop. Port 0 takes a free one; the line printed says which."""
    import uvicorn
    from openenv.core.env_server.http_server import create_app

    app = create_app(
        GuessEnvironment, GuessAction, GuessObservation, env_name="guess", max_concurrent_envs=MAX_SESSIONS
    )
    config = uvicorn.Config(app, host="127.0.0.1", port=port, log_level="warning", ws_ping_interval=None)
    listener = config.bind_socket()
    listener.listen()  # from here on a connection waits instead of being refused, so the address may be told
    print(f"http://127.0.0.1:{listener.getsockname()[1]}", flush=True)  # noqa: T201
    uvicorn.Server(config).run(sockets=[listener])


def _end_with_parent() -> None:
    """End this process when standard input closes: a parent that was killed cannot say so in any other way."""
    sys.stdin.buffer.read()
    os._exit(0)


def main(arguments: Sequence[str] | None = None) -> None:
    """Parse the command line and serve."""
    parser = argparse.ArgumentParser(prog="python -m logs_ui.rollout.demo.guess_env", description=__doc__)
    parser.add_argument("--port", type=int, default=0, help="port on 127.0.0.1; 0 takes a free one (default)")
    parser.add_argument("--until-stdin-closes", action="store_true", help="end when standard input is closed")
    options = parser.parse_args(arguments)
    if options.until_stdin_closes:
        threading.Thread(target=_end_with_parent, daemon=True).start()
    serve(options.port)


if __name__ == "__main__":
    main()
