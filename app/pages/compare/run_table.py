"""Builds the table of figures of compared runs: what each has, how it differs from the first one, and since when."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from logs_ui.app.pages.compare.run_figures import Estimate
from logs_ui.app.parts.figure_table import FigureCell, FigureLine, FigureTable, line
from logs_ui.app.parts.figures import number, plural
from logs_ui.app.web import urls
from logs_ui.recorder.diagnosis import links
from logs_ui.recorder.diagnosis.figure_differences import parted_at

_ALWAYS_SHOWN = ("reward", "solved")  # what is to be reached is shown in any case
_FUNCTION = "rewards."
_BETTER = {"truncated": -1, "errors": -1, "turns": 0, "tokens": 0}  # the sign of what is better; else 1
_JUDGEMENTS = {0: ("", "", ""), 1: (" ▲", "Better", "tone-positive"), -1: (" ▼", "Worse", "tone-negative")}
_DIGITS = {"turns": 2, "tokens": 1}


class ComparedSide(NamedTuple):
    """Describes one of the compared runs."""

    letter: str
    uid: str
    style: str  # classes of its curve
    where: str  # the filter that selects what is counted of it; "" if it has no step
    is_apart: bool  # True if it has no task in common with the first run


def make_figure_table(
    sides: Sequence[ComparedSide],
    figures: Mapping[str, Sequence[Estimate | None]],
    part: str,
    weights: Sequence[Mapping[str, float]],
) -> FigureTable:
    """Build the table; figures without a clear difference open at a click. `part` is one of PARTS, `weights` are those
    of each run's reward functions.
    """
    lines = {name: _line(name, sides, cells, _sign(name, part, weights)) for name, cells in figures.items()}
    first_lines = {
        name: figure_line for name, figure_line in lines.items() if figure_line.is_clear or name in _ALWAYS_SHOWN
    }
    first = next(iter(figures.values()), ())
    return FigureTable(
        description="",
        heads=[side.letter for side in sides],
        differences=[f"{side.letter} \N{MINUS SIGN} A" for side in sides[1:]],
        lines=list(first_lines.values()),
        more=[figure_line for name, figure_line in lines.items() if name not in first_lines],
        styles=tuple(side.style for side in sides),
        foot=tuple(f"{cell.rollouts:,} ({cell.groups:,})" if cell else "" for cell in first),
    )


def _sign(name: str, part: str, weights: Sequence[Mapping[str, float]]) -> int:
    """Return 1 if more of a figure is better, -1 if less is, 0 if neither can be said."""
    if not name.startswith(_FUNCTION):
        return _BETTER.get(name, 1)
    if part != "raw":
        return -1 if part == "headroom" else 1
    function_weights = [run_weights.get(name.removeprefix(_FUNCTION), 1.0) for run_weights in weights]
    signs = {(weight > 0) - (weight < 0) for weight in function_weights}
    return signs.pop() if len(signs) == 1 else 0


def _line(name: str, sides: Sequence[ComparedSide], cells: Sequence[Estimate | None], better_sign: int) -> FigureLine:
    first, family = cells[0], "" if name.startswith(_FUNCTION) else name.partition(" in ")[2]
    clear_cells = [
        (abs(cell.mean - first.mean), side.letter, cell)
        for cell, side in zip(cells[1:], sides[1:], strict=True)
        if cell and first and cell.is_clear and not side.is_apart
    ]
    _, letter, clearest = max(clear_cells, default=(0.0, "", None))
    since = parted_at(clearest.trend, first.trend) if clearest and first else None
    *other_trends, last_trend = [cell.trend if cell else () for cell in cells]
    return FigureLine(
        name="mean reward" if name == "reward" else name.removeprefix(_FUNCTION),
        is_clear=bool(clear_cells),
        values=[_value(name, family, cell, side) for cell, side in zip(cells, sides, strict=True)],
        differences=[
            _difference(name, first, cell, better_sign) if cell and first and not side.is_apart else FigureCell("")
            for cell, side in zip(cells[1:], sides[1:], strict=True)
        ],
        since="" if since is None else f"{since:,}{f' {letter}' if len(sides) > 2 else ''}",
        trend=line(last_trend, since, others=tuple(other_trends)),
    )


def _value(name: str, family: str, cell: Estimate | None, side: ComparedSide) -> FigureCell:
    if cell is None:
        return FigureCell("")
    where = " ".join(filter(None, [links.tasks([family], "family") if family else "", side.where]))
    return FigureCell(
        _print_value(name, cell.mean),
        _print_value(name, cell.error) if cell.error else "",
        f"{plural(cell.rollouts, 'rollout')} in {plural(cell.groups, 'group')}",
        address=urls.matching(side.uid, where) if side.where else None,
    )


def _difference(name: str, first: Estimate, cell: Estimate, better_sign: int) -> FigureCell:
    gain, error = cell.mean - first.mean, cell.error_from(first)
    arrow, word, tone = _JUDGEMENTS[better_sign * ((gain > 0) - (gain < 0)) if cell.is_clear else 0]
    return FigureCell(
        f"{'+' * (gain > 0)}{_print_value(name, gain)}{arrow}".replace("%", " pp"),
        _print_value(name, error).replace("%", " pp") if error else "",
        f"{word} than A, beyond chance" if word else "",
        f"{'clear' * cell.is_clear} {tone}".strip(),
    )


def _print_value(name: str, value: float) -> str:
    if name in {"truncated", "errors"} or name.startswith("solved"):
        return f"{number(100 * value, 1)}%"
    return number(value, _DIGITS.get(name, 3))
