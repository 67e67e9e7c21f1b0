"""The limits of memory, disk space and waiting that a user can set for recording."""

import os
from dataclasses import dataclass
from typing import Self

from logs_ui.recorder.errors import LogsUIError

_DAY = 86_400.0
_MB = 1 << 20


@dataclass(frozen=True)
class Limits:
    """Holds the limits of one writer, in bytes or seconds."""

    queue_bytes: int = 256 * _MB  # of memory, for rows that wait to be written
    queue_seconds: float = 0.0  # for which a thread of the training waits for room in a full queue
    end_seconds: float = 10.0  # for which the end of a training, and of the process, waits for its last rows
    spool_bytes: int = 10_240 * _MB  # of disk space, for entries that wait for the database
    spool_seconds: float = 5.0  # for which a database may be away, locked or full before entries are put on disk

    @classmethod
    def from_environment(cls) -> Self:
        """Read LOGS_UI_QUEUE_MB, LOGS_UI_QUEUE_SECONDS, LOGS_UI_END_SECONDS, LOGS_UI_SPOOL_MB and
        LOGS_UI_SPOOL_SECONDS; MB are MiB, and the defaults are above. Raise LogsUIError if one of them is no number,
        or out of range.
        """
        return cls(
            int(_number("LOGS_UI_QUEUE_MB", cls.queue_bytes / _MB, least=1.0, most=1_000_000.0) * _MB),
            _number("LOGS_UI_QUEUE_SECONDS", cls.queue_seconds, least=0.0, most=_DAY),
            _number("LOGS_UI_END_SECONDS", cls.end_seconds, least=0.0, most=_DAY),
            int(_number("LOGS_UI_SPOOL_MB", cls.spool_bytes / _MB, least=0.0, most=1_000_000_000.0) * _MB),
            _number("LOGS_UI_SPOOL_SECONDS", cls.spool_seconds, least=0.0, most=_DAY),
        )


def _number(name: str, default: float, *, least: float, most: float) -> float:
    text = os.environ.get(name) or ""
    if not text.strip():
        return default
    try:
        number = float(text)
    except ValueError:
        number = float("nan")
    if not least <= number <= most:
        raise LogsUIError(
            f"{name} is {text[:60]!r}, but must be a number from {least:g} to {most:,.0f}. The default is {default:g}."
        )
    return number
