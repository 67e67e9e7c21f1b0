"""The order and kind of groups, which are part of the address beside the filter."""

from dataclasses import dataclass

from logs_ui.app.parts import words
from logs_ui.app.web import urls
from logs_ui.recorder.queries import DEAD, GroupSort, Kind
from logs_ui.recorder.spelling import check_word

_ALL_DEAD = "dead"


@dataclass(frozen=True)
class GroupChoice:
    """Holds the order of the groups, and their kind: a `Kind`, `dead`, or empty for any."""

    sort: GroupSort = GroupSort.NEWEST
    kind: str = ""

    @property
    def kinds(self) -> tuple[Kind, ...]:
        return DEAD if self.kind == _ALL_DEAD else (Kind(self.kind),) if self.kind else ()

    @property
    def parameters(self) -> dict[str, str]:
        """Return its parameters in an address, which the filter's line keeps."""
        sort = {} if self.sort == GroupSort.NEWEST else {"sort": self.sort.value}
        return sort | ({"kind": self.kind} if self.kind else {})

    @property
    def kind_name(self) -> str:
        """Return the kind in words; empty for any."""
        if self.kind in {"", _ALL_DEAD}:
            return self.kind and "zero-variance"
        return words.GROUP_KINDS[self.kinds[0]].text

    @property
    def needs_survey(self) -> bool:
        """True if all groups have to be read to find the first."""
        return bool(self.kind) or self.sort != GroupSort.NEWEST


def choice_of(pairs: urls.Pairs) -> GroupChoice:
    """Read the choice from an address, and use it in all addresses of groups of this request. Raise FilterError."""
    parameters = {name: value for name, value in pairs if value}
    sort, kind = parameters.get("sort", GroupSort.NEWEST.value), parameters.get("kind", "")
    check_word("sort", "order of groups", sort, [word.value for word in GroupSort])
    if kind:
        check_word("kind", "kind of groups", kind, [_ALL_DEAD, *(word.value for word in Kind)])
    urls.ordering(sort, kind)
    return GroupChoice(GroupSort(sort), kind)
