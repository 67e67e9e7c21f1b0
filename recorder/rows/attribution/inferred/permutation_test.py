"""Whether rows stand in an order by accident."""

import random
from collections.abc import Callable
from collections.abc import Sequence as Seq
from statistics import mean, pstdev

_RARE = 1 / 500
_FAR = 3.5  # standard deviations
_FEWEST, _MOST = 20, 200  # shuffles
_FEW = 12  # places: the best order of them is not far above all others
_OF_FEW = 500  # shuffles of them
_LOOKED_AT = 40_000  # calls in all of them


def beats_shuffles(score: Callable[[Seq[int]], int], places: Seq[int], calls: int) -> bool:
    """Whether the score of these places is far above those of shuffled ones; of a few places, above each of many.

    Args:
        score: of places in some order.
        places: as they are.
        calls: that each score looks at, so that a large batch is shuffled less often; it needs that less, too.
    """
    are_few = len(places) <= _FEW
    times = _OF_FEW if are_few else max(_FEWEST, min(_MOST, _LOOKED_AT // max(calls, 1)))
    chance = random.Random(0)  # noqa: S311 - the same each time
    own, others = score(places), list[int]()
    for _ in range(times):
        others.append(score(chance.sample(places, len(places))))
        if others[-1] >= own:
            return False
    far = 0.0 if are_few else _FAR * pstdev(others)
    return own - mean(others) > far
