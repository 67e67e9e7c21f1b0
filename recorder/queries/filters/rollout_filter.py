"""Describes a filter of rollouts: terms and an order, read from the filter language or a URL, and printed again."""

import math
import operator
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, TypedDict, Unpack

from logs_ui.recorder.errors import FilterError
from logs_ui.recorder.queries.filters import values as filter_values
from logs_ui.recorder.queries.filters.fields import COMPARED, FIELDS, SEARCHED, Field, Kind, Scored
from logs_ui.recorder.queries.filters.language import WHERE, parse_terms, split_name
from logs_ui.recorder.queries.filters.terms import Range, Term, plain_number, print_key, print_name
from logs_ui.recorder.spelling import check_word, misspelt, nearest, shortened

__all__ = [
    "FilterParts",
    "RolloutFilter",
    "Scored",
    "Sort",
    "check_known",
    "check_word",
    "named_in",
    "nearest",
    "parse_filter",
    "parse_where",
    "print_filter",
    "print_where",
]

MOST_TERMS = 100
"""SQLite refuses expressions that are nested 1,000 deep."""

_LISTS = {
    "evals": "eval", "modes": "mode", "statuses": "status", "stop_reasons": "stop", "scored": "scored", "tasks": "task",
}  # fmt: skip
_SINGLES = ("group", "step_min", "step_max", "reward_min", "reward_max", "since", "until", "sort")
_PARAMETERS = (*_LISTS.values(), *_SINGLES, WHERE)
_UNLISTED = {"group", "family", "first_action", "last_action", "unsaid_action"}  # names of which a run keeps no list
_SORTED = COMPARED | {Kind.NAME, Kind.WORD}
_PLACES = {name: place for place, name in enumerate(FIELDS)}


class Sort(StrEnum):
    """Names orders of the rollout table."""

    NEWEST = "newest"
    OLDEST = "oldest"
    LOWEST_REWARD = "lowest-reward"
    HIGHEST_REWARD = "highest-reward"
    LONGEST = "longest"
    """Most completion tokens first."""
    SLOWEST = "slowest"
    """Most seconds first."""


@dataclass(frozen=True)
class ByColumn:
    """Orders by any field of numbers, names or words, written as `turns`, or `-rewards.accuracy` for the highest first.
    Rollouts without a value come last. Metadata is compared as numbers; as texts with `is_text`, which is written as in
    `metadata.repo:text`.
    """

    field: Field
    key: str | None
    descending: bool
    is_text: bool

    @property
    def name(self) -> str:
        """Return the field's name with its key, as in filters."""
        return self.field.name if self.key is None else f"{self.field.name}.{print_key(self.key)}"

    @property
    def value(self) -> str:
        """Return the order as it is written."""
        is_text = self.is_text and self.field.kind == Kind.ANY
        return f"{'-' if self.descending else ''}{self.name}{':text' if is_text else ''}"


Order = Sort | ByColumn


class FilterParts(TypedDict, total=False):
    """Terms as keywords, for callers that have values and no text. Empty tuples and None do not filter. A single text
    is the same as a tuple of one; all ends are inclusive; `since` and `until` are µs since the epoch.
    """

    evals: Iterable[str]
    modes: Iterable[str]
    statuses: Iterable[str]
    stop_reasons: Iterable[str]
    scored: Iterable[str]
    tasks: Iterable[str]
    group: str | None
    step_min: int | None
    step_max: int | None
    reward_min: float | None
    reward_max: float | None
    since: int | None
    until: int | None


@dataclass(frozen=True, init=False)
class RolloutFilter:
    """Selects the rows that satisfy all of its terms; the values within one term are alternatives.

    Two filters that were written differently and mean the same are equal: terms are brought into one order, repeated
    ones dropped, ranges of one field become one range, and so do alternatives of a field that has a single value.

    Attributes:
        terms: each field has at most one *plain* term (see `Term.is_plain`) among them.
        sort: order of the table; not a condition, but part of the URL.

    Raises:
        FilterError: an unknown word, a number out of range, min above max, or terms that exclude one another.

    Examples:
        >>> from logs_ui.recorder import RolloutFilter
        >>> chosen = RolloutFilter(statuses=("error",), step_min=10)
        >>> [term.field for term in chosen.terms]
        ['status', 'step']
    """

    terms: tuple[Term, ...]
    sort: Order

    def __init__(
        self, *, terms: Iterable[Term] = (), sort: Order | str = Sort.NEWEST, **parts: Unpack[FilterParts]
    ) -> None:
        object.__setattr__(self, "terms", _merge_terms([*_make_terms(parts), *terms]))
        object.__setattr__(self, "sort", read_sort(sort))

    def words(self, field: str) -> tuple[str, ...]:
        """Return the alternatives that a field's plain term lists; empty without one."""
        lists = (term.values for term in self.terms if term.field == field and term.is_plain)
        return tuple(value for value in next(lists, ()) if isinstance(value, str))

    def range(self, field: str) -> Range:
        """Return the range of a field's plain term, of numbers or times; one without ends if there is no such term."""
        ranges = (term.range for term in self.terms if term.field == field and term.key is None)
        return next((limits for limits in ranges if limits is not None), Range())

    def only(self, *fields: str) -> "RolloutFilter":
        """Return a filter of the plain terms of these fields alone, without an order."""
        return RolloutFilter(terms=(term for term in self.terms if term.is_plain and term.field in fields))

    def without(self, *fields: str) -> "RolloutFilter":
        """Return this filter without the plain terms of these fields."""
        return replace(self, terms=tuple(term for term in self.terms if not (term.is_plain and term.field in fields)))

    def with_terms(self, *terms: Term) -> "RolloutFilter":
        """Return this filter, narrowed by more terms.

        Raises:
            FilterError: they exclude what the filter asks for.
        """
        return replace(self, terms=(*self.terms, *terms))

    def with_parts(self, **parts: Unpack[FilterParts]) -> "RolloutFilter":
        """Return this filter with new plain terms for these fields; a range is replaced with both of its ends."""
        rest = self.without(*(_LISTS.get(name, name.partition("_")[0]) for name in parts))
        return RolloutFilter(terms=rest.terms, sort=self.sort, **parts)


def parse_where(text: str, *, now: int | None = None) -> RolloutFilter:
    """Read a line of the filter language, which docs/filters.md explains: `reward<0.2 status:error -tag:seen`. A line
    of spaces filters nothing. Ages such as `since:2h` count from `now`, in µs since the epoch; by default the clock's.
    Raise FilterError, which names the term at fault, and the nearest word that is known.
    """
    return RolloutFilter(terms=parse_terms(text, now=now))


def print_where(filter: RolloutFilter) -> str:  # noqa: A002
    """Return the shortest line that `parse_where` reads back as the same filter, without its order."""
    return " ".join(str(term) for term in filter.terms)


def parse_filter(parameters: Iterable[tuple[str, str]], *, now: int | None = None) -> RolloutFilter:
    """Read a URL's (name, value) pairs, all of which apply. Empty values are ignored.

    The names are `where`, in the filter language; `sort`; and the fields of a form: `eval`, `mode`, `status`, `stop`,
    `scored`, `task` (each may repeat), `group`, `step_min`, `step_max`, `reward_min`, `reward_max` (`>0.1` and `<0.5`
    exclude the end), `since`, `until`. For `now` see `parse_where`.

    Raises:
        FilterError: an unknown name or word (with the nearest known one), not a number, not finite, or min above max.
    """
    lists: dict[str, list[str]] = {}
    for name, value in parameters:
        check_word(shortened(name), "filter", name, _PARAMETERS)
        if value.strip():
            lists.setdefault(name, []).append(value)
    for name in _SINGLES:
        if len(set(lists.get(name, ()))) > 1:
            raise FilterError(name, f"{name} occurs {len(lists[name])} times: use it once")
    singles = {name: lists[name][0] for name in _SINGLES if name in lists}
    parts: dict[str, Any] = {part: lists.get(field) for part, field in _LISTS.items()} | {"group": singles.get("group")}
    parts |= {
        name: filter_values.read_whole(name, singles[name]) for name in ("step_min", "step_max") if name in singles
    }
    parts |= {name: filter_values.read_time(name, singles[name], now) for name in ("since", "until") if name in singles}
    low, high = singles.get("reward_min", "").strip(), singles.get("reward_max", "").strip()
    reward = _range_term(
        "reward",
        filter_values.read_number("reward_min", low.removeprefix(">")) if low else None,
        filter_values.read_number("reward_max", high.removeprefix("<")) if high else None,
        above=low.startswith(">"),
        below=high.startswith("<"),
    )
    where = [term for text in lists.get(WHERE, ()) for term in parse_terms(text, now=now)]
    return RolloutFilter(terms=[*reward, *where], sort=read_sort(singles.get("sort", Sort.NEWEST).strip()), **parts)


def print_filter(filter: RolloutFilter) -> list[tuple[str, str]]:  # noqa: A002
    """Return the (name, value) pairs of the canonical URL, which `parse_filter` reads back as the same filter."""
    where = print_where(filter)
    sort = [] if filter.sort == Sort.NEWEST else [("sort", filter.sort.value)]
    return [*([(WHERE, where)] if where else []), *sort]


def named_in(filter: RolloutFilter) -> dict[str, list[str]]:  # noqa: A002
    """Collect the names that only a run defines, by field: evals, tasks, models, tags, reward functions, metrics.

    A tag that a rollout must not have is left out, since it need not exist.
    """
    names: dict[str, list[str]] = {}
    for term in filter.terms:
        field = FIELDS[term.field]
        if term.key is not None:
            names.setdefault(field.name, []).append(term.key)
        elif field.kind == Kind.NAME and field.name not in _UNLISTED and not (field.name == "tag" and term.negated):
            names.setdefault(field.name, []).extend(value for value in term.values if isinstance(value, str))
    return {name: values for name, values in names.items() if values}


def check_known(filter: RolloutFilter, names_of_run: Mapping[str, Iterable[str]]) -> None:  # noqa: A002
    """Compare the names in a filter with those of a run, by field; fields that `names_of_run` lacks are not checked.
    Raise FilterError, which names the nearest known value.
    """
    for name, values in named_in(filter).items():
        known_names = list(names_of_run.get(name, values))
        for value in values:
            if value not in known_names:
                has_family = any(other.startswith(value) for other in known_names)
                is_family = has_family and [name, print_name(value)] == ["task", *values]
                unknown = f"this run has no {FIELDS[name].label} {shortened(value)!r}"
                raise misspelt(name, unknown, value, known_names, f"{value}*" if is_family else None)


def _make_terms(parts: FilterParts) -> list[Term]:
    values: dict[str, Any] = {name: value for name, value in parts.items() if value is not None}
    if unknown := values.keys() - FilterParts.__annotations__.keys():
        allowed = ", ".join(FilterParts.__annotations__)
        raise TypeError(f"RolloutFilter takes no {min(unknown)!r}: give one of {allowed}")
    lists = {field: values[name] for name, field in _LISTS.items() if values.get(name)}
    terms = [Term(field, (words,) if isinstance(words, str) else tuple(words)) for field, words in lists.items()]
    terms += [Term("group", (values["group"],))] if "group" in values else []
    for field in ("step", "reward"):
        terms += _range_term(field, values.get(f"{field}_min"), values.get(f"{field}_max"))
    terms += [Term("since", (Range(low=values["since"]),))] if "since" in values else []
    terms += [Term("until", (Range(high=values["until"]),))] if "until" in values else []
    return terms


def _range_term(
    field: str, low: float | None, high: float | None, *, above: bool = False, below: bool = False
) -> list[Term]:
    """Return the term of a step's or reward's ends, if any; mistakes name `step_min` and the like, as forms do."""
    names = f"{field}_min", f"{field}_max"
    convert: Callable[[Any], float] = operator.index if field == "step" else float
    low, high = (plain_number(name, end, convert) for name, end in zip(names, (low, high), strict=True))
    least, most = (0, filter_values.INT64_MAX) if field == "step" else (-math.inf, math.inf)
    for name, end in zip(names, (low, high), strict=True):
        if end is not None:
            filter_values.check_number(name, end, low=least, high=most)
    if low is not None and high is not None and low > high:
        least_said, most_said = map(filter_values.print_number, (low, high))
        message = f"{names[0]} {least_said} is above {names[1]} {most_said}: swap them"
        raise FilterError(names[0], message)
    return [] if low is None and high is None else [Term(field, (Range(low, high, above, below),))]


def _merge_terms(terms: Iterable[Term]) -> tuple[Term, ...]:
    """Bring terms that must all apply into one form and order. Raise FilterError for contradictions and too many."""
    mergeable: dict[tuple[str, str | None], Term] = {}
    unmergeable: list[Term] = []
    for original in terms:
        term = _as_since_or_until(original) if FIELDS[original.field].kind == Kind.TIME else original
        if term.is_plain:
            earlier_term = mergeable.get((term.field, term.key))
            mergeable[term.field, term.key] = term if earlier_term is None else _intersect(earlier_term, term)
        else:
            unmergeable.append(term)
    merged = [_inclusive(term) if term.field == "step" else term for term in mergeable.values()]
    merged += dict.fromkeys(unmergeable)
    if len(merged) > MOST_TERMS:
        raise FilterError(WHERE, f"this filter has {len(merged)} terms; at most {MOST_TERMS} are possible")
    # Times are in µs since the epoch.
    since_range, until_range = (
        mergeable[name, None].range if (name, None) in mergeable else None for name in ("since", "until")
    )
    if since_range and until_range and (since_range.low or 0) > (until_range.high or 0):
        first_time, last_time = (
            filter_values.print_time(int(since_range.low or 0)),
            filter_values.print_time(int(until_range.high or 0)),
        )
        raise FilterError("since", f"since {first_time} is after until {last_time}: swap them")
    # Words to search for keep the order in which they were written: so a reader finds them again.
    return tuple(sorted(merged, key=lambda term: (_PLACES[term.field], "" if term.field in SEARCHED else str(term))))


def _intersect(term: Term, other: Term) -> Term:
    """Return the common part of two plain terms of a field."""
    if term.range is None or other.range is None:
        if common := tuple(value for value in term.values if value in other.values):
            return replace(term, values=common)
        either = Term(term.field, (*term.values, *other.values))
        term_text, other_text, either_text = (shortened(str(meaning)) for meaning in (term, other, either))
        raise FilterError(
            term.field, f"{term_text} and {other_text} exclude one another: for either, write {either_text}"
        )
    return _narrow(term, term.range.within(other.range))


def _narrow(term: Term, to: Range) -> Term:
    if to.is_empty:
        low, high = (replace(term, values=(end,)) for end in to.ends)
        raise FilterError(term.field, f"{low} and {high} exclude one another")
    return replace(term, values=(to,))


def _inclusive(term: Term) -> Term:
    """Return a term of the same whole numbers with inclusive ends, for a form's fields: `step>3` is `step>=4`."""
    if term.range is None or term.range.is_closed:
        return term
    return _narrow(term, Range(_move(term.range.low, term.range.above), _move(term.range.high, -term.range.below)))


def _as_since_or_until(term: Term) -> Term:
    """Return a time as a `since` or an `until` that is not negated: `-since:T` is an `until` of the µs before T."""
    (limits,) = term.values if len(term.values) == 1 else (None,)
    if not isinstance(limits, Range) or len(limits.ends) != 1:
        raise FilterError(term.field, f"{term.field} takes one time, for example {FIELDS[term.field].example}")
    if term.negated:
        limits = Range(low=_move(limits.high, 1), high=_move(limits.low, -1))
    return Term("until" if limits.low is None else "since", (limits,))


def _move(value: float | None, by: int) -> int | None:
    return None if value is None else int(value) + by


def read_sort(written: Order | str) -> Order:
    """Read an order. Raise FilterError, which names the nearest one, if there is no such order."""
    if isinstance(written, ByColumn) or written in set(Sort):
        return written if isinstance(written, ByColumn) else Sort(written)
    name = written.removeprefix("-")
    pair = split_name(name.removesuffix(":text"))
    if pair is None or pair[0].kind not in _SORTED or not (pair[0].column or pair[0].among or name == "cause"):
        names = [
            *(sort.value for sort in Sort),
            *(field.name for field in FIELDS.values() if field.kind in _SORTED and field.column),
        ]
        raise misspelt("sort", f"unknown sort {shortened(written)!r}", name, names)
    is_text = pair[0].kind in {Kind.NAME, Kind.WORD} or name.endswith(":text")
    return ByColumn(*pair, descending=written.startswith("-"), is_text=is_text)
