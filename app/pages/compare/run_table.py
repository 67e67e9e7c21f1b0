"""Builds the table of figures of compared runs: what each has, how it differs from the first one, and since when."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from logs_ui.app.pages.compare.run_figures import Estimate
from logs_ui.app.parts.figure_table import FigureCell, FigureLine, FigureTable, line
from logs_ui.app.parts.figures import number, plural
from logs_ui.app.web import urls
from logs_ui.recorder.diagnosis import links
from logs_ui.recorder.diagnosis.figure_differences import parted_at

_TOLD = ("reward", "solved")  # what is to be reached is shown in any case
_FUNCTION = "rewards."
_BETTER = {"truncated": -1, "errors": -1, "turns": 0, "tokens": 0}  # the sign of what is better; else 1
_JUDGED = {0: ("", "", ""), 1: (" ▲", "Better", "tone-positive"), -1: (" ▼", "Worse", "tone-negative")}
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
    shown = {name: it for name, it in lines.items() if it.is_clear or name in _TOLD}
    first = next(iter(figures.values()), ())
    return FigureTable(
        description="",
        heads=[it.letter for it in sides],
        differences=[f"{it.letter} \N{MINUS SIGN} A" for it in sides[1:]],
        lines=list(shown.values()),
        more=[it for name, it in lines.items() if name not in shown],
        styles=tuple(it.style for it in sides),
        foot=tuple(f"{it.rollouts:,} ({it.groups:,})" if it else "" for it in first),
    )


def _sign(name: str, part: str, weights: Sequence[Mapping[str, float]]) -> int:
    """Return 1 if more of a figure is better, -1 if less is, 0 if neither can be said."""
    if not name.startswith(_FUNCTION):
        return _BETTER.get(name, 1)
    if part != "raw":
        return -1 if part == "headroom" else 1
    each = [of_run.get(name.removeprefix(_FUNCTION), 1.0) for of_run in weights]
    signs = {(it > 0) - (it < 0) for it in each}
    return signs.pop() if len(signs) == 1 else 0


def _line(name: str, sides: Sequence[ComparedSide], cells: Sequence[Estimate | None], better: int) -> FigureLine:
    first, family = cells[0], "" if name.startswith(_FUNCTION) else name.partition(" in ")[2]
    clear = [
        (abs(it.mean - first.mean), side.letter, it)
        for it, side in zip(cells[1:], sides[1:], strict=True)
        if it and first and it.is_clear and not side.is_apart
    ]
    _, letter, most = max(clear, default=(0.0, "", None))
    since = parted_at(most.trend, first.trend) if most and first else None
    *others, last = [it.trend if it else () for it in cells]
    return FigureLine(
        name="mean reward" if name == "reward" else name.removeprefix(_FUNCTION),
        is_clear=bool(clear),
        values=[_value(name, family, it, side) for it, side in zip(cells, sides, strict=True)],
        differences=[
            _difference(name, first, it, better) if it and first and not side.is_apart else FigureCell("")
            for it, side in zip(cells[1:], sides[1:], strict=True)
        ],
        since="" if since is None else f"{since:,}{f' {letter}' if len(sides) > 2 else ''}",
        trend=line(last, since, others=tuple(others)),
    )


def _value(name: str, family: str, it: Estimate | None, side: ComparedSide) -> FigureCell:
    if it is None:
        return FigureCell("")
    where = " ".join(filter(None, [links.tasks([family], "family") if family else "", side.where]))
    return FigureCell(
        _written(name, it.mean),
        _written(name, it.error) if it.error else "",
        f"{plural(it.rollouts, 'rollout')} in {plural(it.groups, 'group')}",
        address=urls.matching(side.uid, where) if side.where else None,
    )


def _difference(name: str, first: Estimate, it: Estimate, better: int) -> FigureCell:
    by, error = it.mean - first.mean, it.error_from(first)
    arrow, word, tone = _JUDGED[better * ((by > 0) - (by < 0)) if it.is_clear else 0]
    return FigureCell(
        f"{'+' * (by > 0)}{_written(name, by)}{arrow}".replace("%", " pp"),
        _written(name, error).replace("%", " pp") if error else "",
        f"{word} than A, beyond chance" if word else "",
        f"{'clear' * it.is_clear} {tone}".strip(),
    )


def _written(name: str, value: float) -> str:
    if name in {"truncated", "errors"} or name.startswith("solved"):
        return f"{number(100 * value, 1)}%"
    return number(value, _DIGITS.get(name, 3))
