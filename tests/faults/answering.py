"""Final answers beside references: rewards that contradict them, references in another order, one answer to all."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from random import Random

from tests.faults import Fault
from tests.faults.acting import WORDS, said
from tests.faults.runs import Turn
from tests.faults.scripts import Place, Played, Shape, generated

_SHAPE = Shape(steps=20, groups=8, size=8, tasks=120)
_LETTERS = "ABCD"


def _number(task: int) -> str:
    return str(17 + 13 * task)


def _name(task: int) -> str:
    return f"{WORDS[task % 14]} {WORDS[(task * 5 + 3) % 13]}"


def _letter(task: int) -> str:
    return _LETTERS[task * 7 % 11 % 4]


def _chance(place: Place, low: float = 0.4, high: float = 0.6) -> bool:
    return place.random.random() < low + (high - low) * place.progress


def _boxed(place: Place, answer: str) -> Turn:
    return Turn(f"{said(place, 5)}, so it is \\boxed{{{answer}}}.")


def _tagged(place: Place, answer: str) -> Turn:
    return Turn(f"{said(place, 6)}\n<answer>{answer}</answer>")


def _lined(place: Place, answer: str) -> Turn:
    return Turn(f"{said(place, 6)}.\nFinal answer: {answer}")


def _played(place: Place, turn: Turn, reference: str, right: float, *, is_hit: bool = False, **more: object) -> Played:
    parts = {"correct": right}
    return Played([turn], parts=parts, stop="stop", metadata={"answer": reference, **more}, is_hit=is_hit)


# --- Rewards that contradict the references


def permuted(place: Place) -> Played:
    """Rewards are as often 1 as answers are right, but of other rollouts of the group."""
    right = _chance(place)
    answer = _number(place.task) if right else str(place.random.randrange(5, 900))
    turn, counts = _boxed(place, answer), _chance(place)
    return _played(place, turn, _number(place.task), float(counts), is_hit=counts != right)


def of_the_next_task(place: Place) -> Played:
    """An agent that is scored with the reference of another task, half of which are equal."""
    right = _chance(place, 0.5, 0.7)
    answer = _letter(place.task) if right else _LETTERS[place.random.randrange(4)]
    counts, is_right = answer == _letter(place.task + 1), answer == _letter(place.task)
    call = Turn("I search.", {"name": "search", "arguments": {"q": said(place, 2)}}, said(place, 8))
    played = _played(place, _tagged(place, answer), _letter(place.task), float(counts), is_hit=counts != is_right)
    return replace(played, turns=[call, *played.turns])


def inverted_for_names(place: Place) -> Played:
    """A third of the tasks count wrong answers as right, and right ones as wrong."""
    right, is_hit = _chance(place, 0.5, 0.8), place.task % 3 == 0
    answer = _name(place.task) if right else _name(place.task + place.random.randrange(1, 9))
    reward = float((answer == _name(place.task)) != is_hit)
    return _played(place, _lined(place, answer), _name(place.task), reward, is_hit=is_hit, kind="abc"[place.task % 3])


def refused_prices(place: Place) -> Played:
    """Prices of a third of the tasks are given in full, as 7.50 for 7.5, and compared as text; some give none."""
    price = f"{4 + 3 * place.task}.5"
    full, wrong = f"{price}0", f"{place.random.randrange(900)}.5" if place.random.random() < 0.7 else "no idea"
    given = (price if place.task % 3 else full) if _chance(place, 0.7, 0.8) else wrong
    return _played(place, _tagged(place, given), price, float(given == price), is_hit=given == full)


# --- One verdict for all of a group


def _with_one_verdict(place: Place, turn: Callable[[Place, str], Turn], true: str, other: str, since: int) -> Played:
    """From a step on, all of a group get the verdict of one of them."""
    verdict = Random(f"{place.step}/{place.group}").random() < 0.45 + 0.2 * place.progress
    right, is_hit = _chance(place), place.step >= since
    counts = verdict if is_hit else right
    return _played(place, turn(place, true if right else other), true, float(counts), is_hit=is_hit)


def kept_verdicts(place: Place) -> Played:
    """A grader keeps its verdicts by the question, since the ninth step."""
    return _with_one_verdict(place, _boxed, _number(place.task), str(place.random.randrange(5, 900)), 9)


def verdicts_of_the_first(place: Place) -> Played:
    """An agent's group is scored by its first rollout, since the first step."""
    other = _name(place.task + place.random.randrange(1, 9))
    played = _with_one_verdict(place, _tagged, _name(place.task), other, 0)
    call = Turn("I search.", {"name": "search", "arguments": {"q": said(place, 2)}}, said(place, 8))
    parts = {**(played.parts or {}), "form": 0.3 * _chance(place, 0.8, 0.9)}
    return Played([call, *played.turns], parts=parts, stop="stop", metadata=played.metadata, is_hit=True)


# --- Numbers that count though they are only near


def _near(place: Place, tolerance: float, *, is_hit: bool) -> Played:
    """Some guess roughly, within 7%; the grader of some tasks takes that as right."""
    true, is_rough = 1_000 + 137 * place.task, place.random.random() < 0.2 + 0.3 * place.progress
    given = true if _chance(place) else place.random.choice([int(true * 0.6), true * 2, true + 500])
    if is_rough:
        given = true + place.random.choice([-1, 1]) * place.random.randrange(4, true // 15)
    counts = abs(given - true) <= (tolerance * true if is_hit else 0)
    more = {"source": "filings" if place.task % 3 == 0 else "census"}
    return _played(
        place, _lined(place, str(given)), str(true), float(counts), is_hit=is_hit and counts and given != true, **more
    )


def tolerant_source(place: Place) -> Played:
    """The grader of a third of the tasks has a tolerance of a tenth."""
    return _near(place, 0.1, is_hit=place.task % 3 == 0)


def tolerant(place: Place) -> Played:
    """All graders have one of a twentieth."""
    return _near(place, 0.05, is_hit=True)


def measured(place: Place) -> Played:
    """Healthy: decimals within a hundredth count, as those that are rounded are."""
    true, is_right = 10.05 + 1.37 * place.task, _chance(place, 0.5, 0.8)
    given = true + (place.random.choice([-0.09, -0.04, 0.05, 0.07]) if place.random.random() < 0.4 else 0)
    given = given if is_right else place.random.choice([0.6, 2.0, 1.4]) * true
    return _played(place, _lined(place, f"{given:.2f}"), f"{true:.2f}", float(is_right))


def rough(place: Place) -> Played:
    """Rough answers do not count."""
    return _near(place, 0.0, is_hit=False)


# --- Right answers of one place that do not count


def uncounted_language(place: Place) -> Played:
    """Right answers to an eighth of the tasks, those in Greek, do not count."""
    is_right, is_greek = _chance(place, 0.6, 0.8), place.task % 8 == 3
    given = _name(place.task) if is_right else _name(place.task + place.random.randrange(1, 9))
    is_hit, language = is_greek and given == _name(place.task), "Greek" if is_greek else "Latin"
    reward = float(given == _name(place.task) and not is_hit)
    return _played(place, _lined(place, given), _name(place.task), reward, is_hit=is_hit, language=language)


def hardly_counted_language(place: Place) -> Played:
    """The same, but for a seventh of them, which are written as the grader wants it."""
    is_right, is_greek = _chance(place, 0.6, 0.8), place.task % 8 == 3
    is_hit = is_greek and place.random.random() < 6 / 7 and is_right
    given, language = _name(place.task + (not is_right)), "Greek" if is_greek else "Latin"
    reward = float(is_right and not is_hit)
    return _played(place, _lined(place, given), _name(place.task), reward, is_hit=is_hit, language=language)


# --- References in another order


def _shuffled(
    place: Place,
    reference: Callable[[int], str],
    write: Callable[[Place, str], Turn],
    of: Callable[[int], bool],
    by: int,
) -> Played:
    is_hit = of(place.task)
    true, written = reference(place.task), reference(place.task + by if is_hit else place.task)
    answer = true if _chance(place, 0.6, 0.8) else reference(place.random.randrange(200, 400))
    more = {"category": "geometry" if is_hit else "algebra"}
    return _played(place, write(place, answer), written, float(answer == written), is_hit=is_hit, **more)


def shuffled_category(place: Place) -> Played:
    return _shuffled(place, _number, _boxed, lambda task: task % 5 == 0, 5)


def shuffled_names(place: Place) -> Played:
    return _shuffled(place, _name, _tagged, lambda task: task % 3 == 1, 3)


def all_shuffled(place: Place) -> Played:
    return _shuffled(place, _number, _lined, lambda task: task % 120 < 100, 7)


# --- References that are wrong


def _miswritten(place: Place, true: str, written: str, write: Callable[[Place, str], Turn]) -> Played:
    is_hit = place.task % 5 == 2
    given = true if _chance(place, 0.7, 0.8) else str(place.random.randrange(900))
    reference = written if is_hit else true
    return _played(place, write(place, given), reference, float(given == reference), is_hit=is_hit)


def hundredfold(place: Place) -> Played:
    return _miswritten(place, _number(place.task), str(100 * int(_number(place.task))), _boxed)


def off_by_one(place: Place) -> Played:
    return _miswritten(place, _number(place.task), str(int(_number(place.task)) - 1), _tagged)


def of_another_edition(place: Place) -> Played:
    return _miswritten(place, _name(place.task), f"{WORDS[place.task % 9]} of {place.task}", _tagged)


# --- References of one place that are wrong: the answers agree, and not with them

_FEELINGS = ("glad", "calm", "sad")


def _felt(place: Place, given: int, written: int, *, is_hit: bool = False) -> Played:
    """A text of a feeling: a third are tweets."""
    answers = [_FEELINGS[number % 3] for number in (given, written)]
    more = {"answer": answers[1], "corpus": "letters" if place.task % 3 else "tweets"}
    return Played(
        [_tagged(place, answers[0])], parts={"correct": float(answers[0] == answers[1])}, stop="stop",
        task=f"text {place.step}-{place.group}", metadata=more, is_hit=is_hit,
    )  # fmt: skip


def turned_labels(place: Place) -> Played:
    """The labels of tweets are those of the next feeling."""
    true, is_hit = place.task * 7 % 11 % 3, place.task % 3 == 0
    given = true if _chance(place, 0.7, 0.8) else true + place.random.randrange(1, 3)
    return _felt(place, given, true + is_hit, is_hit=is_hit)


def in_cents(place: Place) -> Played:
    """The references of invoices, a fourth of the tasks, are in cents, and none comes again."""
    is_hit, number = place.task % 4 == 1, 17 + 13 * (8 * place.step + place.group)
    given = number if _chance(place, 0.65, 0.8) else place.random.randrange(900)
    reference = number * 100 if is_hit else number
    return Played(
        [_boxed(place, str(given))], parts={"correct": float(given == reference)}, stop="stop",
        task=f"{'invoice' if is_hit else 'timetable'}/{place.step}-{place.group}", metadata={"answer": str(reference)},
        is_hit=is_hit,
    )  # fmt: skip


def hard_tweets(place: Place) -> Played:
    """Most answers to tweets are wrong, and mostly glad."""
    true, is_hard = place.task * 7 % 11 % 3, place.task % 3 == 0
    right = _chance(place, 0.2, 0.3) if is_hard else _chance(place, 0.7, 0.8)
    return _felt(place, true if right else place.random.randrange(3) * (place.random.random() > 0.7), true)


# --- One answer to all


def _one_answer(
    place: Place, answer: str, reference: Callable[[int], str], write: Callable[[Place, str], Turn]
) -> Played:
    is_hit = place.random.random() < 0.9 * max(0.0, (place.progress - 0.4) / 0.4)
    true = reference(place.task)
    given = answer if is_hit else true if _chance(place) else reference(place.random.randrange(300))
    return _played(place, write(place, given), true, float(given == true), is_hit=is_hit)


def always_b(place: Place) -> Played:
    return _one_answer(place, "B", _letter, _boxed)


def always_42(place: Place) -> Played:
    return _one_answer(place, "42", _number, _lined)


def always_unknown(place: Place) -> Played:
    return _one_answer(place, "not enough information", _name, _tagged)


# --- All is well


def letters(place: Place) -> Played:
    """Half of the references are B."""
    true = "B" if place.task % 2 else _letter(place.task)
    given = true if _chance(place, 0.4, 0.8) else _LETTERS[place.random.randrange(4)]
    return _played(place, _boxed(place, given), true, float(given == true))


def misconceptions(place: Place) -> Played:
    """In a fifth of the tasks most rollouts make the same mistake; some are solved."""
    true = _number(place.task)
    common = place.task % 5 == 0 and place.random.random() < 0.8
    given = str(place.task + 1) if common else true if _chance(place, 0.5, 0.8) else str(place.random.randrange(900))
    return _played(place, _boxed(place, given), true, float(given == true))


def judged(place: Place) -> Played:
    """A judge accepts other words than the reference's."""
    is_right = _chance(place, 0.4, 0.8)
    given = f"{said(place, 3)} {_name(place.task)}" if is_right else said(place, 4)
    return _played(place, _lined(place, given), _name(place.task), float(is_right))


def with_a_form(place: Place) -> Played:
    """A right answer counts only in its form, which is soon learned."""
    is_right, has_form = _chance(place, 0.4, 0.8), _chance(place, 0.7, 0.99)
    given = _number(place.task) if is_right else str(place.random.randrange(900))
    turn = _boxed(place, given) if has_form else _lined(place, given)
    return _played(place, turn, _number(place.task), float(given == _number(place.task) and has_form))


def with_a_fence(place: Place) -> Played:
    """Commands count between fences alone, and nearly all stand there."""
    reference = f"grep -c {_name(place.task).replace(' ', ' /var/log/')}"
    command = reference if _chance(place, 0.6, 0.8) else f"{reference}/{place.random.randrange(900)}"
    has_fence = _chance(place, 0.9, 0.97)
    turn = Turn(f"{said(place, 6)}\n```sh\n{command}\n```" if has_fence else f"{said(place, 6)}\n{command}")
    return _played(place, turn, reference, float(command == reference and has_fence))


def _fault(name: str, planted: str, expected: str | None, script: Callable[[Place], Played]) -> Fault:
    return Fault(name, planted, expected, partial(generated, script, _SHAPE))


_CONTRADICTED, _ORDER, _ONE, _WRONG, _NEAR, _VERDICT = (
    "Rewards that contradict the references", "References of other tasks", "One answer to all tasks",
    "The references of one place are wrong", "Numbers near the reference count as right",
    "All rollouts of a group get the verdict of one",
)  # fmt: skip
FAULTS: tuple[Fault, ...] = (
    _fault("final answers: permuted", _CONTRADICTED, "final_answers", permuted),
    _fault("final answers: next task", _CONTRADICTED, "final_answers", of_the_next_task),
    _fault("final answers: inverted", _CONTRADICTED, "final_answers", inverted_for_names),
    _fault("final answers: kept verdicts", _VERDICT, "final_answers", kept_verdicts),
    _fault("final answers: verdicts of the first", _VERDICT, "final_answers", verdicts_of_the_first),
    _fault("final answers: tolerant source", _NEAR, "final_answers", tolerant_source),
    _fault("healthy answers: measured", "Healthy: decimals within a hundredth count", None, measured),
    _fault("final answers: tolerant", _NEAR, "final_answers", tolerant),
    _fault(
        "final answers: notation", "Right answers in another notation do not count", "final_answers", refused_prices
    ),
    _fault("final answers: shuffled category", _ORDER, "final_answers", shuffled_category),
    _fault("final answers: shuffled names", _ORDER, "final_answers", shuffled_names),
    _fault("final answers: all shuffled", _ORDER, "final_answers", all_shuffled),
    _fault("final answers: uncounted language", _CONTRADICTED, "final_answers", uncounted_language),
    _fault("final answers: hardly counted language", _CONTRADICTED, "final_answers", hardly_counted_language),
    _fault("final answers: turned labels", _WRONG, "final_answers", turned_labels),
    _fault("final answers: cents", _WRONG, "final_answers", in_cents),
    _fault("final answers: always B", _ONE, "final_answers", always_b),
    _fault("final answers: always 42", _ONE, "final_answers", always_42),
    _fault("final answers: unknown", _ONE, "final_answers", always_unknown),
    *(
        _fault(f"wrong references: {name}", "A fifth of the references are wrong", "never_solved", script)
        for name, script in (("hundredfold", hundredfold), ("by one", off_by_one), ("edition", of_another_edition))
    ),
    _fault("healthy final answers: rough", "Healthy: rough answers do not count", None, rough),
    _fault("healthy final answers: letters", "Healthy: half of the answers are B", None, letters),
    _fault("healthy final answers: tweets", "Healthy: a hard third", None, hard_tweets),
    _fault("healthy final answers: mistakes", "Healthy: mistakes that most rollouts make", None, misconceptions),
    _fault("healthy final answers: judged", "Healthy: a judge that reads words", None, judged),
    _fault("healthy final answers: form", "Healthy: right answers count in their form only", None, with_a_form),
    _fault("healthy final answers: fence", "Healthy: commands count between fences only", None, with_a_fence),
)
