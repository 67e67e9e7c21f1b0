"""Computes the charts of groups; the templates draw them."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby

from logs_ui.app.parts import words
from logs_ui.app.parts.charts import Scale
from logs_ui.app.parts.figures import number
from logs_ui.recorder.queries import ALIKE, Kind, Tally

STRIP = (240, 24)
"""Width and height of a strip, in pixels."""

_DOT = 5.0
_MOST_STACKS = 60


@dataclass(frozen=True)
class Pill:
    """Rollouts of the same reward, or nearly: a dot for one, higher for several. `x` and `y` are its upper left corner.

    Attributes:
        tone: `positive` above the group's mean, `negative` below, `even` for zero variance.
    """

    x: float
    y: float
    height: float
    tone: str
    label: str


@dataclass(frozen=True)
class Strip:
    """A group's rewards on a line from the run's lowest reward to its highest.

    Attributes:
        zero: position of 0, in pixels.
        mean: position of the group's mean; None without a reward.
        label: description in words.
    """

    pills: list[Pill]
    zero: float
    mean: float | None
    label: str


@dataclass(frozen=True)
class KindPart:
    """The groups of one kind in a stack; a stack's height is 100."""

    kind: Kind
    y: float
    height: float


@dataclass(frozen=True)
class KindStack:
    """Groups of one step, or of several consecutive ones, by kind.

    Attributes:
        x, width: in units of a chart that is 100 wide.
        counts: of each kind, in the order of the chart.
        steps, label: in words: the steps, and the whole stack.
    """

    step_min: int
    step_max: int
    x: float
    width: float
    parts: list[KindPart]
    counts: list[int]
    steps: str
    label: str


def strip(rewards: Sequence[float], mean: float | None, scale: Scale) -> Strip:
    """Builds the strip of a group from its rewards, without missing ones."""
    width, height = STRIP

    def at(value: float) -> float:
        return round(_DOT / 2 + scale.at(value) * (width - _DOT) / 100, 1)

    bins: dict[int, list[float]] = defaultdict(list)
    for reward in sorted(rewards):
        bins[round(at(reward) / _DOT)].append(reward)
    rise = min(_DOT, (height - 4) / max(map(len, bins.values()), default=1))
    pills = []
    for place, alike in bins.items():
        tall = max(round(rise * len(alike), 1), _DOT)
        x = min(max(place * _DOT - _DOT / 2, 0.0), width - _DOT)
        low, high = number(alike[0]), number(alike[-1])
        label = _times(len(alike), low) if low == high else f"{len(alike)}: {low} to {high}"
        pills.append(Pill(x, round(height - 2 - tall, 1), tall, _tone(alike, mean, rewards), label))
    return Strip(pills, at(0.0), None if mean is None else at(mean), _in_words(rewards))


def stacks(tallies: Iterable[Tally], kinds: Sequence[Kind]) -> list[KindStack]:
    """Builds a stack per step, with the kinds in the given order from below; more than 60 steps are binned."""
    by_step = sorted(tallies, key=lambda tally: tally.step)
    if not by_step:
        return []
    first, last = by_step[0].step, by_step[-1].step
    together = -(-(last - first + 1) // _MOST_STACKS)
    share = 100 / ((last - first) // together + 1)
    found = []
    for place, alike in groupby(by_step, key=lambda tally: (tally.step - first) // together):
        low = first + place * together
        counts = Counter(tally.kind for tally in alike)
        found.append(_stack((low, min(low + together - 1, last)), (place * share, share), counts, kinds))
    return found


def _stack(
    steps: tuple[int, int], place: tuple[float, float], counts: Counter[Kind], kinds: Sequence[Kind]
) -> KindStack:
    low, high = steps
    said = f"step {low:,}" if low == high else f"steps {low:,} to {high:,}"
    groups = ", ".join(f"{counts[kind]:,} {words.GROUP_KINDS[kind].text}" for kind in kinds if counts[kind])
    return KindStack(
        step_min=low,
        step_max=high,
        x=round(place[0], 3),
        width=round(place[1], 3),
        parts=_parts(counts, kinds),
        counts=[counts[kind] for kind in kinds],
        steps=said,
        label=f"{said}: {groups}",
    )


def _parts(counts: Counter[Kind], kinds: Sequence[Kind]) -> list[KindPart]:
    parts, top = [], 100.0
    for kind in kinds:
        if counts[kind]:
            height = 100 * counts[kind] / counts.total()
            top -= height
            parts.append(KindPart(kind, round(top, 2), round(height, 2)))
    return parts


def _tone(alike: Sequence[float], mean: float | None, rewards: Sequence[float]) -> str:
    if mean is None or max(rewards) - min(rewards) <= ALIKE:
        return "even"
    return "positive" if sum(alike) / len(alike) >= mean else "negative"


def _in_words(rewards: Sequence[float]) -> str:
    if not rewards:
        return "No rewards"
    counts = sorted(Counter(number(reward) for reward in sorted(rewards)).items(), key=lambda pair: -pair[1])
    said = ", ".join(_times(count, value) for value, count in counts[:6])
    return f"Rewards: {said}{', …' if len(counts) > 6 else ''}"


def _times(count: int, value: str) -> str:
    return f"{count} times {value}" if count > 1 else value
