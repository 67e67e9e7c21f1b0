"""Generations of a rollout function that has not returned, and may never: no tokens tell its rows apart."""

from collections.abc import Callable
from collections.abc import Sequence as Seq

import numpy as np

from logs_ui.recorder.attribution.chains import Branches, Chain, chains_of
from logs_ui.recorder.attribution.contents import plain
from logs_ui.recorder.attribution.found import Seen
from logs_ui.recorder.attribution.work import Work
from logs_ui.recorder.calls import Ids

_WIDTH = np.dtype(np.int32).itemsize


def give_unfinished(count: int, seen: Seen, prompts: Seq[str], decode: Callable[[Ids], str]) -> Work:
    """Chains to the rows whose prompts they hold, else to rows in the order in which their strands, then they
    themselves, began. What is only known to be a later turn is nobody's.
    """
    branches = Branches(seen.calls)
    chains = chains_of(seen.generations, seen.environment_calls, branches)
    if _cross(chains):
        branches = Branches([])
        chains = chains_of(seen.generations, seen.environment_calls, branches)
    work = Work(seen, count, branches)
    work.give_scoped()
    free = list(range(count))
    groups = _Prompts(prompts, decode)
    beginning = []
    for chain in chains:
        if chain.row is not None and chain.row < count:
            work.give(chain.row, chain, _starts(chain), "scope")
            free = [place for place in free if place != chain.row]
        elif chain.begins:
            beginning.append(chain)
        else:
            work.left.append(chain)
    for chain in sorted(beginning, key=Chain.key):
        likely = groups.of(chain)
        place = next((place for place in free if likely is None or place in likely), None)
        if place is None:
            work.left.append(chain)
        else:
            free.remove(place)
            work.give(place, chain, _starts(chain), "position" if likely is None else "prompt")
    return work


def _cross(chains: Seq[Chain]) -> bool:
    """Whether one goes on, in a branch of its own, where another's ended: then branches are no rows, but as it is where
    each generation is given to an executor, parts of them.
    """
    tails = {id(chain.branch): chain.tail for chain in chains if chain.tail}
    return any(
        chain.head.startswith(tail) for chain in chains for branch, tail in tails.items() if branch != id(chain.branch)
    )


def _starts(chain: Chain) -> list[int | None]:
    """Of its answers, from the end of its first context on."""
    prompt = len(chain.head) // _WIDTH
    return [
        None if sequence.context is None or len(sequence.context) < prompt else len(sequence.context) - prompt
        for _, sequence in chain.parts
    ]


class _Prompts:
    """Whose prompt a chain's first context holds."""

    def __init__(self, prompts: Seq[str], decode: Callable[[Ids], str]) -> None:
        self._rows: dict[str, list[int]] = {}
        for index, prompt in enumerate(prompts):
            self._rows.setdefault(plain(prompt), []).append(index)
        self._decode = decode

    def of(self, chain: Chain) -> list[int] | None:
        """The rows of the longest prompt that stands there; None where no prompt does, or all are one."""
        if len(self._rows) <= 1:
            return None
        _, first = chain.parts[0]
        given = first.messages.decode(errors="replace") if first.context is None and first.messages else ""
        if first.context is not None:
            given = self._decode(first.context)
        said = plain(given)
        standing = [prompt for prompt in self._rows if prompt and prompt in said]
        return self._rows[max(standing, key=len)] if standing else None
