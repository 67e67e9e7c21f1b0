"""What a run comes to, added up from its step statistics; of its rollouts only those without an end are counted."""

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from itertools import groupby
from sys import intern
from typing import NamedTuple

from sqlalchemy import func, literal, select
from sqlalchemy.orm import Session
from sqlmodel import col

from logs_ui.recorder.models import EvaluationRow, Mode, Status, StepStatistics

_CURVE_POINTS = 120
_RECENT_STEPS = 10
_AT_ONCE = 2_000


class _Sums(NamedTuple):
    """What is read of StepStatistics. As objects of that class they take several times as long."""

    run_id: int
    mode: str
    eval_name: str
    step: int
    rollouts: int
    scored: int
    reward_sum: float
    errors: int
    truncated: int


@dataclass(frozen=True)
class Totals:
    """A run's figures, as `queries.RunSummary` explains them."""

    is_evaluation: bool = False
    rollouts: int = 0
    steps: int = 0
    reward: float | None = None
    reward_curve: tuple[tuple[int, float], ...] = ()
    truncated: float | None = None
    errors: float | None = None
    eval_names: tuple[str, ...] = ()


def totals(session: Session, run_ids: Collection[int] | None = None) -> dict[int, Totals]:
    """Of these runs, or of all, by their ids; runs without any statistics are left out."""
    columns = [getattr(StepStatistics, name) for name in _Sums._fields]
    query = select(*columns).order_by(col(StepStatistics.run_id))
    if run_ids is not None:
        query = query.where(col(StepStatistics.run_id).in_(run_ids))
    # Of a million rollouts there are 70,000: not all of them as the driver's and as ours at the same time.
    rows = session.connection().execute(query.execution_options(yield_per=_AT_ONCE))
    found = [_Sums(run, intern(mode), intern(name), *sums) for run, mode, name, *sums in rows]
    unfinished = _unfinished(session, run_ids)
    return {run: _totals(list(sums), unfinished.get(run, 0)) for run, sums in groupby(found, key=lambda s: s.run_id)}


def _unfinished(session: Session, run_ids: Collection[int] | None) -> dict[int, int]:
    """How many rollouts of a run still run or were aborted: they stand in the index of those that are not ok."""
    row = EvaluationRow
    query = select(col(row.run_id), func.count()).where(
        col(row.status).in_([Status.RUNNING.value, Status.ABORTED.value]),
        col(row.status) != literal(Status.OK.value, literal_execute=True),  # as `selection.conditions` has it
    )
    if run_ids is not None:
        query = query.where(col(row.run_id).in_(run_ids))
    return {run: count for run, count in session.execute(query.group_by(col(row.run_id)))}  # noqa: C416 - rows, typed


def _totals(sums: list[_Sums], unfinished: int) -> Totals:
    rollouts = sum(step.rollouts for step in sums)
    finished = rollouts - unfinished
    is_evaluation = all(step.mode == Mode.EVAL for step in sums)
    rewards: dict[int, tuple[int, float]] = {}
    for step in sums:
        if step.scored and (is_evaluation or step.mode == Mode.TRAIN):
            scored, total = rewards.get(step.step, (0, 0.0))
            rewards[step.step] = scored + step.scored, total + step.reward_sum
    curve = [(step, total / scored) for step, (scored, total) in sorted(rewards.items())]
    recent = [rewards[step] for step, _ in (curve if is_evaluation else curve[-_RECENT_STEPS:])]
    return Totals(
        is_evaluation=is_evaluation,
        rollouts=rollouts,
        steps=max(step.step for step in sums),
        reward=sum(total for _, total in recent) / sum(scored for scored, _ in recent) if recent else None,
        reward_curve=_thinned(curve),
        truncated=_share((step.truncated for step in sums), finished),
        errors=_share((step.errors for step in sums), finished),
        eval_names=tuple(sorted({step.eval_name for step in sums})),
    )


def _share(parts: Iterable[int], whole: int) -> float | None:
    return sum(parts) / whole if whole > 0 else None


def _thinned(points: list[tuple[int, float]]) -> tuple[tuple[int, float], ...]:
    """The first, the last, and evenly between."""
    if len(points) <= _CURVE_POINTS:
        return tuple(points)
    return tuple(points[round(i * (len(points) - 1) / (_CURVE_POINTS - 1))] for i in range(_CURVE_POINTS))
