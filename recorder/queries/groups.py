"""Reads groups: pages of them, and the rows and payloads of one.

A filter selects the groups of which at least one rollout matches, and such a group is shown with all of its rollouts.
Groups are ordered by their newest rollout that matches.
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, NamedTuple

from sqlalchemy import ColumnElement, func, select
from sqlalchemy.orm import Session
from sqlmodel import col

from logs_ui.recorder.errors import RolloutNotFoundError
from logs_ui.recorder.queries.common import Count, Database, as_shown, bounded
from logs_ui.recorder.queries.filters.rollout_filter import RolloutFilter, Sort
from logs_ui.recorder.queries.rollout_list import Cursor, Rollout, read_rollouts
from logs_ui.recorder.queries.sql.liveness import lost_until
from logs_ui.recorder.queries.sql.matching import ALIKE, Marks, is_solved
from logs_ui.recorder.queries.sql.selection import Section, Use, conditions, sections
from logs_ui.recorder.storage.tables import EvaluationRow, Run
from logs_ui.recorder.vocabulary import Status, StopReason

_CHUNK, _LARGEST_CHUNK = 512, 8_192  # rows per SELECT while groups are searched for
_MOST_NEW = 5_000  # rows that are scanned for new groups

_Row = EvaluationRow
_id: Any = col(EvaluationRow.id)
_run: Any = col(_Row.run_id)
_name, _reward = col(_Row.group), col(_Row.reward)


class Kind(StrEnum):
    """Names kinds of groups by what GRPO learns from their rewards."""

    MIXED = "mixed"
    """They differ, and so does the outcome if it is known: better rollouts are reinforced."""
    SAME_OUTCOME = "same-outcome"
    """They differ, but all rollouts are solved, or none is: only other terms of the reward are reinforced."""
    FAILED = "failed"
    """All equal, and none is solved: no advantage."""
    PASSED = "passed"
    """All equal, and all are solved: no advantage."""
    LEVEL = "level"
    """All equal, and some are solved, or it is not known which: no advantage."""
    UNSCORED = "unscored"
    """Fewer than two rollouts have a reward yet."""


DEAD = (Kind.FAILED, Kind.PASSED, Kind.LEVEL)
"""Kinds of groups with zero variance."""


def kind_of(low: float | None, high: float | None, scored: int, solved: int | None) -> Kind:
    """Return the kind of a group with these lowest and highest rewards, if `scored` of its rollouts have one.

    `solved` is the number of those that are solved; None if it is not known.
    """
    if scored < 2 or low is None or high is None:
        return Kind.UNSCORED
    if not high - low <= ALIKE:  # true for NaN, too
        return Kind.SAME_OUTCOME if solved in {0, scored} else Kind.MIXED
    return Kind.PASSED if solved == scored else Kind.FAILED if solved == 0 else Kind.LEVEL


class Member(NamedTuple):
    """The columns of a rollout that a group's line shows. Rollouts whose process died are `aborted`."""

    id: int
    group: str
    generation: int
    step: int
    mode: str
    eval_name: str
    task: str | None
    status: str
    stop_reason: str | None
    reward: float | None
    scored: int | None
    created: int
    changed: int
    solved: int | None


@dataclass(frozen=True)
class Group:
    """Holds a line of the table of groups."""

    id: int  # of its first rollout; it stands for the group in addresses and on the page
    name: str  # the recorded `group`
    members: tuple[Member, ...]  # by generation
    kind: Kind

    @property
    def rewards(self) -> list[float]:
        """Return the rewards that are known, by generation."""
        return [member.reward for member in self.members if member.reward is not None]

    @property
    def mean(self) -> float | None:
        """Return the mean reward; None without rewards, or if one is too large to be added to others."""
        rewards = self.rewards
        has_mean = bool(rewards) and all(bounded(reward) == reward for reward in rewards)
        return math.fsum(rewards) / len(rewards) if has_mean else None

    @property
    def std(self) -> float | None:
        """Return the standard deviation with n - 1, as in TRL; None for fewer than two rewards."""
        rewards, mean = self.rewards, self.mean
        if mean is None or len(rewards) < 2:
            return None
        return math.sqrt(math.fsum((reward - mean) ** 2 for reward in rewards) / (len(rewards) - 1))

    @property
    def truncated(self) -> int:
        """Return the number of rollouts that hit their token limit."""
        return sum(member.stop_reason == StopReason.LENGTH for member in self.members)

    @property
    def errors(self) -> int:
        """Return the number of rollouts that raised, or whose process died."""
        return sum(member.status in {Status.ERROR, Status.ABORTED} for member in self.members)

    @property
    def changed(self) -> int:
        """Return the highest `changed` of its rows."""
        return max(member.changed for member in self.members)

    @property
    def is_settled(self) -> bool:
        """Return True if all of its rollouts were scored."""
        return all(member.scored is not None for member in self.members)


@dataclass(frozen=True)
class GroupPage:
    """Holds some groups in order, and where the next page begins (None at the end)."""

    groups: list[Group]
    next: Cursor | None


def reward_ends(db: Database, run_id: int) -> list[float]:
    """Return the run's lowest and highest reward, empty without rewards: two seeks in the index of rewards."""
    of_run = (_run == run_id, _reward.is_not(None))
    ends = [select(end(_reward)).where(*of_run).scalar_subquery() for end in (func.min, func.max)]
    with Session(db) as session:
        return [end for end in session.execute(select(*ends)).one() if end is not None]


def newest_groups(
    db: Database, run_id: int, filter: RolloutFilter, marks: Marks, *, after: int | None = None, limit: int = 50  # noqa: A002
) -> GroupPage:  # fmt: skip
    """Return the newest groups whose newest matching row is below `after`; it takes as long in a run of any size."""
    with Session(db) as session:
        places = _walk(session, run_id, filter, after, limit + 1)
    groups = groups_called(db, run_id, [name for name, _ in places[:limit]], marks)
    return GroupPage(groups, Cursor(None, places[limit - 1][1]) if len(places) > limit else None)


def groups_called(db: Database, run_id: int, names: Sequence[str], marks: Marks) -> list[Group]:
    """Return groups of these names, with all of their rollouts, in this order."""
    columns = [getattr(_Row, name) for name in Member._fields[:-1]]
    query = select(*columns, is_solved(marks)).where(_name.in_(names), _run + 0 == run_id)
    members: dict[str, list[Member]] = defaultdict(list)
    until = 0
    with Session(db) as session:
        for values in session.execute(query):
            members[values.group].append(Member._make(values))
        if any(member.status == Status.RUNNING for of_group in members.values() for member in of_group):
            until = session.scalar(select(lost_until(run_id))) or 0
    return [_group(name, members[name], until) for name in names if name in members]


def new_groups(db: Database, run_id: int, filter: RolloutFilter, since_id: int) -> Count:  # noqa: A002
    """Count the groups of the filter all of whose rows have a higher id."""
    newer = select(_name).where(*conditions(run_id, filter, Use.ROWS), since_id < _id).limit(_MOST_NEW)
    with Session(db) as session:
        rows = session.scalars(newer).all()
        older = select(_name).where(_name.in_(set(rows)), since_id >= _id + 0).distinct()
        names = set(rows) - set(session.scalars(older) if rows else ())
    return Count(len(names), exact=len(rows) < _MOST_NEW)


def groups_of_rows(db: Database, run_id: int, row_ids: Iterable[int], marks: Marks) -> list[Group]:
    """Return the groups of these rollouts, in the rollouts' order, each once."""
    ids = list(row_ids)
    with Session(db) as session:
        query = select(_id, _name).where(_id.in_(ids), _run + 0 == run_id)
        names = {row_id: name for row_id, name in session.execute(query)}  # noqa: C416 - rows, typed
    return groups_called(db, run_id, list(dict.fromkeys(names[i] for i in ids if i in names)), marks)


def beside(
    db: Database, run_id: int, filter: RolloutFilter, rows: Sequence[EvaluationRow]  # noqa: A002
) -> tuple[int | None, int | None]:  # fmt: skip
    """Return ids (`Group.id`) of the groups before and after this one, the newest first; None at the ends. For a group
    that the filter does not select, the groups between which it would be.
    """
    ids = [row.id or 0 for row in rows]
    selected = conditions(run_id, filter, Use.ROWS)
    with Session(db) as session:
        place = session.scalar(select(func.max(_id)).where(*selected, _id.in_(ids))) or max(ids)
        older = _walk(session, run_id, filter, place, 1)
        # Groups are ordered by their highest row. Of the groups that have a row above this place, the next newer one
        # is the one whose highest row is the lowest.
        (section,) = sections(replace(filter, sort=Sort.OLDEST), (None, place))
        highest = {name: row_id for row_id, name in session.execute(_chunk(selected, section, _CHUNK))}
        newer = min(_highest(session, selected, highest).values(), default=None)
        return _first(session, newer), _first(session, older[0][1] if older else None)


def group_rows(db: Database, run_id: int, row_id: int) -> list[EvaluationRow]:
    """Return all rows of a rollout's group: the highest reward first, rows without a reward last. Raises
    RolloutNotFoundError if the run has no rollout of that id.
    """
    name = select(_name).where(_id == row_id, _run + 0 == run_id).scalar_subquery()
    query = select(_Row).where(_name == name, _run + 0 == run_id)
    with Session(db) as session:
        rows = as_shown(session, run_id, session.scalars(query))
    if not rows:
        raise RolloutNotFoundError(f"This run has no rollout {row_id}.")
    return sorted(rows, key=by_reward)


def rows_called(db: Database, run_id: int, row_ids: Iterable[int]) -> list[EvaluationRow]:
    """Return rows of the run by their ids, in the order of the ids; without payloads."""
    ids = list(row_ids)
    query = select(_Row).where(_id.in_(ids), _run == run_id)
    with Session(db) as session:
        return sorted(as_shown(session, run_id, session.scalars(query)), key=lambda row: ids.index(row.id or 0))


def by_reward(row: EvaluationRow) -> tuple[bool, float, int, int]:
    """Return a sort key: the highest reward first, no reward last, equal rewards by generation."""
    return row.reward is None, -(row.reward or 0.0), row.generation, row.id or 0


def opened(db: Database, run_id: int, row_ids: Iterable[int]) -> dict[int, Rollout]:
    """Return rollouts with their payloads, by id: as many of them as fit into the memory budget of `read_rollouts`.
    Raise DatabaseError if the payload of one is damaged.
    """
    with Session(db) as session:
        rollouts = read_rollouts(session, run_id, _id.in_(list(row_ids)), _run + 0 == run_id)
    return {rollout.row.id or 0: rollout for rollout in rollouts}


def run_of(db: Database, row_id: int) -> Run:
    """Return the run of a rollout. Raise RolloutNotFoundError if no run has a rollout of that id."""
    query = select(Run).join(_Row, _run == col(Run.id)).where(_id == row_id)
    with Session(db) as session:
        run = session.scalars(query).first()
    if run is None:
        raise RolloutNotFoundError(f"No run of this database has a rollout {row_id}.")
    return run


def _walk(session: Session, run_id: int, filter: RolloutFilter, after: int | None, limit: int) -> list[tuple[str, int]]:  # noqa: A002
    """Collect (group, its highest matching id) for ids below `after`, the newest first, chunk by chunk."""
    newest = replace(filter, sort=Sort.NEWEST)
    selected = conditions(run_id, newest, Use.ROWS)
    groups: dict[str, int] = {}
    last, chunk = after, _CHUNK
    while len(groups) < limit:
        (section,) = sections(newest, None if last is None else (None, last))
        rows = session.execute(_chunk(selected, section, chunk)).all()
        highest_in_chunk = {name: row_id for row_id, name in reversed(rows)}  # its first row is its highest
        fresh = {name: highest_in_chunk[name] for name in dict.fromkeys(name for _, name in rows) if name not in groups}
        if after is not None:  # a group with a higher row was on an earlier page
            highest = _highest(session, selected, fresh)
            fresh = {name: row_id for name, row_id in fresh.items() if highest[name] < after}
        groups |= fresh
        if len(rows) < chunk:
            break
        last, chunk = rows[-1][0], min(chunk * 2, _LARGEST_CHUNK)
    return list(groups.items())[:limit]


def _chunk(selected: list[ColumnElement[bool]], section: Section, size: int) -> Any:
    return select(_id, _name).where(*selected, *section.conditions).order_by(*section.order).limit(size)


def _highest(session: Session, selected: list[ColumnElement[bool]], candidates: dict[str, int]) -> dict[str, int]:
    """Return the groups with their highest matching id, which is most often the one that is known."""
    lowest = min(candidates.values(), default=0)
    others = select(_id, _name).where(_name.in_(candidates), lowest < _id + 0)
    above = [row_id for row_id, name in session.execute(others) if row_id > candidates[name]] if candidates else []
    if not above:
        return candidates
    matching = select(_name, func.max(_id)).where(_id.in_(above), *selected).group_by(_name)
    return candidates | {name: row_id for name, row_id in session.execute(matching)}  # noqa: C416 - rows, typed


def _first(session: Session, row_id: int | None) -> int | None:
    """Return the id of the first rollout of this rollout's group."""
    name = select(_name).where(_id == row_id).scalar_subquery()
    return None if row_id is None else session.scalar(select(func.min(_id)).where(_name == name))


def _group(name: str, members: list[Member], until: int) -> Group:
    aborted: dict[str, Any] = {"status": Status.ABORTED.value, "stop_reason": StopReason.ABORTED.value}
    ordered = [
        member._replace(**aborted) if member.status == Status.RUNNING and member.created <= until else member
        for member in sorted(members, key=lambda member: (member.generation, member.id))
    ]
    rewards = [member.reward for member in ordered if member.reward is not None]
    won = [member.solved for member in ordered if member.solved is not None]
    kind = kind_of(min(rewards, default=None), max(rewards, default=None), len(rewards), sum(won) if won else None)
    return Group(min(member.id for member in ordered), name, tuple(ordered), kind)
