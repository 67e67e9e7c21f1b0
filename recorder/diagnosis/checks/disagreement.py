"""An environment and a reward function that do not agree on which rollouts were good."""

from dataclasses import dataclass

import numpy as np

from logs_ui.recorder.diagnosis.card import Card, Diagnostic, Run
from logs_ui.recorder.diagnosis.links import ids
from logs_ui.recorder.diagnosis.rollout_rows import SAME, Bools, Floats, Rows
from logs_ui.recorder.diagnosis.wording import figure, percent
from logs_ui.recorder.settings import SHARE

_SHARE = 0.1
_FEW = 8  # rollouts, or pairs
_NEIGHBOURS = 64  # of a rollout in its group: enough to tell the order


@dataclass(frozen=True, eq=False)
class Against:
    """A reward function against the environment.

    Attributes:
        theirs: (N,) the environment's, of those of its figures that which it agrees with most.
        odd: (N,) rollouts that they do not agree on.
        withheld: (N,) of them, those that the environment calls better than the function does.
        compared: rollouts where both say only 0 or 1, else pairs of a group that both tell apart.
        share: of what was compared, 0 to 1, that they do not agree on.
    """

    name: str
    theirs: Floats
    odd: Bools
    withheld: Bools
    compared: int
    share: float
    is_pairs: bool


def against(rows: Rows, name: str) -> Against | None:
    """Of the sum of the environment's rewards or of the last, whichever the function agrees with more; None where there
    is too little to compare, or where the environment never tells rollouts apart.
    """
    both = (_held(rows, name, theirs) for theirs in (rows.env_reward_sum, rows.env_reward_last))
    return min((it for it in both if it is not None), key=lambda it: it.share, default=None)


def _held(rows: Rows, name: str, theirs: Floats) -> Against | None:
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
    """(N,) rollouts of pairs that both tell apart, in opposite order; how many such pairs, of how many."""
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


def _look(run: Run) -> Card | None:
    """Where one function follows the environment, the others are of something else. Of several that do not, each may be
    more lenient than the environment, as one for the format is; none may give nothing for what the environment pays.
    """
    rows, limit = run.rows, run.threshold("disagreement", _SHARE)
    weighty = [name for name in rows.values if abs(rows.weights.get(name, 1.0)) > SAME]
    found = [it for name in weighty if (it := against(rows, name)) is not None]
    if any(it.share <= limit for it in found):
        return None
    bad = [it for it in found if len(weighty) == 1 or it.withheld.sum() > limit * it.compared or it.is_pairs]
    worst = max(bad, key=lambda it: (not it.is_pairs, _cost(run, it)), default=None)
    if worst is None:
        return None
    theirs, ours = (float(np.mean(values[worst.odd])) for values in (worst.theirs, rows.values[worst.name]))
    what = "pairs of rollouts of a group" if worst.is_pairs else "rollouts"
    return Card(
        id="disagreement",
        title=f"{worst.name} and the environment disagree on {percent(worst.share)} of {what}",
        cost=_cost(run, worst),
        evidence=(
            f"{worst.compared} {what} were judged by both.",
            f"Where they disagree the environment gave {figure(theirs)} at the mean, {worst.name} {figure(ours)}.",
        ),
        suggestion=f"Score one of these by hand: {worst.name} looks for something else than what the environment pays "
        "for, or at another rollout.",
        where=ids(rows.id[worst.odd]),
    )


def _cost(run: Run, it: Against) -> float:
    """What these rollouts lack: of verdicts what the environment gave and the function did not, and never less than
    their part of the loss, as what is paid wrongly is learned.
    """
    rows = run.rows
    short = np.maximum(it.theirs - rows.values[it.name], 0.0)[it.withheld] if not it.is_pairs else np.zeros(1)
    withheld = float(short.sum()) * abs(rows.weights.get(it.name, 1.0)) / len(rows)
    return max(withheld, run.fall.lost * it.share)


DIAGNOSTIC = Diagnostic(
    "disagreement",
    "Environment against reward function",
    f"More than {_SHARE:.0%} of rollouts of which one says 1 and the other 0 (of several functions: of which the "
    "environment says 1); where they are graded, of the pairs of a group that both tell apart, those that they order "
    "oppositely. Silent where another reward function agrees.",
    "ours",
    lambda run: (
        None
        if np.isfinite(run.rows.env_reward_sum).any() and run.rows.values
        else "the environment's rewards beside reward functions' values"
    ),
    _look,
    limits=SHARE,
    position=70,
    explained_by=("constant_reward:certain",),
)
