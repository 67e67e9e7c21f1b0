"""Formats numbers and times for the pages. A missing value is an em dash, a minus is U+2212."""

import math
import time
from datetime import UTC, datetime
from typing import Any

import numpy as np

from logs_ui.recorder.diagnosis import wording

NOTHING = "—"
_MINUS = "\u2212"
_LARGEST_FLOAT32 = 3e38
_UNITS = ((86_400, "d"), (3_600, "h"), (60, "m"))


def number(value: float | None, digits: int = 3) -> str:
    """Format a reward or another figure; very large and very small ones as powers of ten."""
    if value is None:
        return NOTHING
    if not math.isfinite(value):
        return ("∞" if value > 0 else f"{_MINUS}∞") if math.isinf(value) else "NaN"
    return f"{value:z{_form(abs(value), digits)}}".replace("-", _MINUS)


def significant(value: float | None) -> str:
    """Format a metric of any size to four digits: `0.001`, `9`, `255,772`."""
    if value is None:
        return NOTHING
    return f"{value:z{',.0f' if 1_000 <= abs(value) < 1e9 else '.4g'}}".replace("-", _MINUS)


def brief(value: float) -> str:
    """Format a weight as its author wrote it: `0.1`, `2`."""
    return f"{value:g}".replace("-", _MINUS)


def signed(value: float | None, digits: int = 2) -> str:
    """Format with a sign, unless the rounded value is zero."""
    text = number(value, digits)
    return f"+{text}" if value is not None and value > 0 and text.strip("0.") else text


def difference(by: float, error: float, *, is_share: bool) -> str:
    """Format a difference of means with its standard error, if it has one: `+0.2 ± 0.05`, of shares `+20 ± 5 pp`."""
    scale, unit = (100, " pp") if is_share else (1, "")
    sign = "+" if by > 0 else _MINUS if by < 0 else ""
    after = f" \u00b1 {error * scale:.2g}" if error else ""
    return f"{sign}{wording.figure(abs(by) * scale)}{after}{unit}"


def count(value: int | None) -> str:
    return NOTHING if value is None else f"{value:,}"


def tokens(value: int | None) -> str:
    """Format 2,104 as `2.1k`."""
    if value is None or value < 1_000:
        return count(value)
    return f"{value / 1_000:.1f}k" if value < 999_950 else f"{value / 1_000_000:.1f}M"


def percent(share: float | None) -> str:
    """Format whole per cents; a share between 0 and 1 never reads as 0% or 100%."""
    return NOTHING if share is None else wording.percent(share)


def duration(seconds: float | None) -> str:
    """Format as `697 ms`, `28.8 s`, `1m 03s`, `2h 05m`."""
    if seconds is None or not math.isfinite(seconds):
        return number(seconds)
    if seconds < 0.9995:
        return f"{seconds * 1_000:.0f} ms"
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 3_600:
        return f"{whole // 60}m {whole % 60:02}s"
    return f"{whole // 3_600}h {whole % 3_600 // 60:02}m"


def age(microseconds: int | None) -> str:
    """Format the time since a moment: `33m ago`."""
    if microseconds is None:
        return NOTHING
    seconds = time.time() - microseconds / 1e6
    for size, unit in _UNITS:
        if seconds >= size:
            return f"{seconds // size:.0f}{unit} ago"
    return f"{max(seconds, 0):.0f}s ago" if seconds >= 10 else "just now"


def moment(microseconds: int | None) -> str:
    """Format a moment in UTC, to the second."""
    if microseconds is None:
        return NOTHING
    return f"{datetime.fromtimestamp(microseconds / 1e6, UTC):%Y-%m-%d %H:%M:%S} UTC"


def tidy(value: Any) -> Any:
    """Remove float32 and summation noise from numbers: 0.30000001192 becomes 0.3."""
    if isinstance(value, dict):
        return {name: tidy(item) for name, item in value.items()}
    if isinstance(value, list):
        return [tidy(item) for item in value]
    return _short(value) if isinstance(value, float) else value


def _short(value: float) -> float:
    if not abs(value) < _LARGEST_FLOAT32:
        return value
    # A number that float32 holds exactly is written as briefly as float32 needs. Of any other, the noise of a sum
    # is rounded off if that saves at least three characters.
    single = np.float32(value)
    if float(single) == value:
        return float(str(single))
    rounded = float(f"{value:.15g}")
    return rounded if len(repr(rounded)) < len(repr(value)) - 2 else value


def plural(value: int, word: str) -> str:
    """Format a count and its noun: `1 step`, `1,440 rollouts`."""
    return f"{value:,} {word}" if value == 1 else f"{value:,} {word}s"


def steps(first: int, last: int) -> str:
    """Format a range of steps: `step 7`, `steps 1,200 to 1,300`."""
    return f"step {first:,}" if first == last else f"steps {first:,} to {last:,}"


def window(covered: tuple[int, int] | None) -> str:
    """Format the first and the last step that figures cover: `step 7`; `all rollouts` without steps."""
    if covered is None:
        return "all rollouts"
    first, last = covered
    return f"step {last:,}" if first == last else f"steps {first:,}\u2013{last:,}"


def signed_bin(value: float, edges: tuple[float, ...] = (0.2, 0.7, 1.4)) -> str:
    """Return one of 7 shades: `p3` ... `p1`, `zero`, `n1` ... `n3`. The default edges are those of advantages."""
    shade = sum(abs(value) >= edge for edge in edges)
    return f"{'p' if value > 0 else 'n'}{shade}" if shade else "zero"


def _form(size: float, digits: int) -> str:
    if size >= 1e7 or (digits >= 3 and 0 < size < 0.5 * 10**-digits):
        return ".0e"
    return f".{digits}f" if size < 1_000 else ",.0f"
