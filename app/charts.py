"""Where the shapes of the small charts lie; `macros.html` draws them."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from logs_ui.recorder.queries import Histogram


@dataclass(frozen=True)
class Sparkline:
    """Points of a line within width x height, and the last of them."""

    points: str
    end: tuple[float, float]


@dataclass(frozen=True)
class Bar:
    """A horizontal bar that starts at zero; `zero`, `start` and `length` in parts of 100."""

    zero: float
    start: float
    length: float
    negative: bool


@dataclass(frozen=True)
class Column:
    """One bin of a histogram, in a box of 100 by 100."""

    x: float
    width: float
    height: float
    negative: bool
    chosen: bool
    label: str


@dataclass(frozen=True)
class Scale:
    """Values laid out from left to right.

    Attributes:
        low, high: the values at 0 and at 100.
    """

    low: float
    high: float

    @classmethod
    def over(cls, values: Sequence[float]) -> "Scale":
        """Over all of these and zero."""
        return cls(min(0.0, *values), max(0.0, *values)) if values else cls(0.0, 1.0)

    def at(self, value: float) -> float:
        """From 0 to 100."""
        width = self.high - self.low
        return round(100 * (min(max(value, self.low), self.high) - self.low) / width, 2) if width > 0 else 0.0

    def bar(self, value: float) -> Bar:
        """From zero to `value`; thin rather than invisible where it is next to nothing."""
        zero, end = self.at(0), self.at(value)
        length = max(abs(end - zero), 1.5 if value else 0)
        return Bar(zero, zero - length if value < 0 else zero, round(length, 2), value < 0)


def sparkline(curve: Sequence[tuple[int, float]], width: float = 140, height: float = 22) -> Sparkline | None:
    """A line over the steps; None for fewer than two points."""
    if len(curve) < 2:
        return None
    steps, values = [step for step, _ in curve], [value for _, value in curve]
    low, span = min(values), (max(values) - min(values)) or 1.0
    first, steps_span = steps[0], (steps[-1] - steps[0]) or 1
    points = [
        (
            round(2 + (width - 5) * (step - first) / steps_span, 1),
            round(height - 3 - (height - 6) * (value - low) / span, 1),
        )
        for step, value in curve
    ]
    return Sparkline(" ".join(f"{x},{y}" for x, y in points), points[-1])


def columns(histogram: Histogram, reward_min: float | None, reward_max: float | None) -> list[Column]:
    """A histogram's bins; a few beside very many still stand out of the ground line."""
    most = max(histogram.counts) or 1
    share = 100 / len(histogram.counts)
    found = []
    for index, count in enumerate(histogram.counts):
        low = histogram.low + index * histogram.width
        high = low + histogram.width
        inside = (reward_min is None or high > reward_min) and (reward_max is None or low <= reward_max)
        height = max(100 * count / most, 4) if count else 0
        label = f"{low:.3g} to {high:.3g}: {count:,}".replace("-", "\u2212")
        found.append(
            Column(round(index * share, 2), round(share * 0.86, 2), round(height, 1), high <= 1e-9, inside, label)
        )
    return found


def spread(values: Sequence[float | None], scale: Scale) -> list[tuple[float, float] | None]:
    """Dots of a strip, 100 wide and about 0 high: those that would hide each other are moved up and down in turn."""
    taken: list[tuple[float, int]] = []
    found: list[tuple[float, float] | None] = []
    for value in values:
        if value is None:
            found.append(None)
            continue
        x, level = scale.at(value), 0
        while any(lane == level and abs(x - other) < 3 for other, lane in taken) and level < 4:
            level += 1
        taken.append((x, level))
        found.append((x, (-1) ** level * math.ceil(level / 2) * 3.6))
    return found
