"""What a database's user may do beside reading."""

from dataclasses import dataclass

from sqlalchemy import Engine, text

_MAY_WRITE = """
SELECT NOT pg_is_in_recovery() AND coalesce(
  has_table_privilege(to_regclass(:name), 'INSERT') AND has_table_privilege(to_regclass(:name), 'UPDATE')
  AND has_table_privilege(to_regclass(:name), 'DELETE'), false)
"""


@dataclass(frozen=True)
class Rights:
    """Of one user in one database.

    Attributes:
        notes: to write stars, tags, notes and settings of diagnoses.
        search: to fill the full-text index.
    """

    notes: bool
    search: bool


NONE = Rights(notes=False, search=False)


def rights_of(engine: Engine) -> Rights:
    """On PostgreSQL as its roles have it. SQLite's notes and index are files that the user can make somewhere."""
    if engine.dialect.name == "sqlite":
        return Rights(notes=True, search=True)
    with engine.connect() as connection:
        notes, search = (connection.scalar(text(_MAY_WRITE), {"name": it}) for it in ("notes.note", "search.texts"))
    return Rights(notes=bool(notes), search=bool(search))
