"""Shows the overview of a run: its last steps, every metric by step, and its configuration."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from fastapi import APIRouter, Request, Response
from fastapi.responses import RedirectResponse
from sqlalchemy import Connection

from logs_ui.app.pages.overview.logged_values import Logged, make_logged
from logs_ui.app.pages.overview.step_tiles import RECENT, StepTile, TileWindow, make_tiles
from logs_ui.app.parts import charts, figures, notes_forms, words
from logs_ui.app.parts.charts import Bar, RewardChart
from logs_ui.app.parts.diagnoses import ShortDiagnosis, cached_diagnosis, diagnosed, in_short
from logs_ui.app.parts.notes_forms import Marks, NotebookOfPages
from logs_ui.app.parts.step_charts import FunctionMean, StepChart, function_means, make_charts, mean
from logs_ui.app.parts.view import named_views
from logs_ui.app.parts.words import Word
from logs_ui.app.web import htmx, urls
from logs_ui.app.web.open_database import SourceOfPages, id_of
from logs_ui.app.web.page_cache import rested
from logs_ui.recorder import queries
from logs_ui.recorder.analysis.diagnose import Diagnosed
from logs_ui.recorder.diagnosis.rollout_rows import SAME
from logs_ui.recorder.errors import FilterError
from logs_ui.recorder.queries import RunSummary, Series
from logs_ui.recorder.queries.filters.rollout_filter import RolloutFilter, Sort, check_word
from logs_ui.recorder.queries.filters.terms import Range
from logs_ui.recorder.queries.run_steps import TaskRewards
from logs_ui.recorder.storage.notes_tables import SavedView
from logs_ui.recorder.storage.tables import EvaluationRow
from logs_ui.recorder.vocabulary import Mode, Status, StopReason

router = APIRouter()

_LOWEST_TASKS = 7  # one more than the page shows, so that it can name a tie
_PREVIEWED = 6
_PARAMETERS = ("mode", "eval", "q")


@dataclass(frozen=True)
class ValueShare:
    """A value that some of the last rollouts have; `share` is of all of them, from 0 to 1."""

    word: Word
    count: int
    share: float
    address: str


@dataclass(frozen=True)
class Steps:
    """Holds the figures of one series."""

    series: Series
    # `first` and `last`: the steps of tiles, parts and tasks.
    first: int
    last: int
    before: int  # number of earlier steps that the tiles' changes compare with
    has_steps: bool  # False for an evaluation whose rollouts name no steps: all of them are in one
    tiles: list[StepTile]
    points: list[int]  # the steps that the charts show
    thinned: int | None  # number of steps if the charts show only every n-th; None if they show all
    charts: list[StepChart]
    # `statuses` and `stop_reasons`: of the last steps, if any is a fault or there are several; statuses only where stop
    # reasons do not say the same.
    statuses: list[ValueShare]
    stop_reasons: list[ValueShare]
    # The seven with the lowest rewards, of which six are shown, with a bar, and the address of the rollouts.
    tasks: list[tuple[TaskRewards, Bar, str]]
    functions: list[FunctionMean]  # mean of each reward function; empty if there are charts
    histogram: RewardChart | None  # of the rewards; None if there are charts, or no rewards
    address: str  # of a step's rollouts, with urls.FIRST and urls.LAST in place of the steps
    preview: str  # address of a preview of them, likewise

    @property
    def window(self) -> str:
        return figures.window((self.first, self.last) if self.has_steps else None)

    @property
    def has_solved(self) -> bool:
        return any(tile.name == "Solved" for tile in self.tiles)

    @property
    def lowest(self) -> list[tuple[TaskRewards, Bar, str]]:
        return self.tasks[: _LOWEST_TASKS - 1]

    @property
    def has_more_lowest(self) -> bool:
        """True if a task that is not shown has the mean of the last one shown."""
        means = [task.mean for task, _, _ in self.tasks[_LOWEST_TASKS - 2 :]]
        return len(means) > 1 and abs(means[1] - means[0]) < SAME


@dataclass(frozen=True)
class OverviewPage:
    """Context of `overview/overview.html` and `overview/_overview.html`."""

    summary: RunSummary
    # (series, address, is chosen) of each series of rollouts, if there are several.
    choice: list[tuple[Series, str, bool]]
    steps: Steps | None  # of the chosen series; None for a run without rollouts
    has_why: bool  # True if the diagnosis covers this series
    # The diagnosis in short; None if the browser has to request it, at the address `diagnosing`.
    short: ShortDiagnosis | None
    diagnosing: str
    logged: Logged
    marks: Marks
    views: list[tuple[SavedView, str]]  # the saved views of its rollouts, each with its address
    refresh: str | None  # address to poll while the run is alive; None if nothing is to come
    is_new: bool  # True for a full page load; charts are then drawn without a script, too


@dataclass(frozen=True)
class LoggedPage:
    """Context of `overview/_logged.html`."""

    summary: RunSummary
    logged: Logged


@dataclass(frozen=True)
class TablePage:
    """Context of `overview/steps.html` and `overview/_steps.html`: a chart as a table with links, last step first."""

    summary: RunSummary
    chart: StepChart
    points: list[int]
    addresses: list[str]


@dataclass(frozen=True)
class PreviewPage:
    """Context of `overview/_preview.html`: the lowest rollouts of some steps, and the address of all of them."""

    summary: RunSummary
    title: str
    count: queries.Count
    mean: float | None
    rows: list[EvaluationRow]
    scale: charts.Scale
    address: str


@router.get("/runs/{run_reference}/overview")
def overview(
    request: Request,
    source: SourceOfPages,
    notebook: NotebookOfPages,
    run_reference: str,
    q: str = "",
    seen: str = "",
) -> Response:
    """Show the page; `q` filters metrics, arguments and versions."""
    for parameter in request.query_params.keys() - {"seen"}:
        check_word(parameter, "parameter", parameter, _PARAMETERS)
    wanted = htmx.target(request)
    with source.reading_run(run_reference) as (db, run):
        run_id = id_of(run)
        all_series = rested(db, run_id, queries.step_series)
        chosen = _choose_series(all_series, request.query_params)
        parameters = _series_parameters(all_series, chosen)
        here = urls.overview(run.uid, **parameters, search=q.strip())
        if wanted is None and run_reference != run.uid:
            return RedirectResponse(here, 303)
        summary = queries.run_summary(db, run_id)
        now = f"{summary.run.changed}.{queries.last_logged_step(db, run_id)}.{summary.state}"
        if wanted == "overview" and seen == now:
            return htmx.nothing_new()
        logged = make_logged(run, rested(db, run_id, queries.scalar_curves), q.strip())
        if wanted == "logged":
            return htmx.render(
                request, "overview/overview.html", LoggedPage(summary, logged), fragments=("logged",), address=here
            )
        # A page load does not wait for a diagnosis that is not made yet; a poll makes it.
        judged = cached_diagnosis(db, run) if wanted is None else diagnosed(db, run)
        has_why = chosen is not None and chosen.mode == queries.mode_of(db, run_id)
        page = OverviewPage(
            summary=summary,
            choice=[
                (series, urls.overview(run.uid, **_series_parameters(all_series, series)), series == chosen)
                for series in all_series
                if len(all_series) > 1
            ],
            steps=None if chosen is None else _steps(db, summary, all_series, chosen, judged if has_why else None),
            has_why=has_why,
            short=None if judged is None else in_short(run.uid, judged),
            diagnosing=urls.overview(run.uid, **parameters, search=q.strip(), seen="undiagnosed"),
            logged=logged,
            marks=notes_forms.of_run(db, notebook, run),
            views=named_views(db, run),
            refresh=urls.overview(run.uid, **parameters, seen=now) if summary.is_alive else None,
            is_new=wanted is None,
        )
    return htmx.render(request, "overview/overview.html", page, fragments=("overview",), address=None if seen else here)


@router.get("/runs/{run_reference}/overview/steps")
def steps(request: Request, source: SourceOfPages, run_reference: str, of: str) -> Response:
    """Show one chart as a table; `of` is the chart's id."""
    with source.reading_run(run_reference) as (db, run):
        summary = queries.run_summary(db, id_of(run))
        all_series = rested(db, id_of(run), queries.step_series)
        chosen = _choose_series(all_series, request.query_params)
        step_figures = queries.steps(db, id_of(run), chosen) if chosen else []
        parts = _by_eval(db, id_of(run), all_series, chosen, step_figures) if chosen else {}
    charts_by_id = {chart.id: chart for chart in make_charts(step_figures, parts)}
    check_word("of", "chart", of, tuple(charts_by_id))
    addresses = [urls.rollouts_where(run.uid, step_min=step.step, step_max=step.step) for step in step_figures]
    page = TablePage(summary, charts_by_id[of], [step.step for step in step_figures], addresses)
    if htmx.target(request) is not None:
        return htmx.fragment(request, "overview/_steps.html", page)
    return htmx.render(request, "overview/steps.html", page)


@router.get("/runs/{run_reference}/overview/preview")
def preview(request: Request, source: SourceOfPages, run_reference: str, step_min: int, step_max: int) -> Response:
    """Return the lowest rollouts of some steps."""
    with source.reading_run(run_reference) as (db, run):
        run_id = id_of(run)
        all_series = rested(db, run_id, queries.step_series)
        chosen = _choose_series(all_series, request.query_params)
        rollout_filter = RolloutFilter(
            **_series_filter(all_series, chosen), step_min=step_min, step_max=step_max, sort=Sort.LOWEST_REWARD
        )
        rows = queries.page(db, run_id, rollout_filter, limit=_PREVIEWED).rows
        page = PreviewPage(
            summary=queries.run_summary(db, run_id),
            title=figures.window((step_min, step_max)).capitalize(),
            count=queries.count(db, run_id, rollout_filter),
            mean=queries.mean_reward(db, run_id, rollout_filter),
            rows=rows,
            scale=charts.Scale.over([row.reward for row in rows if row.reward is not None]),
            address=urls.rollouts(run.uid, rollout_filter),
        )
    return htmx.fragment(request, "overview/_preview.html", page)


def _choose_series(all_series: Sequence[Series], parameters: Mapping[str, str]) -> Series | None:
    """Return the series asked for, or the first; None for a run without rollouts. Raise FilterError."""
    mode, eval_name = parameters.get("mode"), parameters.get("eval")
    matching = [
        series for series in all_series if mode in {None, series.mode} and eval_name in {None, series.eval_name}
    ]
    if all_series and not matching:
        names = ", ".join(f"{series.mode} {series.eval_name or ''}".strip() for series in all_series)
        raise FilterError(
            "eval", f"there are no rollouts of {' '.join(filter(None, (mode, eval_name)))}: there are {names}"
        )
    return matching[0] if matching else None


def _series_parameters(all_series: Sequence[Series], series: Series | None) -> dict[str, str]:
    """Return a series as parameters of an address; the first one is the default."""
    return (
        {} if series is None or series == all_series[0] else {"mode": series.mode, "eval_name": series.eval_name or ""}
    )


def _series_filter(all_series: Sequence[Series], chosen: Series | None) -> dict[str, Any]:
    """Return the filter parts that select a series; empty if it is the only one."""
    if chosen is None or len(all_series) < 2:
        return {}
    same_mode = [series for series in all_series if series.mode == chosen.mode]
    evals = {} if len(same_mode) == 1 or chosen.eval_name is None else {"evals": (chosen.eval_name,)}
    return evals if len(same_mode) == len(all_series) else {"modes": (chosen.mode,), **evals}


def _steps(
    db: Connection, summary: RunSummary, all_series: Sequence[Series], chosen: Series, judged: Diagnosed | None
) -> Steps:
    run, run_id = summary.run, id_of(summary.run)
    series_parts = _series_filter(all_series, chosen)
    has_steps = chosen.mode == Mode.TRAIN or chosen.last > 0
    step_figures = rested(db, run_id, queries.steps, chosen)
    is_thinned = len(step_figures) < chosen.steps
    window = TileWindow.of(queries.last_steps(db, run_id, chosen, 2 * RECENT) if is_thinned else step_figures)
    first, last = (window.recent[0].step, window.recent[-1].step) if window.recent else (0, 0)
    window_parts = {**series_parts, **({"step_min": first, "step_max": last} if has_steps else {})}
    any_step_parts = {**series_parts, "step_min": urls.FIRST, "step_max": urls.LAST}
    is_one_step = len(step_figures) < 2
    histogram = queries.reward_histogram(db, run_id, RolloutFilter(**series_parts)) if is_one_step else None
    lacking = {chart for chart, figure in (("stop", "truncated"), ("status", "errors")) if run.lacks_figure(figure)}
    parts = _by_eval(db, run_id, all_series, chosen, step_figures)
    tiles = make_tiles(window, step_figures, chosen.eval_name, judged)
    stop_reasons = [] if "stop" in lacking else _parts(run.uid, window, "stop_reasons", window_parts)
    return Steps(
        series=chosen,
        first=first,
        last=last,
        before=len(window.before),
        has_steps=has_steps,
        tiles=[tile for tile in tiles if tile.name != "Truncated" or "stop" not in lacking],
        points=[step.step for step in step_figures],
        thinned=chosen.steps if is_thinned else None,
        charts=[]
        if is_one_step
        else _choose_charts(chart for chart in make_charts(step_figures, parts) if chart.id not in lacking),
        statuses=[] if stop_reasons or "status" in lacking else _parts(run.uid, window, "statuses", window_parts),
        stop_reasons=stop_reasons,
        tasks=_tasks(db, summary, chosen, (first, last), window_parts),
        functions=function_means(step_figures) if is_one_step else [],
        histogram=charts.reward_chart(histogram, Range()),
        address=urls.rollouts_where(run.uid, **any_step_parts),
        preview=urls.preview(run.uid, chosen.mode, chosen.eval_name or ""),
    )


def _by_eval(
    db: Connection, run_id: int, all_series: Sequence[Series], chosen: Series, step_figures: Sequence[queries.Step]
) -> dict[str, list[queries.Step]]:
    """Return those steps of each eval, by name, the largest eval first; empty if the series is of one eval."""
    evals = [
        series
        for series in all_series
        if chosen.eval_name is None and series.mode == chosen.mode and series.eval_name is not None
    ]
    step_numbers = tuple(step.step for step in step_figures)
    evals_by_size = sorted(evals, key=lambda series: -series.rollouts)
    return {series.eval_name or "": rested(db, run_id, _same_steps, series, step_numbers) for series in evals_by_size}


def _same_steps(db: Connection, run_id: int, series: Series, step_numbers: tuple[int, ...]) -> list[queries.Step]:
    return queries.steps(db, run_id, series, only=step_numbers)


def _choose_charts(candidates: Iterable[StepChart]) -> list[StepChart]:
    """Leave out shares of one value alone, and how rollouts fared where the chart of stop reasons says so."""
    varied = [chart for chart in candidates if not chart.is_stacked or len(chart.lines) > 1]
    has_ends = any(chart.id == "stop" for chart in varied)
    return [chart for chart in varied if chart.id != "status" or not has_ends]


def _parts(run_uid: str, window: TileWindow, name: str, window_parts: dict[str, Any]) -> list[ValueShare]:
    """Count a property over the last steps, most frequent first; none if all rollouts have one that is no fault."""
    counts: Counter[str] = Counter()
    for step in window.recent:
        counts.update(getattr(step, name))
    rollouts = sum(step.rollouts for step in window.recent)
    word_of = words.status_word if name == "statuses" else words.stop_reason
    vocabulary = {*Status, *StopReason}
    shares = [
        ValueShare(
            word_of(value),
            count,
            mean(count, rollouts) or 0.0,
            urls.rollouts_where(run_uid, **window_parts, **({name: (value,)} if value in vocabulary else {})),
        )
        for value, count in counts.most_common()
        if count
    ]
    return shares if len(shares) > 1 or any(share.word.tone in {"bad", "warn"} for share in shares) else []


def _tasks(
    db: Connection, summary: RunSummary, chosen: Series, steps: tuple[int, int], window_parts: dict[str, Any]
) -> list[tuple[TaskRewards, Bar, str]]:
    lowest = queries.lowest_tasks(db, id_of(summary.run), chosen, *steps, limit=_LOWEST_TASKS)
    scale = charts.Scale.over([task.mean for task in lowest])
    where = partial(urls.rollouts_where, summary.run.uid, **window_parts, sort=Sort.LOWEST_REWARD)
    return [(task, scale.bar(task.mean), where(tasks=(task.task,))) for task in lowest]
