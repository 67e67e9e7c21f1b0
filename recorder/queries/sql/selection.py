"""What a filter means in SQL: its conditions, its order, and where in that order a page begins."""

from dataclasses import dataclass
from enum import Enum, auto
from typing import Any

from sqlalchemy import ColumnElement, and_, case, exists, func, literal, not_, or_, select
from sqlmodel import col

from logs_ui.recorder.queries.filters.filter_fields import FIELDS, Kind
from logs_ui.recorder.queries.filters.rollout_filter import RolloutFilter, Scored, Sort
from logs_ui.recorder.queries.filters.terms import Range, Term, Value
from logs_ui.recorder.queries.search import full_text
from logs_ui.recorder.queries.sql import derived
from logs_ui.recorder.queries.sql.matching import (
    any_of,
    column_of,
    has_error,
    in_range,
    stored_elsewhere,
)
from logs_ui.recorder.storage.clock import now_us
from logs_ui.recorder.storage.dialects import server_clock
from logs_ui.recorder.storage.tables import EvaluationRow, Run, StepStatistics
from logs_ui.recorder.vocabulary import RunState, Status, StopReason

_ID = col(EvaluationRow.id)
_KINDS = frozenset({"eval", "mode", "status", "stop"})  # columns of row_by_kind
_SORTS: dict[Sort, tuple[Any, bool]] = {  # key (None: the id alone), descending
    Sort.NEWEST: (None, True),
    Sort.OLDEST: (None, False),
    Sort.LOWEST_REWARD: (col(EvaluationRow.reward), False),
    Sort.HIGHEST_REWARD: (col(EvaluationRow.reward), True),
    Sort.LONGEST: (col(EvaluationRow.completion_tokens), True),
    Sort.SLOWEST: (col(EvaluationRow.seconds), True),
}

DIED_AFTER_US = 60_000_000
"""A running run without a sign of life for this long has died; the writer gives one every 5 s."""

_NONE, _ALL = -1, 2**63 - 1  # of a run's rollouts, by when they began
_NARROW_STEPS = 500  # up to so many, their rows are few enough to be collected and sorted
_BY_REWARD = (Sort.LOWEST_REWARD, Sort.HIGHEST_REWARD)
_INDEXED = frozenset({*_KINDS, "scored", "task", "step", "reward", "group", "id", "since", "until"})
_LEADING = frozenset({"id", "group", "task", "tag", "is", "note", "text"})  # to rows that are few, as a rule
_LISTED = frozenset({"tag", "is", "note"})
_BY_ID = (Sort.NEWEST, Sort.OLDEST)
_UNINDEXED = (Sort.LONGEST, Sort.SLOWEST)

Span = tuple[int, int]
"""Ids, the first and the last."""

Place = tuple[float | int | None, int]
"""A row's place in an order: its sort key (None where it lacks it, or the order has none) and its id."""


class Use(Enum):
    """What the rows are selected for."""

    ROWS = auto()
    """To be read, in the filter's order."""
    NUMBER = auto()
    """To be counted, or added up."""
    KINDS = auto()
    """To be counted by task, eval, mode, status and stop reason."""


@dataclass(frozen=True)
class Section:
    """Rows that follow one another in one index: `conditions` beside the filter's, in the order of `order`.

    Attributes:
        ties: where the ids of rows that share a key run against the key's order, which no index has. `order` then is
            one that an index has, and right only between different keys.
    """

    conditions: list[ColumnElement[bool]]
    order: list[ColumnElement[Any]]
    ties: "Ties | None" = None


@dataclass(frozen=True)
class Ties:
    """Rows that share a key are read by themselves, in an order of their own; `name` is the key's, as of a row."""

    name: str
    key: Any
    order: list[ColumnElement[Any]]


def conditions(
    run_id: int, filter: RolloutFilter, use: Use, span: Span | None = None  # noqa: A002
) -> list[ColumnElement[bool]]:  # fmt: skip
    """What must hold of a row as it is shown: see `lost_until`; where a span is given, of its rows alone.

    SQLite guesses that any index leaves a handful of rows. So some columns stand in an expression, which no index
    serves: what half of the rows have in common must not tempt it to collect and sort them, or away from the index that
    holds all that is asked.
    """
    # A group is smaller than anything else that is known of a row, as are the rows that have words which few have.
    within = span or _ids_of_steps(run_id, filter)
    is_small = (
        span is not None or is_listed(filter) or any(it.field == "group" and not it.negated for it in filter.terms)
    )
    run: Any = col(EvaluationRow.run_id) + 0 if is_small else col(EvaluationRow.run_id)
    found: list[ColumnElement[bool]] = [run == run_id]
    if span is not None:
        found.append(_ID.between(*span))
        use = Use.ROWS
    if _is_rare(filter):
        # Follows from what stands there already, but SQLite takes a partial index only where its words are repeated.
        found.append(col(EvaluationRow.status) != literal(Status.OK.value, literal_execute=True))
    if use == Use.KINDS and _is_narrow(filter):
        found.append(col(EvaluationRow.group) != "")  # true of all, but row_by_kind does not hold it: not to be tempted
    found += [_term(term, run_id, filter, use, within) for term in filter.terms]
    if use == Use.NUMBER and _reads_the_table(filter):
        found.append(_ID > 0)  # true of all, and of the index that has the order in which they lie there
    return found


def leads_to_few(filter: RolloutFilter) -> bool:  # noqa: A002
    """True if an index leads to few of a large run's rows, as a rule."""
    leads = any((it.field in _LEADING - {"text"} and not it.negated) or _is_rare_text(it) for it in filter.terms)
    return leads or _is_narrow(filter) or _is_rare(filter)


def is_listed(filter: RolloutFilter) -> bool:  # noqa: A002
    """True if the ids of a few rows are listed elsewhere: no index of the rows has an order of those."""
    return any((it.field in _LISTED and not it.negated) or _is_rare_text(it) for it in filter.terms)


def is_broad(filter: RolloutFilter) -> bool:  # noqa: A002
    """True if it does not select all rollouts of a run, and no index leads to few of them."""
    return bool(filter.terms) and not leads_to_few(filter)


def has_no_order(filter: RolloutFilter) -> bool:  # noqa: A002
    """For a filter that leads to many: True if the first rows of its order may lie anywhere, as far as indexes tell."""
    kinds = {*_KINDS, "reward", "scored", "step"}
    return filter.sort in _UNINDEXED or any(it.field not in kinds for it in filter.terms)


def lost_until(run_id: int) -> ColumnElement[int]:
    """Rollouts that are stored as running and began by then (µs since the epoch) will never return: their process died.

    For every reader they are aborted, as nobody is left to write it down. That is all of a run that has not been heard
    of for long, none of one that is under way, and of one that ended those that began before its end: evaluations that
    follow a training belong to its run.
    """
    under_way = col(Run.state) == RunState.RUNNING
    until = select(case((under_way, _NONE), else_=col(Run.finished))).where(*_heard_of(run_id)).scalar_subquery()
    return func.coalesce(until, _ALL)


def in_statistics(filter: RolloutFilter) -> bool:  # noqa: A002
    """True if StepStatistics can answer for it: they know a row's eval, mode and step alone."""
    return filter.terms == filter.only("eval", "mode", "step").terms


def statistics_conditions(run_id: int, filter: RolloutFilter) -> list[ColumnElement[bool]]:  # noqa: A002
    """The same conditions on StepStatistics, for a filter that they can answer for."""
    it = StepStatistics
    found = [col(it.run_id) == run_id, in_range(col(it.step), filter.range("step"))]
    columns = {"eval": col(it.eval_name), "mode": col(it.mode)}
    return found + [column.in_(words) for name, column in columns.items() if (words := filter.words(name))]


def place_of(row: EvaluationRow, sort: Sort) -> Place:
    key = _SORTS[sort][0]
    assert row.id is not None  # noqa: S101 - it came from the database
    return None if key is None else getattr(row, key.key), row.id


def sections(filter: RolloutFilter, after: Place | None, *, backwards: bool = False) -> list[Section]:  # noqa: A002
    """The order from `after` on (from the beginning where None), in parts to read one after the other.

    Rows that lack the sort key make a part of their own, in the order of their ids: the two databases sort NULL
    differently, and a comparison with a NULL in it would lose them.
    """
    key, descending = _SORTS[filter.sort]
    descending ^= backwards
    newest_first = (filter.sort != Sort.OLDEST) ^ backwards  # of those that are equal
    name = "" if key is None else key.key
    if key is not None and _is_rare(filter):
        key = key + 0
    row_id = _ID + 0 if _is_unfinished(filter) else _ID
    by_id = [_by(row_id, descending=newest_first)]
    beyond_id = [] if after is None else [_beyond(row_id, after[1], descending=newest_first)]
    if key is None:
        return [Section(beyond_id, by_id)]
    # Where no index has the key's order, the rows are sorted: this makes it read them as they lie in the table.
    as_stored = [_ID > 0] if filter.sort in _UNINDEXED else []
    by_key = [_by(key, descending=descending), _by(_ID, descending=descending)]
    against = None if newest_first == descending else Ties(name, key, by_id)
    with_key = Section([key.is_not(None), *as_stored], by_key, against)
    without = Section([key.is_(None)], by_id)
    if after is None:
        return [without, with_key] if backwards else [with_key, without]
    if after[0] is None:
        rest = Section([key.is_(None), *beyond_id], by_id)
        return [rest, with_key] if backwards else [rest]
    # Not `(key, id) < (?, ?)`: SQLite seeks the key alone with it, and many rows share a reward of 0 or of 1.
    ties = Section([key == after[0], *beyond_id], by_id)
    others = Section([_beyond(key, after[0], descending=descending), *as_stored], by_key, against)
    return [ties, others] if backwards else [ties, others, without]


def _is_narrow(filter: RolloutFilter) -> bool:  # noqa: A002
    """True if the index of steps leaves few enough rows."""
    return _is_short(filter.range("step"))


def _is_short(steps: Range) -> bool:
    return steps.high is not None and steps.high - (steps.low or 0) < _NARROW_STEPS


def _is_rare(filter: RolloutFilter) -> bool:  # noqa: A002
    """True if the partial index of all rows that are not ok has what is asked."""
    return any(it.field == "status" and (Status.OK in it.values) == it.negated for it in filter.terms)


def _is_rare_text(term: Term) -> bool:
    return term.field == "text" and not term.negated and all(full_text.is_rare(str(text)) for text in term.values)


def _is_unfinished(filter: RolloutFilter) -> bool:  # noqa: A002
    """True if so few are asked for that they are sorted sooner than found in the order of all: at most what ran when
    its process ended.
    """
    statuses = filter.words("status")
    return bool(statuses) and {Status.RUNNING, Status.ABORTED}.issuperset(statuses)


def _reads_the_table(filter: RolloutFilter) -> bool:  # noqa: A002
    """True if a term needs a column that no index has, and nothing leads to few rows."""
    leads = any(it.field in _LEADING and not it.negated for it in filter.terms)
    few = leads or _is_narrow(filter) or _is_rare(filter)
    return not few and any(it.field not in _INDEXED for it in filter.terms)


def _reward(filter: RolloutFilter, use: Use) -> Any:  # noqa: A002
    if use == Use.ROWS:
        served = filter.sort in _BY_REWARD and not _is_rare(filter)
    else:
        alone = all(it.field in {"reward", "step", "scored", "group"} for it in filter.terms)
        served = use == Use.NUMBER and alone and not any(it.field == "step" and not it.is_plain for it in filter.terms)
    return col(EvaluationRow.reward) if served else col(EvaluationRow.reward) + 0.0


def _ids_of_steps(run_id: int, filter: RolloutFilter) -> full_text.Within | None:  # noqa: A002
    """The first and the last id of the rows of a narrow range of steps; None for any other filter."""
    if not _is_narrow(filter):
        return None
    # In an expression: the index of steps has all that is asked, that of ids would be read until a step is found.
    ends = select(func.min(_ID + 0), func.max(_ID + 0)).where(col(EvaluationRow.run_id) == run_id)
    ends = ends.where(in_range(col(EvaluationRow.step), filter.range("step")))
    return tuple(ends.with_only_columns(end).scalar_subquery() for end in ends.selected_columns)  # type: ignore[return-value]


def _term(
    term: Term, run_id: int, filter: RolloutFilter, use: Use, within: full_text.Within | None  # noqa: A002
) -> ColumnElement[bool]:  # fmt: skip
    if not term.is_plain or term.range is not None or FIELDS[term.field].column is None:
        return any_of(term, [_value(term, value, run_id, filter, use, within) for value in term.values])
    column = column_of(term.field)
    if term.field in _KINDS and use == Use.ROWS and not (term.field == "status" and _is_rare(filter)):
        column = func.coalesce(column, "")
    return _of_kind(column, term.field, filter.words(term.field), _is_lost(run_id, filter))


def _value(
    term: Term, value: Value, run_id: int, filter: RolloutFilter, use: Use, within: full_text.Within | None  # noqa: A002
) -> ColumnElement[bool]:  # fmt: skip
    if term.field in {"scored", "error"}:
        return (
            _scored(Scored(str(value)), run_id)
            if term.field == "scored"
            else has_error(value, _is_lost(run_id, filter))
        )
    if term.field in derived.FIELDS:
        span = within if within is not None and isinstance(within[0], int) else None
        return derived.holds(term.field, _loose(term, value), run_id, filter, span)
    if FIELDS[term.field].column is None:
        return stored_elsewhere(term, value, run_id, within)
    if isinstance(value, Range):
        return in_range(_numbers(term, filter, use), _loose(term, value))
    stored = column_of(term.field)
    # Of several alternatives an index would give rows that have to be collected and sorted.
    column = func.coalesce(stored, stored) if len(term.values) > 1 and term.field != "group" else stored
    lost = _is_lost(run_id, filter)
    found = column.is_(None) if value is None else _of_kind(column, term.field, (value,), lost)
    return and_(found, not_(lost)) if term.field == "stop" and value is None else found


def _loose(term: Term, value: Value) -> Any:
    return value.loose if isinstance(value, Range) and FIELDS[term.field].kind == Kind.NUMBER else value


def _numbers(term: Term, filter: RolloutFilter, use: Use) -> Any:  # noqa: A002
    """A column as the index that leads to few rows has it, else in an expression."""
    only = term.range
    if term.field == "reward":
        return _reward(filter, use)
    if term.field == "id":
        by_id = only is not None and (only.low == only.high or filter.sort in _BY_ID)
        return _ID if by_id else _ID + 0
    if term.field == "step":
        few = len(term.values) < 10 and all(isinstance(it, Range) and _is_short(it) for it in term.values)
        served = not term.negated and (few or (use == Use.NUMBER and only is not None))
        return col(EvaluationRow.step) if served else col(EvaluationRow.step) + 0
    return column_of(term.field)


def _scored(word: Scored, run_id: int) -> ColumnElement[bool]:
    row = EvaluationRow
    if word == Scored.YES:
        return col(row.reward).is_not(None)
    lacks, ended = col(row.reward).is_(None), col(row.status).in_([Status.OK.value, Status.ERROR.value])
    awaited = and_(
        col(row.scored).is_(None),
        func.coalesce(col(row.stop_reason), "") != StopReason.EXCEPTION.value,
        exists().where(col(Run.state) == RunState.RUNNING, *_heard_of(run_id)),
    )
    return and_(lacks, ended, awaited if word == Scored.AWAITING else not_(awaited))


def _heard_of(run_id: int) -> tuple[ColumnElement[bool], ColumnElement[bool]]:
    return col(Run.id) == run_id, col(Run.heartbeat) >= server_clock(now_us()) - DIED_AFTER_US


def _is_lost(run_id: int, filter: RolloutFilter) -> ColumnElement[bool]:  # noqa: A002
    row = EvaluationRow
    found = and_(col(row.status) == Status.RUNNING, col(row.created) <= lost_until(run_id))
    # True of all that run, but row_by_kind does not hold it: not to be tempted away from the few that are not ok.
    return and_(found, col(row.returned).is_(None)) if _is_rare(filter) else found


def _of_kind(column: Any, field: str, values: tuple[str, ...], lost: ColumnElement[bool]) -> ColumnElement[bool]:
    """`column` holds what is stored; `values` are what pages show, where lost rows are aborted."""
    if field == "status" and Status.RUNNING in values and Status.ABORTED not in values:
        return and_(_any_of(column, values), not_(lost))
    if field == "status" and Status.ABORTED in values and Status.RUNNING not in values:
        running = (Status.RUNNING.value,)
        return and_(_any_of(column, values + running), or_(_any_of(column, values), lost))
    if field == "stop" and StopReason.ABORTED in values:
        return or_(_any_of(column, values), lost)
    return _any_of(column, values)


def _any_of(column: Any, values: tuple[str, ...]) -> ColumnElement[bool]:
    found: ColumnElement[bool] = column == values[0] if len(values) == 1 else column.in_(values)
    return found


def _by(column: Any, *, descending: bool) -> ColumnElement[Any]:
    ordered: ColumnElement[Any] = column.desc() if descending else column.asc()
    return ordered


def _beyond(column: Any, value: Any, *, descending: bool) -> ColumnElement[bool]:
    compared: ColumnElement[bool] = column < value if descending else column > value
    return compared
