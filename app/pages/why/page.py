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

from logs_ui.app.pages.why.cards import ShownCard, list_checks, make_cards
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
from logs_ui.recorder.analysis.diagnose import Diagnosed, guard_checks
from logs_ui.recorder.analysis.diagnosis_columns import evaluated_texts_of, labels_of, prompt_ends_of, texts_of
from logs_ui.recorder.diagnosis import Diagnostic, Report, Rows, diagnose_rows, waterfall
from logs_ui.recorder.diagnosis.card import Trend
from logs_ui.recorder.diagnosis.report import Checked, Failed
from logs_ui.recorder.diagnosis.rollout_rows import Bools
from logs_ui.recorder.diagnosis.run_checks import FEW_ROLLOUTS, FEW_STEPS
from logs_ui.recorder.diagnosis.verdict import Verdict
from logs_ui.recorder.errors import FilterError
from logs_ui.recorder.queries import Count, RunSummary
from logs_ui.recorder.queries.filters.rollout_filter import RolloutFilter, check_word
from logs_ui.recorder.queries.filters.terms import print_name
from logs_ui.recorder.queries.filters.values import read_whole
from logs_ui.recorder.storage.tables import Run

router = APIRouter()

_MOST_TASKS = 200  # to choose from
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
        limits = (("step_min", step_min.strip()), ("step_max", step_max.strip()))
        low, high = (read_whole(name, text) if text else None for name, text in limits)
        if low is not None and high is not None and low > high:
            raise FilterError("step_min", f"there is no step from {low} to {high}: swap them")
        return cls(low, high, task, eval_name)

    @property
    def has_steps(self) -> bool:
        return self.step_min is not None or self.step_max is not None


def report_of(db: Connection, run: Run, diagnosis: Diagnosed, selection: Slice) -> tuple[Report, Coverage]:
    """Diagnose the selection on the scale of the whole run. Raise FilterError if it has no rollout."""
    if selection == Slice():
        return diagnosis.report, looked_at(diagnosis.rows, diagnosis.report)
    rows_to_end = diagnosis.rows.of_part(_mark_rows(diagnosis.rows, selection))
    selected_rows = (
        rows_to_end if selection.step_min is None else rows_to_end.where(rows_to_end.step >= selection.step_min)
    )
    if not len(selected_rows):
        sample_note = (
            f"; of this large run a sample is read: {diagnosis.report.sample}" if diagnosis.report.sample else ""
        )
        raise FilterError(
            "step_min" if selection.has_steps else "task", f"this selection has no rollout that ended{sample_note}"
        )
    has_several_modes = len({series.mode for series in queries.step_series(db, id_of(run))}) > 1
    mode = [f"mode:{queries.mode_of(db, id_of(run))}"] if has_several_modes else []
    within = " ".join([*mode, *_terms(selection)])
    scale = diagnosis.report.scale.narrowed(rows_to_end)
    if len(selected_rows) < FEW_ROLLOUTS:
        steps = int(selected_rows.steps[0]), int(selected_rows.steps[-1])
        report = Report((), waterfall(selected_rows, scale), scale, steps, within, warming_up=True)
        return report, looked_at(selected_rows, report)
    failed = list[Failed]()
    report = diagnose_rows(
        rows_to_end,
        replace(
            diagnosis.settings, steps=len(selected_rows.steps) if selection.has_steps else diagnosis.settings.steps
        ),
        diagnosis.config,
        _end_at(selected_rows.steps[-1], diagnosis.scalars),
        evaluations=_end_at(selected_rows.steps[-1], diagnosis.evaluations),
        evaluated=_select_evaluated(diagnosis.evaluated, selection, selected_rows.steps[-1]),
        has_ended=True,
        within=within,
        diagnostics=guard_checks(failed),
        attributed=diagnosis.report.attributed,
        scale=scale,
        read_labels=partial(labels_of, db, id_of(run)),
        read_texts=partial(texts_of, db, id_of(run)),
        read_evaluated=partial(evaluated_texts_of, db, id_of(run)),
        read_prompt_ends=partial(prompt_ends_of, db, run),
    )
    report = replace(report, failed=tuple(failed))
    return report, looked_at(rows_to_end, report)


def _end_at(step: int, trends: Mapping[str, Trend]) -> dict[str, Trend]:
    """Return the points up to a step."""
    return {name: tuple(point for point in trend if point[0] <= step) for name, trend in trends.items()}


def _select_evaluated(rows: Rows | None, selection: Slice, last: int) -> Rows | None:
    """Return the rollouts of the evaluations up to a step, of the selected eval; None if one task is selected, whose
    rollouts are not compared with those of all.
    """
    if rows is None or selection.task:
        return None
    return rows.where((rows.step <= last) & (rows.in_eval(selection.eval) if selection.eval else True))


def _mark_rows(rows: Rows, selection: Slice) -> Bools:
    """Return (N,) True for rows of its task and eval up to its last step."""
    is_within: Bools = rows.step <= (rows.step.max() if selection.step_max is None else selection.step_max)
    for name, word, codes, names in (
        ("task", selection.task, rows.task, rows.tasks),
        ("eval", selection.eval, rows.eval, rows.evals),
    ):
        if word:
            check_word(name, name, word, names)
            is_within &= codes == names.index(word)
    return is_within


def _terms(selection: Slice) -> list[str]:
    low, high = ("" if step is None else step for step in (selection.step_min, selection.step_max))
    steps = [f"step:{low}..{high}"] if selection.has_steps else []
    return [
        f"{name}:{print_name(word)}" for name, word in (("task", selection.task), ("eval", selection.eval)) if word
    ] + steps


class Why(NamedTuple):
    """Holds the diagnosis of some rollouts."""

    fall: Fall
    coverage: Coverage
    first: ShownCard | None  # the finding that the verdict is about
    cards: list[ShownCard]  # others
    # The cause with the largest share of the loss, if it is not listed first; None if all is well.
    largest_cause: ShownCard | None
    scored_low: ShownCard | None  # what rollouts lost that ended normally; None if it is little
    tables: list[tuple[str, str, FigureTable]]  # `Contrast.id`, title and table of those that compare something
    checks: dict[str, list[tuple[Checked, Diagnostic | None]]]
    too_few: bool  # True if there are too few rollouts to tell causes apart
    verdict: Verdict
    basis: str  # how many checks could judge; "" if none did
    environments: list[tuple[str, Verdict, str]]  # each eval of several, its verdict, and the address of its page
    source_of_best: str  # of the best reward, in words
    success: str

    @property
    def is_unknown(self) -> bool:
        """True if nothing is known of a run whose verdict is not good but what differs most."""
        return not (self.first or self.cards or self.verdict.is_good)


@dataclass(frozen=True)
class WhyPage:
    """Context of `why/why.html` and `why/_why.html`."""

    summary: RunSummary
    why: Why | None  # None if no rollout ended
    selection: Slice
    is_all: bool
    # `tasks` and `evals`: to choose from; no evals if there is only one.
    tasks: list[str]
    evals: list[str]
    ended_counts: tuple[int, int]  # number of ended rollouts of the run, and of their steps
    needed_counts: tuple[int, int]  # number of each that a diagnosis needs
    sample: str | None  # steps read of a large run; None if all were read
    panel: Panel
    refresh: str | None  # address to poll while the run is alive; None if nothing is to come
    is_new: bool


@router.get("/runs/{run_reference}/why")
def why(
    request: Request,
    source: SourceOfPages,
    notebook: NotebookOfPages,
    run_reference: str,
    step_min: str = "",
    step_max: str = "",
    task: str = "",
    eval: str = "",  # noqa: A002 - as the address has it
    seen: str = "",
) -> Response:
    """Show the page for the last steps, or for a selection of rollouts."""
    for parameter in request.query_params.keys() - {"seen", WAIT}:
        check_word(parameter, "parameter", parameter, _PARAMETERS)
    selection = Slice.of(step_min, step_max, task, eval)
    target = htmx.target(request)
    with source.reading_run(run_reference) as (db, run):
        address = urls.why(run.uid, **vars(selection))
        if target is None and run_reference != run.uid:
            return RedirectResponse(address, 303)
        if (frame := until_diagnosed(request, db, run, "why/why.html", "causes")) is not None:
            return frame
        summary = queries.run_summary(db, id_of(run))
        saved_settings = queries.saved_settings(db, run.uid)
        version = f"{run.changed}.{summary.state}.{crc32(orjson.dumps(saved_settings)):x}"
        if target == "why" and seen == version:
            return htmx.nothing_new()
        diagnosis = diagnosed(db, run)
        rows = diagnosis.rows
        page = WhyPage(
            summary=summary,
            why=make_why(db, summary, diagnosis, selection) if len(rows) else None,
            selection=selection,
            is_all=selection == Slice(),
            tasks=_offer_tasks(rows),
            evals=sorted(rows.evals) if len(rows.evals) > 1 else [],
            ended_counts=(len(rows), len(rows.steps)),
            needed_counts=(FEW_ROLLOUTS, FEW_STEPS),
            sample=diagnosis.report.sample,
            panel=make_panel(diagnosis, is_saved=saved_settings is not None, place=notebook.place),
            refresh=urls.why(run.uid, **vars(selection), seen=version) if summary.is_alive else None,
            is_new=target is None,
        )
    return htmx.render(request, "why/why.html", page, fragments=("why",), address=None if seen else address)


def make_why(db: Connection, summary: RunSummary, diagnosis: Diagnosed, selection: Slice) -> Why:
    """Diagnose the selection. Raise FilterError if it has no rollouts."""
    run = summary.run
    report, coverage = report_of(db, run, diagnosis, selection)

    def count(filter: RolloutFilter) -> Count:  # noqa: A002
        return page_cache.figure(db, summary, queries.count, filter)

    cards = make_cards(report, report.cards, diagnosis.settings, run.uid, count)
    first = cards[0] if card_of_verdict(report) else None
    low_cards = (report.scored_low,) if report.scored_low else ()
    low_findings = make_cards(report, low_cards, diagnosis.settings, run.uid, count)
    costliest = None if report.verdict.is_good else report.costliest
    return Why(
        fall=make_fall(report.fall, report.scale.source, run.uid, report.scope, coverage.rollouts),
        coverage=coverage,
        first=first,
        cards=[*first.children, *cards[1:]] if first else cards,
        largest_cause=next((card for card in cards[1:] if costliest and card.card.id == costliest.id), None),
        scored_low=low_findings[0] if low_findings else None,
        tables=make_tables(report, run.uid),
        checks=list_checks(report),
        too_few=report.warming_up,
        verdict=report.verdict,
        basis="" if report.warming_up else report.basis.partition(";")[0],
        environments=[
            (name, verdict, urls.why(run.uid, **vars(replace(selection, eval=name))))
            for name, verdict in report.environments
        ],
        source_of_best=report.scale.source,
        success=report.scale.success.description,
    )


def _offer_tasks(rows: Rows) -> list[str]:
    """Return the tasks with the most rollouts, by name; none if no rollout names one."""
    by_frequency = np.argsort(-np.bincount(rows.task[rows.task >= 0], minlength=len(rows.tasks)), kind="stable")
    return sorted(rows.tasks[place] for place in by_frequency[:_MOST_TASKS])
