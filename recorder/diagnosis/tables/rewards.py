"""Compares reward functions: their means, their shares of the reward variance, and their correlations."""

from dataclasses import dataclass
from itertools import combinations

import numpy as np

from logs_ui.recorder.diagnosis.card import Trend
from logs_ui.recorder.diagnosis.measures import best, correlation, lengths, mean, shares, within_groups
from logs_ui.recorder.diagnosis.rollout_rows import SAME, Bools, Floats, Ints, Rows

REWARD, ENVIRONMENT, LENGTH = "reward", "environment", "length"


@dataclass(frozen=True)
class Function:
    """Describes one reward function over some rollouts."""

    name: str
    weight: float  # its weight in the last rollouts
    mean: float | None  # mean of its values; None without any
    before: float | None  # the same over as many steps before these; None without any
    counted: float | None  # mean of value times weight; None without any
    # Share of the reward variance within groups, Cov(w·c, R) / Var(R); None if the reward does not vary.
    share: float | None
    nothing: float | None  # share of the scored rollouts that it gave no number, 0 to 1; None without a scored rollout
    best: float  # the most that it can add to the reward, as far as is known: see `measures.best`
    left: float | None  # to gain, `best - counted`, at least 0; None without `counted`, and for a weight of 0
    trend: Trend  # the mean of its values by step


def functions(rows: Rows, every: Rows) -> list[Function]:
    """Return all reward functions of the run, the largest variance share first: means and shares over `rows`, best
    values and trends over all of its rollouts.
    """
    share, table = shares(rows), []
    earlier = every.steps[every.steps < min(rows.steps, default=0)][-len(rows.steps) :]
    is_earlier = np.isin(every.step, earlier)
    for name, part in rows.parts.items():
        weight, counted, most = rows.weights.get(name, 1.0), mean(part), best(every, name)
        table.append(
            Function(
                name=name,
                weight=weight,
                mean=mean(rows.values[name]),
                before=mean(every.values[name][is_earlier]),
                counted=counted,
                share=share.get(name),
                nothing=mean(np.where(rows.scored, np.isnan(rows.values[name]), np.nan)),
                best=most,
                left=None if counted is None or not weight else max(most - counted, 0.0),
                trend=every.by_step(every.values[name]),
            )
        )
    return sorted(table, key=lambda function: (-(function.share or 0.0), -abs(function.weight), function.name))


def shares_by(place: Ints, rows: Rows) -> dict[str, Floats]:
    """Return (P,) each reward function's variance share (see `measures.shares`) over the rollouts of each place; NaN if
    the reward does not vary. `place` is (N,) 0 to P - 1, the same within a group.
    """
    scored = np.isfinite(rows.reward)
    reward, at = within_groups(rows.reward, rows)[scored], place[scored]
    count = int(place.max(initial=-1)) + 1
    variance = np.bincount(at, reward**2, count)
    varies = variance > SAME**2 * np.bincount(at, minlength=count)
    with np.errstate(invalid="ignore", divide="ignore"):
        return {
            name: np.where(
                varies,
                np.bincount(at, within_groups(np.nan_to_num(part), rows)[scored] * reward, count) / variance,
                np.nan,
            )
            for name, part in rows.parts.items()
        }


def unscored(rows: Rows) -> Bools:
    """Return (N,) True for rollouts that were scored, but got no number from any function."""
    is_silent: Bools = np.all([np.isnan(values) for values in rows.values.values()], axis=0)
    return rows.scored & is_silent


def correlations(rows: Rows) -> dict[tuple[str, str], float]:
    """Return Pearson's r within groups for each pair of columns, in both orders.

    The columns are the reward functions (by `function:NAME`), the reward, the environment's reward, and the length in
    sampled tokens per turn. NaN if either does not vary within groups, or if fewer than 8 rollouts have both.
    """
    columns: dict[str, Floats] = {key(name): values for name, values in rows.values.items()}
    columns |= {REWARD: rows.reward, ENVIRONMENT: rows.env_reward_sum, LENGTH: lengths(rows)}
    by_pair: dict[tuple[str, str], float] = {}
    for first, other in combinations(columns, 2):
        by_pair[first, other] = by_pair[other, first] = correlation(rows, columns[first], columns[other])
    return by_pair


def key(function: str) -> str:
    """Return the name of a reward function in `correlations`, which differs from the other columns' names."""
    return f"function:{function}"
