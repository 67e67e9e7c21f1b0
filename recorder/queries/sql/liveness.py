"""Decides which runs died, and which of their rollouts are lost: nobody is left to record either."""

from sqlalchemy import ColumnElement, and_, case, func, literal, select
from sqlmodel import col

from logs_ui.recorder.storage.clock import now_us
from logs_ui.recorder.storage.dialects import server_clock
from logs_ui.recorder.storage.tables import Run
from logs_ui.recorder.vocabulary import RunState

DIED_AFTER_US = 60_000_000
"""A running run without a heartbeat for this long counts as died; the writer sends one every 5 s."""

DIED = "died"
"""The state of a run that died, beside those of `RunState`."""

_NONE, _ALL = -1, 2**63 - 1  # limits of `created` that no rollout, or every one, is below


def state_of(run: Run, now: int) -> str:
    """Return a RunState, or `died` if the last heartbeat is too long before `now`: see `clock.now`."""
    died = run.state == RunState.RUNNING and now - run.heartbeat > DIED_AFTER_US
    return DIED if died else run.state


def state_column(now: int) -> ColumnElement[str]:
    """Return what `state_of` returns, in SQL."""
    silent = and_(col(Run.state) == RunState.RUNNING, col(Run.heartbeat) < now - DIED_AFTER_US)
    return case((silent, literal(DIED, literal_execute=True)), else_=col(Run.state))


def is_heard_of(run_id: int) -> tuple[ColumnElement[bool], ColumnElement[bool]]:
    """Return the conditions on a run that it sent a heartbeat not too long ago."""
    return col(Run.id) == run_id, col(Run.heartbeat) >= server_clock(now_us()) - DIED_AFTER_US


def lost_until(run_id: int) -> ColumnElement[int]:
    """Return a time in µs since the epoch: rollouts that are stored as running and began before it are lost, since
    their process died. Readers see them as aborted; no process is left to record that.

    In a run whose heartbeat stopped all running rollouts are lost; in a live run none; in a run that ended those that
    began before its end, since evaluations that follow a training belong to its run.
    """
    under_way = col(Run.state) == RunState.RUNNING
    until = select(case((under_way, _NONE), else_=col(Run.finished))).where(*is_heard_of(run_id)).scalar_subquery()
    return func.coalesce(until, _ALL)
