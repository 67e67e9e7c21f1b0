"""Finds a training whose evaluations fall behind: what it learns does not hold for other tasks."""

import math
from typing import NamedTuple

import numpy as np

from logs_ui.recorder.diagnosis.card import Below, Card, NotJudged, Outcome, Run, check, needs
from logs_ui.recorder.diagnosis.change_point import change, find_crossing, inflation
from logs_ui.recorder.diagnosis.checks.evaluation_scores import ENOUGH, LESS, find_scored_otherwise
from logs_ui.recorder.diagnosis.contrast import SURER, spread
from logs_ui.recorder.diagnosis.mean_difference import compare, is_beyond_chance, student_tail
from logs_ui.recorder.diagnosis.rollout_rows import Floats, Ints
from logs_ui.recorder.diagnosis.task_families import tasks_recur
from logs_ui.recorder.diagnosis.wording import figure
from logs_ui.recorder.vocabulary import Mode

_ROUNDS = 6  # evaluations: of fewer, a line through them tells little [ours]
_CHANCE = 0.01  # the probability by chance of such a slope, of a handful of evaluations that are looked at
_GROWS = 0.15  # of the range of rewards [ours]
_FOLLOWS = 0.25  # of the training's rise: an evaluation that rises by so much follows it [ours]
_ROW = 3  # evaluations in a row, by whose mean the best is chosen: one alone may be luck [ours]
_READ, _ENOUGH = 60, 16  # rollouts of either side whose prompts are read; at least
_SYSTEM = {"system", "developer"}  # roles
_RECURS = 3  # steps at which a task is trained on: then it may be learned by heart [ours]


class _Evaluations(NamedTuple):
    """Holds the R evaluations of one name between whose steps something was trained. Arrays have the shape (R,)."""

    name: str
    steps: Ints
    means: Floats  # mean rewards of the evaluations
    trained: Floats  # mean rewards of the training's steps since the evaluation before

    @property
    def gaps(self) -> Floats:
        return self.trained - self.means


def _list_evaluations(run: Run) -> list[_Evaluations]:
    every = []
    for name, trend in run.evaluations.items():
        # An eval that is trained on, too, is compared with itself; another one with all that is trained on.
        rows = run.all.where(run.all.in_eval(name)) if run.all.in_eval(name).any() else run.all
        training = np.array(rows.by_step(rows.reward), float).reshape(-1, 2)
        steps, evaluated = np.array(trend, float).reshape(-1, 2).T
        ends = np.searchsorted(training[:, 0], steps, side="right")
        starts = np.append(0, ends[:-1])
        has_trained = ends > starts
        trained = np.zeros(0)
        if has_trained.any():
            sums = np.add.reduceat(training[: ends[-1], 1], starts[has_trained])
            trained = sums / (ends - starts)[has_trained]
        every.append(_Evaluations(name, steps[has_trained].astype(int), evaluated[has_trained], trained))
    return every


def _fit_rise(values: Floats) -> tuple[float, float]:
    """Return by how much a straight line through the values rises, and the probability of such a slope by chance: of
    values that are alike in neighbours it is larger.
    """
    places = np.arange(len(values)) - (len(values) - 1) / 2
    squares, free = float(places @ places), len(values) - 2
    slope = float(places @ values) / squares
    rest = values - values.mean() - slope * places
    error = math.sqrt(max(float(rest @ rest) / free / squares * inflation(rest), 1e-18))
    return slope * (len(values) - 1), student_tail(slope / error, free)


def _check(run: Run) -> Outcome:
    outcome = _check_gap(run)
    return outcome if isinstance(outcome, Card) else find_scored_otherwise(run) or outcome


def _check_gap(run: Run) -> Outcome:
    least = run.threshold("evaluation_gap", _GROWS) * spread(run)
    judged = [evaluation for evaluation in _list_evaluations(run) if len(evaluation.steps) >= _ROUNDS]
    if not judged:
        return NotJudged(f"Fewer than {_ROUNDS} evaluations with training between them.")
    worst = max(judged, key=lambda evaluation: _fit_rise(evaluation.gaps)[0])
    (gap, chance), (trained, _), (evaluated, of_level) = map(_fit_rise, (worst.gaps, worst.trained, worst.means))
    is_sure = chance < _CHANCE or _falls(run, worst, least)
    grows = gap > least and is_sure and evaluated <= max(_FOLLOWS * trained, 0.0)
    if not grows:  # a gap that does not grow may be harder tasks
        worst = max(judged, key=lambda evaluation: evaluation.gaps.min())
    prompts = _compare_prompts(run, worst.name) if grows or worst.gaps.min() > least else []
    if not grows and not prompts:
        size = f"from {figure(float(worst.gaps[0]))} to {figure(float(worst.gaps[-1]))}"
        return Below(
            f"Training reward less evaluation reward ({worst.name}): {size} in {len(worst.steps)} evaluations."
        )
    rounds = len(worst.steps)
    third = rounds // 3
    training, evaluation = (
        f"{figure(float(values[:third].mean()))} to {figure(float(values[-third:].mean()))}"
        for values in (worst.trained, worst.means)
    )
    first, last = (float(part.mean()) for part in (worst.gaps[:third], worst.gaps[-third:]))
    trend, evaluations = (
        tuple(zip(worst.steps.tolist(), values.tolist(), strict=True)) for values in (worst.gaps, worst.means)
    )
    # A gap that was there at first, and did not double, comes from the set-up.
    limit, is_old = first + (last - first) / 4, first > max(least, last - first)
    in_a_row = np.convolve(worst.means, np.full(_ROW, 1 / _ROW), "valid").tolist()
    best, times = int(np.argmax(in_a_row)), _count_steps_per_task(run)
    steps = worst.steps[best : best + _ROW].tolist()
    row = f"Best {_ROW} evaluations in a row: mean {figure(in_a_row[best])}, steps {steps[0]:,} to {steps[-1]:,}."
    # Of evaluations that differ by no more than chance none is the best.
    differ = grows and (of_level < _CHANCE or change(evaluations) is not None)
    return Card(
        id="evaluation_gap",
        title=f"Evaluation rewards go from {evaluation}, training rewards from {training}",
        cost=gap if grows else float(worst.gaps.mean()),
        evidence=(
            f"Means of the first and last {third} of {rounds} evaluations ({worst.name}), and of steps before.",
            *prompts,
            *[row] * differ,
            *([f"Half of the tasks were trained on at {times} steps or more."] if times > 1 else []),
        ),
        suggestion="Give both the same messages, the system message among them, then compare again."
        if prompts
        else _advise(
            steps[_ROW // 2] if differ else None, is_learned=trained > least and not is_old and times >= _RECURS
        ),
        where=f"mode:{Mode.EVAL}",
        own=np.zeros(len(run.rows), bool),
        trend=trend,
        since_step=trend[0][0] if is_old else find_crossing(trend, limit),
        half_step=None if is_old else find_crossing(trend, (first + last) / 2),
        limit=limit,
        measure="the gap",
        is_loss=False,
        is_of_evaluations=True,
    )


def _falls(run: Run, worst: _Evaluations, least: float) -> bool:
    """Return True if the rollouts of the last third of the evaluations get less than those of the first, beyond chance:
    few means that rise, then fall, fit no line.
    """
    if run.evaluated is None:
        return False
    rows, third = run.evaluated, len(worst.steps) // 3
    late = rows.step >= worst.steps[-third]
    among = rows.in_eval(worst.name) & (late | (rows.step <= worst.steps[third - 1]))
    strata = rows.task if tasks_recur(rows) else None
    fall = compare(np.where(among, rows.reward, np.nan), late, rows.group, strata)
    return is_beyond_chance(fall, _CHANCE) and -fall.value >= least


def _count_steps_per_task(run: Run) -> int:
    """Return the median number of steps at which a task was trained on; 0 without tasks."""
    pairs = np.unique(np.stack([run.all.task, run.all.step])[:, run.all.task >= 0], axis=1)
    counts = np.bincount(pairs[0])
    return int(np.median(counts[counts > 0])) if pairs.size else 0


def _compare_prompts(run: Run, name: str) -> list[str]:
    """Return a sentence if all rollouts of the one have a system message, and none of the other: those of the training
    and those of the evaluation that were read.
    """
    of = run.all.in_eval(name)
    sides = run.sample(of if of.any() else ~of, _READ), run.read_evaluated(name)
    messages = [[texts.messages for texts in side.values() if texts.messages] for side in sides]
    has_system = [[any(message.get("role") in _SYSTEM for message in prompt) for prompt in side] for side in messages]
    training, evaluation = has_system
    is_mixed = any(any(side) != all(side) for side in has_system)
    if min(len(training), len(evaluation)) < _ENOUGH or is_mixed or all(training) == all(evaluation):
        return []
    of_training, of_evaluation = ("all", "none") if all(training) else ("none", "all")
    sentence = (
        f"Of {len(training)} rollouts of the training that were read, {of_training} have a system message; of "
        f"{len(evaluation)} of the evaluation, {of_evaluation}."
    )
    return [sentence]


def _advise(best: int | None, *, is_learned: bool) -> str:
    keep = "" if best is None else f"eep the checkpoint of step {best:,}"
    if is_learned:
        return f"{keep and f'K{keep}. '}Train on more tasks, on each of them fewer times, or with a larger beta."
    inputs = "prompts, tools, sampling settings, reward functions"
    likewise = keep and f" If it is alike, k{keep}."
    return f"Compare what the evaluation is given with what the training is: {inputs}.{likewise}"


EVALUATION_GAP = check(
    "evaluation_gap",
    "Evaluation falls behind",
    f"In {_ROUNDS} or more evaluations during the training, the training's mean reward (of the steps since the "
    f"evaluation before) less the evaluation's grows by more than {_GROWS:.0%} of the range of rewards, by a straight "
    f"line whose slope has a probability by chance below {_CHANCE:g} (or the last third of the evaluations gets less "
    "than the first by as much, with the same, by groups), while the evaluation does not rise by "
    f"{_FOLLOWS:.0%} of what the training does; or it is larger than that at every evaluation, and all rollouts of "
    "the one that are read have a system message, and none of the other. If the first third of the evaluations already "
    "has such a gap, and it did not double, no later step is told. If evaluations differ by no more than chance, "
    "none is named as the best. If no gap is found: of the answers of an evaluation that equal their reference (as "
    f"`final_answers` reads them; {ENOUGH} or more) the share that counts as solved is at least "
    f"{100 * LESS:.0f} percentage points lower than in training, by the same functions, with a probability by chance "
    f"below {SURER:.1%}.",
    needs("an evaluation during the training", lambda run: [len(trend) for trend in run.evaluations.values()]),
    _check,
)
