"""Finds reward functions that disagree with the environment, or score the same completion differently."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from logs_ui.recorder.diagnosis.card import Below, Card, NotJudged, Outcome, Run, check, needs
from logs_ui.recorder.diagnosis.checks.told_scores import DEFINITION as TOLD
from logs_ui.recorder.diagnosis.checks.told_scores import find_told_otherwise
from logs_ui.recorder.diagnosis.links import exactly, ids
from logs_ui.recorder.diagnosis.measures import extent
from logs_ui.recorder.diagnosis.rollout_rows import SAME, Bools, Floats, Ints, Rows, ends
from logs_ui.recorder.diagnosis.waterfall import has_cause
from logs_ui.recorder.diagnosis.wording import exact_percent, figure, listed, percent
from logs_ui.recorder.vocabulary import LossCause

_SHARE = 0.1
_FEW = 8  # rollouts, or pairs
_NEIGHBOURS = 64  # that a rollout is compared with in its group: enough to estimate the order
_DIFFERING = 0.02  # of the rollouts that have a duplicate
_OF_RANGE = 0.01  # of the range of the function's values: less is rounding


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
    both = (_compare_with_environment(rows, name, theirs) for theirs in (rows.env_reward_sum, rows.env_reward_last))
    return min((side for side in both if side is not None), key=lambda side: side.share, default=None)


def _compare_with_environment(rows: Rows, name: str, theirs: Floats) -> Against | None:
    ours = rows.values[name]
    is_known = np.isfinite(ours) & np.isfinite(theirs)
    if is_known.sum() < _FEW or np.ptp(theirs[is_known]) <= SAME:
        return None
    if np.isin(ours[is_known], (0.0, 1.0)).all() and np.isin(theirs[is_known], (0.0, 1.0)).all():
        odd = is_known & (ours != theirs)
        share = float(odd.sum() / is_known.sum())
        return Against(name, theirs, odd, odd & (theirs > ours), int(is_known.sum()), share, is_pairs=False)
    odd, opposite, pairs = _find_opposite(np.where(is_known, ours, np.nan), theirs, rows)
    return Against(name, theirs, odd, odd, pairs, opposite / pairs, is_pairs=True) if pairs >= _FEW else None


def _find_opposite(ours: Floats, theirs: Floats, rows: Rows) -> tuple[Bools, int, int]:
    """Return (N,) True for rollouts of pairs that the two order oppositely; the number of these, and of all pairs."""
    odd = np.zeros(len(rows), bool)
    order = np.argsort(rows.group, kind="stable")
    opposite = pairs = 0
    # The order has the rollouts of a group next to one another, so each round compares all pairs that lie `apart`
    # places from one another; pairs of two groups do not count.
    for apart in range(1, min(int(np.bincount(rows.group).max()), _NEIGHBOURS)):
        a, b = order[:-apart], order[apart:]
        signs = np.nan_to_num(np.sign(ours[a] - ours[b]) * np.sign(theirs[a] - theirs[b]))
        signs = np.where(rows.group[a] == rows.group[b], signs, 0)
        opposite, pairs = opposite + int((signs < 0).sum()), pairs + int((signs != 0).sum())
        odd[a[signs < 0]] = odd[b[signs < 0]] = True
    return odd, opposite, pairs


def _check_disagreement(run: Run) -> Outcome:
    outcome = _compare_rewards(run)
    return outcome if isinstance(outcome, Card) else find_told_otherwise(run) or outcome


def _compare_rewards(run: Run) -> Outcome:
    """Return the card.

    If one function agrees with the environment, the others may measure something else. If none of several agrees, each
    may be more lenient than the environment, as a format reward is, but none may give nothing where it gives a reward.
    """
    rows, limit = run.rows, run.threshold("disagreement", _SHARE)
    weighty = [name for name in rows.values if abs(rows.weights.get(name, 1.0)) > SAME]
    every = [compared for name in weighty if (compared := against(rows, name)) is not None]
    if not every:
        return NotJudged("Too few rollouts have both rewards, or the environment gives all of them the same.")
    best = min(every, key=lambda compared: compared.share)
    calm = Below(
        f"{best.name} and the environment disagree on {exact_percent(best.share)} of {best.compared:,} "
        f"{'pairs' if best.is_pairs else 'rollouts'} (threshold {exact_percent(limit)}).",
        exactly(rows.id[best.odd]),
    )
    if best.share <= limit:
        return calm
    bad = [
        disagreement
        for disagreement in every
        if len(weighty) == 1 or disagreement.withheld.sum() > limit * disagreement.compared or disagreement.is_pairs
    ]
    worst = max(bad, key=lambda disagreement: (not disagreement.is_pairs, _cost(run, disagreement)), default=None)
    if worst is None:
        return calm
    theirs, ours = (figure(float(values[worst.odd].mean())) for values in (worst.theirs, rows.values[worst.name]))
    unit = "pairs of rollouts within groups" if worst.is_pairs else "rollouts"
    return Card(
        id="disagreement",
        title=f"{worst.name} and the environment disagree on {percent(worst.share)} of {unit}",
        cost=_cost(run, worst),
        evidence=(
            f"{worst.compared} {unit} were compared.",
            f"Mean where they disagree: environment {theirs}, {worst.name} {ours}.",
        ),
        suggestion=f"Score one of these by hand: {worst.name} measures something else than the environment, or reads "
        "another rollout.",
        where=ids(rows.id[worst.odd]),
        share=float(worst.odd.mean()),
    )


def _cost(run: Run, against: Against) -> float:
    """Return the reward that the function withheld from these rollouts; at least their share of the loss, because wrong
    rewards are learned, too.
    """
    rows = run.rows
    short = (
        np.maximum(against.theirs - rows.values[against.name], 0.0)[against.withheld]
        if not against.is_pairs
        else np.zeros(1)
    )
    withheld = float(short.sum()) * abs(rows.weights.get(against.name, 1.0)) / len(rows)
    return max(withheld, run.fall.lost * against.share)


def twins(rows: Rows) -> tuple[Bools, Ints]:
    """Return (N,) True for rollouts that can be compared, and (M,) for those the number of their completion.

    Equal numbers mean the same completion of the same prompt and task, with the same rewards of the environment. An
    environment answers the last action, which the completion does not show: without its rewards, rollouts cannot be
    compared.
    """
    prompt, completion = rows.facts["prompt_key"], rows.facts["completion_key"]
    judged = np.isfinite(rows.env_reward_sum) | ~(rows.facts["env_steps"] > 0)
    is_known = np.isfinite(prompt) & np.isfinite(completion) & judged
    # NaN does not equal itself, so a number that no environment returns stands for a missing reward.
    heard = [np.nan_to_num(rows.env_reward_sum, nan=-1e9), np.nan_to_num(rows.env_reward_last, nan=-1e9)]
    keys = np.stack([column[is_known] for column in (rows.task.astype(float), prompt, completion, *heard)], 1)
    if not len(keys):
        return is_known, np.empty(0, np.int64)
    return is_known, np.unique(keys, axis=0, return_inverse=True)[1].reshape(-1).astype(np.int64)


def spreads(values: Floats, completion: Ints) -> Floats:
    """Return (M,) highest minus lowest value of the completion; NaN without a value or a duplicate with one."""
    is_known, count = np.isfinite(values), int(completion.max(initial=-1)) + 1
    low, high = ends(completion, values, count)
    has_twin = is_known & (np.bincount(completion[is_known], minlength=count)[completion] > 1)
    return np.where(has_twin, (high - low)[completion], np.nan)


def measure_noise(rows: Rows, left_out: Mapping[str, Bools]) -> float:
    """Return how far apart equal completions are paid in all, without (N,) rollouts that are left out of a function."""
    is_known, completion = twins(rows)
    has_failed = has_cause(rows, LossCause.INFRASTRUCTURE)
    return sum(
        abs(rows.weights.get(name, 1.0))
        * float(np.nansum(spreads(np.where(left_out.get(name, False) | has_failed, np.nan, of)[is_known], completion)))
        for name, of in rows.values.items()
    )


def _check_inconsistent(run: Run) -> Outcome:
    rows = run.rows
    is_known, completion = twins(rows)
    if not is_known.any():
        return NotJudged("Too few rollouts have the environment's reward, which may differ for the same completion.")
    odd_of: dict[str, Bools] = {}
    compared, differing = np.zeros(len(completion), bool), np.zeros(len(completion), bool)
    lost = 0.0
    has_failed = has_cause(rows, LossCause.INFRASTRUCTURE)[is_known]  # what failed is scored 0, whatever it says
    for name, values in rows.values.items():
        spread = spreads(np.where(has_failed, np.nan, values[is_known]), completion)
        compared |= np.isfinite(spread)
        differing |= np.isfinite(spread) & (spread > SAME)
        differs = np.isfinite(spread) & (spread > _OF_RANGE * max(extent(values), 1e-6))
        if differs.sum() > max(run.threshold("inconsistent", _DIFFERING) * max(int(compared.sum()), 1), 2):
            odd_of[name] = differs
            lost += float(spread[differs].sum()) * abs(rows.weights.get(name, 1.0)) / len(rows)
    if not compared.any():
        return NotJudged("No prompt got the same completion twice, so there is nothing to compare.")
    if not odd_of:
        return Below(
            f"{int(compared.sum()):,} rollouts have a duplicate; {int(differing.sum()):,} of these were scored "
            "differently.",
            exactly(rows.id[is_known][differing]),
        )
    odd = np.logical_or.reduce(list(odd_of.values()))
    counts = [len(np.unique(completion[some])) for some in (odd, compared)]
    name = max(odd_of, key=lambda name: int(odd_of[name].sum()))
    place = np.flatnonzero(is_known)[np.flatnonzero(odd & (completion == completion[np.flatnonzero(odd_of[name])[0]]))]
    paid = np.unique(rows.values[name][place][np.isfinite(rows.values[name][place])])
    sentence = (
        f"{int(compared.sum())} rollouts have a duplicate (same prompt, task and completion tokens); for "
        f"{int(odd.sum())} of them the values differ."
    )
    return Card(
        id="inconsistent",
        title=f"{listed(sorted(odd_of))} score{'s' if len(odd_of) == 1 else ''} the same completion differently: "
        f"{counts[0]:,} of {counts[1]:,} that occur more than once",
        cost=lost,
        evidence=(
            sentence,
            f"One completion received {len(paid)} values from {name}, {figure(paid[0])} to {figure(paid[-1])}.",
        ),
        suggestion="Make the reward function deterministic (no randomness, time or shared state), or sample its judge "
        "at temperature 0.",
        where=ids(rows.id[is_known][odd]),
        share=float(odd.sum()) / len(rows),
        is_loss=False,
        needs=0.0,  # who explains it has compared what it costs
        may_remain=True,  # noise withholds nothing on average
    )


_FUNCTIONS = needs("reward functions' values", lambda run: len(run.rows.values))
_REWARDS = needs("the environment's rewards", lambda run: np.isfinite(run.rows.env_reward_sum))
_IDS = needs(
    "prompts' and completions' token ids",
    lambda run: np.isfinite(run.rows.facts["prompt_key"] + run.rows.facts["completion_key"]),
)


DISAGREEMENT = check(
    "disagreement",
    "Environment/reward disagreement",
    f"More than {_SHARE:.0%} of rollouts get 1 from the environment and 0 from the reward function; if there is only "
    f"one function, the reverse counts, too. For graded rewards: in more than {_SHARE:.0%} of the pairs of rollouts "
    "within groups, the two disagree which rollout is better. Silent if another reward function agrees with the "
    f"environment. If nothing is found so: {TOLD}",
    lambda run: _FUNCTIONS(run) or (None if run.has_observations else _REWARDS(run)),
    _check_disagreement,
    needs_calls=True,
)
INCONSISTENT = check(
    "inconsistent",
    "Same completion, different reward",
    f"Of the rollouts that share prompt, task, completion (by token ids) and the environment's rewards with another, "
    f"more than {_DIFFERING:.0%} get a value from a reward function that differs by more than {_OF_RANGE:.0%} of its "
    "range.",
    lambda run: _FUNCTIONS(run) or _IDS(run),
    _check_inconsistent,
)
