"""The SQL of single terms that need more than a comparison with an indexed column: see `selection.py`."""

import math
from collections.abc import Sequence
from contextlib import suppress
from functools import lru_cache
from typing import Any

from sqlalchemy import JSON, ColumnElement, Integer, and_, case, cast, func, literal, not_, or_, select, true
from sqlmodel import col

from logs_ui.recorder.errors import FilterError
from logs_ui.recorder.queries import notebook
from logs_ui.recorder.queries.filters.fields import FIELDS, SEARCHED, Field, Kind
from logs_ui.recorder.queries.filters.language import parse_terms
from logs_ui.recorder.queries.filters.terms import Range, Term, Value, is_id
from logs_ui.recorder.queries.filters.values import read_number
from logs_ui.recorder.queries.search import full_text
from logs_ui.recorder.storage.dialects import array, is_among, is_within, json_each, number_in, text_in
from logs_ui.recorder.storage.notes_tables import PersonalTag
from logs_ui.recorder.storage.tables import EvaluationRow, RowTag, Run, StepStatistics
from logs_ui.recorder.vocabulary import Mark, StopReason

_MOST_LISTED = 100_000  # whole numbers of one parameter
ALIKE = 1e-6
"""Rewards that differ by no more than this count as equal: they give no advantage."""
Marks = Sequence[Mark]
"""Says what is solved. The first column that has a value decides."""
LOST_ERROR = "The process ended in the middle of the rollout"
"""The error shown for a rollout whose process died; a process that can still write records the same text."""

_FAILURES = (
    StopReason.ENVIRONMENT_ERROR,
    StopReason.TIMEOUT,
    StopReason.AT_CAPACITY,
    StopReason.EXCEPTION,
    StopReason.ABORTED,
)


def any_of(term: Term, conditions: list[ColumnElement[bool]]) -> ColumnElement[bool]:
    """Join the conditions of a term's values. NULL counts as false, so that the negated term selects such rows."""
    condition = or_(*conditions)
    return condition.is_not(true()) if term.negated else condition


def in_range(column: Any, limits: Range) -> ColumnElement[bool]:
    if limits.low is not None and limits.low == limits.high:
        exactly: ColumnElement[bool] = column == limits.low
        return exactly
    low = [column > limits.low if limits.above else column >= limits.low] if limits.low is not None else []
    high = [column < limits.high if limits.below else column <= limits.high] if limits.high is not None else []
    return and_(true(), *low, *high)


def is_value(column: Any, value: Value) -> ColumnElement[bool]:
    """Return a condition on a column that stores the field's value itself."""
    if isinstance(value, Range):
        return in_range(column, value)
    condition: ColumnElement[bool] = column.is_(None) if value is None else column == value
    return condition


def condition_elsewhere(
    term: Term, value: Value, run_id: int, within: full_text.Within | None = None
) -> ColumnElement[bool]:  # fmt: skip
    """Return a condition on a field that is stored outside the row's columns; `within` are the first and last id."""
    if term.field == "reward_in":
        row, key = EvaluationRow, str(term.key)
        evals = select(col(StepStatistics.eval_name)).where(col(StepStatistics.run_id) == run_id)
        by_function = and_(number_in(col(row.rewards), key).is_not(None), literal(key).not_in(evals))
        of_key = or_(col(row.eval_name) == key, by_function)
        return and_(of_key, is_value(col(row.reward), value.loose() if isinstance(value, Range) else value))
    if term.key is not None:
        field = FIELDS[term.field]
        return _has_value(getattr(EvaluationRow, field.among), term.key, value, is_exact=field.kind == Kind.ANY)
    if term.field == "is":
        return notebook.starred(run_id)
    if value is None:  # no tag at all, or no note
        return not_(_has_tags(run_id) if term.field == "tag" else notebook.noted(run_id))
    if term.field in SEARCHED:
        return full_text.contains(str(value), run_id, within, term.field)
    return (notebook.tagged if term.field == "tag" else notebook.noted)(run_id, str(value))


def _has_value(column: Any, key: str, value: Value, *, is_exact: bool) -> ColumnElement[bool]:
    """Return a condition on an entry of a JSON object; a text that is a number matches equal numbers, too."""
    if isinstance(value, Range):
        return in_range(number_in(column, key), value.loose(is_exact=is_exact))
    text: ColumnElement[bool] = is_value(text_in(column, key), value)
    number = _number_of(value or "")
    return text if number is None else or_(text, in_range(number_in(column, key), number.loose(is_exact=is_exact)))


def _number_of(text: str) -> Range | None:
    """Return the number that a text is, as a range."""
    with suppress(FilterError):
        number = read_number("", text)
        # From 2**53 on, different whole numbers are the same float.
        if math.isfinite(number) and not (text.lstrip("-").isdigit() and 2**53 <= abs(number) < 2**63):
            return Range(number, number)
    return None


@lru_cache(maxsize=32)  # all queries of a page ask for the same
def in_list(term: Term, run_id: int) -> ColumnElement[bool]:
    """Return a condition on the texts and ranges of a term, of any number: each of its parameters is a whole list."""
    field = FIELDS[term.field]
    texts = [value for value in term.values if isinstance(value, str)]
    if field.name == "tag":
        return notebook.tagged(run_id, *texts)
    number, text = (value_of(field, term.key, is_text=is_text) for is_text in (False, True))
    if field.name not in {"id", "group"}:  # an index would yield rows that have to be collected and sorted
        number, text = func.coalesce(number, number), func.coalesce(text, text)
    conditions: list[Any] = [is_among(text, array(texts))] if texts else []
    if numbers := [int(word) for word in texts if field.name == "group" and is_id(word)]:
        conditions.append(
            text.in_(select(col(EvaluationRow.group)).where(is_among(col(EvaluationRow.id), array(numbers))))
        )
    ranges = [value for value in term.values if isinstance(value, Range)]
    ranges += [limits for limits in map(_number_of, texts) if limits is not None and field.kind == Kind.ANY]
    if field.kind != Kind.WHOLE:
        ranges = [limits.loose(is_exact=field.kind == Kind.ANY) for limits in ranges]
    conditions += [in_range(number, limits) for limits in ranges if limits.low is None or limits.high is None]
    closed = [(limits.low, limits.high) for limits in ranges if limits.low is not None and limits.high is not None]
    if field.kind == Kind.WHOLE and sum(high - low + 1 for low, high in closed) <= _MOST_LISTED:
        conditions.append(
            is_among(number, array([value for low, high in closed for value in range(int(low), int(high) + 1)]))
        )
    elif closed:
        conditions.append(is_within(number, literal(closed, JSON()), run_id))
    return or_(*conditions)


def has_error(value: Value, lost: ColumnElement[bool]) -> ColumnElement[bool]:
    """Return a condition on the error line as pages show it; `lost` selects the rows whose process died."""
    error, stop = col(EvaluationRow.error), col(EvaluationRow.stop_reason)
    if not isinstance(value, str):
        return and_(error.is_(None), not_(lost))
    conditions = [error.icontains(value, autoescape=True)]
    conditions += [stop == value] if value in _FAILURES else []
    conditions += [lost] if value == StopReason.ABORTED else []
    conditions += [and_(lost, error.is_(None))] if value.lower() in LOST_ERROR.lower() else []
    return or_(*conditions)


def is_solved(marks: Marks) -> ColumnElement[int | None]:
    """Return 1 for a solved rollout, 0 for another; NULL without a reward, or without a value that decides."""
    won: list[Any] = []
    for mark in marks:
        (term,) = parse_terms(f"{mark.column}:1")
        value = number_in(col(EvaluationRow.rewards), term.key) if term.key else column_of(term.field)
        in_eval = true() if mark.eval is None else col(EvaluationRow.eval_name) == mark.eval
        won.append((and_(in_eval, value.is_not(None)), case((value >= mark.at - ALIKE, 1), else_=0)))
    return cast(case((col(EvaluationRow.reward).is_(None), None), *won), Integer)


def value_of(field: Field, key: str | None, *, is_text: bool = False) -> Any:
    """Return the expression of a field's value; of what is in a JSON object the number, or with `is_text` the text."""
    if not field.among:
        return column_of(field.name)
    return (text_in if is_text else number_in)(getattr(EvaluationRow, field.among), key)


def column_of(name: str) -> Any:
    """Return the column of a field."""
    return col(getattr(EvaluationRow, FIELDS[name].column or name))


def has_key(column: Any, key: str) -> ColumnElement[bool]:
    """Return a condition: the column's JSON object has this key."""
    entries = json_each(column)
    return select(entries.c.key).where(entries.c.key == key).exists()


def _has_tags(run_id: int) -> ColumnElement[bool]:
    row = EvaluationRow
    of_run = select(col(Run.uid)).where(col(Run.id) == run_id).scalar_subquery()
    recorded = select(col(RowTag.row_id)).where(col(RowTag.run_id) == run_id)
    personal = select(col(PersonalTag.row)).where(col(PersonalTag.run) == of_run)
    return or_(col(row.id).in_(recorded), col(row.uid).in_(personal))
