"""Rollouts: a page of them, all of them, one of them."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from operator import attrgetter
from typing import Any

from sqlalchemy import ColumnElement, Select, func, select
from sqlalchemy.orm import Session
from sqlmodel import col

from logs_ui.recorder.errors import DatabaseError, ImageNotFoundError, RolloutNotFoundError
from logs_ui.recorder.queries.common import COUNT_CAP, WINDOW, Count, Database, counted, newest_ids, shown
from logs_ui.recorder.queries.filters.rollout_filter import RolloutFilter, Sort
from logs_ui.recorder.queries.payloads import with_payloads
from logs_ui.recorder.queries.search.full_text import planning
from logs_ui.recorder.queries.sql.selection import (
    Place,
    Section,
    Span,
    Use,
    conditions,
    in_statistics,
    is_listed,
    place_of,
    sections,
    statistics_conditions,
)
from logs_ui.recorder.storage.dialects import mean, total, whole_sum
from logs_ui.recorder.storage.payload import Tokens, unpack_content, unpack_tokens, unpacked_size
from logs_ui.recorder.storage.tables import EvaluationRow, Image, StepStatistics

_CHUNK_BYTES = 32 << 20  # unpacked, of the rollouts that are held in memory together; one that has more comes alone

_WITH_PAYLOADS = with_payloads(select(EvaluationRow))
_AT_ONCE = 10  # packed payloads in memory


@dataclass(frozen=True)
class Cursor:
    """Where a page ended: the sort key and the id of its last row.

    `key` is None for rows that lack the key: they come last. In an order by id, which needs none, it is how many
    rollouts were looked through, where no index leads to them.
    """

    key: float | int | None
    id: int


@dataclass(frozen=True)
class Page:
    """Some rows in order, and where the next begins (None at the end).

    Attributes:
        looked_at: how many rollouts they were looked for in, with those of the pages before, where time was over before
            there were enough of them, or all of the run's were too many to be put in order; None where that makes no
            difference.
    """

    rows: list[EvaluationRow]
    next: Cursor | None
    looked_at: int | None = None


@dataclass(frozen=True)
class Rollout:
    """One row with all that was recorded of it.

    Attributes:
        messages: OpenAI's chat form: role, content, optionally reasoning_content, tool_calls, name.
        actions: dicts of turn, text, action, observation, reward, done, metadata, seconds, error, and of
            model calls that were seen `generation`. Turn 0 is the reset.
        sampling: parameters of its generations.
        metadata: what else is known (attribution, traceback, extra fields of the rollout function, ...).
        tokens: None before it returned.
    """

    row: EvaluationRow
    messages: list[dict[str, Any]]
    actions: list[dict[str, Any]]
    sampling: dict[str, Any]
    metadata: dict[str, Any]
    tokens: Tokens | None


@dataclass(frozen=True)
class Neighbours:
    """A rollout's place within a filter's order.

    Attributes:
        previous, next: ids of the one before and after; None at the ends, or where none was found in time. A rollout
            that is not in the filter has those between which it would stand.
        inside: whether it is in the filter.
        position: from 1; None where it is not in the filter, beyond COUNT_CAP, or not known.
        count: of the filter's rows.
        unsure: which of `previous` and `next` may be there, further away than was looked in time.
    """

    previous: int | None
    next: int | None
    inside: bool
    position: int | None
    count: Count
    unsure: tuple[str, ...] = ()


def page(db: Database, run_id: int, filter: RolloutFilter, *, after: Cursor | None = None, limit: int = 50) -> Page:  # noqa: A002
    """Keyset paging on (sort key, id); rows without the sort key come last, by id in the order's own direction."""
    place = None if after is None else (after.key, after.id)
    with Session(db) as session:
        rows = in_order(session, run_id, filter, place, limit + 1)
    more = len(rows) > limit
    rows = rows[:limit]
    return Page(rows, Cursor(*place_of(rows[-1], filter.sort)) if more else None)


def window(db: Database, run_id: int, filter: RolloutFilter) -> Span:  # noqa: A002
    """Where to count what a filter leaves of a large run: see `common.WINDOW`."""
    with Session(db) as session:
        return newest_ids(session, run_id, filter.range("step").high, WINDOW)


def newest_row(db: Database, run_id: int, filter: RolloutFilter) -> int:  # noqa: A002
    """The highest id of its rows; 0 where it has none."""
    top = page(db, run_id, replace(filter, sort=Sort.NEWEST), limit=1).rows
    return top[0].id or 0 if top else 0


def count(db: Database, run_id: int, filter: RolloutFilter, *, span: Span | None = None) -> Count:  # noqa: A002
    """Up to COUNT_CAP; where a span is given, of its rows alone, and so never exact."""
    with Session(db) as session:
        found = counted(session, conditions(run_id, filter, Use.NUMBER, span))
        return found if span is None else replace(found, exact=False)


def exact_count(db: Database, run_id: int, filter: RolloutFilter) -> int:  # noqa: A002
    """Of all its rows, however many: for an export, which reads them anyway."""
    query = select(func.count()).select_from(EvaluationRow).where(*conditions(run_id, filter, Use.NUMBER))
    with Session(db) as session:
        return session.scalar(query) or 0


def mean_reward(
    db: Database, run_id: int, filter: RolloutFilter, *, span: Span | None = None  # noqa: A002
) -> float | None:  # fmt: skip
    """Over the filter's rows that have one, those of a span where one is given; None where none has."""
    query: Any = select(mean(col(EvaluationRow.reward))).where(*conditions(run_id, filter, Use.NUMBER, span))
    if in_statistics(filter):
        sums = total(col(StepStatistics.reward_sum)) / func.nullif(whole_sum(col(StepStatistics.scored)), 0)
        query = select(sums).where(*statistics_conditions(run_id, filter))
    with Session(db) as session:
        found: float | None = session.scalar(query)
    return found


def rollout(db: Database, run_id: int, row_id: int) -> Rollout:
    """Everything of one rollout.

    Raises:
        RolloutNotFoundError: the run has no rollout of that id.
    """
    with Session(db) as session:
        found = read(session, run_id, col(EvaluationRow.run_id) == run_id, col(EvaluationRow.id) == row_id)
    if not found:
        raise RolloutNotFoundError(f"This run has no rollout {row_id}. It may belong to another run of the database.")
    return found[0]


def image(db: Database, hash: str) -> Image:  # noqa: A002
    """An image that an observation refers to.

    Raises:
        ImageNotFoundError: there is none of that hash.
    """
    with Session(db) as session:
        found = session.get(Image, hash)
    if found is None:
        raise ImageNotFoundError(
            f"There is no image {hash[:64]!r}. What refers to it may have been recorded elsewhere."
        )
    return found


def neighbours(
    db: Database, run_id: int, filter: RolloutFilter, row: EvaluationRow, *, total: Count | None = None  # noqa: A002
) -> Neighbours:  # fmt: skip
    """Where `row` stands in the filter's order, or would stand. `total` is `count` of it, where that is known."""
    place = place_of(row, filter.sort)
    selected = conditions(run_id, filter, Use.ROWS)
    with Session(db) as session:
        previous = in_order(session, run_id, filter, place, 1, backwards=True)
        following = in_order(session, run_id, filter, place, 1)
        itself = session.scalar(select(col(EvaluationRow.id)).where(*selected, col(EvaluationRow.id) == row.id))
        before = 0
        for section in sections(filter, place, backwards=True) if itself is not None else []:
            before += counted(session, [*selected, *section.conditions]).value
        total = total or counted(session, conditions(run_id, filter, Use.NUMBER))
    return Neighbours(
        previous=previous[0].id if previous else None,
        next=following[0].id if following else None,
        inside=itself is not None,
        position=None if itself is None or before >= COUNT_CAP else before + 1,
        count=total,
    )


def group_of(db: Database, row: EvaluationRow) -> list[EvaluationRow]:
    """All rows of its group, by generation."""
    of_group = (col(EvaluationRow.group) == row.group, col(EvaluationRow.run_id) == row.run_id)
    query = select(EvaluationRow).where(*of_group).order_by(col(EvaluationRow.generation), col(EvaluationRow.id))
    with Session(db) as session:
        return shown(session, row.run_id, session.scalars(query))


def new_since(db: Database, run_id: int, filter: RolloutFilter, row_id: int) -> Count:  # noqa: A002
    """How many rows of the filter have a higher id."""
    with Session(db) as session:
        return counted(session, [*conditions(run_id, filter, Use.ROWS), col(EvaluationRow.id) > row_id])


def rollouts(db: Database, run_id: int, filter: RolloutFilter, *, chunk: int = 200) -> Iterator[list[Rollout]]:  # noqa: A002
    """All of them, oldest first, in reads that are short, as a long one would pin the write-ahead log, and small: of
    at most `chunk` rows, and of fewer where they are large.

    Raises:
        DatabaseError: the payload of one is damaged.
    """
    of_id = col(EvaluationRow.id)
    last: int | None = 0
    while last is not None:
        with Session(db) as session, planning(session.connection()):
            ids = session.scalars(ids_after(run_id, filter, last, chunk)).all()
            found = read(session, run_id, of_id.in_(ids))
        last = found[-1].row.id if found else None
        if found:
            yield found
        del found  # before the next is read


def ids_after(run_id: int, filter: RolloutFilter, last: int, chunk: int) -> Select[Any]:  # noqa: A002
    """Of the filter's next rows behind the id `last`, oldest first. The ids alone: where no index has their order,
    SQLite sorts what it reads.
    """
    (section,) = sections(replace(filter, sort=Sort.OLDEST), (None, last))
    query = select(col(EvaluationRow.id)).where(*conditions(run_id, filter, Use.ROWS)).limit(chunk)
    return query.where(*section.conditions).order_by(*section.order)


def in_order(
    session: Session,
    run_id: int,
    filter: RolloutFilter,  # noqa: A002
    after: Place | None,
    limit: int,
    *,
    backwards: bool = False,
    span: Span | None = None,
) -> list[EvaluationRow]:
    """The first ones from a place on, or those before it; of a span's rows where one is given."""
    rows: list[EvaluationRow] = []
    selected = conditions(run_id, filter, Use.ROWS, span)
    for section in sections(filter, after, backwards=backwards):
        rows += _in_section(session, selected, section, limit - len(rows), by_id=is_listed(filter))
        if len(rows) == limit:
            break
    return shown(session, run_id, rows)


def _in_section(
    session: Session, selected: list[ColumnElement[bool]], section: Section, limit: int, *, by_id: bool = False
) -> list[EvaluationRow]:
    """The first rows of a section, read in an index's order; of the last key, more rows may share it than were read.
    With `by_id` the ids of them are sorted, not all of their columns, where they come from a list.
    """
    query = select(EvaluationRow).where(*selected)
    if by_id:
        ids = select(col(EvaluationRow.id)).where(*selected, *section.conditions).order_by(*section.order).limit(limit)
        if not (few := session.scalars(ids).all()):
            return []
        query = select(EvaluationRow).where(col(EvaluationRow.id).in_(few))
    rows = list(session.scalars(query.where(*section.conditions).order_by(*section.order).limit(limit)))
    if section.ties is None or not rows:
        return rows
    key = attrgetter(section.ties.name)
    last = key(rows[-1])
    found = [row for value, tied in groupby(rows, key) if value != last for row in reversed(list(tied))]
    of_last = select(EvaluationRow).where(*selected, section.ties.key == last).order_by(*section.ties.order)
    return found + list(session.scalars(of_last.limit(limit - len(found))))


def read(session: Session, run_id: int, *selected: ColumnElement[bool]) -> list[Rollout]:
    """By id; those after the first only as far as all come to _CHUNK_BYTES."""
    query: Any = _WITH_PAYLOADS.where(*selected).order_by(col(EvaluationRow.id)).execution_options(yield_per=_AT_ONCE)
    found: list[Rollout] = []
    size = 0
    for row, *packed in session.execute(query):
        content, tokens = packed[:2], packed[2:]
        found.append(_rollout(row, content, tokens))
        size += unpacked_size(*content) + unpacked_size(*tokens)
        if size > _CHUNK_BYTES:
            break
    shown(session, run_id, (rollout.row for rollout in found))
    return found


def _rollout(row: EvaluationRow, packed_content: Sequence[bytes | None], tokens: Sequence[bytes | None]) -> Rollout:
    """Of payloads, each with its start."""
    try:
        content = unpack_content(*packed_content)
        return Rollout(
            row=row,
            messages=content.get("messages") or [],
            actions=content.get("actions") or [],
            sampling=content.get("sampling") or {},
            metadata=content.get("metadata") or {},
            tokens=unpack_tokens(*tokens),
        )
    except Exception as error:  # zstd, JSON, numpy: each has its own for bytes that are not what they were
        raise DatabaseError(
            f"What was recorded of rollout {row.id} is damaged ({type(error).__name__}). Restore the database from a "
            f"copy, or do without it: delete the row_id {row.id} from the table rollout_payload."
        ) from error
