"""Shows one rollout: timeline, tokens, raw record, reward and group."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, Literal, NamedTuple, get_args

import orjson
from fastapi import APIRouter, Request, Response
from fastapi.responses import RedirectResponse
from sqlalchemy import Connection

from logs_ui.app.pages.rollout.long_timeline import Gap, Rail, numbered, rail, stretches
from logs_ui.app.pages.rollout.token_view import TokenView, make_view
from logs_ui.app.parts import figures, safe_text, timeline, turns, words
from logs_ui.app.parts import notes_forms as notes
from logs_ui.app.parts.charts import Scale, stacked
from logs_ui.app.parts.diagnoses import cached_diagnosis
from logs_ui.app.parts.filter_form import checked_filter
from logs_ui.app.parts.loss_waterfall import ICONS
from logs_ui.app.parts.notes_forms import Marks, NotebookOfPages
from logs_ui.app.parts.reward_parts import RewardPart, reward_parts
from logs_ui.app.parts.timeline import Card, Text
from logs_ui.app.parts.turns import TurnLine
from logs_ui.app.parts.words import Word
from logs_ui.app.web import htmx, page_cache, urls
from logs_ui.app.web.open_database import SourceOfPages, id_of, storable
from logs_ui.app.web.page_cache import is_long
from logs_ui.app.web.security import PLAIN_TEXT_POLICY
from logs_ui.recorder import queries
from logs_ui.recorder.analysis.diagnose import settings_of
from logs_ui.recorder.analysis.diagnosis_columns import columns_of
from logs_ui.recorder.analysis.export.exported import iso
from logs_ui.recorder.analysis.rescore.reward_inputs import Rebuilding
from logs_ui.recorder.analysis.rollout_answers import answer_of
from logs_ui.recorder.diagnosis.answers import Answer
from logs_ui.recorder.diagnosis.rollout_rows import SAME
from logs_ui.recorder.diagnosis.tables.one_rollout import Training, training
from logs_ui.recorder.diagnosis.waterfall import cause_of
from logs_ui.recorder.errors import ImageNotFoundError, RolloutNotFoundError
from logs_ui.recorder.labels import tags_in
from logs_ui.recorder.queries import Neighbours, Rollout, RunSummary
from logs_ui.recorder.queries.filters.rollout_filter import RolloutFilter, check_word
from logs_ui.recorder.queries.notebook import Notebook
from logs_ui.recorder.queries.search.hits import searches
from logs_ui.recorder.queries.search.words import place_of
from logs_ui.recorder.storage.payload import first_answer
from logs_ui.recorder.storage.tables import EvaluationRow, Run
from logs_ui.recorder.vocabulary import Handed, LossCause, Mode, RunState, Status

router = APIRouter()

View = Literal["timeline", "tokens", "raw"]
Show = Literal["output", "reasoning", "assistant", "rendered"]
"""Switches of the timeline: "assistant" hides prompt and output, "rendered" shows Markdown; the others unfold texts."""
_OWN = {"view", "seen", "show", "turn", "lines", "gaps", "fill"}  # parameters that are not a filter's
_LONG, _FIRST_LINES = 40, 12
"""Number of turns from which the list above a timeline is cut, and number that it then has at first."""
_TOKEN_LIST = 4_096
"""Maximum number of token ids in the raw view; longer arrays are shown as their length there, and in full in its plain
text.
"""
_IMAGE_TYPES = ("image/png", "image/jpeg", "image/webp")
"""Media types that cannot contain a script."""
_IMAGE_HEADERS = {"Content-Security-Policy": PLAIN_TEXT_POLICY, "Content-Disposition": "inline"}
_OWN_PANEL = ("traceback", "server_log", "dataset_prompt")
"""Metadata that has a panel of its own."""
_EMPTY: tuple[Any, ...] = (None, "", [], {})
_AS_COLUMNS = {"env_reward": "rollout_reward", "turns": "turns", "error": "error"}
"""Metadata that rollout functions return for reward functions, and the columns with the same values."""


class Member(NamedTuple):
    """Describes one rollout of the group, and its dot on the strip; None without a reward."""

    row: EvaluationRow
    dot: tuple[float, float] | None


class Loss(NamedTuple):
    """The cause that ended a rollout, and the reward that it lost."""

    word: Word
    # The run's best reward minus the rollout's, at least 0; None if the run is not diagnosed yet, has no best reward,
    # or its diagnosis does not cover the rollout.
    lost: float | None
    best: float | None
    solved: str  # the definition of solved if the rollout meets it; else ""
    address: str


@dataclass(frozen=True)
class RolloutPage:
    """Context of `rollout/rollout.html` and `rollout/_rollout.html`."""

    summary: RunSummary
    row: EvaluationRow
    chosen: RolloutFilter  # the filter that previous and next follow
    neighbours: Neighbours
    view: View
    cards: list[Card]  # of the timeline; `anomaly` is the first of them that went wrong
    # The cards that are sent, and the gaps between them; `rail` shows all turns if they are many. The page opens at the
    # turn `around`.
    stretches: list[tuple[list[Card], Gap | None]]
    around: int
    rail: Rail | None
    sent: set[str]  # anchors of the cards that are sent
    opening: str  # that of the first anomaly; empty without any
    lines: list[TurnLine]  # its turns in one line each; empty unless more than three of them act
    listed_lines: int  # number of those that are sent at first
    show: tuple[Show, ...]
    found: Callable[[str, str], bool]  # returns True if `searched` finds a text, given who wrote it and the text
    scoring: list[Card]  # the calls that reward functions made for the rollout
    anomaly: Card | None
    most_tokens: int
    traceback: Text | None
    server_log: Text | None  # end of the environment server's log, for a failed rollout that names a log
    sent_prompt: Word | None  # how the prompt that was sent differs from the dataset's
    dataset_prompt: Text | None  # that prompt, if it does
    is_parsed: bool  # True if reward functions were handed another text than the messages show
    # The weakest evidence of its call attribution, and its meaning; None without calls.
    evidence: tuple[str, str] | None
    marks: Marks
    metrics: list[tuple[str, str]]
    notes: list[tuple[str, str]]
    dropped: Word | None  # how the trainer dropped it; None if it did not
    loss: Loss | None  # its cause and lost reward; None if not known yet
    trained: Training | None  # its use in training; None in a run without training
    tokens: TokenView | None
    answer: Answer
    raw: Text | None  # the whole record as JSON, in the raw view
    parts: list[RewardPart]
    scale: Scale  # scale of the bars of `parts`
    group: list[Member]
    rivals: list[tuple[str, int]]  # names and ids of those to compare it with: best and worst, or another as good
    strip: Scale  # scale of the dots of `group`
    waits: list[tuple[str, float]]  # what it waited for after it began, and for how many seconds
    sampling: list[tuple[str, str]]
    metadata: Text | None  # metadata that nothing else on the page shows
    searched: str  # fields and phrases of the filter's text search, as a JSON list; empty without any
    refresh: str | None  # address to poll while the rollout is not settled; None if nothing is to come


@router.get("/runs/{name}/rollouts/{row_id}")
def rollout(request: Request, source: SourceOfPages, notebook: NotebookOfPages, name: str, row_id: int) -> Response:
    """Show the timeline, the tokens or the raw record."""
    pairs = request.query_params.multi_items()
    parameters = dict(pair for pair in pairs if pair[0] in _OWN)
    view, show = _view(parameters.get("view", "")), _shown(parameters.get("show", ""))
    turn, target = urls.parse_whole(parameters.get("turn", "")), htmx.target(request)
    with source.reading_run(name) as (db, run):
        rollout = queries.rollout(db, id_of(run), storable(row_id))
        chosen = checked_filter(db, run, [pair for pair in pairs if pair[0] not in _OWN])
        if target is None and name != run.uid:
            return RedirectResponse(urls.rollout(run.uid, row_id, chosen, view=view, show=show, turn=turn), 303)
        page = _page(db, notebook, run, rollout, chosen, view, show, parameters)
    if target == "rollout" and parameters.get("seen") == _seen(rollout.row, page.summary):
        return htmx.nothing_new()
    if target and target.startswith("gap-"):
        return htmx.fragment(request, "rollout/_stretches.html", page)
    return htmx.render(request, "rollout/rollout.html", page, fragments=("rollout",))


@router.get("/runs/{name}/rollouts/{row_id}/folded/{anchor}")
def folded(request: Request, source: SourceOfPages, name: str, row_id: int, anchor: str, show: str = "") -> Response:
    """Return what a page left out of a folded card: its reasoning, or its output."""
    with source.reading_run(name) as (db, run):
        rollout = queries.rollout(db, id_of(run), storable(row_id))
        piece = _panel(db, run, rollout, anchor)
    card_anchor = anchor.removesuffix("-reasoning")
    card = next((card for card in timeline.make_timeline(rollout) if card.anchor == card_anchor), None)
    if card is None and piece is None:
        raise RolloutNotFoundError(f"rollout {row_id} has no message called {anchor[:60]!r}: load its page again")
    fields = {"card": card, "piece": piece, "is_reasoning": anchor != card_anchor}
    context = SimpleNamespace(run=run, row=rollout.row, show=_shown(show), **fields)
    return htmx.fragment(request, "rollout/_folded.html", context)


@router.get("/runs/{name}/rollouts/{row_id}/text/{part}")
def plain_text(source: SourceOfPages, name: str, row_id: int, part: str) -> Response:
    """Return one text of a rollout as plain text, or an image that a message contains, such as a VLM's prompt."""
    with source.reading_run(name) as (db, run):
        rollout = queries.rollout(db, id_of(run), storable(row_id))
        panel = _panel(db, run, rollout, part)
    cards = [*timeline.make_timeline(rollout), *timeline.make_scoring(rollout)]
    if image := next(
        (picture for card in cards for picture in card.pictures if picture.data and picture.part == part), None
    ):
        return Response(image.data, media_type=image.media_type, headers=_IMAGE_HEADERS | {"Cache-Control": "no-cache"})
    if part == "raw":
        value: str | None = safe_text.as_json(_record(rollout, token_limit=None))
    else:
        value = panel.value if panel else timeline.texts(cards).get(part)
    if value is None:
        raise RolloutNotFoundError(f"rollout {row_id} has no text called {part[:60]!r}")
    return htmx.plain_text(value)


@router.get("/images/{image_hash}")
def image(source: SourceOfPages, image_hash: str) -> Response:
    """Return an image. The browser may cache it forever, because the address is its hash."""
    with source.reading() as db:
        picture = queries.image(db, image_hash)
    if picture.media_type not in _IMAGE_TYPES:
        raise ImageNotFoundError("This image is of a kind that is not shown.")
    headers = _IMAGE_HEADERS | {"Cache-Control": "private, max-age=31536000, immutable"}
    return Response(picture.data, media_type=picture.media_type, headers=headers)


def _view(written: str) -> View:
    if written:
        check_word("view", "view", written, get_args(View))
    return next((view for view in get_args(View) if view == written), "timeline")


def _shown(written: str) -> tuple[Show, ...]:
    return tuple(word for word in get_args(Show) if word in written.split(","))


def _stretches(
    cards: list[Card], parameters: dict[str, str], show: tuple[Show, ...], is_match: Callable[[str, str], bool]
) -> tuple[list[tuple[list[Card], Gap | None]], int]:
    """Return the cards to send, and the turn where the page opens; 0 for its beginning."""
    placed = numbered(cards)
    gap_texts = (parameters.get("fill") or parameters.get("gaps") or "").split(",")[:20]
    gap_ends = [text.partition("-")[::2] for text in gap_texts]
    gaps = [(urls.parse_whole(a), urls.parse_whole(b)) for a, b in gap_ends if b]
    searched = {card.anchor: place for place, card in placed if place and any(is_match(*pair) for pair in _said(card))}
    failed = (place for place, card in placed if card.anomaly)
    around = urls.parse_whole(parameters.get("turn", "")) or min(searched.values(), default=0) or next(failed, 0)
    shown_gaps = gaps if {"gaps", "fill"} & parameters.keys() else None
    is_open = set(searched) if "output" not in show else {card.anchor for card in cards}
    return stretches(cards, shown_gaps, is_filled="fill" in parameters, around=around, is_open=is_open), around


def _said(card: Card) -> list[tuple[str, str]]:
    """Return (writer, text) for each text of a card; the model is the writer of an action."""
    sent = {value.part for _, value in card.answer.action} if card.answer and card.said_by == "tool" else set()
    return [("assistant" if part in sent else card.said_by, text) for part, text in timeline.texts([card]).items()]


def _page(
    db: Connection, notebook: Notebook, run: Run, rollout: Rollout, chosen: RolloutFilter, view: View,
    show: tuple[Show, ...], parameters: dict[str, str],
) -> RolloutPage:  # fmt: skip
    row = rollout.row
    summary = queries.run_summary(db, id_of(run))
    total = page_cache.figure(db, summary, queries.count, chosen)
    near = queries.neighbours_in_time if is_long(summary, chosen) else queries.neighbours
    cards = timeline.make_timeline(rollout)
    shown_cards = (
        [card for card in cards if card.said_by == "assistant" or card.role == "model"]
        if "assistant" in show
        else cards
    )
    searched = searches(chosen)

    def is_match(by: str, text: str) -> bool:
        return any(field in {"text", by} and place_of(phrase, text) for field, phrase in searched)

    sent_stretches, around = _stretches(shown_cards, parameters, show, is_match) if view == "timeline" else ([], 0)
    calls = sum(card.is_own for card in cards)
    anomaly, traceback = next((card for card in cards if card.anomaly), None), _metadata_text(rollout, "traceback")
    lines = [turn.line for turn in turns.turns_of(cards)]
    parts = reward_parts(row)
    group = sorted(
        queries.group_rows(db, id_of(run), row.id or 0), key=lambda member: (member.generation, member.id or 0)
    )
    strip = Scale.over([member.reward for member in group if member.reward is not None])
    return RolloutPage(
        summary=summary,
        row=row,
        chosen=chosen,
        neighbours=near(db, id_of(run), chosen, row, total=total),
        view=view,
        cards=cards,
        stretches=sent_stretches,
        around=around,
        rail=rail(cards, lines),
        sent={card.anchor for cards_sent, _ in sent_stretches for card in cards_sent},
        opening="" if anomaly is None else anomaly.anchor,
        lines=lines if sum(bool(line.action) for line in lines) > 3 else [],
        listed_lines=len(lines) if parameters.get("lines") or len(lines) <= _LONG else _FIRST_LINES,
        show=show,
        found=is_match,
        scoring=timeline.make_scoring(rollout),
        anomaly=anomaly,
        most_tokens=max([card.tokens or 0 for card in cards if card.role == "assistant"], default=0) or 1,
        traceback=traceback,
        server_log=_metadata_text(rollout, "server_log"),
        sent_prompt=words.SENT_PROMPTS.get(row.sent_prompt or ""),
        dataset_prompt=_metadata_text(rollout, "dataset_prompt"),
        is_parsed=_is_parsed(rollout) and run.tokenizer is not None,
        evidence=_evidence(rollout),
        marks=notes.of_rollout(db, notebook, run, rollout),
        metrics=_named(rollout.metadata.get("metrics")),
        notes=_named(rollout.metadata.get("notes")),
        dropped=words.DROPPED.get(rollout.row.dropped or ""),
        loss=_loss(db, run, row),
        trained=None if summary.is_evaluation else _trained(run, row, group, summary),
        tokens=make_view(db, run, rollout, calls) if view == "tokens" else None,
        answer=answer_of(settings_of(db, run), row, vars(rollout)),
        raw=Text("raw", safe_text.as_json(_record(rollout, token_limit=_TOKEN_LIST))) if view == "raw" else None,
        parts=parts,
        scale=Scale.over([part.worth for part in parts if part.worth is not None]),
        group=[Member(r, dot) for r, dot in zip(group, stacked([r.reward for r in group], strip), strict=True)],
        rivals=rivals(row, group),
        waits=waits(row),
        strip=strip,
        sampling=_named(rollout.sampling),
        metadata=_metadata(rollout),
        searched=orjson.dumps(searched).decode() if searched else "",
        refresh=_refresh(run, row, summary, chosen, view, show),
    )


def rivals(row: EvaluationRow, group: Iterable[EvaluationRow]) -> list[tuple[str, int]]:
    """Return names and ids of the best and the worst of the group, if they differ from a scored rollout in reward;
    else of another.
    """
    scored = sorted(
        ((member.reward, member.id or 0) for member in group if member.reward is not None), key=lambda pair: pair[0]
    )
    if row.reward is None or len(scored) < 2:
        return []
    ends = ("the best", scored[-1]), ("the worst", scored[0])
    others = [("another", row_id) for _, row_id in scored if row_id != row.id][:1]
    return [(name, row_id) for name, (reward, row_id) in ends if reward != row.reward] or others


def waits(row: EvaluationRow) -> list[tuple[str, float]]:
    """Return the seconds until it returned, and from then until it was scored, of those that took any."""
    moments = (("returned after", row.created, row.returned), ("scored after", row.returned, row.scored))
    return [(name, (end - begin) / 1e6) for name, begin, end in moments if begin and end and end > begin]


def _loss(db: Connection, run: Run, row: EvaluationRow) -> Loss | None:
    """Return the loss, or None if the rollout has no cause yet. Never waits for a diagnosis."""
    cause = cause_of(row)
    if cause is None:
        return None
    diagnosis = cached_diagnosis(db, run) if row.mode == queries.mode_of(db, row.run_id) else None
    best, solved = None, ""
    # The rollout may not be in the sample.
    if diagnosis is not None and len(rows := diagnosis.rows.where(diagnosis.rows.id == row.id)):
        scale = diagnosis.report.scale
        best = None if scale.is_flat else float(scale.bests(diagnosis.rows)[diagnosis.rows.id == row.id][0])
        solved = scale.success.said if scale.success.solved(rows).any() else ""
    lost = None if best is None else max(best - (row.reward or 0.0), 0.0)
    if lost is not None and lost <= SAME * max(abs(best or 0.0), 1):
        lost = 0.0
    is_low = cause.id != LossCause.WRONG_ANSWER or lost
    word = Word(cause.name, ICONS[cause.id], "quiet", cause.meaning) if is_low else words.ENDED
    return Loss(word, lost, best, solved, urls.why(run.uid))


def _trained(run: Run, row: EvaluationRow, group: list[EvaluationRow], summary: RunSummary) -> Training:
    return training(
        # It may have been deleted meanwhile.
        columns_of(group if any(other.id == row.id for other in group) else [row]),
        row.id or 0,
        is_evaluation=row.mode == Mode.EVAL,
        is_running=summary.state == RunState.RUNNING,
        config=run.config,
    )


def _refresh(
    run: Run, row: EvaluationRow, summary: RunSummary, chosen: RolloutFilter, view: View, show: tuple[Show, ...]
) -> str | None:
    if words.is_settled(row) or not (summary.is_alive or row.status == Status.RUNNING):
        return None
    return urls.rollout(run.uid, row.id or 0, chosen, view=view, show=show, seen=_seen(row, summary))


def _seen(row: EvaluationRow, summary: RunSummary) -> str:
    return f"{row.changed}.{row.status}.{summary.state}"


def _metadata_text(rollout: Rollout, name: str) -> Text | None:
    value = rollout.metadata.get(name)
    return Text(name, safe_text.as_text(value)) if value else None


def _panel(db: Connection, run: Run, rollout: Rollout, part: str) -> Text | None:
    """Return a text that stands in no message; None if there is none of that name."""
    if part == "handed" and _is_parsed(rollout):
        return Text(part, safe_text.as_text(Rebuilding(db, run).handed_text(rollout)))
    return _metadata(rollout) if part == "metadata" else _metadata_text(rollout, part) if part in _OWN_PANEL else None


def _is_parsed(rollout: Rollout) -> bool:
    """Return True if reward functions were handed one text, of which the messages show several parts."""
    answered = rollout.messages[first_answer(rollout.messages, rollout.row.turns) :]
    message = answered[0] if answered else {}
    is_parted = len(answered) > 1 or message.get("reasoning_content") is not None or bool(message.get("tool_calls"))
    return rollout.row.handed == Handed.TEXT and rollout.tokens is not None and is_parted


def _evidence(rollout: Rollout) -> tuple[str, str] | None:
    word = str(rollout.metadata.get("attribution", ""))
    return (word, words.EVIDENCE[word]) if word in words.EVIDENCE else None


def _named(value: Any) -> list[tuple[str, str]]:
    """Return names and values. The value may be anything, since the user's `edit` function may have written it."""
    return [(str(name), safe_text.as_text(item)) for name, item in value.items()] if isinstance(value, dict) else []


def _metadata(rollout: Rollout) -> Text | None:
    """Return the metadata that nothing else on the page shows; the raw view has all of it."""
    metadata = rollout.metadata
    is_shown = {
        **dict.fromkeys(_OWN_PANEL, True),
        **{name: metadata.get(name) == getattr(rollout.row, column) for name, column in _AS_COLUMNS.items()},
        "step_rewards": metadata.get("step_rewards")
        == [action.get("reward") for action in rollout.own_actions if action.get("turn")],
        "tags": tags_in(metadata),
        "metrics": _named(metadata.get("metrics")),
        "notes": _named(metadata.get("notes")),
        "attribution": _evidence(rollout),
    }
    rest = {name: value for name, value in metadata.items() if not is_shown.get(name) and value not in _EMPTY}
    return Text("metadata", safe_text.as_json(rest)) if rest else None


def _record(rollout: Rollout, *, token_limit: int | None) -> dict[str, Any]:
    """Return the record as plain values. Arrays longer than `token_limit` are replaced by a note of their length."""

    def ids(values: Any) -> Any:
        if values is None:
            return None
        short = values.astype(str).astype(float) if values.dtype.kind == "f" else values  # of float16, what it says
        listed: list[float] = short.tolist()
        return (
            listed if token_limit is None or len(listed) <= token_limit else f"{len(listed)} values: see the plain text"
        )

    tokens, row = rollout.tokens, {name: getattr(rollout.row, name) for name in EvaluationRow.model_fields}
    times = {name: row[name] for name in ("created", "returned", "scored", "pruned")}
    whole = {
        **row,
        **{name: None if moment is None else iso(moment) for name, moment in times.items()},
        "messages": rollout.messages,
        "actions": rollout.actions,
        "sampling": rollout.sampling,
        "metadata": rollout.metadata,
        "tokens": None if tokens is None else {name: ids(values) for name, values in vars(tokens).items()},
    }
    tidy: dict[str, Any] = figures.tidy(whole)
    return tidy
