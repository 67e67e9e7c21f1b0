"""Judges whether the policy is updated, and whether its entropy has collapsed, by the figures that the trainer logs."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from logs_ui.recorder.diagnosis.card import Trend, since
from logs_ui.recorder.diagnosis.change_point import above, below
from logs_ui.recorder.diagnosis.measures import FIRST_KL, STANDSTILL
from logs_ui.recorder.diagnosis.wording import figure, percent

STEPS = 10
"""First logged steps, whose median is the initial entropy."""
FLOOR = 0.02
"""Nats per token: below this, and below half of the initial entropy, it has collapsed [ours]."""
ENTROPY_SHARE, LOW = 0.1, 0.1
"""It has also collapsed below this share of the initial entropy and below so many nats [ours]."""
GROWN, HIGH = 4.0, 2.0
"""It has exploded above so many times the initial entropy and so many nats [ours]."""
LOGGED = ("entropy", "actor/entropy", "entropy/mean")
"""Names under which trainers log it: TRL's, verl's and prime-rl's."""
_LAST = 3  # steps of which the entropy is judged
_ALWAYS = "learning_rate"  # whose value is a number in every training


@dataclass(frozen=True)
class Signal:
    """Describes one logged figure."""

    name: str  # the name that it is logged under
    sentence: str  # a sentence about it
    is_bad: bool = False  # True if the policy is not updated, or no longer explores
    trend: Trend = ()  # its values by step; empty if it was not logged

    @property
    def clause(self) -> str:
        """Return the problem as a clause, for use after a colon."""
        sentence = self.sentence.partition(":")[0].rstrip(".")
        return (
            f"{self.name} {sentence.removeprefix('It ')}" if sentence.startswith("It ") else f"{self.name}: {sentence}"
        )

    @property
    def last(self) -> float | None:
        """Return the last value; None if it was not logged."""
        return self.trend[-1][1] if self.trend else None


def signals(scalars: Mapping[str, Trend], config: Mapping[str, Any], first: int = 0) -> tuple[Signal, ...]:
    """Return gradient norm, learning rate, clip ratio, KL and entropy, in this order. All values must be finite. From
    the step `first` on, a figure near 0 means that the policy is not updated.
    """
    clip = "clip_ratio" if "clip_ratio" in scalars else "clip_ratio/region_mean"
    makers: Mapping[str, Callable[[Trend], tuple[str, bool]]] = {
        "grad_norm": lambda trend: _standstill(trend, STANDSTILL["grad_norm"], first),
        "learning_rate": lambda trend: _standstill(trend, STANDSTILL["learning_rate"], first),
        clip: lambda trend: _describe_clipped(trend, config),
        "kl": lambda trend: (
            _standstill(trend, STANDSTILL["kl"], first) if _is_near(trend, config, first) else _describe_growth(trend)
        ),
        "entropy": _entropy,
    }
    last = max((step for step, _ in scalars.get(_ALWAYS, ())), default=0)
    curves = {**scalars, "entropy": logged(scalars)}
    return tuple(_signal(name, curves.get(name, ()), make, last, config) for name, make in makers.items())


def _signal(
    name: str, trend: Trend, make: Callable[[Trend], tuple[str, bool]], last: int, config: Mapping[str, Any]
) -> Signal:
    configured = config.get(name)
    if not trend and name == "kl" and config.get("beta") == 0:
        return Signal(name, "Not logged: beta is 0, so the trainer computes no KL penalty.")
    if not trend:
        sentence = (
            f"Not logged; the configured value is {figure(configured)}."
            if isinstance(configured, float)
            else "Not logged."
        )
        return Signal(name, sentence)
    if trend[-1][0] < last:
        sentence = f"Not finite, or not logged, after step {trend[-1][0]:,}; {_ALWAYS} was logged up to step {last:,}."
        return Signal(name, sentence, True, trend)
    return Signal(name, *make(trend), trend)


def _recent(trend: Trend, first: int) -> list[float]:
    """Return what was logged from this step on, else the last value before it."""
    return [abs(value) for step, value in trend if step >= first] or [abs(trend[-1][1])]


def _is_near(trend: Trend, config: Mapping[str, Any], first: int) -> bool:
    """Return True if the policy is where it began, although it had time to change."""
    return len(trend) > FIRST_KL and bool(config.get("beta", 1.0)) and max(_recent(trend, first)) <= STANDSTILL["kl"]


def _standstill(trend: Trend, limit: float, first: int) -> tuple[str, bool]:
    """Describe a figure that is near 0 if the policy is not updated."""
    begun = since(trend, lambda value: abs(value) <= limit)
    if begun is not None:
        is_bad = max(_recent(trend, first)) <= limit
        value = max(abs(value) for step, value in trend if step >= begun)
        clause = "is 0" if value == 0 else f"is at most {figure(value)}"
        when = f"at {_all(trend)}" if begun == trend[0][0] else f"since step {begun:,}"
        return f"It {clause} {when}{': the policy is not updated' if is_bad else ''}.", is_bad
    still = sum(abs(value) <= limit for _, value in trend)
    if still:
        return f"At {still} of {len(trend)} logged steps it was at most {figure(limit)}; now it is above.", False
    low, high = min(value for _, value in trend), max(value for _, value in trend)
    between = f"{figure(low)} to {figure(high)}" if low < high else figure(low)
    return f"Non-zero at {_all(trend)} ({between}).", False


def _describe_clipped(trend: Trend, config: Mapping[str, Any]) -> tuple[str, bool]:
    highest = max(value for _, value in trend)
    if highest == 0:
        clause = f"No token was clipped at {_all(trend).replace('all', 'any of')}"
        # If each batch is used once, the updated policy is the one that sampled it.
        batches, accumulated = config.get("steps_per_generation"), config.get("gradient_accumulation_steps")
        is_once = config.get("num_iterations") == 1 and batches is not None and batches == accumulated
        return f"{clause}{': each batch is trained on once' if is_once else ''}.", False
    step = next(step for step, value in trend if value == highest)
    return f"At most {percent(highest)} of tokens were clipped, at step {step:,}.", False


def _describe_growth(trend: Trend) -> tuple[str, bool]:
    if len(trend) < 2:
        return f"Logged once, at step {trend[0][0]:,}.", False
    step, value = max(trend, key=lambda point: point[1])
    highest = "" if value == trend[-1][1] else f"; highest was {figure(value)} at step {step:,}"
    return f"From {figure(trend[0][1])} at step {trend[0][0]:,} to {figure(trend[-1][1])}{highest}.", False


def _entropy(trend: Trend) -> tuple[str, bool]:
    fall = entropy(trend)
    if fall is None:
        return _describe_growth(trend)
    step = fall.tell_onset(trend)["since_step"]
    when = "" if step is None else f" at step {step:,}"
    return f"{fall.description}{f': {fall.word}{when}' if fall.word else ''}.", bool(fall.word)


def _all(trend: Trend) -> str:
    return f"all {len(trend):,} logged steps" if len(trend) > 1 else f"the one logged step, {trend[0][0]:,}"


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
    def is_exploded(self) -> bool:
        return self.now > self.most

    @property
    def most(self) -> float:
        """Return the value above which it has exploded."""
        return max(GROWN * self.before, HIGH)

    @property
    def word(self) -> str:
        return "collapsed" if self.is_collapsed else "exploded" if self.is_exploded else ""

    def tell_onset(self, trend: Trend) -> dict[str, Any]:
        """Return since when it has collapsed or exploded, as `below()` does."""
        return above(trend, self.most) if self.is_exploded else below(trend, self.limit)

    @property
    def description(self) -> str:
        share = percent(self.now / self.before)
        return f"{figure(self.now)} nats per token, {share} of the initial median ({figure(self.before)})"


def entropy(trend: Trend) -> Entropy | None:
    """Return the comparison; None for 10 logged steps or fewer, and for an initial entropy that is not above 0."""
    values = [value for _, value in trend if np.isfinite(value)]
    before = float(np.median(values[:STEPS])) if len(values) > STEPS else 0.0
    if before <= 0:
        return None
    return Entropy(
        before, float(np.mean(values[-_LAST:])), max(min(0.5 * before, FLOOR), min(ENTROPY_SHARE * before, LOW))
    )


def logged(scalars: Mapping[str, Trend]) -> Trend:
    """Return the entropy that the trainer logged; empty without one."""
    return next((scalars[name] for name in LOGGED if scalars.get(name)), ())
