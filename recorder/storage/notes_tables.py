"""Defines tables of people's stars, tags, notes and settings (schema `notes`): see `notebook.py`, `sidecars.py`."""

from typing import Any

from sqlalchemy import JSON, BigInteger, MetaData
from sqlmodel import Field, SQLModel

from logs_ui.recorder.storage.dialects import suit


class NotesTable(SQLModel):
    """Is the tables' base class. They refer to runs and rollouts by uid, which copies and merges of a database keep."""

    metadata = MetaData(schema="notes")


class Star(NotesTable, table=True):
    """Stores a star on a run, or on one of its rollouts."""

    __tablename__ = "star"

    run: str = Field(primary_key=True)  # uid
    row: str = Field(primary_key=True)  # uid within the run; empty for the run itself
    author: str | None = None  # user name of the process that wrote it
    changed: int = Field(sa_type=BigInteger)  # µs since the epoch


class PersonalTag(NotesTable, table=True):
    """Stores a person's tag on a run, or on one of its rollouts. A rollout function's tag is a `RowTag`."""

    __tablename__ = "tag"

    run: str = Field(primary_key=True)
    row: str = Field(primary_key=True)
    tag: str = Field(primary_key=True)  # at most TAG_LENGTH characters, on one line
    author: str | None = None
    changed: int = Field(sa_type=BigInteger)


class Note(NotesTable, table=True):
    """Stores a person's note on a run, or on one of its rollouts; never blank."""

    __tablename__ = "note"

    run: str = Field(primary_key=True)
    row: str = Field(primary_key=True)
    text: str
    author: str | None = None  # of the last change
    changed: int = Field(sa_type=BigInteger)


class SavedSettings(NotesTable, table=True):
    """Stores a person's settings of a run's diagnosis, which replace the recorded ones. Older files lack this table."""

    __tablename__ = "diagnosis"

    run: str = Field(primary_key=True)
    settings: dict[str, Any] = Field(sa_type=JSON)  # as `Settings.as_dict()`
    author: str | None = None
    changed: int = Field(sa_type=BigInteger)


class SavedView(NotesTable, table=True):
    """Stores a view of a run's table (filter, order, columns) under a name. Older files lack this table."""

    __tablename__ = "saved_view"

    run: str = Field(primary_key=True)
    name: str = Field(primary_key=True)  # at most TAG_LENGTH characters, on one line
    query: str  # of the page's address
    author: str | None = None
    changed: int = Field(sa_type=BigInteger)


suit(NotesTable.metadata)
