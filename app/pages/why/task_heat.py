"""Draws the heat map of tasks by steps: text, colour and link of its cells."""

from itertools import pairwise
from math import isnan
from typing import Any, Final, NamedTuple

import numpy as np

from logs_ui.app.parts import figures
from logs_ui.app.parts.words import Word
from logs_ui.app.web import urls
from logs_ui.recorder.diagnosis.rollout_rows import Floats, Ints, Rows
from logs_ui.recorder.diagnosis.scale import Scale
from logs_ui.recorder.diagnosis.tables.tasks import (
    ATTEMPTS,
    EASY,
    FALLEN,
    RARELY,
    Cells,
    Columns,
    Figures,
    Label,
    Labels,
    Reach,
    cells,
)
from logs_ui.recorder.diagnosis.wording import percent
from logs_ui.recorder.queries.filters.rollout_filter import Scored

SHADES = 7
"""Number of colours, which divide the range from the run's lowest reward to its best equally."""

_LOWEST_PERCENTILE = 1
_SPELT_COLUMNS = 16  # so many, at most, are wide enough to say their value
_HEADINGS = 8  # of columns that are too narrow to have one each
_MARKS = 5

LABELS: Final = {
    Label.NEVER: Word(
        "never solved", "ban", "bad", f"At least {ATTEMPTS} attempts over the whole run, none of which solved the task."
    ),
    Label.FORGOTTEN: Word(
        "regressed",
        "arrow-down",
        "warn",
        f"Solved before, and then in at least {ATTEMPTS} attempts with at most {FALLEN:.0%} of the earlier success"
        " rate. At an unchanged rate, the probability of this in any of the run's tasks is below 1%.",
    ),
    Label.LEARNING: Word(
        "partly solved",
        "activity",
        "positive",
        "Some attempts solve the task and others do not: the policy can learn from it.",
    ),
    Label.SATURATED: Word(
        "saturated",
        "check",
        "good",
        f"At least {EASY:.0%} of the last attempts (the steps with the last {ATTEMPTS}) solve the task: little is left"
        " to learn. The other figures cover all steps shown.",
    ),
    Label.FEW: Word("few attempts", "hourglass", "quiet", f"Fewer than {ATTEMPTS} attempts: too few for a status."),
    Label.UNKNOWN: Word("no status", "circle-slash", "quiet", "What counts as solved is not defined for this run."),
}
"""The word of each status, in the order of the chips."""

REACHES: Final = {
    Reach.CANNOT: Word(
        "no success",
        "",
        "bad",
        "Almost no group has a rollout that solves the task: more samples give no signal. Make the task easier, or add"
        " demonstrations.",
    ),
    Reach.RARELY: Word(
        "rare",
        "",
        "warn",
        f"Some groups have a rollout that solves the task, but fewer than {RARELY:.0%} of all attempts do. Training can"
        " amplify this.",
    ),
    Reach.SOMETIMES: Word("partial", "", "positive", f"{RARELY:.0%} to {EASY:.0%} of the attempts solve the task."),
    Reach.RELIABLY: Word("reliable", "", "good", f"At least {EASY:.0%} of the attempts solve the task."),
    Reach.UNKNOWN: Word(
        figures.NOTHING, "", "quiet", f"Fewer than {ATTEMPTS} attempts in these steps, or solved is not defined."
    ),
}
"""The word of each solvability, within the steps shown."""


class HeatCell(NamedTuple):
    """Shows a task in the steps of one column."""

    text: str  # its mean reward, or an em dash if no rollout has one
    title: str
    shade: str  # classes of its colour, `r0` to `r6`, and of its mark, `s1` to `s5`, by the share solved
    address: str


class TaskRow(NamedTuple):
    """Shows a task in the steps shown; see `tables.tasks.Figures`."""

    task: str
    word: Word
    evidence: str
    attempts: int
    mean: float | None
    share: float | None
    pass_1: float | None
    pass_k: float | None
    reach: Word
    cells: list[HeatCell | None]  # one for each column; None without rollouts
    # `address` and `attempts_address`: of its rollouts, and of those with a reward.
    address: str
    attempts_address: str


class Heat(NamedTuple):
    """Shows tasks by steps."""

    lines: list[TaskRow]
    columns: list[tuple[str, str]]  # title and heading; the heading is empty if there is no room for it
    width: int  # steps per column; the last column may have fewer
    is_spelt: bool  # True if the cells have room for their value
    shades: list[tuple[str, str]]  # classes of the colours, and the range of rewards that each stands for
    # `low` and `high`: range of the colours.
    low: float
    high: float


def make_heat(
    run_uid: str, rows: Rows, scale: Scale, tasks: Ints, task_figures: Figures, task_labels: Labels, **where: Any
) -> Heat:
    """Build the heat map of some tasks, indices into `rows.tasks`, in their order. `rows` and `task_figures` are of the
    steps shown, `scale` and `task_labels` of the whole run; `where` are filter parts that all links have.
    """
    columns = Columns.of(rows)
    low = float(np.nanpercentile(rows.reward, _LOWEST_PERCENTILE)) if np.isfinite(rows.reward).any() else 0.0
    edges = np.linspace(low, max(scale.best, low + 1e-6), SHADES + 1)
    task_cells = cells(rows, scale, tasks, columns)
    return Heat(
        lines=[
            TaskRow(
                task=rows.tasks[task],
                word=LABELS[task_labels.label[task]],
                evidence=_evidence(task_labels, task),
                attempts=int(task_figures.attempts[task]),
                **{
                    name: _replace_nan(getattr(task_figures, name)[task])
                    for name in ("mean", "share", "pass_1", "pass_k")
                },
                reach=REACHES[task_figures.reach[task]],
                cells=_cells(run_uid, task_cells, place, columns, edges, tasks=(rows.tasks[task],), **where),
                address=urls.rollouts_where(run_uid, tasks=(rows.tasks[task],), **_step_range(rows), **where),
                attempts_address=urls.rollouts_where(
                    run_uid, tasks=(rows.tasks[task],), scored=(Scored.YES.value,), **_step_range(rows), **where
                ),
            )
            for place, task in enumerate(tasks.tolist())
        ],
        columns=_columns(columns),
        width=columns.width,
        is_spelt=len(columns.first) <= _SPELT_COLUMNS,
        shades=_shades(edges),
        low=low,
        high=float(edges[-1]),
    )


def _cells(
    run_uid: str, task_cells: Cells, place: int, columns: Columns, edges: Floats, **where: Any
) -> list[HeatCell | None]:
    steps_address = urls.rollouts_where(run_uid, **where, step_min=urls.FIRST, step_max=urls.LAST)
    step_address = urls.rollouts_where(run_uid, **where, step_min=urls.FIRST, step_max=urls.FIRST)
    line: list[HeatCell | None] = []
    task_columns = (
        table[place]
        for table in (task_cells.rollouts, task_cells.attempts, task_cells.mean, task_cells.solved, task_cells.judged)
    )
    parts = (part.tolist() for part in (columns.first, columns.last, *task_columns))
    for first, last, rollouts, attempts, mean, solved, judged in zip(*parts, strict=True):
        if not rollouts:
            line.append(None)
            continue
        address = (step_address if first == last else steps_address).replace(str(urls.FIRST), str(first))
        line.append(
            HeatCell(
                text=figures.number(_replace_nan(mean), 2),
                title=_cell_title(first, last, rollouts, attempts, mean, solved, judged),
                shade=_shade(edges, mean, solved / judged if judged else 0.0),
                address=address.replace(str(urls.LAST), str(last)),
            )
        )
    return line


def _cell_title(first: int, last: int, rollouts: int, attempts: int, mean: float, solved: int, judged: int) -> str:
    prefix = f"{figures.steps(first, last)}: "
    if not attempts:
        return f"{prefix}no reward, {figures.plural(rollouts, 'rollout')}"
    unscored_text = "" if attempts == rollouts else f", {rollouts - attempts:,} more without a reward"
    attempts_text = figures.plural(attempts, "rollout")
    solved_text = attempts_text if not judged else f"{solved:,} of {figures.plural(judged, 'rollout')} solved"
    return f"{prefix}mean reward {figures.number(mean)} · {solved_text}{unscored_text}"


def _shade(edges: Floats, mean: float, share: float) -> str:
    if isnan(mean):
        return "none"
    colour = min(max(int(np.searchsorted(edges, mean, side="right")) - 1, 0), SHADES - 1)
    mark = -int(-share * _MARKS // 1)  # any that solves it shows
    return f"r{colour} s{mark}" if mark else f"r{colour}"


def _shades(edges: Floats) -> list[tuple[str, str]]:
    ends = [figures.number(edge, 2) for edge in edges.tolist()]
    return [(f"r{shade}", f"mean reward {low} to {high}") for shade, (low, high) in enumerate(pairwise(ends))]


def _columns(columns: Columns) -> list[tuple[str, str]]:
    interval = max(1, -(-len(columns.first) // _HEADINGS)) if len(columns.first) > _SPELT_COLUMNS else 1
    bounds = zip(columns.first.tolist(), columns.last.tolist(), strict=True)
    return [
        (figures.steps(first, last), f"{first:,}" if place % interval == 0 else "")
        for place, (first, last) in enumerate(bounds)
    ]


def _evidence(task_labels: Labels, task: int) -> str:
    last = int(task_labels.last_solved[task])
    if task_labels.label[task] == Label.FORGOTTEN:
        before, after = (percent(float(share[task])) for share in (task_labels.before, task_labels.after))
        return f"Solved in {before} of the attempts before step {task_labels.since[task]:,}, and in {after} since."
    if task_labels.label[task] == Label.UNKNOWN:
        return ""
    return f"Last solved at step {last:,}." if last >= 0 else "Never solved so far."


def _step_range(rows: Rows) -> dict[str, int]:
    return {"step_min": int(rows.steps[0]), "step_max": int(rows.steps[-1])} if len(rows) else {}


def _replace_nan(value: float) -> float | None:
    return None if isnan(value) else float(value)
