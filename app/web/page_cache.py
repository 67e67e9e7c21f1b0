"""A cache of a run's figures across pages, valid as long as nothing that they depend on changes."""

import math
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import replace
from typing import Any, NamedTuple, TypeVar
from weakref import WeakKeyDictionary

from sqlalchemy import Connection, Engine

from logs_ui.app.web.open_database import id_of
from logs_ui.recorder import queries
from logs_ui.recorder.queries import Facets, RunSummary, background_refresh
from logs_ui.recorder.queries.filters.fields import SEARCHED
from logs_ui.recorder.queries.filters.rollout_filter import RolloutFilter, Sort
from logs_ui.recorder.queries.sql import selection
from logs_ui.recorder.queries.sql.liveness import DIED_AFTER_US
from logs_ui.recorder.storage.tables import Run
from logs_ui.recorder.vocabulary import RunState

_RUNS = 16  # of one database: those that were asked for last
_FIGURES = 200  # of one run: those that were shown last
_ELSEWHERE = frozenset({*SEARCHED, "tag", "is", "note"})  # fields that change while the run does not
_REST = 50  # times as long as a figure of a large run took it is shown, whatever changes: 2% of the time goes into it
_LONGEST_REST = 60.0  # seconds
_LATE = 60.0  # seconds after its rest in which a figure is shown still, while it is asked again in the background
_QUICK = 0.01  # seconds: what takes no longer is asked at once

Figure = TypeVar("Figure")


class _CachedFigure(NamedTuple):
    """A figure, the state of its run, and until when it is shown after that: at all, and while it is queried again
    (`time.monotonic`).
    """

    figure: Any
    moment: tuple[Any, ...]
    until: float
    late: float


_lock = threading.Lock()  # of what is known: pages are made in several threads, and figures asked again in another
_known: "WeakKeyDictionary[Engine, OrderedDict[str, dict[Any, _CachedFigure]]]" = WeakKeyDictionary()


def figure(
    db: Connection, summary: RunSummary, ask: Callable[..., Figure], chosen: RolloutFilter, **arguments: Any
) -> Figure:
    """Return `ask(db, run_id, chosen, **arguments)`, queried once for each state of the run.

    For a large run, a slow query runs again only after fifty times its own duration, a minute at most, however often
    the run changes, and then in the background. Without a suitable index it counts only a part of the run: see
    `window_of`.

    `summary` is read with the same connection, in the same transaction. `ask` ignores the filter's order, and its
    answer must not be modified; further arguments depend on the run only.
    """
    run = summary.run
    is_large = summary.rollouts >= queries.MANY
    stands_still = _stands_still(summary, chosen)
    if not stands_still and not is_large:
        return ask(db, id_of(run), chosen, **arguments)
    key = ask, chosen if chosen.sort == Sort.NEWEST else replace(chosen, sort=Sort.NEWEST)

    def answer(db: Connection, summary: RunSummary) -> Figure:
        span = window_of(db, summary, ask, chosen)
        return ask(db, id_of(summary.run), chosen, **arguments, **({} if span is None else {"span": span}))

    return _cached_or_asked(db, summary, key, answer, stands_still=stands_still)


def rested(db: Connection, run_id: int, ask: Callable[..., Figure], *args: Hashable) -> Figure:
    """Return `ask(db, run_id, *args)`; for a large run it is queried again only after a while, like a `figure`.
    The answer must not be modified.
    """
    summary = queries.run_summary(db, run_id)
    if summary.rollouts < queries.MANY:
        return ask(db, run_id, *args)
    return _cached_or_asked(db, summary, (ask, args), lambda db, _: ask(db, run_id, *args), stands_still=True)


def window_of(
    db: Connection, summary: RunSummary, ask: Callable[..., Any], chosen: RolloutFilter
) -> selection.Span | None:
    """Return the part of the run in which a filter is counted: the newest WINDOW rollouts of a run of MANY or more if
    the query would have to read all of them; None for all.
    """
    windowed = (queries.facets, queries.reward_histogram, queries.count, queries.mean_reward)
    if ask not in windowed or summary.rollouts < queries.MANY or not selection.is_broad(chosen):
        return None
    if (ask == queries.count and not selection.has_no_order(chosen)) or (
        ask == queries.mean_reward and selection.in_statistics(chosen)
    ):
        return None
    return queries.window(db, id_of(summary.run), chosen)


def facets(db: Connection, summary: RunSummary, chosen: RolloutFilter) -> Facets:
    """Count the values of a filter; each is counted beside the whole run's values."""
    whole = figure(db, summary, queries.kinds, RolloutFilter())
    return figure(db, summary, queries.facets, chosen, whole=whole)


def knows(db: Connection, run: Run, ask: Callable[..., Any]) -> bool:
    """Return True if the query has run for this run, with any filter."""
    return any(key[0] == ask for key in list(_known.get(db.engine, OrderedDict()).get(run.uid, {})))


def _stands_still(summary: RunSummary, chosen: RolloutFilter) -> bool:
    """Return True if every change of the answer also changes the run's `changed` or state. A process that has been
    silent for long may be taken for dead while the answer is made, and come back.
    """
    is_clear = summary.run.state != RunState.RUNNING or not DIED_AFTER_US // 2 < summary.silent < 2 * DIED_AFTER_US
    return is_clear and all(term.field not in _ELSEWHERE for term in chosen.terms)


def _cached_or_asked(
    db: Connection, summary: RunSummary, key: Hashable, ask: Callable[[Connection, RunSummary], Figure], *,
    stands_still: bool,
) -> Figure:  # fmt: skip
    run = summary.run
    # `changed` counts only for a figure that stands still with its run; any other one is shown for its rest alone.
    moment = run.id, run.changed if stands_still else None, summary.state, run.finished

    def again(connection: Connection) -> None:
        now = queries.run_summary(connection, id_of(run))
        changed = now.run.changed if stands_still else None
        _ask_and_cache(connection, now, key, (run.id, changed, now.state, now.run.finished), ask)

    figures = _figures(db.engine, run)
    answer = figures.get(key)
    if answer is None:
        return _ask_and_cache(db, summary, key, moment, ask)
    # The run is in the same state, whatever else changed, and was not deleted and imported again.
    is_same_run = (answer.moment[0], *answer.moment[2:]) == (moment[0], *moment[2:])
    time_asked = time.monotonic()
    is_kept = (is_same_run and time_asked <= answer.until) or (stands_still and answer.moment == moment)
    is_late = is_same_run and time_asked <= answer.late
    if is_kept or (is_late and background_refresh.ask_later(db.engine, (run.uid, key), again)):
        with _lock:
            figures[key] = figures.pop(key, answer)  # behind all others
        before: Figure = answer.figure
        return before
    return _ask_and_cache(db, summary, key, moment, ask)


def _ask_and_cache(
    db: Connection, summary: RunSummary, key: Hashable, moment: tuple[Any, ...],
    ask: Callable[[Connection, RunSummary], Figure],
) -> Figure:  # fmt: skip
    """Query and cache; for a large run the answer is shown for a while even if the run changes."""
    figures = _figures(db.engine, summary.run)
    began = time.monotonic()
    figure = ask(db, summary)
    now = time.monotonic()
    rest = min(_REST * (now - began), _LONGEST_REST) if summary.rollouts >= queries.MANY else 0.0
    late = _LATE if rest and now - began > _QUICK else 0.0
    with _lock:
        while len(figures) >= _FIGURES and key not in figures:
            del figures[next(iter(figures))]
        figures[key] = _CachedFigure(figure, moment, now + rest, now + rest + late)
    return figure


def _figures(engine: Engine, run: Run) -> dict[Any, _CachedFigure]:
    with _lock:
        runs = _known.setdefault(engine, OrderedDict())
        figures = runs.setdefault(run.uid, {})
        while len(runs) > _RUNS:
            runs.popitem(last=False)
        return figures


def is_long(summary: RunSummary, chosen: RolloutFilter) -> bool:
    """Return True if the run is large and no index supports the filter; or no index has its order, and all that selects
    few rollouts is a range of steps that has many.
    """
    if (
        summary.rollouts < queries.MANY
        or not selection.has_no_order(chosen)
        or selection.leads_to_few(chosen.without("step"))
    ):
        return False
    steps, by_id = chosen.range("step"), {Sort.NEWEST, Sort.OLDEST}
    width = math.inf if steps.high is None else steps.high - (steps.low or 0) + 1
    return not selection.leads_to_few(chosen) or (
        chosen.sort not in by_id and width * summary.rollouts > 2 * queries.WINDOW * max(summary.steps, 1)
    )
