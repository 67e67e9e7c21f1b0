"""Counts rollouts by task, eval, mode, status, stop reason and reward, under a filter."""

import math
from collections import Counter
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import pairwise

from sqlalchemy import and_, func, select
from sqlalchemy.orm import Session
from sqlmodel import col

from logs_ui.recorder.queries.common import Database
from logs_ui.recorder.queries.filters.rollout_filter import RolloutFilter, Scored, Sort
from logs_ui.recorder.queries.sql.selection import Span, Use, conditions
from logs_ui.recorder.storage.dialects import whole
from logs_ui.recorder.storage.tables import EvaluationRow
from logs_ui.recorder.vocabulary import Mode, Status, StopReason

MOST_TASKS = 50
"""The maximum number of tasks that `facets` counts, besides those that the filter names."""

_LARGEST = 1e300  # the largest reward in a histogram: an infinite one would leave no room for the others

_FACETS = ("task", "eval", "mode", "status", "stop", "scored")

Kinds = list[tuple[tuple[str | None, ...], int]]
"""Numbers of rows by (task, eval, mode, status, stop reason, Scored), as pages show them."""


@dataclass(frozen=True)
class Facets:
    """Counts of the rows that each value would select together with the other parts of the filter: (value, count).

    The values and their order depend only on the run, not on the filter, so that nothing moves while a reader clicks:
    all values that occur, in the order of their enum, else by name. `tasks` are the run's 50 most frequent.
    """

    evals: list[tuple[str, int]]
    modes: list[tuple[str, int]]
    statuses: list[tuple[str, int]]
    stop_reasons: list[tuple[str, int]]
    scored: list[tuple[str, int]]
    tasks: list[tuple[str, int]]


@dataclass(frozen=True)
class Histogram:
    """Counts rewards in equal bins: `counts[i]` are in [low + i*width, low + (i+1)*width); the last bin is closed."""

    low: float
    width: float
    counts: tuple[int, ...]


def facets(
    db: Database, run_id: int, filter: RolloutFilter, *, whole: Kinds | None = None, span: Span | None = None  # noqa: A002
) -> Facets:  # fmt: skip
    """Count the run's values and those that the filter names, each facet without the filter's own choice in it.

    `whole` is `kinds` of the whole run, if the caller has it; `span` the ids to count in, by default all.
    """
    chosen = [filter.words(name) for name in _FACETS]
    ranges = filter.without(*_FACETS)
    is_whole = not ranges.terms
    combinations = whole if is_whole and whole is not None else kinds(db, run_id, ranges, span)
    if whole is None:
        whole = combinations if is_whole else kinds(db, run_id, RolloutFilter())
    totals: list[Counter[str]] = [Counter(dict.fromkeys(values, 0)) for values in chosen]
    for values, number in whole:
        for i, value in enumerate(values):
            totals[i].update({value: number} if value is not None else {})
    counts = [dict.fromkeys(of_facet, 0) for of_facet in totals]
    for values, number in combinations:
        # Each facet is counted without its own choice: rows that satisfy all choices count in each facet, and rows
        # that miss only one choice count in that one's facet.
        misses = [i for i, value in enumerate(values) if chosen[i] and value not in chosen[i]]
        for i in range(len(values)) if not misses else misses if len(misses) == 1 else ():
            if (value := values[i]) is not None:
                counts[i][value] = counts[i].get(value, 0) + number
    tasks, evals, modes, statuses, stop_reasons, scored = counts
    frequent = {task for task, _ in totals[0].most_common(MOST_TASKS)} | set(filter.words("task"))
    return Facets(
        evals=sorted(evals.items()),
        modes=_in_known_order(modes, Mode),
        statuses=_in_known_order(statuses, Status),
        stop_reasons=_in_known_order(stop_reasons, StopReason),
        scored=_in_known_order(scored, Scored),
        tasks=sorted((task, number) for task, number in tasks.items() if task in frequent),
    )


def reward_histogram(
    db: Database, run_id: int, filter: RolloutFilter, bins: int = 24, *, span: Span | None = None  # noqa: A002
) -> Histogram | None:  # fmt: skip
    """Return rewards under the filter without its reward range, within a span of ids if one is given. The bins cover
    all of the run's rewards. None if no row has a reward.
    """
    reward = col(EvaluationRow.reward)
    of_run = (col(EvaluationRow.run_id) == run_id, reward >= -_LARGEST, reward <= _LARGEST)
    # Two subqueries are two seeks in an index; one SELECT of both would scan it.
    ends = [select(end(reward)).where(*of_run).scalar_subquery() for end in (func.min, func.max)]
    others = replace(filter.without("reward"), sort=Sort.NEWEST)
    with Session(db) as session:
        low, high = session.execute(select(*ends)).one()
        if low is None or high is None:
            return None
        if low == high:  # any width will do: the only reward is shown in the middle
            low, high = low - 0.5, high + 0.5
        width = (high - low) / bins
        if not others.terms and span is None:
            # Bin by bin in the index of rewards: a GROUP BY would sort all rows.
            edges = [_edge(low, width, i) for i in range(bins)]
            in_bin = [and_(reward >= begin, reward < end) for begin, end in pairwise(edges)]
            in_bin.append(and_(reward >= edges[-1], reward <= _LARGEST))
            rows = select(func.count()).where(col(EvaluationRow.run_id) == run_id)
            numbers = session.execute(select(*(rows.where(condition).scalar_subquery() for condition in in_bin))).one()
            return Histogram(low, width, tuple(numbers))
        selected, finite = conditions(run_id, others, Use.NUMBER, span), func.abs(reward) <= _LARGEST
        places = select(whole((reward - low) / width).label("place")).where(*selected, finite).subquery()
        counts: Counter[int] = Counter()
        for place, number in session.execute(select(places.c.place, func.count()).group_by(places.c.place)):
            counts[min(place, bins - 1)] += number  # the last bin holds its upper end, too
    return Histogram(low, width, tuple(counts[i] for i in range(bins))) if counts else None


def _edge(low: float, width: float, i: int) -> float:
    """Return the lowest reward of the i-th bin by the formula `(reward - low) / width`, in spite of rounding."""
    if not i:
        return low
    estimate = low + i * width
    # Rounding puts the edge a few floats beside the estimate: it is searched by halving what is between.
    least = 4 * math.ulp(max(abs(low), abs(estimate)))
    below, edge = estimate - least, estimate + least
    while below < (middle := below + (edge - below) / 2) < edge:
        if (middle - low) / width < i:
            below = middle
        else:
            edge = middle
    return edge


def kinds(db: Database, run_id: int, filter: RolloutFilter, span: Span | None = None) -> Kinds:  # noqa: A002
    """Return the numbers of rows by combination of values."""
    row = EvaluationRow
    # One pass, in the order of the index that covers these columns.
    columns = [col(column) for column in (row.task, row.eval_name, row.mode, row.status, row.stop_reason)]
    grouped = select(*columns, func.count(), func.count(col(row.reward))).group_by(*columns)
    # Not grouped in SQL: SQLite would then choose the order of row_by_kind, and not the index of rewards, in which the
    # few rows without a reward are next to each other.
    awaiting = conditions(run_id, filter.with_parts(scored=Scored.AWAITING), Use.KINDS, span)
    aborted = conditions(run_id, filter.with_parts(statuses=Status.ABORTED), Use.KINDS, span)
    dead = select(*columns, col(row.reward).is_not(None)).where(*aborted, col(row.status) == Status.RUNNING)
    with Session(db) as session:
        awaited = Counter(tuple(values) for values in session.execute(select(*columns).where(*awaiting)))
        counts = session.execute(grouped.where(*conditions(run_id, filter, Use.KINDS, span))).all()
        lost = session.execute(dead).all()
    numbers: Counter[tuple[str | None, ...]] = Counter()
    for *values, number, scored in counts:
        waiting = awaited[tuple(values)]
        ended = values[3] in {Status.OK, Status.ERROR}
        parts = {Scored.YES: scored, Scored.AWAITING: waiting, Scored.NO if ended else None: number - scored - waiting}
        numbers.update({(*values, part): count for part, count in parts.items()})
    # Above, rows whose process died were counted as running; here they are counted as aborted instead.
    for *values, is_scored in lost:
        part = Scored.YES if is_scored else None
        numbers[*values, part] -= 1
        numbers[*values[:3], Status.ABORTED.value, StopReason.ABORTED.value, part] += 1
    return [(values, number) for values, number in numbers.items() if number > 0]


def _in_known_order(counts: dict[str, int], words: type[StrEnum]) -> list[tuple[str, int]]:
    order = {word.value: place for place, word in enumerate(words)}
    return sorted(counts.items(), key=lambda pair: (order.get(pair[0], len(order)), pair[0]))
