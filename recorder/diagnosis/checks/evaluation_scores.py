"""Finds an evaluation that scores otherwise than the training: answers that equal their references do not count there,
while those of the training do. It is no check of its own: `evaluation_gap` asks for it where no gap grows.
"""

import numpy as np

from logs_ui.recorder.diagnosis.card import Card, Run
from logs_ui.recorder.diagnosis.compared_answers import Answers, find_column, read_answers, read_spread
from logs_ui.recorder.diagnosis.contrast import SURER, spread
from logs_ui.recorder.diagnosis.mean_difference import compare
from logs_ui.recorder.diagnosis.rollout_rows import Rows
from logs_ui.recorder.diagnosis.wording import listed
from logs_ui.recorder.vocabulary import Mode

LESS, ENOUGH = 0.2, 16  # of the equal answers count, less than in training; such answers, at least [ours]


def find_scored_otherwise(run: Run) -> Card | None:
    """Return the card on the evaluation of whose right answers fewest count, beside those of the training."""
    column = find_column(run) if run.evaluated is not None and run.scale.success.is_defined else None
    if run.evaluated is None or column is None:
        return None
    trained = read_spread(run, column)
    cards = [_compare(run, trained, _read(run, run.evaluated, name, column), name) for name in run.evaluated.present]
    return max(filter(None, cards), key=lambda card: card.cost or 0.0, default=None)


def _read(run: Run, evaluated: Rows, name: str, column: str) -> Answers:
    texts = dict(run.read_evaluated(name))
    return read_answers(run, evaluated.where(np.isin(evaluated.id, list(texts))), column, texts)


def _compare(run: Run, trained: Answers, evaluated: Answers, name: str) -> Card | None:
    """Return the card if fewer of the answers of an evaluation that equal their reference count than of the training's,
    beyond chance. Groups are the independent units.
    """
    sides = [(answers.rows.group[answers.equal], answers.solved[answers.equal]) for answers in (evaluated, trained)]
    counts = [(int(solved.sum()), len(solved)) for _, solved in sides]
    if min(of for _, of in counts) < ENOUGH:
        return None
    is_evaluated = np.repeat([True, False], [of for _, of in counts])
    groups = np.concatenate([sides[0][0], sides[1][0] + sides[0][0].max() + 1])
    count = compare(np.concatenate([solved for _, solved in sides]).astype(float), is_evaluated, groups)
    if count is None or count.chance is None or count.chance > SURER or -count.value < LESS:
        return None
    (counted, of), others = counts[0], " of ".join(f"{number:,}" for number in counts[1])
    read = (
        f"{len(evaluated.answer):,} final answers of the evaluation ({name}) were read, and {len(trained.answer):,} of"
    )
    refused = np.flatnonzero(evaluated.equal & ~evaluated.solved)
    examples = dict.fromkeys(f"{evaluated.written[row]} (for {evaluated.target[row]})" for row in refused.tolist())
    return Card(
        id="evaluation_gap",
        title=f"Of {of:,} evaluation answers that equal their reference {counted:,} count; of the training's, {others}",
        cost=-count.value * of / len(evaluated.answer) * spread(run),
        evidence=(
            f"{read} the training's, of all steps, and compared with the column {evaluated.name}.",
            f"Such answers that do not count: {listed(list(examples))}.",
        ),
        suggestion="Score the evaluation with the functions of the training, or compare how both read an answer: the "
        "evaluation is better than its rewards.",
        where=f"mode:{Mode.EVAL}",
        own=np.zeros(len(run.rows), bool),
        is_loss=False,
        is_of_evaluations=True,
    )
