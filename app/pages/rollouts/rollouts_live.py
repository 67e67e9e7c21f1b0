"""Live updates of the table of rollouts."""

from dataclasses import dataclass

from fastapi import APIRouter, Request, Response
from sqlalchemy import Connection

from logs_ui.app.pages.rollouts.rollout_table import (
    FoundRollouts,
    Rows,
    TableLive,
    beside,
    found_of,
    lines_of,
    live_of,
    rows_of,
)
from logs_ui.app.parts.filter_form import FilterForm, make_form
from logs_ui.app.parts.view import View, parse_view, print_view, split
from logs_ui.app.web import htmx, urls
from logs_ui.app.web.open_database import SourceOfPages, id_of
from logs_ui.recorder import queries
from logs_ui.recorder.queries import RunSummary
from logs_ui.recorder.queries.filters.filter_chips import FilterPart, filter_parts
from logs_ui.recorder.queries.filters.rollout_filter import RolloutFilter, Sort, parse_filter
from logs_ui.recorder.storage.tables import EvaluationRow

_OWN = ("newest", "seen", "open", "follow")  # parameters of this address alone
_POLLED_ROWS = 100  # rows of a page that are looked at again, at most, while they are unfinished

router = APIRouter()


@dataclass(frozen=True)
class LivePage:
    """Context of `rollouts/_live.html`.

    Attributes:
        rows: changed lines; the whole first page if the table follows new rollouts.
        view: a pivot and its counts stay as they are until the reader reloads it.
    """

    summary: RunSummary
    chosen: RolloutFilter
    view: View
    live: TableLive
    form: FilterForm
    chips: list[FilterPart]
    found: FoundRollouts
    rows: Rows
    follows: bool
    mistake: None = None


@router.get("/runs/{name}/live")
def live(request: Request, source: SourceOfPages, name: str) -> Response:
    """Returns what changed since the table was made; 204 if nothing did."""
    with source.reading() as db:
        return _news(request, db, name)


def _news(request: Request, db: Connection, name: str) -> Response:
    run = queries.find_run(db, name)
    shown, pairs = split(request.query_params.multi_items())
    view, chosen = parse_view(shown), parse_filter(pair for pair in pairs if pair[0] not in _OWN)
    urls.showing(print_view(view))
    newest, seen = urls.parse_whole(request.query_params.get("newest", "0")), request.query_params.get("seen", "")
    follows = "follow" in request.query_params and chosen.sort == Sort.NEWEST and not view.is_pivot
    trouble = request.app.state.indexer.trouble
    now = live_of(db, run, chosen, trouble=trouble, newest=None if follows else newest, seen="" if follows else seen)
    if now.seen == seen and now.newest <= newest:
        return htmx.nothing_new()
    if follows:
        rows = rows_of(db, now.summary, chosen, view, None)
        now = beside(now, rows)
    else:
        unfinished = [urls.parse_whole(value) for name, value in pairs if name == "open"][:_POLLED_ROWS]
        rows = lines_of(db, now.summary, chosen, view, _changed_lines(db, now.summary, unfinished, seen))
    page = LivePage(
        summary=now.summary,
        chosen=chosen,
        view=view,
        live=now,
        form=make_form(db, now.summary, chosen, None, []),
        chips=filter_parts(chosen),
        found=found_of(db, now.summary, chosen),
        rows=rows,
        follows=follows,
    )
    return htmx.fragment(request, "rollouts/_live.html", page)


def _changed_lines(db: Connection, summary: RunSummary, ids: list[int], seen: str) -> list[EvaluationRow]:
    """Returns the rows of the page that may have changed since it last polled. A new state of the run changes its
    running rollouts too.
    """
    change, _, rest = seen.partition(".")
    state = rest.partition(".")[0]
    rows = queries.rows_called(db, id_of(summary.run), ids)
    return [row for row in rows if row.changed > urls.parse_whole(change) or state != summary.state]
