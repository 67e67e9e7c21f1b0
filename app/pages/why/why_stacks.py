"""Stacked charts by step; the templates draw them."""

from collections.abc import Sequence
from dataclasses import dataclass

from logs_ui.recorder.diagnosis.rollout_rows import Rows


@dataclass(frozen=True)
class Piece:
    """A part of a stack, from its top; a stack's height is 100.

    Attributes:
        kind: colour class.
    """

    kind: str
    y: float
    height: float


@dataclass(frozen=True)
class StepStack:
    """One step, or several consecutive ones; `x` and `width` are in units of a chart that is 100 wide.

    Attributes:
        cells: value of each kind, for the table.
        steps, label: in words: the steps, and the whole stack.
        address: of its rollouts or groups.
    """

    x: float
    width: float
    pieces: list[Piece]
    cells: list[str]
    steps: str
    label: str
    address: str


@dataclass(frozen=True)
class Bins:
    """Steps in bins of equal width."""

    first: int
    last: int
    together: int

    @classmethod
    def of(cls, rows: Rows, most: int) -> "Bins":
        """Bins the steps of at least one rollout into at most `most` bins."""
        first, last = int(rows.steps[0]), int(rows.steps[-1])
        return cls(first, last, -(-(last - first + 1) // most))

    @property
    def number(self) -> int:
        return (self.last - self.first) // self.together + 1

    def ends(self, place: int) -> tuple[int, int]:
        """First and last step of a bin."""
        low = self.first + place * self.together
        return low, min(low + self.together - 1, self.last)

    def stack(self, place: int, values: Sequence[float], kinds: Sequence[str], cells: Sequence[tuple[str, str]],
              address: str) -> StepStack:  # fmt: skip
        """Builds the stack of a bin. Negative values have no piece.

        Args:
            place: index of the bin, from 0.
            values: of each kind.
            kinds: from bottom to top.
            cells: (name, text) of each kind; an empty text or "0" is left out of the label.
            address: see `StepStack`.
        """
        low, high = self.ends(place)
        steps = f"step {low:,}" if low == high else f"steps {low:,} to {high:,}"
        label = ", ".join(f"{said} {name}" for name, said in cells if said not in {"", "0"})
        width = 100 / self.number
        return StepStack(
            x=round(place * width, 3),
            width=round(width, 3),
            pieces=_pieces(values, kinds),
            cells=[said for _, said in cells],
            steps=steps,
            label=f"{steps}: {label}",
            address=address,
        )


def _pieces(values: Sequence[float], kinds: Sequence[str]) -> list[Piece]:
    total = sum(max(value, 0.0) for value in values)
    pieces, top = [], 100.0
    for kind, value in zip(kinds, values, strict=True):
        if value > 0:
            height = 100 * value / total
            top -= height
            pieces.append(Piece(kind, round(top, 2), round(height, 2)))
    return pieces
