"""Draws the pivot of rollouts: text, colour and link of its cells."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from sqlalchemy import Connection

from logs_ui.app.parts import figures, words
from logs_ui.app.parts.view import View, ViewKind
from logs_ui.app.web import urls
from logs_ui.app.web.open_database import id_of
from logs_ui.app.web.page_cache import rested
from logs_ui.recorder import queries
from logs_ui.recorder.errors import FilterError
from logs_ui.recorder.queries import Cell, Dimension, Heading, Measure
from logs_ui.recorder.queries.filters.rollout_filter import RolloutFilter
from logs_ui.recorder.queries.filters.terms import Range, Term
from logs_ui.recorder.storage.tables import Run

_SHADES = 5  # of heat
_SHARES = (Measure.TRUNCATED, Measure.ERRORS)


class PivotCell(NamedTuple):
    """Holds a cell, a heading, or a sum.

    Attributes:
        text: the figure, or a heading's value.
        link: address of its rollouts; None if no filter selects them.
        heat: colour class: `h0` to `h5` from the lowest to the highest of all cells, `n1` to `n5` below zero.
    """

    text: str
    title: str
    link: str | None = None
    heat: str = ""


class PivotRow(NamedTuple):
    """Holds a row: its heading, a cell for each column (None without rollouts), and its total."""

    heading: PivotCell
    cells: list[PivotCell | None]
    overall: PivotCell


class PivotTable(NamedTuple):
    """Context of `rollouts/_pivot.html`.

    Attributes:
        columns, totals: headings, and the total of each column.
        rows_beyond, columns_beyond: number of further ones, counted in the totals only.
        counted: number of newest rollouts that were counted; None if all were.
        low, high: of the measure over all cells, as text; None without any.
        shades: colour classes from low to high.
    """

    columns: list[PivotCell]
    lines: list[PivotRow]
    totals: list[PivotCell]
    overall: PivotCell
    rows_beyond: int
    columns_beyond: int
    counted: int | None
    low: str | None
    high: str | None
    shades: list[str]


def make_pivot(db: Connection, run: Run, chosen: RolloutFilter, view: View) -> PivotTable | None:
    """Builds the pivot; None if no rollout matches."""
    found = rested(db, id_of(run), queries.pivot, chosen, view.rows, view.columns, view.of)
    if not found.rows:
        return None
    values = [value for cell in found.cells.values() if (value := _value(cell, view.of)) is not None]
    scale = _Heat(min(values, default=0.0), max(values, default=0.0), view.of)

    def narrowed(*parts: tuple[Dimension, Heading]) -> str | None:
        try:
            terms = [term for dimension, heading in parts for term in _terms(dimension, heading)]
            return urls.rollouts(run.uid, chosen.with_terms(*terms), view=view.as_pairs(ViewKind.TABLE))
        except (_CannotBeSaidError, FilterError):
            return None

    def cell(row: Heading, column: Heading) -> PivotCell | None:
        it = found.cells.get((row, column))
        if it is None:
            return None
        return _shown(it, view.of, narrowed((view.rows, row), (view.columns, column)), scale.of(it))

    return PivotTable(
        columns=[_heading(view.columns, it, narrowed((view.columns, it))) for it in found.columns],
        lines=[
            PivotRow(
                _heading(view.rows, row, narrowed((view.rows, row))),
                [cell(row, column) for column in found.columns],
                _shown(found.of_rows[row], view.of, narrowed((view.rows, row))),
            )
            for row in found.rows
        ],
        totals=[_shown(found.of_columns[it], view.of, narrowed((view.columns, it))) for it in found.columns],
        overall=_shown(found.overall, view.of, narrowed()),
        rows_beyond=found.rows_beyond,
        columns_beyond=found.columns_beyond,
        counted=found.counted,
        low=_written(scale.low, view.of) if values else None,
        high=_written(scale.high, view.of) if values else None,
        shades=scale.shades(),
    )


class _CannotBeSaidError(Exception):
    """Says that no filter selects a heading's rollouts."""


@dataclass(frozen=True)
class _Heat:
    """Shades of the cells: counts and shares start at 0, a reward is coloured by its sign, other measures start at the
    lowest.
    """

    low: float
    high: float
    of_measure: Measure

    def of(self, cell: Cell) -> str:
        value = _value(cell, self.of_measure)
        if value is None:
            return ""
        if self.of_measure == Measure.REWARD:
            most = max(abs(self.low), abs(self.high)) or 1.0
            return f"{'n' if value < 0 else 'h'}{self._shade(abs(value) / most)}"
        if self.of_measure == Measure.COUNT or self.of_measure in _SHARES:
            return f"h{self._shade(value / self.high if self.high else 0.0)}"
        span = self.high - self.low
        return f"h{self._shade((value - self.low) / span if span else 0.0)}"

    def shades(self) -> list[str]:
        """Returns the shades that occur, from the lowest value to the highest."""
        is_signed = self.of_measure == Measure.REWARD
        below = [f"n{shade}" for shade in range(_SHADES, 0, -1)] if is_signed and self.low < 0 else []
        above = [f"h{shade}" for shade in range(_SHADES + 1)] if self.high >= 0 else []
        return below + above

    @staticmethod
    def _shade(share: float) -> int:
        return min(int(share * (_SHADES + 1)), _SHADES)


def _value(cell: Cell, measure: Measure) -> float | None:
    return float(cell.count) if measure == Measure.COUNT else cell.mean


def _shown(cell: Cell, measure: Measure, link: str | None, heat: str = "") -> PivotCell:
    value = _value(cell, measure)
    rollouts = figures.plural(cell.count, "rollout")
    known = "" if measure == Measure.COUNT or cell.known == cell.count else f", {cell.known:,} with a value"
    return PivotCell(_written(value, measure), f"{rollouts}{known}", link, heat)


def _written(value: float | None, measure: Measure) -> str:
    return figures.NOTHING if value is None else _WRITTEN.get(measure, figures.percent)(value)


_WRITTEN: dict[Measure, Callable[[float], str]] = {
    Measure.COUNT: lambda value: figures.count(round(value)),
    Measure.REWARD: lambda value: figures.number(value, 2),
    Measure.TOKENS: lambda value: figures.tokens(round(value)),
    Measure.TURNS: lambda value: figures.number(value, 1),
    Measure.SECONDS: figures.duration,
}


def _heading(dimension: Dimension, heading: Heading, link: str | None) -> PivotCell:
    value, until = heading.value, heading.until
    if value is None:
        return PivotCell("none", f"without a {words.DIMENSIONS[dimension]}", link)
    if until is not None:
        return PivotCell(f"{value:,}\u2013{until:,}", f"steps {value:,} to {until:,}", link)
    if dimension == Dimension.STATUS:
        return PivotCell(words.status_word(str(value)).text, words.status_word(str(value)).meaning, link)
    if dimension == Dimension.STOP:
        return PivotCell(words.stop_reason(str(value)).text, words.stop_reason(str(value)).meaning, link)
    return PivotCell(f"{value:,}" if isinstance(value, int) else value, f"{words.DIMENSIONS[dimension]} {value}", link)


def _terms(dimension: Dimension, heading: Heading) -> list[Term]:
    """Returns the filter terms that select a heading's rollouts. Raises _CannotBeSaidError."""
    value, until = heading.value, heading.until
    if dimension == Dimension.STEP and isinstance(value, int):
        return [Term("step", (Range(value, value if until is None else until),))]
    if isinstance(value, int):
        raise _CannotBeSaidError
    return [Term(dimension.value, (value,))]
