"""What the table of rollouts is made of, whole or in part."""

from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from markupsafe import Markup
from sqlalchemy import Connection

from logs_ui.app.parts.charts import Scale
from logs_ui.app.parts.table_columns import Columns, make_columns
from logs_ui.app.parts.view import View
from logs_ui.app.web import remembered, urls
from logs_ui.app.web.open_database import id_of
from logs_ui.app.web.remembered import is_long
from logs_ui.recorder import queries
from logs_ui.recorder.queries import Annotation, Count, Cursor, RunSummary
from logs_ui.recorder.queries.filters.rollout_filter import RolloutFilter, Sort
from logs_ui.recorder.queries.search.full_text import search_state
from logs_ui.recorder.storage.tables import EvaluationRow, Run
from logs_ui.recorder.vocabulary import RunState

PAGE_SIZE = 50
_ANY_ID = str(urls.FIRST)
_FIRST_SECONDS, _MORE_SECONDS = 0.03, 0.2  # of looking through rollouts that no index leads to, until a page is shown
_MANY = 100_000  # from so many rollouts on, counting them anew every other second would be felt
_LITTLE = 256  # rollouts that the index may lack without a word of it: they come as it is looked at


@dataclass(frozen=True)
class Rows:
    """Lines of the table.

    Attributes:
        next: address of the lines that follow; None at the end.
        scale: of the reward bars: the run's own lowest and highest.
        said: stars, tags and notes by the line's id; lines without any are left out.
        chosen: the filter that they are of.
        looked_at: as a `Page` has it.
    """

    lines: list[EvaluationRow]
    columns: Columns
    next: str | None
    scale: Scale
    said: dict[int, Annotation]
    chosen: RolloutFilter
    run: str
    looked_at: int | None = None
    _links: dict[tuple[str, Any], str] = field(default_factory=dict, repr=False)
    _drawn: dict[tuple[Any, ...], Markup] = field(default_factory=dict, repr=False)

    def once(self, macro: Callable[..., Markup], *args: Hashable) -> Markup:
        """What a template's macro makes of these, drawn once: a table of 50 lines has few that differ."""
        key = (macro, *args)
        if (drawn := self._drawn.get(key)) is None:
            drawn = self._drawn[key] = macro(*args)
        return drawn

    def of_row(self, row_id: int, macro: Callable[..., Markup], *args: Hashable) -> Markup:
        """The same, where the macro has `urls.FIRST` for the line's id."""
        return Markup(str(self.once(macro, *args)).replace(_ANY_ID, str(row_id)))  # noqa: S704 - a macro's, and digits

    @property
    def is_looking(self) -> bool:
        """Whether there may be more of them among those that were not looked through yet."""
        return self.looked_at is not None and self.chosen.sort in {Sort.NEWEST, Sort.OLDEST}

    @cached_property
    def address(self) -> str:
        """Of the rollout of which `urls.FIRST` stands for the id."""
        return urls.rollout(self.run, urls.FIRST, self.chosen)

    def only(self, part: str, value: Any) -> str:
        """Address of those of the filter's rollouts that have this step, task or eval: lines share most of them."""
        if (part, value) not in self._links:
            parts = {"step_min": value, "step_max": value} if part == "step" else {part: (value,)}
            self._links[part, value] = urls.narrowed(self.run, self.chosen, **parts)
        return self._links[part, value]

    def annotation(self, row: EvaluationRow) -> Annotation:
        """Of one of the lines."""
        return self.said.get(row.id or 0, queries.NOTHING)


@dataclass(frozen=True)
class Found:
    """How many rows match, and the mean of their rewards; None where none has one.

    Attributes:
        window: in how many of the newest rollouts they were counted; None: in all.
    """

    count: Count
    mean: float | None
    window: int | None = None


@dataclass(frozen=True)
class Searched:
    """Of how much a search for words tells.

    Attributes:
        indexed, total: rollouts of the run that were searched, and that there are.
        is_building: whether the others are being indexed; else they have not come to an end.
        trouble: what keeps them from being indexed; None where nothing does.
    """

    indexed: int
    total: int
    is_building: bool
    trouble: str | None


@dataclass(frozen=True)
class Live:
    """What the table's corner says of what happens meanwhile.

    Attributes:
        newest: highest id when the page was made, 0 where it had no rows; what is above is new.
        seen: stands for the run, and for what is searched, as the page shows them.
        every: seconds between two looks; None where nothing is to come.
        searched: None where all was, or nothing is searched for.
        has_grown: whether more was searched than when the page was made: there may be more to see in between.
    """

    summary: RunSummary
    chosen: RolloutFilter
    newest: int
    new: Count
    seen: str
    every: int | None
    searched: Searched | None
    has_grown: bool


def rows_of(db: Connection, summary: RunSummary, chosen: RolloutFilter, view: View, after: Cursor | None) -> Rows:
    """A page of them."""
    run = summary.run
    if is_long(summary, chosen):
        seconds = _FIRST_SECONDS if after is None else _MORE_SECONDS
        page = queries.page_in_time(db, id_of(run), chosen, after=after, limit=PAGE_SIZE, seconds=seconds)
    else:
        page = queries.page(db, id_of(run), chosen, after=after, limit=PAGE_SIZE)
    following = urls.rollouts(run.uid, chosen, after=page.next) if page.next else None
    return lines_of(db, summary, chosen, view, page.rows, following, page.looked_at)


def lines_of(
    db: Connection,
    summary: RunSummary,
    chosen: RolloutFilter,
    view: View,
    lines: list[EvaluationRow],
    following: str | None = None,
    looked_at: int | None = None,
) -> Rows:
    """These, as the view shows them."""
    columns = make_columns(
        view.shown,
        _names(it.rewards for it in lines),
        _names(it.metrics for it in lines),
        is_evaluation=summary.is_evaluation,
        has_steps=summary.has_steps,
    )
    said = queries.annotations(db, summary.run, lines)
    return Rows(lines, columns, following, _scale(db, summary.run), said, chosen, summary.run.uid, looked_at)


def found_of(db: Connection, summary: RunSummary, chosen: RolloutFilter) -> Found:
    count = remembered.figure(db, summary, queries.count, chosen)
    is_part = any(remembered.window_of(db, summary, ask, chosen) for ask in (queries.count, queries.mean_reward))
    window = queries.WINDOW if is_part else None
    return Found(count, remembered.figure(db, summary, queries.mean_reward, chosen), window)


def live_of(
    db: Connection, run: Run, chosen: RolloutFilter, *, trouble: str | None, newest: int | None = None, seen: str = ""
) -> Live:
    """`newest` is None where the page is made only now; `trouble` is the indexer's."""
    summary = queries.run_summary(db, id_of(run))
    new = Count(0, exact=True)
    if newest is None:
        # What is above the newest of all is above the newest that matches, which may lie anywhere in a large run.
        any_row = remembered.window_of(db, summary, queries.count, chosen) is not None
        newest = remembered.figure(db, summary, queries.newest_row, RolloutFilter() if any_row else chosen)
    else:
        new = queries.new_since(db, id_of(run), chosen, newest)
    searched = _searched(db, summary, chosen, trouble)
    indexed = searched.indexed if searched else 0
    often = 2 if summary.rollouts < _MANY else 10
    every = {RunState.RUNNING.value: often, "died": 10}.get(summary.state)
    return Live(
        summary=summary,
        chosen=chosen,
        newest=newest,
        new=new,
        seen=f"{summary.run.changed}.{summary.state}.{indexed}",
        every=2 if searched and searched.is_building else every,
        searched=searched if searched and searched.indexed < searched.total else None,
        has_grown=bool(seen) and str(indexed) != seen.rpartition(".")[2],
    )


def beside(live: Live, rows: Rows) -> Live:
    """The same beside a first page: the lines that are there are not new, whenever the newest was asked for."""
    top = rows.lines[0].id or 0 if rows.lines and rows.chosen.sort == Sort.NEWEST else 0
    return replace(live, newest=max(live.newest, top))


def _searched(db: Connection, summary: RunSummary, chosen: RolloutFilter, trouble: str | None) -> Searched | None:
    if all(term.field != "text" for term in chosen.terms):
        return None
    state = search_state(db, id_of(summary.run))
    missing = summary.rollouts - state.indexed
    is_building = state.behind and missing > min(_LITTLE, summary.rollouts // 50) and trouble is None
    return Searched(state.indexed, summary.rollouts, is_building, trouble if state.behind else None)


def _names(values: Iterable[dict[str, float | None] | None]) -> list[str]:
    return sorted({name for it in values for name in it or ()})


def _scale(db: Connection, run: Run) -> Scale:
    ends = queries.reward_ends(db, id_of(run))
    return Scale.over([end for end in (ends.low, ends.high) if end is not None])
