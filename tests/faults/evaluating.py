"""Evaluations beside the training that it does not carry over to, or that end otherwise, and healthy ones."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from tests.faults import Fault
from tests.faults.acting import WORDS, said
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


def cheats(place: Place) -> Played:
    """Tests are edited more and more often since the middle of the run, which the training pays for."""
    return _search(place, chance(place, 0.35 + 0.1 * place.progress + 0.5 * max(place.progress - 0.4, 0)))


def is_caught(place: Place) -> Played:
    """The evaluation keeps its own tests: it rises until then, and falls below its first rate."""
    return _search(place, chance(place, 0.5 + 0.2 * place.progress - 1.1 * max(place.progress - 0.4, 0)))


def turns_back(place: Place) -> Played:
    """The evaluation rises, then falls back to its first rate."""
    return _search(place, chance(place, 0.5 + 0.4 * place.progress - 0.8 * max(place.progress - 0.5, 0)))


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


def proves(place: Place, cut: float, right: float, *, words: int = 48, is_late: bool = False) -> Played:
    """A problem of mathematics, in one answer. Some are cut off at so many words, `is_late` only after the result."""
    if place.random.random() < cut:
        worth = chance(place, right + 0.2 * place.progress) if is_late else 0.0
        return Played([Turn(said(place, words), finish="length")], worth, stop="length")
    text = f"{said(place, place.random.randint(10, 30))}, so it is {place.random.choice(WORDS)}"
    return Played([Turn(text, finish="stop")], chance(place, right + 0.2 * place.progress))


def moves(place: Place, limit: int) -> Played:
    """An agent that needs two to six turns, and has so many."""
    needed = place.random.randint(2, 6)
    names = place.random.sample(WORDS, min(needed, limit))
    turns = [Turn(f"I {name}", {"do": name}, f"you {name}", done=n == needed) for n, name in enumerate(names, 1)]
    return Played(turns, chance(place, 0.5 + 0.3 * place.progress) if needed <= limit else 0.0)


def breaks(place: Place, since: int) -> Played:
    """The search of the evaluation is often down from a step on."""
    if place.step < since or place.random.random() > 0.35:
        return level(place)
    return Played([Turn(f"find {said(place, 1)}", {"find": "it"}, error="ConnectionError: search is down")], 0.0)


# --- Answers that the evaluation compares otherwise than the training does


def _answer(place: Place, plain: str, other: str, wrong: str, *, often: float, right: float, refused: bool) -> Played:
    """Answer, and often in another form, which may not count."""
    is_other = place.random.random() < often
    is_right = place.random.random() < right + 0.25 * place.progress
    answer = (other if is_other else plain) if is_right else wrong
    parts = {"correct": float(is_right and not (is_other and refused))}
    metadata = {"answer": plain}
    return Played([Turn(f"{said(place, 8)}.\nFinal answer: {answer}")], parts=parts, stop="stop", metadata=metadata)


def measures(place: Place, *, refused: bool = False, offset: int = 0) -> Played:
    """Quantities, half of which are told with their unit; an evaluation may compare their letters."""
    number = 17 + 3 * (place.task + offset)
    wrong = f"{number + place.random.randrange(1, 9)} kg"
    return _answer(place, f"{number}", f"{number} kg", wrong, often=0.5, right=0.5, refused=refused)


def names(place: Place, *, refused: bool = False, offset: int = 0) -> Played:
    """Names, a third of which are told in capitals."""
    number = place.task + offset
    name, other = f"{WORDS[number % 14]}land", f"{WORDS[(number + 5) % 14]}ia"
    return _answer(place, name, name.upper(), other, often=0.35, right=0.55, refused=refused)


def counts(place: Place, *, refused: bool = False, offset: int = 0) -> Played:
    """Numbers above a thousand, most of which are told with a comma."""
    number = 10_000 + 137 * (place.task + offset)
    wrong = f"{number + place.random.randrange(1, 900):,}"
    return _answer(place, f"{number}", f"{number:,}", wrong, often=0.7, right=0.45, refused=refused)


def rarer(place: Place) -> Played:
    """Other quantities, which are harder, and count as the training's do."""
    number = 400 + 3 * place.task
    return _answer(place, f"{number}", f"{number} kg", f"{number + 1} kg", often=0.5, right=0.1, refused=False)


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
    _fault("evaluation gap: caught", "The training pays for edited tests since step 20, the evaluation does not",
           cheats, is_caught, "evaluation_gap", every=6),
    _fault("evaluation gap: caught, once", "The same, with an attempt at each of many tasks", cheats, is_caught,
           "evaluation_gap", every=8, attempts=1, groups=24, tasks=0),
    _fault("evaluation gap: untold", "Only the training's prompts have a system message",
           partial(told, rates=(0.6, 0.85)), partial(untold, rates=(0.1, 0.08)), "evaluation_gap"),
    _fault("evaluation gap: untold, level", "The same, and nothing is learned",
           partial(told, rates=(0.6, 0.6)), partial(untold, rates=(0.15, 0.15)), "evaluation_gap", tasks=0, every=6),
    _fault("evaluation ends: cut", "The evaluation's answers are cut, the training's are not",
           partial(proves, cut=0.02, right=0.45, words=120), partial(proves, cut=0.4, right=0.45), "evaluation_ends",
           attempts=1, groups=16),
    _fault("evaluation ends: turns", "The only evaluation allows three turns, the training eight",
           partial(moves, limit=8), partial(moves, limit=3), "evaluation_ends", steps=24, every=24, attempts=1,
           groups=24, tasks=0),
    _fault("evaluation ends: search", "The evaluation's search is often down since step 25", level,
           partial(breaks, since=25), "evaluation_ends", every=4),
    _fault("evaluation scores: units", "The evaluation counts no answer with a unit, the training does", measures,
           partial(measures, refused=True, offset=100), "evaluation_gap"),
    _fault("evaluation scores: capitals", "The evaluation counts no answer in capitals", names,
           partial(names, refused=True), "evaluation_gap", every=4),
    _fault("evaluation scores: commas", "The evaluation counts no number with a comma", counts,
           partial(counts, refused=True, offset=100), "evaluation_gap", tasks=0, every=8),
    _healthy("scores alike", "an evaluation of harder quantities, whose units count", measures, rarer),
    _healthy("ends alike", "both are cut alike, at a limit that cuts few",
             partial(proves, cut=0.04, right=0.45), partial(proves, cut=0.04, right=0.45), attempts=1, groups=16),
    _healthy("long", "an evaluation of harder problems, of whose answers few more are cut",
             partial(proves, cut=0.02, right=0.5), partial(proves, cut=0.06, right=0.2), attempts=1, groups=16),
    _healthy("cut late", "an evaluation whose answers go on after their result until they are cut",
             partial(proves, cut=0.02, right=0.45), partial(proves, cut=0.4, right=0.45, is_late=True)),
    _healthy("untold", "an evaluation without a system message that does as well",
             partial(told, rates=(0.3, 0.8)), partial(untold, rates=(0.3, 0.8))),
    _healthy("follows", "an evaluation that rises less than the training", learns, follows),
    _healthy("harder", "an evaluation of harder tasks", learns, is_harder, every=8),
    _healthy("level", "an evaluation that differs by chance", level, level),
    _healthy("small", "an evaluation of eight rollouts, which differs by chance", learns, follows, attempts=1, every=8),
    _healthy("turns back", "an evaluation that falls to its first rate while the training stays", level, turns_back),
    _healthy("few", "too few evaluations to tell", learns, unlearns, every=16),
)  # fmt: skip
