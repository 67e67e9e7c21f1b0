"""Finds tasks that regressed, tasks that are never solved, and a mix of tasks that became harder."""

import numpy as np

from logs_ui.recorder.diagnosis import links
from logs_ui.recorder.diagnosis.card import Below, Card, Diagnostic, NotJudged, Outcome, Run
from logs_ui.recorder.diagnosis.change_point import below
from logs_ui.recorder.diagnosis.checks.reward_variance import follows_prompt
from logs_ui.recorder.diagnosis.contrast import spread, windows
from logs_ui.recorder.diagnosis.measures import attempted, extent, tried
from logs_ui.recorder.diagnosis.rollout_rows import SAME, Bools, Floats, Rows, distinct, means
from logs_ui.recorder.diagnosis.tables.task_families import by_family
from logs_ui.recorder.diagnosis.tables.task_table import ATTEMPTS, FALLEN, FORGOTTEN_CHANCE, Label, labels
from logs_ui.recorder.diagnosis.waterfall import losses
from logs_ui.recorder.diagnosis.wording import figure, listed, percent
from logs_ui.recorder.settings import FROM_ONE, SHARE
from logs_ui.recorder.vocabulary import Lack, LossCause

_SHIFT, _LEAST, _ERRORS = 0.5, 0.05, 2.5  # for the mix of tasks


def _look_forgotten(run: Run) -> Outcome:
    if not run.scale.success.is_defined:
        return _UNDEFINED
    grouped = by_family(run.all)
    rows, what = (run.all, "tasks") if grouped is None else (grouped, "task families")
    often = int((np.bincount(rows.task[tried(rows, run.scale)]) >= ATTEMPTS).sum())
    if often == 0:
        return NotJudged(f"No task has {ATTEMPTS} attempts yet.", Lack.TASKS)
    found = labels(rows, run.scale, run.settings)
    gone = np.flatnonzero(found.label == Label.FORGOTTEN)
    of = tried(rows, run.scale) & np.isin(rows.task, gone)
    own = np.isin(rows.task, gone)[rows.step >= run.rows.steps[0]]
    if not own.any():
        return Below(f"None of {often:,} {what} with {ATTEMPTS} or more attempts regressed.")
    is_late = rows.step >= found.since[rows.task]
    won, loss = run.scale.success.solved(rows), losses(rows, run.scale)
    before, since = of & ~is_late, of & is_late
    share = float(won[since].mean())
    names, first = [rows.tasks[task] for task in gone.tolist()], int(found.since[gone].min())
    return Card(
        id="forgotten",
        title=f"{len(gone)} of {len(rows.tasks):,} {what} regressed: {percent(share)} of attempts solve "
        f"{'it' if len(gone) == 1 else 'them'} now, {percent(float(won[before].mean()))} did before",
        cost=max(float((run.lost[own] - loss[before].mean()).sum()), 0.0) / len(run.rows),
        evidence=(
            (
                f"{listed(names)}: {won[before].sum()} of {before.sum()} attempts solved before, {won[since].sum()} of "
                f"{since.sum()} since. Solved: {run.scale.success.said}."
            ),
        ),
        suggestion="Return to an earlier checkpoint, then lower the learning rate, add a KL term, or sample these "
        "tasks more often.",
        where=links.tasks(names) if grouped is None else links.tasks(names, "family"),
        trend=rows.where(of).by_step(won[of]),
        since_step=first,
        own=own,
    )


def _means(rows: Rows) -> tuple[Floats, Floats]:
    """Return (T,) number of rollouts with a reward, and (T,) their mean, NaN without any."""
    task, reward = rows.task[attempted(rows)], rows.reward[attempted(rows)]
    return np.bincount(task, minlength=len(rows.tasks)).astype(float), means(task, reward, len(rows.tasks))


def never_solved(run: Run) -> Bools:
    """Return (T,) True for tasks that none of many attempts over the whole run solved."""
    found: Bools = labels(run.all, run.scale, run.settings).label == Label.NEVER
    return found


def _look_never(run: Run) -> Outcome:
    if not run.scale.success.is_defined:
        return _UNDEFINED
    rows = run.rows
    hopeless = never_solved(run)
    own = np.isin(rows.task, np.flatnonzero(hopeless))
    heard = run.all.env_reward_sum
    is_out_of_reach = np.isfinite(heard).any() and extent(heard) <= SAME  # the environment rewards no rollout either
    least = int(run.threshold("never_solved", ATTEMPTS))
    often = int((np.bincount(run.all.task[tried(run.all, run.scale)]) >= least).sum())
    if not often:
        return NotJudged(f"No task has {least} attempts yet.", Lack.TASKS)
    if not own.any():
        gone = f"; {hopeless.sum():,} were never solved, and do not occur in the last steps" if hopeless.any() else ""
        return Below(f"{often - hopeless.sum():,} tasks with {least}+ attempts were solved at least once{gone}.")
    if hopeless.all() and not is_out_of_reach:
        return NotJudged("No task is solved at all: the cause may be other than the tasks.")
    if follows_prompt(rows):
        return NotJudged("The reward depends on the prompt alone: no completion could have changed it.")
    lost = np.maximum(run.scale.best - np.nan_to_num(rows.reward), 0)
    others = float(lost[~own].mean()) if (~own).any() else 0.0
    cost = float(max(lost[own].mean() - others, 0.0) * own.mean())
    cost = run.cost_of(LossCause.WRONG_ANSWER) if hopeless.all() else cost
    names = [rows.tasks[task] for task in np.flatnonzero(hopeless).tolist()]
    judged = f"{often:,} tasks" + ("" if often == len(rows.tasks) else f" with {least}+ attempts")
    attempts = int(np.isin(run.all.task, np.flatnonzero(hopeless)).sum())
    return Card(
        id="never_solved",
        title=f"{len(names)} of {judged} {'is' if len(names) == 1 else 'are'} never solved",
        cost=cost,
        evidence=(
            f"{listed(names)}: none of {attempts} attempts over the whole run solved it ({run.scale.success.said}).",
            f"{int(own.sum())} attempts are in the last steps: {percent(float(own.mean()))} of their rollouts.",
        ),
        suggestion="Drop them, start with easier tasks (curriculum), or verify by hand that they are solvable.",
        where=links.tasks(names),
        own=own,
    )


def _look_mix(run: Run) -> Outcome:
    """Split the change of the mean reward into change within tasks and change of their mix.

    The first is taken at the mean of both mixes, the second at the mean of both task means (Kitagawa 1955).
    """
    found = windows(run)
    if found is None:
        return NotJudged("The run has a single step.")
    before, after = found
    (n0, m0), (n1, m1) = _means(before), _means(after)
    task, group = run.all.task[run.all.task >= 0], run.all.group[run.all.task >= 0]
    comes_once = distinct(task, group, count=len(run.all.tasks))[task] < 2
    if not n0.any() or not n1.any() or float(comes_once.mean()) > _SHIFT:
        return NotJudged(
            "Most tasks come only once, so a change of the mix cannot be separated from a change of the policy.",
            Lack.TASKS,
        )
    w0, w1 = n0 / max(n0.sum(), 1), n1 / max(n1.sum(), 1)
    m0, m1 = np.where(np.isnan(m0), m1, m0), np.where(np.isnan(m1), m0, m1)
    mix = float(np.nansum((w1 - w0) * (m0 + m1) / 2))
    within = float(np.nansum((m1 - m0) * (w0 + w1) / 2))
    mean = np.nan_to_num((m0 + m1) / 2)
    between = float(np.average((mean - np.average(mean, weights=n0 + n1)) ** 2, weights=n0 + n1))
    draws = (len(np.unique(rows.group[rows.task >= 0])) for rows in found)  # each group is one draw of a task
    chance = _ERRORS * np.sqrt(between * sum(1 / max(number, 1) for number in draws))
    limit = run.threshold("task_mix", _SHIFT)
    if -mix <= max(_LEAST * spread(run), chance) or -mix < limit * (abs(mix) + abs(min(within, 0))):
        return Below(f"Since the first steps: task-mix change {figure(mix)}, within-task change {figure(within)}.")
    grown = np.flatnonzero(w1 > w0)
    more = grown[np.argsort((w0 - w1)[grown] * (np.average(mean, weights=w0) - mean[grown]))][:3]
    said = [f"{run.rows.tasks[t]} {percent(float(w0[t]))} \u2192 {percent(float(w1[t]))}" for t in more]
    return Card(
        id="task_mix",
        title=f"The task mix became harder: it lowers the mean reward by {figure(-mix)}",
        cost=-mix,
        evidence=(
            (
                f"Steps {after.steps[0]}\u2013{after.steps[-1]} vs {before.steps[0]}\u2013{before.steps[-1]}: "
                f"within-task change {figure(within)}, task-mix change {figure(mix)}."
            ),
            f"More frequent: {', '.join(said)}.",
        ),
        suggestion="Compare task by task: the policy did not get worse; it received harder tasks.",
        where=links.tasks(run.rows.tasks[t] for t in more),
        **below(
            run.all.by_step(np.where(run.all.task >= 0, mean[run.all.task], np.nan)), float(np.dot(w0 + w1, mean)) / 2
        ),
        own=np.isin(run.rows.task, grown),
    )


def _missing(run: Run) -> str | None:
    return None if (run.rows.task >= 0).any() else "tasks"


_UNDEFINED = NotJudged("What counts as solved is not defined: set solved_at.")


FORGOTTEN = Diagnostic(
    "forgotten",
    "Regressed tasks",
    f"Tasks that were solved, and then in {ATTEMPTS} or more attempts with at most {FALLEN:.0%} of the earlier success "
    f"rate, if the chance of that in any task is below {FORGOTTEN_CHANCE:.0%} at unchanged rates (corrected for the "
    "number of tasks and splits, and for groups that end alike). The step splits a task's attempts best.",
    "ours; the number of attempts is verifiers'",
    _missing,
    _look_forgotten,
    limits=SHARE,
    position=220,
    explained_by=(
        *("infrastructure", "invalid_reward", "disagreement", "inconsistent", "parse_failures", "truncation"),
        *("loops", "task_mix", "turn_limit:decides", "never_acted", "diversity", "degenerate_text", "hacking"),
        *("length", "reward_parts:decides"),
    ),
    is_behaviour=True,
)
NEVER_SOLVED = Diagnostic(
    "never_solved",
    "Never solved",
    f"Tasks that none of {ATTEMPTS} or more attempts solved. If no task at all is solved, only if the environment "
    "gives no rewards either. Silent if the reward depends on the prompt alone.",
    "verifiers",
    _missing,
    _look_never,
    limits=FROM_ONE,
    position=130,
    explained_by=(
        *("infrastructure", "invalid_reward", "disagreement", "inconsistent", "parse_failures", "truncation"),
        *("loops", "task_mix", "turn_limit:decides", "never_acted", "diversity", "degenerate_text"),
        *("constant_reward", "hacking", "length", "reward_parts", "forgotten"),
    ),
    is_behaviour=True,
)
TASK_MIX = Diagnostic(
    "task_mix",
    "Task mix",
    "The change of the mean reward since the first steps, split into change within tasks and change of the mix; shown "
    f"if the mix caused at least {_SHIFT:.0%} of the loss, at least {_LEAST:.0%} of the range of rewards, and "
    f"{_ERRORS:g} times the standard error of drawing as many tasks at random. Silent if most tasks come only once.",
    "ours, with Kitagawa's decomposition",
    _missing,
    _look_mix,
    limits=SHARE,
    position=120,
    explained_by=("infrastructure", "invalid_reward", "wiring", "turn_limit:decides", "hacking"),
)
