"""Reads the numbers and times of a filter, and prints them as briefly as they can be read back exactly."""

import math
import re
import time
from datetime import UTC, datetime, timedelta

from logs_ui.recorder.errors import FilterError
from logs_ui.recorder.spelling import shortened

INT64_MAX = 2**63 - 1

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
LAST_TIME = (datetime(9999, 12, 31, tzinfo=UTC) - _EPOCH) // timedelta(microseconds=1)  # in µs since the epoch
_AGE = re.compile(r"(\d{1,9}(?:\.\d{1,6})?)([smhd])")
_AGE_UNITS = {"s": 1, "m": 60, "h": 3_600, "d": 86_400}
_SECOND = 1_000_000
_SHORT = re.compile(r"(\d+(?:\.\d+)?)([kKM])")  # as pages print large numbers
_THOUSANDS = {"k": 3, "K": 3, "M": 6}


def read_whole(name: str, text: str) -> int:
    """Raise FilterError, which names the field, if the text is not a whole number."""
    try:
        return int(_checked_digits(text))
    except ValueError:
        raise FilterError(name, f"{name} {shortened(text)!r} is not a whole number") from None


def read_number(name: str, text: str) -> float:
    """Raise FilterError, which names the field, if the text is not a number."""
    try:
        return float(_checked_digits(text))
    except ValueError:
        raise FilterError(name, f"{name} {shortened(text)!r}: expected a number such as 0.5") from None


def read_time(name: str, text: str, now: int | None) -> int:
    """Read a time in µs since the epoch, from ISO 8601 (UTC without `Z` or offset) or from an age such as `2h`, which
    is rounded to the second, and counted from `now` (the clock's time by default). An `until` that is a date without a
    time means the end of that day. Raise FilterError if the text is neither.
    """
    text = text.strip()
    age = _AGE.fullmatch(text)
    if age:
        start = time.time_ns() // 1000 if now is None else now
        return (start - round(float(age[1]) * _AGE_UNITS[age[2]] * _SECOND)) // _SECOND * _SECOND
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        expected = "expected a time such as 2026-01-31T18:00Z, or an age such as 90s, 30m, 2h or 7d"
        raise FilterError(name, f"{name} {shortened(text)!r}: {expected}") from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    if name == "until" and "T" not in text and " " not in text:
        moment += timedelta(days=1, microseconds=-1)
    return (moment - _EPOCH) // timedelta(microseconds=1)


def check_number(name: str, value: float, *, low: float = -math.inf, high: float = math.inf) -> None:
    """Raise FilterError if the number is not finite, or out of range."""
    if isinstance(value, float) and not math.isfinite(value):  # of a large integer it fails
        raise FilterError(name, f"{name} {value} is not a finite number")
    if not low <= value <= high:
        raise FilterError(name, f"{name} {shortened(str(value))} is out of range: {low} to {high}")


def print_time(moment: int) -> str:
    """Print a moment, in µs since the epoch, as ISO 8601 without trailing zeros."""
    at = _EPOCH + timedelta(microseconds=moment)
    precision = "microseconds" if at.microsecond else "seconds" if at.second else "minutes"
    return at.replace(tzinfo=None).isoformat(timespec=precision) + "Z"


def print_number(value: float) -> str:
    """Print a number so that it reads back the same; a float that is whole without its `.0`."""
    return repr(float(value)).removesuffix(".0") if isinstance(value, float) else str(value)


def _checked_digits(text: str) -> str:
    """Write out `5k` and `1.5M`. Raise ValueError for `1_0` and other scripts' digits, which only Python reads."""
    if short := _SHORT.fullmatch(text.strip()):
        return str(round(float(f"{short[1]}e{_THOUSANDS[short[2]]}")))
    if "_" in text or not text.isascii():
        raise ValueError(text)
    return text
