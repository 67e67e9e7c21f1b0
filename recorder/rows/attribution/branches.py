"""Find the strands that tell rows apart, and the row that a call names itself."""

import re
from collections import Counter
from collections.abc import Iterable
from collections.abc import Sequence as Seq

from logs_ui.recorder.capture.calls import Call, Generation
from logs_ui.recorder.capture.strands import Strand, common

_ROW_ID = re.compile(r"(?:^|-)row-(\d{1,9})$")


class Branches:
    """The strands right below the deepest one that all calls have in common: a function's tasks or threads, be they
    one for each row, for each worker, or for each turn.
    """

    def __init__(self, calls: Seq[Call]) -> None:
        paths = {strand: strand.path for strand in {call.strand for call in calls} if strand is not None}
        depth = len(common(list(paths.values())))
        self._by_strand = {strand: path[depth] for strand, path in paths.items() if len(path) > depth}
        # True if rows continue from branch to branch, so that a branch is no row. Set by `link_chains`, cleared by
        # `join`.
        self.are_turns = False

    def join(self, rows: Iterable[Seq[Generation]]) -> None:
        """Merge the branches in which generations of one row alone were made into the first of them."""
        if not self.are_turns:
            return
        self.are_turns = False
        by_row = [{branch for generation in row if (branch := self.of(generation)) is not None} for row in rows]
        owners = Counter(branch for branches in by_row for branch in branches)
        first = {
            branch: min(branches, key=place_of)
            for branches in ({branch for branch in row if owners[branch] == 1} for row in by_row)
            for branch in branches
        }
        self._by_strand = {strand: first.get(branch, branch) for strand, branch in self._by_strand.items()}

    def of(self, call: Call) -> Strand | None:
        """Return the call's branch; None for a call above all branches, or whose strand is unknown."""
        return None if call.strand is None else self._by_strand.get(call.strand)


def place_of(branch: Strand | None) -> int:
    """Return the number of a branch in the order in which they were started; -1 above all branches."""
    return -1 if branch is None else branch.number


def row_of(call: Call) -> int | None:
    """Return the row that a call names itself: by its scope, or by a request id such as "row-17"."""
    if call.strand is not None and call.strand.row is not None:
        return call.strand.row
    match = _ROW_ID.search(getattr(call, "request_id", None) or "")
    return int(match[1]) if match else None
