"""Splits a rollout's timeline into turns, and finds where two rollouts diverge.

They diverge at the first turn whose actions differ. If nothing was sent to the environment, tool calls are compared;
without tool calls, the answers' texts, ignoring white space. A rollout that ended earlier diverges at its first missing
turn.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby

from logs_ui.app.parts.pictures import Picture
from logs_ui.app.parts.timeline import Card, Fields
from logs_ui.recorder.action_text import written_action

Action = tuple[str, ...]

_MOST, _FIRST, _LAST, _AROUND = 30, 6, 4, 4  # turns that pages side by side send at first


@dataclass(frozen=True)
class Turn:
    """Holds one model call: its message, None if it was not recorded, and the calls and messages that answer it."""

    number: int
    message: Card | None
    answers: list[Card]

    @property
    def action(self) -> Action:
        """Return the action as a comparable value: equal if both rollouts did the same."""
        answers = [card.answer for card in self.answers if card.answer and (card.answer.action or card.answer.tool)]
        sent = [(answer.tool, *_write_fields(answer.action)) for answer in answers]
        if sent:
            return ("sent", *(piece for action in sent for piece in action))
        if self.message is None:
            return ("nothing",)
        if self.message.calls:
            return (
                "called",
                *(piece for call in self.message.calls for piece in (call.name, *_write_fields(call.arguments))),
            )
        return ("said", *(self.message.content.value.split() if self.message.content else ()))

    @property
    def line(self) -> "TurnLine":
        """Return the turn in one line."""
        results = [card.answer for card in self.answers if card.answer]
        sent = [(result.tool, result.action) for result in results if result.action or result.tool]
        called = [(call.name, call.arguments) for call in self.message.calls] if self.message else []
        actions = sent or called
        content = self.message.content if self.message else None
        codes = [result.exit_code for result in results if result.exit_code is not None]
        failure = next((result.failure for result in results if result.failure), "")
        rewards = [result.reward for result in results if result.reward is not None]
        output = [text for card in self.answers for text in card.output]
        return TurnLine(
            number=self.number,
            anchor=next(card.anchor for card in (self.message, *self.answers) if card),
            tool=next((tool for tool, _ in actions if tool), ""),
            action=", ".join(_as_text(fields, tool) for tool, fields in actions),
            message="" if actions or content is None else content.value,
            answer="\n".join(filter(None, map(_answer_text, self.answers))),
            exit_code=next((code for code in codes if code), codes[-1] if codes else None),
            failure=failure,
            size=sum(len(text.value) for text in output) if output else None,
            seconds=sum(result.seconds or 0 for result in results) or None,
            reward=sum(rewards) if rewards else None,
            pictures=images_of([card for card in (self.message, *self.answers) if card]),
        )


@dataclass(frozen=True)
class TurnLine:
    """Shows a turn in one line, on the pages of a rollout, a group and a pair.

    Attributes:
        anchor: of its first card.
        tool: name of the first tool that was called; empty without one.
        action: what was sent to the environment, or called; empty if nothing was.
        message: the message of a turn without an action.
        answer: texts of the environment's answers; empty if it gave none.
        exit_code: first that is not 0 of those that its observations have; None if none has one.
        failure: first error of its calls, in one line: an exception, or a field of an observation; empty without one.
        size: number of characters of the answers; None without any.
        seconds: duration of its calls to the environment; None if it was not recorded.
        reward: sum of the environment's rewards; None if it gave none.
    """

    number: int
    anchor: str
    tool: str
    action: str
    message: str
    answer: str
    exit_code: int | None
    failure: str
    size: int | None
    seconds: float | None
    reward: float | None
    pictures: list[Picture]

    @property
    def outcome(self) -> str:
        """Return `exit 1` or `error`; empty if neither an exit code nor an error was recorded."""
        return f"exit {self.exit_code}" if self.exit_code is not None else "error" if self.failure else ""

    @property
    def images(self) -> str:
        """Return the number of images, and how many of them were not kept; empty without images."""
        count, missing = len(self.pictures), sum(not (picture.hash or picture.data) for picture in self.pictures)
        images = f"{count} image{'s' if count > 1 else ''}"
        if not count or not missing:
            return images if count else ""
        return f"{images} not kept" if missing == count else f"{images}, {missing} not kept"


def prompt_of(cards: Iterable[Card]) -> list[Card]:
    """Return the cards before the first turn."""
    return [card for card in cards if card.turn is None]


def turns_of(cards: Iterable[Card]) -> list[Turn]:
    """Return the turns in order; a turn without any card is left out."""
    messages: dict[int, Card] = {}
    answers: dict[int, list[Card]] = defaultdict(list)
    for card in cards:
        if card.turn is None:
            continue
        if card.role == "assistant" and card.turn not in messages:
            messages[card.turn] = card
        else:
            answers[card.turn].append(card)
    return [Turn(number, messages.get(number), answers[number]) for number in sorted({*messages, *answers})]


def images_of(cards: Sequence[Card]) -> list[Picture]:
    """Return the images of cards; one that is in an observation and again in the message with it counts once."""
    observed = [picture for card in cards if card.answer for picture in card.answer.pictures]
    contents = {picture.content for picture in observed}
    return [*observed, *(picture for card in cards for picture in card.pictures if picture.content not in contents)]


def left_out(numbers: Sequence[int], around: int | None) -> list[tuple[int, int]]:
    """Return the first and last turn of each stretch that a page of long rollouts leaves out at first: all but the
    first turns, the last, and those around the divergence. Empty for up to 30 turns.
    """
    if len(numbers) <= _MOST:
        return []
    near = {number for number in numbers if around is not None and abs(number - around) <= _AROUND}
    numbers_kept = near.union(numbers[:_FIRST], numbers[-_LAST:])
    runs = [[*run] for is_kept, run in groupby(numbers, numbers_kept.__contains__) if not is_kept]
    return [(run[0], run[-1]) for run in runs]


def _write_fields(fields: Fields) -> Action:
    return tuple(f"{name}={value.value.strip()}" for name, value in sorted(fields, key=lambda field: field[0]))


def _answer_text(card: Card) -> str:
    if card.answer and card.answer.error:
        return card.answer.error.value
    if card.content is not None:
        return card.content.value
    return _as_text(card.answer.observation) if card.answer else ""


def _as_text(fields: Fields, tool: str = "") -> str:
    if tool:
        return written_action({"name": tool, "arguments": {name: value.value for name, value in fields}})
    return " ".join(f"{name} {value.value}".strip() for name, value in fields)
