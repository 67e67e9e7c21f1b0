"""Treats single-turn work as an episode that ends with the model's first answer; nothing is reset."""

from collections.abc import Sequence
from typing import Any, NamedTuple


class _Silence(NamedTuple):
    observation: None = None
    reward: None = None
    done: bool = True


class NoEnvironment:
    """A client without an environment."""

    async def reset(self, **_: Any) -> _Silence:
        """Accepts any task and seed."""
        return _Silence()

    async def step(self, action: str) -> _Silence:  # noqa: ARG002
        """Ends the episode."""
        return _Silence()


def no_reward(rewards: Sequence[float | None]) -> None:
    """Returns no reward."""
