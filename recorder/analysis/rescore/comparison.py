"""Compares the stored rewards with those of another reward function, as `rescore` returns them.

Only rollouts with both rewards are compared. Two rewards are equal if they differ by at most 1e-6 of the stored one (or
1e-6 if that is below 1), because TRL keeps them as float32. A group is dead (zero variance) if all its rewards are
equal: all its advantages are 0.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from logs_ui.recorder.queries import ALIKE

if TYPE_CHECKING:
    import pandas as pd

LARGEST = 10
"""Number of rollouts in `Comparison.largest`."""

_Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Changed:
    """Describes a rollout whose reward would change."""

    id: int
    step: int
    task: str | None
    old: float
    new: float

    @property
    def change(self) -> float:
        """Return the new reward minus the stored one."""
        return self.new - self.old


@dataclass(frozen=True)
class TaskChange:
    """Compares a task's means over rollouts with both rewards; None without any. `task` is None for no task."""

    task: str | None
    rollouts: int
    old: float | None
    new: float | None
    changed: int


@dataclass(frozen=True)
class Comparison:
    """Counts what changes."""

    rollouts: int  # number of rollouts that were looked at
    compared: int  # number with both rewards; `old` and `new` are means over these, None without any
    old: float | None
    new: float | None
    changed: int  # number of those whose reward would change
    gained: int  # number without a stored reward that would have one
    lost: int  # number with a stored reward that would have none
    failed: int  # number for which a function raised or was not called
    failures: list[tuple[str, int, int]]  # (error, number of rollouts, id of the first), most frequent first
    # Number that lie above the mean of their group with one reward and below it with the other, so that they would be
    # reinforced instead of discouraged, or the reverse.
    turned: int
    groups: int  # number of groups in which two or more rollouts have both rewards
    teach: int  # number of those that have variance with both rewards
    dead: int  # number of those that have zero variance with both
    woken: list[int]  # lowest ids of the groups that would gain variance
    dulled: list[int]  # lowest ids of the groups that would lose their variance
    best_changed: int  # number of the groups in `teach` whose best rollouts would all be others
    # Pairs within the groups in `teach` that differ in both rewards; `pairs_alike` of them in the same order.
    pairs: int
    pairs_alike: int
    tasks: list[TaskChange]  # the tasks, largest change of the mean first
    largest: list[Changed]  # the rollouts with the largest changes


@dataclass(frozen=True)
class Ranks:
    """Compares one group of n rollouts with both rewards."""

    was_dead: bool  # True if its stored rewards are all equal
    is_dead: bool  # True if its new ones are
    turned: int  # number of rollouts on different sides of the mean
    best_changed: bool  # True if none of the best with one reward is among the best with the other
    pairs: int  # number of pairs that differ in both rewards
    pairs_alike: int  # number of those in the same order


def ranks(old: _Floats, new: _Floats) -> Ranks:
    """Compare (n,) stored with (n,) new rewards of a group."""
    was_dead, is_dead = (bool(np.ptp(values) <= ALIKE) for values in (old, new))
    sides = [_signs(values - values.mean()) for values in (old, new)]
    pairs = alike = 0
    for i in range(len(old) - 1):  # one row at a time, as groups may be large
        a, b = (_signs(values[i + 1 :] - values[i]) for values in (old, new))
        pairs += int(np.count_nonzero(a * b))
        alike += int(np.count_nonzero(a * b > 0))
    best = [values >= values.max() - ALIKE for values in (old, new)]
    turned, best_changed = int(np.count_nonzero(sides[0] * sides[1] < 0)), not np.any(best[0] & best[1])
    return Ranks(was_dead, is_dead, turned, best_changed, pairs, alike)


def compare(frame: "pd.DataFrame") -> Comparison:
    """Compare the rewards in a DataFrame that `rescore` returned."""
    old, new = (frame[name].to_numpy(np.float64) for name in ("old", "new"))
    has_old, has_new = np.isfinite(old), np.isfinite(new)
    both = has_old & has_new
    differs = both & (np.abs(new - old) > ALIKE * np.maximum(1.0, np.abs(old)))
    ids = frame["id"].to_numpy(np.int64)
    groups = _groups(frame["group"].to_numpy(object)[both], ids[both], old[both], new[both])
    by_error = frame[frame["failed"].notna()].groupby("failed", sort=False)
    failures = [(str(error), len(failed_rows), int(failed_rows["id"].iloc[0])) for error, failed_rows in by_error]
    alive = [group_ranks for _, group_ranks in groups if not (group_ranks.was_dead or group_ranks.is_dead)]
    return Comparison(
        rollouts=len(frame),
        compared=int(np.count_nonzero(both)),
        old=float(old[both].mean()) if both.any() else None,
        new=float(new[both].mean()) if both.any() else None,
        changed=int(np.count_nonzero(differs)),
        gained=int(np.count_nonzero(has_new & ~has_old)),
        lost=int(np.count_nonzero(has_old & ~has_new)),
        failed=sum(count for _, count, _ in failures),
        failures=sorted(failures, key=lambda failure: -failure[1]),
        turned=sum(group_ranks.turned for _, group_ranks in groups),
        groups=len(groups),
        teach=len(alive),
        dead=sum(group_ranks.was_dead and group_ranks.is_dead for _, group_ranks in groups),
        woken=[lowest_id for lowest_id, group_ranks in groups if group_ranks.was_dead and not group_ranks.is_dead],
        dulled=[lowest_id for lowest_id, group_ranks in groups if group_ranks.is_dead and not group_ranks.was_dead],
        best_changed=sum(group_ranks.best_changed for group_ranks in alive),
        pairs=sum(group_ranks.pairs for group_ranks in alive),
        pairs_alike=sum(group_ranks.pairs_alike for group_ranks in alive),
        tasks=_tasks(_task_names(frame["task"]), both, differs, old, new),
        largest=_largest(frame, differs, old, new),
    )


def _signs(values: _Floats) -> _Floats:
    """Return the signs; differences between equal rewards are 0."""
    return np.where(np.abs(values) <= ALIKE, 0.0, np.sign(values))


def _groups(names: NDArray[Any], ids: NDArray[np.int64], old: _Floats, new: _Floats) -> list[tuple[int, Ranks]]:
    """Return the comparisons of groups of two or more rollouts, by their lowest id."""
    _, of_row = np.unique(names.astype(str), return_inverse=True)
    order = np.argsort(of_row, kind="stable")
    starts = np.flatnonzero(np.diff(of_row[order], prepend=-1))
    members = [rows for rows in np.split(order, starts[1:]) if len(rows) > 1]
    return sorted(((int(ids[rows].min()), ranks(old[rows], new[rows])) for rows in members), key=itemgetter(0))


def _tasks(
    tasks: Sequence[str | None], both: NDArray[np.bool_], differs: NDArray[np.bool_], old: _Floats, new: _Floats
) -> list[TaskChange]:
    names = list(dict.fromkeys(tasks))
    numbers = {task: number for number, task in enumerate(names)}
    of_row = np.array([numbers[task] for task in tasks], np.int64)

    def sums(rows: NDArray[np.bool_], values: _Floats | None = None) -> list[float]:
        weights = None if values is None else values[rows]
        totals: list[float] = np.bincount(of_row[rows], weights, len(names)).tolist()
        return totals

    counted = zip(names, sums(both), sums(both, old), sums(both, new), sums(differs), strict=True)
    changes = [
        TaskChange(task, int(n), before / n if n else None, after / n if n else None, int(changed))
        for task, n, before, after, changed in counted
    ]
    return sorted(changes, key=lambda change: -abs((change.new or 0.0) - (change.old or 0.0)))


def _largest(frame: "pd.DataFrame", differs: NDArray[np.bool_], old: _Floats, new: _Floats) -> list[Changed]:
    where = np.flatnonzero(differs)
    first = where[np.argsort(-np.abs(new[where] - old[where]), kind="stable")][:LARGEST]
    tasks = [_task_names(frame["task"])[row] for row in first.tolist()]
    ids, steps = (frame[name].to_numpy(np.int64)[first].tolist() for name in ("id", "step"))
    return [Changed(*row) for row in zip(ids, steps, tasks, old[first].tolist(), new[first].tolist(), strict=True)]


def _task_names(tasks: "pd.Series[Any]") -> list[str | None]:
    return [name if isinstance(name, str) else None for name in tasks.tolist()]
