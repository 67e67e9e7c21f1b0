"""How new the pages beside Why are, which stand still while their run goes on."""

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
    """What is known of a run that is alive since a page of it was made.

    Attributes:
        address: where it looks for news.
        every: seconds between two looks.
        is_old: whether anything of the run has changed since the page was made.
        more: rollouts that have begun since.
        is_running: whether the run has been heard of lately.
    """

    address: str
    every: int
    is_old: bool
    more: int
    is_running: bool


@dataclass(frozen=True)
class FreshPage:
    """What `_why_fresh.html` shows."""

    fresh: Fresh


def fresh_of(summary: RunSummary) -> Fresh | None:
    """Of a page that is made now; None where nothing is to come."""
    return _fresh(summary, _moment(summary), summary.rollouts) if _is_alive(summary) else None


@router.get("/runs/{name}/why/fresh")
def fresh(
    request: Request, source: SourceOfPages, name: str, seen: str = "", made: str = "", rollouts: str = ""
) -> Response:
    """Whether the run has gone on since a page was made; 204 where nothing has changed since it was last asked.

    Args:
        request: of htmx.
        source: of the run.
        name: of the run.
        seen: its moment when it was last asked.
        made: its moment when the page was made.
        rollouts: how many it had then.
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
