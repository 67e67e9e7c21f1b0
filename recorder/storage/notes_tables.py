"""The tables of the database beside the recorder's that holds what people say: see `notebook.py`."""

from typing import Any

from sqlalchemy import JSON, BigInteger, MetaData
from sqlmodel import Field, SQLModel

from logs_ui.recorder.storage.dialects import suit


class NotesTable(SQLModel):
    """Base of the tables of a database beside the recorder's: what people say of runs and rollouts. They name these by
    their uids, which a copy or another import of the recorder's database keeps.
    """

    metadata = MetaData(schema="notes")


class Star(NotesTable, table=True):
    """Somebody starred a run, or one of its rollouts."""

    __tablename__ = "star"

    run: str = Field(primary_key=True)  # uid
    row: str = Field(primary_key=True)  # uid within the run; empty: the run itself
    author: str | None = None  # user name of the process that wrote it
    changed: int = Field(sa_type=BigInteger)  # µs since the epoch


class PersonalTag(NotesTable, table=True):
    """A tag that somebody gave a run, or one of its rollouts. What a rollout function gave is a `RowTag`."""

    __tablename__ = "tag"

    run: str = Field(primary_key=True)
    row: str = Field(primary_key=True)
    tag: str = Field(primary_key=True)  # at most TAG_LENGTH characters, on one line
    author: str | None = None
    changed: int = Field(sa_type=BigInteger)


class Note(NotesTable, table=True):
    """What somebody wrote of a run, or of one of its rollouts; never blank."""

    __tablename__ = "note"

    run: str = Field(primary_key=True)
    row: str = Field(primary_key=True)
    text: str
    author: str | None = None  # of the last change
    changed: int = Field(sa_type=BigInteger)


class SavedSettings(NotesTable, table=True):
    """What somebody set for the diagnosis of a run, in place of what was recorded with it. A file that was written
    before there was this table lacks it.
    """

    __tablename__ = "diagnosis"

    run: str = Field(primary_key=True)
    settings: dict[str, Any] = Field(sa_type=JSON)  # as `Settings.as_dict()`
    author: str | None = None
    changed: int = Field(sa_type=BigInteger)


suit(NotesTable.metadata)
