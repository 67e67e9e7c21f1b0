"""What environments answered, held against what came of it: what they show is most often given to the model next, and
the rewards that they give are returned.
"""

import re
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping
from collections.abc import Sequence as Seq
from functools import partial
from itertools import chain
from math import factorial, isfinite, prod
from operator import attrgetter

import orjson

from logs_ui.recorder.capture.calls import EnvironmentCall, Ids
from logs_ui.recorder.rows.attribution.inferred.by_action import (
    Contents,
    Episode,
    has_failed,
    is_plausible,
    settled,
)
from logs_ui.recorder.rows.attribution.inferred.permutation_test import beats_shuffles
from logs_ui.recorder.rows.attribution.prefixes import bytes_of
from logs_ui.recorder.rows.attribution.row_calls import Returned, RowCalls, Turn
from logs_ui.recorder.rows.attribution.text_compare import Leaf, is_in, leaves_of, plain, texts_in

_LOOKED_AT = 8  # texts of one place, before it is taken for one that the model is not given
_MOST = 0.75  # of them stand in what some row's model was given next
_NEARLY_ALL = 0.9  # of the episodes stand in a row's: else those that do may stand there by accident
_TELLING = 8  # characters that an observation has at least, to stand nowhere by accident
_FAR_FETCHED = 500  # orders of what was returned, of which one is that of the rows
_NAME = re.compile(
    r"((env|environment|episode|eval|final|game|last|outcome|rollout|sum|task|total)_?)*(reward|score|return)s?",
    re.IGNORECASE,
)
"""Of numbers that are an episode's reward: what is called `format_reward` is seldom what an environment gave."""
_SEVERAL, _PLAIN = 3, {-1.0, 0.0, 1.0}  # so many different rewards tell whose they are, or any that is none of these

_Scores = dict[int, float]


class Outcomes:
    """Whether episodes and rows go together by what came back.

    Args:
        episodes: among which to tell.
        rows: that they can belong to, by index.
        decode: token ids to text.
        returned: see `Returned`; empty where the function did not return.
        contents: of the same episodes and rows. Where these say otherwise, as where each player is shown what the other
            did, what was shown tells nothing.
    """

    def __init__(
        self,
        episodes: Seq[Episode],
        rows: Mapping[int, RowCalls],
        decode: Callable[[Ids], str],
        returned: Returned,
        contents: Contents,
    ) -> None:
        self._decode, self._rows = decode, rows
        self._turns = {place: sorted(row.turns, key=attrgetter("order")) for place, row in rows.items()}
        self._orders = {place: [turn.order for turn in turns] for place, turns in self._turns.items()}
        self._heard: dict[tuple[int, int], Leaf] = {}
        self._shown = self._find_shown(episodes)
        self._told = [*self._by_observation(episodes)]
        if contents.deny(self._told):
            self._shown, self._told = {}, []
        self._scores = _scores(episodes, rows, returned)

    def alone(self, episodes: Seq[Episode]) -> Iterator[tuple[Episode, int, str]]:
        """The episodes that go with one row alone, which is no other's, and the evidence: "observation" or "reward"."""
        homes = {_key(episode): place for episode, place in self._told}
        taken = {*homes.values()}
        scored = self._by_score()
        for episode in episodes:
            place, other = homes.get(_key(episode)), scored.get(_key(episode))
            if place is not None and other in {None, place}:
                yield episode, place, "observation"
            elif place is None and other is not None and other not in taken and self._may_be(episode, other):
                yield episode, other, "reward"

    def contradict(self, pairs: Seq[tuple[Episode, int]]) -> bool:
        """Whether one of these stands in another's row and not in its own, or their rewards were returned otherwise."""
        strangers = [episode for episode, place in pairs if self._stands(episode, place) is False]
        if any(self._stands(episode, place) for episode in strangers for _, place in pairs):
            return bool(self._homes([episode for episode, _ in pairs]))
        return bool(self._scores) and not any(
            all(scored[_key(episode)] == given.get(place) for episode, place in pairs if _key(episode) in scored)
            for scored, given in chain(*self._scores)
        )

    def confirm(self, pairs: Seq[tuple[Episode, int]]) -> bool:
        """Whether what came back goes with these rows as it would hardly if they were shuffled."""
        episodes, places = [episode for episode, _ in pairs], [place for _, place in pairs]
        for scored, given in chain(*self._scores):
            told = [(scored.get(_key(episode)), given.get(place)) for episode, place in pairs]
            alike = Counter(reward for _, reward in told)
            orders = factorial(len(told)) / prod(map(factorial, alike.values()))
            if orders >= _FAR_FETCHED and all(own == reward for own, reward in told):
                return True
        return beats_shuffles(partial(self._standing, episodes), places, sum(map(len, episodes)))

    def _standing(self, episodes: Seq[Episode], places: Seq[int]) -> int:
        return sum(self._stands(episode, place) is True for episode, place in zip(episodes, places, strict=True))

    def _may_be(self, episode: Episode, place: int) -> bool:
        return self._stands(episode, place) is not False and is_plausible(episode, self._rows[place])

    def _by_observation(self, episodes: Seq[Episode]) -> Iterator[tuple[Episode, int]]:
        """Those that can be one row's alone, once those of the others are known."""
        homes = self._homes(episodes)
        is_each_ones = self._is_each_ones(episodes)
        while told := [
            (i, place)
            for i, found in homes.items()
            for place in found
            if len(found) == 1 and (is_each_ones or self._stands(episodes[i], place))
        ]:
            times = Counter(place for _, place in told)
            yield from ((episodes[i], place) for i, place in told if times[place] == 1)
            homes = {i: found - {*times} for i, found in homes.items()}

    def _homes(self, episodes: Seq[Episode]) -> dict[int, set[int]]:
        """By the index of each episode that showed enough, the rows that it may be of; empty unless nearly all find one
        of their own: what stands in a row then stands there by accident.
        """
        homes = {
            i: {place for place in self._rows if self._may_be(episode, place)}
            for i, episode in enumerate(episodes)
            if self._is_shown(episode)
        }
        whole = [found for i, found in homes.items() if not has_failed(episodes[i])]
        return homes if settled(whole) >= _NEARLY_ALL * len(whole) else {}

    def _is_each_ones(self, episodes: Seq[Episode]) -> bool:
        """Whether there is one episode for each row, begun before any answer: then each row has one, whatever it was
        given of it.
        """
        first = min((orders[0] for orders in self._orders.values() if orders), default=0)
        is_ahead = all(episode[0].kind == "reset" and episode[0].order < first for episode in episodes)
        return is_ahead and len(episodes) == len(self._rows) and not any(map(has_failed, episodes))

    def _is_shown(self, episode: Episode) -> bool:
        return any(sum(len(value) for _, value in self._shown.get(call.order, ())) >= _TELLING for call in episode)

    def _by_score(self) -> dict[int, int]:
        """By the order of an episode's first call, the row for which alone its reward was returned, whatever it is."""
        found: dict[int, set[int]] = defaultdict(set)
        for meanings in self._scores:
            for key, place in set.intersection(*(set(_told(*meaning).items()) for meaning in meanings)):
                found[key].add(place)
        return {key: places.pop() for key, places in found.items() if len(places) == 1}

    def _stands(self, episode: Episode, place: int) -> bool | None:
        """Whether each observation stands in what the row's model was given next; None where none can be looked for."""
        known = False
        for call in episode:
            shown = self._shown.get(call.order)
            heard = self._heard_after(call.order, place) if shown else None
            if shown and heard:
                if not all(_is_heard(leaf, heard) for leaf in shown):
                    return False
                known = True
        return known or None

    def _find_shown(self, episodes: Seq[Episode]) -> dict[int, list[Leaf]]:
        """Of each call what it showed of that which the model is given: texts; numbers, where texts are not."""
        leaves = {call.order: _leaves(call) for episode in episodes for call in episode if call.observation}
        followed = {call.order for episode in episodes for call in episode[:-1]}
        values: dict[str, dict[str, tuple[Leaf, int]]] = defaultdict(dict)
        for order, found in leaves.items():
            for path, leaf in found.items() if order in followed else ():
                values[path][leaf[1]] = leaf, order
        telling = {path for path, found in values.items() if len(found) > 1 and self._are_heard([*found.values()])}
        worded = {path for path in telling if any(any(map(str.isalpha, value)) for value in values[path])}
        return {
            order: [leaf for path, leaf in found.items() if path in (worded or telling)]
            for order, found in leaves.items()
        }

    def _are_heard(self, shown: Seq[tuple[Leaf, int]]) -> bool:
        """Whether most of these stand in what some row was given next."""
        heard = [
            any(_is_heard(leaf, heard) for place in self._rows if (heard := self._heard_after(order, place)))
            for leaf, order in shown[:_LOOKED_AT]
        ]
        return sum(heard) >= _MOST * len(heard)

    def _heard_after(self, order: int, place: int) -> Leaf | None:
        """What is new in what the row's model was given next after a call; None where it was not asked again."""
        after = bisect_right(self._orders[place], order)
        if after == len(self._orders[place]):
            return None
        if (place, after) not in self._heard:
            turns = self._turns[place]
            text = self._given(turns[after - 1] if after else None, turns[after])
            self._heard[place, after] = text, plain(text)
        return self._heard[place, after]

    def _given(self, before: Turn | None, turn: Turn) -> str:
        context, messages = turn.sequence.context, turn.sequence.messages
        if context is None:
            return "\n".join(texts_in(orjson.loads(messages))) if messages else ""
        known = (bytes_of(before.sequence.context) or b"") if before else b""
        said = (bytes_of(before.sequence.sampled) or b"") if before else b""
        goes_on = known and (bytes_of(context) or b"").startswith(known + said)
        return self._decode(context[len(known + said) // context.itemsize :] if goes_on else context)


def _leaves(call: EnvironmentCall) -> dict[str, Leaf]:
    found = leaves_of(orjson.loads(call.observation or b"null"))
    return {f"{call.kind}{path}": leaf for path, leaf in found.items()}


def _is_heard(leaf: Leaf, heard: Leaf) -> bool:
    return is_in(leaf[0], heard[0]) or is_in(leaf[1], heard[1])


def _told(scored: _Scores, given: _Scores) -> dict[int, int]:
    """By the episode, the row that alone got its reward, as it alone gave it."""
    times, own = Counter(given.values()), Counter(scored.values())
    if len(times) < _SEVERAL and times.keys() <= _PLAIN:
        return {}
    places = {score: place for place, score in given.items() if times[score] == own[score] == 1}
    return {key: places[score] for key, score in scored.items() if score in places}


def _scores(episodes: Seq[Episode], rows: Collection[int], returned: Returned) -> list[list[tuple[_Scores, _Scores]]]:
    """Rewards of episodes, by the order of their first call, and of rows, by their index, where those of all episodes
    that did not fail, nor gave NaN, were returned, in some order: the sum of all that each gave, or the last one, or
    what may be both. None where there are so few that each may be of several rows.
    """
    whole = {
        _key(one): [call.reward for call in one if call.reward is not None] for one in episodes if not has_failed(one)
    }
    rewards = {key: own for key, own in whole.items() if all(map(isfinite, own))}
    if 2 * len(rewards) <= len(rows):
        return []
    found = []
    for name, values in returned.items():
        if not _NAME.fullmatch(name):
            continue
        given = {place: _rounded(value) for place in rows if (value := values[place]) is not None}
        meanings = [{key: _rounded(score(own)) for key, own in rewards.items() if own} for score in (sum, _last)]
        meanings = [scored for scored in meanings if scored and Counter(scored.values()) <= Counter(given.values())]
        if meanings:
            found.append([(scored, given) for scored in meanings])
    return found


def _key(episode: Episode) -> int:
    return episode[0].order


def _last(rewards: Seq[float]) -> float:
    return rewards[-1]


def _rounded(value: float) -> float:
    return round(value, 6)
