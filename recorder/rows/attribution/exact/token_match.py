"""Assign chains of generations to rows, by the place of their tokens in the rows."""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from collections.abc import Sequence as Seq
from functools import cache, partial
from heapq import heapify, heappop, heappush

from logs_ui.recorder.rows.attribution.assignment import Assignment
from logs_ui.recorder.rows.attribution.chain import Chain
from logs_ui.recorder.rows.attribution.exact.row_match import Fit, RowTokens, fit
from logs_ui.recorder.rows.attribution.prefixes import prompt_texts
from logs_ui.recorder.rows.text_compare import plain


class Matching:
    """Assigns chains to the rows that hold their tokens."""

    def __init__(
        self, tokens: Seq[RowTokens], state: Assignment, text_of: Callable[[int], str], prompt_of: Callable[[int], str]
    ) -> None:
        """`text_of` and `prompt_of` return the text of a row's completion and of its prompt, by the row's index."""
        self._tokens, self._state = tokens, state
        self._text_of, self._prompt_of = cache(text_of), cache(lambda index: plain(prompt_of(index)))
        self._groups: dict[bytes, list[int]] = defaultdict(list)
        for index, row in enumerate(tokens):
            self._groups[row.prompt_data].append(index)
        self._models: set[object] | None = None

    def fit(self, chain: Chain, index: int) -> Fit | None:
        """Return the place of a chain in row `index`; None where it has none."""
        return fit(chain, self._tokens[index], partial(self._text_of, index))

    def match(self, chains: Seq[Chain]) -> list[Chain]:
        """Assign chains to rows: first those that reach a row's end, and of these the ones that fit one row alone. If
        branches are turns, and rows are in pieces, the chains with the shortest prompt come first. Return the chains
        that fit no row, or are another model's.
        """
        chains = sorted(chains, key=Chain.key)
        fits = [self._best_fits(chain, self._find_repeating(chain)) for chain in chains]
        fits = self._of_the_policy(chains, fits)
        self._find_contested(chains, fits)
        unmatched = []
        # The queue gives the most urgent chain. Rows that were taken meanwhile change what it fits, so its fits are
        # computed again, and a chain that became less urgent goes back into the queue.
        waiting = [(self._urgency(chains[place], fits_of_chain), place) for place, fits_of_chain in enumerate(fits)]
        heapify(waiting)
        while waiting:
            urgency, place = heappop(waiting)
            again = self._fits(chains[place], fits[place])
            # A chain that fitted some row exactly is not put on a row that it fits only by parts.
            if _exact(fits[place]):
                again = _exact(again)
            if not again:
                unmatched.append(place)
            elif self._urgency(chains[place], again) > urgency:  # the row that it fitted best is taken
                heappush(waiting, (self._urgency(chains[place], again), place))
            else:
                self._assign(chains[place], again)
        unmatched.sort()
        for place in unmatched:
            chains[place].candidate_rows = [
                index for index in self._find_rows(chains[place].head) if self._tokens[index].prompt
            ] or None
        return [chains[place] for place in unmatched]

    def _assign(self, chain: Chain, fits: dict[int, Fit]) -> None:
        """Assign a chain to the best row that it fits; of several, to one with turns of the same strand."""
        tokens = self._tokens
        best = min(fits, key=lambda i: (*self._rank(fits[i]), self._state.is_elsewhere(i, chain), i))
        tokens[best].matched, tokens[best].text_matched = fits[best].end, fits[best].text_end
        self._state.add_chain(best, chain, fits[best].starts, fits[best].evidence)

    def _fits(self, chain: Chain, indices: Iterable[int]) -> dict[int, Fit]:
        return {
            index: row_fit
            for index in indices
            if self._may_follow(chain, index) and (row_fit := self.fit(chain, index))
        }

    def _may_follow(self, chain: Chain, index: int) -> bool:
        """Return False if rows are in pieces and the row's turns so far were asked later."""
        if not self._state.branches.are_turns:
            return True
        return all(turn.order < chain.parts[0][0].order for turn in self._state.rows[index].turns)

    def _best_fits(self, chain: Chain, exact_rows: Iterable[int]) -> dict[int, Fit]:
        """Return the exact fits; only if there is none, the others, for which all rows of the prompt are searched."""
        exact = _exact(self._fits(chain, exact_rows))
        if exact:
            return exact
        rows = [index for index in self._find_rows(chain.head) if self._tokens[index].prompt]
        return self._fits(chain, rows or self._with_messages(chain) or range(len(self._tokens)))

    def _with_messages(self, chain: Chain) -> list[int]:
        """Return the rows whose prompt holds the chain's first messages, where the server returned no ids."""
        _, first = chain.parts[0]
        texts = [] if first.context is not None or first.messages is None else prompt_texts(first.messages)
        groups = self._groups.values() if texts else ()
        holding = [rows for rows in groups if all(text in self._prompt_of(rows[0]) for text in texts)]
        return sorted(index for rows in holding for index in rows)

    def _find_rows(self, context: bytes) -> list[int]:
        """Return the rows with whose prompt a context begins, in order."""
        groups = (rows for prompt, rows in self._groups.items() if context.startswith(prompt))
        return sorted(index for rows in groups for index in rows)

    def _find_repeating(self, chain: Chain) -> list[int]:
        """Return the rows that begin with the chain's last context: only these can be exact fits."""
        context = chain.parts[-1][1].context
        if context is None:
            return []
        beginning = context.tobytes()
        return [index for index in self._find_rows(beginning) if self._tokens[index].data.startswith(beginning)]

    def _rank(self, row_fit: Fit) -> tuple[bool, bool]:
        """Return a key that is smaller for a better fit: an exact one, then a whole one. If rows are in pieces, one
        that reaches a row's end may as well be another row's.
        """
        return row_fit.evidence != "context", not row_fit.is_whole and not self._state.branches.are_turns

    def _urgency(self, chain: Chain, fits: dict[int, Fit]) -> tuple[bool, bool, int, int]:
        """Return a key, smaller for earlier chains: whole exact fits, exact ones, others; then of fewer best rows."""
        ranks = [self._rank(row_fit) for row_fit in fits.values()]
        if not ranks:
            return False, False, 0, 0
        inexact, in_part = min(ranks)
        begin = len(chain.head) if self._state.branches.are_turns else 0
        return inexact, in_part and not inexact, begin, ranks.count((inexact, in_part))

    def _of_the_policy(self, chains: Seq[Chain], fits: list[dict[int, Fit]]) -> list[dict[int, Fit]]:
        """Drop inexact fits of other models than the trained one: a judge may repeat a part of a row.

        The trained model is the one with exact fits; else the one with the most sampled tokens among the fits.
        """
        if self._models is None:
            self._models = {
                chain.model for chain, fits_of_chain in zip(chains, fits, strict=True) if _exact(fits_of_chain)
            }
        if not self._models:
            sampled: Counter[object] = Counter()
            for chain in (chain for chain, fits_of_chain in zip(chains, fits, strict=True) if fits_of_chain):
                sampled[chain.model] += chain.size
            self._models = {model for model, _ in sampled.most_common(1)}
        return [
            fits_of_chain if _exact(fits_of_chain) or chain.model in self._models else {}
            for chain, fits_of_chain in zip(chains, fits, strict=True)
        ]

    def _find_contested(self, chains: Seq[Chain], fits: list[dict[int, Fit]]) -> None:
        """Find rows that more chains hold in full than there are such rows: some were played twice, and one try was
        returned. Branches may tell which, if there is one for each row. Where branches are turns, chains are no tries.
        """
        if self._state.branches.are_turns:
            return
        claims: dict[bytes, list[int]] = defaultdict(list)
        for place, row_fits in enumerate(fits):
            for data in {
                self._tokens[index].data
                for index, row_fit in row_fits.items()
                if row_fit.is_whole and row_fit.evidence != "tokens"
            }:
                claims[data].append(place)
        rows = Counter(row.data for row in self._tokens)
        # These are the branches whose chains have a row without contest.
        uncontested = {
            chains[place].branch
            for data, claimants in claims.items()
            if len(claimants) <= rows[data]
            for place in claimants
        }
        has_a_row_each = bool(self._state.branch_of_each_row())
        for data, claimants in claims.items():
            branches = [chains[place].branch for place in claimants]
            if len(claimants) <= rows[data]:
                continue
            if has_a_row_each and rows[data] == len(set(branches)) == 1:
                continue  # all are tries of that row
            left = [branch for branch in branches if branch not in uncontested]
            if not has_a_row_each or not rows[data] == len(left) == len(set(left)):
                self._state.contested.update(index for index, row in enumerate(self._tokens) if row.data == data)
                if self._state.failed_orders:  # what fits a part of another row may be all that this row has
                    self._state.contested.update(index for place in claimants for index in fits[place])
                continue
            # Here a branch is a row, so a chain whose branch has a row already does not get one of these.
            for place in (place for place in claimants if chains[place].branch in uncontested):
                fits[place] = {
                    index: row_fit for index, row_fit in fits[place].items() if self._tokens[index].data != data
                }


def _exact(fits: dict[int, Fit]) -> dict[int, Fit]:
    return {index: row_fit for index, row_fit in fits.items() if row_fit.evidence == "context"}
