"""The value of each reward function for a rollout."""

from typing import NamedTuple

from logs_ui.recorder.storage.tables import EvaluationRow


class RewardPart(NamedTuple):
    """Holds one function's part of the reward: value times weight; `odd` is set if the value was not finite."""

    name: str
    value: float | None
    weight: float
    worth: float | None
    odd: str | None


def reward_parts(row: EvaluationRow) -> list[RewardPart]:
    """Return the parts in the order of the reward functions."""
    weights, odd = row.reward_weights or {}, row.odd_rewards or {}
    return [
        RewardPart(name, value, weights.get(name, 1.0), value and value * weights.get(name, 1.0), odd.get(name))
        for name, value in (row.rewards or {}).items()
    ]
