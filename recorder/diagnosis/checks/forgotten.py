"""Finds tasks that regressed, and task families that did."""

import math
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from logs_ui.recorder.diagnosis import links
from logs_ui.recorder.diagnosis.card import SOLVED_UNDEFINED, Below, Card, NotJudged, Outcome, Run, check, needs
from logs_ui.recorder.diagnosis.change_point import change, fit_ramp
from logs_ui.recorder.diagnosis.checks.fallen_part import FAR, LIKEWISE, LOOKED, find_fallen_part
from logs_ui.recorder.diagnosis.contrast import CHANCE, SURER
from logs_ui.recorder.diagnosis.habits import describe_begun
from logs_ui.recorder.diagnosis.mean_difference import Difference, compare, is_beyond_chance
from logs_ui.recorder.diagnosis.measures import mean, tried
from logs_ui.recorder.diagnosis.rollout_rows import Floats, Ints, Rows
from logs_ui.recorder.diagnosis.scale import Scale
from logs_ui.recorder.diagnosis.tables.tasks import (
    ATTEMPTS,
    FALLEN,
    FORGOTTEN_CHANCE,
    PARTLY_FALLEN,
    Label,
    find_falls,
    labels,
)
from logs_ui.recorder.diagnosis.task_families import tasks_recur
from logs_ui.recorder.diagnosis.waterfall import has_cause, losses
from logs_ui.recorder.diagnosis.wording import listed, percent
from logs_ui.recorder.vocabulary import Lack, LossCause

_RECOVERED = 0.8  # of the share of before, in the last steps, above which a family counts as recovered [ours]
_LIKEWISE = 0.5  # of the fall of the tasks named, from which on the others fell, too [ours]
_WITHIN = 0.9  # of the rollouts of tasks that regressed are in a part that fell, too [ours]
_HARDLY = 0.05  # of the attempts are solved since a fall, at most: a checker that broke leaves as few [ours]
_ERRORS = 2.5  # standard errors [ours]
_ENOUGH = f"{ATTEMPTS}+ attempts after their first step"


def _check_forgotten(run: Run) -> Outcome:
    outcome, part = _check_tasks(run), find_fallen_part(run)
    if not isinstance(outcome, Card) or part is None or outcome.own is None or part.own is None:
        return outcome if isinstance(outcome, Card) else part or outcome
    # Of a part that fell as a whole, few tasks may have attempts enough to be sure of each.
    is_whole = (outcome.own & part.own).sum() >= _WITHIN * outcome.own.sum() and part.own.sum() > 2 * outcome.own.sum()
    return part if is_whole else outcome


class _Fallen(NamedTuple):
    rows: Rows  # without the rewards of those that failed; of families, if these are what regressed
    unit: str  # "tasks" or "task families"
    starts: Ints  # (T,) the step since which each is solved less often; -1 for others


def _check_tasks(run: Run) -> Outcome:
    if not run.scale.success.is_defined:
        return SOLVED_UNDEFINED
    fallen = _find_fallen(run)
    rows, unit, starts = fallen
    is_tried, gone, count = tried(rows, run.scale), np.flatnonzero(starts >= 0), _count_judged(rows, run.scale)
    of = is_tried & np.isin(rows.task, gone)
    if count == 0:
        return NotJudged(f"No task has {ATTEMPTS} attempts after its first step yet.", Lack.TASKS)
    judged = f"{count:,} {unit}" + f" with {_ENOUGH}" * (count < len(rows.tasks))
    if not np.isin(rows.task[rows.step >= run.rows.steps[0]], gone).any():
        return Below(f"None of {judged} regressed.")
    if of.sum() == is_tried.sum():
        return Below(f"{len(gone):,} of {judged} fell, and there are no others to compare with.")
    won, is_late = run.scale.success.solved(rows), rows.step >= starts[rows.task]
    others, rest = _compare_others(run, rows, starts), is_tried & ~of & (rows.step >= starts.max())
    fall, since = float(won[of & is_late].mean()) - float(won[of & ~is_late].mean()), of & is_late
    # Few tasks may fall further than others that fell, too: of what is lost they have the smaller part.
    if others is not None and (others.value <= _LIKEWISE * fall or others.value * rest.sum() < fall * since.sum()):
        subject = unit if len(gone) > 1 else {"tasks": "task"}.get(unit, "task family")
        return Below(
            f"{len(gone):,} {subject} fell for certain, and the others fell, too, then or before: "
            f"solved {percent(others.others)} \u2192 {percent(others.chosen)}."
        )
    return _make_card(run, fallen, judged, others_fell=others is not None)


def _find_fallen(run: Run) -> _Fallen:
    """Return the tasks that regressed, or the families, where these tell more."""
    rows, grouped = _leave_out_failed(run.all), run.families and _leave_out_failed(run.families)
    unit, labelled = "tasks", labels(rows, run.scale, run.settings)
    if grouped is not None:
        whole = labels(grouped, run.scale, run.settings)
        lost = np.isin(grouped.task, np.flatnonzero(whole.label == Label.FORGOTTEN))
        alone = np.isin(rows.task, np.flatnonzero(labelled.label == Label.FORGOTTEN))
        # Of a family that regressed as a whole, few tasks may have attempts enough to be sure of each.
        still = (
            tried(rows, run.scale) & lost & (grouped.step >= whole.since[grouped.task]) & run.scale.success.solved(rows)
        )
        is_whole = len(np.unique(rows.task[still])) <= len(np.unique(rows.task[lost])) / 2
        if not tasks_recur(rows) or (lost.any() and is_whole and lost.sum() > (alone & ~lost).sum()):
            rows, unit, labelled = grouped, "task families", whole
    starts = np.where(labelled.label == Label.FORGOTTEN, labelled.since, -1)
    if grouped is not None:
        last_tasks = rows.task[rows.step >= run.rows.steps[0]]
        lost = np.isin(rows.task, np.intersect1d(np.flatnonzero(starts >= 0), last_tasks))
        # Others of a family must have fallen beside a task that regressed. Without one, what ended otherwise, such as
        # at a limit, has findings of its own.
        among = tried(grouped, run.scale) & (~lost if lost.any() else has_cause(grouped, LossCause.WRONG_ANSWER))
        partly = _find_partly_fallen(run, grouped, np.where(among, run.scale.success.outcomes(grouped), np.nan))
        if (partly >= 0).any() and (partly >= 0)[grouped.task[lost]].all():
            rows, unit, starts = grouped, "task families", partly
    return _Fallen(rows, unit, starts)


def _make_card(run: Run, fallen: _Fallen, judged: str, *, others_fell: bool) -> Card:
    """`judged`: what was compared. `others_fell`: by less than counts, or than is sure."""
    rows, unit, starts = fallen
    gone, is_late = np.flatnonzero(starts >= 0), rows.step >= starts[rows.task]
    of, won = tried(rows, run.scale) & np.isin(rows.task, gone), run.scale.success.solved(rows)
    before, since, loss = of & ~is_late, of & is_late, losses(rows, run.scale)
    is_last = rows.step >= run.rows.steps[0]
    names, first = [rows.tasks[task] for task in gone.tolist()], int(starts[gone].min())
    affected, share = np.isin(rows.task, gone)[is_last], float(won[since].mean())
    where = links.tasks(names, "task" if unit == "tasks" else "family")
    trend = rows.where(of).by_step(won[of])
    jump = change(fall := tuple((step, -value) for step, value in trend))
    is_jump = jump is not None and fit_ramp(fall, jump) is None
    is_sudden = share <= _HARDLY and not others_fell and is_jump
    if is_jump and run.rows.steps[0] < first == starts[gone].max():
        affected &= run.rows.step >= first
        where += f" step:{first}..{run.rows.steps[-1]}"
    sentence = (
        f"{listed(names)}: {won[before].sum()} of {before.sum()} attempts solved before, {won[since].sum()} of "
        f"{since.sum()} since. Solved: {run.scale.success.description}."
    )
    return Card(
        id="forgotten",
        title=f"{'At least ' * others_fell}{len(gone)} of {judged} regressed: {percent(share)} of attempts "
        f"solve {'it' if len(gone) == 1 else 'them'} now, {percent(float(won[before].mean()))} did before",
        cost=max(float((run.lost[affected & of[is_last]] - loss[before].mean()).sum()), 0.0) / len(run.rows),
        than="before",
        evidence=(
            sentence,
            *describe_begun(run, np.isin(run.all.id, rows.id[before]), np.isin(run.all.id, rows.id[since])),
        ),
        suggestion=(
            f"Look first at what changed there about step {first:,}: the environment, tests, the reward function. Else "
            "return"
            if is_sudden
            else "Return"
        )
        + " to an earlier checkpoint, then lower the learning rate, add a KL term, or sample these tasks more often.",
        where=where,
        trend=trend,
        since_step=first,
        own=affected,
    )


def _leave_out_failed(rows: Rows) -> Rows:
    """Return the rollouts without the rewards of those that an environment or a server failed: no policy's attempts."""
    return replace(rows, reward=np.where(has_cause(rows, LossCause.INFRASTRUCTURE), np.nan, rows.reward))


def _count_judged(rows: Rows, scale: Scale) -> int:
    """Return the number of tasks that have enough attempts on both sides of some step to have regressed."""
    firsts = np.full(len(rows.tasks), np.iinfo(np.int64).max)
    task, step = rows.task[of := tried(rows, scale)], rows.step[of]
    np.minimum.at(firsts, task, step)
    return int((np.bincount(task[step > firsts[task]], minlength=1) >= ATTEMPTS).sum())


def _compare_others(run: Run, rows: Rows, starts: Ints) -> Difference | None:
    """Compare what is solved of other tasks before any of those with (T,) `starts` fell, or in the first half of that,
    since they may have fallen before, and since all have; None if they fell by no more than chance. In between their
    attempts tell nothing: the fall was somewhere there.
    """
    is_tried, gone = tried(rows, run.scale), np.flatnonzero(starts >= 0)
    is_early = is_tried & np.isin(rows.task, gone) & (rows.step < starts[rows.task])
    last = min(int(rows.step[is_early & (rows.task == task)].max()) for task in gone.tolist())
    late, won = rows.step >= starts.max(), run.scale.success.solved(rows)
    strata, falls = run.all.task if tasks_recur(run.all) else rows.task, list[Difference]()
    for end, most in (last, SURER), ((rows.steps[0] + last) / 2, CHANCE):
        among = is_tried & ~np.isin(rows.task, gone) & ((rows.step <= end) | late)
        others = compare(np.where(among, won, np.nan), late, rows.group, strata)
        if is_beyond_chance(others, most, sign=-1):
            falls.append(others)
    return min(falls, key=lambda fall: fall.value, default=None)


def _find_partly_fallen(run: Run, grouped: Rows, won: Floats) -> Ints:
    """Return (F,) the step since which each family is solved far less often, though not as seldom as a task that counts
    as regressed; -1 for others. (N,) `won` is 1 for solved rollouts, NaN for those that are left out. Groups are the
    units; the same tasks must have fallen, too, since others may be harder, and other families must have fallen less,
    if at all.
    """
    scale = run.scale
    tries = np.bincount(grouped.task[tried(grouped, scale)], minlength=len(grouped.tasks))
    starts, before, _ = find_falls(grouped, scale, tries >= ATTEMPTS, run.threshold("forgotten", PARTLY_FALLEN))
    is_last = grouped.step >= run.rows.steps[0]
    for family in np.flatnonzero(starts >= 0).tolist():
        of, late = np.where(grouped.task == family, won, np.nan), grouped.step >= starts[family]
        fall, of_same = compare(of, late, grouped.group), compare(of, late, grouped.group, run.all.task)
        has_fallen = all(
            is_beyond_chance(difference, most, sign=-1) for difference, most in ((fall, SURER), (of_same, CHANCE))
        )
        rest = compare(np.where(grouped.task == family, np.nan, won), late, grouped.group)
        # What fell everywhere is no matter of one family.
        if fall is not None and rest is not None and rest.value < 0:
            has_fallen &= rest.value - fall.value > _ERRORS * math.hypot(fall.error, rest.error)
        if not has_fallen or not (mean(of[is_last]) or 0.0) <= _RECOVERED * before[family]:
            starts[family] = -1
    return starts


FORGOTTEN = check(
    "forgotten",
    "Regressed tasks",
    f"Tasks that were solved, and then in {ATTEMPTS} or more attempts with at most {FALLEN:.0%} of the earlier success "
    f"rate, if the chance of that in any task is below {FORGOTTEN_CHANCE:.0%} at unchanged rates (corrected for the "
    "number of tasks and splits, and for groups that end alike). The step named is the one that splits a task's "
    "attempts best. A family "
    "that regressed as a whole is named in place of its tasks; and so is one that is solved at most "
    f"{PARTLY_FALLEN:.0%} as often as before, if it holds all tasks that regressed, if the rest of its tasks is "
    "solved less, too, beyond chance and at the same tasks, and other families fell less. Rollouts that an environment "
    "or a server failed are no attempts. Silent if the other tasks fell at least "
    f"{_LIKEWISE:.0%} as far, with a probability below {SURER:.1%} by chance, or, from the first half of the steps "
    f"before on, below {CHANCE:.0%}, or, so surely, lost more solved attempts in all; or if there are no others: that "
    "is no matter of a few. If no task regressed, or few of such a part: a family, or a value of a column that is "
    f"constant within groups and names no machine, of the {LOOKED} of each kind with most groups, whose mean reward "
    f"falls at some step by {FAR:.0%} of the range of rewards or more, and is as low in the last steps, while that of "
    f"all others falls by {LIKEWISE:.0%} of that at most, and falls as far among the rollouts that ended with an "
    f"answer. Tasks are compared with themselves if they recur; else it "
    "must have fallen as far within the values of each other kind, and its prompts be as long as before. Chance of "
    f"each, and of the fall beside the others, corrected for all parts and steps: below {SURER:.1%}.",
    needs("tasks", lambda run: run.rows.task >= 0),
    _check_forgotten,
    source="ours; the number of attempts is verifiers'",
)
