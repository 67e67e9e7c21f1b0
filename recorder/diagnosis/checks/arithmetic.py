"""Puts what an audit of the newest rollouts finds above all other findings, for these may follow from it."""

from logs_ui.recorder.diagnosis.card import NotJudged, Outcome, Run, check
from logs_ui.recorder.settings import NO_THRESHOLD


def _check(run: Run) -> Outcome:
    return NotJudged("The audit needs a recorded run.") if run.read_arithmetic is None else run.read_arithmetic(run)


DIAGNOSTIC = check(
    "arithmetic",
    "Arithmetic of the training",
    "The checks of `logs-ui audit`, over the newest groups of the last steps, some 256 rollouts: what the trainer said "
    "of them is computed again. Prompts that a group mixes have a check of their own; advantages that follow from the "
    "rewards in no way that was tried are no finding here, for a trainer may have a way of its own.",
    lambda _: None,
    _check,
    source="each has its own, see docs/audit.md",
    limits=NO_THRESHOLD,
)
