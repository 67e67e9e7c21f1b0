"""Says what rollouts are to reach, and whether the dataset came in another mix at last than at first."""

import re
from operator import itemgetter
from typing import NamedTuple

import numpy as np

from logs_ui.recorder.diagnosis.card import Run
from logs_ui.recorder.diagnosis.largest_differences import Sides
from logs_ui.recorder.diagnosis.places import columns_of
from logs_ui.recorder.diagnosis.rollout_rows import Bools, Floats, Ints
from logs_ui.recorder.diagnosis.success import is_outcome
from logs_ui.recorder.diagnosis.wording import percent

REWARD = "mean reward"
_WHOLE = 0.8  # of the rollouts can count as solved: fewer are said
_MOVED = 0.5  # of the rollouts have another value of a column than at first: its mix changed [ours]
SLIGHTLY_MOVED = 0.2  # the same: it changed enough to hide a rise [ours]
_SHARED = 0.25  # of the rollouts of both sides have values that both have: else these cannot be compared [ours]
DIFFICULTY = re.compile(r"level|difficult|stage|curriculum|tier|rating|elo$", re.IGNORECASE)


class Outcome(NamedTuple):
    """Describes what rollouts are to reach."""

    name: str
    values: Floats  # (N,) of all steps
    is_share: bool


def outcome_of(run: Run) -> Outcome:
    """Return the solved share, else the function that is named like an outcome and has the largest weight, else the
    reward.
    """
    rows, success = run.all, run.scale.success
    functions = [name for name in rows.values if is_outcome(name) and rows.weights.get(name, 1.0) >= 0]
    if success.is_defined:
        whole = float(success.countable(rows).mean())
        name = "solved" if whole >= _WHOLE else f"solved (of the {percent(whole)} that can count)"
        return Outcome(name, success.outcomes(rows), is_share=True)
    if functions:
        function = max(functions, key=lambda name: rows.weights.get(name, 1.0))
        return Outcome(f"mean {function}", rows.values[function], is_share=False)
    return Outcome(REWARD, rows.reward, is_share=False)


class Mix(NamedTuple):
    """Describes a column of the dataset whose values came in another mix at last than at first."""

    name: str
    codes: Ints  # (N,) of its values, of all steps
    is_shared: bool  # False if hardly any value is of both sides
    is_difficulty: bool  # True if it is named like difficulty: others may just count the steps


def is_other_mix(codes: Ints, late: Bools, moved: float = _MOVED) -> bool:
    """Return True if the (N,) codes, -1 for none, of the `late` rollouts are others than those of the rest, in at least
    a share `moved` of them (total variation).
    """
    first, last = _count_shares(codes, late)
    return float(np.abs(first - last).sum()) / 2 >= moved


def _count_shares(codes: Ints, late: Bools) -> list[Floats]:
    """Return two arrays of the share of each code, beginning with that of -1: of rollouts before, and of late ones."""
    counts = (np.bincount(codes[of] + 1, minlength=int(codes.max(initial=-1)) + 2) for of in (~late, late))
    return [count / count.sum() for count in counts]


def list_other_mixes(run: Run, sides: Sides, moved: float = _MOVED) -> list[Mix]:
    """Return the columns of the dataset whose mix changed in at least a share `moved` of the rollouts, none where the
    same tasks are compared; first the one of whose values both sides share most.
    """
    if sides.unit == "tasks":
        return []
    mixes = list[tuple[float, Mix]]()
    late = sides.late[sides.among]
    for places, _, name in columns_of(run.all, run.labels_of_all):
        codes = places.task[sides.among]
        if not is_other_mix(codes, late, moved):
            continue
        first, last = (shares[1:] for shares in _count_shares(codes, late))  # without those that have none
        shared = min(float(first[last > 0].sum()), float(last[first > 0].sum()))
        mix = Mix(name, places.task, shared >= _SHARED, DIFFICULTY.search(name) is not None)
        mixes.append((shared, mix))
    return [mix for _, mix in sorted(mixes, key=itemgetter(0), reverse=True)]
