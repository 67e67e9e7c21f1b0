"""The page of a run's rollouts: filter, table or pivot."""

from dataclasses import dataclass, replace
from urllib.parse import quote, unquote

from fastapi import APIRouter, Request, Response
from fastapi.responses import RedirectResponse
from sqlalchemy import Connection

from logs_ui.app.pages.rollouts.pivot_table import PivotTable, make_pivot
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
from logs_ui.app.parts.filter_form import FilterForm, checked_filter, make_form, mended, repaired
from logs_ui.app.parts.table_columns import parse_columns, print_columns
from logs_ui.app.parts.view import View, parse_view, print_view, split
from logs_ui.app.parts.waiting_page import WAIT, until_counted
from logs_ui.app.web import htmx, page_cache, urls
from logs_ui.app.web.open_database import Source, SourceOfPages, id_of
from logs_ui.recorder import queries
from logs_ui.recorder.errors import FilterError
from logs_ui.recorder.queries import Count, Cursor, RunSummary
from logs_ui.recorder.queries.filters.filter_chips import FilterPart, filter_parts
from logs_ui.recorder.queries.filters.rollout_filter import RolloutFilter, print_filter, print_where
from logs_ui.recorder.storage.address import Address, absolute, without_password
from logs_ui.recorder.storage.tables import Run

_COOKIE = "logs-ui-columns"
_YEAR = 365 * 86_400  # seconds

router = APIRouter()


@dataclass(frozen=True)
class Without:
    """A part of a filter that matches nothing, and the number of rows without it."""

    part: FilterPart
    count: Count


@dataclass(frozen=True)
class RolloutsPage:
    """Context of `rollouts/rollouts.html` and `rollouts/_results.html`.

    Attributes:
        view: table or pivot.
        rows: without lines in a pivot.
        pivot: None in a table, or if nothing matches.
        is_first: True if the lines start at the beginning of the table.
        without: for an empty table.
        mistake: the error in the filter; `chosen` is then the filter without the wrong part.
        meant: address of the filter that was probably meant; None without a mistake or a guess.
        as_written: address of the wrong filter; None if the page has its own address.
        in_pandas: a line of Python that loads the same rollouts.
    """

    summary: RunSummary
    chosen: RolloutFilter
    form: FilterForm
    chips: list[FilterPart]
    found: FoundRollouts
    view: View
    rows: Rows
    pivot: PivotTable | None
    is_first: bool
    live: TableLive
    without: list[Without]
    mistake: FilterError | None
    meant: str | None
    as_written: str | None
    in_pandas: str


@dataclass(frozen=True)
class MorePage:
    """Context of `rollouts/_more.html`: the lines that follow."""

    summary: RunSummary
    rows: Rows


@router.get("/runs/{name}")
def rollouts(request: Request, source: SourceOfPages, name: str) -> Response:
    """Shows the table, a further page of it, a pivot, or the error in the filter."""
    with source.reading() as db:
        return _answer(request, source, db, name)


def _answer(request: Request, source: Source, db: Connection, name: str) -> Response:
    run = queries.find_run(db, name)
    pairs = [pair for pair in request.query_params.multi_items() if pair[0] not in {"after", "choose", WAIT}]
    shown, given = split(pairs)
    place = request.query_params.get("after")
    view = parse_view(shown)
    if "choose" not in request.query_params and view.shown is None:
        view = replace(view, shown=remembered_columns(request))
    urls.showing(print_view(view))
    page = _Maker(request, source, db, run, view)
    try:
        chosen = checked_filter(db, run, given)
        after = urls.parse_cursor(place) if place else None
    except FilterError as mistake:
        return page.mistaken(given, mistake)
    here = urls.rollouts(run.uid, chosen, after=after)
    if htmx.target(request) == "more":
        return htmx.fragment(request, "rollouts/_more.html", page.more(chosen, after))
    canonical = [*print_filter(chosen), *print_view(view)]
    asked = [*given, *shown] if "choose" not in request.query_params else None
    if htmx.target(request) is None and (name != run.uid or asked != canonical):
        return remember_columns(request, view, RedirectResponse(here, 303))
    if (frame := until_counted(request, db, run, "rollouts", queries.kinds)) is not None:
        return frame
    made = htmx.render(
        request, "rollouts/rollouts.html", page.make(chosen, after), fragments=("results",), address=here
    )
    return remember_columns(request, view, made)


@dataclass(frozen=True)
class _Maker:
    """The request, and what all parts of its answer need."""

    request: Request
    source: Source
    db: Connection
    run: Run
    view: View

    def make(
        self, chosen: RolloutFilter, after: Cursor | None, *, given: urls.Pairs | None = None,
        mistake: FilterError | None = None,
    ) -> RolloutsPage:  # fmt: skip
        db, run, view = self.db, self.run, self.view
        now = live_of(db, run, chosen, trouble=self.request.app.state.indexer.trouble)
        pivot = make_pivot(db, run, chosen, view) if view.is_pivot and not mistake else None
        rows = lines_of(db, now.summary, chosen, view, []) if pivot else rows_of(db, now.summary, chosen, view, after)
        now = beside(now, rows) if after is None else now
        chips = filter_parts(chosen)
        fallback = [] if rows.lines or pivot or rows.looked_at else chips
        return RolloutsPage(
            summary=now.summary,
            chosen=chosen,
            form=make_form(db, now.summary, chosen, mistake, given or []),
            chips=chips,
            found=found_of(db, now.summary, chosen),
            view=view,
            rows=rows,
            pivot=pivot,
            is_first=after is None,
            live=replace(now, every=None) if mistake else now,  # news would take the place of what is to be mended
            without=[
                Without(chip, page_cache.figure(db, now.summary, queries.count, chip.without)) for chip in fallback
            ],
            mistake=mistake,
            meant=urls.rollouts_said(run.uid, meant) if mistake and (meant := mended(given or [], mistake)) else None,
            as_written=urls.rollouts_said(run.uid, given or []) if mistake else None,
            in_pandas=pandas_line(run, self.source.address, chosen),
        )

    def mistaken(self, given: urls.Pairs, mistake: FilterError) -> Response:
        """Shows the page with the filter as typed and one line that names the error."""
        page = self.make(repaired(given, mistake), None, given=given, mistake=mistake)
        render = htmx.render
        return render(self.request, "rollouts/rollouts.html", page, fragments=("results",), status=422, address="false")

    def more(self, chosen: RolloutFilter, after: Cursor | None) -> MorePage:
        summary = queries.run_summary(self.db, id_of(self.run))
        return MorePage(summary, rows_of(self.db, summary, chosen, self.view, after))


def pandas_line(run: Run, db: Address, chosen: RolloutFilter) -> str:
    """Returns Python that loads the same rollouts from any folder of this machine."""
    where = f", where={print_where(chosen)!r}" if print_where(chosen) else ""
    return f"load_run({run.uid!r}, db={without_password(absolute(db))!r}{where})"


def remembered_columns(request: Request) -> tuple[str, ...] | None:
    """Returns the columns last chosen in this browser; None without any, or if this version does not know them."""
    try:
        return parse_columns([unquote(request.cookies.get(_COOKIE, ""))])
    except FilterError:
        return None


def remember_columns(request: Request, view: View, response: Response) -> Response:
    """Stores the columns in a cookie if the user just chose them; a link with columns changes nothing."""
    if "choose" in request.query_params:
        if view.shown is None:
            response.delete_cookie(_COOKIE, path=urls.home())
        else:
            kept = quote(print_columns(view.shown))
            response.set_cookie(_COOKIE, kept, max_age=_YEAR, httponly=True, samesite="strict", path=urls.home())
    return response
