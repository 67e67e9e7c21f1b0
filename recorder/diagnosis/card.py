"""What a diagnostic says, and what it is."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from logs_ui.recorder.diagnosis.rollout_rows import Bools, Rows
from logs_ui.recorder.diagnosis.scale import Scale
from logs_ui.recorder.diagnosis.waterfall import Waterfall
from logs_ui.recorder.settings import Limits, Settings

Trend = tuple[tuple[int, float], ...]
"""(step, value), oldest first."""

BEHAVIOUR = (
    *("truncation", "parse_failures", "loops", "turn_limit", "never_acted", "degenerate_text", "diversity", "length"),
    *("never_solved", "forgotten", "signal_cliff", "dead_groups"),
)
"""Ids of the cards on what the policy does, and what comes of it: what keeps it from learning may be behind all."""


@dataclass(frozen=True)
class Run:
    """What the diagnostics look at.

    Attributes:
        rows: of the last steps.
        all: of all steps.
        config: the trainer's arguments.
        scalars: what the trainer logged, by name.
        fall: of `rows`.
    """

    rows: Rows
    all: Rows
    scale: Scale
    fall: Waterfall
    settings: Settings
    config: Mapping[str, Any] = field(default_factory=dict)
    scalars: Mapping[str, Trend] = field(default_factory=dict)

    def threshold(self, diagnostic: str, default: float) -> float:
        """The diagnostic's own, unless somebody set another."""
        return self.settings.thresholds.get(diagnostic, default)

    def cost_of(self, cause: str) -> float:
        """Reward for each rollout that the waterfall lays at a cause's door."""
        return sum(share.cost for share in self.fall.shares if share.cause.id == cause)


@dataclass(frozen=True)
class Card:
    """One reason why rewards are low.

    Attributes:
        id: of its diagnostic.
        title: what is wrong, in one line with its figure.
        cost: reward for each rollout of the last steps. Costs that are part of the waterfall add up; others overlap.
        evidence: sentences, each with the figures that it rests on.
        suggestion: what to change.
        where: the filter that opens its rollouts.
        is_part: whether the cost is a part of the waterfall.
        trend: of the figure that is held against the threshold.
        since_step: the first of the last unbroken stretch of steps above the threshold; None where that cannot be told.
        limit: the threshold, where it is one figure that the trend can be drawn against.
        explains: ids of cards that may be only its consequence. They stand below it where its rollouts, with those of
            others that explain them, hold at least half of what they lost; in a report only those are named.
        own: (N,) of the rows that were looked at, those that it is about; None: all.
        is_setup: whether it is a fault of what the policy is trained in, which no training mends: from a tenth of the
            loss on it stands before what the policy does.
        needs: the share of its loss that one card alone must hold to explain it, infinity where none does; None: half,
            of several together.
    """

    id: str
    title: str
    cost: float
    evidence: tuple[str, ...]
    suggestion: str
    where: str
    is_part: bool = False
    trend: Trend = ()
    since_step: int | None = None
    limit: float | None = None
    explains: tuple[str, ...] = ()
    own: Bools | None = field(default=None, repr=False, compare=False)
    is_setup: bool = False
    needs: float | None = None

    @property
    def began(self) -> str:
        """`since step 16`; `again since step 16` where it was above the threshold before, too, and not in between; ""
        where neither can be told.
        """
        if self.since_step is None:
            return ""
        before = [value for step, value in self.trend if step < self.since_step]
        is_again = self.limit is not None and max(before, default=self.limit) > self.limit
        return f"{'again ' if is_again else ''}since step {self.since_step:,}"


@dataclass(frozen=True)
class Diagnostic:
    """One way for rewards to be low, and how it is told.

    Attributes:
        name: as a heading.
        definition: what is computed, with its threshold.
        source: whose threshold it is.
        missing: says what it needs that was not recorded; None where all is there.
        look: the card; None where nothing is wrong.
        limits: the least and the most that its threshold may be set to; None: any number.
    """

    id: str
    name: str
    definition: str
    source: str
    missing: Callable[[Run], str | None]
    look: Callable[[Run], Card | None]
    limits: Limits | None = None


def since(trend: Trend, is_bad: Callable[[float], bool]) -> int | None:
    """The first step of the last unbroken run of bad ones."""
    found = None
    for step, value in reversed(trend):
        if not is_bad(value):
            break
        found = step
    return found
