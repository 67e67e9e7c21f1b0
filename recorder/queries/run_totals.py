"""Totals runs from their step statistics; only unfinished rollouts are counted row by row."""

from collections import defaultdict
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, NamedTuple

from sqlalchemy import func, literal, select
from sqlalchemy.orm import Session
from sqlmodel import col

from logs_ui.recorder.queries.common import thinned
from logs_ui.recorder.storage.dialects import total, whole_sum
from logs_ui.recorder.storage.tables import EvaluationRow, StepStatistics
from logs_ui.recorder.vocabulary import Mode, Status

_CURVE_POINTS = 120
RECENT_STEPS = 10
"""The number of last train steps whose mean reward is shown as the run's."""
_AT_ONCE = 2_000


class _Sums(NamedTuple):
    """Sums over a run's rollouts of one mode and eval; `steps` is the highest step."""

    mode: str
    eval_name: str
    rollouts: int
    scored: int
    reward_sum: float
    errors: int
    truncated: int
    steps: int


class _Point(NamedTuple):
    """Describes a point of a run's reward curve."""

    step: int
    scored: int
    reward_sum: float


@dataclass(frozen=True)
class Totals:
    """Holds figures of a run, as the list of runs shows them."""

    is_evaluation: bool = False  # it has rollouts, none of them from a training, and no training is planned
    rollouts: int = 0  # in all modes
    steps: int = 0  # the highest step; 0 before the first
    # Mean over the last 10 train steps that have a reward, weighted by rollouts; for an evaluation, over all rewards.
    reward: float | None = None
    # (step, mean reward) of each train step, or step of an evaluation, with rewards, thinned to at most 120 points.
    reward_curve: tuple[tuple[int, float], ...] = ()
    truncated: float | None = None  # share of the ended rollouts, 0 to 1; None if none ended
    errors: float | None = None  # likewise
    eval_names: tuple[str, ...] = ()


def totals(session: Session, run_ids: Collection[int] | None = None) -> dict[int, Totals]:
    """Return totals of these runs, or of all, by run id; runs without statistics are left out. The database adds them
    up: a run of a million rollouts has 80,000 statistics.
    """
    sums = _sums(session, run_ids)
    evaluations = [run_id for run_id, parts in sums.items() if _is_evaluation(parts)]
    curves, unfinished = _curves(session, run_ids, evaluations), _unfinished(session, run_ids)
    return {run_id: _totals(parts, curves.get(run_id, []), unfinished.get(run_id, 0)) for run_id, parts in sums.items()}


def _sums(session: Session, run_ids: Collection[int] | None) -> dict[int, list[_Sums]]:
    row = StepStatistics
    key = (col(row.run_id), col(row.mode), col(row.eval_name))
    added = [whole_sum(col(column)) for column in (row.rollouts, row.scored)] + [total(col(row.reward_sum))]
    added += [whole_sum(col(column)) for column in (row.errors, row.truncated)]
    query: Any = select(*key, *added, func.max(col(row.step))).group_by(*key)
    sums: dict[int, list[_Sums]] = defaultdict(list)
    for run_id, *values in session.execute(_of_runs(query, col(row.run_id), run_ids)):
        sums[run_id].append(_Sums(*values))
    return sums


def _is_evaluation(parts: list[_Sums]) -> bool:
    return all(part.mode == Mode.EVAL for part in parts)


def _curves(
    session: Session, run_ids: Collection[int] | None, evaluations: Collection[int]
) -> dict[int, list[_Point]]:  # fmt: skip
    """Return reward curves by run: of train steps that have rewards, or of an evaluation's steps."""
    row = StepStatistics
    run_column, step_column = col(row.run_id), col(row.step)
    curves: dict[int, list[_Point]] = defaultdict(list)
    sums: Any = select(run_column, step_column, whole_sum(col(row.scored)), total(col(row.reward_sum))).where(
        col(row.scored) > 0
    )
    sums = _of_runs(sums, run_column, run_ids).group_by(run_column, step_column).order_by(run_column, step_column)
    # Two SELECTs, since an OR of both conditions could not use the index.
    trained = [] if run_ids is not None and set(run_ids) <= set(evaluations) else [col(row.mode) == Mode.TRAIN]
    for condition in (*trained, *([run_column.in_(evaluations)] if evaluations else [])):
        query = sums.where(condition).execution_options(yield_per=_AT_ONCE)
        for run_id, *values in session.connection().execute(query):
            curves[run_id].append(_Point(*values))
    return curves


def _of_runs(query: Any, run_column: Any, run_ids: Collection[int] | None) -> Any:
    return query if run_ids is None else query.where(run_column.in_(run_ids))


def _unfinished(session: Session, run_ids: Collection[int] | None) -> dict[int, int]:
    """Return the numbers of running and aborted rollouts by run: the partial index of rows that are not ok has them."""
    row = EvaluationRow
    query = select(col(row.run_id), func.count()).where(
        col(row.status).in_([Status.RUNNING.value, Status.ABORTED.value]),
        col(row.status) != literal(Status.OK.value, literal_execute=True),  # as `selection.conditions` has it
    )
    query = _of_runs(query, col(row.run_id), run_ids).group_by(col(row.run_id))
    return {run_id: count for run_id, count in session.execute(query)}  # noqa: C416 - rows, typed


def _totals(parts: list[_Sums], curve: list[_Point], unfinished: int) -> Totals:
    rollouts = sum(part.rollouts for part in parts)
    finished = rollouts - unfinished
    is_evaluation = _is_evaluation(parts)
    counted = parts if is_evaluation else curve[-RECENT_STEPS:]
    scored = sum(part.scored for part in counted)
    return Totals(
        is_evaluation=is_evaluation,
        rollouts=rollouts,
        steps=max(part.steps for part in parts),
        reward=sum(part.reward_sum for part in counted) / scored if scored else None,
        reward_curve=tuple((point.step, point.reward_sum / point.scored) for point in thinned(curve, _CURVE_POINTS)),
        truncated=sum(part.truncated for part in parts) / finished if finished > 0 else None,
        errors=sum(part.errors for part in parts) / finished if finished > 0 else None,
        eval_names=tuple(sorted({part.eval_name for part in parts})),
    )
