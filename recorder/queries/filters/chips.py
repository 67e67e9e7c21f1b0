"""Makes the chips above the table: a filter's parts in words, each with the filter that is left without it."""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from logs_ui.recorder.queries.filters.rollout_filter import RolloutFilter
from logs_ui.recorder.queries.filters.terms import Term


@dataclass(frozen=True)
class FilterPart:
    """Describes one part of a filter: an alternative, an end of a range, or a term that cannot be divided."""

    name: str  # the field's
    label: str  # the part in words, for example `status: error` or `reward up to 0.5`
    value: str | None  # the alternative, where the field has a single value and any of several will do; else None
    without: RolloutFilter = field(repr=False)  # the same filter without this part


def filter_parts(filter: RolloutFilter) -> list[FilterPart]:  # noqa: A002
    """List the parts of a filter, in the order of its terms."""
    parts = []
    for term in filter.terms:
        others = [other for other in filter.terms if other is not term]
        for part, rest in _divide(term):
            value = part.values[0] if part.is_plain and isinstance(part.values[0], str) else None
            without = replace(filter, terms=(*others, *rest))
            parts.append(FilterPart(term.field, part.label, value, without))
    return parts


def _divide(term: Term) -> Iterator[tuple[Term, list[Term]]]:
    """Return each part of a term, with what is left of the term without it. A range of one value is a single part."""
    is_one = not term.is_plain or (term.range is not None and term.range.low == term.range.high)
    pieces = (term.range.ends if term.range else term.values) if not is_one else ()
    if len(pieces) < 2:
        yield term, []
        return
    for piece in pieces:
        others = tuple(other for other in pieces if other is not piece)
        yield replace(term, values=(piece,)), [replace(term, values=others)]
