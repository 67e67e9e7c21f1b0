"""Reads what the comparison of runs needs: curves on common axes, and the results of each task."""

from collections import defaultdict
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any, NamedTuple

from sqlalchemy import func, literal, select, true
from sqlalchemy.orm import Session
from sqlmodel import col

from logs_ui.recorder.queries.common import BOUND, WINDOW, Database, bounded, thinned
from logs_ui.recorder.queries.run_steps import Step, step_series, steps
from logs_ui.recorder.queries.sql import computed_fields
from logs_ui.recorder.queries.sql.matching import Marks, is_solved
from logs_ui.recorder.storage.dialects import json_each, number, total, whole_sum
from logs_ui.recorder.storage.tables import EvaluationRow, Scalar, StepStatistics
from logs_ui.recorder.vocabulary import Status, StopReason

MOST_ROLLOUTS = 50_000
"""Maximum number of rollouts of a run that are counted task by task: the last ones."""


@dataclass(frozen=True)
class CurvePoint:
    """Describes a point of a run's curve."""

    step: int
    value: float | None  # None if it was not a finite number
    rollouts: int  # number of rollouts of the run's mode up to this step, inclusive
    when: int | None  # start of one of the step's first rollouts, in µs since the epoch; None if the step has none


@dataclass(frozen=True)
class GroupResult:
    """Counts of one group's rollouts that have a reward: how many there are, and how many of them are solved.

    `solved` is None if no rollout has a value in a column that decides. `sums` has number, sum and highest value by
    figure: `truncated` and `errors` (1 or 0) of the ended rollouts, `turns`, `tokens`, and `rewards.NAME` of the newest
    WINDOW rollouts as it was returned. `step` is the group's first.
    """

    scored: int
    solved: int | None
    reward_sum: float
    sums: dict[str, tuple[int, float, float]] = field(default_factory=dict)
    step: int = 0


class StepSize(NamedTuple):
    """Sums over a step's rollouts; `rollouts` up to and with it, `scored` of the step's have a reward."""

    step: int
    rollouts: int
    scored: int
    reward_sum: float


def step_sizes(db: Database, run_id: int, mode: str) -> list[StepSize]:
    """Return the steps that have a reward, in order."""
    with Session(db) as session:
        return [step for step in _steps(session, run_id, mode) if step.scored]


def reward_points(db: Database, run_id: int, mode: str, points: int) -> list[CurvePoint]:
    """Return the mean reward of each step that has one; evenly thinned to about `points`."""
    with Session(db) as session:
        chosen = thinned([step for step in _steps(session, run_id, mode) if step.scored], points)
        times = _times(session, run_id, mode, [step.step for step in chosen])
    return [
        CurvePoint(step.step, step.reward_sum / step.scored, step.rollouts, times.get(step.step)) for step in chosen
    ]


def scalar_points(db: Database, run_id: int, mode: str, name: str, points: int) -> list[CurvePoint]:
    """Return a figure that the trainer logged, by step; evenly thinned to about `points`."""
    query = select(col(Scalar.step), col(Scalar.value)).where(col(Scalar.run_id) == run_id, col(Scalar.name) == name)
    with Session(db) as session:
        logged = thinned(list(session.execute(query.order_by(col(Scalar.step))).all()), points)
        sizes = {step.step: step.rollouts for step in _steps(session, run_id, mode)}
        times = _times(session, run_id, mode, [step for step, _ in logged])
    curve, rollouts, when = [], 0, None
    for step, value in logged:  # a value that is logged between two of the mode's steps is placed at the first of them
        rollouts, when = sizes.get(step, rollouts), times.get(step, when)
        curve.append(CurvePoint(step, None if value is None else bounded(value), rollouts, when))
    return curve


def figure_points(db: Database, run_id: int, mode: str, figure: str, points: int) -> list[CurvePoint]:
    """Return a figure of the rollouts by step, evenly thinned: `truncated` and `errors` (shares of the ended rollouts,
    0 to 1), or the mean of `turns`, `tokens`, or `rewards.NAME` as it was returned.
    """
    with Session(db) as session:
        sizes = {step.step: step.rollouts for step in thinned(_steps(session, run_id, mode), points)}
        times = _times(session, run_id, mode, list(sizes))
    curve = []
    of_mode = [series for series in step_series(db, run_id) if series.mode == mode]
    for series in of_mode[:1]:  # the first one is of all evals
        for step in steps(db, run_id, series, only=sizes):
            sum_, number_of = _sum_of(step, figure)
            if number_of:
                value = bounded(sum_ or 0.0) / number_of
                curve.append(CurvePoint(step.step, value, sizes[step.step], times.get(step.step)))
    return curve


def _sum_of(step: Step, figure: str) -> tuple[float | None, int]:
    """Return the sum of a figure over a step's rollouts, and the number of those that have it."""
    if figure == "truncated":
        return step.stop_reasons.get(StopReason.LENGTH, 0), step.ended
    if figure == "errors":
        return step.statuses.get(Status.ERROR, 0), step.ended
    if figure in {"turns", "tokens"}:
        return getattr(step, f"{figure}_sum"), getattr(step, f"{figure}_known")
    of_function = step.rewards.get(figure.removeprefix("rewards."))
    return (of_function.total, of_function.number) if of_function else (0.0, 0)


def scalar_names(db: Database, run_id: int) -> set[str]:
    """Return names of the figures that the trainer logged more than once."""
    name = col(Scalar.name)
    query = select(name).where(col(Scalar.run_id) == run_id).group_by(name).having(func.count() > 1)
    with Session(db) as session:
        return set(session.scalars(query))


def task_results(
    db: Database, run_id: int, mode: str, steps: tuple[int, int], marks: Marks
) -> dict[str, list[GroupResult]]:
    """Return results of each task's groups within the steps, inclusive, of at most the newest MOST_ROLLOUTS. Rollouts
    without a task are under "".

    `marks` say what is solved: see `is_solved`.
    """
    row = EvaluationRow
    # Not as a parameter: PostgreSQL would not see that the expression is the same in GROUP BY.
    key = func.coalesce(col(row.task), literal("", literal_execute=True)), col(row.group)
    of_run: tuple[Any, ...] = (col(row.run_id) == run_id, col(row.step).between(*steps), col(row.mode) == mode)
    columns: dict[str, Any] = {
        "truncated": computed_fields.stopped_for(StopReason.LENGTH.value),
        "errors": computed_fields.failure(),
    }
    columns |= {"turns": col(row.turns), "tokens": col(row.completion_tokens)}
    sums: list[Any] = [sum_(column) for column in columns.values() for sum_ in (func.count, whole_sum, func.max)]
    counts = func.min(col(row.step)), func.count(col(row.reward)), func.sum(is_solved(marks)), total(col(row.reward))
    query = select(*key, *counts, *sums)
    entries = json_each(col(row.rewards), "given")
    value = number(entries)
    of_functions = select(*key, entries.c.key, func.count(value), total(value), func.max(value)).join(entries, true())
    results: dict[str, dict[str, GroupResult]] = defaultdict(dict)
    with Session(db) as session:
        # In an expression: else SQLite walks the whole run by id, where these steps are long ago.
        older = select(col(row.id)).where(*of_run).order_by((col(row.id) + 0).desc()).limit(1)
        of_run = (*of_run, col(row.id) > (session.scalar(older.offset(MOST_ROLLOUTS)) or 0))
        query = query.where(*of_run).group_by(*key)
        for name, group, step, scored, solved, reward_sum, *figures in session.execute(query):
            by_figure = dict(zip(columns, zip(figures[::3], figures[1::3], figures[2::3], strict=True), strict=True))
            results[name][group] = GroupResult(scored, solved, bounded(reward_sum or 0.0), by_figure, step)
        of_newest = (*of_run, col(row.id) > (session.scalar(older.offset(WINDOW)) or 0), value.is_not(None))
        query = of_functions.where(*of_newest).group_by(*key, entries.c.key)
        for name, group, function, number_of, sum_of, highest in session.execute(query):
            if sum_of is not None and abs(sum_of) < BOUND > abs(highest):
                results[name][group].sums[f"rewards.{function}"] = (number_of, sum_of, highest)
    return {name: list(groups.values()) for name, groups in results.items()}


def reward_weights(db: Database, run_id: int) -> dict[str, float]:
    """Return the weights of the reward functions in the newest rollout that has any."""
    weights: Any = col(EvaluationRow.reward_weights)
    query = select(weights).where(col(EvaluationRow.run_id) == run_id, weights.is_not(None))
    with Session(db) as session:
        return session.scalar(query.order_by(col(EvaluationRow.id).desc()).limit(1)) or {}


def _steps(session: Session, run_id: int, mode: str) -> list[StepSize]:
    key = StepStatistics
    sums = (whole_sum(col(key.rollouts)), whole_sum(col(key.scored)), total(col(key.reward_sum)))
    query = select(col(key.step), *sums).where(col(key.run_id) == run_id, col(key.mode) == mode)
    rows = session.execute(query.group_by(col(key.step)).order_by(col(key.step))).all()
    numbered = zip(rows, accumulate(int(rollouts) for _, rollouts, *_ in rows), strict=True)
    return [
        StepSize(step, so_far, int(scored), bounded(rewards or 0.0)) for (step, _, scored, rewards), so_far in numbered
    ]


def _times(session: Session, run_id: int, mode: str, steps: list[int]) -> dict[int, int]:
    """Return the start of one of each step's first rollouts, in µs since the epoch: a look-up per step and eval."""
    key, row = StepStatistics, EvaluationRow
    of_step = [col(getattr(row, name)) == col(getattr(key, name)) for name in ("run_id", "step", "eval_name", "mode")]
    begun = select(col(row.created)).where(*of_step).limit(1).scalar_subquery()
    of_run = col(key.run_id) == run_id, col(key.mode) == mode, col(key.step).in_(steps)
    times: dict[int, int] = {}
    for step, when in session.execute(select(col(key.step), begun).where(*of_run)):
        if when is not None:
            times[step] = min(when, times.get(step, when))
    return times
