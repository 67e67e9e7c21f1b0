"""Determines the best reward, and the reward from which on a rollout counts as solved."""

from dataclasses import dataclass

import numpy as np

from logs_ui.recorder.diagnosis.rollout_rows import SAME, Rows
from logs_ui.recorder.diagnosis.wording import percent
from logs_ui.recorder.settings import Settings

_PERCENTILE = 99


@dataclass(frozen=True)
class Scale:
    """The best reward and the threshold for success.

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
        """Return the scale of a run; `rows` are the rollouts of all its steps."""
        rewards = rows.reward[np.isfinite(rows.reward)]
        if settings.max_reward is not None:
            best = settings.max_reward
            more = float(np.mean(rewards > best + SAME)) if len(rewards) else 0.0
            said = "as set" if more == 0 else f"as set, though {percent(more)} of rollouts got more"
        elif not len(rewards):
            best, said = 1.0, "assumed: no rollout has a reward"
        else:
            best, said = float(np.percentile(rewards, _PERCENTILE)), "the run's 99th percentile"
            if best - float(rewards.min()) <= SAME:
                best, said = best + 1.0, "assumed: all rewards are equal, and this is one more"
        solved = best if settings.solved_at is None else settings.solved_at
        return cls(best, solved, said)
