"""Converts what a training hands to a rollout's methods. What cannot be converted is logged, and taken as None."""

from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, TypeVar

from logs_ui.recorder.guard import guard
from logs_ui.recorder.snapshot import name as shortened

T = TypeVar("T")
_INT8 = 2**63


def whole(name: str, value: Any) -> int:
    """Return a number, such as 3.0 or numpy's, as an int that the writer can store."""
    with suppress(TypeError, ValueError, OverflowError):
        if -_INT8 <= int(value) < _INT8 and int(value) == value:
            return int(value)
    raise ValueError(f"{name} must be a whole number of at most 64 bits, not {value!r}")


def converted(convert: Callable[[Any], T], value: Any) -> T | None:
    """Convert a value; None for None, and for a value with which that raises, which is logged once."""
    if value is not None:
        with guard("reading what was given of a rollout"):
            return convert(value)
    return None


def name_of(value: object) -> str | None:
    return converted(lambda text: shortened(str(text)), value)


def numbers_of(values: Mapping[str, Any]) -> dict[str, float | None]:
    return {name: converted(float, value) for name, value in values.items()}
