"""The rollouts of a run: filter, table, and what comes in meanwhile."""

from dataclasses import dataclass, replace

from fastapi import APIRouter, Request, Response
from fastapi.responses import RedirectResponse
from sqlalchemy import Connection

from logs_ui.app import htmx, urls
from logs_ui.app.charts import Scale
from logs_ui.app.filter_form import FilterForm, checked_filter, make_form, mended, repaired
from logs_ui.app.source import SourceOfPages, id_of
from logs_ui.recorder import queries
from logs_ui.recorder.errors import FilterError, RolloutNotFoundError
from logs_ui.recorder.filters import (
    FilterPart,
    RolloutFilter,
    Sort,
    filter_parts,
    parse_filter,
    print_filter,
)
from logs_ui.recorder.models import EvaluationRow, Run, RunState
from logs_ui.recorder.queries import Count, Cursor, RunSummary

PAGE_SIZE = 50
_MANY = 100_000  # from so many rollouts on, counting them anew every other second would be felt
_POLLED_ROWS = 100  # rows of a page that are looked at again, at most, while they are unfinished

router = APIRouter()


@dataclass(frozen=True)
class Rows:
    """Lines of the table.

    Attributes:
        next: address of the lines that follow; None at the end.
        scale: of the reward bars: the run's own lowest and highest.
    """

    lines: list[EvaluationRow]
    next: str | None
    scale: Scale


@dataclass(frozen=True)
class Found:
    """How many rows match, and the mean of their rewards; None where none has one."""

    count: Count
    mean: float | None


@dataclass(frozen=True)
class Live:
    """What the table's corner says of what happens meanwhile.

    Attributes:
        newest: highest id when the page was made, 0 where it had no rows; what is above is new.
        seen: stands for the run as the page shows it.
        every: seconds between two looks; None where nothing is to come.
    """

    summary: RunSummary
    chosen: RolloutFilter
    newest: int
    new: Count
    seen: str
    every: int | None


@dataclass(frozen=True)
class Without:
    """One part of a filter that nothing matches, and how many rows there would be without it."""

    part: FilterPart
    count: Count


@dataclass(frozen=True)
class RolloutsPage:
    """What `rollouts.html` and `_results.html` show.

    Attributes:
        is_first: whether the lines begin where the table does.
        without: for an empty table.
        mistake: what is wrong with the filter; then `chosen` is the filter without it.
        meant: address of the filter as it was probably meant; None without a mistake, or where that cannot be told.
    """

    summary: RunSummary
    chosen: RolloutFilter
    form: FilterForm
    chips: list[FilterPart]
    found: Found
    rows: Rows
    is_first: bool
    live: Live
    without: list[Without]
    mistake: FilterError | None
    meant: str | None


@dataclass(frozen=True)
class MorePage:
    """What `_more.html` shows: the lines that follow."""

    summary: RunSummary
    chosen: RolloutFilter
    rows: Rows


@dataclass(frozen=True)
class LivePage:
    """What `_live.html` shows.

    Attributes:
        rows: lines of the table that have changed; all of its first page where it follows what comes in.
    """

    summary: RunSummary
    chosen: RolloutFilter
    live: Live
    form: FilterForm
    chips: list[FilterPart]
    found: Found
    rows: Rows
    follows: bool
    mistake: None = None


@router.get("/runs/{name}")
def rollouts(request: Request, source: SourceOfPages, name: str) -> Response:
    """The table, a page of it, or what is wrong with the filter."""
    with source.reading() as db:
        return _answer(request, db, name)


def _answer(request: Request, db: Connection, name: str) -> Response:
    run = queries.find_run(db, name)
    given = [pair for pair in request.query_params.multi_items() if pair[0] != "after"]
    place = request.query_params.get("after")
    try:
        chosen = checked_filter(db, run, given)
        after = urls.parse_cursor(place) if place else None
    except FilterError as mistake:
        return _mistaken(request, db, run, given, mistake)
    here = urls.rollouts(run.uid, chosen, after=after)
    if htmx.target(request) == "more":
        return htmx.fragment(request, "_more.html", _more(db, run, chosen, after))
    if htmx.target(request) is None and (name != run.uid or given != print_filter(chosen)):
        return RedirectResponse(here, 303)
    page = _page(db, run, chosen, after)
    return htmx.render(request, "rollouts.html", page, fragments=("results",), address=here)


@router.get("/runs/{name}/live")
def live(request: Request, source: SourceOfPages, name: str) -> Response:
    """What has become new since the table was made; 204 where nothing has."""
    with source.reading() as db:
        return _news(request, db, name)


def _news(request: Request, db: Connection, name: str) -> Response:
    run = queries.find_run(db, name)
    own = ("newest", "seen", "open", "follow")
    pairs = request.query_params.multi_items()
    chosen = parse_filter(pair for pair in pairs if pair[0] not in own)
    newest = _whole(request.query_params.get("newest", "0"))
    follows = "follow" in request.query_params and chosen.sort == Sort.NEWEST
    now = _live(db, run, chosen, None if follows else newest)
    seen = request.query_params.get("seen", "")
    if now.seen == seen and now.newest == newest:
        return htmx.nothing_new()
    if follows:
        rows = _rows(db, run, chosen, None)
    else:
        unfinished = [_whole(value) for name, value in pairs if name == "open"][:_POLLED_ROWS]
        rows = Rows(_changed_lines(db, now.summary, unfinished, seen), None, _scale(db, run))
    page = LivePage(
        summary=now.summary,
        chosen=chosen,
        live=now,
        form=make_form(db, now.summary, chosen, None, []),
        chips=filter_parts(chosen),
        found=_found(db, run, chosen),
        rows=rows,
        follows=follows,
    )
    return htmx.fragment(request, "_live.html", page)


def _page(
    db: Connection, run: Run, chosen: RolloutFilter, after: Cursor | None, *, given: urls.Pairs | None = None,
    mistake: FilterError | None = None,
) -> RolloutsPage:  # fmt: skip
    now = _live(db, run, chosen, None)
    rows = _rows(db, run, chosen, after)
    chips = filter_parts(chosen)
    return RolloutsPage(
        summary=now.summary,
        chosen=chosen,
        form=make_form(db, now.summary, chosen, mistake, given or []),
        chips=chips,
        found=_found(db, run, chosen),
        rows=rows,
        is_first=after is None,
        live=replace(now, every=None) if mistake else now,  # news would take the place of what is to be mended
        without=[] if rows.lines else [Without(chip, queries.count(db, id_of(run), chip.without)) for chip in chips],
        mistake=mistake,
        meant=urls.with_query(urls.rollouts(run.uid), meant)
        if mistake and (meant := mended(given or [], mistake))
        else None,
    )


def _mistaken(request: Request, db: Connection, run: Run, given: urls.Pairs, mistake: FilterError) -> Response:
    """The same page, with the filter as it was typed and one line that says what is wrong."""
    page = _page(db, run, repaired(given, mistake), None, given=given, mistake=mistake)
    return htmx.render(request, "rollouts.html", page, fragments=("results",), status=422, address="false")


def _more(db: Connection, run: Run, chosen: RolloutFilter, after: Cursor | None) -> MorePage:
    return MorePage(queries.run_summary(db, id_of(run)), chosen, _rows(db, run, chosen, after))


def _found(db: Connection, run: Run, chosen: RolloutFilter) -> Found:
    return Found(queries.count(db, id_of(run), chosen), queries.mean_reward(db, id_of(run), chosen))


def _rows(db: Connection, run: Run, chosen: RolloutFilter, after: Cursor | None) -> Rows:
    page = queries.page(db, id_of(run), chosen, after=after, limit=PAGE_SIZE)
    following = urls.rollouts(run.uid, chosen, after=page.next) if page.next else None
    return Rows(page.rows, following, _scale(db, run))


def _scale(db: Connection, run: Run) -> Scale:
    """Two look-ups in the index of rewards."""
    ends = [
        row.reward
        for sort in (Sort.LOWEST_REWARD, Sort.HIGHEST_REWARD)
        for row in queries.page(db, id_of(run), RolloutFilter(sort=sort), limit=1).rows
        if row.reward is not None
    ]
    return Scale.over(ends)


def _live(db: Connection, run: Run, chosen: RolloutFilter, newest: int | None) -> Live:
    """`newest` is None where the page is made only now."""
    change = queries.last_change(db, id_of(run))
    summary = queries.run_summary(db, id_of(run))
    new = Count(0, exact=True)
    if newest is None:
        top = queries.page(db, id_of(run), replace(chosen, sort=Sort.NEWEST), limit=1).rows
        newest = top[0].id or 0 if top else 0
    else:
        new = queries.new_since(db, id_of(run), chosen, newest)
    often = 2 if summary.rollouts < _MANY else 10
    every = {RunState.RUNNING.value: often, "died": 10}.get(summary.state)
    return Live(summary, chosen, newest, new, f"{change}.{summary.state}", every)


def _changed_lines(db: Connection, summary: RunSummary, ids: list[int], seen: str) -> list[EvaluationRow]:
    """Those of the lines on the page that may not be as they were when the page saw the run: with its state, what runs
    in it changes, too.
    """
    change, _, state = seen.partition(".")
    lines = []
    for row_id in ids:
        try:
            row = queries.rollout(db, id_of(summary.run), row_id).row
        except RolloutNotFoundError:
            continue
        if row.changed > _whole(change) or state != summary.state:
            lines.append(row)
    return lines


def _whole(text: str) -> int:
    return int(text) if text.isascii() and text.isdigit() and len(text) < 19 else 0
