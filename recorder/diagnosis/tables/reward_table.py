"""Reward functions beside each other: what each gives, what it decides, and what it goes with."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from logs_ui.recorder.diagnosis.card import Trend
from logs_ui.recorder.diagnosis.measures import best, lengths, mean, shares, within_groups
from logs_ui.recorder.diagnosis.rollout_rows import SAME, Bools, Floats, Ints, Rows

REWARD, ENVIRONMENT, LENGTH = "reward", "environment", "length"
_FEW = 8  # values that an r is worked out of, at least: length.py's
_FLAT = 1e-9  # a variance of rounding noise


@dataclass(frozen=True)
class Function:
    """One reward function over some rollouts.

    Attributes:
        weight: as the last rollouts have it.
        mean: of what it returned; None where it returned no number.
        counted: mean of that times the weight; likewise.
        share: of the variance of the reward within groups, Cov(w·c, R) / Var(R); None where the reward does not vary.
        nothing: share of the scored rollouts that it gave no number, 0 to 1; None without a scored rollout.
        best: the most that it can count, as far as is known: its weight, or the highest that it ever counted.
        left: that less `counted`, at least 0; None where `counted` is, and of a weight of 0.
        trend: of the mean of what it returned, by step.
    """

    name: str
    weight: float
    mean: float | None
    counted: float | None
    share: float | None
    nothing: float | None
    best: float
    left: float | None
    trend: Trend


def functions(rows: Rows, every: Rows) -> list[Function]:
    """Of all reward functions of the run, the one that decides most first.

    Args:
        rows: what the figures are of.
        every: all of the run, which the best and the trends are of.
    """
    share = shares(rows)
    found = [_function(name, share.get(name), rows, every) for name in rows.parts]
    return sorted(found, key=lambda it: (-(it.share or 0.0), -abs(it.weight), it.name))


def _function(name: str, share: float | None, rows: Rows, every: Rows) -> Function:
    weight, counted = rows.weights.get(name, 1.0), mean(rows.parts[name])
    most = best(every, name)
    return Function(
        name=name,
        weight=weight,
        mean=mean(rows.values[name]),
        counted=counted,
        share=share,
        nothing=mean(np.where(rows.scored, np.isnan(rows.values[name]), np.nan)),
        best=most,
        left=None if counted is None or not weight else max(most - counted, 0.0),
        trend=every.by_step(every.values[name]),
    )


def shares_by(place: Ints, rows: Rows) -> dict[str, Floats]:
    """(P,) of each reward function, its share of the variance as `shares` has it, over the rollouts of each place.

    Args:
        place: (N,) 0 to P - 1.
        rows: of which groups lie in one place each. NaN where the reward does not vary.
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
    """(N,) whether all functions were asked, and none gave a number."""
    gave = np.zeros(len(rows), bool)
    for values in rows.values.values():
        gave |= ~np.isnan(values)
    return rows.scored & ~gave


def correlations(rows: Rows) -> dict[tuple[str, str], float]:
    """Pearson's r within groups, of every two of: each reward function (by `function:NAME`), the reward, the
    environment's own, and the length: tokens that were sampled, for each turn.

    Both ways round. NaN where either does not vary within groups, or fewer than 8 rollouts have both.
    """
    columns = _columns(rows)
    known = {name: np.isfinite(values) for name, values in columns.items()}
    centred = {name: within_groups(values, rows) for name, values in columns.items()}
    names = list(columns)
    found: dict[tuple[str, str], float] = {}
    for at, one in enumerate(names):
        for other in names[at + 1 :]:
            both = known[one] & known[other]
            pair = [
                centred[name]
                if (both == known[name]).all()
                else within_groups(np.where(both, columns[name], np.nan), rows)
                for name in (one, other)
            ]
            found[one, other] = found[other, one] = _r(pair[0][both], pair[1][both])
    return found


def _columns(rows: Rows) -> Mapping[str, Floats]:
    of_functions = {key(name): values for name, values in rows.values.items()}
    return of_functions | {REWARD: rows.reward, ENVIRONMENT: rows.env_reward_sum, LENGTH: lengths(rows)}


def key(function: str) -> str:
    """What `correlations` calls a reward function, so that none is taken for something else."""
    return f"function:{function}"


def _r(one: Floats, other: Floats) -> float:
    if len(one) < _FEW:
        return float("nan")
    squares = float(np.mean(one**2)), float(np.mean(other**2))
    if min(squares) <= _FLAT**2:
        return float("nan")
    return float(np.clip(np.mean(one * other) / np.sqrt(squares[0] * squares[1]), -1, 1))
