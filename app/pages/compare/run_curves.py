"""Computes the curves of several runs on common axes; `_compare.html` draws them."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import groupby
from typing import NamedTuple

from logs_ui.app.parts.figures import count, significant
from logs_ui.recorder.queries import CurvePoint

POINTS = 300
_TABLE_STEPS = 40
_SMOOTHED_OVER = 20  # a mean's window is this part of the longest curve, in steps


class Axis(StrEnum):
    """Names the horizontal axes of the chart."""

    STEP = "step"
    ROLLOUTS = "rollouts"
    TIME = "time"


@dataclass(frozen=True)
class RunCurve:
    """Holds one run's curve, in a box of 100 by 100."""

    index: int
    smooth_parts: list[str]  # points of its unbroken parts, each a moving average
    exact_parts: list[str]  # the same as logged; empty if smoothing changes nothing
    # `steps`, `places` and `values`: all of them, for the pointer: separated by spaces, a missing value as `-`.
    steps: str
    places: str
    values: str
    last: float | None  # last value; None if there is none


class CurveChart(NamedTuple):
    """Holds curves on common axes."""

    series: list[RunCurve]
    x_ticks: list[tuple[float, str]]  # place and label
    y_ticks: list[str]  # labels, evenly spaced, from below
    zero: float | None  # position of 0 from above; None if it is outside
    label: str
    table: list[tuple[int, list[float | None]]]  # step and the value of each run, None if it has none there


def make_chart(names: Sequence[str], curves: Sequence[Sequence[CurvePoint]], axis: Axis) -> CurveChart | None:
    """Build the chart of the runs, in their order; None if there are fewer than two values."""
    placed_curves = [_place_points(curve, axis) for curve in curves]
    values = [value for curve in placed_curves for _, _, value in curve if value is not None]
    if len(values) < 2:
        return None
    unit, name = _unit(max(place for curve in placed_curves for place, _, _ in curve), axis)
    right = max(place for curve in placed_curves for place, _, _ in curve) / unit or 1.0
    size = _round_size(right / 6)
    x_places = [i * size for i in range(math.floor(right / size + 1e-9) + 1)]
    bottom, top, y_places = _ticks(min(values), max(values))

    def x(place: float) -> float:
        return round(100 * place / unit / right, 2)

    def y(value: float) -> float:
        return round(100 * (top - value) / ((top - bottom) or 1.0), 2)

    labels = [*map(significant, x_places[:-1]), f"{significant(x_places[-1])} {name}"]
    window = max(_steps_of(curve) for curve in placed_curves) / _SMOOTHED_OVER
    return CurveChart(
        series=[_series(index, curve, window, x, y) for index, curve in enumerate(placed_curves)],
        x_ticks=[(x(tick * unit), label) for tick, label in zip(x_places, labels, strict=True)],
        y_ticks=[significant(tick) for tick in y_places],
        zero=y(0.0) if bottom < 0 < top else None,
        label="; ".join(_describe_curve(run_name, curve) for run_name, curve in zip(names, placed_curves, strict=True)),
        table=_table(curves),
    )


_PlacedCurve = list[tuple[float, int, float | None]]  # place, step, value


def _place_points(curve: Sequence[CurvePoint], axis: Axis) -> _PlacedCurve:
    begin = next((point.when for point in curve if point.when is not None), None)
    places: dict[Axis, Callable[[CurvePoint], float | None]] = {
        Axis.STEP: lambda point: float(point.step),
        Axis.ROLLOUTS: lambda point: float(point.rollouts),
        Axis.TIME: lambda point: None if point.when is None or begin is None else max(0.0, point.when - begin) / 1e6,
    }
    return [(place, point.step, point.value) for point in curve if (place := places[axis](point)) is not None]


def _steps_of(curve: _PlacedCurve) -> int:
    return curve[-1][1] - curve[0][1] + 1 if curve else 0


def _series(
    index: int, curve: _PlacedCurve, window: float, x: Callable[[float], float], y: Callable[[float], float]
) -> RunCurve:
    """Build one curve. All curves have the same `window`, in steps, so that a short one is as smooth as the others."""
    present_values = [value for _, _, value in curve if value is not None]
    parts = [list(part) for is_known, part in groupby(curve, lambda point: point[2] is not None) if is_known]
    reach = int(window / 2 * len(curve) / max(1, _steps_of(curve)))
    return RunCurve(
        index=index,
        smooth_parts=[_points(_smooth_values(part, reach), x, y) for part in parts],
        exact_parts=[_points(part, x, y) for part in parts] if reach else [],
        steps=" ".join(str(step) for _, step, _ in curve),
        places=" ".join(str(x(place)) for place, _, _ in curve),
        values=" ".join("-" if value is None else f"{value:.4g}" for _, _, value in curve),
        last=present_values[-1] if present_values else None,
    )


def _points(part: _PlacedCurve, x: Callable[[float], float], y: Callable[[float], float]) -> str:
    return " ".join(f"{x(place)},{y(value or 0.0)}" for place, _, value in part)


def _smooth_values(part: _PlacedCurve, most: int) -> _PlacedCurve:
    """Replace each value by the mean of up to `most` neighbours on either side, as many left as right."""
    values = [value or 0.0 for _, _, value in part]
    means = []
    for i in range(len(values)):
        reach = min(most, i, len(values) - 1 - i)
        around = values[i - reach : i + reach + 1]
        means.append(sum(around) / len(around))
    return [(place, step, mean) for (place, step, _), mean in zip(part, means, strict=True)]


def _unit(largest: float, axis: Axis) -> tuple[float, str]:
    if axis is Axis.STEP:
        return 1.0, "steps"
    if axis is Axis.ROLLOUTS:
        return 1.0, "rollouts"
    return next(((size, name) for size, name in ((3600.0, "h"), (60.0, "min")) if largest >= 2 * size), (1.0, "s"))


def _ticks(low: float, high: float) -> tuple[float, float, list[float]]:
    size = _round_size((high - low) / 4)
    first, last = math.floor(low / size + 1e-9), math.ceil(high / size - 1e-9)
    last = max(last, first + 1)
    return first * size, last * size, [round(i * size, 12) for i in range(first, last + 1)]


def _round_size(least: float) -> float:
    """Return the smallest of 1, 2 or 5 times a power of ten that is not below `least`."""
    if not least > 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(least))
    return next(power * factor for factor in (1, 2, 5, 10) if power * factor >= least * (1 - 1e-9))


def _describe_curve(name: str, curve: _PlacedCurve) -> str:
    points = [(step, value) for _, step, value in curve if value is not None]
    if not points:
        return f"{name} has no value"
    (first, begin), (last, end) = points[0], points[-1]
    return f"{name} goes from {significant(begin)} at step {count(first)} to {significant(end)} at step {count(last)}"


def _table(curves: Sequence[Sequence[CurvePoint]]) -> list[tuple[int, list[float | None]]]:
    steps = sorted({point.step for curve in curves for point in curve})
    by_step = [{point.step: point.value for point in curve} for curve in curves]
    interval = math.ceil(len(steps) / _TABLE_STEPS)
    return [(step, [values.get(step) for values in by_step]) for step in steps[::interval]]
