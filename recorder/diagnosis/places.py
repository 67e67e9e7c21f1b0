"""Says where a finding is: the tasks, families of tasks or environments that hold nearly all of its rollouts."""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from logs_ui.recorder.diagnosis.card import Run
from logs_ui.recorder.diagnosis.mean_difference import LEAST_UNITS, chance_limit, compare
from logs_ui.recorder.diagnosis.rollout_rows import Bools, Ints, Rows, distinct
from logs_ui.recorder.diagnosis.tables.task_families import by_family
from logs_ui.recorder.diagnosis.wording import listed, percent

_NEARLY_ALL, _RARER = 0.9, 0.25  # of the finding's rollouts are there; as often elsewhere, at most [ours]
_NAMED = 3  # places


def place_of(run: Run, own: Bools) -> str:
    """Return a sentence on where a finding's rollouts are; "" if they are everywhere. `own` is (N,) True for those.

    Places are named if each has more than the rest beyond chance, corrected for all that are compared, and the rest
    has hardly any. The finest kind of places is named of which three are enough.
    """
    for rows, units, what in _kinds(run):
        known = rows.task >= 0
        task, chosen = rows.task[known], own[known]
        places = np.flatnonzero(distinct(task, units[known], count=len(rows.tasks)) >= LEAST_UNITS)
        often = np.bincount(task[chosen], minlength=len(rows.tasks))
        looked = places[np.argsort(-often[places], kind="stable")][:_NAMED].tolist()
        if often[looked].sum() < _NEARLY_ALL * own.sum():
            continue
        compared = [(place, compare(chosen.astype(float), task == place, units[known])) for place in looked]
        sure = [(place, it, it.chance) for place, it in compared if it is not None and it.chance is not None]
        limit = chance_limit([chance for *_, chance in sure] + [1.0] * (len(places) - len(looked)))
        named = [place for place, it, chance in sure if chance <= limit and it.value > 0]
        inside = np.isin(task, named)
        if not named or inside.all() or chosen[inside].sum() < _NEARLY_ALL * own.sum():
            continue
        share, rest = float(chosen[inside].mean()), float(chosen[~inside].mean())
        if rest <= _RARER * share:
            names = listed([rows.tasks[place] for place in named])
            return f"By {what}: {percent(share)} of the rollouts in {names}, {percent(rest)} elsewhere."
    return ""


def _kinds(run: Run) -> Iterator[tuple[Rows, Ints, str]]:
    """Yield the rollouts with their places as tasks, what is independent in these, and the name of such places."""
    rows, grouped = run.rows, by_family(run.all)
    yield rows, rows.group, "tasks"
    if grouped is not None:
        yield grouped.where(run.all.step >= rows.steps[0]), rows.task, "families of tasks"
    has_tasks = len(np.unique(rows.task)) >= 2 * LEAST_UNITS
    yield replace(rows, task=rows.eval, tasks=rows.evals), rows.task if has_tasks else rows.group, "evals"
