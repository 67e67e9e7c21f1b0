"""The cards of a diagnosis as the page shows them, ordered by which explains which."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from logs_ui.app.parts.diagnoses import parents, top_cards
from logs_ui.app.web import urls
from logs_ui.recorder.diagnosis import DIAGNOSTICS, Card, Diagnostic, Report
from logs_ui.recorder.diagnosis.card import Trend
from logs_ui.recorder.diagnosis.report import STATES, Checked
from logs_ui.recorder.errors import FilterError
from logs_ui.recorder.queries import Count
from logs_ui.recorder.queries.filters.rollout_filter import RolloutFilter, parse_where
from logs_ui.recorder.settings import Settings

_POINTS = 120  # of a trend, at most
_WIDE, _HIGH, _EDGE = 180, 34, 3

_KNOWN = {it.id: it for it in DIAGNOSTICS}

Counting = Callable[[RolloutFilter], Count]


class TrendLine(NamedTuple):
    """Holds a trend, in a box of 180 by 34."""

    points: str
    end: tuple[float, float]
    since: float | None  # position from which it is bad; None if unknown
    between: tuple[float, float] | None  # position and width of the interval in which it became so; None without one
    limit: float | None  # position of the threshold; None without a fixed one
    # `first` and `last`: (step, value).
    first: tuple[int, float]
    last: tuple[int, float]


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
    set: float | None  # the threshold that a user set; None for the default
    follows_from: list[tuple[str, str]]  # id and name of the cards above it that explain it
    follows: list["ShownCard"] = field(default_factory=list)  # the cards below it that it explains


def make_cards(
    report: Report, cards: tuple[Card, ...], settings: Settings, run: str, count: Counting
) -> list[ShownCard]:
    """Returns these cards of a report, highest cost first; a card explained by another one is in that one's `follows`.
    `count` counts the rollouts of a filter.
    """
    shown = {card.id: _shown(report, card, settings, run, count, parents(card, cards)) for card in cards}
    for card in cards:
        if above := parents(card, cards):
            _top(above[0], cards, shown).follows.append(shown[card.id])
    return [shown[card.id] for card in top_cards(cards)]


def _top(card: Card, cards: tuple[Card, ...], shown: dict[str, ShownCard]) -> ShownCard:
    """Returns the topmost of the cards that explain this one."""
    above = parents(card, cards)
    return _top(above[0], cards, shown) if above else shown[card.id]


def thinned(trend: Trend, most: int = _POINTS) -> Trend:
    """Returns every n-th point, and the last, if there are too many."""
    every = -(-len(trend) // most)
    return (*trend[:-1:every], trend[-1]) if trend else ()


def line(
    trend: Trend, since: int | None, limit: float | None = None, between: tuple[int, int] | None = None
) -> TrendLine | None:
    """Builds a trend; None for fewer than two points."""
    if len(trend) < 2:
        return None
    shown = thinned(trend)
    values = [value for _, value in shown] + ([limit] if limit is not None else [])
    low, high = min(values), max(values)
    first, wide = trend[0][0], (trend[-1][0] - trend[0][0]) or 1

    def x(step: int) -> float:
        return round(_EDGE + (_WIDE - 2 * _EDGE) * (step - first) / wide, 1)

    def y(value: float) -> float:
        return round(_HIGH - _EDGE - (_HIGH - 2 * _EDGE) * (value - low) / ((high - low) or 1.0), 1)

    return TrendLine(
        points=" ".join(f"{x(step)},{y(value)}" for step, value in shown),
        end=(x(trend[-1][0]), y(trend[-1][1])),
        since=None if since is None else x(max(since, first)),
        between=None if between is None else (x(between[0]), round(x(between[1]) - x(between[0]), 1)),
        limit=None if limit is None else y(limit),
        first=trend[0],
        last=trend[-1],
    )


def checked(report: Report) -> dict[str, list[tuple[Checked, Diagnostic | None]]]:
    """Returns the checks without a card by their state; the diagnostic is None for a user's own."""
    return {state: [(it, _KNOWN.get(it.id)) for it in report.checked if it.state == state] for state in STATES}


def _shown(report: Report, card: Card, settings: Settings, run: str, count: Counting, parents: list[Card]) -> ShownCard:
    chosen, lost = _filter(card.where), report.fall.lost + report.fall.above
    return ShownCard(
        card=card,
        share=card.share or 0.0 if card.cost is None else min(max(card.cost / lost, 0.0), 1.0) if lost > 0 else 0.0,
        diagnostic=_KNOWN.get(card.id),
        trend=line(card.trend, card.since_step, card.limit, card.since_range),
        where=report.where_of(card),
        count=None if chosen is None else count(chosen),
        address=urls.matching(run, report.where_of(card)),
        set=settings.thresholds.get(card.id),
        follows_from=[(it.id, _KNOWN[it.id].name if it.id in _KNOWN else it.id) for it in parents],
    )


def _filter(where: str) -> RolloutFilter | None:
    """Parses a card's filter; None if the language cannot express it, since users may register diagnostics."""
    try:
        return parse_where(where)
    except FilterError:
        return None
