"""What people, and rollout functions, said of runs and rollouts: stars, tags, notes."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any

from sqlalchemy import ColumnElement, Select, func, literal, null, select, text, union_all
from sqlalchemy.orm import Session
from sqlmodel import col

from logs_ui.recorder.queries.common import Database
from logs_ui.recorder.storage.notes_tables import Note, PersonalTag, SavedSettings, Star
from logs_ui.recorder.storage.tables import EvaluationRow, RowTag, Run

_ITSELF = ""  # in place of a rollout's uid: the run's own
_MOST_TAGS = 200


def _kind(table: type[Star | PersonalTag | Note], text: Any) -> Select[Any]:
    kind = literal(str(table.__tablename__), literal_execute=True).label("kind")
    return select(col(table.run), col(table.row), kind, text.label("text"), col(table.author), col(table.changed))


_SAID = union_all(_kind(Star, null()), _kind(PersonalTag, col(PersonalTag.tag)), _kind(Note, col(Note.text))).subquery()


@dataclass(frozen=True)
class Annotation:
    """What is said of one run, or of one rollout.

    Attributes:
        recorded: tags from the rollout function, in alphabetical order; a run has none.
        tags: from people, in alphabetical order.
        note: as somebody wrote it; None without one.
        author: user name of who wrote the note last; None without a note, or where it is not known.
        written: µs since the epoch of the note's last change; None without one.
    """

    starred: bool = False
    recorded: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()
    note: str | None = None
    author: str | None = None
    written: int | None = None

    @property
    def all_tags(self) -> tuple[str, ...]:
        """Whoever they are from, each once, in alphabetical order."""
        return tuple(sorted({*self.recorded, *self.tags}))


NOTHING = Annotation()
"""Of what nobody said anything."""


@dataclass(frozen=True)
class Annotated:
    """How many rollouts of a run have a star, a person's tag, and a note."""

    starred: int
    tagged: int
    noted: int


def annotations(db: Database, run: Run, rows: Iterable[EvaluationRow]) -> dict[int, Annotation]:
    """Of these rollouts of a run, by id; those of which nothing is said are left out."""
    ids = {row.uid: row.id or 0 for row in rows}
    if not ids:
        return {}
    with Session(db) as session:
        recorded = _recorded(session, col(RowTag.row_id).in_(ids.values()))
        said = _said(session, _SAID.c.run == run.uid, _SAID.c.row.in_(ids))
    return _together(recorded, {ids[row]: found for (_, row), found in said.items()})


def annotations_between(db: Database, run: Run, first: int, last: int) -> dict[int, Annotation]:
    """Likewise, of those whose ids lie between these: of many, without a question that names each."""
    of_run = col(EvaluationRow.run_id) == run.id, col(EvaluationRow.id).between(first, last)
    named = _SAID.join(EvaluationRow, col(EvaluationRow.uid) == _SAID.c.row)
    ids = (
        select(col(EvaluationRow.uid), col(EvaluationRow.id)).select_from(named).where(_SAID.c.run == run.uid, *of_run)
    )
    with Session(db) as session:
        recorded = _recorded(session, col(RowTag.run_id) == run.id, col(RowTag.row_id).between(first, last))
        id_of = {found.uid: found.id for found in session.execute(ids)}
        said = _said(session, _SAID.c.run == run.uid, _SAID.c.row != _ITSELF) if id_of else {}
    return _together(recorded, {id_of[row]: found for (_, row), found in said.items() if row in id_of})


def annotation(db: Database, run: Run, row: EvaluationRow) -> Annotation:
    """Of one rollout."""
    return annotations(db, run, [row]).get(row.id or 0, NOTHING)


def run_annotations(db: Database) -> dict[str, Annotation]:
    """Of runs themselves, by uid; those of which nothing is said are left out."""
    with Session(db) as session:
        return {run: found for (run, _), found in _said(session, _SAID.c.row == _ITSELF).items()}


def known_tags(db: Database, run_id: int) -> list[str]:
    """To choose from: a person's of any run, and those that this run's rollout function gave; in alphabetical order."""
    people = select(col(PersonalTag.tag)).distinct().order_by(col(PersonalTag.tag)).limit(_MOST_TAGS)
    with Session(db) as session:
        return sorted({*session.scalars(people), *recorded_tags(session.connection(), run_id)})


def recorded_tags(db: Database, run_id: int, limit: int = _MOST_TAGS) -> list[str]:
    """Those that the run's rollout function gave, in alphabetical order; a look-up in the index for each."""
    tag, of_run = col(RowTag.tag), col(RowTag.run_id) == run_id
    tags = select(func.min(tag).label("tag")).where(of_run).cte("tags", recursive=True)
    following = select(func.min(tag)).where(of_run, tag > tags.c.tag).scalar_subquery()
    tags = tags.union_all(select(following).where(tags.c.tag.is_not(None)))
    with Session(db) as session:
        return sorted(session.scalars(select(tags.c.tag).where(tags.c.tag.is_not(None)).limit(limit)))


def annotated(db: Database, run_uid: str) -> Annotated:
    """Counts of one run."""
    with Session(db) as session:

        def rows(table: type[Star | PersonalTag | Note]) -> int:
            of_run = col(table.run) == run_uid, col(table.row) != _ITSELF
            return session.scalar(select(func.count(col(table.row).distinct())).where(*of_run)) or 0

        return Annotated(rows(Star), rows(PersonalTag), rows(Note))


def saved_settings(db: Database, run_uid: str) -> dict[str, Any] | None:
    """What somebody set for the diagnosis of a run; None where nobody did."""
    saved = select(col(SavedSettings.settings)).where(col(SavedSettings.run) == run_uid)
    with Session(db) as session:
        return session.scalar(saved) if _is_there(session) else None


def _is_there(session: Session) -> bool:
    """Whether the table is: an SQLite file that was written before there was one lacks it."""
    if session.connection().dialect.name != "sqlite":
        return True
    asked = text("SELECT 1 FROM notes.sqlite_master WHERE type = 'table' AND name = 'diagnosis'")
    return session.scalar(asked) is not None


def _recorded(session: Session, *conditions: ColumnElement[bool]) -> dict[int, tuple[str, ...]]:
    """Tags of rollout functions, by the row's id."""
    tags: dict[int, list[str]] = {}
    found = select(col(RowTag.row_id), col(RowTag.tag)).where(*conditions).order_by(col(RowTag.tag))
    for row_id, tag in session.execute(found):
        tags.setdefault(row_id, []).append(tag)
    return {row_id: tuple(of_row) for row_id, of_row in tags.items()}


def _together(recorded: dict[int, tuple[str, ...]], people: dict[int, Annotation]) -> dict[int, Annotation]:
    return {id_: replace(people.get(id_, NOTHING), recorded=recorded.get(id_, ())) for id_ in {*people, *recorded}}


def _said(session: Session, *conditions: ColumnElement[bool]) -> dict[tuple[str, str], Annotation]:
    """By uids of run and row."""
    rows = session.execute(select(_SAID).where(*conditions).order_by(_SAID.c.run, _SAID.c.row)).all()
    return {key: _annotation(list(of_one)) for key, of_one in groupby(rows, key=lambda said: (said.run, said.row))}


def _annotation(said: list[Any]) -> Annotation:
    note = next((it for it in said if it.kind == Note.__tablename__), None)
    return Annotation(
        starred=any(it.kind == Star.__tablename__ for it in said),
        tags=tuple(sorted(it.text for it in said if it.kind == PersonalTag.__tablename__)),
        note=note and note.text,
        author=note and note.author,
        written=note and note.changed,
    )
