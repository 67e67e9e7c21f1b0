"""Changes of a run `r` as tests write them, and what a database then holds.

Processes that record in tests import this, and no SQLAlchemy, which takes them a second.
"""

import os
import signal
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from logs_ui.recorder.api.run_record import ChangesJob
from logs_ui.recorder.delivery.writer import Writer
from logs_ui.recorder.storage.address import Address
from logs_ui.recorder.storage.changes import Change, EntryNumber, RowChange, RunChange
from logs_ui.recorder.storage.limits import Limits

BEGUN = RunChange("r", {"name": "r", "created": 1, "heartbeat": 1})
IDENTITY = {
    "eval_name": "e", "mode": "train", "step": 1, "policy_step": 0, "group": "r/train/0/0", "generation": 0,
    "process": 0, "created": 1,
}  # fmt: skip


def nth(number: int) -> EntryNumber:
    """The entry of that number, of a process that writes itself."""
    return EntryNumber(n=number)


def row(uid: str, columns: dict[str, Any] | None = None, content: bytes | None = None, **identity: Any) -> RowChange:
    return RowChange("r", uid, IDENTITY | identity, columns or {}, content)


def job(*changes: Change, size: int = 1_000) -> ChangesJob:
    return ChangesJob(lambda: changes, size)


def flushes(writer: Writer, *changes: Change) -> bool:
    """Return whether they are stored, as one job."""
    writer.put(job(*changes))
    return writer.flush(60)


def write(writer: Writer, *changes: Change) -> None:
    assert flushes(writer, *changes)


def begun(address: Address, *changes: Change, limits: Limits | None = None) -> Writer:
    """A writer that has stored the run's begin."""
    writer = Writer(address, limits)
    write(writer, BEGUN, *changes)
    return writer


def stored(address: Address, query: str) -> list[tuple[Any, ...]]:
    from logs_ui.recorder.storage.database import disposed, reading_engine

    with disposed(reading_engine(address)) as engine, engine.connect() as connection:
        return [tuple(values) for values in connection.exec_driver_sql(query)]


def wait_until(is_so: Callable[[], bool], log: Path = Path(os.devnull)) -> None:
    """For four minutes at most; a failure shows the log."""
    deadline = time.monotonic() + 240
    while not is_so():
        assert time.monotonic() < deadline, log.read_text()
        time.sleep(0.05)


def interrupt(*_: object) -> None:
    """Take the place of what is called in the middle."""
    raise KeyboardInterrupt


def in_child(works: Callable[[], bool]) -> None:
    """Fails unless it works in a forked child."""
    if (child := os.fork()) == 0:
        signal.alarm(90)
        os._exit(0 if works() else 1)
    assert os.waitpid(child, 0)[1] == 0


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Keeps everybody else from writing the SQLite file, and from opening it anew."""
    other = sqlite3.connect(path, isolation_level=None, timeout=60)
    try:
        other.execute("BEGIN EXCLUSIVE")
        yield
        other.execute("ROLLBACK")
    finally:
        other.close()
