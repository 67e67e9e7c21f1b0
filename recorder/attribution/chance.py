"""Whether rows stand in an order by accident."""

import random
from collections import Counter
from collections.abc import Callable
from collections.abc import Sequence as Seq
from statistics import mean, pstdev

_RARE = 1 / 500
_FAR = 3.5  # standard deviations
_FEWEST, _MOST = 20, 200  # shuffles
_LOOKED_AT = 40_000  # calls in all of them


def beats_shuffles(score: Callable[[Seq[int]], int], places: Seq[int], calls: int) -> bool:
    """Whether the score of these places is far above those of shuffled ones.

    Args:
        score: of places in some order.
        places: as they are.
        calls: that each score looks at, so that a large batch is shuffled less often; it needs that less, too.
    """
    if len(places) <= _FAR**2:  # the best of so few is not far above the others
        return False
    chance = random.Random(0)  # noqa: S311 - the same each time
    own, others = score(places), list[int]()
    for _ in range(max(_FEWEST, min(_MOST, _LOOKED_AT // max(calls, 1)))):
        others.append(score(chance.sample(places, len(places))))
        if others[-1] >= own:
            return False
    return own > mean(others) + _FAR * pstdev(others)


def are_in_line(prompts: Seq[str], seen: Seq[str | None]) -> bool:
    """Whether rows were begun in the order of their prompts, as far as these were seen, and not by accident.

    Args:
        prompts: (N) of the rows.
        seen: (K) of those that were begun, in order; None for one that is not known.
    """
    left, likelihood = Counter(prompts), 1.0
    for place, prompt in enumerate(seen):
        if place >= len(prompts) or prompt not in {None, prompts[place]}:
            return False
        likelihood *= 1 if prompt is None else left[prompt] / (len(prompts) - place)
        left[prompts[place]] -= 1
    return likelihood < _RARE
