"""Every SELECT. Connections come from `database.py`; pages, pandas and the command line read through here alone.

Rows are given as `_shown` has them: what ran when its process died was aborted.
"""

import time
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import groupby
from operator import attrgetter, itemgetter
from typing import Any

import zstandard
from sqlalchemy import ColumnElement, Connection, Engine, Integer, case, cast, func, literal, or_, select
from sqlalchemy.orm import Session
from sqlmodel import col

from logs_ui.recorder.errors import DatabaseError, ImageNotFoundError, RolloutNotFoundError, RunNotFoundError
from logs_ui.recorder.filters import RolloutFilter, Scored, Sort, nearest
from logs_ui.recorder.models import (
    EvaluationRow,
    Image,
    Mode,
    RolloutPayload,
    Run,
    RunState,
    Scalar,
    Status,
    StepStatistics,
    StopReason,
)
from logs_ui.recorder.payload import Tokens, unpack_content, unpack_tokens
from logs_ui.recorder.selection import (
    DIED_AFTER_US,
    Place,
    Section,
    Use,
    conditions,
    in_statistics,
    lost_until,
    place_of,
    sections,
    statistics_conditions,
)
from logs_ui.recorder.totals import Totals, totals

MOST_TASKS = 50
"""Tasks that `facets` counts, at most, beside those that the filter names."""

Database = Engine | Connection
"""What is read. A connection's transaction shows one moment, however many of these are asked; an engine, which takes a
connection for each, the moment of each.
"""

COUNT_CAP = 10_000
"""Counts stop here (`Count.exact` is then False): at a million rows an exact one takes 260 ms, a capped one 1.5."""


_LOST = "The process ended in the middle of the rollout"  # as a process says that can still say it
_CHUNK_BYTES = 32 << 20  # unpacked, of the rollouts that are held in memory together; one that has more comes alone
_AT_ONCE = 10  # packed payloads in memory
_LARGEST = 1e300  # of a reward in a histogram: an infinite one would leave no room for the others


@dataclass(frozen=True)
class RunSummary:
    """A run as the list of runs shows it.

    Attributes:
        state: a RunState, or `died`.
        is_evaluation: whether it has rollouts, none of them is of a training, and none is planned.
        rollouts: how many there are; over all modes.
        steps: highest step seen; 0 before the first.
        reward: mean over the last 10 train steps that have one, weighted by rollouts; of an evaluation, over all of its
            rollouts that have one. None where none has.
        reward_curve: one (step, mean reward) for each train step, or step of an evaluation, that has one, thinned to at
            most 120 points.
        truncated, errors: shares of the rollouts that came to an end, 0 to 1; None where none did.
    """

    run: Run
    state: str
    is_evaluation: bool
    rollouts: int
    steps: int
    reward: float | None
    reward_curve: tuple[tuple[int, float], ...]
    truncated: float | None
    errors: float | None
    eval_names: tuple[str, ...]

    @property
    def has_steps(self) -> bool:
        """Whether a step says anything of its rollouts: an evaluation's are all of step 0 where it names none."""
        return self.steps > 0 or not self.is_evaluation


@dataclass(frozen=True)
class Count:
    """How many rows; at least `value` where not exact."""

    value: int
    exact: bool


@dataclass(frozen=True)
class Cursor:
    """Where a page ended: the sort key and the id of its last row.

    `key` is None for rows that lack the key: they come last.
    """

    key: float | int | None
    id: int


@dataclass(frozen=True)
class Page:
    """Some rows in order, and where the next begins (None at the end)."""

    rows: list[EvaluationRow]
    next: Cursor | None


@dataclass(frozen=True)
class Facets:
    """How many rows each value would give under the other parts of the filter: (value, count).

    The values and their order are the run's own, whatever the filter, so that nothing moves under a reader's hand: all
    that its rows have, in the order of their enum, else by name. `tasks` holds the 50 most frequent of the run.
    """

    evals: list[tuple[str, int]]
    modes: list[tuple[str, int]]
    statuses: list[tuple[str, int]]
    stop_reasons: list[tuple[str, int]]
    scored: list[tuple[str, int]]
    tasks: list[tuple[str, int]]


@dataclass(frozen=True)
class Histogram:
    """Rewards in bins of equal width: `counts[i]` of [low + i*width, low + (i+1)*width), the last one closed."""

    low: float
    width: float
    counts: tuple[int, ...]


@dataclass(frozen=True)
class ScalarCurve:
    """A figure that the trainer logs: (step, value), None where it was no finite number."""

    name: str
    points: tuple[tuple[int, float | None], ...]


@dataclass(frozen=True)
class Rollout:
    """One row with all that was recorded of it.

    Attributes:
        messages: OpenAI's chat form: role, content, optionally reasoning_content, tool_calls, name.
        actions: dicts of turn, text, action, observation, reward, done, metadata, seconds, error. Turn 0 is the reset.
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
        previous, next: ids of the one before and after; None at the ends. A rollout that is not in the filter has those
            between which it would stand.
        inside: whether it is in the filter.
        position: from 1; None where it is not in the filter, or beyond COUNT_CAP.
        count: of the filter's rows.
    """

    previous: int | None
    next: int | None
    inside: bool
    position: int | None
    count: Count


def all_runs(db: Database, *, now: int | None = None) -> list[RunSummary]:
    """Newest first. `now`, in µs since the epoch, is what heartbeats are held against; the clock's by default."""
    with Session(db) as session:
        runs = session.scalars(select(Run).order_by(col(Run.created).desc(), col(Run.id).desc())).all()
        found = totals(session)
    return [_summary(run, found.get(run.id or 0, Totals()), now) for run in runs]


def run_uids(db: Database) -> set[str]:
    """Of all runs."""
    with Session(db) as session:
        return set(session.scalars(select(col(Run.uid))))


def find_run(db: Database, name: str) -> Run:
    """By uid, `latest`, a name (the newest of that name), or a unique prefix of a uid. In that order.

    Raises:
        RunNotFoundError: none, or several by prefix; names the nearest.
    """
    newest = (col(Run.created).desc(), col(Run.id).desc())
    runs = select(Run).order_by(*newest)
    latest = [runs] if name == "latest" else []
    exact = [runs.where(col(Run.uid) == name), *latest, runs.where(col(Run.name) == name)]
    begins = func.substr(col(Run.uid), 1, len(name)) == name
    with Session(db) as session:
        for query in exact:
            found = session.scalars(query.limit(1)).first()
            if found is not None:
                return found
        by_prefix = session.scalars(runs.where(begins)).all() if name else []
        if len(by_prefix) == 1:
            return by_prefix[0]
        known = session.execute(select(col(Run.uid), col(Run.name)).order_by(*newest).limit(1000)).all()
    raise RunNotFoundError(_not_found(name, [run.uid for run in by_prefix], [(uid, named) for uid, named in known]))


def run_summary(db: Database, run_id: int, *, now: int | None = None) -> RunSummary:
    """As `all_runs` has it.

    Raises:
        RunNotFoundError: no such run.
    """
    with Session(db) as session:
        run = session.get(Run, run_id)
        found = totals(session, run_id)
    if run is None:
        raise RunNotFoundError(f"There is no run with the number {run_id}.")
    return _summary(run, found.get(run_id, Totals()), now)


def known_values(db: Database, run_id: int) -> dict[str, list[str]]:
    """The run's distinct `eval` and `task` values (a loose index scan: never a DISTINCT over all rows)."""
    row_task, of_run = col(EvaluationRow.task), col(EvaluationRow.run_id) == run_id
    tasks = select(func.min(row_task).label("task")).where(of_run).cte("tasks", recursive=True)
    following = select(func.min(row_task)).where(of_run, row_task > tasks.c.task).scalar_subquery()
    tasks = tasks.union_all(select(following).where(tasks.c.task.is_not(None)))
    evals = select(col(StepStatistics.eval_name)).where(col(StepStatistics.run_id) == run_id).distinct()
    with Session(db) as session:
        return {
            "eval": sorted(session.scalars(evals)),
            "task": list(session.scalars(select(tasks.c.task).where(tasks.c.task.is_not(None)))),
        }


def page(db: Database, run_id: int, filter: RolloutFilter, *, after: Cursor | None = None, limit: int = 50) -> Page:  # noqa: A002
    """Keyset paging on (sort key, id); rows without the sort key come last, by id in the order's own direction."""
    place = None if after is None else (after.key, after.id)
    with Session(db) as session:
        rows = _in_order(session, run_id, filter, place, limit + 1)
    more = len(rows) > limit
    rows = rows[:limit]
    return Page(rows, Cursor(*place_of(rows[-1], filter.sort)) if more else None)


def count(db: Database, run_id: int, filter: RolloutFilter) -> Count:  # noqa: A002
    """Up to COUNT_CAP."""
    with Session(db) as session:
        return _count(session, conditions(run_id, filter, Use.NUMBER))


def exact_count(db: Database, run_id: int, filter: RolloutFilter) -> int:  # noqa: A002
    """Of all its rows, however many: for an export, which reads them anyway."""
    query = select(func.count()).select_from(EvaluationRow).where(*conditions(run_id, filter, Use.NUMBER))
    with Session(db) as session:
        return session.scalar(query) or 0


def mean_reward(db: Database, run_id: int, filter: RolloutFilter) -> float | None:  # noqa: A002
    """Over the filter's rows that have one; None where none has."""
    query = select(func.avg(col(EvaluationRow.reward))).where(*conditions(run_id, filter, Use.NUMBER))
    if in_statistics(filter):
        sums = func.sum(col(StepStatistics.reward_sum)) / func.nullif(func.sum(col(StepStatistics.scored)), 0)
        query = select(sums).where(*statistics_conditions(run_id, filter))
    with Session(db) as session:
        return session.scalar(query)


def facets(db: Database, run_id: int, filter: RolloutFilter) -> Facets:  # noqa: A002
    """Beside the run's own values, those that the filter names are there, too."""
    chosen = [getattr(filter, name) for name in _FACETS]
    ranges = replace(filter, tasks=(), evals=(), modes=(), statuses=(), stop_reasons=(), scored=(), sort=Sort.NEWEST)
    with Session(db) as session:
        found = _kinds(session, run_id, ranges)
        whole = found if ranges == RolloutFilter() else _kinds(session, run_id, RolloutFilter())
    known: list[Counter[str]] = [Counter(dict.fromkeys(values, 0)) for values in chosen]
    for values, number in whole:
        for i, value in enumerate(values):
            known[i].update({value: number} if value is not None else {})
    counts = [dict.fromkeys(of_facet, 0) for of_facet in known]
    for values, number in found:
        misses = [i for i, value in enumerate(values) if chosen[i] and value not in chosen[i]]
        for i in range(len(values)) if not misses else misses if len(misses) == 1 else ():
            value = values[i]
            if value is not None:
                counts[i][value] = counts[i].get(value, 0) + number
    tasks, evals, modes, statuses, stop_reasons, scored = counts
    frequent = {task for task, _ in known[0].most_common(MOST_TASKS)} | set(filter.tasks)
    return Facets(
        evals=sorted(evals.items()),
        modes=_in_known_order(modes, Mode),
        statuses=_in_known_order(statuses, Status),
        stop_reasons=_in_known_order(stop_reasons, StopReason),
        scored=_in_known_order(scored, Scored),
        tasks=sorted((task, number) for task, number in tasks.items() if task in frequent),
    )


def reward_histogram(db: Database, run_id: int, filter: RolloutFilter, bins: int = 24) -> Histogram | None:  # noqa: A002
    """Under the filter less its reward range; None where no row has a reward. The bins span the run's own rewards."""
    reward = col(EvaluationRow.reward)
    of_run = (col(EvaluationRow.run_id) == run_id, reward >= -_LARGEST, reward <= _LARGEST)
    ends = [
        select(end(reward)).where(*of_run).scalar_subquery() for end in (func.min, func.max)
    ]  # two seeks in an index
    selected = conditions(run_id, replace(filter, reward_min=None, reward_max=None), Use.NUMBER)
    with Session(db) as session:
        low, high = session.execute(select(*ends)).one()
        if low is None or high is None:
            return None
        if low == high:  # any width will do: the one reward there is stands in the middle
            low, high = low - 0.5, high + 0.5
        width = (high - low) / bins
        place = cast((reward - low) / width, Integer)
        number = case((place >= bins, bins - 1), else_=place)  # the last bin holds its upper end, too
        finite = func.abs(reward) <= _LARGEST
        found = session.execute(select(number, func.count()).where(*selected, finite).group_by(number)).all()
    counts = {int(place): number_of for place, number_of in found}
    return Histogram(low, width, tuple(counts.get(i, 0) for i in range(bins))) if counts else None


def rollout(db: Database, run_id: int, row_id: int) -> Rollout:
    """Everything of one rollout.

    Raises:
        RolloutNotFoundError: the run has no rollout of that id.
    """
    with Session(db) as session:
        found = _read(session, run_id, col(EvaluationRow.run_id) == run_id, col(EvaluationRow.id) == row_id)
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


def neighbours(db: Database, run_id: int, filter: RolloutFilter, row: EvaluationRow) -> Neighbours:  # noqa: A002
    """Where `row` stands in the filter's order, or would stand."""
    place = place_of(row, filter.sort)
    selected = conditions(run_id, filter, Use.ROWS)
    with Session(db) as session:
        previous = _in_order(session, run_id, filter, place, 1, backwards=True)
        following = _in_order(session, run_id, filter, place, 1)
        itself = session.scalar(select(col(EvaluationRow.id)).where(*selected, col(EvaluationRow.id) == row.id))
        before = 0
        for section in sections(filter, place, backwards=True) if itself is not None else []:
            before += _count(session, [*selected, *section.conditions]).value
        total = _count(session, conditions(run_id, filter, Use.NUMBER))
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
        return _shown(session, row.run_id, session.scalars(query))


def last_change(db: Database, run_id: int) -> int:
    """The run's `changed`: when it has not moved, nothing has. One look-up by primary key.

    Raises:
        RunNotFoundError: no such run.
    """
    with Session(db) as session:
        changed = session.scalar(select(col(Run.changed)).where(col(Run.id) == run_id))
    if changed is None:
        raise RunNotFoundError(f"There is no run with the number {run_id}.")
    return changed


def new_since(db: Database, run_id: int, filter: RolloutFilter, row_id: int) -> Count:  # noqa: A002
    """How many rows of the filter have a higher id."""
    with Session(db) as session:
        return _count(session, [*conditions(run_id, filter, Use.ROWS), col(EvaluationRow.id) > row_id])


def scalars(db: Database, run_id: int) -> list[Scalar]:
    """By name, step."""
    key = (col(Scalar.name), col(Scalar.step))
    with Session(db) as session:
        return list(session.scalars(select(Scalar).where(col(Scalar.run_id) == run_id).order_by(*key)))


def scalar_curves(db: Database, run_id: int, points: int = 200) -> list[ScalarCurve]:
    """By name; of a longer one every n-th point and the last, so that there are at most `points` + 1 of each."""
    name = col(Scalar.name)
    numbered = (
        select(
            name,
            col(Scalar.step),
            col(Scalar.value),
            (func.row_number().over(partition_by=name, order_by=col(Scalar.step)) - 1).label("place"),
            func.count().over(partition_by=name).label("total"),
        )
        .where(col(Scalar.run_id) == run_id)
        .subquery()
    )
    place, total = numbered.c.place, numbered.c.total
    kept = or_(place % ((total + points - 1) / points).cast(Integer) == 0, place == total - 1)
    query = select(numbered.c.name, numbered.c.step, numbered.c.value).where(kept)
    with Session(db) as session:
        found = session.execute(query.order_by(numbered.c.name, numbered.c.step)).all()
    return [
        ScalarCurve(name, tuple((step, value) for _, step, value in of_curve))
        for name, of_curve in groupby(found, itemgetter(0))
    ]


def last_logged_step(db: Database, run_id: int) -> int | None:
    """The highest step that has a scalar; None where none has."""
    with Session(db) as session:
        return session.scalar(select(func.max(col(Scalar.step))).where(col(Scalar.run_id) == run_id))


def rollouts(db: Database, run_id: int, filter: RolloutFilter, *, chunk: int = 500) -> Iterator[list[Rollout]]:  # noqa: A002
    """All of them, oldest first, in reads that are short, as a long one would pin the write-ahead log, and small: of
    at most `chunk` rows, and of fewer where they are large.

    Raises:
        DatabaseError: the payload of one is damaged.
    """
    of_id = col(EvaluationRow.id)
    query = select(of_id).where(*conditions(run_id, filter, Use.ROWS)).limit(chunk)
    last: int | None = 0
    while last is not None:
        (section,) = sections(replace(filter, sort=Sort.OLDEST), (None, last))
        with Session(db) as session:
            # The ids alone first: where no index has their order, SQLite sorts what it reads.
            ids = session.scalars(query.where(*section.conditions).order_by(*section.order)).all()
            found = _read(session, run_id, of_id.in_(ids))
        last = found[-1].row.id if found else None
        if found:
            yield found


def _in_order(
    session: Session,
    run_id: int,
    filter: RolloutFilter,  # noqa: A002
    after: Place | None,
    limit: int,
    *,
    backwards: bool = False,
) -> list[EvaluationRow]:
    rows: list[EvaluationRow] = []
    selected = conditions(run_id, filter, Use.ROWS)
    for section in sections(filter, after, backwards=backwards):
        rows += _in_section(session, selected, section, limit - len(rows))
        if len(rows) == limit:
            break
    return _shown(session, run_id, rows)


def _in_section(
    session: Session, selected: list[ColumnElement[bool]], section: Section, limit: int
) -> list[EvaluationRow]:
    """The first rows of a section, read in an index's order; of the last key, more rows may share it than were read."""
    query = select(EvaluationRow).where(*selected)
    rows = list(session.scalars(query.where(*section.conditions).order_by(*section.order).limit(limit)))
    if section.ties is None or not rows:
        return rows
    key = attrgetter(section.ties.name)
    last = key(rows[-1])
    found = [row for value, tied in groupby(rows, key) if value != last for row in reversed(list(tied))]
    of_last = query.where(section.ties.key == last).order_by(*section.ties.order)
    return found + list(session.scalars(of_last.limit(limit - len(found))))


def _count(session: Session, selected: list[ColumnElement[bool]]) -> Count:
    capped = select(literal(1)).select_from(EvaluationRow).where(*selected).limit(COUNT_CAP + 1).subquery()
    found = session.scalar(select(func.count()).select_from(capped)) or 0
    return Count(min(found, COUNT_CAP), found <= COUNT_CAP)


_FACETS = ("tasks", "evals", "modes", "statuses", "stop_reasons", "scored")
_Kinds = list[tuple[tuple[str | None, ...], int]]


def _kinds(session: Session, run_id: int, filter: RolloutFilter) -> _Kinds:  # noqa: A002
    """How many rows there are of each combination of shown values, in the order of _FACETS."""
    row = EvaluationRow
    # In one pass, in the order of the index that covers them.
    columns = [col(column) for column in (row.task, row.eval_name, row.mode, row.status, row.stop_reason)]
    grouped = select(*columns, func.count(), func.count(col(row.reward))).group_by(*columns)
    # Not grouped in SQL: that order would tempt SQLite away from the index of rewards, where the few that lack one are.
    awaiting = conditions(run_id, replace(filter, scored=(Scored.AWAITING.value,)), Use.KINDS)
    awaited = Counter(tuple(values) for values in session.execute(select(*columns).where(*awaiting)))
    aborted = conditions(run_id, replace(filter, statuses=(Status.ABORTED.value,)), Use.KINDS)
    lost = select(*columns, col(row.reward).is_not(None)).where(*aborted, col(row.status) == Status.RUNNING)
    found: Counter[tuple[str | None, ...]] = Counter()
    for *values, number, scored in session.execute(grouped.where(*conditions(run_id, filter, Use.KINDS))):
        waiting = awaited[tuple(values)]
        ended = values[3] in {Status.OK, Status.ERROR}
        parts = {Scored.YES: scored, Scored.AWAITING: waiting, Scored.NO if ended else None: number - scored - waiting}
        found.update({(*values, part): of_part for part, of_part in parts.items()})
    for *values, is_scored in session.execute(lost):
        part = Scored.YES if is_scored else None
        found[*values, part] -= 1
        found[*values[:3], Status.ABORTED.value, StopReason.ABORTED.value, part] += 1
    return [(values, number) for values, number in found.items() if number > 0]


def _read(session: Session, run_id: int, *selected: ColumnElement[bool]) -> list[Rollout]:
    """By id; those after the first only as far as all come to _CHUNK_BYTES."""
    query = (
        select(EvaluationRow, RolloutPayload)
        .outerjoin(RolloutPayload, col(RolloutPayload.row_id) == col(EvaluationRow.id))
        .where(*selected)
        .order_by(col(EvaluationRow.id))
        .execution_options(yield_per=_AT_ONCE)
    )
    found: list[Rollout] = []
    size = 0
    for row, payload in session.execute(query):
        found.append(_rollout(row, payload))
        size += _unpacked_size(payload)
        if size > _CHUNK_BYTES:
            break
    _shown(session, run_id, (rollout.row for rollout in found))
    return found


def _shown(session: Session, run_id: int, stored: Iterable[EvaluationRow]) -> list[EvaluationRow]:
    """The same rows, no longer the session's; those of the run that are lost say so: see `selection.lost_until`."""
    rows = list(stored)
    running = [row for row in rows if row.status == Status.RUNNING]
    session.expunge_all()  # or it would try to write what is shown
    until = (session.scalar(select(lost_until(run_id))) or 0) if running else 0
    for row in running:
        if row.created <= until:
            row.status, row.stop_reason = Status.ABORTED.value, StopReason.ABORTED.value
            row.error = row.error or _LOST
    return rows


def _rollout(row: EvaluationRow, payload: RolloutPayload | None) -> Rollout:
    try:
        content = unpack_content(payload.content if payload else None)
        return Rollout(
            row=row,
            messages=content.get("messages") or [],
            actions=content.get("actions") or [],
            sampling=content.get("sampling") or {},
            metadata=content.get("metadata") or {},
            tokens=unpack_tokens(payload.tokens if payload else None),
        )
    except Exception as error:  # zstd, JSON, numpy: each has its own for bytes that are not what they were
        raise DatabaseError(
            f"What was recorded of rollout {row.id} is damaged ({type(error).__name__}). Restore the database from a "
            f"copy, or do without it: delete the row_id {row.id} from the table rollout_payload."
        ) from error


def _unpacked_size(payload: RolloutPayload | None) -> int:
    """Bytes of its text and token arrays. A text that repeats itself is packed into a thousandth."""
    blobs = (payload.content, payload.tokens) if payload else ()
    return sum(zstandard.frame_content_size(blob) for blob in blobs if blob is not None)


def _in_known_order(counts: dict[str, int], known: type[StrEnum]) -> list[tuple[str, int]]:
    order = {word.value: place for place, word in enumerate(known)}
    return sorted(counts.items(), key=lambda pair: (order.get(pair[0], len(order)), pair[0]))


def _summary(run: Run, of_run: Totals, now: int | None) -> RunSummary:
    now = time.time_ns() // 1000 if now is None else now
    died = run.state == RunState.RUNNING and now - run.heartbeat > DIED_AFTER_US
    if of_run.is_evaluation and run.max_steps is not None:  # a training that is evaluated before its first step
        of_run = replace(of_run, is_evaluation=False, reward=None, reward_curve=())
    return RunSummary(run=run, state="died" if died else run.state, **vars(of_run))


def _not_found(name: str, same_prefix: list[str], known: list[tuple[str, str]]) -> str:
    if not known:
        return "No run is recorded in this database yet."
    if same_prefix:
        return f"Several runs begin with {name!r}: {', '.join(same_prefix[:6])}. Give more of one."
    near = nearest(name, [word for names in known for word in names])
    hint = f"did you mean {near!r}?" if near else f"the newest is {known[0][0]!r}; `latest` means it, too."
    return f"There is no run {name!r}: {hint}"
