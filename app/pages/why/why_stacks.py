"""Pictures by step, of what adds up to a whole: where the pieces lie; the templates draw them."""

from collections.abc import Sequence
from dataclasses import dataclass

from logs_ui.recorder.diagnosis.rollout_rows import Rows


@dataclass(frozen=True)
class Piece:
    """In parts of a stack's height of 100, from its top.

    Attributes:
        kind: class of its colour.
    """

    kind: str
    y: float
    height: float


@dataclass(frozen=True)
class Stack:
    """One step, or some that follow one another; `x` and `width` in parts of 100.

    Attributes:
        cells: what each kind comes to, as a table has it.
        steps, label: in words: which steps, and all of it.
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
    """The steps of some rollouts in at most so many parts, each of as many steps."""

    first: int
    last: int
    together: int

    @classmethod
    def of(cls, rows: Rows, most: int) -> "Bins":
        """Of at least one rollout."""
        first, last = int(rows.steps[0]), int(rows.steps[-1])
        return cls(first, last, -(-(last - first + 1) // most))

    @property
    def number(self) -> int:
        return (self.last - self.first) // self.together + 1

    def ends(self, place: int) -> tuple[int, int]:
        """First and last step of one."""
        low = self.first + place * self.together
        return low, min(low + self.together - 1, self.last)

    def stack(self, place: int, values: Sequence[float], kinds: Sequence[str], cells: Sequence[tuple[str, str]],
              address: str) -> Stack:  # fmt: skip
        """What is below 0 has no piece.

        Args:
            place: from 0.
            values: of each kind.
            kinds: from bottom to top.
            cells: (name, what it comes to) of each kind; "" where it is left out of the words.
            address: see `Stack`.
        """
        low, high = self.ends(place)
        steps = f"step {low:,}" if low == high else f"steps {low:,} to {high:,}"
        label = ", ".join(f"{said} {name}" for name, said in cells if said not in {"", "0"})
        width = 100 / self.number
        return Stack(
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
