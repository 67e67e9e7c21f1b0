"""What time it is, by the clock that heartbeats are by."""

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sqlalchemy import Connection, Engine


def now_us() -> int:
    """By this machine's clock, in µs since 1970."""
    return time.time_ns() // 1000


def now(db: "Engine | Connection") -> int:
    """In µs since 1970: PostgreSQL's own time, whatever this machine's clock says; of an SQLite file this machine's,
    on which its recorders run, or which takes in what those on other machines wrote (see `Intake`).
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
