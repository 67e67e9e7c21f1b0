"""How much memory recording may take, and how long it may keep a training waiting: what a user can set."""

import os
from dataclasses import dataclass
from typing import Self

from logs_ui.recorder.errors import LogsUIError

_QUEUE_MB, _QUEUE_SECONDS, _END_SECONDS = "LOGS_UI_QUEUE_MB", "LOGS_UI_QUEUE_SECONDS", "LOGS_UI_END_SECONDS"
_DAY = 86_400.0


@dataclass(frozen=True)
class Limits:
    """Of one writer.

    Attributes:
        queue_bytes: that what waits to be written may keep alive.
        queue_seconds: that a thread of the training waits for room in a full queue.
        end_seconds: that the end of a training, and of the process, waits for its last rows.
    """

    queue_bytes: int = 256 << 20
    queue_seconds: float = 0.0
    end_seconds: float = 10.0

    @classmethod
    def from_environment(cls) -> Self:
        """LOGS_UI_QUEUE_MB (MiB), LOGS_UI_QUEUE_SECONDS and LOGS_UI_END_SECONDS, each with the default above.

        Raises:
            LogsUIError: one of them is no number, or out of range.
        """
        return cls(
            int(_number(_QUEUE_MB, cls.queue_bytes / (1 << 20), least=1.0, most=1_000_000.0) * (1 << 20)),
            _number(_QUEUE_SECONDS, cls.queue_seconds, least=0.0, most=_DAY),
            _number(_END_SECONDS, cls.end_seconds, least=0.0, most=_DAY),
        )


def _number(name: str, default: float, *, least: float, most: float) -> float:
    given = os.environ.get(name) or ""
    if not given.strip():
        return default
    try:
        number = float(given)
    except ValueError:
        number = float("nan")
    if not least <= number <= most:
        raise LogsUIError(
            f"{name} is {given[:60]!r}, where a number from {least:g} to {most:,.0f} is needed. Without it, it is "
            f"{default:g}."
        )
    return number
