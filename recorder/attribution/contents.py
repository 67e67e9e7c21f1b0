"""What was sent to an environment, held against what the model had said: the action most often stands in the answer."""

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from collections.abc import Sequence as Seq
from operator import attrgetter
from typing import Any

import orjson

from logs_ui.recorder.attribution.found import RowCalls
from logs_ui.recorder.calls import EnvironmentCall, Ids, Sequence

Episode = list[EnvironmentCall]
"""A client's calls from one reset to the next."""

Leaf = tuple[str, str]
"""A text or number as it was sent, and as it is compared."""

_STEPS = ("step", "tool")
_LOOKED_AT = 5  # texts of one place, before it is taken for one that has nothing to do with answers


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
        self._turns = {place: sorted(row.turns, key=attrgetter("order")) for place, row in rows.items()}
        self._orders = {place: [turn.order for turn in turns] for place, turns in self._turns.items()}
        steps = [call for episode in episodes for call in episode if call.kind in _STEPS]
        sent = {call.order: _leaves(orjson.loads(call.sent)) for call in steps}
        telling = self._telling(sent)
        self._sent = {
            order: {path: leaf for path, leaf in leaves.items() if path in telling} for order, leaves in sent.items()
        }

    def contradict(self, pairs: Seq[tuple[Episode, int]]) -> bool:
        """Whether two of the episodes would go better with one another's rows: what was sent in one stands not in its
        own row and in the other's, whose episode is not at home either, and sent something else.
        """
        strangers = [(episode, place) for episode, place in pairs if self._fits(episode, place) is False]
        sent = [self._sent_in(episode) for episode, _ in strangers]
        return any(
            own != others and self._fits(episode, place) is True
            for own, (episode, _) in zip(sent, strangers, strict=True)
            for others, (_, place) in zip(sent, strangers, strict=True)
        )

    def alone(self, episodes: Seq[Episode]) -> Iterator[tuple[Episode, int]]:
        """The episodes that go with one row alone, which goes with no other of them."""
        fitting = [[place for place in self._turns if self._fits(episode, place)] for episode in episodes]
        times = Counter(place for found in fitting for place in found)
        for episode, found in zip(episodes, fitting, strict=True):
            if len(found) == 1 and times[found[0]] == 1:
                yield episode, found[0]

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
        return any(_is_in(as_sent, self._text(answer)) for answer in answers) or any(
            _is_in(value, self._plain_text(answer)) for answer in answers
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
                if not _is_in(as_sent, said) and not _is_in(value, self._plain_text(answer)):
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


def _leaves(value: Any) -> dict[str, Leaf]:
    """Texts and numbers, by where they stand."""
    found: dict[str, Leaf] = {}
    _find_leaves(value, "", found)
    return found


def _find_leaves(value: Any, path: str, found: dict[str, Leaf]) -> None:
    """No generator: one for each value takes longer than all else."""
    if isinstance(value, str):
        if said := plain(value):
            found[path] = value.strip(), said
    elif isinstance(value, dict):
        for name, inner in value.items():
            _find_leaves(inner, f"{path}.{name}", found)
    elif isinstance(value, list):
        for inner in value:
            _find_leaves(inner, f"{path}[]", found)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        found[path] = str(value), str(value)


def plain(text: str) -> str:
    """As it is compared: in one case, with single spaces."""
    return " ".join(text.split()).casefold()


def _is_in(value: str, said: str) -> bool:
    """As a word of its own: 5 does not stand in 57."""
    at = said.find(value)
    while at >= 0:
        end = at + len(value)
        if not (_is_word(said[at - 1 : at] + value[0]) or _is_word(value[-1] + said[end : end + 1])):
            return True
        at = said.find(value, at + 1)
    return False


def _is_word(pair: str) -> bool:
    """Whether two characters that stand beside one another belong to one word."""
    return len(pair) == 2 and pair.isalnum()
