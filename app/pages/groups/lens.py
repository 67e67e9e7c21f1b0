"""Compares the best and the worst rollout of a group at the first turn whose actions differ."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from logs_ui.app.pages.groups.compare_rollouts_page import IMAGES, Aligned, Side, aligned, better, compared
from logs_ui.app.parts.differences import Differ
from logs_ui.app.parts.timeline import Card, Text
from logs_ui.app.parts.turns import Turn, TurnLine, parted, parting
from logs_ui.recorder.queries import DEAD, Kind, RunSummary
from logs_ui.recorder.storage.tables import EvaluationRow

FOLLOWED = 3
"""Number of turns shown after the divergence."""


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
    better: str  # the side with the higher reward; empty if they are equal


def lens_of(
    summary: RunSummary, scored: Sequence[EvaluationRow], opened: Mapping[int, Sequence[Turn]], kind: Kind
) -> Lens | None:
    """Build the comparison of the rows that have a reward, highest first, by the turns of those that are opened; None
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
        same=[it.line for it in found.same],
        turn=None if found.number is None else _turn(found.number, found.a, found.b),
        better=better(best.reward, worst.reward),
        worth=(found.a.line.reward if found.a else None, found.b.line.reward if found.b else None),
    )


def _ending(side: Side, turns: Sequence[Turn]) -> Ending:
    return Ending(side, [turn.line for turn in turns[:FOLLOWED]], max(0, len(turns) - FOLLOWED))


def _turn(number: int, a: Turn | None, b: Turn | None) -> Aligned:
    """Compare message, action and observation. The observation is one piece, since a last answer is not a message."""
    differ = Differ()
    found = aligned(number, _own(a), _own(b), differ, parts=True)
    pieces = [piece for piece in found.pieces if piece.name != "reasoning"] or found.pieces
    of_a, of_b = (Text("", said) if turn and (said := turn.line.answer) else None for turn in (a, b))
    if of_a or of_b:
        has_images = any(piece.name == IMAGES for piece in pieces)
        pieces = [*pieces, compared("observed text" if has_images else "observation", of_a, of_b, differ)]
    return replace(found, pieces=pieces)


def _own(turn: Turn | None) -> list[Card] | None:
    """Return the model's message, the actions parsed from it, and the images of the answers; None without a turn."""
    if turn is None:
        return None
    sent = [
        replace(card, content=None, answer=card.answer and replace(card.answer, observation=[], error=None))
        for card in turn.answers
    ]
    return [*([turn.message] if turn.message else []), *sent]
