"""Finds an evaluation that scores differently from the training: answers that equal their references do not count
there, while those of the training do. `evaluation_gap` asks for it where no gap grows.
"""

import numpy as np

from logs_ui.recorder.diagnosis.card import Card, Run
from logs_ui.recorder.diagnosis.compared_answers import Answers, find_column, read_answers, read_spread
from logs_ui.recorder.diagnosis.contrast import SURER, spread
from logs_ui.recorder.diagnosis.mean_difference import compare, is_beyond_chance
from logs_ui.recorder.diagnosis.rollout_rows import Rows
from logs_ui.recorder.diagnosis.wording import listed
from logs_ui.recorder.vocabulary import Mode

LESS, ENOUGH = 0.2, 16  # of the equal answers count, less than in training; such answers, at least [ours]


def find_scored_otherwise(run: Run) -> Card | None:
    """Return the card on the evaluation in which the difference to the training costs most; None without one."""
    column = find_column(run) if run.evaluated is not None and run.scale.success.is_defined else None
    if run.evaluated is None or column is None:
        return None
    spread_answers = read_spread(run, column)
    cards = [
        _compare(run, spread_answers, run.evaluated.where(run.evaluated.in_eval(name)), name)
        for name in run.evaluated.present
    ]
    return max(filter(None, cards), key=lambda card: card.cost or 0.0, default=None)


def _list_scoring(rows: Rows) -> set[str]:
    """Return the functions that score any of these rollouts."""
    return {name for name, values in rows.values.items() if np.isfinite(values).any()}


def _compare(run: Run, trained: Answers, every: Rows, name: str) -> Card | None:
    """Return the card if a smaller share of the answers of an evaluation that equal their reference counts as solved
    than of the training's, beyond chance. Groups are the independent units. None if other functions score it. One that
    is trained on, too, is compared with itself.
    """
    texts, countable = dict(run.read_evaluated(name)), run.scale.success.countable
    evaluated = read_answers(run, every.where(np.isin(every.id, list(texts))), trained.column, texts)
    is_trained = run.all.in_eval(name)
    training = run.all.where(is_trained) if is_trained.any() else run.all
    if _list_scoring(every) != _list_scoring(training):
        return None
    beside = np.isin(trained.rows.id, training.id)
    chosen = evaluated.equal & countable(evaluated.rows), trained.equal & countable(trained.rows) & beside
    sides = [
        (answers.rows.group[of], answers.solved[of]) for answers, of in zip((evaluated, trained), chosen, strict=True)
    ]
    (counted, count), (counted_of_training, count_of_training) = [
        (int(solved.sum()), len(solved)) for _, solved in sides
    ]
    if min(count, count_of_training) < ENOUGH:
        return None
    is_evaluated = np.repeat([True, False], [count, count_of_training])
    groups = np.concatenate([sides[0][0], sides[1][0] + sides[0][0].max() + 1])
    difference = compare(np.concatenate([solved for _, solved in sides]).astype(float), is_evaluated, groups)
    if not is_beyond_chance(difference, SURER) or -difference.value < LESS:
        return None
    refused = np.flatnonzero(chosen[0] & ~evaluated.solved)
    examples = dict.fromkeys(f"{evaluated.written[row]} (for {evaluated.target[row]})" for row in refused.tolist())
    return Card(
        id="evaluation_gap",
        title=f"{counted:,} of {count:,} evaluation answers that equal their reference count as solved; in training "
        f"{counted_of_training:,} of {count_of_training:,} do",
        cost=-difference.value * count / len(evaluated.answer) * spread(run),
        evidence=(
            f"{len(evaluated.answer):,} answers were read in the evaluation ({name}), {beside.sum():,} in training.",
            f"Reference: {trained.name}. Solved: {run.scale.success.description}.",
            f"Such answers that do not count: {listed(list(examples))}.",
        ),
        suggestion="Score the evaluation with the functions of the training, or compare how each extracts the answer: "
        "the evaluation is better than its rewards.",
        where=f"mode:{Mode.EVAL}",
        own=np.zeros(len(run.rows), bool),
        is_loss=False,
        is_of_evaluations=True,
    )
