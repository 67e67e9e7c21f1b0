"""Finds a reward function that outweighs the others, and functions that cancel out."""

from dataclasses import replace

import numpy as np

from logs_ui.recorder.diagnosis import links
from logs_ui.recorder.diagnosis.card import Below, Card, NotJudged, Outcome, Run, check, needs
from logs_ui.recorder.diagnosis.contrast import SURER, given_by, rise
from logs_ui.recorder.diagnosis.measures import best, dead, extent, mean, shares, within_groups
from logs_ui.recorder.diagnosis.rollout_rows import SAME, Bools, Rows, means
from logs_ui.recorder.diagnosis.success import is_outcome
from logs_ui.recorder.diagnosis.wording import figure, listed, percent
from logs_ui.recorder.vocabulary import Lack

_MOST, _LEAST = 0.9, 0.1
_LESS = 0.2  # below _MOST is enough if the other function falls [ours]
_FALL = 0.1  # of the range of its values [ours]
_COMPARABLE, _LOW = 0.5, 0.25  # [ours]
_RARE = 0.05  # of the groups of the largest set [ours]
_CUT = 0.5  # of the rollouts are truncated: what pays for their end cannot pay them [ours]
_BESIDE = ("turn_limit", "hacking", "forgotten")  # what learning one function in place of another explains


def _check_functions(run: Run) -> Outcome:
    units, share = list_units(run), dict[str, float]()
    for unit in units:
        if (
            card := _find_outweighed(unit) or _find_drowned(unit) or _find_overruled(unit) or _find_cancelled(unit)
        ) is not None:
            return card if unit is run else make_whole(run, unit, card)
        share |= shares(unit.rows)
    if not share:
        return NotJudged("The reward does not vary within groups.")
    if max(len(unit.rows.parts) for unit in units) < 2:
        return NotJudged("No two reward functions score the same groups.")
    parts = [f"{name} {percent(share[name])}" for name in sorted(share, key=lambda name: -share[name])]
    return Below(f"Shares of the reward variance within groups: {listed(parts, 4)}.")


def list_units(run: Run) -> list[Run]:
    """Return the run for each set of functions that score the same groups: environments of a mix have their own, and
    what one gives says nothing about another's. Sets of under 5% of the groups of the largest are left out.
    """
    rows, count = run.all, len(run.all.groups.size)
    if len(rows.parts) < 2:
        return [run]
    # `applies` (functions, groups) is True where a function scores a group, so that each different column is a set
    # of functions that score the same groups.
    applies = np.array([np.bincount(rows.group, np.isfinite(part), count) > 0 for part in rows.parts.values()])
    kinds, kind, sizes = np.unique(applies, axis=1, return_inverse=True, return_counts=True)
    large = np.flatnonzero((sizes >= _RARE * sizes.max()) & kinds.any(axis=0))
    if len(large) < 2:
        return [run]
    units = []
    for i in large.tolist():
        every = rows.where(kind.reshape(-1)[rows.group] == i)
        parts = {name: part for (name, part), has in zip(every.parts.items(), kinds[:, i], strict=True) if has}
        every = replace(every, parts=parts)
        last = every.where(np.isin(every.id, run.rows.id))
        units += [replace(run, rows=last, all=every)] if len(last) else []
    return units


def make_whole(run: Run, unit: Run, card: Card) -> Card:
    """Return a unit's card as one of the run: its cost for each rollout of the run, and the rollouts it is about."""
    chosen = np.isin(run.rows.id, unit.rows.id if card.own is None else unit.rows.id[card.own])
    counted = f"Counted in the groups that they score: {len(unit.rows.groups.size)} of {len(run.rows.groups.size)}."
    cost = (card.cost or 0.0) * len(unit.rows) / len(run.rows)
    share = None if card.share is None else card.share * len(unit.rows) / len(run.rows)
    return replace(card, cost=cost, share=share, own=chosen, evidence=(*card.evidence, counted))


def _find_outweighed(run: Run) -> Card | None:
    """Return a card if one function has nearly all of the variance, and another one that matters nearly none."""
    last = _pair(run, run.rows)
    pair = last or _pair_of_all(run)
    if pair is None:
        return None
    over = "" if last else " over the whole run"
    first, starved, share = pair
    room, only_value = _room(run, starved), _only_value(run, starved)
    check = describe_cut(run, starved) or (
        f"Check why {starved} gives {figure(only_value or 0.0)} to every rollout, such as a parser that never matches."
    )
    return Card(
        id="reward_parts",
        title=f"{first} explains {part_of(share[first])} of the reward variance within groups{over}, {starved} "
        f"{_part(share[starved]) if share[starved] >= -SAME else 'opposes it'}",
        cost=max(room, run.fall.lost * min(share[first], 1.0)),
        evidence=(
            f"Left to gain: {figure(room)} in {starved}, {figure(_room(run, first))} in {first}.",
            f"Weights: {first} {_weight(run, first)}, {starved} {_weight(run, starved)}.",
            "Advantages come from differences within a group: the policy learns what makes them.",
        ),
        suggestion=_suggest_less(run, first, starved) if only_value is None else check,
        where=_where_below_best(run, starved),
        explains=("proxy", "length", *_BESIDE),
    )


def _find_drowned(run: Run) -> Card | None:
    """Return a card if the functions that define success have nearly none of the variance, though it varies."""
    share, marks = shares(run.rows), {mark.column for mark in run.scale.success.marks}
    outcomes = [
        function
        for function in share
        if links.rewards(function) in marks and abs(run.rows.weights.get(function, 1.0)) > SAME
    ]
    won = run.scale.success.solved(run.rows)
    varies = (means(run.rows.group, won, len(run.rows.groups.size)) % 1 > 0).mean() if outcomes else 0.0
    total = sum(share[name] for name in outcomes)
    others = sorted(share.keys() - set(outcomes), key=lambda name: -share[name])
    if not outcomes or not others or total > _LEAST or varies < _LEAST or won.mean() > _MOST:
        return None
    weights = ", ".join(f"{name} {_weight(run, name)}" for name in [*outcomes, *others[:3]])
    return Card(
        id="reward_parts",
        title=f"{listed(outcomes)}, which defines solved, explains {_part(max(total, 0.0))} of the reward variance "
        f"within groups; {len(others)} other functions explain the rest",
        cost=run.fall.lost * (1 - max(total, 0.0)),
        evidence=(
            f"Largest shares: {', '.join(f'{name} {percent(share[name])}' for name in others[:3])}.",
            f"Weights: {weights}.",
            "Advantages come from differences within a group: the policy learns what makes them.",
        ),
        suggestion=f"Raise the weight of {listed(outcomes)}, or gate the others on it.",
        where=_where_below_best(run, outcomes[0]),
        explains=("proxy", "length", *_BESIDE),
    )


def _where_below_best(run: Run, name: str) -> str:
    """Return the filter for rollouts to which a function gave less than its best; all, if it gave each the same."""
    if (only_value := _only_value(run, name)) is not None:
        return f"{links.rewards(name)}<={only_value + SAME:.9g}"
    best_value = f"{float(np.nanmax(run.all.values[name])) - SAME:.9g}"
    is_whole = np.isfinite(run.rows.values[name]).all()
    return f"{links.rewards(name)}<{best_value}" if is_whole else f"-{links.rewards(name)}>={best_value}"


def _only_value(run: Run, name: str) -> float | None:
    """Return what a function gave to each rollout that it scored; None if values differ."""
    low, high = float(np.nanmin(run.all.values[name])), float(np.nanmax(run.all.values[name]))
    return low if high - low <= SAME else None


def describe_cut(run: Run, name: str) -> str:
    """Return advice on a function that always gave one value, where most answers have no end; "" for others."""
    share, value = float(run.rows.truncated[np.isfinite(run.rows.values[name])].mean()), _only_value(run, name)
    if value is None or share < _CUT:
        return ""
    return f"Let answers end first: {percent(share)} of those to which {name} gives {figure(value)} are truncated."


def _weight(run: Run, name: str) -> str:
    return figure(run.rows.weights.get(name, 1.0))


def part_of(share: float) -> str:
    """Return a share in words. It can be above 1 if another function opposes this one, whose share is negative."""
    return "all" if share > 1 + SAME else percent(share)


def _suggest_less(run: Run, first: str, starved: str) -> str:
    return f"Lower {first}'s weight (now {_weight(run, first)}), or gate it on {starved} > 0."


def _part(share: float) -> str:
    return percent(share) if share > SAME else "none"


def _find_overruled(run: Run) -> Card | None:
    """Return a card if one function has most of the variance and rises, and another one that matters falls."""
    share = shares(run.all)
    first = max(share, key=lambda name: share[name], default=None)
    if first is None or share[first] < run.threshold("reward_parts", _MOST) - _LESS:
        return None
    gains = {name: rise(run, given_by(name), chance=SURER) for name in share}
    if gains[first].value <= 0 or not gains[first].is_sure:
        return None
    fallen = [
        name
        for name, gain in gains.items()
        if gain.is_sure and gain.value < 0 and _can_be_wanted(run, name, -gain.value) and _matters(run, name, first)
    ]
    if not fallen:
        return None
    name = max(fallen, key=lambda name: _room(run, name))
    gain, fall = gains[first], gains[name]
    before, after = run.windows or (run.all, run.rows)
    steps = f"Steps {after.steps[0]}\u2013{after.steps[-1]} vs {before.steps[0]}\u2013{before.steps[-1]}"
    falls, rises = (f"{figure(change.before)} \u2192 {figure(change.after)}" for change in (fall, gain))
    return Card(
        id="reward_parts",
        title=f"{first} explains {part_of(share[first])} of the reward variance within groups over the whole run, "
        f"and rises while {name} falls",
        cost=max(min(_room(run, name), run.fall.lost), 0.0),
        evidence=(
            f"{steps}: {name} {falls}, {first} {rises}.",
            f"{name} explains {_part(share[name])} of that variance, which the policy learns from.",
        ),
        suggestion=_suggest_less(run, first, name),
        where=f"{links.rewards(name)}<={float(np.nanmin(run.rows.values[name])):.9g}",
        explains=_BESIDE,
    )


def _can_be_wanted(run: Run, name: str, fall: float) -> bool:
    """Return True unless it is a penalty (ever negative and not named like an outcome), which may grow with success."""
    values = run.all.values[name]
    is_penalty = (values < 0).any() and not is_outcome(name)
    return fall > _FALL * extent(values) and _has_room(run, name) and not is_penalty


def _pair(run: Run, rows: Rows) -> tuple[str, str, dict[str, float]] | None:
    """Return the function that outweighs, the one that it starves, and the shares; None without such a pair."""
    share = shares(rows)
    first = max(share, key=lambda name: share[name], default=None)
    if first is None or share[first] < run.threshold("reward_parts", _MOST):
        return None
    starved = [
        name
        for name in share
        if share[name] <= _LEAST and name != first and _has_room(run, name) and _matters(run, name, first)
    ]
    return (first, max(starved, key=lambda name: _room(run, name)), share) if starved else None


def _pair_of_all(run: Run) -> tuple[str, str, dict[str, float]] | None:
    """Find the pair over all steps, if in the last ones the first function is exhausted and the other still low."""
    pair = _pair(run, run.all)
    if pair is None:
        return None
    first, starved, _ = pair
    is_spent = _room(run, first) <= _LEAST * best(run.all, first)
    return pair if is_spent and _is_low(run, starved) and not _grows(run, starved) else None


def _grows(run: Run, name: str) -> bool:
    gain = rise(run, given_by(name))
    return gain.is_sure and gain.value > 0


def _matters(run: Run, name: str, first: str) -> bool:
    """Return True if a function should decide rather than the first one.

    That is if its name is an outcome's and the first one's is not. If the names say the opposite, its small share is
    intended. If they do not say, it must be worth at least half as much, or stay low while the first one is not.
    """
    if is_outcome(name) != is_outcome(first):
        return is_outcome(name)
    if run.all.weights.get(name, 1.0) == 0:
        return False
    return best(run.all, name) >= _COMPARABLE * best(run.all, first) or (
        _is_low(run, name) and not _is_low(run, first) and not _grows(run, name)
    )


def _has_room(run: Run, name: str) -> bool:
    """Return True if a function has something left to gain.

    One that only ever gave a single value may be a penalty that never applied, unless it is named like an outcome.
    """
    may_apply = extent(run.all.values[name]) > SAME or is_outcome(name)
    return may_apply and _room(run, name) > _LEAST * abs(best(run.all, name))


def _is_low(run: Run, name: str) -> bool:
    values = run.all.parts[name][np.isfinite(run.all.parts[name])]
    low = float(values.min(initial=0.0))
    return float(np.nanmean(run.rows.parts[name])) <= low + _LOW * (best(run.all, name) - low)


def _room(run: Run, name: str) -> float:
    """Return what is left to gain by the function: the most that it can add less the mean that it adds."""
    added = mean(run.rows.parts[name])
    return 0.0 if added is None else best(run.all, name) - added


def cancels(rows: Rows) -> Bools:
    """Return (G,) True for groups in which reward functions differ between rollouts and their sum does not."""
    groups = rows.groups
    spread = np.zeros(len(groups.size))
    for part in rows.parts.values():
        centred = np.nan_to_num(within_groups(part, rows))
        spread = np.maximum(spread, np.bincount(rows.group, weights=np.abs(centred), minlength=len(spread)))
    return (groups.size > 1) & (groups.std <= SAME) & (spread > SAME)


def _find_cancelled(run: Run) -> Card | None:
    cancelled = cancels(run.rows)
    affected, equal = cancelled[run.rows.group], dead(run.rows.groups)[run.rows.group]
    share = float(cancelled.mean()) if len(cancelled) else 0.0
    if share <= _LEAST:
        return None
    return Card(
        id="reward_parts",
        title=f"Reward functions cancel out in {percent(share)} of groups",
        cost=run.fall.lost * share,
        evidence=(f"In {cancelled.sum()} groups they differ between rollouts, but their sum does not.",),
        suggestion="Change the weights so that they no longer cancel.",
        where=links.selecting(run.rows.id, affected, {"spread:0": equal}),
        own=affected,
        explains=("constant_reward",),
    )


REWARD_PARTS = check(
    "reward_parts",
    "Reward functions",
    f"Share of the reward variance within groups, Cov(part, R) / Var(R). (1) One function has {_MOST:g} or more of it, "
    f"and another one that matters has {_LEAST:g} or less: it has more than {_LEAST:.0%} left to gain, and is worth at "
    f"least {_COMPARABLE:.0%} as much, is named like an outcome (correct, solved, ...), or stays below {_LOW:.0%} of "
    f"its best. (2) One function has {_MOST - _LESS:g} or more over all steps and rises, while another one that "
    f"matters falls by more than {_FALL:.0%} of its range, both with a probability below {SURER:.1%} by chance. "
    f"(3) In more than {_LEAST:.0%} of groups, functions differ between rollouts, but their weighted sum does not. "
    "Each set of functions that score the same groups is judged for itself.",
    needs("two reward functions", lambda run: len(run.rows.parts) > 1, Lack.WEIGHTS),
    _check_functions,
    source="TRL issue 3857; the thresholds are ours",
)
