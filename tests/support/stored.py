"""Reads what a test has recorded."""

from pathlib import Path
from typing import Any

from sqlmodel import Session, col, select

from logs_ui.recorder import flush, load_run
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


def rows_of(db: Path) -> list[dict[Any, Any]]:
    """Return the newest run's rows, in the order in which they began."""
    assert flush()
    return load_run(db=db).sort_values("created", kind="stable").to_dict("records")
