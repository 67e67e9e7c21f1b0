"""Shows one rollout: timeline, tokens, raw record, reward and group."""

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Literal, get_args

from fastapi import APIRouter, Request, Response
from fastapi.responses import RedirectResponse
from sqlalchemy import Connection

from logs_ui.app.pages.rollout.record_texts import TOKEN_LIST, Panels, find_panel, is_parsed, make_panels, record_of
from logs_ui.app.pages.rollout.rollout_facts import Details, Group, Loss, find_loss, make_details, make_group
from logs_ui.app.pages.rollout.rollout_timeline import RolloutTimeline, Show, make_rollout_timeline
from logs_ui.app.pages.rollout.token_view import TokenView, make_view
from logs_ui.app.parts import notes_forms as notes
from logs_ui.app.parts import safe_text, timeline, words
from logs_ui.app.parts.charts import Scale
from logs_ui.app.parts.filter_form import checked_filter
from logs_ui.app.parts.notes_forms import Marks, NotebookOfPages
from logs_ui.app.parts.reward_parts import RewardPart, reward_parts
from logs_ui.app.parts.timeline import Text
from logs_ui.app.parts.words import Word
from logs_ui.app.web import htmx, page_cache, urls
from logs_ui.app.web.open_database import SourceOfPages, id_of, storable
from logs_ui.app.web.page_cache import is_long
from logs_ui.app.web.security import PLAIN_TEXT_POLICY
from logs_ui.recorder import queries
from logs_ui.recorder.analysis.diagnose import settings_of
from logs_ui.recorder.analysis.diagnosis_columns import columns_of
from logs_ui.recorder.analysis.rollout_answers import answer_of
from logs_ui.recorder.diagnosis.answers import Answer
from logs_ui.recorder.diagnosis.tables.one_rollout import Training, training
from logs_ui.recorder.errors import ImageNotFoundError, RolloutNotFoundError
from logs_ui.recorder.queries import Neighbours, Rollout, RunSummary
from logs_ui.recorder.queries.filters.rollout_filter import RolloutFilter, check_word
from logs_ui.recorder.queries.notebook import Notebook
from logs_ui.recorder.storage.tables import EvaluationRow, Run
from logs_ui.recorder.vocabulary import Mode, RunState, Status

router = APIRouter()

View = Literal["timeline", "tokens", "raw"]
_PARAMETERS = {"view", "seen", "show", "turn", "lines", "gaps", "fill"}  # parameters that are not a filter's
_IMAGE_TYPES = ("image/png", "image/jpeg", "image/webp")
"""Media types that cannot contain a script."""
_IMAGE_HEADERS = {"Content-Security-Policy": PLAIN_TEXT_POLICY, "Content-Disposition": "inline"}


@dataclass(frozen=True)
class RolloutPage:
    """Context of `rollout/rollout.html` and `rollout/_rollout.html`."""

    summary: RunSummary
    row: EvaluationRow
    chosen: RolloutFilter  # the filter that previous and next follow
    neighbours: Neighbours
    view: View
    show: tuple[Show, ...]
    answer: Answer
    timeline: RolloutTimeline
    tokens: TokenView | None
    raw: Text | None  # the whole record as JSON, in the raw view
    panels: Panels
    sent_prompt: Word | None  # how the prompt that was sent differs from the dataset's
    is_parsed: bool  # True if reward functions were handed another text than the messages show
    dropped: Word | None  # how the trainer dropped it; None if it did not
    trained: Training | None  # its use in training; None in a run without training
    parts: list[RewardPart]
    scale: Scale  # scale of the bars of `parts`
    loss: Loss | None  # its cause and lost reward; None if not known yet
    marks: Marks
    group: Group
    details: Details
    refresh: str | None  # address to poll while the rollout is not settled; None if nothing is to come


@router.get("/runs/{run_reference}/rollouts/{row_id}")
def rollout(
    request: Request, source: SourceOfPages, notebook: NotebookOfPages, run_reference: str, row_id: int
) -> Response:
    """Show the timeline, the tokens or the raw record."""
    pairs = request.query_params.multi_items()
    parameters = dict(pair for pair in pairs if pair[0] in _PARAMETERS)
    view, show = _parse_view(parameters.get("view", "")), _parse_show(parameters.get("show", ""))
    turn, target = urls.parse_whole(parameters.get("turn", "")), htmx.target(request)
    with source.reading_run(run_reference) as (db, run):
        rollout = queries.rollout(db, id_of(run), storable(row_id))
        chosen = checked_filter(db, run, [pair for pair in pairs if pair[0] not in _PARAMETERS])
        if target is None and run_reference != run.uid:
            return RedirectResponse(urls.rollout(run.uid, row_id, chosen, view=view, show=show, turn=turn), 303)
        page = _page(db, notebook, run, rollout, chosen, view, show, parameters)
    if target == "rollout" and parameters.get("seen") == _version(rollout.row, page.summary):
        return htmx.nothing_new()
    if target and target.startswith("gap-"):
        return htmx.fragment(request, "rollout/_stretches.html", page)
    return htmx.render(request, "rollout/rollout.html", page, fragments=("rollout",))


@router.get("/runs/{run_reference}/rollouts/{row_id}/folded/{anchor}")
def folded(
    request: Request, source: SourceOfPages, run_reference: str, row_id: int, anchor: str, show: str = ""
) -> Response:
    """Return what a page left out of a folded card: its reasoning, or its output."""
    with source.reading_run(run_reference) as (db, run):
        rollout = queries.rollout(db, id_of(run), storable(row_id))
        panel = find_panel(db, run, rollout, anchor)
    card_anchor = anchor.removesuffix("-reasoning")
    card = next((card for card in timeline.make_timeline(rollout) if card.anchor == card_anchor), None)
    if card is None and panel is None:
        raise RolloutNotFoundError(f"rollout {row_id} has no message called {anchor[:60]!r}: load its page again")
    context = SimpleNamespace(
        run=run, row=rollout.row, show=_parse_show(show), card=card, panel=panel, is_reasoning=anchor != card_anchor
    )
    return htmx.fragment(request, "rollout/_folded.html", context)


@router.get("/runs/{run_reference}/rollouts/{row_id}/text/{part}")
def plain_text(source: SourceOfPages, run_reference: str, row_id: int, part: str) -> Response:
    """Return one text of a rollout as plain text, or an image that a message contains, such as a VLM's prompt."""
    with source.reading_run(run_reference) as (db, run):
        rollout = queries.rollout(db, id_of(run), storable(row_id))
        panel = find_panel(db, run, rollout, part)
    cards = [*timeline.make_timeline(rollout), *timeline.make_scoring(rollout)]
    if image := next((image for card in cards for image in card.pictures if image.data and image.part == part), None):
        return Response(image.data, media_type=image.media_type, headers=_IMAGE_HEADERS | {"Cache-Control": "no-cache"})
    if part == "raw":
        value: str | None = safe_text.as_json(record_of(rollout, token_limit=None))
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


def _parse_view(written: str) -> View:
    if written:
        check_word("view", "view", written, get_args(View))
    return next((view for view in get_args(View) if view == written), "timeline")


def _parse_show(written: str) -> tuple[Show, ...]:
    return tuple(word for word in get_args(Show) if word in written.split(","))


def _page(
    db: Connection, notebook: Notebook, run: Run, rollout: Rollout, chosen: RolloutFilter, view: View,
    show: tuple[Show, ...], parameters: dict[str, str],
) -> RolloutPage:  # fmt: skip
    row = rollout.row
    summary = queries.run_summary(db, id_of(run))
    total = page_cache.figure(db, summary, queries.count, chosen)
    near = queries.neighbours_in_time if is_long(summary, chosen) else queries.neighbours
    shown_timeline = make_rollout_timeline(rollout, chosen, parameters, show, is_sent=view == "timeline")
    calls = sum(card.is_own for card in shown_timeline.cards)
    parts = reward_parts(row)
    group = sorted(
        queries.group_rows(db, id_of(run), row.id or 0), key=lambda member: (member.generation, member.id or 0)
    )
    return RolloutPage(
        summary=summary,
        row=row,
        chosen=chosen,
        neighbours=near(db, id_of(run), chosen, row, total=total),
        view=view,
        show=show,
        answer=answer_of(settings_of(db, run), row, vars(rollout)),
        timeline=shown_timeline,
        tokens=make_view(db, run, rollout, calls) if view == "tokens" else None,
        raw=Text("raw", safe_text.as_json(record_of(rollout, token_limit=TOKEN_LIST))) if view == "raw" else None,
        panels=make_panels(rollout),
        sent_prompt=words.SENT_PROMPTS.get(row.sent_prompt or ""),
        is_parsed=is_parsed(rollout) and run.tokenizer is not None,
        dropped=words.DROPPED.get(row.dropped or ""),
        trained=None if summary.is_evaluation else _trained(run, row, group, summary),
        parts=parts,
        scale=Scale.over([part.worth for part in parts if part.worth is not None]),
        loss=find_loss(db, run, row),
        marks=notes.of_rollout(db, notebook, run, rollout),
        group=make_group(row, group),
        details=make_details(rollout),
        refresh=_refresh(run, row, summary, chosen, view, show),
    )


def _trained(run: Run, row: EvaluationRow, group: list[EvaluationRow], summary: RunSummary) -> Training:
    return training(
        # The rollout may have been deleted meanwhile.
        columns_of(group if any(member.id == row.id for member in group) else [row]),
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
    return urls.rollout(run.uid, row.id or 0, chosen, view=view, show=show, seen=_version(row, summary))


def _version(row: EvaluationRow, summary: RunSummary) -> str:
    return f"{row.changed}.{row.status}.{summary.state}"
