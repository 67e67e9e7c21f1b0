"""Finds rewards that do not vary: over all rollouts, within groups, or no longer within groups."""

import numpy as np

from logs_ui.recorder.diagnosis.card import Below, Card, NotJudged, Outcome, Run, check, needs, since
from logs_ui.recorder.diagnosis.change_point import above, below
from logs_ui.recorder.diagnosis.checks.reward_functions import cancels
from logs_ui.recorder.diagnosis.contrast import Rise, shift
from logs_ui.recorder.diagnosis.explanations import BEHAVIOUR
from logs_ui.recorder.diagnosis.measures import alike, dead, duplicated, extent, mean, unsolved_groups, within_groups
from logs_ui.recorder.diagnosis.rollout_rows import SAME, Floats, Rows, distinct
from logs_ui.recorder.diagnosis.wording import exact_percent, figure, listed, percent
from logs_ui.recorder.settings import NO_THRESHOLD
from logs_ui.recorder.vocabulary import LossCause

_FEW = 16  # rollouts that may have equal rewards by chance
_ALONE = 0.9  # of the loss: what one failure must hold to explain equal rewards if no environment rewards are recorded
_MOST = 0.5  # of the loss: if other failures hold more, the rollouts have earned their equal rewards
_SHARE = 0.5
_FAILED = 0.25
_NEARLY_ALL = 0.95  # of the groups [ours]
_EQUAL = 0.5  # of these groups hold equal completions: then other tasks would not help [ours]
_GRADED = 3  # different rewards: 0 and 1 would only be passed and failed
_TRAIL, _LAST, _FALL = 20, 3, 0.5  # steps, steps, share
_GOOD = 0.9  # of the range of rewards: groups that all pass have no variance


def _check_constant(run: Run) -> Outcome:
    rows = run.rows
    has = np.isfinite(rows.reward)
    rewards = rows.reward[has]
    if float(np.ptp(rewards)) > SAME:
        return Below(f"Rewards range from {figure(float(rewards.min()))} to {figure(float(rewards.max()))}.")
    if not unsolved_groups(rows, run.scale).any():
        return Below(f"Every rollout gets the reward {figure(float(rewards[0]))}, and all are solved.")
    heard = rows.env_reward_sum[np.isfinite(rows.env_reward_sum)]
    better = float(np.mean(heard > heard.min() + SAME)) if len(heard) else None
    if better == 0 and abs(rewards[0]) <= SAME:
        return NotJudged("All rewards are 0, and the environment rewards no rollout either: all may have failed.")
    reward = run.all.reward
    others = run.all.by_step(np.where(np.isfinite(reward), np.abs(reward - rewards[0]) > SAME, np.nan))
    ends = np.unique(rows.stop_reason[has].astype(str))
    parts = [name for name, values in rows.parts.items() if np.isfinite(values).any()]
    evidence = [
        f"{len(rewards)} rollouts in {len(rows.groups.size)} groups have equal rewards.",
        f"Stop reasons: {listed(list(ends), 4)}.",
        f"Reward functions: {', '.join(parts) or 'not recorded'}.",
    ]
    if better:
        evidence.append(f"The environment rewards {percent(better)} of them above its minimum.")
    # If most rollouts (of a reward other than 0 nearly all) failed before their answer counted, they have earned it.
    failed = 1 - run.cost_of(LossCause.WRONG_ANSWER) / run.fall.lost if run.fall.lost > 0 else 0.0
    is_sure = bool(better) or failed <= (_MOST if abs(rewards[0]) <= SAME else 0.99)
    return Card(
        id="constant_reward",
        title=f"Every rollout gets the reward {figure(float(rewards[0]))}",
        cost=run.fall.lost if is_sure else run.cost_of(LossCause.WRONG_ANSWER),
        evidence=tuple(evidence),
        suggestion="Call the reward functions by hand on a good and a bad completion: their rewards must differ. "
        "If they do, no rollout has earned more: start with easier tasks.",
        where=f"reward:{rewards[0]:.9g}",
        trend=run.all.by_step(reward),
        since_step=since(others, lambda share: share == 0),
        explains=("disagreement", *BEHAVIOUR) if is_sure else (),
        needs=None if not is_sure or cancels(rows).any() else np.inf if better else _ALONE,
    )


def follows_prompt(rows: Rows) -> bool:
    """Return True if nearly all groups have zero variance, and yet there are several different rewards.

    The reward then depends on the prompt or the task, and not on the completion, unless completions are the same, or
    tasks that come again get other rewards.
    """
    groups = rows.groups
    whole, is_dead = groups.size > 1, dead(groups)
    if not whole.any() or is_dead.sum() < _NEARLY_ALL * whole.sum():
        return False
    task = np.full(len(groups.size), -1)
    task[rows.group] = rows.task
    rewards, tasks = np.round(groups.mean[is_dead], 6), task[is_dead]
    kinds = distinct(tasks[tasks >= 0], rewards[tasks >= 0], count=len(rows.tasks) + 1)  # the last of no task
    is_told = (mean(duplicated(rows)) or 0.0) < _MOST and float(np.mean((kinds > 1)[tasks])) < _MOST
    return bool(is_told and len(np.unique(rewards)) >= _GRADED)


def _check_dead(run: Run) -> Outcome:
    rows, limit = run.rows, run.threshold("dead_groups", _SHARE)
    if rows.is_evaluation:
        return NotJudged("Nothing is trained on an evaluation, so its groups need no variance.")
    groups = rows.groups
    is_dead, whole = dead(groups), groups.size > 1
    share = float(is_dead.sum() / whole.sum())
    failed = is_dead & unsolved_groups(rows, run.scale)
    # If nearly all groups of equal rewards are solved, little is lost.
    if share < limit or failed.sum() < _FAILED * whole.sum():
        of_failed = f"{exact_percent(float(failed.sum() / whole.sum()))} have it unsolved (threshold {_FAILED:.0%})"
        rest = f"; {of_failed}" if run.scale.success.is_defined else ""
        rest += "; in most of them all are solved" if share >= limit else ""
        return Below(f"{exact_percent(share)} of groups have zero variance (threshold {exact_percent(limit)}){rest}.")
    every = run.all.groups
    trend = run.all.by_step(np.where(every.size > 1, dead(every), np.nan)[run.all.group])
    others = groups.std[~is_dead & whole]
    by_prompt, is_told = follows_prompt(rows), run.scale.success.is_defined
    kinds, equal = len(np.unique(np.round(groups.mean[is_dead], 6))), int((alike(rows)[is_dead] >= 1).sum())
    is_equal = bool(equal >= _EQUAL * is_dead.sum())
    has_solved = np.bincount(rows.group, run.scale.success.solved(rows), len(groups.size)) > 0
    unsolved = is_dead & ~has_solved
    solved = f"In {unsolved.sum()} of these {is_dead.sum()} groups no rollout is solved; "
    solved += f"{(is_dead & has_solved).sum()} hold solved ones."
    lowest = failed & unsolved & (groups.mean <= np.nanmin(rows.reward) + SAME)
    all_fail = is_told and not by_prompt and bool(lowest.sum() > is_dead.sum() / 2)
    return Card(
        id="dead_groups",
        title=f"{percent(share)} of groups have zero reward variance, and so zero advantage"
        + f": in {lowest.sum()} of these {is_dead.sum()} every rollout fails, at the lowest reward" * all_fail,
        cost=float(run.lost[failed[rows.group]].sum()) / len(rows),
        evidence=(
            *([solved] * is_told),
            f"Std within the others: {figure(float(others.mean()))}." if len(others) else "There is no other group.",
            *([f"{equal} of the {is_dead.sum()} have equal completions only."] * is_equal),
            *([f"There are {kinds} different rewards, which depend on the prompt alone."] * by_prompt),
            *_name_prompts_functions(rows),
        ),
        suggestion="Make the completions of a group differ first: equal ones get equal rewards, whatever the task."
        if is_equal
        else "Call the reward functions by hand on two completions of one prompt: their rewards must differ."
        if by_prompt
        else "Call the reward functions by hand on two completions of one prompt. If their rewards differ, start with "
        "easier tasks, raise num_generations, or add partial credit."
        if share >= _NEARLY_ALL
        else "Start with easier tasks, filter out those that always fail, raise num_generations, or add partial credit."
        if all_fail
        else "Filter out tasks that always fail or always pass, raise num_generations, or add partial credit.",
        where="spread:0",
        **above(trend, limit),
        own=is_dead[rows.group],
        is_loss=not is_equal,
        # Where most of them pass, training has done with these tasks.
        may_remain=bool((is_dead & ~failed).sum() >= failed.sum()),
    )


def _name_prompts_functions(rows: Rows) -> list[str]:
    """Say which functions differ between groups only, though completions differ: other tasks change nothing then."""
    groups, keys = rows.groups, rows.facts["completion_key"]
    differing = int((distinct(rows.group, keys, count=len(groups.size)) > 1).sum()) if np.isfinite(keys).all() else 0
    names = [
        name
        for name, part in rows.parts.items()
        if extent(part) > SAME and not np.nanmax(np.abs(within_groups(part, rows)), initial=0.0) > SAME
    ]
    if not names or differing < _EQUAL * len(groups.size):
        return []
    differ = f"{listed(names)} {'differ' if len(names) > 1 else 'differs'} between groups, but never within one"
    return [f"{differ}, though completions differ in {differing} of all {len(groups.size)} groups."]


def _check_cliff(run: Run) -> Outcome:
    rows = run.all
    trend = rows.by_step(rows.groups.std[rows.group])
    if len(trend) < _TRAIL // 2 + _LAST:
        return NotJudged(f"{_TRAIL // 2 + _LAST} steps are needed; the run has {len(trend)}.")
    limit = run.threshold("signal_cliff", _FALL)
    before = float(np.median([value for _, value in trend[-_TRAIL - _LAST : -_LAST]]))
    now = float(np.mean([value if value > SAME else 0.0 for _, value in trend[-_LAST:]]))
    steps = f"over the last {_LAST} steps {figure(now)}, median over the {len(trend[-_TRAIL - _LAST : -_LAST])} before"
    calm = f"Std within groups: {steps} {figure(before)} (threshold: {exact_percent(limit)} of it)"
    if not now < limit * before - SAME or _is_well(run):
        return Below(f"{calm}{'; the mean reward is high' if now < limit * before - SAME else ''}.")
    first, middle, last = (
        step for step, _ in (trend[-_TRAIL - _LAST :][0], trend[-_TRAIL // 2 - _LAST], trend[-_LAST])
    )

    def change(values: Floats, begin: int) -> Rise:
        return shift(np.where(rows.step >= begin, values, np.nan), rows.step >= last, rows.group)

    # Another mix of environments of other scales is no collapse.
    best = np.maximum(np.abs(run.scale.bests(rows)), SAME) if run.scale.units else 1.0
    fall = change(rows.groups.std[rows.group] / best, first)
    if not fall.is_sure or fall.value >= 0:
        return Below(f"{calm}; it may be chance.")  # a few groups may well all fail
    # If the last steps have higher rewards than those before, and no lower than the nearer half of them, rollouts are
    # more alike because they have learned what is rewarded, be that wanted or not.
    whole, near = change(rows.reward, first), change(rows.reward, middle)
    if whole.is_sure and whole.value > 0 and not (near.is_sure and near.value < 0):
        return Below(f"{calm}; the mean reward rose.")
    fields = below(trend, limit * before)
    since = fields["since_step"] or last
    sound = [value for step, value in trend if step < since][-_TRAIL:]
    if not sound or not now < limit * float(np.median(sound)):
        since, sound = last, [value for _, value in trend[-_TRAIL - _LAST : -_LAST]]
    before = float(np.median(sound))
    course = (
        f"Median std over the {len(sound)} steps before step {since}: {figure(before)}. Mean over the last {_LAST}: "
        f"{figure(now)}."
    )
    return Card(
        id="signal_cliff",
        title=f"The reward std within groups fell from {figure(before)} to {figure(now)}",
        cost=run.fall.lost * (1 - now / before),
        evidence=(course,),
        suggestion="Check what the rollouts of a group have in common now; return to an earlier checkpoint.",
        where=f"step:{since}..{trend[-1][0]}",
        own=run.rows.step >= since,
        may_remain=not near.is_sure or near.value > 0,  # rollouts are more alike, too, as more of them are solved
        **fields,
    )


def _is_well(run: Run) -> bool:
    """Return True if the mean reward of the last steps is near the best, or nearly all of their rollouts are solved."""
    worst = float(run.all.reward[np.isfinite(run.all.reward)].min())
    now = float(np.mean([value for _, value in run.all.by_step(run.all.reward)[-_LAST:]]))
    wins = float(np.mean([value for _, value in run.all.by_step(run.scale.success.solved(run.all))[-_LAST:]]))
    return now >= worst + _GOOD * (run.scale.best - worst) or wins >= _GOOD


_GROUPS = needs("rewards of more than one rollout in a group", lambda run: run.rows.groups.size > 1)


CONSTANT_REWARD = check(
    "constant_reward",
    "Constant reward",
    f"All rewards of the last steps differ by at most {SAME:g}, and are not the best reward. Silent if all are 0 and "
    "the environment rewarded none either. If other failures explain the equal rewards, only the lost reward of "
    "rollouts that ended normally is counted.",
    lambda run: None if np.isfinite(run.rows.reward).sum() >= _FEW else f"{_FEW} rewards",
    _check_constant,
    limits=NO_THRESHOLD,
)
DEAD_GROUPS = check(
    "dead_groups",
    "Zero-variance groups",
    f"At least {_SHARE:.0%} of groups have zero variance (their highest and lowest reward differ by at most {SAME:g}), "
    f"and at least {_FAILED:.0%} of all groups have it without being solved.",
    _GROUPS,
    _check_dead,
    source="rolloutscope; the split and its threshold are ours",
)
SIGNAL_CLIFF = check(
    "signal_cliff",
    "Reward-variance collapse",
    f"Mean std of rewards within groups over the last {_LAST} steps, below half of its median over the {_TRAIL} steps "
    f"before (at least {_TRAIL // 2}) and by more than chance, while the mean reward is not within a "
    f"tenth of the best, and has not risen against those {_TRAIL} steps, or has fallen against the last {_TRAIL // 2}.",
    _GROUPS,
    _check_cliff,
    source="ours; RAGEN's reward variability cliff",
)
