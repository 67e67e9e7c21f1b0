"""Groups whose rewards suddenly spread much less than before."""

import numpy as np

from logs_ui.recorder.diagnosis.card import Card, Diagnostic, Run, since
from logs_ui.recorder.diagnosis.say import figure

_TRAIL, _FALL = 20, 0.5


def _look(run: Run) -> Card | None:
    rows = run.all
    trend = rows.by_step(rows.groups.std[rows.group])
    if len(trend) < _TRAIL // 2 + 3:
        return None
    before = float(np.median([value for _, value in trend[-_TRAIL - 3 : -3]]))
    now = float(np.mean([value for _, value in trend[-3:]]))
    mean = run.fall.mean
    if not now < run.threshold("signal_cliff", _FALL) * before or mean >= run.scale.solved - 0.1 * abs(run.scale.best):
        return None
    return Card(
        id="signal_cliff",
        title=f"Rewards spread within groups by {figure(now)}, where it was {figure(before)}",
        cost=run.fall.lost * (1 - now / before),
        evidence=(f"Their std was {figure(before)} at the median of {_TRAIL} steps, and is {figure(now)}.",),
        suggestion="Look at what a group's rollouts have in common now; go back to a checkpoint before.",
        where="",
        trend=trend,
        since_step=since(trend, lambda value: value < _FALL * before),
        explains=("dead_groups",),
    )


DIAGNOSTIC = Diagnostic(
    "signal_cliff",
    "Signal cliff",
    f"Mean std of rewards within groups over the last 3 steps, below half of its median over the {_TRAIL} before.",
    "ours; RAGEN's reward variability cliff",
    lambda run: None if (run.rows.groups.size > 1).any() else "groups",
    _look,
)
