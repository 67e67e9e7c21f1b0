"""Evaluations beside the training that it does not carry over to, and healthy ones."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from tests.faults import Fault
from tests.faults.acting import WORDS
from tests.faults.rewarding import answered, chance
from tests.faults.runs import Turn
from tests.faults.scripts import Place, Played, Script, Shape, generated

_EVALUATED = Shape(steps=48, groups=8, tasks=24, every=5)


def _search(place: Place, quality: float, observation: str | None = None) -> Played:
    """Search once or twice, then answer."""
    words = place.random.sample(WORDS, 2)
    turns = [Turn(f"find {words[0]}", {"find": words[0]}, observation or f"{words[1]} is near", done=False)]
    return Played([*turns, Turn(f"the answer is {words[1]}", {"answer": words[1]}, "thank you", done=True)], quality)


def learns(place: Place) -> Played:
    """Tasks that recur are answered better and better."""
    return _search(place, chance(place, 0.35 + 0.5 * place.progress))


def unlearns(place: Place) -> Played:
    """Other tasks are answered worse and worse."""
    return _search(place, chance(place, 0.4 - 0.2 * place.progress))


def level(place: Place) -> Played:
    """Half of the tasks are answered, at all steps."""
    return _search(place, chance(place, 0.55))


def is_out_of_date(place: Place) -> Played:
    """The evaluation's index is empty since step 22."""
    if place.step < 22:
        return level(place)
    return _search(place, chance(place, 0.15), "no result")


def graded(place: Place, rise: float) -> Played:
    """An essay that a judge grades, beside a small reward for its form."""
    score = min(max(place.random.gauss(0.35 + rise * place.progress, 0.15), 0.0), 1.0)
    return answered(place, words=place.random.randint(20, 60), parts={"judge": score, "form": chance(place, 0.9) / 5})


def follows(place: Place) -> Played:
    """Other tasks are answered better, too, by two thirds of what the training's are."""
    return _search(place, chance(place, 0.3 + 0.33 * place.progress))


def is_harder(place: Place) -> Played:
    """The evaluation's tasks are harder, all the time."""
    return _search(place, chance(place, 0.15 + 0.3 * place.progress))


def told(place: Place, rates: tuple[float, float]) -> Played:
    """A system message says how to answer."""
    return replace(untold(place, rates), system="Search before you answer. End with: the answer is ...")


def untold(place: Place, rates: tuple[float, float]) -> Played:
    """Tasks are answered at the first of the rates at first, at the second at last."""
    return _search(place, chance(place, rates[0] + (rates[1] - rates[0]) * place.progress))


def _fault(name: str, planted: str, script: Script, evaluated: Script, expected: str | None, **more: Any) -> Fault:
    shape = replace(_EVALUATED, evaluated=evaluated, **more)
    return Fault(name, planted, expected, partial(generated, script, shape))


def _healthy(name: str, planted: str, script: Script, evaluated: Callable[[Place], Played], **more: Any) -> Fault:
    return _fault(f"healthy evaluation: {name}", f"Healthy: {planted}", script, evaluated, None, **more)


FAULTS: tuple[Fault, ...] = (
    _fault("evaluation gap: memorised", "The training's 24 tasks are learned, others are unlearned", learns, unlearns,
           "evaluation_gap"),
    _fault("evaluation gap: index", "The evaluation's search finds nothing since step 22", level, is_out_of_date,
           "evaluation_gap"),
    _fault("evaluation gap: judge", "Essays of the training please the judge ever more, others do not",
           partial(graded, rise=0.4), partial(graded, rise=0.0), "evaluation_gap", tasks=0, every=7),
    _fault("evaluation gap: untold", "Only the training's prompts have a system message",
           partial(told, rates=(0.6, 0.85)), partial(untold, rates=(0.1, 0.08)), "evaluation_gap"),
    _fault("evaluation gap: untold, level", "The same, and nothing is learned",
           partial(told, rates=(0.6, 0.6)), partial(untold, rates=(0.15, 0.15)), "evaluation_gap", tasks=0, every=6),
    _healthy("untold", "an evaluation without a system message that does as well",
             partial(told, rates=(0.3, 0.8)), partial(untold, rates=(0.3, 0.8))),
    _healthy("follows", "an evaluation that rises less than the training", learns, follows),
    _healthy("harder", "an evaluation of harder tasks", learns, is_harder, every=8),
    _healthy("level", "an evaluation that differs by chance", level, level),
    _healthy("few", "too few evaluations to tell", learns, unlearns, every=16),
)  # fmt: skip
