"""A psycopg connection that gives up on a server that does not answer, and stores values as SQLite does.

A server that stands still, or is cut off behind a proxy, breaks no connection while a kernel goes on acknowledging: no
timeout of TCP or of the server ends such a wait. Imported by `engine.py` only if psycopg is installed.
"""

import struct
import time
from collections.abc import Callable, Generator
from contextlib import suppress
from typing import Any

from psycopg import Connection, DataError, Error, OperationalError
from psycopg.types.numeric import FloatBinaryDumper
from psycopg.types.string import StrDumperUnknown

from logs_ui.recorder.snapshot import column

_CANCEL = 2.0  # seconds that a slow server has to cancel a statement
_packed = struct.Struct("!d").pack

Written = bytes | bytearray | memoryview | None


class ImpatientConnection(Connection[Any]):
    # Seconds that a statement, or a commit, may take; then what is to be written waits on disk. None for as long as it
    # takes.
    longest: float | None = None
    shortest: float = 0.0  # seconds that it may take if `is_hurried()`, as when the process is about to end
    is_hurried: Callable[[], bool] = staticmethod(lambda: False)

    def wait(self, gen: Generator[Any, Any, Any], *args: Any, **kw: Any) -> Any:
        """Override psycopg's, which waits for ever: in the end raise OperationalError and close the connection."""
        return super().wait(gen if self.longest is None else self._limited(gen, self.longest), *args, **kw)

    def _limited(self, gen: Generator[Any, Any, Any], longest: float) -> Generator[Any, Any, Any]:
        began = time.monotonic()
        # psycopg's generator yields what it waits for, and is sent what has become ready. This one passes both on.
        try:
            wanted = next(gen)
            while True:
                ready = yield wanted
                waited = time.monotonic() - began
                # psycopg looks ten times a second, each time with nothing ready.
                if not ready and waited > (self.shortest if self.is_hurried() else longest):
                    with suppress(Error):  # a server that is only slow must not go on holding locks
                        self.cancel_safe(timeout=_CANCEL)
                    self.pgconn.finish()
                    raise OperationalError(f"the server has not answered for {waited:.1f} seconds")
                wanted = gen.send(ready)
        except StopIteration as done:
            return done.value


class _Number(FloatBinaryDumper):
    def dump(self, obj: float) -> Written:
        """Store NaN as NULL."""
        return None if obj != obj else _packed(obj)  # noqa: PLR0124 - NaN alone differs from itself


class _Text(StrDumperUnknown):
    def dump(self, obj: str) -> Written:
        """Replace NUL and lone surrogates, as in all text that is stored."""
        try:
            return super().dump(obj)
        except (DataError, UnicodeEncodeError):
            return super().dump(column(obj) or "")


def adapt(connection: Any, *, read_only: bool) -> None:
    """Register how a new connection writes values. Recorded text is clean already; text to search for is not."""
    for kind in (float, "numpy.float64", "numpy.float32"):
        connection.adapters.register_dumper(kind, _Number)
    if read_only:
        connection.adapters.register_dumper(str, _Text)
