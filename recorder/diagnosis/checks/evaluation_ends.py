"""Finds evaluations whose rollouts end badly where the training's do not: cut off, out of turns, or with an error."""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from logs_ui.recorder.diagnosis import links
from logs_ui.recorder.diagnosis.card import Below, Card, NotJudged, Outcome, Run, check, needs
from logs_ui.recorder.diagnosis.change_point import above
from logs_ui.recorder.diagnosis.checks.infrastructure import describe_errors
from logs_ui.recorder.diagnosis.contrast import CHANCE
from logs_ui.recorder.diagnosis.mean_difference import LEAST_UNITS, compare
from logs_ui.recorder.diagnosis.rollout_rows import Bools, Floats, Ints, Rows
from logs_ui.recorder.diagnosis.waterfall import has_cause, judged
from logs_ui.recorder.diagnosis.wording import figure, percent
from logs_ui.recorder.vocabulary import Lack, LossCause, Mode, StopReason

_MORE = 0.1  # of the rollouts: a smaller difference does not matter [ours]
_SURE = 0.01  # the probability by chance of such a difference, in any of the ways and evals
_ROUNDS, _ENOUGH = 3, 32  # the last evaluations, or more until there are so many rollouts [ours]
_NEAR = 2  # steps of the training before and after each: the policy of others may have ended otherwise [ours]
_WAYS = {  # what rollouts do, the filter that opens them, the figure that is limited, and what to compare
    LossCause.INFRASTRUCTURE: ("fail with an error", "", "", "environment, servers and time limits"),
    LossCause.TRUNCATION: ("are truncated at the token limit", "", "completion_tokens", "max_tokens or context length"),
    LossCause.PARSE_FAILURE: ("end without a parsed action", "", "", "prompts, tools and parser"),
    LossCause.LOOP: ("run out of turns", f" stop:{StopReason.TURN_LIMIT}", "turns", "limit of turns"),
    LossCause.NEVER_SUBMITTED: ("never act", "", "", "prompts and tools"),
}


class _Way(NamedTuple):
    """Compares how often rollouts end in one way: those of an eval's last evaluations, and those of the training."""

    cause: LossCause
    name: str  # of the eval
    evaluated: Rows
    trained: Rows
    shares: tuple[float, float]  # of the two
    more: float  # their difference, or that at the same steps if it is smaller
    chance: float  # its probability by chance
    loss: float  # by which evaluated rollouts that end so are paid less than others; 0 if that may be chance
    paid: str  # their mean rewards

    def describe(self, of: str = "") -> str:
        shares = [percent(share) for share in self.shares]
        return f"{shares[0]} of evaluation rollouts{of} {_WAYS[self.cause][0]}, {shares[1]} of training rollouts"


def _end_so(rows: Rows, cause: LossCause) -> Bools:
    """Return (N,) True for rollouts of that cause; of loops, for those that ran out of turns."""
    ended: Bools = has_cause(rows, cause) & ((rows.stop_reason == StopReason.TURN_LIMIT) | (cause != LossCause.LOOP))
    return ended


def _find_longest(rows: Rows, trained: Rows, cause: LossCause) -> tuple[float, float] | None:
    """Return the largest figure that a limit ends, of evaluation rollouts that end so and of training rollouts; NaN if
    it is not known; None if no limit ends them, or no rollout ends so.
    """
    column, hit = _WAYS[cause][2], _end_so(rows, cause)
    if not column or not hit.any():
        return None
    return float(getattr(rows, column)[hit].max()), float(getattr(trained, column).max())


def _find_units(*sides: Rows) -> Ints:
    """Return codes of the rollouts' tasks, which evaluations repeat; of groups, if tasks are few or not all known."""
    if all((rows.task >= 0).all() and len(np.unique(rows.task)) >= LEAST_UNITS for rows in sides):
        return np.unique([rows.tasks[task] for rows in sides for task in rows.task.tolist()], return_inverse=True)[1]
    return np.concatenate([sides[0].group, sides[1].group + len(sides[0].groups.size)])


def _list_ways(run: Run, every: Rows, name: str) -> Iterator[_Way]:
    """Yield the ways that can be compared, of one eval with these rollouts."""
    rows = every.last_steps(_ROUNDS, _ENOUGH)
    is_near = np.abs(run.all.step[:, None] - rows.steps).min(1) <= _NEAR
    of = run.all.in_eval(name)
    trained = run.all.where(is_near & of if of.any() else is_near)  # one that is trained on is compared with itself
    trained = trained.where(judged(trained))
    sides, is_evaluated = (rows, trained), np.arange(len(rows) + len(trained)) < len(rows)
    units, step = _find_units(*sides), np.concatenate([side.step for side in sides])
    strata = np.abs(step[:, None] - rows.steps).argmin(1)
    reward: Floats = np.concatenate([np.where(np.isfinite(side.reward), side.reward, 0.0) for side in sides])
    for cause in _WAYS:
        hit = np.concatenate([_end_so(side, cause) for side in sides])
        difference = compare(hit.astype(float), is_evaluated, units, strata)
        if difference is None or difference.chance is None:
            continue
        longest = _find_longest(rows, trained, cause)
        if longest is not None and not longest[0] < longest[1]:  # harder tasks may reach the training's own limit
            continue
        shares, loss, paid = (float(hit[is_evaluated].mean()), float(hit[~is_evaluated].mean())), 0.0, ""
        for among, others in (
            (is_evaluated, "other evaluation rollouts"),
            (is_evaluated == hit, "training rollouts that do not"),
        ):
            pay = compare(np.where(among, reward, np.nan), hit, units)
            if pay is not None and pay.chance is not None:
                loss = max(-pay.value, 0.0) if pay.chance < CHANCE else 0.0
                paid = f"Mean reward: these rollouts {figure(pay.chosen)}, {others} {figure(pay.others)}."
                break
        more = min(shares[0] - shares[1], difference.value)
        yield _Way(cause, name, rows, trained, shares, more, difference.chance, loss, paid)


def _check(run: Run) -> Outcome:
    least, every = run.threshold("evaluation_ends", _MORE), run.evaluated or run.all.where(np.zeros(len(run.all), bool))
    every = every.where(judged(every))
    by_eval = {name: every.where(every.in_eval(name)) for name in every.present}
    ways = [way for name, rows in by_eval.items() for way in _list_ways(run, rows, name)]
    if not ways:
        return NotJudged(f"Too few groups in an evaluation, or in the training at most {_NEAR} steps away.")
    worst = max(ways, key=lambda way: way.more)
    sure = _SURE / max(sum(max(way.shares) > 0 for way in ways), 1)  # what never happens cannot be found by chance
    faults = [way for way in ways if way.more >= least and way.chance < sure and way.loss > 0]
    if not faults:
        why = "; it may be chance, or costs no reward" if worst.more >= least else ""
        return Below(f"{worst.describe()} (threshold: {percent(least)} of rollouts more than in training){why}.")
    way = max(faults, key=lambda way: way.more * way.loss)
    rows, trained, every = way.evaluated, way.trained, by_eval[way.name]
    hit, (_, term, column, differs) = _end_so(rows, way.cause), _WAYS[way.cause]
    first, last, count = rows.steps[0], rows.steps[-1], len(rows.steps)
    last_ones = "evaluation" if count == 1 else f"{count} evaluations"
    evidence = [
        f"{hit.sum():,} of {len(rows):,} rollouts in the last {last_ones} ({way.name}, up to step {last:,}).",
        f"{_end_so(trained, way.cause).sum():,} of {len(trained):,} training rollouts, at most {_NEAR} steps away.",
        way.paid,
    ]
    if (longest := _find_longest(rows, trained, way.cause)) is not None:
        most, of_trained = map(figure, longest)
        evidence.append(
            f"The longest of these has {most} {column.split('_')[-1]}, the longest training rollout {of_trained}."
        )
    if way.cause == LossCause.INFRASTRUCTURE:
        evidence += describe_errors(rows.error[hit].tolist())
    evidence += [f"{other.describe(f' of {other.name}')}." for other in faults if other is not way]
    names = [links.tasks([way.name], "eval")] * (len(by_eval) > 1)
    return Card(
        id="evaluation_ends",
        title=way.describe(f" of {way.name}" if names else ""),
        cost=way.more * way.loss,
        evidence=tuple(evidence),
        suggestion=f"Compare the evaluation's {differs} with the training's.",
        where=" ".join([f"mode:{Mode.EVAL}", *names, f"cause:{way.cause}{term} step:{first}..{last}"]),
        own=np.zeros(len(run.rows), bool),
        **above(every.by_step(_end_so(every, way.cause)), way.shares[1] + least),
        is_loss=False,
        is_of_evaluations=True,
    )


DIAGNOSTIC = check(
    "evaluation_ends",
    "Evaluation ends otherwise",
    f"The share of rollouts of the last {_ROUNDS} evaluations (or more, until they have {_ENOUGH} rollouts) that end "
    "in one way (with an error, truncated, without a parsed action, out of turns, or without any action) is at least "
    f"{_MORE:.0%} of the rollouts above that of training rollouts at most {_NEAR} steps away (of the same eval, if it "
    "is trained on). A limit of tokens or turns counts only if it is below the longest of these training rollouts. The "
    f"probability by chance is below {_SURE:g} over all ways and evals; tasks are the independent units, or groups "
    "where tasks are few. These rollouts score lower than other evaluation rollouts, or than training rollouts if "
    "hardly any others are left.",
    needs("an evaluation during the training", lambda run: run.evaluated is not None, Lack.STOP_REASONS),
    _check,
    needs_calls=True,
)
