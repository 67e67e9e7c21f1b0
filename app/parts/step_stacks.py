"""Computes stacked charts by step; the templates draw them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from logs_ui.app.parts import figures


class Piece(NamedTuple):
    """Describes a part of a stack, from its top, and its colour class; a stack's height is 100."""

    kind: str
    y: float
    height: float


class StepStack(NamedTuple):
    """Describes one step, or several in a row; `x` and `width` are in units of a chart that is 100 wide."""

    x: float
    width: float
    pieces: list[Piece]
    cells: list[str]  # value of each kind, for the table
    # `steps` and `label`: in words: the steps, and the whole stack.
    steps: str
    label: str
    address: str  # of its rollouts or groups

    @property
    def bar(self) -> tuple[float, float]:
        """Position and width of what is drawn: there is a gap between two stacks."""
        return round(self.x + 0.07 * self.width, 3), round(0.86 * self.width, 3)


@dataclass(frozen=True)
class Bins:
    """Puts steps in bins of equal width."""

    first: int
    last: int
    together: int

    @classmethod
    def of(cls, first: int, last: int, most: int) -> "Bins":
        """Return at most `most` bins of these steps."""
        return cls(first, last, -(-(last - first + 1) // most))

    @property
    def number(self) -> int:
        return (self.last - self.first) // self.together + 1

    def ends(self, place: int) -> dict[str, Any]:
        """Return the first and the last step of a bin, as parts of a filter."""
        low = self.first + place * self.together
        return {"step_min": low, "step_max": min(low + self.together - 1, self.last)}

    def stack(
        self, place: int, kinds: Sequence[str], values: Sequence[float], cells: Sequence[tuple[str, str]], address: str
    ) -> StepStack:
        """Build the stack of a bin, from bottom to top, from a colour class and a value of each kind. Negative values
        have no piece. `cells` has (name, text) of each kind; an empty text or "0" is left out of the label.
        """
        low, high = self.ends(place).values()
        steps = figures.steps(low, high)
        label = ", ".join(f"{text} {name}" for name, text in cells if text not in {"", "0"})
        width, total, top = 100 / self.number, sum(max(value, 0.0) for value in values), 100.0
        pieces = []
        for kind, value in zip(kinds, values, strict=True):
            if value > 0:
                height = 100 * value / total
                top -= height
                pieces.append(Piece(kind, round(top, 2), round(height, 2)))
        texts = [text for _, text in cells]
        return StepStack(round(place * width, 3), round(width, 3), pieces, texts, steps, f"{steps}: {label}", address)
