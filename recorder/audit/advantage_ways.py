"""Computes advantages from rewards in each way of TRL's trainers, and in ways that are wrong."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from logs_ui.recorder.diagnosis.rollout_rows import Bools, Floats, Ints

EPSILON, _ASYNC_EPSILON = 1e-4, 1e-8  # that GRPO and RLOO of TRL, and AsyncGRPO, add to the standard deviation
_FLOAT32 = 2.0**-22  # relative error of a difference of two float32 means, generously
_COUNTED_NONE = [1, 16]  # the release of TRL from which on a rollout that no function scored has no advantage

SUM, NORMALIZE = "sum_then_normalize", "normalize_then_sum"


@dataclass(frozen=True)
class Way:
    """Describes how advantages follow from rewards.

    Attributes:
        aggregation: as TRL's `multi_objective_aggregation`.
        leaves_out: True where a rollout is compared with the mean of its group's others, as RLOO does.
        scale: `group`, `batch` or `none`: whose standard deviation divides it.
        spread: 1 for a sample's standard deviation, 0 for a population's.
        epsilon: added to the standard deviation.
        epsilon_of_functions: added to each function's, where these are normalized first.
        sign: -1 where it is turned round.
        clip: the range that rewards are cut to.
        none_counts: True where a rollout that no function scored counts as reward 0.
    """

    aggregation: str = SUM
    leaves_out: bool = False
    scale: str = "group"
    spread: int = 1
    epsilon: float = EPSILON
    epsilon_of_functions: float = EPSILON
    sign: int = 1
    clip: tuple[float, float] | None = None
    none_counts: bool = False

    def __str__(self) -> str:
        if self.aggregation == NORMALIZE:
            return "rewards normalized for each function, then summed"
        baseline = "rewards less the mean of the group" + ("'s others" if self.leaves_out else "")
        spread = "" if self.spread else ", of a population"
        return baseline + (
            "" if self.scale == "none" else f", divided by the {self.scale}'s standard deviation{spread}"
        )


WAYS = (
    Way(),
    Way(scale="batch"),
    Way(scale="none"),
    Way(NORMALIZE, scale="batch"),
    Way(leaves_out=True, scale="none"),
    Way(leaves_out=True, scale="batch"),
    Way(leaves_out=True),
    Way(spread=0),
)


@dataclass(frozen=True, eq=False)
class Batch:
    """B rollouts of one batch, in the order of their places, and F functions."""

    values: Floats  # (B, F) NaN for none
    weights: Floats  # (F)
    group: Ints  # (B) the group with which a rollout is compared, 0 to G - 1
    members: Ints  # (B) the group in which its reward counts: the same, unless groups are made wrongly
    advantage: Floats  # (B) as recorded


def way_of(config: Mapping[str, Any], versions: Mapping[str, str]) -> Way | str:
    """Return the way that a trainer's arguments ask for; or what of it is not recorded."""
    numbers = [int(part) for part in versions.get("trl", "").split(".")[:2] if part.isdecimal()]
    way = Way(none_counts=bool(numbers) and numbers < _COUNTED_NONE)
    if "scale_rewards" in config:
        asked, aggregation = config["scale_rewards"], config.get("multi_objective_aggregation") or SUM
        scale = ("group" if asked else "none") if isinstance(asked, bool) else str(asked)
        if (
            not isinstance(aggregation, str)
            or scale not in {"group", "batch", "none"}
            or aggregation not in {SUM, NORMALIZE}
        ):
            return "how this release of TRL scales rewards"
        return replace(way, aggregation=aggregation, scale="batch" if aggregation == NORMALIZE else scale)
    if "normalize_advantages" in config:
        given = config.get("reward_clip_range")
        clip = given if isinstance(given, list | tuple) and len(given) == 2 else None
        scale = "batch" if config["normalize_advantages"] else "none"
        way = replace(way, leaves_out=True, scale=scale, clip=(clip[0], clip[1]) if clip else None)
        return "the KL penalty, which RLOO takes off each reward where beta is not 0" if config.get("beta") else way
    if "max_staleness" in config:
        return Way(spread=0, epsilon=_ASYNC_EPSILON)
    return "the trainer's way from rewards to advantages: its arguments are not those of TRL"


def advantages(batch: Batch, way: Way) -> tuple[Floats, Floats]:
    """Return the (B) advantages of a batch, and how far rounding in float32 may move each."""
    everybody = np.zeros_like(batch.group)
    with np.errstate(invalid="ignore", divide="ignore"):
        parts = batch.values
        sizes: Any = np.nansum(np.abs(parts * batch.weights), 1).max()  # of what is rounded
        if way.aggregation == NORMALIZE:
            means = np.stack([_by(batch, column, _mean) for column in parts.T], 1)
            divisors = np.stack([_by(batch, column, _std, way.spread) for column in parts.T], 1)
            divisors += way.epsilon_of_functions
            sizes = np.nansum(np.abs(parts / divisors * batch.weights), 1)
            parts, sizes = (parts - means) / divisors, sizes + sizes.mean()
        rewards = np.nansum(parts * batch.weights, 1)
        if not way.none_counts:
            rewards[~np.isfinite(batch.values).any(1)] = np.nan
        if way.clip is not None:
            rewards = np.clip(rewards, *way.clip)
        whole = replace(batch, group=everybody, members=everybody)
        centered = rewards - _by(whole if way.aggregation == NORMALIZE else batch, rewards, _mean)
        if way.leaves_out:
            # The distance from the mean of the n - 1 others is n / (n - 1) times the distance from the mean of all
            # n.
            count = _by(batch, rewards, lambda of_group: np.isfinite(of_group).sum())
            centered = centered * count / (count - 1)
            centered -= _mean(centered) if way.scale == "batch" else 0.0
        divisor = np.ones(len(rewards))
        if way.scale != "none":
            scaled = centered if way.leaves_out and way.scale == "batch" else rewards
            divisor = _by(whole if way.scale == "batch" else batch, scaled, _std, way.spread) + way.epsilon
        slack = _FLOAT32 * sizes / np.abs(divisor)
        return np.nan_to_num(way.sign * centered / divisor), np.nan_to_num(slack)


def fits(batch: Batch, way: Way, tolerance: float, most: float = np.inf) -> Bools:
    """Return (B) True where the recorded advantage is the way's, within a part of it and of a tenth of the largest, and
    what rounding may move it, which is no more than `most`.
    """
    expected, slack = advantages(batch, way)
    size = np.abs(expected) + 0.1 * np.abs(expected).max()
    return np.asarray(np.abs(batch.advantage - expected) <= tolerance * size + np.minimum(slack, most), bool)


def epsilon_of(batch: Batch, way: Way) -> float | None:
    """Return what the recorded advantages add to the standard deviation; None where they are not divided by one."""
    # With the standard deviation s, an advantage is bare / (s + epsilon), and scaled is bare / s. So epsilon is
    # bare / advantage - bare / scaled, of which the median is taken over the rollouts.
    bare, scaled = (
        np.abs(advantages(batch, other_way)[0]) for other_way in (replace(way, scale="none"), replace(way, epsilon=0.0))
    )
    tells = (np.abs(batch.advantage) > 0) & (scaled > 0.1)
    if way.scale == "none" or way.leaves_out or not tells.any():
        return None
    return float(np.median(bare[tells] / np.abs(batch.advantage[tells]) - bare[tells] / scaled[tells]))


def _by(batch: Batch, values: Floats, function: Callable[..., Any], *arguments: Any) -> Floats:
    """Return (B) the figure of the group that each rollout is compared with."""
    figures = [function(values[batch.members == code], *arguments) for code in range(int(batch.members.max()) + 1)]
    return np.array(figures, np.float64)[batch.group]


def _mean(values: Floats) -> float:
    finite = values[np.isfinite(values)]
    return float(finite.mean()) if len(finite) else np.nan


def _std(values: Floats, spread: int) -> float:
    """Return the standard deviation of the finite values; NaN where it has none, 0 for the only rollout of a group."""
    finite = values[np.isfinite(values)]
    return 0.0 if len(values) == 1 else float(finite.std(ddof=spread)) if len(finite) > spread else np.nan
