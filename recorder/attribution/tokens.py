"""How chains of generations stand in the rows' tokens, and whose they are by that."""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from heapq import heapify, heappop, heappush

import numpy as np

from logs_ui.recorder.attribution.chains import Chain
from logs_ui.recorder.attribution.work import Work
from logs_ui.recorder.calls import Ids, Sequence

_WIDTH = np.dtype(np.int32).itemsize


class RowTokens:
    """A row's tokens as bytes, and how far generations have been matched in it."""

    def __init__(self, prompt: Ids, completion: Ids) -> None:
        self.prompt = len(prompt)  # tokens
        self.asked = prompt.tobytes()
        self.data = self.asked + completion.tobytes()
        self.matched = self.prompt  # tokens, from the start of the prompt
        self.text_matched = 0  # characters

    @property
    def length(self) -> int:
        """In tokens."""
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
class Fit:
    """How a chain stands in a row: where each of its answers begins in the row's tokens, and where the last ends.

    Attributes:
        starts: indices in the completion; None for an answer that does not stand there.
        end: tokens from the start of the prompt.
        text_end: characters from the start of the completion's text, where the server returned no ids.
        evidence: "context", "tokens" or "text".
    """

    starts: list[int | None]
    end: int
    text_end: int
    evidence: str

    def rank(self, row: RowTokens) -> tuple[bool, bool]:
        """Smaller is better: exactly, and up to the row's end."""
        return self.evidence != "context", self.end < row.length


def fit(chain: Chain, row: RowTokens, text: Callable[[], str]) -> Fit | None:
    """None where the row does not hold the chain's answers in order. Those that stand in the row's prompt, because only
    the last turn was returned, have no place in the completion.
    """
    return _whole_fit(chain, row) or _fit_by_parts(chain, row, text)


def _whole_fit(chain: Chain, row: RowTokens) -> Fit | None:
    """Of a chain that stands in the row from the first token to its last answer's end, as most do: the same as by
    parts, in one look.
    """
    begin = len(chain.head) // _WIDTH
    if not chain.is_unbroken or chain.tail is None or begin < max(row.prompt, row.matched):
        return None
    if not row.data.startswith(chain.tail):
        return None
    starts = [len(sequence.context) - row.prompt for _, sequence in chain.parts if sequence.context is not None]
    return Fit([*starts], len(chain.tail) // _WIDTH, row.text_matched, "context")


def _fit_by_parts(chain: Chain, row: RowTokens, text: Callable[[], str]) -> Fit | None:
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
    return Fit(starts, min(matched, row.length), text_matched, evidence)


class Matching:
    """Chains and the rows they fit."""

    def __init__(self, tokens: Seq[RowTokens], work: Work, text_of: Callable[[int], str]) -> None:
        self._tokens, self._work = tokens, work
        self._groups: dict[bytes, list[int]] = defaultdict(list)
        for index, row in enumerate(tokens):
            self._groups[row.asked].append(index)
        self._text_of, self._texts = text_of, dict[int, str]()
        self._models: set[object] | None = None

    def fit(self, chain: Chain, index: int) -> Fit | None:
        """How a chain stands in row `index`."""

        def text() -> str:
            if index not in self._texts:
                self._texts[index] = self._text_of(index)
            return self._texts[index]

        return fit(chain, self._tokens[index], text)

    def match(self, chains: Seq[Chain]) -> list[Chain]:
        """Gives chains to rows: first those that reach a row's end, and of these the ones that fit one row alone. Where
        branches are turns, and rows in pieces, first those that begin first.

        Returns:
            Those that fit none, or are another model's.
        """
        chains = sorted(chains, key=Chain.key)
        fits = [self._best_fits(chain, self._repeating(chain)) for chain in chains]
        fits = self._of_the_policy(chains, fits)
        self._find_contested(chains, fits)
        unmatched = []
        waiting = [(self._urgency(chains[i], found), i) for i, found in enumerate(fits)]
        heapify(waiting)
        while waiting:
            urgency, i = heappop(waiting)
            again = self._fits(chains[i], fits[i])
            if _exact(fits[i]):
                again = _exact(again)
            if not again:
                unmatched.append(i)
            elif self._urgency(chains[i], again) > urgency:  # what it fitted best is taken
                heappush(waiting, (self._urgency(chains[i], again), i))
            else:
                self._give(chains[i], again)
        unmatched.sort()
        for i in unmatched:
            chains[i].likely = [index for index in self._asked(chains[i].head) if self._tokens[index].prompt] or None
        return [chains[i] for i in unmatched]

    def _give(self, chain: Chain, fits: dict[int, Fit]) -> None:
        """To the best of the rows that it fits; of several, one whose other turns were made in the same strand."""
        tokens = self._tokens
        best = min(fits, key=lambda i: (*self._rank(fits[i], i), self._work.is_elsewhere(i, chain), i))
        tokens[best].matched, tokens[best].text_matched = fits[best].end, fits[best].text_end
        self._work.give(best, chain, fits[best].starts, fits[best].evidence)

    def _fits(self, chain: Chain, indices: Iterable[int]) -> dict[int, Fit]:
        return {
            index: found for index in indices if self._may_follow(chain, index) and (found := self.fit(chain, index))
        }

    def _may_follow(self, chain: Chain, index: int) -> bool:
        """Not, where rows are in pieces, if what the row has so far was asked for later."""
        if not self._work.branches.are_turns:
            return True
        return all(turn.order < chain.parts[0][0].order for turn in self._work.rows[index].turns)

    def _best_fits(self, chain: Chain, likely: Iterable[int]) -> dict[int, Fit]:
        """Those by context; only where there is none, all others, for which every row must be searched that can be one
        of the chain's prompt.
        """
        exact = _exact(self._fits(chain, likely))
        if exact:
            return exact
        asked = [index for index in self._asked(chain.head) if self._tokens[index].prompt]
        return self._fits(chain, asked or range(len(self._tokens)))

    def _asked(self, context: bytes) -> list[int]:
        """The rows with whose prompts a context begins, in order."""
        groups = (rows for asked, rows in self._groups.items() if context.startswith(asked))
        return sorted(index for rows in groups for index in rows)

    def _repeating(self, chain: Chain) -> list[int]:
        """The rows that begin with the chain's last context: no other can be the one by context."""
        context = chain.parts[-1][1].context
        if context is None:
            return []
        beginning = context.tobytes()
        return [index for index in self._asked(beginning) if self._tokens[index].data.startswith(beginning)]

    def _rank(self, found: Fit, index: int) -> tuple[bool, bool]:
        """Of pieces of a row it says nothing that one reaches the end of another row: they may be alike."""
        inexact, in_part = found.rank(self._tokens[index])
        return inexact, in_part and not self._work.branches.are_turns

    def _urgency(self, chain: Chain, fits: dict[int, Fit]) -> tuple[bool, bool, int, int]:
        """Exact fits come first, the whole ones of them before others; then the fewer there are of the best."""
        ranks = [self._rank(found, index) for index, found in fits.items()]
        if not ranks:
            return False, False, 0, 0
        inexact, in_part = min(ranks)
        begin = len(chain.head) if self._work.branches.are_turns else 0
        return inexact, in_part and not inexact, begin, ranks.count((inexact, in_part))

    def _of_the_policy(self, chains: Seq[Chain], fits: list[dict[int, Fit]]) -> list[dict[int, Fit]]:
        """Without what merely reads like a part of a row, and was said by another model than the one that is trained:
        the model whose contexts are the rows' own, else the one that said the most of what stands in them.
        """
        if self._models is None:
            self._models = {chain.model for chain, found in zip(chains, fits, strict=True) if _exact(found)}
        if not self._models:
            said: Counter[object] = Counter()
            for chain in (chain for chain, found in zip(chains, fits, strict=True) if found):
                said[chain.model] += chain.size
            self._models = {model for model, _ in said.most_common(1)}
        return [
            found if _exact(found) or chain.model in self._models else {}
            for chain, found in zip(chains, fits, strict=True)
        ]

    def _find_contested(self, chains: Seq[Chain], fits: list[dict[int, Fit]]) -> None:
        """Where more chains are the whole of a row than there are such rows, some were sampled in vain, as when a row
        is played twice and one try returned. Which ones, branches may tell, where there is one for each row.
        """
        if self._work.branches.are_turns:
            self._find_contested_turns(chains, fits)
            return
        claims: dict[bytes, list[int]] = defaultdict(list)
        for i, found in enumerate(fits):
            for data in {
                self._tokens[j].data for j, one in found.items() if one.rank(self._tokens[j]) == (False, False)
            }:
                claims[data].append(i)
        rows = Counter(row.data for row in self._tokens)
        taken = {chains[i].branch for data, found in claims.items() if len(found) <= rows[data] for i in found}
        has_a_row_each = bool(self._work.numbered())
        for data, claimants in claims.items():
            branches = [chains[i].branch for i in claimants]
            if len(claimants) <= rows[data]:
                continue
            if has_a_row_each and rows[data] == len(set(branches)) == 1:
                continue  # all are that row's tries
            left = [branch for branch in branches if branch not in taken]
            if not has_a_row_each or not rows[data] == len(left) == len(set(left)):
                self._work.contest(i for i, row in enumerate(self._tokens) if row.data == data)
                if self._work.failed:  # then what stands in a part of another row may be all that this one has
                    self._work.contest(j for i in claimants for j in fits[i])
                continue
            for i in (i for i in claimants if chains[i].branch in taken):
                fits[i] = {j: one for j, one in fits[i].items() if self._tokens[j].data != data}

    def _find_contested_turns(self, chains: Seq[Chain], fits: list[dict[int, Fit]]) -> None:
        """The same turn by turn, where rows are in pieces."""
        claims: Counter[bytes] = Counter()
        rows: dict[bytes, set[int]] = defaultdict(set)
        for chain, found in zip(chains, fits, strict=True):
            for _, sequence in chain.parts if _exact(found) else ():
                assert sequence.context is not None and sequence.sampled is not None  # noqa: S101, PT018 - they fit
                turn = sequence.context.tobytes() + sequence.sampled.tobytes()
                claims[turn] += 1
                rows[turn].update(found)
        self._work.contest(index for turn, count in claims.items() if count > len(rows[turn]) for index in rows[turn])


def _exact(fits: dict[int, Fit]) -> dict[int, Fit]:
    return {index: found for index, found in fits.items() if found.evidence == "context"}
