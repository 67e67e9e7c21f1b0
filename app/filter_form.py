"""The column of filters beside the table: what can be chosen, what is, and how many rows each choice would give."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from sqlalchemy import Engine

from logs_ui.app import charts, words
from logs_ui.app.urls import Pairs
from logs_ui.recorder import queries
from logs_ui.recorder.errors import FilterError
from logs_ui.recorder.filters import RolloutFilter, parse_filter, print_filter
from logs_ui.recorder.models import Status
from logs_ui.recorder.queries import RunSummary

TYPED = ("step_min", "step_max", "since", "until", "reward_min", "reward_max")
"""Fields that hold what somebody wrote."""

_FACET_LIMIT = 50  # tasks that `queries.facets` counts at most


@dataclass(frozen=True)
class Choice:
    """One box to tick; `word` is None where the value is the user's own."""

    value: str
    count: int
    chosen: bool
    word: words.Word | None = None


@dataclass(frozen=True)
class RewardChart:
    """The histogram above the reward range; `zero` is where 0 lies, from 0 to 100, None outside."""

    columns: list[charts.Column]
    low: float
    high: float
    zero: float | None


@dataclass(frozen=True)
class FilterForm:
    """All fields.

    Attributes:
        modes: empty where the run has one mode only.
        tasks_beyond: whether there are more tasks than are listed, so that one has to be written.
        typed: what stands in the fields to write in: as it was typed where it was wrong, else in its shortest form.
        mistake: the field at fault is marked.
    """

    evals: list[Choice]
    modes: list[Choice]
    statuses: list[Choice]
    stop_reasons: list[Choice]
    tasks: list[Choice]
    tasks_beyond: bool
    rewards: RewardChart | None
    typed: dict[str, str]
    group: str | None
    sort: str
    mistake: FilterError | None

    def wrong(self, field: str) -> bool:
        """Whether this field is the one at fault."""
        return self.mistake is not None and self.mistake.field == field


def make_form(
    engine: Engine, summary: RunSummary, chosen: RolloutFilter, mistake: FilterError | None, given: Pairs
) -> FilterForm:
    """`given` is what the URL says, which is `chosen` unless there is a mistake in it."""
    run_id = summary.run.id or 0
    facets = queries.facets(engine, run_id, chosen)
    written = dict(given if mistake else print_filter(chosen))
    modes = _choices(facets.modes, chosen.modes)
    evals = dict.fromkeys(summary.eval_names, 0) | dict(facets.evals)
    statuses = {status.value: 0 for status in Status} | dict(facets.statuses)
    return FilterForm(
        evals=[Choice(v, n, v in chosen.evals) for v, n in evals.items()],
        modes=modes if len(modes) > 1 or chosen.modes else [],
        statuses=[Choice(v, n, v in chosen.statuses, words.status_word(v)) for v, n in statuses.items()],
        stop_reasons=[
            Choice(c.value, c.count, c.chosen, words.stop_reason(c.value))
            for c in _choices(facets.stop_reasons, chosen.stop_reasons)
        ],
        tasks=_choices(facets.tasks, chosen.tasks),
        tasks_beyond=len(facets.tasks) >= _FACET_LIMIT,
        rewards=_reward_chart(queries.reward_histogram(engine, run_id, chosen), chosen),
        typed={name: written.get(name, "") for name in TYPED},
        group=chosen.group,
        sort=chosen.sort,
        mistake=mistake,
    )


def repaired(given: Pairs, known_mistake: FilterError) -> RolloutFilter:
    """What is left of a wrong filter without its wrong parts."""
    pairs, field = given, known_mistake.field
    while True:
        rest = [(name, value) for name, value in pairs if name != field]
        if len(rest) == len(pairs):
            return RolloutFilter()
        try:
            return parse_filter(rest)
        except FilterError as mistake:
            pairs, field = rest, mistake.field


def _choices(counts: Iterable[tuple[str, int]], chosen: Sequence[str]) -> list[Choice]:
    """Those that rows have, and those that are chosen though none has them."""
    counted = dict(counts)
    there = [Choice(value, count, value in chosen) for value, count in counted.items() if count or value in chosen]
    return [*there, *(Choice(value, 0, chosen=True) for value in chosen if value not in counted)]


def _reward_chart(histogram: queries.Histogram | None, chosen: RolloutFilter) -> RewardChart | None:
    if histogram is None:
        return None
    high = histogram.low + histogram.width * len(histogram.counts)
    inside = histogram.low < 0 < high
    return RewardChart(
        charts.columns(histogram, chosen.reward_min, chosen.reward_max),
        histogram.low,
        high,
        charts.Scale(histogram.low, high).at(0) if inside else None,
    )
