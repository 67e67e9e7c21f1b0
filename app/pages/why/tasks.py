"""Shows the tasks of a run: their status, their solvability, and their rewards step by step."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
from fastapi import APIRouter, Request, Response
from fastapi.responses import RedirectResponse

from logs_ui.app.pages.why.tab import ALL, LAST, WhyTab, fresh_of, window
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
from logs_ui.recorder.diagnosis.tables.task_families import by_family
from logs_ui.recorder.diagnosis.tables.tasks import ATTEMPTS, Figures, Label, Labels, figures, labels, usual_size
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
    def of(cls, given: Mapping[str, str]) -> "TaskChoice":
        """Read the address. Raise FilterError for an unknown parameter or word."""
        for parameter in given:
            check_word(parameter, "parameter", parameter, _PARAMETERS)
        found = cls(
            given.get("label", ""),
            given.get("q", "").strip(),
            given.get("sort") or "worst",
            given.get("steps") or (f"{given['since']}.." if given.get("since") else ""),
            max(urls.parse_whole(given.get("page", "1")), 1),
        )
        check_word("label", "label", found.label, ["", *(label.value for label in Label)])
        check_word("sort", "order", found.sort, list(SORTS))
        return found

    def address(self, run: str, **parts: Any) -> str:
        """Return the address with some parameters changed; a new selection starts at its first page."""
        it = replace(self, **{"page": 1, **parts})
        sort, page = "" if it.sort == "worst" else it.sort, "" if it.page == 1 else it.page
        return urls.why(run, "tasks", label=it.label, q=it.q, sort=sort, steps=it.steps, page=page)


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
    unnamed: int  # number of rollouts that name none, and are in no line
    success: Success
    k: int  # usual size of a group, for pass@k
    found: FoundTasks | None
    heat: Heat | None  # None without tasks


@router.get("/runs/{name}/why/tasks")
def why_tasks(request: Request, source: SourceOfPages, name: str) -> Response:
    """Show the page."""
    choice = TaskChoice.of(request.query_params)
    with source.reading_run(name) as (db, run):
        if name != run.uid:
            return RedirectResponse(choice.address(run.uid, page=choice.page), 303)
        if (frame := until_diagnosed(request, db, run, "why/why_tasks.html", "tasks")) is not None:
            return frame
        summary = queries.run_summary(db, id_of(run))
        page = _page(summary, diagnosed(db, run), queries.mode_of(db, id_of(run)), choice)
    return htmx.render(request, "why/why_tasks.html", page)


def _page(summary: RunSummary, it: Diagnosed, mode: Mode, choice: TaskChoice) -> WhyTasksPage:
    uid, scale = summary.run.uid, it.report.scale
    # As addresses have it, all steps are what is shown where none are asked for.
    here = window(it, mode, choice.steps or ALL, lambda steps: choice.address(uid, steps="" if steps == ALL else LAST))
    rows, k = here.rows, usual_size(it.rows.groups)
    heat = found = of_all = None
    if (it.rows.task >= 0).any():
        of_all, of_tasks = labels(it.rows, scale, it.settings), figures(rows, scale, k)
        chosen = _ordered(_selected(rows, of_all, of_tasks, choice), rows, of_tasks, choice.sort)
        found, shown = _paged(uid, chosen, choice)
        heat = make_heat(uid, rows, scale, shown, of_tasks, of_all, modes=(mode,), **_ended(summary.run))
    return WhyTasksPage(
        summary=summary,
        choice=choice,
        chips=_chips(uid, of_all, choice) if of_all else [],
        families=_families(uid, it),
        window=here,
        fresh=fresh_of(summary),
        tasks=len(rows.tasks),
        unnamed=int((rows.task < 0).sum()),
        success=scale.success,
        k=k,
        found=found,
        heat=heat,
    )


def _families(uid: str, it: Diagnosed) -> list[tuple[Word, str, int | None, str]]:
    grouped = by_family(it.rows)
    if grouped is None:
        return []
    found = labels(grouped, it.report.scale, it.settings)
    names = [Label(str(label)) for label in found.label]
    return [
        (
            LABELS[names[family]],
            grouped.tasks[family],
            int(found.since[family]) if found.since[family] >= 0 else None,
            urls.rollouts(uid, parse_where(links.tasks([grouped.tasks[family]], "family"))),
        )
        for family in sorted(range(len(names)), key=lambda family: list(Label).index(names[family]))
    ]


def _chips(uid: str, of_all: Labels, choice: TaskChoice) -> list[Chip]:
    return [
        Chip(
            word,
            int((of_all.label == label).sum()),
            choice.address(uid, label="" if choice.label == label else label.value),
            choice.label == label,
        )
        for label, word in LABELS.items()
        if (of_all.label == Label.UNKNOWN).any() == (label == Label.UNKNOWN)
    ]


def _selected(rows: Rows, of_all: Labels, of_tasks: Figures, choice: TaskChoice) -> Ints:
    """Return indices of the matching tasks that have rollouts in these steps."""
    wanted = of_tasks.rollouts > 0
    if choice.label:
        wanted &= of_all.label == choice.label
    if choice.q:
        part = choice.q.casefold()
        wanted &= np.array([part in task.casefold() for task in rows.tasks], bool)
    return np.flatnonzero(wanted)


def _ordered(tasks: Ints, rows: Rows, of_tasks: Figures, sort: str) -> Ints:
    """Sort tasks, by name among equals; those without a figure come last."""
    by_name = np.empty(len(rows.tasks), np.int64)
    by_name[sorted(range(len(rows.tasks)), key=rows.tasks.__getitem__)] = np.arange(len(rows.tasks))
    gap = of_tasks.pass_k - of_tasks.pass_1
    keys: dict[str, list[Floats]] = {
        "worst": [(of_tasks.attempts < ATTEMPTS).astype(float), of_tasks.share, -of_tasks.attempts.astype(float)],
        "mean": [of_tasks.mean],
        "gap": [-gap],
        "attempts": [-of_tasks.attempts.astype(float)],
        "task": [],
    }
    order = np.lexsort([by_name[tasks], *(key[tasks] for key in reversed(keys[sort]))])
    found: Ints = tasks[order]
    return found


def _paged(uid: str, chosen: Ints, choice: TaskChoice) -> tuple[FoundTasks, Ints]:
    """Return a page of tasks, or the last page if the number is too high."""
    pages = max(-(-len(chosen) // PAGE_SIZE), 1)
    page = min(choice.page, pages)
    begin = (page - 1) * PAGE_SIZE
    shown = chosen[begin : begin + PAGE_SIZE]
    previous = choice.address(uid, page=page - 1) if page > 1 else None
    following = choice.address(uid, page=page + 1) if page < pages else None
    return FoundTasks(len(chosen), begin + 1, begin + len(shown), previous, following), shown


def _ended(run: Run) -> dict[str, Any]:
    """Return filter parts that leave out running rollouts of a live run, which no figure counts yet."""
    if run.state != RunState.RUNNING:
        return {}
    return {"terms": (Term("status", (Status.RUNNING.value,), negated=True),)}
