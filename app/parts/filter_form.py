"""Makes the filter's two forms: a line of the filter language, and a column of choices with their numbers of rows.
Terms that the column cannot show are sent along with it.
"""

from dataclasses import dataclass, replace

from sqlalchemy import Connection

from logs_ui.app.parts import charts, words
from logs_ui.app.parts.diagnoses import diagnosed
from logs_ui.app.web import page_cache
from logs_ui.app.web.open_database import id_of
from logs_ui.app.web.urls import LONGEST, Pairs
from logs_ui.recorder import queries
from logs_ui.recorder.errors import FilterError
from logs_ui.recorder.queries import RunSummary
from logs_ui.recorder.queries.filters import language as where
from logs_ui.recorder.queries.filters.fields import Kind
from logs_ui.recorder.queries.filters.rollout_filter import (
    ByColumn,
    Order,
    RolloutFilter,
    Scored,
    Sort,
    parse_filter,
    print_where,
)
from logs_ui.recorder.queries.filters.values import print_number, print_time
from logs_ui.recorder.storage.tables import Run
from logs_ui.recorder.vocabulary import RunState, Status

TYPED = ("step_min", "step_max", "since", "until", "reward_min", "reward_max")
"""Fields of the column that are typed into."""

_COLUMN = ("eval", "status", "stop", "scored", "task", "step", "reward", "since", "until")
"""Fields that the column always shows."""


@dataclass(frozen=True)
class Choice:
    """Describes one box to tick; `word` is None for values that the user's run defines."""

    value: str
    count: int
    chosen: bool
    word: words.Word | None = None


@dataclass(frozen=True)
class FilterForm:
    """Holds all fields of both forms."""

    where: str  # the line: as typed if it is wrong, else in its shortest form
    evals: list[Choice]
    modes: list[Choice]  # empty if the run has a single mode
    # `statuses` and `scored`: all values; `running` and `awaiting` only while the run is alive, or if rows have them.
    statuses: list[Choice]
    stop_reasons: list[Choice]
    scored: list[Choice]
    tasks: list[Choice]
    tasks_beyond: bool  # True if the run has more tasks than are listed, so that others have to be found
    rewards: charts.RewardChart | None
    typed: dict[str, str]  # texts of the TYPED fields: as typed if they are wrong, else in their shortest form
    rest: str  # the terms that the column does not show, as a line
    sort: Order
    at_fault: str | None  # name of the field that is marked as wrong; None without a mistake
    find: str  # the text that the listed tasks contain; empty if the most frequent ones are listed

    @property
    def order_parameter(self) -> dict[str, str]:
        """Return the order as a parameter of an address, which the filter's line keeps."""
        return {} if self.sort == Sort.NEWEST else {"sort": self.sort.value}

    def wrong(self, field: str) -> bool:
        """Return True if this field is marked as wrong."""
        return self.at_fault == field


def make_form(
    db: Connection,
    summary: RunSummary,
    chosen: RolloutFilter,
    mistake: FilterError | None,
    pairs: Pairs,
    find: str = "",
) -> FilterForm:
    """Make the forms of a filter; `pairs` are the URL's parameters, which differ from `chosen` if they are wrong. If a
    run has too many tasks to list, those that contain `find` are offered.
    """
    facets = page_cache.facets(db, summary, chosen)
    tasks = _tasks_found(db, summary, chosen, find) if find else facets.tasks
    written = dict(pairs) if mistake else {}
    over: tuple[str, ...] = () if summary.state == RunState.RUNNING else (Status.RUNNING, Scored.AWAITING)
    statuses = {status.value: 0 for status in Status if status not in over} | dict(facets.statuses)
    scored = {scored.value: 0 for scored in Scored if scored not in over} | dict(facets.scored)
    modes = facets.modes if len(facets.modes) > 1 else []
    rewards = page_cache.figure(db, summary, queries.reward_histogram, chosen)
    at_fault = mistake.field if mistake else None
    if at_fault not in written and where.WHERE in written:  # the field is part of the line
        at_fault = where.WHERE
    return FilterForm(
        where=written.get(where.WHERE, print_where(chosen)),
        evals=[Choice(v, n, v in chosen.words("eval")) for v, n in facets.evals],
        modes=[Choice(v, n, v in chosen.words("mode")) for v, n in modes],
        statuses=[Choice(v, n, v in chosen.words("status"), words.status_word(v)) for v, n in statuses.items()],
        stop_reasons=[Choice(v, n, v in chosen.words("stop"), words.stop_reason(v)) for v, n in facets.stop_reasons],
        scored=[Choice(v, n, v in chosen.words("scored"), words.SCORED[Scored(v)]) for v, n in scored.items()],
        tasks=[Choice(v, n, v in chosen.words("task")) for v, n in tasks],
        tasks_beyond=len(facets.tasks) >= queries.MOST_TASKS,
        rewards=charts.reward_chart(rewards, chosen.range("reward")),
        typed=_list_typed(chosen) | {name: written[name] for name in TYPED if name in written},
        rest=print_where(chosen.without(*_COLUMN, *(("mode",) if modes else ()))),
        sort=chosen.sort,
        at_fault=at_fault,
        find=find,
    )


def _tasks_found(db: Connection, summary: RunSummary, chosen: RolloutFilter, find: str) -> list[tuple[str, int]]:
    """Return the chosen tasks, and the first that contain a text, each with the number of rollouts it would select."""
    every_task = queries.known_values(db, id_of(summary.run), ["task"])["task"]
    matches = [task for task in every_task if find.casefold() in task.casefold()][: queries.MOST_TASKS]
    tasks = sorted({*chosen.words("task"), *matches})
    counts = dict(page_cache.facets(db, summary, chosen.with_parts(tasks=tasks)).tasks) if tasks else {}
    return [(task, counts[task]) for task in tasks if task in counts]


def checked_filter(db: Connection, run: Run, pairs: Pairs, *, longest: float = LONGEST) -> RolloutFilter:
    """Read the filter of a URL. An order by metadata is one of texts where the newest values are no numbers. Raise
    FilterError as `parse_filter` does, if the run has no such eval, task, tag, ..., and for a line that is too long.
    """
    if (length := sum(len(value) for name, value in pairs if name == where.WHERE)) > longest:
        message = (
            f"this filter has {length:,} characters, and an address at most {longest:,}: apply it in the filter's box"
        )
        raise FilterError(where.WHERE, message)
    chosen = parse_filter([(name, in_full(db, run, value) if name == where.WHERE else value) for name, value in pairs])
    queries.check_names(db, id_of(run), chosen)
    sort = chosen.sort
    if isinstance(sort, ByColumn) and sort.field.kind == Kind.ANY and not sort.is_text:
        is_number = queries.own_columns(db, id_of(run)).get(sort.name, True)
        return replace(chosen, sort=replace(sort, is_text=not is_number))
    return chosen


def in_full(db: Connection, run: Run, line: str) -> str:
    """Return a line with the filters of the findings that it names, and full names of what the run defines. Raise
    FilterError.
    """

    def opens(finding: str) -> str:
        return diagnosed(db, run).report.opens(finding)

    return queries.in_full(db, id_of(run), where.with_findings(line, opens))


def repaired(parameters: Pairs, known_mistake: FilterError) -> RolloutFilter:
    """Return the filter of wrong parameters without the wrong parts."""
    pairs, field = parameters, known_mistake.field
    # Each round removes the parts of one mistake, until what is left can be read, or nothing more can be removed.
    while True:
        rest = [
            (name, where.without(value, field) if name == where.WHERE else value)
            for name, value in pairs
            if name != field
        ]
        if rest == pairs:
            return RolloutFilter()
        try:
            return parse_filter(rest)
        except FilterError as mistake:
            pairs, field = rest, mistake.field


def mended(pairs: Pairs, mistake: FilterError) -> Pairs | None:
    """Return the parameters with the mistake corrected; None if no correction is known."""
    if mistake.meant is None:
        return None
    return [_mend_pair(pair, mistake, mistake.meant) for pair in pairs]


def _mend_pair(pair: tuple[str, str], mistake: FilterError, correction: str) -> tuple[str, str]:
    name, value = pair
    if name == where.WHERE:
        return name, where.mended(value, mistake) or value
    if name == mistake.written:
        return correction, value
    return name, correction if name == mistake.field and value.strip() == mistake.written else value


def _list_typed(chosen: RolloutFilter) -> dict[str, str]:
    """Return the ends of the filter's ranges, as the column's text fields show them."""
    steps, rewards = chosen.range("step"), chosen.range("reward")
    since, until = chosen.range("since").low, chosen.range("until").high
    return {
        "step_min": "" if steps.low is None else print_number(steps.low),
        "step_max": "" if steps.high is None else print_number(steps.high),
        "since": "" if since is None else print_time(int(since)),
        "until": "" if until is None else print_time(int(until)),
        "reward_min": "" if rewards.low is None else ">" * rewards.above + print_number(rewards.low),
        "reward_max": "" if rewards.high is None else "<" * rewards.below + print_number(rewards.high),
    }
