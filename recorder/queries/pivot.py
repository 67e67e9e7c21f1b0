"""Rollouts by two of their properties: how many, and what they came to."""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from sqlalchemy import Select, and_, case, func, literal, select, union
from sqlalchemy.orm import Session
from sqlmodel import col

from logs_ui.recorder.queries.common import LARGE, Database, newest_ids
from logs_ui.recorder.queries.filters.rollout_filter import RolloutFilter
from logs_ui.recorder.queries.sql.selection import (
    Span,
    Use,
    conditions,
    in_statistics,
    is_broad,
    lost_until,
    statistics_conditions,
)
from logs_ui.recorder.storage.dialects import total, whole_sum
from logs_ui.recorder.storage.notes_tables import PersonalTag
from logs_ui.recorder.storage.tables import EvaluationRow, RowTag, Run, StepStatistics
from logs_ui.recorder.vocabulary import Status, StopReason

MOST_ROWS, MOST_COLUMNS = 50, 40
"""Headings of a pivot; what lies beyond is added up."""
MOST_COUNTED = 20_000
"""Rollouts that a pivot of a run of more than LARGE looks at: the newest of those that match."""

_BUCKETS = 20  # of steps, at most


class Dimension(StrEnum):
    """What rollouts are told apart by."""

    TASK = "task"
    STEP = "step"
    """In ranges of steps, so that there are at most 20 of them."""
    EVAL = "eval"
    STOP = "stop"
    STATUS = "status"
    MODE = "mode"
    TAG = "tag"
    """A rollout that has several is counted with each."""
    MODEL = "model"
    AGE = "age"
    """Steps between the policy that made it and the step under which it is logged."""


class Measure(StrEnum):
    """What is said of the rollouts of a cell."""

    COUNT = "count"
    REWARD = "reward"
    """The mean, as of tokens, turns and seconds, over those that have one."""
    TOKENS = "tokens"
    TURNS = "turns"
    SECONDS = "seconds"
    TRUNCATED = "truncated"
    """The share of those that came to an end that hit their token limit, 0 to 1."""
    ERRORS = "errors"
    """The share of those that came to an end that are of status `error`, 0 to 1."""


@dataclass(frozen=True)
class Heading:
    """A row or a column: of one value (None: of those that lack it), or of the steps from `value` to `until`."""

    value: str | int | None
    until: int | None = None


@dataclass(frozen=True)
class Cell:
    """Some rollouts: how many, and of their measure the sum, and over how many of them."""

    count: int = 0
    total: float = 0.0
    known: int = 0

    @property
    def mean(self) -> float | None:
        """None where no rollout has one."""
        return self.total / self.known if self.known else None

    def __add__(self, other: "Cell") -> "Cell":
        return Cell(self.count + other.count, self.total + other.total, self.known + other.known)


@dataclass(frozen=True)
class Pivot:
    """
    Attributes:
        rows, columns: at most MOST_ROWS and MOST_COLUMNS: steps in their order, else those with most rollouts first.
        cells: by (row, column); pairs without rollouts are left out.
        of_rows, of_columns: over all columns, or rows, those beyond included.
        overall: over everything. A rollout with several tags is in it as often.
        rows_beyond, columns_beyond: how many more headings there are.
        counted: how many of the newest rollouts it is made of, where there are more; None where it is made of all.
    """

    rows: list[Heading]
    columns: list[Heading]
    cells: dict[tuple[Heading, Heading], Cell]
    of_rows: dict[Heading, Cell]
    of_columns: dict[Heading, Cell]
    overall: Cell
    rows_beyond: int
    columns_beyond: int
    counted: int | None


@dataclass(frozen=True)
class _Buckets:
    """Of `width` steps each, from `low` on; the last ends at `high`."""

    low: int = 0
    high: int = 0
    width: int = 1

    def first(self, dimension: Dimension, column: Any) -> Any:
        """Of steps, the first of their bucket; of any other column, itself."""
        if dimension != Dimension.STEP or self.width == 1:
            return column
        # As themselves: PostgreSQL knows them again in GROUP BY.
        low, width = (literal(value, literal_execute=True) for value in (self.low, self.width))
        return column - (column - low) % width

    def heading(self, dimension: Dimension, value: str | int | None) -> Heading:
        """Of what `first` gives."""
        if dimension != Dimension.STEP or not isinstance(value, int) or self.width == 1:
            return Heading(value)
        return Heading(value, min(value + self.width - 1, max(self.high, value)))


def pivot(
    db: Database, run_id: int, filter: RolloutFilter, rows: Dimension, columns: Dimension, measure: Measure  # noqa: A002
) -> Pivot:  # fmt: skip
    """Of all rollouts of the filter where step statistics have the answer, or the run is not larger than LARGE; else
    of the newest MOST_COUNTED, or, of a filter that no index serves, of those of them that match.
    """
    by_step = in_statistics(filter) and {rows, columns} <= _OF_STATISTICS.keys() and measure in _SUMS
    with Session(db) as session:
        buckets = _buckets(session, run_id, filter) if Dimension.STEP in {rows, columns} else _Buckets()
        few = _size(session, run_id) <= LARGE
        span = None
        if not few and not by_step and (is_broad(filter) or not filter.terms):
            span = newest_ids(session, run_id, filter.range("step").high, MOST_COUNTED)
        if by_step:
            query = _from_statistics(run_id, filter, buckets, rows, columns, measure)
        else:
            limit = None if few or span else MOST_COUNTED
            query = _from_rows(run_id, filter, buckets, rows, columns, measure, limit, span)
        cells: dict[tuple[Heading, Heading], Cell] = {}
        for row, column, number, total, known in session.execute(query):
            place = buckets.heading(rows, row), buckets.heading(columns, column)
            cells[place] = cells.get(place, Cell()) + Cell(number, total or 0.0, known)
    all_counted = sum(cell.count for cell in cells.values())
    is_cut = not few and not by_step and (span is not None or all_counted >= MOST_COUNTED)
    return _pivot(cells, rows, columns, counted=MOST_COUNTED if is_cut else None)


def _from_statistics(
    run_id: int, filter: RolloutFilter, buckets: _Buckets, rows: Dimension, columns: Dimension, measure: Measure,  # noqa: A002
) -> Select[Any]:  # fmt: skip
    added, known = _SUMS[measure]
    by = [buckets.first(it, _OF_STATISTICS[it]) for it in (rows, columns)]
    sums = [whole_sum(col(StepStatistics.rollouts)), total(added), whole_sum(known)]
    return select(*by, *sums).where(*statistics_conditions(run_id, filter)).group_by(*by)


def _from_rows(
    run_id: int, filter: RolloutFilter, buckets: _Buckets, rows: Dimension, columns: Dimension, measure: Measure,  # noqa: A002
    limit: int | None, span: Span | None,
) -> Select[Any]:  # fmt: skip
    """Only what is asked for is read: an index may hold it."""
    own: dict[Dimension, Any] = _properties(run_id)
    asked = [
        buckets.first(it, own[it]).label(f"by_{it.value}")
        for it in dict.fromkeys((rows, columns))
        if it != Dimension.TAG
    ]
    value = _values()[measure].label("value")
    ids = [col(EvaluationRow.id), col(EvaluationRow.uid)] if Dimension.TAG in {rows, columns} else []
    indexed = {rows, columns} <= _OF_KINDS and measure in _SUMS and not ids
    each = select(*asked, value, *ids).where(*conditions(run_id, filter, Use.KINDS if indexed else Use.ROWS, span))
    if limit is not None:
        each = each.order_by(col(EvaluationRow.id).desc()).limit(limit)
    some = each.subquery()
    source: Any = some
    tag: Any = None
    if ids:
        tags = _tags(run_id)
        source, tag = some.outerjoin(tags, tags.c.row_id == some.c.id), tags.c.tag
    by = [tag if it == Dimension.TAG else some.c[f"by_{it.value}"] for it in (rows, columns)]
    found = select(*by, func.count(), total(some.c.value), func.count(some.c.value))
    return found.select_from(source).group_by(*by)


def _properties(run_id: int) -> dict[Dimension, Any]:
    """As they are shown: see `selection.lost_until`."""
    row = EvaluationRow
    lost = and_(col(row.status) == Status.RUNNING, col(row.created) <= lost_until(run_id))
    return {
        Dimension.TASK: col(row.task),
        Dimension.STEP: col(row.step),
        Dimension.EVAL: col(row.eval_name),
        Dimension.STOP: case((lost, StopReason.ABORTED.value), else_=col(row.stop_reason)),
        Dimension.STATUS: case((lost, Status.ABORTED.value), else_=col(row.status)),
        Dimension.MODE: col(row.mode),
        Dimension.MODEL: col(row.model),
        Dimension.AGE: col(row.step) - col(row.policy_step),
    }


def _values() -> dict[Measure, Any]:
    """Of one rollout; None where it takes no part in the mean. Shares are of those that came to an end."""
    row = EvaluationRow
    ended = col(row.status).in_((Status.OK.value, Status.ERROR.value))
    return {
        Measure.COUNT: literal(1),
        Measure.REWARD: col(row.reward),
        Measure.TOKENS: col(row.completion_tokens),
        Measure.TURNS: col(row.turns),
        Measure.SECONDS: col(row.seconds),
        Measure.TRUNCATED: case((and_(ended, col(row.stop_reason) == StopReason.LENGTH), 1), (ended, 0)),
        Measure.ERRORS: case((col(row.status) == Status.ERROR, 1), (ended, 0)),
    }


def _tags(run_id: int) -> Any:
    """(row_id, tag) of a run's rollouts, whoever gave it, each once."""
    of_run = select(col(Run.uid)).where(col(Run.id) == run_id).scalar_subquery()
    named = and_(col(EvaluationRow.run_id) == run_id, col(EvaluationRow.uid) == col(PersonalTag.row))
    personal = select(col(EvaluationRow.id), col(PersonalTag.tag)).join(PersonalTag, named)
    recorded: Any = select(col(RowTag.row_id).label("row_id"), col(RowTag.tag).label("tag"))
    return union(
        recorded.where(col(RowTag.run_id) == run_id), personal.where(col(PersonalTag.run) == of_run)
    ).subquery()


_OF_KINDS = set(Dimension) - {Dimension.TAG, Dimension.MODEL, Dimension.AGE}  # in the index of kinds
_OF_STATISTICS: dict[Dimension, Any] = {
    Dimension.STEP: col(StepStatistics.step),
    Dimension.EVAL: col(StepStatistics.eval_name),
    Dimension.MODE: col(StepStatistics.mode),
}
_SUMS: dict[Measure, tuple[Any, Any]] = {  # of a step, and over how many rollouts
    Measure.COUNT: (col(StepStatistics.rollouts), col(StepStatistics.rollouts)),
    Measure.REWARD: (col(StepStatistics.reward_sum), col(StepStatistics.scored)),
}


def _size(session: Session, run_id: int) -> int:
    query = select(whole_sum(col(StepStatistics.rollouts))).where(col(StepStatistics.run_id) == run_id)
    return session.scalar(query) or 0


def _buckets(session: Session, run_id: int, filter: RolloutFilter) -> _Buckets:  # noqa: A002
    """Of the least of 1, 2, 5, 10, ... steps with which few enough hold all that the filter may leave."""
    step = col(StepStatistics.step)
    query = select(func.min(step), func.max(step)).where(*statistics_conditions(run_id, filter.only("step")))
    low, high = session.execute(query).one()
    if low is None:
        return _Buckets()
    widths: Iterator[int] = (digit * 10**power for power in range(19) for digit in (1, 2, 5))
    return _Buckets(low, high, next(width for width in widths if high - low < width * _BUCKETS))


def _pivot(
    cells: dict[tuple[Heading, Heading], Cell], rows: Dimension, columns: Dimension, counted: int | None
) -> Pivot:
    of_rows: dict[Heading, Cell] = {}
    of_columns: dict[Heading, Cell] = {}
    for (row, column), cell in cells.items():
        of_rows[row] = of_rows.get(row, Cell()) + cell
        of_columns[column] = of_columns.get(column, Cell()) + cell
    down = _shown(of_rows, rows, MOST_ROWS)
    across = _shown(of_columns, columns, MOST_COLUMNS)
    kept, kept_across = set(down), set(across)
    return Pivot(
        rows=down,
        columns=across,
        cells={place: cell for place, cell in cells.items() if place[0] in kept and place[1] in kept_across},
        of_rows={heading: of_rows[heading] for heading in down},
        of_columns={heading: of_columns[heading] for heading in across},
        overall=sum(cells.values(), Cell()),
        rows_beyond=len(of_rows) - len(down),
        columns_beyond=len(of_columns) - len(across),
        counted=counted,
    )


def _shown(totals: dict[Heading, Cell], dimension: Dimension, most: int) -> list[Heading]:
    """Those with most rollouts; numbers in their order, else the most frequent first."""
    frequent = sorted(totals, key=lambda it: (-totals[it].count, it.value is None, str(it.value)))[:most]
    if dimension not in _NUMBERED:
        return frequent
    return sorted(frequent, key=lambda it: (it.value is None, int(it.value or 0)))


_NUMBERED = {Dimension.STEP, Dimension.AGE}
