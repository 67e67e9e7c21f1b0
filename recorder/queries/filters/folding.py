"""Terms brought into one form: what a filter's own fields can say stands there, ranges of one field become one."""

from collections.abc import Iterable
from typing import Any

from logs_ui.recorder.errors import FilterError
from logs_ui.recorder.queries.filters.filter_fields import FIELDS, Field
from logs_ui.recorder.queries.filters.terms import Range, Term, Value

MOST_TERMS = 100
"""SQLite gives up on expressions that are nested 1,000 deep."""

_BOUNDED = ("step", "reward")  # fields that RolloutFilter has ends of
_PLACES = {name: place for place, name in enumerate(FIELDS)}

Attributes = dict[str, Any]
"""Fields of RolloutFilter, by name."""


def folded(attributes: Attributes, terms: Iterable[Term]) -> Attributes:
    """All of these hold; so do those that are returned, `terms` among them.

    Raises:
        FilterError: two of them exclude one another.
    """
    found, rest, ranges = dict(attributes), list[Term](), dict[tuple[str, str | None], Range]()
    for term in terms:
        field, place = FIELDS[term.field], (term.field, term.key)
        if term.field in {"since", "until"}:
            _fold_time(found, term)
        elif term.range is not None:
            ranges[place] = term.range.within(ranges.get(place, Range()))
        elif field.attribute is not None and _is_plain(term):
            found[field.attribute] = _common(field, found[field.attribute], term.values)
        elif term.field == "group" and _is_plain(term) and len(term.values) == 1:
            found["group"] = _common(field, (found["group"],) if found["group"] is not None else (), term.values)[0]
        else:
            rest.append(term)
    for (name, key), it in ranges.items():
        rest += _fold_range(found, name, key, it)
    if len(rest) > MOST_TERMS:
        raise FilterError("where", f"a filter has {MOST_TERMS} terms at most, and this one {len(rest)}")
    return found | {"terms": tuple(in_order(dict.fromkeys(rest)))}


def in_order(terms: Iterable[Term]) -> list[Term]:
    """As they are printed."""
    # Words stay as they were written, which is how a reader finds them again.
    return sorted(terms, key=lambda term: (_PLACES[term.field], "" if term.field == "text" else str(term)))


def _is_plain(term: Term) -> bool:
    return not term.negated and None not in term.values


def _common(field: Field, some: tuple[Value, ...], others: tuple[Value, ...]) -> tuple[Value, ...]:
    """A rollout has one of each: of what is asked for twice, what is in both."""
    both = tuple(value for value in some or others if value in others)
    if not both:
        one, other = Term(field.name, some), Term(field.name, others)
        either = Term(field.name, (*some, *others))
        raise FilterError(field.name, f"{one} and {other} exclude one another: for either, write {either}")
    return both


def _fold_time(found: Attributes, term: Term) -> None:
    for value in term.values:
        if not isinstance(value, Range) or (value.low is None) == (value.high is None) or len(term.values) > 1:
            raise FilterError(term.field, f"{term.field} takes one time: write {FIELDS[term.field].example}, for one")
        low, high = (value.low, value.high) if not term.negated else (_beyond(value.high, 1), _beyond(value.low, -1))
        found["since"] = max((end for end in (found["since"], low) if end is not None), default=None)
        found["until"] = min((end for end in (found["until"], high) if end is not None), default=None)


def _fold_range(found: Attributes, name: str, key: str | None, it: Range) -> list[Term]:
    """What of it the fields cannot say."""
    if name in _BOUNDED:
        it = it.within(Range(found[f"{name}_min"], found[f"{name}_max"]))
    if name == "step":
        it = Range(_beyond(it.low, it.above), _beyond(it.high, -it.below))
    if it.is_empty:
        low, high = (
            Term(name, (Range(low=it.low, above=it.above),), key),
            Term(name, (Range(high=it.high, below=it.below),), key),
        )
        raise FilterError(name, f"{low} and {high} exclude one another")
    if name not in _BOUNDED:
        return [Term(name, (it,), key)]
    found[f"{name}_min"] = None if it.above else it.low
    found[f"{name}_max"] = None if it.below else it.high
    open_ends = Range(it.low if it.above else None, it.high if it.below else None, it.above, it.below)
    return [] if open_ends == Range() else [Term(name, (open_ends,), key)]


def _beyond(value: float | None, by: int) -> int | None:
    """Of whole numbers."""
    return None if value is None else int(value) + by
