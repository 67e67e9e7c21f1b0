"""Which call belongs to which row. Pure functions over what was seen; nothing is forced: a call for which there is no
evidence stays unattributed, and is counted on the run.

Evidence, strongest first:
    scope      made inside the row's own scope
    context    the model was given exactly the row's tokens so far, and sampled exactly those that follow there
    strand     made in the task or thread of this row's calls, and of no other's
    generation the steps of the episode follow generations of this row alone
    tokens     what was sampled stands, in order, in the row's completion (the prompt was tokenised anew)
    text       the same, of texts, where the server returned no ids
    order      as many episodes, or tasks, as rows are left, in the order in which they began
    position   one episode for all rows, with one step for each after all had answered; or the order of a function that
               raised, so that no row has tokens
"""

from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field
from math import inf

import numpy as np

from logs_ui.recorder.calls import Call, EnvironmentCall, Generation, Ids, Note, Sequence
from logs_ui.recorder.chains import Branches, Chain, chains_of
from logs_ui.recorder.strands import Strand

Episode = list[EnvironmentCall]
"""A client's calls from one reset to the next."""

_WIDTH = np.dtype(np.int32).itemsize
_STRENGTH = ("scope", "context", "strand", "generation", "tokens", "text", "order", "position")


@dataclass(frozen=True, slots=True)
class Turn:
    """One answer of the model within a row.

    Attributes:
        order: of the generation call.
        start: index of its first token in the completion; None where it does not stand there.
    """

    order: int
    generation: Generation
    sequence: Sequence
    start: int | None


@dataclass
class RowCalls:
    """The calls of one row, each kind in the order in which they began.

    Attributes:
        children: calls that the environment calls made themselves (`EnvironmentCall.within`).
        evidence: the weakest evidence by which a call came here; None without calls.
    """

    turns: list[Turn] = field(default_factory=list)
    environment_calls: list[EnvironmentCall] = field(default_factory=list)
    children: list[EnvironmentCall] = field(default_factory=list)
    notes: list[Note] = field(default_factory=list)
    evidence: str | None = None

    def rests_on(self, evidence: str) -> None:
        """Keeps the weaker of this evidence and what the row rests on so far."""
        if self.evidence is None or _STRENGTH.index(evidence) > _STRENGTH.index(self.evidence):
            self.evidence = evidence

    @property
    def calls(self) -> list[Call]:
        """All of them."""
        return [*(turn.generation for turn in self.turns), *self.environment_calls]

    def sort(self) -> None:
        """By the order in which they began."""
        self.turns.sort(key=lambda turn: turn.order)
        self.environment_calls.sort(key=lambda call: call.order)
        self.notes.sort(key=lambda note: note.order)


@dataclass(frozen=True)
class Attribution:
    """Calls by row, and how many found none."""

    rows: list[RowCalls]
    unattributed: int


@dataclass(frozen=True)
class Seen:
    """What was seen while a rollout function ran, each kind in the order in which it began."""

    generations: Seq[Generation]
    environment_calls: Seq[EnvironmentCall]
    notes: Seq[Note] = ()

    @property
    def calls(self) -> list[Call]:
        """All of them."""
        return [*self.generations, *self.environment_calls, *self.notes]


def attribute(
    prompts: Seq[Ids], completions: Seq[Ids], seen: Seen, text_of: Callable[[int], str] = lambda _: ""
) -> Attribution:
    """Calls of a rollout function that returned.

    Args:
        prompts: (N) token ids as returned, one array a row.
        completions: (N) as returned.
        seen: its calls.
        text_of: the text of a row's completion; asked only where a server returned no ids.
    """
    tokens = [_Row(prompt, completion) for prompt, completion in zip(prompts, completions, strict=True)]
    work = _Work(seen, len(tokens))
    chains = work.scoped(
        chains_of(seen.generations, seen.environment_calls, work.branches),
        lambda chain, row: _fit(chain, tokens[row], lambda: text_of(row)),
    )
    whole = _match(chains, tokens, work, text_of)
    work.left = _match([part for chain in whole for part in chain.split()], tokens, work, text_of)
    if work.is_one_step_each():
        work.one_step_each()
    else:
        work.environment(finished=True)
    work.functions()
    work.leftovers()
    work.part_twins([(row.data, row.prompt) for row in tokens])
    return work.result()


def attribute_unfinished(count: int, seen: Seen) -> Attribution:
    """Calls of a rollout function that raised, or has not returned yet: no tokens tell the rows apart.

    Chains are given to rows in the order in which their strands, else they themselves, began. What is only known to be
    a later turn is nobody's.
    """
    work = _Work(seen, count)
    chains = work.scoped(chains_of(seen.generations, seen.environment_calls, work.branches), lambda *_: None)
    rank: dict[Strand | None, int] = {branch: index for index, branch in enumerate(work.numbered())}
    beginning = [chain for chain in chains if chain.begins]
    for chain in chains:
        place = rank.get(chain.branch) if rank else None
        if place is None and not rank and chain.begins:
            place = next(index for index, other in enumerate(beginning) if other is chain)
        if place is None or place >= count:
            work.left.append(chain)
            continue
        prompt = len(chain.head) // _WIDTH
        starts = [
            None if sequence.context is None or len(sequence.context) < prompt else len(sequence.context) - prompt
            for _, sequence in chain.parts
        ]
        work.give(place, chain, starts, "position")
    work.environment(finished=False)
    work.functions()
    work.leftovers()
    return work.result()


class _Row:
    """A row's tokens as bytes, and how far generations have been matched in it."""

    def __init__(self, prompt: Ids, completion: Ids) -> None:
        self.prompt = len(prompt)  # tokens
        self.data = prompt.tobytes() + completion.tobytes()
        self.matched = self.prompt  # tokens, from the start of the prompt
        self.text_matched = 0  # characters

    @property
    def length(self) -> int:
        return len(self.data) // _WIDTH

    def extended_by(self, sequence: Sequence, matched: int) -> int | None:
        """Where the sampled tokens begin, if the row up to there is just the context."""
        assert sequence.context is not None  # noqa: S101 - for the type checker
        start = len(sequence.context)
        if self.prompt <= start < matched or not self.data.startswith(sequence.context.tobytes()):
            return None
        return start if self._stands_at(sequence, start) else None

    def holds(self, sequence: Sequence, matched: int) -> int | None:
        """Where, after what is matched already, the sampled tokens stand."""
        assert sequence.sampled is not None  # noqa: S101 - for the type checker
        sampled = sequence.sampled.tobytes()
        at = self.data.find(sampled, matched * _WIDTH)
        while at % _WIDTH and at >= 0:
            at = self.data.find(sampled, at + 1)
        return at // _WIDTH if at >= 0 and len(sampled) else None

    def _stands_at(self, sequence: Sequence, start: int) -> bool:
        """Whole, without its end token, or cut off by the end of the row."""
        assert sequence.sampled is not None  # noqa: S101 - for the type checker
        sampled, at = sequence.sampled.tobytes(), start * _WIDTH
        if at >= len(self.data):
            return False
        whole = self.data.startswith((sampled, sampled[:-_WIDTH] or sampled), at)
        return whole or sampled.startswith(self.data[at:])


@dataclass(frozen=True)
class _Fit:
    """How a chain stands in a row: where each of its answers begins in the row's tokens, and where the last ends."""

    starts: list[int | None]
    end: int
    text_end: int
    evidence: str

    def rank(self, row: _Row) -> tuple[bool, bool]:
        """Smaller is better: exactly, and up to the row's end."""
        return self.evidence != "context", self.end < row.length


def _fit(chain: Chain, row: _Row, text: Callable[[], str]) -> _Fit | None:
    """None where the row does not hold the chain's answers in order. Those that stand in the row's prompt, because only
    the last turn was returned, have no place in the completion.
    """
    starts: list[int | None] = []
    matched, text_matched, evidence = row.matched, row.text_matched, "context"
    for _, sequence in chain.parts:
        if sequence.sampled is None or sequence.context is None:
            found = text().find(sequence.text, text_matched) if sequence.text else -1
            if found < 0:
                return None
            starts.append(None)
            text_matched, evidence = found + len(sequence.text or ""), "text"
            continue
        start = row.extended_by(sequence, matched)
        if start is None:
            start, evidence = row.holds(sequence, matched), "tokens"
        if start is None:
            return None
        starts.append(start - row.prompt if start >= row.prompt else None)
        matched = max(matched, start + len(sequence.sampled))
    if starts and evidence == "context" and starts[-1] is None:
        return None
    return _Fit(starts, min(matched, row.length), text_matched, evidence)


def _match(chains: list[Chain], tokens: list[_Row], work: "_Work", text_of: Callable[[int], str]) -> list[Chain]:
    """Gives chains to rows: first those that fit one row alone. Returns those that fit none."""
    texts: dict[int, str] = {}

    def fit(chain: Chain, index: int) -> _Fit | None:
        return _fit(chain, tokens[index], lambda: texts.setdefault(index, text_of(index)))

    def fits_of(chain: Chain, indices: Iterable[int]) -> dict[int, _Fit]:
        return {index: found for index in indices if (found := fit(chain, index))}

    def best_fits(chain: Chain, likely: Iterable[int]) -> dict[int, _Fit]:
        """Those by context; only where there is none, all others, for which every row must be searched."""
        return _exact(fits_of(chain, likely)) or fits_of(chain, range(len(tokens)))

    rank: dict[Strand | None, int] = {branch: place for place, branch in enumerate(work.numbered())}
    chains = sorted(chains, key=lambda chain: (rank.get(chain.branch, -1), chain.parts[0][0].order))
    fits = [best_fits(chain, _repeating(chain, tokens)) for chain in chains]
    unmatched = []
    for i in sorted(range(len(chains)), key=lambda i: _fewest(fits[i], tokens)):
        chain = chains[i]
        again = best_fits(chain, fits[i]) if _exact(fits[i]) else fits_of(chain, fits[i])
        if not again:
            unmatched.append(i)
            continue
        best = min(again, key=lambda index: (*again[index].rank(tokens[index]), work.is_elsewhere(index, chain), index))
        chosen = again[best]
        tokens[best].matched, tokens[best].text_matched = chosen.end, chosen.text_end
        work.give(best, chain, chosen.starts, chosen.evidence)
    return [chains[i] for i in sorted(unmatched)]


def _exact(fits: dict[int, _Fit]) -> dict[int, _Fit]:
    return {index: fit for index, fit in fits.items() if fit.evidence == "context"}


def _repeating(chain: Chain, tokens: list[_Row]) -> list[int]:
    """The rows that begin with the chain's last context: no other can be the one by context."""
    context = chain.parts[-1][1].context
    if context is None:
        return []
    beginning = context.tobytes()
    return [index for index, row in enumerate(tokens) if row.data.startswith(beginning)]


def _fewest(fits: dict[int, _Fit], tokens: list[_Row]) -> int:
    """Of the best fits."""
    ranks = [fit.rank(tokens[index]) for index, fit in fits.items()]
    return ranks.count(min(ranks)) if ranks else 0


class _Work:
    """Rows as they are being filled."""

    def __init__(self, seen: Seen, count: int) -> None:
        self.rows = [RowCalls() for _ in range(count)]
        self.branches = Branches(seen.calls)
        self.left: list[Chain] = []
        self.lost = 0
        self._seen = seen
        own = [call for call in seen.environment_calls if call.within is None]
        self._own = [call for call in own if call.client >= 0]
        self._functions = [call for call in own if call.client < 0]
        self._children = [call for call in seen.environment_calls if call.within is not None]
        self._given: set[int] = set()  # orders of the environment calls that have a row

    def scoped(self, chains: list[Chain], fit: Callable[[Chain, int], _Fit | None]) -> list[Chain]:
        """Gives what was made in a row's scope to that row; returns the chains outside of any."""
        for call in [*self._own, *self._functions]:
            row = None if call.strand is None else call.strand.row
            if row is not None and row < len(self.rows):
                self._give_calls(row, [call], "scope")
        outside = []
        for chain in chains:
            if chain.row is None or chain.row >= len(self.rows):
                outside.append(chain)
            else:
                found = fit(chain, chain.row)
                self.give(chain.row, chain, found.starts if found else [None] * len(chain.parts), "scope")
        return outside

    def give(self, index: int, chain: Chain, starts: Seq[int | None], evidence: str) -> None:
        """A chain to a row."""
        row = self.rows[index]
        for (generation, sequence), start in zip(chain.parts, starts, strict=True):
            row.turns.append(Turn(generation.order, generation, sequence, start))
        row.rests_on(evidence)

    def numbered(self) -> list[Strand]:
        """The branches in the order in which they were started, where there is one for each row; else none."""
        generating = {self.branches.of(generation) for generation in self._seen.generations}
        if None in generating:
            return []
        found = {branch for branch in generating if branch is not None}
        if len(found) < len(self.rows):
            found |= {branch for call in self._own if (branch := self.branches.of(call)) is not None}
        return sorted(found, key=lambda branch: branch.number) if len(found) == len(self.rows) else []

    def is_elsewhere(self, index: int, chain: Chain) -> bool:
        """Whether the row has calls in other branches than the chain's, and the branches tell rows apart."""
        own = {self.branches.of(turn.generation) for turn in self.rows[index].turns}
        return bool(own) and own != {chain.branch}

    def environment(self, *, finished: bool) -> None:
        """Environment calls: branch by branch where branches tell rows apart, then all that are left together.
        Where the function did not finish, its last rows have no episode yet.
        """
        homes = self._homes()
        together: list[Episode] = []
        for episode in _episodes([call for call in self._own if call.order not in self._given]):
            rows = homes.get(self._branch_of(episode), [])
            if len(rows) == 1 and self._branch_of(episode) is not None:
                self._give_calls(rows[0], episode, "strand")
            else:
                together.append(episode)
        ranked = self.numbered()
        if ranked and all(homes.get(branch, [place]) == [place] for place, branch in enumerate(ranked)):
            places: dict[Strand | None, int] = {branch: place for place, branch in enumerate(ranked)}
            for episode in together:
                if self._branch_of(episode) in places:
                    self._give_calls(places[self._branch_of(episode)], episode, "order")
            together = [episode for episode in together if self._branch_of(episode) not in places]
        for branch in {self._branch_of(episode) for episode in together} & {branch for branch in homes if branch}:
            own = [episode for episode in together if self._branch_of(episode) is branch]
            together = [episode for episode in together if self._branch_of(episode) is not branch]
            self._by_order(own, homes[branch], finished=True)
        self._by_order(together, list(range(len(self.rows))), finished=finished)

    def is_one_step_each(self) -> bool:
        """Whether one environment was stepped once for each row, after all rows had given their one answer; or, where
        no generation was seen, as often as there are rows.
        """
        steps = [call.order for call in self._own if call.kind == "step"]
        if self._given or len(_episodes(self._own)) != 1 or not len(steps) == len(self.rows) > 1:
            return False
        started = [self.branches.of(call) for call in self._own if call.kind == "step"]
        numbers = [branch.number for branch in started if branch is not None and not branch.is_stray]
        if any(started) and (len(numbers) < len(started) or numbers != sorted(set(numbers))):
            return False
        answers = [turn.order for row in self.rows for turn in row.turns]
        answered_once = all(len(row.turns) == 1 for row in self.rows) and max(answers) < steps[0]
        return answered_once or not self._seen.generations

    def one_step_each(self) -> None:
        """One environment, reset once, stepped once for each row: the reset belongs to all of them."""
        resets = [call for call in self._own if call.kind == "reset"]
        steps = [call for call in self._own if call.kind == "step"]
        for index, step in enumerate(steps):
            self._give_calls(index, [*resets, step], "position")

    def functions(self) -> None:
        """Tools that are functions, and have no episode: by their strand, else by the generation that they follow."""
        left = [call for call in self._functions if call.order not in self._given]
        homes = self._homes() if left else {}
        for call in left:
            branch = self.branches.of(call)
            rows = homes.get(branch, []) if branch is not None else []
            if len(rows) == 1:
                self._give_calls(rows[0], [call], "strand")
                continue
            before = [g for g in self._seen.generations if g.order < call.order and self.branches.of(g) is branch]
            asked = before[-1].order if before else -1
            found = {i for i, row in enumerate(self.rows) for turn in row.turns if turn.order == asked}
            if len(found) == 1:
                self._give_calls(found.pop(), [call], "generation")
            else:
                self.lost += 1

    def leftovers(self) -> None:
        """Generations whose tokens stand in no row, as where only the last turn is returned: by their strand, else by
        the row whose environment was stepped next.
        """
        homes = self._homes() if self.left else {}
        for turn in [part for chain in self.left for part in chain.split()]:
            rows = homes.get(turn.branch, []) if turn.branch is not None else []
            index = rows[0] if len(rows) == 1 else self._answered_by(turn.parts[0][0])
            if index is None or not self._is_of_its_model(turn.parts[0][0], index):
                self.lost += 1
            else:
                self.give(index, turn, [None], "strand" if len(rows) == 1 else "generation")

    def _is_of_its_model(self, generation: Generation, index: int) -> bool:
        """Whether the row's other turns were seen at the same seam, of the same model: a judge's are no turns."""
        others = {(t.generation.seam, t.generation.sampling.get("model")) for t in self.rows[index].turns}
        return not others or (generation.seam, generation.sampling.get("model")) in others

    def part_twins(self, identities: Seq[object]) -> None:
        """Rows that hold the same tokens cannot be told apart by them. Where their episodes differ and were played at
        the same time, nothing says whose is whose, unless strands were started in the order of the rows.
        """
        branches = [self._branch_of(row.calls) for row in self.rows]
        times = Counter(identities)
        alone = [place for place, identity in enumerate(identities) if times[identity] == 1]
        ranked = self.numbered()
        if ranked and alone and all(branches[place] in {None, ranked[place]} for place in alone):
            return
        for identity in (identity for identity, number in times.items() if number > 1):
            twins = [place for place, other in enumerate(identities) if other == identity]
            apart = {branches[place] for place in twins if self._told(place)} - {None}
            if len(apart) > 1 and len({_what_came(self.rows[place].environment_calls) for place in twins}) > 1:
                for row in (self.rows[place] for place in twins if self._told(place)):
                    self.lost += len(row.environment_calls)
                    row.environment_calls = []

    def result(self) -> Attribution:
        """All rows in order, with what their environment calls called themselves, and what they said."""
        owner = {call.order: row for row in self.rows for call in row.environment_calls}
        for call in sorted(self._children, key=lambda call: call.order):
            row = owner.get(call.within) if call.within is not None else None
            if row is not None:
                owner[call.order] = row
                row.children.append(call)
        for note in self._seen.notes:
            self._give_note(note)
        for row in self.rows:
            row.sort()
        return Attribution(self.rows, self.lost)

    def _give_calls(self, index: int, calls: Seq[EnvironmentCall], evidence: str) -> None:
        self.rows[index].environment_calls.extend(calls)
        self.rows[index].rests_on(evidence)
        self._given.update(call.order for call in calls)

    def _give_note(self, note: Note) -> None:
        """To the row in whose scope it was made, or whose call was the last before it in the same strand."""
        index = None if note.strand is None else note.strand.row
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

    def _told(self, place: int) -> bool:
        """Whether its environment calls rest on evidence that a twin of the row would have, too."""
        return bool(self.rows[place].environment_calls) and self.rows[place].evidence != "scope"

    def _homes(self) -> dict[Strand | None, list[int]]:
        """Rows by the one branch that all of their calls were made in."""
        homes: dict[Strand | None, list[int]] = defaultdict(list)
        for index, row in enumerate(self.rows):
            found = {self.branches.of(call) for call in row.calls}
            if len(found) == 1:
                homes[found.pop()].append(index)
        return homes

    def _branch_of(self, calls: Seq[Call]) -> Strand | None:
        """The one that they were made in; None where there are several. Resets may be made ahead, for all rows."""
        steps = [call for call in calls if not (isinstance(call, EnvironmentCall) and call.kind == "reset")] or calls
        branches = {self.branches.of(call) for call in steps}
        return branches.pop() if len(branches) == 1 else None

    def _answered_by(self, generation: Generation) -> int | None:
        """The row whose environment was stepped between this generation and the next; None unless it is one alone."""
        if len(generation.sequences) != 1:
            return None
        orders = [other.order for other in self._seen.generations]
        place = bisect_right(orders, generation.order)
        end = orders[place] if place < len(orders) else inf
        found = {
            index
            for index, row in enumerate(self.rows)
            for call in row.environment_calls
            if call.kind != "reset" and generation.order < call.order < end
        }
        return found.pop() if len(found) == 1 else None

    def _by_order(self, episodes: list[Episode], places: list[int], *, finished: bool) -> None:
        """By the generations that steps follow, then as many as there are rows left, in order."""
        left = self._as_started(self._by_generations(episodes, places))
        open_places = [place for place in places if not self.rows[place].environment_calls]
        pairs = list(zip(left, open_places, strict=False))
        enough = len(left) == len(open_places) if finished else len(left) <= len(open_places)
        if not enough or not all(_plausible(episode, self.rows[place]) for episode, place in pairs):
            self.lost += sum(len(episode) for episode in left)
            return
        for episode, place in pairs:
            self._give_calls(place, episode, "order")

    def _as_started(self, episodes: list[Episode]) -> list[Episode]:
        """In the order in which rows were begun, as far as that is known: episodes of strands that ran side by side in
        the order in which these were started. Those of which it is not known are lost.
        """
        started = [self.branches.of(episode[0]) for episode in episodes]
        if len(set(started)) <= 1:
            return episodes
        known = {branch for branch in started if branch is not None and not branch.is_stray}
        if len(known) < len(episodes):  # several in one, or some above all, or of strands that nobody saw start
            self.lost += sum(len(episode) for episode in episodes)
            return []
        return [episodes[i] for i in sorted(range(len(episodes)), key=lambda i: getattr(started[i], "number", 0))]

    def _by_generations(self, episodes: list[Episode], places: list[int]) -> list[Episode]:
        """Gives an episode to a row if each of its steps came right after a generation of that row alone, and no other
        episode stepped after the same one: a function that generates for all rows first gives no such evidence.

        Returns:
            The episodes that are left.
        """
        owners: dict[int, set[int]] = defaultdict(set)
        for place in places:
            for turn in self.rows[place].turns:
                owners[turn.order].add(place)
        branches = {self._branch_of(episode) for episode in episodes}
        orders = [
            generation.order
            for generation in self._seen.generations
            if len(branches) > 1 or self.branches.of(generation) in {None, *branches}
        ]
        before = [_generations_of(episode, orders) for episode in episodes]
        stepped = Counter(
            order
            for episode, found in zip(episodes, before, strict=True)
            if not any(call.error for call in episode) and any(call.kind != "reset" for call in episode)
            for order in found
        )
        left = []
        for episode, found in zip(episodes, before, strict=True):
            candidates = set().union(*(owners[order] for order in found))
            if len(candidates) == 1 and all(stepped[order] <= 1 for order in found):
                self._give_calls(candidates.pop(), episode, "generation")
            else:
                left.append(episode)
        return left


def _what_came(calls: Seq[EnvironmentCall]) -> tuple[object, ...]:
    return tuple((call.kind, call.sent, call.observation, call.reward, call.done, call.error) for call in calls)


def _plausible(episode: Episode, row: RowCalls) -> bool:
    """Whether a row could have made these steps: no more of them than answers, and none before its first."""
    steps = [call for call in episode if call.kind != "reset" and call.error is None]
    if not row.turns or not steps:
        return True
    return len(steps) <= len(row.turns) and steps[0].order > row.turns[0].order


def _episodes(calls: Seq[EnvironmentCall]) -> list[Episode]:
    """A client's calls from one reset to the next, in the order in which they began."""
    current: dict[int, Episode] = {}
    episodes: list[Episode] = []
    for call in calls:
        if call.kind == "reset" or call.client not in current:
            current[call.client] = []
            episodes.append(current[call.client])
        current[call.client].append(call)
    return episodes


def _generations_of(episode: Episode, orders: list[int]) -> set[int]:
    """The generations that an episode goes with: the last one before each step; the next one where it took no step."""
    steps = [call for call in episode if call.kind != "reset"]
    if steps:
        places = [bisect_left(orders, step.order) - 1 for step in steps]
    else:
        places = [bisect_left(orders, episode[-1].order)]
    return {orders[place] for place in places if 0 <= place < len(orders)}
