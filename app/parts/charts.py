"""Computes the small charts; `macros.html` draws them."""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import groupby
from typing import NamedTuple

from logs_ui.recorder.queries import Histogram
from logs_ui.recorder.queries.common import bounded
from logs_ui.recorder.queries.filters.terms import Range

_DOT = 4.0
_TALLEST = 40.0


class Sparkline(NamedTuple):
    """Holds points of a line within width x height, and the last of them."""

    points: str
    end: tuple[float, float]


class Bar(NamedTuple):
    """A horizontal bar that starts at zero; `zero`, `start` and `length` are in units of a width of 100."""

    zero: float
    start: float
    length: float
    negative: bool


class HistogramBin(NamedTuple):
    """Describes one bin of a histogram, in a box of 100 by 100."""

    x: float
    width: float
    height: float
    negative: bool
    chosen: bool
    label: str
    # `low` and `high`: its ends, for a filter; None at the outer ends: outer bins hold everything beyond.
    low: float | None
    high: float | None


class RewardChart(NamedTuple):
    """Holds a histogram of rewards; `zero` is the place of reward 0 in percent, None if it is outside."""

    columns: list[HistogramBin]
    low: float
    high: float
    zero: float | None


@dataclass(frozen=True)
class Scale:
    """Maps values to positions from left to right: `low` to 0 and `high` to 100."""

    low: float
    high: float

    @classmethod
    def over(cls, values: Sequence[float]) -> "Scale":
        """Return the scale of all these values and zero."""
        return cls(min(0.0, *values), max(0.0, *values)) if values else cls(0.0, 1.0)

    def at(self, value: float) -> float:
        """Return the position of a value, from 0 to 100."""
        low, high = bounded(self.low), bounded(self.high)
        return round(100 * (min(max(bounded(value), low), high) - low) / (high - low), 2) if high > low else 0.0

    def bar(self, value: float) -> Bar:
        """Return the bar from zero to `value`; a tiny value is drawn thin rather than invisible."""
        zero, end = self.at(0), self.at(value)
        length = max(abs(end - zero), 1.5 if value else 0)
        return Bar(zero, zero - length if value < 0 else zero, round(length, 2), value < 0)


def sparkline(curve: Sequence[tuple[int, float]], width: float = 140, height: float = 22) -> Sparkline | None:
    """Build a line over the steps; None for fewer than two points."""
    if len(curve) < 2:
        return None
    steps, values = [step for step, _ in curve], [bounded(value) for _, value in curve]
    low, span = min(values), (max(values) - min(values)) or 1.0
    first, steps_span = steps[0], (steps[-1] - steps[0]) or 1
    points = [
        (
            round(2 + (width - 5) * (step - first) / steps_span, 1),
            round(height - 3 - (height - 6) * (value - low) / span, 1),
        )
        for step, value in zip(steps, values, strict=True)
    ]
    return Sparkline(" ".join(f"{x},{y}" for x, y in points), points[-1])


class Curve(NamedTuple):
    """Holds a metric by step, in a box of 100 by 40."""

    name: str
    lines: list[str]  # points of its unbroken parts: a missing or non-finite value breaks the line
    zero: float | None  # position of 0; None if it is outside
    # `low` and `high`: of its values; None without any, like `first` and `last`, the values at its ends.
    low: float | None
    high: float | None
    first: float | None
    last: float | None
    from_step: int
    to_step: int
    # `steps` and `values`: all of them, for the pointer: separated by spaces, a missing value as `-`.
    steps: str
    values: str


@lru_cache(256)
def curve(name: str, points: tuple[tuple[int, float | None], ...]) -> Curve:
    """Build a curve of at least one point. Cached, because pages of a run draw the same curves again and again."""
    numbers = [value for _, value in points if value is not None]
    low, high = bounded(min(numbers, default=0.0)), bounded(max(numbers, default=0.0))
    span = (high - low) or 1.0
    start, wide = points[0][0], (points[-1][0] - points[0][0]) or 1

    def y(value: float) -> float:
        return 38 - 36 * (bounded(value) - low) / span if high > low else 20

    parts = [list(part) for is_known, part in groupby(points, lambda pair: pair[1] is not None) if is_known]
    return Curve(
        name=name,
        lines=[
            " ".join([f"{100 * (step - start) / wide:.4g},{y(value or 0.0):.4g}" for step, value in part])
            for part in parts
        ],
        zero=y(0.0) if low < 0 < high else None,
        low=min(numbers, default=None),
        high=max(numbers, default=None),
        first=points[0][1],
        last=points[-1][1],
        from_step=points[0][0],
        to_step=points[-1][0],
        steps=" ".join([str(step) for step, _ in points]),
        values=" ".join(["-" if value is None else f"{value:.6g}" for _, value in points]),
    )


def reward_chart(histogram: Histogram | None, chosen: Range) -> RewardChart | None:
    """Build a histogram of rewards, in which small counts beside large ones stay visible; None without any."""
    if histogram is None:
        return None
    most = max(histogram.counts) or 1
    share = 100 / len(histogram.counts)
    digits = 1 - math.floor(math.log10(histogram.width))  # the fewest with which an end stays in its bin
    bins = []
    for index, count in enumerate(histogram.counts):
        low = histogram.low + index * histogram.width
        high = low + histogram.width
        is_last = index == len(histogram.counts) - 1  # which holds its upper end, too
        inside = not Range(low, high, below=not is_last).within(chosen).is_empty
        height = max(100 * count / most, 4) if count else 0
        label = f"{low:.3g} to {high:.3g}: {count:,}".replace("-", "\u2212")
        ends = None if index == 0 else round(low, digits), None if is_last else round(high, digits)
        bins.append(
            HistogramBin(
                round(index * share, 2), round(share * 0.86, 2), round(height, 1), high <= 1e-9, inside, label, *ends
            )
        )
    begin, end = histogram.low, histogram.low + histogram.width * len(histogram.counts)
    return RewardChart(bins, begin, end, Scale(begin, end).at(0) if begin < 0 < end else None)


def stacked(values: Sequence[float | None], scale: Scale) -> list[tuple[float, float] | None]:
    """Place dots above a line 100 wide; dots of one bin are stacked, so that a stack's height is their number.

    A dot is 4 wide and 4 high, less if a stack would be higher than 40. None for a value that is None.
    """
    bins = [None if value is None else round(scale.at(value) / _DOT) for value in values]
    tallest = max(Counter(place for place in bins if place is not None).values(), default=0)
    rise = min(_DOT, _TALLEST / tallest) if tallest else _DOT
    standing: Counter[int] = Counter()
    places: list[tuple[float, float] | None] = []
    for place in bins:
        if place is None:
            places.append(None)
            continue
        places.append((place * _DOT, round(-_DOT / 2 - rise * standing[place], 2)))
        standing[place] += 1
    return places
