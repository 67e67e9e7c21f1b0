"""Shows the rollouts of a run: filter, table or pivot, and its live updates."""

import re
from dataclasses import dataclass, replace
from functools import partial
from urllib.parse import quote, unquote

from fastapi import APIRouter, Request, Response
from fastapi.responses import RedirectResponse
from sqlalchemy import Connection

from logs_ui.app.pages.rollouts import table
from logs_ui.app.pages.rollouts.pivot_table import PivotTable, make_pivot
from logs_ui.app.pages.rollouts.saved_views import query_of
from logs_ui.app.pages.rollouts.table import FoundRollouts, Rows, TableLive
from logs_ui.app.parts.filter_form import FilterForm, checked_filter, make_form, mended, repaired
from logs_ui.app.parts.table_columns import parse_columns, print_columns
from logs_ui.app.parts.view import View, named_views, parse_view, print_view, split
from logs_ui.app.parts.waiting_page import WAIT, until_counted
from logs_ui.app.web import htmx, page_cache, urls
from logs_ui.app.web.open_database import SourceOfPages, id_of
from logs_ui.recorder import queries
from logs_ui.recorder.errors import FilterError
from logs_ui.recorder.queries import Count, Cursor, RunSummary
from logs_ui.recorder.queries.filters.chips import FilterPart, filter_parts
from logs_ui.recorder.queries.filters.rollout_filter import RolloutFilter, Sort, print_filter, print_where
from logs_ui.recorder.storage.address import Address, absolute, without_password
from logs_ui.recorder.storage.notes_tables import SavedView
from logs_ui.recorder.storage.tables import EvaluationRow, Run

_COOKIE = "logs-ui-columns"
_YEAR = 365 * 86_400  # seconds
_LIVE_PARAMETERS = ("newest", "seen", "open", "follow", "find")  # parameters of the live updates alone
_PAGE_PARAMETERS = ("after", "at", "choose", "find", WAIT)  # parameters that are neither of the filter nor of the view
_WORDS_OF_TERMS = re.compile(r"truncated|truncation|length|steps? (\d{1,15})|(\d{1,15})", re.IGNORECASE)
_POLLED_ROWS = 100  # rows of a page that are looked at again, at most, while they are unfinished

router = APIRouter()


@dataclass(frozen=True)
class RolloutsPage:
    """Context of `rollouts/rollouts.html` and `rollouts/_results.html`."""

    summary: RunSummary
    chosen: RolloutFilter
    form: FilterForm
    chips: list[FilterPart]
    matches: FoundRollouts
    view: View
    rows: Rows  # without lines in a pivot
    pivot: PivotTable | None  # None in a table, or if nothing matches
    is_first: bool  # True if the lines start at the beginning of the table
    live: TableLive
    # For an empty table: each part of the filter, and the number of rows without it.
    counts_without: list[tuple[FilterPart, Count]]
    term: str  # the term that the words to search for probably mean; empty if they mean none
    mistake: FilterError | None  # the error in the filter; `chosen` is then the filter without the wrong part
    correction: str | None  # address of the filter that was probably meant; None without a mistake or a guess
    as_written: str | None  # address of the wrong filter; None if the page has its own address
    in_pandas: str  # a line of Python that loads the same rollouts
    # The saved views, each with its address; `query` is what this page would be saved as.
    views: list[tuple[SavedView, str]]
    query: str


@dataclass(frozen=True)
class MorePage:
    """Context of `rollouts/_more.html`: the lines that follow."""

    summary: RunSummary
    rows: Rows


@dataclass(frozen=True)
class LivePage:
    """Context of `rollouts/_live.html`."""

    summary: RunSummary
    chosen: RolloutFilter
    view: View  # a pivot and its counts stay as they are until the reader reloads it
    live: TableLive
    form: FilterForm
    chips: list[FilterPart]
    matches: FoundRollouts
    rows: Rows  # changed lines; the whole first page if the table follows new rollouts
    follows: bool
    mistake: None = None


@router.get("/runs/{run_reference}")
def rollouts(request: Request, source: SourceOfPages, run_reference: str) -> Response:
    """Show the table, a further page of it, a pivot, or the error in the filter."""
    with source.reading_run(run_reference) as (db, run):
        pairs = [pair for pair in request.query_params.multi_items() if pair[0] not in _PAGE_PARAMETERS]
        view_pairs, filter_pairs = split(pairs)
        cursor_text = request.query_params.get("after")
        view = parse_view(view_pairs)
        if "choose" not in request.query_params and view.column_keys is None:
            view = replace(view, column_keys=remembered_columns(request))
        urls.showing(print_view(view))
        try:
            chosen = checked_filter(db, run, filter_pairs)
            after = urls.parse_cursor(cursor_text) if cursor_text else None
        except FilterError as mistake:
            mended_filter = repaired(filter_pairs, mistake)
            page = _page(request, db, run, view, mended_filter, None, pairs=filter_pairs, mistake=mistake)
            return htmx.render(
                request, "rollouts/rollouts.html", page, fragments=("results",), status=422, address="false"
            )
        current_id = urls.parse_whole(request.query_params.get("at", ""))
        address = urls.rollouts(run.uid, chosen, after=after, at=current_id, find=request.query_params.get("find", ""))
        if htmx.target(request) == "more":
            summary = queries.run_summary(db, id_of(run))
            more = MorePage(summary, table.rows_of(db, summary, chosen, view, after))
            return htmx.fragment(request, "rollouts/_more.html", more)
        canonical = [*print_filter(chosen), *print_view(view)]
        request_pairs = [*filter_pairs, *view_pairs] if "choose" not in request.query_params else None
        if htmx.target(request) is None and (run_reference != run.uid or request_pairs != canonical):
            return remember_columns(request, view, RedirectResponse(address, 303))
        if (frame := until_counted(request, db, run, "rollouts", queries.kinds)) is not None:
            return frame
        page = _page(request, db, run, view, chosen, after, current_id=current_id)
        response = htmx.render(request, "rollouts/rollouts.html", page, fragments=("results",), address=address)
        return remember_columns(request, view, response)


def _page(
    request: Request, db: Connection, run: Run, view: View, chosen: RolloutFilter, after: Cursor | None, *,
    current_id: int = 0, pairs: urls.Pairs | None = None, mistake: FilterError | None = None,
) -> RolloutsPage:  # fmt: skip
    corner = table.live_of(db, run, chosen, trouble=request.app.state.indexer.trouble)
    summary = corner.summary
    pivot = make_pivot(db, run, chosen, view) if view.is_pivot and not mistake else None
    size = table.PAGE_SIZE
    if current_id and after is None:
        after, size = table.place_of(db, summary, chosen, current_id)
    build_rows = partial(table.lines_of, lines=[]) if pivot else partial(table.rows_of, after=after, size=size)
    rows = replace(build_rows(db, summary, chosen, view), current_id=current_id)
    corner = table.adapt_corner(corner, rows) if after is None else corner
    chips = filter_parts(chosen)
    query = query_of(chosen, view)
    removable = [] if rows.lines or pivot or rows.looked_at else chips
    return RolloutsPage(
        summary=summary,
        chosen=chosen,
        form=make_form(db, summary, chosen, mistake, pairs or [], request.query_params.get("find", "")),
        chips=chips,
        matches=table.count_matches(db, summary, chosen),
        view=view,
        rows=rows,
        pivot=pivot,
        is_first=after is None,
        # News would take the place of what is to be mended.
        live=replace(corner, poll_seconds=None) if mistake else corner,
        term=_guess_term(db, run, chosen),
        counts_without=[(chip, page_cache.figure(db, summary, queries.count, chip.without)) for chip in removable],
        mistake=mistake,
        correction=urls.rollouts_said(run.uid, mended_pairs)
        if mistake and (mended_pairs := mended(pairs or [], mistake))
        else None,
        as_written=urls.rollouts_said(run.uid, pairs or []) if mistake else None,
        in_pandas=pandas_line(run, request.app.state.source.address, chosen),
        views=named_views(db, run),
        query=query,
    )


def _guess_term(db: Connection, run: Run, chosen: RolloutFilter) -> str:
    words = " ".join(str(term.values[0]) for term in chosen.terms if term.field == "text" and not term.negated)
    match = _WORDS_OF_TERMS.fullmatch(words)
    if match is None or not match[2]:
        return "" if match is None else f"step:{match[1]}" if match[1] else "stop:length"
    return f"#{match[2]}" if queries.rows_called(db, id_of(run), [int(match[2])]) else ""


def pandas_line(run: Run, db: Address, chosen: RolloutFilter) -> str:
    """Return Python that loads the same rollouts from any folder of this machine."""
    where = f", where={print_where(chosen)!r}" if print_where(chosen) else ""
    return f"load_run({run.uid!r}, db={without_password(absolute(db))!r}{where})"


def remembered_columns(request: Request) -> tuple[str, ...] | None:
    """Return the columns last chosen in this browser; None without any, or if this version does not know them."""
    try:
        return parse_columns([unquote(request.cookies.get(_COOKIE, ""))])
    except FilterError:
        return None


def remember_columns(request: Request, view: View, response: Response) -> Response:
    """Store the columns in a cookie if the user just chose them; a link with columns changes nothing."""
    if "choose" in request.query_params:
        if view.column_keys is None:
            response.delete_cookie(_COOKIE, path=urls.home())
        else:
            cookie = quote(print_columns(view.column_keys))
            response.set_cookie(_COOKIE, cookie, max_age=_YEAR, httponly=True, samesite="strict", path=urls.home())
    return response


@router.get("/runs/{run_reference}/live")
def live(request: Request, source: SourceOfPages, run_reference: str) -> Response:
    """Return what changed since the table was made; 204 if nothing did."""
    with source.reading_run(run_reference) as (db, run):
        view_pairs, pairs = split(request.query_params.multi_items())
        view = parse_view(view_pairs)
        chosen = checked_filter(db, run, [pair for pair in pairs if pair[0] not in _LIVE_PARAMETERS])
        urls.showing(print_view(view))
        newest = urls.parse_whole(request.query_params.get("newest", "0"))
        seen_version = request.query_params.get("seen", "")
        follows = "follow" in request.query_params and chosen.sort == Sort.NEWEST and not view.is_pivot
        trouble = request.app.state.indexer.trouble
        corner = table.live_of(
            db,
            run,
            chosen,
            trouble=trouble,
            newest=None if follows else newest,
            seen_version="" if follows else seen_version,
        )
        if corner.version == seen_version and corner.newest <= newest:
            return htmx.nothing_new()
        if follows:
            rows = table.rows_of(db, corner.summary, chosen, view, None)
            corner = table.adapt_corner(corner, rows)
        else:
            unfinished = [urls.parse_whole(value) for name, value in pairs if name == "open"][:_POLLED_ROWS]
            changed_rows = _changed_lines(db, corner.summary, unfinished, seen_version)
            rows = table.lines_of(db, corner.summary, chosen, view, changed_rows)
        page = LivePage(
            summary=corner.summary,
            chosen=chosen,
            view=view,
            live=corner,
            form=make_form(db, corner.summary, chosen, None, [], request.query_params.get("find", "")),
            chips=filter_parts(chosen),
            matches=table.count_matches(db, corner.summary, chosen),
            rows=rows,
            follows=follows,
        )
        return htmx.fragment(request, "rollouts/_live.html", page)


def _changed_lines(db: Connection, summary: RunSummary, ids: list[int], seen_version: str) -> list[EvaluationRow]:
    """Return the rows that may have changed since the last poll: a new state of the run changes running rollouts."""
    change, _, rest = seen_version.partition(".")
    state = rest.partition(".")[0]
    rows = queries.rows_called(db, id_of(summary.run), ids)
    return [row for row in rows if row.changed > urls.parse_whole(change) or state != summary.state]
