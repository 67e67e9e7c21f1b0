"""A rollout's timeline as turns, and where two of them part.

They part at the first turn whose actions differ. An action is what was sent to the environment; of a turn that sent
nothing, the tool calls; of one without these, the text of the answer, however it is spaced. Where one of them has
ended, they part at the turn that it lacks.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import zip_longest

from logs_ui.app.parts.timeline import Card, Fields

Action = tuple[str, ...]


@dataclass(frozen=True)
class Turn:
    """One model call and the environment's answers to it.

    Attributes:
        said: the model's message; None where it was not recorded.
        answers: what the environment did, and messages that the model was given.
    """

    number: int
    said: Card | None
    answers: list[Card]

    @property
    def action(self) -> Action:
        """What is held against another's: equal where both did the same."""
        sent = [_written(card.answer.action) for card in self.answers if card.answer and card.answer.action]
        if sent:
            return ("sent", *(piece for action in sent for piece in action))
        if self.said is None:
            return ("nothing",)
        if self.said.calls:
            return ("called", *(piece for call in self.said.calls for piece in (call.name, *_written(call.arguments))))
        return ("said", *(self.said.content.value.split() if self.said.content else ()))


@dataclass(frozen=True)
class Parted:
    """Two rollouts held against each other, action by action.

    Attributes:
        same: turns of the first before they part, of which the second has the same actions.
        number: of the turn at which they part; None where they never do, and all turns are in `same`.
        a, b: that turn; None for one that has no such turn.
        after_a, after_b: the turns that followed.
    """

    same: list[Turn]
    number: int | None
    a: Turn | None
    b: Turn | None
    after_a: list[Turn]
    after_b: list[Turn]


def parted(a: Sequence[Turn], b: Sequence[Turn]) -> Parted:
    """Where they part, what stood before it, and what came after it."""
    for place, (one, other) in enumerate(zip_longest(a, b)):
        if one is None or other is None or one.action != other.action:
            number = max(place + 1, *(turn.number for turn in (one, other) if turn is not None))
            return Parted(list(a[:place]), number, one, other, list(a[place + 1 :]), list(b[place + 1 :]))
    return Parted(list(a), None, None, None, [], [])


def prompt_of(cards: Iterable[Card]) -> list[Card]:
    """What the model was given before its first turn."""
    return [card for card in cards if card.turn is None]


def turns_of(cards: Iterable[Card]) -> list[Turn]:
    """In order; a turn that nothing is known of is left out."""
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
    """The number of the turn at which they part; None where they never do."""
    return parted(a, b).number


def _written(fields: Fields) -> Action:
    return tuple(f"{name}={value.value.strip()}" for name, value in sorted(fields, key=lambda field: field[0]))
