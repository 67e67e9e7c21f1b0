"""Compare what environments returned with what rows got: observations with the next prompt, rewards with the result.

Observations count only if most of them reappear in prompts, rewards only if those of all episodes were returned:
otherwise a match is a coincidence.
"""

import re
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping
from collections.abc import Sequence as Seq
from itertools import chain
from math import factorial, isfinite, prod
from operator import itemgetter

import orjson

from logs_ui.recorder.capture.model_answers import Ids
from logs_ui.recorder.rows.attribution.inferred import thresholds
from logs_ui.recorder.rows.attribution.inferred.by_action import Actions
from logs_ui.recorder.rows.attribution.inferred.episode_comparison import (
    Comparison,
    Episode,
    has_failed,
    is_plausible,
    settled,
    varying_values,
)
from logs_ui.recorder.rows.attribution.prefixes import bytes_of
from logs_ui.recorder.rows.attribution.row_calls import Returned, RowCalls, Turn
from logs_ui.recorder.rows.text_compare import Leaf, is_in, leaves_of, plain, texts_in

_NAME = re.compile(
    r"((env|environment|episode|eval|final|game|last|outcome|rollout|sum|task|total)_?)*(reward|score|return)s?",
    re.IGNORECASE,
)
"""Names of numbers that are an episode's reward: a `format_reward` is seldom what an environment returned."""
_COMMON = {-1.0, 0.0, 1.0}
_DIGITS = 6  # decimals in which rewards are compared

_Scores = dict[int, float]


class Outcomes(Comparison):
    """Tells whether episodes match rows, by observations and rewards.

    If the `actions` of the same episodes and rows disagree with the observations, these are not used: each of two
    players may be shown what the other one did.
    """

    def __init__(
        self, episodes: Seq[Episode], rows: Mapping[int, RowCalls], decode: Callable[[Ids], str], returned: Returned,
        actions: Actions,
    ) -> None:  # fmt: skip
        super().__init__(rows, decode)
        self._heard: dict[tuple[int, int], Leaf] = {}
        self._shown = self._find_shown(episodes)
        self._by_shown = [*self._by_observation(episodes)]
        if actions.deny(self._by_shown):
            self._shown, self._by_shown = {}, []
        self._scores = _scores(episodes, rows, returned)

    def alone(self, episodes: Seq[Episode]) -> Iterator[tuple[Episode, int, str]]:
        """Yield the episodes that match one row alone, with the row and the evidence: "observation" or "reward"."""
        possible = {_key(episode): place for episode, place in self._by_shown}
        observed_places = {*possible.values()}
        scored = self._by_score()
        for episode in episodes:
            place, other = possible.get(_key(episode)), scored.get(_key(episode))
            if place is not None and other in {None, place}:
                yield episode, place, "observation"
            elif place is None and other is not None and other not in observed_places and self._may_be(episode, other):
                yield episode, other, "reward"

    def contradict(self, pairs: Seq[tuple[Episode, int]]) -> bool:
        """Return True if an observation matches another row but not its own, or the returned rewards disagree."""
        strangers = [episode for episode, place in pairs if self._fits(episode, place) is False]
        if any(self._fits(episode, place) for episode in strangers for _, place in pairs):
            return bool(self._possible_rows([episode for episode, _ in pairs]))
        return bool(self._scores) and not any(
            all(scored[_key(episode)] == returned.get(place) for episode, place in pairs if _key(episode) in scored)
            for scored, returned in chain(*self._scores)
        )

    def confirm(self, pairs: Seq[tuple[Episode, int]]) -> bool:
        """Return True if observations or rewards fit these rows far better than shuffled rows."""
        for scored, returned in chain(*self._scores):
            rewards = [(scored.get(_key(episode)), returned.get(place)) for episode, place in pairs]
            # `orders` is the number of different orders of these rewards. If there are enough of them, it is no
            # accident that each episode's reward is the one that its row got.
            alike = Counter(reward for _, reward in rewards)
            orders = factorial(len(rewards)) / prod(map(factorial, alike.values()))
            if orders * thresholds.CHANCE >= 1 and all(of_episode == reward for of_episode, reward in rewards):
                return True
        return self._beat_shuffles(pairs, self._count_fitting)

    def _may_be(self, episode: Episode, place: int) -> bool:
        return self._fits(episode, place) is not False and is_plausible(episode, self._rows[place])

    def _by_observation(self, episodes: Seq[Episode]) -> Iterator[tuple[Episode, int]]:
        """Yield the episodes that can be of one row alone, once the rows of the others are known."""
        possible = self._possible_rows(episodes)
        has_each_row_one = self._has_each_row_one(episodes)
        # A row that was given away leaves fewer rows for the others, so the search is repeated until no episode has
        # one row alone. A row that two episodes claim is given to neither.
        while single := [
            (number, place)
            for number, places in possible.items()
            for place in places
            if len(places) == 1 and (has_each_row_one or self._fits(episodes[number], place))
        ]:
            times = Counter(place for _, place in single)
            yield from ((episodes[number], place) for number, place in single if times[place] == 1)
            possible = {number: places - {*times} for number, places in possible.items()}

    def _possible_rows(self, episodes: Seq[Episode]) -> dict[int, set[int]]:
        """Return the rows that each episode, by index, may be of; nothing unless nearly all find one of their own."""
        possible = {
            number: {place for place in self._rows if self._may_be(episode, place)}
            for number, episode in enumerate(episodes)
            if self._is_shown(episode)
        }
        whole = [places for number, places in possible.items() if not has_failed(episodes[number])]
        return possible if settled(whole) >= thresholds.NEARLY_ALL * len(whole) else {}

    def _has_each_row_one(self, episodes: Seq[Episode]) -> bool:
        """Return True if each row must have one episode: as many as rows, all begun before any answer, none failed."""
        first = min((orders[0] for orders in self._orders.values() if orders), default=0)
        is_ahead = all(episode[0].kind == "reset" and episode[0].order < first for episode in episodes)
        return is_ahead and len(episodes) == len(self._rows) and not any(map(has_failed, episodes))

    def _is_shown(self, episode: Episode) -> bool:
        """Return True if an observation is long enough to occur in no prompt by accident."""
        leaves_of_calls = (self._shown.get(call.order, ()) for call in episode)
        return any(sum(len(value) for _, value in leaves) >= thresholds.LEAST_CHARACTERS for leaves in leaves_of_calls)

    def _by_score(self) -> dict[int, int]:
        """Return the one row that got an episode's reward, by the order of the episode's first call."""
        places_of: dict[int, set[int]] = defaultdict(set)
        for meanings in self._scores:
            # Where the sum and the last reward both fit a name, both must point to the same row.
            for key, place in set.intersection(*(set(_unique_pairs(*meaning).items()) for meaning in meanings)):
                places_of[key].add(place)
        return {key: places.pop() for key, places in places_of.items() if len(places) == 1}

    def _fits(self, episode: Episode, place: int) -> bool | None:
        """Return True if each observation occurs in the row's next prompt; None if there is none to compare."""
        is_compared = False
        for call in episode:
            leaves = self._shown.get(call.order)
            heard = self._heard_after(call.order, place) if leaves else None
            if leaves and heard:
                if not all(_is_heard(leaf, heard) for leaf in leaves):
                    return False
                is_compared = True
        return is_compared or None

    def _find_shown(self, episodes: Seq[Episode]) -> dict[int, list[Leaf]]:
        """Return the values of each call that the model is given: texts, or numbers where no text is given."""
        leaves = {
            call.order: {f"{call.kind}{path}": leaf for path, leaf in leaves_of(orjson.loads(call.observation)).items()}
            for episode in episodes
            for call in episode
            if call.observation
        }
        followed = {call.order for episode in episodes for call in episode[:-1]}
        telling = varying_values({order: leaves[order] for order in leaves if order in followed}, self._are_heard)
        worded = {path for path, values in telling.items() if any(any(map(str.isalpha, leaf[1])) for leaf, _ in values)}
        return {
            order: [leaf for path, leaf in leaf_of.items() if path in (worded or telling)]
            for order, leaf_of in leaves.items()
        }

    def _are_heard(self, leaves: Seq[tuple[Leaf, int]]) -> bool:
        """Return True if most of these occur in some row's next prompt."""
        heard = [
            any(_is_heard(leaf, heard) for place in self._rows if (heard := self._heard_after(order, place)))
            for leaf, order in leaves
        ]
        return sum(heard) >= thresholds.MOST * len(heard)

    def _heard_after(self, order: int, place: int) -> Leaf | None:
        """Return the new part of the row's next prompt after a call; None where it was not asked again."""
        after = bisect_right(self._orders[place], order)
        if after == len(self._orders[place]):
            return None
        if (place, after) not in self._heard:
            turns = self._turns[place]
            text = self._new_part(turns[after - 1] if after else None, turns[after])
            self._heard[place, after] = text, plain(text)
        return self._heard[place, after]

    def _new_part(self, before: Turn | None, turn: Turn) -> str:
        context, messages = turn.sequence.context, turn.sequence.messages
        if context is None:
            return "\n".join(texts_in(orjson.loads(messages))) if messages else ""
        # The new part follows the former context and its answer. A prompt that was tokenised anew does not begin
        # with these, and is taken whole.
        former = (bytes_of(before.sequence.context) or b"") if before else b""
        answer = (bytes_of(before.sequence.sampled) or b"") if before else b""
        continues = former and (bytes_of(context) or b"").startswith(former + answer)
        return self._decode(context[len(former + answer) // context.itemsize :] if continues else context)


def _is_heard(leaf: Leaf, heard: Leaf) -> bool:
    return is_in(leaf[0], heard[0]) or is_in(leaf[1], heard[1])


def _unique_pairs(scored: _Scores, returned: _Scores) -> dict[int, int]:
    """Return the rows by episode where the reward is unique among the rows and among the episodes."""
    times, times_scored = Counter(returned.values()), Counter(scored.values())
    if len(times) < thresholds.DISTINCT_REWARDS and times.keys() <= _COMMON:
        return {}
    places = {score: place for place, score in returned.items() if times[score] == times_scored[score] == 1}
    return {key: places[score] for key, score in scored.items() if score in places}


def _scores(episodes: Seq[Episode], rows: Collection[int], returned: Returned) -> list[list[tuple[_Scores, _Scores]]]:
    """Return pairs of episodes' rewards (by the order of their first call) and rows' rewards (by index).

    There is a list for each returned name, with one pair for each meaning that fits: the sum of an episode's rewards,
    or its last one. A meaning fits if the rewards of all episodes were returned, in any order; episodes that failed or
    returned NaN do not count, and there must be more episodes than half of the rows.
    """
    whole = {
        _key(episode): [call.reward for call in episode if call.reward is not None]
        for episode in episodes
        if not has_failed(episode)
    }
    rewards = {key: by_step for key, by_step in whole.items() if all(map(isfinite, by_step))}
    if 2 * len(rewards) <= len(rows):
        return []
    pairs = []
    for name, values in returned.items():
        if not _NAME.fullmatch(name):
            continue
        by_row = {place: round(value, _DIGITS) for place in rows if (value := values[place]) is not None}
        meanings = [
            {key: round(score(by_step), _DIGITS) for key, by_step in rewards.items() if by_step}
            for score in (sum, itemgetter(-1))
        ]
        meanings = [scored for scored in meanings if scored and Counter(scored.values()) <= Counter(by_row.values())]
        if meanings:
            pairs.append([(scored, by_row) for scored in meanings])
    return pairs


def _key(episode: Episode) -> int:
    return episode[0].order
