"""Builds the table of rollouts and its live corner."""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

from markupsafe import Markup
from sqlalchemy import Connection, Engine

from logs_ui.app.parts.charts import Scale
from logs_ui.app.parts.table_columns import DEFAULT, WITH_ANSWERS, Column, Columns, make_columns
from logs_ui.app.parts.view import View
from logs_ui.app.web import page_cache, urls
from logs_ui.app.web.open_database import id_of
from logs_ui.app.web.page_cache import is_long
from logs_ui.recorder import queries
from logs_ui.recorder.analysis.diagnose import settings_of
from logs_ui.recorder.analysis.rollout_answers import read_answers
from logs_ui.recorder.diagnosis.answers import Answer
from logs_ui.recorder.queries import Annotation, Count, Cursor, RunSummary
from logs_ui.recorder.queries.filters.fields import SEARCHED
from logs_ui.recorder.queries.filters.rollout_filter import RolloutFilter, Sort
from logs_ui.recorder.queries.search.full_text import search_state
from logs_ui.recorder.queries.search.hits import Hit, hits, searches
from logs_ui.recorder.queries.sql import selection
from logs_ui.recorder.settings import Settings
from logs_ui.recorder.storage.tables import EvaluationRow, Run
from logs_ui.recorder.vocabulary import RunState

PAGE_SIZE = 50
_MOST = 10 * PAGE_SIZE  # rows from the top to the one that a reader comes back to
_ANY_ID = str(urls.FIRST)
_FIRST_SECONDS, _MORE_SECONDS = 0.03, 0.2  # of looking through rollouts that no index leads to, until a page is shown
_MANY = 100_000  # from so many rollouts on, counting them anew every other second would be felt
_EVALS = 8  # of which the first rollouts tell if a run has references
_LITTLE = 256  # rollouts that the index may lack without a word of it: they come as it is looked at

_with_references: "WeakKeyDictionary[Engine, dict[Hashable, bool]]" = WeakKeyDictionary()


@dataclass(frozen=True)
class Rows:
    """Holds lines of the table.

    Attributes:
        next: address of the lines that follow; None at the end.
        scale: scale of the reward bars: the run's own lowest and highest.
        annotations: stars, tags and notes by row id; rows without any are left out.
        looked_at: see `queries.Page`.
        current_id: id of the row that the reader comes back to; 0 for none.
        hits: places of the searched words by row id; None if nothing is searched for.
        answers: references and final answers by row id, if their columns are shown, of those that were read in time.
    """

    lines: list[EvaluationRow]
    columns: Columns
    next: str | None
    scale: Scale
    annotations: dict[int, Annotation]
    chosen: RolloutFilter
    run: str
    looked_at: int | None = None
    current_id: int = 0
    hits: dict[int, Hit] | None = None
    answers: dict[int, Answer] = field(default_factory=dict)
    _links: dict[tuple[str, Any], str] = field(default_factory=dict, repr=False)
    _drawn: dict[tuple[Any, ...], Markup] = field(default_factory=dict, repr=False)

    def draw(self, macro: Callable[..., Markup], *args: Hashable) -> Markup:
        """Draw a template macro once for each combination of arguments: the 50 lines of a table share most cells."""
        key = (macro, *args)
        if (drawn := self._drawn.get(key)) is None:
            drawn = self._drawn[key] = macro(*args)
        return drawn

    def draw_for_row(self, row_id: int, macro: Callable[..., Markup], *args: Hashable) -> Markup:
        """Draw a macro once and put the row's id in place of `urls.FIRST`."""
        return Markup(str(self.draw(macro, *args)).replace(_ANY_ID, str(row_id)))  # noqa: S704 - a macro's, and digits

    @property
    def is_looking(self) -> bool:
        """True if rollouts that were not scanned yet may match."""
        return self.looked_at is not None and self.chosen.sort in {Sort.NEWEST, Sort.OLDEST}

    @cached_property
    def address(self) -> str:
        """Return the address of a rollout, with `urls.FIRST` in place of its id."""
        return urls.rollout(self.run, urls.FIRST, self.chosen)

    def narrow(self, part: str, value: Any) -> str:
        """Return the address of the filter's rollouts with this step or task, computed once for its lines."""
        if (part, value) not in self._links:
            parts = {"step_min": value, "step_max": value} if part == "step" else {part: (value,)}
            self._links[part, value] = urls.narrowed(self.run, self.chosen, **parts)
        return self._links[part, value]

    def title(self, column: Column, evals: Sequence[str]) -> str:
        """Return the head of a column in a run of these evals."""
        if column.key == "preview" and self.hits is not None:
            return "Place of the searched words"
        return "Task and eval" if column.key == "task" and len(evals) > 1 else column.title

    def annotation(self, row: EvaluationRow) -> Annotation:
        """Return stars, tags and note of a line."""
        return self.annotations.get(row.id or 0, queries.NOTHING)


@dataclass(frozen=True)
class FoundRollouts:
    """Holds the number of matching rows, and their mean reward."""

    count: Count
    mean: float | None  # None without a reward
    window: int | None = None  # number of newest rollouts in which they were counted; None if all were


class SearchCoverage(NamedTuple):
    """Describes the coverage of a text search."""

    # `indexed` and `total`: number of the run's rollouts that are indexed, and of all.
    indexed: int
    total: int
    is_building: bool  # True if the others are being indexed; otherwise they have not ended yet
    trouble: str | None  # the error that keeps them from being indexed; None without one


@dataclass(frozen=True)
class TableLive:
    """Fills the live corner of the table."""

    summary: RunSummary
    chosen: RolloutFilter
    newest: int  # highest id when the page was made, 0 without rows; higher ids are new
    new_count: Count
    version: str  # version of the run and of the index that the page shows
    poll_seconds: int | None  # seconds between two polls; None if nothing is to come
    coverage: SearchCoverage | None  # None if all rollouts were searched, or nothing is searched for
    has_grown: bool  # True if more rollouts were searched than when the page was made


def place_of(db: Connection, summary: RunSummary, chosen: RolloutFilter, row_id: int) -> tuple[Cursor | None, int]:
    """Return the position from which a page has this row (None: the top), and the page's number of rows. It begins at
    the top if the row is not far from it, else at the row itself.
    """
    run_id = id_of(summary.run)
    row = next(iter(queries.rows_called(db, run_id, [row_id])), None)
    if row is None:
        return None, PAGE_SIZE
    if not is_long(summary, chosen):
        place = queries.neighbours(db, run_id, chosen, row, total=Count(0, exact=True)).position
        if place and place <= _MOST:
            return None, (place // PAGE_SIZE + 2) * PAGE_SIZE  # a window's height of rows below it, too
    key, _ = selection.place_of(db, row, chosen.sort)
    return Cursor(key, row_id - 1 if chosen.sort == Sort.OLDEST else row_id + 1), PAGE_SIZE


def rows_of(
    db: Connection, summary: RunSummary, chosen: RolloutFilter, view: View, after: Cursor | None, size: int = PAGE_SIZE
) -> Rows:
    """Return a page of rows."""
    run = summary.run
    if is_long(summary, chosen):
        seconds = _FIRST_SECONDS if after is None else _MORE_SECONDS
        page = queries.page_in_time(db, id_of(run), chosen, after=after, limit=size, seconds=seconds)
    else:
        page = queries.page(db, id_of(run), chosen, after=after, limit=size)
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
    """Return these rows as lines of the table, with a column of places if words are searched for."""
    is_search, column_names, run = bool(searches(chosen)), view.column_keys, summary.run
    settings = settings_of(db, run)
    columns = make_columns(
        (*column_names, "preview") if is_search and column_names and "preview" not in column_names else column_names,
        lines,
        is_evaluation=summary.is_evaluation,
        has_steps=summary.has_steps,
        usual=WITH_ANSWERS if not is_search and _has_references(db, summary, settings) else DEFAULT,
    )
    answer_lines = lines if columns.has("reference") or columns.has("answer") else []
    annotations, ends = queries.annotations(db, summary.run, lines), queries.reward_ends(db, id_of(summary.run))
    hits_by_id = hits(db, chosen, [row.id or 0 for row in lines]) if is_search else None
    answers = read_answers(db, answer_lines, settings)
    return Rows(
        lines, columns, following, Scale.over(ends), annotations, chosen, run.uid, looked_at, 0, hits_by_id, answers
    )


def _has_references(db: Connection, summary: RunSummary, settings: Settings) -> bool:
    """Return True if the first rollouts of an eval have references. They are read once: those that ended will not
    change.
    """
    cache, key = _with_references.setdefault(db.engine, {}), (summary.run.uid, str(settings))
    if key not in cache:
        run_id, evals = id_of(summary.run), summary.eval_names[:_EVALS]
        filters = [RolloutFilter(evals=(name,), sort=Sort.OLDEST) for name in evals]
        pages = [
            queries.page_in_time(db, run_id, eval_filter, after=None, limit=2, seconds=_FIRST_SECONDS)
            for eval_filter in filters
        ]
        answers = read_answers(db, [row for page in pages for row in page.rows], settings).values()
        if not answers:
            return False
        cache[key] = any(answer.reference for answer in answers)
    return cache[key]


def count_matches(db: Connection, summary: RunSummary, chosen: RolloutFilter) -> FoundRollouts:
    count = page_cache.figure(db, summary, queries.count, chosen)
    is_part = any(page_cache.window_of(db, summary, ask, chosen) for ask in (queries.count, queries.mean_reward))
    window = queries.WINDOW if is_part else None
    return FoundRollouts(count, page_cache.figure(db, summary, queries.mean_reward, chosen), window)


def live_of(
    db: Connection,
    run: Run,
    chosen: RolloutFilter,
    *,
    trouble: str | None,
    newest: int | None = None,
    seen_version: str = "",
) -> TableLive:
    """Build the live corner. `newest` is None if the page is being made now; `trouble` is the indexer's."""
    summary = queries.run_summary(db, id_of(run))
    new_count = Count(0, exact=True)
    if newest is None:
        # What is above the newest of all is above the newest that matches, which may lie anywhere in a large run.
        has_window = page_cache.window_of(db, summary, queries.count, chosen) is not None
        newest = page_cache.figure(db, summary, queries.newest_row, RolloutFilter() if has_window else chosen)
    else:
        new_count = queries.new_since(db, id_of(run), chosen, newest)
    coverage = _search_coverage(db, summary, chosen, trouble)
    indexed = coverage.indexed if coverage else 0
    running_seconds = 2 if summary.rollouts < _MANY else 10
    poll_seconds = {RunState.RUNNING.value: running_seconds, "died": 10}.get(summary.state)
    return TableLive(
        summary=summary,
        chosen=chosen,
        newest=newest,
        new_count=new_count,
        version=f"{summary.run.changed}.{summary.state}.{indexed}",
        poll_seconds=2 if coverage and coverage.is_building else poll_seconds,
        coverage=coverage if coverage and coverage.indexed < coverage.total else None,
        has_grown=bool(seen_version) and str(indexed) != seen_version.rpartition(".")[2],
    )


def adapt_corner(live: TableLive, rows: Rows) -> TableLive:
    """Adapt the corner to a first page: rows that are shown are not new, even if they came after `newest` was read."""
    top = rows.lines[0].id or 0 if rows.lines and rows.chosen.sort == Sort.NEWEST else 0
    return replace(live, newest=max(live.newest, top))


def _search_coverage(
    db: Connection, summary: RunSummary, chosen: RolloutFilter, trouble: str | None
) -> SearchCoverage | None:
    if all(term.field not in SEARCHED for term in chosen.terms):
        return None
    state = search_state(db, id_of(summary.run))
    missing = summary.rollouts - state.indexed
    is_building = state.behind and missing > min(_LITTLE, summary.rollouts // 50) and trouble is None
    return SearchCoverage(state.indexed, summary.rollouts, is_building, trouble if state.behind else None)
