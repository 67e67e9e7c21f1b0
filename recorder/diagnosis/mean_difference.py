"""Tells whether differences of means may be chance, with groups as the independent units.

Rollouts of a group share a prompt and end alike: a test that counts rollouts calls two runs that differ by their seed
alone different in 6 to 27% of their figures.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple, TypeGuard

import numpy as np

from logs_ui.recorder.diagnosis.rollout_rows import Bools, Floats, Ints, distinct

_LEVEL = 0.05  # of the differences that are called one are expected to be chance
LEAST_UNITS = 5  # on either side: fewer show no spread [ours]


class Mean(NamedTuple):
    """Holds a mean over groups of rollouts."""

    value: float
    error: float  # its standard error by groups
    groups: int
    # (Σn)² / Σn² of the groups' sizes n: as many groups of equal size tell as much (Kish 1965).
    effective: float


def chance(a: Mean, b: Mean) -> float | None:
    """Return the probability of a difference as large between equal means: Welch's t test. None under 5 groups a side.

    Each side has at least the spread of a share with half an event more: groups that are all equal show none.
    """
    if min(a.groups, b.groups) < LEAST_UNITS or not math.isfinite(a.error + b.error):
        return None
    difference = abs(a.value - b.value)
    if difference <= 1e-9 * max(abs(a.value), abs(b.value)):  # equal but for rounding
        return 1.0
    least = [difference * math.sqrt(0.5 * (side.groups + 0.5) / side.groups) / (side.groups + 1) for side in (a, b)]
    errors = [max(side.error, low) for side, low in zip((a, b), least, strict=True)]
    error = math.hypot(*errors)
    if not 0 < error < math.inf:
        return None  # beyond what floats hold
    parts = [(part / error) ** 4 / max(side.effective - 1, 1) for part, side in zip(errors, (a, b), strict=True)]
    return student_tail(difference / error, 1 / sum(parts))


class Difference(NamedTuple):
    """Compares the mean of chosen rollouts with that of the others."""

    chosen: float
    others: float
    # `chosen` and `others` are means over the strata, in which both have the same weights.
    groups: tuple[int, int]  # number of independent units with chosen rollouts, and with others
    t: float  # the difference over its standard error; 0 if it is not judged
    chance: float | None  # the probability of a difference as large by chance; None under 5 units a side

    @property
    def value(self) -> float:
        return self.chosen - self.others

    @property
    def error(self) -> float:
        """Return its standard error; 0 if it is not judged, or there is no difference."""
        return abs(self.value / self.t) if self.t else 0.0


def compare(values: Floats, chosen: Bools, units: Ints, strata: Ints | None = None) -> Difference | None:
    """Compare (N,) values, without those that are NaN; None if no stratum holds both chosen rollouts and others.

    `units` are the (N,) codes of what is independent: groups, or tasks. `strata` are codes within which rollouts are
    compared, each weighted by what it tells; None for one. The variance is a sandwich over the units: each one's score
    is divided by 1 less its leverage (MacKinnon and White 1985; Bell and McCaffrey 2002, for equal units), and the
    degrees of freedom are the number of equal units that would tell as much, less one.

        >>> from numpy import arange, array
        >>> x, unit = array([1.0, 0, 1, 1, 0, 1, 0, 0, 1, 0, 0, 0]), arange(12)
        >>> difference = compare(x, unit < 6, unit)
        >>> round(difference.chosen, 2), round(difference.others, 2), difference.groups, round(difference.chance, 2)
        (0.67, 0.17, (6, 6), 0.09)
    """
    is_known = np.isfinite(values)
    x, is_chosen = values[is_known], chosen[is_known]
    unit = np.unique(units[is_known], return_inverse=True)[1]
    stratum = np.zeros(len(x), np.int64) if strata is None else np.unique(strata[is_known], return_inverse=True)[1]
    sizes = np.bincount(stratum)
    # The weight is what is left of `is_chosen` within a stratum, so that `weight @ x / total` is the coefficient of
    # a regression: the difference within strata.
    weight = is_chosen - (np.bincount(stratum, is_chosen) / np.maximum(sizes, 1))[stratum]
    total = float(np.sum(weight**2))
    if total < 1e-9:  # of rounding
        return None
    scale = float(np.abs(x).max()) or 1.0
    told = weight * (x / scale)  # numpy starts threads for a product by `@`, which take longer than the sum
    a, b = (float(sign * np.sum(told[of])) / total for sign, of in ((1, is_chosen), (-1, ~is_chosen)))
    tells = np.abs(weight) > 1e-9  # not so where a stratum has one side only
    sides = len(np.unique(unit[is_chosen & tells])), len(np.unique(unit[~is_chosen & tells]))
    difference = Difference(a * scale + 0.0, b * scale + 0.0, sides, 0.0, None)  # of -0 it makes 0
    if min(sides) < LEAST_UNITS:
        return difference
    if abs(a - b) <= 1e-9:
        return difference._replace(chance=1.0)
    centred = x / scale - (np.bincount(stratum, x / scale) / np.maximum(sizes, 1))[stratum]
    scores = np.bincount(unit, weight * (centred - weight * (a - b)))
    leverage = np.bincount(unit, weight**2) / total
    # Of a stratum with several units, each one also shifts the mean.
    spans = distinct(stratum, unit, count=len(sizes)) > 1
    shift = np.bincount(unit, np.where(spans[stratum], 1 / sizes[stratum], 0.0))
    variance = float(np.sum(scores**2 / (1 - np.clip(leverage + shift, 0, 0.9)))) / total**2
    # A side that shows no spread has at least that of a share with half an event more.
    least = (a - b) ** 2 * sum(0.5 * (n + 0.5) / (n + 1) ** 2 / n for n in sides)
    t = (a - b) / math.sqrt(max(variance, least))
    free = max(1.0, (1 - float(leverage @ np.clip(shift, 0, 1))) / float(leverage @ leverage) - 1)
    return difference._replace(t=t, chance=student_tail(t, free))


def is_beyond_chance(difference: Difference | None, most: float, sign: int = 0) -> TypeGuard[Difference]:
    """Return True for a judged difference whose `chance` is `most` or less; with a `sign`, for one above (1) or below
    (-1) 0 alone.

        >>> is_beyond_chance(Difference(0.2, 0.5, (40, 40), -3.1, 0.002), 0.01, sign=-1)
        True
    """
    return (
        difference is not None
        and difference.chance is not None
        and difference.chance <= most
        and (sign == 0 or sign * difference.value > 0)
    )


def student_tail(t: float, free: float) -> float:
    """Return the probability of |t| or more under Student's distribution with `free` degrees of freedom, which may be
    no whole number. By Wallace's (1959) normal approximation: within 5% for |t| up to 3.

        >>> round(student_tail(2.306, 8), 3)
        0.05
    """
    normal = (8 * free + 1) / (8 * free + 3) * math.sqrt(free * math.log1p(t * t / free))
    return math.erfc(normal / math.sqrt(2))


def chance_limit(chances: Sequence[float]) -> float:
    """Return the `chance` up to which differences are beyond chance; -1 if none is.

    Many are looked at, so it falls with their number: of the differences up to it, 5% are expected to be chance, at
    most (Benjamini and Hochberg 1995).

        >>> chance_limit([0.01, 0.5, 0.03])
        0.03
    """
    ranked = list(enumerate(sorted(chances), 1))
    return max((p for rank, p in ranked if p <= _LEVEL * rank / len(ranked)), default=-1.0)
