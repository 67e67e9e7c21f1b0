"""Finds the step since which a figure is too high or too low: one jump or ramp of its trend, with an interval.

The split of the steps in two that leaves the least squares (Bai 1997) is the change. It counts if the likelihood-ratio
test of Worsley (1979) rejects equal means: Bonferroni's bound over all splits of a t test. Its interval consists of the
splits that fit nearly as well (Hansen 2000). Noise about a constant has no change therefore.

A figure that creeps up has no such step: where a line that is level, rises, and may be level again fits better than two
levels, the first step at which the line has risen is told, and its interval consists of those of the lines that fit
nearly as well.
"""

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from logs_ui.recorder.diagnosis.card import Trend
from logs_ui.recorder.diagnosis.rollout_rows import SAME, Floats

CHANCE = 0.01  # of seeing such a change without any. Of 3,600 simulated changes, 99% were found within two steps
_FEW = 4  # points
_NEAR = 7.35  # likelihood ratio: 95% by Hansen's table
_BETTER = 2.0  # of BIC, for a ramp; both have three parameters
_PLACES = 200  # at which a ramp may begin, at most
_SLOW = 4  # steps that a ramp takes at least if it ends before the last one: else it is a jump [ours]
_NEARLY_ALL = 0.9  # of the steps before a rise have one value [ours]
_ENDS = 10  # first and last steps, a third at most, whose means a rise goes from and to


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
    # `left` has for each split the sum of squares about the two means: that about the one mean, less the part
    # between the two.
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
    near = place[count * (left - left[best]) <= _NEAR * inflation(rest) * left[best]].tolist()
    return Change(at, near[0], near[-1], before * size, after * size)


def inflation(rest: Floats) -> float:
    """Return by how much residuals that are alike in neighbours say less about a step (Bai 1997, with an AR(1) long-run
    variance).
    """
    alike = float(np.clip(rest[1:] @ rest[:-1] / max(float(rest @ rest), 1e-300), 0, 0.9))
    return (1 + alike) / (1 - alike)


@dataclass(frozen=True)
class Ramp:
    """Describes a trend that is level, then rises, and may be level again."""

    begin: int  # the first step at which it has risen
    first: int  # the lowest that `begin` has with 95% confidence
    last: int  # the highest
    top: float  # its last value


def fit_ramp(trend: Trend, jump_point: Change) -> Ramp | None:
    """Return the ramp of a trend that has a change to higher values; None if two levels fit as well."""
    steps, values = (np.array(column, float) for column in zip(*trend, strict=True))
    count, size = len(steps), float(np.abs(values).max())
    values = values / size  # squares of huge values would overflow
    levels = np.where(np.arange(count) < jump_point.place, jump_point.before, jump_point.after) / size
    jump = float(((values - levels) ** 2).sum())
    lines = _lines(steps, values)
    if not jump > 0 or not len(lines.begin):
        return None
    # A rise that ends before the last step has a parameter more.
    more = np.where(lines.end < steps[-1], math.log(count), 0.0)
    better = count * np.log(jump / np.maximum(lines.squares, 1e-12 * jump)) - more
    best = int(np.argmax(better))
    if better[best] <= _BETTER:
        return None
    rest = values - lines.level[best] - lines.slope[best] * np.clip(steps - lines.begin[best], 0.0, lines.rise[best])
    near = count * (lines.squares - lines.squares[best]) <= _NEAR * inflation(rest) * lines.squares[best]
    near &= more <= more[best]
    top = float(values[-1] - rest[-1])
    level_until = (lines.begin[best], lines.begin[near].min(), lines.begin[near].max())
    places = np.searchsorted(steps, level_until) + 1
    # A line fitted to a bent rise begins before it does: a step with the value of nearly all before has not risen yet,
    # where these differ by less than the line rises from one step to the next.
    a_step = max(float(lines.slope[best] * np.diff(steps).min()), SAME)
    is_low = values <= np.quantile(values[: places[0]], _NEARLY_ALL, method="higher") + a_step / 4
    is_low &= np.ptp(values[: places[0]][is_low[: places[0]]]) <= a_step
    begin, first, last = (int(steps[place + np.argmin(is_low[place:])]) for place in places.tolist())
    return Ramp(begin, first, last, top * size)


def find_crossing(trend: Trend, level: float) -> int:
    """Return the first step from which on a trend that rises is above a level, but for noise: it splits the values best
    into those below it and those above.
    """
    sums = np.cumsum([value - level for _, value in trend])
    return trend[min(int(np.argmin(sums)) + 1, len(trend) - 1)][0]


def _find_half(trend: Trend) -> int:
    """Return the step from which on at least half of the rise is there."""
    values = np.array([value for _, value in trend])
    count = min(_ENDS, len(values) // 3)
    return find_crossing(trend, float(values[:count].mean() / 2 + values[-count:].mean() / 2))


class _Lines(NamedTuple):
    """Holds all lines that rise between two steps and are level before and after, each fitted by least squares."""

    begin: Floats  # (L,) the step at which each begins to rise
    end: Floats  # (L,) the step at which it stops
    slope: Floats
    level: Floats  # before it rises
    squares: Floats  # of what it leaves

    @property
    def rise(self) -> Floats:
        """Return (L,) steps during which each rises."""
        return self.end - self.begin


def _lines(steps: Floats, values: Floats) -> _Lines:
    """Fit the lines from sums over the steps before, in and after each rise."""
    count, mean = len(steps), float(values.mean())
    places = np.arange(0, count, -(-count // _PLACES))
    ends = np.unique([*places, count - 1])
    first, last = (column.reshape(-1) for column in np.meshgrid(places, ends, indexing="ij"))
    is_rise = first <= last - np.where(last < count - 1, _SLOW, 2)
    first, last = first[is_rise], last[is_rise]
    x, y = steps - steps[0], values - mean
    ones, xs, squared, ys, products = (
        np.concatenate([[0.0], np.cumsum(column)]) for column in (np.ones(count), x, x * x, y, x * y)
    )
    begin, width = x[first], x[last] - x[first]

    def between(sums: Floats) -> Floats:
        """Return the sum of the rise."""
        rise: Floats = sums[last + 1] - sums[first + 1]
        return rise

    after = count - ones[last + 1]
    # Each line is 0 before it rises, grows by 1 with each step, and then stays at `width`. Its sum, the sum of its
    # squares and that of its products with the values give the slope of the least squares.
    line = between(xs) - begin * between(ones) + width * after
    line_squared = between(squared) - 2 * begin * between(xs) + begin**2 * between(ones) + width**2 * after
    both = between(products) - begin * between(ys) + width * (ys[-1] - ys[last + 1])
    slope = both / (line_squared - line**2 / count)
    squares = np.maximum(float(y @ y) - slope * both, 0.0)  # rounding makes it negative where all is on the line
    is_up = slope > 0
    level = mean - slope * line / count
    return _Lines(*(column[is_up] for column in (steps[first], steps[last], slope, level, squares)))


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
    # Each round looks at the largest change of what is left. A change that was undone later, one to the better, and
    # one that stays below the limit are left behind with all that was before them.
    while jump := change(rest):
        after = rest[jump.place :]
        later = change(after)
        has_recovered = later is not None and later.after <= limit + SAME and later.after < later.before
        if later is not None and has_recovered:
            rest = after[later.place :]
        elif jump.after <= jump.before:
            rest = after
        elif (ramp := fit_ramp(rest, jump)) is not None and ramp.top > limit - SAME:
            half = max(_find_half(rest), ramp.begin)
            return {"since_step": ramp.begin, "since_range": (ramp.first, ramp.last), "half_step": half}
        elif jump.after > limit - SAME:
            return {"since_step": rest[jump.place][0], "since_range": (rest[jump.first][0], rest[jump.last][0])}
        else:
            rest = after
    # A rare fault may have begun late, without a change that is sure: then no step is told.
    parts = (rest, trend[:_FEW]) if len(trend) >= _FEW and rest else ()
    means = [float(np.nanmean([value for _, value in part])) for part in parts]
    is_bad = bool(means) and means[0] >= limit - SAME and means[1] >= limit - abs(limit) / 2
    is_bad = is_bad and (limit != 0 or min(means) > SAME)
    return {"since_step": trend[0][0] if is_bad else None, "since_range": None}
