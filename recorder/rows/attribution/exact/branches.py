"""The strands that tell rows apart, and what environment calls say of the generations made in them."""

import re
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterable
from collections.abc import Sequence as Seq

from logs_ui.recorder.capture.calls import Call, EnvironmentCall, Generation
from logs_ui.recorder.capture.strands import Strand, common

_ROW_ID = re.compile(r"(?:^|-)row-(\d{1,9})$")


class Branches:
    """The strands right below the deepest one that all calls have in common: what a function starts for each row, for
    each worker, or for each turn, stands there.

    Attributes:
        are_turns: whether rows go on from branch to branch, so that a branch is no row. True from `segments` on, until
            `join`.
    """

    def __init__(self, calls: Seq[Call]) -> None:
        paths = {strand: strand.path for strand in {call.strand for call in calls} if strand is not None}
        depth = len(common(list(paths.values())))
        self._by_strand = {strand: path[depth] for strand, path in paths.items() if len(path) > depth}
        self.are_turns = False

    def join(self, rows: Iterable[Seq[Generation]]) -> None:
        """Makes one, the first of them, of the branches in which generations of one row alone were made."""
        if not self.are_turns:
            return
        self.are_turns = False
        own = [{branch for made in row if (branch := self.of(made)) is not None} for row in rows]
        owners = Counter(branch for branches in own for branch in branches)
        first = {
            branch: min(branches, key=place_of)
            for branches in ({branch for branch in row if owners[branch] == 1} for row in own)
            for branch in branches
        }
        self._by_strand = {strand: first.get(branch, branch) for strand, branch in self._by_strand.items()}

    def of(self, call: Call) -> Strand | None:
        """None for a call that was made above all branches, or nobody knows where."""
        return None if call.strand is None else self._by_strand.get(call.strand)


def place_of(branch: Strand | None) -> int:
    """Its number; -1 above all branches."""
    return -1 if branch is None else branch.number


def row_of(call: Call) -> int | None:
    """The row that a call says it is of: by its scope, or by a request id as "row-17"."""
    if call.strand is not None and call.strand.row is not None:
        return call.strand.row
    said = _ROW_ID.search(getattr(call, "request_id", None) or "")
    return int(said[1]) if said else None


class Beside:
    """The environment calls of each branch, and those above all branches; of all for what is in no branch."""

    def __init__(self, calls: Seq[EnvironmentCall], branches: Branches) -> None:
        self.branches = branches
        self._calls: dict[Strand | None, list[EnvironmentCall]] = defaultdict(list)
        kept = [call for call in calls if call.within is None]
        for call in kept:
            self._calls[branches.of(call)].append(call)
        self._above = Episodes(self._calls[None])
        self._episodes: dict[Strand | None, Episodes] = {None: Episodes(kept)}

    def of(self, generation: Generation) -> "Episodes":
        """What they say of the generations of its branch."""
        branch = self.branches.of(generation)
        if branch not in self._episodes:
            own = self._calls.get(branch)
            beside = Episodes(sorted(self._calls[None] + own, key=by_order)) if own else self._above
            self._episodes[branch] = beside
        return self._episodes[branch]

    def lead(self, earlier: Generation, later: Generation, *, surely: bool) -> bool:
        """Whether the client that was called first after the earlier generation is the one that is called first after
        the later one, and was not reset between them. Where none was called after the later one, not `surely`.
        """
        between = self.of(earlier).between(earlier.order, later.order)
        if not between:
            return False
        client = between[0].client
        reset = any(call.kind == "reset" for call in between if call.client == client)
        following = self.of(later).first_after(later.order)
        return not reset and (not surely if following is None else following.client == client)


class Episodes:
    """What environment calls, in order, say of the generations between them."""

    def __init__(self, calls: Seq[EnvironmentCall]) -> None:
        self._calls = calls

    def between(self, earlier: float, later: float) -> Seq[EnvironmentCall]:
        """Those that began between two generations."""
        first, end = (bisect_left(self._calls, at, key=by_order) for at in (earlier, later))
        return self._calls[first:end]

    def first_after(self, order: float) -> EnvironmentCall | None:
        """None where none follows."""
        place = bisect_left(self._calls, order, key=by_order)
        return self._calls[place] if place < len(self._calls) else None

    def go_on(self, before: float, order: float, after: float) -> bool:
        """Whether the generation at `order` answers what the one `before` it had brought about: between the two, one
        client was stepped and none reset, and that client is called next, or is the only one.
        """
        first, middle, end = (bisect_left(self._calls, at, key=by_order) for at in (before, order, after))
        between = self._calls[first:middle]
        stepped = {call.client for call in between}
        if len(stepped) != 1 or any(call.kind == "reset" for call in between):
            return False
        following = self._calls[middle : middle + 1] if middle < end else self._calls
        return {call.client for call in following} == stepped


def by_order(call: Call) -> float:
    """Sorts calls by when they began."""
    return call.order
