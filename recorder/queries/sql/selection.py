"""Builds the SQL of a filter: its conditions, its order, and the place in that order at which a page begins.

Most of what looks needless here (`column + 0`, `coalesce(column, "")`, `id > 0`) keeps SQLite from an index that would
be slow: a column in an expression is not looked up in an index. ANALYZE does not replace these hints. Without
sqlite_stat4 it knows averages only, and not that a filter's steps are few, or that most rows are ok. Of 100,000
rollouts, `repeats>0.5 step:..300` by reward takes 9 ms; after ANALYZE 400 ms, and without the hints 250 ms;
`status:aborted` 2 ms, and 270 ms.
"""

from dataclasses import dataclass
from enum import Enum, auto
from typing import Any

from sqlalchemy import ColumnElement, Connection, and_, exists, func, literal, not_, or_, select
from sqlalchemy.orm import Session
from sqlmodel import col

from logs_ui.recorder.queries.filters.fields import FIELDS, SEARCHED, Kind
from logs_ui.recorder.queries.filters.rollout_filter import ByColumn, Order, RolloutFilter, Scored, Sort
from logs_ui.recorder.queries.filters.terms import MANY, Range, Term, Value, is_id
from logs_ui.recorder.queries.search import full_text
from logs_ui.recorder.queries.sql import computed_fields, matching
from logs_ui.recorder.queries.sql.liveness import is_heard_of, lost_until
from logs_ui.recorder.queries.sql.matching import any_of, column_of, condition_elsewhere, has_error, in_range, value_of
from logs_ui.recorder.storage.tables import EvaluationRow, Run, StepStatistics
from logs_ui.recorder.vocabulary import RunState, Status, StopReason

_ID = col(EvaluationRow.id)
_KINDS = frozenset({"eval", "mode", "status", "stop"})  # columns of row_by_kind
_SORTS: dict[Order, tuple[Any, bool]] = {  # key (None: the id alone), True if descending
    Sort.NEWEST: (None, True),
    Sort.OLDEST: (None, False),
    Sort.LOWEST_REWARD: (col(EvaluationRow.reward), False),
    Sort.HIGHEST_REWARD: (col(EvaluationRow.reward), True),
    Sort.LONGEST: (col(EvaluationRow.completion_tokens), True),
    Sort.SLOWEST: (col(EvaluationRow.seconds), True),
}

_NARROW_STEPS = 500  # the rows of fewer steps can be collected and sorted
_BY_REWARD = (Sort.LOWEST_REWARD, Sort.HIGHEST_REWARD)
_INDEXED = frozenset({*_KINDS, "scored", "task", "step", "reward", "group", "id", "since", "until"})
_LEADING = frozenset({"id", "group", "task", "tag", "is", "note"})  # fields that usually select few rows
_LISTED = frozenset({"tag", "is", "note"})
_BY_ID = (Sort.NEWEST, Sort.OLDEST)
_SERVED = (*_BY_ID, *_BY_REWARD)  # orders that an index has

Span = tuple[int, int]
"""The first and the last of a range of ids."""

Place = tuple[float | int | str | None, int]
"""A row's place in an order: its sort key (None if it lacks one, or the order has none) and its id."""


class Use(Enum):
    """Names purposes of a SELECT; the best index depends on it."""

    ROWS = auto()
    """Reads them, in the filter's order."""
    NUMBER = auto()
    """Counts them, or adds them up."""
    KINDS = auto()
    """Counts them by task, eval, mode, status and stop reason."""


@dataclass(frozen=True)
class Section:
    """Describes rows that are next to one another in an index: `conditions` besides the filter's, and their `order`.
    `ties` is set if rows with equal keys are ordered by id in the direction opposite to the key's, which no index has;
    `order` is then an index's, and correct only between different keys.
    """

    conditions: list[ColumnElement[bool]]
    order: list[ColumnElement[Any]]
    ties: "Ties | None" = None


@dataclass(frozen=True)
class Ties:
    """Rows with equal keys are read separately, in an order of their own; `name` is the key's attribute of a row."""

    name: str
    key: Any
    order: list[ColumnElement[Any]]


def conditions(
    run_id: int, filter: RolloutFilter, use: Use, span: Span | None = None  # noqa: A002
) -> list[ColumnElement[bool]]:  # fmt: skip
    """Return conditions of a filter on rows as pages show them (see `lost_until`), within a span of ids if given.

    SQLite assumes that any index selects a handful of rows. So columns with few values, which half of the rows share,
    are put into an expression: else it would collect and sort these rows, or leave an index that covers the query.
    """
    # A group, or a list of ids, selects fewer rows than any index that begins with the run.
    within = span or _ids_of_steps(run_id, filter)
    few = {"group", *(term.field for term in filter.terms if term.field == "id" and len(term.values) > MANY)}
    names_few = any(term.field in few and not term.negated for term in filter.terms)
    is_small = span is not None or is_listed(filter) or names_few
    run_column: Any = col(EvaluationRow.run_id) + 0 if is_small else col(EvaluationRow.run_id)
    selected: list[ColumnElement[bool]] = [run_column == run_id]
    if span is not None:
        selected.append(_ID.between(*span))
        use = Use.ROWS
    if _is_rare(filter):
        # Redundant, but SQLite uses a partial index only if the query repeats the index's condition word for word.
        selected.append(col(EvaluationRow.status) != literal(Status.OK.value, literal_execute=True))
    if use == Use.KINDS and is_narrow(filter):
        # Always true; keeps SQLite from row_by_kind, which is slower here.
        selected.append(col(EvaluationRow.group) != "")
    selected += [_term(term, run_id, filter, use, within) for term in filter.terms]
    if use == Use.NUMBER and _reads_the_table(filter):
        selected.append(_ID > 0)  # always true; makes SQLite read the rows in the order in which they are stored
    return selected


def leads_to_few(filter: RolloutFilter) -> bool:  # noqa: A002
    """Return True if an index usually selects few of a large run's rows."""
    leads = any((term.field in _LEADING and not term.negated) or _is_rare_text(term) for term in filter.terms)
    return leads or is_narrow(filter) or _is_rare(filter)


def is_listed(filter: RolloutFilter) -> bool:  # noqa: A002
    """Return True if the rows come from a list of ids (of tags, stars, notes or rare words), which has no order."""
    return any((term.field in _LISTED and not term.negated) or _is_rare_text(term) for term in filter.terms)


def is_broad(filter: RolloutFilter) -> bool:  # noqa: A002
    """Return True if there is a filter, but no index that selects few rows."""
    return bool(filter.terms) and not leads_to_few(filter)


def has_no_order(filter: RolloutFilter) -> bool:  # noqa: A002
    """Return True if no index has the rows of a broad filter in its order: the first of them may be anywhere then."""
    kinds = {*_KINDS, "reward", "scored", "step"}
    return filter.sort not in _SERVED or any(term.field not in kinds for term in filter.terms)


def in_statistics(filter: RolloutFilter) -> bool:  # noqa: A002
    """Return True if StepStatistics suffice for the filter: they have only eval, mode and step."""
    return filter.terms == filter.only("eval", "mode", "step").terms


def statistics_conditions(run_id: int, filter: RolloutFilter) -> list[ColumnElement[bool]]:  # noqa: A002
    """Return conditions on StepStatistics, for a filter for which they suffice."""
    row = StepStatistics
    selected = [col(row.run_id) == run_id, in_range(col(row.step), filter.range("step"))]
    columns = {"eval": col(row.eval_name), "mode": col(row.mode)}
    return selected + [column.in_(words) for name, column in columns.items() if (words := filter.words(name))]


def place_of(db: Session | Connection, row: EvaluationRow, sort: Order) -> Place:
    assert row.id is not None  # noqa: S101 - it came from the database
    if isinstance(sort, ByColumn):  # by the database's own expression: it writes a number as another text than Python
        return db.scalar(select(_key_of(sort)).where(_ID.in_([row.id]))), row.id
    key = _SORTS[sort][0]
    return None if key is None else getattr(row, key.key), row.id


def _key_of(sort: ByColumn) -> Any:
    return computed_fields.cause() if sort.name == "cause" else value_of(sort.field, sort.key, is_text=sort.is_text)


def sections(filter: RolloutFilter, after: Place | None, *, backwards: bool = False) -> list[Section]:  # noqa: A002
    """Split the order from `after` on (None: from the beginning) into sections, which are read one after the other.

    Rows without the sort key are a section of their own, ordered by id: the two databases sort NULL differently, and
    comparisons with NULL would lose these rows.
    """
    by_column = filter.sort if isinstance(filter.sort, ByColumn) else None
    key, descending = (_key_of(by_column), by_column.descending) if by_column else _SORTS[filter.sort]
    descending ^= backwards
    newest_first = (filter.sort != Sort.OLDEST) ^ backwards  # the order of ids among equal keys
    name = "" if key is None or by_column else key.key
    if key is not None and _is_rare(filter) and not by_column:
        key = key + 0
    # So few rows are running or aborted that sorting them is faster than searching for them in the order of all rows.
    statuses = filter.words("status")
    row_id = _ID + 0 if statuses and {Status.RUNNING, Status.ABORTED}.issuperset(statuses) else _ID
    by_id = [_by(row_id, descending=newest_first)]
    beyond_id = [] if after is None else [_beyond(row_id, after[1], descending=newest_first)]
    if key is None:
        return [Section(beyond_id, by_id)]
    # No index has the order of these keys, so that rows are sorted: best read in the order in which they are stored.
    as_stored = [_ID > 0] if filter.sort not in _SERVED else []
    by_key = (
        [_by(key, descending=descending), *by_id]
        if by_column
        else [_by(column, descending=descending) for column in (key, _ID)]
    )
    against = None if by_column or newest_first == descending else Ties(name, key, by_id)
    with_key = Section([key.is_not(None), *as_stored], by_key, against)
    without = Section([key.is_(None)], by_id)
    if after is None:
        return [without, with_key] if backwards else [with_key, without]
    if after[0] is None:
        rest = Section([key.is_(None), *beyond_id], by_id)
        return [rest, with_key] if backwards else [rest]
    # Not `(key, id) < (?, ?)`: with it SQLite seeks by the key alone, and many rows share a reward of 0 or 1.
    ties = Section([key == after[0], *beyond_id], by_id)
    others = Section([_beyond(key, after[0], descending=descending), *as_stored], by_key, against)
    return [ties, others] if backwards else [ties, others, without]


def is_narrow(filter: RolloutFilter) -> bool:  # noqa: A002
    """Return True if the index of steps selects few enough rows to sort."""
    return _is_short(filter.range("step"))


def _is_short(steps: Range) -> bool:
    return steps.high is not None and steps.high - (steps.low or 0) < _NARROW_STEPS


def _is_rare(filter: RolloutFilter) -> bool:  # noqa: A002
    """Return True if the partial index of rows that are not ok contains all rows of the filter."""
    return any(term.field == "status" and (Status.OK in term.values) == term.negated for term in filter.terms)


def _is_rare_text(term: Term) -> bool:
    if term.field not in SEARCHED or term.negated:
        return False
    return all(full_text.is_rare(str(text), term.field) for text in term.values)


def _reads_the_table(filter: RolloutFilter) -> bool:  # noqa: A002
    """Return True if a term needs a column that no index has, and no index selects few rows."""
    leads = any(term.field in {*_LEADING, *SEARCHED} and not term.negated for term in filter.terms)
    few = leads or is_narrow(filter) or _is_rare(filter)
    return not few and any(term.field not in _INDEXED for term in filter.terms)


def _ids_of_steps(run_id: int, filter: RolloutFilter) -> full_text.Within | None:  # noqa: A002
    """Return the first and the last id of the rows of a narrow range of steps; None for any other filter."""
    if not is_narrow(filter):
        return None
    # In an expression: row_by_step covers this query; SQLite would search row_by_id row by row for these steps.
    ends = select(func.min(_ID + 0), func.max(_ID + 0)).where(col(EvaluationRow.run_id) == run_id)
    ends = ends.where(in_range(col(EvaluationRow.step), filter.range("step")))
    return tuple(ends.with_only_columns(end).scalar_subquery() for end in ends.selected_columns)  # type: ignore[return-value]


def _term(
    term: Term, run_id: int, filter: RolloutFilter, use: Use, within: full_text.Within | None  # noqa: A002
) -> Any:  # fmt: skip
    if len(term.values) > MANY and FIELDS[term.field].is_listed:
        absent = [_value(term, None, run_id, filter, use, within)] if None in term.values else []
        return any_of(term, [matching.in_list(term, run_id), *absent])
    if not term.is_plain or term.range is not None or FIELDS[term.field].column is None:
        return any_of(term, [_value(term, value, run_id, filter, use, within) for value in term.values])
    column = column_of(term.field)
    if term.field in _KINDS and use == Use.ROWS and not (term.field == "status" and _is_rare(filter)):
        column = func.coalesce(column, "")
    return _of_kind(column, term.field, filter.words(term.field), _is_lost(run_id, filter))


def _value(
    term: Term, value: Value, run_id: int, filter: RolloutFilter, use: Use, within: full_text.Within | None  # noqa: A002
) -> Any:  # fmt: skip
    if term.field == "scored":
        return _score_condition(Scored(str(value)), run_id)
    if term.field == "error":
        return has_error(value, _is_lost(run_id, filter))
    if term.field in computed_fields.FIELDS:
        span = within if within is not None and isinstance(within[0], int) else None
        return computed_fields.matches(term.field, _loose(term, value), run_id, filter, span)
    if FIELDS[term.field].column is None:
        return condition_elsewhere(term, value, run_id, within)
    if isinstance(value, Range):
        return in_range(_numbers(term, filter, use), _loose(term, value))
    stored = column_of(term.field)
    # With several alternatives, an index would yield rows that have to be collected and sorted.
    column = func.coalesce(stored, stored) if len(term.values) > 1 and term.field != "group" else stored
    lost = _is_lost(run_id, filter)
    condition = column.is_(None) if value is None else _of_kind(column, term.field, (value,), lost)
    return and_(condition, not_(lost)) if term.field == "stop" and value is None else condition


def _loose(term: Term, value: Value) -> Any:
    return value.loose() if isinstance(value, Range) and FIELDS[term.field].kind == Kind.NUMBER else value


def _numbers(term: Term, filter: RolloutFilter, use: Use) -> Any:  # noqa: A002
    """Return the column itself if its index selects few rows, else an expression that no index serves."""
    only = term.range
    if term.field == "reward":
        alone = all(term.field in {"reward", "step", "scored", "group"} for term in filter.terms)
        by_step = any(term.field == "step" and not term.is_plain for term in filter.terms)
        sorted_by_it = filter.sort in _BY_REWARD and not _is_rare(filter)
        served = sorted_by_it if use == Use.ROWS else use == Use.NUMBER and alone and not by_step
        return col(EvaluationRow.reward) if served else col(EvaluationRow.reward) + 0.0
    if term.field == "id":
        by_id = only is not None and (only.low == only.high or filter.sort in _BY_ID)
        return _ID if by_id else _ID + 0
    if term.field == "step":
        few = len(term.values) < 10 and all(isinstance(value, Range) and _is_short(value) for value in term.values)
        served = not term.negated and (few or (use == Use.NUMBER and only is not None))
        return col(EvaluationRow.step) if served else col(EvaluationRow.step) + 0
    return column_of(term.field)


def _score_condition(word: Scored, run_id: int) -> ColumnElement[bool]:
    row = EvaluationRow
    if word == Scored.YES:
        return col(row.reward).is_not(None)
    lacks, ended = col(row.reward).is_(None), col(row.status).in_([Status.OK.value, Status.ERROR.value])
    awaited = and_(
        col(row.scored).is_(None),
        func.coalesce(col(row.stop_reason), "") != StopReason.EXCEPTION.value,
        exists().where(col(Run.state) == RunState.RUNNING, *is_heard_of(run_id)),
    )
    return and_(lacks, ended, awaited if word == Scored.AWAITING else not_(awaited))


def _is_lost(run_id: int, filter: RolloutFilter) -> ColumnElement[bool]:  # noqa: A002
    row = EvaluationRow
    condition = and_(col(row.status) == Status.RUNNING, col(row.created) <= lost_until(run_id))
    # `returned` is always NULL while a row runs; the condition keeps SQLite from row_by_kind, which does not have it.
    return and_(condition, col(row.returned).is_(None)) if _is_rare(filter) else condition


def _of_kind(column: Any, field: str, values: tuple[str, ...], lost: ColumnElement[bool]) -> Any:
    """Return a condition on a status or the like; `values` are as pages show them, where lost rows are aborted."""
    if field == "group":  # pages name a group by the number of one of its rollouts
        numbers = [int(value) for value in values if is_id(value)]
        groups = [select(col(EvaluationRow.group)).where(_ID.in_([number])).scalar_subquery() for number in numbers]
        return column.in_([*values, *groups])
    stored = column == values[0] if len(values) == 1 else column.in_(values)
    if field == "status" and Status.RUNNING in values and Status.ABORTED not in values:
        return and_(stored, not_(lost))
    if field == "status" and Status.ABORTED in values and Status.RUNNING not in values:
        return and_(column.in_((*values, Status.RUNNING.value)), or_(stored, lost))
    return or_(stored, lost) if field == "stop" and StopReason.ABORTED in values else stored


def _by(column: Any, *, descending: bool) -> Any:
    return column.desc() if descending else column.asc()


def _beyond(column: Any, value: Any, *, descending: bool) -> Any:
    return column < value if descending else column > value
