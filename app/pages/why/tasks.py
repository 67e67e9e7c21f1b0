"""Shows the tasks of a run: their status, their solvability, and their rewards step by step."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
from fastapi import APIRouter, Request, Response
from fastapi.responses import RedirectResponse

from logs_ui.app.pages.why.tab import ALL, LAST, WhyTab, find_window, fresh_of
from logs_ui.app.pages.why.task_heat import LABELS, Heat, make_heat
from logs_ui.app.parts.diagnoses import diagnosed
from logs_ui.app.parts.waiting_page import WAIT, until_diagnosed
from logs_ui.app.parts.words import Word
from logs_ui.app.web import htmx, urls
from logs_ui.app.web.open_database import SourceOfPages, id_of
from logs_ui.recorder import queries
from logs_ui.recorder.analysis.diagnose import Diagnosed
from logs_ui.recorder.diagnosis import links
from logs_ui.recorder.diagnosis.rollout_rows import Floats, Ints, Rows
from logs_ui.recorder.diagnosis.success import Success
from logs_ui.recorder.diagnosis.tables.tasks import ATTEMPTS, Figures, Label, Labels, figures, labels, usual_size
from logs_ui.recorder.diagnosis.task_families import by_family
from logs_ui.recorder.queries import RunSummary
from logs_ui.recorder.queries.filters.rollout_filter import check_word, parse_where
from logs_ui.recorder.queries.filters.terms import Term
from logs_ui.recorder.storage.tables import Run
from logs_ui.recorder.vocabulary import Mode, RunState, Status

router = APIRouter()

PAGE_SIZE = 25
SORTS: Final = {
    "worst": "least solved first",
    "mean": "lowest mean first",
    "gap": "largest pass@k gap first",
    "attempts": "most attempts first",
    "task": "by name",
}
"""Orders of the table."""

_PARAMETERS = ("label", "q", "sort", "steps", "since", "page", WAIT)


@dataclass(frozen=True)
class TaskChoice:
    """Holds the parameters of the address."""

    label: str = ""  # status of the tasks; empty for all
    q: str = ""  # part of their names, case-insensitive
    sort: str = "worst"
    # `last` for the steps of the diagnosis, a range such as `100..`; empty for all. Another page's form writes `100..`
    # as `since`.
    steps: str = ""
    page: int = 1  # from 1

    @classmethod
    def of(cls, parameters: Mapping[str, str]) -> "TaskChoice":
        """Read the address. Raise FilterError for an unknown parameter or word."""
        for parameter in parameters:
            check_word(parameter, "parameter", parameter, _PARAMETERS)
        choice = cls(
            parameters.get("label", ""),
            parameters.get("q", "").strip(),
            parameters.get("sort") or "worst",
            parameters.get("steps") or (f"{parameters['since']}.." if parameters.get("since") else ""),
            max(urls.parse_whole(parameters.get("page", "1")), 1),
        )
        check_word("label", "label", choice.label, ["", *(label.value for label in Label)])
        check_word("sort", "order", choice.sort, list(SORTS))
        return choice

    def address(self, run_uid: str, **parts: Any) -> str:
        """Return the address with some parameters changed; a new selection starts at its first page."""
        choice = replace(self, **{"page": 1, **parts})
        sort, page = "" if choice.sort == "worst" else choice.sort, "" if choice.page == 1 else choice.page
        return urls.why(run_uid, "tasks", label=choice.label, q=choice.q, sort=sort, steps=choice.steps, page=page)


@dataclass(frozen=True)
class Chip:
    """Counts the tasks of one status."""

    word: Word
    count: int
    address: str
    is_chosen: bool


@dataclass(frozen=True)
class FoundTasks:
    """Holds the number of matching tasks, of which `first` to `last`, counted from 1, are shown."""

    count: int
    first: int
    last: int
    previous: str | None  # address of the page before this one; None at the beginning
    next: str | None  # address of the page after it; None at the end


@dataclass(frozen=True)
class WhyTasksPage(WhyTab):
    """Context of `why/why_tasks.html`."""

    choice: TaskChoice
    chips: list[Chip]  # by status, which covers all steps
    # Word, name, step of the regression (None without one) and address of each family of tasks, if the run meets most
    # tasks too rarely to judge them one by one.
    families: list[tuple[Word, str, int | None, str]]
    tasks: int  # number of the run's tasks; 0 if no rollout names one
    unnamed_rollouts: int  # number of rollouts that name none, and are in no line
    success: Success
    k: int  # usual size of a group, for pass@k
    matches: FoundTasks | None
    heat: Heat | None  # None without tasks


@router.get("/runs/{run_reference}/why/tasks")
def why_tasks(request: Request, source: SourceOfPages, run_reference: str) -> Response:
    """Show the page."""
    choice = TaskChoice.of(request.query_params)
    with source.reading_run(run_reference) as (db, run):
        if run_reference != run.uid:
            return RedirectResponse(choice.address(run.uid, page=choice.page), 303)
        if (frame := until_diagnosed(request, db, run, "why/why_tasks.html", "tasks")) is not None:
            return frame
        summary = queries.run_summary(db, id_of(run))
        page = _page(summary, diagnosed(db, run), queries.mode_of(db, id_of(run)), choice)
    return htmx.render(request, "why/why_tasks.html", page)


def _page(summary: RunSummary, diagnosis: Diagnosed, mode: Mode, choice: TaskChoice) -> WhyTasksPage:
    uid, scale = summary.run.uid, diagnosis.report.scale
    # As addresses have it, all steps are what is shown where none are asked for.
    window = find_window(
        diagnosis, mode, choice.steps or ALL, lambda steps: choice.address(uid, steps="" if steps == ALL else LAST)
    )
    rows, k = window.rows, usual_size(diagnosis.rows.groups)
    heat = matches = task_labels = None
    if (diagnosis.rows.task >= 0).any():
        task_labels, task_figures = labels(diagnosis.rows, scale, diagnosis.settings), figures(rows, scale, k)
        ordered_tasks = _order_tasks(
            _select_tasks(rows, task_labels, task_figures, choice), rows, task_figures, choice.sort
        )
        matches, page_tasks = _page_tasks(uid, ordered_tasks, choice)
        heat = make_heat(
            uid, rows, scale, page_tasks, task_figures, task_labels, modes=(mode,), **_exclude_running(summary.run)
        )
    return WhyTasksPage(
        summary=summary,
        choice=choice,
        chips=_chips(uid, task_labels, choice) if task_labels else [],
        families=_families(uid, diagnosis),
        window=window,
        fresh=fresh_of(summary),
        tasks=len(rows.tasks),
        unnamed_rollouts=int((rows.task < 0).sum()),
        success=scale.success,
        k=k,
        matches=matches,
        heat=heat,
    )


def _families(uid: str, diagnosis: Diagnosed) -> list[tuple[Word, str, int | None, str]]:
    family_rows = by_family(diagnosis.rows)
    if family_rows is None:
        return []
    family_labels = labels(family_rows, diagnosis.report.scale, diagnosis.settings)
    statuses = [Label(str(label)) for label in family_labels.label]
    return [
        (
            LABELS[statuses[family]],
            family_rows.tasks[family],
            int(family_labels.since[family]) if family_labels.since[family] >= 0 else None,
            urls.rollouts(uid, parse_where(links.tasks([family_rows.tasks[family]], "family"))),
        )
        for family in sorted(range(len(statuses)), key=lambda family: list(Label).index(statuses[family]))
    ]


def _chips(uid: str, task_labels: Labels, choice: TaskChoice) -> list[Chip]:
    return [
        Chip(
            word,
            int((task_labels.label == label).sum()),
            choice.address(uid, label="" if choice.label == label else label.value),
            choice.label == label,
        )
        for label, word in LABELS.items()
        if (task_labels.label == Label.UNKNOWN).any() == (label == Label.UNKNOWN)
    ]


def _select_tasks(rows: Rows, task_labels: Labels, task_figures: Figures, choice: TaskChoice) -> Ints:
    """Return indices of the matching tasks that have rollouts in these steps."""
    is_match = task_figures.rollouts > 0
    if choice.label:
        is_match &= task_labels.label == choice.label
    if choice.q:
        part = choice.q.casefold()
        is_match &= np.array([part in task.casefold() for task in rows.tasks], bool)
    return np.flatnonzero(is_match)


def _order_tasks(tasks: Ints, rows: Rows, task_figures: Figures, sort: str) -> Ints:
    """Sort tasks, by name among equals; those without a figure come last."""
    name_ranks = np.empty(len(rows.tasks), np.int64)
    name_ranks[sorted(range(len(rows.tasks)), key=rows.tasks.__getitem__)] = np.arange(len(rows.tasks))
    gap = task_figures.pass_k - task_figures.pass_1
    keys: dict[str, list[Floats]] = {
        "worst": [
            (task_figures.attempts < ATTEMPTS).astype(float),
            task_figures.share,
            -task_figures.attempts.astype(float),
        ],
        "mean": [task_figures.mean],
        "gap": [-gap],
        "attempts": [-task_figures.attempts.astype(float)],
        "task": [],
    }
    order = np.lexsort([name_ranks[tasks], *(key[tasks] for key in reversed(keys[sort]))])
    ordered_tasks: Ints = tasks[order]
    return ordered_tasks


def _page_tasks(uid: str, tasks: Ints, choice: TaskChoice) -> tuple[FoundTasks, Ints]:
    """Return a page of tasks, or the last page if the number is too high."""
    pages = max(-(-len(tasks) // PAGE_SIZE), 1)
    page = min(choice.page, pages)
    begin = (page - 1) * PAGE_SIZE
    page_tasks = tasks[begin : begin + PAGE_SIZE]
    previous = choice.address(uid, page=page - 1) if page > 1 else None
    following = choice.address(uid, page=page + 1) if page < pages else None
    return FoundTasks(len(tasks), begin + 1, begin + len(page_tasks), previous, following), page_tasks


def _exclude_running(run: Run) -> dict[str, Any]:
    """Return filter parts that leave out running rollouts of a live run, which no figure counts yet."""
    if run.state != RunState.RUNNING:
        return {}
    return {"terms": (Term("status", (Status.RUNNING.value,), negated=True),)}
