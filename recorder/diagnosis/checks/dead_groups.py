"""Finds groups with zero reward variance: their advantages are 0, so nothing is learned from them."""

import numpy as np

from logs_ui.recorder.diagnosis.card import Card, Diagnostic, Run, since
from logs_ui.recorder.diagnosis.measures import dead
from logs_ui.recorder.diagnosis.rollout_rows import SAME, Rows
from logs_ui.recorder.diagnosis.wording import figure, percent
from logs_ui.recorder.settings import SHARE

_SHARE = 0.5
_FAILED = 0.25
_NEARLY_ALL = 0.95  # of the groups [ours]
_GRADED = 3  # different rewards: 0 and 1 would only be passed and failed


def follows_prompt(rows: Rows) -> bool:
    """Return True if nearly all groups have zero variance, and yet there are several different rewards.

    The reward then depends on the prompt or the task, and not on the completion.
    """
    groups = rows.groups
    whole, is_dead = groups.size > 1, dead(groups)
    if not whole.any() or is_dead.sum() < _NEARLY_ALL * whole.sum():
        return False
    return len(np.unique(np.round(groups.mean[is_dead], 6))) >= _GRADED


def _look(run: Run) -> Card | None:
    rows, limit = run.rows, run.threshold("dead_groups", _SHARE)
    groups = rows.groups
    is_dead, whole = dead(groups), groups.size > 1
    share = float(is_dead.sum() / whole.sum())
    if share < limit:
        return None
    failed = is_dead & (groups.mean < run.scale.solved - SAME)
    if failed.sum() < _FAILED * whole.sum():  # nearly all groups of equal rewards are solved: little is lost
        return None
    every = run.all.groups
    trend = run.all.by_step(np.where(every.size > 1, dead(every), np.nan)[run.all.group])
    others = groups.std[~is_dead & whole]
    by_prompt = follows_prompt(rows)
    kinds = len(np.unique(np.round(groups.mean[is_dead], 6)))
    return Card(
        id="dead_groups",
        title=f"{percent(share)} of groups have zero reward variance, and so zero advantage",
        cost=float(run.lost[failed[rows.group]].sum()) / len(rows),
        evidence=(
            f"{failed.sum()} of {len(failed)} groups all-fail, {(is_dead & ~failed).sum()} all-pass.",
            f"Std within the others: {figure(float(others.mean()))}." if len(others) else "There is no other group.",
            *([f"There are {kinds} different rewards, which depend on the prompt alone."] * by_prompt),
        ),
        suggestion="Call the reward functions by hand on two completions of one prompt: their rewards must differ."
        if by_prompt
        else "Filter out tasks that always fail or always pass, raise num_generations, or add partial credit.",
        where="spread:0",
        trend=trend,
        since_step=since(trend, lambda value: value >= limit),
        limit=limit,
        own=failed[rows.group],
    )


DIAGNOSTIC = Diagnostic(
    "dead_groups",
    "Zero-variance groups",
    f"Share of groups whose highest and lowest reward differ by at most {SAME:g}, from {_SHARE:.0%} on; shown if at "
    f"least {_FAILED:.0%} of all groups have equal rewards that do not count as solved.",
    "rolloutscope; the split and its threshold are ours",
    lambda run: None if (run.rows.groups.size > 1).any() else "rewards of more than one rollout in a group",
    _look,
    limits=SHARE,
    position=240,
    explained_by=(
        *("infrastructure", "invalid_reward", "disagreement", "parse_failures", "truncation", "loops", "task_mix"),
        *("never_solved", "turn_limit", "never_acted", "diversity", "degenerate_text", "constant_reward"),
        *("reward_parts", "forgotten", "signal_cliff"),
    ),
    is_behaviour=True,
)
