"""Compares some rollouts with the others, and the first steps of a run with its last.

A property that does not lower the reward is no cause.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from logs_ui.recorder.diagnosis.card import Run
from logs_ui.recorder.diagnosis.mean_difference import Difference, compare, is_beyond_chance, student_tail
from logs_ui.recorder.diagnosis.rollout_rows import SAME, Bools, Floats, Ints, Rows

CHANCE = 0.05
"""The probability by chance below which a difference is one: some two standard errors."""
SURER = 0.003
"""The same for a difference of which many could have been found: some three standard errors."""
_FINE_SOLVED = 0.2  # of the chosen rollouts are solved: then they do well [ours]
_FINE_QUALITY = 0.5  # of the range of rewards: then they do well [ours]
_HALF, _FEW_SOLVED = 0.5, 0.05  # of the rollouts are chosen; are solved [ours]
_RISE = 0.25  # of that range, from the first third of the steps to the last: then they improve [ours]
_PARTS, _OF_BOTH = 3, 0.25  # of the steps, at least; of the rollouts of each part [ours]
_TASKS = 10  # that come at several steps, and groups beyond those [ours]
_FEW = 4  # rollouts: fewer have no meaningful mean


def gap(run: Run, chosen: Bools) -> float:
    """Return how much more the chosen rollouts lose than the others, in reward per chosen one; 0 if it may be chance.

    If all are chosen, return their loss.
    """
    if not chosen.any():
        return 0.0
    if chosen.all():
        return float(run.lost.mean())
    more = shift(run.lost, chosen, run.rows.group)
    return more.value if more.is_sure and more.value > 0 else 0.0


def is_fine(run: Run, chosen: Bools) -> bool:
    """Return True if the chosen rollouts do well and no worse than the others: their property costs nothing then."""
    if not chosen.any():
        return True
    others = (~chosen).sum() >= max(_FEW, 0.05 * len(chosen))
    success, solved = run.scale.success, run.scale.success.solved(run.rows)
    missed = shift(solved.astype(float), chosen, run.rows.group)  # what is paid beside the outcome may hide that
    if others and (gap(run, chosen) > 0 or (missed.is_sure and missed.value < 0)):
        return False
    wins = float(solved[chosen].mean())
    if success.is_defined and chosen.mean() >= _HALF and solved.mean() < _FEW_SOLVED:
        return False  # there are no others that do well
    reward = np.nan_to_num(run.rows.reward[chosen])
    worst, best = _range(run)
    if best - worst <= SAME:
        return False
    quality = (float(reward.mean()) - worst) / (best - worst)
    return wins >= _FINE_SOLVED or quality >= _FINE_QUALITY or _rises(run, chosen, best - worst)


def cost(run: Run, chosen: Bools) -> float:
    """Return the reward per rollout that the chosen lose more than the others; if all fail alike, what they lose."""
    if is_fine(run, chosen):
        return 0.0
    return float(chosen.mean()) * (gap(run, chosen) or float(run.lost[chosen].mean()))


def spread(run: Run) -> float:
    """Return the range of the run's rewards, from the 1st to the 99th percentile."""
    worst, best = _range(run)
    return max(best - worst, run.scale.best - worst)


def _range(run: Run) -> tuple[float, float]:
    rewards = run.all.reward[np.isfinite(run.all.reward)]
    if not len(rewards):
        return 0.0, 0.0
    worst, best = np.percentile(rewards, (1, 99)).tolist()
    return worst, max(best, run.scale.best if run.settings.max_reward is not None else best)


def _rises(run: Run, chosen: Bools, whole: float) -> bool:
    steps = run.rows.steps
    third = len(steps) // 3
    if not third:
        return False
    rows, late = run.rows, run.rows.step >= steps[-third]
    ends = chosen & (late | (rows.step < steps[third]))
    gain = shift(np.where(ends, np.nan_to_num(rows.reward), np.nan), late, rows.group)
    return gain.is_sure and gain.value > _RISE * whole


@dataclass(frozen=True)
class Rise:
    """Describes the change of a mean."""

    before: float
    after: float
    value: float  # `after - before`; 0 if either is not known
    is_sure: bool  # True if it is more than chance; False under 5 groups on either side


def shift(values: Floats, late: Bools, groups: Ints, *, chance: float = CHANCE) -> Rise:
    """Return the change between the means of the finite values, with groups as the independent units."""
    difference = compare(values, late, groups)
    if difference is None:
        return Rise(float("nan"), float("nan"), 0.0, is_sure=False)
    return Rise(difference.others, difference.chosen, difference.value, is_sure=is_beyond_chance(difference, chance))


def rise(run: Run, values: Callable[[Rows], Floats], *, chance: float = CHANCE) -> Rise:
    """Return the change of a mean from the first steps to the last, as `shift` does; none within a single step."""
    before, after = run.windows or (run.rows, run.rows)
    groups = np.concatenate([before.group, after.group + len(before.groups.size)])
    late = np.arange(len(groups)) >= len(before)
    return shift(np.concatenate([values(before), values(after)]), late, groups, chance=chance)


class Succession(NamedTuple):
    """Describes the changes of a mean from each part of the steps to the next, within the tasks of both."""

    change: Difference  # their mean
    parts: int


def compare_successive(run: Run, values: Floats, tasks: Ints | None = None) -> Succession | None:
    """Compare (N,) values of all steps in parts as long as the last steps, each with the next: where tasks come in the
    order of a curriculum, the first steps and the last share none. `tasks`: (N,) codes that stand for tasks, such as
    their families. None if two parts that follow each other share too few of them.
    """
    rows, links, tasks = run.all, list[Difference](), run.all.task if tasks is None else tasks
    count = max(len(rows.steps) // max(len(run.rows.steps), 1), _PARTS)
    if len(rows.steps) < count:
        return None
    begins = np.searchsorted(rows.step, [steps[0] for steps in np.array_split(rows.steps, count)]).tolist()
    for first, middle, end in zip(begins, begins[1:], [*begins[2:], len(rows)], strict=False):
        # Rollouts are ordered by step, so both parts are a slice; a mask for each part would grow as their product.
        task, group, late = tasks[first:end], rows.group[first:end], np.arange(first, end) >= middle
        of_both = np.isin(task, np.intersect1d(task[~late], task[late])) & (task >= 0)
        if min(of_both[~late].mean(), of_both[late].mean()) < _OF_BOTH:
            return None
        link = compare(np.where(of_both, values[first:end], np.nan), late, group, task)
        if link is None or not link.t:
            return None
        links.append(link)
    # A part is in two of them, with opposite signs: the errors of their sum are smaller, if anything.
    after, before = (math.fsum(side) / len(links) for side in zip(*(link[:2] for link in links), strict=True))
    t = (after - before) * len(links) / math.hypot(*(link.error for link in links))
    groups = sum(link.groups[0] for link in links), sum(link.groups[1] for link in links)
    return Succession(Difference(after, before, groups, t, student_tail(t, min(groups) - len(links))), count)


def compare_halves(run: Run, values: Floats, tasks: Ints) -> Difference | None:
    """Compare (N,) values of all steps in the second half of each task's rollouts with its first half, for the tasks of
    the last steps: where a curriculum changes all tasks at once, no two parts share any. `tasks`: (N,) codes of tasks,
    or of what stands for them. None if none has both halves.
    """
    rows = run.all
    is_compared = np.isfinite(values) & (tasks >= 0) & np.isin(tasks, tasks[rows.step >= run.rows.steps[0]])
    order = np.flatnonzero(is_compared)[np.argsort(tasks[is_compared], kind="stable")]
    codes, begins, counts = np.unique(tasks[order], return_index=True, return_counts=True)
    middles = np.zeros(int(tasks.max(initial=-1)) + 2, np.int64)  # the last one for rollouts without a task
    middles[codes] = rows.step[order[begins + counts // 2]]
    return compare(np.where(is_compared, values, np.nan), rows.step >= middles[tasks], rows.group, tasks)


def fit_slope(run: Run, values: Floats) -> Difference | None:
    """Fit a line over all steps to (N,) values within tasks: return its ends, and the chance of it, by groups.
    None if too few tasks come at several steps. Tasks differ far more than a policy changes: within them a slow rise
    shows that is not sure between the first steps and the last.
    """
    rows = run.all
    of = np.flatnonzero(np.isfinite(values) & (rows.task >= 0))
    sizes = np.maximum(np.bincount(rows.task[of]), 1) if len(of) else np.ones(1)
    x, y = np.searchsorted(rows.steps, rows.step)[of].astype(float), values[of]
    x, y = (column - (np.bincount(rows.task[of], column) / sizes)[rows.task[of]] for column in (x, y))
    squares = float(x @ x)
    tasks = len(np.unique(rows.task[of][np.abs(x) > SAME]))
    if tasks < _TASKS:
        return None
    slope = float(x @ y) / squares
    group = np.unique(rows.group[of], return_inverse=True)[1]
    scores, leverage = np.bincount(group, x * (y - slope * x)), np.bincount(group, x * x) / squares
    error = math.sqrt(float(np.sum(scores**2 / (1 - np.clip(leverage, 0, 0.9))))) / squares
    moving = len(np.unique(group[np.abs(x) > SAME]))
    if not error > 0 or moving - tasks < _TASKS:
        return None
    middle, half = float(values[of].mean()), slope * (len(rows.steps) - 1) / 2
    t = slope / error
    return Difference(middle + half, middle - half, (moving, moving), t, student_tail(t, moving - tasks))


def given_by(function: str) -> Callable[[Rows], Floats]:
    """Return what `rise` takes for the values of a reward function."""
    return lambda rows: rows.values[function]


def added_by(function: str) -> Callable[[Rows], Floats]:
    """Return what `rise` takes for what a reward function adds to the reward: values, each times its weight then."""
    return lambda rows: rows.parts[function]
