"""Tasks that were solved before, and are not any more."""

from math import exp, lgamma

import numpy as np

from logs_ui.recorder.diagnosis import links
from logs_ui.recorder.diagnosis.card import Card, Diagnostic, Run
from logs_ui.recorder.diagnosis.contrast import spread
from logs_ui.recorder.diagnosis.measures import attempted, solved
from logs_ui.recorder.diagnosis.rollout_rows import Rows
from logs_ui.recorder.diagnosis.scale import Scale
from logs_ui.recorder.diagnosis.tables.task_table import ATTEMPTS, FORGOTTEN_CHANCE, Label, labels
from logs_ui.recorder.diagnosis.waterfall import losses
from logs_ui.recorder.diagnosis.windows import rise
from logs_ui.recorder.diagnosis.wording import figure, listed
from logs_ui.recorder.settings import SHARE

_FALL = 0.25


def _look(run: Run) -> Card | None:
    found = labels(run.all, run.scale)
    gone = np.flatnonzero(np.asarray(found.label == Label.FORGOTTEN, bool))
    tried, alike = attempted(run.all), alikeness(run.all, run.scale)
    limit = FORGOTTEN_CHANCE / max(int((np.bincount(run.all.task[tried]) >= ATTEMPTS).sum()), 1)
    gone = np.array(
        [
            task
            for task in gone.tolist()
            if _has_fallen(run, task, int(found.last_solved[task]))
            and _by_chance(run, task, int(found.last_solved[task]), alike) < limit
        ],
        np.int64,
    )
    own = np.isin(run.rows.task, gone)
    if not own.any():
        return None
    won, of = solved(run.all, run.scale), np.isin(run.all.task, gone)
    before = of & (run.all.step <= found.last_solved[run.all.task])
    share = float(won[before].mean())
    lost = np.maximum(losses(run.rows, run.scale), 0)[own].sum() / len(run.rows)
    names = [run.all.tasks[task] for task in gone.tolist()]
    trend = run.all.where(of).by_step(won[of].astype(float))
    said = "was solved before, and is not" if len(gone) == 1 else "were solved before, and are not"
    return Card(
        id="forgotten",
        title=f"{len(gone)} of {len(run.all.tasks)} tasks {said} any more",
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
        own=own,
    )


def chance_of_none(before: float, won: float, since: float) -> float:
    """How likely it is that of so many draws, in any order, none of the won ones is among the last `since`: without
    replacement, (before over won) / (before + since over won). Draws may be parts of one.
    """
    return exp(
        lgamma(before + 1) - lgamma(before - won + 1) - lgamma(before + since + 1) + lgamma(before + since - won + 1)
    )


def alikeness(rows: Rows, scale: Scale) -> float:
    """How much more often rollouts of one group end alike than others of their task do: the intraclass correlation of
    what is solved (Fisher 1925), over all tasks, 0 to 1; 1 where that cannot be told.
    """
    tried = attempted(rows)
    group, task, won = rows.group[tried], rows.task[tried], solved(rows, scale)[tried].astype(float)
    sizes = np.bincount(group)
    several = sizes[group] > 1
    with np.errstate(invalid="ignore", divide="ignore"):
        of_group, of_task = (np.bincount(code, weights=won) / np.bincount(code) for code in (group, task))
    total = float(np.sum((won - of_task[task])[several] ** 2))
    within = (won - of_group[group])[several] ** 2 * (sizes / np.maximum(sizes - 1, 1))[group[several]]
    return float(np.clip(1 - within.sum() / total, 0, 1)) if total > 0 else 1.0


def _by_chance(run: Run, task: int, last: int, alike: float) -> float:
    """That a task which changes nothing fails so often in a row. Rollouts of a group that end alike count less than as
    many of different groups: Kish's design effect.
    """
    own = attempted(run.all) & (run.all.task == task)
    before, won = own & (run.all.step <= last), own & solved(run.all, run.scale)
    sizes = np.bincount(run.all.group[own])
    effect = 1 + (float(sizes[sizes > 0].mean()) - 1) * alike
    return chance_of_none(before.sum() / effect, won.sum() / effect, (own.sum() - before.sum()) / effect)


def _has_fallen(run: Run, task: int, last: int) -> bool:
    """Whether the task's rewards have, too: of graded ones the best alone may be missed by little."""
    own = run.all.task == task
    fall = rise(run.all.reward[own & (run.all.step <= last)], run.all.reward[own & (run.all.step > last)])
    return fall.is_sure and -fall.value > run.threshold("forgotten", _FALL) * spread(run)


DIAGNOSTIC = Diagnostic(
    "forgotten",
    "Forgotten",
    f"Tasks that were solved, and then not once in {ATTEMPTS} or more attempts, which would happen by chance in fewer "
    f"than {FORGOTTEN_CHANCE:.0%} of cases were they solved as often as before, nor in more of all runs with as many "
    "tasks and groups as much alike were nothing forgotten; "
    f"and whose mean reward fell by more than {_FALL:.0%} of the way from the worst to the best.",
    "ours; the number of attempts is verifiers'",
    lambda run: None if (run.rows.task >= 0).any() else "tasks",
    _look,
    limits=SHARE,
    position=220,
    explained_by=(
        "infrastructure",
        "invalid_reward",
        "disagreement",
        "inconsistent",
        "parse_failures",
        "truncation",
        "loops",
        "task_mix",
        "turn_limit:decides",
        "never_acted",
        "diversity",
        "degenerate_text",
        "hacking",
        "length",
        "reward_parts:decides",
    ),
    is_behaviour=True,
)
