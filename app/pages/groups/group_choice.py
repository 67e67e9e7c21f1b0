"""Which groups are asked for, and in which order: beside the filter, part of the address."""

from dataclasses import dataclass

from logs_ui.app.web import urls
from logs_ui.recorder.queries import DEAD, GroupSort, Kind
from logs_ui.recorder.spelling import check_word

_ALL_DEAD = "dead"


@dataclass(frozen=True)
class Choice:
    """What is asked for beside the filter: an order, and a kind of groups: a `Kind`, `dead`, or empty for any."""

    sort: GroupSort = GroupSort.NEWEST
    kind: str = ""

    @property
    def kinds(self) -> tuple[Kind, ...]:
        """Empty: of any."""
        return DEAD if self.kind == _ALL_DEAD else (Kind(self.kind),) if self.kind else ()

    @property
    def needs_survey(self) -> bool:
        """Whether all groups have to be known to find the first."""
        return bool(self.kind) or self.sort != GroupSort.NEWEST


def choice_of(given: urls.Pairs) -> Choice:
    """What an address says. From here on addresses of groups, in this request, say the same.

    Raises:
        FilterError: there is no such order, or kind.
    """
    own = {name: value for name, value in given if value}
    sort, kind = own.get("sort", GroupSort.NEWEST.value), own.get("kind", "")
    check_word("sort", "order of groups", sort, [word.value for word in GroupSort])
    if kind:
        check_word("kind", "kind of groups", kind, [_ALL_DEAD, *(word.value for word in Kind)])
    urls.ordering(sort, kind)
    return Choice(GroupSort(sort), kind)
