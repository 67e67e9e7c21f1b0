"""Compares figures of runs, with standard errors by groups of rollouts."""

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from logs_ui.recorder.diagnosis.card import Trend
from logs_ui.recorder.diagnosis.mean_difference import Mean, chance, chance_limit
from logs_ui.recorder.diagnosis.task_families import families
from logs_ui.recorder.queries import GroupResult
from logs_ui.recorder.queries.common import BOUND

PARTS = ("raw", "weighted", "headroom")
"""Figures of a reward function: its mean, its mean times its weight, or its best weighted value minus that product."""

Results = Mapping[str, Sequence[GroupResult]]
"""The groups of a run, by task."""


class Estimate(NamedTuple):
    """Estimates a mean over rollouts."""

    mean: float
    error: float | None  # standard error by groups; None with fewer than two groups
    rollouts: int
    groups: int
    effective: float = 0.0  # number of groups of equal size that would tell as much; see `mean_difference.Mean`
    pass_at: float | None = None  # pass@k, from 0 to 1; None if no group has k rollouts, or what is solved is not known
    is_clear: bool = False  # True if it differs from the first run's by more than chance; see `mark_clear`
    trend: Trend = ()  # the mean by step

    def error_from(self, reference: "Estimate") -> float | None:
        """Return the standard error of the difference between the two means."""
        return None if self.error is None or reference.error is None else math.hypot(self.error, reference.error)


def estimate(groups: Sequence[tuple[int, float]]) -> Estimate | None:
    """Return the mean over groups of rollouts, each given as its number of rollouts and its sum; None without any.

    Rollouts of a group share a prompt and are not independent, so the standard error is robust to clusters:
    SE² = G/(G-1) · Σ (s_g - n_g·mean)² / n² over the G groups of n_g rollouts with the sums s_g, n rollouts in all
    (Liang and Zeger 1986; Cameron and Miller 2015, equation 11, with its correction G/(G-1)).
    """
    counted_groups = [(number, total) for number, total in groups if number]
    n, count = sum(number for number, _ in counted_groups), len(counted_groups)
    if not counted_groups:
        return None
    mean = sum(total for _, total in counted_groups) / n
    deviations = [total - number * mean for number, total in counted_groups]
    error = (
        math.sqrt(count / (count - 1) * sum(deviation * deviation for deviation in deviations)) / n
        if count > 1
        else None
    )
    return Estimate(mean, error, n, count, n * n / sum(number * number for number, _ in counted_groups))


def mark_clear(lines: Sequence[list[Estimate | None]], apart: Sequence[int] = ()) -> list[list[Estimate | None]]:
    """Return the lines of a table, each with the cells of all runs, with `is_clear` where a run differs from the first
    one. All comparisons that the table shows count, so that most marks are true; runs `apart` are not compared.
    """
    chances = [
        [None if i == 0 or i in apart else _chance(line[0], cell) for i, cell in enumerate(line)] for line in lines
    ]
    limit = chance_limit([p for line_chances in chances for p in line_chances if p is not None])
    return [
        [
            cell and cell._replace(is_clear=p is not None and p <= limit)
            for cell, p in zip(line, line_chances, strict=True)
        ]
        for line, line_chances in zip(lines, chances, strict=True)
    ]


def _chance(first: Estimate | None, second: Estimate | None) -> float | None:
    if first is None or second is None or first.error is None or second.error is None:
        return None
    return chance(
        *(
            Mean(cell.mean, error, cell.groups, cell.effective)
            for cell, error in ((first, first.error), (second, second.error))
        )
    )


def compared_tasks(results: Sequence[Results]) -> list[set[str]]:
    """Return the tasks by which each run is compared: those that the first run and all runs that share a task with it
    have in common. A run that shares none with it has its own tasks.
    """
    tasks_by_run = [
        {task for task, groups in run_results.items() if any(group.scored for group in groups)}
        for run_results in results
    ]
    common = (
        set.intersection(*(tasks for tasks in tasks_by_run if tasks & tasks_by_run[0]))
        if tasks_by_run[0]
        else set[str]()
    )
    return [common if tasks & tasks_by_run[0] else tasks for tasks in tasks_by_run]


def runs_apart(tasks_by_run: Sequence[set[str]]) -> list[int]:
    """Return the places of the runs that share no task with the first one, from the `compared_tasks` of each."""
    return [i for i, tasks in enumerate(tasks_by_run) if tasks != tasks_by_run[0]]


def figures_of(
    results: Sequence[Results], weights: Sequence[Mapping[str, float]], part: str
) -> dict[str, list[Estimate | None]]:  # fmt: skip
    """Return each run's estimates by figure: reward, shares solved, truncated and failed, turns, tokens, reward
    functions, and what is solved (else the reward) in each family of tasks; None without a value. A figure that no run
    has is left out. `part` is one of PARTS.
    """
    tasks_by_run = compared_tasks(results)
    apart = runs_apart(tasks_by_run)
    groups_by_run = [
        [group for task in tasks for group in run_results.get(task, ())]
        for run_results, tasks in zip(results, tasks_by_run, strict=True)
    ]
    functions = {
        name
        for run_groups in groups_by_run
        for group in run_groups
        for name in group.sums
        if name.startswith("rewards.")
    }
    names = ("reward", "solved", "truncated", "errors", "turns", "tokens", *sorted(functions))
    cells_by_name = {
        name: [
            _cell(run_groups, name, run_weights, part)
            for run_groups, run_weights in zip(groups_by_run, weights, strict=True)
        ]
        for name in names
    }
    outcome = "solved" if any(cells_by_name["solved"]) else "reward"
    task_names = sorted(set().union(*tasks_by_run) - {""})
    family_of = dict(zip(task_names, families(task_names) or (), strict=False))
    for family in dict.fromkeys(family_of.values()):
        family_groups = [
            [group for task in tasks if family_of.get(task) == family for group in run_results.get(task, ())]
            for run_results, tasks in zip(results, tasks_by_run, strict=True)
        ]
        cells = [_cell(run_groups, outcome, {}, part) for run_groups in family_groups]
        if cells not in cells_by_name.values():  # a function may score this family alone
            cells_by_name[f"{outcome} in {family}"] = cells
    cells_by_name = {name: cells for name, cells in cells_by_name.items() if any(cells)}
    return dict(zip(cells_by_name, mark_clear(list(cells_by_name.values()), apart), strict=True))


def _cell(groups: Sequence[GroupResult], name: str, weights: Mapping[str, float], part: str) -> Estimate | None:
    if name == "reward":
        return _estimate_by_step(
            [(group, group.scored, group.reward_sum) for group in groups if abs(group.reward_sum) < BOUND]
        )
    if name == "solved":
        return _estimate_by_step([(group, group.scored, group.solved) for group in groups if group.solved is not None])
    scored_groups = [(group, *group.sums[name]) for group in groups if name in group.sums and group.sums[name][0]]
    raw_estimate = _estimate_by_step([(group, number, total) for group, number, total, _ in scored_groups])
    if raw_estimate is None or part == "raw" or not name.startswith("rewards."):
        return raw_estimate
    weight = weights.get(name.removeprefix("rewards."), 1.0)
    mean, error = raw_estimate.mean * weight, None if raw_estimate.error is None else raw_estimate.error * abs(weight)
    # A penalty's best is 0.
    best = max(0.0, *(highest * weight for *_, highest in scored_groups)) or (0.0 if mean else weight)

    def convert_value(value: float) -> float:
        return value if part == "weighted" else max(best - value, 0.0)

    trend = tuple((step, convert_value(value * weight)) for step, value in raw_estimate.trend)
    return raw_estimate._replace(mean=convert_value(mean), error=error, trend=trend)


def _estimate_by_step(groups: Sequence[tuple[GroupResult, int, float]]) -> Estimate | None:
    """Return the mean over groups, each with its number of rollouts and its sum, and its trend."""
    overall = estimate([(number, total) for _, number, total in groups])
    sums: dict[int, tuple[int, float]] = {}
    for group, number, total in groups:
        before = sums.get(group.step, (0, 0.0))
        sums[group.step] = before[0] + number, before[1] + total
    return overall and overall._replace(
        trend=tuple((step, total / n) for step, (n, total) in sorted(sums.items()) if n)
    )
