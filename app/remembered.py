"""Figures of a run that are remembered from page to page, for as long as nothing changes that they are made of."""

import time
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import replace
from typing import Any, NamedTuple, TypeVar
from weakref import WeakKeyDictionary

from sqlalchemy import Connection, Engine

from logs_ui.app.source import id_of
from logs_ui.recorder import queries
from logs_ui.recorder.filters import RolloutFilter, Sort
from logs_ui.recorder.models import Run, RunState
from logs_ui.recorder.queries import Facets, RunSummary
from logs_ui.recorder.selection import DIED_AFTER_US, Span, has_no_order, in_statistics, is_broad

_RUNS = 16  # of one database: those that were asked for last
_FIGURES = 200  # of one run
_ELSEWHERE = frozenset({"text", "tag", "is", "note"})  # fields that change while the run does not
_REST = 50  # times as long as a figure of a large run took it is shown, whatever changes: 2% of the time goes into it
_LONGEST_REST = 60.0  # seconds

Figure = TypeVar("Figure")


class _Answer(NamedTuple):
    """A figure, the moment of its run that it is of, and until when it is shown after that: of `time.monotonic`."""

    figure: Any
    moment: tuple[Any, ...]
    until: float


_known: "WeakKeyDictionary[Engine, OrderedDict[str, dict[Any, _Answer]]]" = WeakKeyDictionary()


def figure(
    db: Connection, summary: RunSummary, ask: Callable[..., Figure], chosen: RolloutFilter, **given: Any
) -> Figure:
    """`ask(db, run_id, chosen, **given)`, asked once for each state of the run. Of a large one, what takes long is
    asked again only after fifty times as long, a minute at most, however often the run changes meanwhile; and what no
    index has is counted in a part of it: see `window_of`.

    Args:
        db: the connection that `summary` was read by, in the same transaction.
        summary: of the run.
        ask: one of `queries`, to which the filter's order says nothing; nobody changes what it answers.
        chosen: the rollouts that are asked for.
        given: what follows from the run alone.
    """
    run = summary.run
    is_large = summary.rollouts >= queries.LARGE
    stands_still = _stands_still(run, chosen)
    if not stands_still and not is_large:
        return ask(db, id_of(run), chosen, **given)
    moment = run.id, run.changed if stands_still else None, summary.state, run.finished
    key = ask, chosen if chosen.sort == Sort.NEWEST else replace(chosen, sort=Sort.NEWEST)
    answer = _figures(db.engine, run).get(key)
    if answer is not None and (_rests(answer, moment) or (stands_still and answer.moment == moment)):
        before: Figure = answer.figure
        return before
    if (span := window_of(db, summary, ask, chosen)) is not None:
        given["span"] = span
    return _asked(db, summary, key, moment, lambda: ask(db, id_of(run), chosen, **given))


def rested(db: Connection, run_id: int, ask: Callable[..., Figure], *args: Hashable) -> Figure:
    """`ask(db, run_id, *args)`; of a large run asked again only after a while, as a `figure` is.

    Args:
        db: see `figure`.
        run_id: of the run.
        ask: one of `queries`; nobody changes what it answers.
        args: of it.
    """
    summary = queries.run_summary(db, run_id)
    if summary.rollouts < queries.LARGE:
        return ask(db, run_id, *args)
    run, key = summary.run, (ask, args)
    moment = run.id, run.changed, summary.state, run.finished
    answer = _figures(db.engine, run).get(key)
    if answer is not None and (_rests(answer, moment) or answer.moment == moment):
        before: Figure = answer.figure
        return before
    return _asked(db, summary, key, moment, lambda: ask(db, run_id, *args))


def window_of(db: Connection, summary: RunSummary, ask: Callable[..., Any], chosen: RolloutFilter) -> Span | None:
    """Where to count what a filter leaves: the newest WINDOW rollouts of a run of LARGE or more, where all of them
    would have to be looked at; None: anywhere.
    """
    windowed = (queries.facets, queries.reward_histogram, queries.count, queries.mean_reward)
    if ask not in windowed or summary.rollouts < queries.LARGE or not is_broad(chosen):
        return None
    if (ask == queries.count and not has_no_order(chosen)) or (ask == queries.mean_reward and in_statistics(chosen)):
        return None
    return queries.window(db, id_of(summary.run), chosen)


def facets(db: Connection, summary: RunSummary, chosen: RolloutFilter) -> Facets:
    """Under a filter, of which each is counted beside the whole run's."""
    whole = figure(db, summary, queries.kinds, RolloutFilter())
    return figure(db, summary, queries.facets, chosen, whole=whole)


def _stands_still(run: Run, chosen: RolloutFilter) -> bool:
    """Whether all that may change the answer changes the run's `changed`, or its state: a process that has been silent
    for long may be taken for dead while the answer is made, and be heard of again.
    """
    silent = time.time_ns() // 1000 - run.heartbeat
    is_clear = run.state != RunState.RUNNING or not DIED_AFTER_US // 2 < silent < 2 * DIED_AFTER_US
    return is_clear and all(term.field not in _ELSEWHERE for term in chosen.terms)


def _asked(db: Connection, summary: RunSummary, key: Any, moment: tuple[Any, ...], ask: Callable[[], Figure]) -> Figure:
    """Remembered; of a large run for a while, even if it changes."""
    figures = _figures(db.engine, summary.run)
    began = time.monotonic()
    found = ask()
    now = time.monotonic()
    if len(figures) >= _FIGURES:
        figures.clear()
    rest = min(_REST * (now - began), _LONGEST_REST) if summary.rollouts >= queries.LARGE else 0.0
    figures[key] = _Answer(found, moment, now + rest)
    return found


def _rests(answer: _Answer, moment: tuple[Any, ...]) -> bool:
    """Whether it took so long that it is shown for a while, unless the run has come to another state."""
    return time.monotonic() <= answer.until and answer.moment[2:] == moment[2:]


def _figures(engine: Engine, run: Run) -> dict[Any, _Answer]:
    known = _known.setdefault(engine, OrderedDict())
    found = known.setdefault(run.uid, {})
    while len(known) > _RUNS:
        known.popitem(last=False)
    return found
