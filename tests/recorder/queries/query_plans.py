"""How SQLite means to answer. At a million rows the wrong index is the difference between 1 ms and 2 s."""

from collections.abc import Callable
from typing import Any

from sqlalchemy import Engine, event


def plans(engine: Engine, ask: Callable[[], object], mark: str = "") -> list[str]:
    """Return what EXPLAIN QUERY PLAN says of each query that `ask` sends and that has this mark in it."""
    sent: list[tuple[str, Any]] = []

    def note(_: Any, __: Any, statement: str, parameters: Any, *___: Any) -> None:
        if statement.startswith(("SELECT", "WITH")) and mark in statement:
            sent.append((statement, parameters))

    event.listen(engine, "before_cursor_execute", note)
    try:
        ask()
    finally:
        event.remove(engine, "before_cursor_execute", note)
    with engine.connect() as connection:
        explained = [connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {sql}", values).all() for sql, values in sent]
    return [" / ".join(str(row[3]) for row in steps) for steps in explained]
