"""Defines one term of a filter: checked when it is made, printed in the filter language, described in words."""

import math
import operator
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from dataclasses import field as attribute
from typing import Any, NamedTuple

from logs_ui.recorder.errors import FilterError
from logs_ui.recorder.queries.filters.fields import FIELDS, NUMERIC, SEARCHED, SYNONYMS, Field, Kind
from logs_ui.recorder.queries.filters.values import INT64_MAX, LAST_TIME, check_number, print_number, print_time
from logs_ui.recorder.spelling import check_word, shortened

ABSENT = "none"
"""Written for a value that is absent."""

OPERATORS_OF_OTHERS = ("AND", "OR", "NOT")
"""Words with which other query languages join terms."""

MANY = 200
"""More values than this are one list, which a form does not show, and SQL takes as one parameter."""

_MOST_SEARCHED = 500  # SQLite refuses expressions that are nested 1,000 deep
_BARE_VALUE = re.compile(r'[^\s",]+')
_BARE_KEY = re.compile(r'[^\s",:<>=!]+')
_BARE_WORD = re.compile(r'[^\s":<>=(!#-][^\s":<>=~]*')
_ESCAPES = {"\n": r"\n", "\r": r"\r", "\t": r"\t", '"': r"\"", "\\": r"\\"}


def _slack(value: float, *, is_exact: bool) -> float:
    """Return the distance within which two numbers count as equal: more than the rounding error of float32, or if they
    are `is_exact` of a sum of float64, in which a whole number has none.
    """
    return (1e-12 * abs(value) if value % 1 else 0) if is_exact else max(1e-9, 1e-6 * abs(value))


class Range(NamedTuple):
    """Holds numbers, or times in µs since the epoch, between two ends; an end that is None is open."""

    low: float | None = None
    high: float | None = None
    above: bool = False  # `low` itself is excluded
    below: bool = False  # `high` itself is excluded

    @property
    def is_closed(self) -> bool:
        """Return True if each end that it has is included."""
        return not (self.above or self.below)

    @property
    def is_empty(self) -> bool:
        """Return True if no number lies in it, whole or not."""
        if self.low is None or self.high is None:
            return False
        return self.low > self.high or (self.low == self.high and not self.is_closed)

    @property
    def ends(self) -> tuple["Range", ...]:
        """Return one range for each end that it has: the lower first."""
        low = (Range(low=self.low, above=self.above),) if self.low is not None else ()
        return low + ((Range(high=self.high, below=self.below),) if self.high is not None else ())

    def loose(self, *, is_exact: bool = False) -> "Range":
        """Return the range with ends moved by the rounding error of a trainer's rewards, which are float32 and sums:
        0.3 is stored as 0.30000001, or as 0.30000000000000004. An excluded end excludes these, too. Metadata is
        `is_exact`: only the second counts as 0.3, and a number of 8 digits is not equal to its neighbours.
        """

        def moved(end: float | None, sign: int) -> float | None:
            return None if end is None else end + sign * _slack(end, is_exact=is_exact)

        return Range(
            moved(self.low, 1 if self.above else -1), moved(self.high, -1 if self.below else 1), self.above, self.below
        )

    def within(self, other: "Range") -> "Range":
        """Return the numbers that are in both."""
        # Of two equal ends the one that excludes its number has to win: it sorts last among the lows, as True is
        # above False, and first among the highs.
        lows = [(limits.low, limits.above) for limits in (self, other) if limits.low is not None]
        highs = [(limits.high, not limits.below) for limits in (self, other) if limits.high is not None]
        low, above = max(lows, default=(None, False))
        high, is_included = min(highs, default=(None, True))
        return Range(low, high, above, not is_included)


Value = str | Range | None
"""A word or text, a range of numbers or times, or None for absence."""


@dataclass(frozen=True)
class Term:
    """Describes a condition on one field. A rollout satisfies it by any of its values; if negated, by none of them.

    The values are sorted: texts or ranges, as the field's kind requires, or None for absence. Ranges that overlap are
    joined, and so are neighbours of whole numbers. A range that excludes an end is the only value, and has one end if
    the term is negated. Raises FilterError for an unknown word, a number out of range, a value that does not suit the
    field, or too many texts to search for.
    """

    field: str  # a name in FIELDS
    values: tuple[Value, ...]
    key: str | None = None  # for `rewards` and `metrics`, the name of one of the run's own; None for other fields
    negated: bool = False
    saved_as: str = attribute(default="", init=False, compare=False)  # what is printed in place of it: see `keep_set`

    def __post_init__(self) -> None:
        check_word(shortened(self.field), "field", self.field, list(FIELDS))
        field = FIELDS[self.field]
        _check_key(field, self.key)
        raw: Any = self.values
        items = (raw,) if isinstance(raw, str | Range) or raw is None else raw
        values = tuple(dict.fromkeys(_check_value(field, value) for value in items))
        if not values:
            raise FilterError(self.field, f"{self.field} needs a value, for example {field.example}")
        ranges = [value for value in values if isinstance(value, Range)]
        has_open = not all(limits.is_closed for limits in ranges)
        if has_open and (len(values) > 1 or (self.negated and len(ranges[0].ends) == 2)):
            message = f"{self.field} takes only one range if an end of it is excluded: write two terms"
            raise FilterError(self.field, message)
        if len(values) > _MOST_SEARCHED and not field.is_listed:
            raise FilterError(self.field, f"{self.field} takes at most {_MOST_SEARCHED} values: each is searched apart")
        object.__setattr__(self, "values", tuple(_join(sorted(values, key=_order_of(field)), field.kind)))

    def __hash__(self) -> int:  # of few values: a page asks for it at each of its links
        return hash((self.field, self.key, self.negated, len(self.values), self.values[:3], self.values[-3:]))

    @property
    def name(self) -> str:
        """Return the field's name, with its key."""
        return self.field if self.key is None else f"{self.field}.{print_key(self.key)}"

    @property
    def range(self) -> Range | None:
        """Return its range if that is all it asks for, else None."""
        only = self.values[0]
        return only if isinstance(only, Range) and len(self.values) == 1 and not self.negated else None

    @property
    def is_plain(self) -> bool:
        """Return True if a form can show the term: one range, or few alternatives of a field that has a single value,
        not negated. Two such terms of one field can be merged into one.
        """
        field = FIELDS[self.field]
        has_words = field.kind in {Kind.WORD, Kind.NAME} and not field.is_many and len(self.values) <= MANY
        return self.range is not None or (has_words and not self.negated and None not in self.values)

    def __str__(self) -> str:
        """Print the term in the filter language."""
        minus, only = "-" if self.negated else "", self.values[0] if len(self.values) == 1 else None
        if self.saved_as:
            return f"{minus}{self.saved_as}"
        if isinstance(only, Range) and FIELDS[self.field].kind == Kind.TIME:
            return f"{minus}{self.field}:{_print_time(only)}"
        if isinstance(only, Range):
            return " ".join(f"{minus}{self.name}{part}" for part in _print_range(only))
        if isinstance(only, str) and self.field == "text":
            return minus + print_word(only)
        return f"{minus}{self.name}:{','.join(_print_value(value) for value in self.values)}"

    @property
    def label(self) -> str:
        """Describe the term in words, as a chip on the page shows it."""
        field = FIELDS[self.field]
        if field.kind == Kind.TIME and isinstance(self.values[0], Range):
            return f"{self.field} {_print_time(self.values[0]).replace('T', ' ').replace('Z', ' UTC')}"
        name = field.label if self.key is None else f"{self.field}.{self.key}"
        values = " or ".join(_in_words(value) for value in self.values[:MANY])
        if len(self.values) > MANY:
            values = f"{len(self.values):,} values and ranges, {shortened(str(self))}"
        colon = "" if isinstance(self.values[0], Range) and len(self.values) <= MANY else ":"
        return f"{'not ' if self.negated else ''}{name}{colon} {values}"


def print_word(text: str) -> str:
    """Print a text to search for, which has no field's name before it."""
    plain = _BARE_WORD.fullmatch(text) and text.isprintable() and text.upper() not in OPERATORS_OF_OTHERS
    return text if plain else _quote(text)


def print_name(text: str) -> str:
    """Print one value that follows a field's name. Quoted, `1..5` is not a range, and `x*` not a prefix."""
    plain = _BARE_VALUE.fullmatch(text) and text.isprintable() and text != ABSENT
    plain = plain and ".." not in text and not text.endswith("*")
    return text if plain else _quote(text)


def print_key(key: str) -> str:
    """Print a key, which follows a field's name and a dot."""
    return key if _BARE_KEY.fullmatch(key) and key.isprintable() else _quote(key)


def is_id(text: str) -> bool:
    """Return True for a number that an id can be."""
    return text.isascii() and text.isdigit() and len(text) < 19


def check_text(name: str, value: str) -> None:
    """Raise FilterError if the text has an unpaired surrogate, which neither a database nor a page accepts."""
    try:
        value.encode()
    except UnicodeEncodeError:
        raise FilterError(name, f"{name} {shortened(value)!r} is not valid Unicode text") from None


def plain_number(name: str, value: Any, convert: Callable[[Any], float]) -> float | None:
    """Convert a number to Python's own type: SQLite does not accept numpy's, which a DataFrame contains."""
    if value is None:
        return None
    try:
        return convert(value)
    except (TypeError, ValueError):
        raise FilterError(name, f"{name} is {shortened(repr(value))}, which is not a number that it accepts") from None


def _check_key(field: Field, key: str | None) -> None:
    if field.is_keyed and not key:
        raise FilterError(field.name, f"{field.name} needs the name of one of them, for example {field.example}")
    if key is not None:
        if not field.is_keyed:
            raise FilterError(field.name, f"{field.name} has no parts: leave out .{shortened(key)}")
        check_text(field.name, key)


def _check_value(field: Field, value: Value) -> Value:
    if value is None:
        if not field.optional:
            raise FilterError(field.name, f"every rollout has a value for {field.name}: leave out {field.name}:none")
        return None
    if isinstance(value, Range) != (field.kind in NUMERIC or field.kind == Kind.TIME) and field.kind != Kind.ANY:
        raise FilterError(field.name, f"{field.name} takes {field.kind.value}, for example {field.example}")
    if isinstance(value, Range):
        limits = _check_range(field, value)
        is_one = field.kind == Kind.ANY and limits.low is not None and limits.low == limits.high
        return print_number(limits.low or 0) if is_one else limits
    check_text(field.name, value)
    if field.kind == Kind.TEXT and not value.strip():
        raise FilterError(field.name, f"{field.name} needs words to search for")
    if field.name in SEARCHED and not any(character.isalnum() for character in value):
        raise FilterError(
            field.name, f"{field.name} {shortened(value)!r} has no letter and no digit: search for a word"
        )
    if field.words is not None:
        value = value.strip().replace(" ", "_")
        value = SYNONYMS.get(field.name, {}).get(value, value)
        check_word(field.name, field.label, value, [word.value for word in field.words])
    return value


def _check_range(field: Field, limits: Range) -> Range:
    """Return the range with its ends as numbers that the field can have. Raise FilterError."""
    is_whole = field.kind == Kind.WHOLE and limits.is_closed
    if (
        is_whole
        and type(limits.low) is int
        and type(limits.high) is int
        and -INT64_MAX <= limits.low <= limits.high <= INT64_MAX
    ):
        return limits  # at once: a list may have very many
    convert = float if field.kind in {Kind.NUMBER, Kind.ANY} else operator.index
    low, high = (plain_number(field.name, end, convert) for end in (limits.low, limits.high))
    most = INT64_MAX if field.kind == Kind.WHOLE else math.inf
    for end in (limit for limit in (low, high) if limit is not None):
        if field.kind != Kind.TIME:
            check_number(field.name, end, low=-most, high=most)
        elif not 0 <= end <= LAST_TIME:
            raise FilterError(field.name, f"{field.name} is out of range: give a time between 1970 and 9999")
    checked_range = Range(low, high, limits.above and low is not None, limits.below and high is not None)
    if low is None and high is None:
        raise FilterError(field.name, f"{field.name} needs a value, for example {field.example}")
    if checked_range.is_empty and low is not None and high is not None:
        raise FilterError(field.name, f"{field.name} {print_number(low)} is above {print_number(high)}: swap them")
    return checked_range


def _join(values: Iterable[Value], kind: Kind) -> list[Value]:
    """Join sorted ranges that overlap, and of whole numbers neighbours too, but never to a range without ends."""
    joined: list[Value] = []
    for value in values:
        before = joined[-1] if joined and kind != Kind.TIME else None
        # Joined, `..1` and `0..` would be a range without ends, which no term can have.
        if not isinstance(value, Range) or not isinstance(before, Range) or before.low is value.high is None:
            joined.append(value)
        elif before.high is None or value.low is None or value.low <= before.high + (kind == Kind.WHOLE):
            high = None if before.high is None or value.high is None else max(before.high, value.high)
            joined[-1] = Range(before.low, high)
        else:
            joined.append(value)
    return joined


def _order_of(field: Field) -> Callable[[Value], tuple[int, Any]]:
    """Return a sort key of values: words in their enum's order, numbers by size, names by alphabet, absence last."""
    places = {word.value: place for place, word in enumerate(field.words or ())}

    def order(value: Value) -> tuple[int, Any]:
        if isinstance(value, Range):
            low = -math.inf if value.low is None else value.low
            return 0, (low, math.inf if value.high is None else value.high)
        return 2 if value is None else 1, places.get(value, value) if value is not None else 0

    return order


def _print_value(value: Value) -> str:
    if not isinstance(value, Range):
        return ABSENT if value is None else print_name(value)
    low, high = ("" if end is None else print_number(end) for end in (value.low, value.high))
    return low if low == high else f"{low}..{high}"


def _print_range(limits: Range) -> list[str]:
    """Print a range that is a term's only value: `:a..b`, or a comparison for each end."""
    if limits.is_closed and len(limits.ends) == 2:
        return [f":{_print_value(limits)}"]
    low = [] if limits.low is None else [f"{'>' if limits.above else '>='}{print_number(limits.low)}"]
    high = [] if limits.high is None else [f"{'<' if limits.below else '<='}{print_number(limits.high)}"]
    return low + high


def _print_time(limits: Range) -> str:
    """Print the one end that a time has: `since` the lower, `until` the upper."""
    return print_time(int((limits.high if limits.low is None else limits.low) or 0))


def _quote(text: str) -> str:
    """Quote a text; characters that are invisible, or that a browser's input field drops, become escapes."""
    return '"' + "".join(_ESCAPES.get(c) or (c if c.isprintable() else f"\\u{{{ord(c):x}}}") for c in text) + '"'


def _in_words(value: Value) -> str:
    if not isinstance(value, Range):
        return ABSENT if value is None else value
    low, high = (None if end is None else print_number(end) for end in (value.low, value.high))
    if low is not None and low == high:
        return low
    parts = [f"{'above' if value.above else 'from'} {low}"] if low is not None else []
    parts += [f"{'below' if value.below else 'up to'} {high}"] if high is not None else []
    return " ".join(parts)
