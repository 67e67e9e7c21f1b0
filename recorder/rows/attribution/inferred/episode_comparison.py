"""Compare episodes with rows: what an environment was sent and returned, with what the row's model answered and got."""

import random
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from collections.abc import Sequence as Seq
from functools import partial
from operator import attrgetter
from statistics import mean, pstdev

from logs_ui.recorder.capture.calls import EnvironmentCall
from logs_ui.recorder.capture.model_answers import Ids
from logs_ui.recorder.rows.attribution.inferred import thresholds
from logs_ui.recorder.rows.attribution.row_calls import RowCalls
from logs_ui.recorder.rows.text_compare import Leaf

Episode = list[EnvironmentCall]
"""A client's calls from one reset to the next."""


def is_stepped(episode: Episode) -> bool:
    """Return True if it took a step."""
    return any(call.kind != "reset" for call in episode)


def has_failed(episode: Episode) -> bool:
    """Return True if one of its calls raised."""
    return any(call.error for call in episode)


def is_plausible(episode: Episode, row: RowCalls) -> bool:
    """Return True if at no time it had more successful steps than the row had answers by then."""
    answered = sorted(turn.order for turn in row.turns)
    steps = [call.order for call in episode if call.kind != "reset" and call.error is None]
    return not answered or all(bisect_left(answered, order) >= count for count, order in enumerate(steps, 1))


def settled(fitting: Iterable[Iterable[int]]) -> int:
    """Count the episodes that find a row of their own; those that fit the fewest rows choose first."""
    assigned: set[int] = set()
    for places in sorted(map(list, fitting), key=len):
        place = next((place for place in places if place not in assigned), None)
        if place is not None:
            assigned.add(place)
    return len(assigned)


class Comparison:
    """Rows that episodes can be assigned to, by index, and their turns in order; `decode` makes text of token ids."""

    def __init__(self, rows: Mapping[int, RowCalls], decode: Callable[[Ids], str]) -> None:
        self._decode, self._rows = decode, rows
        self._turns = {place: sorted(row.turns, key=attrgetter("order")) for place, row in rows.items()}
        self._orders = {place: [turn.order for turn in turns] for place, turns in self._turns.items()}

    def _fits(self, episode: Episode, place: int) -> bool | None:
        """Return True if an episode matches a row; None if there is nothing to compare."""
        raise NotImplementedError

    def _count_fitting(self, episodes: Seq[Episode], places: Seq[int]) -> int:
        """Count the episodes that match these rows, one each."""
        return sum(self._fits(episode, place) is True for episode, place in zip(episodes, places, strict=True))

    def _beat_shuffles(self, pairs: Seq[tuple[Episode, int]], *scores: Callable[[Seq[Episode], Seq[int]], int]) -> bool:
        """Return True if one of the scores is far above those of shuffled rows."""
        episodes, places = [episode for episode, _ in pairs], [place for _, place in pairs]
        calls = sum(map(len, episodes))
        return any(beats_shuffles(partial(score, episodes), places, calls) for score in scores)


def varying_values(
    leaves: Mapping[int, dict[str, Leaf]], are_known: Callable[[Seq[tuple[Leaf, int]]], bool]
) -> dict[str, list[tuple[Leaf, int]]]:
    """Return the different values of the JSON paths that have several, each with the order of a call that has it. Only
    of paths for which `are_known` is true of a sample of them.
    """
    values: dict[str, dict[str, tuple[Leaf, int]]] = defaultdict(dict)
    for order, leaf_of in leaves.items():
        for path, leaf in leaf_of.items():
            values[path][leaf[1]] = leaf, order
    several = {path: [*different.values()] for path, different in values.items() if len(different) > 1}
    return {path: different for path, different in several.items() if are_known(different[: thresholds.SAMPLED_VALUES])}


def beats_shuffles(score: Callable[[Seq[int]], int], places: Seq[int], calls: int) -> bool:
    """Return True if the score of these rows is far above those of shuffled rows; for a few rows, above each of many.

    `calls` is the number of environment calls that each score looks at: large batches are shuffled less often.
    """
    are_few = len(places) <= thresholds.FEW_ROWS
    least, most = thresholds.SHUFFLES
    times = thresholds.SHUFFLES_OF_FEW if are_few else max(least, min(most, thresholds.LOOKUPS // max(calls, 1)))
    chance = random.Random(0)  # noqa: S311 - the same each time
    tested, others = score(places), list[int]()
    for _ in range(times):
        others.append(score(chance.sample(places, len(places))))
        if others[-1] >= tested:
            return False
    return are_few or tested - mean(others) > thresholds.STANDARD_DEVIATIONS * pstdev(others)
