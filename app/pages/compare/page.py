"""The page that compares runs: the same axes, task by task, and the differences between them."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from fastapi import APIRouter, Request, Response
from fastapi.responses import RedirectResponse
from sqlalchemy import Connection

from logs_ui.app.pages.compare import run_differences, run_sentences
from logs_ui.app.pages.compare.run_curves import POINTS, Axis, CurveChart, make_chart
from logs_ui.app.pages.compare.run_figures import PARTS, Estimate, Results, compared_tasks, figures_of
from logs_ui.app.pages.compare.run_table import ComparedSide, make_figure_table
from logs_ui.app.pages.compare.run_tasks import SORTS, TaskTable, group_sizes, make_table
from logs_ui.app.parts.diagnoses import Outline, cached_diagnosis, diagnosed, outline_of, success_of
from logs_ui.app.parts.figure_table import FigureTable
from logs_ui.app.web import htmx, urls
from logs_ui.app.web.open_database import SourceOfPages, id_of
from logs_ui.app.web.page_cache import rested
from logs_ui.recorder import queries
from logs_ui.recorder.diagnosis import links
from logs_ui.recorder.diagnosis.against import LEAST_REFERENCES, Against, RunGroups, compare_runs
from logs_ui.recorder.diagnosis.success import ABOVE_0, Success
from logs_ui.recorder.diagnosis.wording import figure as short
from logs_ui.recorder.errors import FilterError, RunNotFoundError
from logs_ui.recorder.queries import GroupResult, ListedRun, RunFilter, RunSummary
from logs_ui.recorder.queries.comparison import MOST_ROLLOUTS
from logs_ui.recorder.queries.filters.rollout_filter import check_word
from logs_ui.recorder.vocabulary import Mark, Mode

MOST_RUNS = 6
REWARD = "mean reward"
_KS = (1, 4, 8)
_TASKS, _ALL_TASKS = 8, 2_000
_SUGGESTED = 30
_LONG_FILTER = 500  # characters: a longer one stands in each cell of a table

router = APIRouter()


@dataclass(frozen=True)
class CompareChoice:
    """Holds the parameters of the page's address."""

    runs: tuple[str, ...]
    x: Axis = Axis.STEP
    # REWARD, another figure of rollouts such as `truncated` or `rewards.NAME`, or a metric that trainers log.
    figure: str = REWARD
    mode: str | None = None  # a Mode; None for the default
    steps: str = "common"  # `common` for the steps that all runs have, `all` for each run's own
    k: int | None = None  # of pass@k; None for the size of the groups, or the largest one that all runs have
    solved: float | None = None  # the lowest reward that counts as solved; None for the runs' own definition
    sort: str = "difference"
    part: str = "raw"  # the figure of the reward functions that is compared, one of PARTS
    tasks: str = ""  # `all` shows more tasks
    arguments: str = ""  # `all` also shows arguments that do not differ

    @property
    def rises(self) -> bool:
        """True if the table of tasks has the lowest on top."""
        return self.sort in {"task", "worse"} or self.sort.startswith("mean")

    @property
    def address(self) -> str:
        parameters = {name: value for name, value in vars(self).items() if name != "runs" and value != _DEFAULTS[name]}
        return urls.compare_runs(self.runs, [(name, f"{value}") for name, value in parameters.items()])

    def but(self, **parts: object) -> str:
        """Return the address with some parameters changed."""
        return replace(self, **parts).address  # type: ignore[arg-type]


_DEFAULTS = vars(CompareChoice(()))


class ComparedRun(NamedTuple):
    """Describes one of the compared runs."""

    letter: str
    summary: RunSummary

    @property
    def style(self) -> str:
        """Classes of its curves: the dash of its place on this page, and its colour on all pages."""
        return f"s{'ABCDEF'.index(self.letter) + 1} of-run-{id_of(self.summary.run) % 8}"


class Tasks(NamedTuple):
    """Compares the runs task by task."""

    table: TaskTable
    figures: dict[str, list[Estimate | None]]
    figure_table: FigureTable  # the same as a table
    steps: list[tuple[int, int] | None]  # first and last counted step of each run; None for a run without any
    are_cut: bool  # True if a run has so many rollouts that only its last ones are counted
    is_scored: bool  # True if any of the rollouts has a reward
    success: Success  # what counts as solved; without marks if the runs do not agree
    k: int
    ks: list[int]


@dataclass(frozen=True)
class ComparePage:
    """Context of `compare/compare_runs.html` and `compare/_compare.html`."""

    choice: CompareChoice
    mode: str
    runs: list[ComparedRun]
    outlines: dict[str, Outline]  # by uid, of runs that are diagnosed already
    other_runs: list[ListedRun]  # runs that could be added
    figures: list[str]  # names of the figures of rollouts that can be drawn, REWARD first
    metrics: list[str]  # names of the metrics that at least two runs logged
    modes: list[str]
    chart: CurveChart | None  # None if fewer than two runs have the metric
    tasks: Tasks | None
    # `sentences` compare each run with the first one, and `differences` names what differs in the runs.
    sentences: list[str]
    differences: str
    against: Against | None  # compares the first run with the others; None if they are too few for a verdict
    facts: list[run_differences.RunSetting]
    arguments: run_differences.RunSettings
    versions: run_differences.RunSettings
    # Source texts of the runs; `runs_without_sources` lists the runs for which none are stored.
    sources: list[run_differences.Comparison]
    trees: list[run_differences.WorkingTree]
    runs_without_sources: list[int]


@router.get("/compare")
def compare(request: Request, source: SourceOfPages) -> Response:
    """Show two to six runs; with fewer, the runs to choose from."""
    with source.reading() as db:
        choice = _choice(request, db)
        parameters = request.query_params.multi_items()
        if htmx.target(request) is None and urls.compare_runs((), parameters) != choice.address:
            return RedirectResponse(choice.address, 303)
        page = _page(db, choice)
    return htmx.render(request, "compare/compare_runs.html", page, fragments=("compare",), address=choice.address)


@router.get("/sources/{digest}")
def source_text(source: SourceOfPages, digest: str) -> Response:
    """Return a stored source text as plain text."""
    with source.reading() as db:
        texts = queries.source_texts(db, [digest])
    if digest not in texts:
        raise RunNotFoundError("No run has a source of that name.")
    return htmx.plain_text(texts[digest])


def _choice(request: Request, db: Connection) -> CompareChoice:
    """Read the choice from the request. Raise FilterError or RunNotFoundError."""
    parameters = {name: value for name, value in request.query_params.items() if name != "run" and value.strip()}
    for name in parameters:
        check_word("parameter", name, name, (*_DEFAULTS, "label", "do"))
    allowed_words: dict[str, Sequence[str]] = {
        "x": [axis.value for axis in Axis],
        "mode": [mode.value for mode in Mode],
        "steps": ("common", "all"),
        "part": PARTS,
        "tasks": ("all",),
        "arguments": ("all",),
    }
    allowed_words["sort"] = (*SORTS, *(f"mean{number}" for number in range(1, MOST_RUNS + 1)))
    for name in allowed_words.keys() & parameters.keys():
        check_word(name, name, parameters[name], allowed_words[name])
    run_names = [name for name in request.query_params.getlist("run") if name.strip()]
    runs = tuple(dict.fromkeys(queries.find_run(db, name).uid for name in run_names[: MOST_RUNS + 1]))
    if len(runs) > MOST_RUNS:
        raise FilterError("run", f"at most {MOST_RUNS} runs can be compared: select fewer")
    sort = parameters.get("sort", "difference")
    if sort.startswith("mean") and int(sort[4:]) > len(runs):
        sort = "difference"
    figure = parameters.get("figure", REWARD)
    if runs and figure != REWARD and not _is_of_rollouts(figure):
        metrics = {name for uid in runs for name in queries.scalar_names(db, id_of(queries.find_run(db, uid)))}
        check_word("figure", "figure of these runs", figure, [REWARD, *sorted(metrics)])
    fields: dict[str, Any] = {name: parameters[name] for name in _DEFAULTS if name in parameters}
    fields |= {"x": Axis(parameters.get("x", Axis.STEP)), "sort": sort}
    if "k" in parameters:
        fields["k"] = int(_number("k", parameters["k"], low=1, high=10_000))
    if "solved" in parameters:
        fields["solved"] = _number("solved", parameters["solved"])
    return CompareChoice(**fields | {"runs": runs})


def _number(name: str, text: str, *, low: float = -1e300, high: float = 1e300) -> float:
    try:
        number = float(text)
    except ValueError:
        number = float("nan")
    if not low <= number <= high:
        raise FilterError(name, f"{name} {text[:40]!r} is not a number: expected a number such as 0.5")
    return number


def _page(db: Connection, choice: CompareChoice) -> ComparePage:
    listed_runs = queries.these_runs(db, [id_of(queries.find_run(db, uid)) for uid in choice.runs])
    summaries_by_uid = {listed.summary.run.uid: listed.summary for listed in listed_runs}
    runs = [ComparedRun(letter, summaries_by_uid[uid]) for letter, uid in zip("ABCDEF", choice.runs, strict=False)]
    summaries = [run.summary for run in runs]
    ids = [id_of(summary.run) for summary in summaries]
    sources = [queries.run_sources(db, ids).get(run_id, []) for run_id in ids]
    texts = queries.source_texts(db, {source.hash for run_sources in sources for source in run_sources if source.hash})
    modes = [mode.value for mode in Mode if any(rested(db, run_id, queries.step_sizes, mode) for run_id in ids)]
    metric_counts = Counter(name for run_id in ids for name in queries.scalar_names(db, run_id))
    mode = choice.mode or (Mode.TRAIN.value if Mode.TRAIN in modes or not modes else modes[0])
    recent_runs = queries.list_runs(db, RunFilter(), limit=_SUGGESTED).runs
    tasks = _tasks(db, runs, choice, mode) if len(runs) > 1 else None  # diagnoses the runs, for what is solved
    diagnoses = {summary.run.uid: cached_diagnosis(db, summary.run) for summary in summaries}
    shows_all = choice.arguments == "all"
    arguments = run_differences.settings([summary.run.config for summary in summaries], shows_all=shows_all)
    comparisons = run_differences.comparisons(sources, texts)
    return ComparePage(
        choice=choice,
        mode=mode,
        runs=runs,
        outlines={
            uid: outline_of(diagnosis)
            for uid, diagnosis in diagnoses.items()
            if diagnosis and not diagnosis.report.warming_up
        },
        other_runs=[listed for listed in recent_runs if listed.summary.run.uid not in choice.runs],
        figures=[REWARD, *filter(_is_of_rollouts, tasks.figures if tasks else ())],
        metrics=sorted(name for name, count in metric_counts.items() if count > 1 and not _is_of_rollouts(name)),
        modes=modes,
        chart=_chart(db, runs, choice, mode) if len(runs) > 1 else None,
        tasks=tasks,
        sentences=_write_sentences(runs, tasks) if tasks else [],
        differences=run_sentences.name_differences(arguments, comparisons),
        against=_against(db, runs, tasks, mode) if tasks and len(runs) > LEAST_REFERENCES else None,
        facts=run_differences.facts(summaries),
        arguments=arguments,
        versions=run_differences.settings([summary.run.versions for summary in summaries], shows_all=shows_all),
        sources=comparisons,
        trees=run_differences.working_trees(sources, texts),
        runs_without_sources=[index for index, run_sources in enumerate(sources) if not run_sources],
    )


def _write_sentences(runs: Sequence[ComparedRun], tasks: Tasks) -> list[str]:
    """Return a sentence for each run but the first, and those that have no task in common with it."""
    steps = [step_range for step_range in tasks.steps if step_range]
    steps_text = f"steps {steps[0][0]:,} to {steps[0][1]:,}" if len(set(steps)) == 1 else "steps of each as below"
    return [
        sentence
        for place, run in enumerate(runs[1:], 1)
        if place not in tasks.table.apart
        and (sentence := run_sentences.compare_run(tasks.figures, place, run.letter, steps_text))
    ]


def _against(db: Connection, runs: Sequence[ComparedRun], tasks: Tasks, mode: str) -> Against | None:
    """Compare the first run with the others; None if they are diagnosed by rollouts of another mode."""
    first, *references = [diagnosed(db, run.summary.run) for run in runs]
    if any(diagnosis.rows.is_evaluation is (mode == Mode.TRAIN) for diagnosis in (first, *references)):
        return None
    success = tasks.success if tasks.success.is_defined else first.report.scale.success
    letters = [run.letter for run in runs[1:]]
    groups = {
        letter: RunGroups.of(diagnosis.rows, success) for letter, diagnosis in zip(letters, references, strict=True)
    }
    return compare_runs(RunGroups.of(first.rows, success), groups)


def _chart(db: Connection, runs: Sequence[ComparedRun], choice: CompareChoice, mode: str) -> CurveChart | None:
    ids = [id_of(run.summary.run) for run in runs]
    if choice.figure == REWARD:
        curves = [rested(db, run_id, queries.reward_points, mode, POINTS) for run_id in ids]
    else:
        query = queries.figure_points if _is_of_rollouts(choice.figure) else queries.scalar_points
        curves = [rested(db, run_id, query, mode, choice.figure, POINTS) for run_id in ids]
    lacks_figure = [run.summary.run.lacks_figure(choice.figure) for run in runs]
    curves = [[] if lacks else curve for lacks, curve in zip(lacks_figure, curves, strict=True)]
    return make_chart([f"{run.letter}, {run.summary.run.name}," for run in runs], curves, choice.x)


def _is_of_rollouts(figure: str) -> bool:
    return figure in {"truncated", "errors", "turns", "tokens"} or figure.startswith("rewards.")


def _tasks(db: Connection, runs: Sequence[ComparedRun], choice: CompareChoice, mode: str) -> Tasks:
    ids = [id_of(run.summary.run) for run in runs]
    sizes = [rested(db, run_id, queries.step_sizes, mode) for run_id in ids]
    ranges = [(run_sizes[0].step, run_sizes[-1].step) for run_sizes in sizes if run_sizes]
    common = (max(first for first, _ in ranges), min(last for _, last in ranges)) if ranges else (0, 0)
    step_limits = common if choice.steps == "common" else (0, 2**62)
    steps = [_last_steps(run_sizes, step_limits) for run_sizes in sizes]
    are_cut = any(last_steps and last_steps[1] for last_steps in steps)
    if are_cut and choice.steps == "common":
        first_step = max(last_steps[0][0] for last_steps in steps if last_steps)
        steps = [_last_steps(run_sizes, (first_step, common[1])) for run_sizes in sizes]
    counted_runs = [
        (run_id, last_steps[0]) if last_steps else None for run_id, last_steps in zip(ids, steps, strict=True)
    ]
    success = _success(
        db, [run for run, counted_run in zip(runs, counted_runs, strict=True) if counted_run], choice.solved
    )
    results: list[dict[str, list[GroupResult]]] = [
        rested(db, counted_run[0], queries.task_results, mode, counted_run[1], success.marks) if counted_run else {}
        for counted_run in counted_runs
    ]
    largest_size = max(group_sizes(results), default=1)
    ks = sorted({*(k for k in _KS if k <= largest_size), largest_size})
    k = choice.k or min(
        (max(distinct_sizes) for run_results in results if (distinct_sizes := group_sizes([run_results]))), default=1
    )
    weights = [queries.reward_weights(db, run_id) for run_id in ids]
    figures = figures_of(results, weights, choice.part)
    recorded_figures = {
        name: [None if run.summary.run.lacks_figure(name) else cell for run, cell in zip(runs, cells, strict=True)]
        for name, cells in figures.items()
    }
    recorded_figures = {name: cells for name, cells in recorded_figures.items() if any(cells)}
    table = make_table(results, k, choice.sort, _ALL_TASKS if choice.tasks else _TASKS)
    parts_of_runs = zip(runs, counted_runs, results, compared_tasks(results), strict=True)
    sides = [
        ComparedSide(
            run.letter,
            run.summary.run.uid,
            run.style,
            _where(counted_run, mode, run_results, tasks),
            place in table.apart,
        )
        for place, (run, counted_run, run_results, tasks) in enumerate(parts_of_runs)
    ]
    return Tasks(
        figures=recorded_figures,
        figure_table=make_figure_table(sides, recorded_figures, choice.part, weights),
        table=table,
        steps=[last_steps[0] if last_steps else None for last_steps in steps],
        are_cut=are_cut,
        is_scored=bool(ranges),
        success=success,
        k=k,
        ks=ks,
    )


def _where(counted_run: tuple[int, tuple[int, int]] | None, mode: str, results: Results, tasks: set[str]) -> str:
    """Return the filter that selects the rollouts that are counted of a run; "" for a run without any, and where it
    would have to name too many tasks, or rollouts without a task.
    """
    first, last = counted_run[1] if counted_run else (0, 0)
    task_terms = [links.tasks(sorted(tasks))] if tasks != set(results) else []
    if counted_run is None or (task_terms and ("" in tasks or len(task_terms[0]) > _LONG_FILTER)):
        return ""
    return " ".join([f"mode:{mode} step:{first}..{last}", *task_terms])


def _success(db: Connection, runs: Sequence[ComparedRun], solved: float | None) -> Success:
    """Return what is set on the page as solved, or the definition that all runs share; without marks if they do not.

    A function that gave nothing but 0 so far has the mark ABOVE_0, which any other mark of it agrees with.
    """
    if solved is not None:
        return Success((Mark("reward", solved),), f"reward \u2265 {short(solved)}, as set on this page")
    definitions = [success_of(db, run.summary.run) for run in runs]
    candidate = max(
        definitions, key=lambda definition: [(mark.column, mark.at) for mark in definition.marks], default=Success()
    )
    agreed_marks = [(mark.column, mark.eval, {mark.at, ABOVE_0}) for mark in candidate.marks]
    for definition in definitions:
        agreements = [
            (mark.column, mark.eval) == (column, eval_name) and mark.at in thresholds
            for mark, (column, eval_name, thresholds) in zip(definition.marks, agreed_marks, strict=False)
        ]
        if len(definition.marks) != len(agreed_marks) or not all(agreements):
            definitions_text = "; ".join(
                f"{run.letter}: {definition.description}" for run, definition in zip(runs, definitions, strict=True)
            )
            return Success(description=f"not defined alike in these runs. {definitions_text}")
    return candidate


def _last_steps(sizes: Sequence[queries.StepSize], step_limits: tuple[int, int]) -> tuple[tuple[int, int], bool] | None:
    """Return first and last of as many of these steps as may be counted, from the end; True if some are left out."""
    sizes_inside = [size for size in sizes if step_limits[0] <= size.step <= step_limits[1]]
    if not sizes_inside:
        return None
    first, rollouts = len(sizes_inside), 0
    while first > 0 and (rollouts == 0 or rollouts + sizes_inside[first - 1].scored <= MOST_ROLLOUTS):
        first -= 1
        rollouts += sizes_inside[first].scored
    rollouts_before = max((size.rollouts for size in sizes if size.step < sizes_inside[first].step), default=0)
    is_cut = first > 0 or sizes_inside[-1].rollouts - rollouts_before > MOST_ROLLOUTS
    return (sizes_inside[first].step, sizes_inside[-1].step), is_cut
