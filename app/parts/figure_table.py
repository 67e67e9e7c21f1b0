"""The table of differences: figures of two or more sides, how they differ, since when, and a small curve of each line.

Why and Compare show it; `figure_table.html` has its macro.
"""

from functools import lru_cache
from typing import NamedTuple

from logs_ui.app.parts import figures
from logs_ui.recorder.diagnosis.card import Trend

_POINTS = 60  # of a trend, at most
_WIDE, _HIGH, _EDGE = 180, 34, 3


class TrendLine(NamedTuple):
    """Holds a trend, in a box of 180 by 34."""

    points: str
    end: tuple[float, float]
    since: float | None  # position from which it is bad; None if unknown
    between: tuple[float, float] | None  # position and width of the interval in which it became so; None without one
    limit: float | None  # position of the threshold; None without a fixed one
    # `first` and `last`: (step, value).
    first: tuple[int, float]
    last: tuple[int, float]
    others: tuple[str, ...] = ()  # points of the trends that it is compared with; "" for one without two points

    @property
    def ends(self) -> str:
        """The first and the last value in words."""
        return ", ".join(f"{figures.significant(value)} at step {step:,}" for step, value in (self.first, self.last))

    @property
    def steps(self) -> str:
        return figures.window((self.first[0], self.last[0]))

    @property
    def bad_width(self) -> float:
        return round(max(_WIDE - (self.since or 0.0), 2), 1)


class FigureCell(NamedTuple):
    """Shows a value, or a difference between two."""

    text: str  # empty if there is none
    error: str = ""  # after ±
    note: str = ""  # what it counts, or means
    tone: str = ""  # a class
    address: str | None = None  # of its rollouts


class FigureLine(NamedTuple):
    """Shows a figure."""

    name: str
    is_clear: bool  # True if a difference is more than chance
    values: list[FigureCell]
    differences: list[FigureCell]
    since: str  # step from which the sides differ more than before; empty if no step stands out
    trend: TrendLine | None
    address: str | None = None  # of the rollouts that the line is about; None if each value has its own


class FigureTable(NamedTuple):
    """Holds lines that are shown, and others that open at a click."""

    description: str  # what is compared
    # `heads` and `differences`: of the columns of values, and of their differences.
    heads: list[str]
    differences: list[str]
    lines: list[FigureLine]
    more: list[FigureLine]
    styles: tuple[str, ...] = ("other", "")  # classes of the curves, in the order of `heads`
    foot: tuple[str, ...] = ()  # rollouts and groups of each column of values

    @property
    def has_steps(self) -> bool:
        """True if a line has a step since which its sides differ."""
        return any(line.since for line in (*self.lines, *self.more))

    @property
    def clear(self) -> int:
        """Number of `more` that differ beyond chance."""
        return sum(line.is_clear for line in self.more)


def thinned(trend: Trend, most: int = _POINTS) -> Trend:
    """Return every n-th point, and the last, if there are too many."""
    every = -(-len(trend) // most)
    return (*trend[:-1:every], trend[-1]) if trend else ()


@lru_cache(maxsize=512)  # pages that are polled show the same curves again
def line(
    trend: Trend,
    since: int | None,
    limit: float | None = None,
    between: tuple[int, int] | None = None,
    others: tuple[Trend, ...] = (),
) -> TrendLine | None:
    """Build a trend, with `others` on the same axes; None for fewer than two points."""
    if len(trend) < 2:
        return None
    thinned_trend, beside = thinned(trend), [thinned(other) for other in others]
    values = [value for curve in (thinned_trend, *beside) for _, value in curve] + (
        [limit] if limit is not None else []
    )
    low, high = min(values), max(values)
    steps = [step for curve in (trend, *beside) for step, _ in curve]
    first, wide = min(steps), (max(steps) - min(steps)) or 1

    def x(step: int) -> float:
        return round(_EDGE + (_WIDE - 2 * _EDGE) * (step - first) / wide, 1)

    def y(value: float) -> float:
        return round(_HIGH - _EDGE - (_HIGH - 2 * _EDGE) * (value - low) / ((high - low) or 1.0), 1)

    def points(of: Trend) -> str:
        return " ".join(f"{x(step)},{y(value)}" for step, value in of) if len(of) > 1 else ""

    return TrendLine(
        points=points(thinned_trend),
        end=(x(trend[-1][0]), y(trend[-1][1])),
        since=None if since is None else x(max(since, first)),
        between=None if between is None else (x(between[0]), round(x(between[1]) - x(between[0]), 1)),
        limit=None if limit is None else y(limit),
        first=trend[0],
        last=trend[-1],
        others=tuple(points(other) for other in beside),
    )
