"""Sums one step's rollouts in SQL: the writer stores the sums, and readers compute what is not stored yet."""

from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlmodel import col

from logs_ui.recorder.storage.dialects import (
    json_array,
    json_each,
    json_object,
    number,
    product,
    spread,
    total,
    whole_sum,
)
from logs_ui.recorder.storage.tables import EvaluationRow
from logs_ui.recorder.vocabulary import Status, StopReason

OF_STEP = ("mode", "eval_name", "step")

_MEASURES = {"tokens": "completion_tokens", "turns": "turns", "seconds": "seconds"}  # by their columns
_DEAD = 1e-6  # rewards of a group no further apart than this give no advantage
_LARGEST = 1.7e308  # the largest float: JSON has no infinity


class RewardSums(NamedTuple):
    """Sums up the rewards of one function over a step's rollouts."""

    number: int  # rollouts for which it returned a number
    total: float | None  # the sum of those numbers
    # The sum of the numbers times their weights (1 if not recorded), over the rollouts that have a reward. Added up
    # over all functions and divided by these rollouts, it is the mean reward.
    counted: float | None


def sums() -> sa.Select[Any]:
    """Select the columns of StepStatistics for the step of the parameters `of_run`, `of_mode`, `of_eval_name` and
    `of_step`; no row if it has no rollouts. One covering index contains all that it reads.
    """
    row = EvaluationRow
    key: list[Any] = [col(row.run_id), *(col(getattr(row, name)) for name in OF_STEP)]
    return (
        sa.select(
            *key,
            sa.func.count().label("rollouts"),
            sa.func.count(col(row.reward)).label("scored"),
            sa.func.coalesce(total(col(row.reward)), 0.0).label("reward_sum"),
            whole_sum(sa.case((col(row.status) == Status.ERROR, 1), else_=0)).label("errors"),
            whole_sum(sa.case((col(row.stop_reason) == StopReason.LENGTH, 1), else_=0)).label("truncated"),
            sa.true().label("stale"),
        )
        .where(*_of_step())
        .group_by(*key)
    )


def details() -> sa.Select[Any]:
    """Select the columns of StepDetails except `made`, with the parameters of `sums`; always one row."""
    row = EvaluationRow
    names = ("status", "stop_reason", "reward", "group", "rewards", "reward_weights", *_MEASURES.values())
    rows = sa.select(*(col(getattr(row, name)) for name in names)).where(*_of_step()).cte("rows")
    measures, quantiles, groups = (part.subquery() for part in (_measures(rows), _quantiles(rows), _groups(rows)))
    types = {"run": sa.BigInteger, "mode": sa.String, "eval_name": sa.String, "step": sa.BigInteger}
    of_step: dict[str, Any] = {name: sa.bindparam(f"of_{name}", type_=of_type) for name, of_type in types.items()}
    key: list[Any] = [of_step.pop("run").label("run_id"), *(value.label(name) for name, value in of_step.items())]
    counts = [
        sa.type_coerce(_counts(rows, "status"), sa.JSON).label("statuses"),
        sa.type_coerce(_counts(rows, "stop_reason"), sa.JSON).label("stop_reasons"),
        sa.type_coerce(_rewards(rows), sa.JSON).label("rewards"),
    ]
    joined = measures.join(quantiles, sa.true()).join(groups, sa.true())
    # Without a WHERE, SQLite reads the ON of a following ON CONFLICT as a condition of the last JOIN.
    return sa.select(*key, *counts, *measures.c, *quantiles.c, *groups.c).select_from(joined).where(sa.true())


def _of_step() -> list[sa.ColumnElement[bool]]:
    row = EvaluationRow
    of_step = [col(getattr(row, name)) == sa.bindparam(f"of_{name}") for name in OF_STEP]
    return [col(row.run_id) == sa.bindparam("of_run"), *of_step]


def _counts(rows: sa.CTE, name: str) -> Any:
    """Return the number of rollouts by value, as a JSON object."""
    value = rows.c[name]
    counted = sa.select(value.label("value"), sa.func.count().label("number")).where(value.is_not(None)).group_by(value)
    counts = counted.subquery()
    return sa.select(json_object(counts.c.value, counts.c.number)).scalar_subquery()


def _measures(rows: sa.CTE) -> sa.Select[Any]:
    return sa.select(
        *(
            column
            for name, of_row in _MEASURES.items()
            for column in (
                sa.func.count(rows.c[of_row]).label(f"{name}_known"),
                sa.func.coalesce(total(rows.c[of_row]) if name == "seconds" else whole_sum(rows.c[of_row]), 0).label(
                    f"{name}_sum"
                ),
            )
        )
    )


def _quantiles(rows: sa.CTE) -> sa.Select[Any]:
    """Interpolate between the two nearest rewards, weighted by how near their ranks are."""
    place = (sa.func.row_number().over(order_by=rows.c.reward) - 1).label("place")
    last = (sa.func.count().over() - 1).label("last")
    ranked = sa.select(rows.c.reward, place, last).where(rows.c.reward.is_not(None)).subquery()
    quantiles = []
    # A reward counts with 1 minus the distance of its rank from the quantile's: that leaves the two nearest ranks.
    for share, name in ((0.1, "reward_p10"), (0.9, "reward_p90")):
        distance = sa.func.abs(ranked.c.place - share * ranked.c.last)
        quantiles.append(total(sa.case((distance < 1.0, product(ranked.c.reward, 1.0 - distance)))).label(name))
    return sa.select(*quantiles)


def _groups(rows: sa.CTE) -> Any:
    between = spread(rows.c.reward).label("spread")
    groups = (
        sa.select(between)
        .where(rows.c.reward.is_not(None))
        .group_by(rows.c.group)
        .having(sa.func.count() > 1)
        .subquery()
    )
    dead = sa.func.count(sa.case((groups.c.spread <= _DEAD, 1)))
    return sa.select(sa.func.count().label("groups"), dead.label("dead_groups")).select_from(groups)


def _rewards(rows: sa.CTE) -> Any:
    """Return a JSON object of RewardSums by the function's name."""
    rewards, weights = json_each(rows.c.rewards, "given"), json_each(rows.c.reward_weights, "weights")
    value, weight = number(rewards), sa.func.coalesce(number(weights), 1.0)
    counted = sa.case((rows.c.reward.is_not(None), product(value, weight)))
    of_function = (
        sa.select(
            rewards.c.key.label("name"),
            json_array(
                sa.func.count(value), _finite(total(value)), _finite(sa.func.coalesce(total(counted), 0.0))
            ).label("sums"),
        )
        .select_from(rows.join(rewards, sa.true()).outerjoin(weights, weights.c.key == rewards.c.key))
        .where(rewards.c.key.is_not(None))
        .group_by(rewards.c.key)
        .subquery()
    )
    return sa.select(json_object(of_function.c.name, of_function.c.sums)).scalar_subquery()


def _finite(value: Any) -> Any:
    return sa.case((sa.func.abs(value) <= _LARGEST, value))
