"""What another reward function changes: stored rewards against those that it would give, as `rescore` has both.

Rewards are compared where both are there. Two are one where they lie no further apart than 1e-6 of the stored one's
size, or 1e-6 where that is below 1: TRL keeps them as float32. A group is dead where its rewards are all alike: no
advantage comes of them.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from logs_ui.recorder.queries import ALIKE

if TYPE_CHECKING:
    import pandas as pd

LARGEST = 10
"""Rollouts that `Comparison.largest` holds."""

_Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Changed:
    """A rollout whose reward would be another."""

    id: int
    step: int
    task: str | None
    old: float
    new: float

    @property
    def change(self) -> float:
        """From the stored one to the new one."""
        return self.new - self.old


@dataclass(frozen=True)
class TaskChange:
    """Means of a task, over the rollouts that have both rewards; None without any. `task` is None for those without."""

    task: str | None
    rollouts: int
    old: float | None
    new: float | None
    changed: int


@dataclass(frozen=True)
class Comparison:
    """What changes.

    Attributes:
        rollouts: that were looked at.
        compared: of them have both rewards; `old` and `new` are means over these, None without any.
        changed: of those would have another.
        gained: had none, and would have one.
        lost: had one, and would have none.
        failed: a function raised, or they could not be asked; `failures` says what, most often first.
        turned: that lie above the mean of their group with one and below with the other: what is reinforced and what is
            not changes sides.
        groups: in which two rollouts or more have both rewards.
        teach: of them, those that are not dead with either.
        woken: first ids of those that are dead, and would not be.
        dulled: first ids of those that are not dead, and would be.
        best_changed: of `teach`, groups in which none of the best with one is of the best with the other.
        pairs: of `teach`, pairs of a group that differ in both rewards; `pairs_alike` of them in the same order.
        tasks: the largest change of the mean first.
        largest: the largest change first.
    """

    rollouts: int
    compared: int
    old: float | None
    new: float | None
    changed: int
    gained: int
    lost: int
    failed: int
    failures: list[tuple[str, int, int]]
    turned: int
    groups: int
    teach: int
    dead: int
    woken: list[int]
    dulled: list[int]
    best_changed: int
    pairs: int
    pairs_alike: int
    tasks: list[TaskChange]
    largest: list[Changed]


@dataclass(frozen=True)
class Ranks:
    """Of one group, with both rewards of each of its n rollouts.

    Attributes:
        was_dead, is_dead: whether its stored, its new rewards are all alike.
        turned: rollouts that lie on different sides of its mean.
        best_changed: whether the best with one are none of the best with the other.
        pairs, pairs_alike: that differ in both rewards, and of these, in the same order.
    """

    was_dead: bool
    is_dead: bool
    turned: int
    best_changed: bool
    pairs: int
    pairs_alike: int


def ranks(old: _Floats, new: _Floats) -> Ranks:
    """Of (n,) stored and (n,) new rewards."""
    was_dead, is_dead = (bool(np.ptp(values) <= ALIKE) for values in (old, new))
    sides = [_signs(values - values.mean()) for values in (old, new)]
    pairs, alike = _pairs(old, new)
    best = [values >= values.max() - ALIKE for values in (old, new)]
    return Ranks(
        was_dead=was_dead,
        is_dead=is_dead,
        turned=int(np.count_nonzero(sides[0] * sides[1] < 0)),
        best_changed=not np.any(best[0] & best[1]),
        pairs=pairs,
        pairs_alike=alike,
    )


def compare(frame: "pd.DataFrame") -> Comparison:
    """Of the rows that `rescore` gives."""
    old, new = (frame[name].to_numpy(np.float64) for name in ("old", "new"))
    has_old, has_new = np.isfinite(old), np.isfinite(new)
    both = has_old & has_new
    differs = both & (np.abs(new - old) > ALIKE * np.maximum(1.0, np.abs(old)))
    ids = frame["id"].to_numpy(np.int64)
    groups = _groups(frame["group"].to_numpy(object)[both], ids[both], old[both], new[both])
    alive = [it for _, it in groups if not (it.was_dead or it.is_dead)]
    return Comparison(
        rollouts=len(frame),
        compared=int(np.count_nonzero(both)),
        old=_mean(old[both]),
        new=_mean(new[both]),
        changed=int(np.count_nonzero(differs)),
        gained=int(np.count_nonzero(has_new & ~has_old)),
        lost=int(np.count_nonzero(has_old & ~has_new)),
        failed=int(frame["failed"].notna().sum()),
        failures=_failures(frame),
        turned=sum(it.turned for _, it in groups),
        groups=len(groups),
        teach=len(alive),
        dead=sum(it.was_dead and it.is_dead for _, it in groups),
        woken=[first for first, it in groups if it.was_dead and not it.is_dead],
        dulled=[first for first, it in groups if it.is_dead and not it.was_dead],
        best_changed=sum(it.best_changed for it in alive),
        pairs=sum(it.pairs for it in alive),
        pairs_alike=sum(it.pairs_alike for it in alive),
        tasks=_tasks(_named(frame["task"]), both, differs, old, new),
        largest=_largest(frame, differs, old, new),
    )


def _pairs(old: _Floats, new: _Floats) -> tuple[int, int]:
    """Pairs that differ in both, and of these, in the same order; a row of them at a time, as a group may be large."""
    pairs = alike = 0
    for i in range(len(old) - 1):
        a, b = (_signs(values[i + 1 :] - values[i]) for values in (old, new))
        products = a * b
        pairs += int(np.count_nonzero(products))
        alike += int(np.count_nonzero(products > 0))
    return pairs, alike


def _signs(values: _Floats) -> _Floats:
    """What is no further from nought than two rewards that are one is nought."""
    return np.where(np.abs(values) <= ALIKE, 0.0, np.sign(values))


def _groups(names: NDArray[Any], ids: NDArray[np.int64], old: _Floats, new: _Floats) -> list[tuple[int, Ranks]]:
    """Those of two rollouts or more, by their lowest id."""
    _, of_row = np.unique(names.astype(str), return_inverse=True)
    order = np.argsort(of_row, kind="stable")
    starts = np.flatnonzero(np.diff(of_row[order], prepend=-1))
    members = [own for own in np.split(order, starts[1:]) if len(own) > 1]
    return sorted(((int(ids[own].min()), ranks(old[own], new[own])) for own in members), key=lambda it: it[0])


def _tasks(
    tasks: Sequence[str | None], both: NDArray[np.bool_], differs: NDArray[np.bool_], old: _Floats, new: _Floats
) -> list[TaskChange]:
    names = list(dict.fromkeys(tasks))
    numbers = {task: number for number, task in enumerate(names)}
    of_row = np.array([numbers[task] for task in tasks], np.int64)

    def sums(rows: NDArray[np.bool_], values: _Floats | None = None) -> list[float]:
        weights = None if values is None else values[rows]
        found: list[float] = np.bincount(of_row[rows], weights, len(names)).tolist()
        return found

    counted = zip(names, sums(both), sums(both, old), sums(both, new), sums(differs), strict=True)
    changes = [
        TaskChange(task, int(n), before / n if n else None, after / n if n else None, int(changed))
        for task, n, before, after, changed in counted
    ]
    return sorted(changes, key=lambda it: -abs((it.new or 0.0) - (it.old or 0.0)))


def _largest(frame: "pd.DataFrame", differs: NDArray[np.bool_], old: _Floats, new: _Floats) -> list[Changed]:
    where = np.flatnonzero(differs)
    first = where[np.argsort(-np.abs(new[where] - old[where]), kind="stable")][:LARGEST]
    tasks = [_named(frame["task"])[row] for row in first.tolist()]
    ids, steps = (frame[name].to_numpy(np.int64)[first].tolist() for name in ("id", "step"))
    return [Changed(*row) for row in zip(ids, steps, tasks, old[first].tolist(), new[first].tolist(), strict=True)]


def _named(tasks: "pd.Series[Any]") -> list[str | None]:
    return [name if isinstance(name, str) else None for name in tasks.tolist()]


def _failures(frame: "pd.DataFrame") -> list[tuple[str, int, int]]:
    """What failed, how often, and the first rollout that it did for."""
    failed = frame[frame["failed"].notna()]
    found = [(str(said), len(own), int(own["id"].iloc[0])) for said, own in failed.groupby("failed", sort=False)]
    return sorted(found, key=lambda it: -it[1])


def _mean(values: _Floats) -> float | None:
    return float(values.mean()) if len(values) else None
