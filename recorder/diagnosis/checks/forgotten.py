"""Finds regressed tasks: they were solved before, and are no longer."""

from math import exp, lgamma

import numpy as np

from logs_ui.recorder.diagnosis import links
from logs_ui.recorder.diagnosis.card import Card, Diagnostic, Run
from logs_ui.recorder.diagnosis.contrast import spread
from logs_ui.recorder.diagnosis.measures import attempted, solved
from logs_ui.recorder.diagnosis.rollout_rows import Rows, means
from logs_ui.recorder.diagnosis.scale import Scale
from logs_ui.recorder.diagnosis.tables.task_table import ATTEMPTS, FORGOTTEN_CHANCE, Label, labels
from logs_ui.recorder.diagnosis.windows import rise
from logs_ui.recorder.diagnosis.wording import figure, listed
from logs_ui.recorder.settings import SHARE

_FALL = 0.25


def _look(run: Run) -> Card | None:
    found, alike = labels(run.all, run.scale), alikeness(run.all, run.scale)
    limit = FORGOTTEN_CHANCE / max(int((np.bincount(run.all.task[attempted(run.all)]) >= ATTEMPTS).sum()), 1)
    gone = np.array(
        [
            task
            for task, last in enumerate(found.last_solved.tolist())
            if found.label[task] == Label.FORGOTTEN
            and _has_fallen(run, task, last)
            and _by_chance(run, task, last, alike) < limit
        ],
        np.int64,
    )
    own = np.isin(run.rows.task, gone)
    if not own.any():
        return None
    won, of = solved(run.all, run.scale), np.isin(run.all.task, gone)
    share = float(won[of & (run.all.step <= found.last_solved[run.all.task])].mean())
    names = [run.all.tasks[task] for task in gone.tolist()]
    verb = "was solved before, and no longer is" if len(gone) == 1 else "were solved before, and no longer are"
    return Card(
        id="forgotten",
        title=f"{len(gone)} of {len(run.all.tasks)} tasks {verb}",
        cost=float(run.lost[own].sum()) / len(run.rows) * share,
        evidence=(
            (
                f"{listed(names)}: solved in {figure(100 * share)}% of the attempts up to step "
                f"{found.last_solved[gone].max()}, and in none of {found.attempts_since[gone].sum()} since."
            ),
        ),
        suggestion="Mix them in again, lower the learning rate or add a KL term, and return to an earlier checkpoint.",
        where=links.tasks(names),
        trend=run.all.where(of).by_step(won[of]),
        since_step=int(found.last_solved[gone].min()) + 1,
        own=own,
    )


def chance_of_none(before: float, won: float, since: float) -> float:
    """Return the probability that none of the solved attempts is among the last `since` attempts, in random order.

    Drawn without replacement it is C(before, won) / C(before + since, won). The numbers need not be whole.
    """
    return exp(
        lgamma(before + 1) - lgamma(before - won + 1) - lgamma(before + since + 1) + lgamma(before + since - won + 1)
    )


def alikeness(rows: Rows, scale: Scale) -> float:
    """Return how much more often rollouts of one group end alike than others of their task do, 0 to 1.

    It is the intraclass correlation of being solved (Fisher 1925), over all tasks; 1 if it cannot be computed.
    """
    tried = attempted(rows)
    group, task, won = rows.group[tried], rows.task[tried], solved(rows, scale)[tried].astype(float)
    sizes = np.bincount(group)
    several = sizes[group] > 1
    of_group, of_task = (means(code, won, int(code.max(initial=-1)) + 1) for code in (group, task))
    total = float(np.sum((won - of_task[task])[several] ** 2))
    within = (won - of_group[group])[several] ** 2 * (sizes / np.maximum(sizes - 1, 1))[group[several]]
    return float(np.clip(1 - within.sum() / total, 0, 1)) if total > 0 else 1.0


def _by_chance(run: Run, task: int, last: int, alike: float) -> float:
    """Return the probability of this failure streak if the task's success rate had not changed.

    Rollouts of a group end alike, so they count less than independent ones (Kish's design effect).
    """
    own = attempted(run.all) & (run.all.task == task)
    before, won = own & (run.all.step <= last), own & solved(run.all, run.scale)
    sizes = np.bincount(run.all.group[own])
    effect = 1 + (float(sizes[sizes > 0].mean()) - 1) * alike
    return chance_of_none(before.sum() / effect, won.sum() / effect, (own.sum() - before.sum()) / effect)


def _has_fallen(run: Run, task: int, last: int) -> bool:
    """Return True if the task's mean reward fell, too: graded rewards may miss the threshold for success by little."""
    own = run.all.task == task
    fall = rise(run.all.reward[own & (run.all.step <= last)], run.all.reward[own & (run.all.step > last)])
    return fall.is_sure and -fall.value > run.threshold("forgotten", _FALL) * spread(run)


DIAGNOSTIC = Diagnostic(
    "forgotten",
    "Regressed tasks",
    f"Tasks that were solved, and then failed in {ATTEMPTS} or more attempts in a row, if the probability of any such "
    f"streak in the run is below {FORGOTTEN_CHANCE:.0%} at unchanged success rates (corrected for the number of tasks "
    f"and for groups that end alike), and whose mean reward fell by more than {_FALL:.0%} of the range of rewards.",
    "ours; the number of attempts is verifiers'",
    lambda run: None if (run.rows.task >= 0).any() else "tasks",
    _look,
    limits=SHARE,
    position=220,
    explained_by=(
        *("infrastructure", "invalid_reward", "disagreement", "inconsistent", "parse_failures", "truncation"),
        *("loops", "task_mix", "turn_limit:decides", "never_acted", "diversity", "degenerate_text", "hacking"),
        *("length", "reward_parts:decides"),
    ),
    is_behaviour=True,
)
