"""Names that occur in a run: evals, tasks, models, tags, reward functions and metrics."""

from collections.abc import Iterable
from typing import Any

from sqlalchemy import select
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
    """Returns names by field, sorted, each once.

    `fields` are some of `eval`, `task`, `tag`, `model`, `rewards` and `metrics`. Evals and tasks are complete; tags are
    the first 200 by the alphabet; the others are those of the newest 1,000 rollouts.
    """
    with Session(db) as session:
        return {field: _known(session, run_id, field) for field in fields}


def check_names(db: Database, run_id: int, filter: RolloutFilter) -> None:  # noqa: A002
    """Checks that a run has all that a filter names.

    Raises:
        FilterError: the run has no such eval, task, model, tag, reward function or metric; names the nearest.
    """
    named = named_in(filter)
    known = known_values(db, run_id, named)
    for field in named.keys() - {"eval", "task"}:  # of which `known_values` lists all
        listed = known[field]
        known[field] += [name for name in named[field] if name not in listed and _has(db, run_id, field, name)]
    check_known(filter, known)


def _known(session: Session, run_id: int, field: str) -> list[str]:
    row, of_run = EvaluationRow, col(EvaluationRow.run_id) == run_id
    if field == "eval":
        evals = select(col(StepStatistics.eval_name)).where(col(StepStatistics.run_id) == run_id).distinct()
        return sorted(session.scalars(evals))
    if field == "task":
        return list(session.scalars(distinct(col(row.task), of_run)))
    if field == "tag":
        return known_tags(session.connection(), run_id)
    newest: Any = select(getattr(row, field)).where(of_run).order_by(col(row.id).desc()).limit(_SAMPLE)
    values = session.scalars(newest)  # a model, or figures by name
    return sorted({name for value in values for name in ([value] if isinstance(value, str) else value or ())})


def _has(db: Database, run_id: int, field: str, value: str) -> bool:
    """Searches all rows for a name that `known_values` did not list."""
    row = EvaluationRow
    if field == "tag":
        is_there = tagged(run_id, value)
    else:
        is_there = col(row.model) == value if field == "model" else has_key(col(getattr(row, field)), value)
    query = select(col(row.id)).where(col(row.run_id) == run_id, is_there).limit(1)
    with Session(db) as session:
        return session.scalar(query) is not None
