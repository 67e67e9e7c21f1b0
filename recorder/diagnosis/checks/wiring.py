"""Finds groups that mix completions of different prompts, hold those of another group, or begin differently."""

import numpy as np

from logs_ui.recorder.diagnosis.card import Card, NotJudged, Outcome, Run, check, needs, quiet
from logs_ui.recorder.diagnosis.checks.mixed_completions import DEFINITION, find_mixed
from logs_ui.recorder.diagnosis.links import ids
from logs_ui.recorder.diagnosis.rollout_rows import Bools, Floats, Ints, Rows, distinct
from logs_ui.recorder.diagnosis.wording import percent
from logs_ui.recorder.vocabulary import FIRST_PROMPT, UNNAMED, Lack, Status

_SEED = (
    "Seed reset() with one value for each group: with environment_factory, give the dataset a column `seed`, which TRL "
    "passes to reset(seed=...); in a rollout function, pass the seed yourself"
)
_NOISE = 0.1  # of the loss puts groups that begin differently in order: they learn, and from noisier advantages [ours]
_missing = needs(
    "prompts' token ids, or tasks",
    lambda run: np.isfinite(run.rows.facts["prompt_key"]) | (run.rows.task >= 0),
    Lack.GROUPS,
)
_SHARED = 0.1  # of the prompts of groups that mix prompts are of several tasks [ours]
_SWAPPED = 0.5  # a dataset may contain a question twice, and a step may have both [ours]


def mixed(rows: Rows) -> Bools:
    """Return (G,) True for groups in which two completions answer different prompts or tasks. A task that is named by
    its prompt does not count if what was asked is recorded: the prompt may hold what an environment showed.
    """
    prompt, is_known = rows.prompt_keys
    # Without token ids a key is made of the messages, and is another one.
    has_ids = np.isfinite(rows.facts["prompt_tokens"])
    some_have = np.bincount(rows.group, has_ids, len(rows.groups.size)) > 0
    prompt = np.where(is_known | has_ids | ~some_have[rows.group], prompt, np.nan)
    has_name = np.array([*(not name.startswith(UNNAMED) for name in rows.tasks), False])  # the last: without a task
    return _vary(rows, prompt, np.where(is_known & ~has_name[rows.task], -1, rows.task))


def _vary(rows: Rows, *columns: Floats | Ints) -> Bools:
    """Return (G,) True for groups with different values of the columns. Rollouts that raised have no ids: left out. A
    value that is not recorded is not another one.
    """
    returned, codes = rows.status == Status.OK, list[Floats]()
    for column in columns:
        lowest = np.full(len(rows.groups.size), np.nan)
        np.fmin.at(lowest, rows.group, column)
        codes.append(np.nan_to_num(np.where(np.isnan(column), lowest[rows.group], column), nan=-1.0)[returned])
    return distinct(rows.group[returned], *codes, count=len(rows.groups.size)) > 1


def unseeded(rows: Rows) -> Bools:
    """Return (N,) True for rollouts of groups whose prompts differ only by what an environment showed first: the
    dataset's prompt is one. Where that is not recorded, nearly each of these prompts is of one task, and so is each
    group, unless its tasks are named by their prompts.
    """
    keys, (_, is_known), is_mixed = rows.facts["prompt_key"], rows.prompt_keys, mixed(rows)[rows.group]
    returned = rows.status == Status.OK
    is_unseeded: Bools = _vary(rows, keys)[rows.group] & is_known & ~is_mixed & returned
    odd = is_mixed & returned & ~is_known
    tasks = rows.task[odd]
    if odd.any() and np.isfinite((keys + rows.facts["env_steps"])[odd]).all():
        prompt: Ints = np.unique(keys[odd], return_inverse=True)[1].reshape(-1)
        is_one_task = distinct(rows.group[odd], tasks, count=len(rows.groups.size)).max() == 1
        is_one_task |= all(rows.tasks[task].startswith(UNNAMED) for task in np.unique(tasks[tasks >= 0]))
        # An environment that fails may show all tasks the same; where rows are out of order, most prompts are shared.
        is_shared = distinct(prompt, tasks, count=int(prompt.max()) + 1) > 1
        is_unseeded |= odd & is_one_task & bool(is_shared.mean() <= _SHARED)
    return is_unseeded


def swapped(rows: Rows) -> Bools:
    """Return (N,) True for rollouts that answer the prompt of another task.

    Such a prompt is shared by several tasks, its task has other prompts, too, and its step has fewer prompts than
    tasks. (If a dataset contains a question twice, a step's other groups still have prompts of their own.) All False
    if the whole run has fewer prompts than tasks: prompts do not identify tasks then.
    """
    prompt, _ = rows.prompt_keys
    is_known = np.isfinite(prompt) & (rows.task >= 0)
    is_swapped = np.zeros(len(rows), bool)
    if not is_known.any():
        return is_swapped
    key: Ints = np.unique(prompt[is_known], return_inverse=True)[1].reshape(-1)
    task: Ints = np.unique(rows.task[is_known], return_inverse=True)[1].reshape(-1)
    step: Ints = np.unique(rows.step[is_known], return_inverse=True)[1].reshape(-1)
    prompts, tasks, steps = (int(code.max()) + 1 for code in (key, task, step))
    if prompts >= tasks:
        is_shared = distinct(key, task, count=prompts)[key] > 1
        has_others = distinct(task, key, count=tasks)[task] > 1
        is_short = (distinct(step, key, count=steps) < distinct(step, task, count=steps))[step]
        is_swapped[is_known] = is_shared & has_others & is_short
    return is_swapped


def _check(run: Run) -> Outcome:
    rows = run.rows
    odd = mixed(rows)[rows.group] & ~unseeded(rows)
    is_swapped = swapped(run.all)[run.all.step >= rows.steps[0]] & ~odd
    if is_swapped.mean() < _SWAPPED:
        is_swapped[:] = False
    share = float((odd | is_swapped).mean())
    if share <= run.threshold("wiring", 0.0):
        if (card := find_mixed(run)) is not None:
            return card
        if np.bincount(rows.group).max() < 2:
            return NotJudged("No group has two rollouts.")
        return quiet(share, "of rollouts are grouped with another prompt", run.threshold("wiring", 0.0))
    groups, sizes = np.unique(rows.group[odd]), np.bincount(rows.group)
    sentences = [f"{len(groups)} groups of up to {int(sizes.max())} rollouts hold more than one prompt or task."]
    if is_swapped.any():
        sentences.append(
            f"{is_swapped.sum()} rollouts answer a prompt that several tasks share: it can be that of one of them at "
            "most."
        )
    mixed_title = f"{percent(len(groups) / len(sizes))} of groups mix different prompts"
    keys = rows.facts["prompt_key"]
    # The filter on prompts finds the groups only if those that mix tasks are exactly those that mix prompts.
    by_prompt = np.isfinite(keys).all() and not is_swapped.any()
    by_prompt = by_prompt and ((distinct(rows.group, keys, count=len(sizes)) > 1)[rows.group] == odd).all()
    return Card(
        id="wiring",
        title=mixed_title if odd.any() else f"{percent(share)} of rollouts answer a prompt that several tasks share",
        cost=run.fall.lost * share,
        evidence=(*sentences, "Advantages compare a completion with its group: here with answers to other questions."),
        suggestion="Return rows in the order of the prompts: each prompt is already repeated num_generations times.",
        where="prompts>1" if by_prompt else ids(rows.id[odd | is_swapped]),
        is_loss=False,
        own=odd | is_swapped,
    )


def _check_unseeded(run: Run) -> Outcome:
    rows, limit = run.rows, run.threshold("unseeded", 0.0)
    odd = unseeded(rows)
    share = len(np.unique(rows.group[odd])) / len(rows.groups.size)
    if share <= limit:
        return quiet(share, "of groups have prompts that differ though the dataset's is one", limit)
    is_shown = bool(rows.prompt_keys[1][odd].all())  # else the dataset's own prompts may differ
    differs = "begin with different observations" if is_shown else "of one task have different prompts"
    return Card(
        id="unseeded",
        title=f"In {percent(share)} of groups, rollouts {differs}",
        cost=_NOISE * run.fall.lost * share,
        evidence=(
            "What the dataset asks is the same; what reset() returned, or the prompt that the function built, differs."
            if is_shown
            else "For some of them it is not known which differs: what the dataset asks, or what reset() returned.",
            "Advantages compare a completion with its group: here an easier prompt counts as a better answer.",
        ),
        suggestion=f"{_SEED}."
        if is_shown
        else f"Compare two prompts of a group. If their questions differ, look at the rows; if not, s{_SEED[1:]}.",
        where="prompts>1" if not mixed(rows)[rows.group[~odd]].any() else ids(rows.id[odd]),
        is_loss=False,
        own=odd,
    )


def _check_first_prompt(run: Run) -> Outcome:
    shares = run.recent(run.current.get(FIRST_PROMPT, ()))
    share, limit = max([value for _, value in shares], default=0.0), run.threshold("first_prompt", 0.0)
    if share <= limit:
        return quiet(share, "of rollouts hold an answer to the first prompt of their group", limit)
    return Card(
        id="first_prompt",
        title=f"{percent(share)} of rollouts are trained on an answer to another rollout's prompt",
        cost=run.fall.lost * share,
        evidence=(
            'With vllm_mode="server", TRL sends only the first prompt of each group, and samples all its completions.',
            "reset() returned different observations, so the other prompts of the group differ from the first.",
        ),
        suggestion=f'{_SEED}; or set vllm_mode="colocate", which sends each prompt.',
        where="prompts>1",
        is_loss=False,
        is_setup=True,
        share=share,
    )


DIAGNOSTIC = check(
    "wiring",
    "Grouping",
    "At least one group has rollouts with different prompt token ids or different tasks, and not only with different "
    "first observations. Or: at least "
    f"{_SWAPPED:.0%} of rollouts share their prompt with another task, although their own task has other prompts, too, "
    f"at steps that have fewer prompts than tasks (a dataset may contain a question twice). {DEFINITION}",
    _missing,
    _check,
    source="TRL repeats each prompt num_generations times already",
)
FIRST_PROMPTS = check(
    "first_prompt",
    "First prompt only",
    f"The metric `{FIRST_PROMPT}` is above 0: rollouts were trained on answers to the first prompt of their group. "
    "It is recorded if environments returned different observations and TRL uses a vLLM server.",
    lambda run: (
        _missing(run)
        if run.imported is None and ("use_vllm" in run.config or FIRST_PROMPT in run.current)
        else "what the trainer asked its vLLM server for"
    ),
    _check_first_prompt,
    source="TRL asks a server for prompts[::num_generations]",
)
UNSEEDED = check(
    "unseeded",
    "First observations",
    "At least one group has rollouts with different prompt token ids, although the dataset's prompt is the same: what "
    "was shown first differs. If that prompt is not recorded: although their task is the same, and no two tasks share "
    "one of these prompts.",
    _missing,
    _check_unseeded,
)
