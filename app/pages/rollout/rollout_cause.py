"""The cause of one rollout's loss, by the same rule as the run's diagnosis."""

from typing import NamedTuple

from sqlalchemy import Connection

from logs_ui.app.parts import words
from logs_ui.app.parts.diagnoses import cached_diagnosis
from logs_ui.app.parts.loss_waterfall import ICONS
from logs_ui.app.parts.words import Word
from logs_ui.app.web import urls
from logs_ui.recorder import queries
from logs_ui.recorder.diagnosis.rollout_rows import SAME
from logs_ui.recorder.diagnosis.waterfall import cause_of
from logs_ui.recorder.storage.tables import EvaluationRow, Run


class Loss(NamedTuple):
    """The cause that ended a rollout, and the reward that it lost.

    Attributes:
        lost: the run's best reward minus the rollout's, at least 0; None if the run is not diagnosed yet, or its
            diagnosis covers other rollouts.
        best: of the run; None likewise.
        address: of the run's diagnosis.
    """

    word: Word
    lost: float | None
    best: float | None
    address: str


def loss_of(db: Connection, run: Run, row: EvaluationRow) -> Loss | None:
    """Returns the loss, or None if the rollout has no cause yet. Never waits for a diagnosis."""
    cause = cause_of(row)
    if cause is None:
        return None
    known = cached_diagnosis(db, run) if row.mode == queries.mode_of(db, row.run_id) else None
    best = None if known is None else known.report.scale.best
    lost = None if best is None else max(best - (row.reward or 0.0), 0.0)
    if lost is not None and lost <= SAME * max(abs(best or 0.0), 1):
        lost = 0.0
    name = cause.name if lost else words.ended_by(cause)
    return Loss(Word(name, ICONS[cause.id], "quiet", cause.meaning), lost, best, urls.why(run.uid))
