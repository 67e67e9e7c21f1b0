"""Reads the uids of a database's runs: the only query that a training makes, to choose an unused one."""

from sqlalchemy import Engine, select
from sqlalchemy.orm import Session
from sqlmodel import col

from logs_ui.recorder.storage.tables import Run


def run_uids(db: Engine) -> set[str]:
    """Return the uids of all runs of a database."""
    with Session(db) as session:
        return set(session.scalars(select(col(Run.uid))))
