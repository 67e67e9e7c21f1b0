"""Finds a kind of action, or words of actions, answers or observations, that few rollouts had at first and many have
now, and that loses.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from logs_ui.recorder.diagnosis import links
from logs_ui.recorder.diagnosis.card import Below, Card, NotJudged, Outcome, Run, Texts, check, needs, uncovered
from logs_ui.recorder.diagnosis.change_point import above, change, fit_ramp
from logs_ui.recorder.diagnosis.contrast import CHANCE, SURER
from logs_ui.recorder.diagnosis.habits import (
    BEGINNING,
    HEARD,
    OF_ANSWER,
    OF_OBSERVATION,
    list_habits,
    list_usual,
    quote,
)
from logs_ui.recorder.diagnosis.largest_differences import Sides, time_sides
from logs_ui.recorder.diagnosis.mean_difference import compare, is_beyond_chance
from logs_ui.recorder.diagnosis.measures import mean
from logs_ui.recorder.diagnosis.rollout_rows import Bools, Floats, Ints, Rows
from logs_ui.recorder.diagnosis.waterfall import losses
from logs_ui.recorder.diagnosis.wording import figure, percent

_SHARE, _RARER = 0.2, 3  # of the rollouts; times rarer at first [ours]
_PART = 0.5  # of what all lose more than at first, at least: a habit that costs less does not explain it [ours]
_FIRST_READ, _MOST_READ = 128, 2_500  # rollouts, of the last steps and of others: to find habits; to compare [ours]
_USUAL = 0.5  # of the rollouts take a kind of action at first: then not to take it is a habit [ours]
_LOOKED = 50  # habits that are compared, those that grew most [ours]
_MOST_HEAR, _NEAR = 0.5, 2  # of the rollouts; steps between its begin and that of the loss [ours]


class _Fall(NamedTuple):
    """Describes that more is lost than before."""

    lost: Floats  # (N,) by rollouts of all steps
    late: Bools  # (N,) True for the later ones
    among: Bools  # (N,) True for those that are compared
    strata: Ints | None
    step: int | None  # at which more is lost; None if that cannot be told
    value: float  # more lost per rollout


class _Costly(NamedTuple):
    """Describes a habit that spread and costs reward."""

    cost: float  # reward per rollout
    habit: str
    affected: Bools  # (N,) True for rollouts of all steps that have it
    lost: float  # more than others of its group, by one that has it; else more than before, by all
    within: bool


def _check(run: Run) -> Outcome:
    rows, sides, limit = run.all, time_sides(run), run.threshold("new_habit", _SHARE)
    if sides is None:
        return NotJudged("The run has a single step.")
    fall = _find_fall(run, sides)
    if fall is None:
        return uncovered(run) or Below("No more is lost than before, beyond chance: no habit that spread explains it.")
    samples = [list(run.sample(fall.among & of, _FIRST_READ).values()) for of in (~fall.late, fall.late)]
    usual = list_usual(samples[0], _USUAL)
    first, last = ([dict.fromkeys(list_habits(texts, usual)) for texts in sample] for sample in samples)
    if not any(first) or not any(last):
        return NotJudged("The texts of the rollouts cannot be read.")
    count, chosen = _list_grown(first, last, limit)
    read = dict[int, Texts]()
    for of in (fall.late, ~fall.late) if chosen else ():  # whole groups
        read |= run.sample(of & (rows.group % (of.sum() // _MOST_READ + 1) == 0), 2 * _MOST_READ)
    is_read, habits = np.isin(rows.id, list(read)), {row: set(list_habits(texts, usual)) for row, texts in read.items()}
    weighed = (
        _weigh(rows, fall, habit, np.isin(rows.id, [row for row in habits if habit in habits[row]]), is_read, count)
        for habit in chosen
    )
    # An answer may tell of what went wrong before, so what was heard goes before it, and an action first.
    later, is_last = (OF_ANSWER, OF_OBSERVATION), rows.step >= run.rows.steps[0]
    worst = max(
        filter(None, weighed), key=lambda of: ([not of.habit.endswith(end) for end in later], of.cost), default=None
    )
    if worst is None or (mine := float(worst.affected[is_read & is_last].mean())) <= limit:
        return Below(f"Of {count} habits that spread none costs as much as is lost more than before.")
    _, habit, has_habit, more, within = worst
    early = rows.step <= rows.step[fall.among & ~fall.late].max()
    earlier, when = float(has_habit[is_read & early].mean()), f"{rows.steps[0]:,}\u2013{rows.step[early].max():,}"
    means = [figure(mean(rows.reward[is_read & of])) for of in (is_last & has_habit, is_last & ~has_habit, early)]
    return Card(
        id="new_habit",
        title=f"{percent(mine)} of rollouts {habit}, {percent(earlier)} in steps {when}",
        cost=mine * more if within else more,
        than="others of their groups" if within else "before",
        evidence=(
            f"In groups that have both, they lose {figure(more)} more than the others."
            if within
            else f"It begins as all rollouts lose {figure(more)} more than in steps {when}.",
            f"Their mean reward is {means[0]}, that of others {means[1]}, of all in steps {when} {means[2]}.",
            *quote(read.values(), habit),
        ),
        suggestion="Read such observations, and what was done before them: the environment answers otherwise than at "
        "first, or the policy asks for something else."
        if habit.endswith(OF_OBSERVATION)
        else "Read some beside others of their groups. Unless it only follows from a failure, or from what prompts and "
        "tools offer now, the policy learned it: find what paid for it when it began, or return to a checkpoint before "
        "that, with a KL term.",
        where=links.ids(rows.id[has_habit & is_last]),
        **above(rows.by_step(np.where(is_read, has_habit, np.nan)), limit),
        own=has_habit[is_last],
        is_least=not is_read[is_last].all(),
    )


def _find_fall(run: Run, sides: Sides) -> _Fall | None:
    """Return what is lost more in the last steps than in the first, or else than before the loss jumped: a run that
    learned first lost less before it fell; or else since the turns or tokens of rollouts changed. None if that may be
    chance.
    """
    rows, late = run.all, sides.late
    lost: Floats = np.maximum(losses(rows, run.scale), 0.0)
    jump = change(rows.by_step(lost))
    step = int(rows.steps[jump.place]) if jump and jump.after > jump.before else None
    for among in (sides.among, *([] if step is None else [late | (rows.step < step)])):
        more = compare(np.where(among, lost, np.nan), late, rows.group, sides.strata)
        if is_beyond_chance(more, CHANCE, sign=1):
            return _Fall(lost, late, among, sides.strata, step, more.value)
    for values in (rows.turns, rows.completion_tokens):
        if (jump := change(trend := rows.by_step(values))) is None:
            continue
        step, every = int(trend[jump.place][0]), np.ones(len(rows), bool)
        more = compare(lost, rows.step >= step, rows.group, sides.strata)
        if is_beyond_chance(more, SURER, sign=1):
            return _Fall(lost, rows.step >= step, every, sides.strata, step, more.value)
    return None


def _list_grown(
    first: Sequence[Mapping[str, None]], last: Sequence[Mapping[str, None]], limit: float
) -> tuple[int, list[str]]:
    """Return how many habits are frequent in the last rollouts and far rarer in the first, and those of them that grew
    most. Of those that the same rollouts do, and of those that they hear, the first tells most.
    """
    before, now = (Counter(habit for of_one in some for habit in of_one) for some in (first, last))
    share = {habit: times / len(last) for habit, times in now.items()}
    grown = [habit for habit in share if share[habit] >= max(limit, _RARER * before[habit] / len(first))]
    distinct = {
        (habit.endswith(OF_OBSERVATION), *(habit in of_one for of_one in last)): habit for habit in reversed(grown)
    }
    most = sorted(distinct.values(), key=lambda habit: before[habit] / len(first) - share[habit])
    return len(distinct), most[:_LOOKED]


def _weigh(rows: Rows, fall: _Fall, habit: str, has_habit: Bools, is_read: Bools, count: int) -> _Costly | None:
    """Return the habit, one of `count`, if it spread beyond chance and makes up much of what is lost more."""
    most = SURER / count
    rise = compare(np.where(is_read & fall.among, has_habit, np.nan), fall.late, rows.group, fall.strata)
    if not (is_beyond_chance(rise, most, sign=1) and rise.chosen >= _RARER * rise.others):
        return None
    more = compare(np.where(is_read, fall.lost, np.nan), has_habit, rows.group, rows.group)
    if is_beyond_chance(more, most, sign=1) and rise.value * more.value >= _PART * fall.value:
        return _Costly(rise.value * more.value, habit, has_habit, more.value, within=True)
    if not habit.endswith(OF_OBSERVATION) or rise.chosen < _MOST_HEAR or fall.step is None:
        return None
    # Where most rollouts of each group hear it, the others tell too little: it has to begin at once, as they lose more.
    trend = rows.by_step(np.where(is_read, has_habit, np.nan))
    begin = change(trend)
    is_near = begin is not None and abs(trend[begin.place][0] - fall.step) <= _NEAR and fit_ramp(trend, begin) is None
    return _Costly(fall.value, habit, has_habit, fall.value, within=False) if is_near else None


DIAGNOSTIC = check(
    "new_habit",
    "New habit",
    f"Share of rollouts above {_SHARE:.0%} in the last steps that call a tool, begin or end with a call of it, never "
    f"take a kind of action (a call of a tool, or another action by its first word) that {_USUAL:.0%} took before, "
    "have a word or a pair of words in an action or in the last answer, or "
    f"hear a pair of words (in the first {BEGINNING} characters of one of the last {HEARD} observations), if it was "
    f"{_RARER} times rarer before all fell, or else in the first steps, at the same tasks where these recur; if they "
    f"lose more than others of their groups; and if this makes up at least {_PART:.0%} of what all lose more since. "
    f"What {_MOST_HEAR:.0%} of the rollouts hear need not lose more within groups if it jumps up at most {_NEAR} "
    f"steps from the one at which all lose more. The rise and the loss must have a probability below {SURER:.1%} by "
    f"chance, corrected for the number of habits that spread so. Of these the {_LOOKED} that grew most are compared. "
    f"At most some {_MOST_READ:,} rollouts of the last steps, and as many before, are read. Silent unless more is lost "
    f"than before, beyond chance, or, with a probability below {SURER:.1%}, since turns or tokens changed.",
    needs("a rollout", lambda run: len(run.rows)),
    _check,
    needs_calls=True,
)
