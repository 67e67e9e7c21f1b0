"""Writes stars, tags and notes of people: in the schema `notes` of a PostgreSQL database, or in a sidecar file beside
SQLite's. A reading connection sees either as the schema `notes`.

A rollout is identified by its run's uid and its own, a run by its uid and an empty row uid.
"""

import getpass
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sqlalchemy import ColumnElement, Select, delete, select, union_all
from sqlmodel import col

from logs_ui.recorder.labels import tag_of
from logs_ui.recorder.settings import Settings
from logs_ui.recorder.snapshot import column
from logs_ui.recorder.storage.address import Address, without_password
from logs_ui.recorder.storage.clock import now_us
from logs_ui.recorder.storage.database import disposed, errors_in_plain_words, sidecar_engine
from logs_ui.recorder.storage.dialects import array, insert, is_among
from logs_ui.recorder.storage.notes_tables import Note, NotesTable, PersonalTag, SavedSettings, SavedView, Star
from logs_ui.recorder.storage.sidecars import NOTES
from logs_ui.recorder.storage.tables import EvaluationRow, RowTag, Run

NOTE_LENGTH = 20_000
"""The maximum number of characters of a note; a longer one is refused."""


@dataclass(frozen=True)
class Subject:
    """A run or a rollout that is annotated."""

    run: str  # a run's uid
    row: str = ""  # a rollout's uid within it; empty for the run itself


class Notebook:
    """Writes annotations of one database's runs and rollouts. Each change is a transaction of its own; the last wins.

    All methods that write raise DatabaseError if the notes cannot be written.
    """

    def __init__(self, db: Address) -> None:
        self._db = db

    @property
    def place(self) -> str:
        """Return the place of the notes, for messages: a file, or a schema of a server's database."""
        if isinstance(self._db, Path):
            return str(NOTES.path(self._db))
        return f"{without_password(self._db)}, schema {NOTES.schema}"

    @property
    def is_apart(self) -> bool:
        """Return True if they are in a file elsewhere, because the database's folder cannot be written to."""
        return isinstance(self._db, Path) and NOTES.path(self._db) != NOTES.beside(self._db)

    def star(self, subject: Subject, *, starred: bool) -> None:
        """Add or remove the star."""
        self._write(Star, vars(subject), {} if starred else None)

    def tag(self, subject: Subject, tag: str) -> None:
        """Add a tag."""
        self._write(PersonalTag, {**vars(subject), "tag": tag_of(tag)}, {})

    def untag(self, subject: Subject, tag: str) -> None:
        """Remove a tag."""
        self._write(PersonalTag, {**vars(subject), "tag": tag}, None)

    def note(self, subject: Subject, text: str) -> None:
        """Replace the note; a blank text removes it."""
        text = (column(text) or "").strip()
        self._write(Note, vars(subject), {"text": text} if text else None)

    def diagnosis(self, run_uid: str, settings: Settings | None) -> None:
        """Save the settings of the diagnosis of a run, given by its uid; None restores the recorded ones."""
        self._write(SavedSettings, {"run": run_uid}, None if settings is None else {"settings": settings.as_dict()})

    def view(self, run_uid: str, name: str, query: str | None) -> None:
        """Save the query of an address as a view of a run's table, under a name. None deletes it."""
        self._write(SavedView, {"run": run_uid, "name": tag_of(name)}, None if query is None else {"query": query})

    def _write(self, table: type[NotesTable], key: dict[str, Any], values: dict[str, Any] | None) -> None:
        """Insert or update the row of this key; None deletes it."""
        change: Any = delete(table).where(*(col(getattr(table, name)) == value for name, value in key.items()))
        if values is not None:
            columns = {**values, "author": _author(), "changed": now_us()}
            change = insert(table).values(**key, **columns)
            change = change.on_conflict_do_update(index_elements=list(key), set_=columns)
        place = NOTES.path(self._db) if isinstance(self._db, Path) else self._db
        with errors_in_plain_words(place), disposed(sidecar_engine(NOTES, self._db)) as engine, engine.begin() as db:
            db.execute(change)


def starred(run_id: int) -> ColumnElement[bool]:
    """Return a condition for the run's rollouts with a star."""
    return col(EvaluationRow.id).in_(_ids(run_id, Star))


def noted(run_id: int, text: str = "") -> ColumnElement[bool]:
    """Return a condition for the run's rollouts whose note contains `text`, ignoring the case of ASCII letters."""
    contains = [col(Note.text).icontains(text, autoescape=True)] if text else []
    return col(EvaluationRow.id).in_(_ids(run_id, Note, *contains))


def tagged(run_id: int, *tags: str) -> ColumnElement[bool]:
    """Return a condition for the run's rollouts with any of these tags, from the rollout function or a person."""
    is_recorded, is_personal = (is_among(col(table.tag), array(tags)) for table in (RowTag, PersonalTag))
    recorded = select(col(RowTag.row_id)).where(col(RowTag.run_id) == run_id, is_recorded)
    return col(EvaluationRow.id).in_(union_all(recorded, _ids(run_id, PersonalTag, is_personal)))


def _ids(run_id: int, table: Any, *conditions: ColumnElement[bool]) -> Select[Any]:
    """List ids of the few annotated rows: an EXISTS would be evaluated for each row of the run."""
    of_run = select(col(Run.uid)).where(col(Run.id) == run_id).scalar_subquery()
    uids = select(col(table.row)).where(col(table.run) == of_run, *conditions)
    row = EvaluationRow.__table__.alias()  # type: ignore[attr-defined]
    return select(row.c.id).where(row.c.run_id == run_id, row.c.uid.in_(uids))


def _author() -> str | None:
    """Return the process's user; None if the system has no name for it, as in many containers."""
    try:
        return getpass.getuser()
    except (OSError, KeyError, ImportError):
        return None
