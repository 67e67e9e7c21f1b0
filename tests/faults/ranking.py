"""Advantages that stand beside other rollouts than those whose rewards they are made of."""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from statistics import fmean, pstdev

from tests.faults import Fault
from tests.faults.acting import said
from tests.faults.runs import Rollout, Run, Turn
from tests.faults.scripts import Place, Played, Script, Shape, generated

_SHAPE = Shape(steps=30, groups=8, size=8, tasks=80)
_GAMES = ("words", "grid")

Advantages = list[float]
Make = Callable[[Sequence[Rollout]], Advantages]
Mix = Callable[[Advantages], Advantages]


def _reward(rollout: Rollout) -> float:
    weights = rollout.weights or {}
    return sum(weights.get(name, 1.0) * (value or 0.0) for name, value in (rollout.values or {}).items())


def _standardize(rewards: Sequence[float]) -> Advantages:
    middle, spread = fmean(rewards), pstdev(rewards)
    return [(reward - middle) / (spread + 1e-4) for reward in rewards]


def _sum_up(rollouts: Sequence[Rollout]) -> Advantages:
    return _standardize([_reward(rollout) for rollout in rollouts])


def _sum_up_later(rollouts: Sequence[Rollout]) -> Advantages:
    """Standardize each function, then add up."""
    names = rollouts[0].values or {}
    parts = [_standardize([(rollout.values or {})[name] or 0.0 for rollout in rollouts]) for name in names]
    return [sum(of_one) for of_one in zip(*parts, strict=True)]


def _charge_length(rollouts: Sequence[Rollout]) -> Advantages:
    """Take something off for each word, and cut what is far from 0."""
    words = [len(rollout.turns[0].text.split()) / 60 for rollout in rollouts]
    pairs = zip(_sum_up(rollouts), words, strict=True)
    return [min(max(advantage - charge, -1.5), 1.5) for advantage, charge in pairs]


def _trained(script: Script, make: Make, mix: Mix | None) -> Run:
    """Return a run with advantages; those of the rollouts of a step that are hit are mixed."""
    run, rollouts = generated(script, _SHAPE), list[Rollout]()
    for _, of_step in itertools.groupby(run.rollouts, lambda rollout: rollout.step):
        of_groups = itertools.groupby(of_step, lambda rollout: rollout.group)
        made = [
            replace(rollout, advantage=advantage)
            for group in (list(of_group) for _, of_group in of_groups)
            for rollout, advantage in zip(group, make(group), strict=True)
        ]
        hit = [place for place, rollout in enumerate(made) if rollout.is_hit]
        mixed = mix([made[place].advantage or 0.0 for place in hit]) if mix and hit else []
        for place, advantage in zip(hit, mixed, strict=True):
            made[place] = replace(made[place], advantage=advantage)
        rollouts += made
    return replace(run, rollouts=rollouts)


def _plays(place: Place, *, is_hit: bool = False, rises: float = 0.35, **more: str | None) -> Played:
    right, words = place.random.random() < 0.35 + rises * place.progress, place.random.randint(8, 40)
    form = 0.3 * (place.random.random() < 0.8)
    eval_name = more.pop("eval", None)
    return Played(
        [Turn(f"{said(place, words)}.")], parts={"right": float(right), "form": form}, stop="stop", is_hit=is_hit,
        metadata=more, eval=eval_name,
    )  # fmt: skip


def two_games(place: Place) -> Played:
    """One of two games does not learn."""
    game = _GAMES[place.group % 2]
    return _plays(place, is_hit=game == "grid", rises=0.4 * (game == "words"), eval=game)


def one_kind(place: Place) -> Played:
    """Tasks of one kind go another way through the trainer."""
    kind = ("short", "long", "image")[place.task % 3]
    return _plays(place, is_hit=kind == "image", rises=0.4 * (kind != "image"), kind=kind)


def since_a_step(place: Place) -> Played:
    """All, since a restart at step 12."""
    return _plays(place, is_hit=place.step >= 12, rises=0.1)


def _transposed(advantages: Advantages) -> Advantages:
    """Return what is ordered by generation, then group, as if it were ordered by group, then generation."""
    size = _SHAPE.size
    return [advantages[place % (len(advantages) // size) * size + place // (len(advantages) // size)]
            for place in range(len(advantages))]  # fmt: skip


def _shifted(advantages: Advantages) -> Advantages:
    """Return the advantages one rollout further."""
    return advantages[-1:] + advantages[:-1]


def _fault(name: str, planted: str, script: Script, mix: Mix | None = None, make: Make = _sum_up) -> Fault:
    expected = "advantages" if mix else None
    return Fault(name, planted, expected, partial(_trained, script, make, mix))


_MOVED = "Advantages stand beside other rollouts"
FAULTS: tuple[Fault, ...] = (
    _fault("moved advantages: game", _MOVED, two_games, _transposed),
    _fault("moved advantages: kind", _MOVED, one_kind, _shifted),
    _fault("moved advantages: restart", _MOVED, since_a_step, _transposed),
    _fault("healthy advantages: later", "Healthy: functions are standardized, then summed", _plays, make=_sum_up_later),
    _fault("healthy advantages: charged", "Healthy: advantages are cut, and length charged", _plays,
           make=_charge_length),
)  # fmt: skip
