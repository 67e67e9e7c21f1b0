"""What a filter means in SQL: its conditions, its order, and where in that order a page begins."""

from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, literal, tuple_
from sqlmodel import col

from logs_ui.recorder.filters import RolloutFilter, Sort
from logs_ui.recorder.models import EvaluationRow, Status, StepStatistics

_ID = col(EvaluationRow.id)
_ALTERNATIVES: dict[str, Any] = {
    "evals": col(EvaluationRow.eval_name),
    "modes": col(EvaluationRow.mode),
    "statuses": col(EvaluationRow.status),
    "stop_reasons": col(EvaluationRow.stop_reason),
    "tasks": col(EvaluationRow.task),
}
_SORTS: dict[Sort, tuple[Any, bool]] = {  # key (None: the id alone), descending
    Sort.NEWEST: (None, True),
    Sort.OLDEST: (None, False),
    Sort.LOWEST_REWARD: (col(EvaluationRow.reward), False),
    Sort.HIGHEST_REWARD: (col(EvaluationRow.reward), True),
    Sort.LONGEST: (col(EvaluationRow.completion_tokens), True),
    Sort.SLOWEST: (col(EvaluationRow.seconds), True),
}

Place = tuple[float | int | None, int]
"""A row's place in an order: its sort key (None where it lacks it, or the order has none) and its id."""


@dataclass(frozen=True)
class Section:
    """Rows that follow one another in one index: `conditions` beside the filter's, in the order of `order`."""

    conditions: list[ColumnElement[bool]]
    order: list[ColumnElement[Any]]


def conditions(run_id: int, filter: RolloutFilter) -> list[ColumnElement[bool]]:  # noqa: A002
    """All must hold. They name the columns bare, so that an index can serve each."""
    found: list[ColumnElement[bool]] = [col(EvaluationRow.run_id) == run_id]
    for attribute, column in _ALTERNATIVES.items():
        values = getattr(filter, attribute)
        if values:
            found.append(column == values[0] if len(values) == 1 else column.in_(values))
    if filter.statuses and Status.OK not in filter.statuses:
        # Follows from what stands there already, but SQLite takes a partial index only where its words are repeated.
        found.append(col(EvaluationRow.status) != literal(Status.OK.value, literal_execute=True))
    if filter.group is not None:
        found.append(col(EvaluationRow.group) == filter.group)
    bounds = (
        (col(EvaluationRow.step), filter.step_min, filter.step_max),
        (col(EvaluationRow.reward), filter.reward_min, filter.reward_max),
        (col(EvaluationRow.created), filter.since, filter.until),
    )
    for column, low, high in bounds:
        found += [column >= low] if low is not None else []
        found += [column <= high] if high is not None else []
    return found


def in_statistics(filter: RolloutFilter) -> bool:  # noqa: A002
    """Whether StepStatistics can answer for it: they know a row's eval, mode and step alone."""
    known = RolloutFilter(
        evals=filter.evals, modes=filter.modes, step_min=filter.step_min, step_max=filter.step_max, sort=filter.sort
    )
    return filter == known


def statistics_conditions(run_id: int, filter: RolloutFilter) -> list[ColumnElement[bool]]:  # noqa: A002
    """The same on StepStatistics, for a filter that they can answer for."""
    found = [col(StepStatistics.run_id) == run_id]
    found += [col(StepStatistics.eval_name).in_(filter.evals)] if filter.evals else []
    found += [col(StepStatistics.mode).in_(filter.modes)] if filter.modes else []
    found += [col(StepStatistics.step) >= filter.step_min] if filter.step_min is not None else []
    found += [col(StepStatistics.step) <= filter.step_max] if filter.step_max is not None else []
    return found


def place_of(row: EvaluationRow, sort: Sort) -> Place:
    key = _SORTS[sort][0]
    assert row.id is not None  # noqa: S101 - it came from the database
    return None if key is None else getattr(row, key.key), row.id


def sections(sort: Sort, after: Place | None, *, backwards: bool = False) -> list[Section]:
    """The order from `after` on (from the beginning where None), in one or two parts to read one after the other.

    Rows that lack the sort key make a part of their own, in the order of their ids: the two databases sort NULL
    differently, and a comparison with a NULL in it would lose them.
    """
    key, descending = _SORTS[sort]
    descending ^= backwards
    by_id = [_by(_ID, descending=descending)]
    beyond_id = [] if after is None else [_beyond(_ID, after[1], descending=descending)]
    if key is None:
        return [Section(beyond_id, by_id)]
    with_key = Section([key.is_not(None)], [_by(key, descending=descending), *by_id])
    without = Section([key.is_(None)], by_id)
    if after is None:
        return [without, with_key] if backwards else [with_key, without]
    if after[0] is None:
        rest = Section([key.is_(None), *beyond_id], by_id)
        return [rest, with_key] if backwards else [rest]
    rest = Section([key.is_not(None), _beyond(tuple_(key, _ID), after, descending=descending)], with_key.order)
    return [rest] if backwards else [rest, without]


def _by(column: Any, *, descending: bool) -> ColumnElement[Any]:
    ordered: ColumnElement[Any] = column.desc() if descending else column.asc()
    return ordered


def _beyond(columns: Any, values: Any, *, descending: bool) -> ColumnElement[bool]:
    """One comparison of a pair, not `a < ? OR (a = ? AND id < ?)`: that form no index serves (32 ms against 2.8)."""
    compared: ColumnElement[bool] = columns < values if descending else columns > values
    return compared
