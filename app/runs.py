"""The list of runs, which is also what a new user sees first."""

import hashlib
from dataclasses import dataclass
from pathlib import Path

from fastapi import APIRouter, Request, Response

from logs_ui.app import charts, htmx
from logs_ui.app.source import SourceOfPages
from logs_ui.recorder import queries
from logs_ui.recorder.queries import RunSummary

router = APIRouter()


@dataclass(frozen=True)
class RunLine:
    """One row of the table."""

    summary: RunSummary
    sparkline: charts.Sparkline | None


@dataclass(frozen=True)
class RunsPage:
    """What `runs.html` and `_runs.html` show.

    Attributes:
        database: where recordings are looked for.
        exists: whether there is a file.
        lines: newest first.
        seen: stands for all of this; the next poll brings it back, to hear whether anything is new.
    """

    database: Path
    exists: bool
    lines: list[RunLine]
    seen: str


@router.get("/")
def runs(request: Request, source: SourceOfPages, seen: str = "") -> Response:
    """All runs, newest first; or how to record the first one."""
    summaries: list[RunSummary] = []
    if source.exists():
        with source.reading() as db:
            summaries = queries.all_runs(db)
    page = _page(source.path, exists=source.path.exists(), summaries=summaries)
    if htmx.target(request) == "runs" and seen == page.seen:
        return htmx.nothing_new()
    return htmx.render(request, "runs.html", page, fragments=("runs",))


def _page(path: Path, *, exists: bool, summaries: list[RunSummary]) -> RunsPage:
    lines = [RunLine(summary, charts.sparkline(summary.reward_curve)) for summary in summaries]
    # The heartbeat moves every few seconds, and shows only in the state.
    shown = [
        (
            *(s.run.uid, s.run.name, s.run.model, s.run.error),
            *(s.state, s.is_evaluation, s.eval_names, s.rollouts, s.steps, s.reward, s.truncated),
        )
        for s in summaries
    ]
    return RunsPage(path, exists, lines, hashlib.sha256(repr((exists, shown)).encode()).hexdigest()[:16])
