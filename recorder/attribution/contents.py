"""What was sent to an environment, held against what the model had said: the action most often stands in the answer."""

import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from collections.abc import Sequence as Seq
from typing import Any

import orjson

from logs_ui.recorder.attribution.found import RowCalls
from logs_ui.recorder.calls import EnvironmentCall, Ids, Sequence

Episode = list[EnvironmentCall]
"""A client's calls from one reset to the next."""

_LOOKED_AT = 5  # texts of one place, before it is taken for one that has nothing to do with answers
_SPACE = re.compile(r"\s+")


class Contents:
    """Whether episodes and rows go together by what was sent and said.

    Args:
        episodes: among which to tell.
        rows: that they can belong to, by index.
        decode: token ids to text.
    """

    def __init__(self, episodes: Seq[Episode], rows: Mapping[int, RowCalls], decode: Callable[[Ids], str]) -> None:
        self._rows, self._decode = rows, decode
        self._said: dict[int, str] = {}
        steps = [call for episode in episodes for call in _steps(episode)]
        sent = {call.order: dict(_leaves(orjson.loads(call.sent))) for call in steps}
        telling = self._telling(sent)
        self._sent = {
            order: {path: value for path, value in leaves.items() if path in telling} for order, leaves in sent.items()
        }

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
                _is_in(value, said)
                for value, order in list(found.items())[:_LOOKED_AT]
                for row in self._rows.values()
                if (said := self._said_before(order, row))
            )
        }

    def fits(self, episode: Episode, row: RowCalls) -> bool | None:
        """Whether each action stands in the row's answer that came before it; None where none can be looked for."""
        found = [self._stands(call, row) for call in _steps(episode)]
        known = [one for one in found if one is not None]
        return all(known) if known else None

    def contradict(self, pairs: Seq[tuple[Episode, RowCalls]]) -> bool:
        """Whether two of the episodes would go better with one another's rows: what was sent in one stands not in its
        own row and in the other's, whose episode is not at home either, and sent something else.
        """
        strangers = [(episode, row) for episode, row in pairs if self.fits(episode, row) is False]
        return any(
            self.fits(episode, row) is True and self._sent_in(episode) != self._sent_in(other)
            for episode, _ in strangers
            for other, row in strangers
        )

    def alone(self, episodes: Seq[Episode]) -> Iterator[tuple[Episode, int]]:
        """The episodes that go with one row alone, which goes with no other of them."""
        fitting = [[i for i, row in self._rows.items() if self.fits(episode, row)] for episode in episodes]
        times = [i for found in fitting for i in found]
        for episode, found in zip(episodes, fitting, strict=True):
            if len(found) == 1 and times.count(found[0]) == 1:
                yield episode, found[0]

    def _sent_in(self, episode: Episode) -> list[dict[str, str]]:
        return [self._sent[call.order] for call in _steps(episode)]

    def _stands(self, call: EnvironmentCall, row: RowCalls) -> bool | None:
        sent, said = self._sent[call.order].values(), self._said_before(call.order, row)
        return all(_is_in(value, said) for value in sent) if sent and said else None

    def _said_before(self, order: int, row: RowCalls) -> str:
        """The row's last answer before a call; empty where there is none."""
        before = [turn for turn in row.turns if turn.order < order]
        return self._text(max(before, key=lambda turn: turn.order).sequence) if before else ""

    def _text(self, sequence: Sequence) -> str:
        if id(sequence) not in self._said:
            known = "" if sequence.sampled is None else self._decode(sequence.sampled)
            self._said[id(sequence)] = plain(sequence.text or known)
        return self._said[id(sequence)]


def _steps(episode: Episode) -> list[EnvironmentCall]:
    return [call for call in episode if call.kind in {"step", "tool"}]


def _leaves(value: Any, path: str = "") -> Iterator[tuple[str, str]]:
    """Texts and numbers, by where they stand."""
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from _leaves(inner, f"{path}.{name}")
    elif isinstance(value, list):
        for inner in value:
            yield from _leaves(inner, f"{path}[]")
    elif isinstance(value, str) and value.strip():
        yield path, plain(value)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield path, str(value)


def plain(text: str) -> str:
    """As it is compared: in one case, with single spaces."""
    return _SPACE.sub(" ", text).strip().casefold()


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
