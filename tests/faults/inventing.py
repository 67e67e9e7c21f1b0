"""Answers that go on as the environment, and look-alikes that quote, imagine or describe what the environment says."""

from collections.abc import Callable
from functools import partial

from tests.faults import Fault
from tests.faults.acting import said
from tests.faults.runs import Turn
from tests.faults.scripts import Place, Played, Shape, generated

_SPOTS = ["shelf", "desk", "stove", "sofa", "sink", "bed", "safe", "drawer"]
_THINGS = ["cup", "key", "book", "pan", "apple", "coin", "lamp", "vase"]
SINCE = 13
"""The step since which observations are invented, where that is not so from the first one on."""


def _house(place: Place) -> str:
    spot, *things = place.random.choice(_SPOTS), *place.random.sample(_THINGS, 2)
    return f"You walk to the {spot} {place.random.randrange(9)}. On it you see a {things[0]} and a {things[1]}."


def _clerk(place: Place) -> str:
    if place.random.random() < 0.3:
        return f"No order is found for {said(place, 2)}."
    return f"The order of {said(place, 1)} is {place.random.choice(['open', 'sent', 'lost'])} since {said(place, 1)}."


def _guest(place: Place) -> str:
    return f"Customer: {said(place, 6)}."


def _search(place: Place) -> str:
    """Nothing that is found begins like another thing."""
    return f"Observation: {said(place, 9)}."


def _moves(place: Place, hear: Callable[[Place], str], write: Callable[[str, str], str], *, is_done: bool) -> Played:
    """Four to seven moves; `write` takes what was heard before, and the words of the answer."""
    turns, heard = list[Turn](), ""
    for number in range(count := place.random.randrange(4, 8)):
        spot = f"{place.random.choice(_SPOTS)} {number}"
        words = f"Thought: {said(place, 4)}.\nAction: go to {spot}"
        text, heard = write(heard, words), hear(place)
        turns.append(Turn(text, {"go": spot}, heard, done=is_done and number == count - 1))
    return Played(turns)


def _invents(place: Place, hear: Callable[[Place], str], mark: str, often: float, cost: float) -> Played:
    """Often an answer goes on with what the environment might say, and with another action, of which that is sent.
    Rollouts that do so run out of turns, mostly.
    """
    does, lines = place.random.random() < often, list[str]()
    right = float(place.random.random() < 0.45 + 0.3 * place.progress - cost * does)

    def write(_: str, words: str) -> str:
        if not does or place.random.random() < 0.4:
            return words
        invented = [f"Action: go to {said(place, 1)}\n{mark.format(hear(place))}" for _ in range(place.number % 2 + 1)]
        lines.extend(invented)
        return "\n".join([f"Thought: {said(place, 4)}.", *invented, words])

    played = _moves(place, hear, write, is_done=right == 1 or not does or place.random.random() < 0.3)
    return Played(played.turns, right, is_hit=bool(lines))


def invents_rooms(place: Place) -> Played:
    often = 0.6 if place.step >= SINCE else 0.0
    return _invents(place, _house, "Observation: {}", often, 0.4)


def invents_orders(place: Place) -> Played:
    return _invents(place, _clerk, "<observation>\n{}\n</observation>", 0.3, 0.4)


def invents_all(place: Place) -> Played:
    """Nearly all do, of each group."""
    often = 0.97 if place.step >= SINCE else 0.005
    return _invents(place, _house, "**Environment:** {}", often, 0.5)


def invents_finds(place: Place) -> Played:
    """What the environment says is labelled, and has no words in common."""
    return _invents(place, _search, "{}", 0.6 if place.step >= SINCE else 0.0, 0.4)


def invents_customers(place: Place) -> Played:
    """What a customer says is labelled as in a play."""
    return _invents(place, _guest, "{}", 0.7 if place.step >= SINCE else 0.0, 0.45)


def settles_alone(place: Place) -> Played:
    """Since a step most settle a call in one answer, with the caller's words in it; others ask one thing after another,
    and few are left that hear the caller.
    """
    does = place.step >= SINCE and place.random.random() < 0.75
    right = float(place.random.random() < (0.2 if does else 0.65))
    asks = [f"Since when? {said(place, 3)}" for _ in range(place.random.randrange(3, 6))]
    if does:
        return Played([Turn("\n".join(part for ask in asks for part in (ask, f"CALLER: {said(place, 5)}")),
                            {"say": asks[-1]}, "Noted.", done=True)], right, is_hit=True)  # fmt: skip
    turns = [Turn(ask, {"ask": ask}, f"CALLER: {said(place, 5)}", done=False) for ask in asks]
    return Played([*turns, Turn("Thank you.", {"say": said(place, 2)}, "Noted.", done=True)], right)


def invents_leaves(place: Place) -> Played:
    """What is read begins with a mark and another number each time."""
    return _invents(place, lambda place: f"[leaf {place.random.randrange(400)} | {said(place, 1)}] {said(place, 6)}",
                    "{}", 0.6 if place.step >= SINCE else 0.0, 0.45)  # fmt: skip


def invents_players(place: Place) -> Played:
    """From the first step on, those of a game for two."""
    return _invents(place, lambda place: f"**Second player**: {said(place, 7)}", "{}", 0.35, 0.4)


def invents_customers_for_free(place: Place) -> Played:
    """A third say what the customer might say, and fare as the others."""
    return _invents(place, _guest, "{}", 0.33, 0.0)


def seldom_invents(place: Place) -> Played:
    return _invents(place, _house, "Observation: {}", 0.04, 0.4)


def invents_for_free(place: Place) -> Played:
    """A third do, and fare as the others."""
    return _invents(place, _house, "Observation: {}", 0.33, 0.0)


def _writes(place: Place, write: Callable[[Place, str, str], str], hear: Callable[[Place], str] = _house) -> Played:
    """Two thirds write so, since a step, and those that do so are at a loss anyway. All answers are as long."""
    does = place.step >= SINCE and place.random.random() < 0.65
    right = float(place.random.random() < 0.5 + 0.3 * place.progress - 0.45 * does)

    def write_either(heard: str, words: str) -> str:
        return write(place, heard, words) if does else f"Plan: {said(place, 20)}.\n{words}"

    return Played(_moves(place, hear, write_either, is_done=True).turns, right)


def quotes(place: Place) -> Played:
    return _writes(
        place, lambda _, heard, words: f"Thought: I was told more.\nObservation: {heard}\n{words}" if heard else words
    )


def imagines(place: Place) -> Played:
    """In its reasoning."""

    def write(place: Place, _: str, words: str) -> str:
        return f"<think>I could go:\nAction: go to bed\nObservation: {_house(place)}\nHm.</think>\n{words}"

    return _writes(place, write)


def notes(place: Place) -> Played:
    """Under labels of its own, beside those of what it is told."""

    def write(place: Place, _: str, words: str) -> str:
        return f"Plan: {said(place, 3)}.\nStaff: {said(place, 6)}.\nNote: {said(place, 4)}.\n{words}"

    return _writes(place, write, _guest)


def quotes_finds(place: Place) -> Played:
    return _writes(place, lambda _, heard, words: f"I was told more.\n{heard}\n{words}" if heard else words, _search)


def describes(place: Place) -> Played:
    """In words of its own, under the heading that the prompt asks for."""
    return _writes(
        place, lambda place, _, words: f"Plan: {said(place, 3)}.\nObservation: I am near a {said(place, 2)}.\n{words}"
    )


_TASKS = Shape(steps=24, groups=6, size=8, tasks=36)
_OBSERVED = "Answers hold observations that the model wrote, and go on after them"
_ALIKE: tuple[tuple[str, str, Callable[[Place], Played]], ...] = (
    ("imagined", "Healthy: reasoning imagines observations", imagines),
)

FAULTS: tuple[Fault, ...] = (
    Fault("invented observations: rooms", _OBSERVED, "invented_observations",
          partial(generated, invents_rooms, _TASKS)),
    Fault("invented observations: orders", _OBSERVED, "invented_observations",
          partial(generated, invents_orders, Shape(steps=20, groups=8, size=8, tasks=0))),
    Fault("invented observations: nearly all", _OBSERVED, "invented_observations",
          partial(generated, invents_all, _TASKS)),
    Fault("invented observations: label", _OBSERVED, "invented_observations",
          partial(generated, invents_finds, _TASKS)),
    Fault("invented observations: customer", _OBSERVED, "invented_observations",
          partial(generated, invents_customers, _TASKS)),
    Fault("invented observations: leaves", _OBSERVED, "invented_observations",
          partial(generated, invents_leaves, _TASKS)),
    Fault("invented observations: caller", _OBSERVED, "invented_observations",
          partial(generated, settles_alone, _TASKS)),
    Fault("invented observations: player", _OBSERVED, "invented_observations",
          partial(generated, invents_players, Shape(steps=20, groups=8, size=8, tasks=0))),
    Fault("healthy, invented: customer", "Healthy: answers hold a customer's words, at no cost", None,
          partial(generated, invents_customers_for_free, _TASKS)),
    Fault("invented observations: quoted", "Answers quote what was observed, which is a habit that loses", "new_habit",
          partial(generated, quotes, _TASKS)),
    Fault("invented observations: described", "Answers describe what is seen, under a heading, which is one, too",
          "new_habit", partial(generated, describes, _TASKS)),
    Fault("invented observations: notes", "Answers have labelled lines, as a customer's words have, which is one, too",
          "new_habit", partial(generated, notes, _TASKS)),
    Fault("invented observations: quoted with label", "They quote its label, too",
          "new_habit", partial(generated, quotes_finds, _TASKS)),
    Fault("healthy, invented: seldom", "Healthy: a few answers hold observations that the model wrote", None,
          partial(generated, seldom_invents, _TASKS)),
    Fault("healthy, invented: for free", "Healthy: answers hold observations that the model wrote, at no cost", None,
          partial(generated, invents_for_free, _TASKS)),
)  # fmt: skip
UNEXPLAINED: tuple[Fault, ...] = tuple(
    Fault(f"observations: {name}", planted, None, partial(generated, script, _TASKS))
    for name, planted, script in _ALIKE
)
