"""Finds a sudden collapse of the reward variance within groups."""

import numpy as np

from logs_ui.recorder.diagnosis.card import Card, Diagnostic, Run, since
from logs_ui.recorder.diagnosis.rollout_rows import SAME, Floats, Ints
from logs_ui.recorder.diagnosis.windows import Rise, rise
from logs_ui.recorder.diagnosis.wording import figure
from logs_ui.recorder.settings import SHARE

_TRAIL, _LAST, _FALL = 20, 3, 0.5  # steps, steps, share
_GOOD = 0.9  # of the range of rewards: groups that all pass have no variance


def _look(run: Run) -> Card | None:
    rows = run.all
    trend = rows.by_step(rows.groups.std[rows.group])
    if len(trend) < _TRAIL // 2 + _LAST:
        return None
    limit = run.threshold("signal_cliff", _FALL)
    before = float(np.median([value for _, value in trend[-_TRAIL - _LAST : -_LAST]]))
    now = float(np.mean([value for _, value in trend[-_LAST:]]))
    if not now < limit * before - SAME or _is_well(run):
        return None
    first, middle, last = (
        step for step, _ in (trend[-_TRAIL - _LAST :][0], trend[-_TRAIL // 2 - _LAST], trend[-_LAST])
    )

    def change(step: Ints, values: Floats, begin: int) -> Rise:
        return rise(values[(step >= begin) & (step < last)], values[step >= last])

    fall = change(rows.groups.step, rows.groups.std, first)
    if not fall.is_sure or fall.value >= 0:
        return None  # a few groups may well all fail
    # If the last steps have higher rewards than those before, and no lower than the nearer half of them, rollouts are
    # more alike because they have learned what is rewarded, be that wanted or not.
    whole, near = change(rows.step, rows.reward, first), change(rows.step, rows.reward, middle)
    if whole.is_sure and whole.value > 0 and not (near.is_sure and near.value < 0):
        return None
    return Card(
        id="signal_cliff",
        title=f"The reward std within groups fell from {figure(before)} to {figure(now)}",
        cost=run.fall.lost * (1 - now / before),
        evidence=(
            (
                f"Median std over {min(_TRAIL, len(trend) - _LAST)} steps: {figure(before)}. Mean over the last "
                f"{_LAST}: {figure(now)}."
            ),
        ),
        suggestion="Check what the rollouts of a group have in common now; return to an earlier checkpoint.",
        where=f"step:{last}..{trend[-1][0]}",
        trend=trend,
        since_step=since(trend, lambda value: value < limit * before),
        own=run.rows.step >= last,
    )


def _is_well(run: Run) -> bool:
    """Return True if the mean reward of the last steps is near the best or counts as solved."""
    worst = float(run.all.reward[np.isfinite(run.all.reward)].min())
    now = float(np.mean([value for _, value in run.all.by_step(run.all.reward)[-_LAST:]]))
    return now >= min(worst + _GOOD * (run.scale.best - worst), run.scale.solved - SAME)


DIAGNOSTIC = Diagnostic(
    "signal_cliff",
    "Reward-variance collapse",
    f"Mean std of rewards within groups over the last {_LAST} steps, below half of its median over the {_TRAIL} steps "
    f"before (at least {_TRAIL // 2}) and by more than two standard errors, while the mean reward is not within a "
    f"tenth of the best, and has not risen against those {_TRAIL} steps, or has fallen against the last {_TRAIL // 2}.",
    "ours; RAGEN's reward variability cliff",
    lambda run: None if (run.rows.groups.size > 1).any() else "rewards of more than one rollout in a group",
    _look,
    limits=SHARE,
    position=230,
    explained_by=(
        *("infrastructure", "invalid_reward", "disagreement", "inconsistent", "parse_failures", "truncation"),
        *("loops", "task_mix", "never_solved", "turn_limit", "never_acted", "diversity", "degenerate_text"),
        *("hacking", "reward_parts"),
    ),
    is_behaviour=True,
)
