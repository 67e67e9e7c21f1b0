"""A placeholder for a page that takes seconds to make the first time; it appears at once and then loads the page."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from fastapi import Request, Response
from sqlalchemy import Connection

from logs_ui.app.parts.diagnoses import is_diagnosed
from logs_ui.app.web import htmx, page_cache, urls
from logs_ui.app.web.open_database import id_of
from logs_ui.recorder import queries
from logs_ui.recorder.queries import RunSummary
from logs_ui.recorder.storage.tables import Run

WAIT = "wait"
"""The parameter with which the placeholder requests the page itself."""

_QUICK = 20_000  # rollouts: fewer are read and diagnosed in less than a second


@dataclass(frozen=True)
class WaitingPage:
    """Context of `waiting.html`."""

    summary: RunSummary
    page: str  # template of the page to come, whose head and breadcrumbs are shown already
    part: str  # tab of the run: `why`, `rollouts`, `groups`
    tab: str  # tab of the diagnosis; empty for other pages
    in_part: bool  # True if the run is so large that only a sample is read
    whole: str  # address of the page itself


def until_diagnosed(request: Request, db: Connection, run: Run, page: str, tab: str) -> Response | None:
    """Return the placeholder of a page of the diagnosis; None if it need not wait, or the client is no browser."""
    if not _is_for_people(request) or is_diagnosed(db, run):
        return None
    summary = queries.run_summary(db, id_of(run))
    if summary.rollouts < _QUICK:
        return None
    is_large = summary.rollouts >= queries.LARGE
    return _render_waiting(request, summary, page, "why", tab, in_part=is_large)


def until_counted(request: Request, db: Connection, run: Run, part: str, ask: Callable[..., Any]) -> Response | None:
    """Return the placeholder of a large run's `rollouts` or `groups` if the slowest query has not run yet, with any
    filter; None otherwise, and if the client is no browser. `ask` is that query.
    """
    if not _is_for_people(request):
        return None
    summary = queries.run_summary(db, id_of(run))
    if summary.rollouts < queries.LARGE or page_cache.knows(db, run, ask):
        return None
    return _render_waiting(request, summary, f"{part}/{part}.html", part)


def _is_for_people(request: Request) -> bool:
    """Return True if a browser requests a whole page and does not show the placeholder yet. Scripts wait for their
    answer.
    """
    is_browser = "text/html" in request.headers.get("accept", "")
    return is_browser and htmx.target(request) is None and WAIT not in request.query_params


def _render_waiting(
    request: Request, summary: RunSummary, page: str, part: str, tab: str = "", *, in_part: bool = False
) -> Response:
    whole = urls.with_query(request.url.path, [*request.query_params.multi_items(), (WAIT, "1")])
    response = htmx.render(request, "waiting.html", WaitingPage(summary, page, part, tab, in_part, whole))
    response.headers["Cache-Control"] = "no-store"  # Back shall not come to it
    return response
