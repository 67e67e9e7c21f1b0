"""Permutation test: could this order of rows have arisen by chance?"""

import random
from collections.abc import Callable
from collections.abc import Sequence as Seq
from statistics import mean, pstdev

from logs_ui.recorder.rows.attribution.inferred.thresholds import (
    FEW_ROWS,
    LOOKUPS,
    SHUFFLES,
    SHUFFLES_OF_FEW,
    STANDARD_DEVIATIONS,
)


def beats_shuffles(score: Callable[[Seq[int]], int], places: Seq[int], calls: int) -> bool:
    """Return True if the score of these rows is far above those of shuffled rows; for a few rows, above each of many.

    Args:
        score: rates rows in some order.
        places: the rows, in the order to test.
        calls: environment calls that each score looks at; large batches are shuffled less often.
    """
    are_few = len(places) <= FEW_ROWS
    least, most = SHUFFLES
    times = SHUFFLES_OF_FEW if are_few else max(least, min(most, LOOKUPS // max(calls, 1)))
    chance = random.Random(0)  # noqa: S311 - the same each time
    tested, others = score(places), list[int]()
    for _ in range(times):
        others.append(score(chance.sample(places, len(places))))
        if others[-1] >= tested:
            return False
    return are_few or tested - mean(others) > STANDARD_DEVIATIONS * pstdev(others)
