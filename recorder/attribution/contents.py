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
        self._turns = {place: sorted(row.turns, key=attrgetter("order")) for place, row in rows.items()}
        self._orders = {place: [turn.order for turn in turns] for place, turns in self._turns.items()}
        steps = [call for episode in episodes for call in episode if call.kind in _STEPS]
        sent = {call.order: _leaves(orjson.loads(call.sent)) for call in steps}
        telling = self._telling(sent)
        self._sent = {
            order: {path: value for path, value in leaves.items() if path in telling} for order, leaves in sent.items()
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

    def _telling(self, sent: Mapping[int, dict[str, str]]) -> set[str]:
        """Where texts stand that come from answers. What is always the same, as a tool's name, tells nothing, nor what
        the function makes up itself, as an id.
        """
        values: dict[str, dict[str, int]] = defaultdict(dict)
        for order, leaves in sent.items():
            for path, value in leaves.items():
                values[path][value] = order
        return {
            path
            for path, found in values.items()
            if len(found) > 1
            and any(
                _is_in(value, self._said_before(order, place))
                for value, order in list(found.items())[:_LOOKED_AT]
                for place in self._turns
            )
        }

    def _fits(self, episode: Episode, place: int) -> bool | None:
        """Whether each action stands in the row's answer that came before it; None where none can be looked for."""
        known = False
        for call in episode:
            sent = self._sent.get(call.order)
            said = self._said_before(call.order, place) if sent else ""
            if not sent or not said:
                continue
            for value in sent.values():
                if not _is_in(value, said):
                    return False
            known = True
        return known or None

    def _sent_in(self, episode: Episode) -> list[dict[str, str]]:
        return [self._sent[call.order] for call in episode if call.order in self._sent]

    def _said_before(self, order: int, place: int) -> str:
        """The row's last answer before a call; empty where there is none."""
        before = bisect_left(self._orders[place], order)
        return self._text(self._turns[place][before - 1].sequence) if before else ""

    def _text(self, sequence: Sequence) -> str:
        said = self._said.get(id(sequence))
        if said is None:
            known = "" if sequence.sampled is None else self._decode(sequence.sampled)
            said = self._said[id(sequence)] = plain(sequence.text or known)
        return said


def _leaves(value: Any) -> dict[str, str]:
    """Texts and numbers, by where they stand."""
    found: dict[str, str] = {}
    _find_leaves(value, "", found)
    return found


def _find_leaves(value: Any, path: str, found: dict[str, str]) -> None:
    """No generator: one for each value takes longer than all else."""
    if isinstance(value, str):
        if said := plain(value):
            found[path] = said
    elif isinstance(value, dict):
        for name, inner in value.items():
            _find_leaves(inner, f"{path}.{name}", found)
    elif isinstance(value, list):
        for inner in value:
            _find_leaves(inner, f"{path}[]", found)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        found[path] = str(value)


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
