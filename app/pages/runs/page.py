"""The list of runs, which is also what a new user sees first: search, tags, and the choice of runs to compare."""

import hashlib
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Annotated, NamedTuple

from fastapi import APIRouter, Depends, Request, Response
from fastapi.responses import RedirectResponse
from sqlalchemy import Connection

from logs_ui.app.pages.runs.view import RunGroup, RunLine, RunsView, differing, told_apart
from logs_ui.app.parts import charts
from logs_ui.app.parts.diagnoses import Outline, cached_outline, outline
from logs_ui.app.parts.notes_forms import WritableNotebook, read_form
from logs_ui.app.web import htmx, urls
from logs_ui.app.web.open_database import SourceOfPages, id_of
from logs_ui.recorder import queries
from logs_ui.recorder.labels import tag_of
from logs_ui.recorder.queries import DIED, ListedRun, RunCounts, RunFilter
from logs_ui.recorder.queries.filters.rollout_filter import check_word
from logs_ui.recorder.queries.notebook import Subject
from logs_ui.recorder.storage.address import Address, masked_address
from logs_ui.recorder.storage.tables import Run
from logs_ui.recorder.vocabulary import RunState

PAGE_SIZE = 50
MOST_SORTED = 500
"""Maximum number of runs that are sorted or grouped: the newest ones."""
_PARAMETERS = ("q", "state", "tag", "starred", "project", "after", "seen", "col", "sort", "by")
STATES = (*(state.value for state in RunState), DIED)

_POLL_SECONDS = 3
_POLLED_ROWS = 100  # of those that may change
_MOST_TICKED = 200
_BODY_BYTES = 64 << 10
_COMPARED = 100  # newest matching runs whose arguments are compared
_SOLVED_SECONDS = 1.5  # in which a page diagnoses runs for their share solved; the next page goes on

router = APIRouter()


class RunsLive(NamedTuple):
    """Fills the live corner of the list."""

    newest: int  # number of the newest run when the list was made; later ones are new
    new: int  # number of new runs that match
    version: str  # version of the rows shown
    every: int = _POLL_SECONDS


@dataclass(frozen=True)
class RunsPage:
    """Context of `runs/runs.html` and of its fragments."""

    database: str
    exists: bool
    chosen: RunFilter
    counts: RunCounts
    view: RunsView
    lines: list[RunLine]  # in the order of `view`
    groups: dict[str, RunGroup]  # by the uid of their first run, if the list is grouped
    next: str | None  # address of the lines that follow; None at the end
    # True if the lines start at the beginning of the list; for live updates, if the list follows new runs.
    is_first: bool
    live: RunsLive
    empty_kind: str  # kind of an empty page, which polls until it changes
    arguments: list[str]  # names of the arguments that tell the runs apart
    unsorted: int  # number of older matching runs that a sorted list leaves out


@dataclass(frozen=True)
class VerdictLine:
    """Context of `runs/_run_verdict.html`."""

    run: Run
    outline: Outline | None  # None if the browser is to ask for it


@router.get("/")
def runs(request: Request, source: SourceOfPages) -> Response:
    """Show the matching runs, newest first or in the chosen order, or how to record the first one."""
    for name in request.query_params:
        check_word("parameter", name, name, _PARAMETERS)
    chosen, view = chosen_runs(request), _view(request)
    place = request.query_params.get("after")
    wanted = htmx.target(request)
    if not source.exists():
        page = _empty(source.address, chosen, view)
    else:
        with source.reading() as db:
            page = _page(db, source.address, chosen, view, place)
            if wanted == "more":
                return htmx.fragment(request, "runs/_more_runs.html", page)
    if wanted == "runs" and request.query_params.get("seen") == page.empty_kind:
        return htmx.nothing_new()
    address = urls.runs(chosen, view=[*view.pairs(), *([("after", place)] if place else [])])
    return htmx.render(request, "runs/runs.html", page, fragments=("runs", "listed"), address=address)


@router.get("/live")
def live(request: Request, source: SourceOfPages) -> Response:
    """Return what changed since the list was made; 204 if nothing did."""
    chosen, view = chosen_runs(request), _view(request)
    parameters = request.query_params
    newest, open_ids = urls.parse_whole(parameters.get("newest", "0")), _ids(parameters.getlist("open"))
    with source.reading() as db:
        now = _live(db, chosen, open_ids, newest)
        follows = "follow" in parameters and now.new > 0 and not (view.sort or view.by)
        if now.version == parameters.get("seen") and not follows:
            return htmx.nothing_new()
        page = _page(db, source.address, chosen, view, None)
        if not follows:
            lines = _lines(db, view, page.arguments, queries.these_runs(db, open_ids))
            page = replace(
                page, lines=lines, groups={}, live=_live(db, chosen, _list_open(lines), newest), is_first=False
            )
    return htmx.fragment(request, "runs/_runs_live.html", page)


@router.get("/runs/{run_reference}/verdict")
def run_verdict(request: Request, source: SourceOfPages, run_reference: str) -> Response:
    """Return the verdict on a run, for its line in the list."""
    with source.reading_run(run_reference) as (db, run):
        return htmx.fragment(request, "runs/_run_verdict.html", VerdictLine(run, outline(db, run)))


async def _sent(request: Request) -> urls.Pairs:
    return await read_form(request, _BODY_BYTES, "Too many runs at once: select fewer.")


@router.post("/tags")
def tag_runs(
    request: Request, source: SourceOfPages, notebook: WritableNotebook, sent: Annotated[urls.Pairs, Depends(_sent)]
) -> Response:
    """Add a tag to the selected runs, or remove it, and show the same list again."""
    tag = tag_of(next((value for name, value in sent if name == "label"), ""))
    add = ("do", "untag") not in sent
    ticked = [value for name, value in sent if name == "run" and value][:_MOST_TICKED]
    with source.reading() as db:
        uids = [queries.find_run(db, uid).uid for uid in ticked]
    for uid in uids if tag else []:
        (notebook.tag if add else notebook.untag)(Subject(uid), tag)
    return RedirectResponse(urls.runs(chosen_runs(request)), 303, headers={"Cache-Control": "no-store"})


def chosen_runs(request: Request) -> RunFilter:
    """Read the filter from the address. Raise FilterError if there is no such state."""
    parameters = request.query_params
    states = tuple(dict.fromkeys(filter(None, parameters.getlist("state"))))
    for state in states:
        check_word("state", "state", state, STATES)
    return RunFilter(
        words=tuple(parameters.get("q", "").split()),
        states=states,
        tags=tuple(dict.fromkeys(filter(None, parameters.getlist("tag")))),
        starred=bool(parameters.get("starred")),
        projects=tuple(dict.fromkeys(filter(None, parameters.getlist("project")))),
    )


def _view(request: Request) -> RunsView:
    """Read the view from the address, and keep it in the addresses of this request."""
    view = RunsView.of(request.query_params.multi_items())
    urls.listing_runs(view.pairs())
    return view


def _page(db: Connection, address: Address, chosen: RunFilter, view: RunsView, place: str | None) -> RunsPage:
    counts = queries.count_runs(db, chosen)
    differing_arguments = differing(queries.run_configs(db, chosen, _COMPARED))
    groups, is_ordered = {}, bool(view.sort or view.by)
    if is_ordered:
        begin = urls.parse_whole(place or "0")
        ordered = view.ordered(
            _lines(db, view, differing_arguments, queries.list_runs(db, chosen, limit=MOST_SORTED).runs)
        )
        groups, lines, end = view.groups(ordered), ordered[begin : begin + PAGE_SIZE], begin + PAGE_SIZE
        following = urls.runs(chosen, view=[*view.pairs(), ("after", str(end))]) if end < len(ordered) else None
    else:
        newest = queries.list_runs(db, chosen, after=urls.parse_cursor(place) if place else None, limit=PAGE_SIZE)
        lines = _lines(db, view, differing_arguments, newest.runs)
        following = urls.runs(chosen, after=newest.next) if newest.next else None
    return RunsPage(
        database=masked_address(address),
        exists=True,
        chosen=chosen,
        counts=counts,
        view=view,
        lines=lines,
        groups=groups,
        next=following,
        is_first=place is None,
        live=_live(db, chosen, _list_open(lines), None),
        empty_kind="" if counts.all else "empty",
        arguments=differing_arguments,
        unsorted=max(0, counts.matching - MOST_SORTED) if is_ordered else 0,
    )


def _empty(address: Address, chosen: RunFilter, view: RunsView) -> RunsPage:
    exists = not isinstance(address, Path) or address.exists()
    empty_kind = "empty" if exists else "missing"
    nothing = RunCounts(0, 0)
    live = RunsLive(0, 0, "")
    return RunsPage(masked_address(address), exists, chosen, nothing, view, [], {}, None, True, live, empty_kind, [], 0)


def _lines(
    db: Connection, view: RunsView, differing_arguments: list[str], listed_runs: Sequence[ListedRun]
) -> list[RunLine]:
    wants_solved = "solved" in {*view.column_keys, view.sort.removeprefix("-")}
    deadline = time.monotonic() + _SOLVED_SECONDS
    lines = []
    for listed in listed_runs:
        summary, run = listed.summary, listed.summary.run
        latest_outline, is_current = cached_outline(db, run)
        if wants_solved and not is_current and summary.reward is not None and time.monotonic() < deadline:
            latest_outline, is_current = outline(db, run), True
        is_open = run.state == RunState.RUNNING
        differences = told_apart(run.config, differing_arguments)
        lines.append(
            RunLine(
                listed,
                _sparkline(summary.reward_curve),
                _seconds(listed),
                is_open,
                latest_outline,
                is_current,
                differences,
            )
        )
    return lines


_sparkline = lru_cache(maxsize=1_000)(charts.sparkline)  # most runs are over


def _seconds(listed: ListedRun) -> float | None:
    run = listed.summary.run
    silent = listed.summary.silent if listed.summary.state == RunState.RUNNING else 0
    now = run.heartbeat + silent
    if run.finished == run.created:
        return None
    return max(0.0, ((run.finished or now) - run.created) / 1e6)


def _list_open(lines: Sequence[RunLine]) -> list[int]:
    return [id_of(line.listed.summary.run) for line in lines if line.is_open][:_POLLED_ROWS]


def _live(db: Connection, chosen: RunFilter, open_ids: Sequence[int], newest: int | None) -> RunsLive:
    """Build the live corner. `newest` is None if the list is being made now."""
    if newest is None:
        newest, new = queries.newest_run(db), 0
    else:
        new = queries.runs_since(db, chosen, newest)
    version = repr((queries.run_marks(db, open_ids), new))
    return RunsLive(newest, new, hashlib.sha256(version.encode()).hexdigest()[:16])


def _ids(written: Sequence[str]) -> list[int]:
    return sorted({number for text in written if (number := urls.parse_whole(text))})[:_POLLED_ROWS]
