"""Builds pivot tables: rollouts by two of their properties, with a count, a mean or a share per cell."""

import math
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from itertools import product
from typing import Any

from sqlalchemy import Integer, Select, and_, case, cast, exists, func, literal, not_, null, or_, select, union_all
from sqlalchemy.orm import Session
from sqlmodel import col

from logs_ui.recorder.queries.common import LARGE, Database, newest_ids
from logs_ui.recorder.queries.filters.fields import FIELDS
from logs_ui.recorder.queries.filters.language import split_name
from logs_ui.recorder.queries.filters.rollout_filter import RolloutFilter
from logs_ui.recorder.queries.sql import computed_fields, matching, selection
from logs_ui.recorder.queries.sql.liveness import lost_until
from logs_ui.recorder.queries.sql.matching import Marks
from logs_ui.recorder.storage.dialects import total, whole_sum
from logs_ui.recorder.storage.notes_tables import PersonalTag
from logs_ui.recorder.storage.tables import EvaluationRow, RowTag, Run, StepStatistics
from logs_ui.recorder.vocabulary import Status, StopReason

MOST_ROWS, MOST_COLUMNS = 50, 40
"""The maximum numbers of headings of a pivot; the rest is only in the totals."""
LOWEST, HIGHEST = "lowest", "highest"
"""Orders of the rows by value."""
MOST_COUNTED = 20_000
"""The number of newest matching rollouts that a pivot reads in a run of more than LARGE."""

_BUCKETS = 20  # of steps, at most


class Dimension(StrEnum):
    """Properties that rows and columns of a pivot can stand for, besides those of metadata: `metadata.difficulty`."""

    TASK = "task"
    FAMILY = "family"
    """Of tasks, by the beginning of their names."""
    STEP = "step"
    """In ranges of steps, at most 20."""
    EVAL = "eval"
    STOP = "stop"
    STATUS = "status"
    MODE = "mode"
    TAG = "tag"
    """A rollout with several tags is counted for each of them."""
    MODEL = "model"
    LAG = "lag"


class Measure(StrEnum):
    """Measures that a cell can show of its rollouts, besides the mean of any field of numbers, as in `rewards.format`,
    and the share that stopped for a reason, as in `stop:timeout`.
    """

    COUNT = "count"
    REWARD = "reward"
    """The mean over the rollouts that have a reward; tokens, turns and seconds likewise."""
    TOKENS = "tokens"
    TURNS = "turns"
    SECONDS = "seconds"
    TRUNCATED = "truncated"
    """The share of ended rollouts that hit their token limit, 0 to 1."""
    ERRORS = "errors"
    """The share of ended rollouts with the status `error`, 0 to 1."""
    SOLVED = "solved"
    """The share of rollouts with a reward that solved their task, 0 to 1."""


@dataclass(frozen=True)
class Heading:
    """Names a row or column: one value (None: rollouts without one), or the steps from `value` to `until`."""

    value: str | int | None
    until: int | None = None


@dataclass(frozen=True)
class Cell:
    """The number of rollouts, the sum of their measure, and the number of rollouts that have it."""

    count: int = 0
    total: float = 0.0
    measured: int = 0

    @property
    def mean(self) -> float | None:
        """Return the mean of the measure; None if no rollout has it, or if it is no number."""
        return self.total / self.measured if self.measured and not math.isnan(self.total) else None

    def __add__(self, other: "Cell") -> "Cell":
        return Cell(self.count + other.count, self.total + other.total, self.measured + other.measured)


@dataclass(frozen=True)
class Pivot:
    """A pivot table, with totals over all headings, also those that are left out."""

    rows: list[Heading]  # at most MOST_ROWS: numbers in order, others by number of rollouts, or as asked for
    columns: list[Heading]  # likewise at most MOST_COLUMNS
    cells: dict[tuple[Heading, Heading], Cell]  # by (row, column); pairs without rollouts are left out
    of_rows: dict[Heading, Cell]
    of_columns: dict[Heading, Cell]
    overall: Cell  # a rollout with several tags is counted for each of them
    rows_beyond: int  # number of headings that are left out
    columns_beyond: int
    counted: int | None  # number of newest rollouts that were read; None if all were


@dataclass(frozen=True)
class _Buckets:
    """Divides steps into ranges of `width` each, from `low` on; the last one ends at `high`."""

    low: int = 0
    high: int = 0
    width: int = 1

    def first(self, dimension: str, column: Any) -> Any:
        """Return an expression for the first step of a step's range; any other column unchanged."""
        if dimension != Dimension.STEP or self.width == 1:
            return column
        # Not as parameters: PostgreSQL would not see that the expression is the same in GROUP BY.
        low, width = (literal(value, literal_execute=True) for value in (self.low, self.width))
        return column - (column - low) % width

    def heading(self, dimension: str, value: str | int | None) -> Heading:
        """Return the heading of a value of `first`."""
        if dimension != Dimension.STEP or not isinstance(value, int) or self.width == 1:
            return Heading(value)
        return Heading(value, min(value + self.width - 1, max(self.high, value)))


def pivot(
    db: Database, run_id: int, filter: RolloutFilter, rows: str, columns: str, measure: str,  # noqa: A002
    order: str = "", marks: Marks = (), families: Callable[[list[str]], list[str] | None] = lambda _: None,
) -> Pivot:  # fmt: skip
    """Make a pivot of the filter's rollouts. `rows` and `columns` are of `Dimension`, `measure` of `Measure`, or named
    as there. `order` is "", or LOWEST or HIGHEST for the rows by value; `marks` define what is solved,
    and `families` tells the family of each of some tasks; None if they have none, each then is its own.

    All are counted if the run has at most LARGE rollouts, or if step
    statistics suffice; else the newest MOST_COUNTED that match, or those that match among the newest MOST_COUNTED if no
    index serves the filter.
    """
    cells: defaultdict[tuple[Heading, Heading], Cell] = defaultdict(Cell)
    with Session(db) as session:
        buckets = _buckets(session, run_id, filter) if Dimension.STEP in {rows, columns} else _Buckets()
        is_large, span = False, None
        if selection.in_statistics(filter) and {rows, columns} <= _OF_STATISTICS.keys() and measure in _SUMS:
            added, summed = _SUMS[measure]
            by = [buckets.first(name, _OF_STATISTICS[name]) for name in (rows, columns)]
            query = select(*by, whole_sum(col(StepStatistics.rollouts)), total(added), whole_sum(summed))
            query = query.where(*selection.statistics_conditions(run_id, filter)).group_by(*by)
        else:
            size = select(whole_sum(col(StepStatistics.rollouts))).where(col(StepStatistics.run_id) == run_id)
            is_large = (session.scalar(size) or 0) > LARGE
            if is_large and (selection.is_broad(filter) or not filter.terms):
                span = newest_ids(session, run_id, filter.range("step").high, MOST_COUNTED)
            limit = MOST_COUNTED if is_large and span is None else None
            query = _from_rows(run_id, filter, buckets, (rows, columns), measure, marks, limit, span)
        results = session.execute(query).all()
        tasks = {
            result[position]
            for position, by in enumerate((rows, columns))
            if by == Dimension.FAMILY
            for result in results
        }
        names = sorted(tasks - {None})
        family_of = dict(zip(names, families(names) or names, strict=True))
        for *values, number, together, measured in results:
            row, column = (
                family_of.get(value) if by == Dimension.FAMILY else value
                for by, value in zip((rows, columns), values, strict=True)
            )
            place = buckets.heading(rows, row), buckets.heading(columns, column)
            # No sum, though values are known: there are both infinities among them.
            cells[place] += Cell(number, math.nan if measured and together is None else together or 0.0, measured)
    is_cut = is_large and (span is not None or sum(cell.count for cell in cells.values()) >= MOST_COUNTED)
    return _pivot(cells, measure, order, counted=MOST_COUNTED if is_cut else None)


def _from_rows(
    run_id: int, filter: RolloutFilter, buckets: _Buckets, by: tuple[str, str], measure: str, marks: Marks,  # noqa: A002
    limit: int | None, span: selection.Span | None,
) -> Select[Any]:  # fmt: skip
    """Select only the columns it needs: an index may contain them all."""
    expressions = _properties(run_id) | {name: _column(name, is_text=True) for name in by if name not in set(Dimension)}
    places = {name: f"by_{place}" for place, name in enumerate(dict.fromkeys(by))}
    columns = [buckets.first(name, expressions[name]).label(places[name]) for name in places if name in expressions]
    ids = [col(EvaluationRow.id), col(EvaluationRow.uid)] if Dimension.TAG in by else []
    indexed = {*by} <= _OF_KINDS and measure in _SUMS
    value = _value(measure, marks).label("value")
    query = select(*columns, value, *ids).where(
        *selection.conditions(run_id, filter, selection.Use.KINDS if indexed else selection.Use.ROWS, span)
    )
    if limit is not None:
        row_id: Any = col(EvaluationRow.id)
        # In an expression: else SQLite walks the whole run by id, where a filter's few steps are long ago.
        query = query.order_by((row_id + 0 if selection.is_narrow(filter) else row_id).desc()).limit(limit)
    elif ids:
        query = query.limit(
            max(LARGE, MOST_COUNTED)
        )  # more than there are: else SQLite looks through these rows for each of people's tags
    subquery = _rows_by_tag(run_id, query.subquery(), places[Dimension.TAG]) if ids else query.subquery()
    grouped = [subquery.c[places[name]] for name in by]
    return select(*grouped, func.count(), total(subquery.c.value), func.count(subquery.c.value)).group_by(*grouped)


def _column(name: str, *, is_text: bool = False) -> Any:
    field, key = split_name(name) or (FIELDS["metadata"], name)
    return matching.value_of(field, key, is_text=is_text)


def _properties(run_id: int) -> dict[str, Any]:
    """Return expressions of the dimensions; rollouts whose process died are aborted: see `liveness.lost_until`."""
    row = EvaluationRow
    lost = and_(col(row.status) == Status.RUNNING, col(row.created) <= lost_until(run_id))
    return {
        Dimension.TASK: col(row.task),
        Dimension.FAMILY: col(row.task),
        Dimension.STEP: col(row.step),
        Dimension.EVAL: col(row.eval_name),
        Dimension.STOP: case((lost, StopReason.ABORTED.value), else_=col(row.stop_reason)),
        Dimension.STATUS: case((lost, Status.ABORTED.value), else_=col(row.status)),
        Dimension.MODE: col(row.mode),
        Dimension.MODEL: col(row.model),
        Dimension.LAG: computed_fields.lag(),
    }


def _value(measure: str, marks: Marks) -> Any:
    """Return the expression of a measure of one rollout; NULL if it does not count in the mean."""
    if measure == Measure.SOLVED:
        return matching.is_solved(marks) if marks else cast(null(), Integer)
    if measure == Measure.ERRORS:
        return computed_fields.failure()
    if measure == Measure.TRUNCATED or measure.startswith("stop:"):
        return computed_fields.stopped_for(
            StopReason.LENGTH.value if measure == Measure.TRUNCATED else measure.removeprefix("stop:")
        )
    return literal(1) if measure == Measure.COUNT else _column(measure)


def _rows_by_tag(run_id: int, rows: Any, name: str) -> Any:
    """Return a subquery of these rollouts, each once for each of its tags, which is in the column `name`: from people
    and rollout functions; NULL without any. Tags are looked up row by row: joined to a list of all of them, SQLite
    would scan that list for each row.
    """
    of_run = select(col(Run.uid)).where(col(Run.id) == run_id).scalar_subquery()
    recorded = col(RowTag.row_id) == rows.c.id
    personal = and_(col(PersonalTag.run) == of_run, col(PersonalTag.row) == rows.c.uid)
    tag, by_people = col(RowTag.tag), col(PersonalTag.tag)
    from_functions = select(*rows.c, tag.label(name)).select_from(rows.outerjoin(RowTag, recorded))
    from_functions = from_functions.where(or_(tag.is_not(None), not_(exists().where(personal))))
    others = select(*rows.c, by_people.label(name)).select_from(rows.join(PersonalTag, personal))
    return union_all(from_functions, others.where(not_(exists().where(recorded, tag == by_people)))).subquery()


_OF_KINDS = frozenset({"task", "family", "step", "eval", "stop", "status", "mode"})  # columns of the index row_by_kind
_OF_STATISTICS: dict[str, Any] = {
    Dimension.STEP: col(StepStatistics.step),
    Dimension.EVAL: col(StepStatistics.eval_name),
    Dimension.MODE: col(StepStatistics.mode),
}
_SUMS: dict[str, tuple[Any, Any]] = {  # columns of step statistics: the sum, and the number of rollouts
    Measure.COUNT: (col(StepStatistics.rollouts), col(StepStatistics.rollouts)),
    Measure.REWARD: (col(StepStatistics.reward_sum), col(StepStatistics.scored)),
}


def _buckets(session: Session, run_id: int, filter: RolloutFilter) -> _Buckets:  # noqa: A002
    """Return ranges of 1, 2, 5, 10, ... steps: the smallest width with which at most 20 cover the filter's steps."""
    step = col(StepStatistics.step)
    query = select(func.min(step), func.max(step)).where(*selection.statistics_conditions(run_id, filter.only("step")))
    low, high = session.execute(query).one()
    if low is None:
        return _Buckets()
    widths: Iterator[int] = (digit * 10**power for power in range(19) for digit in (1, 2, 5))
    return _Buckets(low, high, next(width for width in widths if high - low < width * _BUCKETS))


def _pivot(cells: dict[tuple[Heading, Heading], Cell], measure: str, order: str, counted: int | None) -> Pivot:
    of_rows: defaultdict[Heading, Cell] = defaultdict(Cell)
    of_columns: defaultdict[Heading, Cell] = defaultdict(Cell)
    for (row, column), cell in cells.items():
        of_rows[row] += cell
        of_columns[column] += cell
    down, across = _frequent_headings(of_rows, MOST_ROWS), _frequent_headings(of_columns, MOST_COLUMNS)
    if order:
        values = {heading: cell.count if measure == Measure.COUNT else cell.mean for heading, cell in of_rows.items()}
        sign = -1 if order == HIGHEST else 1
        down = sorted(of_rows, key=lambda heading: (values[heading] is None, sign * (values[heading] or 0)))[:MOST_ROWS]
    return Pivot(
        rows=down,
        columns=across,
        cells={place: cells[place] for place in product(down, across) if place in cells},
        of_rows={heading: of_rows[heading] for heading in down},
        of_columns={heading: of_columns[heading] for heading in across},
        overall=sum(cells.values(), Cell()),
        rows_beyond=len(of_rows) - len(down),
        columns_beyond=len(of_columns) - len(across),
        counted=counted,
    )


def _frequent_headings(totals: dict[Heading, Cell], most: int) -> list[Heading]:
    """Return the headings with most rollouts; numbers in order, others the most frequent first."""
    frequent = sorted(totals, key=lambda heading: (-totals[heading].count, heading.value is None, str(heading.value)))
    del frequent[most:]
    with suppress(ValueError):
        frequent.sort(key=lambda heading: (heading.value is None, float(heading.value or 0)))
    return frequent
