"""Reward functions against each other: one that outweighs all, or some that cancel out."""

import re

import numpy as np

from logs_ui.recorder.diagnosis import links
from logs_ui.recorder.diagnosis.card import Card, Diagnostic, Run
from logs_ui.recorder.diagnosis.measures import best, shares, within_groups
from logs_ui.recorder.diagnosis.rollout_rows import SAME, Bools, Rows
from logs_ui.recorder.diagnosis.windows import rise, windows
from logs_ui.recorder.diagnosis.wording import figure, percent
from logs_ui.recorder.settings import SHARE

_MOST, _LEAST = 0.9, 0.1
_LESS = 0.2  # than _MOST is enough, where the other falls: ours
_FALL = 0.1  # of the range of what it gave: ours
_ERRORS = 3.0  # standard errors: any of several functions may fall by chance
_COMPARABLE, _LOW = 0.5, 0.25  # ours
_OUTCOME = re.compile(
    r"correct|accura|solve|success|right|answer|pass|win|goal|exact|match|verif|outcome|env", re.IGNORECASE
)
_FORM = re.compile(r"format|style|tag|length|brev|short|long|repeat|penal", re.IGNORECASE)


def _look(run: Run) -> Card | None:
    return _outweighed(run) or _overruled(run) or _cancelled(run)


def _outweighed(run: Run) -> Card | None:
    """One has nearly all of the variance, while another, which matters and has room, has nearly none of it."""
    found = _pair(run, run.rows) or _pair_of_all(run)
    if found is None:
        return None
    first, starved, share = found
    room, low = _room(run, starved), float(np.nanmin(run.rows.values[starved]))
    return Card(
        id="reward_parts",
        title=f"One reward function decides: {first} makes {part_of(share[first])} of a group's differences, {starved} "
        f"{_made(share[starved]) if share[starved] >= 0 else 'pulls against it'}",
        cost=max(room, run.fall.lost * min(share[first], 1.0)),
        evidence=(
            f"Of {starved}, {figure(room)} is left to win; of {first}, {figure(_room(run, first))}.",
            "Advantages are what differs within a group: the policy is taught what makes the difference there.",
        ),
        suggestion=f"Weigh {first} less, or pay it only where {starved} is above nothing.",
        where=f"{links.rewards(starved)}<={low:.9g}",
        aspects=("outweighs", "decides"),
    )


def part_of(share: float) -> str:
    """What a function pulls against has a variance below the sum of its parts, so that a share can be above 1."""
    return "all" if share > 1 else percent(share)


def _made(share: float) -> str:
    return percent(share) if share > 0 else "none"


def _overruled(run: Run) -> Card | None:
    """One has most of the variance, and rises; another, which matters and has room, falls for it."""
    found, share = windows(run), shares(run.all)
    first = max(share, key=lambda name: share[name], default=None)
    if found is None or first is None or share[first] < run.threshold("reward_parts", _MOST) - _LESS:
        return None
    before, after = found
    gains = {
        name: rise(before.group_means(before.values[name]), after.group_means(after.values[name]), errors=_ERRORS)
        for name in share
    }
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
    return Card(
        id="reward_parts",
        title=f"One reward function decides, and rises while {name} falls: {first} makes {part_of(share[first])} of a "
        "group's differences",
        cost=max(min(_room(run, name), run.fall.lost), 0.0),
        evidence=(
            f"{name} went from {figure(fall.before)} to {figure(fall.after)}.",
            f"{first} went from {figure(gain.before)} to {figure(gain.after)}.",
            f"Of a group's differences, which are what the policy is taught by, {name} makes {_made(share[name])}.",
        ),
        suggestion=f"Weigh {first} less, or pay it only where {name} is above nothing.",
        where=f"{links.rewards(name)}<={float(np.nanmin(run.rows.values[name])):.9g}",
        aspects=("decides",),
    )


def _can_be_wanted(run: Run, name: str, fall: float) -> bool:
    """What is negative is a penalty, which may well grow with success, unless it is named like an outcome."""
    values = run.all.values[name][np.isfinite(run.all.values[name])]
    return (
        fall > _FALL * float(np.ptp(values)) and _has_room(run, name) and (float(values.min()) >= 0 or is_outcome(name))
    )


def _pair(run: Run, rows: Rows) -> tuple[str, str, dict[str, float]] | None:
    """The function that decides, the one that it starves, and the shares; None where there are none such."""
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
    """By all steps, where in the last ones nothing is left of the first to differ in, and the other is still low."""
    found = _pair(run, run.all)
    if found is None:
        return None
    first, starved, _ = found
    is_spent = _room(run, first) <= _LEAST * best(run.all, first)
    return found if is_spent and _is_low(run, starved) and not _grows(run, starved) else None


def _grows(run: Run, name: str) -> bool:
    found = windows(run)
    gain = None if found is None else rise(found[0].values[name], found[1].values[name])
    return gain is not None and gain.is_sure and gain.value > 0


def _matters(run: Run, name: str, first: str) -> bool:
    """Whether a function is one that should decide, rather than the first: its name is one of an outcome's, and the
    first's is not. Where the names say the opposite, what is small is meant to be; where they do not say, it can count
    at least half as much, or it stays low while the first is not.
    """
    if is_outcome(name) != is_outcome(first):
        return is_outcome(name)
    if run.all.weights.get(name, 1.0) == 0:
        return False
    return best(run.all, name) >= _COMPARABLE * best(run.all, first) or (
        _is_low(run, name) and not _is_low(run, first) and not _grows(run, name)
    )


def is_outcome(name: str) -> bool:
    return _OUTCOME.search(name) is not None and _FORM.search(name) is None


def _has_room(run: Run, name: str) -> bool:
    """A function that never gave anything but one value may be a penalty that nobody has incurred: only an outcome's
    name tells.
    """
    values = run.all.values[name][np.isfinite(run.all.values[name])]
    is_dead = not len(values) or float(np.ptp(values)) <= SAME
    return _room(run, name) > _LEAST * abs(best(run.all, name)) and not (is_dead and not is_outcome(name))


def _is_low(run: Run, name: str) -> bool:
    values = run.all.parts[name][np.isfinite(run.all.parts[name])]
    low = float(values.min(initial=0.0))
    return float(np.nanmean(run.rows.parts[name])) <= low + _LOW * (best(run.all, name) - low)


def _room(run: Run, name: str) -> float:
    """What a rollout could still win by this function."""
    known = np.isfinite(run.rows.parts[name]).any()
    return best(run.all, name) - float(np.nanmean(run.rows.parts[name])) if known else 0.0


def cancels(rows: Rows) -> Bools:
    """(G,) groups in which reward functions differ between rollouts and their sum does not."""
    groups = rows.groups
    spread = np.zeros(len(groups.size))
    for part in rows.parts.values():
        centred = np.nan_to_num(within_groups(part, rows))
        spread = np.maximum(spread, np.bincount(rows.group, weights=np.abs(centred), minlength=len(spread)))
    return (groups.size > 1) & (groups.std <= SAME) & (spread > SAME)


def _cancelled(run: Run) -> Card | None:
    if len(run.rows.parts) < 2:
        return None
    cancelled = cancels(run.rows)
    share = float(cancelled.mean()) if len(cancelled) else 0.0
    if share <= _LEAST:
        return None
    return Card(
        id="reward_parts",
        title=f"Reward functions cancel out in {percent(share)} of groups",
        cost=run.fall.lost * share,
        evidence=(f"In {cancelled.sum()} groups they differ between rollouts, and their sum does not.",),
        suggestion="Change their weights, so that what one takes the other does not give back exactly.",
        where="spread:0",
        own=cancelled[run.rows.group],
        aspects=("cancels",),
    )


DIAGNOSTIC = Diagnostic(
    "reward_parts",
    "Reward functions",
    f"Cov(part, R) / Var(R) within groups: one at {_MOST:g} or more, another at {_LEAST:g} or less of which more than "
    f"{_LEAST:.0%} is left to win, and which can count at least {_COMPARABLE:.0%} as much or is named like an outcome "
    f"(correct, solved, ...), or stays below {_LOW:.0%} of it; or one at "
    f"{_LESS:g} less over all steps that rises, while such another falls by more than {_FALL:.0%} of its range, both "
    "by more than three standard errors of groups' means; or parts that differ within a group while their sum "
    "does not.",
    "TRL issue 3857; thresholds ours",
    lambda run: None if len(run.rows.parts) > 1 else "two reward functions",
    _look,
    limits=SHARE,
    position=210,
    explained_by=(
        "invalid_reward",
        "disagreement",
        "inconsistent",
        "parse_failures",
        "truncation",
        "loops",
        "never_acted",
        "degenerate_text",
        "hacking:weightless",
        "length",
    ),
)
