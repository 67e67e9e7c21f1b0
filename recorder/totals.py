"""What a run comes to, added up from its step statistics and never from its rollouts."""

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import groupby
from typing import NamedTuple

from sqlalchemy import ColumnElement, select
from sqlalchemy.orm import Session
from sqlmodel import col

from logs_ui.recorder.models import Mode, StepStatistics

_CURVE_POINTS = 120
_RECENT_STEPS = 10


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

    rollouts: int = 0
    steps: int = 0
    reward: float | None = None
    reward_curve: tuple[tuple[int, float], ...] = ()
    truncated: float | None = None
    errors: float | None = None
    eval_names: tuple[str, ...] = ()


def totals(session: Session, *selected: ColumnElement[bool]) -> dict[int, Totals]:
    """Of the runs that have any statistics, by their ids."""
    columns = [getattr(StepStatistics, name) for name in _Sums._fields]
    query = select(*columns).where(*selected).order_by(col(StepStatistics.run_id))
    found = [_Sums._make(values) for values in session.execute(query)]
    return {run_id: _totals(list(sums)) for run_id, sums in groupby(found, key=lambda sums: sums.run_id)}


def _totals(sums: list[_Sums]) -> Totals:
    rollouts = sum(step.rollouts for step in sums)
    train: dict[int, tuple[int, float]] = {}
    for step in sums:
        if step.mode == Mode.TRAIN and step.scored:
            scored, total = train.get(step.step, (0, 0.0))
            train[step.step] = scored + step.scored, total + step.reward_sum
    curve = [(step, total / scored) for step, (scored, total) in sorted(train.items())]
    recent = [train[step] for step, _ in curve[-_RECENT_STEPS:]]
    return Totals(
        rollouts=rollouts,
        steps=max(step.step for step in sums),
        reward=sum(total for _, total in recent) / sum(scored for scored, _ in recent) if recent else None,
        reward_curve=_thinned(curve),
        truncated=_share((step.truncated for step in sums), rollouts),
        errors=_share((step.errors for step in sums), rollouts),
        eval_names=tuple(sorted({step.eval_name for step in sums})),
    )


def _share(parts: Iterable[int], whole: int) -> float | None:
    return sum(parts) / whole if whole else None


def _thinned(points: list[tuple[int, float]]) -> tuple[tuple[int, float], ...]:
    """The first, the last, and evenly between."""
    if len(points) <= _CURVE_POINTS:
        return tuple(points)
    return tuple(points[round(i * (len(points) - 1) / (_CURVE_POINTS - 1))] for i in range(_CURVE_POINTS))
