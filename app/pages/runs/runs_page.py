"""The list of runs, which is also what a new user sees first: search, tags, and the choice of runs to compare."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Annotated, NamedTuple

from fastapi import APIRouter, Depends, Request, Response
from fastapi.responses import RedirectResponse
from sqlalchemy import Connection

from logs_ui.app.parts import charts
from logs_ui.app.parts.notes_forms import WritableNotebook, read_form
from logs_ui.app.web import htmx, urls
from logs_ui.app.web.open_database import SourceOfPages, id_of
from logs_ui.recorder import queries
from logs_ui.recorder.labels import tag_of
from logs_ui.recorder.queries import DIED, Cursor, ListedRun, RunCounts, RunFilter
from logs_ui.recorder.queries.filters.rollout_filter import check_word
from logs_ui.recorder.queries.notebook import Subject
from logs_ui.recorder.storage.address import Address, shown
from logs_ui.recorder.vocabulary import RunState

PAGE_SIZE = 50
STATES = (*(state.value for state in RunState), DIED)

_POLL_SECONDS = 3
_POLLED_ROWS = 100  # of those that may change
_MOST_TICKED = 200
_BODY_BYTES = 64 << 10

router = APIRouter()


class RunLine(NamedTuple):
    """Describes one row of the table.

    Attributes:
        seconds: from start to end; to the last heartbeat if it crashed, otherwise to now.
        is_open: True if more may come.
    """

    listed: ListedRun
    sparkline: charts.Sparkline | None
    seconds: float
    is_open: bool


class RunsLive(NamedTuple):
    """Fills the live corner of the list.

    Attributes:
        newest: number of the newest run when the list was made; later ones are new.
        new: number of new runs that match.
        seen: version of the rows shown.
    """

    newest: int
    new: int
    seen: str
    every: int = _POLL_SECONDS


@dataclass(frozen=True)
class RunsPage:
    """Context of `runs/runs.html`, `runs/_runs.html` and `runs/_listed.html`.

    Attributes:
        lines: newest first.
        next: address of the lines that follow; None at the end.
        is_first: True if the lines start at the beginning of the list.
        seen: kind of an empty page, which polls until it changes.
    """

    database: str
    exists: bool
    chosen: RunFilter
    counts: RunCounts
    lines: list[RunLine]
    next: str | None
    is_first: bool
    live: RunsLive
    seen: str


@dataclass(frozen=True)
class MoreRunsPage:
    """Context of `runs/_more_runs.html`: the lines that follow."""

    lines: list[RunLine]
    next: str | None


@dataclass(frozen=True)
class RunsLivePage:
    """Context of `runs/_runs_live.html`.

    Attributes:
        lines: lines that may have changed; the whole first page if the list follows new runs.
        next: address of the following lines, if the list follows.
    """

    chosen: RunFilter
    counts: RunCounts
    lines: list[RunLine]
    next: str | None
    live: RunsLive
    follows: bool


@router.get("/")
def runs(request: Request, source: SourceOfPages) -> Response:
    """Shows the matching runs, newest first, or how to record the first one."""
    for name in request.query_params:
        check_word("parameter", name, name, ("q", "state", "tag", "starred", "project", "after", "seen"))
    chosen = chosen_runs(request)
    place = request.query_params.get("after")
    after = urls.parse_cursor(place) if place else None
    wanted = htmx.target(request)
    if not source.exists():
        page = _empty(source.address, chosen)
    else:
        with source.reading() as db:
            if wanted == "more":
                found = queries.list_runs(db, chosen, after=after, limit=PAGE_SIZE)
                more = MoreRunsPage(_lines(found.runs), urls.runs(chosen, after=found.next) if found.next else None)
                return htmx.fragment(request, "runs/_more_runs.html", more)
            page = _page(db, source.address, chosen, after)
    if wanted == "runs" and request.query_params.get("seen") == page.seen:
        return htmx.nothing_new()
    return htmx.render(
        request, "runs/runs.html", page, fragments=("runs", "listed"), address=urls.runs(chosen, after=after)
    )


@router.get("/live")
def live(request: Request, source: SourceOfPages) -> Response:
    """Returns what changed since the list was made; 204 if nothing did."""
    chosen = chosen_runs(request)
    asked = request.query_params
    newest, shown = urls.parse_whole(asked.get("newest", "0")), _ids(asked.getlist("open"))
    with source.reading() as db:
        now = _live(db, chosen, shown, newest)
        follows = "follow" in asked and now.new > 0
        if now.seen == asked.get("seen") and not follows:
            return htmx.nothing_new()
        counts = queries.count_runs(db, chosen)
        if follows:
            first = queries.list_runs(db, chosen, limit=PAGE_SIZE)
            lines, place = _lines(first.runs), urls.runs(chosen, after=first.next) if first.next else None
            now = _live(db, chosen, _open(lines), None)
        else:
            lines, place = _lines(queries.these_runs(db, shown)), None
            now = _live(db, chosen, _open(lines), newest)
        page = RunsLivePage(chosen, counts, lines, place, now, follows=follows)
    return htmx.fragment(request, "runs/_runs_live.html", page)


async def _sent(request: Request) -> urls.Pairs:
    return await read_form(request, _BODY_BYTES, "Too many runs at once: select fewer.")


@router.post("/tags")
def tag_runs(
    request: Request, source: SourceOfPages, notebook: WritableNotebook, sent: Annotated[urls.Pairs, Depends(_sent)]
) -> Response:
    """Adds a tag to the selected runs, or removes it, and shows the same list again."""
    tag = tag_of(next((value for name, value in sent if name == "label"), ""))
    add = ("do", "untag") not in sent
    ticked = [value for name, value in sent if name == "run" and value][:_MOST_TICKED]
    with source.reading() as db:
        uids = [queries.find_run(db, uid).uid for uid in ticked]
    for uid in uids if tag else []:
        (notebook.tag if add else notebook.untag)(Subject(uid), tag)
    return RedirectResponse(urls.runs(chosen_runs(request)), 303, headers={"Cache-Control": "no-store"})


def chosen_runs(request: Request) -> RunFilter:
    """Reads the filter from the address.

    Raises:
        FilterError: there is no such state.
    """
    asked = request.query_params
    states = tuple(dict.fromkeys(filter(None, asked.getlist("state"))))
    for state in states:
        check_word("state", "state", state, STATES)
    return RunFilter(
        words=tuple(asked.get("q", "").split()),
        states=states,
        tags=tuple(dict.fromkeys(filter(None, asked.getlist("tag")))),
        starred=bool(asked.get("starred")),
        projects=tuple(dict.fromkeys(filter(None, asked.getlist("project")))),
    )


def _page(db: Connection, address: Address, chosen: RunFilter, after: Cursor | None) -> RunsPage:
    counts = queries.count_runs(db, chosen)
    found = queries.list_runs(db, chosen, after=after, limit=PAGE_SIZE)
    lines = _lines(found.runs)
    return RunsPage(
        database=shown(address),
        exists=True,
        chosen=chosen,
        counts=counts,
        lines=lines,
        next=urls.runs(chosen, after=found.next) if found.next else None,
        is_first=after is None,
        live=_live(db, chosen, _open(lines), None),
        seen="" if counts.all else "empty",
    )


def _empty(address: Address, chosen: RunFilter) -> RunsPage:
    exists = not isinstance(address, Path) or address.exists()
    seen = "empty" if exists else "missing"
    return RunsPage(shown(address), exists, chosen, RunCounts(0, 0), [], None, True, RunsLive(0, 0, ""), seen)


def _lines(found: Sequence[ListedRun]) -> list[RunLine]:
    return [
        RunLine(
            listed,
            _sparkline(listed.summary.reward_curve),
            _seconds(listed),
            listed.summary.run.state == RunState.RUNNING,
        )
        for listed in found
    ]


_sparkline = lru_cache(maxsize=1_000)(charts.sparkline)  # most runs are over


def _seconds(listed: ListedRun) -> float:
    run = listed.summary.run
    silent = listed.summary.silent if listed.summary.state == RunState.RUNNING else 0
    now = run.heartbeat + silent
    return max(0.0, ((run.finished or now) - run.created) / 1e6)


def _open(lines: Sequence[RunLine]) -> list[int]:
    return [id_of(line.listed.summary.run) for line in lines if line.is_open][:_POLLED_ROWS]


def _live(db: Connection, chosen: RunFilter, shown: Sequence[int], newest: int | None) -> RunsLive:
    """Builds the live corner. `newest` is None if the list is being made now."""
    if newest is None:
        newest, new = queries.newest_run(db), 0
    else:
        new = queries.runs_since(db, chosen, newest)
    version = repr((queries.run_marks(db, shown), new))
    return RunsLive(newest, new, hashlib.sha256(version.encode()).hexdigest()[:16])


def _ids(written: Sequence[str]) -> list[int]:
    return sorted({number for text in written if (number := urls.parse_whole(text))})[:_POLLED_ROWS]
