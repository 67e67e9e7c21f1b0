"""Reads rollouts: a page, all of a filter, a single one."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from operator import attrgetter
from typing import Any

from sqlalchemy import ColumnElement, Select, func, select
from sqlalchemy.orm import Session
from sqlmodel import col

from logs_ui.recorder.errors import DatabaseError, ImageNotFoundError, RolloutNotFoundError
from logs_ui.recorder.queries.common import COUNT_CAP, WINDOW, Count, Database, as_shown, count_up_to_cap, newest_ids
from logs_ui.recorder.queries.filters.rollout_filter import Order, RolloutFilter, Sort
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
from logs_ui.recorder.vocabulary import SCORING

_CHUNK_BYTES = 32 << 20  # unpacked payloads in memory at once; a larger rollout is read alone

_WITH_PAYLOADS = with_payloads(select(EvaluationRow))
_AT_ONCE = 10  # packed payloads fetched at once


@dataclass(frozen=True)
class Cursor:
    """Marks the end of a page: the sort key and the id of its last row. `key` is None for rows without the key, which
    come last. An order by id needs no key; there it is the number of rollouts scanned so far, if no index serves the
    filter.
    """

    key: float | int | str | None
    id: int


@dataclass(frozen=True)
class Page:
    """Holds some rows in order."""

    rows: list[EvaluationRow]
    next: Cursor | None  # where the next page begins; None at the end
    # Number of rollouts scanned so far, if the scan was stopped by its time limit, or the run is too large to be
    # sorted; None if the page is complete.
    looked_at: int | None = None


@dataclass(frozen=True)
class Rollout:
    """Holds one row with its payload. Actions are dicts of turn, text, action, observation, reward, done, metadata,
    seconds, error, and `generation` for recorded model calls; turn 0 is the reset. Calls of reward functions also have
    phase ("scoring"), function and evidence.
    """

    row: EvaluationRow
    messages: list[dict[str, Any]]  # in OpenAI's chat format: role, content, reasoning_content, tool_calls, name
    actions: list[dict[str, Any]]
    sampling: dict[str, Any]  # sampling parameters of its generations
    metadata: dict[str, Any]  # everything else: attribution, traceback, extra fields of the rollout function, ...
    tokens: Tokens | None  # None before the rollout returned

    @property
    def own_actions(self) -> list[dict[str, Any]]:
        """Return the actions of the rollout itself, without the calls of reward functions."""
        return [action for action in self.actions if action.get("phase") != SCORING]


@dataclass(frozen=True)
class Neighbours:
    """Describes a rollout's place in a filter's order; if the filter does not select it, where it would be."""

    previous: int | None  # id of the rollout before; None at the beginning, or if none was found in time
    next: int | None  # likewise after it
    inside: bool  # the filter selects it
    position: int | None  # from 1; None if the filter does not select it, beyond COUNT_CAP, or if it is not known
    count: Count  # of the filter's rows
    unsure: tuple[str, ...] = ()  # those of `previous` and `next` that may exist, but were not found in time


def page(db: Database, run_id: int, filter: RolloutFilter, *, after: Cursor | None = None, limit: int = 50) -> Page:  # noqa: A002
    """Return a page, by keyset paging on (sort key, id); rows without the key come last, by id in its direction."""
    place = None if after is None else (after.key, after.id)
    with Session(db) as session:
        return page_of(session, in_order(session, run_id, filter, place, limit + 1), filter.sort, limit)


def page_of(session: Session, rows: list[EvaluationRow], sort: Order, limit: int, looked_at: int | None = None) -> Page:
    """Return the first `limit` rows as a page, which is the last one if there are no more."""
    following = Cursor(*place_of(session, rows[limit - 1], sort)) if len(rows) > limit else None
    return Page(rows[:limit], following, looked_at)


def window(db: Database, run_id: int, filter: RolloutFilter) -> Span:  # noqa: A002
    """Return the ids to count in, if the run is large and no index serves the filter: see `common.WINDOW`."""
    with Session(db) as session:
        return newest_ids(session, run_id, filter.range("step").high, WINDOW)


def newest_row(db: Database, run_id: int, filter: RolloutFilter) -> int:  # noqa: A002
    """Return the highest id of the filter's rows; 0 if it has none."""
    top = page(db, run_id, replace(filter, sort=Sort.NEWEST), limit=1).rows
    return top[0].id or 0 if top else 0


def count(db: Database, run_id: int, filter: RolloutFilter, *, span: Span | None = None) -> Count:  # noqa: A002
    """Count the filter's rows, up to COUNT_CAP. Within a span of ids the count is never exact."""
    with Session(db) as session:
        number = count_up_to_cap(session, conditions(run_id, filter, Use.NUMBER, span))
        return number if span is None else replace(number, exact=False)


def exact_count(db: Database, run_id: int, filter: RolloutFilter) -> int:  # noqa: A002
    """Count all of the filter's rows, for an export, which reads them anyway."""
    query = select(func.count()).select_from(EvaluationRow).where(*conditions(run_id, filter, Use.NUMBER))
    with Session(db) as session:
        return session.scalar(query) or 0


def mean_reward(
    db: Database, run_id: int, filter: RolloutFilter, *, span: Span | None = None  # noqa: A002
) -> float | None:  # fmt: skip
    """Return the mean reward of the filter's rows, within a span of ids if given; None if no row has a reward."""
    query: Any = select(mean(col(EvaluationRow.reward))).where(*conditions(run_id, filter, Use.NUMBER, span))
    if in_statistics(filter):
        sums = total(col(StepStatistics.reward_sum)) / func.nullif(whole_sum(col(StepStatistics.scored)), 0)
        query = select(sums).where(*statistics_conditions(run_id, filter))
    with Session(db) as session:
        value: float | None = session.scalar(query)
    return value


def rollout(db: Database, run_id: int, row_id: int) -> Rollout:
    """Read one rollout with its payload. Raise RolloutNotFoundError if the run has no rollout of that id."""
    with Session(db) as session:
        matches = read_rollouts(session, run_id, col(EvaluationRow.run_id) == run_id, col(EvaluationRow.id) == row_id)
    if not matches:
        raise RolloutNotFoundError(f"This run has no rollout {row_id}. It may belong to another run of the database.")
    return matches[0]


def image(db: Database, hash: str) -> Image:  # noqa: A002
    """Return an image that an observation refers to. Raise ImageNotFoundError if there is none of that hash."""
    with Session(db) as session:
        row = session.get(Image, hash)
    if row is None:
        where = "The rollout may have been recorded in another one."
        raise ImageNotFoundError(f"There is no image {hash[:64]!r} in this database. {where}")
    return row


def neighbours(
    db: Database, run_id: int, filter: RolloutFilter, row: EvaluationRow, *, total: Count | None = None  # noqa: A002
) -> Neighbours:  # fmt: skip
    """Return the place of `row` in the filter's order. `total` is the filter's count, if the caller has it."""
    selected = conditions(run_id, filter, Use.ROWS)
    with Session(db) as session:
        place = place_of(session, row, filter.sort)
        previous = in_order(session, run_id, filter, place, 1, backwards=True)
        following = in_order(session, run_id, filter, place, 1)
        itself = session.scalar(select(col(EvaluationRow.id)).where(*selected, col(EvaluationRow.id) == row.id))
        ahead = sections(filter, place, backwards=True) if itself is not None else []
        before = sum(count_up_to_cap(session, [*selected, *section.conditions]).value for section in ahead)
        total = total or count_up_to_cap(session, conditions(run_id, filter, Use.NUMBER))
    return Neighbours(
        previous=previous[0].id if previous else None,
        next=following[0].id if following else None,
        inside=itself is not None,
        position=None if itself is None or before >= COUNT_CAP else before + 1,
        count=total,
    )


def new_since(db: Database, run_id: int, filter: RolloutFilter, row_id: int) -> Count:  # noqa: A002
    """Count the filter's rows with a higher id."""
    with Session(db) as session:
        return count_up_to_cap(session, [*conditions(run_id, filter, Use.ROWS), col(EvaluationRow.id) > row_id])


def rollouts(db: Database, run_id: int, filter: RolloutFilter, *, chunk: int = 200) -> Iterator[list[Rollout]]:  # noqa: A002
    """Read all rollouts of a filter, oldest first, in chunks of at most `chunk` rows, or fewer if they are large. A
    single long read would keep the write-ahead log from being reused. Raise DatabaseError if the payload of one is
    damaged.
    """
    of_id = col(EvaluationRow.id)
    last: int | None = 0
    while last is not None:
        with Session(db) as session, planning(session.connection()):
            ids = session.scalars(ids_after(run_id, filter, last, chunk)).all()
            batch = read_rollouts(session, run_id, of_id.in_(ids))
        last = batch[-1].row.id if batch else None
        if batch:
            yield batch
        del batch  # before the next is read


def ids_after(run_id: int, filter: RolloutFilter, last: int, chunk: int) -> Select[Any]:  # noqa: A002
    """Return a SELECT of the filter's next ids after `last`, oldest first. Ids alone, since SQLite sorts all columns
    that it reads if no index has the order.
    """
    (section,) = sections(replace(filter, sort=Sort.OLDEST), (None, last))
    query = select(col(EvaluationRow.id)).where(*conditions(run_id, filter, Use.ROWS)).limit(chunk)
    return query.where(*section.conditions).order_by(*section.order)


def in_order(
    session: Session, run_id: int, filter: RolloutFilter, after: Place | None, limit: int, *,  # noqa: A002
    backwards: bool = False, span: Span | None = None,
) -> list[EvaluationRow]:  # fmt: skip
    """Return the first rows after a place, or before it; within a span of ids if one is given."""
    rows: list[EvaluationRow] = []
    selected = conditions(run_id, filter, Use.ROWS, span)
    for section in sections(filter, after, backwards=backwards):
        rows += _in_section(session, selected, section, limit - len(rows), by_id=is_listed(filter))
        if len(rows) == limit:
            break
    return as_shown(session, run_id, rows)


def _in_section(
    session: Session, selected: list[ColumnElement[bool]], section: Section, limit: int, *, by_id: bool = False
) -> list[EvaluationRow]:
    """Return the first rows of a section, in an index's order.

    Rows that share the last key may be more than were read, and are read again in their own order: see `Ties`. With
    `by_id` the rows come from a list of ids, and only ids are sorted, not all columns.
    """
    query = select(EvaluationRow).where(*selected)
    if by_id:
        ids = select(col(EvaluationRow.id)).where(*selected, *section.conditions).order_by(*section.order).limit(limit)
        if not (matching := session.scalars(ids).all()):
            return []
        query = select(EvaluationRow).where(col(EvaluationRow.id).in_(matching))
    rows = list(session.scalars(query.where(*section.conditions).order_by(*section.order).limit(limit)))
    if section.ties is None or not rows:
        return rows
    key = attrgetter(section.ties.name)
    last = key(rows[-1])
    complete = [row for value, tied in groupby(rows, key) if value != last for row in reversed(list(tied))]
    of_last = select(EvaluationRow).where(*selected, section.ties.key == last).order_by(*section.ties.order)
    return complete + list(session.scalars(of_last.limit(limit - len(complete))))


def read_rollouts(session: Session, run_id: int, *selected: ColumnElement[bool]) -> list[Rollout]:
    """Read rollouts by id, until their payloads exceed _CHUNK_BYTES; always at least one."""
    query: Any = _WITH_PAYLOADS.where(*selected).order_by(col(EvaluationRow.id)).execution_options(yield_per=_AT_ONCE)
    batch: list[Rollout] = []
    size = 0
    for row, *packed in session.execute(query):
        batch.append(_rollout(row, packed[:2], packed[2:]))
        size += unpacked_size(*packed[:2]) + unpacked_size(*packed[2:])
        if size > _CHUNK_BYTES:
            break
    as_shown(session, run_id, (rollout.row for rollout in batch))
    return batch


def _rollout(row: EvaluationRow, packed_content: Sequence[bytes | None], tokens: Sequence[bytes | None]) -> Rollout:
    """Unpack payloads, each given with its shared prompt."""
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
    except Exception as error:  # zstd, JSON and numpy each raise errors of their own for damaged bytes
        raise DatabaseError(
            f"The payload of rollout {row.id} is damaged ({type(error).__name__}). Restore the database from a copy, "
            "or save the rest of an SQLite file: logs-ui db recover OLD NEW"
        ) from error
