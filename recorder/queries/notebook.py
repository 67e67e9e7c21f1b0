"""What people say of runs and rollouts: stars, tags and written notes, in the schema `notes` of a PostgreSQL database,
and in a database of their own beside SQLite's. Written here; read through any reading connection, to which both are the
schema `notes`.

A rollout is named by its run's uid and its own, a run by its uid and no row's.
"""

import getpass
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sqlalchemy import ColumnElement, Connection, Select, delete, select, union_all
from sqlmodel import col

from logs_ui.recorder.labels import tag_of
from logs_ui.recorder.settings import Settings
from logs_ui.recorder.snapshot import column
from logs_ui.recorder.storage.address import Address, without_password
from logs_ui.recorder.storage.clock import now_us
from logs_ui.recorder.storage.database import errors_in_plain_words, sidecar_engine
from logs_ui.recorder.storage.dialects import insert
from logs_ui.recorder.storage.notes_tables import Note, NotesTable, PersonalTag, SavedSettings, Star
from logs_ui.recorder.storage.sidecars import NOTES
from logs_ui.recorder.storage.tables import EvaluationRow, RowTag, Run

NOTE_LENGTH = 20_000
"""Characters of a note; what is longer is refused."""


@dataclass(frozen=True)
class Subject:
    """What is annotated.

    Attributes:
        run: a run's uid.
        row: a rollout's uid within it; empty for the run itself.
    """

    run: str
    row: str = ""


class Notebook:
    """Writes annotations of one database's runs and rollouts. Each change is a transaction of its own; of two people
    who change the same thing the last has it.
    """

    def __init__(self, db: Address) -> None:
        self._db = db

    @property
    def place(self) -> str:
        """Where they are kept, for people: a file, or a schema of a server's database."""
        if isinstance(self._db, Path):
            return str(NOTES.path(self._db))
        return f"{without_password(self._db)}, schema {NOTES.schema}"

    @property
    def is_apart(self) -> bool:
        """Whether that is a file in another folder than the database's, which cannot be written to."""
        return isinstance(self._db, Path) and NOTES.path(self._db) != NOTES.beside(self._db)

    def star(self, subject: Subject, *, starred: bool) -> None:
        """Raises DatabaseError: it cannot be written."""
        with self._writing() as connection:
            if starred:
                _put(connection, Star, vars(subject), {})
            else:
                _delete(connection, Star, vars(subject))

    def tag(self, subject: Subject, tag: str) -> None:
        """Raises DatabaseError: it cannot be written."""
        with self._writing() as connection:
            _put(connection, PersonalTag, {**vars(subject), "tag": tag_of(tag)}, {})

    def untag(self, subject: Subject, tag: str) -> None:
        """Raises DatabaseError: it cannot be written."""
        with self._writing() as connection:
            _delete(connection, PersonalTag, {**vars(subject), "tag": tag})

    def note(self, subject: Subject, text: str) -> None:
        """A blank text removes the note.

        Raises:
            DatabaseError: it cannot be written.
        """
        text = (column(text) or "").strip()
        with self._writing() as connection:
            if text:
                _put(connection, Note, vars(subject), {"text": text})
            else:
                _delete(connection, Note, vars(subject))

    def diagnosis(self, run: str, settings: Settings | None) -> None:
        """What a run's diagnosis is held against from now on.

        Args:
            run: its uid.
            settings: all of them; None: again what was recorded with the run.

        Raises:
            DatabaseError: it cannot be written.
        """
        with self._writing() as connection:
            if settings is None:
                _delete(connection, SavedSettings, {"run": run})
            else:
                _put(connection, SavedSettings, {"run": run}, {"settings": settings.as_dict()})

    @contextmanager
    def _writing(self) -> Iterator[Connection]:
        with errors_in_plain_words(NOTES.path(self._db) if isinstance(self._db, Path) else self._db):
            engine = sidecar_engine(NOTES, self._db)
            try:
                with engine.begin() as connection:
                    yield connection
            finally:
                engine.dispose()


def starred(run_id: int) -> ColumnElement[bool]:
    """Of a run's rollouts those with a star. They are few: let them lead to the rows."""
    return _among(run_id, Star)


def noted(run_id: int, text: str = "") -> ColumnElement[bool]:
    """Of a run's rollouts those whose note holds `text`, in whatever case its ASCII letters are."""
    return _among(run_id, Note, *([col(Note.text).icontains(text, autoescape=True)] if text else []))


def tagged(run_id: int, tag: str) -> ColumnElement[bool]:
    """Of a run's rollouts those with exactly this tag, whether from the rollout function or from a person."""
    recorded = select(col(RowTag.row_id)).where(col(RowTag.run_id) == run_id, col(RowTag.tag) == tag)
    return col(EvaluationRow.id).in_(union_all(recorded, _ids(run_id, PersonalTag, col(PersonalTag.tag) == tag)))


def _among(run_id: int, table: Any, *conditions: ColumnElement[bool]) -> ColumnElement[bool]:
    """Not an EXISTS, which would look up each row of the run."""
    return col(EvaluationRow.id).in_(_ids(run_id, table, *conditions))


def _ids(run_id: int, table: Any, *conditions: ColumnElement[bool]) -> Select[Any]:
    of_run = select(col(Run.uid)).where(col(Run.id) == run_id).scalar_subquery()
    uids = select(col(table.row)).where(col(table.run) == of_run, *conditions)
    row = EvaluationRow.__table__.alias()  # type: ignore[attr-defined]
    return select(row.c.id).where(row.c.run_id == run_id, row.c.uid.in_(uids))


def _put(connection: Connection, table: type[NotesTable], key: dict[str, Any], values: dict[str, Any]) -> None:
    said = {**values, "author": _author(), "changed": now_us()}
    connection.execute(insert(table).values(**key, **said).on_conflict_do_update(index_elements=list(key), set_=said))


def _delete(connection: Connection, table: Any, key: dict[str, Any]) -> None:
    connection.execute(delete(table).where(*(col(getattr(table, name)) == value for name, value in key.items())))


def _author() -> str | None:
    """None where the system knows no name for the process's user, as in many containers."""
    try:
        return getpass.getuser()
    except (OSError, KeyError, ImportError):
        return None
