"""Reads one group: its rows, and the payloads of its rollouts."""

from collections.abc import Iterable
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session
from sqlmodel import col

from logs_ui.recorder.errors import RolloutNotFoundError
from logs_ui.recorder.queries.common import Database, as_shown
from logs_ui.recorder.queries.rollout_list import Rollout, read
from logs_ui.recorder.storage.tables import EvaluationRow, Run

_Row = EvaluationRow
_id: Any = col(EvaluationRow.id)
_run: Any = col(_Row.run_id)
_name = col(_Row.group)


def group_rows(db: Database, run_id: int, row_id: int) -> list[EvaluationRow]:
    """All rows of a rollout's group: the highest reward first, rows without a reward last.

    Raises:
        RolloutNotFoundError: the run has no rollout of that id.
    """
    name = select(_name).where(_id == row_id, _run + 0 == run_id).scalar_subquery()
    query = select(_Row).where(_name == name, _run + 0 == run_id)
    with Session(db) as session:
        rows = as_shown(session, run_id, session.scalars(query))
    if not rows:
        raise RolloutNotFoundError(f"This run has no rollout {row_id}.")
    return sorted(rows, key=by_reward)


def rows_called(db: Database, run_id: int, row_ids: Iterable[int]) -> list[EvaluationRow]:
    """Rows of the run by their ids, in the order of the ids; without payloads."""
    row = EvaluationRow
    wanted = list(row_ids)
    query = select(row).where(col(row.id).in_(wanted), col(row.run_id) == run_id)
    with Session(db) as session:
        return sorted(as_shown(session, run_id, session.scalars(query)), key=lambda it: wanted.index(it.id or 0))


def by_reward(row: EvaluationRow) -> tuple[bool, float, int, int]:
    """A sort key: the highest reward first, no reward last, equal rewards by generation."""
    return row.reward is None, -(row.reward or 0.0), row.generation, row.id or 0


def opened(db: Database, run_id: int, row_ids: Iterable[int]) -> dict[int, Rollout]:
    """Rollouts with their payloads, by id: as many of them as fit into the memory budget of `read`.

    Raises:
        DatabaseError: the payload of one is damaged.
    """
    with Session(db) as session:
        found = read(session, run_id, _id.in_(list(row_ids)), _run + 0 == run_id)
    return {rollout.row.id or 0: rollout for rollout in found}


def run_of(db: Database, row_id: int) -> Run:
    """The run of a rollout.

    Raises:
        RolloutNotFoundError: no run has a rollout of that id.
    """
    query = select(Run).join(_Row, _run == col(Run.id)).where(_id == row_id)
    with Session(db) as session:
        run = session.scalars(query).first()
    if run is None:
        raise RolloutNotFoundError(f"No run of this database has a rollout {row_id}.")
    return run
