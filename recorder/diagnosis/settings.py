"""What a run is held against."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from logs_ui.recorder.diagnosis.rows import Rows

_PERCENTILE = 99
_SAME = 1e-6  # rewards that differ by less are equal: rolloutscope's


@dataclass(frozen=True)
class Settings:
    """Set by whoever knows the task; the rest is worked out of the run.

    Attributes:
        max_reward: what a perfect rollout gets; None: the run's 99th percentile.
        solved_at: the reward from which on a rollout solved its task; None: `max_reward`.
        steps: the last so many are looked at.
        thresholds: in place of a diagnostic's own, by its id.
    """

    max_reward: float | None = None
    solved_at: float | None = None
    steps: int = 10
    thresholds: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Scale:
    """What rewards are measured by.

    Attributes:
        best: see `Settings.max_reward`.
        solved: see `Settings.solved_at`.
        said: where `best` comes from, in words.
    """

    best: float
    solved: float
    said: str

    @classmethod
    def of(cls, rows: Rows, settings: Settings) -> "Scale":
        """`rows` are all of the run, not only the last."""
        rewards = rows.reward[np.isfinite(rows.reward)]
        if settings.max_reward is not None:
            best, said = settings.max_reward, "as set"
        elif not len(rewards):
            best, said = 1.0, "assumed: no rollout has a reward"
        else:
            best, said = float(np.percentile(rewards, _PERCENTILE)), "the run's 99th percentile"
            if best - float(rewards.min()) <= _SAME:
                best, said = best + 1.0, "assumed: one more than the reward that every rollout got"
        solved = best if settings.solved_at is None else settings.solved_at
        return cls(best, solved, said)
