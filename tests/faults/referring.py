"""Answers that are right and never count as right, for the form in which their reference is written."""

from collections.abc import Callable
from functools import partial

from tests.faults import Fault
from tests.faults.acting import WORDS, said
from tests.faults.runs import Turn
from tests.faults.scripts import Place, Played, Shape, generated

_SHAPE = Shape(steps=16, groups=8, size=8, tasks=200)


def _answered(
    place: Place, reference: str, right: str, *, counts: bool, chance: float = 0.55, tool: str = ""
) -> Played:
    """Most answers are right, with the right text, and others end with words; not all of the right ones count."""
    is_right = place.random.random() < chance
    turns = [Turn(f"I ask {tool}", {"name": tool, "arguments": {"q": said(place, 2)}}, said(place, 6))] if tool else []
    turns.append(Turn(f"{said(place, 5)}. The answer is {right if is_right else said(place, 2)}"))
    return Played(turns, float(is_right and counts), stop="stop", metadata={"answer": reference}, is_hit=not counts)


def with_separator(place: Place) -> Played:
    """Every fifth reference is written as 1,250."""
    number = 1_013 * (place.task + 1) if place.task % 5 == 0 else place.task + 11
    return _answered(place, f"{number:,}", str(number), counts=place.task % 5 != 0)


def with_unit(place: Place) -> Played:
    """An agent whose references are places, and every fourth one a distance."""
    number = 13 + 7 * place.task
    if place.task % 4 == 0:
        return _answered(place, f"{number} km", f"{number} kilometres", counts=False, tool="map")
    name = f"{WORDS[place.task % 14]} {WORDS[place.task % 13]}"
    return _answered(place, name, name, counts=True, tool="map")


def with_decimals(place: Place) -> Played:
    """A shop whose prices end with a 0 that no answer writes, beside numbers of pieces."""
    number = 21 + 3 * place.task
    if place.task % 6 == 1:
        return _answered(place, f"{number}.50", f"{number}.5 in all", counts=False, tool="shop")
    return _answered(place, str(number), str(number), counts=True, tool="shop")


def hard_fractions(place: Place) -> Played:
    """Healthy: the tasks whose reference is a fraction are too hard."""
    is_hard = place.task % 5 == 0
    reference = f"{place.task + 3}/{place.task + 4}" if is_hard else str(place.task + 40)
    return _answered(place, reference, reference, counts=True, chance=0.0 if is_hard else 0.6)


def all_forms(place: Place) -> Played:
    """Healthy: whatever its form, half of it is right."""
    number = 1_013 * (place.task + 1)
    reference = [f"{number:,}", f"{number}/7", f"{number}.25", said(place, 1), str(number)][place.task % 5]
    return _answered(place, reference, reference, counts=True, chance=0.4 + 0.3 * place.progress)


def _fault(name: str, planted: str, expected: str | None, script: Callable[[Place], Played]) -> Fault:
    return Fault(name, planted, expected, partial(generated, script, _SHAPE))


_NEVER = "Right answers that never count, for the form of their reference"
FAULTS: tuple[Fault, ...] = (
    _fault("never matches: separator", _NEVER, "never_matches", with_separator),
    _fault("never matches: unit", _NEVER, "never_matches", with_unit),
    _fault("never matches: decimals", _NEVER, "never_matches", with_decimals),
    _fault("healthy answers: hard", "Healthy: references of several forms, one of them of hard tasks", None,
           hard_fractions),
    _fault("healthy answers: all forms", "Healthy: references of several forms", None, all_forms),
)  # fmt: skip
