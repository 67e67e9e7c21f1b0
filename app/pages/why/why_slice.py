"""A selection of rollouts for the diagnosis, and the report on it."""

from dataclasses import dataclass, replace
from typing import Any

from sqlalchemy import Connection

from logs_ui.app.parts.why_short import Coverage, looked_at
from logs_ui.app.web.open_database import id_of
from logs_ui.recorder import queries
from logs_ui.recorder.analysis.diagnose import Diagnosed
from logs_ui.recorder.diagnosis import Report, Rows, diagnose_rows, waterfall
from logs_ui.recorder.diagnosis.rollout_rows import Bools
from logs_ui.recorder.diagnosis.run_checks import FEW_ROLLOUTS
from logs_ui.recorder.errors import FilterError
from logs_ui.recorder.queries.filters.filter_values import read_whole
from logs_ui.recorder.queries.filters.rollout_filter import check_word
from logs_ui.recorder.queries.filters.terms import print_name
from logs_ui.recorder.storage.tables import Run


@dataclass(frozen=True)
class Slice:
    """A selection of rollouts; empty for those of the last steps.

    Attributes:
        step_min, step_max: inclusive; None for the run's first and last if the other is given.
        task, eval: empty for any.
    """

    step_min: int | None = None
    step_max: int | None = None
    task: str = ""
    eval: str = ""

    @classmethod
    def of(cls, step_min: str, step_max: str, task: str, eval_name: str) -> "Slice":
        """Reads a selection from an address.

        Raises:
            FilterError: not whole numbers, or the first is above the last.
        """
        given = (("step_min", step_min.strip()), ("step_max", step_max.strip()))
        low, high = (read_whole(name, text) if text else None for name, text in given)
        if low is not None and high is not None and low > high:
            raise FilterError("step_min", f"there is no step from {low} to {high}: swap them")
        return cls(low, high, task, eval_name)

    @property
    def pairs(self) -> dict[str, Any]:
        """The selection as parameters of an address."""
        return {"step_min": self.step_min, "step_max": self.step_max, "task": self.task, "eval": self.eval}

    @property
    def has_steps(self) -> bool:
        return self.step_min is not None or self.step_max is not None


_ALL = Slice()


def report_of(db: Connection, run: Run, known: Diagnosed, chosen: Slice) -> tuple[Report, Coverage]:
    """Diagnoses the selection on the scale of the whole run, with the trends up to its last step.

    Raises:
        FilterError: there is no such rollout.
    """
    if chosen == _ALL:
        return known.report, looked_at(known.rows, known.report)
    before = known.rows.where(_up_to(known.rows, chosen))
    selected = before if chosen.step_min is None else before.where(before.step >= chosen.step_min)
    if not len(selected):
        read = f"; of this large run a sample is read: {known.report.sample}" if known.report.sample else ""
        raise FilterError("step_min" if chosen.has_steps else "task", f"this selection has no rollout that ended{read}")
    within = " ".join(filter(None, [_mode(db, run), *_terms(chosen)]))
    scale = known.report.scale
    if len(selected) < FEW_ROLLOUTS:
        steps = int(selected.steps[0]), int(selected.steps[-1])
        report = Report((), (), waterfall(selected, scale), scale, steps, within, warming_up=True)
        return report, looked_at(selected, report)
    report = diagnose_rows(
        before,
        replace(
            known.settings,
            max_reward=scale.best,
            solved_at=min(scale.solved, scale.best),
            steps=len(selected.steps) if chosen.has_steps else known.settings.steps,
        ),
        known.config,
        {name: tuple(it for it in trend if it[0] <= selected.steps[-1]) for name, trend in known.scalars.items()},
        has_ended=True,
        within=within,
    )
    return replace(report, scale=scale), looked_at(before, report)


def _up_to(rows: Rows, chosen: Slice) -> Bools:
    """Returns (N,) True for rows of its task and eval up to its last step."""
    found: Bools = rows.step <= (rows.step.max() if chosen.step_max is None else chosen.step_max)
    for name, word, codes, known in (
        ("task", chosen.task, rows.task, rows.tasks),
        ("eval", chosen.eval, rows.eval, rows.evals),
    ):
        if word:
            check_word(name, name, word, known)
            found &= codes == known.index(word)
    return found


def _terms(chosen: Slice) -> list[str]:
    """Returns the selection as terms of a filter."""
    low, high = ("" if it is None else it for it in (chosen.step_min, chosen.step_max))
    steps = [f"step:{low}..{high}"] if chosen.has_steps else []
    return [
        f"{name}:{print_name(word)}" for name, word in (("task", chosen.task), ("eval", chosen.eval)) if word
    ] + steps


def _mode(db: Connection, run: Run) -> str:
    modes = {series.mode for series in queries.step_series(db, id_of(run))}
    return f"mode:{queries.mode_of(db, id_of(run))}" if len(modes) > 1 else ""
