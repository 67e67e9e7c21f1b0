"""Which rollouts are meant: parsed from a URL's parameters, checked, and printed back as the shortest URL."""

import difflib
import math
import operator
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Any

from logs_ui.recorder.errors import FilterError
from logs_ui.recorder.models import Mode, Status, StopReason


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


class Scored(StrEnum):
    """Whether a rollout has a reward. Those that have not come to an end are none of these."""

    YES = "yes"
    """It has one."""
    AWAITING = "awaiting"
    """It returned, and the trainer, which is alive, has not scored it yet."""
    NO = "no"
    """It ended, and has none: all reward functions returned None, it raised, or the run ended before it was scored."""


@dataclass(frozen=True)
class RolloutFilter:
    """Rows that satisfy all of its parts; values within one part are alternatives. An empty part does not filter.

    Two filters that mean the same are equal: alternatives are brought into one order, and repeated ones dropped.

    Attributes:
        evals, modes, statuses, stop_reasons, scored, tasks: any of these.
        group: exactly this one.
        step_min, step_max: inclusive.
        reward_min, reward_max: inclusive; a row without a reward satisfies neither.
        since, until: µs since the epoch, by `created`, inclusive.
        sort: order of the table; not a filter, but part of the URL.

    Raises:
        FilterError: an unknown word, a number out of range, or min above max.
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
    sort: Sort = Sort.NEWEST

    def __post_init__(self) -> None:
        for name, (attribute, words) in _LISTS.items():
            values = _alternatives(name, getattr(self, attribute), words)
            object.__setattr__(self, attribute, values)
        if self.group is not None:
            _check_text("group", self.group)
        for name in ("step_min", "step_max", "since", "until"):
            object.__setattr__(self, name, _plain(name, getattr(self, name), operator.index))
        for name in ("reward_min", "reward_max"):
            object.__setattr__(self, name, _plain(name, getattr(self, name), float))
        object.__setattr__(self, "sort", Sort(_known_word("sort", self.sort, Sort)))
        _check_range("step", self.step_min, self.step_max, low=0, high=_INT64_MAX)
        _check_range("reward", self.reward_min, self.reward_max, low=-math.inf, high=math.inf)
        _check_times(self.since, self.until)


@dataclass(frozen=True)
class FilterPart:
    """One part of a filter as a person reads it, and the filter without it.

    Attributes:
        name: the URL parameter's name.
        label: e.g. `status: error` or `reward up to 0.5`.
        value: the alternative that it stands for; None for a group, a range or a time.
        without: the same filter, this part (or this one alternative) removed.
    """

    name: str
    label: str
    value: str | None
    without: RolloutFilter = field(repr=False)


_INT64_MAX = 2**63 - 1
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_LAST_TIME = (datetime(9999, 12, 31, tzinfo=UTC) - _EPOCH) // timedelta(microseconds=1)
_AGE = re.compile(r"(\d{1,9}(?:\.\d{1,6})?)([smhd])")
_AGE_UNITS = {"s": 1, "m": 60, "h": 3_600, "d": 86_400}

# URL parameter: field, and the words it may hold where they are known beforehand.
_LISTS: dict[str, tuple[str, type[StrEnum] | None]] = {
    "eval": ("evals", None),
    "mode": ("modes", Mode),
    "status": ("statuses", Status),
    "stop": ("stop_reasons", StopReason),
    "scored": ("scored", Scored),
    "task": ("tasks", None),
}
_LABELS = {"stop": "stop reason"}
_SINGLES = ("group", "step_min", "step_max", "reward_min", "reward_max", "since", "until", "sort")
_NAMES = (*_LISTS, *_SINGLES)


def parse_filter(parameters: Iterable[tuple[str, str]], *, now: int | None = None) -> RolloutFilter:
    """From the URL's (name, value) pairs. Empty values are as good as absent.

    Args:
        parameters: `eval`, `mode`, `status`, `stop`, `scored`, `task` (each may repeat), `group`, `step_min`,
            `step_max`, `reward_min`, `reward_max`, `since`, `until` (ISO 8601 with `Z` or offset, else UTC; or an age
            as `90s`, `30m`, `2h`, `7d`; an `until` that is a date alone means the end of that day), `sort`.
        now: µs since the epoch that ages count from; the clock's by default.

    Raises:
        FilterError: an unknown name or word (with the nearest known one), not a number, not finite, or min above max.
    """
    found: dict[str, list[str]] = {}
    for name, value in parameters:
        check_word(_shown(name), "filter", name, _NAMES)
        if value.strip():
            found.setdefault(name, []).append(value)
    lists = {attribute: tuple(found.get(name, ())) for name, (attribute, _) in _LISTS.items()}
    one = {name: _only(name, found[name]) for name in _SINGLES if name in found}
    return RolloutFilter(
        **lists,
        group=one.get("group"),
        step_min=_whole("step_min", one.get("step_min")),
        step_max=_whole("step_max", one.get("step_max")),
        reward_min=_number("reward_min", one.get("reward_min")),
        reward_max=_number("reward_max", one.get("reward_max")),
        since=_time("since", one.get("since"), now),
        until=_time("until", one.get("until"), now),
        sort=Sort(_known_word("sort", one.get("sort", Sort.NEWEST).strip(), Sort)),
    )


def print_filter(filter: RolloutFilter) -> list[tuple[str, str]]:  # noqa: A002
    """The shortest (name, value) pairs that `parse_filter` reads back as the same filter: the canonical URL."""
    pairs = [(name, value) for name, (attribute, _) in _LISTS.items() for value in getattr(filter, attribute)]
    singles = {
        "group": filter.group,
        "step_min": _printed(filter.step_min, str),
        "step_max": _printed(filter.step_max, str),
        "reward_min": _printed(filter.reward_min, _print_number),
        "reward_max": _printed(filter.reward_max, _print_number),
        "since": _printed(filter.since, _print_time),
        "until": _printed(filter.until, _print_time),
        "sort": None if filter.sort == Sort.NEWEST else filter.sort.value,
    }
    pairs += [(name, text) for name, text in singles.items() if text is not None]
    return pairs


def filter_parts(filter: RolloutFilter) -> list[FilterPart]:  # noqa: A002
    """Its parts, in the order of the fields, for the chips above the table.

    Each alternative is a part of its own. A range of one value, such as one step, is a single part, named as its lower
    end is.
    """
    parts = []
    for name, (attribute, _) in _LISTS.items():
        values = getattr(filter, attribute)
        for value in values:
            others = tuple(other for other in values if other != value)
            without = _changed(filter, {attribute: others})
            parts.append(FilterPart(name, f"{_LABELS.get(name, name)}: {value}", value, without))
    if filter.group is not None:
        parts.append(FilterPart("group", f"group: {filter.group}", None, replace(filter, group=None)))
    parts += _range_parts(filter, "step")
    parts += _range_parts(filter, "reward")
    for name in ("since", "until"):
        if getattr(filter, name) is not None:
            label = f"{name} {_print_time(getattr(filter, name)).replace('T', ' ').replace('Z', ' UTC')}"
            parts.append(FilterPart(name, label, None, _changed(filter, {name: None})))
    return parts


def check_known(filter: RolloutFilter, known: Mapping[str, Iterable[str]]) -> None:  # noqa: A002
    """Holds evals and tasks against those that the run has (`known["eval"]`, `known["task"]`).

    Raises:
        FilterError: names the nearest known value.
    """
    for name, values in (("eval", filter.evals), ("task", filter.tasks)):
        there = list(known.get(name, values))
        for value in values:
            if value not in there:
                raise _misspelt(name, f"this run has no {name} {_shown(value)!r}", value, there)


def check_word(field: str, kind: str, word: str, known: Sequence[str]) -> None:
    """Holds a word of the URL against those that are known there; `kind` says what it would be.

    Raises:
        FilterError: names the nearest known one.
    """
    if word not in known:
        raise _misspelt(field, f"unknown {kind} {_shown(word)!r}", word, known)


def nearest(word: str, known: Iterable[str]) -> str | None:
    """The known word that `word` most probably is a misspelling of."""
    by_lower = {name.lower()[:_LONGEST_SHOWN]: name for name in known}
    word = word.lower()[:_LONGEST_SHOWN]
    longer = [name for name in by_lower if name.startswith(word)]
    found = longer if len(longer) == 1 else difflib.get_close_matches(word, by_lower, n=1, cutoff=0.5)
    return by_lower[found[0]] if found else None


_LONGEST_SHOWN = 80  # of a value in a message; nearest() is quadratic in it, too
_MOST_LISTED = 12


def _misspelt(field: str, what: str, word: str, known: Sequence[str]) -> FilterError:
    """`what` is wrong with a field, and the nearest known word, or some that are known."""
    near = nearest(word, known)
    if near is not None:
        return FilterError(field, f"{what}: did you mean {near!r}?", written=word, meant=near)
    if not known:
        return FilterError(field, f"{what}: it has none at all yet")
    more = ", ..." if len(known) > _MOST_LISTED else ""
    return FilterError(field, f"{what}: choose from {', '.join(_shown(name) for name in known[:_MOST_LISTED])}{more}")


def _shown(value: str) -> str:
    return value if len(value) <= _LONGEST_SHOWN else value[:_LONGEST_SHOWN] + "..."


def _changed(filter: RolloutFilter, changes: Mapping[str, object]) -> RolloutFilter:  # noqa: A002
    """`replace` for names that are only known at run time, which a type checker cannot follow."""
    return replace(filter, **changes)  # type: ignore[arg-type]


def _range_parts(filter: RolloutFilter, name: str) -> list[FilterPart]:  # noqa: A002
    low_name, high_name = f"{name}_min", f"{name}_max"
    low, high = getattr(filter, low_name), getattr(filter, high_name)
    if low is not None and low == high:
        both = _changed(filter, {low_name: None, high_name: None})
        return [FilterPart(low_name, f"{name} {_print_number(low)}", None, both)]
    parts = []
    if low is not None:
        without = _changed(filter, {low_name: None})
        parts.append(FilterPart(low_name, f"{name} from {_print_number(low)}", None, without))
    if high is not None:
        without = _changed(filter, {high_name: None})
        parts.append(FilterPart(high_name, f"{name} up to {_print_number(high)}", None, without))
    return parts


def _alternatives(name: str, values: Iterable[str], words: type[StrEnum] | None) -> tuple[str, ...]:
    """Each once, in one order: the known words' own, else alphabetical."""
    values = (values,) if isinstance(values, str) else tuple(values)
    for value in values:
        _check_text(name, value)
        if words is not None:
            _known_word(name, value, words)
    if words is None:
        return tuple(sorted(set(values)))
    return tuple(word.value for word in words if word in values)


def _known_word(name: str, value: str, words: type[StrEnum]) -> str:
    check_word(name, _LABELS.get(name, name), value, [word.value for word in words])
    return value


def _plain(name: str, value: Any, convert: Callable[[Any], float]) -> float | None:
    """Python's own number, for one of numpy's that a caller took from a DataFrame: SQLite knows no other."""
    if value is None:
        return None
    try:
        return convert(value)
    except (TypeError, ValueError):
        raise FilterError(name, f"{name} is {_shown(repr(value))}, which is not a number it can use") from None


def _check_text(name: str, value: str) -> None:
    try:
        value.encode()
    except UnicodeEncodeError:
        raise FilterError(name, f"{name} {_shown(value)!r} is not valid Unicode text") from None


def _check_range(name: str, minimum: float | None, maximum: float | None, *, low: float, high: float) -> None:
    for end, value in (("min", minimum), ("max", maximum)):
        if value is None:
            continue
        if not math.isfinite(value):
            raise FilterError(f"{name}_{end}", f"{name}_{end} {value} is not a finite number")
        if not low <= value <= high:
            raise FilterError(f"{name}_{end}", f"{name}_{end} {value} is out of range: {low} to {high}")
    if minimum is not None and maximum is not None and minimum > maximum:
        message = f"{name}_min {_print_number(minimum)} is above {name}_max {_print_number(maximum)}: swap them"
        raise FilterError(f"{name}_min", message)


def _check_times(since: int | None, until: int | None) -> None:
    for name, value in (("since", since), ("until", until)):
        if value is not None and not 0 <= value <= _LAST_TIME:
            raise FilterError(name, f"{name} is out of range: give a time between 1970 and 9999")
    if since is not None and until is not None and since > until:
        raise FilterError("since", f"since {_print_time(since)} is after until {_print_time(until)}: swap them")


def _only(name: str, values: list[str]) -> str:
    if len(set(values)) > 1:
        raise FilterError(name, f"{name} is given {len(values)} times: give it once")
    return values[0]


def _whole(name: str, text: str | None) -> int | None:
    if text is None:
        return None
    try:
        return int(_digits(text))
    except ValueError:
        raise FilterError(name, f"{name} {_shown(text)!r} is not a whole number") from None


def _number(name: str, text: str | None) -> float | None:
    if text is None:
        return None
    try:
        return float(_digits(text))
    except ValueError:
        raise FilterError(name, f"{name} {_shown(text)!r} is not a number: write it as 0.5") from None


def _digits(text: str) -> str:
    """The same.

    Raises:
        ValueError: Python would read a number where nobody wrote one: `1_0`, digits of other scripts.
    """
    if "_" in text or not text.isascii():
        raise ValueError(text)
    return text


def _time(name: str, text: str | None, now: int | None) -> int | None:
    if text is None:
        return None
    text = text.strip()
    age = _AGE.fullmatch(text)
    if age:
        start = time.time_ns() // 1000 if now is None else now
        return start - round(float(age[1]) * _AGE_UNITS[age[2]] * 1_000_000)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        message = (
            f"{name} {_shown(text)!r} is not a time: write it as 2026-01-31T18:00Z, or as an age: 90s, 30m, 2h, 7d"
        )
        raise FilterError(name, message) from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    whole_day = (
        timedelta(days=1, microseconds=-1) if name == "until" and "T" not in text and " " not in text else timedelta()
    )
    return (moment - _EPOCH + whole_day) // timedelta(microseconds=1)


def _printed(value: float | None, printer: Callable[[Any], str]) -> str | None:
    return None if value is None else printer(value)


def _print_time(moment: int) -> str:
    """As short as it is exact: no seconds where there are none."""
    at = _EPOCH + timedelta(microseconds=moment)
    precision = "microseconds" if at.microsecond else "seconds" if at.second else "minutes"
    return at.replace(tzinfo=None).isoformat(timespec=precision) + "Z"


def _print_number(value: float) -> str:
    short = repr(float(value))
    return short.removesuffix(".0") if isinstance(value, float) else str(value)
