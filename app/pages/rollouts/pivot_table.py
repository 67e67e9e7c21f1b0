"""Draws the pivot of rollouts: text, colour and link of its cells."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple, TypeVar

from sqlalchemy import Connection

from logs_ui.app.parts import figures, words
from logs_ui.app.parts.diagnoses import success_of
from logs_ui.app.parts.view import View, ViewKind, print_view
from logs_ui.app.web import urls
from logs_ui.app.web.open_database import id_of
from logs_ui.app.web.page_cache import rested
from logs_ui.recorder import queries
from logs_ui.recorder.diagnosis.task_families import families
from logs_ui.recorder.errors import FilterError
from logs_ui.recorder.queries import Cell, Dimension, Heading, Measure
from logs_ui.recorder.queries.filters.fields import FIELDS
from logs_ui.recorder.queries.filters.language import split_name
from logs_ui.recorder.queries.filters.rollout_filter import RolloutFilter
from logs_ui.recorder.queries.filters.terms import Range, Term
from logs_ui.recorder.queries.pivot import HIGHEST, LOWEST
from logs_ui.recorder.storage.tables import Run
from logs_ui.recorder.vocabulary import StopReason

_Key = TypeVar("_Key")
_SHADES = 5  # of heat
_SHARES = (Measure.TRUNCATED, Measure.ERRORS, Measure.SOLVED)
_ORDERS = {"": LOWEST, LOWEST: HIGHEST, HIGHEST: ""}  # what a click on the sums' head gives


class PivotCell(NamedTuple):
    """Holds a cell, a heading, or a sum."""

    text: str  # the figure, or a heading's value
    title: str
    link: str | None = None  # address of its rollouts; None if no filter selects them
    heat: str = ""  # colour class: `h0` to `h5` from the lowest to the highest of all cells, `n1` to `n5` below zero


class PivotRow(NamedTuple):
    """Holds a row: its heading, a cell for each column (None without rollouts), and its total."""

    heading: PivotCell
    cells: list[PivotCell | None]
    overall: PivotCell


class PivotTable(NamedTuple):
    """Context of `rollouts/_pivot.html`."""

    # `columns` and `totals`: headings, and the total of each column.
    columns: list[PivotCell]
    lines: list[PivotRow]
    totals: list[PivotCell]
    overall: PivotCell
    # `rows_beyond` and `columns_beyond`: number of those that are not shown, and counted in the totals only.
    rows_beyond: int
    columns_beyond: int
    counted: int | None  # number of newest rollouts that were counted; None if all were
    # `low` and `high`: of the measure over all cells, as text; None without any.
    low: str | None
    high: str | None
    shades: list[str]  # colour classes from low to high
    by_value: str  # address of the same pivot with its rows in the next order by value
    # `measures` and `dimensions`: what the run's pivots can show, as (value, name).
    measures: list[tuple[str, str]]
    dimensions: list[tuple[str, str]]


def make_pivot(db: Connection, run: Run, chosen: RolloutFilter, view: View) -> PivotTable | None:
    """Build the pivot; None if no rollout matches."""
    marks = success_of(db, run).marks if view.of == Measure.SOLVED else ()
    pivot = rested(db, id_of(run), queries.pivot, chosen, view.rows, view.columns, view.of, view.order, marks, families)
    if not pivot.rows:
        return None
    if run.lacks_figure(view.of):
        pivot = replace(
            pivot,
            cells=_without_values(pivot.cells),
            of_rows=_without_values(pivot.of_rows),
            of_columns=_without_values(pivot.of_columns),
            overall=Cell(pivot.overall.count),
        )
    values = [value for cell in pivot.cells.values() if (value := _value(cell, view.of)) is not None]
    scale = _Heat(min(values, default=0.0), max(values, default=0.0), view.of)

    column_kinds = queries.own_columns(db, id_of(run))
    measures = [*Measure, *(name for name, is_number in column_kinds.items() if is_number)]
    measures += [f"stop:{reason}" for reason in StopReason if reason != StopReason.LENGTH]
    measures = [name for name in measures if not run.lacks_figure(name)]
    dimensions = [*Dimension, *(name for name in column_kinds if name.startswith("metadata."))]

    def make_link(*parts: tuple[str, Heading]) -> str | None:
        try:
            terms = [term for dimension, heading in parts for term in _terms(dimension, heading)]
            return urls.rollouts(run.uid, chosen.with_terms(*terms), view=view.as_pairs(ViewKind.TABLE))
        except FilterError:  # it excludes what the filter asks for
            return None

    def cell(row: Heading, column: Heading) -> PivotCell | None:
        measured_cell = pivot.cells.get((row, column))
        if measured_cell is None:
            return None
        return _draw_cell(
            measured_cell, view.of, make_link((view.rows, row), (view.columns, column)), scale.shade_of(measured_cell)
        )

    return PivotTable(
        columns=[_heading(view.columns, column, make_link((view.columns, column))) for column in pivot.columns],
        lines=[
            PivotRow(
                _heading(view.rows, row, make_link((view.rows, row))),
                [cell(row, column) for column in pivot.columns],
                _draw_cell(pivot.of_rows[row], view.of, make_link((view.rows, row))),
            )
            for row in pivot.rows
        ],
        totals=[
            _draw_cell(pivot.of_columns[column], view.of, make_link((view.columns, column))) for column in pivot.columns
        ],
        overall=_draw_cell(pivot.overall, view.of, make_link()),
        rows_beyond=pivot.rows_beyond,
        columns_beyond=pivot.columns_beyond,
        counted=pivot.counted,
        low=_write_value(scale.low, view.of) if values else None,
        high=_write_value(scale.high, view.of) if values else None,
        shades=scale.shades(),
        by_value=urls.rollouts(run.uid, chosen, view=print_view(replace(view, order=_ORDERS[view.order]))),
        measures=[(name, words.measure(name)) for name in dict.fromkeys([*measures, view.of])],
        dimensions=[
            (name, words.DIMENSIONS.get(name, name)) for name in dict.fromkeys([*dimensions, view.rows, view.columns])
        ],
    )


def _without_values(cells: dict[_Key, Cell]) -> dict[_Key, Cell]:
    return {key: Cell(cell.count) for key, cell in cells.items()}


@dataclass(frozen=True)
class _Heat:
    """Shades of the cells: counts and shares start at 0, others at the lowest; a reward is coloured by its sign."""

    low: float
    high: float
    measure: str

    def shade_of(self, cell: Cell) -> str:
        value = _value(cell, self.measure)
        if value is None:
            return ""
        if self.measure == Measure.REWARD:
            most = max(abs(self.low), abs(self.high)) or 1.0
            return f"{'n' if value < 0 else 'h'}{self._shade(abs(value) / most)}"
        if self.measure == Measure.COUNT or _is_share(self.measure):
            return f"h{self._shade(value / self.high if self.high else 0.0)}"
        span = self.high - self.low
        return f"h{self._shade((value - self.low) / span if span else 0.0)}"

    def shades(self) -> list[str]:
        """Return the shades that occur, from the lowest value to the highest."""
        is_signed = self.measure == Measure.REWARD
        below = [f"n{shade}" for shade in range(_SHADES, 0, -1)] if is_signed and self.low < 0 else []
        above = [f"h{shade}" for shade in range(_SHADES + 1)] if self.high >= 0 else []
        return below + above

    @staticmethod
    def _shade(share: float) -> int:
        return int(share * (_SHADES + 1)) if share < 1 else _SHADES  # of infinite values it may be NaN


def _is_share(measure: str) -> bool:
    return measure in _SHARES or measure.startswith("stop:")


def _value(cell: Cell, measure: str) -> float | None:
    return float(cell.count) if measure == Measure.COUNT else cell.mean


def _draw_cell(cell: Cell, measure: str, link: str | None, heat: str = "") -> PivotCell:
    value = _value(cell, measure)
    rollouts = figures.plural(cell.count, "rollout")
    measured = "" if measure == Measure.COUNT or cell.measured == cell.count else f", {cell.measured:,} with a value"
    return PivotCell(_write_value(value, measure), f"{rollouts}{measured}", link, heat)


def _write_value(value: float | None, measure: str) -> str:
    if value is None:
        return figures.NOTHING
    return figures.percent(value) if _is_share(measure) else _WRITERS.get(measure, figures.number)(value)


_WRITERS: dict[str, Callable[[float], str]] = {
    Measure.COUNT: lambda value: figures.count(round(value)),
    Measure.REWARD: lambda value: figures.number(value, 2),
    Measure.TOKENS: lambda value: figures.tokens(round(value)),
    Measure.TURNS: lambda value: figures.number(value, 1),
    Measure.SECONDS: figures.duration,
}


def _heading(dimension: str, heading: Heading, link: str | None) -> PivotCell:
    value, until, name = heading.value, heading.until, words.DIMENSIONS.get(dimension, dimension)
    if value is None:
        return PivotCell("none", f"without a {name}", link)
    if until is not None:
        return PivotCell(f"{value:,}\u2013{until:,}", f"steps {value:,} to {until:,}", link)
    if dimension in {Dimension.STATUS, Dimension.STOP}:
        word = (words.status_word if dimension == Dimension.STATUS else words.stop_reason)(str(value))
        return PivotCell(word.text, word.meaning, link)
    return PivotCell(f"{value:,}" if isinstance(value, int) else value, f"{name} {value}", link)


def _terms(dimension: str, heading: Heading) -> list[Term]:
    """Return the filter terms that select a heading's rollouts."""
    value, until = heading.value, heading.until
    field, key = split_name(dimension) or (FIELDS[dimension], None)
    if isinstance(value, int):
        return [Term(field.name, (Range(value, value if until is None else until),))]
    return [Term(field.name, (value,), key)]
