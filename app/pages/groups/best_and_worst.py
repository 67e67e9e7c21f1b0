"""Compares the best and the worst rollout of a group at the first turn whose actions differ."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from logs_ui.app.pages.groups.compare_rollouts_page import IMAGES, Aligned, Side, align_turn, better_side, compare_texts
from logs_ui.app.parts.differences import Differ
from logs_ui.app.parts.divergence import find_divergence, split_at_divergence
from logs_ui.app.parts.timeline import Card, Text
from logs_ui.app.parts.turns import Turn, TurnLine
from logs_ui.recorder.queries import DEAD, Kind, RunSummary
from logs_ui.recorder.storage.tables import EvaluationRow

TURNS_AFTER = 3
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
    shared_turns: list[TurnLine]  # turns before the divergence, with identical actions
    turn: Aligned | None  # the turn at which they diverge, without the reasoning; None if all actions are identical
    # The environment's reward for that turn of `a` and `b`; None if it gave none.
    turn_rewards: tuple[float | None, float | None]
    better: str  # the side with the higher reward; empty if they are equal


def lens_of(
    summary: RunSummary, scored: Sequence[EvaluationRow], turns_by_id: Mapping[int, Sequence[Turn]], kind: Kind
) -> Lens | None:
    """Build the comparison of the rows that have a reward, highest first, by the turns of those that are opened; None
    if fewer than two of them have turns, or the best has none.
    """
    completions = [(row, turns_by_id[row.id or 0]) for row in scored if turns_by_id.get(row.id or 0)]
    if len(completions) < 2 or completions[0][0] is not scored[0]:
        return None
    (best, turns_a), (worst, turns_b) = completions[0], completions[-1]
    if kind in DEAD:
        worst, turns_b = next(
            (pair for pair in completions[1:] if find_divergence(turns_a, pair[1]) is not None), completions[-1]
        )
    comparison = split_at_divergence(turns_a, turns_b)
    return Lens(
        a=_ending(Side(summary, best), comparison.after_a),
        b=_ending(Side(summary, worst), comparison.after_b),
        is_dead=kind in DEAD,
        shared_turns=[turn.line for turn in comparison.shared],
        turn=None if comparison.number is None else _turn(comparison.number, comparison.a, comparison.b),
        better=better_side(best.reward, worst.reward),
        turn_rewards=(
            comparison.a.line.reward if comparison.a else None,
            comparison.b.line.reward if comparison.b else None,
        ),
    )


def _ending(side: Side, turns: Sequence[Turn]) -> Ending:
    return Ending(side, [turn.line for turn in turns[:TURNS_AFTER]], max(0, len(turns) - TURNS_AFTER))


def _turn(number: int, a: Turn | None, b: Turn | None) -> Aligned:
    """Compare message, action and observation. The observation is one piece, since a last answer is not a message."""
    differ = Differ()
    aligned_turn = align_turn(number, _drop_observations(a), _drop_observations(b), differ, is_divergence=True)
    pieces = [piece for piece in aligned_turn.pieces if piece.name != "reasoning"] or aligned_turn.pieces
    text_a, text_b = (Text("", answer) if turn and (answer := turn.line.answer) else None for turn in (a, b))
    if text_a or text_b:
        has_images = any(piece.name == IMAGES for piece in pieces)
        pieces = [*pieces, compare_texts("observed text" if has_images else "observation", text_a, text_b, differ)]
    return replace(aligned_turn, pieces=pieces)


def _drop_observations(turn: Turn | None) -> list[Card] | None:
    """Return the model's message, the actions parsed from it, and the images of the answers; None without a turn."""
    if turn is None:
        return None
    calls = [
        replace(card, content=None, answer=card.answer and replace(card.answer, observation=[], error=None))
        for card in turn.answers
    ]
    return [*([turn.message] if turn.message else []), *calls]
