"""Computes figures of all groups of a run, for the orders of the table that need them."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, NamedTuple

from sqlalchemy import func, select
from sqlalchemy.orm import Session
from sqlmodel import col

from logs_ui.recorder.queries.common import Database
from logs_ui.recorder.queries.filters.rollout_filter import RolloutFilter, Sort
from logs_ui.recorder.queries.groups import DEAD, GroupPage, Kind, groups_called, kind_of
from logs_ui.recorder.queries.rollout_list import Cursor
from logs_ui.recorder.queries.sql.matching import Marks, is_solved
from logs_ui.recorder.queries.sql.selection import Use, conditions, statistics_conditions
from logs_ui.recorder.storage.dialects import product, total, whole_sum
from logs_ui.recorder.storage.tables import EvaluationRow, StepStatistics

WINDOW = 10_000
"""The maximum number of rollouts that a survey reads, unless a single step has more."""

_Row = EvaluationRow
_id: Any = col(EvaluationRow.id)
_name, _step, _reward = col(_Row.group), col(_Row.step), col(_Row.reward)


class GroupSort(StrEnum):
    """Names orders of the table of groups. Of equal ones the newest comes first."""

    NEWEST = "newest"
    LOWEST_MEAN = "lowest-mean"
    LARGEST_STD = "largest-std"
    DEAD_FIRST = "dead-first"


class Tally(NamedTuple):
    """Holds the figures of one group. `mean` and `std` are those of `Group`; `newest` is its highest row id."""

    name: str
    step: int
    newest: int
    kind: Kind
    mean: float | None
    std: float | None


@dataclass(frozen=True)
class Survey:
    """Holds all groups under a filter, within the newest steps that have no more than WINDOW rollouts together."""

    tallies: list[Tally]  # the newest first
    step_min: int | None  # the steps that were read; None if there are none
    step_max: int | None
    is_whole: bool  # that is all that the filter selects


def survey(db: Database, run_id: int, filter: RolloutFilter, marks: Marks) -> Survey:  # noqa: A002
    """Read the newest steps, as many as WINDOW allows, in one pass over the index of steps."""
    with Session(db) as session:
        steps = _newest_steps(session, run_id, filter)
        if not steps.numbers:
            return Survey([], None, None, is_whole=True)
        rows = session.execute(_select_tallies(run_id, filter, steps, marks)).all()
    tallies = [
        Tally(name, step, newest, kind_of(low, high, scored, won), _mean(total, scored), _std(total, squares, scored))
        for name, step, newest, scored, low, high, total, squares, won in rows
    ]
    tallies.sort(key=lambda tally: -tally.newest)
    return Survey(tallies, min(steps.numbers), max(steps.numbers), steps.is_whole)


def surveyed_groups(
    db: Database, run_id: int, survey: Survey, marks: Marks, sort: GroupSort, kinds: Sequence[Kind], *,
    after: Cursor | None = None, limit: int = 50,
) -> GroupPage:  # fmt: skip
    """Return a page of a survey's groups of these kinds (of any kind if empty), in this order, from `after` on."""
    ordered = _in_order(survey, sort, kinds)
    if after is not None:
        begin = (math.inf if after.key is None else after.key, -after.id)
        ordered = [pair for pair in ordered if pair[0] > begin]
    groups = groups_called(db, run_id, [tally.name for _, tally in ordered[:limit]], marks)
    if len(ordered) <= limit:
        return GroupPage(groups, None)
    last, newest = ordered[limit - 1][0]
    return GroupPage(groups, Cursor(None if math.isinf(last) else last, -newest))


def beside_in_survey(
    db: Database, run_id: int, survey: Survey, marks: Marks, sort: GroupSort, kinds: Sequence[Kind], name: str
) -> tuple[int | None, int | None]:
    """Return ids (`Group.id`) of the groups before and after the one of this name, in the order of `surveyed_groups`;
    None at the ends, and if the group is not among them.
    """
    names = ["", *(tally.name for _, tally in _in_order(survey, sort, kinds)), ""]
    if name not in names:
        return None, None
    before, after = (names[names.index(name) + step] for step in (-1, 1))
    ids = {group.name: group.id for group in groups_called(db, run_id, [before, after], marks)}
    return ids.get(before), ids.get(after)


def _in_order(survey: Survey, sort: GroupSort, kinds: Sequence[Kind]) -> list[tuple[tuple[float, int], Tally]]:
    """Return the groups of these kinds, each with its sort key, in order."""
    key = _KEYS[sort]
    ordered = [((key(tally), -tally.newest), tally) for tally in survey.tallies if not kinds or tally.kind in kinds]
    return sorted(ordered, key=lambda pair: pair[0])


class _Steps(NamedTuple):
    """The part of a run that a survey reads: these steps, and in them rows above `first_id` (None: all rows)."""

    numbers: list[int]
    is_whole: bool
    first_id: int | None = None


def _newest_steps(session: Session, run_id: int, filter: RolloutFilter) -> _Steps:  # noqa: A002
    step = col(StepStatistics.step)
    bounds = filter.only("step")
    sums = select(step, whole_sum(col(StepStatistics.rollouts))).where(*statistics_conditions(run_id, bounds))
    steps: list[int] = []
    together = 0
    for number, rollouts in session.execute(sums.group_by(step).order_by(step.desc())):
        if steps and together + rollouts > WINDOW:
            return _Steps(steps, is_whole=False)
        steps.append(number)
        together += rollouts
    if len(steps) != 1 or together <= WINDOW:
        return _Steps(steps, is_whole=True)
    # A single step with very many rollouts: an evaluation that names no step is all step 0.
    newest = select(_id).where(col(_Row.run_id) == run_id).order_by(_id.desc()).offset(WINDOW).limit(1)
    return _Steps(steps, is_whole=False, first_id=session.scalar(newest))


def _select_tallies(run_id: int, filter: RolloutFilter, steps: _Steps, marks: Marks) -> Any:  # noqa: A002
    """Return the SELECT of (group, step, newest id, rewards, lowest, highest, sum, sum of squares, solved)."""
    low, high = min(steps.numbers), max(steps.numbers)
    of_groups = filter.only("eval", "mode", "task", "group", "step")  # all rollouts of a group have these in common
    selected = conditions(run_id, of_groups.with_parts(step_min=low, step_max=high), Use.NUMBER)
    selected += [steps.first_id < _id] if steps.first_id is not None else []
    if filter.terms != of_groups.terms:
        newest = replace(filter, sort=Sort.NEWEST).with_parts(step_min=low, step_max=high)
        matching = conditions(run_id, newest, Use.NUMBER)
        selected.append(_name.in_(select(_name).where(*matching)))
    ends = (func.min(_reward), func.max(_reward))
    sums = (func.count(_reward), *ends, total(_reward), total(product(_reward, _reward)), func.sum(is_solved(marks)))
    return select(_name, func.min(_step), func.max(_id), *sums).where(*selected).group_by(_name)


def _mean(total: float | None, scored: int) -> float | None:
    return None if total is None or not scored or not math.isfinite(total) else total / scored


def _std(total: float | None, squares: float | None, scored: int) -> float | None:
    if total is None or squares is None or scored < 2 or not math.isfinite(squares):
        return None
    return math.sqrt(max(squares - total * total / scored, 0.0) / (scored - 1))


_KEYS: dict[GroupSort, Callable[[Tally], float]] = {  # groups without a figure come last
    GroupSort.NEWEST: lambda _: 0,
    GroupSort.LOWEST_MEAN: lambda tally: math.inf if tally.mean is None else tally.mean,
    GroupSort.LARGEST_STD: lambda tally: math.inf if tally.std is None else -tally.std,
    GroupSort.DEAD_FIRST: lambda tally: (*DEAD, Kind.SAME_OUTCOME, Kind.MIXED, Kind.UNSCORED).index(tally.kind),
}
