"""A filter's parts as a person reads them, each with the filter that is left without it."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from logs_ui.recorder.queries.filters.filter_fields import FIELDS
from logs_ui.recorder.queries.filters.filter_values import print_number, print_time
from logs_ui.recorder.queries.filters.rollout_filter import RolloutFilter


@dataclass(frozen=True)
class FilterPart:
    """One part of a filter as a person reads it, and the filter without it.

    Attributes:
        name: of the form's field, or of the language's.
        label: e.g. `status: error` or `reward up to 0.5`.
        value: the alternative that it stands for; None for a group, a range, a time or a term.
        without: the same filter, this part (or this one alternative) removed.
    """

    name: str
    label: str
    value: str | None
    without: RolloutFilter = field(repr=False)


def filter_parts(filter: RolloutFilter) -> list[FilterPart]:  # noqa: A002
    """Its parts, in the order of the fields, then its terms.

    Each alternative is a part of its own. A range of one value, such as one step, is a single part, named as its lower
    end is.
    """
    parts = []
    for known in FIELDS.values():
        values = getattr(filter, known.attribute) if known.attribute is not None else ()
        for value in values:
            others = tuple(other for other in values if other != value)
            without = _changed(filter, {known.attribute or "": others})
            parts.append(FilterPart(known.name, f"{known.label}: {value}", value, without))
    if filter.group is not None:
        parts.append(FilterPart("group", f"group: {filter.group}", None, replace(filter, group=None)))
    parts += _range_parts(filter, "step")
    parts += _range_parts(filter, "reward")
    for name in ("since", "until"):
        if getattr(filter, name) is not None:
            label = f"{name} {print_time(getattr(filter, name)).replace('T', ' ').replace('Z', ' UTC')}"
            parts.append(FilterPart(name, label, None, _changed(filter, {name: None})))
    for term in filter.terms:
        rest = tuple(other for other in filter.terms if other is not term)
        parts.append(FilterPart(term.field, term.label, None, replace(filter, terms=rest)))
    return parts


def _range_parts(filter: RolloutFilter, name: str) -> list[FilterPart]:  # noqa: A002
    low_name, high_name = f"{name}_min", f"{name}_max"
    low, high = getattr(filter, low_name), getattr(filter, high_name)
    if low is not None and low == high:
        both = _changed(filter, {low_name: None, high_name: None})
        return [FilterPart(low_name, f"{name} {print_number(low)}", None, both)]
    parts = []
    if low is not None:
        without = _changed(filter, {low_name: None})
        parts.append(FilterPart(low_name, f"{name} from {print_number(low)}", None, without))
    if high is not None:
        without = _changed(filter, {high_name: None})
        parts.append(FilterPart(high_name, f"{name} up to {print_number(high)}", None, without))
    return parts


def _changed(filter: RolloutFilter, changes: Mapping[str, object]) -> RolloutFilter:  # noqa: A002
    """`replace` for names that are only known at run time, which a type checker cannot follow."""
    return replace(filter, **changes)  # type: ignore[arg-type]
