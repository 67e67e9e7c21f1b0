"""Checks what a PostgreSQL user may do besides reading."""

from dataclasses import dataclass

from sqlalchemy import URL, Connection, Engine, text

from logs_ui.recorder.errors import RefusedDatabaseError
from logs_ui.recorder.storage.address import db_option, masked_address
from logs_ui.recorder.storage.tables import SchemaVersion, Table

_MAY_WRITE = """
SELECT NOT pg_is_in_recovery() AND coalesce(
  has_table_privilege(to_regclass(:name), 'INSERT') AND has_table_privilege(to_regclass(:name), 'UPDATE')
  AND has_table_privilege(to_regclass(:name), 'DELETE'), false)
"""


@dataclass(frozen=True)
class Rights:
    """Describes the rights of one user in one database."""

    notes: bool  # may write stars, tags, notes and settings of diagnoses
    search: bool  # may fill the full-text index


NONE = Rights(notes=False, search=False)


def rights_of(engine: Engine) -> Rights:
    """Read the user's rights from PostgreSQL. SQLite's notes and index are files that each user can create."""
    if engine.dialect.name == "sqlite":
        return Rights(notes=True, search=True)
    with engine.connect() as connection:
        notes, search = (
            connection.scalar(text(_MAY_WRITE), {"name": table}) for table in ("notes.note", "search.texts")
        )
    return Rights(notes=bool(notes), search=bool(search))


_MAY_MAKE = """
SELECT coalesce(has_schema_privilege(current_schema(), 'CREATE'), false)
  AND has_database_privilege(current_database(), 'CREATE')
"""
_OF_SCHEMA = {"name": SchemaVersion.__tablename__}
_MAY_CHANGE = "SELECT pg_has_role(relowner, 'USAGE') FROM pg_class WHERE oid = to_regclass(:name)"
# First the tables, then the sequences that give their ids, each with the rights that the user lacks; rows without any
# lacking right are left out by `_lacking`.
_LACKING = """
SELECT name, concat_ws(', ',
  CASE WHEN NOT has_table_privilege(to_regclass(name), 'SELECT') THEN 'SELECT' END,
  CASE WHEN NOT has_table_privilege(to_regclass(name), 'INSERT') THEN 'INSERT' END,
  CASE WHEN NOT has_table_privilege(to_regclass(name), 'UPDATE') THEN 'UPDATE' END) AS rights
FROM unnest(CAST(:tables AS text[])) AS name
UNION ALL
SELECT sequence, CASE WHEN NOT has_sequence_privilege(sequence, 'USAGE') THEN 'USAGE' ELSE '' END
FROM unnest(CAST(:tables AS text[]), CAST(:columns AS text[])) AS counted (name, counter),
  pg_get_serial_sequence(name, counter) AS sequence
WHERE counter IS NOT NULL AND sequence IS NOT NULL
"""


def refuse_who_may_not_record(url: URL, connection: Connection) -> None:
    """Raise RefusedDatabaseError, which says who can grant what is missing, unless the user has all rights that
    recording needs. A standby is not refused: it may become the primary.
    """
    user = str(connection.scalar(text("SELECT current_user")))
    granted = f"GRANT logs_ui_recorder TO {connection.dialect.identifier_preparer.quote(user)}; (docs/cluster.md)"
    if connection.scalar(text("SELECT to_regclass(:name)"), _OF_SCHEMA) is None:
        if not connection.scalar(text(_MAY_MAKE)):
            raise RefusedDatabaseError(
                f"{masked_address(url)} has no tables of logs-ui yet, and {user} may not create them. "
                f"Its owner can: {_migrate(url)}, and then in psql: {granted}"
            )
    elif lacking := _lacking(connection):
        (first, rights), more = lacking[0], len(lacking) - 1
        others = f", and rights on {more} more" if more else ""
        raise RefusedDatabaseError(
            f"{masked_address(url)} cannot be recorded into by {user}, who lacks {rights} on {first}{others}. Name "
            f"another user, or let its owner run in psql: {granted}"
        )


def refuse_who_may_not_migrate(url: URL, connection: Connection) -> None:
    """Raise RefusedDatabaseError unless the user may change tables, before a recorder migrates the database."""
    if not connection.scalar(text(_MAY_CHANGE), _OF_SCHEMA):
        raise RefusedDatabaseError(
            f"{masked_address(url)} is of an earlier schema than this logs-ui records, and this user may not change "
            f"tables. Its owner can: {_migrate(url)}"
        )


def _migrate(url: URL) -> str:
    return f"logs-ui db migrate{db_option(url.set(username='OWNER'))}"


def _lacking(connection: Connection) -> list[tuple[str, str]]:
    """Return names of tables and sequences, each with the rights that the user lacks on it."""
    tables = Table.metadata.sorted_tables
    counters = [None if table.autoincrement_column is None else table.autoincrement_column.name for table in tables]
    parameters = {"tables": [table.name for table in tables], "columns": counters}
    return [(name, rights) for name, rights in connection.execute(text(_LACKING), parameters) if rights]
