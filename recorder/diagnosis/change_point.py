"""Finds the step since which a figure is too high or too low: one jump or ramp of its trend, with an interval.

The split of the steps in two that leaves the least squares (Bai 1997) is the change. It counts if the likelihood-ratio
test of Worsley (1979) rejects equal means: Bonferroni's bound over all splits of a t test. Its interval consists of the
splits that fit nearly as well (Hansen 2000). Noise about a constant has no change therefore.

A figure that creeps up has no such step: where a broken line fits better than two levels, the step at which that line
passes the limit is told, and its interval consists of those of the lines that fit nearly as well.
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from logs_ui.recorder.diagnosis.card import Trend
from logs_ui.recorder.diagnosis.rollout_rows import SAME, Floats

CHANCE = 0.01  # of seeing such a change without any. Of 3,600 simulated changes, 99% were found within two steps
_FEW = 4  # points
_NEAR = 7.35  # likelihood ratio: 95% by Hansen's table
_BETTER = 2.0  # of BIC, for a ramp; both have three parameters
_PLACES = 200  # at which a ramp may begin, at most


@dataclass(frozen=True)
class Change:
    """Describes a change in the mean of a trend."""

    place: int  # index of the first point after it
    first: int  # the lowest index that `place` has with 95% confidence
    last: int  # the highest index that it has
    before: float  # the mean before it
    after: float  # the mean from it on


def change(trend: Trend) -> Change | None:
    """Return the largest change of a trend of finite values; None if it may be chance, or for fewer than 4 points."""
    values = np.array([value for _, value in trend])
    count, size = len(values), float(np.abs(values).max(initial=0.0))
    if count < _FEW or not math.isfinite(size) or np.ptp(values) <= 1e-9 * size:
        return None
    values = values / size  # squares of huge rewards would overflow
    centred, place = values - values.mean(), np.arange(1, count)
    squares = float(centred @ centred)
    left = np.maximum(squares - np.cumsum(centred)[:-1] ** 2 * count / (place * (count - place)), 1e-12 * squares)
    left[[0, -1]] = squares  # one point alone is no level
    best = int(np.argmin(left))
    # Wallace's (1959) normal approximation of Student's t, whose square is (count - 2) * (squares / left - 1).
    free = count - 2
    normal = (8 * free + 1) / (8 * free + 3) * math.sqrt(free * math.log(squares / left[best]))
    if (count - 1) * math.erfc(normal / math.sqrt(2)) > CHANCE:
        return None
    at = best + 1
    before, after = float(values[:at].mean()), float(values[at:].mean())
    rest = values - np.where(np.arange(count) < at, before, after)
    inflation = _inflation(rest)
    near = place[count * (left - left[best]) <= _NEAR * inflation * left[best]].tolist()
    return Change(at, near[0], near[-1], before * size, after * size)


def _inflation(rest: Floats) -> float:
    """Return by how much residuals that are alike in neighbours say less about a step (Bai 1997, with an AR(1) long-run
    variance).
    """
    alike = float(np.clip(rest[1:] @ rest[:-1] / max(float(rest @ rest), 1e-300), 0, 0.9))
    return (1 + alike) / (1 - alike)


@dataclass(frozen=True)
class Ramp:
    """Describes a trend that is level and then rises."""

    passes: int  # the step at which its line passes the limit, or begins to rise if it was above the limit before
    first: int  # the lowest step that `passes` has with 95% confidence
    last: int  # the highest
    half: int  # the step at which it passes half of its last value


def fit_ramp(trend: Trend, limit: float, found: Change) -> Ramp | None:
    """Return the ramp of a trend that has a change to higher values; None if two levels fit as well."""
    steps, values = (np.array(column, float) for column in zip(*trend, strict=True))
    count = len(steps)
    levels = np.where(np.arange(count) < found.place, found.before, found.after)
    jump = float(((values - levels) ** 2).sum())
    lines = []
    for begin in steps[: -2 : -(-count // _PLACES)]:
        line = np.maximum(steps - begin, 0.0)
        slope = float((line - line.mean()) @ values / ((line - line.mean()) @ line))
        level = float(values.mean() - slope * line.mean())
        rest = values - level - slope * line
        if slope > 0:
            lines.append((float(rest @ rest), float(begin), slope, level, rest))
    squares, begin, slope, level, rest = min(lines, key=lambda it: it[0], default=(math.inf, 0.0, 0.0, 0.0, values))
    if not jump > 0 or count * math.log(jump / max(squares, 1e-12 * jump)) <= _BETTER:
        return None
    near = _NEAR * _inflation(rest) * squares
    passes = [
        start + max(limit - low, 0.0) / rises
        for other, start, rises, low, _ in lines
        if count * (other - squares) <= near
    ]
    half = begin + max((values[-1] - rest[-1]) / 2 - level, 0.0) / slope
    told = (begin + max(limit - level, 0.0) / slope, min(passes), max(passes), half)
    return Ramp(*(int(steps[min(int(np.searchsorted(steps, it)), count - 1)]) for it in told))


def above(trend: Trend, limit: float) -> dict[str, Any]:
    """Return the fields of a card for a figure that is too high: its trend, since when, and the limit."""
    return {"trend": trend, "limit": limit, **_begin(trend, limit)}


def below(trend: Trend, limit: float) -> dict[str, Any]:
    """Return the fields of a card for a figure that is too low: its trend, and since when."""
    return {"trend": trend, **_begin(tuple((step, -value) for step, value in trend), -limit), "half_step": None}


def _begin(trend: Trend, limit: float) -> dict[str, Any]:
    """Return the step since which the values are above the limit, with its interval, as fields of a card.

    That is the first step, without an interval, if they are above it on average and never changed to worse. None if
    they are not above it at the end, or are too few to tell.
    """
    rest = tuple(point for point in trend if math.isfinite(point[1]))
    while found := change(rest):
        after = rest[found.place :]
        later = change(after)
        has_recovered = later is not None and later.after <= limit + SAME and later.after < later.before
        if later is not None and has_recovered:
            rest = after[later.place :]
        elif found.after > max(found.before, limit - SAME):
            if (ramp := fit_ramp(rest, limit, found)) is not None:
                return {"since_step": ramp.passes, "since_range": (ramp.first, ramp.last), "half_step": ramp.half}
            return {"since_step": rest[found.place][0], "since_range": (rest[found.first][0], rest[found.last][0])}
        else:
            rest = after
    # A rare fault may have begun late, without a change that is sure: then no step is told.
    parts = (rest, trend[:_FEW]) if len(trend) >= _FEW and rest else ()
    means = [float(np.nanmean([value for _, value in part])) for part in parts]
    is_bad = bool(means) and means[0] >= limit - SAME and means[1] >= limit - abs(limit) / 2
    is_bad = is_bad and (limit != 0 or min(means) > SAME)
    return {"since_step": trend[0][0] if is_bad else None, "since_range": None}
