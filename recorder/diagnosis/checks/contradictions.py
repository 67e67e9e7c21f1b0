"""Finds reward functions that disagree with the environment, score the same completion differently, or give no number
to rollouts that were scored.
"""

from dataclasses import dataclass

import numpy as np

from logs_ui.recorder.diagnosis import contrast
from logs_ui.recorder.diagnosis.card import Below, Card, NotJudged, Outcome, Run, check, needs
from logs_ui.recorder.diagnosis.change_point import above
from logs_ui.recorder.diagnosis.links import exactly, ids, rewards
from logs_ui.recorder.diagnosis.measures import extent, mean
from logs_ui.recorder.diagnosis.rollout_rows import SAME, Bools, Floats, Ints, Rows, ends
from logs_ui.recorder.diagnosis.wording import exact_percent, figure, listed, percent
from logs_ui.recorder.vocabulary import Status

_SHARE = 0.1
_FEW = 8  # rollouts, or pairs
_NEIGHBOURS = 64  # that a rollout is compared with in its group: enough to estimate the order
_DIFFERING = 0.02  # of the rollouts that have a duplicate
_OF_RANGE = 0.01  # of the range of the function's values: less is rounding
_MANY = 32  # rollouts: a function that scores none of so many never will
_OF_ONE = 0.05  # of the rollouts that one function must leave unscored [ours]
_MOSTLY = 0.5  # of a task's groups with an unscored rollout must have a scored one, too [ours]


@dataclass(frozen=True, eq=False)
class Against:
    """Compares a reward function with the environment."""

    name: str
    theirs: Floats  # (N,) the environment's rewards: their sum or the last one, whichever the function agrees with more
    odd: Bools  # (N,) True for rollouts on which they disagree
    withheld: Bools  # (N,) True for those of them that the environment rates better than the function does
    compared: int  # number of rollouts if both say only 0 or 1, else of pairs in a group that both rate differently
    share: float  # of what was compared, the part on which they disagree, 0 to 1
    is_pairs: bool  # True if pairs were compared


def against(rows: Rows, name: str) -> Against | None:
    """Compare a reward function with the environment's rewards, by their sum or the last one.

    None if there is too little to compare, or if the environment rates all rollouts equally.
    """
    both = (_compared(rows, name, theirs) for theirs in (rows.env_reward_sum, rows.env_reward_last))
    return min((it for it in both if it is not None), key=lambda it: it.share, default=None)


def _compared(rows: Rows, name: str, theirs: Floats) -> Against | None:
    ours = rows.values[name]
    known = np.isfinite(ours) & np.isfinite(theirs)
    if known.sum() < _FEW or np.ptp(theirs[known]) <= SAME:
        return None
    if np.isin(ours[known], (0.0, 1.0)).all() and np.isin(theirs[known], (0.0, 1.0)).all():
        odd = known & (ours != theirs)
        share = float(odd.sum() / known.sum())
        return Against(name, theirs, odd, odd & (theirs > ours), int(known.sum()), share, is_pairs=False)
    odd, opposite, pairs = _opposite(np.where(known, ours, np.nan), theirs, rows)
    return Against(name, theirs, odd, odd, pairs, opposite / pairs, is_pairs=True) if pairs >= _FEW else None


def _opposite(ours: Floats, theirs: Floats, rows: Rows) -> tuple[Bools, int, int]:
    """Return (N,) True for rollouts of pairs that the two order oppositely; the number of these, and of all pairs."""
    odd = np.zeros(len(rows), bool)
    order = np.argsort(rows.group, kind="stable")
    opposite = pairs = 0
    for apart in range(1, min(int(np.bincount(rows.group).max()), _NEIGHBOURS)):
        a, b = order[:-apart], order[apart:]
        signs = np.nan_to_num(np.sign(ours[a] - ours[b]) * np.sign(theirs[a] - theirs[b]))
        signs = np.where(rows.group[a] == rows.group[b], signs, 0)
        opposite, pairs = opposite + int((signs < 0).sum()), pairs + int((signs != 0).sum())
        odd[a[signs < 0]] = odd[b[signs < 0]] = True
    return odd, opposite, pairs


def _look_disagreement(run: Run) -> Outcome:
    """Return the card.

    If one function agrees with the environment, the others may measure something else. If none of several agrees, each
    may be more lenient than the environment, as a format reward is, but none may give nothing where it gives a reward.
    """
    rows, limit = run.rows, run.threshold("disagreement", _SHARE)
    weighty = [name for name in rows.values if abs(rows.weights.get(name, 1.0)) > SAME]
    found = [it for name in weighty if (it := against(rows, name)) is not None]
    if not found:
        return NotJudged("Too few rollouts have both rewards, or the environment gives all of them the same.")
    best = min(found, key=lambda it: it.share)
    calm = Below(
        f"{best.name} and the environment disagree on {exact_percent(best.share)} of {best.compared:,} "
        f"{'pairs' if best.is_pairs else 'rollouts'} (threshold {exact_percent(limit)}).",
        exactly(rows.id[best.odd]),
    )
    if best.share <= limit:
        return calm
    bad = [it for it in found if len(weighty) == 1 or it.withheld.sum() > limit * it.compared or it.is_pairs]
    worst = max(bad, key=lambda it: (not it.is_pairs, _cost(run, it)), default=None)
    if worst is None:
        return calm
    theirs, ours = (figure(float(it[worst.odd].mean())) for it in (worst.theirs, rows.values[worst.name]))
    what = "pairs of rollouts within groups" if worst.is_pairs else "rollouts"
    return Card(
        id="disagreement",
        title=f"{worst.name} and the environment disagree on {percent(worst.share)} of {what}",
        cost=_cost(run, worst),
        evidence=(
            f"{worst.compared} {what} were compared.",
            f"Mean where they disagree: environment {theirs}, {worst.name} {ours}.",
        ),
        suggestion=f"Score one of these by hand: {worst.name} measures something else than the environment, or reads "
        "another rollout.",
        where=ids(rows.id[worst.odd]),
        share=float(worst.odd.mean()),
    )


def _cost(run: Run, it: Against) -> float:
    """Return the reward that the function withheld from these rollouts; at least their share of the loss, because wrong
    rewards are learned, too.
    """
    rows = run.rows
    short = np.maximum(it.theirs - rows.values[it.name], 0.0)[it.withheld] if not it.is_pairs else np.zeros(1)
    withheld = float(short.sum()) * abs(rows.weights.get(it.name, 1.0)) / len(rows)
    return max(withheld, run.fall.lost * it.share)


def twins(rows: Rows) -> tuple[Bools, Ints]:
    """Return (N,) True for rollouts that can be compared, and (M,) for those the number of their completion.

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
    """Return (M,) highest minus lowest value of the completion; NaN without a value or a duplicate with one."""
    known, count = np.isfinite(values), int(same.max(initial=-1)) + 1
    low, high = ends(same, values, count)
    has_twin = known & (np.bincount(same[known], minlength=count)[same] > 1)
    return np.where(has_twin, (high - low)[same], np.nan)


def _look_inconsistent(run: Run) -> Outcome:
    rows = run.rows
    known, same = twins(rows)
    if not known.any():
        return NotJudged("The environment's rewards are not recorded, and they may differ for the same completion.")
    found: dict[str, Bools] = {}
    compared, differing = np.zeros(len(same), bool), np.zeros(len(same), bool)
    lost = 0.0
    for name, values in rows.values.items():
        spread = spreads(values[known], same)
        compared |= np.isfinite(spread)
        differing |= np.isfinite(spread) & (spread > SAME)
        differs = np.isfinite(spread) & (spread > _OF_RANGE * max(extent(values), 1e-6))
        if differs.sum() > max(run.threshold("inconsistent", _DIFFERING) * max(int(compared.sum()), 1), 2):
            found[name] = differs
            lost += float(spread[differs].sum()) * abs(rows.weights.get(name, 1.0)) / len(rows)
    if not compared.any():
        return NotJudged("No prompt got the same completion twice, so there is nothing to compare.")
    if not found:
        return Below(
            f"{int(compared.sum()):,} rollouts have a duplicate; {int(differing.sum()):,} of these were scored "
            "differently.",
            exactly(rows.id[known][differing]),
        )
    odd = np.logical_or.reduce(list(found.values()))
    share = float(odd.sum() / compared.sum())
    name = max(found, key=lambda name: int(found[name].sum()))
    place = np.flatnonzero(known)[np.flatnonzero(odd & (same == same[np.flatnonzero(found[name])[0]]))]
    given = np.unique(rows.values[name][place][np.isfinite(rows.values[name][place])])
    told = (
        f"{int(compared.sum())} rollouts have a duplicate (same prompt, task and completion tokens); for "
        f"{int(odd.sum())} of them the values differ."
    )
    return Card(
        id="inconsistent",
        title=f"{listed(sorted(found))} score{'s' if len(found) == 1 else ''} the same completion differently in "
        f"{percent(share)} of cases",
        cost=lost,
        evidence=(
            told,
            f"One completion received {len(given)} values from {name}, {figure(given[0])} to {figure(given[-1])}.",
        ),
        suggestion="Make the reward function deterministic (no randomness, time or shared state), or sample its judge "
        "at temperature 0.",
        where=ids(rows.id[known][odd]),
        share=float(odd.sum()) / len(rows),
        is_loss=False,
    )


_FUNCTIONS = needs("reward functions' values", lambda run: len(run.rows.values))
_REWARDS = needs("the environment's rewards", lambda run: np.isfinite(run.rows.env_reward_sum))
_IDS = needs(
    "prompts' and completions' token ids",
    lambda run: np.isfinite(run.rows.facts["prompt_key"] + run.rows.facts["completion_key"]),
)


def invalid(rows: Rows) -> Bools:
    """Return (N,) True for scored rollouts without a reward: no function gave a number, or one gave an infinity."""
    found: Bools = rows.scored & (rows.status == Status.OK) & np.isnan(rows.reward)
    return found


def unanswered(rows: Rows, name: str) -> Bools:
    """Return (N,) True for rollouts that a function gave no number, though it gave one to others of the same group.

    A function may decline a task or a prompt, but those are the same within a group. If most of a task's groups are
    like this, the task's other unscored rollouts count, too.
    """
    judged = rows.scored & (rows.status == Status.OK) & ~invalid(rows)
    answered = judged & np.isfinite(rows.values[name])
    missing = judged & ~answered & ~_others_rows(rows, name)
    many = len(rows.tasks) + 1
    pairs, pair = np.unique(rows.group * many + rows.task + 1, return_inverse=True)
    has_missing = np.bincount(pair[missing], minlength=len(pairs)) > 0
    mixed = has_missing & (np.bincount(pair[answered], minlength=len(pairs)) > 0)
    task = pairs % many
    some, all_of = (np.bincount(task[those], minlength=many) for those in (mixed, has_missing))
    found: Bools = missing & (mixed | ((some > 0) & (some >= _MOSTLY * all_of))[task])[pair]
    return found


def _others_rows(rows: Rows, name: str) -> Bools:
    """Return (N,) True for rollouts of another function, which scores next to none of this one's rollouts."""
    answered = np.isfinite(rows.values[name])
    found = np.zeros(len(rows), bool)
    for known in (np.isfinite(values) for other, values in rows.values.items() if other != name):
        if (known & answered).sum() <= _OF_ONE * answered.sum():
            found |= known
    return found


def _look_invalid(run: Run) -> Outcome:
    bad = invalid(run.rows)
    unscored = {name: unanswered(run.rows, name) for name in run.rows.values}
    gaps = {name: own for name, own in unscored.items() if own.mean() > _OF_ONE or (own & run.rows.odd).any()}
    found = [_declined(run, bad)] if bad.any() else []
    found += [_answers_for_some(run, gaps)] if gaps else []
    if found:
        return max(found, key=lambda card: card.cost or 0.0)
    silent = [name for name, values in run.all.parts.items() if not np.isfinite(values).any()]
    if not silent:
        most = max(unscored, key=lambda name: float(unscored[name].mean()), default=None)
        share = 0.0 if most is None else float(unscored[most].mean())
        gap = f" {most} left {exact_percent(share)} unscored (threshold {exact_percent(_OF_ONE)})." if share else ""
        return Below(f"Each of {int(run.rows.scored.sum()):,} scored rollouts got a number.{gap}")
    if run.all.scored.sum() < _MANY:
        return NotJudged(f"{listed(silent)} gave no number so far; {_MANY} scored rollouts are needed to judge that.")
    return _never_answers(run, silent)


def _declined(run: Run, bad: Bools) -> Card:
    rows = run.rows
    share = float(bad.mean())
    names = [name for name, values in rows.parts.items() if np.isnan(values[bad]).all()]
    tasks = sorted({rows.tasks[task] for task in np.unique(rows.task[bad]) if task >= 0})
    said = [f"{int(bad.sum())} rollouts, {int((bad & rows.odd).sum())} of them because of NaN or an infinity."]
    said += [f"No number from {listed(names)}."] if names else []
    said += [f"Tasks: {listed(tasks)}."] if tasks else []
    part = run.cost_of("invalid_reward")
    return Card(
        id="invalid_reward",
        title=f"The reward functions returned no number for {percent(share)} of rollouts",
        cost=part if part > 0 else share * contrast.spread(run),
        evidence=tuple(said),
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
    own = np.logical_or.reduce(list(gaps.values()))
    share = float(own.mean())
    of_all = np.logical_or.reduce([unanswered(run.all, name) for name in names])
    worth = sum(float(gaps[name].mean()) * (mean(rows.parts[name]) or 0.0) for name in names)
    odd = int((own & rows.odd).sum())
    said = [
        f"{name}: no number for {of_it.sum()} rollouts; elsewhere it adds {figure(mean(rows.parts[name]) or 0.0)} on "
        "average."
        for name, of_it in gaps.items()
    ]
    is_all = len(names) == 1 and np.array_equal(own, np.isnan(rows.values[names[0]]))
    return Card(
        id="invalid_reward",
        title=f"{listed(names)} gave no reward to {percent(share)} of rollouts, but scored others of the same prompts",
        cost=max(share * contrast.gap(run, own), worth),
        evidence=(*said, f"{odd} of these rollouts have NaN of a function.") if odd else tuple(said),
        suggestion="Look for exceptions or timeouts that the function hides: TRL leaves None and NaN out of the sum, "
        "so these rollouts are compared with others that received more rewards.",
        where=f"{rewards(names[0])}:none" if is_all else ids(rows.id[own]),
        **above(run.all.by_step(of_all), _OF_ONE),
        own=own,
        is_setup=True,
        is_loss=False,
    )


def _never_answers(run: Run, names: list[str]) -> Card:
    return Card(
        id="invalid_reward",
        title=f"{listed(names)} gave no reward to any rollout",
        cost=max(run.fall.lost, contrast.spread(run)),
        evidence=(f"{int(run.all.scored.sum())} rollouts were scored, and it declined all of them.",),
        suggestion="Call it by hand on a good completion: it must return a number.",
        where="",
        is_setup=True,
        is_loss=False,
    )


DISAGREEMENT = check(
    "disagreement",
    "Environment/reward disagreement",
    f"More than {_SHARE:.0%} of rollouts get 1 from the environment and 0 from the reward function; if there is only "
    f"one function, the reverse counts, too. For graded rewards: in more than {_SHARE:.0%} of the pairs of rollouts "
    "within groups, the two disagree which rollout is better. Silent if another reward function agrees with the "
    "environment.",
    lambda run: _FUNCTIONS(run) or _REWARDS(run),
    _look_disagreement,
    needs_calls=True,
)
INCONSISTENT = check(
    "inconsistent",
    "Same completion, different reward",
    f"Of the rollouts that share prompt, task, completion (by token ids) and the environment's rewards with another, "
    f"more than {_DIFFERING:.0%} get a value from a reward function that differs by more than {_OF_RANGE:.0%} of its "
    "range.",
    lambda run: _FUNCTIONS(run) or _IDS(run),
    _look_inconsistent,
)
INVALID_REWARD = check(
    "invalid_reward",
    "Missing or NaN rewards",
    "Shown if there is at least one: a rollout for which no reward function returned a number, or one returned an "
    f"infinity; a function that scores none of {_MANY} or more rollouts; a function that leaves more than "
    f"{_OF_ONE:.0%} of the rollouts unscored, or gives NaN to any, although it scores others of the same group, unless "
    "another function scores exactly those.",
    needs("a reward", lambda run: run.rows.scored),
    _look_invalid,
    source="TRL PR 6427, OpenEnv PR 675",
    limits=None,
)
