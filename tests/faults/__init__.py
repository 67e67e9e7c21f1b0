"""Faults that are planted on purpose, to see which card the diagnosis shows first.

A run is generated once: `columns.py` gives it to the diagnosis as columns, and `recording.py` records it for real.
`python -m benchmarks.verdicts` prints what was planted against what was found.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tests.faults.recording import record
from tests.faults.runs import Run


@dataclass(frozen=True)
class Fault:
    """One run that is low for a known reason, or is not low.

    Attributes:
        id: `cause` or `cause: variant`.
        planted: what was done to it, in one sentence.
        expected: id of the card that must come first; None: there must be no card.
        made: generates it; None if it is really trained.
        train: trains and records it into that database, which is not there yet; None if it is generated.
    """

    id: str
    planted: str
    expected: str | None
    made: Callable[[], Run] | None = None
    train: Callable[[Path], None] | None = None

    def record(self, db: Path) -> None:
        """Record it into that database."""
        if self.made is not None:
            record(db, self.made())
        elif self.train is not None:
            self.train(db)
