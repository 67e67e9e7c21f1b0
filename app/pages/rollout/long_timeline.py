"""Chooses the turns of a long rollout that its page sends: the first, the last, and those that a reader looks for.
Between them are gaps, which the page fills while it is read.
"""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Sequence
from itertools import groupby
from typing import NamedTuple

from logs_ui.app.parts import safe_text
from logs_ui.app.parts.safe_text import TEXT_LIMIT
from logs_ui.app.parts.timeline import Card
from logs_ui.app.parts.turns import TurnLine

_HEAD, _AROUND, _TAIL, _MORE = 10_000, 6_000, 4_000, 18_000
"""Characters that each stretch of turns may send; `_MORE` when a gap is filled."""
_PER_CARD, _PER_FIELD = 900, 200  # characters of the frames of a card, and of a field
_FIELDS = 8  # calls of a card of a long rollout, and arguments of a call, that are shown
_VALUE = 500  # characters of each
_LEAST_GAP = 4  # turns
_RAIL_FROM = 30  # turns
_LISTED = 24  # marks
_BAND = 10  # turns; more where there are more than 300


Gap = tuple[int, int]  # its first and last turn


class Mark(NamedTuple):
    """Marks turns on the rail, as "bad", "warn", "positive" or "negative" rewards, or about ten of them ("band")."""

    turn: int
    last: int
    anchor: str
    kind: str
    title: str
    share: float = 0  # size of a band's output, as a share of the largest

    @property
    def label(self) -> str:
        return self.title if self.kind == "band" else f"turn {self.turn}: {self.title}"

    @property
    def height(self) -> int:
        return self.last - self.turn + 1

    @property
    def path(self) -> str:
        """Its area on the rail, which is 40 wide; a reward has the right half."""
        left = 20 if self.kind in {"positive", "negative"} else 0
        return f"M{left} {self.turn - 1}H40V{self.last}H{left}Z"


class Rail(NamedTuple):
    """Holds the marks of a long rollout, which its outline draws and lists."""

    bands: list[Mark]
    marks: list[Mark]  # the others, in order

    @property
    def turns(self) -> int:
        return self.bands[-1].last

    @property
    def listed_marks(self) -> list[Mark]:
        """Return the marks in words: the bands if there are no others, and no rewards if there are too many."""
        troubles = [mark for mark in self.marks if mark.kind not in {"positive", "negative"}]
        return (self.bands if not self.marks else self.marks if len(self.marks) <= _LISTED else troubles)[:_LISTED]

    @property
    def more(self) -> int:
        return max(0, len(self.marks) - len(self.listed_marks))


def numbered(cards: Iterable[Card]) -> list[tuple[int, Card]]:
    """Return each card with its turn's place among the recorded turns, from 1; 0 for the prompt."""
    placed, place, highest = [], 0, 0
    for card in cards:
        if (card.turn or 0) > highest:
            place, highest = place + 1, card.turn or 0
        placed.append((place, card))
    return placed


def stretches(
    cards: Sequence[Card], gaps: Sequence[Gap] | None, *, is_filled: bool, around: int, is_open: Collection[str]
) -> list[tuple[list[Card], Gap | None]]:
    """Divide a timeline into cards that are sent, and the gap after them. `gaps` are those of the page as it is shown;
    None for a new page, which opens at the turn `around`. With `is_filled` only turns of the first gap are sent.
    `is_open` are the anchors of the cards whose output is unfolded.
    """
    all_placed = numbered(cards)
    is_long = bool(all_placed) and all_placed[-1][0] > _RAIL_FROM
    placed = [pair for pair in all_placed if not is_filled or (gaps and gaps[0][0] <= pair[0] <= gaps[0][1])]
    cost: Counter[int] = Counter()
    for number, card in placed:
        cost[number] += _PER_CARD + _count_characters(card, is_open=card.anchor in is_open, is_long=is_long)
    turns = sorted(cost)
    if gaps is None or is_filled:
        sent_turns = {0, *_take_within(cost, turns, _MORE if is_filled else _HEAD)}
        if not is_filled:
            sent_turns.update(_take_within(cost, reversed(turns), _TAIL))
            sent_turns.update(
                _take_within(cost, sorted(turns, key=lambda turn: abs(turn - around)), _AROUND) if around else ()
            )
        hidden = [[*run] for is_shown, run in groupby(turns, sent_turns.__contains__) if not is_shown]
        gaps = [(run[0], run[-1]) for run in hidden if len(run) >= _LEAST_GAP]
    begins, ends = [0, *(last + 1 for _, last in gaps)], [*(first for first, _ in gaps), len(cards) + 1]
    sent = [[card for number, card in placed if begin <= number < end] for begin, end in zip(begins, ends, strict=True)]
    return list(zip(sent, [*gaps, None], strict=True))


def rail(cards: Sequence[Card], lines: Sequence[TurnLine]) -> Rail | None:
    """Return the marks of a rollout of more than 30 turns; None for a shorter one, whose turns are listed. `lines` are
    its turns, in order.
    """
    placed = numbered(cards)
    turns = placed[-1][0] if placed else 0
    if turns <= _RAIL_FROM:
        return None
    starts = {number: card.anchor for number, card in reversed(placed)}
    anomalies = {number for number, card in placed if card.anomaly}
    band = max(_BAND, turns // 30)
    ends = [(n, min(n + band - 1, turns)) for n in range(1, turns + 1, band)]
    marks_by_kind: dict[str, list[Mark]] = defaultdict(list)
    for number, card in placed:
        answer = card.answer
        if card.anomaly or (answer and answer.is_fallback):
            reason = card.anomaly or "action not in the answer"
            _add_mark(marks_by_kind[reason], Mark(number, number, card.anchor, card.tone, reason), reason)
        if answer and answer.reward:
            kind = "negative" if answer.reward < 0 else "positive"
            mark = Mark(number, number, card.anchor, kind, f"reward {answer.reward:+.3g}")
            _add_mark(marks_by_kind[kind], mark, f"{kind} rewards")
    for number, line in enumerate(lines, 1):
        if line.failure and number not in anomalies:
            reason = line.failure if line.exit_code is None else line.outcome
            title = safe_text.label(f"{line.tool}: {reason}" if line.tool else reason, 60)
            _add_mark(
                marks_by_kind["failures"], Mark(number, number, line.anchor, "warn", title), "answered with errors"
            )
    sizes = [sum(line.size or 0 for line in lines[first - 1 : last]) for first, last in ends]
    bands = [
        Mark(first, last, starts[first], "band", _band_title(first, lines[first - 1 : last]), size / (max(sizes) or 1))
        for (first, last), size in zip(ends, sizes, strict=True)
    ]
    return Rail(bands, sorted(mark for marks in marks_by_kind.values() for mark in marks))


def _band_title(first: int, lines: Sequence[TurnLine]) -> str:
    """Return the places of the turns, and the tools that were called most: `turns 1 to 10: bash 7, edit 3`."""
    tools = Counter(line.tool for line in lines if line.tool).most_common(3)
    called = ", ".join(f"{safe_text.label(tool, 30)} {count}" for tool, count in tools)
    return f"turns {first} to {first + len(lines) - 1}" + (f": {called}" if called else "")


def _add_mark(marks: list[Mark], mark: Mark, title: str) -> None:
    """Add a mark, to that of the turn before if there is one."""
    if marks and marks[-1].last >= mark.turn - 1:
        mark = marks.pop()._replace(last=mark.turn, title=f"{title}, to turn {mark.turn}")
    marks.append(mark)


def _count_characters(card: Card, *, is_open: bool, is_long: bool) -> int:
    """Return the number of characters that a card sends. `_texts.html` cuts fields of a long rollout alike."""
    action = card.answer.action if card.answer and not card.answer.is_called else []
    values = [
        value
        for fields in (action, *(call.arguments for call in card.calls[:_FIELDS]))
        for _, value in fields[:_FIELDS]
    ]
    cost = sum(_PER_FIELD + min(len(value.value), _VALUE if is_long else TEXT_LIMIT) for value in values)
    if is_open or not card.is_folded:
        cost += sum(len(text.value) for text in (card.output if card.is_reply else [card.content]) if text)
    return cost


def _take_within(cost: Counter[int], turns: Iterable[int], budget: int) -> list[int]:
    """Return turns in that order until their cost exceeds the budget."""
    numbers: list[int] = []
    for number in turns:
        if budget <= 0 and numbers:
            break
        budget -= cost[number]
        numbers.append(number)
    return numbers
