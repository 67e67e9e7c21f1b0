"""Reward functions against each other: one that outweighs all, or some that cancel out."""

import numpy as np

from logs_ui.recorder.diagnosis.card import Card, Diagnostic, Run
from logs_ui.recorder.diagnosis.dead_groups import SAME
from logs_ui.recorder.diagnosis.rows import Floats, Rows
from logs_ui.recorder.diagnosis.say import figure, percent

_MOST, _LEAST = 0.9, 0.1


def within_groups(values: Floats, rows: Rows) -> Floats:
    """(N,) less the mean of their group; NaN where they are."""
    known = np.isfinite(values)
    count = len(rows.groups.size)
    sizes = np.bincount(rows.group[known], minlength=count)
    sums = np.bincount(rows.group[known], weights=values[known], minlength=count)
    with np.errstate(invalid="ignore", divide="ignore"):
        centred: Floats = values - (sums / sizes)[rows.group]
    return centred


def shares(rows: Rows) -> dict[str, float]:
    """Of each reward function in the variance of the reward within groups: Cov(part, R) / Var(R). They add up to 1;
    empty where the reward does not vary.
    """
    scored = np.isfinite(rows.reward)
    reward = within_groups(rows.reward, rows)[scored]
    variance = float(np.mean(reward**2)) if len(reward) else 0.0
    if variance <= SAME**2:
        return {}
    parts = {name: within_groups(np.nan_to_num(part), rows)[scored] for name, part in rows.parts.items()}
    return {name: float(np.mean(part * reward)) / variance for name, part in parts.items()}


def _look(run: Run) -> Card | None:
    return _outweighed(run) or _cancelled(run)


def _outweighed(run: Run) -> Card | None:
    """One has nearly all of the variance, while another, which could pay more, has nearly none of it."""
    rows = run.rows
    share = shares(rows)
    if len(share) < 2:
        return None
    first = max(share, key=lambda name: share[name])
    room = {name: _room(run, name) for name in share if share[name] <= _LEAST and name != first}
    starved = max(room, key=lambda name: room[name], default=None)
    if share[first] < run.threshold("reward_parts", _MOST) or starved is None or room[starved] <= _LEAST:
        return None
    parts = f"{first} {percent(share[first])}, {starved} {percent(max(share[starved], 0))}"
    return Card(
        id="reward_parts",
        title=f"One reward function decides: of a group's differences {parts}",
        cost=room[starved],
        evidence=(
            f"Of {starved}, {figure(room[starved])} is left to win; of {first}, {figure(_room(run, first))}.",
            "Advantages are what differs within a group: the policy is taught what makes the difference there.",
        ),
        suggestion=f"Weigh {first} less, or pay it only where {starved} is above nothing.",
        where=f"rewards.{starved}<={figure(float(np.nanmin(rows.parts[starved])) / rows.weights.get(starved, 1.0))}",
        explains=("length", "never_solved"),
    )


def _room(run: Run, name: str) -> float:
    """What a rollout could still win by this function: its weight, or the highest that it ever gave, less its mean."""
    best = max(float(np.nanmax(run.all.parts[name], initial=-np.inf)), run.rows.weights.get(name, 1.0))
    return best - float(np.nanmean(run.rows.parts[name])) if np.isfinite(run.rows.parts[name]).any() else 0.0


def _cancelled(run: Run) -> Card | None:
    """Groups in which reward functions differ and their sum does not."""
    rows = run.rows
    groups = rows.groups
    if len(rows.parts) < 2:
        return None
    spread = np.zeros(len(groups.size))
    for part in rows.parts.values():
        centred = np.nan_to_num(within_groups(part, rows))
        spread = np.maximum(spread, np.bincount(rows.group, weights=np.abs(centred), minlength=len(spread)))
    cancelled = (groups.size > 1) & (groups.std <= SAME) & (spread > SAME)
    share = float(cancelled.mean()) if len(cancelled) else 0.0
    if share <= _LEAST:
        return None
    return Card(
        id="reward_parts",
        title=f"Reward functions cancel out in {percent(share)} of groups",
        cost=run.fall.lost * share,
        evidence=(f"In {cancelled.sum()} groups they differ between rollouts, and their sum does not.",),
        suggestion="Change their weights, so that what one takes the other does not give back exactly.",
        where="group_spread:none",
        explains=("dead_groups",),
    )


DIAGNOSTIC = Diagnostic(
    "reward_parts",
    "Reward functions",
    f"Cov(part, R) / Var(R) within groups: one at {_MOST:g} or more, another at {_LEAST:g} or less that "
    f"has more than {_LEAST:g} left to win; or parts that differ within a group while their sum does not.",
    "TRL issue 3857; thresholds ours",
    lambda run: None if len(run.rows.parts) > 1 else "two reward functions",
    _look,
)
