"""A reward that is the same whatever the model does."""

import numpy as np

from logs_ui.recorder.diagnosis.card import Card, Diagnostic, Run
from logs_ui.recorder.diagnosis.dead_groups import SAME
from logs_ui.recorder.diagnosis.say import figure

_FEW = 16  # rollouts that may be alike by accident


def _missing(run: Run) -> str | None:
    return None if np.isfinite(run.rows.reward).sum() >= _FEW else f"{_FEW} rewards"


def _look(run: Run) -> Card | None:
    rows = run.rows
    rewards = rows.reward[np.isfinite(rows.reward)]
    if float(np.ptp(rewards)) > SAME or (rewards[0] >= run.scale.solved - SAME):
        return None
    ends = np.unique(rows.stop_reason[np.isfinite(rows.reward)].astype(str))
    parts = [name for name, values in rows.parts.items() if np.isfinite(values).any()]
    return Card(
        id="constant_reward",
        title=f"Every rollout gets the reward {figure(float(rewards[0]))}",
        cost=run.fall.lost,
        evidence=(
            f"{len(rewards)} rollouts in {len(rows.groups.size)} groups, all alike; they ended by {', '.join(ends)}.",
            f"Reward functions: {', '.join(parts) or 'not recorded'}.",
        ),
        suggestion="Call the reward functions by hand on a good and a bad completion: they must tell them apart.",
        where=f"reward={rewards[0]:g}",
        explains=("dead_groups", "never_solved", "reward_parts"),
    )


DIAGNOSTIC = Diagnostic(
    "constant_reward",
    "Constant reward",
    f"All rewards differ by at most {SAME:g}, and are not the best.",
    "ours",
    _missing,
    _look,
)
