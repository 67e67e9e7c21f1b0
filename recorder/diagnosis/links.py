"""Builds the filters that cards link to."""

from collections.abc import Iterable, Mapping

import numpy as np

from logs_ui.recorder.diagnosis.rollout_rows import Bools, Ints
from logs_ui.recorder.queries.filters.terms import print_key, print_name

_MOST = 100  # ranges: more would be too long for an address


def ids(rollouts: Ints) -> str:
    """Return the filter for exactly these rollouts; "" for none."""
    ordered = np.unique(rollouts)
    if not len(ordered):
        return ""
    ends = np.flatnonzero(np.diff(ordered) != 1)
    first, last = ordered[np.concatenate([[0], ends + 1])], ordered[np.concatenate([ends, [-1]])]
    ranges = [f"{a}" if a == b else f"{a}..{b}" for a, b in zip(first, last, strict=True)]
    return f"id:{','.join(ranges)}"


def exactly(rollouts: Ints) -> str:
    """Return the filter that lists these rollouts; "" for none, and for more than an address holds."""
    listed = ids(rollouts)
    return listed if listed.count(",") < _MOST else ""


def selecting(rollouts: Ints, chosen: Bools, filters: Mapping[str, Bools]) -> str:
    """Return the first of the filters that selects exactly the chosen rollouts, else the one that lists them."""
    alone = next((where for where, selected in filters.items() if (selected == chosen).all()), None)
    return alone or ids(rollouts[chosen])


def tasks(names: Iterable[str], field: str = "task") -> str:
    """Return the filter for the rollouts of these tasks, or of these values of another field or column."""
    return f"{print_column(field)}:{','.join(map(print_name, names))}"


def print_column(name: str) -> str:
    """Return the filter's name of a column that `Run.labels` has: a dataset's may have spaces."""
    kind, dot, key = name.partition(".")
    return f"{kind}.{print_key(key)}" if dot else name


def rewards(name: str) -> str:
    """Return the filter's name of a reward function, to be followed by a comparison."""
    return f"rewards.{print_key(name)}"
