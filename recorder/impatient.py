"""A connection to PostgreSQL that gives up on a server that says nothing: one that stands still, or is cut off behind
a proxy, while the kernel at the other end goes on acknowledging, breaks no connection. Imported by `postgres.py` where
there is psycopg.
"""

import time
from collections.abc import Generator
from typing import Any

from psycopg import Connection, OperationalError


class ImpatientConnection(Connection[Any]):
    """
    Attributes:
        silence: seconds that a statement, or a commit, waits for an answer; None for as long as it takes.
    """

    silence: float | None = None

    def wait(self, gen: Generator[Any, Any, Any], *args: Any, **kw: Any) -> Any:
        """As psycopg's.

        Raises:
            psycopg.OperationalError: the server did not answer in time. The connection is closed.
        """
        return super().wait(gen if self.silence is None else self._limited(gen, self.silence), *args, **kw)

    def _limited(self, gen: Generator[Any, Any, Any], seconds: float) -> Generator[Any, Any, Any]:
        until = time.monotonic() + seconds
        try:
            wanted = next(gen)
            while True:
                ready = yield wanted
                if not ready and time.monotonic() > until:  # psycopg looks ten times a second
                    self.pgconn.finish()
                    raise OperationalError(f"the server has not answered for {seconds:.1f} seconds")
                wanted = gen.send(ready)
        except StopIteration as done:
            return done.value
