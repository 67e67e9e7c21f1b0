"""Finds a reward function that scores the same completion of the same prompt differently."""

import numpy as np

from logs_ui.recorder.diagnosis.card import Card, Diagnostic, Run
from logs_ui.recorder.diagnosis.links import ids
from logs_ui.recorder.diagnosis.measures import extent
from logs_ui.recorder.diagnosis.rollout_rows import Bools, Floats, Ints, Rows, ends
from logs_ui.recorder.diagnosis.wording import figure, listed, percent
from logs_ui.recorder.settings import SHARE

_SHARE = 0.02  # of the rollouts that have a duplicate
_OF_RANGE = 0.01  # of the range of the function's values: less is rounding


def twins(rows: Rows) -> tuple[Bools, Ints]:
    """(N,) True for rollouts that can be compared, and (M,) for those the number of their completion.

    Equal numbers mean the same completion of the same prompt and task, with the same rewards of the environment. An
    environment answers the last action, which the completion does not show: without its rewards, rollouts cannot be
    compared.
    """
    prompt, completion = rows.facts["prompt_key"], rows.facts["completion_key"]
    judged = np.isfinite(rows.env_reward_sum) | ~(rows.facts["env_steps"] > 0)
    known = np.isfinite(prompt) & np.isfinite(completion) & judged
    heard = [np.nan_to_num(rows.env_reward_sum, nan=-1e9), np.nan_to_num(rows.env_reward_last, nan=-1e9)]
    keys = np.stack([column[known] for column in (rows.task.astype(float), prompt, completion, *heard)], 1)
    if not len(keys):
        return known, np.empty(0, np.int64)
    return known, np.unique(keys, axis=0, return_inverse=True)[1].reshape(-1).astype(np.int64)


def spreads(values: Floats, same: Ints) -> Floats:
    """(M,) highest minus lowest value of the completion; NaN without a value, or without a duplicate that has one."""
    known, count = np.isfinite(values), int(same.max(initial=-1)) + 1
    low, high = ends(same, values, count)
    has_twin = known & (np.bincount(same[known], minlength=count)[same] > 1)
    return np.where(has_twin, (high - low)[same], np.nan)


def _look(run: Run) -> Card | None:
    rows = run.rows
    known, same = twins(rows)
    found: dict[str, Bools] = {}
    compared = np.zeros(len(same), bool)
    lost = 0.0
    for name, values in rows.values.items():
        spread = spreads(values[known], same)
        compared |= np.isfinite(spread)
        differs = np.isfinite(spread) & (spread > _OF_RANGE * max(extent(values), 1e-6))
        if differs.sum() > run.threshold("inconsistent", _SHARE) * max(int(compared.sum()), 1) and differs.sum() > 2:
            found[name] = differs
            lost += float(spread[differs].sum()) * abs(rows.weights.get(name, 1.0)) / len(rows)
    if not found:
        return None
    odd = np.logical_or.reduce(list(found.values()))
    share = float(odd.sum() / compared.sum())
    name = max(found, key=lambda name: int(found[name].sum()))
    place = np.flatnonzero(known)[np.flatnonzero(odd & (same == same[np.flatnonzero(found[name])[0]]))]
    given = sorted({figure(float(value)) for value in rows.values[name][place] if np.isfinite(value)})
    return Card(
        id="inconsistent",
        title=f"{listed(sorted(found))} scores the same completion differently in {percent(share)} of cases",
        cost=lost,
        evidence=(
            (
                f"{int(compared.sum())} rollouts have a duplicate (same prompt, task and completion tokens); for "
                f"{int(odd.sum())} of them the values differ."
            ),
            f"One completion received {len(given)} different values from {name}: {listed(given, 4)}.",
        ),
        suggestion="Make the reward function deterministic (no randomness, time or shared state), or sample its judge "
        "at temperature 0.",
        where=ids(rows.id[known][odd]),
    )


def _missing(run: Run) -> str | None:
    if not run.rows.values:
        return "reward functions' values"
    return None if twins(run.rows)[0].any() else "prompts' and completions' token ids"


DIAGNOSTIC = Diagnostic(
    "inconsistent",
    "Same completion, different reward",
    f"Of the rollouts that share prompt, task, completion (by token ids) and the environment's rewards with another, "
    f"more than {_SHARE:.0%} get a value from a reward function that differs by more than {_OF_RANGE:.0%} of its "
    "range.",
    "ours",
    _missing,
    _look,
    limits=SHARE,
    position=80,
)
