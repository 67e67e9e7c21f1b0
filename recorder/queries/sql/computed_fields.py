"""Fields of a filter that are computed from columns of a rollout or its group: SQL of what `diagnosis/` computes."""

from typing import Any

from sqlalchemy import ColumnElement, and_, case, func, null, or_, select, tuple_
from sqlmodel import col

from logs_ui.recorder.queries.filters.rollout_filter import RolloutFilter
from logs_ui.recorder.queries.filters.terms import Value
from logs_ui.recorder.queries.sql.matching import in_range, is_value
from logs_ui.recorder.storage.dialects import spread
from logs_ui.recorder.storage.tables import EvaluationRow
from logs_ui.recorder.vocabulary import BROKEN, LOOP, REPEATS, LossCause, Status, StopReason

_Row = EvaluationRow


def cause() -> ColumnElement[Any]:
    """Return an expression for the LossCause, also of rollouts that lost nothing; NULL if none is known yet. It agrees
    with `diagnosis.waterfall.causes`.
    """
    looping = or_(col(_Row.action_tail) >= LOOP, col(_Row.repeats) > REPEATS)
    stop, status = col(_Row.stop_reason), col(_Row.status)
    return case(
        (or_(status == Status.RUNNING, and_(col(_Row.scored).is_(None), status != Status.ERROR)), null()),
        (
            or_(stop.in_([reason.value for reason in BROKEN]), status.in_((Status.ERROR, Status.ABORTED))),
            LossCause.INFRASTRUCTURE,
        ),
        (col(_Row.reward).is_(None), LossCause.INVALID_REWARD),
        (stop == StopReason.LENGTH, LossCause.TRUNCATION),
        (or_(col(_Row.parse_tail) > 0, stop == StopReason.NO_ACTION), LossCause.PARSE_FAILURE),
        (or_(stop == StopReason.TURN_LIMIT, and_(stop == StopReason.NOT_RECORDED, looping)), LossCause.LOOP),
        (col(_Row.env_steps) == 0, LossCause.NEVER_SUBMITTED),
        else_=LossCause.WRONG_ANSWER,
    )


def stopped_for(reason: str) -> ColumnElement[Any]:
    """Return an expression that is 1 if a rollout stopped for the reason, else 0; NULL if it has not ended."""
    return case((and_(_has_ended(), col(_Row.stop_reason) == reason), 1), (_has_ended(), 0))


def failure() -> ColumnElement[Any]:
    """Return an expression that is 1 if a rollout ended with an error, else 0; NULL if it has not ended."""
    return case((col(_Row.status) == Status.ERROR, 1), (_has_ended(), 0))


def _has_ended() -> ColumnElement[bool]:
    return col(_Row.status).in_((Status.OK.value, Status.ERROR.value))


def lag() -> ColumnElement[Any]:
    """Return an expression for the policy versions between making and training: see `diagnosis.checks.policy.lag`."""
    steps = col(_Row.step) - col(_Row.policy_step) - 1
    return func.coalesce(col(_Row.staleness), case((steps > 0, steps), else_=0))


_OF_ROW = {"cause": cause, "lag": lag}
FIELDS = frozenset({*_OF_ROW, "family", "spread", "twins", "prompts"})


def matches(
    name: str, value: Value, run_id: int, filter: RolloutFilter, span: tuple[int, int] | None = None  # noqa: A002
) -> ColumnElement[bool]:  # fmt: skip
    """Return a condition on one of FIELDS. A group has a single step, so that only groups within the filter's steps are
    read; with a span of ids, only groups that have a row in it.
    """
    if name == "family":  # LIKE would ignore case in SQLite
        return func.substr(col(_Row.task), 1, len(str(value))) == str(value)
    if name in _OF_ROW:
        return is_value(_OF_ROW[name](), value)
    ended, steps = col(_Row.status) != Status.RUNNING, in_range(col(_Row.step), filter.range("step"))
    rows = [col(_Row.run_id) == run_id, ended, steps]
    if span is not None:
        groups = select(col(_Row.group)).where(col(_Row.id).between(*span), col(_Row.run_id) + 0 == run_id)
        rows = [col(_Row.group).in_(groups), col(_Row.run_id) + 0 == run_id, *rows[1:]]
    group, reward, completion = col(_Row.group), col(_Row.reward), col(_Row.completion_key)
    if name == "twins":
        rows.append(completion.is_not(None))
        return _in_groups((group, completion), is_value(func.count() - 1, value), rows)
    if name == "spread":
        return _in_groups((group,), is_value(case((func.count(reward) > 1, spread(reward))), value), rows)
    return _in_groups((group,), is_value(func.count(col(_Row.prompt_key).distinct()), value), rows)


def _in_groups(
    key: tuple[Any, ...], condition: ColumnElement[bool], rows: list[ColumnElement[bool]]
) -> ColumnElement[bool]:
    """Return a condition on a rollout: `condition` is true for all `rows` with the same `key` taken together."""
    groups = select(*key).where(*rows).group_by(*key).having(condition)
    return (key[0] if len(key) == 1 else tuple_(*key)).in_(groups)
