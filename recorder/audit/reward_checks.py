"""Holds rewards against functions and weights, groups against prompts, and evaluations against the training."""

from collections.abc import Mapping, Sequence

import numpy as np

from logs_ui.recorder.audit.finding import Check, Found, Looked
from logs_ui.recorder.audit.recorded_run import Recorded
from logs_ui.recorder.diagnosis.rollout_rows import SAME, Bools
from logs_ui.recorder.diagnosis.wording import figure, listed

_SUM = 1e-5  # of the parts: float32 rounds to 6e-8, and a sum of many to some times that


def _look_at_groups(recorded: Recorded) -> Looked:
    sizes = np.array([recorded.group_size.get(bool(is_one)) or 0 for is_one in recorded.is_evaluation])
    compared = (sizes > 0) | np.isfinite(recorded.prompt_key)
    if not compared.any():
        return Looked(lacking="prompts' token ids, and the size of groups")
    mixed = np.isin(recorded.id, [*recorded.mixed])
    large = (sizes > 0) & (np.bincount(recorded.group)[recorded.group] > sizes)
    return Looked(int(compared.sum()), [Found("groups_mixed", mixed), Found("groups_size", large)])


def _list_weights(recorded: Recorded, weights: Mapping[int, float]) -> str:
    """Write weights by the index of their function."""
    return ", ".join(f"{figure(weight)} for {recorded.names[i]}" for i, weight in weights.items())


def _list_configured(recorded: Recorded, functions: Sequence[int]) -> list[float]:
    """Return the weights that the arguments ask for; none if they are no numbers, as another loop may write them."""
    given = recorded.config["reward_weights"] or [1.0] * len(functions)
    if isinstance(given, dict):
        given = [given.get(recorded.names[i]) for i in functions]
    are_numbers = isinstance(given, list | tuple) and all(isinstance(weight, int | float) for weight in given)
    return [float(weight) for weight in given] if are_numbers else []


def _look_at_sums(recorded: Recorded) -> Looked:
    is_known = np.isfinite(recorded.reward) & np.isfinite(recorded.weights).any(1)
    if "reward_weights" not in recorded.config or not is_known.any():
        return Looked(lacking="rewards with the functions' values and weights, of a trainer of TRL")
    parts = recorded.values * recorded.weights
    odd = is_known & (np.abs(recorded.reward - np.nansum(parts, 1)) > _SUM * (1 + np.nansum(np.abs(parts), 1)))
    functions = np.flatnonzero(np.isfinite(recorded.weights[is_known]).any(0)).tolist()
    configured = _list_configured(recorded, functions)
    differs, arguments, asked = np.zeros(len(is_known), bool), "", dict[int, float]()
    changes = bool(np.ptp(recorded.weights[is_known][:, functions], 0).max() > _SUM)
    if len(configured) == len(functions) and not changes:
        differs = is_known & (np.abs(recorded.weights[:, functions] - np.array(configured, np.float64)) > _SUM).any(1)
        asked = dict(zip(functions, configured, strict=True))
        arguments = _list_weights(recorded, asked)
    if differs.any():
        newest = recorded.weights[np.flatnonzero(differs)[-1]]
        others = {i: newest[i] for i, weight in asked.items() if abs(newest[i] - weight) > _SUM}
        arguments += f"; the newest of these have {_list_weights(recorded, others)}"
    faults = [Found("reward_sum", odd), Found("reward_weights", differs, f"The arguments ask for {arguments}.")]
    return Looked(int(is_known.sum()), faults, note="The weights change during the run." * changes)


def _look_at_evaluation(recorded: Recorded) -> Looked:
    is_eval, is_known = recorded.is_evaluation, np.isfinite(recorded.weights).any(1)
    if not (is_known & is_eval).any() or not (is_known & ~is_eval).any():
        return Looked(lacking="a training and an evaluation with functions' values in one run")
    weights = np.nan_to_num(recorded.weights)  # a function that does not score has weight 0
    usual = np.unique(weights[is_known & ~is_eval], axis=0)  # a schedule may change them
    # (N,) This is the largest difference from those weights of the training that are nearest.
    distance = np.abs(weights[:, None] - usual[None]).max(2, initial=0.0).min(1)
    off = is_known & is_eval & (distance > SAME)
    otherwise, names = _scored_otherwise(recorded)
    sentence = f"Reward functions: {listed(names)}." if names else ""
    faults = [Found("evaluation_weights", off), Found("evaluation_values", otherwise, sentence)]
    return Looked(int((is_known & is_eval).sum()), faults)


def _scored_otherwise(recorded: Recorded) -> tuple[Bools, list[str]]:
    """Return (N,) True for rollouts of an evaluation whose completion got another value in the training, where each of
    the two gives equal completions equal values; and the functions.
    """
    is_otherwise, names = np.zeros(len(recorded.id), bool), list[str]()
    is_known = np.isfinite(recorded.prompt_key + recorded.completion_key) & ~recorded.has_environment
    for i, name in enumerate(recorded.names):
        rows = np.flatnonzero(is_known & np.isfinite(recorded.values[:, i]))
        keys = np.stack([recorded.prompt_key[rows], recorded.completion_key[rows]], 1)
        code = np.unique(keys, axis=0, return_inverse=True)[1].reshape(-1)
        # `low` and `high` have the lowest and the highest value of each completion, in the training (row 0) and in
        # the evaluation (row 1). If a function gives one completion several values within either, it is not judged.
        low, high = (np.full((2, len(rows)), end) for end in (np.inf, -np.inf))
        place = recorded.is_evaluation[rows].astype(int), code
        np.minimum.at(low, place, recorded.values[rows, i])
        np.maximum.at(high, place, recorded.values[rows, i])
        is_steady, in_both = not (high - low > SAME).any(), np.isfinite(low).all(0)
        differs = in_both & (np.abs(np.diff(np.where(in_both, low, 0.0), axis=0)[0]) > SAME) & is_steady
        if differs.any():
            is_otherwise[rows[recorded.is_evaluation[rows] & differs[code]]] = True
            names.append(name)
    return is_otherwise, names


GROUPS = Check(
    "Groups",
    "The prompts and tasks of a group's rollouts with each other, and their number with `num_generations`.",
    "exact; groups that differ only by what an environment showed first are not mixed",
    _look_at_groups,
    {
        "groups_mixed": "Groups mix prompts",
        "groups_size": "Groups are larger than num_generations",
    },
)
SUMS = Check(
    "Rewards",
    "The reward, and the sum of the functions' values times weights; these weights, and `reward_weights`.",
    f"{_SUM:.0e} times (1 + the sum of the parts' sizes) [float32]",
    _look_at_sums,
    {
        "reward_sum": "Rewards are not the weighted sum of their functions' values",
        "reward_weights": "Rewards are weighted otherwise than the trainer's arguments say",
    },
)
EVALUATION = Check(
    "Evaluation",
    "The evaluation's reward functions and weights, and the training's; the values of the same completion in both, of "
    "functions that give equal completions equal values.",
    f"{SAME:.0e} [as in the diagnosis]",
    _look_at_evaluation,
    {
        "evaluation_weights": "The evaluation is weighted otherwise than the training",
        "evaluation_values": "The same completion gets other values in the evaluation than in the training",
    },
)
