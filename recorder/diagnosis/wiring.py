"""Groups that hold completions of different prompts."""

import numpy as np

from logs_ui.recorder.diagnosis.card import Card, Diagnostic, Run
from logs_ui.recorder.diagnosis.rows import Bools, Rows
from logs_ui.recorder.diagnosis.say import percent


def mixed(rows: Rows) -> Bools:
    """(G,) of which two completions answer different prompts, or tasks."""
    keys = np.nan_to_num(rows.facts["prompt_key"], nan=-1.0)
    pairs = np.unique(np.stack([rows.group.astype(float), keys, rows.task.astype(float)], 1), axis=0)
    return np.bincount(pairs[:, 0].astype(np.int64), minlength=len(rows.groups.size)) > 1


def _look(run: Run) -> Card | None:
    rows = run.rows
    bad = mixed(rows)
    share = float(bad.mean())
    if share <= run.threshold("wiring", 0.0):
        return None
    sizes = np.bincount(rows.group)
    return Card(
        id="wiring",
        title=f"{percent(share)} of groups mix different prompts",
        cost=run.fall.lost * share,
        evidence=(
            f"{int(bad.sum())} groups of up to {int(sizes.max())} rollouts hold more than one prompt or task.",
            "An advantage compares a completion with its group: here with answers to other questions.",
        ),
        suggestion="Return rows in the order of the prompts: each comes num_generations times already.",
        where="",
        explains=("dead_groups", "never_solved", "length", "diversity"),
    )


DIAGNOSTIC = Diagnostic(
    "wiring",
    "Grouping",
    "Groups whose rollouts have different prompt token ids, or different tasks; any is shown.",
    "TRL repeats each prompt num_generations times already",
    lambda run: None if (~np.isnan(run.rows.facts["prompt_key"])).any() else "prompts' token ids",
    _look,
)
