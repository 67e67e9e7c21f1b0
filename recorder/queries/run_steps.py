"""Reads figures per step of a training, or of an evaluation of checkpoints."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any

from sqlalchemy import Integer, Select, and_, func, literal, or_, outerjoin, select, true
from sqlalchemy.orm import Session
from sqlmodel import col

from logs_ui.recorder.queries.common import Database
from logs_ui.recorder.queries.sql.liveness import lost_until
from logs_ui.recorder.storage.dialects import mean, whole_sum
from logs_ui.recorder.storage.step_sums import OF_STEP, RewardSums, details
from logs_ui.recorder.storage.tables import EvaluationRow, StepDetails, StepStatistics
from logs_ui.recorder.vocabulary import Mode, Status, StopReason

MOST_STEPS = 400
"""`steps` returns at most this many steps, and one more."""

_SUMS = ("step", "rollouts", "scored", "reward_sum", "stale")
_DETAILS = tuple(name for name in StepDetails.model_fields if name not in {"run_id", *OF_STEP, "made"})
_ADDED: tuple[str, ...] = ("rollouts", "scored", "reward_sum", "groups", "dead_groups")
_ADDED += ("tokens_known", "tokens_sum", "turns_known", "turns_sum", "seconds_known", "seconds_sum")
_NOTHING = literal("", literal_execute=True)  # not as a parameter, for the same expression in GROUP BY


@dataclass(frozen=True)
class Series:
    """Describes rollouts of one mode and eval, or of all evals, in `steps` steps between `first` and `last`."""

    mode: str
    eval_name: str | None  # None for all of several evals
    rollouts: int
    steps: int
    first: int
    last: int


@dataclass(frozen=True)
class Step:
    """Describes one step of a series: see StepStatistics and StepDetails. Rollouts whose process died are aborted.

    Quantiles are None for several evals.
    """

    step: int
    rollouts: int
    scored: int
    reward_sum: float
    statuses: dict[str, int]
    stop_reasons: dict[str, int]
    reward_p10: float | None
    reward_p90: float | None
    groups: int
    dead_groups: int
    rewards: dict[str, RewardSums]
    tokens_known: int
    tokens_sum: int
    turns_known: int
    turns_sum: int
    seconds_known: int
    seconds_sum: float

    @property
    def ended(self) -> int:
        """Return the number of rollouts with the status ok or error."""
        return self.statuses.get(Status.OK, 0) + self.statuses.get(Status.ERROR, 0)


@dataclass(frozen=True)
class TaskRewards:
    """Describes the rollouts of one task; `mean` is over the `scored` of them."""

    task: str
    rollouts: int
    scored: int
    mean: float


def step_series(db: Database, run_id: int) -> list[Series]:
    """Return all series of a run: those of the training first, then by name; before several of a mode, that of all."""
    sums, step = StepStatistics, col(StepStatistics.step)
    mode, eval_name = col(sums.mode), col(sums.eval_name)
    figures = whole_sum(col(sums.rollouts)), func.count(step.distinct()), func.min(step), func.max(step)
    query = select(mode, eval_name, *figures).where(col(sums.run_id) == run_id).group_by(mode, eval_name)
    whole = select(mode, *figures).where(col(sums.run_id) == run_id).group_by(mode)
    whole = whole.having(func.count(eval_name.distinct()) > 1)
    with Session(db) as session:
        series = [Series(*values) for values in session.execute(query)]
        series += [Series(of_mode, None, *values) for of_mode, *values in session.execute(whole)]
    return sorted(
        series, key=lambda item: (item.mode != Mode.TRAIN, item.mode, item.eval_name is not None, item.eval_name or "")
    )


def steps(
    db: Database, run_id: int, series: Series, *, most: int = MOST_STEPS, only: Iterable[int] | None = None
) -> list[Step]:
    """Return the steps of a series, in order: those of `only`, else every n-th, and the last, if there are more than
    `most`.
    """
    step = col(StepStatistics.step)
    if only is None:
        chosen = _thin(run_id, series, most)
    else:
        chosen = select(step).where(*_of_series(run_id, series), step.in_(only))
    with Session(db) as session:
        return _steps(session, run_id, series, chosen)


def last_steps(db: Database, run_id: int, series: Series, count: int) -> list[Step]:
    """Return the last `count` steps that have a reward, or the last ones if none has; in order."""
    step, scored = col(StepStatistics.step), col(StepStatistics.scored)
    query = select(step).where(*_of_series(run_id, series)).group_by(step).order_by(step.desc()).limit(count)
    near = query.where(step > series.last - 4 * count)  # most often enough, and all steps need not be read and sorted
    with Session(db) as session:
        chosen = session.scalars(near.where(scored > 0)).all()
        if len(chosen) < count:
            chosen = session.scalars(query.where(scored > 0)).all() or session.scalars(query).all()
        first = min(chosen, default=0)
        return _steps(session, run_id, series, select(step).where(*_of_series(run_id, series), step >= first))


def lowest_tasks(db: Database, run_id: int, series: Series, first: int, last: int, limit: int) -> list[TaskRewards]:
    """Return the tasks with the lowest mean reward within the steps from `first` to `last`, lowest first."""
    row = EvaluationRow
    mean_reward = mean(col(row.reward))
    is_all = (first, last) == (series.first, series.last)
    # row_by_kind covers the query for all steps. For some steps it is slow, and the expression keeps SQLite from it.
    task: Any = col(row.task) if is_all else col(row.task).concat(_NOTHING)
    query = select(task, func.count(), func.count(col(row.reward)), mean_reward).where(
        col(row.run_id) == run_id, col(row.mode) == series.mode, _of_eval(row, series), task.is_not(None)
    )
    query = query.group_by(task).having(mean_reward.is_not(None)).order_by(mean_reward, func.count().desc(), task)
    if not is_all:
        query = query.where(col(row.step).between(first, last))
    with Session(db) as session:
        return [TaskRewards(*values) for values in session.execute(query.limit(limit))]


def mean_rewards(db: Database, run_id: int, mode: Mode) -> dict[str, tuple[tuple[int, float], ...]]:
    """Return (step, mean reward) of each step with a reward, in order, by the name of the eval."""
    sums = StepStatistics
    name, step, scored = col(sums.eval_name), col(sums.step), col(sums.scored)
    query = select(name, step, col(sums.reward_sum) / scored).order_by(name, step)
    with Session(db) as session:
        rows = session.execute(query.where(col(sums.run_id) == run_id, col(sums.mode) == mode, scored > 0)).all()
    return {
        eval_name: tuple((at, mean) for _, at, mean in of_eval)
        for eval_name, of_eval in groupby(rows, lambda row: row[0])
    }


def _of_series(run_id: int, series: Series) -> list[Any]:
    sums = StepStatistics
    return [col(sums.run_id) == run_id, col(sums.mode) == series.mode, _of_eval(sums, series)]


def _of_eval(table: type[EvaluationRow | StepStatistics], series: Series) -> Any:
    return true() if series.eval_name is None else col(table.eval_name) == series.eval_name


def _thin(run_id: int, series: Series, most: int) -> Select[Any]:
    step = col(StepStatistics.step)
    if series.steps <= most:
        return select(step).where(*_of_series(run_id, series)).distinct()
    place = (func.row_number().over(order_by=step) - 1).label("place")
    numbered = select(step, place).where(*_of_series(run_id, series)).group_by(step).subquery()
    every = literal(-(-series.steps // most), Integer)
    return select(numbered.c.step).where(or_(numbered.c.place % every == 0, numbered.c.step == series.last))


def _steps(session: Session, run_id: int, series: Series, chosen: Select[Any]) -> list[Step]:
    sums, more = StepStatistics, StepDetails
    conditions = [col(getattr(more, name)) == col(getattr(sums, name)) for name in ("run_id", *OF_STEP)]
    columns = [col(getattr(sums, name)) for name in ("eval_name", *_SUMS)] + [
        col(getattr(more, name)) for name in _DETAILS
    ]
    query = select(*columns).select_from(outerjoin(sums, more, and_(*conditions))).order_by(col(sums.step))
    query = query.where(*_of_series(run_id, series), col(sums.step).in_(chosen))
    lost = _lost(session, run_id, series)
    rows = [_step(session, run_id, series, dict(values), lost) for values in session.execute(query).mappings().all()]
    by_step = groupby(rows, lambda step: step.step)
    return [_sum_evals(list(evals)) for _, evals in by_step] if series.eval_name is None else rows


def _sum_evals(evals: list[Step]) -> Step:
    """Return the sums over a step of several evals."""
    whole: dict[str, Any] = {name: sum(getattr(step, name) for step in evals) for name in _ADDED}
    for name in ("statuses", "stop_reasons"):
        counts: dict[str, int] = {}
        for step in evals:
            for value, number in getattr(step, name).items():
                counts[value] = counts.get(value, 0) + number
        whole[name] = {value: number for value, number in counts.items() if number}
    rewards: dict[str, RewardSums] = {}
    for name, sums in ((name, sums) for step in evals for name, sums in step.rewards.items() if sums.number):
        before = rewards.get(name, RewardSums(0, 0.0, 0.0))
        parts = zip(before[1:], sums[1:], strict=True)
        total, counted = (None if a is None or b is None else a + b for a, b in parts)
        rewards[name] = RewardSums(before.number + sums.number, total, counted)
    return replace(evals[0], **whole, rewards=rewards, reward_p10=None, reward_p90=None)


def _step(
    session: Session, run_id: int, series: Series, values: dict[str, Any], lost: Counter[tuple[str, int]]
) -> Step:
    eval_name, step = values.pop("eval_name"), values["step"]
    if values.pop("stale") or values["statuses"] is None:  # the writer has not stored the details yet
        parameters = {"of_run": run_id, "of_mode": series.mode, "of_eval_name": eval_name, "of_step": step}
        fresh = session.execute(details(), parameters).mappings().one()
        values |= {name: fresh[name] for name in _DETAILS}
    # Earlier recorders stored a fourth figure.
    values["rewards"] = {name: RewardSums(*of_function[:3]) for name, of_function in values["rewards"].items()}
    result = Step(**values)
    if number := lost[eval_name, step]:
        result.statuses[Status.RUNNING] -= number
        result.statuses[Status.ABORTED] = result.statuses.get(Status.ABORTED, 0) + number
        result.stop_reasons[StopReason.ABORTED] = result.stop_reasons.get(StopReason.ABORTED, 0) + number
    return result


def _lost(session: Session, run_id: int, series: Series) -> Counter[tuple[str, int]]:
    """Return the numbers of rollouts by eval and step that are stored as running, and whose process died."""
    row = EvaluationRow
    query = select(col(row.eval_name), col(row.step)).where(
        col(row.run_id) == run_id,
        col(row.status) == Status.RUNNING,
        col(row.status) != literal(Status.OK.value, literal_execute=True),  # as `selection.conditions` has it
        col(row.mode) == series.mode,
        _of_eval(row, series),
        col(row.created) <= lost_until(run_id),
        col(row.returned).is_(None),  # always true; keeps SQLite from row_by_kind
    )
    return Counter((eval_name, step) for eval_name, step in session.execute(query))
