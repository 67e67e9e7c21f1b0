"""Finds the turn at which two rollouts diverge: the first one with another action."""

from collections.abc import Sequence
from itertools import zip_longest
from typing import NamedTuple

from logs_ui.app.parts.turns import Turn


class Divergence(NamedTuple):
    """Compares two rollouts action by action."""

    shared: list[Turn]  # turns of the first before the divergence; the second has the same actions
    number: int | None  # the turn at which they diverge; None if they never do, and all turns are in `shared`
    # `a` and `b`: that turn; None for a rollout without it.
    a: Turn | None
    b: Turn | None
    # `after_a` and `after_b`: the turns that followed.
    after_a: list[Turn]
    after_b: list[Turn]


def split_at_divergence(a: Sequence[Turn], b: Sequence[Turn]) -> Divergence:
    """Split two rollouts into the turns before, at and after the divergence."""
    for place, (turn_a, turn_b) in enumerate(zip_longest(a, b)):
        if turn_a is None or turn_b is None or turn_a.action != turn_b.action:
            number = max(place + 1, *(turn.number for turn in (turn_a, turn_b) if turn is not None))
            return Divergence(list(a[:place]), number, turn_a, turn_b, list(a[place + 1 :]), list(b[place + 1 :]))
    return Divergence(list(a), None, None, None, [], [])


def find_divergence(a: Sequence[Turn], b: Sequence[Turn]) -> int | None:
    """Return the number of the turn at which they diverge; None if they never do."""
    return split_at_divergence(a, b).number
