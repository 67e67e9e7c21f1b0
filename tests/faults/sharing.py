"""Faults of generations that share the state of an environment: the first that acts wins, and its siblings find the
work done. Healthy runs beside them have one winner for other reasons.
"""

import random
from functools import partial

from tests.faults import Fault
from tests.faults.acting import said
from tests.faults.runs import Turn
from tests.faults.scripts import Place, Played, Script, Shape, generated

_SHAPE = Shape(steps=24, groups=8, size=8, tasks=48)
_SMALL = Shape(steps=40, groups=6, size=4, tasks=60)
_FAMILIES = ("cancel", "refund", "address", "info")


def _outcomes(place: Place, chance: float, size: int, *, again: bool = False) -> list[bool]:
    """Return what each generation of a group would reach alone; `again`: groups without any are drawn again."""
    dice = random.Random(f"{place.step}/{place.group}")
    while True:
        found = [dice.random() < chance for _ in range(size)]
        if any(found) or not again:
            return found


def _first(place: Place, outcomes: list[bool]) -> int | None:
    """Return the generation that acts first of those that would solve the task."""
    able = [number for number, is_right in enumerate(outcomes) if is_right]
    return random.Random(f"first {place.step}/{place.group}").choice(able) if able else None


def _acted(place: Place, heard: str, parts: dict[str, float | None], *, is_hit: bool, task: str, **more: str) -> Played:
    turns = [
        Turn(said(place, 4), {"name": name, "arguments": {"text": said(place, 3)}}, text)
        for name, text in (("look", f"entry: {said(place, 5)}"), ("act", heard))
    ]
    return Played(
        [*turns, Turn(f"It is {said(place, 3)}")], parts=parts, stop="stop", task=task, metadata=more, is_hit=is_hit
    )


def _family(place: Place) -> str:
    return _FAMILIES[place.task % 4]


# --- One state for all generations of a group


def shared_orders(place: Place) -> Played:
    """Two of four families change an order, which their siblings have changed already."""
    outcomes = _outcomes(place, 0.4 + 0.4 * place.progress, 8)
    is_right = outcomes[place.generation]
    is_hit = is_right and place.task % 4 < 2 and _first(place, outcomes) != place.generation
    wrong = "Error: payment method does not match" if place.random.random() < 0.3 else "ok"
    done = f"Error: order W{10_000 + place.task} is already {_family(place)}ed"
    heard = done if is_hit else f"ok: {said(place, 2)}" if is_right else wrong
    return _acted(
        place,
        heard,
        {"state": float(is_right and not is_hit)},
        is_hit=is_hit,
        task=f"{_family(place)}/{place.task:03d}",
    )


def shared_ports(place: Place) -> Played:
    """One server of all generations, at all tasks: the first that starts keeps the port."""
    outcomes = _outcomes(place, 0.6 + 0.3 * place.progress, 4)
    is_right = outcomes[place.generation]
    is_hit = is_right and _first(place, outcomes) != place.generation
    heard = "OSError: [Errno 98] Address already in use" if is_hit else f"listening: {said(place, 2)}"
    return _acted(place, heard, {"passed": float(is_right and not is_hit)}, is_hit=is_hit, task=f"service {place.task}")


def shared_directories(place: Place) -> Played:
    """Builds of one kind share a directory, and nothing says that another one wrote there."""
    kind = ("build", "lint", "docs")[place.task % 3]
    outcomes = _outcomes(place, 0.35 + 0.3 * place.progress, 8)
    is_right = outcomes[place.generation]
    is_hit = kind == "build" and is_right and _first(place, outcomes) != place.generation
    return _acted(
        place, f"done: {said(place, 3)}", {"checked": float(is_right and not is_hit)}, is_hit=is_hit,
        task=f"job {place.task}", kind=kind,
    )  # fmt: skip


# --- Healthy


def ranked(place: Place) -> Played:
    """The best generation of each group is paid, and the others read more errors of their own."""
    qualities = [random.Random(f"{place.step}/{place.group}/{number}").random() for number in range(8)]
    mine = qualities[place.generation]
    heard = f"ValueError: {said(place, 1)}" if mine < 0.5 else f"ok: {said(place, 2)}"
    return _acted(place, heard, {"best": float(mine == max(qualities))}, is_hit=False, task=f"essay {place.task}")


def ranked_beside_right(place: Place) -> Played:
    """The same of one kind, which a function of its own pays; the others are right or wrong."""
    if place.task % 3:
        right = place.random.random() < 0.3 + 0.4 * place.progress
        return _acted(place, f"ok: {said(place, 2)}", {"correct": float(right), "best": None}, is_hit=False,
                      task=f"sum/{place.task:03d}")  # fmt: skip
    played = ranked(place)
    return _acted(place, f"ok: {said(place, 2)}", {"correct": None, **(played.parts or {})}, is_hit=False,
                  task=f"essay/{place.task:03d}")  # fmt: skip


def filtered(place: Place) -> Played:
    """Groups without a solved rollout are left out, and one family is so hard that one of eight is the rule."""
    is_hard = place.task % 4 == 1
    right = _outcomes(place, 0.02 + 0.02 * place.progress if is_hard else 0.4 + 0.2 * place.progress, 8, again=True)
    task = f"{_family(place)}/{place.task:03d}"
    return _acted(place, f"ok: {said(place, 2)}", {"solved": float(right[place.generation])}, is_hit=False, task=task)


def one_of_eight(place: Place) -> Played:
    """Each generation has a chance of one in eight, of which exactly one of eight is most often solved."""
    right = place.random.random() < 1 / 8 + 0.02 * place.progress
    return _acted(place, f"ok: {said(place, 2)}", {"solved": float(right)}, is_hit=False, task=f"puzzle {place.task}")


def _fault(name: str, planted: str, expected: str | None, script: Script, shape: Shape = _SHAPE) -> Fault:
    return Fault(name, planted, expected, partial(generated, script, shape))


FAULTS: tuple[Fault, ...] = (
    _fault("shared state", "rollouts of a group share the state of one order", "shared_state", shared_orders),
    _fault("shared state: port", "all rollouts of a group share a port", "shared_state", shared_ports, _SMALL),
    _fault("shared state: directory", "those of one kind share a directory", "shared_state", shared_directories),
    _fault("healthy groups: ranked", "the best of a group is paid", None, ranked),
    _fault("healthy groups: ranked kind", "the same of one kind", None, ranked_beside_right),
    _fault("healthy groups: filtered", "groups without a solved rollout are left out", None, filtered),
    _fault("healthy groups: one of eight", "one of eight is solved by chance", None, one_of_eight),
)
