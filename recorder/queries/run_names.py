"""Names that occur in a run: evals, tasks, models, tags, reward functions, metrics, dataset columns and metadata."""

from collections.abc import Iterable
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session
from sqlmodel import col

from logs_ui.recorder.errors import FilterError
from logs_ui.recorder.queries.common import Database, distinct
from logs_ui.recorder.queries.comparison import scalar_names
from logs_ui.recorder.queries.filters import language as filter_language
from logs_ui.recorder.queries.filters.fields import ALIASES, FIELDS
from logs_ui.recorder.queries.filters.rollout_filter import RolloutFilter, check_known, named_in
from logs_ui.recorder.queries.filters.terms import print_key
from logs_ui.recorder.queries.notebook import tagged
from logs_ui.recorder.queries.notes import known_tags, load_sets
from logs_ui.recorder.queries.sql.matching import has_key
from logs_ui.recorder.spelling import misspelt, shortened
from logs_ui.recorder.storage.tables import EvaluationRow, StepStatistics

_SAMPLE = 1_000  # newest rows that are read for names that no index lists


def known_values(db: Database, run_id: int, fields: Iterable[str] = ("eval", "task")) -> dict[str, list[str]]:
    """Return names by field, sorted, each once.

    `fields` are some of `eval`, `task`, `tag`, `model`, `rewards`, `metrics` and `metadata`. Evals and tasks are
    complete; tags are the first 200 by the alphabet; the others are those of the newest 1,000 rollouts.
    """
    with Session(db) as session:
        return {field: _values_of(session, run_id, field) for field in fields}


def in_full(db: Database, run_id: int, where: str) -> str:
    """Return a line of the filter language with the full names of what the run defines: `difficulty:hard` becomes
    `metadata.difficulty:hard`, and `accuracy<1` becomes `rewards.accuracy<1`, if nothing else of the run has that name
    among the newest 1,000 rollouts. Raise FilterError if several have the name, or none; in the latter case it names
    the nearest, or says that the trainer logged it by step.
    """
    load_sets(db, where)

    def full(short: str) -> str:
        columns = list(own_columns(db, run_id))
        matches = [name for name in columns if name.partition(".")[2] == short]
        if len(matches) == 1:
            return matches[0]
        unknown = f"unknown field {shortened(short)!r}"
        if matches:
            raise FilterError(short, f"{unknown}: write {' or '.join(matches)}", written=short)
        nested = [name for name in columns if name.endswith(f".{short}")]
        correction = nested[0] if len(nested) == 1 else filter_language.MEANT.get(short)
        if any(short in {name, name.rpartition("/")[2]} for name in scalar_names(db, run_id)):
            message = f"{shortened(short)} is logged by step, not by rollout: see the metrics of the Overview"
            raise FilterError(short, message, written=short)
        names = [*FIELDS, *ALIASES, *(column.partition(".")[2] for column in columns)]
        raise misspelt(shortened(short), unknown, short, names, correction)

    return filter_language.in_full(where, full)


def own_columns(db: Database, run_id: int) -> dict[str, bool]:
    """Return full names of the newest 1,000 rollouts' reward functions, metrics and metadata; True for numbers."""
    columns: dict[str, bool] = {}
    for field in (field for field in FIELDS.values() if field.among):
        for values in _newest(db, run_id, field.among):
            for key, value in (values or {}).items():
                name = f"{field.name}.{print_key(key)}"
                columns[name] = columns.get(name, False) or not isinstance(value, str | bool)
    return dict(sorted(columns.items()))


def check_names(db: Database, run_id: int, filter: RolloutFilter) -> None:  # noqa: A002
    """Check that a run has all that a filter names. Raise FilterError, which names the nearest, if the run has no
    such eval, task, model, tag, reward function or metric.
    """
    names = named_in(filter)
    values = known_values(db, run_id, names)
    for field in names.keys() - {"eval", "task"}:  # of which `known_values` lists all
        present = values[field]
        values[field] += [name for name in names[field] if name not in present and _has(db, run_id, field, name)]
    check_known(filter, values)


def _values_of(session: Session, run_id: int, field: str) -> list[str]:
    row, of_run = EvaluationRow, col(EvaluationRow.run_id) == run_id
    if field == "eval":
        evals = select(col(StepStatistics.eval_name)).where(col(StepStatistics.run_id) == run_id).distinct()
        return sorted(session.scalars(evals))
    if field == "reward_in":
        return sorted({*_values_of(session, run_id, "eval"), *_values_of(session, run_id, "rewards")})
    if field == "task":
        return list(session.scalars(distinct(col(row.task), of_run)))
    if field == "tag":
        return known_tags(session.connection(), run_id)
    values = _newest(session.connection(), run_id, FIELDS[field].among or field)  # a model, or figures by name
    return sorted({name for value in values for name in ([value] if isinstance(value, str) else value or ())})


def _newest(db: Database, run_id: int, column: str) -> list[Any]:
    row = EvaluationRow
    query: Any = select(getattr(row, column)).where(col(row.run_id) == run_id)
    with Session(db) as session:
        return list(session.scalars(query.order_by(col(row.id).desc()).limit(_SAMPLE)))


def _has(db: Database, run_id: int, field: str, value: str) -> bool:
    """Search all rows for a name that `known_values` did not list."""
    row = EvaluationRow
    if field == "reward_in":
        is_there = has_key(col(row.rewards), value)
    elif field == "tag":
        is_there = tagged(run_id, value)
    else:
        is_there = (
            col(row.model) == value if field == "model" else has_key(col(getattr(row, FIELDS[field].among)), value)
        )
    query = select(col(row.id)).where(col(row.run_id) == run_id, is_there).limit(1)
    with Session(db) as session:
        return session.scalar(query) is not None
