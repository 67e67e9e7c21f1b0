"""Figures of a run that are remembered from page to page, for as long as nothing changes that they are made of."""

import time
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import replace
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

from sqlalchemy import Connection, Engine

from logs_ui.app.source import id_of
from logs_ui.recorder.filters import RolloutFilter, Sort
from logs_ui.recorder.models import Run, RunState
from logs_ui.recorder.queries import RunSummary
from logs_ui.recorder.selection import DIED_AFTER_US

_MOST = 500  # figures of one database; the largest are a table of 50 tasks
_ELSEWHERE = frozenset({"text", "tag", "is", "note"})  # fields that change while the run does not

Figure = TypeVar("Figure")

_known: "WeakKeyDictionary[Engine, OrderedDict[Hashable, tuple[Any]]]" = WeakKeyDictionary()


def remembered(
    db: Connection, summary: RunSummary, ask: Callable[..., Figure], chosen: RolloutFilter, *args: Hashable
) -> Figure:
    """`ask(db, run_id, chosen, *args)`, asked once for each state of the run.

    Args:
        db: the connection that `summary` was read by, in the same transaction.
        summary: of the run.
        ask: one of `queries` whose answer nobody changes, and for which the filter's order says nothing.
        chosen: the rollouts that are asked for.
        args: what else tells answers apart.
    """
    run = summary.run
    if not _stands_still(run, chosen):
        return ask(db, id_of(run), chosen, *args)
    known = _known.setdefault(db.engine, OrderedDict())
    key = (run.uid, run.changed, summary.state, run.finished, ask, _unordered(chosen), args)
    if (answer := known.get(key)) is None:
        answer = known[key] = (ask(db, id_of(run), chosen, *args),)
    while len(known) > _MOST:
        known.popitem(last=False)
    return answer[0]


def _stands_still(run: Run, chosen: RolloutFilter) -> bool:
    """Whether all that may change the answer changes the run's `changed`, or its state: a process that has been silent
    for long may be taken for dead while the answer is made, and be heard of again.
    """
    silent = time.time_ns() // 1000 - run.heartbeat
    is_clear = run.state != RunState.RUNNING or not DIED_AFTER_US // 2 < silent < 2 * DIED_AFTER_US
    return is_clear and all(term.field not in _ELSEWHERE for term in chosen.terms)


def _unordered(chosen: RolloutFilter) -> RolloutFilter:
    return chosen if chosen.sort == Sort.NEWEST else replace(chosen, sort=Sort.NEWEST)
