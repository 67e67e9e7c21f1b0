"""Counts each task's attempts and successes by step, and labels what it means for the training."""

import math
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from math import exp, lgamma
from typing import Any

import numpy as np
from numpy.typing import NDArray

from logs_ui.recorder.diagnosis.measures import attempted, tried
from logs_ui.recorder.diagnosis.rollout_rows import Bools, Floats, Groups, Ints, Rows, Texts, means
from logs_ui.recorder.diagnosis.scale import Scale
from logs_ui.recorder.settings import Settings

ATTEMPTS = 10
"""Attempts below which a task is not labelled [verifiers]."""
EASY = 0.8
"""Share of solved attempts from which on there is nothing left to learn [verifiers]."""
FORGOTTEN_CHANCE = 0.01
"""Probability of so few successes in any task at unchanged success rates, below which one has regressed [ours]."""
FALLEN, PARTLY_FALLEN = 0.25, 0.6
"""Share of the success rate before, below which a task counts as regressed, and a whole family [ours]."""
UNSOLVED_CHANCE, LEAST = 0.01, 5
"""Probability that a hard task is never solved by chance, above which it is no finding; solved tasks that show how hard
tasks are [ours]."""
CANNOT, RARELY = 0.02, 0.2
"""Limits of pass@k, and of the share of solved attempts [ours]."""

_FEW_BY_CHANCE = 0.1  # of the tasks: if chance leaves more unsolved, they had too few attempts [ours]
_MOST_COLUMNS = 40


class Label(StrEnum):
    """Names the states of a task over the whole run."""

    NEVER = "never-solved"
    """None of ATTEMPTS or more attempts solved it."""
    FORGOTTEN = "forgotten"
    """Solved before, and then hardly (at most FALLEN of the share before) in ATTEMPTS or more attempts, with a
    probability below FORGOTTEN_CHANCE."""
    LEARNING = "learning"
    """Some of its attempts solved it, and others did not."""
    SATURATED = "saturated"
    """A share of EASY or more of its last attempts solved it (those of the steps with the last ATTEMPTS)."""
    FEW = "few-attempts"
    """Fewer than ATTEMPTS."""
    UNKNOWN = "not-defined"
    """What counts as solved is not defined."""


class Reach(StrEnum):
    """Names degrees of how reliably the policy solves a task."""

    CANNOT = "cannot"
    """pass@k is below CANNOT, and so is the share of its groups (of any size) with a success."""
    RARELY = "rarely"
    """Some of its groups have a success, but a share below RARELY of all attempts."""
    SOMETIMES = "sometimes"
    RELIABLY = "reliably"
    """A share of EASY or more of its attempts solves it."""
    UNKNOWN = ""
    """Fewer than ATTEMPTS."""


@dataclass(frozen=True, eq=False)
class Labels:
    """Holds the labels of all tasks over the whole run. Arrays have the shape (T,)."""

    label: Texts  # a Label
    last_solved: Ints  # the last step with a success; -1 without any
    since: Ints  # the first step of a regressed task at which it was solved far less often; -1 for others
    before: Floats  # the share of its attempts that solved it before that step; NaN for other tasks
    after: Floats  # the share from that step on; NaN for other tasks


@dataclass(frozen=True, eq=False)
class Figures:
    """Holds the figures of all tasks over some steps. Arrays have the shape (T,); an attempt is a rollout with a
    reward.
    """

    rollouts: Ints  # number of ended rollouts
    attempts: Ints  # number of attempts
    mean: Floats  # mean reward of the attempts; NaN without any
    share: Floats  # share of attempts that solved it, 0 to 1; NaN without any, or if success is not defined
    pass_1: Floats  # see `pass_k`, for k of 1
    # The probability that one of k rollouts solves it, mean over its groups of k attempts or more (Chen et al. 2021);
    # NaN if there is no such group.
    pass_k: Floats
    reach: Texts  # a Reach


@dataclass(frozen=True, eq=False)
class Columns:
    """Holds the (C,) first and last step of each column of a table; every step belongs to one."""

    first: Ints
    last: Ints

    @classmethod
    def of(cls, rows: Rows) -> "Columns":
        """Return one column per step if there are few, else ranges of 2, 5, 10, ... steps; none without a rollout."""
        steps = rows.steps
        if len(steps) <= _MOST_COLUMNS:
            return cls(steps, steps)
        low, high = int(steps[0]), int(steps[-1])
        widths = (digit * 10**power for power in range(19) for digit in (1, 2, 5))
        width = next(width for width in widths if high - low < width * _MOST_COLUMNS)
        first = low + width * np.unique((steps - low) // width)
        return cls(first, np.minimum(first + width - 1, high))

    @property
    def width(self) -> int:
        """Return the number of steps in a column; the last one may have fewer."""
        return int((self.last - self.first).max(initial=0)) + 1


@dataclass(frozen=True, eq=False)
class Cells:
    """Holds the figures of some tasks by column of steps. Arrays have the shape (T, C); see `Figures`."""

    rollouts: Ints
    attempts: Ints
    mean: Floats
    solved: Ints
    judged: Ints  # attempts that can count as solved or not; 0 if success is not defined


def labels(rows: Rows, scale: Scale, settings: Settings | None = None) -> Labels:
    """Return the labels of all tasks over a run's rollouts. The thresholds `never_solved` and `forgotten` of the
    settings replace ATTEMPTS and FALLEN.
    """
    thresholds = settings.thresholds if settings else {}
    attempts, fallen = thresholds.get("never_solved", ATTEMPTS), thresholds.get("forgotten", FALLEN)
    is_tried, has_reward = tried(rows, scale), attempted(rows)
    task, step, won = rows.task[is_tried], rows.step[is_tried], scale.success.solved(rows)[is_tried]
    number = len(rows.tasks)
    tries, wins = _count(task, number), _count(task[won], number)
    last_solved = np.full(number, -1, np.int64)
    last_solved[task[won]] = step[won]  # rows are ordered by step: the last assignment wins
    late = means(task[at := _late(task, step, number)], won[at], number)
    with np.errstate(invalid="ignore", divide="ignore"):
        may_be_lost = (tries >= ATTEMPTS) & (wins > 0) & (late <= fallen * wins / tries)
    since, before, after = find_falls(rows, scale, may_be_lost, fallen)
    is_unknown = (tries == 0) & (_count(rows.task[has_reward], number) > 0) | (not scale.success.is_defined)
    label = np.select(
        [is_unknown, (tries >= attempts) & (wins == 0), tries < ATTEMPTS, since >= 0, late >= EASY],
        [Label.UNKNOWN, Label.NEVER, Label.FEW, Label.FORGOTTEN, Label.SATURATED],
        default=Label.LEARNING,
    ).astype(object)
    return Labels(label, last_solved, since, before, after)


def find_falls(rows: Rows, scale: Scale, may_be_lost: Bools, fallen: float) -> tuple[Ints, Floats, Floats]:
    """Return (T,) the first step at which each task is solved at most `fallen` times as often as before, -1 for others;
    and (T,) the shares of its attempts that solved it before and since. Only the (T,) tasks that `may_be_lost` are
    judged.
    """
    is_tried, number = tried(rows, scale), len(rows.tasks)
    task, step, won = rows.task[is_tried], rows.step[is_tried], scale.success.solved(rows)[is_tried]
    since, before, after = np.full(number, -1, np.int64), np.full(number, np.nan), np.full(number, np.nan)
    limit = FORGOTTEN_CHANCE / max(int((_count(task, number) >= ATTEMPTS).sum()), 1)
    for index, effect in _effects(rows, scale, may_be_lost).items():
        fall = _regression(step[task == index], won[task == index], effect, fallen, limit)
        if fall is not None:
            since[index], before[index], after[index] = fall
    return since, before, after


def _effects(rows: Rows, scale: Scale, chosen: Bools) -> dict[int, float]:
    """Return Kish's design effect for each of the (T,) chosen tasks: so many attempts of a group count as one."""
    is_tried, alike = tried(rows, scale), alikeness(rows, scale) if chosen.any() else 0.0
    sizes = {
        index: np.bincount(rows.group[is_tried & (rows.task == index)]) for index in np.flatnonzero(chosen).tolist()
    }
    return {index: 1 + (float(of[of > 0].mean()) - 1) * alike for index, of in sizes.items()}


def are_beyond_chance(rows: Rows, scale: Scale, unsolved: Bools) -> Bools:
    """Return (T,) True for those of the `unsolved` tasks that chance leaves unsolved in less than UNSOLVED_CHANCE, if
    they are as hard as the hardest tenth of the tasks that were solved; for all of them, if fewer than LEAST were.
    """
    is_tried, number = tried(rows, scale), len(rows.tasks)
    tries, wins = (_count(rows.task[is_tried & of], number) for of in (True, scale.success.solved(rows)))
    has_won = (tries >= ATTEMPTS) & (wins > 0)
    if has_won.sum() < LEAST:
        return unsolved
    rarely, is_beyond = float(np.percentile(wins[has_won] / tries[has_won], 10)), np.zeros(number, bool)
    for index, effect in _effects(rows, scale, unsolved).items():
        is_beyond[index] = (1 - rarely) ** (tries[index] / effect) <= UNSOLVED_CHANCE
    return is_beyond


def expect_unsolved(rows: Rows, scale: Scale, unsolved: Bools) -> float | None:
    """Return how many tasks would stay unsolved if all were equally hard; None if that is more than a tenth of them,
    or if so many as the (T,) `unsolved` may be chance.
    """
    is_tried, count = tried(rows, scale), int(unsolved.sum())
    tries = _count(rows.task[is_tried], len(rows.tasks))
    fails = 1 - float(scale.success.solved(rows)[is_tried].mean())
    effects = _effects(rows, scale, tries >= ATTEMPTS)
    expected = sum(fails ** float(tries[task] / effect) for task, effect in effects.items())
    if expected > _FEW_BY_CHANCE * len(effects) or count <= expected:
        return None
    chance = exp(count - expected - count * math.log(count / expected))  # Chernoff's bound: they are independent
    return expected if chance <= UNSOLVED_CHANCE else None


def _regression(step: Ints, won: Bools, effect: float, fallen: float, limit: float) -> tuple[int, float, float] | None:
    """Return the step from which a task is solved far less often, and the shares of attempts solved before and since.

    The step splits its attempts best, by the likelihood of two shares in place of one. None if chance explains the
    fall: if the probability of so few successes since then, corrected for the number of splits, is not below `limit`.
    `step` and `won` are (A,), in order. Rollouts of a group end alike, so `effect` many of them count as one.
    """
    steps, place = np.unique(step, return_inverse=True)
    tries, wins = np.cumsum(np.bincount(place).astype(float)), np.cumsum(np.bincount(place, won))
    of, won_of = tries[:-1], wins[:-1]
    rest, won_since = tries[-1] - of, wins[-1] - won_of
    is_fall = (rest >= ATTEMPTS) & (won_since / rest <= fallen * won_of / of)
    if not is_fall.any():
        return None
    gain = np.where(is_fall, _likelihood(won_of, of) + _likelihood(won_since, rest), -np.inf)
    at = int(np.argmax(gain))
    figures_of = (float(counts[at]) / effect for counts in (of, rest, won_since))
    if chance_of_few(float(wins[-1]) / effect, *figures_of) * is_fall.sum() >= limit:
        return None
    return int(steps[at + 1]), float(won_of[at] / of[at]), float(won_since[at] / rest[at])


def _likelihood(wins: NDArray[Any], tries: NDArray[Any]) -> Floats:
    """Return the log-likelihood of so many successes at their own share."""
    share = wins / tries
    with np.errstate(divide="ignore", invalid="ignore"):
        likelihood: Floats = np.nan_to_num(wins * np.log(share)) + np.nan_to_num((tries - wins) * np.log1p(-share))
    return likelihood


def chance_of_few(won: float, before: float, since: float, won_since: float) -> float:
    """Return the probability that at most `won_since` of `won` successes are among the last `since` attempts, in random
    order: the lower tail of the hypergeometric distribution. The numbers need not be whole.
    """
    return sum(
        exp(_choose(since, few) + _choose(before, won - few) - _choose(before + since, won))
        for few in range(int(won_since) + 1)
        if won - few <= before and few <= won
    )


def _choose(of: float, some: float) -> float:
    return lgamma(of + 1) - lgamma(some + 1) - lgamma(of - some + 1)


def alikeness(rows: Rows, scale: Scale) -> float:
    """Return how much more often rollouts of one group end alike than others of their task do, 0 to 1.

    It is the intraclass correlation of being solved (Fisher 1925), over all tasks; 1 if it cannot be computed.
    """
    is_tried = tried(rows, scale)
    group, task, won = rows.group[is_tried], rows.task[is_tried], scale.success.solved(rows)[is_tried].astype(float)
    sizes = np.bincount(group)
    several = sizes[group] > 1
    of_group, of_task = (means(code, won, int(code.max(initial=-1)) + 1) for code in (group, task))
    # The result is 1 less the variance within groups over the variance within tasks.
    total = float(np.sum((won - of_task[task])[several] ** 2))
    within = (won - of_group[group])[several] ** 2 * (sizes / np.maximum(sizes - 1, 1))[group[several]]
    return float(np.clip(1 - within.sum() / total, 0, 1)) if total > 0 else 1.0


def figures(rows: Rows, scale: Scale, k: int) -> Figures:
    """Return the figures of all tasks over the steps of `rows`."""
    has_reward, is_tried, number = attempted(rows), tried(rows, scale), len(rows.tasks)
    task, attempts = rows.task[has_reward], _count(rows.task[has_reward], number)
    unknown = 0.0 if scale.success.is_defined else np.nan  # added to a figure
    share = means(rows.task[is_tried], scale.success.solved(rows)[is_tried], number) + unknown
    pass_1, pass_k = _pass(rows, scale, 1) + unknown, _pass(rows, scale, k) + unknown
    best = np.fmax(pass_k, _reached_share(rows, scale))
    reach = np.select(
        [(attempts < ATTEMPTS) | np.isnan(share), best < CANNOT, share < RARELY, share < EASY],
        [Reach.UNKNOWN, Reach.CANNOT, Reach.RARELY, Reach.SOMETIMES],
        default=Reach.RELIABLY,
    ).astype(object)
    return Figures(
        rollouts=_count(rows.task[rows.task >= 0], number),
        attempts=attempts,
        mean=means(task, rows.reward[has_reward], number),
        share=share,
        pass_1=pass_1,
        pass_k=pass_k,
        reach=reach,
    )


def cells(rows: Rows, scale: Scale, tasks: Ints, columns: Columns) -> Cells:
    """Return the figures of the tasks with these indices, in this order."""
    place = np.full(len(rows.tasks) + 1, -1, np.int64)  # the last one for rollouts without a task
    place[tasks] = np.arange(len(tasks))
    chosen = place[rows.task] >= 0
    column = np.searchsorted(columns.first, rows.step[chosen], side="right") - 1
    shape = len(tasks), len(columns.first)
    cell, reward, size = place[rows.task[chosen]] * shape[1] + column, rows.reward[chosen], shape[0] * shape[1]
    return Cells(
        rollouts=_count(cell, size).reshape(shape),
        attempts=_count(cell[np.isfinite(reward)], size).reshape(shape),
        mean=means(cell, reward, size).reshape(shape),
        solved=_count(cell[scale.success.solved(rows)[chosen]], size).reshape(shape),
        judged=_count(cell[(tried(rows, scale) & scale.success.is_defined)[chosen]], size).reshape(shape),
    )


def usual_size(groups: Groups) -> int:
    """Return the most frequent number of scored rollouts in a group; 0 without any."""
    sizes = groups.size[groups.size > 0]
    return int(np.bincount(sizes).argmax()) if len(sizes) else 0


@cache
def pass_at(scored: int, solved: int, k: int) -> float:
    """Return the probability that one of k rollouts is solved, if `solved` of `scored` are (Chen et al. 2021)."""
    return 1 - math.comb(scored - solved, k) / math.comb(scored, k)


def _pass(rows: Rows, scale: Scale, k: int) -> Floats:
    """Return (T,) pass@k, mean over a task's groups; NaN if none has k attempts."""
    is_tried = tried(rows, scale)
    group, number = rows.group[is_tried], len(rows.groups.size)
    scored, wins = _count(group, number), _count(group[scale.success.solved(rows)[is_tried]], number)
    task = np.zeros(number, np.int64)
    task[group] = rows.task[is_tried]
    enough = scored >= max(k, 1)
    most = int(scored.max(initial=0)) + 1
    # Groups with equal counts have equal chances, so each pair of counts, written as one number, is computed once.
    kinds, place = np.unique(scored[enough] * most + wins[enough], return_inverse=True)
    chances = np.array([pass_at(*divmod(both, most), max(k, 1)) for both in kinds.tolist()], float)
    return means(task[enough], chances[place], len(rows.tasks))


def _reached_share(rows: Rows, scale: Scale) -> Floats:
    """Return (T,) share of a task's groups, of any size, with a success; NaN without any."""
    is_tried, group, number = tried(rows, scale), rows.group, len(rows.groups.size)
    task = np.full(number, -1, np.int64)
    task[group[is_tried]] = rows.task[is_tried]
    has_any = _count(group[is_tried & scale.success.solved(rows)], number) > 0
    return means(task[task >= 0], has_any[task >= 0], len(rows.tasks))


def _late(task: Ints, step: Ints, number: int) -> Bools:
    """Return (A,) True for the last attempts of each task; attempts are ordered by step."""
    order = np.argsort(task, kind="stable")
    end = np.cumsum(_count(task, number))
    begin = np.concatenate([[0], end[:-1]]).astype(np.int64)
    # `since` has for each task the step of the first of its last ATTEMPTS attempts.
    since = np.zeros(number, np.int64)
    some = end > begin
    since[some] = step[order][np.maximum(end - ATTEMPTS, begin)[some]]
    late: Bools = step >= since[task]
    return late


def _count(codes: Ints, number: int) -> Ints:
    return np.bincount(codes, minlength=number)
