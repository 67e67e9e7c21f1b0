"""Compare the actions sent to environments with the model's answers: most often the action occurs in the answer.

Actions may be made of answers instead, as the index of an option. Then they occur in no answer, or in another row's by
accident; but equal answers lead to equal actions.
"""

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from collections.abc import Sequence as Seq

import orjson

from logs_ui.recorder.capture.model_answers import Ids, Sequence
from logs_ui.recorder.rows.attribution.inferred.episode_comparison import (
    Comparison,
    Episode,
    has_failed,
    is_stepped,
    settled,
    varying_values,
)
from logs_ui.recorder.rows.attribution.inferred.thresholds import MOST, NEARLY_ALL, SAMPLED_EPISODES
from logs_ui.recorder.rows.attribution.row_calls import RowCalls
from logs_ui.recorder.rows.text_compare import Leaf, is_in, leaves_of, plain


class Actions(Comparison):
    """Tells whether episodes match rows, by the actions sent and the answers before them."""

    def __init__(self, episodes: Seq[Episode], rows: Mapping[int, RowCalls], decode: Callable[[Ids], str]) -> None:
        super().__init__(rows, decode)
        self._texts: dict[int, str] = {}
        self._plain: dict[int, str] = {}
        self._sent_by: dict[tuple[int, int], list[tuple[str, object, str]]] = {}  # by episode and row
        steps = [call for episode in episodes for call in episode if call.kind in {"step", "tool"}]
        self._leaves = {call.order: leaves_of(orjson.loads(call.sent)) for call in steps}
        # Not a tool's name, which is always the same, nor an id that the function makes up.
        from_answers = varying_values(
            self._leaves, lambda values: any(self._is_said_before(*value) for value in values)
        )
        self._sent = {
            order: {path: leaf for path, leaf in leaves.items() if path in from_answers}
            for order, leaves in self._leaves.items()
        }

    def contradict(self, pairs: Seq[tuple[Episode, int]], *, ahead: bool) -> bool:
        """Return True if the actions speak against these pairs of episodes and rows.

        If each environment was reset `ahead` of its row's answers, some actions that are not the answer (a parser's
        fallback, a stuck action) do not count, if the others confirm the pairs.
        """
        return self._look_exchanged(pairs) and not (ahead and self.confirm(pairs))

    def _look_exchanged(self, pairs: Seq[tuple[Episode, int]]) -> bool:
        """Return True if other pairs would fit better, or equal answers led to unequal actions."""
        fits = [self._fits(episode, place) for episode, place in pairs]
        judged = [fit for fit in fits if fit is not None]
        if judged and sum(judged) >= MOST * len(judged):
            # Most episodes fit their rows: only the others can be exchanged, among one another.
            return self._are_exchanged([pair for pair, fit in zip(pairs, fits, strict=True) if fit is False])
        # Nearly all episodes fit a row of their own, but too few of them fit the one that they were paired with.
        if judged and self._fitting_rows([episode for episode, _ in pairs]):
            return True
        return self._is_one_answer_sent_as_several(pairs)

    def _are_exchanged(self, strangers: Seq[tuple[Episode, int]]) -> bool:
        """Return True if one of these episodes fits the row of another one that sent other actions."""
        sent = [self._actions_of(episode) for episode, _ in strangers]
        return any(
            values != others and self._fits(episode, place) is True
            for values, (episode, _) in zip(sent, strangers, strict=True)
            for others, (_, place) in zip(sent, strangers, strict=True)
        )

    def _is_one_answer_sent_as_several(self, pairs: Seq[tuple[Episode, int]]) -> bool:
        """Return True if equal answers led to unequal actions, at all JSON paths whose values recur, as ids do not."""
        sent = self._sent_for(pairs).values()
        varied = [values for values in sent if 1 < len({value for _, value in values}) < len(values)]
        return bool(varied) and all(len(set(values)) > len({answer for answer, _ in values}) for values in varied)

    def _sent_for(self, pairs: Iterable[tuple[Episode, int]]) -> dict[str, list[tuple[object, str]]]:
        """Return answers with the value sent after each, by JSON path."""
        sent: dict[str, list[tuple[object, str]]] = defaultdict(list)
        for episode, place in pairs:
            key = episode[0].order, place
            if key not in self._sent_by:
                self._sent_by[key] = [*self._find_sent(episode, place)]
            for path, answer_text, value in self._sent_by[key]:
                sent[path].append((answer_text, value))
        return sent

    def _find_sent(self, episode: Episode, place: int) -> Iterator[tuple[str, object, str]]:
        for call in episode:
            answer = self._answer_before(call.order, place) if call.order in self._leaves else None
            if answer is not None:
                answer_text = _answer_of(answer)
                for path, (_, value) in self._leaves[call.order].items():
                    yield path, answer_text, value

    def confirm(self, pairs: Seq[tuple[Episode, int]]) -> bool:
        """Return True if actions occur in these rows' answers, or follow equal answers, far more than by chance."""
        stepped = [pair for pair in pairs if is_stepped(pair[0])]
        return self._beat_shuffles(stepped, self._count_fitting, self._sent_alike)

    def _sent_alike(self, episodes: Seq[Episode], places: Seq[int]) -> int:
        """Count the values that are the most frequent ones after their answer."""
        sent = [Counter(pairs) for pairs in self._sent_for(zip(episodes, places, strict=True)).values()]
        most: dict[tuple[int, object], int] = defaultdict(int)
        for path, counted in enumerate(sent):
            for (answer_text, _), times in counted.items():
                most[path, answer_text] = max(most[path, answer_text], times)
        return sum(most.values())

    def certain(self, episodes: Seq[Episode], places: Seq[int]) -> Iterator[tuple[Episode, int]]:
        """Yield the episodes that can be of one row alone, if those that failed may have been tried again and other
        rows have none: those whose earliest possible row, in order, is also their latest.
        """
        fits = [[self._fits(episode, place) is not False for place in places] for episode in episodes]
        again = [has_failed(episode) or not is_stepped(episode) for episode in episodes]
        earliest = _first_that_fit(fits, again)
        # The same from the end. Here an episode may share the row of the one after it if it is itself tried again,
        # so that the flags are shifted by one place.
        latest = _first_that_fit([fit[::-1] for fit in reversed(fits)], [*again[::-1][1:], False])
        if earliest and latest:
            for episode, first, last in zip(episodes, earliest, reversed(latest), strict=True):
                if first == len(places) - 1 - last:
                    yield episode, places[first]

    def alone(self, episodes: Seq[Episode]) -> Iterator[tuple[Episode, int]]:
        """Yield the episodes that fit one row alone, which fits no other, and whose answers no other row gave."""
        fitting = self._fitting_rows(episodes)
        times = Counter(place for places in fitting for place in places)
        for episode, places in zip(episodes, fitting, strict=False):
            if len(places) == 1 and times[places[0]] == 1 and not self._has_twin(places[0], len(episode)):
                yield episode, places[0]

    def deny(self, pairs: Seq[tuple[Episode, int]]) -> bool:
        """Return True if the actions show that too many of these episodes are of other rows; checks a sample."""
        pairs = pairs[:: len(pairs) // SAMPLED_EPISODES + 1]
        if sum(self._fits(*pair) is False for pair in pairs) <= (1 - MOST) * len(pairs):
            return False
        fitting = self._fitting_rows([episode for episode, _ in pairs])
        denied = [places for (_, place), places in zip(pairs, fitting, strict=False) if places and place not in places]
        return len(denied) > (1 - MOST) * len(pairs)

    def _has_twin(self, place: int, turns: int) -> bool:
        """Return True if another row gave the same first answers."""
        first = [_answer_of(turn.sequence) for turn in self._turns[place][:turns]]
        return any(
            other != place
            and len(turns_of) >= len(first)
            and [_answer_of(turn.sequence) for turn in turns_of[: len(first)]] == first
            for other, turns_of in self._turns.items()
        )

    def _fitting_rows(self, episodes: Seq[Episode]) -> list[list[int]]:
        """Return the rows that each episode fits; nothing unless nearly all find one: else it is an accident."""
        fitting = [[place for place in self._turns if self._fits(episode, place)] for episode in episodes]
        sent = [any(call.order in self._sent and self._sent[call.order] for call in episode) for episode in episodes]
        return fitting if settled(fitting) >= NEARLY_ALL * sum(sent) > 0 else []

    def _is_said_before(self, leaf: Leaf, order: int) -> bool:
        """Return True if the value occurs in any row's last answer."""
        as_sent, value = leaf
        answers = [answer for place in self._turns if (answer := self._answer_before(order, place)) is not None]
        return any(is_in(as_sent, self._text(answer)) for answer in answers) or any(
            is_in(value, self._plain_text(answer)) for answer in answers
        )

    def _fits(self, episode: Episode, place: int) -> bool | None:
        """Return True if each action occurs in the row's last answer before it; None if there is none to compare."""
        is_compared = False
        for call in episode:
            sent = self._sent.get(call.order)
            answer = self._answer_before(call.order, place) if sent else None
            if not sent or answer is None or not (answer_text := self._text(answer)).strip():
                continue
            for as_sent, value in sent.values():
                # Most often it occurs as it was sent, and to make all of an answer plain takes ten times as long.
                if not is_in(as_sent, answer_text) and not is_in(value, self._plain_text(answer)):
                    return False
            is_compared = True
        return is_compared or None

    def _actions_of(self, episode: Episode) -> list[dict[str, str]]:
        sent = [self._sent[call.order] for call in episode if call.order in self._sent]
        return [{path: value for path, (_, value) in leaves.items()} for leaves in sent]

    def _answer_before(self, order: int, place: int) -> Sequence | None:
        """Return the row's last answer before a call; None where there is none."""
        before = bisect_left(self._orders[place], order)
        return self._turns[place][before - 1].sequence if before else None

    def _text(self, sequence: Sequence) -> str:
        if id(sequence) not in self._texts:
            decoded = "" if sequence.sampled is None else self._decode(sequence.sampled)
            self._texts[id(sequence)] = sequence.text or decoded
        return self._texts[id(sequence)]

    def _plain_text(self, sequence: Sequence) -> str:
        if id(sequence) not in self._plain:
            self._plain[id(sequence)] = plain(self._text(sequence))
        return self._plain[id(sequence)]


def _first_that_fit(fits: Seq[Seq[bool]], again: Seq[bool]) -> list[int]:
    """Return for each the first place after the one before, or at it if that was tried again; [] if one has none."""
    places: list[int] = []
    start = 0
    for row, shares in zip(fits, again, strict=True):
        place = next((place for place in range(start, len(row)) if row[place]), None)
        if place is None:
            return []
        places.append(place)
        start = place if shares else place + 1
    return places


def _answer_of(answer: Sequence) -> object:
    return None if answer.sampled is None else answer.sampled.tobytes(), answer.text
