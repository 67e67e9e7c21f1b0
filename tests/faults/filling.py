"""Tools' answers that have no room in the context, where the loop itself says that it stopped for length."""

from collections.abc import Callable
from functools import partial

from tests.faults import Fault
from tests.faults.acting import said
from tests.faults.runs import Turn
from tests.faults.scripts import Place, Played, Shape, generated

SINCE = 11
_LINE = "{:05d} WARN retry of {} took {} ms\n"


def _lines(place: Place, count: int) -> str:
    dice = place.random
    return "".join(_LINE.format(dice.randrange(99_999), said(place, 1), dice.randrange(900)) for _ in range(count))


def _call(place: Place, tool: str, heard: str) -> Turn:
    arguments = {"service": said(place, 1), "hour": place.random.randrange(24)}
    return Turn(f"{said(place, 5)}.", {"name": tool, "arguments": arguments}, heard, finish="stop")


def _asks(place: Place, count: int) -> list[Turn]:
    return [_call(place, "metrics", f"cpu {place.random.randrange(99)}, {_lines(place, 3)}") for _ in range(count)]


def _answers(place: Place, turns: list[Turn], right: float) -> Played:
    is_right = float(place.random.random() < right)
    return Played([*turns, Turn(f"CAUSE: {said(place, 2)}", finish="stop")], is_right, stop="stop")


def log_without_room(place: Place) -> Played:
    """In a third of the tasks most read a log, which is too long."""
    turns = _asks(place, place.random.randrange(1, 4))
    if place.task % 3 or place.random.random() < 0.25:
        return _answers(place, turns, 0.5 + 0.3 * place.progress)
    log = _lines(place, place.random.randrange(300, 400))
    return Played([*turns, _call(place, "read_log", log)], 0.0, stop="length", is_hit=True)


def page_without_room(place: Place) -> Played:
    """Since a step a third of the rollouts meet a page that was never as long; actions are texts."""
    moves = [
        Turn(f"I open {(name := said(place, 1))}", f"open {name}", f"{name}: {said(place, 30)}", finish="stop")
        for _ in range(place.random.randrange(2, 4))
    ]
    if place.step < SINCE or place.random.random() < 0.65:
        return _answers(place, moves, 0.7)
    page = Turn("I open the index", "open index", f"index: {said(place, 1_500)}", finish="stop")
    return Played([*moves, page], 0.0, stop="length", is_hit=True)


def context_full(place: Place) -> Played:
    """Many answers of tools together fill the context: none is longer than others."""
    if place.random.random() < 0.7:
        return _answers(place, _asks(place, place.random.randrange(1, 5)), 0.7)
    return Played(_asks(place, place.random.randrange(9, 12)), 0.0, stop="length", is_hit=True)


def long_answers_that_fit(place: Place) -> Played:
    """Half of the rollouts read a long log, and go on; a few have no room for it."""
    turns = _asks(place, place.random.randrange(1, 4))
    if place.random.random() < 0.5:
        log = _call(place, "read_log", _lines(place, 350))
        if place.random.random() < 0.05:
            return Played([*turns, log], 0.0, stop="length", is_hit=True)
        turns.append(log)
    return _answers(place, turns, 0.4 + 0.4 * place.progress)


def cut_after_long_answers(place: Place) -> Played:
    """After a long log a third of the answers hit the limit of the generation."""
    turns = [*_asks(place, 1), _call(place, "read_log", _lines(place, 350))]
    if place.random.random() < 0.65:
        return _answers(place, turns, 0.7)
    return Played([*turns, Turn(_lines(place, 20), finish="length")], 0.0, stop="length", is_hit=True)


_SHAPE = Shape(steps=20, groups=6, size=8, tasks=36, config={"max_completion_length": 4_096})
_PLANTED: tuple[tuple[str, str, str | None, Callable[[Place], Played]], ...] = (
    ("no room: log", "Logs have no room in the context", "no_room", log_without_room),
    ("no room: page", "Pages have no room in the context", "no_room", page_without_room),
    ("no room: all together", "Answers of tools together fill the context", "no_room", context_full),
    ("healthy, long answers", "Healthy: long answers of tools fit", None, long_answers_that_fit),
    ("cut after a long answer", "Answers are cut, each after a tool's long one", "truncation", cut_after_long_answers),
)

FAULTS: tuple[Fault, ...] = tuple(
    Fault(name, planted, expected, partial(generated, script, _SHAPE)) for name, planted, expected, script in _PLANTED
)
