"""The diagnosis in short, for the overview and the diagnosis page."""

from typing import NamedTuple

import numpy as np

from logs_ui.app.parts.loss_waterfall import Fall, make_fall
from logs_ui.recorder.analysis.diagnose import Diagnosed
from logs_ui.recorder.diagnosis import Card, Report, Rows
from logs_ui.recorder.diagnosis.waterfall import judged

_TOP = 3  # cards on the overview


class Coverage(NamedTuple):
    """The rollouts that a report covers.

    Attributes:
        steps: first and last; None without any, or without real steps.
        rollouts: number of rollouts with a loss.
        unscored: number of those without a reward, which count as 0.
    """

    steps: tuple[int, int] | None
    rollouts: int
    unscored: int


class ShortDiagnosis(NamedTuple):
    """The diagnosis of the last steps in short.

    Attributes:
        cards: those with the largest impact, without those that follow from others.
        more: number of further cards.
    """

    fall: Fall
    looked: Coverage
    cards: list[Card]
    more: int
    too_few: bool


def in_short(run: str, known: Diagnosed) -> ShortDiagnosis:
    """Returns the short diagnosis of the run with that uid."""
    report = known.report
    looked = looked_at(known.rows, report)
    cards = top_cards(report.cards)
    return ShortDiagnosis(
        fall=make_fall(report.fall, report.scale.said, run, report.scope, looked.rollouts),
        looked=looked,
        cards=cards[:_TOP],
        more=len(report.cards) - len(cards[:_TOP]),
        too_few=report.warming_up,
    )


def looked_at(rows: Rows, report: Report) -> Coverage:
    """Counts the rows that a report covers."""
    first, last = report.steps or (0, -1)
    covered = rows.where((rows.step >= first) & (rows.step <= last))  # few of them: what follows is slow on many
    can_tell = judged(covered)
    unscored = can_tell & np.isnan(covered.reward)
    return Coverage(report.steps if last > 0 else None, int(can_tell.sum()), int(unscored.sum()))


def top_cards(cards: tuple[Card, ...]) -> list[Card]:
    """Returns the cards without those that follow from others."""
    return [card for card in cards if not parents(card, cards)]


def parents(card: Card, cards: tuple[Card, ...]) -> list[Card]:
    """Returns the cards above this one that explain it."""
    return [it for it in cards[: cards.index(card)] if card.id in it.explains]
