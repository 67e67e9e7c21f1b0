"""Link generations into chains by token prefix, before they are assigned to rows."""

from bisect import bisect_left, bisect_right, insort
from collections import defaultdict
from collections.abc import Sequence as Seq
from math import inf
from operator import attrgetter

import numpy as np

from logs_ui.recorder.capture.calls import Generation
from logs_ui.recorder.capture.strands import Strand
from logs_ui.recorder.rows.attribution.branches import Branches, row_of
from logs_ui.recorder.rows.attribution.chain import Chain
from logs_ui.recorder.rows.attribution.exact.episode_links import EpisodeLinks
from logs_ui.recorder.rows.attribution.prefixes import context_of
from logs_ui.recorder.rows.attribution.row_calls import Seen


def link_chains(seen: Seen, *, finished: bool) -> tuple[Branches, list[Chain]]:
    """Return the branches, and the chains in the order in which they began.

    A generation whose context begins with all of another of its branch continues that one's chain. So does one whose
    context was tokenised anew, or is unknown, if it came within the episode of the generation before it. Any other
    begins a chain. If chains continue from branch to branch, as where each turn of all rows goes through a pool,
    branches are turns: then only contexts link generations.

    If the function is `finished`, the rows' tokens will show later which generation continues which. Otherwise a
    generation that may continue several chains begins a new one.
    """
    branches = Branches(seen.calls)
    by_branch: dict[Strand | None, list[Generation]] = defaultdict(list)
    for generation in seen.generations:
        if generation.sequences:  # a failed one neither begins nor ends a chain: most often it is tried again
            by_branch[branches.of(generation)].append(generation)
    links = EpisodeLinks(seen.environment_calls, branches)
    chains = [
        chain for generations in by_branch.values() for chain in _chains_in(generations, links, finished=finished)
    ]
    if len(by_branch) > 1 and _cross(chains):
        branches.are_turns = True
        answered = sorted(
            (generation for generations in by_branch.values() for generation in generations), key=attrgetter("order")
        )
        chains = _chains_in(answered, links, finished=finished)
    return branches, sorted(chains, key=lambda chain: chain.parts[0][0].order)


def _chains_in(generations: Seq[Generation], links: EpisodeLinks, *, finished: bool) -> list[Chain]:
    """Link the generations of one branch; of all branches, where these are turns."""
    chains: list[Chain] = []
    open_of: dict[int | None, _Open] = defaultdict(_Open)
    current: Chain | None = None  # that of the generation before, if it had one sequence
    # Each generation is looked at with the orders of the one before it and the one after it.
    orders = [-inf, *(generation.order for generation in generations), inf]
    for before, generation, after in zip(orders, generations, orders[2:], strict=False):
        alone = len(generation.sequences) == 1
        if not alone or links.branches.are_turns or not links.continues(before, generation, after):
            current = None
        row = row_of(generation)
        open_chains = open_of[row]
        continued: dict[int, Chain] = {}
        for sequence in generation.sequences:
            context = context_of(sequence)
            chain = (
                None if context is None else _find_continued(generation, context, open_chains, links, finished=finished)
            )
            if chain is None and current is not None and context not in open_chains.heads:
                chain = current
            if chain is None:
                chain = Chain(links.branches.of(generation), row, open_chains.may_begin(context))
                chains.append(chain)
            open_chains.close(chain)
            chain.add(generation, sequence, context)
            continued[id(chain)] = chain
        # The new ends are registered after the whole call, so that no answer of a call continues another answer of
        # it.
        for chain in continued.values():
            open_chains.open(chain)
        current = next(iter(continued.values()), None) if alone else None
    return chains


def _cross(chains: Seq[Chain]) -> bool:
    """Return True if a chain begins with all of a chain of another branch.

    Sorted, a head comes right after the tails that it begins with; only what begins with them, too, is between.
    """
    ends = [(chain.tail, False, chain) for chain in chains if chain.tail]
    ends += [(chain.head, True, chain) for chain in chains if chain.head]
    ends.sort(key=lambda end: end[:2])
    # `begun` is a stack of tails, each of which begins with the one below it. A tail that the current data does not
    # begin with is left behind.
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
    """The chains of one scope that a generation may continue; `heads` are first contexts of those that begin a row."""

    def __init__(self) -> None:
        self.heads: set[bytes] = set()
        self._by_tail: dict[bytes, list[Chain]] = {}
        self._tails: list[bytes] = []  # sorted: a scan of all tails took as long as everything else

    def open(self, chain: Chain) -> None:
        """Register the chain's current end, so that a later generation can extend it."""
        if chain.begins and chain.head:
            self.heads.add(chain.head)
        if chain.tail is None:
            return
        if chain.tail not in self._by_tail:
            insort(self._tails, chain.tail)
        self._by_tail.setdefault(chain.tail, []).append(chain)

    def close(self, chain: Chain) -> None:
        """Remove the chain's former end."""
        if chain.tail is None or chain not in (same_tail := self._by_tail.get(chain.tail, [])):
            return
        same_tail.remove(chain)
        if not same_tail:
            del self._by_tail[chain.tail]
            del self._tails[bisect_left(self._tails, chain.tail)]

    def longest_that_begin(self, context: bytes) -> list[Chain]:
        """Return the chains with the longest tail that the context begins with."""
        # The tail that sorts right before the context shares the longest beginning with it. If it is not a prefix,
        # a tail that is one can be no longer than this beginning, so the search goes on with that.
        end = len(context)
        while end and (place := bisect_right(self._tails, context[:end])):
            tail = self._tails[place - 1]
            if context.startswith(tail):
                return self._by_tail[tail]
            end = _shared_length(tail, context[:end])
        return self._by_tail.get(b"", [])

    def may_begin(self, context: bytes | None) -> bool:
        """Return False if the context extends another chain's first one: then it is a later turn of some row."""
        return context is None or context in self.heads or not any(map(context.startswith, self.heads))


def _shared_length(first: bytes, second: bytes) -> int:
    """Return the length of the common prefix, in bytes."""
    size = min(len(first), len(second))
    differ = np.frombuffer(first, np.uint8, size) != np.frombuffer(second, np.uint8, size)
    return int(differ.argmax()) if differ.any() else size


def _find_continued(
    generation: Generation, context: bytes, chains: _Open, links: EpisodeLinks, *, finished: bool
) -> Chain | None:
    """Return the longest chain that a context continues; of equal ones that of its episode, else the latest."""
    fitting = chains.longest_that_begin(context)
    if len(fitting) > 1:
        sure = not finished
        leading = [chain for chain in fitting if links.lead(chain.parts[-1][0], generation, surely=sure)]
        is_guess = links.branches.are_turns if finished else len(generation.sequences) == 1
        if is_guess and len(leading) != 1:
            return None
        fitting = leading or fitting
    return max(fitting, key=lambda chain: chain.parts[-1][0].order, default=None)
