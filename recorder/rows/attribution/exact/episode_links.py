"""Tell from the environment calls around generations which of them follow one another.

Used where token ids leave it open: a client that was stepped after one generation, and is called again after the next
one, links the two.
"""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Sequence as Seq
from math import inf
from operator import attrgetter

from logs_ui.recorder.capture.calls import EnvironmentCall, Generation
from logs_ui.recorder.capture.strands import Strand
from logs_ui.recorder.rows.attribution.branches import Branches


class EpisodeLinks:
    """The environment calls that may be about a generation: those of its branch and above all; all for no branch."""

    def __init__(self, calls: Seq[EnvironmentCall], branches: Branches) -> None:
        self.branches = branches
        self._calls: dict[Strand | None, list[EnvironmentCall]] = defaultdict(list)
        outer = [call for call in calls if call.within is None]
        for call in outer:
            self._calls[branches.of(call)].append(call)
        self._of_branch: dict[Strand | None, list[EnvironmentCall]] = {None: outer}

    def of(self, generation: Generation) -> list[EnvironmentCall]:
        """Return the calls that may be about a generation, in order."""
        branch = self.branches.of(generation)
        if branch not in self._of_branch:
            above, inside = self._calls[None], self._calls.get(branch)
            # One list for all branches without calls: there may be one branch for each generation.
            self._of_branch[branch] = sorted(above + inside, key=attrgetter("order")) if inside else above
        return self._of_branch[branch]

    def lead(self, earlier: Generation, later: Generation, *, surely: bool) -> bool:
        """Return True if the client that was called first after the earlier generation is also called first after the
        later one, without a reset between. Where none was called after the later one, return `not surely`.
        """
        between = _calls_between(self.of(earlier), earlier.order, later.order)
        if not between:
            return False
        client = between[0].client
        reset = any(call.kind == "reset" for call in between if call.client == client)
        following = _calls_between(self.of(later), later.order, inf)[:1]
        return not reset and (following[0].client == client if following else not surely)

    def continues(self, before: float, generation: Generation, after: float) -> bool:
        """Return True if a generation answers what the one at `before` had caused: between the two, one client was
        stepped and none reset, and that client is called next, before `after`, or is the only one.
        """
        calls = self.of(generation)
        between = _calls_between(calls, before, generation.order)
        stepped = {call.client for call in between}
        if len(stepped) != 1 or any(call.kind == "reset" for call in between):
            return False
        return {call.client for call in _calls_between(calls, generation.order, after)[:1] or calls} == stepped


def _calls_between(calls: list[EnvironmentCall], earlier: float, later: float) -> list[EnvironmentCall]:
    first, end = (bisect_left(calls, at, key=attrgetter("order")) for at in (earlier, later))
    return calls[first:end]
