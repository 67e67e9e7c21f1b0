"""Numbers and times as a filter writes them: read, and printed as short as they are exact."""

import math
import re
import time
from datetime import UTC, datetime, timedelta

from logs_ui.recorder.errors import FilterError
from logs_ui.recorder.spelling import shortened

INT64_MAX = 2**63 - 1

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_LAST_TIME = (datetime(9999, 12, 31, tzinfo=UTC) - _EPOCH) // timedelta(microseconds=1)
_AGE = re.compile(r"(\d{1,9}(?:\.\d{1,6})?)([smhd])")
_AGE_UNITS = {"s": 1, "m": 60, "h": 3_600, "d": 86_400}
_SECOND = 1_000_000


def read_whole(name: str, text: str) -> int:
    """Raises FilterError."""
    try:
        return int(_digits(text))
    except ValueError:
        raise FilterError(name, f"{name} {shortened(text)!r} is not a whole number") from None


def read_number(name: str, text: str) -> float:
    """Raises FilterError."""
    try:
        return float(_digits(text))
    except ValueError:
        raise FilterError(name, f"{name} {shortened(text)!r} is not a number: write it as 0.5") from None


def read_time(name: str, text: str, now: int | None) -> int:
    """µs since the epoch, from ISO 8601 with `Z` or offset, else UTC, or from an age, to the second.

    Args:
        name: where it stands; an `until` that is a date alone means the end of that day.
        text: what is written there.
        now: what ages count from; the clock's by default.

    Raises:
        FilterError: it is neither.
    """
    text = text.strip()
    age = _AGE.fullmatch(text)
    if age:
        start = time.time_ns() // 1000 if now is None else now
        return (start - round(float(age[1]) * _AGE_UNITS[age[2]] * _SECOND)) // _SECOND * _SECOND
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        message = (
            f"{name} {shortened(text)!r} is not a time: write it as 2026-01-31T18:00Z, or as an age: 90s, 30m, 2h, 7d"
        )
        raise FilterError(name, message) from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    is_day = name == "until" and "T" not in text and " " not in text
    return (moment - _EPOCH + (timedelta(days=1, microseconds=-1) if is_day else timedelta())) // timedelta(
        microseconds=1
    )


def check_number(name: str, value: float, *, low: float = -math.inf, high: float = math.inf) -> None:
    """Raises FilterError: it is not finite, or out of range."""
    if not math.isfinite(value):
        raise FilterError(name, f"{name} {value} is not a finite number")
    if not low <= value <= high:
        raise FilterError(name, f"{name} {value} is out of range: {low} to {high}")


def check_time(name: str, moment: int) -> None:
    """Raises FilterError: no calendar has it."""
    if not 0 <= moment <= _LAST_TIME:
        raise FilterError(name, f"{name} is out of range: give a time between 1970 and 9999")


def print_time(moment: int) -> str:
    """No seconds where there are none."""
    at = _EPOCH + timedelta(microseconds=moment)
    precision = "microseconds" if at.microsecond else "seconds" if at.second else "minutes"
    return at.replace(tzinfo=None).isoformat(timespec=precision) + "Z"


def print_number(value: float) -> str:
    short = repr(float(value))
    return short.removesuffix(".0") if isinstance(value, float) else str(value)


def _digits(text: str) -> str:
    """The same.

    Raises:
        ValueError: Python would read a number where nobody wrote one: `1_0`, digits of other scripts.
    """
    if "_" in text or not text.isascii():
        raise ValueError(text)
    return text
