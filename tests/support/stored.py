"""Reads what a test has recorded."""

from pathlib import Path

from sqlmodel import Session, col, select

from logs_ui.recorder.storage.database import reading_engine
from logs_ui.recorder.storage.tables import Run


def last_run(db: Path) -> Run:
    with Session(reading_engine(db)) as session:
        run = session.exec(select(Run).order_by(col(Run.id).desc())).first()
    assert run is not None
    return run


def only_run(db: Path) -> Run:
    with Session(reading_engine(db)) as session:
        return session.exec(select(Run)).one()
