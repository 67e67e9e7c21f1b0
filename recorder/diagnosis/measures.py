"""Measures that several checks and tables share: solved rollouts, zero-variance groups, parts of the reward, and
figures of rollouts.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from logs_ui.recorder.diagnosis.rollout_rows import SAME, Bools, Floats, Groups, Rows, distinct
from logs_ui.recorder.diagnosis.scale import Scale

STANDSTILL = {"learning_rate": 1e-12, "grad_norm": 1e-8, "kl": 1e-9}
"""The most that each of these figures, which the trainer logs, may be while the policy does not change [ours]."""
FIRST_KL = 3
"""Logged steps after which a KL of nearly 0 means something: a policy that has just begun is near its reference."""
FEW = 8
"""Rollouts: fewer have no correlation."""
_FLAT = 1e-9  # a standard deviation of rounding noise


def mean(values: Floats) -> float | None:
    """Return the mean of the finite values; None without any."""
    finite = values[np.isfinite(values)]
    return float(finite.mean()) if len(finite) else None


def extent(values: Floats) -> float:
    """Return the highest minus the lowest finite value; 0 without any."""
    finite = values[np.isfinite(values)]
    return float(np.ptp(finite)) if len(finite) else 0.0


def unsolved_groups(rows: Rows, scale: Scale) -> Bools:
    """Return (G,) True for groups not solved as a whole; without a definition, for those with a mean below the best."""
    if not scale.success.is_defined:
        return rows.groups.mean < rows.group_means(scale.bests(rows)) - SAME
    has_failed = np.isfinite(rows.reward) & ~scale.success.solved(rows)
    return np.bincount(rows.group[has_failed], minlength=len(rows.groups.size)) > 0


def attempted(rows: Rows) -> Bools:
    """Return (N,) True for rollouts that have a reward and a task."""
    return np.isfinite(rows.reward) & (rows.task >= 0)


def tried(rows: Rows, scale: Scale) -> Bools:
    """Return (N,) True for attempts that can count as solved or not."""
    return attempted(rows) & scale.success.countable(rows)


def dead(groups: Groups) -> Bools:
    """Return (G,) True for groups of several rewards, all equal: zero variance, so that every advantage is 0."""
    return (groups.size > 1) & (groups.high - groups.low <= SAME)


def sampled(rows: Rows) -> Floats:
    """Return (N,) completion tokens that the model generated; where that is not known, all of them."""
    return rows.completion_tokens - np.nan_to_num(rows.facts.get("unsampled_tokens", np.zeros(len(rows))))


def lengths(rows: Rows) -> Floats:
    """Return (N,) sampled tokens per turn: an episode with more turns is not a longer answer."""
    return sampled(rows) / np.where(rows.turns > 1, rows.turns, 1.0)


def within_groups(values: Floats, rows: Rows) -> Floats:
    """Return (N,) values less the mean of their group; NaN where the value is NaN."""
    return values - rows.group_means(values)[rows.group]


def shares(rows: Rows) -> dict[str, float]:
    """Return each reward function's share of the reward's variance within groups: Cov(part, R) / Var(R).

    The shares add up to 1. Empty where the reward does not vary.
    """
    scored = np.isfinite(rows.reward)
    reward = within_groups(rows.reward, rows)[scored]
    variance = float(np.mean(reward**2)) if len(reward) else 0.0
    if variance <= SAME**2:
        return {}
    parts = {name: within_groups(np.nan_to_num(part), rows)[scored] for name, part in rows.parts.items()}
    return {name: float(np.mean(part * reward)) / variance for name, part in parts.items()}


def weigh_by_range(rows: Rows) -> dict[str, float]:
    """Return the share of the difference in reward that each reward function can make; empty if none can make any."""
    ranges = {name: extent(part) for name, part in rows.parts.items()}
    total = sum(ranges.values())
    return {name: value / total for name, value in ranges.items()} if total > SAME else {}


def find_empty(rows: Rows) -> Floats:
    """Return (N,) 1 for rollouts without any text, but for white space, or tool call in their answers, 0 for others;
    NaN without an answer, and if no text of the run is recorded.
    """
    calls, silent = rows.facts["tool_calls"], np.isnan(rows.facts["compression"])
    if silent.all():
        return np.full(len(rows), np.nan)
    return np.where(np.isnan(calls), np.nan, silent & (calls == 0) & ~(rows.facts["env_steps"] > 0))


def duplicated(rows: Rows) -> Floats:
    """Return (N,) 1 for a completion that duplicates another of its group, else 0; NaN where it cannot be told."""
    key, count = rows.facts["completion_key"], len(rows)
    is_known = ~np.isnan(key)
    pairs = np.unique(np.stack([rows.group[is_known].astype(float), key[is_known]], 1), axis=0, return_inverse=True)[1]
    is_told = is_known & (np.bincount(rows.group[is_known], minlength=len(rows.groups.size))[rows.group] > 1)
    repeats = np.zeros(count)
    repeats[is_known] = np.bincount(pairs.reshape(-1))[pairs.reshape(-1)] > 1
    return np.where(is_told, repeats, np.nan)


def alike(rows: Rows) -> Floats:
    """Return (G,) share of a group's completions that duplicate another one; NaN for a single one, or if not known."""
    is_known, count = ~np.isnan(rows.facts["completion_key"]), len(rows.groups.size)
    sizes = np.bincount(rows.group[is_known], minlength=count)
    kinds = distinct(rows.group[is_known], rows.facts["completion_key"][is_known], count=count)
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(sizes > 1, (sizes - kinds) / (sizes - 1), np.nan)


def best(every: Rows, name: str) -> float:
    """Return the most that a reward function can add to the reward, as far as is known.

    That is the highest value times weight that it ever gave, or its weight if it never gave anything but 0.
    """
    values = every.parts[name][np.isfinite(every.parts[name])]
    highest = float(values.max(initial=0.0))
    return highest if highest > 0 or extent(values) > 0 else every.weights.get(name, 1.0)


def correlation(rows: Rows, first: Floats, other: Floats) -> float:
    """Return Pearson's r of two columns within groups; NaN if either does not vary, or for fewer than 8 rollouts."""
    is_known = np.isfinite(first) & np.isfinite(other)
    if is_known.sum() < FEW:
        return float("nan")
    a, b = (within_groups(np.where(is_known, values, np.nan), rows)[is_known] for values in (first, other))
    squares = float(np.mean(a**2)), float(np.mean(b**2))
    if min(squares) <= _FLAT**2:
        return float("nan")
    return float(np.clip(np.mean(a * b) / np.sqrt(squares[0] * squares[1]), -1, 1))


def correlations_by_step(rows: Rows, first: Floats, other: Floats) -> tuple[tuple[int, float], ...]:
    """Return (step, r) as `correlation` has it, computed from sums: a step holds whole groups."""
    is_known = np.isfinite(first) & np.isfinite(other)
    comparable = rows.where(is_known)
    a, b = (within_groups(values[is_known], comparable) for values in (first, other))
    squares, others, both = (comparable.by_step(products) for products in (a**2, b**2, a * b))
    counts = np.bincount(np.searchsorted(comparable.steps, comparable.step))
    return tuple(
        (step, float(product / np.sqrt(x * y)))
        for (step, x), (_, y), (_, product), count in zip(squares, others, both, counts, strict=True)
        if count >= FEW and x * y > 0
    )


class Feature(NamedTuple):
    """Describes one figure of a rollout."""

    name: str  # a noun, to follow a number
    values: Callable[[Rows], Floats]  # returns (N,); NaN where it is not known
    is_habit: bool = False  # True if it says how much a rollout talks or acts
    field: str = ""  # of a filter that takes any number; "" for none


def _fact(name: str) -> Callable[[Rows], Floats]:
    return lambda rows: rows.facts[name]


def _count_unanswered(rows: Rows) -> Floats:
    """Return (N,) tool calls beyond the actions that reached the environment; NaN where there are neither."""
    calls, steps = rows.facts["tool_calls"], rows.facts["env_steps"]
    if not (steps > 0).any():  # what executes the calls is not recorded
        return np.full(len(rows), np.nan)
    return np.where((calls > 0) | (steps > 0), np.maximum(calls - steps, 0.0), np.nan)


TOKENS, SAMPLED = "tokens per turn", "sampled tokens"
FEATURES = (
    Feature(TOKENS, lengths, is_habit=True),
    Feature(SAMPLED, sampled),
    Feature("turns", lambda rows: rows.turns, is_habit=True),
    Feature("seconds", lambda rows: rows.seconds),
    Feature("environment steps", _fact("env_steps")),
    Feature("failed actions", _fact("env_errors")),
    Feature("tool calls", _fact("tool_calls"), is_habit=True),
    Feature("tool calls without an environment step", _count_unanswered),
    Feature("the share of different words", _fact("distinct_words"), field="distinct_words"),
    Feature("the share of three-word sequences that repeat", _fact("trigram_repeats"), field="trigram_repeats"),
    Feature("the share of letters that are not Latin", _fact("non_latin"), field="non_latin"),
    Feature("the repetitiveness (compression ratio)", _fact("compression"), field="compression"),
)


def list_figures(rows: Rows) -> dict[str, Floats]:
    """Return (N,) values of each figure that is compared, by name."""
    return {feature.name: feature.values(rows) for feature in FEATURES}
