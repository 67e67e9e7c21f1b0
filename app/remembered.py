"""Figures of a run that are remembered from page to page, for as long as nothing changes that they are made of."""

import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple, TypeVar
from weakref import WeakKeyDictionary

from sqlalchemy import Connection, Engine

from logs_ui.app.source import id_of
from logs_ui.recorder import queries
from logs_ui.recorder.filters import RolloutFilter, Sort
from logs_ui.recorder.models import Run, RunState
from logs_ui.recorder.queries import Facets, RunSummary
from logs_ui.recorder.selection import DIED_AFTER_US

_RUNS = 16  # of one database: those that were asked for last
_FIGURES = 200  # of one run
_ELSEWHERE = frozenset({"text", "tag", "is", "note"})  # fields that change while the run does not

Figure = TypeVar("Figure")


class _Known(NamedTuple):
    """What is known of one run, as it was at one moment."""

    moment: tuple[Any, ...]
    figures: dict[Any, tuple[Any]]


_known: "WeakKeyDictionary[Engine, OrderedDict[str, _Known]]" = WeakKeyDictionary()


def figure(
    db: Connection, summary: RunSummary, ask: Callable[..., Figure], chosen: RolloutFilter, **given: Any
) -> Figure:
    """`ask(db, run_id, chosen, **given)`, asked once for each state of the run.

    Args:
        db: the connection that `summary` was read by, in the same transaction.
        summary: of the run.
        ask: one of `queries`, to which the filter's order says nothing; nobody changes what it answers.
        chosen: the rollouts that are asked for.
        given: what follows from the run alone.
    """
    run = summary.run
    if not _stands_still(run, chosen):
        return ask(db, id_of(run), chosen, **given)
    figures = _figures(db.engine, summary)
    key = ask, chosen if chosen.sort == Sort.NEWEST else replace(chosen, sort=Sort.NEWEST)
    if (answer := figures.get(key)) is None:
        if len(figures) >= _FIGURES:
            figures.clear()
        answer = figures[key] = (ask(db, id_of(run), chosen, **given),)
    return answer[0]


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


def _figures(engine: Engine, summary: RunSummary) -> dict[Any, tuple[Any]]:
    """Of the run as it is now; those of a moment before are forgotten."""
    known = _known.setdefault(engine, OrderedDict())
    run = summary.run
    moment = run.id, run.changed, summary.state, run.finished
    found = known.get(run.uid)
    if found is None or found.moment != moment:
        found = known[run.uid] = _Known(moment, {})
    while len(known) > _RUNS:
        known.popitem(last=False)
    return found.figures
