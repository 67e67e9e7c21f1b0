"""Lists how figures differ: between the first steps of a run and its last, between rollouts of high and low reward, and
between a category and all others.
"""

from typing import NamedTuple

import numpy as np

from logs_ui.recorder.diagnosis.card import Trend
from logs_ui.recorder.diagnosis.change_point import change
from logs_ui.recorder.diagnosis.largest_differences import Compared, is_share_name
from logs_ui.recorder.diagnosis.mean_difference import chance_limit
from logs_ui.recorder.diagnosis.rollout_rows import SAME, Rows

_SHARE = " (share)"
_KEPT = ("reward", f"solved{_SHARE}")  # of equal figures


class FigureDifference(NamedTuple):
    """Describes the difference between the means of two sides: chosen rollouts and others.

    Attributes:
        name: of a reward function, of another figure of rollouts, or of a category, whose outcome it is.
        others: the mean of the others; over time, of the first steps. If tasks recur, means over time are over the
            tasks that both sides have.
        chosen: that of the chosen ones; over time, of the last steps.
        error: the standard error of `chosen - others`, with groups as the independent units.
        is_clear: True if that is more than chance, corrected for all figures that are compared.
        is_share: True for a share of the rollouts, 0 to 1.
        since: over time, the step at which the mean changed most; else that from which the sides part. None if no step
            stands out.
        trend: the mean of the chosen ones by step; over time, of all.
        trend_of_others: that of the others; empty over time.
        place: of a category, the filter's field that selects it, as `family`; else "".
    """

    name: str
    others: float
    chosen: float
    error: float
    is_clear: bool
    is_share: bool
    since: int | None
    trend: Trend
    trend_of_others: Trend = ()
    place: str = ""


class Contrast(NamedTuple):
    """Holds a table of differences.

    Attributes:
        id: `time`, `groups` or `places`.
        description: which sides are compared; empty for places, each of which is compared with all others.
        lines: its figures, clear ones first.
    """

    id: str
    description: str
    lines: tuple[FigureDifference, ...]


def list_differences(rows: Rows, *sources: Compared | None) -> tuple[str, tuple[FigureDifference, ...]]:
    """Return what is compared, and the difference of each figure that varies, clear ones first, then the surest; `rows`
    are those of the columns. Of equal figures, as a reward function and what is solved, one is listed.
    """
    compared = [source for source in sources if source is not None]
    every = [(figure, difference, source) for source in compared for figure, difference in source.differences.items()]
    untested = [1.0] * sum(source.untested for source in compared)
    limit = chance_limit([difference.chance or 0.0 for _, difference, _ in every] + untested)
    lines: list[FigureDifference] = []
    for figure, difference, source in sorted(every, key=lambda entry: (-abs(entry[1].t), entry[0] not in _KEPT)):
        is_clear = (difference.chance or 0.0) <= limit and abs(difference.value) > SAME
        trend, others = _trends(rows, source, figure)
        if len({value for _, value in (*trend, *others)}) < 2:
            continue
        if any((trend, others) == (other.trend, other.trend_of_others) for other in lines):
            continue
        is_share = source.is_share if source.place else is_share_name(figure) and figure not in rows.values
        bare = figure.removesuffix(_SHARE) if is_share and not source.place else figure
        lines.append(
            FigureDifference(
                figure if bare in rows.values and not source.place else bare, difference.others, difference.chosen,
                difference.error, is_clear, is_share,
                parted_at(trend, others) if is_clear else None, trend, others, source.place,
            )
        )  # fmt: skip
    return compared[0].description if compared else "", tuple(sorted(lines, key=lambda line: not line.is_clear))


def parted_at(trend: Trend, others: Trend = ()) -> int | None:
    """Return the step from which two trends differ more than before, or, without another, at which one changed most;
    None if no step stands out.
    """
    of_others = dict(others)
    gaps = tuple((step, value - of_others[step]) for step, value in trend if step in of_others) if others else trend
    point = change(gaps)
    return None if point is None or (others and abs(point.after) <= abs(point.before)) else gaps[point.place][0]


def _trends(rows: Rows, source: Compared, figure: str) -> tuple[Trend, Trend]:
    column = source.columns[figure]
    if figure not in source.sides:
        return rows.by_step(column), ()
    chosen, others = (rows.by_step(np.where(side, column, np.nan)) for side in source.sides[figure])
    return chosen, others
