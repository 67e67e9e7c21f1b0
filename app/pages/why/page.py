"""Shows the diagnosis of a run: the waterfall of lost reward, and findings with fixes."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple
from zlib import crc32

import numpy as np
import orjson
from fastapi import APIRouter, Request, Response
from fastapi.responses import RedirectResponse
from sqlalchemy import Connection

from logs_ui.app.pages.why.cards import ShownCard, checked, make_cards
from logs_ui.app.pages.why.changes import make_tables
from logs_ui.app.pages.why.settings import Panel, make_panel
from logs_ui.app.parts.diagnoses import Coverage, card_of_verdict, diagnosed, looked_at
from logs_ui.app.parts.figure_table import FigureTable
from logs_ui.app.parts.loss_waterfall import Fall, make_fall
from logs_ui.app.parts.notes_forms import NotebookOfPages
from logs_ui.app.parts.waiting_page import WAIT, until_diagnosed
from logs_ui.app.web import htmx, page_cache, urls
from logs_ui.app.web.open_database import SourceOfPages, id_of
from logs_ui.recorder import queries
from logs_ui.recorder.analysis.diagnose import Diagnosed
from logs_ui.recorder.analysis.diagnosis_columns import labels_of, texts_of
from logs_ui.recorder.diagnosis import Diagnostic, Report, Rows, diagnose_rows, waterfall
from logs_ui.recorder.diagnosis.card import Trend
from logs_ui.recorder.diagnosis.report import Checked, Verdict
from logs_ui.recorder.diagnosis.rollout_rows import Bools
from logs_ui.recorder.diagnosis.run_checks import FEW_ROLLOUTS, FEW_STEPS
from logs_ui.recorder.errors import FilterError
from logs_ui.recorder.queries import Count, RunSummary
from logs_ui.recorder.queries.filters.rollout_filter import RolloutFilter, check_word
from logs_ui.recorder.queries.filters.terms import print_name
from logs_ui.recorder.queries.filters.values import read_whole
from logs_ui.recorder.storage.tables import Run

router = APIRouter()

_OFFERED = 200  # tasks
_PARAMETERS = ("step_min", "step_max", "task", "eval")


@dataclass(frozen=True)
class Slice:
    """Holds a selection of rollouts; empty for those of the last steps."""

    # `step_min` and `step_max`: inclusive; None for the run's first and last if the other is given.
    step_min: int | None = None
    step_max: int | None = None
    # `task` and `eval`: empty for any.
    task: str = ""
    eval: str = ""

    @classmethod
    def of(cls, step_min: str, step_max: str, task: str, eval_name: str) -> "Slice":
        """Read a selection from an address. Raise FilterError unless its steps are whole numbers in order."""
        given = (("step_min", step_min.strip()), ("step_max", step_max.strip()))
        low, high = (read_whole(name, text) if text else None for name, text in given)
        if low is not None and high is not None and low > high:
            raise FilterError("step_min", f"there is no step from {low} to {high}: swap them")
        return cls(low, high, task, eval_name)

    @property
    def has_steps(self) -> bool:
        return self.step_min is not None or self.step_max is not None


def report_of(db: Connection, run: Run, known: Diagnosed, chosen: Slice) -> tuple[Report, Coverage]:
    """Diagnose the selection on the scale of the whole run. Raise FilterError if it has no rollout."""
    if chosen == Slice():
        return known.report, looked_at(known.rows, known.report)
    before = known.rows.of_part(_up_to(known.rows, chosen))
    selected = before if chosen.step_min is None else before.where(before.step >= chosen.step_min)
    if not len(selected):
        read = f"; of this large run a sample is read: {known.report.sample}" if known.report.sample else ""
        raise FilterError("step_min" if chosen.has_steps else "task", f"this selection has no rollout that ended{read}")
    several = len({series.mode for series in queries.step_series(db, id_of(run))}) > 1
    mode = [f"mode:{queries.mode_of(db, id_of(run))}"] if several else []
    within = " ".join([*mode, *_terms(chosen)])
    scale = known.report.scale.narrowed(before)
    if len(selected) < FEW_ROLLOUTS:
        steps = int(selected.steps[0]), int(selected.steps[-1])
        report = Report((), waterfall(selected, scale), scale, steps, within, warming_up=True)
        return report, looked_at(selected, report)
    report = diagnose_rows(
        before,
        replace(known.settings, steps=len(selected.steps) if chosen.has_steps else known.settings.steps),
        known.config,
        _end_at(selected.steps[-1], known.scalars),
        evaluations=_end_at(selected.steps[-1], known.evaluations),
        has_ended=True,
        within=within,
        attributed=known.report.attributed,
        scale=scale,
        read_labels=partial(labels_of, db, id_of(run)),
        read_texts=partial(texts_of, db, id_of(run)),
    )
    return report, looked_at(before, report)


def _end_at(step: int, trends: Mapping[str, Trend]) -> dict[str, Trend]:
    """Return the points up to a step."""
    return {name: tuple(point for point in trend if point[0] <= step) for name, trend in trends.items()}


def _up_to(rows: Rows, chosen: Slice) -> Bools:
    """Return (N,) True for rows of its task and eval up to its last step."""
    found: Bools = rows.step <= (rows.step.max() if chosen.step_max is None else chosen.step_max)
    for name, word, codes, known in (
        ("task", chosen.task, rows.task, rows.tasks),
        ("eval", chosen.eval, rows.eval, rows.evals),
    ):
        if word:
            check_word(name, name, word, known)
            found &= codes == known.index(word)
    return found


def _terms(chosen: Slice) -> list[str]:
    low, high = ("" if it is None else it for it in (chosen.step_min, chosen.step_max))
    steps = [f"step:{low}..{high}"] if chosen.has_steps else []
    return [
        f"{name}:{print_name(word)}" for name, word in (("task", chosen.task), ("eval", chosen.eval)) if word
    ] + steps


class Why(NamedTuple):
    """Holds the diagnosis of some rollouts."""

    fall: Fall
    looked: Coverage
    first: ShownCard | None  # the finding that the verdict is about
    cards: list[ShownCard]  # others
    # The cause with the largest share of the loss, if it is not listed first; None if all is well.
    largest: ShownCard | None
    rest: ShownCard | None  # what rollouts lost that ended normally; None if it is little
    tables: list[tuple[str, str, FigureTable]]  # `Contrast.id`, title and table of those that compare something
    checked: dict[str, list[tuple[Checked, Diagnostic | None]]]
    too_few: bool  # True if there are too few rollouts to tell causes apart
    verdict: Verdict
    basis: str  # how many checks could judge; "" if none did
    environments: list[tuple[str, Verdict, str]]  # each eval of several, its verdict, and the address of its page
    said: str  # source of the best reward
    success: str

    @property
    def is_unknown(self) -> bool:
        """True if nothing is known of a run that is not healthy but what differs most."""
        return not (self.first or self.cards or self.verdict.is_healthy)


@dataclass(frozen=True)
class WhyPage:
    """Context of `why/why.html` and `why/_why.html`."""

    summary: RunSummary
    why: Why | None  # None if no rollout ended
    chosen: Slice
    is_all: bool
    # `tasks` and `evals`: to choose from; no evals if there is only one.
    tasks: list[str]
    evals: list[str]
    ended: tuple[int, int]  # number of ended rollouts of the run, and of their steps
    needed: tuple[int, int]  # number of each that a diagnosis needs
    sample: str | None  # steps read of a large run; None if all were read
    panel: Panel
    refresh: str | None  # address to poll while the run is alive; None if nothing is to come
    is_new: bool


@router.get("/runs/{name}/why")
def why(
    request: Request,
    source: SourceOfPages,
    notebook: NotebookOfPages,
    name: str,
    step_min: str = "",
    step_max: str = "",
    task: str = "",
    eval: str = "",  # noqa: A002 - as the address has it
    seen: str = "",
) -> Response:
    """Show the page for the last steps, or for a selection of rollouts."""
    for parameter in request.query_params.keys() - {"seen", WAIT}:
        check_word(parameter, "parameter", parameter, _PARAMETERS)
    chosen = Slice.of(step_min, step_max, task, eval)
    wanted = htmx.target(request)
    with source.reading_run(name) as (db, run):
        here = urls.why(run.uid, **vars(chosen))
        if wanted is None and name != run.uid:
            return RedirectResponse(here, 303)
        if (frame := until_diagnosed(request, db, run, "why/why.html", "causes")) is not None:
            return frame
        summary = queries.run_summary(db, id_of(run))
        saved = queries.saved_settings(db, run.uid)
        now = f"{run.changed}.{summary.state}.{crc32(orjson.dumps(saved)):x}"
        if wanted == "why" and seen == now:
            return htmx.nothing_new()
        known = diagnosed(db, run)
        rows = known.rows
        page = WhyPage(
            summary=summary,
            why=make_why(db, summary, known, chosen) if len(rows) else None,
            chosen=chosen,
            is_all=chosen == Slice(),
            tasks=_offered(rows),
            evals=sorted(rows.evals) if len(rows.evals) > 1 else [],
            ended=(len(rows), len(rows.steps)),
            needed=(FEW_ROLLOUTS, FEW_STEPS),
            sample=known.report.sample,
            panel=make_panel(known, is_saved=saved is not None, place=notebook.place),
            refresh=urls.why(run.uid, **vars(chosen), seen=now) if summary.is_alive else None,
            is_new=wanted is None,
        )
    return htmx.render(request, "why/why.html", page, fragments=("why",), address=None if seen else here)


def make_why(db: Connection, summary: RunSummary, known: Diagnosed, chosen: Slice) -> Why:
    """Diagnose the selection. Raise FilterError if it has no rollouts."""
    run = summary.run
    report, looked = report_of(db, run, known, chosen)

    def count(filter: RolloutFilter) -> Count:  # noqa: A002
        return page_cache.figure(db, summary, queries.count, filter)

    cards = make_cards(report, report.cards, known.settings, run.uid, count)
    first = cards[0] if card_of_verdict(report) else None
    more = (report.scored_low,) if report.scored_low else ()
    rest = make_cards(report, more, known.settings, run.uid, count)
    most = None if report.verdict.is_healthy else report.costliest
    return Why(
        fall=make_fall(report.fall, report.scale.source, run.uid, report.scope, looked.rollouts),
        looked=looked,
        first=first,
        cards=[*first.follows, *cards[1:]] if first else cards,
        largest=next((it for it in cards[1:] if most and it.card.id == most.id), None),
        rest=rest[0] if rest else None,
        tables=make_tables(report, run.uid),
        checked=checked(report),
        too_few=report.warming_up,
        verdict=report.verdict,
        basis="" if report.warming_up else report.basis.partition(";")[0],
        environments=[
            (name, it, urls.why(run.uid, **vars(replace(chosen, eval=name)))) for name, it in report.environments
        ],
        said=report.scale.source,
        success=report.scale.success.description,
    )


def _offered(rows: Rows) -> list[str]:
    """Return the tasks with the most rollouts, by name; none if no rollout names one."""
    often = np.argsort(-np.bincount(rows.task[rows.task >= 0], minlength=len(rows.tasks)), kind="stable")
    return sorted(rows.tasks[place] for place in often[:_OFFERED])
