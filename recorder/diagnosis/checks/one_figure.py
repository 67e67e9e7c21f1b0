"""Finds a reward that is nothing but one recorded figure, such as the number of turns."""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from logs_ui.recorder.diagnosis.card import Below, Card, NotJudged, Outcome, Run, check, needs
from logs_ui.recorder.diagnosis.change_point import above
from logs_ui.recorder.diagnosis.checks.growing_answers import is_penalty
from logs_ui.recorder.diagnosis.checks.reward_functions import part_of
from logs_ui.recorder.diagnosis.measures import (
    SAMPLED,
    TOKENS,
    correlation,
    correlations_by_step,
    list_figures,
    shares,
)
from logs_ui.recorder.diagnosis.rollout_rows import SAME, Floats, Rows, distinct
from logs_ui.recorder.diagnosis.success import is_form, is_outcome
from logs_ui.recorder.diagnosis.wording import figure
from logs_ui.recorder.vocabulary import Status, StopReason

R = 0.95
FEW = 32
"""Rollouts: fewer show no correlation of R for sure."""
_SLACK = 0.05  # by which r may be lower in either half of the groups, so that no single rollout makes it
_GRADED, _HALF = 3, 0.5  # different values in half of the groups that vary: 0 and 1 are no grades
_MANY = 8  # different values of a run whose groups are smaller than that
_SHARE = 0.1  # of the reward's variance within groups: the least for a function to matter
_STEPS = {"turns", "environment steps"}  # of which each may cost by design: a run that improves learns to need fewer
_SOLVED = 0.8  # of the rollouts: then what is left to differ may well be one figure [ours]


class Follows(NamedTuple):
    """Describes how closely a reward follows a figure."""

    function: str | None  # the reward function; None for the whole reward
    figure: str
    r: float  # Pearson's r within groups; 0 if no figure varies
    is_whole: bool  # True if |r| reaches the threshold, about as much in both halves of the groups
    share: float  # of the reward's variance within groups that the function has
    rollouts: int  # number of rollouts that were compared
    groups: int  # number of their groups


def compared(rows: Rows) -> Rows:
    """Return the rollouts whose reward is their answer's: those that ended without an error and are not truncated."""
    cut = (rows.stop_reason == StopReason.LENGTH) | (rows.facts["truncated_turns"] > 0)
    return rows.where(np.isfinite(rows.reward) & ~rows.odd & (rows.status == Status.OK) & ~cut)


def follows(run: Run) -> Follows | NotJudged:
    """Return the figure that the whole reward follows most closely, or else one of its functions."""
    rows = compared(run.rows)
    if len(rows) < FEW:
        return NotJudged(f"{FEW} scored rollouts without a known cut or error are needed; there are {len(rows)}.")
    if not _is_graded(rows, rows.reward):
        return NotJudged(
            "The reward is not graded: fewer than half of the groups with different rewards have 3 or more."
        )
    if abs(correlation(rows, rows.reward, rows.env_reward_sum)) >= R:
        return NotJudged("The reward is the environment's own.")
    if run.scale.success.solved(rows).mean() >= _SOLVED:
        return NotJudged("Most rollouts are solved.")
    limit, share = run.threshold("proxy", R), shares(rows)
    figures = list_figures(rows)
    outcomes = [values for name, values in rows.values.items() if is_outcome(name)]
    # A form that is paid with the outcome alone says nothing of its own.
    forms = {
        name: values
        for name, values in rows.values.items()
        if is_form(name) and not any(abs(correlation(rows, values, outcome)) >= limit for outcome in outcomes)
    }
    candidates = [_find_closest(rows, None, 1.0, limit, figures | (forms if outcomes else {}))]
    names = [name for name in share if share[name] >= _SHARE and not is_form(name)]
    names = [name for name in names if _is_graded(rows, rows.parts[name])]
    of_functions = [_find_closest(rows, name, share[name], limit, figures) for name in names]
    candidates += [follows for follows in of_functions if not _is_meant(run, follows)]
    return max(candidates, key=lambda candidate: (candidate.is_whole, candidate.function is None, abs(candidate.r)))


def _find_closest(
    rows: Rows, function: str | None, share: float, limit: float, figures: Mapping[str, Floats]
) -> Follows:
    paid, is_odd = rows.reward if function is None else rows.parts[function], rows.group % 2 > 0
    r = {name: float(np.nan_to_num(correlation(rows, paid, values))) for name, values in figures.items()}
    name = max(r, key=lambda name: abs(r[name]))
    halves = [correlation(rows.where(half), paid[half], figures[name][half]) for half in (is_odd, ~is_odd)]
    is_whole = abs(r[name]) >= limit and bool(np.nan_to_num(np.abs(halves)).min() >= limit - _SLACK)
    return Follows(function, name, r[name], is_whole, share, len(rows), len(rows.groups.size))


def _is_meant(run: Run, closest: Follows) -> bool:
    """Return True for a penalty of length: it follows length by design."""
    is_length = closest.figure in {TOKENS, SAMPLED} and closest.r < 0
    return is_length and closest.function is not None and is_penalty(run.all, closest.function)


def _is_graded(rows: Rows, values: Floats) -> bool:
    if rows.groups.size.max(initial=0) < _GRADED:  # groups of two cannot have three values
        return len(np.unique(np.round(values / SAME))) >= _MANY
    with np.errstate(over="ignore"):
        kinds = distinct(rows.group, np.nan_to_num(np.round(values / SAME)), count=len(rows.groups.size))
    return bool((kinds > 1).any()) and float((kinds >= _GRADED).sum()) >= _HALF * float((kinds > 1).sum())


def _check(run: Run) -> Outcome:
    closest, limit = follows(run), run.threshold("proxy", R)
    if not isinstance(closest, Follows):
        return closest
    name, share, r = closest.function or "The reward", closest.share, figure(closest.r)
    if closest.is_whole and closest.figure == TOKENS:
        return NotJudged("It follows tokens per turn: see the check on length.")
    if not closest.is_whole:
        return Below(f"{name} follows {closest.figure} most closely: r = {r} within groups (threshold {limit:g}).")
    has_cost = closest.r < 0 and closest.figure in _STEPS
    every = compared(run.all)
    paid = every.reward if closest.function is None else every.parts[closest.function]
    values = (list_figures(every) | dict(every.values))[closest.figure]
    return Card(
        id="proxy",
        title=f"{name} follows {closest.figure} alone (r = {r} within groups)",
        cost=run.fall.lost * abs(closest.r) * share,
        evidence=(
            f"{closest.rollouts} rollouts in {closest.groups} groups were compared, without truncated and failed ones.",
            *([f"It explains {part_of(share)} of the reward variance within groups."] if closest.function else []),
        ),
        suggestion=f"Compare two completions that differ in quality but not in {closest.figure}. If the better one "
        f"does not get the higher reward, the policy learns {closest.figure}.",
        where="",
        **above(tuple((step, abs(value)) for step, value in correlations_by_step(every, paid, values)), limit),
        is_setup=not has_cost,
        is_loss=False,
        may_remain=has_cost,
    )


DIAGNOSTIC = check(
    "proxy",
    "Reward follows one figure",
    f"|r| of at least {R:g} within groups, and about as much in both halves of the groups, between a figure (turns, "
    "tokens, seconds, environment steps, tool calls, repetition, or a reward function named like a form, beside one "
    "named like an outcome that it does not follow itself) and the reward, or a function with at least "
    f"{_SHARE:.0%} of its variance that is not named like a form. From {FEW} rollouts on, without truncated and failed "
    "ones. Silent for rewards of two values, for a reward that is the environment's own, and if "
    f"{_SOLVED:.0%} are solved. Tokens per turn are left to the check on length. If fewer turns or environment steps "
    "get more, each may cost by design: that is no fault of the set-up, nor of a run that improves.",
    needs("a reward", lambda run: np.isfinite(run.rows.reward)),
    _check,
)
