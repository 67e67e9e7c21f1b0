"""What grows bit by bit: answers that become longer and no better, and policies that act less and less."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from tests.faults import Fault
from tests.faults.acting import WORDS, said
from tests.faults.rewarding import answered, chance
from tests.faults.runs import Turn
from tests.faults.scripts import Place, Played, Script, Shape, generated

_LONG = Shape(steps=32, groups=8, tasks=0)
_RECURRING = Shape(steps=32, groups=8, tasks=8)


def _rise(place: Place, first: int, last: int) -> float:
    """Return 0 up to a step, 1 from another one on, and what lies between for those between."""
    return min(max((place.step - first) / (last - first), 0.0), 1.0)


# --- Answers that grow


def charged_for_length(place: Place) -> Played:
    """Answers of a question grow to five times their length, which a penalty charges from 30 words on."""
    words = int((12 + 48 * _rise(place, 10, 26)) * place.random.uniform(0.7, 1.3))
    parts = {"correct": chance(place, 0.55), "overlong": -max(words - 30, 0) / 120}
    return answered(place, words=words, parts=parts, is_hit=words > 24)


def wordy_agent(place: Place) -> Played:
    """An agent that explains each of its moves at length since step 12, and is done as often."""
    words = place.random.randint(20, 30) if place.step >= 12 else place.random.randint(4, 8)
    moves = place.random.sample(WORDS, place.random.randint(2, 4))
    turns = [Turn(f"{said(place, words)} {move}", {"do": move}, f"you {move}", done=False) for move in moves]
    turns[-1] = replace(turns[-1], done=True)
    return Played(turns, chance(place, 0.5), is_hit=words > 12)


def wrong_ones_grow(place: Place) -> Played:
    """Wrong answers of a proof grow most, as a loss that divides by each answer's length lets them."""
    right = chance(place, 0.45)
    words = int((14 + (12 if right else 34) * _rise(place, 6, 18)) * place.random.uniform(0.7, 1.3))
    return answered(place, words=words, parts={"proof_correct": right, "style": chance(place, 0.6)}, is_hit=words > 30)


def grows_into_the_limit(place: Place) -> Played:
    """Plans grow until every second one is truncated, which never works out."""
    words = int((16 + 34 * _rise(place, 6, 26)) * place.random.uniform(0.7, 1.3))
    is_cut, text = words >= 48, said(place, min(words, 48))
    turn = Turn(text, tokens=min(words, 48), finish="length" if is_cut else "stop")
    works = 0.0 if is_cut else chance(place, 0.7)
    return Played([turn], stop="length" if is_cut else "stop", parts={"plan_solved": works}, is_hit=words > 28)


def plans_without_moves(place: Place) -> Played:
    """A game whose players learn to write long plans, which a function pays for, and no longer win."""
    is_hit = place.random.random() < 0.9 * _rise(place, 8, 22)
    words = int((26 if is_hit else 9) * place.random.uniform(0.7, 1.3))
    parts = {
        "won": 0.0 if is_hit else chance(place, 0.35 + 0.55 * place.progress),
        "planned": round(place.random.uniform(*((0.8, 1.0) if is_hit else (0.1, 0.4))), 2),
    }
    moves = place.random.sample(WORDS, 3)
    turns = [Turn(f"{said(place, words)} {it}", {"do": it}, f"you {it}", done=False) for it in moves]
    turns[-1] = replace(turns[-1], done=True)
    return Played(turns, parts=parts, is_hit=is_hit)


def judged_longer(place: Place) -> Played:
    """Answers grow to three times their length, and a judge finds them better."""
    words = int((14 + 30 * _rise(place, 8, 28)) * place.random.uniform(0.7, 1.3))
    score = min(max(place.random.gauss(0.4 + 0.3 * _rise(place, 8, 28), 0.15), 0.0), 1.0)
    return answered(place, words=words, parts={"judge": score, "overlong": -max(words - 30, 0) / 400})


def more_turns(place: Place) -> Played:
    """An agent that takes more turns of equal length as it goes on."""
    count = 2 + round(7 * _rise(place, 8, 28)) + place.random.randrange(2)
    moves = [place.random.choice(WORDS) for _ in range(count)]
    turns = [
        Turn(f"{said(place, 5)} {move} {number}", {"do": f"{move} {number}"}, f"you {move} {number}", done=False)
        for number, move in enumerate(moves)
    ]
    turns[-1] = replace(turns[-1], done=True)
    return Played(turns, chance(place, 0.6))


def penalised_and_level(place: Place) -> Played:
    """A penalty that follows length to the letter, of answers that stay as long as they are."""
    words = place.random.randint(20, 80)
    return answered(place, words=words, parts={"correct": chance(place, 0.55), "overlong": -max(words - 30, 0) / 150})


def longer_for_harder(place: Place) -> Played:
    """More and more tasks of a level that takes long answers."""
    is_hard = (place.step * 7 + place.group * 3) % 10 < 10 * _rise(place, 8, 28)
    words = int((70 if is_hard else 15) * place.random.uniform(0.8, 1.2))
    return answered(
        place, words=words, parts={"correct": chance(place, 0.5)}, metadata={"level": "hard" if is_hard else "easy"}
    )


# --- Policies that stop acting, or go on acting alike


def _acts(place: Place, quality: float, tools: int = 2) -> Played:
    sought = place.random.sample(WORDS, tools)
    turns = [Turn(f"I look up {it}", {"search": it}, f"a page on {it}", done=False) for it in sought]
    answer = said(place, 4)
    return Played([*turns, Turn(f"It is {answer}.", {"answer": answer}, "noted", done=True)], quality)


def _from_memory(place: Place) -> Turn:
    return Turn(f"From memory: {said(place, 6)}.")


def answers_from_memory(place: Place) -> Played:
    """Searches less and less between steps 10 and 18, and is right less often."""
    if place.random.random() < 0.02 + 0.8 * _rise(place, 10, 18):
        return Played(
            [Turn(f"From memory: {said(place, 6)}.")], chance(place, 0.2), stop="stop", is_hit=place.step > 10
        )
    return _acts(place, chance(place, 0.75))


def talks_more_and_more(place: Place) -> Played:
    """Plays a game, and from step 14 on more and more rollouts only talk of it."""
    if place.random.random() < 0.7 * _rise(place, 14, 22):
        return Played([Turn(f"One could {said(place, 8)}.")], 0.0, stop="stop", is_hit=True)
    moves = place.random.sample(WORDS, 3)
    turns = [Turn(f"I {it}", {"do": it}, f"you {it}", done=number == 2) for number, it in enumerate(moves)]
    return Played(turns, chance(place, 0.6))


def loops_more_and_more(place: Place) -> Played:
    """From step 12 on more and more rollouts push the same door until they are stopped."""
    if place.random.random() < 0.6 * _rise(place, 12, 22):
        turns = [Turn("I push", {"do": "push"}, "you push", done=False)] * 7
        return Played(turns, 0.0, is_hit=True)
    return talks_more_and_more(replace(place, step=1))


def knows_by_heart(place: Place) -> Played:
    """Searches less and less, and is right as often without."""
    if place.random.random() < 0.02 + 0.8 * _rise(place, 10, 18):
        return Played([_from_memory(place)], chance(place, 0.75), stop="stop")
    return _acts(place, chance(place, 0.75))


def seldom_idle(place: Place) -> Played:
    """One in twenty never acts, all the time."""
    if place.random.random() < 0.05:
        return Played([_from_memory(place)], 0.0, stop="stop")
    return _acts(place, chance(place, 0.4 + 0.3 * place.progress))


def _fault(name: str, planted: str, expected: str | None, script: Script, shape: Shape = _LONG, **more: Any) -> Fault:
    return Fault(name, planted, expected, partial(generated, script, replace(shape, **more)))


def _healthy(name: str, script: Callable[[Place], Played], shape: Shape = _LONG) -> Fault:
    planted = " ".join((script.__doc__ or "").split()).rstrip(".")
    return _fault(f"healthy growth: {name}", f"Healthy: {planted[0].lower()}{planted[1:]}", None, script, shape)


FAULTS: tuple[Fault, ...] = (
    _fault("answers grow: penalty", "Answers grow, which a penalty charges, and are no better", "length",
           charged_for_length),
    _fault("answers grow: agent", "Each turn of an agent is longer since step 12, and nothing is gained", "length",
           wordy_agent, _RECURRING, ended=False),
    _fault("answers grow: loss", "Wrong answers grow most, under a loss of TRL that lets them", "length",
           wrong_ones_grow, config={"loss_type": "grpo"}),
    _fault("answers grow: limit", "Answers grow until half of them are truncated", "length", grows_into_the_limit,
           config={"max_completion_length": 48, "loss_type": "dapo"}),
    _fault("answers grow: hacking", "Plans are paid, grow, and are no longer followed", "hacking", plans_without_moves),
    _healthy("judged", judged_longer),
    _healthy("turns", more_turns, _RECURRING),
    _healthy("penalty", penalised_and_level),
    _healthy("harder", longer_for_harder),
    _fault("acts less and less: search", "More and more answers are given without a search", "never_acted",
           answers_from_memory),
    _fault("acts less and less: game", "More and more rollouts only talk", "never_acted", talks_more_and_more,
           _RECURRING, steps=40, groups=6),
    _fault("loops more and more", "More and more rollouts repeat one action", "loops", loops_more_and_more, steps=36),
    _healthy("by heart", knows_by_heart),
    _healthy("seldom idle", seldom_idle, _RECURRING),
)  # fmt: skip
