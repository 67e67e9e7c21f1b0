"""Frames the pages beside the diagnosis: the steps that a page covers, and how current it is. These pages do not update
themselves while their run goes on.
"""

import threading
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar
from weakref import WeakKeyDictionary

from fastapi import APIRouter, Request, Response
from fastapi.responses import RedirectResponse
from sqlalchemy import Connection

from logs_ui.app.parts.diagnoses import diagnosed
from logs_ui.app.parts.waiting_page import WAIT, until_diagnosed
from logs_ui.app.web import htmx, urls
from logs_ui.app.web.open_database import SourceOfPages, id_of
from logs_ui.recorder import queries
from logs_ui.recorder.analysis.diagnose import Diagnosed
from logs_ui.recorder.diagnosis.rollout_rows import Rows
from logs_ui.recorder.errors import FilterError
from logs_ui.recorder.queries import RunSummary
from logs_ui.recorder.queries.filters.rollout_filter import RolloutFilter, check_word, parse_where
from logs_ui.recorder.vocabulary import Mode, RunState

router = APIRouter()

LAST, ALL = "last", "all"

Figure = TypeVar("Figure")
_known: "WeakKeyDictionary[Rows, dict[Hashable, Any]]" = WeakKeyDictionary()
_lock = threading.Lock()


def kept(known: Diagnosed, what: Hashable, make: Callable[[], Figure]) -> Figure:
    """Cache what `make` returns for the same rollouts and settings. It must not return addresses, of one request."""
    key = (what, repr(known.settings))
    with _lock:
        of_rows = _known.setdefault(known.rows, {})
    if key not in of_rows:
        of_rows[key] = make()
    figure: Figure = of_rows[key]
    return figure


@dataclass(frozen=True)
class StepWindow:
    """Describes some steps of a run, and the rollouts that ended in them."""

    rows: Rows
    mode: Mode
    # `first` and `last`: None for a run without rollouts.
    first: int | None
    last: int | None
    is_all: bool
    choice: tuple[tuple[str, str, bool], ...]  # (title, address, is chosen) of each option; empty without a choice
    sample: str | None = None  # see `Report.sample`

    @property
    def said(self) -> str:
        if self.first is None or self.last is None:
            return "no steps"
        return f"step {self.last:,}" if self.first == self.last else f"steps {self.first:,}\u2013{self.last:,}"

    def only(self, where: str = "") -> RolloutFilter:
        """Return the filter that selects the window's rollouts that match `where`; steps in `where` replace the
        window's. Raise FilterError if `where` cannot be read.
        """
        is_open = self.first is None or "step:" in where
        steps = [] if is_open else [f"step:{self.first}..{self.last}"]
        return parse_where(" ".join([where, f"mode:{self.mode}", *steps]))


def window(known: Diagnosed, mode: Mode, wanted: str, address: Callable[[str], str]) -> StepWindow:
    """Return the window asked for: "", `last`, `all`, or a range such as `100..` or `100..200`; `address` returns the
    page's address for "" and `all`. Raise FilterError if `wanted` is none of these, or no rollout has such a step.
    """
    rows, looked_at, sample = known.rows, known.report.steps, known.report.sample
    if looked_at is None:
        return StepWindow(rows, mode, None, None, is_all=True, choice=(), sample=sample)
    first, last = int(rows.steps[0]), int(rows.steps[-1])
    is_short, is_all = looked_at[0] <= first, wanted == ALL
    count = int((rows.steps >= looked_at[0]).sum())
    last_steps = (f"last {count} steps", address(""), wanted in {"", LAST})
    choice = () if is_short and wanted in {"", LAST, ALL} else (last_steps, ("all steps", address(ALL), is_all))
    if is_all or (is_short and not choice):
        return StepWindow(rows, mode, first, last, is_all=True, choice=choice, sample=sample)
    if wanted in {"", LAST}:
        last_rows = kept(known, ("window", looked_at), lambda: rows.where(rows.step >= looked_at[0]))
        return StepWindow(last_rows, mode, *looked_at, is_all=False, choice=choice, sample=sample)
    asked = parse_where(f"step:{wanted}").range("step")
    some = rows.where((rows.step >= (asked.low or 0)) & (rows.step <= (last if asked.high is None else asked.high)))
    if not len(some.step):
        raise FilterError("steps", f"steps {wanted}: there are none, choose from {first:,} to {last:,}")
    ends = int(some.step.min()), int(some.step.max())
    return StepWindow(some, mode, *ends, is_all=False, choice=choice, sample=sample)


class Fresh(NamedTuple):
    """Changes of a live run since a page was made."""

    address: str
    is_old: bool  # True if the run changed since the page was made
    more: int  # number of rollouts that began since
    is_running: bool  # True if the run sent a heartbeat lately


@dataclass(frozen=True)
class FreshPage:
    """Context of `why/_why_fresh.html`."""

    fresh: Fresh


def fresh_of(summary: RunSummary) -> Fresh | None:
    """Return the state for a page that is being made; None if nothing is to come."""
    return _fresh(summary, _moment(summary), summary.rollouts) if summary.is_alive else None


@router.get("/runs/{name}/why/fresh")
def fresh(
    request: Request, source: SourceOfPages, name: str, seen: str = "", made: str = "", rollouts: str = ""
) -> Response:
    """Return the changes since a page was made; 204 without new ones since the last poll. `seen` is the version of the
    run at the last poll; `made` and `rollouts` are its version and its number of rollouts when the page was made.
    """
    with source.reading() as db:
        summary = queries.run_summary(db, id_of(queries.find_run(db, name)))
    if seen == _moment(summary):
        return htmx.nothing_new()
    return htmx.fragment(request, "why/_why_fresh.html", FreshPage(_fresh(summary, made, urls.parse_whole(rollouts))))


def _fresh(summary: RunSummary, made: str, rollouts: int) -> Fresh:
    now = _moment(summary)
    address = urls.why(summary.run.uid, "fresh", seen=now, made=made, rollouts=rollouts)
    return Fresh(
        address=address if summary.is_alive else "",
        is_old=made != now,
        more=max(summary.rollouts - rollouts, 0),
        is_running=summary.state == RunState.RUNNING,
    )


def _moment(summary: RunSummary) -> str:
    return f"{summary.run.changed}.{summary.state}"


@dataclass(frozen=True)
class WhyTab:
    """Holds what the templates of all these pages need; `fresh` is None if nothing is to come."""

    summary: RunSummary
    window: StepWindow
    fresh: Fresh | None


def tab_router(tab: str, make: Callable[[Connection, RunSummary, Diagnosed, StepWindow], WhyTab]) -> APIRouter:
    """Return the router of the page `why/why_TAB.html`, which `make` makes for the steps asked for: see `window`."""
    router, template = APIRouter(), f"why/why_{tab}.html"

    @router.get(f"/runs/{{name}}/why/{tab}")
    def show(request: Request, source: SourceOfPages, name: str, steps: str = "") -> Response:
        for parameter in request.query_params:
            check_word(parameter, "parameter", parameter, ("steps", WAIT))
        with source.reading_run(name) as (db, run):
            if name != run.uid:
                return RedirectResponse(urls.why(run.uid, tab, steps=steps), 303)
            if (frame := until_diagnosed(request, db, run, template, tab)) is not None:
                return frame
            known, mode = diagnosed(db, run), queries.mode_of(db, id_of(run))
            here = window(known, mode, steps, lambda wanted: urls.why(run.uid, tab, steps=wanted))
            page = make(db, queries.run_summary(db, id_of(run)), known, here)
        return htmx.render(request, template, page)

    return router
