"""Compares the first steps of a run with its last."""

from dataclasses import dataclass

import numpy as np

from logs_ui.recorder.diagnosis.card import Run
from logs_ui.recorder.diagnosis.rollout_rows import Floats, Rows

_ERRORS = 2.0  # standard errors


def windows(run: Run) -> tuple[Rows, Rows] | None:
    """Return the rollouts of the first steps and of as many last steps; None for a single step.

    If the last steps are more than half of the run, its first and its last third are compared.
    """
    steps = run.all.steps
    if len(steps) < 2:
        return None
    count = len(run.rows.steps)
    if 2 * count <= len(steps):
        return run.all.where(run.all.step <= steps[count - 1]), run.rows
    third = max(len(steps) // 3, 1)
    return run.all.where(run.all.step <= steps[third - 1]), run.all.where(run.all.step >= steps[-third])


@dataclass(frozen=True)
class Rise:
    """The change of a mean.

    Attributes:
        value: `after - before`; 0 if either is not known.
        is_sure: True if the change is larger than some standard errors (two by default).
    """

    before: float
    after: float
    value: float
    is_sure: bool


def rise(before: Floats, after: Floats, *, errors: float = _ERRORS) -> Rise:
    """Return the change between the means of the finite values."""
    first, last = before[np.isfinite(before)], after[np.isfinite(after)]
    if not len(first) or not len(last):
        return Rise(float("nan"), float("nan"), 0.0, is_sure=False)
    value = float(last.mean() - first.mean())
    error = float(np.sqrt(first.var() / len(first) + last.var() / len(last)))
    return Rise(float(first.mean()), float(last.mean()), value, abs(value) > max(errors * error, 1e-9))
