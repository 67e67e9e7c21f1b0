"""A connection to PostgreSQL that gives up on a server that says nothing: one that stands still, or is cut off behind
a proxy, while the kernel at the other end goes on acknowledging, breaks no connection, and no timeout of TCP's or of
the server's own ends the wait. One that is slow, as while its disk is, is asked by a second connection, and waited for
as long as it is at the statement. Imported by `postgres_engine.py` where there is psycopg.
"""

import time
from collections.abc import Callable, Generator
from contextlib import closing, suppress
from enum import Enum, auto
from typing import Any, Self

from psycopg import Connection, Error, OperationalError

_ASKING = 2.0  # seconds in which a server answers what it is at


class _Seen(Enum):
    """What a server says of a connection that waits for it."""

    AT_IT = auto()
    """Or it cannot tell, as where a pooler stands between."""
    ELSEWHERE = auto()
    """It waits for the connection's next statement: its answer was lost, unless it is on its way."""
    NOTHING = auto()
    """It does not answer."""


class ImpatientConnection(Connection[Any]):
    """
    Attributes:
        longest: seconds for which a server may be at one statement: then what is to be written waits on disk.
        silence: seconds that a statement, or a commit, waits for an answer until it is asked for; None for as long as
            it takes.
        is_hurried: tells whether not to wait for a slow server either, as where the process is about to end.
    """

    longest: float = 60.0
    silence: float | None = None
    is_hurried: Callable[[], bool] = staticmethod(lambda: False)
    _settings: tuple[tuple[Any, ...], dict[str, Any]] = ((), {})

    @classmethod
    def connect(cls, *args: Any, **settings: Any) -> Self:
        """As psycopg's."""
        found = super().connect(*args, **settings)
        found._settings = (args, settings)  # noqa: SLF001 - ours
        return found

    def wait(self, gen: Generator[Any, Any, Any], *args: Any, **kw: Any) -> Any:
        """As psycopg's.

        Raises:
            psycopg.OperationalError: the server did not answer in time. The connection is closed.
        """
        return super().wait(gen if self.silence is None else self._limited(gen, self.silence), *args, **kw)

    def _limited(self, gen: Generator[Any, Any, Any], seconds: float) -> Generator[Any, Any, Any]:
        began = time.monotonic()
        ask_at, seen = began + seconds, _Seen.AT_IT
        try:
            wanted = next(gen)
            while True:
                ready = yield wanted
                now = time.monotonic()
                if not ready and now > began + seconds:  # psycopg looks ten times a second
                    is_over = self.is_hurried() or now > began + self.longest
                    if now > ask_at and not is_over:
                        before, seen = seen, self._asked()
                        is_over = seen == _Seen.NOTHING or seen == before == _Seen.ELSEWHERE
                        ask_at = time.monotonic() + seconds
                    if is_over:
                        self._give_up(seen)
                        raise OperationalError(f"the server has not answered for {now - began:.1f} seconds")
                wanted = gen.send(ready)
        except StopIteration as done:
            return done.value

    def _asked(self) -> _Seen:
        args, settings = self._settings
        query = "SELECT state FROM pg_stat_activity WHERE pid = %s"
        try:
            with closing(_Asking.connect(*args, **{**settings, "connect_timeout": round(_ASKING)})) as asking:
                row = asking.execute(query, [self.info.backend_pid]).fetchone()
        except Error:
            return _Seen.NOTHING
        return _Seen.AT_IT if row is None or row[0] in {None, "active"} else _Seen.ELSEWHERE

    def _give_up(self, seen: _Seen) -> None:
        """A server that is at it is told, so that it holds no locks for nobody."""
        if seen == _Seen.AT_IT:
            with suppress(Error):
                self.cancel_safe(timeout=_ASKING)
        self.pgconn.finish()


class _Asking(ImpatientConnection):
    """Is not asked for itself."""

    silence = _ASKING

    def _asked(self) -> _Seen:
        return _Seen.NOTHING
