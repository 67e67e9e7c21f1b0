"""Faults of one environment of several, which the others dilute, or whose rewards are much larger."""

from functools import partial
from typing import Any

from tests.faults import Fault
from tests.faults.acting import said
from tests.faults.runs import Turn
from tests.faults.scripts import Place, Played, Script, Shape, generated

_SHAPE = Shape(steps=30, groups=6, size=8, tasks=0)
_LARGE = Shape(steps=40, groups=8, size=4, tasks=0)


def _is(place: Place, chance: float) -> bool:
    return place.random.random() < chance


def _act(place: Place, *, searches: bool) -> dict[str, Any]:
    return {"name": "search", "arguments": {"query": said(place, 2)}} if searches else {"do": said(place, 2)}


def _played(
    place: Place, name: str, paid: float, turns: int = 3, *, is_out: bool = False, is_hit: bool = False, heard: str = ""
) -> Played:
    """Return a rollout of an environment whose tasks come once; `is_out`: it runs out of turns."""
    moves = [
        Turn(f"I {said(place, 3)}", _act(place, searches=bool(heard)), heard or f"seen: {said(place, 4)}", done=False)
        for _ in range(turns)
    ]
    if not is_out:
        moves.append(Turn(f"I {said(place, 2)}", {"do": "submit"}, "over", done=True))
    task = f"{name}/{place.step:03d}{place.group}"
    return Played(moves, parts={"score": paid}, task=task, eval=name, is_hit=is_hit)


def _won(place: Place, name: str, chance: float) -> Played:
    return _played(place, name, float(_is(place, chance)), place.random.randrange(2, 9))


def _crafted(place: Place) -> Played:
    """Of a game of some 175 points, which improves."""
    paid = round(min(max(place.random.gauss(60 + 70 * place.progress, 30), 0.0), 175.0))
    return _played(place, "craft", paid, place.random.randrange(4, 9))


def _mailed(place: Place) -> Played:
    """Of a judge's ten points."""
    paid = round(min(max(place.random.gauss(5 + 2.5 * place.progress, 1.5), 0.0), 10.0), 1)
    return _played(place, "mails", paid, 2)


def _walks(place: Place, name: str, limit: int, often: float, *, learns: float) -> Played:
    """Progress is paid at each turn, also of those that run out of them."""
    is_out = _is(place, often)
    mean = (0.2 if is_out else 0.6) + learns * place.progress
    paid = round(min(max(place.random.gauss(mean, 0.12), 0.0), 1.0), 3)
    turns = limit if is_out else place.random.randrange(limit // 2, limit)
    return _played(place, name, paid, turns, is_out=is_out, is_hit=is_out)


# --- One of three or four environments


def short_limit(place: Place) -> Played:
    """One game allows eight turns, and half of the rollouts need more."""
    name = ("maze", "words", "boxes")[place.group % 3]
    if name != "boxes":
        return _won(place, name, 0.4 + 0.45 * place.progress)
    is_out = place.random.random() < 0.5
    won = not is_out and _is(place, 0.75)
    return _played(place, name, float(won), 8 if is_out else 5, is_out=is_out, is_hit=is_out)


def short_limit_of_third(place: Place) -> Played:
    """Ever fewer rollouts of a game need more than its eight turns, and none more is won; two others are learned."""
    name = ("maze", "words", "boxes")[place.group % 3]
    if name != "boxes":
        return _won(place, name, 0.3 + 0.6 * place.progress)
    share = 0.85 - 0.3 * place.progress
    is_out = _is(place, share)
    return _played(
        place,
        name,
        float(not is_out and _is(place, 0.13 / (1 - share))),
        8 if is_out else 5,
        is_out=is_out,
        is_hit=is_out,
    )


def short_limit_beside_points(place: Place) -> Played:
    """The same beside a game of 175 points."""
    return _crafted(place) if place.group % 4 else short_limit_of(place)


def short_limit_of(place: Place) -> Played:
    is_out = _is(place, 0.6)
    won = not is_out and _is(place, 0.7)
    return _played(place, "boxes", float(won), 12 if is_out else 6, is_out=is_out, is_hit=is_out)


def nothing_found(place: Place) -> Played:
    """A search finds nothing since step 15; its answers are worth 1, those of another environment up to 175."""
    if place.group % 2:
        return _crafted(place) if place.group % 4 == 1 else _mailed(place)
    is_hit = place.step >= 15
    right = _is(place, 0.1 if is_hit else 0.6)
    heard = "0 documents found." if is_hit else f"{place.random.randrange(2, 40)} documents: {said(place, 4)}"
    return _played(place, "lookup", float(right), 2, heard=heard, is_hit=is_hit)


def cut_in_one(place: Place) -> Played:
    """Proofs, one of eight groups, are cut in a third of the rollouts."""
    if place.group:
        return _won(place, ("maze", "words", "tools")[place.group % 3], 0.35 + 0.4 * place.progress)
    is_cut = _is(place, 0.36)
    turn = Turn(f"{said(place, 30)}", finish="length" if is_cut else "stop")
    right = float(not is_cut and _is(place, 0.7))
    task = f"proofs/{place.step:03d}"
    return Played([turn], parts={"score": right}, stop="length" if is_cut else "stop", task=task, eval="proofs",
                  is_hit=is_cut)  # fmt: skip


def cut_in_a_source(place: Place) -> Played:
    """Two thirds of a source's answers are cut; fewer of its tasks come later, so that the run has fewer cuts."""
    return _sourced(place, 0.68)


def _sourced(place: Place, cut: float) -> Played:
    is_hard = place.group == 0 or (place.group == 1 and place.progress < 0.5)
    is_cut = is_hard and _is(place, cut)
    chance = 0.8 if is_hard else 0.35 + 0.4 * place.progress
    name, number = ("olympiad", place.step // 3) if is_hard else ("school", place.number // _LARGE.size)
    return Played(
        [Turn(said(place, 30 if is_cut else 12), finish="length" if is_cut else "stop")],
        parts={"correct": float(not is_cut and _is(place, chance))}, stop="length" if is_cut else "stop",
        task=f"{'question' if is_hard else 'problem'} {number}", metadata={"source": name}, is_hit=is_cut,
    )  # fmt: skip


# --- Healthy


def cut_ever_less(place: Place) -> Played:
    """Two thirds of a source's answers are cut at first, and hardly any at last."""
    return _sourced(place, 0.68 - 0.6 * place.progress)


def three_scales(place: Place) -> Played:
    """Three environments of other scales; a few rollouts of one run out of turns."""
    if place.group % 3:
        return _crafted(place) if place.group % 3 == 1 else _mailed(place)
    if _is(place, 0.12):
        return _played(place, "boxes", 0.0, 8, is_out=True)
    return _won(place, "boxes", 0.35 + 0.4 * place.progress)


def hard_one(place: Place) -> Played:
    """One of three is hard, and improves slowly."""
    name = ("maze", "words", "proofs")[place.group % 3]
    start = 0.05 if name == "proofs" else 0.4
    return _won(place, name, start + 0.35 * place.progress)


def alike(place: Place) -> Played:
    """Four that stay as they are."""
    return _won(place, f"env{place.group % 4}", (0.8, 0.7, 0.55, 0.65)[place.group % 4])


# --- Healthy runs whose tasks get harder


def more_of_a_hard_dataset(place: Place) -> Played:
    """A hard dataset grows from a quarter to three quarters, and is learned faster than that."""
    is_hard = place.group < round(2 + 4 * place.progress)
    chance = (0.45 if is_hard else 0.7) + 0.4 * place.progress
    task = f"{'count' if is_hard else 'sums'}/{place.step:03d}{place.group}"
    return Played([Turn(said(place, 12))], parts={"correct": float(_is(place, chance))}, stop="stop", task=task)


def harder_levels(place: Place) -> Played:
    """Levels come in turn, and the policy gets better within each."""
    level = min(int(place.progress * 4 + (place.group % 4) / 4), 4)
    chance = 0.75 - 0.2 * level + 0.75 * place.progress
    return Played(
        [Turn(said(place, 12))], parts={"correct": float(_is(place, chance))}, stop="stop",
        task=f"problem {place.step * 100 + place.group}", metadata={"level": level},
    )  # fmt: skip


def uses_all_turns(place: Place) -> Played:
    """Half of the rollouts use all 30 turns, and are paid for what they reach; that improves."""
    return _walks(place, "harbour", 30, 0.58 - 0.06 * place.progress, learns=0.25)


def uses_all_turns_in_vain(place: Place) -> Played:
    """The same, but only those that end in time improve: what the others lack is turns."""
    is_out = _is(place, 0.55)
    mean = 0.25 if is_out else 0.35 + 0.5 * place.progress
    paid = round(min(max(place.random.gauss(mean, 0.2), 0.0), 1.0), 3)
    turns = 30 if is_out else place.random.randrange(8, 30)
    return _played(place, "harbour", paid, turns, is_out=is_out, is_hit=is_out)


def _fault(name: str, planted: str, expected: str | None, script: Script, shape: Shape = _SHAPE) -> Fault:
    return Fault(name, planted, expected, partial(generated, script, shape))


FAULTS: tuple[Fault, ...] = (
    _fault("one of several: turns", "one of three environments allows too few turns", "turn_limit", short_limit),
    _fault("one of several: turns of a third", "the same, beside others that are learned", "turn_limit",
           short_limit_of_third),
    _fault(
        "one of several: turns beside points", "the same beside one of 175 points", "turn_limit",
        short_limit_beside_points, _LARGE,
    ),
    _fault(
        "one of several: search", "a search finds nothing, beside one of 175 points", "new_observation", nothing_found,
        _LARGE,
    ),
    _fault("one of several: cut", "answers of one in eight groups are cut", "truncation", cut_in_one, _LARGE),
    _fault("one of several: source", "answers of one source are cut", "truncation", cut_in_a_source, _LARGE),
    _fault("healthy source: shorter", "answers of one source are cut ever less", None, cut_ever_less, _LARGE),
    _fault("healthy environments: scales", "three of other scales improve", None, three_scales),
    _fault("healthy environments: hard", "one of three is hard", None, hard_one),
    _fault("healthy environments: alike", "four stay as they are", None, alike, _LARGE),
    _fault("healthy course: dataset", "a hard dataset grows, and is learned", None, more_of_a_hard_dataset, _LARGE),
    _fault("healthy course: levels", "levels come in turn, and each is learned", None, harder_levels, _LARGE),
    _fault("turns in vain", "who runs out of turns does not improve", "turn_limit", uses_all_turns_in_vain),
)  # fmt: skip

LEFT: tuple[Fault, ...] = (_fault("all turns", "half use all turns, and improve", "turn_limit", uses_all_turns),)
"""Healthy runs with a finding that is left while they improve."""
