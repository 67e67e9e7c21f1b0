"""Groups whose rollouts all get the same reward: their advantages are zero, and nothing is learned from them."""

import numpy as np

from logs_ui.recorder.diagnosis.card import Card, Diagnostic, Run, since
from logs_ui.recorder.diagnosis.measures import dead
from logs_ui.recorder.diagnosis.rollout_rows import SAME, Rows
from logs_ui.recorder.diagnosis.waterfall import losses
from logs_ui.recorder.diagnosis.wording import figure, percent
from logs_ui.recorder.settings import SHARE

_SHARE = 0.5
_FAILED = 0.25
_NEARLY_ALL = 0.95  # of the groups: ours
_GRADED = 3  # different rewards: passed and failed are two


def follows_prompt(rows: Rows) -> bool:
    """Whether nearly all groups are dead, and yet get more rewards than those of passed and failed: the reward is one
    of the prompt, or of the task, and says nothing of the completions.
    """
    groups = rows.groups
    whole, is_dead = groups.size > 1, dead(groups)
    if not whole.any() or is_dead.sum() < _NEARLY_ALL * whole.sum():
        return False
    return len(np.unique(np.round(groups.mean[is_dead], 6))) >= _GRADED


def share_by_step(rows: Rows) -> tuple[tuple[int, float], ...]:
    """Share of dead groups at each step."""
    groups = rows.groups
    whole = groups.size > 1
    is_dead = np.where(whole, dead(groups), np.nan)
    return rows.by_step(is_dead[rows.group])


def _missing(run: Run) -> str | None:
    return None if (run.rows.groups.size > 1).any() else "rewards of more than one rollout in a group"


def _look(run: Run) -> Card | None:
    rows, limit = run.rows, run.threshold("dead_groups", _SHARE)
    groups = rows.groups
    is_dead = dead(groups)
    share = float(is_dead.sum() / (groups.size > 1).sum())
    if share < limit:
        return None
    failed = is_dead & (groups.mean < run.scale.solved - SAME)
    if failed.sum() < _FAILED * (groups.size > 1).sum():  # nearly all that are alike are solved: little is lost
        return None
    lost = np.maximum(losses(rows, run.scale), 0)[failed[rows.group]].sum() / len(rows)
    trend = share_by_step(run.all)
    others = groups.std[~is_dead & (groups.size > 1)]
    by_prompt = follows_prompt(rows)
    kinds = len(np.unique(np.round(groups.mean[is_dead], 6)))
    return Card(
        id="dead_groups",
        title=f"{percent(share)} of groups teach nothing: all their rollouts get the same reward",
        cost=float(lost),
        evidence=(
            f"{failed.sum()} of {len(failed)} groups failed as a whole, {(is_dead & ~failed).sum()} passed as a whole.",
            f"The others spread by {figure(float(others.mean()))} (std)." if len(others) else "No other group is left.",
            *([f"They get {kinds} different rewards, by their prompts alone: no completion changes it."] * by_prompt),
        ),
        suggestion="Call the reward functions by hand on two completions of one prompt: they must tell them apart."
        if by_prompt
        else "Leave out tasks that are always failed or always solved, make groups larger, or pay for progress.",
        where="spread:0",
        trend=trend,
        since_step=since(trend, lambda value: value >= limit),
        limit=limit,
        own=failed[rows.group],
    )


DIAGNOSTIC = Diagnostic(
    "dead_groups",
    "Dead groups",
    f"Share of groups whose highest and lowest reward differ by at most {SAME:g}, from {_SHARE:.0%} on; shown "
    f"where the best reward was reached by none of {_FAILED:.0%} or more of the groups.",
    "rolloutscope; the split and its threshold are ours",
    _missing,
    _look,
    limits=SHARE,
    position=240,
    explained_by=(
        "infrastructure",
        "invalid_reward",
        "disagreement",
        "parse_failures",
        "truncation",
        "loops",
        "task_mix",
        "never_solved",
        "turn_limit",
        "never_acted",
        "diversity",
        "degenerate_text",
        "constant_reward",
        "reward_parts",
        "forgotten",
        "signal_cliff",
    ),
    is_behaviour=True,
)
