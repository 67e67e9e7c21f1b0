"""Finds a mix of tasks that became harder."""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from logs_ui.recorder.diagnosis import links
from logs_ui.recorder.diagnosis.card import Below, Card, NotJudged, Outcome, Run, check, needs
from logs_ui.recorder.diagnosis.change_point import below
from logs_ui.recorder.diagnosis.contrast import CHANCE, compare_successive, rise, spread
from logs_ui.recorder.diagnosis.largest_differences import describe_jumped_habits
from logs_ui.recorder.diagnosis.mean_difference import LEAST_UNITS, compare, is_beyond_chance
from logs_ui.recorder.diagnosis.measures import attempted
from logs_ui.recorder.diagnosis.rollout_rows import SAME, Bools, Floats, Ints, Rows, means
from logs_ui.recorder.diagnosis.task_families import tasks_recur
from logs_ui.recorder.diagnosis.wording import figure, listed, percent
from logs_ui.recorder.vocabulary import Lack

# Part of the lost reward; part of the range of rewards; standard errors; probability by chance [ours].
_SHIFT, _LEAST, _ERRORS, _CHANCE = 0.5, 0.05, 2.5, 0.01


def _check_mix(run: Run) -> Outcome:
    """Split the change of the mean reward into change within tasks and change of their mix.

    The first is taken at the mean of both mixes, the second at the mean of both task means (Kitagawa 1955).
    """
    if run.windows is None:
        return NotJudged("The run has a single step.")
    for field, rows in _list_mixes(run):
        spans = [(rows.step >= of.steps[0]) & (rows.step <= of.steps[-1]) for of in run.windows]
        sides = before, after = run.windows if field == "task" else (rows.where(spans[0]), rows.where(spans[1]))
        (n0, m0), (n1, m1) = _means(before), _means(after)
        # A mean of a task that one side lacks would be a guess, and make of a collapse a harder mix. A family of which
        # one side has a few groups only would be judged by these few tasks.
        is_shared = (n0 > 0) & (n1 > 0)
        if field != "task":
            is_shared &= np.minimum(*(_count_groups(some) for some in (before, after))) >= LEAST_UNITS
        shared = min(float((n * is_shared).sum() / max(n.sum(), 1)) for n in (n0, n1))
        if shared >= _SHIFT:
            break
    else:
        before, after = run.windows
        (n0, _), (n1, _) = _means(before), _means(after)
        return _check_others(run, before, after, (n0 > 0) & (n1 > 0))
    n0, n1, m0, m1 = (np.where(is_shared, column, 0.0) for column in (n0, n1, m0, m1))
    w0, w1 = n0 / n0.sum(), n1 / n1.sum()
    mix, within = float(((w1 - w0) * (m0 + m1) / 2).sum()), float(((m1 - m0) * (w0 + w1) / 2).sum())
    mean = (m0 + m1) / 2
    between = float(np.average((mean - np.average(mean, weights=n0 + n1)) ** 2, weights=n0 + n1))
    draws = (len(np.unique(rows.group[np.isin(rows.task, np.flatnonzero(is_shared))])) for rows in sides)  # of a task
    chance = _ERRORS * np.sqrt(between * sum(1 / max(number, 1) for number in draws))
    limit = run.threshold("task_mix", _SHIFT)
    is_small = -mix <= max(_LEAST * spread(run), chance) or -mix < limit * (abs(mix) + abs(min(within, 0)))
    paid = rise(run, lambda side: np.where(attempted(side), side.reward, np.nan))
    of_both = "" if shared > 1 - SAME else f" among tasks of both, which have {percent(shared)} of the rollouts"
    if is_small or (paid.is_sure and paid.value > 0):  # what the policy learned is more than the mix costs
        split = f"task-mix change {figure(mix)}, within-task change {figure(within)}"
        return Below(f"Since the first steps{of_both}: {split}.")
    grown = np.flatnonzero(w1 > w0)
    # These are the three tasks that lower the mean most: their larger share times their distance below the first
    # mix's mean.
    more = grown[np.argsort((w0 - w1)[grown] * (np.average(mean, weights=w0) - mean[grown]))][:3]
    changes = [f"{rows.tasks[t]} {percent(float(w0[t]))} \u2192 {percent(float(w1[t]))}" for t in more]
    course = (
        f"Steps {after.steps[0]}\u2013{after.steps[-1]} vs {before.steps[0]}\u2013{before.steps[-1]}: "
        f"within-task change {figure(within)}, task-mix change {figure(mix)}."
    )
    return Card(
        id="task_mix",
        title=f"The task mix became harder: it lowers the mean reward by {figure(-mix)}{of_both}",
        cost=-mix * shared,
        than="at first",
        evidence=(course, f"More frequent{of_both}: {', '.join(changes)}."),
        suggestion="Compare task by task: only the mean within tasks tells whether the policy changed.",
        where=links.tasks([rows.tasks[t] for t in more], field),
        **below(
            rows.by_step(np.append(np.where(is_shared, mean, np.nan), np.nan)[rows.task]),
            float(np.dot(w0 + w1, mean)) / 2,
        ),
        own=np.isin(rows.task[rows.step >= run.rows.steps[0]], grown),
        may_remain=True,
    )


def _list_mixes(run: Run) -> Iterator[tuple[str, Rows]]:
    """Yield what a mix may be of: a filter's field, and the rollouts with that in place of tasks: tasks, and where
    these do not come again, their families or the evals.
    """
    rows = run.all
    yield "task", rows
    if run.families is not None:
        yield "family", run.families
    if len(rows.present) > 1:
        yield "eval", replace(rows, task=rows.eval, tasks=rows.evals)


def _check_others(run: Run, before: Rows, after: Rows, is_shared: Bools) -> Outcome:
    """Tell of other tasks in place of the first ones; nothing shows if these are harder, or the policy is worse."""
    rows, early, late = run.all, run.all.step <= before.steps[-1], run.all.step >= after.steps[0]
    chosen = (early | late) & attempted(rows)
    is_of_both = chosen & np.append(is_shared, False)[rows.task]
    apart, alike = (compare(rows.reward[of], late[of], rows.group[of]) for of in (chosen & ~is_of_both, is_of_both))
    has_fallen = is_beyond_chance(alike, _CHANCE, sign=-1)
    # If the same tasks lost half as much, too, the new ones do not explain it.
    has_fallen = has_fallen or (alike is not None and apart is not None and alike.value <= apart.value / 2)
    # Tasks of the middle may tell what the first and the last ones cannot.
    course = compare_successive(run, np.where(attempted(rows), rows.reward, np.nan))
    is_sure = course is not None and (course.change.chance or 0.0) < CHANCE
    has_fallen = has_fallen or (course is not None and is_sure and course.change.value < 0)
    new = float((chosen & late & ~is_of_both).sum() / max((chosen & late).sum(), 1))
    is_new = tasks_recur(rows) and new >= run.threshold("task_mix", _SHIFT) and not has_fallen
    if not is_new or apart is None or apart.chance is None:
        return NotJudged(
            "The first steps and the last have too few tasks in common to tell a change of the mix from one of the "
            "policy.",
            Lack.TASKS,
        )
    if apart.chance > _CHANCE or -apart.value < _LEAST * spread(run):
        return Below(
            f"{percent(new)} of the last rollouts are of tasks that the first steps lack; their mean reward is "
            f"{figure(apart.chosen)}, of those in their place {figure(apart.others)}."
        )
    if course is not None and is_sure:
        return Below(
            f"{percent(new)} of the last rollouts are of new tasks: mean reward lower by {figure(-apart.value)}, but "
            f"in the tasks that two parts share it rises from each of {course.parts} parts of the run to the next: on "
            f"average {figure(course.change.others)} \u2192 {figure(course.change.chosen)}."
        )
    names = [rows.tasks[task] for task in np.unique(rows.task[chosen & late & ~is_of_both]).tolist()]
    trend = rows.by_step(np.where(attempted(rows), rows.reward, np.nan))
    sentence = (
        f"Mean reward {figure(apart.chosen)} in {apart.groups[0]} groups of tasks that the first steps lack, "
        f"{figure(apart.others)} in {apart.groups[1]} groups of the tasks in whose place they came."
    )
    began = below(trend, (apart.chosen + apart.others) / 2)
    habits = describe_jumped_habits(run, *(began["since_range"] or (began["since_step"] or 0,) * 2))
    return Card(
        id="task_mix",
        title=f"{percent(new)} of the last rollouts are of new tasks: mean reward lower by {figure(-apart.value)}",
        cost=-apart.value * new,
        evidence=(
            sentence,
            "These steps do not show whether the new tasks are harder or the policy became worse.",
            *habits,
            f"New: {listed(names)}.",
        ),
        suggestion="Evaluate one checkpoint on the tasks of the first steps and on those of the last.",
        where=links.tasks(names),
        **began,
        own=np.isin(run.rows.task, np.unique(rows.task[chosen & late & ~is_of_both])),
    )


def _means(rows: Rows) -> tuple[Floats, Floats]:
    """Return (T,) number of rollouts with a reward, and (T,) their mean, NaN without any."""
    task, reward = rows.task[attempted(rows)], rows.reward[attempted(rows)]
    return np.bincount(task, minlength=len(rows.tasks)).astype(float), means(task, reward, len(rows.tasks))


def _count_groups(rows: Rows) -> Ints:
    """Return (T,) number of groups that have a rollout of a task with a reward."""
    chosen = attempted(rows)
    pairs = np.unique(np.stack([rows.task[chosen], rows.group[chosen]]), axis=1)
    return np.bincount(pairs[0], minlength=len(rows.tasks))


TASK_MIX = check(
    "task_mix",
    "Task mix",
    "The change of the mean reward since the first steps, split into change within tasks and change of the mix; shown "
    f"if the mix caused at least {_SHIFT:.0%} of the lost reward, at least {_LEAST:.0%} of the range of rewards, and "
    f"{_ERRORS:g} times the standard error of drawing as many tasks at random, and if the mean reward does not rise "
    "beyond chance. Only tasks of both the first and the "
    f"last steps are compared; or families or evals with {LEAST_UNITS} groups on both sides, if tasks do not come "
    "again. If these common tasks have less than "
    f"{_SHIFT:.0%} of the rollouts of the first or of the last steps, new tasks are looked at: shown if they have at "
    f"least {_SHIFT:.0%} of the last rollouts, and a mean reward that is lower by {_LEAST:.0%} of the range, with a "
    f"probability below {_CHANCE:.0%} of that by chance, if most tasks come again, and unless the reward rises in the "
    "tasks that successive parts of the run share.",
    needs("tasks", lambda run: run.rows.task >= 0),
    _check_mix,
    source="ours, with Kitagawa's decomposition",
)
