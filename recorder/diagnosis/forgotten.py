"""Tasks that were solved before, and are not any more."""

import numpy as np

from logs_ui.recorder.diagnosis import links
from logs_ui.recorder.diagnosis.card import Card, Diagnostic, Run
from logs_ui.recorder.diagnosis.contrast import spread
from logs_ui.recorder.diagnosis.say import figure, listed
from logs_ui.recorder.diagnosis.task_table import ATTEMPTS, FORGOTTEN_CHANCE, Label, labels
from logs_ui.recorder.diagnosis.tasks import solved
from logs_ui.recorder.diagnosis.waterfall import losses
from logs_ui.recorder.diagnosis.windows import rise

_FALL = 0.25


def _look(run: Run) -> Card | None:
    found = labels(run.all, run.scale)
    gone = np.flatnonzero(np.asarray(found.label == Label.FORGOTTEN, bool))
    gone = np.array([task for task in gone.tolist() if _has_fallen(run, task, int(found.last_solved[task]))], np.int64)
    own = np.isin(run.rows.task, gone)
    if not own.any():
        return None
    won, of = solved(run.all, run.scale), np.isin(run.all.task, gone)
    before = of & (run.all.step <= found.last_solved[run.all.task])
    share = float(won[before].mean())
    lost = np.maximum(losses(run.rows, run.scale), 0)[own].sum() / len(run.rows)
    names = [run.all.tasks[task] for task in gone.tolist()]
    trend = run.all.where(of).by_step(won[of].astype(float))
    return Card(
        id="forgotten",
        title=f"{len(gone)} of {len(run.all.tasks)} tasks were solved before, and are not any more",
        cost=float(lost) * share,
        evidence=(
            (
                f"{listed(names)}: solved in {figure(100 * share)}% of the attempts up to step "
                f"{found.last_solved[gone].max()}, and in none of {found.attempts_since[gone].sum()} since."
            ),
        ),
        suggestion="Mix them in again, lower the learning rate or add a KL term, and go back to a checkpoint before.",
        where=links.tasks(names),
        trend=trend,
        since_step=int(found.last_solved[gone].min()) + 1,
        explains=("never_solved", "dead_groups", "turn_limit"),
        own=own,
    )


def _has_fallen(run: Run, task: int, last: int) -> bool:
    """Whether the task's rewards have, too: of graded ones the best alone may be missed by little."""
    own = run.all.task == task
    fall = rise(run.all.reward[own & (run.all.step <= last)], run.all.reward[own & (run.all.step > last)])
    return fall.is_sure and -fall.value > run.threshold("forgotten", _FALL) * spread(run)


DIAGNOSTIC = Diagnostic(
    "forgotten",
    "Forgotten",
    f"Tasks that were solved, and then not once in {ATTEMPTS} or more attempts, which would happen by chance in fewer "
    f"than {FORGOTTEN_CHANCE:.0%} of cases were they solved as often as before; "
    f"and whose mean reward fell by more than {_FALL:.0%} of the way from the worst to the best.",
    "ours; the number of attempts is verifiers'",
    lambda run: None if (run.rows.task >= 0).any() else "tasks",
    _look,
)
