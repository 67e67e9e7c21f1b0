"""The cards of a diagnosis as the page shows them, ordered by which explains which."""

from collections.abc import Callable
from dataclasses import dataclass, field

from logs_ui.app.parts.diagnoses import parents, top_cards
from logs_ui.app.parts.figure_table import TrendLine, line
from logs_ui.app.web import urls
from logs_ui.recorder.diagnosis import DIAGNOSTICS, Card, Diagnostic, Report
from logs_ui.recorder.diagnosis.report import STATES, Checked
from logs_ui.recorder.errors import FilterError
from logs_ui.recorder.queries import Count
from logs_ui.recorder.queries.filters.rollout_filter import RolloutFilter, parse_where
from logs_ui.recorder.settings import Settings

_DIAGNOSTICS = {diagnostic.id: diagnostic for diagnostic in DIAGNOSTICS}

Counting = Callable[[RolloutFilter], Count]


@dataclass(frozen=True)
class ShownCard:
    """Describes a card to show."""

    card: Card
    share: float  # of the whole loss, from 0 to 1; of the rollouts if the finding has no cost
    diagnostic: Diagnostic | None  # None for one that this process does not know
    trend: TrendLine | None
    where: str  # its filter, as it is read
    count: Count | None  # number of its rollouts; None if its filter cannot be read
    address: str | None  # of exactly its rollouts; None likewise
    user_threshold: float | None  # the threshold that a user set; None for the default
    parents: list[tuple[str, str]]  # id and name of the cards above it that explain it
    children: list["ShownCard"] = field(default_factory=list)  # the cards below it that it explains


def make_cards(
    report: Report, cards: tuple[Card, ...], settings: Settings, run_uid: str, count: Counting
) -> list[ShownCard]:
    """Return these cards of a report, highest cost first; a card explained by another one is in that one's `children`.
    `count` counts the rollouts of a filter.
    """
    cards_by_id = {card.id: _show_card(report, card, settings, run_uid, count, parents(card, cards)) for card in cards}
    for card in cards:
        if parent_cards := parents(card, cards):
            _find_top(parent_cards[0], cards, cards_by_id).children.append(cards_by_id[card.id])
    return [cards_by_id[card.id] for card in top_cards(cards)]


def _find_top(card: Card, cards: tuple[Card, ...], cards_by_id: dict[str, ShownCard]) -> ShownCard:
    """Return the topmost of the cards that explain this one."""
    parent_cards = parents(card, cards)
    return _find_top(parent_cards[0], cards, cards_by_id) if parent_cards else cards_by_id[card.id]


def list_checks(report: Report) -> dict[str, list[tuple[Checked, Diagnostic | None]]]:
    """Return the checks without a card by their state; the diagnostic is None for a user's own."""
    return {
        state: [(check, _DIAGNOSTICS.get(check.id)) for check in report.checked if check.state == state]
        for state in STATES
    }


def _show_card(
    report: Report, card: Card, settings: Settings, run_uid: str, count: Counting, parent_cards: list[Card]
) -> ShownCard:
    rollout_filter, loss = _parse_filter(card.where), report.fall.lost + report.fall.above
    return ShownCard(
        card=card,
        share=card.share or 0.0 if card.cost is None else min(max(card.cost / loss, 0.0), 1.0) if loss > 0 else 0.0,
        diagnostic=_DIAGNOSTICS.get(card.id),
        trend=line(card.trend, card.since_step, card.limit, card.since_range),
        where=report.where_of(card),
        count=None if rollout_filter is None else count(rollout_filter),
        address=urls.matching(run_uid, report.where_of(card)),
        user_threshold=settings.thresholds.get(card.id),
        parents=[
            (parent.id, _DIAGNOSTICS[parent.id].name if parent.id in _DIAGNOSTICS else parent.id)
            for parent in parent_cards
        ],
    )


def _parse_filter(where: str) -> RolloutFilter | None:
    """Parse a card's filter; None if the language cannot express it, since users may register diagnostics."""
    try:
        return parse_where(where)
    except FilterError:
        return None
