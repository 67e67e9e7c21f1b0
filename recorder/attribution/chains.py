"""Which generations go on from one another, before it is known whose they are; and the strands that tell rows apart."""

import re
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Iterator
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field
from math import inf

from logs_ui.recorder.calls import Call, EnvironmentCall, Generation, Ids, Sequence
from logs_ui.recorder.strands import Strand, common

_ROW_ID = re.compile(r"(?:^|-)row-(\d{1,9})$")


class Branches:
    """The strands right below the deepest one that all calls have in common: what a function starts for each row, or
    for each worker, stands there.
    """

    def __init__(self, calls: Seq[Call]) -> None:
        paths = {strand: strand.path for strand in {call.strand for call in calls} if strand is not None}
        depth = len(common(list(paths.values())))
        self._by_strand = {strand: path[depth] for strand, path in paths.items() if len(path) > depth}

    def of(self, call: Call) -> Strand | None:
        """None for a call that was made above all branches, or nobody knows where."""
        return None if call.strand is None else self._by_strand.get(call.strand)


@dataclass(eq=False)
class Chain:
    """Generations of one row that follow one another, as far as their tokens show it.

    Attributes:
        branch: where they were made.
        row: that they say they are of; None where they do not.
        begins: whether the first one can be a row's first. Else it is some row's later turn.
        head: bytes of its first context's ids; empty where the server returned none.
        tail: bytes of the ids up to the last answer's end; None where the server returned no ids.
        is_unbroken: whether each context repeats all before it, so that the whole of its tokens is the tail.
    """

    branch: Strand | None
    row: int | None
    begins: bool
    parts: list[tuple[Generation, Sequence]] = field(default_factory=list)
    head: bytes = b""
    tail: bytes | None = None
    is_unbroken: bool = True

    def add(self, generation: Generation, sequence: Sequence, context: bytes | None) -> None:
        """Its next turn; `context` are the bytes of its context's ids."""
        sampled = bytes_of(sequence.sampled)
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
        single = [Chain(self.branch, self.row, self.begins) for _ in self.parts]
        for chain, part in zip(single, self.parts, strict=True):
            chain.add(*part, bytes_of(part[1].context))
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


def chains_of(generations: Seq[Generation], calls: Seq[EnvironmentCall], branches: Branches) -> list[Chain]:
    """In the order in which they began.

    A generation whose context goes on where another of its branch ended continues its chain. So does one whose context
    was tokenised anew, or is not known, if it came within the episode of the generation before it. Any other begins a
    chain.
    """
    made: dict[Strand | None, list[Generation]] = defaultdict(list)
    for generation in generations:
        made[branches.of(generation)].append(generation)
    chains = []
    for branch, own in made.items():
        beside = [call for call in calls if branch is None or branches.of(call) in {None, branch}]
        chains += _chains_in(branch, own, _Episodes(beside))
    return sorted(chains, key=lambda chain: chain.parts[0][0].order)


def _chains_in(branch: Strand | None, generations: Seq[Generation], episodes: "_Episodes") -> list[Chain]:
    chains: list[Chain] = []
    current: Chain | None = None  # of the generation before, if it was of one sequence
    for before, generation, after in _neighbours(generations):
        alone = len(generation.sequences) == 1
        if not alone or not episodes.go_on(before, generation.order, after):
            current = None
        row = row_of(generation)
        own = [chain for chain in chains if chain.row == row]
        free = _Open(own)
        taken: dict[int, Chain] = {}
        for sequence in generation.sequences:
            context = bytes_of(sequence.context)
            chain = None if context is None else _continued(generation, context, free, episodes)
            if chain is None and current is not None and not _is_first_again(context, own):
                chain = current
            if chain is None:
                chain = Chain(branch, row, _begins(context, own))
                chains.append(chain)
            free.close(chain)
            chain.add(generation, sequence, context)
            taken[id(chain)] = chain
        current = next(iter(taken.values()), None) if alone else None
    return chains


class _Open:
    """Chains that a generation may continue, by their tails: to look through all of them for each of its sequences
    takes as long as everything else.
    """

    def __init__(self, chains: Iterable[Chain]) -> None:
        self._by_tail: dict[bytes, list[Chain]] = defaultdict(list)
        for chain in chains:
            if chain.tail is not None:
                self._by_tail[chain.tail].append(chain)
        self._lengths = sorted({len(tail) for tail in self._by_tail}, reverse=True)

    def longest_that_begin(self, context: bytes) -> list[Chain]:
        """Those whose tail the context begins with; of several tails, of the longest."""
        for length in self._lengths:
            if length <= len(context) and (found := self._by_tail.get(context[:length])):
                return found
        return []

    def close(self, chain: Chain) -> None:
        """It is continued, or new."""
        if chain.tail is not None and chain in (found := self._by_tail.get(chain.tail, [])):
            found.remove(chain)


def place_of(branch: Strand | None) -> int:
    """Its number; -1 above all branches."""
    return -1 if branch is None else branch.number


def row_of(call: Call) -> int | None:
    """The row that a call says it is of: by its scope, or by a request id as "row-17"."""
    if call.strand is not None and call.strand.row is not None:
        return call.strand.row
    said = _ROW_ID.search(getattr(call, "request_id", None) or "")
    return int(said[1]) if said else None


def bytes_of(ids: Ids | None) -> bytes | None:
    """None for those that are not known."""
    return None if ids is None else ids.tobytes()


def _continued(generation: Generation, context: bytes, chains: "_Open", episodes: "_Episodes") -> Chain | None:
    """The chain whose last answer stands at the end of what the context repeats. Of several the longest; of those,
    twins so far, the one whose episode goes on; then the first of one generation, else the latest.
    """
    fitting = chains.longest_that_begin(context)
    if len(fitting) > 1:
        fitting = [chain for chain in fitting if episodes.lead(chain.last, generation.order)] or fitting
    latest = max((chain.last for chain in fitting), default=0)
    return next((chain for chain in fitting if chain.last == latest), None)


def _begins(context: bytes | None, chains: list[Chain]) -> bool:
    """Not where the context begins as another's first did and goes on: that is a later turn of some row."""
    if context is None:
        return True
    heads = {chain.head for chain in chains if chain.begins and chain.head}
    return context in heads or not any(context.startswith(head) for head in heads)


def _is_first_again(context: bytes | None, chains: list[Chain]) -> bool:
    """Whether the context is that of another chain's first turn: the next row of its group."""
    return context is not None and any(chain.begins and chain.head == context for chain in chains)


def _neighbours(generations: Seq[Generation]) -> Iterator[tuple[float, Generation, float]]:
    """Each with the order of the one before it and of the one after it."""
    orders = [-inf, *(generation.order for generation in generations), inf]
    return zip(orders, generations, orders[2:], strict=False)


class _Episodes:
    """What environment calls, in order, say of the generations between them."""

    def __init__(self, calls: Seq[EnvironmentCall]) -> None:
        self._calls = [call for call in calls if call.within is None]

    def go_on(self, before: float, order: float, after: float) -> bool:
        """Whether the generation at `order` answers what the one `before` it had brought about: between the two, one
        client was stepped and none reset, and that client is called next, or is the only one.
        """
        first, middle, end = (bisect_left(self._calls, at, key=_order) for at in (before, order, after))
        between = self._calls[first:middle]
        stepped = {call.client for call in between}
        if len(stepped) != 1 or any(call.kind == "reset" for call in between):
            return False
        following = self._calls[middle : middle + 1] if middle < end else self._calls
        return {call.client for call in following} == stepped

    def lead(self, earlier: float, order: float) -> bool:
        """Whether the client that was called first after the generation `earlier` is the one that is called first
        after the one at `order`, and was not reset between them.
        """
        first, middle = (bisect_left(self._calls, at, key=_order) for at in (earlier, order))
        between, following = self._calls[first:middle], self._calls[middle : middle + 1]
        if not between:
            return False
        client = between[0].client
        reset = any(call.kind == "reset" for call in between if call.client == client)
        return not reset and all(call.client == client for call in following)


def _order(call: EnvironmentCall) -> float:
    return call.order
