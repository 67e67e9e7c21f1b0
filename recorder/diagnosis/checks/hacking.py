"""Finds suspected reward hacking: a function that is wanted falls while others pay."""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import numpy as np

from logs_ui.recorder.diagnosis import links
from logs_ui.recorder.diagnosis.card import Below, Card, NotJudged, Outcome, Run, check, needs
from logs_ui.recorder.diagnosis.change_point import above, below
from logs_ui.recorder.diagnosis.checks.reward_functions import list_units, make_whole
from logs_ui.recorder.diagnosis.contrast import CHANCE, SURER, Rise, added_by, given_by, rise
from logs_ui.recorder.diagnosis.measures import best, extent, weigh_by_range, within_groups
from logs_ui.recorder.diagnosis.rollout_rows import SAME, Floats, Rows
from logs_ui.recorder.diagnosis.success import is_form, is_outcome, is_penalty, levels
from logs_ui.recorder.diagnosis.wording import figure, percent
from logs_ui.recorder.vocabulary import Lack

_FALL = 0.1  # of the range of its values [ours]
_PAID = 0.8  # of what is taken away, that others add instead [ours]
_SAME = 0.95  # of the rollouts: what is solved is what the function says [ours]
_PARTED = 0.1  # correlation within groups, and its opposite [ours]
_SMALL = 0.1  # of the sum of all reward functions' ranges


def weightless(rows: Rows) -> dict[str, float]:
    """Return the reward functions that can make at most a tenth of the difference in reward, with their share (0 to 1).

    A function of small weight is left out if it is ever negative: it is then a penalty, which may grow with success.
    So are one of negative weight and one that counts, such as turns or tokens: less of it is no worse.
    """
    return {
        name: share
        for name, share in weigh_by_range(rows).items()
        if share <= SAME or (share <= _SMALL and float(np.nanmin(rows.values[name], initial=0.0)) >= 0)
        if rows.weights.get(name, 1.0) >= 0 and not _counts(rows.values[name])
    }


def _counts(values: Floats) -> bool:
    """Return True for whole numbers of which some are above 1."""
    finite = values[np.isfinite(values)]
    return bool((finite == np.round(finite)).all() and finite.max(initial=0.0) > 1)


def find_hacked(run: Run) -> str | None:
    """Return the function that fell most, if the check on hacking finds one that fell while the reward rose."""
    for unit in list_units(run):
        if fallen := _compare_functions(unit).fallen:
            return max(fallen, key=lambda name: fallen[name])
    return None


class _Functions(NamedTuple):
    """Compares functions over time, by name."""

    gains: Mapping[str, Rise]  # what each adds to the reward
    payer: str  # the one that adds most
    falls: Mapping[str, Rise]  # of those that may give way, their values
    partings: Mapping[str, Rise]  # of those that parted from the payer, the correlation
    fallen: Mapping[str, float]  # of those that fell too far, the share of their range


def _compare_functions(run: Run) -> _Functions:
    gains = _list_gains(run)
    payer = _find_payer(gains)
    partings = {} if is_outcome(payer) else _find_partings(run, payer)
    falls = _find_falls(run, payer, partings)
    return _Functions(gains, payer, falls, partings, _find_fallen(run, falls, gains))


def _list_gains(run: Run) -> dict[str, Rise]:
    """Return the change of what each function adds to the reward."""
    return {name: rise(run, added_by(name), chance=SURER) for name in run.rows.parts}


def _find_payer(gains: Mapping[str, Rise]) -> str:
    """Return the function whose gain is largest, of those whose gain is sure, if there are any; "" for none."""
    return max(gains, key=lambda name: (gains[name].is_sure and gains[name].value > 0, gains[name].value), default="")


def _rise_of_reward(run: Run, name: str) -> Rise:
    """Return the change of the reward in rollouts to which a function gives a number."""
    return rise(run, lambda rows: np.where(np.isfinite(rows.values[name]), rows.reward, np.nan))


def _find_falls(run: Run, payer: str, partings: Mapping[str, Rise]) -> dict[str, Rise]:
    """Return the change of each function that may give way: one of little weight, or one that is wanted rather than the
    `payer`, which gains most: an outcome, worth more, or parted from it, unless the payer is an outcome.
    """
    falls = {name: rise(run, given_by(name)) for name in weightless(run.all)}
    for name in () if is_outcome(payer) else run.rows.parts:
        is_worth_more = not is_form(name) and not is_penalty(name) and best(run.all, name) > best(run.all, payer)
        if (_is_outcome(run, name) or is_worth_more or name in partings) and name not in falls:
            falls[name] = rise(run, given_by(name), chance=SURER)
    return falls


def _find_partings(run: Run, payer: str) -> dict[str, Rise]:
    """Return the correlations within groups of the payer and each function that rose and fell with it at first, and
    against it at last: what the payer pays for is no longer what the other one does. Rollouts that get the least of
    both, as failures do, are left out: the functions may go together in these alone.
    """
    least = {name: np.nanmin(values, initial=np.inf) for name, values in run.all.values.items()}

    def agreement(rows: Rows, name: str) -> Floats:
        pair = np.stack([rows.values[name], rows.values[payer]])
        is_more = (pair > np.array([[least[name]], [least[payer]]]) + SAME).any(axis=0)
        pair = np.where(np.isfinite(pair).all(axis=0) & is_more, pair, np.nan)
        of_name, of_payer = (within_groups(values, rows) for values in pair)
        scale = float(np.sqrt(np.nansum(of_name**2) * np.nansum(of_payer**2)))
        product: Floats = of_name * of_payer / max(scale, SAME)
        return product * float(np.isfinite(product).sum())

    wanted = [name for name in run.rows.parts if not is_form(name) and not is_penalty(name)]
    pairs = [name for name in wanted if name != payer and run.rows.weights.get(name, 1.0) > 0]
    correlations = {name: rise(run, partial(agreement, name=name), chance=SURER) for name in pairs}
    return {
        name: correlation
        for name, correlation in correlations.items()
        if correlation.is_sure and correlation.before >= _PARTED and correlation.after <= -_PARTED
    }


def _is_outcome(run: Run, name: str) -> bool:
    """Return True for a function that is named like an outcome, or has one of two values where a rollout is
    solved, and the lower one elsewhere.
    """
    success, values = run.scale.success, run.all.values.get(name)
    if is_outcome(name) or values is None or not success.is_defined:
        return is_outcome(name)
    solved, kinds = success.outcomes(run.all), levels(values)
    is_known = np.isfinite(solved) & np.isfinite(values)
    is_alike = (values[is_known] > kinds.mean()) == solved[is_known]
    return len(kinds) == 2 and bool(is_known.any() and is_alike.mean() >= _SAME and solved[is_known].any())


def _find_fallen(run: Run, falls: Mapping[str, Rise], gains: Mapping[str, Rise]) -> dict[str, float]:
    """Return the fall as a share of the range of the function's values, for those that fell too far while the reward
    rose, or, if they have weight, while what the others add rose by nearly as much as they took.
    """
    paid = sum(gain.value for name, gain in gains.items() if gain.is_sure and gain.value > 0 and name not in falls)
    light, limit = weightless(run.all), run.threshold("hacking", _FALL)
    ranges = {name: extent(run.all.values[name]) for name in falls}
    return {
        name: -fall.value / ranges[name]
        for name, fall in falls.items()
        if fall.is_sure and -fall.value > limit * ranges[name]
        if ((gain := _rise_of_reward(run, name)).is_sure and gain.value > 0)
        or (name not in light and paid >= -_PAID * run.rows.weights.get(name, 1.0) * fall.value)
    }


def _check_hacking(run: Run) -> Outcome:
    """Return a card if a function of little weight, or one that is wanted, falls while others are paid.

    The policy may have learned what the reward pays for in place of what is wanted.
    """
    if run.windows is None:
        return NotJudged("The run has a single step.")
    outcome = _judge_sets(run)
    if isinstance(outcome, Card) or run.rows.steps[0] <= (first := run.all.steps[len(run.all.steps) // 3]):
        return outcome
    # What is learned before it gives way falls from its best, and may be no lower than in the first steps.
    from_best = _judge_sets(replace(run, all=run.all.where(run.all.step >= first)))
    return from_best if isinstance(from_best, Card) else outcome


def _judge_sets(run: Run) -> Outcome:
    """Judge each set of functions that score the same groups."""
    units = list_units(run)
    outcomes = [_judge_hacking(unit) for unit in units]
    for unit, outcome in zip(units, outcomes, strict=True):
        if isinstance(outcome, Card):
            return outcome if unit is run else make_whole(run, unit, outcome)
    if len(outcomes) == 1:
        return outcomes[0]
    return Below(
        f"There are {len(units)} sets of functions that score the same groups; in none of these sets of groups does "
        f"the reward rise while a function falls by more than {percent(run.threshold('hacking', _FALL))} of its range."
    )


def _judge_hacking(run: Run) -> Outcome:
    """Judge a run whose functions score the same groups."""
    if run.windows is None:
        return NotJudged("These functions score the groups of a single step.")
    before, after = run.windows
    gain = rise(run, lambda rows: rows.reward)
    has_risen = gain.value > 0 and gain.is_sure
    moved = f"Reward, last steps vs first: {figure(gain.before)} to {figure(gain.after)}"
    light, (gains, payer, falls, partings, fallen) = weightless(run.all), _compare_functions(run)
    if not fallen and not has_risen:
        return Below(f"{moved}: it did not rise by more than chance.")
    if not fallen:
        least = min(falls, key=lambda name: falls[name].value, default=None)
        if least is None:
            return Below(f"{moved}. No function has little weight, or is worth more than the one that rises.")
        return Below(f"{moved}; {least}: {figure(falls[least].before)} to {figure(falls[least].after)}.")
    name = max(fallen, key=lambda name: fallen[name])
    fall, gain = falls[name], _rise_of_reward(run, name)
    fields = below(run.all.by_step(run.all.values[name]), (fall.before + fall.after) / 2)
    # What is paid in its place tells hacked rollouts from others; without it only a low value does.
    is_paid = name not in light and run.rows.weights.get(payer, 1.0) > 0
    limit = fall.before if is_paid else (fall.before + fall.after) / 2
    affected = run.rows.values[name] < limit
    where, clause = f"{links.rewards(name)}<{limit:.6g}", f"have {name} below {figure(limit)}"
    if name in light:
        how = "which has little weight"
        weight = figure(run.all.weights.get(name, 1.0))
        sentence = f"Its weight is {weight}: it can make {percent(light[name])} of the difference in reward."
    else:
        how = f"and {payer} rises instead"
        first, last = figure(gains[payer].before), figure(gains[payer].after)
        sentence = f"In these steps {payer} added {first} to the reward at first, and {last} at last."
        if is_paid:
            values = rise(run, given_by(payer))
            affected &= run.rows.values[payer] > values.before
            where += f" {links.rewards(payer)}>{values.before:.6g}"
            clause += f" and {payer} above {figure(values.before)}, their means at first"
            if fields["since_step"] is None:  # what falls slowly shows no step; what is paid in its place may
                risen = above(run.all.by_step(run.all.values[payer]), (values.before + values.after) / 2)
                fields |= {"since_step": risen["since_step"], "since_range": risen["since_range"]}
                if (first_step := risen["since_step"]) is not None:
                    sentence += f" It has given more since step {first_step:,}."
    course = (
        f"Steps {after.steps[0]}\u2013{after.steps[-1]} vs {before.steps[0]}\u2013{before.steps[-1]}: {name} "
        f"{figure(fall.before)} \u2192 {figure(fall.after)}, reward {figure(gain.before)} \u2192 "
        f"{figure(gain.after)}."
    )
    parting, parted = partings.get(name), list[str]()
    if parting is not None:
        course_of_both = (
            f"(correlation {figure(parting.before)}), and against each other at last ({figure(parting.after)})"
        )
        least = "without rollouts that got the least of both"
        parted.append(f"Within groups {name} and {payer} went together at first {course_of_both}, {least}.")
    return Card(
        id="hacking",
        title=f"Suspected reward hacking: {'the reward rises while ' * has_risen}{name} falls, {how}",
        cost=max(run.fall.lost, 0.0) * min(fallen[name], 1.0) + max(gain.value, 0.0),
        evidence=(
            *(course, sentence, *parted),
            f"The cost is in {name}: {figure(-fall.value)} less of it per rollout.",
        ),
        suggestion=f"Read the rollouts of highest reward in which {name} is low: if they cheat, raise {name}'s "
        "weight, or fix the function that rewards them.",
        where=where,
        **fields,
        is_loss=False,
        share=float(affected.mean()),
        clause=clause,
        # If both functions count and still agree, cards on length and weights say better why one gives way.
        explains=("length", "reward_parts") if name in light or parted else (),
    )


HACKING = check(
    "hacking",
    "Suspected hacking",
    f"The mean reward rises from the first steps to the last, while a function falls by more than {_FALL:.0%} of its "
    "range: (1) a function of little influence (it has the weight 0, or it is never negative and can make at most "
    f"{_SMALL:.0%} of the difference in reward; its weight is not negative, and its values are no counts); "
    "or (2) an outcome (a function that is named so, as correct or solved, "
    f"or has the upper of two values just where a rollout is solved, in {_SAME:.0%} of them), or a function "
    "that can add more than the one that adds most to the rise, or whose correlation with that one within groups was "
    f"{_PARTED:g} or more and is {-_PARTED:g} or less, and is not named like a form or a penalty; all three only "
    "if the one that adds most is no outcome. In (2) the reward need not rise, if other functions add "
    f"{_PAID:.0%} or more of what the falling one takes away. Chance of each: below {CHANCE:.0%}, of the fall in (2), "
    f"and of what is added in its place, below {SURER:.1%}. The reward is that of the rollouts to which the function "
    "gives a number, and each set of functions that score the same groups is judged for itself. If nothing shows, the "
    "run is judged again without its first third: what was learned first may fall from its best.",
    needs(
        "two reward functions, one of which may have the weight 0", lambda run: len(run.all.values) > 1, Lack.WEIGHTS
    ),
    _check_hacking,
)
