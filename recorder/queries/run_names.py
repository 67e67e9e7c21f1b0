"""Names that occur in a run: evals, tasks, models, tags, reward functions and metrics."""

from collections.abc import Callable, Iterable
from typing import Any

from sqlalchemy import Select, select
from sqlalchemy.orm import Session
from sqlmodel import col

from logs_ui.recorder.queries.common import Database, distinct
from logs_ui.recorder.queries.filters.rollout_filter import RolloutFilter, check_known, named_in
from logs_ui.recorder.queries.notebook import tagged
from logs_ui.recorder.queries.notes_queries import known_tags
from logs_ui.recorder.queries.sql.matching import has_key
from logs_ui.recorder.storage.tables import EvaluationRow, StepStatistics

_SAMPLE = 1_000  # newest rows that are read for names that no index lists


def known_values(db: Database, run_id: int, fields: Iterable[str] = ("eval", "task")) -> dict[str, list[str]]:
    """Names by field, sorted, each once.

    Args:
        db: the database.
        run_id: the run's number.
        fields: some of `eval`, `task`, `tag`, `model`, `rewards` and `metrics`. Evals and tasks are complete; tags are
        the
            first 200 by the alphabet; the others are those of the newest 1,000 rollouts.
    """
    with Session(db) as session:
        return {field: _KNOWN[field](session, run_id) for field in fields}


def check_names(db: Database, run_id: int, filter: RolloutFilter) -> None:  # noqa: A002
    """Checks that a run has all that a filter names.

    Raises:
        FilterError: the run has no such eval, task, model, tag, reward function or metric; names the nearest.
    """
    named = named_in(filter)
    known = known_values(db, run_id, named)
    for field in _INCOMPLETE & named.keys():
        known[field] += [
            value for value in named[field] if value not in known[field] and _has(db, run_id, field, value)
        ]
    check_known(filter, known)


def _evals(session: Session, run_id: int) -> list[str]:
    evals = select(col(StepStatistics.eval_name)).where(col(StepStatistics.run_id) == run_id).distinct()
    return sorted(session.scalars(evals))


def _tasks(session: Session, run_id: int) -> list[str]:
    return list(session.scalars(distinct(col(EvaluationRow.task), col(EvaluationRow.run_id) == run_id)))


def _tags(session: Session, run_id: int) -> list[str]:
    return known_tags(session.connection(), run_id)


def _models(session: Session, run_id: int) -> list[str]:
    return sorted({model for model in session.scalars(_newest(run_id, col(EvaluationRow.model))) if model is not None})


def _rewards(session: Session, run_id: int) -> list[str]:
    return sorted({name for it in session.scalars(_newest(run_id, col(EvaluationRow.rewards))) for name in it or ()})


def _metrics(session: Session, run_id: int) -> list[str]:
    return sorted({name for it in session.scalars(_newest(run_id, col(EvaluationRow.metrics))) for name in it or ()})


def _newest(run_id: int, column: Any) -> Select[Any]:
    of_run = col(EvaluationRow.run_id) == run_id
    return select(column).where(of_run).order_by(col(EvaluationRow.id).desc()).limit(_SAMPLE)


def _has(db: Database, run_id: int, field: str, value: str) -> bool:
    """Searches all rows for a name that `known_values` did not list."""
    row = EvaluationRow
    is_there = {
        "tag": lambda: tagged(run_id, value),
        "model": lambda: col(row.model) == value,
        "rewards": lambda: has_key(col(row.rewards), value),
        "metrics": lambda: has_key(col(row.metrics), value),
    }[field]()
    query = select(col(EvaluationRow.id)).where(col(EvaluationRow.run_id) == run_id, is_there).limit(1)
    with Session(db) as session:
        return session.scalar(query) is not None


_KNOWN: dict[str, Callable[[Session, int], list[str]]] = {
    "eval": _evals,
    "task": _tasks,
    "tag": _tags,
    "model": _models,
    "rewards": _rewards,
    "metrics": _metrics,
}
_INCOMPLETE = {"tag", "model", "rewards", "metrics"}
