"""How psycopg writes values that SQLite takes and PostgreSQL refuses or keeps otherwise: as SQLite's columns have them.
Imported by `postgres_engine.py` where there is psycopg.
"""

import struct
from typing import Any

from psycopg import DataError
from psycopg.types.numeric import FloatBinaryDumper
from psycopg.types.string import StrDumperUnknown

from logs_ui.recorder.snapshot import column

_packed = struct.Struct("!d").pack

Written = bytes | bytearray | memoryview | None


class _Number(FloatBinaryDumper):
    def dump(self, obj: float) -> Written:
        """NaN is NULL."""
        return None if obj != obj else _packed(obj)  # noqa: PLR0124 - NaN alone differs from itself


class _Text(StrDumperUnknown):
    def dump(self, obj: str) -> Written:
        """Without NUL and lone surrogates, as all that is stored."""
        try:
            return super().dump(obj)
        except (DataError, UnicodeEncodeError):
            return super().dump(column(obj) or "")


def adapt(connection: Any, *, read_only: bool) -> None:
    """Has a new connection of psycopg's write them so. What is recorded is clean already; what is asked is not."""
    for kind in (float, "numpy.float64", "numpy.float32"):
        connection.adapters.register_dumper(kind, _Number)
    if read_only:
        connection.adapters.register_dumper(str, _Text)
