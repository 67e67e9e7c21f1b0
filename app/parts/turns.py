"""Splits a rollout's timeline into turns, and finds where two rollouts diverge.

They diverge at the first turn whose actions differ. If nothing was sent to the environment, tool calls are compared;
without tool calls, the answers' texts, ignoring white space. A rollout that ended earlier diverges at its first missing
turn.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby, zip_longest
from typing import NamedTuple

from logs_ui.app.parts.timeline import Card, Fields

Action = tuple[str, ...]

_MOST, _FIRST, _LAST, _AROUND = 30, 6, 4, 4  # turns that pages side by side send at first


@dataclass(frozen=True)
class Turn:
    """Holds one model call: its message, None if it was not recorded, and the calls and messages that answer it."""

    number: int
    said: Card | None
    answers: list[Card]

    @property
    def action(self) -> Action:
        """Returns the action as a comparable value: equal if both rollouts did the same."""
        answers = [card.answer for card in self.answers if card.answer and (card.answer.action or card.answer.tool)]
        sent = [(it.tool, *_written(it.action)) for it in answers]
        if sent:
            return ("sent", *(piece for action in sent for piece in action))
        if self.said is None:
            return ("nothing",)
        if self.said.calls:
            return ("called", *(piece for call in self.said.calls for piece in (call.name, *_written(call.arguments))))
        return ("said", *(self.said.content.value.split() if self.said.content else ()))


class Parted(NamedTuple):
    """Compares two rollouts action by action."""

    same: list[Turn]  # turns of the first before the divergence; the second has the same actions
    number: int | None  # the turn at which they diverge; None if they never do, and all turns are in `same`
    # `a` and `b`: that turn; None for a rollout without it.
    a: Turn | None
    b: Turn | None
    # `after_a` and `after_b`: the turns that followed.
    after_a: list[Turn]
    after_b: list[Turn]


def parted(a: Sequence[Turn], b: Sequence[Turn]) -> Parted:
    """Splits two rollouts into the turns before, at and after the divergence."""
    for place, (one, other) in enumerate(zip_longest(a, b)):
        if one is None or other is None or one.action != other.action:
            number = max(place + 1, *(turn.number for turn in (one, other) if turn is not None))
            return Parted(list(a[:place]), number, one, other, list(a[place + 1 :]), list(b[place + 1 :]))
    return Parted(list(a), None, None, None, [], [])


def prompt_of(cards: Iterable[Card]) -> list[Card]:
    """Returns the cards before the first turn."""
    return [card for card in cards if card.turn is None]


def turns_of(cards: Iterable[Card]) -> list[Turn]:
    """Returns the turns in order; a turn without any card is left out."""
    said: dict[int, Card] = {}
    answers: dict[int, list[Card]] = defaultdict(list)
    for card in cards:
        if card.turn is None:
            continue
        if card.role == "assistant" and card.turn not in said:
            said[card.turn] = card
        else:
            answers[card.turn].append(card)
    return [Turn(number, said.get(number), answers[number]) for number in sorted({*said, *answers})]


def parting(a: Sequence[Turn], b: Sequence[Turn]) -> int | None:
    """Returns the number of the turn at which they diverge; None if they never do."""
    return parted(a, b).number


def left_out(numbers: Sequence[int], around: int | None) -> list[tuple[int, int]]:
    """Returns the first and last turn of each stretch that a page of long rollouts leaves out at first: all but the
    first turns, the last, and those around the divergence. Empty for up to 30 turns.
    """
    if len(numbers) <= _MOST:
        return []
    near = {it for it in numbers if around is not None and abs(it - around) <= _AROUND}
    kept = near.union(numbers[:_FIRST], numbers[-_LAST:])
    runs = [[*run] for is_kept, run in groupby(numbers, kept.__contains__) if not is_kept]
    return [(run[0], run[-1]) for run in runs]


def _written(fields: Fields) -> Action:
    return tuple(f"{name}={value.value.strip()}" for name, value in sorted(fields, key=lambda field: field[0]))
