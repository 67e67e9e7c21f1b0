"""Holds rollouts as numpy columns: the only input of the diagnosis."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from logs_ui.recorder.vocabulary import Status, StopReason

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]
Texts = NDArray[np.object_]

SAME = 1e-6
"""Rewards that differ by no more are equal, as filters and rolloutscope have it: rounding leaves such differences."""


@dataclass(frozen=True, eq=False)
class Rows:
    """Holds N ended rollouts of one run and mode, ordered by step and id. Each array has the shape (N,).

    Attributes:
        id: as in the dashboard's URLs.
        step, policy_step: see `EvaluationRow`.
        group: number of its group, 0 to G - 1.
        task: index into `tasks`; -1 without one.
        eval: index into `evals`.
        status, stop_reason, error, dropped: text; None without one.
        reward: NaN without one.
        scored: True if the trainer has asked for its reward, whatever came back.
        odd: True if a reward function gave NaN or an infinity.
        advantage: NaN without one.
        env_reward_sum, env_reward_last: the environment's rewards, their sum and the last one; NaN without any.
        parts: each reward function's value times its weight, by name; NaN if it gave none.
        values: the same without the weight.
        weights: the weights, by the same names.
        turns, completion_tokens, env_tokens, seconds: NaN if not known.
        facts: the columns that `rows.text_facts` computes, by name; NaN if not known. (Its texts are arrays of
            objects, with None for unknown ones.)
        staleness: policy versions, from an asynchronous trainer; NaN without one.
        tasks, evals: names.
        is_evaluation: True if nothing is trained on them.
    """

    id: Ints
    step: Ints
    policy_step: Ints
    group: Ints
    task: Ints
    eval: Ints
    status: Texts
    stop_reason: Texts
    error: Texts
    dropped: Texts
    reward: Floats
    scored: Bools
    odd: Bools
    advantage: Floats
    turns: Floats
    completion_tokens: Floats
    env_tokens: Floats
    seconds: Floats
    staleness: Floats
    env_reward_sum: Floats
    env_reward_last: Floats
    parts: Mapping[str, Floats]
    values: Mapping[str, Floats]
    weights: Mapping[str, float]
    facts: Mapping[str, Floats]
    tasks: Sequence[str] = field(default_factory=list)
    evals: Sequence[str] = field(default_factory=list)
    is_evaluation: bool = False

    def __len__(self) -> int:
        return len(self.id)

    def where(self, chosen: Bools) -> "Rows":
        """Return the chosen rollouts; groups get new numbers."""
        columns: dict[str, Any] = {}
        for column in fields(self):
            value = getattr(self, column.name)
            if isinstance(value, np.ndarray):
                columns[column.name] = value[chosen]
            elif column.name in {"parts", "values", "facts"}:
                columns[column.name] = {name: values[chosen] for name, values in value.items()}
        columns["group"] = np.unique(columns["group"], return_inverse=True)[1]
        return replace(self, **columns)

    @property
    def present(self) -> list[str]:
        """Return the names of the evals that these rollouts are of."""
        return [self.evals[code] for code in np.unique(self.eval).tolist()]

    def in_eval(self, name: str) -> Bools:
        """Return (N,) True for the rollouts of an eval."""
        return np.asarray(self.eval == (self.evals.index(name) if name in self.evals else -1), bool)

    def of_part(self, chosen: Bools) -> "Rows":
        """Return the chosen rollouts, such as those of one eval or task, with the reward functions that apply to them:
        without those that scored others only; and without others' tasks, whose names would form families.
        """
        rows = self.where(chosen)
        apply = [
            name
            for name, values in self.values.items()
            if np.isfinite(values[chosen]).any() or not np.isfinite(values).any()
        ]
        columns: dict[str, Any] = {
            column: {name: getattr(rows, column)[name] for name in apply} for column in ("parts", "values")
        }
        codes, task = np.unique(np.append(rows.task, -1), return_inverse=True)  # the first code is -1
        names = [self.tasks[code] for code in codes[1:].tolist()]
        return replace(rows, **columns, task=task.reshape(-1)[:-1] - 1, tasks=names)

    @cached_property
    def steps(self) -> Ints:
        """Return (S,) the distinct steps, in order."""
        return np.unique(self.step)

    @property
    def truncated(self) -> Bools:
        """Return (N,) True for those that stopped at a token limit, unless only a tool's answer had no room."""
        return np.asarray((self.stop_reason == StopReason.LENGTH) & (self.facts["no_room"] != 1), bool)

    @cached_property
    def prompt_keys(self) -> tuple[Floats, Bools]:
        """Return (N,) what was asked, True where all of the group that returned have that recorded; else the prompt."""
        keys = self.facts["asked_key"]
        lacks = np.bincount(self.group, np.isnan(keys) & (self.status == Status.OK)) > 0
        is_known = np.isfinite(keys) & ~lacks[self.group]
        return np.where(is_known, keys, self.facts["prompt_key"]), is_known

    @cached_property
    def groups(self) -> "Groups":
        return Groups.of(self)

    def last_steps(self, count: int, rollouts: int) -> "Rows":
        """Return the rollouts of the last `count` steps, or of more steps until there are `rollouts` of them."""
        if len(self.steps) <= count or len(self) <= rollouts:
            return self
        return self.where(self.step >= min(self.steps[-count], np.sort(self.step)[-rollouts]))

    def group_means(self, values: Floats) -> Floats:
        """Return (G,) mean of the finite values; NaN without any.

        Rollouts of a group share their prompt and are not independent, so tests compare means of groups.
        """
        return means(self.group, values, len(self.groups.size))

    def by_step(self, values: Floats | Bools) -> tuple[tuple[int, float], ...]:
        """Return (step, mean of the values that are not NaN); steps without any are left out."""
        is_known = ~np.isnan(values)
        place = np.searchsorted(self.steps, self.step[is_known])
        counts = np.bincount(place, minlength=len(self.steps))
        sums = np.bincount(place, weights=values[is_known], minlength=len(self.steps))
        return tuple((int(s), float(t / n)) for s, t, n in zip(self.steps, sums, counts, strict=True) if n)


@dataclass(frozen=True, eq=False)
class Groups:
    """Holds G groups. Each array has the shape (G,)."""

    size: Ints  # number of rollouts with a reward
    # `low`, `high`, `mean` and `std`: of those rewards (population std); NaN without any.
    low: Floats
    high: Floats
    mean: Floats
    std: Floats
    step: Ints  # the step of its first rollout

    @classmethod
    def of(cls, rows: Rows) -> "Groups":
        count = int(rows.group.max()) + 1 if len(rows) else 0
        size = np.bincount(rows.group[np.isfinite(rows.reward)], minlength=count)
        low, high = (np.where(size > 0, end, np.nan) for end in ends(rows.group, rows.reward, count))
        mean = means(rows.group, rows.reward, count)
        std = np.sqrt(means(rows.group, (rows.reward - mean[rows.group]) ** 2, count))
        step = np.zeros(count, np.int64)
        # The last assignment to a group stays, which in reverse order is that of its first rollout.
        step[rows.group[::-1]] = rows.step[::-1]
        return cls(size, low, high, mean, std, step)


def means(codes: Ints, values: Floats | Bools, count: int) -> Floats:
    """Return (count,) mean of the finite values of each code, 0 to count - 1; NaN without any."""
    is_known = np.isfinite(values)
    sums = np.bincount(codes[is_known], values[is_known], count)
    with np.errstate(invalid="ignore"):
        return sums / np.bincount(codes[is_known], minlength=count)


def ends(codes: Ints, values: Floats, count: int) -> tuple[Floats, Floats]:
    """Return the (count,) lowest and highest finite value of each code; infinity and -infinity without any."""
    is_known = np.isfinite(values)
    low, high = np.full(count, np.inf), np.full(count, -np.inf)
    np.minimum.at(low, codes[is_known], values[is_known])
    np.maximum.at(high, codes[is_known], values[is_known])
    return low, high


def distinct(codes: Ints, *columns: Floats | Ints, count: int) -> Ints:
    """Return (count,) number of different combinations of the columns' values for each code, 0 to count - 1."""
    # Sorted, a combination is another one where any column differs from the row before.
    order = np.lexsort((*columns, codes))
    changes = [np.diff(column[order], prepend=np.nan) != 0 for column in (codes, *columns)]
    return np.bincount(codes[order][np.any(changes, axis=0)], minlength=count)
