"""Shows how current the diagnosis' subpages are. They do not update themselves while their run goes on."""

from dataclasses import dataclass

from fastapi import APIRouter, Request, Response

from logs_ui.app.web import htmx, urls
from logs_ui.app.web.open_database import SourceOfPages, id_of
from logs_ui.recorder import queries
from logs_ui.recorder.queries import RunSummary
from logs_ui.recorder.vocabulary import RunState

router = APIRouter()

_POLL_SECONDS = 5


@dataclass(frozen=True)
class Fresh:
    """Changes of a live run since a page was made.

    Attributes:
        address: address to poll.
        every: seconds between two polls.
        is_old: True if the run changed since the page was made.
        more: number of rollouts that began since.
        is_running: True if the run sent a heartbeat lately.
    """

    address: str
    every: int
    is_old: bool
    more: int
    is_running: bool


@dataclass(frozen=True)
class FreshPage:
    """Context of `why/_why_fresh.html`."""

    fresh: Fresh


def fresh_of(summary: RunSummary) -> Fresh | None:
    """Returns the state for a page that is being made; None if nothing is to come."""
    return _fresh(summary, _moment(summary), summary.rollouts) if _is_alive(summary) else None


@router.get("/runs/{name}/why/fresh")
def fresh(
    request: Request, source: SourceOfPages, name: str, seen: str = "", made: str = "", rollouts: str = ""
) -> Response:
    """Returns the changes since a page was made; 204 without new ones since the last poll.

    Args:
        request: of htmx.
        source: of the run.
        name: of the run.
        seen: version of the run at the last poll.
        made: version of the run when the page was made.
        rollouts: number of rollouts then.
    """
    with source.reading() as db:
        summary = queries.run_summary(db, id_of(queries.find_run(db, name)))
    if seen == _moment(summary):
        return htmx.nothing_new()
    return htmx.fragment(request, "why/_why_fresh.html", FreshPage(_fresh(summary, made, urls.parse_whole(rollouts))))


def _fresh(summary: RunSummary, made: str, rollouts: int) -> Fresh:
    now = _moment(summary)
    return Fresh(
        address=urls.why_fresh(summary.run.uid, seen=now, made=made, rollouts=rollouts) if _is_alive(summary) else "",
        every=_POLL_SECONDS,
        is_old=made != now,
        more=max(summary.rollouts - rollouts, 0),
        is_running=summary.state == RunState.RUNNING,
    )


def _moment(summary: RunSummary) -> str:
    return f"{summary.run.changed}.{summary.state}"


def _is_alive(summary: RunSummary) -> bool:
    return summary.state in {RunState.RUNNING, "died"}
