"""The value of each reward function for a rollout, and the function that decides success."""

from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

from logs_ui.recorder.queries import Step
from logs_ui.recorder.storage.tables import EvaluationRow


class RewardPart(NamedTuple):
    """Holds one function's part of the reward: value times weight; `odd` is set if the value was not finite."""

    name: str
    value: float | None
    weight: float
    worth: float | None
    odd: str | None


def reward_parts(row: EvaluationRow) -> list[RewardPart]:
    """Returns the parts in the order of the reward functions."""
    weights, odd = row.reward_weights or {}, row.odd_rewards or {}
    return [
        RewardPart(name, value, weights.get(name, 1.0), value and value * weights.get(name, 1.0), odd.get(name))
        for name, value in (row.rewards or {}).items()
    ]


def yes_or_no(steps: Sequence[Step]) -> str | None:
    """Returns the reward function with the largest weighted sum, if it returned only 0 and 1; None otherwise."""
    total: dict[str, float] = defaultdict(float)
    for step in steps:
        for name, sums in step.rewards.items():
            total[name] += abs(sums.counted or 0.0)
    most = max(total, key=lambda name: total[name], default=None)
    given = [step.rewards[most] for step in steps if most in step.rewards] if most else []
    is_binary = any(sums.number for sums in given) and all(sums.number == sums.binary for sums in given)
    return most if is_binary else None
