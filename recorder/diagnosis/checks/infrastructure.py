"""Finds rollouts that failed because of the environment, or of the infrastructure that runs it."""

from collections import Counter

import numpy as np

from logs_ui.recorder.diagnosis import contrast
from logs_ui.recorder.diagnosis.card import Card, Diagnostic, Run, since
from logs_ui.recorder.diagnosis.rollout_rows import Bools, Rows
from logs_ui.recorder.diagnosis.waterfall import CAUSES, causes
from logs_ui.recorder.diagnosis.wording import listed, percent
from logs_ui.recorder.settings import SHARE

_SHARE = 0.05
_OF_TASK = 0.5  # of a task's rollouts, from _ATTEMPTS on [ours]
_ATTEMPTS = 4
_MOSTLY = 0.5  # of the failed rollouts [ours]
_FEW = 2  # rollouts: one alone is an accident
_CAUSE = next(place for place, cause in enumerate(CAUSES) if cause.id == "infrastructure")


def broken(rows: Rows) -> Bools:
    """(N,) True for rollouts that it ended."""
    found: Bools = causes(rows) == _CAUSE
    return found


def _told(rows: Rows) -> Bools:
    """(N,) True for rollouts in which every environment call raised, and the model received the errors."""
    found: Bools = _erred(rows) & (rows.facts["env_errors"] >= rows.facts["env_steps"])
    return found


def _erred(rows: Rows) -> Bools:
    """(N,) True for rollouts in which any call raised, and the model received the error."""
    found: Bools = (rows.facts["env_errors"] > 0) & ~broken(rows)
    return found


def _dead_tasks(rows: Rows, bad: Bools) -> list[str]:
    """Return the tasks most of whose rollouts fail."""
    known = rows.task >= 0
    tried = np.bincount(rows.task[known], minlength=len(rows.tasks))
    failed = np.bincount(rows.task[known & bad], minlength=len(rows.tasks))
    dead = (tried >= _ATTEMPTS) & (failed >= _OF_TASK * tried)
    return [name for name, is_dead in zip(rows.tasks, dead, strict=True) if is_dead]


def _look(run: Run) -> Card | None:
    rows, limit = run.rows, run.threshold("infrastructure", _SHARE)
    ended, whole, erred = broken(rows), _told(rows), _erred(rows)
    is_worse = (
        not erred.all() and contrast.gap(run, erred) > 0
    )  # a single error that the policy recovers from is no fault
    told = erred if is_worse else whole
    bad = ended | told
    share = float(bad.mean())
    dead = _dead_tasks(rows, bad)
    if bad.sum() < _FEW or (share <= limit and not dead):
        return None
    part, overlap = run.cost_of("infrastructure"), contrast.cost(run, told)
    trend = run.all.by_step((broken(run.all) | (_erred if is_worse else _told)(run.all)).astype(float))
    return Card(
        id="infrastructure",
        title=f"{percent(share)} of rollouts failed with an environment error",
        cost=part + overlap,
        evidence=(*_kinds(rows, ended), *_where_it_breaks(rows, bad, dead), *_said_to_the_model(whole, told)),
        suggestion="Fix the environment, or mask these rollouts; the policy is not at fault."
        + (" If calls raised, first check that the model's arguments are not the reason." if is_worse else ""),
        where="cause:infrastructure" if ended.any() else "env_errors>0",
        is_part=not told.any(),
        trend=trend,
        since_step=since(trend, lambda value: value > limit),
        limit=limit,
        own=bad,
        is_setup=bool(dead) or bool((ended | whole).sum() >= _MOSTLY * bad.sum()),  # else the model may call it wrongly
    )


def _kinds(rows: Rows, ended: Bools) -> list[str]:
    kinds = Counter(str(error).partition(":")[0] for error in rows.error[ended] if error)
    return [f"{count} times {kind}." for kind, count in kinds.most_common(3)]


def _where_it_breaks(rows: Rows, bad: Bools, dead: list[str]) -> list[str]:
    tasks = Counter(rows.tasks[task] for task in rows.task[bad] if task >= 0)
    worst = [f"{name} ({count})" for name, count in tasks.most_common(3)]
    affected = [f"Affected tasks ({len(tasks)}): {listed(worst)}."] if worst else []
    return affected + ([f"{listed(dead)}: at least half of their rollouts fail."] if len(tasks) > len(dead) > 0 else [])


def _said_to_the_model(whole: Bools, told: Bools) -> list[str]:
    some = int((told & ~whole).sum())
    said = (
        [f"In {int(whole.sum())} rollouts every call raised, and the model received the errors."] if whole.any() else []
    )
    if some:
        said.append(
            f"In {some} rollouts some calls raised, and rollouts with an error do worse than the others. The waterfall "
            "counts them under what ended them, so costs overlap."
        )
    return said


DIAGNOSTIC = Diagnostic(
    "infrastructure",
    "Environment and infrastructure",
    "Share of rollouts that ended with an error, a timeout or a full server, or in which every call raised, above "
    f"{_SHARE:.0%}; or at least {_OF_TASK:.0%} of a task's rollouts, from {_ATTEMPTS} on. Rollouts in which any call "
    "raised count, too, if they do worse than the others.",
    "prime-rl; by task: ours",
    lambda run: None if len(run.rows) else "a rollout",
    _look,
    limits=SHARE,
    position=10,
)
