"""Compares the best and the worst rollout of a group at the first turn whose actions differ."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from logs_ui.app.pages.groups.compare_rollouts_page import Aligned, Side, aligned, compared
from logs_ui.app.parts.differences import Differ
from logs_ui.app.parts.timeline import Card, Fields, Text
from logs_ui.app.parts.turns import Turn, parted, parting
from logs_ui.recorder.action_text import written_action
from logs_ui.recorder.queries import DEAD, Kind, RunSummary
from logs_ui.recorder.storage.tables import EvaluationRow

FOLLOWED = 3
"""Number of turns shown after the divergence."""


class TurnLine(NamedTuple):
    """Shows a turn in one line."""

    number: int
    did: str  # what was sent to the environment, or called, or otherwise said; empty if nothing was
    heard: str  # the environment's answer; empty if it gave none
    reward: float | None  # of that answer; None if it gave none


class Ending(NamedTuple):
    """Describes one of the two after the divergence: its next turns, and the number of further ones."""

    side: Side
    turns: list[TurnLine]
    more: int


class Lens(NamedTuple):
    """Shows two rollouts of a group."""

    # `a` and `b`: the best and the worst; in a dead group the first, and another that diverges from it if there is one.
    a: Ending
    b: Ending
    is_dead: bool
    same: list[TurnLine]  # turns before the divergence, with identical actions
    turn: Aligned | None  # the turn at which they diverge, without the reasoning; None if all actions are identical
    # The environment's reward for that turn of `a` and `b`; None if it gave none.
    worth: tuple[float | None, float | None]


def lens_of(
    summary: RunSummary, scored: Sequence[EvaluationRow], opened: Mapping[int, Sequence[Turn]], kind: Kind
) -> Lens | None:
    """Builds the comparison of the rows that have a reward, highest first, by the turns of those that are opened; None
    if fewer than two of them have turns, or the best has none.
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
    """Compares message, action and observation. The observation is one piece, since a last answer is not a message."""
    differ = Differ()
    found = aligned(number, _own(a), _own(b), differ, parts=True)
    pieces = [piece for piece in found.pieces if piece.name != "reasoning"] or found.pieces
    of_a, of_b = (Text("", said) if turn and (said := _heard(turn)) else None for turn in (a, b))
    if of_a or of_b:
        pieces = [*pieces, compared("observation", of_a, of_b, differ)]
    return replace(found, pieces=pieces)


def _own(turn: Turn | None) -> list[Card] | None:
    """Returns the model's message and the actions parsed from it; None without a turn."""
    if turn is None:
        return None
    sent = [
        replace(card, content=None, answer=replace(card.answer, observation=[], error=None))
        for card in turn.answers
        if card.answer
    ]
    return [*([turn.said] if turn.said else []), *sent]


def _line(turn: Turn) -> TurnLine:
    return TurnLine(turn.number, _did(turn), _heard(turn), _reward(turn))


def _reward(turn: Turn | None) -> float | None:
    """Sums the environment's rewards of a turn; None if it gave none."""
    answers = [card.answer for card in turn.answers if card.answer] if turn else []
    rewards = [answer.reward for answer in answers if answer.reward is not None]
    return sum(rewards) if rewards else None


def _did(turn: Turn) -> str:
    """Describes the turn's action for a reader; see `Turn.action`."""
    answers = [card.answer for card in turn.answers if card.answer]
    sent = [_written(it.action, it.tool) for it in answers if it.action or it.tool]
    if sent or turn.said is None:
        return ", ".join(sent)
    if turn.said.calls:
        return ", ".join(_written(call.arguments, call.name) for call in turn.said.calls)
    return turn.said.content.value if turn.said.content else ""


def _heard(turn: Turn) -> str:
    """Returns the environment's answers, including errors."""
    return "\n".join(filter(None, map(_answered, turn.answers)))


def _answered(card: Card) -> str:
    if card.answer and card.answer.error:
        return card.answer.error.value
    if card.content is not None:
        return card.content.value
    return _written(card.answer.observation) if card.answer else ""


def _written(fields: Fields, tool: str = "") -> str:
    if tool:
        return written_action({"name": tool, "arguments": {name: value.value for name, value in fields}})
    return " ".join(f"{name} {value.value}".strip() for name, value in fields)
