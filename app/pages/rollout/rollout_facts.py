"""Makes what stands beside a rollout: what it lost, its group, and the details of how it was made."""

from collections.abc import Iterable
from dataclasses import dataclass
from operator import itemgetter
from typing import NamedTuple

from sqlalchemy import Connection

from logs_ui.app.pages.rollout.record_texts import evidence, list_named_values
from logs_ui.app.parts.charts import Scale, stacked
from logs_ui.app.parts.diagnoses import cached_diagnosis
from logs_ui.app.parts.loss_waterfall import ICONS
from logs_ui.app.parts.words import ENDED, Word
from logs_ui.app.web import urls
from logs_ui.recorder import queries
from logs_ui.recorder.diagnosis.rollout_rows import SAME
from logs_ui.recorder.diagnosis.waterfall import cause_of
from logs_ui.recorder.queries import Rollout
from logs_ui.recorder.storage.tables import EvaluationRow, Run
from logs_ui.recorder.vocabulary import LossCause


class Loss(NamedTuple):
    """The cause that ended a rollout, and the reward that it lost."""

    word: Word
    # The run's best reward minus the rollout's, at least 0; None if the run is not diagnosed yet, has no best reward,
    # or its diagnosis does not cover the rollout.
    lost: float | None
    best: float | None
    solved: str  # the definition of solved if the rollout meets it; else ""
    address: str


class Member(NamedTuple):
    """Describes one rollout of the group, and its dot on the strip; None without a reward."""

    row: EvaluationRow
    dot: tuple[float, float] | None


@dataclass(frozen=True)
class Group:
    """The rollouts of the same prompt, by generation."""

    members: list[Member]
    strip: Scale  # scale of their dots
    rivals: list[tuple[str, int]]  # names and ids of those to compare it with: best and worst, or another as good


@dataclass(frozen=True)
class Details:
    """Describes how the rollout was made and recorded."""

    # The weakest evidence of its call attribution, and its meaning; None without calls.
    evidence: tuple[str, str] | None
    metrics: list[tuple[str, str]]
    notes: list[tuple[str, str]]
    sampling: list[tuple[str, str]]
    waits: list[tuple[str, float]]  # what it waited for after it began, and for how many seconds


def make_details(rollout: Rollout) -> Details:
    """Make the details of a rollout."""
    return Details(
        evidence=evidence(rollout),
        metrics=list_named_values(rollout.metadata.get("metrics")),
        notes=list_named_values(rollout.metadata.get("notes")),
        sampling=list_named_values(rollout.sampling),
        waits=waits(rollout.row),
    )


def make_group(row: EvaluationRow, rows: list[EvaluationRow]) -> Group:
    """Make the group of a rollout from its `rows`."""
    strip = Scale.over([member.reward for member in rows if member.reward is not None])
    dots = stacked([member.reward for member in rows], strip)
    return Group([Member(*pair) for pair in zip(rows, dots, strict=True)], strip, rivals(row, rows))


def rivals(row: EvaluationRow, group: Iterable[EvaluationRow]) -> list[tuple[str, int]]:
    """Return names and ids of the best and the worst of the group, if they differ from a scored rollout in reward;
    else of another.
    """
    scored = sorted(
        ((member.reward, member.id or 0) for member in group if member.reward is not None), key=itemgetter(0)
    )
    if row.reward is None or len(scored) < 2:
        return []
    ends = ("the best", scored[-1]), ("the worst", scored[0])
    others = [("another", row_id) for _, row_id in scored if row_id != row.id][:1]
    return [(name, row_id) for name, (reward, row_id) in ends if reward != row.reward] or others


def waits(row: EvaluationRow) -> list[tuple[str, float]]:
    """Return the seconds until it returned, and from then until it was scored, of those that took any."""
    moments = (("returned after", row.created, row.returned), ("scored after", row.returned, row.scored))
    return [(name, (end - begin) / 1e6) for name, begin, end in moments if begin and end and end > begin]


def find_loss(db: Connection, run: Run, row: EvaluationRow) -> Loss | None:
    """Return the loss, or None if the rollout has no cause yet. Never waits for a diagnosis."""
    cause = cause_of(row)
    if cause is None:
        return None
    diagnosis = cached_diagnosis(db, run) if row.mode == queries.mode_of(db, row.run_id) else None
    best, solved = None, ""
    # A diagnosis of a sample may not have read the rollout.
    if diagnosis is not None and len(own_row := diagnosis.rows.where(diagnosis.rows.id == row.id)):
        scale = diagnosis.report.scale
        best = None if scale.is_flat else float(scale.bests(diagnosis.rows)[diagnosis.rows.id == row.id][0])
        solved = scale.success.description if scale.success.solved(own_row).any() else ""
    lost = None if best is None else max(best - (row.reward or 0.0), 0.0)
    if lost is not None and lost <= SAME * max(abs(best or 0.0), 1):
        lost = 0.0
    is_low = cause.id != LossCause.WRONG_ANSWER or lost
    word = Word(cause.name, ICONS[cause.id], "quiet", cause.meaning) if is_low else ENDED
    return Loss(word, lost, best, solved, urls.why(run.uid))
