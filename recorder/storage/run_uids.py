"""The one query that a training makes: which run ids are taken."""

from sqlalchemy import Engine, select
from sqlalchemy.orm import Session
from sqlmodel import col

from logs_ui.recorder.storage.tables import Run


def run_uids(db: Engine) -> set[str]:
    """The uids of all runs of a database."""
    with Session(db) as session:
        return set(session.scalars(select(col(Run.uid))))
