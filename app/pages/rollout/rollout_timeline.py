"""Chooses what a rollout's timeline sends: all cards, or those around one turn, and the list of turns above them."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import orjson

from logs_ui.app.pages.rollout.long_timeline import Gap, Rail, numbered, rail, stretches
from logs_ui.app.parts import timeline, turns
from logs_ui.app.parts.timeline import Card
from logs_ui.app.parts.turns import TurnLine
from logs_ui.app.web import urls
from logs_ui.recorder.queries import Rollout
from logs_ui.recorder.queries.filters.rollout_filter import RolloutFilter
from logs_ui.recorder.queries.search.hits import searches
from logs_ui.recorder.queries.search.words import place_of

Show = Literal["output", "reasoning", "assistant", "rendered"]
"""Switches of the timeline: "assistant" hides prompt and output, "rendered" shows Markdown; the others unfold texts."""
_LONG, _FIRST_LINES = 40, 12
"""Number of turns from which the list above a timeline is cut, and number that it then has at first."""


@dataclass(frozen=True)
class RolloutTimeline:
    """Describes what the page's middle, and the outline beside it, show of a rollout's messages and calls."""

    cards: list[Card]  # `anomaly` is the first of them that went wrong
    anomaly: Card | None
    # The cards that are sent, and the gaps between them; `rail` shows all turns if they are many. The page opens at the
    # turn `around`.
    stretches: list[tuple[list[Card], Gap | None]]
    around: int
    sent: set[str]  # anchors of the cards that are sent
    rail: Rail | None
    lines: list[TurnLine]  # its turns in one line each; empty unless more than three of them act
    listed_lines: int  # number of those that are sent at first
    scoring: list[Card]  # the calls that reward functions made for the rollout
    searched: str  # fields and phrases of the filter's text search, as a JSON list; empty without any
    is_match: Callable[[str, str], bool]  # True if `searched` finds a text, given who wrote it and the text

    @property
    def opening(self) -> str:
        """Return the anchor of the first anomaly; empty without any."""
        return "" if self.anomaly is None else self.anomaly.anchor

    @property
    def most_tokens(self) -> int:
        """Return the largest number of tokens that the model sampled for a card, at least 1."""
        return max([card.tokens or 0 for card in self.cards if card.role == "assistant"], default=0) or 1


def make_rollout_timeline(
    rollout: Rollout, chosen: RolloutFilter, parameters: dict[str, str], show: tuple[Show, ...], *, is_sent: bool
) -> RolloutTimeline:
    """Make the timeline; without `is_sent` another view is open, which needs no stretches."""
    cards = timeline.make_timeline(rollout)
    visible = cards
    if "assistant" in show:
        visible = [card for card in cards if card.said_by == "assistant" or card.role == "model"]
    searched = searches(chosen)

    def is_match(by: str, text: str) -> bool:
        return any(field in {"text", by} and place_of(phrase, text) for field, phrase in searched)

    parted, around = _stretches(visible, parameters, show, is_match) if is_sent else ([], 0)
    lines = [turn.line for turn in turns.turns_of(cards)]
    return RolloutTimeline(
        cards=cards,
        anomaly=next((card for card in cards if card.anomaly), None),
        stretches=parted,
        around=around,
        sent={card.anchor for sent_cards, _ in parted for card in sent_cards},
        rail=rail(cards, lines),
        lines=lines if sum(bool(line.action) for line in lines) > 3 else [],
        listed_lines=len(lines) if parameters.get("lines") or len(lines) <= _LONG else _FIRST_LINES,
        scoring=timeline.make_scoring(rollout),
        searched=orjson.dumps(searched).decode() if searched else "",
        is_match=is_match,
    )


def _stretches(
    cards: list[Card], parameters: dict[str, str], show: tuple[Show, ...], is_match: Callable[[str, str], bool]
) -> tuple[list[tuple[list[Card], Gap | None]], int]:
    """Return the cards to send, and the turn where the page opens; 0 for its beginning."""
    placed = numbered(cards)
    ranges = [gap.partition("-")[::2] for gap in (parameters.get("fill") or parameters.get("gaps") or "").split(",")]
    gaps = [(urls.parse_whole(a), urls.parse_whole(b)) for a, b in ranges[:20] if b]
    hits = {card.anchor: place for place, card in placed if place and any(is_match(*text) for text in _texts(card))}
    failed = (place for place, card in placed if card.anomaly)
    around = urls.parse_whole(parameters.get("turn", "")) or min(hits.values(), default=0) or next(failed, 0)
    asked_gaps = gaps if {"gaps", "fill"} & parameters.keys() else None
    is_open = set(hits) if "output" not in show else {card.anchor for card in cards}
    return stretches(cards, asked_gaps, is_filled="fill" in parameters, around=around, is_open=is_open), around


def _texts(card: Card) -> list[tuple[str, str]]:
    """Return (writer, text) for each text of a card; the model is the writer of an action."""
    sent = {value.part for _, value in card.answer.action} if card.answer and card.said_by == "tool" else set()
    return [("assistant" if part in sent else card.said_by, text) for part, text in timeline.texts([card]).items()]
