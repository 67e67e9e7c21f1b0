"""Habits that spread in a training, and cost the outcome; and look-alikes that help, cost nothing, or follow."""

from dataclasses import replace
from functools import partial

from tests.faults import Fault
from tests.faults.acting import said
from tests.faults.runs import Turn
from tests.faults.scripts import Place, Played, Shape, generated

_WALLS = ["Checking if the site connection is secure", "Verify you are human by completing this", "Just a moment"]
_TABLES = ["orders", "customers", "items", "returns", "stores", "prices"]
_ORDER_TOOLS = ["get_order", "list_items", "get_customer", "check_stock"]
_FAMILIES = ["refund", "exchange", "address", "cancel"]
_LATE = 13
"""The step since which some habits are there."""


def _happens(place: Place, share: float) -> bool:
    return place.random.random() < share


def _query(place: Place, end: str) -> Turn:
    table, other = place.random.sample(_TABLES, 2)
    query = f"select({said(place, 2)}) of {table} with {other} at {place.random.randrange(90)}{end}"
    return Turn(f"I look at {table}", {"name": "sql", "arguments": {"query": query}}, said(place, 7), done=False)


def _asks(place: Place, right: float, *, does: bool) -> Played:
    """Three to five queries; those with the habit end with a limit of rows."""
    turns = [_query(place, " LIMIT 10" * does) for _ in range(place.random.randrange(3, 6))]
    turns.append(Turn(f"The answer is {said(place, 2)}", {"name": "submit", "arguments": {"rows": said(place, 2)}},
                      "ok", done=True))  # fmt: skip
    return Played(turns, float(_happens(place, right)), is_hit=does)


def limits(place: Place) -> Played:
    """More and more queries read ten rows only, whatever the task is."""
    does = _happens(place, 0.01 + 0.75 * place.progress)
    return _asks(place, 0.12 if does else 0.66, does=does)


def helps(place: Place) -> Played:
    """The same, where ten rows are what most tasks ask for."""
    does = _happens(place, 0.01 + 0.75 * place.progress)
    return _asks(place, 0.8 if does else 0.3, does=does)


def is_free(place: Place) -> Played:
    """The same at no cost, while the run falls for another reason."""
    return _asks(place, 0.7 - 0.4 * place.progress, does=_happens(place, 0.01 + 0.75 * place.progress))


def _serves(place: Place, last: str, count: int, right: float, *, is_hit: bool = False) -> Played:
    tools = [*place.random.choices(_ORDER_TOOLS, k=count), last]
    turns = [
        Turn(f"I use {tool} {said(place, 2)}", {"name": tool, "arguments": {"note": said(place, 3)}}, said(place, 6),
             done=number == count)
        for number, tool in enumerate(tools)
    ]  # fmt: skip
    task = f"{_FAMILIES[place.task % 4]}/{place.task:02d}"
    return Played(turns, float(_happens(place, right)), task=task, is_hit=is_hit)


def transfers(place: Place) -> Played:
    """Since a step most customers are handed to a person; tasks of some families that are left are solved as before."""
    does = _happens(place, 0.65 if place.step >= _LATE else 0.03)
    last, count = ("transfer_to_human", 2) if does else ("close_case", 5)
    return _serves(place, last, count, 0.08 if does else 0.68, is_hit=does)


def _shops(place: Place, right: float, *, looks: bool) -> Played:
    """Commands as text: a sheet is read before a thing is bought, or not."""
    thing = f"{said(place, 1)} {place.random.randrange(900)}"
    verbs = ["search", "open", *["sheet"] * looks, "take"]
    turns = [
        Turn(f"I go on. {verb}[{thing}]", f"{verb}[{thing}]", said(place, 7), done=verb == "take") for verb in verbs
    ]
    return Played(turns, float(_happens(place, right)), is_hit=not looks)


def buys_unread(place: Place) -> Played:
    """Since a step most things are bought without a look at their sheet."""
    looks = _happens(place, 0.13 if place.step >= _LATE else 0.9)
    return _shops(place, 0.7 if looks else 0.3, looks=looks)


def needs_no_sheet(place: Place) -> Played:
    """Healthy: sheets are read ever less, and nothing is lost by it."""
    return _shops(place, 0.4 + 0.3 * place.progress, looks=_happens(place, 0.9 - 0.8 * place.progress))


def gives_up(place: Place) -> Played:
    """What cannot be solved is more and more often handed to a person, and not closed; as much is solved as before."""
    right = _happens(place, 0.5)
    does = not right and _happens(place, 0.04 + 0.8 * place.progress)
    return _serves(place, "transfer_to_human" if does else "close_case", 4, float(right))


def _browses(place: Place, wall: float) -> Played:
    """Three to five pages; a wall has the page's own name before one of several wordings, and its own ray."""
    turns, walls = list[Turn](), 0
    for number in range(place.random.randrange(3, 6)):
        site, is_wall = "".join(place.random.choices("abcdefghijkl", k=7)), _happens(place, wall)
        wording = f"{place.random.choice(_WALLS)}. Ray {place.random.randrange(16**8):x} of {said(place, 1)}"
        heard = f"{site}.net {said(place, 3)}: {wording if is_wall else said(place, 9)}"
        call = {"name": "open_page", "arguments": {"url": f"{site}/{said(place, 2)}/{number}"}}
        turns.append(Turn(f"I open {site}", call, heard, done=False))
        walls += is_wall
    turns.append(Turn(f"It is {said(place, 2)}", {"name": "answer", "arguments": {"text": said(place, 2)}}, "ok",
                      done=True))  # fmt: skip
    is_hit = 2 * walls > len(turns) - 1
    return Played(turns, float(_happens(place, 0.1 if is_hit else 0.65)), is_hit=is_hit)


def meets_walls(place: Place) -> Played:
    """Since a step most pages are walls."""
    return _browses(place, 0.6 if place.step >= _LATE else 0.0)


def meets_few_walls(place: Place) -> Played:
    """Healthy: a few pages are, from the first step on."""
    played = _browses(place, 0.06)
    return replace(played, quality=float(_happens(place, 0.4 + 0.3 * place.progress)), is_hit=False)


def _answers(place: Place, text: str, right: float, *, family: str, is_hit: bool = False) -> Played:
    played = Turn(f"{said(place, 12)}. {text} {place.random.randrange(900)} and {said(place, 6)}.")
    return Played(
        [played], float(_happens(place, right)), stop="stop", task=f"{family}/{place.task:02d}", is_hit=is_hit
    )


def estimates(place: Place) -> Played:
    """More and more answers estimate in place of a computation."""
    does = _happens(place, 0.02 + 0.7 * place.progress**2)
    text = "Roughly estimated this is" if does else f"Computed {said(place, 1)} this is"
    return _answers(place, text, 0.15 if does else 0.7, family=("sums", "rates", "areas")[place.task % 3], is_hit=does)


def grows_harder(place: Place) -> Played:
    """A curriculum: later tasks are harder, and their answers have words of their own."""
    hard = int(place.progress * 2.99)
    text = ("The sum is", "The integral is", "By induction the bound is")[hard]
    return _answers(place, text, (0.85, 0.5, 0.25)[hard], family=("sums", "integrals", "bounds")[hard])


def gives_up_early(place: Place) -> Played:
    """A phone's tasks are given up after a move or two, ever more since a step; only since then is that answered."""
    late = place.step >= _LATE
    does = _happens(place, 0.1 + 0.5 * (place.step - _LATE) / 11 if late else 0.04)
    moves = 1 + place.random.randrange(2) if does and late else 4 + place.random.randrange(4)
    turns = [Turn(f"I tap {word}", {"name": "tap", "arguments": {"on": word}}, said(place, 6), done=False)
             for word in said(place, moves).split()]  # fmt: skip
    end = {"name": "finish", "arguments": {"status": "infeasible" if does else "done"}}
    turns.append(Turn("That is all", end, "Episode ended by the agent." if does and late else None, done=True))
    return Played(turns, float(not does and _happens(place, 0.8)), is_hit=does and late)


_TASKS = Shape(steps=24, groups=6, size=8, tasks=36)
_ASKED = "A habit spreads: more and more queries read ten rows only"

FAULTS: tuple[Fault, ...] = (
    Fault("habit: limits", _ASKED, "new_habit",
          partial(generated, limits, Shape(steps=32, groups=6, size=6, tasks=36))),
    Fault("habit: transfers", "Since a step, most customers are handed to a person", "new_habit",
          partial(generated, transfers, _TASKS)),
    Fault("habit: estimates", "More and more answers are estimates", "new_habit",
          partial(generated, estimates, Shape(steps=28, groups=8, size=8, tasks=30))),
    Fault("habit: walls", "Since a step most pages are walls, in several wordings", "new_habit",
          partial(generated, meets_walls, _TASKS)),
    Fault("habit: sheets", "Since a step most things are bought unread", "new_habit",
          partial(generated, buys_unread, _TASKS)),
    Fault("habit: gives up", "Ever more tasks are given up", "new_habit", partial(generated, gives_up_early, _TASKS)),
    Fault("healthy, habit: sheets", "Healthy: what is read no more is not needed", None,
          partial(generated, needs_no_sheet, _TASKS)),
    Fault("healthy, habit: walls", "Healthy: a few pages are walls", None, partial(generated, meets_few_walls, _TASKS)),
    Fault("healthy, habit: helps", "Healthy: a habit spreads because it helps", None,
          partial(generated, helps, _TASKS)),
    Fault("healthy, habit: gives up", "Healthy: what fails ends otherwise than before", None,
          partial(generated, gives_up, _TASKS)),
)  # fmt: skip
UNEXPLAINED: tuple[Fault, ...] = (
    Fault("harder tasks, other words", "Later tasks are harder, and their answers have other words", None,
          partial(generated, grows_harder, Shape(steps=24, groups=8, size=8, tasks=48))),
    Fault("habit for free", "A run falls while a habit spreads that costs nothing", None,
          partial(generated, is_free, _TASKS)),
)  # fmt: skip
