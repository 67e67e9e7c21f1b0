"""Finds families of tasks by the beginnings of their names, for runs that meet most tasks only once or twice."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from logs_ui.recorder.diagnosis.rollout_rows import Rows, distinct

_SEPARATORS = "/:|#-_."
_SEVERAL, _MOST = 3, 50  # tasks of a family, on average; families [ours]
_OFTEN = 0.5  # of the rollouts are of tasks that come in several groups: then tasks speak for themselves [ours]


def families(tasks: Sequence[str]) -> list[str] | None:
    """Return the family of each task: the beginning of its name, with its separator; None if names show none.

    Examples:
        >>> families(["web/shop/1", "web/shop/2", "web/shop/3", "web/map/1", "web/map/2", "web/map/3"])
        ['web/shop/', 'web/shop/', 'web/shop/', 'web/map/', 'web/map/', 'web/map/']
    """
    for separator in _SEPARATORS:
        parts = [task.split(separator) for task in tasks]
        if min(map(len, parts), default=1) < 2:
            continue
        for depth in range(max(map(len, parts)) - 1, 0, -1):
            names = [separator.join([*part[: min(depth, len(part) - 1)], ""]) for part in parts]
            if 2 <= len(set(names)) <= min(_MOST, len(tasks) / _SEVERAL):
                return names
    return None


def tasks_recur(rows: Rows) -> bool:
    """Return True if most rollouts with a task are of tasks that come in more than two groups."""
    has_task = rows.task >= 0
    groups = distinct(rows.task[has_task], rows.group[has_task], count=len(rows.tasks))
    return bool(has_task.any()) and float((groups > 2)[rows.task[has_task]].mean()) > _OFTEN


def by_family(rows: Rows) -> Rows | None:
    """Return the rollouts with families in place of tasks; None if tasks come often enough, or have no families."""
    return None if tasks_recur(rows) else with_families(rows)


def with_families(rows: Rows) -> Rows | None:
    """Return the rollouts with families in place of tasks, however often tasks come; None if they have none."""
    if not (rows.task >= 0).any():
        return None
    family_of_task = families(rows.tasks)
    if family_of_task is None:
        return None
    names = list(dict.fromkeys(family_of_task))
    place = {name: number for number, name in enumerate(names)}
    # The last one for rollouts without a task.
    codes = np.array([*(place[family] for family in family_of_task), -1], np.int64)
    return replace(rows, task=codes[rows.task], tasks=names)
