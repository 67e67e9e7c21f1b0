"""Sets the scale that a run's rewards are judged by: the best reward of each environment, and what counts as solved."""

from dataclasses import dataclass, replace

import numpy as np

from logs_ui.recorder.diagnosis.rollout_rows import SAME, Bools, Floats, Rows, means
from logs_ui.recorder.diagnosis.success import Success, is_outcome, is_penalty, levels
from logs_ui.recorder.diagnosis.wording import figure, listed, percent
from logs_ui.recorder.queries.filters.terms import print_key
from logs_ui.recorder.settings import Settings

_PERCENTILE = 99
_RARE = 0.05  # of an environment's groups: a rarer set of reward functions is none of its own [ours]
_MOST = 90  # environments: a filter has at most 100 terms; beyond that all share the run's scale


@dataclass(frozen=True)
class Unit:
    """Holds the best reward of one environment: an eval, or a part of one that reward functions of its own score.

    Attributes:
        name: the eval, or the function that scores this part of it alone.
        eval: the eval.
        best: see `Settings.max_reward`.
        source: where `best` comes from, in words.
        is_guess: True if its rewards show none, since all are equal and not above 0: it is the least of the others.
    """

    name: str
    eval: str
    best: float
    source: str
    is_guess: bool = False

    def holds(self, rows: Rows) -> Bools:
        """Return (N,) True for its rollouts."""
        here = rows.in_eval(self.eval)
        if self.name == self.eval:
            return here
        scored = means(rows.group, np.isfinite(rows.values[self.name]), len(rows.groups.size)) > 0
        return here & scored[rows.group]


@dataclass(frozen=True)
class Scale:
    """Holds the best reward, and what counts as solved.

    Attributes:
        best: see `Settings.max_reward`; with several environments the mean over their rollouts. If all rewards are
            equal, it is one more than they are, so that findings can be put in order; it is not shown then.
        success: the definition of solved.
        source: where `best` comes from, in words.
        is_flat: True if there is no scale, because all rewards are equal and no best reward is set: a loss is then
            counted in rollouts and not in reward.
        units: the environments, if they differ in their best reward; else empty.
    """

    best: float
    success: Success
    source: str
    is_flat: bool = False
    units: tuple[Unit, ...] = ()

    @classmethod
    def of(cls, rows: Rows, settings: Settings) -> "Scale":
        """Return the scale of a run; `rows` are the rollouts of all its steps."""
        success = Success.of(rows, settings)
        best, source, is_flat = _find_best(rows.reward[np.isfinite(rows.reward)], settings, "the run's")
        if not is_flat and settings.max_reward is None:
            source += _name_unpaid(rows)
        units = _units(rows, settings)
        if len({unit.best for unit in units}) < 2:
            if units and settings.environments:
                best, source, is_flat = units[0].best, ", ".join(dict.fromkeys(unit.source for unit in units)), False
            return cls(best, success, source, is_flat)
        bests = ", ".join(f"{unit.name} {figure(unit.best)}{' (a guess)' if unit.is_guess else ''}" for unit in units)
        scale = cls(best, success, f"by environment: {bests}", units=units)
        return replace(scale, best=float(scale.bests(rows).mean()))

    def bests(self, rows: Rows) -> Floats:
        """Return (N,) the best reward of each rollout's environment; of several parts that score it, the least."""
        best = np.full(len(rows), np.inf)
        for unit in self.units:
            best = np.where(unit.holds(rows), np.minimum(best, unit.best), best)
        return np.where(np.isinf(best), self.best, best)

    def narrowed(self, rows: Rows) -> "Scale":
        """Return the scale of these rollouts alone, which may be of one environment of several."""
        units, success = tuple(unit for unit in self.units if unit.holds(rows).any()), self.success.narrowed(rows)
        if len(units) == 1:
            return Scale(units[0].best, success, units[0].source)
        best = float(self.bests(rows).mean()) if units and len(rows) else self.best
        return replace(self, best=best, success=success, units=units)

    @property
    def below(self) -> str:
        """Return the filter for rollouts that got less than the best reward."""
        if self.is_flat:
            return ""
        if not self.units:
            return f"-reward>={self.best:.9g}"
        return " ".join(f"-reward_in.{print_key(unit.name)}>={unit.best:.9g}" for unit in self.units)


def _find_best(rewards: Floats, settings: Settings, owner: str) -> tuple[float, str, bool]:
    """Return the best reward, where it comes from, and True if all of these finite rewards are equal."""
    if settings.max_reward is not None:
        best = settings.max_reward
        more = float(np.mean(rewards > best + SAME)) if len(rewards) else 0.0
        return best, "as set" if more == 0 else f"as set, though {percent(more)} of rollouts got more", False
    if not len(rewards):
        return 1.0, "no rollout has a reward", True
    best, source = float(np.percentile(rewards, _PERCENTILE)), f"{owner} 99th percentile"
    if best - float(rewards.min()) <= SAME:
        best, source = float(rewards.max()), f"{owner} highest, which less than 1% of rollouts got"
    if best - float(rewards.min()) <= SAME:
        return best + 1.0, "all rewards are equal", True
    return best, source, False


def _name_unpaid(rows: Rows) -> str:
    """Return words on functions that could have raised the best reward, and gave 0 to all; "" without any."""
    unpaid = [name for name, part in rows.parts.items() if len(levels(part)) and not levels(part).any()]
    unpaid = [name for name in unpaid if rows.weights.get(name, 1.0) > 0 and not is_penalty(name)]
    return f"; {listed(unpaid)} gave only 0" if unpaid else ""


def _units(rows: Rows, settings: Settings) -> tuple[Unit, ...]:
    """Return the environments, each with its best reward; none for more than filters can name."""
    evals = rows.present
    parts = _parts(rows) if len(evals) == 1 else []
    units = []
    for name in parts or evals:
        unit = Unit(name, evals[0] if parts else name, np.nan, "")
        holds, of_unit = unit.holds(rows), settings.of_environment(unit.eval)
        best, source, is_flat = _find_best(rows.reward[holds & np.isfinite(rows.reward)], of_unit, "its")
        if of_unit.max_reward is None and (unpaid := _sum_unpaid(rows, holds)) > 0:
            # Where all rewards are equal, `_find_best` returned one more than they are, and that is taken off again.
            best, source, is_flat = best - is_flat + unpaid, "what its functions give", False
        if is_flat and best > 1:  # all have the same reward above 0
            best, source, is_flat = best - 1, "its only reward", False
        units.append(replace(unit, best=best, source=source, is_guess=is_flat))
    least = min((environment.best for environment in units if not environment.is_guess), default=np.nan)
    with_least = [
        replace(environment, best=least, source="the least of the other environments'")
        if environment.is_guess
        else environment
        for environment in units
    ]
    return tuple(with_least) if len(units) <= _MOST and not np.isnan(least) else ()


def _sum_unpaid(rows: Rows, holds: Bools) -> float:
    """Return what the functions that score these rollouts could have paid, and never did: two-valued ones their upper
    value, and those named like an outcome that gave nothing but 0 so far their weight.
    """
    unpaid = 0.0
    for name, part in rows.parts.items():
        here, every, weight = levels(part[holds]), levels(part), rows.weights.get(name, 1.0)
        is_zero = is_outcome(name) and not every.any()
        highest = every[1] if len(every) == 2 else weight if is_zero else np.nan
        unpaid += float(np.nan_to_num(highest - here[-1])) if len(here) and weight > 0 else 0.0
    return unpaid


def _parts(rows: Rows) -> list[str]:
    """Return a function for each part of an eval's rollouts that functions of its own score; none for a single part.

    A function applies to a group of which any rollout has a number of it. Sets of functions that are rare are left
    out; if a set has no function that no other set has, there are no parts.
    """
    names, count = list(rows.values), len(rows.groups.size)
    if len(names) < 2 or not set(names).isdisjoint(rows.evals):
        return []
    applies = np.stack([means(rows.group, np.isfinite(rows.values[name]), count) > 0 for name in names], axis=1)
    sets, sizes = np.unique(applies[applies.any(axis=1)], axis=0, return_counts=True)
    sets = sets[sizes >= _RARE * sizes.sum()]
    if len(sets) < 2:
        return []
    often = np.array([np.isfinite(rows.values[name]).sum() for name in names])
    # (S, F) This is how many rollouts each function scored, for the functions that a single set has; 0 for the
    # others.
    only = (sets & (sets.sum(axis=0) == 1)) * often
    return [names[int(of_set.argmax())] for of_set in only] if only.any(axis=1).all() else []
