"""The best and the worst of a group, at the first turn whose actions differ."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from logs_ui.app.pages.groups.compare_rollouts_page import Aligned, Side, aligned, compared
from logs_ui.app.parts.differences import Differ
from logs_ui.app.parts.timeline import Card, Fields, Text
from logs_ui.app.parts.turns import Turn, parted, parting
from logs_ui.recorder.queries import DEAD, Kind, RunSummary
from logs_ui.recorder.storage.tables import EvaluationRow

FOLLOWED = 3
"""Turns after the parting that are shown."""


@dataclass(frozen=True)
class Line:
    """A turn in one line.

    Attributes:
        did: what was sent to the environment, or called, or else said; empty where nothing was.
        heard: what the environment answered; empty where it did not.
        reward: of that answer; None where it gave none.
    """

    number: int
    did: str
    heard: str
    reward: float | None


@dataclass(frozen=True)
class Ending:
    """One of the two after they parted: its next turns, and how many more it had."""

    side: Side
    turns: list[Line]
    more: int


@dataclass(frozen=True)
class Lens:
    """Two rollouts of a group.

    Attributes:
        a, b: the best and the worst; of a dead group the first, and another that parts from it where any does.
        is_dead: whether all rewards of the group are alike.
        same: turns before they part: the same actions.
        turn: at which they part, without the reasoning; None where their actions are the same to the end.
        worth: what the environment gave for that turn of `a` and `b`; None where it gave nothing.
    """

    a: Ending
    b: Ending
    is_dead: bool
    same: list[Line]
    turn: Aligned | None
    worth: tuple[float | None, float | None]


def lens_of(
    summary: RunSummary, scored: Sequence[EvaluationRow], opened: Mapping[int, Sequence[Turn]], kind: Kind
) -> Lens | None:
    """Of the rollouts that have a reward, the highest first; None for fewer than two that have turns.

    Args:
        summary: of their run.
        scored: the rows.
        opened: turns of those that are opened, by id.
        kind: of the group.
    """
    known = [(row, opened[row.id or 0]) for row in scored if opened.get(row.id or 0)]
    if len(known) < 2 or known[0][0] is not scored[0]:
        return None
    (best, turns_a), (worst, turns_b) = known[0], known[-1]
    if kind in DEAD:
        worst, turns_b = next((it for it in known[1:] if parting(turns_a, it[1]) is not None), known[-1])
    found = parted(turns_a, turns_b)
    return Lens(
        a=_ending(Side(summary, best), found.after_a),
        b=_ending(Side(summary, worst), found.after_b),
        is_dead=kind in DEAD,
        same=[_line(it) for it in found.same],
        turn=None if found.number is None else _turn(found.number, found.a, found.b),
        worth=(_reward(found.a), _reward(found.b)),
    )


def _ending(side: Side, turns: Sequence[Turn]) -> Ending:
    return Ending(side, [_line(turn) for turn in turns[:FOLLOWED]], max(0, len(turns) - FOLLOWED))


def _turn(number: int, a: Turn | None, b: Turn | None) -> Aligned:
    """What was said and sent, and what came back in one piece each: a last answer is no message, as the others are."""
    differ = Differ()
    found = aligned(number, _own(a), _own(b), differ, parts=True)
    pieces = [piece for piece in found.pieces if piece.name != "reasoning"] or found.pieces
    of_a, of_b = (Text("", said) if turn and (said := _heard(turn)) else None for turn in (a, b))
    if of_a or of_b:
        pieces = [*pieces, compared("observation", of_a, of_b, differ)]
    return replace(found, pieces=pieces)


def _own(turn: Turn | None) -> list[Card] | None:
    """The model's message, and what was sent of it; None without a turn."""
    if turn is None:
        return None
    sent = [
        replace(card, content=None, answer=replace(card.answer, observation=[], error=None))
        for card in turn.answers
        if card.answer
    ]
    return [*([turn.said] if turn.said else []), *sent]


def _line(turn: Turn) -> Line:
    return Line(turn.number, _did(turn), _heard(turn), _reward(turn))


def _reward(turn: Turn | None) -> float | None:
    """What the environment gave for it, all steps together; None where it gave nothing."""
    answers = [card.answer for card in turn.answers if card.answer] if turn else []
    rewards = [answer.reward for answer in answers if answer.reward is not None]
    return sum(rewards) if rewards else None


def _did(turn: Turn) -> str:
    """As `Turn.action` takes it, for a reader."""
    sent = [_written(card.answer.action) for card in turn.answers if card.answer and card.answer.action]
    if sent or turn.said is None:
        return ", ".join(sent)
    if turn.said.calls:
        return ", ".join(f"{call.name} {_written(call.arguments)}".strip() for call in turn.said.calls)
    return turn.said.content.value if turn.said.content else ""


def _heard(turn: Turn) -> str:
    """What the environment answered, errors too."""
    return "\n".join(filter(None, map(_answered, turn.answers)))


def _answered(card: Card) -> str:
    if card.answer and card.answer.error:
        return card.answer.error.value
    if card.content is not None:
        return card.content.value
    return _written(card.answer.observation) if card.answer else ""


def _written(fields: Fields) -> str:
    return " ".join(f"{name} {value.value}".strip() for name, value in fields)
