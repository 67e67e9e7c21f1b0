"""Keeps rows while calls are being assigned to them: what each has so far, and what has no row yet."""

from collections import defaultdict
from collections.abc import Sequence as Seq

from logs_ui.recorder.capture.calls import Call, EnvironmentCall, Generation, Note
from logs_ui.recorder.capture.strands import Strand
from logs_ui.recorder.rows.attribution.branches import Branches, row_of
from logs_ui.recorder.rows.attribution.chain import Chain
from logs_ui.recorder.rows.attribution.row_calls import Attribution, Returned, RowCalls, Seen, Turn


class Assignment:
    """The rows of one rollout function call while calls are being assigned to them."""

    def __init__(
        self, seen: Seen, row_count: int, branches: Branches, outside_count: int = 0, prompts: Seq[str] = ()
    ) -> None:
        """`outside` are the calls that named a row that does not exist; `prompts` (N) the text of each row's prompt,
        empty where all are one, or unknown.
        """
        self.seen, self.branches, self.prompts = seen, branches, prompts
        self.is_running = False  # True if the rows are shown while they run, and assigned again later
        self.texts: Seq[str] = ()  # (N) the last text of each row's prompt, if the function returned
        self.returned: Returned = {}  # numbers that the function returned for each row, beside its tokens
        self.with_known_prompt: set[int] = set()  # rows of which a generation is known to hold the prompt
        self.contested: set[int] = set()  # rows for which there are more candidate generations than turns
        self.scoped: set[int] = set()  # orders of the environment calls that named their row themselves
        self.rows = [RowCalls() for _ in range(row_count)]  # what was assigned so far
        # Without calls that environments made themselves. Tools that are plain functions have no episode.
        outermost = [call for call in seen.environment_calls if call.within is None]
        self.environment_calls = [call for call in outermost if call.client >= 0]
        self.tool_functions = [call for call in outermost if call.client < 0]
        self.unmatched: list[Chain] = []  # chains of generations that match no row
        self.unattributed = self.outside_count = outside_count  # calls that were found to be of no row
        self._failures = [generation for generation in seen.generations if generation.is_failure]
        self._assigned: set[int] = set()  # orders of environment calls

    def add_chain(self, index: int, chain: Chain, starts: Seq[int | None], evidence: str) -> None:
        """Assign a chain to a row; `starts` are the places of its answers in the completion."""
        row = self.rows[index]
        for (generation, sequence), start in zip(chain.parts, starts, strict=True):
            row.turns.append(Turn(generation.order, generation, sequence, start))
        row.lower_evidence(evidence)

    def add_calls(self, index: int, calls: Seq[EnvironmentCall], evidence: str) -> None:
        self.rows[index].environment_calls.extend(calls)
        self.rows[index].lower_evidence(evidence)
        self._assigned.update(call.order for call in calls)

    def add_scoped_calls(self) -> None:
        """Assign the environment calls that were made in a row's scope."""
        for call in [*self.environment_calls, *self.tool_functions]:
            row = row_of(call)
            if row is not None and row < len(self.rows):
                self.add_calls(row, [call], "scope")
                self.scoped.add(call.order)

    def is_unassigned(self, call: EnvironmentCall) -> bool:
        """Return True if no row has it."""
        return call.order not in self._assigned

    @property
    def failed_orders(self) -> list[int]:
        """Return the order of the failed generations that may be a row's: it may have been given up then, or asked
        again.
        """
        if not self._failures:
            return []
        answered = [row for row in self.rows if row.turns] or self.rows
        return [failure.order for failure in self._failures if any(row.may_hold(failure) for row in answered)]

    def rows_by_branch(self) -> dict[Strand | None, list[int]]:
        """Return the rows by the one branch in which all of their calls were made; without those that have none."""
        rows_of: dict[Strand | None, list[int]] = defaultdict(list)
        for index, row in enumerate(self.rows):
            branches = {self.branches.of(call) for call in row.calls}
            if len(branches) == 1 and None not in branches:
                rows_of[branches.pop()].append(index)
        return rows_of

    def branch_of(self, calls: Seq[Call]) -> Strand | None:
        """Return the one branch of these calls, else None. Resets, which may be for all rows, count only if alone."""
        of = self.branches.of
        branches = {of(call) for call in calls if not (isinstance(call, EnvironmentCall) and call.kind == "reset")}
        branches = branches or {of(call) for call in calls}
        return branches.pop() if len(branches) == 1 else None

    def is_elsewhere(self, index: int, chain: Chain) -> bool:
        """Return True if the row's turns were made in other branches than the chain, and branches tell rows apart."""
        if self.branches.are_turns:
            return False
        branches = {self.branches.of(turn.generation) for turn in self.rows[index].turns}
        return bool(branches) and branches != {chain.branch}

    def branch_of_each_row(self) -> list[Strand]:
        """Return the branches in the order in which they were started, if there is one for each row; else nothing."""
        generating = {self.branches.of(generation) for generation in self.seen.generations}
        if None in generating or self.branches.are_turns:
            return []
        branches = {branch for branch in generating if branch is not None}
        # A row without a generation is known only by the branch of its environment calls.
        if len(branches) < len(self.rows):
            branches |= {branch for call in self.environment_calls if (branch := self.branches.of(call)) is not None}
        return sorted(branches, key=lambda branch: branch.number) if len(branches) == len(self.rows) else []

    def is_of_its_model(self, generation: Generation, index: int) -> bool:
        """Return True if the row's other turns are of the same model, seen at the same seam: a judge's are no turns."""
        others = {(t.generation.seam, t.generation.sampling.get("model")) for t in self.rows[index].turns}
        return not others or (generation.seam, generation.sampling.get("model")) in others

    def result(self) -> Attribution:
        """Return all rows in order, with the calls that their environment calls made, and with their notes."""
        # Calls are gone through in order, so that the outer call has its row before the calls within it are looked
        # at.
        owner = {call.order: row for row in self.rows for call in row.environment_calls}
        for call in sorted(self.seen.environment_calls, key=lambda call: call.order):
            row = owner.get(call.within) if call.within is not None else None
            if row is not None:
                owner[call.order] = row
                row.children.append(call)
        for note in self.seen.notes:
            self._add_note(note)
        outermost = [*self.environment_calls, *self.tool_functions]
        are_lost = self.outside_count > 0 or any(call.order not in owner for call in outermost)
        for row in self.rows:
            row.is_whole = bool(row.environment_calls) or not are_lost
            row.sort()
        return Attribution(self.rows, self.unattributed)

    def _add_note(self, note: Note) -> None:
        """Assign a note to the row of its scope, or to the row whose call came last before it in the same strand."""
        index = row_of(note)
        if index is None:
            branch = self.branches.of(note)
            earlier = [
                (call.order, place)
                for place, row in enumerate(self.rows)
                for call in row.calls
                if call.order < note.order and self.branches.of(call) is branch
            ]
            latest = max(earlier, default=(-1, -1))
            owners = {place for order, place in earlier if order == latest[0]}
            index = owners.pop() if len(owners) == 1 else None
        if index is None or index >= len(self.rows):
            self.unattributed += 1
        else:
            self.rows[index].notes.append(note)
