"""Computes the charts of groups; the templates draw them."""

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from typing import NamedTuple

from logs_ui.app.parts import words
from logs_ui.app.parts.charts import Scale
from logs_ui.app.parts.figures import number
from logs_ui.app.parts.step_stacks import Bins, StepStack
from logs_ui.recorder.queries import ALIKE, Kind, Tally

STRIP = (240, 24)
"""Width and height of a strip, in pixels."""

_DOT = 5.0
_MOST_STACKS = 60


class Pill(NamedTuple):
    """Marks rollouts of nearly the same reward: a dot for one, higher for several."""

    x: float  # left
    y: float  # top
    height: float
    tone: str  # `positive` above the group's mean, `negative` below, `even` for zero variance
    label: str


class Strip(NamedTuple):
    """Shows a group's rewards on a line from the run's lowest reward to its highest; positions are in pixels."""

    pills: list[Pill]
    zero: float
    mean: float | None  # None without a reward
    label: str


def strip(rewards: Sequence[float], mean: float | None, scale: Scale) -> Strip:
    """Build the strip of a group from its rewards, without missing ones."""
    width, height = STRIP

    def at(value: float) -> float:
        return round(_DOT / 2 + scale.at(value) * (width - _DOT) / 100, 1)

    bins: dict[int, list[float]] = defaultdict(list)
    for reward in sorted(rewards):
        bins[round(at(reward) / _DOT)].append(reward)
    spacing = min(_DOT, (height - 4) / max(map(len, bins.values()), default=1))
    pills = []
    for place, bin_rewards in bins.items():
        pill_height = max(round(spacing * len(bin_rewards), 1), _DOT)
        x = min(max(place * _DOT - _DOT / 2, 0.0), width - _DOT)
        low, high = number(bin_rewards[0]), number(bin_rewards[-1])
        label = _times(len(bin_rewards), low) if low == high else f"{len(bin_rewards)}: {low} to {high}"
        pills.append(Pill(x, round(height - 2 - pill_height, 1), pill_height, _tone(bin_rewards, mean, rewards), label))
    return Strip(pills, at(0.0), None if mean is None else at(mean), _describe_rewards(rewards))


def stacks(tallies: Sequence[Tally], kinds: Sequence[Kind], address: Callable[..., str]) -> list[StepStack]:
    """Build a stack of kinds, from below, per step or bin; `address` is called with the steps of a bin."""
    if not tallies:
        return []
    bins = Bins.of(min(tally.step for tally in tallies), max(tally.step for tally in tallies), _MOST_STACKS)
    counts: dict[int, Counter[Kind]] = defaultdict(Counter)
    for tally in tallies:
        counts[(tally.step - bins.first) // bins.together][tally.kind] += 1
    return [
        bins.stack(
            place,
            [f"kind-{kind.value}" for kind in kinds],
            [of_kind[kind] for kind in kinds],
            [(words.GROUP_KINDS[kind].text, f"{of_kind[kind]:,}") for kind in kinds],
            address(**bins.ends(place)),
        )
        for place, of_kind in sorted(counts.items())
    ]


def _tone(bin_rewards: Sequence[float], mean: float | None, rewards: Sequence[float]) -> str:
    if mean is None or max(rewards) - min(rewards) <= ALIKE:
        return "even"
    return "positive" if sum(bin_rewards) / len(bin_rewards) >= mean else "negative"


def _describe_rewards(rewards: Sequence[float]) -> str:
    if not rewards:
        return "No rewards"
    counts = sorted(Counter(number(reward) for reward in sorted(rewards)).items(), key=lambda pair: -pair[1])
    listing = ", ".join(_times(count, value) for value, count in counts[:6])
    return f"Rewards: {listing}{', …' if len(counts) > 6 else ''}"


def _times(count: int, value: str) -> str:
    return f"{count} times {value}" if count > 1 else value
