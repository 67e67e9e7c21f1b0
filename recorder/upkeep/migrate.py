"""Migrates a database of an earlier schema."""

import os
from collections.abc import Callable
from pathlib import Path

from sqlalchemy import Connection

from logs_ui.recorder.errors import NoDatabaseError
from logs_ui.recorder.storage import schema
from logs_ui.recorder.storage.address import database_address
from logs_ui.recorder.storage.database import disposed, errors_in_plain_words, migrating_engine, writing_engine
from logs_ui.recorder.storage.migrations import Migration
from logs_ui.recorder.upkeep.small_transactions import alone, refuse_under_way


def migrate_database(
    db: str | os.PathLike[str] | None = None,
    *,
    applied: Callable[[Migration], None] = lambda _: None,
    made: Callable[[], None] = lambda: None,
) -> int:
    """Add what the database lacks (tables, columns, indexes), and apply the pending migrations in order, each in one
    transaction. Additive ones may run while trainings of any version record; before any other nobody may record. In an
    empty PostgreSQL database it creates the tables, as the owner does before others may record.

    Args:
        db: the database's path or URL; by default LOGS_UI_DB or this user's own database.
        applied: called with each migration once it is applied.
        made: called once the tables are created, if there were none.

    Returns:
        The schema that the database has then.

    Raises:
        LogsUIError: a run is being recorded, and a migration would break that.
        DatabaseError: the file is missing, or the database cannot be written, is of a newer schema, or from before
            0.1.0.
    """
    address = database_address(db)

    def refuse(connection: Connection, step: Migration) -> None:
        if not step.is_additive:
            refuse_under_way(connection, address, f"brought to schema {step.number} ({step.what})")

    with errors_in_plain_words(address):
        try:
            engine = migrating_engine(address)
        except NoDatabaseError:
            if isinstance(address, Path):
                raise
            engine = writing_engine(address)
            made()
        with disposed(engine):
            with alone(address):
                for step in schema.migrate(engine, refuse):
                    applied(step)
            with engine.connect() as connection:
                return schema.stamp_of(connection).version
