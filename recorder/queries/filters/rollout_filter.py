"""Which rollouts are meant: read from a line of the filter language or from a URL, checked, and printed again."""

import math
import operator
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from enum import StrEnum
from typing import Any

from logs_ui.recorder.errors import FilterError
from logs_ui.recorder.queries.filters.filter_fields import FIELDS, Field, Kind, Scored
from logs_ui.recorder.queries.filters.filter_language import WHERE, parse_terms
from logs_ui.recorder.queries.filters.filter_values import (
    INT64_MAX,
    check_number,
    check_time,
    print_number,
    print_time,
    read_number,
    read_time,
    read_whole,
)
from logs_ui.recorder.queries.filters.folding import folded, in_order
from logs_ui.recorder.queries.filters.terms import Range, Term, check_text, known_word, plain_number
from logs_ui.recorder.spelling import check_word, misspelt, nearest, shortened

__all__ = [
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
    "reward_range",
    "strict_rewards",
]


class Sort(StrEnum):
    """Orders of the rollout table."""

    NEWEST = "newest"
    OLDEST = "oldest"
    LOWEST_REWARD = "lowest-reward"
    HIGHEST_REWARD = "highest-reward"
    LONGEST = "longest"
    """Most completion tokens first."""
    SLOWEST = "slowest"
    """Most seconds first."""


@dataclass(frozen=True)
class RolloutFilter:
    """Rows that satisfy all of its parts; values within one part are alternatives. An empty part does not filter.

    Two filters of the same parts are equal: alternatives and terms are brought into one order, repeated ones dropped,
    and what a field of its own can say stands there, whether it was given as a term or not.

    Attributes:
        evals, modes, statuses, stop_reasons, scored, tasks: any of these.
        group: exactly this one.
        step_min, step_max: inclusive.
        reward_min, reward_max: inclusive; a row without a reward satisfies neither.
        since, until: µs since the epoch, by `created`, inclusive.
        terms: what else must hold.
        sort: order of the table; not a filter, but part of the URL.

    Raises:
        FilterError: an unknown word, a number out of range, min above max, or parts that exclude one another.
    """

    evals: tuple[str, ...] = ()
    modes: tuple[str, ...] = ()
    statuses: tuple[str, ...] = ()
    stop_reasons: tuple[str, ...] = ()
    scored: tuple[str, ...] = ()
    tasks: tuple[str, ...] = ()
    group: str | None = None
    step_min: int | None = None
    step_max: int | None = None
    reward_min: float | None = None
    reward_max: float | None = None
    since: int | None = None
    until: int | None = None
    terms: tuple[Term, ...] = ()
    sort: Sort = Sort.NEWEST

    def __post_init__(self) -> None:
        for field, attribute in _LISTS:
            object.__setattr__(self, attribute, _alternatives(field, getattr(self, attribute)))
        if self.group is not None:
            check_text("group", self.group)
        for name in ("step_min", "step_max", "since", "until"):
            object.__setattr__(self, name, plain_number(name, getattr(self, name), operator.index))
        for name in ("reward_min", "reward_max"):
            object.__setattr__(self, name, plain_number(name, getattr(self, name), float))
        object.__setattr__(self, "sort", _sort(self.sort))
        self._check_ranges()
        if self.terms:
            given = {it.name: getattr(self, it.name) for it in fields(self) if it.name not in {"terms", "sort"}}
            for name, value in folded(given, self.terms).items():
                object.__setattr__(self, name, value)
            self._check_ranges()

    def _check_ranges(self) -> None:
        _check_range("step", self.step_min, self.step_max, low=0, high=INT64_MAX)
        _check_range("reward", self.reward_min, self.reward_max)
        _check_times(self.since, self.until)


# The fields that RolloutFilter has alternatives of.
_ANYTHING = {"group", "first_action", "last_action"}  # no list holds all that they may be
_LISTS = [(field, field.attribute) for field in FIELDS.values() if field.attribute is not None]
_SINGLES = ("group", "step_min", "step_max", "reward_min", "reward_max", "since", "until", "sort")
_NAMES = (*(field.name for field, _ in _LISTS), *_SINGLES, WHERE)


def parse_where(text: str, *, now: int | None = None) -> RolloutFilter:
    """From a line of the filter language, which docs/filters.md explains: `reward<0.2 status:error -tag:seen`.

    Args:
        text: all of it; a line of spaces filters nothing.
        now: µs since the epoch that ages such as `since:2h` count from; the clock's by default.

    Raises:
        FilterError: names the term at fault, and the nearest word that is known.
    """
    return RolloutFilter(terms=tuple(parse_terms(text, now=now)))


def print_where(filter: RolloutFilter) -> str:  # noqa: A002
    """The shortest line that `parse_where` reads back as the same filter, of whichever order."""
    return " ".join(str(term) for term in _as_terms(filter))


def parse_filter(parameters: Iterable[tuple[str, str]], *, now: int | None = None) -> RolloutFilter:
    """From a URL's (name, value) pairs, all of which hold. Empty values are as good as absent.

    Args:
        parameters: `where`, in the filter language, and `sort`; and what the fields of a form are called that has one
            for each part: `eval`, `mode`, `status`, `stop`, `scored`, `task` (each may repeat), `group`, `step_min`,
            `step_max`, `reward_min`, `reward_max` (`>0.1` and `<0.5` leave out the end), `since`, `until`.
        now: µs since the epoch that ages count from; the clock's by default.

    Raises:
        FilterError: an unknown name or word (with the nearest known one), not a number, not finite, or min above max.
    """
    found: dict[str, list[str]] = {}
    for name, value in parameters:
        check_word(shortened(name), "filter", name, _NAMES)
        if value.strip():
            found.setdefault(name, []).append(value)
    one = {name: _only(name, found[name]) for name in _SINGLES if name in found}
    rewards, terms = _rewards(one)
    parts: dict[str, Any] = {attribute: tuple(found.get(field.name, ())) for field, attribute in _LISTS}
    parts |= {name: read_whole(name, one[name]) for name in ("step_min", "step_max") if name in one}
    parts |= {name: read_time(name, one[name], now) for name in ("since", "until") if name in one}
    return RolloutFilter(
        **parts,
        **rewards,
        group=one.get("group"),
        terms=(*terms, *(term for text in found.get(WHERE, ()) for term in parse_terms(text, now=now))),
        sort=_sort(one.get("sort", Sort.NEWEST).strip()),
    )


def print_filter(filter: RolloutFilter) -> list[tuple[str, str]]:  # noqa: A002
    """The (name, value) pairs of the canonical URL, which `parse_filter` reads back as the same filter."""
    where = print_where(filter)
    sort = [] if filter.sort == Sort.NEWEST else [("sort", filter.sort.value)]
    return [*([(WHERE, where)] if where else []), *sort]


def strict_rewards(filter: RolloutFilter) -> Term | None:  # noqa: A002
    """The term that holds such ends of the reward's range as `reward_min` and `reward_max` cannot say."""
    return next((term for term in filter.terms if term.field == "reward" and term.range is not None), None)


def reward_range(filter: RolloutFilter) -> Range:  # noqa: A002
    """All ends of the reward's range."""
    strict = strict_rewards(filter)
    return Range(filter.reward_min, filter.reward_max).within((strict and strict.range) or Range())


def named_in(filter: RolloutFilter) -> dict[str, list[str]]:  # noqa: A002
    """What it names that only the run itself knows, by field: evals, tasks, models, tags, reward functions, metrics.

    A tag that a rollout shall not have need not be there.
    """
    found: dict[str, list[str]] = {"eval": list(filter.evals), "task": list(filter.tasks)}
    for term in filter.terms:
        field = FIELDS[term.field]
        if term.key is not None:
            found.setdefault(field.name, []).append(term.key)
        elif field.kind == Kind.NAME and field.name not in _ANYTHING and not (field.name == "tag" and term.negated):
            found.setdefault(field.name, []).extend(value for value in term.values if isinstance(value, str))
    return {name: values for name, values in found.items() if values}


def check_known(filter: RolloutFilter, known: Mapping[str, Iterable[str]]) -> None:  # noqa: A002
    """Holds what `named_in` says against what the run has, by field; one that `known` lacks is not looked at.

    Raises:
        FilterError: names the nearest known value.
    """
    for name, values in named_in(filter).items():
        there = list(known.get(name, values))
        for value in values:
            if value not in there:
                raise misspelt(name, f"this run has no {FIELDS[name].label} {shortened(value)!r}", value, there)


def _as_terms(filter: RolloutFilter) -> list[Term]:  # noqa: A002
    found = [Term(field.name, getattr(filter, name)) for field, name in _LISTS if getattr(filter, name)]
    found += [Term("group", (filter.group,))] if filter.group is not None else []
    strict, step = strict_rewards(filter), Range(filter.step_min, filter.step_max)
    times = {"since": Range(low=filter.since), "until": Range(high=filter.until)}
    ranges = {"step": step, "reward": reward_range(filter), **times}
    found += [Term(name, (it,)) for name, it in ranges.items() if it != Range()]
    return in_order([*found, *(term for term in filter.terms if term is not strict)])


def _rewards(one: Mapping[str, str]) -> tuple[dict[str, Any], list[Term]]:
    """The ends of the reward's range; those that are strict as terms."""
    ends: dict[str, Any] = {}
    terms = []
    for name, sign in (("reward_min", ">"), ("reward_max", "<")):
        text = one.get(name, "").strip()
        if not text:
            continue
        value = read_number(name, text.removeprefix(sign))
        if not text.startswith(sign):
            ends[name] = value
            continue
        check_number(name, value)
        strict = Range(low=value, above=True) if sign == ">" else Range(high=value, below=True)
        terms.append(Term("reward", (strict,)))
    return ends, terms


def _alternatives(field: Field, values: Iterable[str]) -> tuple[str, ...]:
    """Each once, in one order: the known words' own, else alphabetical."""
    if not values:
        return ()
    values = (values,) if isinstance(values, str) else tuple(values)
    for value in values:
        check_text(field.name, value)
        if field.words is not None:
            known_word(field, value, field.words)
    if field.words is None:
        return tuple(sorted(set(values)))
    return tuple(word.value for word in field.words if word in values)


def _sort(written: str) -> Sort:
    if isinstance(written, Sort):
        return written
    check_word("sort", "sort", written, [sort.value for sort in Sort])
    return Sort(written)


def _check_range(
    name: str, minimum: float | None, maximum: float | None, *, low: float = -math.inf, high: float = math.inf
) -> None:
    for end, value in (("min", minimum), ("max", maximum)):
        if value is not None:
            check_number(f"{name}_{end}", value, low=low, high=high)
    if minimum is not None and maximum is not None and minimum > maximum:
        message = f"{name}_min {print_number(minimum)} is above {name}_max {print_number(maximum)}: swap them"
        raise FilterError(f"{name}_min", message)


def _check_times(since: int | None, until: int | None) -> None:
    for name, value in (("since", since), ("until", until)):
        if value is not None:
            check_time(name, value)
    if since is not None and until is not None and since > until:
        raise FilterError("since", f"since {print_time(since)} is after until {print_time(until)}: swap them")


def _only(name: str, values: list[str]) -> str:
    if len(set(values)) > 1:
        raise FilterError(name, f"{name} is given {len(values)} times: give it once")
    return values[0]
