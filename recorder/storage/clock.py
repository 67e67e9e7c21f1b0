"""Returns the time, by the clock that heartbeats use."""

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sqlalchemy import Connection, Engine


def now_us() -> int:
    """Return this machine's time in µs since 1970."""
    return time.time_ns() // 1000


def now(db: "Engine | Connection") -> int:
    """Return the time in µs since 1970: PostgreSQL's own, whatever this machine's clock says. For an SQLite file it is
    this machine's, on which its recorders run, or which stores what those on other machines wrote (see `Intake`).
    """
    from sqlalchemy import Connection, select  # `now_us` is all that a training needs

    from logs_ui.recorder.storage.dialects import server_clock

    here = now_us()
    if db.dialect.name == "sqlite":
        return here
    if isinstance(db, Connection):
        return int(db.scalar(select(server_clock(here))) or here)
    with db.connect() as connection:
        return now(connection)
