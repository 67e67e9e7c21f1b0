"""Compares figures of rollouts: over time, within groups, and between environments, families of tasks and columns.

Groups are the independent units, or tasks where families of tasks are compared; of all that is compared, 5% of what is
named may be chance. [ours]
"""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from logs_ui.recorder.diagnosis.card import Run
from logs_ui.recorder.diagnosis.change_point import change
from logs_ui.recorder.diagnosis.mean_difference import LEAST_UNITS, Difference, chance_limit, compare
from logs_ui.recorder.diagnosis.measures import FEATURES, list_figures, within_groups
from logs_ui.recorder.diagnosis.places import columns_of, evals_of, families_of, tasks_of
from logs_ui.recorder.diagnosis.rollout_rows import SAME, Bools, Floats, Ints, Rows, distinct
from logs_ui.recorder.diagnosis.success import Success
from logs_ui.recorder.diagnosis.task_families import tasks_recur
from logs_ui.recorder.diagnosis.waterfall import CAUSES, Cause, causes, judged, name_causes
from logs_ui.recorder.diagnosis.wording import figure, percent

NAMED, _LOOKED = 2, 20  # figures; places that are compared, those that lost most
_LEAST = 0.2  # relative difference [ours]
_DEVIATIONS = 0.8  # standard deviations are large, too (Cohen 1988): some figures, such as ratios, are never near 0
_POINT = 0.01  # of a share: a smaller difference is not named [ours]
_HABIT = 1 / 3  # relative difference of a habit that has changed [ours]
_ALL = 0.9  # of the tasks of the side with more are of both: then these are nearly all [ours]


class Sides(NamedTuple):
    """The first steps and the last, as (N,) columns of the rollouts of all steps."""

    late: Bools  # True for the last steps
    among: Bools  # True for what is compared
    strata: Ints | None  # tasks, if they recur; else evals, if there are several; else None
    unit: str  # what `strata` are: "tasks", "evals", ""
    description: str


def time_sides(run: Run) -> Sides | None:
    """Return what to compare over time; None for a single step. If tasks recur, it is tasks that both sides have: else
    other tasks would look like another policy, as another mix of evals would.
    """
    sides = run.windows
    if sides is None:
        return None
    before, after = sides
    rows, (first, last) = run.all, (f"{side.steps[0]}\u2013{side.steps[-1]}" for side in sides)
    late = rows.step >= after.steps[0]
    among = (rows.step <= before.steps[-1]) | late
    if not tasks_recur(rows):
        if len(rows.present) < 2:
            return Sides(late, among, None, "", f"steps {first} against {last}")
        return Sides(late, among, rows.eval, "evals", f"steps {first} against {last}, same evals, same mix")
    tasks = [set(side.task.tolist()) - {-1} for side in sides]
    both, either = tasks[0] & tasks[1], tasks[0] | tasks[1]
    is_whole = len(both) >= _ALL * max(map(len, tasks))
    mix = "same task mix" if is_whole else f"at the {len(both):,} tasks that both have, of {len(either):,}, same mix"
    description = f"steps {first} against {last}, {mix}"
    return Sides(late, among & np.isin(rows.task, list(both)), rows.task, "tasks", description)


class Compared(NamedTuple):
    """Compares chosen rollouts with others, figure by figure."""

    description: str  # which ones
    columns: Mapping[str, Floats]  # (N,) values by the figure's name; over time, of all steps
    differences: Mapping[str, Difference]  # of those that could be judged
    limit: float  # see `chance_limit`
    # (N,) True for the chosen ones, and for the others, by the figure's name; empty over time.
    sides: Mapping[str, tuple[Bools, Bools]] = MappingProxyType({})
    place: str = ""  # the filter's field, if the columns are categories
    is_share: bool = False  # True if categories are compared by the share that is solved
    untested: int = 0  # number of further categories, which lose less


def compare_over_time(run: Run) -> Compared | None:
    """Compare the first steps with the last, by all columns. None for a single step."""
    sides, rows = time_sides(run), run.all
    if sides is None:
        return None
    columns = list_columns(rows, run.scale.success, name_causes(rows, causes(rows)))
    return Compared(
        sides.description, columns, *_compare_columns(columns, sides.late, rows.group, sides.strata, sides.among)
    )


def list_columns(rows: Rows, success: Success, named: Sequence[Cause] = CAUSES) -> dict[str, Floats]:
    """Return (N,) values of how rollouts end, what reward functions give, and the other figures, by name."""
    cause, has_ended = causes(rows), judged(rows)
    ways = enumerate(named[:-1])  # to end that cost reward by themselves
    ends = {f"{ending.name} (share)": np.where(has_ended, cause == place, np.nan) for place, ending in ways}
    if success.is_defined:
        ends["solved (share)"] = success.outcomes(rows)
    return {"reward": rows.reward, **rows.values, **ends, **list_figures(rows)}


def compare_families(run: Run) -> Compared | None:
    """Compare the outcome of each of the largest families of tasks, in the first steps and in the last: what is solved,
    else the reward. None for a single step, or if names of tasks show no families.
    """
    sides, grouped, success = time_sides(run), run.families, run.scale.success
    if sides is None or grouped is None:
        return None
    sizes = np.bincount(grouped.task[grouped.task >= 0], minlength=len(grouped.tasks))
    values = success.outcomes(run.all) if success.is_defined else run.all.reward
    columns = {
        grouped.tasks[family]: np.where(grouped.task == family, values, np.nan)
        for family in np.argsort(-sizes)[:_LOOKED]
    }
    compared_columns = _compare_columns(columns, sides.late, run.all.group, sides.strata, sides.among)
    return Compared(sides.description, columns, *compared_columns, place="family", is_share=success.is_defined)


def compare_within_groups(run: Run) -> Compared | None:
    """Compare rollouts of low reward with better ones of the same groups; None without any."""
    has_reward = np.isfinite(run.rows.reward)
    low, better = divide_by_reward(run, has_reward, has_reward)
    outcomes = {"reward", "solved (share)", *(mark.column.removeprefix("rewards.") for mark in run.scale.success.marks)}
    every = list_columns(run.rows, run.scale.success, name_causes(run.rows, causes(run.rows)))
    columns = {name: values for name, values in every.items() if name not in outcomes}
    compared_columns = _compare_columns(columns, low, run.rows.group, run.rows.group, low | better)
    is_defined = run.scale.success.is_defined
    words = "unsolved against solved" if is_defined else "below against above the mean of the group"
    within = {
        name: _within(values, low, better, run.rows) for name, values in columns.items() if name in compared_columns[0]
    }
    sides = dict.fromkeys(columns, (low, better))
    return Compared(f"{words}, within groups", within, *compared_columns, sides) if compared_columns[0] else None


def _within(values: Floats, low: Bools, better: Bools, rows: Rows) -> Floats:
    """Return (N,) values with the differences between groups taken out; NaN where a group lacks one of the sides."""
    means_of_low, means_of_better = (rows.group_means(np.where(side, values, np.nan)) for side in (low, better))
    has_both = np.isfinite(means_of_low) & np.isfinite(means_of_better)
    comparable = np.where((low | better) & has_both[rows.group], values, np.nan)
    return within_groups(comparable, rows) + (np.nanmean(comparable) if np.isfinite(comparable).any() else 0.0)


def compare_places(run: Run) -> list[Compared]:
    """Compare the outcome, which is what is solved, else the reward, of each eval, family (or task) and value of a
    dataset's column with that of all others.
    """
    success, rows = run.scale.success, run.rows
    values = success.outcomes(rows) if success.is_defined else rows.reward
    comparisons = []
    for (placed, units, _), field in (
        (evals_of(run), "eval"),
        *((family, "family") for family in families_of(run)),
        (tasks_of(run), "task"),
        *((column, column[2]) for column in columns_of(rows, run.labels)),
    ):
        is_known = np.isfinite(values) & (placed.task >= 0)
        compared, places = compare_each(placed.task[is_known], values[is_known], units[is_known], len(placed.tasks))
        judged = {
            placed.tasks[code]: (code, compared_task)
            for code, compared_task in compared.items()
            if compared_task.chance is not None
        }
        rollouts_of = {name: is_known & (placed.task == place) for name, (place, _) in judged.items()}
        comparisons.append(
            Compared(
                "", dict.fromkeys(judged, values),
                {name: difference for name, (_, difference) in judged.items()}, limit=-1.0,
                sides={name: (mine, is_known & ~mine) for name, mine in rollouts_of.items()}, place=field,
                is_share=success.is_defined,
                untested=places - len(judged),
            )
        )  # fmt: skip
    return comparisons


def name_changed_habit(run: Run) -> str:
    """Return words on the habit that changed most since the first steps, if it is half as much again or more, as in
    "turns 5.2 \u2192 3"; "" without one.
    """
    sides, rows = time_sides(run), run.all
    if sides is None:
        return ""
    columns = {feature.name: feature.values(rows) for feature in FEATURES if feature.is_habit}
    every, limit = _compare_columns(columns, sides.late, rows.group, sides.strata, sides.among)
    sizes = {
        name: abs(change.value) / max(*change[:2], SAME)
        for name, change in every.items()
        if (change.chance or 0.0) <= limit
    }
    name = max(sizes, key=lambda name: sizes[name], default=None)
    if name is None or sizes[name] < _HABIT:
        return ""
    return f"{name} {figure(every[name].others)} \u2192 {figure(every[name].chosen)}"


def describe_jumped_habits(run: Run, first: int, last: int) -> list[str]:
    """Return sentences on habits that jump so much at one of the steps `first` to `last`, whatever the tasks are: where
    these do not come again, nothing can be compared at the same ones.
    """
    trends = ((feature.name, run.all.by_step(feature.values(run.all))) for feature in FEATURES if feature.is_habit)
    jumps = ((name, trend, jump) for name, trend in trends if (jump := change(trend)) is not None)
    return [
        f"At step {trend[jump.place][0]:,} {name} change from {figure(jump.before)} to {figure(jump.after)}, over all "
        "tasks."
        for name, trend, jump in jumps
        if first <= trend[jump.place][0] <= last
        and abs(jump.after - jump.before) >= _HABIT * max(jump.before, jump.after)
    ]


def divide_by_reward(run: Run, low: Bools, among: Bools) -> tuple[Bools, Bools]:
    """Return (N,) which of these rollouts are low, and which `among` others are better: unsolved and solved, where that
    is defined, else below and above the mean of their group.
    """
    rows = run.rows
    if run.scale.success.is_defined:
        better = run.scale.success.solved(rows)
        return low & ~better, better & among
    middle = rows.groups.mean[rows.group]
    return low & (rows.reward < middle - SAME), (rows.reward > middle + SAME) & among


def compare_each(task: Ints, values: Floats, units: Ints, count: int) -> tuple[dict[int, Difference], int]:
    """Compare each of the places that lose most with all others; also return the number of places that have enough
    independent units. None are compared of fewer than two.
    """
    places = np.flatnonzero(distinct(task, units, count=count) >= LEAST_UNITS)
    if len(places) < 2:
        return {}, len(places)
    lost = np.bincount(task, float(values.mean()) - values, count)
    worst = places[np.argsort(-lost[places], kind="stable")][:_LOOKED]
    difference_of = {place: compare(values, task == place, units) for place in worst.tolist()}
    return {place: difference for place, difference in difference_of.items() if difference is not None}, len(places)


def find_largest(
    columns: Mapping[str, Floats], chosen: Bools, units: Ints, strata: Ints | None, among: Bools
) -> tuple[list[tuple[str, Difference]], dict[str, Difference]]:
    """Return the differences that are surest, and those of all columns that could be compared."""
    every, limit = _compare_columns(columns, chosen, units, strata, among)
    return list_most_different(columns, every, limit), every


def _compare_columns(
    columns: Mapping[str, Floats], chosen: Bools, units: Ints, strata: Ints | None, among: Bools
) -> tuple[dict[str, Difference], float]:
    """Return the difference of each column that can be judged, and the limit of their `chance`."""
    every = {name: compare(np.where(among, values, np.nan), chosen, units, strata) for name, values in columns.items()}
    judged = {
        name: difference
        for name, difference in every.items()
        if difference is not None and difference.chance is not None
    }
    return judged, chance_limit([difference.chance or 0.0 for difference in judged.values()])


def list_most_different(
    columns: Mapping[str, Floats], every: Mapping[str, Difference], limit: float
) -> list[tuple[str, Difference]]:
    """Return those differences beyond chance that are large, the surest first; of equal columns, one."""
    large = {
        name: compared_column
        for name, compared_column in every.items()
        if (compared_column.chance or 0.0) <= limit and _is_large(compared_column, name, columns[name])
    }
    different: list[tuple[str, Difference]] = []
    for name, difference in sorted(large.items(), key=lambda pair: -abs(pair[1].t)):
        if not any(np.array_equal(columns[name], columns[other], equal_nan=True) for other, _ in different):
            different.append((name, difference))
    return different[:NAMED]


def _is_large(difference: Difference, name: str, values: Floats) -> bool:
    size, highest = abs(difference.value), max(abs(difference.chosen), abs(difference.others))
    least = min(_LEAST * highest, max(_DEVIATIONS * float(np.nanstd(values)), SAME))
    return size >= max(least, _POINT * is_share_name(name))


def is_share_name(name: str) -> bool:
    """Return True if a figure's name, which is no reward function's, is that of a share, 0 to 1."""
    return name.endswith("(share)") or name.startswith("the share of ")


def write_value(value: float, name: str) -> str:
    """Write a figure of this name: a share in percent."""
    return percent(value) if is_share_name(name) else figure(value)
