"""Compares the tasks of several runs: mean reward and pass@k."""

from collections.abc import Iterable, Sequence
from itertools import chain
from typing import NamedTuple

from logs_ui.app.pages.compare.run_figures import Estimate, Results, compared_tasks, estimate, mark_clear, runs_apart
from logs_ui.app.parts.charts import Bar, Scale
from logs_ui.recorder.diagnosis.tables.tasks import pass_at
from logs_ui.recorder.queries import GroupResult

SORTS = ("difference", "better", "worse", "task")
"""Orders of the table, besides `mean1` to `mean6`, which sort by the mean of one run, lowest first."""


class TaskLine(NamedTuple):
    """Describes a task in all runs."""

    task: str  # empty if the rollouts name none
    cells: list[Estimate | None]  # None for a run without rollouts of it
    # Mean of another run minus the mean of the first: of the second run if there are two, otherwise of the run that
    # differs most. None if there is nothing to compare.
    difference: float | None
    other_run: int  # index of that run
    bar: Bar | None  # of the difference, on the scale of all lines shown

    @property
    def is_clear(self) -> bool:
        """True if the runs differ beyond chance."""
        cell = self.cells[self.other_run]
        return self.difference is not None and cell is not None and cell.is_clear

    @property
    def tone(self) -> str:
        """Return the tone of the difference as it is shown, to three digits."""
        gain = round(self.difference or 0.0, 3) if self.is_clear else 0
        return "positive" if gain > 0 else "negative" if gain < 0 else "quiet"


class TaskTable(NamedTuple):
    """Shows tasks by runs."""

    lines: list[TaskLine]
    overall: TaskLine  # over the compared tasks; the cell of a run without any is None
    tasks: int  # number of tasks; `lines` has the first of them
    # `better` and `worse`: number of those in which a run differs from the first one beyond chance; of several runs,
    # the one that differs most.
    better: int
    worse: int
    common: int  # number of tasks that the runs are compared by
    apart: list[int]  # places of the runs that share no task with the first run

    @property
    def is_apart(self) -> bool:
        """True if no run shares a task with the first one."""
        return len(self.apart) == len(self.overall.cells) - 1

    @property
    def is_part(self) -> bool:
        return 0 < self.common < self.tasks and not self.is_apart


def make_table(results: Sequence[Results], k: int, sort: str, limit: int) -> TaskTable:
    """Build the table of the runs, in their order, from the groups of each run by task. `sort` is one of SORTS, or
    `mean1` to `mean6`; `limit` is the maximum number of lines.
    """
    tasks = sorted(set(chain.from_iterable(results)))
    cells = [[_cell(run_results.get(task, ()), k) for run_results in results] for task in tasks]
    lines = [
        _line(task, task_cells) for task, task_cells in zip(tasks, mark_clear(cells), strict=True) if any(task_cells)
    ]
    lines.sort(key=lambda line: _place(line, sort))
    differences = [abs(line.difference) for line in lines[:limit] if line.difference is not None]
    largest = max(differences, default=0.0) or 1.0
    scale = Scale(-largest, largest)
    tasks_by_run = compared_tasks(results)
    apart = runs_apart(tasks_by_run)
    compared_groups = [
        [group for task in run_tasks for group in run_results.get(task, ())]
        for run_results, run_tasks in zip(results, tasks_by_run, strict=True)
    ]
    overall = _line("", [None if i in apart else _cell(groups, k) for i, groups in enumerate(compared_groups)])
    bars = [None if line.difference is None else scale.bar(line.difference) for line in lines[:limit]]
    first_lines = [line._replace(bar=bar) for line, bar in zip(lines, bars, strict=False)]
    clear_differences = [line.difference or 0.0 for line in lines if line.is_clear]
    better, worse = (
        sum(difference > 0 for difference in clear_differences),
        sum(difference < 0 for difference in clear_differences),
    )
    return TaskTable(first_lines, overall, len(lines), better, worse, len(tasks_by_run[0]), apart)


def group_sizes(results: Iterable[Results]) -> list[int]:
    """Return the distinct sizes of the groups, counting rollouts with a reward."""
    return sorted(
        {group.scored for run_results in results for groups in run_results.values() for group in groups if group.scored}
    )


def _line(task: str, cells: list[Estimate | None]) -> TaskLine:
    first = cells[0]
    # Rounded: means of the same rewards, added up in another order, are no difference.
    others = [(index, round(cell.mean - first.mean, 9)) for index, cell in enumerate(cells[1:], 1) if cell and first]
    other_run, difference = max(others, key=lambda pair: abs(pair[1]), default=(0, None))
    return TaskLine(task, cells, difference, other_run, None)


def _cell(groups: Sequence[GroupResult], k: int) -> Estimate | None:
    reward_estimate = estimate([(group.scored, group.reward_sum) for group in groups])
    judged_groups = [(group.scored, group.solved) for group in groups if group.solved is not None]
    chances = [pass_at(scored, solved, k) for scored, solved in judged_groups if scored >= k]
    return reward_estimate and reward_estimate._replace(pass_at=sum(chances) / len(chances) if chances else None)


def _place(line: TaskLine, sort: str) -> tuple[bool, float, str]:
    """Return the sort key of a line; lines that cannot be compared come last."""
    if sort == "task":
        return False, 0.0, line.task
    if sort.startswith("mean"):
        cell = line.cells[int(sort[4:]) - 1]
        return cell is None, cell.mean if cell else 0.0, line.task
    if line.difference is None:
        return True, 0.0, line.task
    key = {"difference": -abs(line.difference), "better": -line.difference, "worse": line.difference}
    return False, key[sort], line.task
