"""What each reward function gave a rollout."""

from dataclasses import dataclass

from logs_ui.recorder.models import EvaluationRow


@dataclass(frozen=True)
class Part:
    """One reward function's share of the reward: its value times its weight; `odd` where it was no finite number."""

    name: str
    value: float | None
    weight: float
    worth: float | None
    odd: str | None


def reward_parts(row: EvaluationRow) -> list[Part]:
    """In the order of the reward functions."""
    weights, odd = row.reward_weights or {}, row.odd_rewards or {}
    return [
        Part(name, value, weights.get(name, 1.0), value and value * weights.get(name, 1.0), odd.get(name))
        for name, value in (row.rewards or {}).items()
    ]
