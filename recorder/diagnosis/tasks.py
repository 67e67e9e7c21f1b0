"""Tasks that are never solved, and a mix of tasks that became harder."""

import numpy as np

from logs_ui.recorder.diagnosis.card import Card, Diagnostic, Run
from logs_ui.recorder.diagnosis.dead_groups import SAME
from logs_ui.recorder.diagnosis.rows import Bools, Floats, Rows
from logs_ui.recorder.diagnosis.say import figure, listed, percent
from logs_ui.recorder.diagnosis.settings import Scale

_ATTEMPTS = 10
_SHIFT = 0.5


def _means(rows: Rows) -> tuple[Floats, Floats]:
    """(T,) rollouts that have a reward, and their mean, of each task; NaN without any."""
    known = np.isfinite(rows.reward) & (rows.task >= 0)
    count = np.bincount(rows.task[known], minlength=len(rows.tasks)).astype(float)
    sums = np.bincount(rows.task[known], weights=rows.reward[known], minlength=len(rows.tasks))
    with np.errstate(invalid="ignore"):
        return count, sums / count


def solved(rows: Rows, scale: Scale) -> Bools:
    """(N,)"""
    return np.nan_to_num(rows.reward, nan=-np.inf) >= scale.solved - SAME


def never_solved(run: Run) -> Bools:
    """(T,) tasks with many attempts over the whole run, none of which solved them."""
    rows = run.all
    tried = rows.scored & (rows.task >= 0)
    attempts = np.bincount(rows.task[tried], minlength=len(rows.tasks))
    wins = np.bincount(rows.task[tried & solved(rows, run.scale)], minlength=len(rows.tasks))
    limit = run.threshold("never_solved", _ATTEMPTS)
    hopeless: Bools = (attempts >= limit) & (wins == 0)
    return hopeless


def _look_never(run: Run) -> Card | None:
    rows = run.rows
    hopeless = never_solved(run)
    own = np.isin(rows.task, np.flatnonzero(hopeless))
    if not own.any() or hopeless.all():
        return None  # where none at all is solved, something else is wrong than some tasks
    lost = np.maximum(run.scale.best - np.nan_to_num(rows.reward), 0)
    others = float(lost[~own].mean()) if (~own).any() else 0.0
    cost = float(np.maximum(lost[own] - others, 0).sum()) / len(rows)
    names = [name for name, is_hopeless in zip(rows.tasks, hopeless, strict=True) if is_hopeless]
    attempts = int(np.isin(run.all.task, np.flatnonzero(hopeless)).sum())
    return Card(
        id="never_solved",
        title=f"{int(hopeless.sum())} of {len(rows.tasks)} tasks are never solved",
        cost=cost,
        evidence=(
            f"{listed(names)}: {attempts} attempts, none at {figure(run.scale.solved)} or more.",
            f"They are {percent(float(own.mean()))} of the rollouts of these steps.",
        ),
        suggestion="Leave them out, begin with easier ones, or check by hand that they can be solved at all.",
        where="task:" + ",".join(f'"{name}"' for name in names[:20]),
        explains=("dead_groups",),
    )


def _earlier(run: Run) -> Rows | None:
    """As many steps as are looked at, from the beginning, and before those; None where there are none."""
    end = min(run.all.steps[len(run.rows.steps) - 1] + 1, run.rows.steps[0])
    return run.all.where(run.all.step < end) if end > run.all.steps[0] else None


def _look_mix(run: Run) -> Card | None:
    """The change of the mean is the change within tasks, at the mean of both mixes, and that of the mix, at the mean of
    both means (the midpoint decomposition of Kitagawa 1955).
    """
    before = _earlier(run)
    if before is None:
        return None
    (n0, m0), (n1, m1) = _means(before), _means(run.rows)
    w0, w1 = n0 / max(n0.sum(), 1), n1 / max(n1.sum(), 1)
    m0, m1 = np.where(np.isnan(m0), m1, m0), np.where(np.isnan(m1), m0, m1)
    mix = float(np.nansum((w1 - w0) * (m0 + m1) / 2))
    within = float(np.nansum((m1 - m0) * (w0 + w1) / 2))
    limit = run.threshold("task_mix", _SHIFT)
    if mix >= 0 or -mix <= 0.02 * max(abs(run.scale.best), SAME) or -mix < limit * (abs(mix) + abs(min(within, 0))):
        return None
    more = np.argsort(w0 - w1)[:3]
    said = [f"{run.rows.tasks[t]} {percent(float(w0[t]))} → {percent(float(w1[t]))}" for t in more if w1[t] > w0[t]]
    return Card(
        id="task_mix",
        title=f"Tasks became harder: the mix of tasks takes {figure(-mix)} off the mean reward",
        cost=-mix,
        evidence=(f"Within tasks the mean changed by {figure(within)}.", f"More of: {', '.join(said)}."),
        suggestion="Compare task by task: the policy did not get worse, it was given other tasks.",
        where="task:" + ",".join(f'"{run.rows.tasks[t]}"' for t in more if w1[t] > w0[t]),
        explains=("never_solved", "dead_groups"),
    )


def _missing(run: Run) -> str | None:
    return None if (run.rows.task >= 0).any() else "tasks"


NEVER_SOLVED = Diagnostic(
    "never_solved",
    "Never solved",
    f"Tasks of which none of {_ATTEMPTS} or more attempts reached the reward that counts as solved, while others did.",
    "verifiers",
    _missing,
    _look_never,
)
TASK_MIX = Diagnostic(
    "task_mix",
    "Mix of tasks",
    "The change of the mean reward since the first steps, split into change within tasks and change of the mix; shown "
    "where the mix took at least half of what was lost.",
    "ours, by Kitagawa's decomposition",
    _missing,
    _look_mix,
)
