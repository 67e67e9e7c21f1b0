"""The page that compares two rollouts turn by turn."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import takewhile
from typing import NamedTuple

from fastapi import APIRouter, Request, Response
from sqlalchemy import Connection

from logs_ui.app.parts import figures, timeline, turns
from logs_ui.app.parts.charts import Scale
from logs_ui.app.parts.differences import ALIKE, Differ, Segment, equal_segments
from logs_ui.app.parts.divergence import find_divergence
from logs_ui.app.parts.filter_form import checked_filter
from logs_ui.app.parts.pictures import Picture
from logs_ui.app.parts.reward_parts import RewardPart, reward_parts
from logs_ui.app.parts.timeline import Card, Fields, Text
from logs_ui.app.parts.turns import Turn, TurnLine
from logs_ui.app.web import htmx, urls
from logs_ui.app.web.open_database import SourceOfPages, id_of
from logs_ui.recorder import queries
from logs_ui.recorder.analysis.diagnose import settings_of
from logs_ui.recorder.analysis.rollout_answers import answer_of
from logs_ui.recorder.diagnosis.answers import Answer
from logs_ui.recorder.errors import FilterError, RolloutNotFoundError
from logs_ui.recorder.queries import RunSummary
from logs_ui.recorder.queries.filters.rollout_filter import RolloutFilter
from logs_ui.recorder.storage.tables import EvaluationRow, Run

router = APIRouter()

_LONG, _END = 600, 400  # characters of a last message from which on its end comes first, and of that end
IMAGES = "images"
"""Name of the piece that has the images of a turn."""
_LEAST_ALIKE = 41  # characters: that fewer are alike says nothing
_SAME_REWARD = 1e-6  # rewards that differ by no more are equal to the trainer
_FIGURES = {"env_tokens": "environment tokens", "seconds": "duration"}


class Side(NamedTuple):
    """Describes one of the two rollouts."""

    summary: RunSummary
    row: EvaluationRow
    answer: Answer = Answer(None, None)


@dataclass(frozen=True)
class Half:
    """Holds one side of a piece: its segments, the name by which the whole text can be opened (None without one), and
    its images.
    """

    segments: list[Segment]
    part: str | None
    is_shortened: bool
    pictures: list[Picture] = field(default_factory=list)


class Piece(NamedTuple):
    """Shows a text of a turn in both rollouts, and its kind; `is_mono` is True for code rather than prose."""

    name: str
    a: Half
    b: Half
    is_equal: bool
    is_mono: bool
    is_marked: bool  # True if the texts have so much in common that it helps to mark what differs

    @property
    def title(self) -> str:
        """Return its kind, or the name of the action's argument that it is."""
        name = self.name.removeprefix("action ") if ":" in self.name else self.name
        return "message" if name == "assistant" else name


@dataclass(frozen=True)
class Aligned:
    """Shows one turn of both rollouts, or the prompt."""

    number: int  # 0 for the prompt
    pieces: list[Piece]
    is_divergence: bool  # True if the rollouts diverge here
    missing: str  # the side without this turn: `a`, `b`, or empty
    size: int  # number of characters in `a`
    # `a` and `b`: the turn in one line; None for the prompt, and for a rollout without this turn.
    a: TurnLine | None = None
    b: TurnLine | None = None
    is_same_action: bool = False

    @property
    def is_equal(self) -> bool:
        """True if all texts are identical; the turn is folded then."""
        return not self.missing and all(piece.is_equal for piece in self.pieces)

    @property
    def shared_size(self) -> int:
        """Return the number of characters with which its first texts begin alike; 0 if they are few."""
        prefix = takewhile(lambda segment: not segment.changed, self.pieces[0].a.segments if self.pieces else ())
        size = sum(len(segment.text) + segment.skipped for segment in prefix)
        return size if size >= _LEAST_ALIKE else 0


class ComparedFigure(NamedTuple):
    """Holds a figure of both rollouts; None for one that lacks it."""

    name: str
    kind: str
    a: float | None
    b: float | None

    @property
    def texts(self) -> tuple[str, str, str]:
        """Return both values and the difference from a to b, which is empty if one value is missing."""
        write, change = getattr(figures, self.kind), _difference(self.a, self.b)
        if change is None:
            difference = ""
        elif self.kind != "duration":
            difference = figures.signed(change, 0 if self.kind == "count" else 3)
        else:
            difference = (
                f"{figures.signed(change, 1)} s" if abs(change) >= 1 else f"{figures.signed(1000 * change, 0)} ms"
            )
        return write(self.a), write(self.b), difference


@dataclass(frozen=True)
class CompareRolloutsPage:
    """Context of `groups/compare_rollouts.html`."""

    a: Side
    b: Side
    chosen: RolloutFilter  # filter of `a`'s run, for the links back
    better: str  # the side with the higher reward, `a` or `b`; empty if they are equal, or one is missing
    # Each reward function, its part in both, None without one, and the difference; `scale` is that of their bars.
    rewards: list[tuple[str, RewardPart | None, RewardPart | None, float | None]]
    scale: Scale
    figures: list[ComparedFigure]
    ends: list[Piece]  # how reasoning and text of the last messages end, if they are long
    prompt: Aligned
    turns: list[Aligned]
    divergence: int | None  # the turn at which they diverge; None if they never do
    # First and last turn of what is left out of long rollouts, by the turn after it; `whole` is the address with all.
    gaps: dict[int, tuple[int, int]]
    whole: str


@router.get("/runs/{run_reference}/compare")
def compare_rollouts(request: Request, source: SourceOfPages, run_reference: str, a: str = "", b: str = "") -> Response:
    """Show rollout `a` of this run and rollout `b` of any run of the database."""
    id_a, id_b = _parse_id("a", a), _parse_id("b", b)
    with source.reading_run(run_reference) as (db, run):
        pairs = request.query_params.multi_items()
        chosen = checked_filter(db, run, [pair for pair in pairs if pair[0] not in {"a", "b", "whole"}])
        page = _page(db, run, chosen, id_a, id_b, is_whole="whole" in request.query_params)
    return htmx.render(request, "groups/compare_rollouts.html", page)


def _parse_id(name: str, written: str) -> int:
    digits = written.strip()
    if not (digits.isascii() and digits.isdigit() and len(digits) < 19):
        problem = f"{name} {written[:40]!r} is not a rollout's number" if digits else f"{name} is missing"
        raise FilterError(name, f"{problem}: write ?a=12&b=34, as the table of rollouts numbers them")
    return int(digits)


def _page(
    db: Connection, run: Run, chosen: RolloutFilter, id_a: int, id_b: int, *, is_whole: bool
) -> CompareRolloutsPage:
    (a, cards_a), (b, cards_b) = (_open_side(db, row_id) for row_id in (id_a, id_b))
    turns_a, turns_b = turns.turns_of(cards_a), turns.turns_of(cards_b)
    divergence = find_divergence(turns_a, turns_b)
    differ = Differ()
    numbers = sorted({turn.number for turn in (*turns_a, *turns_b)})
    gaps = [] if is_whole else turns.left_out(numbers, divergence)
    shown_a, shown_b = (
        [turn for turn in side if not any(first <= turn.number <= last for first, last in gaps)]
        for side in (turns_a, turns_b)
    )
    parts_a, parts_b = ({part.name: part for part in reward_parts(side.row)} for side in (a, b))
    part_pairs = [(name, parts_a.get(name), parts_b.get(name)) for name in dict.fromkeys([*parts_a, *parts_b])]
    worths = [part.worth for _, *parts in part_pairs for part in parts if part and part.worth is not None]
    return CompareRolloutsPage(
        a=a,
        b=b,
        chosen=chosen if a.summary.run.id == run.id else RolloutFilter(),
        better=better_side(a.row.reward, b.row.reward),
        rewards=[
            (name, part_a, part_b, _difference(part_a and part_a.worth, part_b and part_b.worth))
            for name, part_a, part_b in part_pairs
        ],
        scale=Scale.over(worths),
        figures=_figures(a.row, b.row),
        ends=_ends(turns_a, turns_b, differ),
        prompt=align_turn(0, turns.prompt_of(cards_a), turns.prompt_of(cards_b), differ),
        turns=_turns(shown_a, shown_b, divergence, differ),
        divergence=divergence,
        gaps={min(number for number in numbers if number > last): (first, last) for first, last in gaps},
        whole=f"{urls.compare_rollouts(run.uid, id_a, id_b, chosen)}&whole=1",
    )


def better_side(a: float | None, b: float | None) -> str:
    """Return the side with the higher reward, `a` or `b`; empty if they are equal, or one is missing."""
    change = _difference(a, b)
    return "" if change is None or abs(change) <= _SAME_REWARD else "a" if change < 0 else "b"


def _difference(a: float | None, b: float | None) -> float | None:
    return None if a is None or b is None else b - a


def _open_side(db: Connection, row_id: int) -> tuple[Side, list[Card]]:
    run_id = id_of(queries.run_of(db, row_id))
    rollout = queries.opened(db, run_id, [row_id]).get(row_id)
    if rollout is None:
        raise RolloutNotFoundError(f"No run of this database has a rollout {row_id}.")
    summary = queries.run_summary(db, run_id)
    answer = answer_of(settings_of(db, summary.run), rollout.row, vars(rollout))
    return Side(summary, rollout.row, answer), timeline.make_timeline(rollout)


def _ends(a: Sequence[Turn], b: Sequence[Turn], differ: Differ) -> list[Piece]:
    """Compare the ends of reasoning and text of the last messages, where one is long."""
    last_messages = [next((turn.message for turn in reversed(side) if turn.message), None) for side in (a, b)]
    pairs = (
        ("reasoning", [card.reasoning if card else None for card in last_messages]),
        ("assistant", [card.content if card else None for card in last_messages]),
    )
    return [
        compare_texts(f"{name}, its end", _end_of(text_a), _end_of(text_b), differ)
        for name, (text_a, text_b) in pairs
        if max(len(text.value) if text else 0 for text in (text_a, text_b)) > _LONG
    ]


def _end_of(text: Text | None) -> Text | None:
    """Return the end of a long text, from the beginning of a word on."""
    if text is None or len(text.value) <= _LONG:
        return text
    return Text(text.part, f"… {text.value[-_END:].partition(' ')[2]}")


def _turns(a: Sequence[Turn], b: Sequence[Turn], divergence: int | None, differ: Differ) -> list[Aligned]:
    turns_a, turns_b = ({turn.number: turn for turn in side} for side in (a, b))
    aligned_turns = []
    for number in sorted({*turns_a, *turns_b}):
        turn_a, turn_b = turns_a.get(number), turns_b.get(number)
        aligned_turn = replace(
            align_turn(number, _cards(turn_a), _cards(turn_b), differ, is_divergence=number == divergence),
            a=turn_a.line if turn_a else None,
            b=turn_b.line if turn_b else None,
            is_same_action=turn_a is not None and turn_b is not None and turn_a.action == turn_b.action,
        )
        rewards_a, rewards_b = _write_rewards(turn_a), _write_rewards(turn_b)
        if rewards_a or rewards_b:
            aligned_turn = replace(
                aligned_turn, pieces=[*aligned_turn.pieces, compare_texts("reward", rewards_a, rewards_b, differ)]
            )
        aligned_turns.append(aligned_turn)
    return aligned_turns


def _write_rewards(turn: Turn | None) -> Text | None:
    """Return the environment's rewards for a turn, and `done`; None without either."""
    answers = [card.answer for card in turn.answers if card.answer] if turn else []
    rewards = [f"{answer.reward:+.3g}" for answer in answers if answer.reward is not None]
    rewards += ["done"] if any(answer.done for answer in answers) else []
    return Text("", ", ".join(rewards)) if rewards else None


def _cards(turn: Turn | None) -> list[Card] | None:
    return None if turn is None else [*([turn.message] if turn.message else []), *turn.answers]


def align_turn(
    number: int, a: list[Card] | None, b: list[Card] | None, differ: Differ, *, is_divergence: bool = False
) -> Aligned:
    """Pair the texts of a turn by kind; None stands for a rollout without this turn."""
    texts_a, texts_b = (_name_texts(cards or []) for cards in (a, b))
    names = list(dict.fromkeys([*texts_a, *texts_b]))
    pieces = [compare_texts(name, texts_a.get(name), texts_b.get(name), differ) for name in names]
    pictures_a, pictures_b = (turns.images_of(cards or []) for cards in (a, b))
    if pictures_a or pictures_b:
        pieces.append(_compare_images(pictures_a, pictures_b))
    missing = "a" if a is None else "b" if b is None else ""
    return Aligned(number, pieces, is_divergence, missing, sum(len(text.value) for text in texts_a.values()))


def _name_texts(cards: Sequence[Card]) -> dict[str, Text]:
    """Return each text by its kind; further texts of a kind are numbered."""
    texts: dict[str, Text] = {}
    for name, value in (pair for card in cards for pair in _texts_of(card)):
        count = sum(key == name or key.startswith(f"{name} (") for key in texts)
        texts[f"{name} ({count + 1})" if count else name] = value
    return texts


def _texts_of(card: Card) -> list[tuple[str, Text]]:
    message_texts = [("reasoning", card.reasoning), (card.role if card.answer is None else "observation", card.content)]
    pairs = [(name, value) for name, value in message_texts if value is not None]
    for call in card.calls:
        pairs += [(f"{call.name} {name}".strip(), value) for name, value in call.arguments or [("", Text("", "()"))]]
    if card.answer:
        action = (
            [] if card.answer.is_called else _label_fields(f"action {card.answer.tool}".strip(), card.answer.action)
        )
        error = [("error", card.answer.error)] if card.answer.error else []
        pairs = [*action, *error, *pairs, *_label_fields("observation", card.answer.observation)]
    return pairs


def _label_fields(name: str, fields: Fields) -> list[tuple[str, Text]]:
    return [(f"{name}: {key}" if key else name, value) for key, value in fields]


def compare_texts(name: str, a: Text | None, b: Text | None, differ: Differ) -> Piece:
    """Compare two texts of the same kind, either of which may be None."""
    is_equal = a is not None and b is not None and a.value == b.value
    if a is not None and is_equal:
        segments_a = segments_b = list(equal_segments(a.value))
    elif a is None or b is None:
        segments_a, segments_b = (
            [Segment(segment.text, changed=True, skipped=segment.skipped) for segment in equal_segments(side.value)]
            if side
            else []
            for side in (a, b)
        )
    else:
        segments_a, segments_b = differ.compare(a.value, b.value)
    shared = sum(len(segment.text) + segment.skipped for segment in segments_a if not segment.changed)
    is_marked = shared >= ALIKE * max(len(side.value) for side in (a, b) if side) if a or b else False
    is_mono = not name.startswith(("assistant", "reasoning", "system", "user"))
    return Piece(
        name, _half(segments_a, a), _half(segments_b, b), is_equal=is_equal, is_mono=is_mono, is_marked=is_marked
    )


def _compare_images(a: list[Picture], b: list[Picture]) -> Piece:
    """Compare images by their content. Those that were not kept are never identical."""
    content = [picture.content for picture in a]
    is_equal = None not in content and content == [picture.content for picture in b]
    half_a, half_b = (Half([], None, is_shortened=False, pictures=pictures) for pictures in (a, b))
    return Piece(IMAGES, half_a, half_b, is_equal=is_equal, is_mono=False, is_marked=False)


def _half(segments: list[Segment], text: Text | None) -> Half:
    return Half(segments, text.part or None if text else None, any(segment.skipped for segment in segments))


def _figures(a: EvaluationRow, b: EvaluationRow) -> list[ComparedFigure]:
    columns = (
        ("reward", "number"), ("advantage", "signed"), ("turns", "count"), ("prompt_tokens", "count"),
        ("completion_tokens", "count"), ("env_tokens", "count"), ("seconds", "duration"),
    )  # fmt: skip
    all_figures = [
        ComparedFigure(_FIGURES.get(name, name.replace("_", " ")), kind, getattr(a, name), getattr(b, name))
        for name, kind in columns
    ]
    return [figure for figure in all_figures if figure.a is not None or figure.b is not None]
