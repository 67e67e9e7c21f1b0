"""Rows as they are being filled."""

from collections import Counter, defaultdict
from collections.abc import Iterable
from collections.abc import Sequence as Seq

from logs_ui.recorder.capture.calls import Call, EnvironmentCall, Generation, Note, Sequence
from logs_ui.recorder.capture.strands import Strand
from logs_ui.recorder.rows.attribution.evidence import Attribution, Returned, RowCalls, Seen, Turn
from logs_ui.recorder.rows.attribution.exact.branches import Branches, place_of, row_of
from logs_ui.recorder.rows.attribution.exact.chains import Chain
from logs_ui.recorder.rows.attribution.inferred.permutation_test import are_in_line


class Work:
    """Rows as they are being filled.

    Attributes:
        seen: what there is to give.
        rows: (N) what was given so far.
        own: calls of environments, without those that calls made themselves.
        functions: calls of tools that are functions, and have no episode.
        left: chains of generations that no row holds.
        is_running: what is found is shown until more is known.
        asked: rows whose prompts their generations are seen to hold.
        lost: calls that are nobody's.
        returned: what the function returned of each row beside its tokens.
    """

    def __init__(
        self, seen: Seen, count: int, branches: Branches, strange: int = 0, prompts: Seq[str] = ()
    ) -> None:  # fmt: skip
        """
        Args:
            seen: what there is to give.
            count: of the rows.
            branches: of its calls.
            strange: calls that are nobody's, beside `seen`.
            prompts: (N) of the rows; empty where they are one, or not known.
        """
        self.seen, self.branches = seen, branches
        self._prompts = prompts
        self.is_running = False
        self.returned: Returned = {}
        self.asked: set[int] = set()
        self.rows = [RowCalls() for _ in range(count)]
        own = [call for call in seen.environment_calls if call.within is None]
        self.own = [call for call in own if call.client >= 0]
        self.functions = [call for call in own if call.client < 0]
        self.left: list[Chain] = []
        self.lost = self._strange = strange
        self._failures = [made for made in seen.generations if made.is_failure]
        self._given: set[int] = set()  # orders of the environment calls that have a row
        self._scoped: set[int] = set()  # orders of those that said themselves whose they are
        self._contested: set[int] = set()

    def give(self, index: int, chain: Chain, starts: Seq[int | None], evidence: str) -> None:
        """A chain to a row."""
        row = self.rows[index]
        for (generation, sequence), start in zip(chain.parts, starts, strict=True):
            row.turns.append(Turn(generation.order, generation, sequence, start))
        row.rests_on(evidence)

    def give_calls(self, index: int, calls: Seq[EnvironmentCall], evidence: str) -> None:
        """Environment calls to a row."""
        self.rows[index].environment_calls.extend(calls)
        self.rows[index].rests_on(evidence)
        self._given.update(call.order for call in calls)

    def give_scoped(self) -> None:
        """Environment calls that were made in a row's scope."""
        for call in [*self.own, *self.functions]:
            row = row_of(call)
            if row is not None and row < len(self.rows):
                self.give_calls(row, [call], "scope")
                self._scoped.add(call.order)

    def is_open(self, call: EnvironmentCall) -> bool:
        """Whether nobody has it."""
        return call.order not in self._given

    @property
    def failed(self) -> list[int]:
        """Orders of the generations without an answer that a row may have been given up for, or asked again later: not
        those of another model than rows have, as a judge's, nor of an environment's call.
        """
        if not self._failures:
            return []
        answered = [row for row in self.rows if row.turns] or self.rows
        return [made.order for made in self._failures if any(row.may_hold(made) for row in answered)]

    def are_of_one_prompt(self, places: Iterable[int]) -> bool:
        """Whether these rows cannot be told apart by what they were asked."""
        return self.is_running or not self._prompts or len({self._prompts[place] for place in places}) <= 1

    def are_in_line(self, begun: Seq[int | None]) -> bool:
        """Whether rows, in the order in which they were begun, are seen to be of the prompts that stand there, so that
        what has no row yet is that of the row in its place; None stands for such.
        """
        if self.is_running:
            return True
        seen = [self._prompts[place] if place in self.asked else None for place in begun] if self._prompts else []
        return are_in_line(self._prompts, seen)

    def contest(self, rows: Iterable[int]) -> None:
        """Keeps in mind that more generations than these rows' own could be theirs."""
        self._contested.update(rows)

    def join_branches(self) -> None:
        """Once generations have rows: branches that are turns tell rows apart, joined."""
        self.branches.join([[turn.generation for turn in row.turns] for row in self.rows])

    def homes(self) -> dict[Strand | None, list[int]]:
        """Rows by the one branch that all of their calls were made in."""
        homes: dict[Strand | None, list[int]] = defaultdict(list)
        for index, row in enumerate(self.rows):
            found = {self.branches.of(call) for call in row.calls}
            if len(found) == 1:
                homes[found.pop()].append(index)
        return homes

    def branch_of(self, calls: Seq[Call]) -> Strand | None:
        """The one that they were made in; None where there are several. Resets may be made ahead, for all rows."""
        of = self.branches.of
        branches = {of(call) for call in calls if not (isinstance(call, EnvironmentCall) and call.kind == "reset")}
        branches = branches or {of(call) for call in calls}
        return branches.pop() if len(branches) == 1 else None

    def is_elsewhere(self, index: int, chain: Chain) -> bool:
        """Whether the row has calls in other branches than the chain's, and the branches tell rows apart."""
        if self.branches.are_turns:
            return False
        own = {self.branches.of(turn.generation) for turn in self.rows[index].turns}
        return bool(own) and own != {chain.branch}

    def numbered(self) -> list[Strand]:
        """The branches in the order in which they were started, where there is one for each row; else none."""
        generating = {self.branches.of(generation) for generation in self.seen.generations}
        if None in generating or self.branches.are_turns:
            return []
        found = {branch for branch in generating if branch is not None}
        if len(found) < len(self.rows):
            found |= {branch for call in self.own if (branch := self.branches.of(call)) is not None}
        return sorted(found, key=lambda branch: branch.number) if len(found) == len(self.rows) else []

    def is_in_order(self) -> bool:
        """Whether rows were begun in the order of the prompts, as far as their generations show it: strands in the
        order in which they were started, calls by time, sequences as they stand in their batch. Whatever is told by
        order alone rests on this.
        """
        return not self._contested and _is_begun_in_order([row for row in self.rows if row.turns], self.branches)

    def is_of_its_model(self, generation: Generation, index: int) -> bool:
        """Whether the row's other turns were seen at the same seam, of the same model: a judge's are no turns."""
        others = {(t.generation.seam, t.generation.sampling.get("model")) for t in self.rows[index].turns}
        return not others or (generation.seam, generation.sampling.get("model")) in others

    def part_twins(self, identities: Seq[object]) -> None:
        """Takes their episodes from rows that hold the same tokens, where these differ and nothing says whose is whose:
        the order of the rows does, unless it is against what the others show. And from rows that are contested. A row
        without an episode differs, too, if some are nobody's.
        """
        times = Counter(identities)
        are_lost = any(map(self.is_open, self.own))
        for identity in (identity for identity, number in times.items() if number > 1):
            alike = [i for i, other in enumerate(identities) if other == identity]
            twins = [self.rows[i] for i in alike if self._is_told(i)]
            bare = [self.rows[i] for i in alike if are_lost and not self.rows[i].environment_calls]
            if len({_what_came(row.environment_calls) for row in [*twins, *bare]}) <= 1:
                continue
            in_order = self._are_in_order([*twins, *bare])
            for row in twins:
                if in_order:
                    row.rests_on("order")
                else:
                    self._take_calls(row)
        for index in sorted(self._contested):
            if self._is_told(index):
                self._take_calls(self.rows[index])

    def _are_in_order(self, twins: Seq[RowCalls]) -> bool:
        """Among those that were made in the same strand; else among all, if each has one of its own. Of workers that
        take rows from a queue nobody knows in which order they took them, nor of rows that were asked again later.
        """
        if self.failed:
            return False
        places = [branch for row in self.rows if (branch := self.branch_of(row.calls)) is not None]
        of_twins = {self.branch_of(row.calls) for row in twins}
        if len(of_twins) == 1:
            rows = [row for row in self.rows if row.turns and self.branch_of(row.calls) in of_twins]
            return _is_begun_in_order(rows, self.branches)
        return len(set(places)) == len(places) and None not in of_twins and self.is_in_order()

    def _is_told(self, index: int) -> bool:
        """Whether its environment calls rest on evidence that a twin of the row would have, too."""
        return any(call.order not in self._scoped for call in self.rows[index].environment_calls)

    def _take_calls(self, row: RowCalls) -> None:
        kept = [call for call in row.environment_calls if call.order in self._scoped]
        self.lost += len(row.environment_calls) - len(kept)
        row.environment_calls = kept

    def result(self) -> Attribution:
        """All rows in order, with what their environment calls called themselves, and what they said."""
        owner = {call.order: row for row in self.rows for call in row.environment_calls}
        for call in sorted(self.seen.environment_calls, key=lambda call: call.order):
            row = owner.get(call.within) if call.within is not None else None
            if row is not None:
                owner[call.order] = row
                row.children.append(call)
        for note in self.seen.notes:
            self._give_note(note)
        are_lost = self._strange > 0 or any(call.order not in owner for call in [*self.own, *self.functions])
        for row in self.rows:
            row.is_whole = bool(row.environment_calls) or not are_lost
            row.sort()
        return Attribution(self.rows, self.lost)

    def _give_note(self, note: Note) -> None:
        """To the row in whose scope it was made, or whose call was the last before it in the same strand."""
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
            self.lost += 1
        else:
            self.rows[index].notes.append(note)


def _is_begun_in_order(rows: Seq[RowCalls], branches: Branches) -> bool:
    """Not where one began in a strand that nobody saw start. Of first turns that are alike it does not matter which is
    whose: rows then have them in the order in which they were made.
    """
    begun: dict[tuple[object, ...], list[tuple[int, int, int]]] = defaultdict(list)
    first = [min(row.turns, key=lambda turn: turn.order) for row in rows]
    for turn in first:
        strand = branches.of(turn.generation)
        if strand is not None and strand.is_stray:
            return False
        place = next((i for i, one in enumerate(turn.generation.sequences) if one is turn.sequence), 0)
        begun[_content(turn.sequence)].append((place_of(strand), turn.order, place))
    for made in begun.values():
        made.sort(reverse=True)
    in_rows = [begun[_content(turn.sequence)].pop() for turn in first]
    return in_rows == sorted(in_rows)


def _content(sequence: Sequence) -> tuple[object, ...]:
    ids = (sequence.context, sequence.sampled)
    return (*(None if one is None else one.tobytes() for one in ids), sequence.text)


def _what_came(calls: Seq[EnvironmentCall]) -> tuple[object, ...]:
    return tuple((call.kind, call.sent, call.observation, call.reward, call.done, call.error) for call in calls)
