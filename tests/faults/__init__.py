"""Faults that are planted on purpose, each recorded for real, to see which card the diagnosis shows first.

`python -m tests.faults --table` prints what was planted against what was found.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Fault:
    """One run that is low for a known reason, or is not low.

    Attributes:
        id: `cause` or `cause: variant`.
        planted: what was done to it, in one sentence.
        expected: id of the card that must come first; None: there must be no card.
        make: records it into that database, which is not there yet.
    """

    id: str
    planted: str
    expected: str | None
    make: Callable[[Path], None]
