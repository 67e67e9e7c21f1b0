"""One term of a filter: what it asks of a rollout, checked, and written as the language has it."""

import math
import operator
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from logs_ui.recorder.errors import FilterError
from logs_ui.recorder.queries.filters.filter_fields import FIELDS, NUMERIC, Field, Kind
from logs_ui.recorder.queries.filters.filter_values import (
    INT64_MAX,
    check_number,
    check_time,
    print_number,
    print_time,
)
from logs_ui.recorder.spelling import check_word, shortened

ABSENT = "none"
"""What is written for a value that is not there."""

OPERATORS_OF_OTHERS = ("AND", "OR", "NOT")
"""Words that other languages join terms by."""

_BARE_VALUE = re.compile(r'[^\s",]+')
_BARE_KEY = re.compile(r'[^\s",:<>=!]+')
_BARE_WORD = re.compile(r'[^\s":<>=-][^\s":<>=]*')
_ESCAPES = {"\n": r"\n", "\r": r"\r", "\t": r"\t", '"': r"\"", "\\": r"\\"}


def _slack(value: float) -> float:
    """By how much a number may differ, and still be the same: more than float32 rounds by."""
    return max(1e-9, 1e-6 * abs(value))


@dataclass(frozen=True)
class Range:
    """Numbers, or times in µs since the epoch, between two ends; None where it has no end.

    Attributes:
        above, below: whether the end itself is outside.
    """

    low: float | None = None
    high: float | None = None
    above: bool = False
    below: bool = False

    @property
    def is_closed(self) -> bool:
        """Whether it holds each end that it has."""
        return not (self.above or self.below)

    @property
    def is_empty(self) -> bool:
        """Of numbers that need not be whole."""
        if self.low is None or self.high is None:
            return False
        return self.low > self.high or (self.low == self.high and not self.is_closed)

    @property
    def loose(self) -> "Range":
        """With ends that hold all that reads as they do, or, where they are outside, none of it. A trainer's rewards
        are float32, and sums: what it calls 0.3 is stored as 0.30000001, or as 0.30000000000000004.
        """
        low = None if self.low is None else self.low + (_slack(self.low) if self.above else -_slack(self.low))
        high = None if self.high is None else self.high + (-_slack(self.high) if self.below else _slack(self.high))
        return Range(low, high, self.above, self.below)

    def within(self, other: "Range") -> "Range":
        """What is in both."""
        lows = [(it.low, it.above) for it in (self, other) if it.low is not None]
        highs = [(it.high, not it.below) for it in (self, other) if it.high is not None]
        low, above = max(lows, default=(None, False))
        high, holds = min(highs, default=(None, True))
        return Range(low, high, above, not holds)


Value = str | Range | None
"""A word or text, numbers, or None for what is not there."""


@dataclass(frozen=True)
class Term:
    """A rollout satisfies it by any of its values; one that is negated by none of them.

    Attributes:
        field: a name in FIELDS.
        values: alternatives, in one order whatever order they are given in: texts or ranges as the field has it, None
            for what is absent. A range that lacks an end of its own, or is without two, is the only value.
        key: which of the run's own names, for `rewards` and `metrics`; None elsewhere.

    Raises:
        FilterError: an unknown word, a number out of range, or something that its field cannot be.
    """

    field: str
    values: tuple[Value, ...]
    key: str | None = None
    negated: bool = False

    def __post_init__(self) -> None:
        check_word(shortened(self.field), "field", self.field, list(FIELDS))
        field = FIELDS[self.field]
        _check_key(field, self.key)
        values = tuple(dict.fromkeys(_checked(field, value) for value in _listed(self.values)))
        if not values:
            raise FilterError(self.field, f"{self.field} lacks a value: write {field.example}, for one")
        ranges = [value for value in values if isinstance(value, Range)]
        if not all(it.is_closed for it in ranges) and (len(values) > 1 or (self.negated and _has_both_ends(ranges[0]))):
            message = f"{self.field} takes a range that leaves out an end by itself only: write two terms"
            raise FilterError(self.field, message)
        object.__setattr__(self, "values", tuple(sorted(values, key=_order_of(field))))

    @property
    def name(self) -> str:
        """The field's, with its key."""
        return self.field if self.key is None else f"{self.field}.{print_key(self.key)}"

    @property
    def range(self) -> Range | None:
        """Where nothing but one range is asked for."""
        only = self.values[0]
        return only if isinstance(only, Range) and len(self.values) == 1 and not self.negated else None

    def __str__(self) -> str:
        """As the language has it."""
        minus, only = "-" if self.negated else "", self.values[0] if len(self.values) == 1 else None
        if isinstance(only, Range) and FIELDS[self.field].kind == Kind.TIME:
            return f"{minus}{self.field}:{_print_moment(only)}"
        if isinstance(only, Range):
            return " ".join(f"{minus}{self.name}{part}" for part in _compared(only))
        if isinstance(only, str) and self.field == "text":
            return minus + print_word(only)
        return f"{minus}{self.name}:{','.join(_print_value(value) for value in self.values)}"

    @property
    def label(self) -> str:
        """In words."""
        field = FIELDS[self.field]
        name = field.label if self.key is None else f"{self.field}.{self.key}"
        said = " or ".join(_said(value) for value in self.values)
        colon = "" if isinstance(self.values[0], Range) else ":"
        return f"{'not ' if self.negated else ''}{name}{colon} {said}"


def print_word(text: str) -> str:
    """A text that stands without a field's name."""
    plain = _BARE_WORD.fullmatch(text) and text.isprintable() and text not in OPERATORS_OF_OTHERS
    return text if plain else _quoted(text)


def print_name(text: str) -> str:
    """An alternative that stands behind a field's name."""
    plain = _BARE_VALUE.fullmatch(text) and text.isprintable() and text != ABSENT
    return text if plain else _quoted(text)


def print_key(key: str) -> str:
    """A name that stands behind a field's and a dot."""
    return key if _BARE_KEY.fullmatch(key) and key.isprintable() else _quoted(key)


def check_text(name: str, value: str) -> None:
    """Raises FilterError: it holds half a character, which neither a database nor a page takes."""
    try:
        value.encode()
    except UnicodeEncodeError:
        raise FilterError(name, f"{name} {shortened(value)!r} is not valid Unicode text") from None


def known_word(field: Field, value: str, words: type[StrEnum]) -> str:
    """Raises FilterError."""
    check_word(field.name, field.label, value, [word.value for word in words])
    return value


def plain_number(name: str, value: Any, convert: Callable[[Any], float]) -> float | None:
    """Python's own number, for one of numpy's that a caller took from a DataFrame: SQLite knows no other."""
    if value is None:
        return None
    try:
        return convert(value)
    except (TypeError, ValueError):
        message = f"{name} is {shortened(repr(value))}, which is not a number it can use"
        raise FilterError(name, message) from None


def _listed(values: Any) -> Iterable[Value]:
    return (values,) if isinstance(values, str | Range) or values is None else values


def _check_key(field: Field, key: str | None) -> None:
    if field.has_key and not key:
        message = f"{field.name} needs the name of one of them: write it as {field.example}"
        raise FilterError(field.name, message)
    if key is not None and not field.has_key:
        raise FilterError(field.name, f"{field.name} has no parts: leave out .{shortened(key)}")
    if key is not None:
        check_text(field.name, key)


def _checked(field: Field, value: Value) -> Value:
    if value is None:
        if not field.optional:
            raise FilterError(field.name, f"{field.name} is something that every rollout has")
        return None
    if isinstance(value, Range) != (field.kind in NUMERIC or field.kind == Kind.TIME):
        raise FilterError(field.name, f"{field.name} takes {field.kind.value}: write {field.example}, for one")
    if isinstance(value, Range):
        return _checked_range(field, value)
    check_text(field.name, value)
    if field.kind == Kind.TEXT and not value.strip():
        raise FilterError(field.name, f"{field.name} lacks the words to look for")
    if field.name == "text" and not any(character.isalnum() for character in value):
        raise FilterError(field.name, f"text {shortened(value)!r} has no letter and no digit, and only words are found")
    return value if field.words is None else known_word(field, value, field.words)


def _checked_range(field: Field, given: Range) -> Range:
    convert = float if field.kind == Kind.NUMBER else operator.index
    low, high = (plain_number(field.name, end, convert) for end in (given.low, given.high))
    for end in (low, high):
        if end is not None and field.kind == Kind.TIME:
            check_time(field.name, int(end))
        elif end is not None and field.kind == Kind.WHOLE:
            check_number(field.name, end, low=-INT64_MAX, high=INT64_MAX)
        elif end is not None:
            check_number(field.name, end)
    found = Range(low, high, given.above and low is not None, given.below and high is not None)
    if low is None and high is None:
        raise FilterError(field.name, f"{field.name} lacks a value: write {field.example}, for one")
    if found.is_empty and low is not None and high is not None:
        raise FilterError(field.name, f"{field.name} {print_number(low)} is above {print_number(high)}: swap them")
    return found


def _has_both_ends(it: Range) -> bool:
    return it.low is not None and it.high is not None


def _order_of(field: Field) -> Callable[[Value], tuple[bool, Any]]:
    """Words in the order in which they are defined, names in that of the alphabet, numbers by size, absence last."""
    places = {word.value: place for place, word in enumerate(field.words or ())}

    def order(value: Value) -> tuple[bool, Any]:
        if value is None:
            return True, 0
        if isinstance(value, Range):
            low = -math.inf if value.low is None else value.low
            return False, (low, math.inf if value.high is None else value.high)
        return False, (places[value] if field.words else value)

    return order


def _print_value(value: Value) -> str:
    if value is None:
        return ABSENT
    if isinstance(value, str):
        return print_name(value)
    low, high = ("" if end is None else print_number(end) for end in (value.low, value.high))
    return low if low == high else f"{low}..{high}"


def _compared(it: Range) -> list[str]:
    """A range that stands alone."""
    if it.is_closed and _has_both_ends(it):
        return [f":{_print_value(it)}"]
    low = [] if it.low is None else [f"{'>' if it.above else '>='}{print_number(it.low)}"]
    high = [] if it.high is None else [f"{'<' if it.below else '<='}{print_number(it.high)}"]
    return low + high


def _print_moment(it: Range) -> str:
    """A time has one end: `since` the lower, `until` the upper."""
    return print_time(int((it.high if it.low is None else it.low) or 0))


def _quoted(text: str) -> str:
    """What a browser's field would drop, and what nobody could see there, is written as an escape."""
    return '"' + "".join(_ESCAPES.get(c) or (c if c.isprintable() else f"\\u{{{ord(c):x}}}") for c in text) + '"'


def _said(value: Value) -> str:
    if value is None:
        return ABSENT
    if isinstance(value, str):
        return value
    low, high = (None if end is None else print_number(end) for end in (value.low, value.high))
    if low is not None and low == high:
        return low
    parts = [f"{'above' if value.above else 'from'} {low}"] if low is not None else []
    parts += [f"{'below' if value.below else 'up to'} {high}"] if high is not None else []
    return " ".join(parts)
