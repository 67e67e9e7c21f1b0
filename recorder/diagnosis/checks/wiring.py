"""Finds groups that mix completions of different prompts, or hold those of another group."""

import numpy as np

from logs_ui.recorder.diagnosis.card import Card, Diagnostic, Run
from logs_ui.recorder.diagnosis.links import ids
from logs_ui.recorder.diagnosis.rollout_rows import Bools, Ints, Rows
from logs_ui.recorder.diagnosis.wording import percent
from logs_ui.recorder.settings import SHARE

_SWAPPED = 0.5  # a dataset may contain a question twice, and a step may have both [ours]


def mixed(rows: Rows) -> Bools:
    """(G,) True for groups in which two completions answer different prompts or tasks."""
    keys = np.nan_to_num(rows.facts["prompt_key"], nan=-1.0)
    pairs = np.unique(np.stack([rows.group.astype(float), keys, rows.task.astype(float)], 1), axis=0)
    return np.bincount(pairs[:, 0].astype(np.int64), minlength=len(rows.groups.size)) > 1


def swapped(rows: Rows) -> Bools:
    """(N,) True for rollouts that answer the prompt of another task.

    Such a prompt is shared by several tasks, its task has other prompts, too, and its step has fewer prompts than
    tasks. (If a dataset contains a question twice, a step's other groups still have prompts of their own.) All False
    if the whole run has fewer prompts than tasks: prompts do not identify tasks then.
    """
    prompt = rows.facts["prompt_key"]
    known = np.isfinite(prompt) & (rows.task >= 0)
    found = np.zeros(len(rows), bool)
    if not known.any():
        return found
    key: Ints = np.unique(prompt[known], return_inverse=True)[1].reshape(-1)
    task: Ints = np.unique(rows.task[known], return_inverse=True)[1].reshape(-1)
    prompts, tasks = int(key.max()) + 1, int(task.max()) + 1
    pairs = np.unique(key * tasks + task)
    of_prompt, of_task = np.bincount(pairs // tasks, minlength=prompts), np.bincount(pairs % tasks, minlength=tasks)
    if prompts >= tasks:
        found[known] = (of_prompt[key] > 1) & (of_task[task] > 1) & _is_short(rows.step[known], key, task)
    return found


def _is_short(step: Ints, key: Ints, task: Ints) -> Bools:
    """(N,) True for rollouts whose step has fewer prompts than tasks."""
    place: Ints = np.unique(step, return_inverse=True)[1].reshape(-1)
    count = int(place.max()) + 1
    prompts, tasks = (
        np.bincount(np.unique(np.stack([place, code]), axis=1)[0], minlength=count) for code in (key, task)
    )
    few: Bools = (prompts < tasks)[place]
    return few


def _look(run: Run) -> Card | None:
    rows = run.rows
    odd = mixed(rows)[rows.group]
    other = swapped(run.all)[run.all.step >= rows.steps[0]] & ~odd
    if other.mean() < _SWAPPED:
        other[:] = False
    share = float((odd | other).mean())
    if share <= run.threshold("wiring", 0.0):
        return None
    groups, sizes = np.unique(rows.group[odd]), np.bincount(rows.group)
    said = [f"{len(groups)} groups of up to {int(sizes.max())} rollouts hold more than one prompt or task."]
    said += [f"{int(other.sum())} rollouts answer the prompt of another task."] if other.any() else []
    of = f"{percent(len(groups) / len(sizes))} of groups mix different prompts" if odd.any() else ""
    title = of or f"{percent(share)} of rollouts answer another group's prompt"
    by_prompt = np.isfinite(rows.facts["prompt_key"]).all() and not other.any()
    return Card(
        id="wiring",
        title=title,
        cost=run.fall.lost * share,
        evidence=(*said, "Advantages compare a completion with its group: here with answers to other questions."),
        suggestion="Return rows in the order of the prompts: each prompt is already repeated num_generations times.",
        where="prompts>1" if by_prompt and _agree(rows, odd) else ids(rows.id[odd | other]),
        stops_learning=True,
        own=odd | other,
    )


def _agree(rows: Rows, odd: Bools) -> bool:
    """Return True if the groups that mix tasks are exactly those that mix prompts."""
    pairs = np.unique(np.stack([rows.group.astype(float), rows.facts["prompt_key"]], 1), axis=0)
    by_prompt = np.bincount(pairs[:, 0].astype(np.int64), minlength=len(rows.groups.size)) > 1
    return bool((by_prompt[rows.group] == odd).all())


def _missing(run: Run) -> str | None:
    known = np.isfinite(run.rows.facts["prompt_key"]) | (run.rows.task >= 0)
    return None if known.any() else "prompts' token ids, or tasks"


DIAGNOSTIC = Diagnostic(
    "wiring",
    "Grouping",
    "Groups whose rollouts have different prompt token ids or different tasks: any is shown. And rollouts whose prompt "
    "is shared by several tasks, while their task has other prompts, too, at steps with fewer prompts than tasks, from "
    f"{_SWAPPED:.0%} of rollouts on (a dataset may contain a question twice).",
    "TRL repeats each prompt num_generations times already",
    _missing,
    _look,
    limits=SHARE,
    position=30,
)
