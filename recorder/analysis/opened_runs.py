"""Opens a database to read, and finds a run in it."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy import Engine

from logs_ui.recorder import queries
from logs_ui.recorder.analysis.progress_bar import waiting
from logs_ui.recorder.delivery.writer import flush_before_reading
from logs_ui.recorder.errors import RunNotFoundError
from logs_ui.recorder.queries.filters.fields import SEARCHED
from logs_ui.recorder.queries.filters.rollout_filter import RolloutFilter
from logs_ui.recorder.queries.search.index import catch_up
from logs_ui.recorder.storage.address import database_address
from logs_ui.recorder.storage.database import disposed, errors_in_plain_words, reading_engine
from logs_ui.recorder.storage.tables import Run


@contextmanager
def opened(
    run: str,
    db: str | os.PathLike[str] | None,
    chosen: RolloutFilter = RolloutFilter(),  # noqa: B008 - it cannot change
) -> Iterator[tuple[Engine, Run]]:
    """Open the database, find the run, and check that it has the names of the filter."""
    if not isinstance(run, str) or not run:  # as from a variable that was never set
        raise RunNotFoundError(f"{run!r} names no run. Give a run's id, the beginning of one, a name, or 'latest'.")
    with opened_database(db) as engine:
        stored_run = queries.find_run(engine, run)
        queries.check_names(engine, stored_run.id or 0, chosen)
        if any(term.field in SEARCHED for term in chosen.terms):
            with waiting("indexing texts") as show:
                catch_up(database_address(db), engine, stored_run.id or 0, show)
        yield engine, stored_run


@contextmanager
def opened_database(db: str | os.PathLike[str] | None, *, is_waiting: bool = True) -> Iterator[Engine]:
    """Open the database to read; `is_waiting` for what this process has not written yet."""
    path = database_address(db)
    if is_waiting:
        flush_before_reading(path)
    with errors_in_plain_words(path), disposed(reading_engine(path)) as engine:
        yield engine
