"""What was sent to an environment, held against what the model had said: the action most often stands in the answer."""

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from collections.abc import Sequence as Seq
from functools import partial
from operator import attrgetter

import orjson

from logs_ui.recorder.capture.calls import EnvironmentCall, Ids, Sequence
from logs_ui.recorder.rows.attribution.inferred.permutation_test import beats_shuffles
from logs_ui.recorder.rows.attribution.row_calls import RowCalls
from logs_ui.recorder.rows.attribution.text_compare import Leaf, is_in, leaves_of, plain

Episode = list[EnvironmentCall]
"""A client's calls from one reset to the next."""

_STEPS = ("step", "tool")
_LOOKED_AT = 5  # texts of one place, before it is taken for one that has nothing to do with answers
_MOST = 0.75  # of the actions stand in answers of their rows: where the rest do not, they could not be parsed
_ASKED = 32  # episodes, whether they are of the rows that others say
_NEARLY_ALL = 0.9  # where actions are indices of options, those of the first one stand in no answer


def is_stepped(episode: Episode) -> bool:
    """Whether it took a step."""
    return any(call.kind != "reset" for call in episode)


def has_failed(episode: Episode) -> bool:
    """Whether one of its calls raised."""
    return any(call.error for call in episode)


def is_plausible(episode: Episode, row: RowCalls) -> bool:
    """Whether a row could have made these steps: no more of them, at any time, than it had answered by then."""
    answered = sorted(turn.order for turn in row.turns)
    steps = [call.order for call in episode if call.kind != "reset" and call.error is None]
    return not answered or all(bisect_left(answered, order) >= made for made, order in enumerate(steps, 1))


def settled(homes: Iterable[Iterable[int]]) -> int:
    """How many of these find a home of their own, those that have the fewest first."""
    taken: set[int] = set()
    for found in sorted(map(list, homes), key=len):
        place = next((place for place in found if place not in taken), None)
        if place is not None:
            taken.add(place)
    return len(taken)


class Contents:
    """Whether episodes and rows go together by what was sent and said.

    Args:
        episodes: among which to tell.
        rows: that they can belong to, by index.
        decode: token ids to text.
    """

    def __init__(self, episodes: Seq[Episode], rows: Mapping[int, RowCalls], decode: Callable[[Ids], str]) -> None:
        self._decode = decode
        self._said: dict[int, str] = {}
        self._plain: dict[int, str] = {}
        self._sent_by: dict[tuple[int, int], list[tuple[str, object, str]]] = {}  # for an episode and a row
        self._turns = {place: sorted(row.turns, key=attrgetter("order")) for place, row in rows.items()}
        self._orders = {place: [turn.order for turn in turns] for place, turns in self._turns.items()}
        steps = [call for episode in episodes for call in episode if call.kind in _STEPS]
        self._leaves = {call.order: leaves_of(orjson.loads(call.sent)) for call in steps}
        telling = self._telling(self._leaves)
        self._sent = {
            order: {path: leaf for path, leaf in leaves.items() if path in telling}
            for order, leaves in self._leaves.items()
        }

    def contradict(self, pairs: Seq[tuple[Episode, int]], *, ahead: bool) -> bool:
        """Whether what was sent speaks against these pairs. Actions are often made of answers, as the index of an
        option: then they stand in no answer, or in another's by accident, but the same answer was sent as the same.

        Args:
            pairs: episodes and their rows.
            ahead: whether each environment was reset before its row had answered, so that it was nobody's answer that
                it was made for: then a row whose answer was not sent as others' alike is no sign of another order.
        """
        return self._look_exchanged(pairs) and not (ahead and self.confirm(pairs))

    def _look_exchanged(self, pairs: Seq[tuple[Episode, int]]) -> bool:
        fits = [self._fits(episode, place) for episode, place in pairs]
        known = [one for one in fits if one is not None]
        if known and sum(known) >= _MOST * len(known):
            return self._are_exchanged([pair for pair, fit in zip(pairs, fits, strict=True) if fit is False])
        if known and self._find_homes([episode for episode, _ in pairs]):
            return True
        return self._is_one_answer_sent_as_several(pairs)

    def _are_exchanged(self, strangers: Seq[tuple[Episode, int]]) -> bool:
        """Whether one of these would go better with another's row, and sent something else than that."""
        sent = [self._sent_in(episode) for episode, _ in strangers]
        return any(
            own != others and self._fits(episode, place) is True
            for own, (episode, _) in zip(sent, strangers, strict=True)
            for others, (_, place) in zip(sent, strangers, strict=True)
        )

    def _is_one_answer_sent_as_several(self, pairs: Seq[tuple[Episode, int]]) -> bool:
        """Whether rows that said the same sent different things. Not where what was sent is new each time, as an id is,
        and not where some other part of it goes with what was said.
        """
        sent = self._sent_for(pairs).values()
        varied = [found for found in sent if 1 < len({value for _, value in found}) < len(found)]
        return bool(varied) and all(_is_against(found) for found in varied)

    def _sent_for(self, pairs: Iterable[tuple[Episode, int]]) -> dict[str, list[tuple[object, str]]]:
        """What these rows had said and what was sent then, by where it stood."""
        sent: dict[str, list[tuple[object, str]]] = defaultdict(list)
        for episode, place in pairs:
            key = episode[0].order, place
            if key not in self._sent_by:
                self._sent_by[key] = [*self._find_sent(episode, place)]
            for path, said, value in self._sent_by[key]:
                sent[path].append((said, value))
        return sent

    def _find_sent(self, episode: Episode, place: int) -> Iterator[tuple[str, object, str]]:
        for call in episode:
            answer = self._answer_before(call.order, place) if call.order in self._leaves else None
            if answer is not None:
                said = _said(answer)
                for path, (_, value) in self._leaves[call.order].items():
                    yield path, said, value

    def confirm(self, pairs: Seq[tuple[Episode, int]]) -> bool:
        """Whether what was sent goes with what was said as it would hardly if rows were shuffled: actions that stand in
        answers, or the same ones where answers are the same, and a step after each answer.
        """
        episodes = [episode for episode, _ in pairs if is_stepped(episode)]
        places = [place for episode, place in pairs if is_stepped(episode)]
        calls = sum(map(len, episodes))
        return any(
            beats_shuffles(partial(score, episodes), places, calls)
            for score in (self._standing, self._sent_as_answered)
        )

    def _standing(self, episodes: Seq[Episode], places: Seq[int]) -> int:
        """How many episodes stand in the answers of these rows."""
        return sum(self._fits(episode, place) is True for episode, place in zip(episodes, places, strict=True))

    def _sent_as_answered(self, episodes: Seq[Episode], places: Seq[int]) -> int:
        pairs = zip(episodes, places, strict=True)
        return self._sent_alike(episodes, places) + sum(self._is_answered(*pair) for pair in pairs)

    def _is_answered(self, episode: Episode, place: int) -> bool:
        """Whether each answer of the row was followed by one step."""
        orders = self._orders[place]
        after = [bisect_left(orders, call.order) for call in episode if call.kind != "reset"]
        return after == [*range(1, len(orders) + 1)]

    def _sent_alike(self, episodes: Seq[Episode], places: Seq[int]) -> int:
        """How many values are those that were most often sent where these rows had said the same."""
        found = self._sent_for(zip(episodes, places, strict=True)).values()
        sent = [Counter(pairs) for pairs in found]
        most: dict[tuple[int, object], int] = defaultdict(int)
        for path, counted in enumerate(sent):
            for (said, _), times in counted.items():
                most[path, said] = max(most[path, said], times)
        return sum(most.values())

    def certain(self, episodes: Seq[Episode], places: Seq[int]) -> Iterator[tuple[Episode, int]]:
        """The episodes that can be one row's alone, where some failed, and may have been tried again, and as many rows
        may have none: the earliest and the latest row of each, in order, that said what it sent.
        """
        fits = [[self._fits(episode, place) is not False for place in places] for episode in episodes]
        again = [has_failed(episode) or not is_stepped(episode) for episode in episodes]
        earliest = _first_that_fit(fits, again)
        latest = _first_that_fit([one[::-1] for one in reversed(fits)], [*again[::-1][1:], False])
        if earliest and latest:
            for episode, first, last in zip(episodes, earliest, reversed(latest), strict=True):
                if first == len(places) - 1 - last:
                    yield episode, places[first]

    def alone(self, episodes: Seq[Episode]) -> Iterator[tuple[Episode, int]]:
        """The episodes that go with one row alone, which goes with no other of them; none where too many go with no
        row. Of rows that said the same, as far as it was sent, answers may have been exchanged: they are no evidence.
        """
        homes = self._find_homes(episodes)
        times = Counter(place for found in homes for place in found)
        for episode, found in zip(episodes, homes, strict=False):
            if len(found) == 1 and times[found[0]] == 1 and not self._has_twin(found[0], len(episode)):
                yield episode, found[0]

    def deny(self, pairs: Seq[tuple[Episode, int]]) -> bool:
        """Whether more of these episodes than cannot be parsed were sent what another row said, and not their own. Of
        many, it looks at some.
        """
        pairs = pairs[:: len(pairs) // _ASKED + 1]
        if sum(self._fits(*pair) is False for pair in pairs) <= (1 - _MOST) * len(pairs):
            return False
        homes = self._find_homes([episode for episode, _ in pairs])
        denied = [found for (_, place), found in zip(pairs, homes, strict=False) if found and place not in found]
        return len(denied) > (1 - _MOST) * len(pairs)

    def _has_twin(self, place: int, turns: int) -> bool:
        """Whether another row said the same in its first turns."""
        said = [_said(turn.sequence) for turn in self._turns[place][:turns]]
        return any(
            other != place and len(own) >= len(said) and [_said(turn.sequence) for turn in own[: len(said)]] == said
            for other, own in self._turns.items()
        )

    def _find_homes(self, episodes: Seq[Episode]) -> list[list[int]]:
        """The rows that each episode fits; empty unless nearly all that sent something find one of their own. Else what
        stands in an answer stands there by accident.
        """
        homes = [[place for place in self._turns if self._fits(episode, place)] for episode in episodes]
        told = [any(call.order in self._sent and self._sent[call.order] for call in episode) for episode in episodes]
        return homes if settled(homes) >= _NEARLY_ALL * sum(told) > 0 else []

    def _telling(self, sent: Mapping[int, dict[str, Leaf]]) -> set[str]:
        """Where texts stand that come from answers. What is always the same, as a tool's name, tells nothing, nor what
        the function makes up itself, as an id.
        """
        values: dict[str, dict[str, tuple[Leaf, int]]] = defaultdict(dict)
        for order, leaves in sent.items():
            for path, leaf in leaves.items():
                values[path][leaf[1]] = leaf, order
        return {
            path
            for path, found in values.items()
            if len(found) > 1
            and any(self._is_said_before(leaf, order) for leaf, order in list(found.values())[:_LOOKED_AT])
        }

    def _is_said_before(self, leaf: Leaf, order: int) -> bool:
        """By any row."""
        as_sent, value = leaf
        answers = [answer for place in self._turns if (answer := self._answer_before(order, place)) is not None]
        return any(is_in(as_sent, self._text(answer)) for answer in answers) or any(
            is_in(value, self._plain_text(answer)) for answer in answers
        )

    def _fits(self, episode: Episode, place: int) -> bool | None:
        """Whether each action stands in the row's answer that came before it; None where none can be looked for."""
        known = False
        for call in episode:
            sent = self._sent.get(call.order)
            answer = self._answer_before(call.order, place) if sent else None
            if not sent or answer is None or not (said := self._text(answer)).strip():
                continue
            for as_sent, value in sent.values():
                # Most often it stands there as it was sent: to make all of an answer plain takes ten times as long.
                if not is_in(as_sent, said) and not is_in(value, self._plain_text(answer)):
                    return False
            known = True
        return known or None

    def _sent_in(self, episode: Episode) -> list[dict[str, str]]:
        sent = [self._sent[call.order] for call in episode if call.order in self._sent]
        return [{path: value for path, (_, value) in leaves.items()} for leaves in sent]

    def _answer_before(self, order: int, place: int) -> Sequence | None:
        """The row's last before a call; None where there is none."""
        before = bisect_left(self._orders[place], order)
        return self._turns[place][before - 1].sequence if before else None

    def _text(self, sequence: Sequence) -> str:
        said = self._said.get(id(sequence))
        if said is None:
            known = "" if sequence.sampled is None else self._decode(sequence.sampled)
            said = self._said[id(sequence)] = sequence.text or known
        return said

    def _plain_text(self, sequence: Sequence) -> str:
        said = self._plain.get(id(sequence))
        if said is None:
            said = self._plain[id(sequence)] = plain(self._text(sequence))
        return said


def _first_that_fit(fits: Seq[Seq[bool]], again: Seq[bool]) -> list[int]:
    """For each the first place that fits it, after that of the one before it; or at that, if it was tried again. Empty
    where one finds none.
    """
    found: list[int] = []
    start = 0
    for row, shares in zip(fits, again, strict=True):
        place = next((place for place in range(start, len(row)) if row[place]), None)
        if place is None:
            return []
        found.append(place)
        start = place if shares else place + 1
    return found


def _is_against(sent: Seq[tuple[object, str]]) -> bool:
    """Whether one answer was sent as several values."""
    pairs = set(sent)
    return len(pairs) > len({said for said, _ in pairs})


def _said(answer: Sequence) -> object:
    return None if answer.sampled is None else answer.sampled.tobytes(), answer.text
