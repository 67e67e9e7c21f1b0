"""Finds rollouts that were scored and got no number: of any function, of one, or of one that stopped."""

import math
from collections.abc import Iterator

import numpy as np

from logs_ui.recorder.diagnosis import contrast
from logs_ui.recorder.diagnosis.card import Below, Card, NotJudged, Outcome, Run, check, needs
from logs_ui.recorder.diagnosis.change_point import CHANCE, above
from logs_ui.recorder.diagnosis.links import ids, rewards
from logs_ui.recorder.diagnosis.mean_difference import LEAST_UNITS
from logs_ui.recorder.diagnosis.measures import mean
from logs_ui.recorder.diagnosis.places import list_parts
from logs_ui.recorder.diagnosis.rollout_rows import Bools, Ints, Rows
from logs_ui.recorder.diagnosis.wording import exact_percent, figure, listed, percent
from logs_ui.recorder.settings import NO_THRESHOLD
from logs_ui.recorder.vocabulary import Status

_MANY = 32  # rollouts: a function that scores none of so many never will
_OF_ONE = 0.05  # of the rollouts that one function must leave unscored [ours]
_RARE = 0.1  # of the rollouts have NaN or an infinity: then it is their groups that matter [ours]
_MOSTLY = 0.5  # of a task's groups with an unscored rollout must have a scored one, too [ours]
_NEARLY_ALL = 0.9  # of the rollouts that a function scored before it stopped [ours]


def invalid(rows: Rows) -> Bools:
    """Return (N,) True for scored rollouts without a reward: no function gave a number, or one gave an infinity."""
    is_invalid: Bools = rows.scored & (rows.status == Status.OK) & np.isnan(rows.reward)
    return is_invalid


def unanswered(rows: Rows, name: str) -> Bools:
    """Return (N,) True for rollouts that a function gave no number, though it gave one to others of the same group.

    A function may decline a task or a prompt, but those are the same within a group. If most of a task's groups are
    like this, the task's other unscored rollouts count, too.
    """
    judged = rows.scored & (rows.status == Status.OK) & ~invalid(rows)
    answered = judged & np.isfinite(rows.values[name])
    missing = judged & ~answered & ~_others_rows(rows, name)
    # `pair` numbers the pairs of group and task, for a group may mix tasks. In `mixed` pairs the function gave a
    # number to some rollouts and not to others.
    many = len(rows.tasks) + 1
    pairs, pair = np.unique(rows.group * many + rows.task + 1, return_inverse=True)
    has_missing = np.bincount(pair[missing], minlength=len(pairs)) > 0
    mixed = has_missing & (np.bincount(pair[answered], minlength=len(pairs)) > 0)
    task = pairs % many
    some, all_of = (np.bincount(task[chosen], minlength=many) for chosen in (mixed, has_missing))
    is_unanswered: Bools = missing & (mixed | ((some > 0) & (some >= _MOSTLY * all_of))[task])[pair]
    return is_unanswered


def _others_rows(rows: Rows, name: str) -> Bools:
    """Return (N,) True for rollouts of another function, which scores next to none of this one's rollouts."""
    answered = np.isfinite(rows.values[name])
    is_others = np.zeros(len(rows), bool)
    for has_number in (np.isfinite(values) for other, values in rows.values.items() if other != name):
        if (has_number & answered).sum() <= _OF_ONE * answered.sum():
            is_others |= has_number
    return is_others


def _check_invalid(run: Run) -> Outcome:
    bad = invalid(run.rows)
    unscored = {name: unanswered(run.rows, name) for name in run.rows.values}
    gaps = {
        name: affected
        for name, affected in unscored.items()
        if affected.mean() > _OF_ONE or (affected & run.rows.odd).any()
    }
    cards = [_declined_card(run, bad)] if bad.any() else []
    cards += [_answers_for_some(run, gaps)] if gaps else []
    cards += _find_stopped(run)
    if cards:
        return max(cards, key=lambda card: card.cost or 0.0)
    silent = [name for name, values in run.all.parts.items() if not np.isfinite(values).any()]
    if not silent:
        most = max(unscored, key=lambda name: float(unscored[name].mean()), default=None)
        share = 0.0 if most is None else float(unscored[most].mean())
        gap = f" {most} left {exact_percent(share)} unscored (threshold {exact_percent(_OF_ONE)})." if share else ""
        return Below(f"Each of {int(run.rows.scored.sum()):,} scored rollouts got a number.{gap}")
    if run.all.scored.sum() < _MANY:
        return NotJudged(f"{listed(silent)} gave no number so far; {_MANY} scored rollouts are needed to judge that.")
    return _never_answers(run, silent)


def _declined_card(run: Run, bad: Bools) -> Card:
    rows = run.rows
    share = float(bad.mean())
    names = [name for name, values in rows.parts.items() if np.isnan(values[bad]).all()]
    tasks = sorted({rows.tasks[task] for task in np.unique(rows.task[bad]) if task >= 0})
    sentences = [f"{int(bad.sum())} rollouts, {int((bad & rows.odd).sum())} of them because of NaN or an infinity."]
    sentences += [f"No number from {listed(names)}."] if names else []
    sentences += [f"Tasks: {listed(tasks)}."] if tasks else []
    of_groups = float(np.isin(rows.group, rows.group[bad & rows.odd]).mean()) if share <= _RARE else 0.0
    beside = f"{percent(of_groups)} of rollouts are in their groups: one with an infinity gets no finite advantages."
    sentences += [beside] if of_groups else []
    part = 0.0 if of_groups else run.cost_of("invalid_reward")
    return Card(
        id="invalid_reward",
        title=f"The reward functions returned no number for {percent(share)} of rollouts",
        cost=part if part > 0 else max(share, of_groups) * contrast.spread(run),
        evidence=tuple(sentences),
        suggestion="Return a number for these rollouts."
        + " If every function returns None, TRL 1.16 does not learn from the rollout, and TRL 0.29 counts it as 0."
        * (run.imported is None),
        where="cause:invalid_reward",
        is_part=part > 0,
        **above(run.all.by_step(invalid(run.all)), 0.0),
        own=bad,
        is_setup=True,
        is_loss=part > 0,
    )


def _answers_for_some(run: Run, gaps: dict[str, Bools]) -> Card:
    rows, names = run.rows, list(gaps)
    affected = np.logical_or.reduce(list(gaps.values()))
    share = float(affected.mean())
    of_all = np.logical_or.reduce([unanswered(run.all, name) for name in names])
    worth = sum(float(gaps[name].mean()) * (mean(rows.parts[name]) or 0.0) for name in names)
    odd = int((affected & rows.odd).sum())
    sentences = [
        f"{name}: no number for {of_it.sum()} rollouts; elsewhere it adds {figure(mean(rows.parts[name]) or 0.0)} on "
        "average."
        for name, of_it in gaps.items()
    ]
    is_all = len(names) == 1 and np.array_equal(affected, np.isnan(rows.values[names[0]]))
    return Card(
        id="invalid_reward",
        title=f"{listed(names)} gave no reward to {percent(share)} of rollouts, but scored others of the same prompts",
        cost=max(share * contrast.gap(run, affected), worth),
        evidence=(*sentences, f"{odd} of these rollouts have NaN of a function.") if odd else tuple(sentences),
        suggestion="Look for exceptions or timeouts that the function hides: TRL leaves None and NaN out of the sum, "
        "so these rollouts are compared with others that received more rewards.",
        where=f"{rewards(names[0])}:none" if is_all else ids(rows.id[affected]),
        **above(run.all.by_step(of_all), _OF_ONE),
        own=affected,
        is_setup=True,
        is_loss=False,
    )


def _find_stopped(run: Run) -> Iterator[Card]:
    """Yield a card for each function that scored nearly all of the run, an eval, a family of tasks or a value of a
    column, and since a step scores none of it, nor another function in its place.
    """
    rows, is_last = run.all, run.all.step >= run.rows.steps[0]
    silent = [name for name, values in run.rows.values.items() if not np.isfinite(values).all()]
    unscored = {name: rows.scored & ~np.isfinite(rows.values[name]) & ~_others_rows(rows, name) for name in silent}
    missing = {name: of for name, of in unscored.items() if (of & is_last).any()}
    parts = list_parts(run) if missing else []
    for name, of_function in missing.items():
        has_number = np.isfinite(rows.values[name])
        judged = (has_number | of_function) & rows.scored & (rows.status == Status.OK)
        mixed = [_find_mixed(codes, judged, has_number) for _, codes in parts]
        compared = sum(map(len, mixed))
        stopped, affected = list[tuple[str, int]](), np.zeros(len(rows), bool)
        # The largest first: what is in one that stopped says nothing new.
        for (places, codes), of_parts in zip(parts, mixed, strict=True):
            for code in of_parts:
                of = codes == code
                since = of & is_last & of_function & ~affected
                end = _last_scored(rows, of & judged, has_number, compared) if since.any() else None
                if end is not None:
                    stopped.append((places[code], end))
                    affected |= of & of_function & (rows.step > end)
        if stopped:
            yield _make_stopped(
                run, name, [place for place, _ in stopped], min(end for _, end in stopped) + 1, affected
            )


def _find_mixed(codes: Ints, judged: Bools, has_number: Bools) -> list[int]:
    """Return the codes of which a function scored some rollouts, and others not."""
    scored, unscored = (np.unique(codes[judged & (codes >= 0) & some]) for some in (has_number, ~has_number))
    return [int(code) for code in np.intersect1d(scored, unscored)]


def _last_scored(rows: Rows, judged: Bools, has_number: Bools, compared: int) -> int | None:
    """Return the last step at which a function gave a number to any of the `judged` rollouts, if it gave one to nearly
    all until then, and to none since, beyond the chance of that in any of so many parts that are `compared`; else None.
    """
    end = int(rows.step[judged & has_number].max())
    until, since = judged & (rows.step <= end), judged & (rows.step > end)
    if has_number[until].mean() < _NEARLY_ALL:
        return None
    before, after = (len(np.unique(rows.group[side])) for side in (until, since))
    # Of all orders of the groups that it scored and of those that it did not, one has the former first.
    is_sure = compared <= CHANCE * math.comb(before + after, after)
    return end if min(before, after) >= LEAST_UNITS and is_sure else None


def _make_stopped(run: Run, name: str, places: list[str], begins: int, affected: Bools) -> Card:
    of, added = affected[run.all.step >= run.rows.steps[0]], mean(run.all.parts[name]) or 0.0
    where = "".join(f" of {names}" for names in [listed(places)] if names)
    return Card(
        id="invalid_reward",
        title=f"{name} stopped: no number for {percent(float(of.mean()))} of rollouts",
        cost=float(of.mean()) * max(added, 0.0),
        evidence=(
            f"{name}: no number for any of {affected.sum():,} scored rollouts{where} since step {begins:,}.",
            f"Where it gave one, it added {figure(added)} on average.",
        ),
        suggestion="Look for exceptions or timeouts that the function hides, and for rows that lack what it needs.",
        where=f"{rewards(name)}:none" if np.array_equal(of, np.isnan(run.rows.values[name])) else ids(run.rows.id[of]),
        **above(run.all.by_step(affected), _OF_ONE),
        own=of,
        is_setup=True,
        is_loss=False,
    )


def _never_answers(run: Run, names: list[str]) -> Card:
    return Card(
        id="invalid_reward",
        title=f"{listed(names)} gave no reward to any rollout",
        cost=max(run.fall.lost, contrast.spread(run)),
        evidence=(f"{int(run.all.scored.sum())} rollouts were scored, and none got a number of it.",),
        suggestion="Call it by hand on a good completion: it must return a number.",
        where="",
        is_setup=True,
        is_loss=False,
    )


INVALID_REWARD = check(
    "invalid_reward",
    "Missing or NaN rewards",
    "Shown if there is at least one: a rollout for which no reward function returned a number, or one returned an "
    f"infinity; a function that scores none of {_MANY} or more rollouts; a function that leaves more than "
    f"{_OF_ONE:.0%} of the rollouts unscored, or gives NaN to any, although it scores others of the same group, unless "
    "another function scores exactly those; a function that scored at least "
    f"{_NEARLY_ALL:.0%} of the run, an eval, a family of tasks or a value of a column, and scores none of it from some "
    "step on, nor does another function in its place, beyond the chance that the groups that it scores came first.",
    needs("a reward", lambda run: run.rows.scored),
    _check_invalid,
    source="TRL PR 6427, OpenEnv PR 675",
    limits=NO_THRESHOLD,
)
