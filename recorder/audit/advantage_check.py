"""Holds recorded advantages against those that follow from the rewards, and names the fault behind a difference."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, product

import numpy as np

from logs_ui.recorder.audit.advantage_ways import (
    EPSILON,
    NORMALIZE,
    WAYS,
    Batch,
    Way,
    advantages,
    epsilon_of,
    fits,
    way_of,
)
from logs_ui.recorder.audit.finding import Check, Found, Looked
from logs_ui.recorder.audit.recorded_run import Recorded
from logs_ui.recorder.diagnosis.rollout_rows import Bools, Ints
from logs_ui.recorder.diagnosis.wording import figure

_TOLERANCE = 1e-4
_EXPLAINED = 1e-3  # what an explanation must reach: an epsilon that is fitted is not exact
_ROUNDED = 1e-2  # of the largest advantage: where rounding moves them further, it would explain any
_TRIED = 8  # batches that differ: each costs some milliseconds for each explanation
_POWERS = [10.0**power for power in range(-10, 7)]
_GROUPS = {
    "": "",
    "columns": "every n-th rollout",  # as `view(num_generations, -1)` makes them
    "repeated": "another group",  # as `repeat` in place of `repeat_interleave` takes it
}
_TITLES = {
    "advantage_sign": "The advantage has the opposite sign: what scored better is made less likely",
    "advantage_groups": "Rewards are compared with those of others than their group",
    "advantage_weights": "Advantages follow from other weights of the reward functions",
    "advantage_epsilon": "Another ε than the trainer's is added to the standard deviation",
    "advantage_scale": "Advantages are made in another way than the trainer's arguments say",
    "advantage_spread": "Advantages are a few percent larger or smaller than the trainer's arguments say",
    "advantage_order": "Advantages belong to other rollouts of their batch",
    "advantage": "Advantages follow from the rewards in no way that was tried",
}


@dataclass(frozen=True)
class _Explanation:
    """A wrong way, and what is wrong with it: the fact by finding."""

    way: Way
    faults: dict[str, str]
    weights: tuple[float, ...]  # of the functions
    groups: str  # a key of `_GROUPS`

    def holds(self, batch: Batch, tolerance: float) -> bool:
        regrouped = _regroup(batch, self.weights, self.groups)
        most = _ROUNDED * float(np.abs(batch.advantage).max())
        return regrouped is not None and bool(fits(regrouped, self.way, tolerance, most).all())


def _check(recorded: Recorded) -> Looked:
    way = way_of(recorded.config, recorded.versions)
    if isinstance(way, str):
        return Looked(lacking=way)
    # A rollout without an advantage yet, as of another rank, leaves out all that it is compared with.
    among = recorded.batch if way.scale == "batch" else recorded.group
    is_compared = recorded.whole_batches() if way.scale == "batch" else recorded.whole_groups()
    is_compared &= np.isfinite(recorded.advantage) & np.isfinite(recorded.weights).any(1) & ~recorded.has_infinity
    is_compared &= ~np.isin(among, among[~is_compared])
    placed = [*_batches(recorded, is_compared)]
    if not placed:
        return Looked(lacking="whole groups with advantages, rewards and weights")
    wrong = np.zeros(len(recorded.id), bool)
    for rows, batch in placed:
        wrong[rows] = ~fits(batch, way, _TOLERANCE)
    odd = [(rows, batch) for rows, batch in placed if wrong[rows].any()]
    return Looked(int(is_compared.sum()), _name_faults(recorded, way, odd, wrong) if odd else ())


def _batches(recorded: Recorded, is_compared: Bools) -> Iterator[tuple[Ints, Batch]]:
    """Yield the batches with the indexes (B) of their rollouts; where rollouts have no batch, each group."""
    keys = np.where(recorded.batch >= 0, recorded.batch, -1 - recorded.group)
    functions = np.isfinite(recorded.weights[is_compared]).any(0)  # a batch may lack some, as of another environment
    usual = np.fmax.reduce(recorded.weights[is_compared][:, functions], 0, initial=np.nan)
    for key in np.unique(keys[is_compared]):
        rows = np.flatnonzero(is_compared & (keys == key))
        rows = rows[np.argsort(recorded.place[rows], kind="stable")]
        group = np.unique(recorded.group[rows], return_inverse=True)[1].astype(np.int64)
        weights = np.asarray(np.fmax.reduce(recorded.weights[rows][:, functions], 0), float)
        weights[np.isnan(weights)] = usual[np.isnan(weights)]
        yield rows, Batch(recorded.values[rows][:, functions], weights, group, group, recorded.advantage[rows])


def _name_faults(recorded: Recorded, way: Way, odd: Sequence[tuple[Ints, Batch]], wrong: Bools) -> list[Found]:
    tried = [batch for _, batch in odd[:: -(-len(odd) // _TRIED)]]
    # Where all differences are as small as those that an explanation may leave, an explanation has to fit better: they
    # may come from rounding to half precision.
    is_near = all(fits(batch, way, _EXPLAINED).all() for batch in tried)
    tolerance = _TOLERANCE if is_near else _EXPLAINED
    explanation = next(
        (made for made in _explanations(way, tried[0]) if all(made.holds(batch, tolerance) for batch in tried)), None
    )
    rows, batch = odd[0]
    at = int(np.flatnonzero(wrong[rows])[0])
    said, computed = float(batch.advantage[at]), float(advantages(batch, way)[0][at])
    write = figure if figure(said) != figure(computed) else "{:.7g}".format
    advantage = f"The advantage of rollout {recorded.id[rows[at]]} is {write(said)}"
    row = f"{advantage}, and {write(computed)} follows from the rewards."
    if explanation is not None:
        faults = explanation.faults
    else:
        # If the sorted advantages are the expected ones, they are computed correctly, and belong to other rollouts.
        pairs = [(np.sort(candidate.advantage), np.sort(advantages(candidate, way)[0])) for candidate in tried]
        is_moved = all(np.allclose(recorded_ones, other, atol=_EXPLAINED) for recorded_ones, other in pairs)
        faults = {"advantage_order" if is_moved and not is_near else "advantage": ""}
    return [Found(name, wrong, f"{faults[name]}{row}") for name in _TITLES if name in faults]


def _explanations(way: Way, sample: Batch) -> Iterator[_Explanation]:
    """Return explanations, those with the fewest faults first; with an epsilon as the sample of a batch has it."""
    ways = [
        way,
        *(
            candidate
            for candidate in (replace(known_way, clip=way.clip, none_counts=way.none_counts) for known_way in WAYS)
            if candidate != way
        ),
    ]
    recorded_weights, explanations = tuple(sample.weights.tolist()), list[_Explanation]()
    for shape, weights, groups in product(
        ways, dict.fromkeys([recorded_weights, *_other_weights(recorded_weights)]), _GROUPS
    ):
        regrouped = _regroup(sample, weights, groups)
        if regrouped is None:
            continue
        if shape.aggregation == NORMALIZE:  # a fit takes as long as 51 explanations
            fitted = (
                [_fit_epsilon(regrouped, shape)] if shape == way and weights == recorded_weights and not groups else []
            )
        else:
            fitted = [replace(shape, epsilon=value) for value in filter(None, [_rounded(epsilon_of(regrouped, shape))])]
        faults: dict[str, str] = {}
        if groups:
            faults["advantage_groups"] = f"Each reward is compared with {_GROUPS[groups]}. "
        if weights != recorded_weights:
            faults["advantage_weights"] = f"The weights are {', '.join(map(figure, regrouped.weights))}. "
        if shape != way:
            name = "advantage_spread" if replace(shape, spread=way.spread) == way else "advantage_scale"
            faults[name] = f"The advantages are {shape}; the arguments ask for {way}. "
        for candidate, sign in product([shape, *fitted], (1, -1)):
            all_faults = dict(faults)
            if candidate != shape:
                epsilon = max(
                    candidate.epsilon, candidate.epsilon_of_functions, key=lambda value: value != shape.epsilon
                )
                all_faults["advantage_epsilon"] = f"ε is {epsilon:.3g}, not {shape.epsilon:.0e}. "
            if sign < 0:
                all_faults["advantage_sign"] = ""
            explanations.append(_Explanation(replace(candidate, sign=sign), all_faults, weights, groups))
    return iter(
        sorted(
            (candidate for candidate in explanations if candidate.faults), key=lambda candidate: len(candidate.faults)
        )
    )


def _other_weights(weights: tuple[float, ...]) -> Iterator[tuple[float, ...]]:
    """Yield wrong weights: of two functions exchanged, of one function alone, and none."""
    yield (1.0,) * len(weights)
    for i, j in combinations(range(len(weights)), 2):
        yield tuple(weights[{i: j, j: i}.get(at, at)] for at in range(len(weights)))
    for i in range(len(weights)) if len(weights) > 1 else ():
        yield tuple(weight * (at == i) for at, weight in enumerate(weights))


def _rounded(value: float | None) -> float | None:
    """Return a power of ten that is as good as equal, else the value; None for one that is not above 0."""
    near = None if value is None else next((power for power in _POWERS if abs(value - power) < 0.02 * power), value)
    return near if near is not None and near > 0 else None


def _fit_epsilon(batch: Batch, way: Way) -> Way:
    """Return the way with a power of ten as epsilon of functions, of the batch, or of both, that explains the sizes of
    the recorded advantages best.
    """
    both = [replace(way, epsilon=power, epsilon_of_functions=power) for power in _POWERS]
    one = [replace(way, epsilon_of_functions=power) for power in _POWERS]
    other = [replace(way, epsilon=power) for power in _POWERS]
    sizes = np.abs(batch.advantage)
    return min([*both, *one, *other], key=lambda it: float(np.abs(sizes - np.abs(advantages(batch, it)[0])).max()))


def _regroup(batch: Batch, weights: tuple[float, ...], groups: str) -> Batch | None:
    """Return the batch with other weights, and in groups that are made wrongly; None if it has only one."""
    count = int(batch.group.max()) + 1
    if groups and count == 1:
        return None
    strided = np.arange(len(batch.group)) % count
    group = strided if groups == "repeated" else batch.group
    members = strided if groups == "columns" else batch.members
    return replace(batch, weights=np.array(weights), group=group, members=members)


CHECK = Check(
    "Advantages",
    "The advantage, and what follows from the values of a group on all ranks, the weights and the trainer's arguments "
    "(`scale_rewards`, `multi_objective_aggregation`, `normalize_advantages`, `reward_clip_range`).",
    f"{_TOLERANCE:.0e} times (the advantage + a tenth of the batch's largest) [ours], plus float32 rounding; ε: "
    f"{EPSILON:.0e}, of AsyncGRPO 1e-08 [TRL]",
    _check,
    _TITLES,
)
