"""Finds runs, and summarizes them."""

import time
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple
from weakref import WeakKeyDictionary

from sqlalchemy import Connection, Engine, func, select
from sqlalchemy.orm import Session
from sqlmodel import col

from logs_ui.recorder.errors import RunNotFoundError
from logs_ui.recorder.queries.background_refresh import ask_later
from logs_ui.recorder.queries.common import Database
from logs_ui.recorder.queries.filters.rollout_filter import nearest
from logs_ui.recorder.queries.run_totals import Totals, totals
from logs_ui.recorder.queries.sql.liveness import state_of
from logs_ui.recorder.storage import clock
from logs_ui.recorder.storage.tables import Run, StepStatistics
from logs_ui.recorder.vocabulary import Mode, RunState

_REMEMBERED = 4_000  # runs
_MANY_STEPS = 1_000  # adding them up takes 10 ms or so of the processor, on every page and poll
_REST = 50  # totals are kept for this many times as long as they took to add up: see `app/web/page_cache.py`
_LATE = 60.0  # seconds for which they are then shown while they are added up again


class _CachedTotals(NamedTuple):
    """Cached totals of a run, with the run's `changed` at that time. Times are those of `time.monotonic`."""

    uid: str
    changed: int
    state: str
    until: float  # totals are kept until then
    late: float  # and shown until then while they are added up again
    totals: Totals


_cached_totals: "WeakKeyDictionary[Engine, OrderedDict[int, _CachedTotals]]" = WeakKeyDictionary()


@dataclass(frozen=True, kw_only=True)
class RunSummary(Totals):
    """Describes a run with its figures."""

    run: Run
    state: str  # a RunState, or `died`
    silent: int  # µs since its last heartbeat, when this was read

    @property
    def is_alive(self) -> bool:
        """Return True if more may come: it runs, or its heartbeat stopped without a recorded end."""
        return self.state in {RunState.RUNNING, "died"}

    @property
    def has_steps(self) -> bool:
        """Return False for an evaluation whose rollouts are all of step 0, because it names no steps."""
        return self.steps > 0 or not self.is_evaluation


def all_runs(db: Database, *, now: int | None = None) -> list[RunSummary]:
    """Return all runs, newest first; heartbeats are compared with `now` (µs since the epoch), or `clock.now`."""
    with Session(db) as session:
        now = clock.now(session.connection()) if now is None else now
        runs = session.scalars(select(Run).order_by(col(Run.created).desc(), col(Run.id).desc())).all()
        by_run = totals(session)
    return [summary(run, by_run.get(run.id or 0, Totals()), now) for run in runs]


def mode_of(db: Database, run_id: int) -> Mode:
    """Return the mode that a run is shown by: `train` if it has rollouts of a training."""
    of_training = (col(StepStatistics.run_id) == run_id, col(StepStatistics.mode) == Mode.TRAIN)
    with Session(db) as session:
        step = session.scalar(select(col(StepStatistics.step)).where(*of_training).limit(1))
    return Mode.EVAL if step is None else Mode.TRAIN


def find_run(db: Database, run_reference: str) -> Run:
    """Find a run by uid, `latest`, a name (the newest run of that name), or a unique prefix of a uid, in that order.
    Raise RunNotFoundError, which names the nearest, if there is none, or several have the prefix.
    """
    newest = (col(Run.created).desc(), col(Run.id).desc())
    runs = select(Run).order_by(*newest)
    latest = [runs] if run_reference == "latest" else []
    begins = func.substr(col(Run.uid), 1, len(run_reference)) == run_reference
    with Session(db) as session:
        for query in (runs.where(col(Run.uid) == run_reference), *latest, runs.where(col(Run.name) == run_reference)):
            if (run := session.scalars(query.limit(1)).first()) is not None:
                return run
        by_prefix = session.scalars(runs.where(begins)).all() if run_reference else []
        if len(by_prefix) == 1:
            return by_prefix[0]
        pairs = session.execute(select(col(Run.uid), col(Run.name)).order_by(*newest).limit(1000)).all()
    raise RunNotFoundError(
        _explain_lack(run_reference, [run.uid for run in by_prefix], [tuple(names) for names in pairs])
    )


def run_summary(db: Database, run_id: int, *, now: int | None = None) -> RunSummary:
    """Return the summary of one run: see `all_runs`. Raise RunNotFoundError without such a run."""
    with Session(db) as session:
        now = clock.now(session.connection()) if now is None else now
        run = session.get(Run, run_id)
        by_run = known_totals(session, [run] if run else [])
    if run is None:
        raise RunNotFoundError(f"There is no run with the number {run_id}.")
    return summary(run, by_run.get(run_id, Totals()), now)


def known_totals(session: Session, runs: Sequence[Run]) -> dict[int, Totals]:
    """Return totals of runs, cached until the run changes: adding up the steps of 50 long runs takes longer than all
    else on their page. Totals of a run with very many steps are kept for a while even if it changes, and then refreshed
    in the background.
    """
    engine = session.connection().engine
    cache = _cached_totals.setdefault(engine, OrderedDict())
    by_run: dict[int, Totals] = {}
    for run in runs:
        entry = cache.get(run.id or 0)
        if entry is None or (entry.uid, entry.state) != (run.uid, run.state):
            continue
        now = time.monotonic()
        is_kept = entry.changed == run.changed or now < entry.until
        if is_kept or (now < entry.late and ask_later(engine, ("totals", run.id), partial(_add_up, run.id or 0))):
            by_run[run.id or 0] = entry.totals
    return by_run | _sum_up(session, [run for run in runs if run.id not in by_run])


def _add_up(run_id: int, connection: Connection) -> None:
    with Session(connection) as session:
        run = session.get(Run, run_id)
        _sum_up(session, [run] if run else [])


def _sum_up(session: Session, runs: Sequence[Run]) -> dict[int, Totals]:
    """Add up totals, and cache them."""
    if not runs:
        return {}
    cache = _cached_totals.setdefault(session.connection().engine, OrderedDict())
    began = time.monotonic()
    new = totals(session, [run.id or 0 for run in runs])
    now = time.monotonic()
    for run in runs:
        of_run = new.get(run.id or 0, Totals())
        is_long = of_run.steps > _MANY_STEPS
        rest_end = now + _REST * (now - began) if is_long else now
        cache[run.id or 0] = _CachedTotals(
            run.uid, run.changed, run.state, rest_end, rest_end + _LATE * is_long, of_run
        )
    while len(cache) > _REMEMBERED:
        cache.popitem(last=False)
    return new


def summary(run: Run, of_run: Totals, now: int) -> RunSummary:
    """Return the summary of a run whose totals are known; for `now` see `clock.now`."""
    if of_run.is_evaluation and run.max_steps is not None:  # a training that is evaluated before its first step
        of_run = replace(of_run, is_evaluation=False, reward=None, reward_curve=())
    truncated = None if run.lacks_figure("truncated") else of_run.truncated
    of_run = replace(of_run, truncated=truncated, errors=None if run.lacks_figure("errors") else of_run.errors)
    return RunSummary(run=run, state=state_of(run, now), silent=now - run.heartbeat, **vars(of_run))


def _explain_lack(name: str, same_prefix: list[str], runs: list[tuple[str, ...]]) -> str:
    if not runs:
        return "No run is recorded in this database yet."
    if same_prefix:
        return f"Several runs begin with {name!r}: {', '.join(same_prefix[:6])}. Give more of one."
    near = nearest(name, [word for names in runs for word in names])
    hint = f"did you mean {near!r}?" if near else f"the newest is {runs[0][0]!r}, which `latest` also finds."
    return f"There is no run {name!r}: {hint}"
