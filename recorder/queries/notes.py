"""Reads stars, notes and tags of runs and rollouts, from people and from rollout functions."""

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any

from sqlalchemy import ColumnElement, Select, func, literal, null, select, text, union_all
from sqlalchemy.orm import Session
from sqlmodel import col

from logs_ui.recorder.queries.common import Database, distinct
from logs_ui.recorder.queries.filters.language import keep_set
from logs_ui.recorder.storage.notes_tables import Note, PersonalTag, SavedSettings, SavedView, Star
from logs_ui.recorder.storage.tables import EvaluationRow, RowTag, Run

_ITSELF = ""  # the row uid of annotations of the run itself
_MOST_TAGS = 200
_MOST_VIEWS = 200


def _kind(table: type[Star | PersonalTag | Note], text: Any) -> Select[Any]:
    kind = literal(str(table.__tablename__), literal_execute=True).label("kind")
    return select(col(table.run), col(table.row), kind, text.label("text"), col(table.author), col(table.changed))


_PERSONAL = union_all(
    _kind(Star, null()), _kind(PersonalTag, col(PersonalTag.tag)), _kind(Note, col(Note.text))
).subquery()


@dataclass(frozen=True)
class Annotation:
    """Holds annotations of one run or rollout; tags are in alphabetical order."""

    starred: bool = False
    recorded: tuple[str, ...] = ()  # tags from the rollout function; a run has none
    tags: tuple[str, ...] = ()  # from people
    note: str | None = None
    author: str | None = None  # user name of the note's last author; None without a note, or if it is not known
    written: int | None = None  # time of the note's last change, in µs since the epoch; None without a note

    @property
    def all_tags(self) -> tuple[str, ...]:
        """Return tags from people and from the rollout function, each once, in alphabetical order."""
        return tuple(sorted({*self.recorded, *self.tags}))


NOTHING = Annotation()
"""The annotation of a run or rollout that has none."""


@dataclass(frozen=True)
class Annotated:
    """Counts a run's rollouts that have a star, a person's tag, or a note."""

    starred: int
    tagged: int
    noted: int


def annotations(db: Database, run: Run, rows: Iterable[EvaluationRow]) -> dict[int, Annotation]:
    """Return annotations of these rollouts of a run, by id; rollouts without any are left out."""
    ids = {row.uid: row.id or 0 for row in rows}
    if not ids:
        return {}
    with Session(db) as session:
        recorded = _recorded_tags(session, col(RowTag.row_id).in_(ids.values()))
        personal = _personal_annotations(session, _PERSONAL.c.run == run.uid, _PERSONAL.c.row.in_(ids))
    return _merge_annotations(recorded, {ids[row]: entry for (_, row), entry in personal.items()})


def annotations_between(db: Database, run: Run, first: int, last: int) -> dict[int, Annotation]:
    """Return annotations of the rollouts whose ids lie between these, by id: one SELECT for any number."""
    of_run = col(EvaluationRow.run_id) == run.id, col(EvaluationRow.id).between(first, last)
    joined = _PERSONAL.join(EvaluationRow, col(EvaluationRow.uid) == _PERSONAL.c.row)
    ids = select(col(EvaluationRow.uid), col(EvaluationRow.id)).select_from(joined)
    ids = ids.where(_PERSONAL.c.run == run.uid, *of_run)
    with Session(db) as session:
        recorded = _recorded_tags(session, col(RowTag.run_id) == run.id, col(RowTag.row_id).between(first, last))
        id_of = {row.uid: row.id for row in session.execute(ids)}
        personal = (
            _personal_annotations(session, _PERSONAL.c.run == run.uid, _PERSONAL.c.row != _ITSELF) if id_of else {}
        )
    return _merge_annotations(recorded, {id_of[row]: entry for (_, row), entry in personal.items() if row in id_of})


def annotation(db: Database, run: Run, row: EvaluationRow) -> Annotation:
    """Return annotations of one rollout."""
    return annotations(db, run, [row]).get(row.id or 0, NOTHING)


def run_annotations(db: Database) -> dict[str, Annotation]:
    """Return annotations of runs, by uid; runs without any are left out."""
    with Session(db) as session:
        return {
            run_uid: entry for (run_uid, _), entry in _personal_annotations(session, _PERSONAL.c.row == _ITSELF).items()
        }


def known_tags(db: Database, run_id: int) -> list[str]:
    """Return tags to suggest: people's tags of any run, and this run's rollout function's, in alphabetical order."""
    people = select(col(PersonalTag.tag)).distinct().order_by(col(PersonalTag.tag)).limit(_MOST_TAGS)
    with Session(db) as session:
        return sorted({*session.scalars(people), *recorded_tags(session.connection(), run_id)})


def recorded_tags(db: Database, run_id: int) -> list[str]:
    """Return tags from the run's rollout function, in alphabetical order; one index look-up per tag."""
    with Session(db) as session:
        return sorted(session.scalars(distinct(col(RowTag.tag), col(RowTag.run_id) == run_id).limit(_MOST_TAGS)))


def annotated(db: Database, run_uid: str) -> Annotated:
    """Count the annotated rollouts of one run."""
    with Session(db) as session:

        def rows(table: type[Star | PersonalTag | Note]) -> int:
            of_run = col(table.run) == run_uid, col(table.row) != _ITSELF
            return session.scalar(select(func.count(col(table.row).distinct())).where(*of_run)) or 0

        return Annotated(rows(Star), rows(PersonalTag), rows(Note))


def saved_settings(db: Database, run_uid: str) -> dict[str, Any] | None:
    """Return the saved settings of a run's diagnosis; None if nobody saved any."""
    saved = select(col(SavedSettings.settings)).where(col(SavedSettings.run) == run_uid)
    with Session(db) as session:
        return session.scalar(saved) if _has(session, SavedSettings) else None


def saved_views(db: Database, run_uid: str) -> list[SavedView]:
    """Return the saved views of a run's table, by name."""
    is_view = col(SavedView.name).not_like("set:" + "_" * 12)  # see `load_sets`
    saved = select(SavedView).where(col(SavedView.run) == run_uid, is_view)
    saved = saved.order_by(col(SavedView.name)).limit(_MOST_VIEWS)
    with Session(db) as session:
        return list(session.scalars(saved)) if _has(session, SavedView) else []


def load_sets(db: Database, where: str) -> None:
    """Read the sets that a line of the filter language names: long terms, stored among the views: see `keep_set`."""
    names = [f"set:{name}" for name in re.findall(r"\bset\W{1,4}([0-9a-f]{12})\b", where)]
    saved = select(col(SavedView.query)).where(col(SavedView.name).in_(names))
    with Session(db) as session:
        for text_of_term in session.scalars(saved) if names and _has(session, SavedView) else ():
            keep_set(text_of_term)


def _has(session: Session, table: type[SavedSettings | SavedView]) -> bool:
    """Return False for a notes file from an earlier version that lacks the table."""
    query = text("SELECT 1 FROM notes.sqlite_master WHERE type = 'table' AND name = :name")
    is_file = session.connection().dialect.name == "sqlite"
    return not is_file or session.scalar(query, {"name": table.__tablename__}) is not None


def _recorded_tags(session: Session, *conditions: ColumnElement[bool]) -> dict[int, tuple[str, ...]]:
    """Return tags from rollout functions, by row id."""
    tags: dict[int, tuple[str, ...]] = {}
    query = select(col(RowTag.row_id), col(RowTag.tag)).where(*conditions).order_by(col(RowTag.tag))
    for row_id, tag in session.execute(query):
        tags[row_id] = (*tags.get(row_id, ()), tag)
    return tags


def _merge_annotations(recorded: dict[int, tuple[str, ...]], people: dict[int, Annotation]) -> dict[int, Annotation]:
    return {id_: replace(people.get(id_, NOTHING), recorded=recorded.get(id_, ())) for id_ in {*people, *recorded}}


def _personal_annotations(session: Session, *conditions: ColumnElement[bool]) -> dict[tuple[str, str], Annotation]:
    """Return annotations by people, by the uids of run and row."""
    rows = session.execute(select(_PERSONAL).where(*conditions).order_by(_PERSONAL.c.run, _PERSONAL.c.row)).all()
    return {key: _annotation(list(of_one)) for key, of_one in groupby(rows, key=lambda entry: (entry.run, entry.row))}


def _annotation(entries: list[Any]) -> Annotation:
    note = next((entry for entry in entries if entry.kind == Note.__tablename__), None)
    return Annotation(
        starred=any(entry.kind == Star.__tablename__ for entry in entries),
        tags=tuple(sorted(entry.text for entry in entries if entry.kind == PersonalTag.__tablename__)),
        note=note and note.text,
        author=note and note.author,
        written=note and note.changed,
    )
