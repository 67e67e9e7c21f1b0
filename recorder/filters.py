"""Which rollouts are meant: parsed from a URL's parameters, checked, and printed back as the shortest URL."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum


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

    Attributes:
        evals, modes, statuses, stop_reasons, tasks: any of these.
        group: exactly this one.
        step_min, step_max: inclusive.
        reward_min, reward_max: inclusive; a row without a reward satisfies neither.
        since, until: µs since the epoch, by `created`, inclusive.
        sort: order of the table; not a filter, but part of the URL.
    """

    evals: tuple[str, ...] = ()
    modes: tuple[str, ...] = ()
    statuses: tuple[str, ...] = ()
    stop_reasons: tuple[str, ...] = ()
    tasks: tuple[str, ...] = ()
    group: str | None = None
    step_min: int | None = None
    step_max: int | None = None
    reward_min: float | None = None
    reward_max: float | None = None
    since: int | None = None
    until: int | None = None
    sort: Sort = Sort.NEWEST


@dataclass(frozen=True)
class FilterPart:
    """One part of a filter as a person reads it, and the filter without it.

    Attributes:
        name: the URL parameter's name.
        label: e.g. `status: error` or `reward up to 0.5`.
        without: the same filter, this part (or this one alternative) removed.
    """

    name: str
    label: str
    without: RolloutFilter = field(repr=False)


def parse_filter(parameters: Iterable[tuple[str, str]]) -> RolloutFilter:
    """From the URL's (name, value) pairs: `eval`, `mode`, `status`, `stop`, `task` (each may repeat), `group`,
    `step_min`, `step_max`, `reward_min`, `reward_max`, `since`, `until` (ISO 8601 with `Z` or offset, else UTC; or an age as
    `90s`, `30m`, `2h`, `7d`), `sort`. Empty values are as good as absent.

    Raises:
        FilterError: an unknown name or word (with the nearest known one), not a number, not finite, or min above max.
    """
    raise NotImplementedError


def print_filter(filter: RolloutFilter) -> list[tuple[str, str]]:  # noqa: A002
    """The shortest (name, value) pairs that `parse_filter` reads back as the same filter: the canonical URL."""
    raise NotImplementedError


def filter_parts(filter: RolloutFilter) -> list[FilterPart]:  # noqa: A002
    """Its parts, in the order of the fields, for the chips above the table."""
    raise NotImplementedError


def check_known(filter: RolloutFilter, known: Mapping[str, Iterable[str]]) -> None:  # noqa: A002
    """Holds evals and tasks against those that the run has (`known["eval"]`, `known["task"]`).

    Raises:
        FilterError: names the nearest known value.
    """
    raise NotImplementedError
