"""The frame of a page that takes seconds to make the first time: shown at once, it then gives way to the page."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from fastapi import Request, Response
from sqlalchemy import Connection

from logs_ui.app.parts.diagnoses import is_diagnosed
from logs_ui.app.web import htmx, remembered, urls
from logs_ui.app.web.open_database import id_of
from logs_ui.recorder import queries
from logs_ui.recorder.queries import RunSummary
from logs_ui.recorder.storage.tables import Run

WAIT = "wait"
"""The parameter by which a browser says that it shows the frame already."""

_QUICK = 20_000  # rollouts: fewer are read and diagnosed in less than a second


@dataclass(frozen=True)
class WaitingPage:
    """What `waiting.html` shows.

    Attributes:
        page: the template of the page that is to come, whose head and crumbs are shown already.
        part: of the run that it is: `why`, `rollouts`, `groups`.
        tab: of the pages of Why that it is; empty for others.
        in_part: whether the run is so large that only a part of it is read.
        whole: where the page itself is.
    """

    summary: RunSummary
    page: str
    part: str
    tab: str
    in_part: bool
    whole: str


def until_diagnosed(request: Request, db: Connection, run: Run, page: str, tab: str) -> Response | None:
    """The frame of a page of Why; None where its diagnosis is there, or soon made, or nobody would see a frame."""
    if not _is_for_people(request) or is_diagnosed(db, run):
        return None
    summary = queries.run_summary(db, id_of(run))
    if summary.rollouts < _QUICK:
        return None
    is_large = summary.rollouts >= queries.LARGE
    return _shown(request, WaitingPage(summary, page, "why", tab, is_large, _whole(request)))


def until_counted(request: Request, db: Connection, run: Run, part: str, ask: Callable[..., Any]) -> Response | None:
    """The frame of `rollouts`, or `groups`, of a large run, where what takes longest has not been asked yet, whatever
    the filter; None of any other, or where nobody would see a frame.

    Args:
        request: for the page.
        db: see `remembered.figure`.
        run: whose rollouts are counted.
        part: which of the two.
        ask: one of `queries`.
    """
    if not _is_for_people(request):
        return None
    summary = queries.run_summary(db, id_of(run))
    if summary.rollouts < queries.LARGE or remembered.knows(db, run, ask):
        return None
    return _shown(request, WaitingPage(summary, f"{part}/{part}.html", part, "", in_part=False, whole=_whole(request)))


def _is_for_people(request: Request) -> bool:
    """Whether a browser asks for a whole page, and does not show a frame yet. Scripts wait for what they ask for."""
    is_browser = "text/html" in request.headers.get("accept", "")
    return is_browser and htmx.target(request) is None and WAIT not in request.query_params


def _whole(request: Request) -> str:
    return urls.with_query(request.url.path, [*request.query_params.multi_items(), (WAIT, "1")])


def _shown(request: Request, page: WaitingPage) -> Response:
    response = htmx.render(request, "waiting.html", page)
    response.headers["Cache-Control"] = "no-store"  # Back shall not come to it
    return response
