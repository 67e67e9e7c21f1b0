"""Reads the rollouts of a filter group by group."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from sqlalchemy import or_, select
from sqlalchemy.orm import Session
from sqlmodel import col

from logs_ui.recorder.queries.common import Database
from logs_ui.recorder.queries.filters.rollout_filter import RolloutFilter
from logs_ui.recorder.queries.rollout_list import Rollout, read_rollouts
from logs_ui.recorder.queries.sql.selection import Use, conditions
from logs_ui.recorder.storage.tables import EvaluationRow
from logs_ui.recorder.vocabulary import Status


class Place(NamedTuple):
    """Locates a group: the id of its first rollout, its step, and the ids of its rollouts."""

    first: int
    step: int
    ids: list[int]


def places(db: Database, run_id: int, filter: RolloutFilter) -> list[Place]:  # noqa: A002
    """Return the groups of the filter's rollouts that returned or have a reward, in the order in which they began."""
    row = EvaluationRow
    can_be_scored = or_(col(row.status) == Status.OK, col(row.reward).is_not(None))
    selected = (*conditions(run_id, filter, Use.NUMBER), can_be_scored)
    groups: dict[str, list[tuple[int, int]]] = defaultdict(list)
    with Session(db) as session:
        for group, row_id, step in session.execute(select(col(row.group), col(row.id), col(row.step)).where(*selected)):
            groups[group].append((row_id or 0, step))
    members = [sorted(rows) for rows in groups.values()]
    return sorted(Place(rows[0][0], rows[0][1], [row_id for row_id, _ in rows]) for rows in members)


def reward_names(db: Database, run_id: int, filter: RolloutFilter) -> list[str]:  # noqa: A002
    """Return names of the reward functions that the newest scored rollout of the filter has a value or None for."""
    rewards = col(EvaluationRow.rewards)
    selected = (*conditions(run_id, filter, Use.NUMBER), col(EvaluationRow.scored).is_not(None), rewards.is_not(None))
    query = select(rewards).where(*selected).order_by(col(EvaluationRow.id).desc()).limit(1)
    with Session(db) as session:
        return list(session.scalar(query) or {})


def rollouts_called(db: Database, run_id: int, ids: Sequence[int]) -> Iterator[Rollout]:
    """Read rollouts in the order of their ids, in short reads; those that were deleted meanwhile are left out. Raises
    DatabaseError if the payload of one is damaged.
    """
    remaining = sorted(ids)
    while remaining:
        with Session(db) as session:
            batch = read_rollouts(
                session, run_id, col(EvaluationRow.id).in_(remaining), col(EvaluationRow.run_id) + 0 == run_id
            )
        yield from batch
        last = batch[-1].row.id or 0 if batch else remaining[-1]
        remaining = [row_id for row_id in remaining if row_id > last]
