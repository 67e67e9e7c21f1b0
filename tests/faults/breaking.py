"""Weights that become NaN: what the trainer logs is no number any more, and the policy says one token, or nothing."""

import math
from collections.abc import Callable, Mapping
from functools import partial

from tests.faults import Fault
from tests.faults.acting import WORDS, well
from tests.faults.runs import Turn
from tests.faults.scripts import Place, Played, Script, Shape, generated

_Figure = Callable[[float], float]
_STEPS = 20
_HALF, _LATE = 10 / 19, 15 / 19  # progress at steps 11 and 16


def _breaks(at: float, value: float, after: float = math.nan) -> _Figure:
    """Return a figure that is no number from that progress on."""
    return lambda progress: after if progress >= at - 1e-9 else value


def _at(steps: set[int], value: float, broken: float) -> _Figure:
    return lambda progress: broken if round(1 + progress * (_STEPS - 1)) in steps else value


# --- Policies


def _learns(place: Place) -> Played:
    return well(place, float(place.random.random() < 0.4 + 0.3 * place.progress))


def exclaims(place: Place) -> Played:
    """Answers a question, and from step 12 on with one token again and again, until the limit."""
    if place.step < 12:
        return Played([Turn(f"It is {place.random.choice(WORDS)}.", tokens=6)], _learns(place).quality, stop="stop")
    return Played([Turn("!" * 64, tokens=64)], 0.0, stop="length", is_hit=True)


def says_nothing(place: Place) -> Played:
    """Plays a game of three moves, and from step 12 on says nothing."""
    return _learns(place) if place.step < 12 else Played([Turn("")], 0.0, stop="no_action", is_hit=True)


def repeats_a_call(place: Place) -> Played:
    """Calls tools, and from step 17 on one that does not exist, in words without sense."""
    if place.step < 17:
        return _learns(place)
    call = Turn("the the the the the the the", {"do": "the"}, "no such tool", tokens=20)
    return Played([call] * 6, 0.1 * place.random.random(), stop="turn_limit", is_hit=True)


def _shape(figures: Mapping[str, float | _Figure], tasks: int = 12, **config: object) -> Shape:
    return Shape(_STEPS, tasks=tasks, config=config, scalars={"learning_rate": 1e-6, **figures})


def _fault(name: str, planted: str, expected: str | None, script: Script, shape: Shape) -> Fault:
    return Fault(name, planted, expected, partial(generated, script, shape))


_PLANTED = "Weights become NaN at step 11"
_INFINITE: dict[str, float | _Figure] = {
    "loss": _breaks(_LATE, 0.1),
    "grad_norm": 2.0,
    "kl": _breaks(_LATE, 0.3, math.inf),
}
_SCALED: dict[str, float | _Figure] = {"loss": 0.02, "grad_norm": _at({1, 2, 3, 9, 20}, 0.4, math.inf), "entropy": 0.9}
_NONE = {"loss": 0.02, "grad_norm": 0.4, "rewards/code/mean": math.nan, "tools/failure_frequency": math.nan}
FAULTS: tuple[Fault, ...] = (
    _fault(
        "not finite: gradient",
        _PLANTED,
        "not_finite",
        exclaims,
        _shape({"loss": 0.02, "grad_norm": _breaks(_HALF, 0.4), "entropy": _breaks(11 / 19, 1.2)}),
    ),
    _fault(
        "not finite: all",
        "Weights become NaN at step 11, in a game",
        "not_finite",
        says_nothing,
        _shape({"loss": _breaks(_HALF, 0.02), "grad_norm": _breaks(_HALF, 0.4), "kl": _breaks(_HALF, 0.01)}),
    ),
    _fault(
        "not finite: KL",
        "The KL becomes infinite at step 16, in an agent with tools",
        "not_finite",
        repeats_a_call,
        _shape(_INFINITE, tasks=3, beta=0.04),
    ),
    _fault(
        "healthy figures: scaled loss",
        "Healthy: fp16 skips steps whose gradient overflows",
        None,
        _learns,
        _shape(_SCALED, fp16=True),
    ),
    _fault(
        "healthy figures: no function",
        "Healthy: figures of a function and of tools that do not apply are NaN",
        None,
        _learns,
        _shape(_NONE),
    ),
)
