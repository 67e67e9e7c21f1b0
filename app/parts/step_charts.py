"""Makes the charts of an overview: their metrics by step, and how each is drawn."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import groupby
from typing import NamedTuple

from logs_ui.app.parts import figures, words
from logs_ui.app.parts.words import Word
from logs_ui.recorder.queries import Step
from logs_ui.recorder.queries.common import bounded
from logs_ui.recorder.vocabulary import Status, StopReason

Values = list[float | None]

_FORGETS = 0.8
"""Weight of a step in the smoothed mean, relative to the next step."""
_SMOOTHED_FROM = 8  # steps; of fewer each can be looked at
_DASHES = ("", "7 3", "2 3", "9 3 2 3", "4 2", "12 4", "1 2", "6 2 2 2")
_COLOURS = len(_DASHES)  # that are told apart
# Values from below, with their colours.
_STATUSES: dict[str, int] = {Status.OK: 3, Status.RUNNING: 6, Status.ERROR: 7, Status.ABORTED: 8}
_STOP_REASONS: dict[str, int] = {
    StopReason.DONE: 3,
    StopReason.STOP: 1,
    StopReason.LENGTH: 2,
    StopReason.TURN_LIMIT: 5,
    StopReason.NO_ACTION: 4,
    StopReason.ENVIRONMENT_ERROR: 7,
    StopReason.TIMEOUT: 6,
    StopReason.AT_CAPACITY: 1,
    StopReason.EXCEPTION: 7,
    StopReason.ABORTED: 8,
    StopReason.NOT_RECORDED: 8,
}


class Form(StrEnum):
    """Names the formats of a chart's values."""

    NUMBER = "number"
    COUNT = "count"
    DURATION = "duration"
    SHARE = "share"


@dataclass(frozen=True)
class StepLine:
    """Describes one metric by step."""

    name: str
    style: str  # `line`, `thin`, `thick`, `band` (from `values` to `high`) or `area` (stacked on the one before)
    place: int  # from 1: the first eight have colours of their own, each with its dash, the next ones other dashes
    values: Values  # one for each step, None without one
    high: Values | None = None
    weighted: Values | None = None  # values to show instead; None if there are none
    word: Word | None = None  # a word of the recorder, in place of a name

    @property
    def dash(self) -> str:
        """Return the dash pattern for SVG; empty for a solid line."""
        turn, place = divmod(self.place - 1, _COLOURS)
        return _DASHES[(place + turn) % _COLOURS] if self.style == "line" else ""

    @property
    def colour(self) -> int:
        """Return the number of its colour, from 1 to 8."""
        return (self.place - 1) % _COLOURS + 1

    @property
    def last(self) -> float | None:
        return next((value for value in reversed(self.values) if value is not None), None)

    @property
    def first(self) -> float | None:
        return next((value for value in self.values if value is not None), None)


@dataclass(frozen=True)
class StepChart:
    """Describes lines over the steps, in one box. The id is unique on the page; `note` is a text beside the title."""

    id: str
    title: str
    form: Form
    lines: list[StepLine]
    note: str = ""

    @property
    def has_weighted(self) -> bool:
        return any(line.weighted is not None for line in self.lines)

    @property
    def is_stacked(self) -> bool:
        return any(line.style == "area" for line in self.lines)

    def written(self, value: float | None) -> str:
        return written(value, self.form)

    def drawn(self, steps: Sequence[int]) -> list[tuple[StepLine, list[str]]]:
        """Return the points of each line's unbroken parts, in a box of 100 by 40, for a browser without scripts."""
        numbers = [value for line in self.lines for value in (*line.values, *(line.high or ())) if value is not None]
        low, high = bounded(min(numbers, default=0.0)), bounded(max(numbers, default=1.0))
        span, wide = (high - low) or 1.0, (steps[-1] - steps[0]) or 1
        lines = []
        for line in self.lines:
            # A pair without a value follows each list, so that its last part is not joined with the next list's
            # first.
            pairs = [
                pair
                for values in (line.values, line.high or [])
                for pair in (*zip(steps, values, strict=False), (0, None))
            ]
            parts = [list(part) for is_known, part in groupby(pairs, lambda pair: pair[1] is not None) if is_known]
            points = [
                " ".join(
                    f"{100 * (step - steps[0]) / wide:.4g},{39 - 38 * (bounded(value or 0.0) - low) / span:.4g}"
                    for step, value in part
                )
                for part in parts
            ]
            lines.append((line, points))
        return lines


def spelt(values: Values) -> str:
    """Format values for a script: separated by spaces, a missing value as `-`."""
    return " ".join("-" if value is None else f"{bounded(value):.5g}" for value in values)


def written(value: float | None, form: Form) -> str:
    """Format a value for a reader."""
    if value is None:
        return figures.NOTHING
    match form:
        case Form.SHARE:
            return figures.percent(value)
        case Form.DURATION:
            return figures.duration(value)
        case Form.COUNT:
            return figures.tokens(round(value)) if value >= 100 else figures.number(value, 1)
    return figures.number(value)


def make_charts(steps: Sequence[Step], parts: Mapping[str, Sequence[Step]] | None = None) -> list[StepChart]:
    """Build the charts that have any value; `parts` are some of these steps for each of several evals, by name."""
    charts = [
        _reward(steps, parts or {}),
        _components(steps),
        _measure("tokens", "Completion tokens", Form.COUNT, steps, lambda s: (s.tokens_sum, s.tokens_known)),
        _measure("turns", "Turns", Form.COUNT, steps, lambda s: (s.turns_sum, s.turns_known)),
        _measure("seconds", "Duration", Form.DURATION, steps, lambda s: (s.seconds_sum, s.seconds_known)),
        _shares("stop", "Stop reason", steps, _STOP_REASONS, words.stop_reason, lambda s: s.stop_reasons),
        _shares("status", "Status", steps, _STATUSES, words.status_word, lambda s: s.statuses),
    ]
    return [chart for chart in charts if any(value is not None for line in chart.lines for value in line.values)]


def mean(total: float | None, count: int) -> float | None:
    return total / count if count and total is not None else None


class FunctionMean(NamedTuple):
    """Holds raw and weighted mean of one reward function. The weighted means sum to the mean reward if all weights are
    known.
    """

    name: str
    raw: float | None
    counted: float | None


def function_means(steps: Sequence[Step]) -> list[FunctionMean]:
    """Compute the means over all rollouts of these steps."""
    scored = sum(step.scored for step in steps)
    means = []
    for name in reward_functions(steps):
        sums = [step.rewards[name] for step in steps if name in step.rewards]
        total, counted = (
            sum(part or 0.0 for part in parts) for parts in zip(*(reward[1:3] for reward in sums), strict=True)
        )
        means.append(FunctionMean(name, mean(total, sum(reward.number for reward in sums)), mean(counted, scored)))
    return means


def reward_functions(steps: Iterable[Step]) -> list[str]:
    """Return the names of those that returned a number, in the order of first appearance."""
    return list(dict.fromkeys(name for step in steps for name, reward in step.rewards.items() if reward.number))


def smoothed(values: Values, counts: Sequence[int]) -> Values:
    """Compute an exponential moving average that is unbiased at its start; rollouts, not steps, have equal weights."""
    averages: Values = []
    total = weight = 0.0
    for value, count in zip(values, counts, strict=True):
        total, weight = total * _FORGETS, weight * _FORGETS
        if value is not None:
            total, weight = total + value * count, weight + count
        averages.append(None if value is None else total / weight)
    return averages


def _reward(steps: Sequence[Step], parts: Mapping[str, Sequence[Step]]) -> StepChart:
    means = [mean(step.reward_sum, step.scored) for step in steps]
    low, high = [step.reward_p10 for step in steps], [step.reward_p90 for step in steps]
    is_smoothed, places = len(steps) >= _SMOOTHED_FROM, {step.step: place for place, step in enumerate(steps)}
    lines = [] if parts or _fills(low, high) else [StepLine("p10\u2013p90", "band", 1, low, high=high)]
    for place, (name, of_eval) in enumerate(list(parts.items())[: _COLOURS - 1], 2):
        values: Values = [None] * len(steps)
        scored = [0] * len(steps)
        for step in of_eval:
            values[places[step.step]], scored[places[step.step]] = mean(step.reward_sum, step.scored), step.scored
        if any(scored):  # else no reward function applies
            lines.append(StepLine(name, "line", place, smoothed(values, scored) if is_smoothed else values))
    if not is_smoothed:
        lines.append(StepLine("mean", "thick", 1, means))
    else:
        lines.append(StepLine("mean", "thin", 1, means))
        lines.append(StepLine("smoothed mean", "thick", 1, smoothed(means, [step.scored for step in steps])))
    return StepChart("reward", "Reward by step", Form.NUMBER, lines, "evals smoothed" if parts and is_smoothed else "")


def _fills(low: Values, high: Values) -> bool:
    """Return True if a band is as wide as the chart at most steps, as that of rewards with two values."""
    ends = [(a, b) for a, b in zip(low, high, strict=True) if a is not None and b is not None]
    widest = min((a for a, _ in ends), default=0.0), max((b for _, b in ends), default=0.0)
    return 2 * ends.count(widest) > len(ends) > 1


def _components(steps: Sequence[Step]) -> StepChart:
    """Draw what the functions returned: weighted, the fall of one with a small weight is a flat line."""
    lines = []
    for place, name in enumerate(reward_functions(steps), 1):
        of_step = [(step, step.rewards.get(name)) for step in steps]
        counted = [mean(sums.counted, step.scored) if sums else None for step, sums in of_step]
        raw = [mean(sums.total, sums.number) if sums else None for _, sums in of_step]
        lines.append(StepLine(name, "line", place, raw, weighted=counted))
    return StepChart("components", "Reward functions", Form.NUMBER, lines)


def _measure(
    name: str, title: str, form: Form, steps: Sequence[Step], sums: Callable[[Step], tuple[float, int]]
) -> StepChart:
    return StepChart(name, title, form, [StepLine("mean", "line", 1, [mean(*sums(step)) for step in steps])])


def _shares(
    name: str,
    title: str,
    steps: Sequence[Step],
    colours: Mapping[str, int],
    word_of: Callable[[str], Word],
    counts: Callable[[Step], dict[str, int]],
) -> StepChart:
    """Draw one layer per value. Rollouts without one, such as running ones without a stop reason, leave a gap."""
    there = {value for step in steps for value, count in counts(step).items() if count}
    lines = []
    for value in [*(value for value in colours if value in there), *sorted(there - colours.keys())]:
        shares = [mean(counts(step).get(value, 0), step.rollouts) for step in steps]
        word = word_of(value)
        lines.append(StepLine(word.text, "area", colours.get(value, _COLOURS), shares, word=word))
    return StepChart(name, title, Form.SHARE, lines)
