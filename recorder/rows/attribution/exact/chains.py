"""Which generations go on from one another, before it is known whose they are."""

from bisect import bisect_left, bisect_right, insort
from collections import defaultdict
from collections.abc import Iterator
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field
from math import inf

import numpy as np

from logs_ui.recorder.capture.calls import Generation, Sequence
from logs_ui.recorder.capture.strands import Strand
from logs_ui.recorder.rows.attribution.evidence import Seen
from logs_ui.recorder.rows.attribution.exact.branches import Beside, Branches, by_order, place_of, row_of
from logs_ui.recorder.rows.attribution.exact.prefixes import answer_of, context_of


@dataclass(eq=False)
class Chain:
    """Generations of one row that follow one another, as far as their tokens show it.

    Attributes:
        branch: where they were made; where branches are turns, where the first one was.
        row: that they say they are of; None where they do not.
        begins: whether the first one can be a row's first. Else it is some row's later turn.
        head: bytes of its first context; empty where that is not known.
        tail: bytes up to the last answer's end; None where they are not known.
        is_unbroken: whether each context repeats all before it, so that the whole of its tokens is the tail.
        likely: the rows whose prompt its first context holds, once it is known that it is the whole of no row; None
            where it holds no row's.
    """

    branch: Strand | None
    row: int | None
    begins: bool
    parts: list[tuple[Generation, Sequence]] = field(default_factory=list)
    head: bytes = b""
    tail: bytes | None = None
    is_unbroken: bool = True
    likely: Seq[int] | None = None

    def add(self, generation: Generation, sequence: Sequence, context: bytes | None) -> None:
        """Its next turn; `context` are the bytes of its context's ids."""
        sampled = answer_of(sequence)
        if not self.parts:
            self.head = context or b""
        follows = not self.parts or self.tail is not None
        goes_on = context is not None and follows and context.startswith(self.tail or b"")
        self.is_unbroken = self.is_unbroken and goes_on and bool(sampled)
        self.parts.append((generation, sequence))
        if context is not None and sampled is not None:
            self.tail = context + sampled

    def split(self) -> list["Chain"]:
        """A chain of each turn."""
        single = [Chain(self.branch, self.row, self.begins, likely=self.likely) for _ in self.parts]
        for chain, part in zip(single, self.parts, strict=True):
            chain.add(*part, context_of(part[1]))
        return single

    def key(self) -> tuple[int, int]:
        """Sorts chains as their rows were begun: by strands in the order in which these were started."""
        return place_of(self.branch), self.parts[0][0].order

    @property
    def model(self) -> object:
        """Which one answered, as far as it is known."""
        generation = self.parts[0][0]
        return generation.seam, generation.sampling.get("model")

    @property
    def size(self) -> int:
        """Tokens, or characters where there are no ids, that were sampled."""
        return sum(len(one.text or "") if one.sampled is None else len(one.sampled) for _, one in self.parts)

    @property
    def last(self) -> int:
        """Order of its last generation."""
        return self.parts[-1][0].order


def segments(seen: Seen, *, finished: bool) -> tuple[Branches, list[Chain]]:
    """What tells rows apart, and their chains in the order in which they began.

    A generation whose context goes on where another of its branch ended continues its chain. So does one whose context
    was tokenised anew, or is not known, if it came within the episode of the generation before it. Any other begins a
    chain. Where chains go on from branch to branch, as where each turn of all rows goes through a pool, branches are
    turns: then only contexts are gone by.

    Args:
        seen: all calls.
        finished: whether the rows' tokens will tell which goes on from which. Else one that may go on from several,
            and nothing tells from which, begins a chain.
    """
    branches = Branches(seen.calls)
    made: dict[Strand | None, list[Generation]] = defaultdict(list)
    for generation in seen.generations:
        if generation.sequences:  # one that failed begins nothing, and ends nothing: most often it is asked again
            made[branches.of(generation)].append(generation)
    beside = Beside(seen.environment_calls, branches)
    chains = [chain for own in made.values() for chain in _chains_in(own, beside, finished=finished)]
    if len(made) > 1 and _cross(chains):
        branches.are_turns = True
        answered = sorted((made for own in made.values() for made in own), key=by_order)
        chains = _chains_in(answered, beside, finished=finished)
    return branches, sorted(chains, key=lambda chain: chain.parts[0][0].order)


def _chains_in(generations: Seq[Generation], beside: Beside, *, finished: bool) -> list[Chain]:
    """Of one branch, or of all where they are turns."""
    chains: list[Chain] = []
    open_of: dict[int | None, _Open] = defaultdict(_Open)
    current: Chain | None = None  # of the generation before, if it was of one sequence
    for before, generation, after in _neighbours(generations):
        alone = len(generation.sequences) == 1
        if not alone or beside.branches.are_turns or not beside.of(generation).go_on(before, generation.order, after):
            current = None
        row = row_of(generation)
        own = open_of[row]
        taken: dict[int, Chain] = {}
        for sequence in generation.sequences:
            context = context_of(sequence)
            chain = None if context is None else _continued(generation, context, own, beside, finished=finished)
            if chain is None and current is not None and context not in own.heads:
                chain = current
            if chain is None:
                chain = Chain(beside.branches.of(generation), row, own.may_begin(context))
                chains.append(chain)
            own.close(chain)
            chain.add(generation, sequence, context)
            taken[id(chain)] = chain
        for chain in taken.values():
            own.open(chain)
        current = next(iter(taken.values()), None) if alone else None
    return chains


def _cross(chains: Seq[Chain]) -> bool:
    """Whether one goes on, in a branch of its own, where another's ended. Tails and heads are sorted, so that a head
    comes behind the tails that it begins with, and nothing else stands between but what begins with them, too.
    """
    ends = [(chain.tail, False, chain) for chain in chains if chain.tail]
    ends += [(chain.head, True, chain) for chain in chains if chain.head]
    ends.sort(key=lambda end: end[:2])
    begun: list[tuple[bytes, Strand | None]] = []
    for data, is_head, chain in ends:
        while begun and not data.startswith(begun[-1][0]):
            begun.pop()
        if not is_head:
            begun.append((data, chain.branch))
        elif any(branch is not chain.branch for _, branch in begun):
            return True
    return False


class _Open:
    """Chains of one scope that a generation may continue, or begin anew.

    Attributes:
        heads: the first contexts of those that can be a row's first.
    """

    def __init__(self) -> None:
        self.heads: set[bytes] = set()
        self._by_tail: dict[bytes, list[Chain]] = {}
        self._tails: list[bytes] = []  # sorted: to look through all of them takes as long as everything else

    def open(self, chain: Chain) -> None:
        """It ends as it is now."""
        if chain.begins and chain.head:
            self.heads.add(chain.head)
        if chain.tail is None:
            return
        if chain.tail not in self._by_tail:
            insort(self._tails, chain.tail)
        self._by_tail.setdefault(chain.tail, []).append(chain)

    def close(self, chain: Chain) -> None:
        """It is continued, or new."""
        if chain.tail is None or chain not in (found := self._by_tail.get(chain.tail, [])):
            return
        found.remove(chain)
        if not found:
            del self._by_tail[chain.tail]
            del self._tails[bisect_left(self._tails, chain.tail)]

    def longest_that_begin(self, context: bytes) -> list[Chain]:
        """Those whose tail the context begins with; of several tails, of the longest."""
        end = len(context)
        while end and (place := bisect_right(self._tails, context[:end])):
            tail = self._tails[place - 1]
            if context.startswith(tail):
                return self._by_tail[tail]
            end = _shared(tail, context[:end])
        return self._by_tail.get(b"", [])

    def may_begin(self, context: bytes | None) -> bool:
        """Not where the context begins as another's first did and goes on: that is a later turn of some row."""
        if context is None or context in self.heads:
            return True
        return not any(context.startswith(head) for head in self.heads)


def _shared(one: bytes, other: bytes) -> int:
    """Bytes that both begin with."""
    size = min(len(one), len(other))
    differ = np.frombuffer(one, np.uint8, size) != np.frombuffer(other, np.uint8, size)
    return int(differ.argmax()) if differ.any() else size


def _continued(
    generation: Generation, context: bytes, chains: _Open, beside: Beside, *, finished: bool
) -> Chain | None:
    """The chain whose last answer stands at the end of what the context repeats. Of several the longest; of those,
    twins so far, the one whose episode goes on; then the first of one generation, else the latest.
    """
    fitting = chains.longest_that_begin(context)
    if len(fitting) > 1:
        sure = not finished
        leading = [chain for chain in fitting if beside.lead(chain.parts[-1][0], generation, surely=sure)]
        is_guess = beside.branches.are_turns if finished else len(generation.sequences) == 1
        if is_guess and len(leading) != 1:
            return None
        fitting = leading or fitting
    latest = max((chain.last for chain in fitting), default=0)
    return next((chain for chain in fitting if chain.last == latest), None)


def _neighbours(generations: Seq[Generation]) -> Iterator[tuple[float, Generation, float]]:
    """Each with the order of the one before it and of the one after it."""
    orders = [-inf, *(generation.order for generation in generations), inf]
    return zip(orders, generations, orders[2:], strict=False)
