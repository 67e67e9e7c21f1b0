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
_figures: "WeakKeyDictionary[Rows, dict[Hashable, Any]]" = WeakKeyDictionary()
_lock = threading.Lock()


def cache_figure(diagnosis: Diagnosed, name: Hashable, make: Callable[[], Figure]) -> Figure:
    """Cache what `make` returns for the same rollouts and settings. It must not return addresses, of one request."""
    key = (name, repr(diagnosis.settings))
    with _lock:
        figures = _figures.setdefault(diagnosis.rows, {})
    if key not in figures:
        figures[key] = make()
    figure: Figure = figures[key]
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
    def steps_text(self) -> str:
        if self.first is None or self.last is None:
            return "no steps"
        return f"step {self.last:,}" if self.first == self.last else f"steps {self.first:,}\u2013{self.last:,}"

    def make_filter(self, where: str = "") -> RolloutFilter:
        """Return the filter that selects the window's rollouts that match `where`; steps in `where` replace the
        window's. Raise FilterError if `where` cannot be read.
        """
        is_open = self.first is None or "step:" in where
        steps = [] if is_open else [f"step:{self.first}..{self.last}"]
        return parse_where(" ".join([where, f"mode:{self.mode}", *steps]))


def find_window(diagnosis: Diagnosed, mode: Mode, steps_text: str, address: Callable[[str], str]) -> StepWindow:
    """Return the window asked for: "", `last`, `all`, or a range such as `100..` or `100..200`; `address` returns the
    page's address for "" and `all`. Raise FilterError if `steps_text` is none of these, or no rollout has such a step.
    """
    rows, diagnosed_steps, sample = diagnosis.rows, diagnosis.report.steps, diagnosis.report.sample
    if diagnosed_steps is None:
        return StepWindow(rows, mode, None, None, is_all=True, choice=(), sample=sample)
    first, last = int(rows.steps[0]), int(rows.steps[-1])
    is_short, is_all = diagnosed_steps[0] <= first, steps_text == ALL
    count = int((rows.steps >= diagnosed_steps[0]).sum())
    last_steps = (f"last {count} steps", address(""), steps_text in {"", LAST})
    choice = () if is_short and steps_text in {"", LAST, ALL} else (last_steps, ("all steps", address(ALL), is_all))
    if is_all or (is_short and not choice):
        return StepWindow(rows, mode, first, last, is_all=True, choice=choice, sample=sample)
    if steps_text in {"", LAST}:
        last_rows = cache_figure(
            diagnosis, ("window", diagnosed_steps), lambda: rows.where(rows.step >= diagnosed_steps[0])
        )
        return StepWindow(last_rows, mode, *diagnosed_steps, is_all=False, choice=choice, sample=sample)
    step_range = parse_where(f"step:{steps_text}").range("step")
    chosen_rows = rows.where(
        (rows.step >= (step_range.low or 0)) & (rows.step <= (last if step_range.high is None else step_range.high))
    )
    if not len(chosen_rows.step):
        raise FilterError("steps", f"steps {steps_text}: there are none, choose from {first:,} to {last:,}")
    ends = int(chosen_rows.step.min()), int(chosen_rows.step.max())
    return StepWindow(chosen_rows, mode, *ends, is_all=False, choice=choice, sample=sample)


class Fresh(NamedTuple):
    """Changes of a live run since a page was made."""

    address: str
    is_old: bool  # True if the run changed since the page was made
    new_rollouts: int  # number of rollouts that began since
    is_running: bool  # True if the run sent a heartbeat lately


@dataclass(frozen=True)
class FreshPage:
    """Context of `why/_why_fresh.html`."""

    fresh: Fresh


def fresh_of(summary: RunSummary) -> Fresh | None:
    """Return the state for a page that is being made; None if nothing is to come."""
    return _fresh(summary, _version_of(summary), summary.rollouts) if summary.is_alive else None


@router.get("/runs/{run_reference}/why/fresh")
def fresh(
    request: Request,
    source: SourceOfPages,
    run_reference: str,
    seen: str = "",
    made: str = "",
    rollouts: str = "",
) -> Response:
    """Return the changes since a page was made; 204 without new ones since the last poll. `seen` is the version of the
    run at the last poll; `made` and `rollouts` are its version and its number of rollouts when the page was made.
    """
    with source.reading() as db:
        summary = queries.run_summary(db, id_of(queries.find_run(db, run_reference)))
    if seen == _version_of(summary):
        return htmx.nothing_new()
    return htmx.fragment(request, "why/_why_fresh.html", FreshPage(_fresh(summary, made, urls.parse_whole(rollouts))))


def _fresh(summary: RunSummary, page_version: str, rollouts: int) -> Fresh:
    version = _version_of(summary)
    address = urls.why(summary.run.uid, "fresh", seen=version, made=page_version, rollouts=rollouts)
    return Fresh(
        address=address if summary.is_alive else "",
        is_old=page_version != version,
        new_rollouts=max(summary.rollouts - rollouts, 0),
        is_running=summary.state == RunState.RUNNING,
    )


def _version_of(summary: RunSummary) -> str:
    return f"{summary.run.changed}.{summary.state}"


@dataclass(frozen=True)
class WhyTab:
    """Holds what the templates of all these pages need; `fresh` is None if nothing is to come."""

    summary: RunSummary
    window: StepWindow
    fresh: Fresh | None


def tab_router(tab: str, make: Callable[[Connection, RunSummary, Diagnosed, StepWindow], WhyTab]) -> APIRouter:
    """Return the router of the page `why/why_TAB.html`, which `make` makes for the steps that `find_window` reads."""
    router, template = APIRouter(), f"why/why_{tab}.html"

    @router.get(f"/runs/{{run_reference}}/why/{tab}")
    def show(request: Request, source: SourceOfPages, run_reference: str, steps: str = "") -> Response:
        for parameter in request.query_params:
            check_word(parameter, "parameter", parameter, ("steps", WAIT))
        with source.reading_run(run_reference) as (db, run):
            if run_reference != run.uid:
                return RedirectResponse(urls.why(run.uid, tab, steps=steps), 303)
            if (frame := until_diagnosed(request, db, run, template, tab)) is not None:
                return frame
            diagnosis, mode = diagnosed(db, run), queries.mode_of(db, id_of(run))
            window = find_window(diagnosis, mode, steps, lambda option: urls.why(run.uid, tab, steps=option))
            page = make(db, queries.run_summary(db, id_of(run)), diagnosis, window)
        return htmx.render(request, template, page)

    return router
