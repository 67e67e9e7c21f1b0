"""The column of filters beside the table: what can be chosen, what is, and how many rows each choice would give."""

from dataclasses import dataclass

from sqlalchemy import Connection

from logs_ui.app import charts, words
from logs_ui.app.source import id_of
from logs_ui.app.urls import Pairs
from logs_ui.recorder import queries
from logs_ui.recorder.errors import FilterError
from logs_ui.recorder.filters import RolloutFilter, Scored, check_known, parse_filter, print_filter
from logs_ui.recorder.models import Run, RunState, Status
from logs_ui.recorder.queries import RunSummary

TYPED = ("step_min", "step_max", "since", "until", "reward_min", "reward_max")
"""Fields that hold what somebody wrote."""


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
        statuses, scored: all of them while a run is alive, as they come and go; else those that its rows have, too.
        tasks_beyond: whether there are more tasks than are listed, so that one has to be written.
        typed: what stands in the fields to write in: as it was typed where it was wrong, else in its shortest form.
        mistake: the field at fault is marked.
    """

    evals: list[Choice]
    modes: list[Choice]
    statuses: list[Choice]
    stop_reasons: list[Choice]
    scored: list[Choice]
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
    db: Connection, summary: RunSummary, chosen: RolloutFilter, mistake: FilterError | None, given: Pairs
) -> FilterForm:
    """`given` is what the URL says, which is `chosen` unless there is a mistake in it."""
    run_id = id_of(summary.run)
    facets = queries.facets(db, run_id, chosen)
    written = dict(given if mistake else print_filter(chosen))
    over: tuple[str, ...] = () if summary.state == RunState.RUNNING else (Status.RUNNING, Scored.AWAITING)
    statuses = {status.value: 0 for status in Status if status not in over} | dict(facets.statuses)
    scored = {scored.value: 0 for scored in Scored if scored not in over} | dict(facets.scored)
    return FilterForm(
        evals=[Choice(v, n, v in chosen.evals) for v, n in facets.evals],
        modes=[Choice(v, n, v in chosen.modes) for v, n in facets.modes] if len(facets.modes) > 1 else [],
        statuses=[Choice(v, n, v in chosen.statuses, words.status_word(v)) for v, n in statuses.items()],
        stop_reasons=[Choice(v, n, v in chosen.stop_reasons, words.stop_reason(v)) for v, n in facets.stop_reasons],
        scored=[Choice(v, n, v in chosen.scored, words.SCORED[Scored(v)]) for v, n in scored.items()],
        tasks=[Choice(v, n, v in chosen.tasks) for v, n in facets.tasks],
        tasks_beyond=len(facets.tasks) >= queries.MOST_TASKS,
        rewards=_reward_chart(queries.reward_histogram(db, run_id, chosen), chosen),
        typed={name: written.get(name, "") for name in TYPED},
        group=chosen.group,
        sort=chosen.sort,
        mistake=mistake,
    )


def checked_filter(db: Connection, run: Run, given: Pairs) -> RolloutFilter:
    """The filter that the URL says.

    Raises:
        FilterError: as `parse_filter` has it, or the run has no such eval or task.
    """
    chosen = parse_filter(given)
    if chosen.evals or chosen.tasks:
        check_known(chosen, queries.known_values(db, id_of(run)))
    return chosen


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


def mended(given: Pairs, mistake: FilterError) -> Pairs | None:
    """A wrong filter as it was probably meant; None where that cannot be told."""
    if mistake.meant is None:
        return None
    return [
        (mistake.meant, value)
        if name == mistake.written
        else (name, mistake.meant if name == mistake.field and value.strip() == mistake.written else value)
        for name, value in given
    ]


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
