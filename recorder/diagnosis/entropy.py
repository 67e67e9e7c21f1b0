"""Judges whether the policy's entropy has collapsed: one definition for the check and for the page on training."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from logs_ui.recorder.diagnosis.card import Trend
from logs_ui.recorder.diagnosis.wording import figure, percent

STEPS = 10
"""First logged steps, whose median is the initial entropy."""
FLOOR = 0.02
"""Nats per token: below this, and below half of the initial entropy, it has collapsed [ours]."""
SHARE, LOW = 0.1, 0.1
"""It has also collapsed below this share of the initial entropy and below so many nats [ours]."""
LOGGED = ("entropy", "actor/entropy", "entropy/mean")
"""Names under which trainers log it: TRL's, verl's and prime-rl's."""
_LAST = 3  # steps


@dataclass(frozen=True)
class Entropy:
    """Compares the entropy at the last steps with the initial one, in nats per token."""

    before: float
    now: float
    limit: float  # the value below which it has collapsed

    @property
    def is_collapsed(self) -> bool:
        return self.now < self.limit

    @property
    def said(self) -> str:
        share = percent(self.now / self.before)
        return f"{figure(self.now)} nats per token, {share} of the initial median ({figure(self.before)})"


def entropy(trend: Trend) -> Entropy | None:
    """Return the comparison; None for 10 logged steps or fewer, and for an initial entropy that is not above 0."""
    values = [value for _, value in trend if np.isfinite(value)]
    before = float(np.median(values[:STEPS])) if len(values) > STEPS else 0.0
    if before <= 0:
        return None
    return Entropy(before, float(np.mean(values[-_LAST:])), max(min(0.5 * before, FLOOR), min(SHARE * before, LOW)))


def logged(scalars: Mapping[str, Trend]) -> Trend:
    """Return the entropy that the trainer logged; empty without one."""
    return next((scalars[name] for name in LOGGED if scalars.get(name)), ())
