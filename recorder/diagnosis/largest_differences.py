"""Finds what differs most in a run: over time, between low and better rollouts of a group, and between
environments or tasks.

It needs no list of faults, so it speaks where no check has a finding. Groups are the independent units, or tasks where
families of tasks are compared; of all that is compared, 5% of what is named may be chance. [ours]
"""

from collections.abc import Iterator, Mapping
from typing import NamedTuple

import numpy as np

from logs_ui.recorder.diagnosis.card import Run
from logs_ui.recorder.diagnosis.contrast import spread, windows
from logs_ui.recorder.diagnosis.features import FEATURES
from logs_ui.recorder.diagnosis.mean_difference import LEAST_UNITS, Difference, chance_limit, compare
from logs_ui.recorder.diagnosis.places import columns_of, evals_of, families_of, tasks_of
from logs_ui.recorder.diagnosis.rollout_rows import SAME, Bools, Floats, Ints, Rows, distinct, means
from logs_ui.recorder.diagnosis.tables.task_families import tasks_recur
from logs_ui.recorder.diagnosis.waterfall import CAUSES, causes, has_cause, judged
from logs_ui.recorder.diagnosis.wording import figure, listed, percent
from logs_ui.recorder.vocabulary import LossCause

_NAMED, _PLACES, _LOOKED = 2, 3, 20  # figures; tasks; of these, those that are compared for having lost most
_LEAST, _LOW = 0.2, 0.05  # relative difference; of the range of rewards, for a task [ours]


def differences(run: Run, low: Bools) -> Iterator[str]:
    """Yield a sentence for each kind of difference, and one for what was compared and does not differ. `low` is (N,)
    True for the rollouts of the last steps whose loss is to be explained.
    """
    alike = []
    for sentence, compared in (
        _over_time(run),
        _within_groups(run, low),
        _by_place(run, *evals_of(run))[:2],
        _by_task(run),
        _by_column(run),
    ):
        if sentence:
            yield sentence
        elif compared:
            alike.append(compared)
    if alike:
        yield f"Compared without a clear difference: {'; '.join(alike)}."


class Sides(NamedTuple):
    """The first steps and the last, as (N,) columns of the rollouts of all steps."""

    late: Bools  # True for the last steps
    among: Bools  # True for what is compared
    strata: Ints | None  # tasks, if they recur; else None
    said: str


def time_sides(run: Run) -> Sides | None:
    """Return what to compare over time; None for a single step. If tasks recur, it is tasks that both sides have: else
    other tasks would look like another policy.
    """
    sides = windows(run)
    if sides is None:
        return None
    before, after = sides
    rows, (first, last) = run.all, (f"{it.steps[0]}\u2013{it.steps[-1]}" for it in sides)
    late = rows.step >= after.steps[0]
    among = (rows.step <= before.steps[-1]) | late
    if not tasks_recur(rows):
        return Sides(late, among, None, f"steps {first} against {last}")
    of_both = np.isin(rows.task, list(set(before.task.tolist()) & set(after.task.tolist()) - {-1}))
    return Sides(late, among & of_both, rows.task, f"steps {first} against {last}, the same tasks, weighted alike")


def _over_time(run: Run) -> tuple[str, str]:
    """Compare the first steps with the last: how rollouts end, what reward functions give, and the other figures."""
    sides, rows = time_sides(run), run.all
    if sides is None:
        return "", ""
    cause, has_ended, success = causes(rows), judged(rows), run.scale.success
    ways = enumerate(CAUSES[:-1])  # to end that cost reward by themselves
    ends = {f"{it.name} (share)": np.where(has_ended, cause == place, np.nan) for place, it in ways}
    if success.is_defined:
        ends["solved (share)"] = success.outcomes(rows)
    columns: dict[str, Floats] = {"reward": rows.reward, **rows.values, **ends, **_figures(rows)}
    found, count = _largest(columns, sides.late, rows.group, sides.strata, sides.among)
    said = "; ".join(f"{name} {_written(it.others, name)} \u2192 {_written(it.chosen, name)}" for name, it in found)
    return said and f"Over time ({sides.said}): {said}.", f"{count} figures over time ({sides.said})" if count else ""


def _within_groups(run: Run, low: Bools) -> tuple[str, str]:
    """Compare these rollouts with better ones of the same groups."""
    rows = run.rows
    if run.scale.success.is_defined:
        better = run.scale.success.solved(rows)
        low = low & ~better
    else:
        mean = rows.groups.mean[rows.group]
        low, better = low & (rows.reward < mean - SAME), rows.reward > mean + SAME
    found, count = _largest(_figures(rows), low, rows.group, rows.group, low | better)
    said = "; ".join(f"{name} {figure(it.chosen)}, in better ones {figure(it.others)}" for name, it in found)
    groups = max((min(it.groups) for _, it in found), default=0)
    said = said and f"In low rollouts of {groups} groups: {said}."
    return said, f"{count} figures within groups" if count else ""


def _by_task(run: Run) -> tuple[str, str]:
    """Compare each task with all others; families of tasks, where the names show them and tasks seldom recur."""
    families = [] if tasks_recur(run.all) else families_of(run)
    return _by_place(run, *(families or [tasks_of(run)])[0])[:2]


def _by_column(run: Run) -> tuple[str, str]:
    """Compare each rank, and each value of a dataset's column, with all others; tell of the surest of these columns."""
    columns = columns_of(run.rows, run.labels)
    compared = [_by_place(run, *it, columns=len(columns)) for it in columns]
    named = [it for it in compared if it[0]]
    count = sum(bool(it[1]) for it in compared)
    return min(named, key=lambda it: it[2])[0] if named else "", f"{count} columns of the dataset" if count else ""


def _by_place(run: Run, rows: Rows, units: Ints, what: str, columns: int = 1) -> tuple[str, str, float]:
    """Compare the mean rewards of rollouts that ended normally: those of each of `rows.tasks` with all others. If best
    rewards differ by environment, losses are compared. `columns`: as many kinds of places are compared. The last value
    is the least probability by chance.
    """
    ended = (rows.task >= 0) & np.isfinite(rows.reward) & has_cause(rows, LossCause.WRONG_ANSWER)
    name, sign, values = ("mean loss", -1, -run.lost) if run.scale.units else ("mean reward", 1, rows.reward)
    task, reward = rows.task[ended], values[ended]
    places = np.flatnonzero(distinct(task, units[ended], count=len(rows.tasks)) >= LEAST_UNITS)
    if len(places) < 2:
        return "", "", 1.0
    lost = np.bincount(task, float(reward.mean()) - reward, len(rows.tasks))
    worst = places[np.argsort(-lost[places], kind="stable")][:_LOOKED]
    compared = {
        place: it for place in worst.tolist() if (it := compare(reward, task == place, units[ended])) is not None
    }
    chances = [1.0 if it.chance is None else it.chance * columns for it in compared.values()]
    limit = chance_limit(chances + [1.0] * (len(places) - len(chances)))
    found = [
        place
        for place, it in compared.items()
        if it.chance is not None and it.chance * columns <= limit and -it.value >= _LOW * spread(run)
    ][:_PLACES]
    if not found:
        return "", f"{len(compared)} {what}" + ("" if len(places) == len(compared) else f" of {len(places)}"), 1.0
    others = means((~np.isin(task, found)).astype(int), reward, 2)[1]
    said = listed([f"{rows.tasks[place]} ({name} {figure(sign * compared[place].chosen)})" for place in found])
    elsewhere = "" if np.isnan(others) else f"; elsewhere it is {figure(sign * float(others))}"
    return f"By {what}, rollouts that ended normally lose most in {said}{elsewhere}.", "", min(chances)


def _figures(rows: Rows) -> dict[str, Floats]:
    return {it.name: it.values(rows) for it in FEATURES}


def _largest(
    columns: Mapping[str, Floats], chosen: Bools, units: Ints, strata: Ints | None, among: Bools
) -> tuple[list[tuple[str, Difference]], int]:
    """Return the differences that are surest, and the number of columns that could be compared."""
    every = [(name, compare(np.where(among, it, np.nan), chosen, units, strata)) for name, it in columns.items()]
    known = [(name, it, it.chance) for name, it in every if it is not None and it.chance is not None]
    limit = chance_limit([chance for *_, chance in known])
    found = [
        (name, it)
        for name, it, chance in known
        if chance <= limit and abs(it.value) >= _LEAST * max(abs(it.chosen), abs(it.others))
    ]
    named: list[tuple[str, Difference]] = []
    for name, it in sorted(found, key=lambda it: -abs(it[1].t)):  # of equal columns, one
        if not any(np.array_equal(columns[name], columns[other], equal_nan=True) for other, _ in named):
            named.append((name, it))
    return named[:_NAMED], len(known)


def _written(value: float, name: str) -> str:
    return percent(value) if name.endswith("(share)") else figure(value)
