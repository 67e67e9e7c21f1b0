"""Lists runs: filtered, page by page, with annotations."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

from sqlalchemy import ColumnElement, String, cast, exists, func, literal, or_, select, tuple_, union_all
from sqlalchemy.orm import Session
from sqlmodel import col

from logs_ui.recorder.queries.common import Database
from logs_ui.recorder.queries.notes import NOTHING, Annotation, run_annotations
from logs_ui.recorder.queries.rollout_list import Cursor
from logs_ui.recorder.queries.run_totals import Totals
from logs_ui.recorder.queries.runs import RunSummary, known_totals, summary
from logs_ui.recorder.queries.sql.liveness import state_column
from logs_ui.recorder.storage import clock
from logs_ui.recorder.storage.dialects import json_each, number
from logs_ui.recorder.storage.notes_tables import Note, PersonalTag, Star
from logs_ui.recorder.storage.tables import Run, StepStatistics
from logs_ui.recorder.vocabulary import Mode


@dataclass(frozen=True)
class RunFilter:
    """Selects runs. Each word must occur in the name, id, project, model, an eval, a tag, the note, or a value of the
    arguments. A number must equal a value; `name=value` is an argument or a package's version; `project:word` occurs in
    the project.
    """

    words: tuple[str, ...] = ()
    states: tuple[str, ...] = ()  # any of these: a RunState, or `died`
    tags: tuple[str, ...] = ()  # all of these, given by people
    starred: bool = False  # only runs with a star
    projects: tuple[str, ...] = ()  # any of these

    @property
    def is_empty(self) -> bool:
        """Return True if it selects all runs."""
        return self == RunFilter()


@dataclass(frozen=True)
class ListedRun:
    """Holds a run with its annotation."""

    summary: RunSummary
    annotation: Annotation


@dataclass(frozen=True)
class RunList:
    """Holds a page of runs, newest first."""

    runs: list[ListedRun]
    next: Cursor | None  # the start of the next page; None at the end


@dataclass(frozen=True)
class RunCounts:
    """Counts runs: all of them, where nothing else is written."""

    all: int
    matching: int  # that the filter selects
    states: dict[str, int] = field(default_factory=dict)  # by state: that the filter would select in any state
    tags: dict[str, int] = field(default_factory=dict)  # by tag
    starred: int = 0
    projects: dict[str, int] = field(default_factory=dict)  # by project, most runs first


def list_runs(db: Database, chosen: RunFilter, *, after: Cursor | None = None, limit: int) -> RunList:
    """Return a page of the filter's runs, newest first."""
    now = clock.now(db)
    newest = (col(Run.created), col(Run.id))
    query = select(Run).where(*_conditions(chosen, now)).order_by(*(column.desc() for column in newest))
    if after is not None:
        query = query.where(tuple_(*newest) < tuple_(literal(after.key), literal(after.id)))
    with Session(db) as session:
        runs = session.scalars(query.limit(limit + 1)).all()
        listed_runs = _with_annotations(session, runs[:limit], now)
    last = runs[limit - 1] if len(runs) > limit else None
    return RunList(listed_runs, None if last is None else Cursor(last.created, last.id or 0))


def run_configs(db: Database, chosen: RunFilter, limit: int) -> list[dict[str, Any]]:
    """Return the trainers' arguments of the filter's newest runs."""
    query = select(col(Run.config)).where(*_conditions(chosen, clock.now(db)))
    with Session(db) as session:
        return list(session.scalars(query.order_by(col(Run.created).desc(), col(Run.id).desc()).limit(limit)))


def these_runs(db: Database, ids: Iterable[int]) -> list[ListedRun]:
    """Return runs by their numbers, in their order; missing ones are left out."""
    with Session(db) as session:
        runs = session.scalars(select(Run).where(col(Run.id).in_(list(ids))).order_by(col(Run.id))).all()
        return _with_annotations(session, runs, clock.now(session.connection()))


def count_runs(db: Database, chosen: RunFilter) -> RunCounts:
    """Count runs, exactly: there are never many."""
    now = clock.now(db)
    in_any_state = replace(chosen, states=())
    state = select(state_column(now).label("state")).where(*_conditions(in_any_state, now)).subquery().c.state
    by_state = select(state, func.count()).group_by(state)
    tag, of_run = col(PersonalTag.tag), col(PersonalTag.row) == ""
    by_tag = select(tag, func.count()).where(of_run).group_by(tag).order_by(func.count().desc(), tag)
    project = col(Run.project)
    by_project = select(project, func.count()).where(project.is_not(None)).group_by(project)
    by_project = by_project.order_by(func.count().desc(), project)
    with Session(db) as session:
        states = {state: count for state, count in session.execute(by_state)}  # noqa: C416 - rows, typed
        return RunCounts(
            all=session.scalar(select(func.count()).select_from(Run)) or 0,
            matching=sum(count for state, count in states.items() if not chosen.states or state in chosen.states),
            states=states,
            tags={name: count for name, count in session.execute(by_tag)},  # noqa: C416
            starred=session.scalar(select(func.count()).select_from(Star).where(col(Star.row) == "")) or 0,
            projects={str(name): count for name, count in session.execute(by_project)},
        )


def newest_run(db: Database) -> int:
    """Return the highest number of a run; 0 without runs."""
    with Session(db) as session:
        return session.scalar(select(func.max(col(Run.id)))) or 0


def runs_since(db: Database, chosen: RunFilter, run_id: int) -> int:
    """Count the filter's runs with a higher number."""
    selected = _conditions(chosen, clock.now(db))
    with Session(db) as session:
        return session.scalar(select(func.count()).select_from(Run).where(col(Run.id) > run_id, *selected)) or 0


def run_marks(db: Database, ids: Iterable[int]) -> list[tuple[Any, ...]]:
    """Return values that change whenever the list's entries of these runs do, annotations excepted."""
    columns = (Run.id, Run.changed, Run.name, Run.error, Run.max_steps)
    query = (
        select(*map(col, columns), state_column(clock.now(db))).where(col(Run.id).in_(list(ids))).order_by(col(Run.id))
    )
    with Session(db) as session:
        return [tuple(row) for row in session.execute(query)]


def _conditions(chosen: RunFilter, now: int) -> list[ColumnElement[bool]]:
    return [
        *(_contains(word) for word in chosen.words),
        *(col(Run.uid).in_(_select_annotated(PersonalTag, col(PersonalTag.tag) == tag)) for tag in chosen.tags),
        *([state_column(now).in_(chosen.states)] if chosen.states else []),
        *([col(Run.project).in_(chosen.projects)] if chosen.projects else []),
        *([col(Run.uid).in_(_select_annotated(Star))] if chosen.starred else []),
    ]


def _contains(word: str) -> ColumnElement[bool]:
    field_name, colon, project = word.partition(":")
    if colon and project and field_name.lower() == "project":
        return col(Run.project).icontains(project, autoescape=True)
    name, equals, value = word.partition("=")
    if equals and name:
        return or_(_argument(col(Run.config), name, value), _argument(col(Run.versions), name, value))
    named_by = (Run.name, Run.uid, Run.model, Run.project)
    matches = [col(column).icontains(word, autoescape=True) for column in named_by]
    annotated = [
        col(Run.uid).in_(_select_annotated(table, column.icontains(word, autoescape=True)))
        for table, column in ((PersonalTag, col(PersonalTag.tag)), (Note, col(Note.text)))
    ]
    evals = _eval_names().c
    evaluating = select(evals.run).where(evals.name.icontains(word, autoescape=True))
    return or_(*matches, col(Run.id).in_(evaluating), *annotated, _has_value(word))


def _select_annotated(table: Any, *conditions: ColumnElement[bool]) -> Any:
    return select(col(table.run)).where(col(table.row) == "", *conditions)


@cache
def _eval_names() -> Any:
    """Return each eval name of each run, once, by one index look-up per name instead of per step. Cached, because a
    query that contains it several times needs the same object.
    """
    key, name = StepStatistics, col(StepStatistics.eval_name)
    modes = union_all(*(select(literal(mode.value).label("mode")) for mode in Mode)).subquery()
    first = select(func.min(name)).where(col(key.run_id) == col(Run.id), col(key.mode) == modes.c.mode)
    begun = select(col(Run.id).label("run"), modes.c.mode, first.scalar_subquery().label("name")).select_from(Run)
    names = begun.join(modes, literal(1) == 1).cte("names", recursive=True)
    of_run = (col(key.run_id) == names.c.run, col(key.mode) == names.c.mode)
    following = select(func.min(name)).where(*of_run, name > names.c.name).scalar_subquery()
    return names.union_all(select(names.c.run, names.c.mode, following).where(names.c.name.is_not(None)))


def _has_value(word: str) -> ColumnElement[bool]:
    """Return a condition: a value of the arguments contains the word, or equals the number. Names do not count."""
    entries = json_each(col(Run.config))
    value = _number(word)
    if value is not None:
        return exists(select(1).select_from(entries).where(number(entries) == value))
    is_there = cast(col(Run.config), String).icontains(word, autoescape=True)  # spares parsing most JSON
    return is_there & exists(select(1).select_from(entries).where(_is_part(entries.c, word)))


def _argument(values: Any, name: str, value: str) -> ColumnElement[bool]:
    entries = json_each(values)
    figure = _number(value)
    is_value = or_(
        _is_part(entries.c, value),
        entries.c.type == {"none": "null"}.get(value.lower(), value.lower()),
        *([number(entries) == figure] if figure is not None else []),
    )
    return exists(select(1).select_from(entries).where(entries.c.key == name, is_value))


def _is_part(entry: Any, word: str) -> Any:
    return entry.type.in_(("text", "array", "object")) & entry.value.icontains(word, autoescape=True)


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def _with_annotations(session: Session, runs: Sequence[Run], now: int) -> list[ListedRun]:
    notes, totals = run_annotations(session.connection()), known_totals(session, runs)
    return [
        ListedRun(summary(run, totals.get(run.id or 0, Totals()), now), notes.get(run.uid, NOTHING)) for run in runs
    ]
