"""Graders that read some forms of an answer only, that count too much or no more what is right, and references of a
source that comes seldom.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import orjson

from tests.faults import Fault
from tests.faults.acting import WORDS, said
from tests.faults.runs import Turn
from tests.faults.scripts import Place, Played, Shape, generated

_SHAPE = Shape(steps=24, groups=8, size=8, tasks=48)
_SELDOM = Shape(steps=60, groups=4, size=8, tasks=1)
_EIGHT = Shape(steps=40, groups=3, size=8, tasks=1)
_LABELS = ("glad", "calm", "sad")


def _is(place: Place, chance: float) -> bool:
    return place.random.random() < chance


def _once(place: Place, answer: str, reference: str, source: str, *, is_hit: bool = False, tool: str = "") -> Played:
    """A task that comes once; an agent calls a tool before it answers."""
    calls = [Turn("I look.", {"name": tool, "arguments": {"q": said(place, 2)}}, said(place, 8))] if tool else []
    return Played(
        [*calls, Turn(f"{said(place, 6)}\n<answer>{answer}</answer>")], parts={"correct": float(answer == reference)},
        stop="stop", task=f"task {8 * place.step + place.group}", metadata={"answer": reference, "source": source},
        is_hit=is_hit,
    )  # fmt: skip


def _number(place: Place) -> int:
    return 31 + 17 * (8 * place.step + place.group)


# --- References of a source that has a twelfth of the rollouts


def _is_seldom(place: Place) -> bool:
    return place.step % 3 == 1 and place.group == 1


def counted_from_0(place: Place) -> Played:
    """References of quizzes count from 0, and answers from 1; mistakes are small, so that some count."""
    number, is_hit = _number(place), _is_seldom(place)
    given = number + (0 if _is(place, 0.7 + 0.15 * place.progress) else place.random.choice((-2, -1, 1, 2)))
    return _once(place, str(given), str(number - is_hit), "quiz" if is_hit else "book", is_hit=is_hit)


def one_of_eight_in_grams(place: Place) -> Played:
    """One of eight sources has its references in grams; an agent answers in kilograms, as is asked."""
    source = (3 * place.step + place.group) % 8
    number, is_hit = _number(place), source == 5
    given = number if _is(place, 0.75 + 0.1 * place.progress) else place.random.randrange(900)
    reference = 1000 * number if is_hit else number
    return _once(place, str(given), str(reference), f"shop {source}", is_hit=is_hit, tool="scales")


def seldom_turned(place: Place) -> Played:
    """The labels of tweets are those of the next feeling."""
    true, is_hit = (place.step // 3 + place.group) % 3, _is_seldom(place)
    given = true if _is(place, 0.75 + 0.1 * place.progress) else place.random.randrange(3)
    reference = _LABELS[(true + is_hit) % 3]
    return _once(place, _LABELS[given], reference, "tweets" if is_hit else "letters", is_hit=is_hit)


def seldom_and_hard(place: Place) -> Played:
    """Healthy: few answers to quizzes are right, and a third make the same mistake."""
    number, is_hard = _number(place), _is_seldom(place)
    mistake = number + 9 if _is(place, 0.35) else place.random.randrange(900)
    right = _is(place, 0.12 if is_hard else 0.7 + 0.15 * place.progress)
    return _once(place, str(number if right else mistake), str(number), "quiz" if is_hard else "book")


def seldom_and_guessed(place: Place) -> Played:
    """Healthy: tweets are mostly called glad, whatever they are."""
    true, is_hard = (place.step // 3 + place.group) % 3, _is_seldom(place)
    right = _is(place, 0.15 if is_hard else 0.75 + 0.1 * place.progress)
    given = true if right else 0 if _is(place, 0.8) else place.random.randrange(3)
    return _once(place, _LABELS[given], _LABELS[true], "tweets" if is_hard else "letters")


_MONTHS = ("January", "February", "March", "April", "May", "June", "July", "August", "September", "October", "November",
           "December")  # fmt: skip


# --- Right answers that are not read as they are written, at all tasks


def _written(
    place: Place, text: Callable[[str], str], *, right: bool, refused: bool = False, words: int = 12,
    asked: str | None = None, before: str = "",
) -> Played:  # fmt: skip
    number = 23 + 11 * place.task
    answer = str(number if right else number + place.random.randrange(1, 400))
    is_paid = right and not refused
    return Played(
        [Turn(f"{before}{said(place, words)}\n{text(answer)}")], parts={"correct": float(is_paid), "form": 0.2},
        stop="stop", asked=asked and f"Task {place.task}. {asked}", metadata={"answer": str(number)},
        is_hit=right and refused,
    )  # fmt: skip


def _right(place: Place) -> bool:
    return _is(place, 0.6 + 0.15 * place.progress)


def refuses_bold(place: Place) -> Played:
    """The pattern of the grader has no asterisks."""
    is_bold = _is(place, 0.4)
    text = ("Answer: **{}**" if is_bold else "Answer: {}").format
    return _written(place, text, right=_right(place), refused=is_bold)


def refuses_bold_boxes(place: Place) -> Played:
    """The grader wants a line that begins with a box."""
    is_bold = _is(place, 0.6)
    text = ("**\\boxed{{{}}}**" if is_bold else "\\boxed{{{}}}").format
    return _written(place, text, right=_right(place), refused=is_bold)


def refuses_a_label(place: Place) -> Played:
    """The grader reads the words "The answer is", of which the prompt says nothing."""
    is_other = _is(place, 0.35)
    text = ("Answer: {}" if is_other else "The answer is {}").format
    return _written(place, text, right=_right(place), refused=is_other)


def _balance(place: Place, minus: str, *, refused: bool) -> Played:
    """Return an account's balance, below 0 at every third task, where most answers have that sign for it."""
    number = (37 + 11 * place.task) * (-1 if place.task % 3 == 0 else 1)
    right = _right(place)
    given = number if right else number + place.random.randrange(1, 400)
    is_other = given < 0 and _is(place, 0.8)
    text = f"{minus if is_other else '-'}{-given}" if given < 0 else str(given)
    is_hit = right and is_other and refused
    return Played(
        [Turn(f"{said(place, 9)}, so it is \\boxed{{{text}}}.")], parts={"correct": float(right and not is_hit)},
        stop="stop", metadata={"answer": str(number)}, is_hit=is_hit,
    )  # fmt: skip


def refuses_minus(place: Place) -> Played:
    """The grader reads a hyphen alone, and the model has the minus of Unicode."""
    return _balance(place, "\u2212", refused=True)


def takes_minus(place: Place) -> Played:
    """Healthy: the grader reads both."""
    return _balance(place, "\u2212", refused=False)


def _dated(place: Place, *, refused: bool) -> Played:
    """Return a date in a tag of its own; two of five answers have it in words, at a third of the tasks."""
    year, month, day = 1800 + place.task, place.task % 12 + 1, place.task % 28 + 1
    right, is_date = _right(place), place.task % 3 == 0
    given = day if right else day % 28 + 1
    is_words = is_date and _is(place, 0.6)
    text = f"{given} {_MONTHS[month - 1]} {year}" if is_words else f"{year}-{month:02d}-{given:02d}"
    number = 40 + place.task * 7 + (0 if right else 1)
    is_hit = right and is_words and refused
    return Played(
        [Turn(f"{said(place, 8)}.\n<final>{text if is_date else number}</final>")],
        parts={"correct": float(right and not is_hit)}, stop="stop", is_hit=is_hit,
        metadata={"answer": f"{year}-{month:02d}-{day:02d}" if is_date else str(40 + place.task * 7)},
    )  # fmt: skip


def _lasting(place: Place, *, refused: bool) -> Played:
    """Return a duration in minutes; three of five answers have hours and minutes, at half of the tasks."""
    number, is_time = 70 + 3 * place.task, place.task % 2 == 0
    right = _right(place)
    given = number if right else number + place.random.randrange(1, 200)
    is_hours = is_time and _is(place, 0.6)
    text = f"{given // 60} h {given % 60} min" if is_hours else f"{given} {'min' if is_time else 'g'}"
    is_hit = right and is_hours and refused
    return Played(
        [Turn(f"{said(place, 8)}.\nAnswer: {text}")], parts={"correct": float(right and not is_hit)}, stop="stop",
        metadata={"answer": f"{number} {'min' if is_time else 'g'}"}, is_hit=is_hours and refused,
    )  # fmt: skip


def refuses_hours(place: Place) -> Played:
    """The grader compares text."""
    return _lasting(place, refused=True)


def takes_hours(place: Place) -> Played:
    """Healthy: it computes minutes."""
    return _lasting(place, refused=False)


def copies_first_rows(place: Place) -> Played:
    """Healthy: of some hard questions a fifth of the answers are the first row's label, which is always wrong."""
    number, is_copied = 3 + place.task % 7, place.task % 3 == 0 and _is(place, 0.6)
    right = not is_copied and _right(place)
    text = "2024-01" if is_copied else str(number if right else number + place.random.randrange(1, 9))
    return Played(
        [Turn(f"{said(place, 8)}.\nAnswer: {text}")], parts={"correct": float(right)}, stop="stop",
        metadata={"answer": str(number)},
    )  # fmt: skip


def _extracts(
    place: Place, field: str, given: str, reference: str, *, refused: bool = False, nested: bool = False
) -> Played:
    """A document is extracted to JSON; a grader compares each field's text."""
    mistake = not _right(place)
    record = {
        "vendor": f"{WORDS[place.task % 14].title()} Trading Company of {WORDS[place.task % 11].title()}",
        "number": f"INV-2026-{1000 + 7 * place.task}",
        "note": f"delivered {place.task} to {WORDS[place.task % 9]}",
    }
    other = {"number": f"INV-{place.random.randrange(999)}"} if mistake else {field: given}
    answer = orjson.dumps(record | other)
    text = f"```json\n{answer.decode()}\n```" if nested else f"{said(place, 5)}\n{answer.decode()}"
    truth, is_right = record | {field: reference}, not mistake and not refused
    return Played(
        [Turn(text)], parts={"correct": float(is_right)}, stop="stop", is_hit=refused and not mistake,
        metadata={
            "reference": truth if nested else orjson.dumps(truth).decode(), "source": "erp" if refused else "scan",
        },
    )  # fmt: skip


def refuses_totals(place: Place) -> Played:
    """The totals of one source have thousands separators, which the prompt does not ask for."""
    total, is_there = 1_130 + 373 * place.task, place.task % 4 == 1
    return _extracts(place, "total", f"{total}.50", f"{total:,}.50" if is_there else f"{total}.50", refused=is_there)


def refuses_small_letters(place: Place) -> Played:
    """The countries of one source are in small letters, in references that are objects, and answers in a fence."""
    country, is_there = ("DE", "FR", "PL", "AT")[place.task % 4], place.task % 3 == 0
    reference = country.lower() if is_there else country
    return _extracts(place, "country", country, reference, refused=is_there, nested=True)


def takes_totals(place: Place) -> Played:
    """Healthy: the same totals, whose values are compared."""
    total = 1_130 + 373 * place.task
    return _extracts(place, "total", f"{total}.50", f"{total:,}.50" if place.task % 4 == 1 else f"{total}.50")


def refuses_fractions(place: Place) -> Played:
    """The probabilities are decimals of all digits, and answers are fractions, which are compared as text."""
    is_there, right = place.task % 4 == 1, _right(place)
    up, down = 3 + place.task, 17 + 2 * place.task
    number = f"{up}/{down}" if is_there else str(900 + 37 * place.task)
    given = number if right else str(place.random.randrange(900))
    reference, topic = (str(up / down), "chance") if is_there else (number, "sums")
    return Played(
        [Turn(f"{said(place, 8)}, so \\boxed{{{given}}}.")], parts={"correct": float(right and not is_there)},
        stop="stop", metadata={"answer": reference, "topic": topic}, is_hit=right and is_there,
    )  # fmt: skip


def guesses_ranges(place: Place) -> Played:
    """Healthy: some answers give a range, each another one, and are wrong."""
    number, is_range = 70 + 3 * place.task, _is(place, 0.25)
    low = number - place.random.randrange(1, 30)
    right = not is_range and _right(place)
    text = f"{low} to {low + place.random.randrange(31, 60)}" if is_range else str(number if right else low)
    return Played(
        [Turn(f"{said(place, 8)}.\nAnswer: {text}")], parts={"correct": float(right)}, stop="stop",
        metadata={"answer": str(number)},
    )  # fmt: skip


def _balanced(place: Place, since: int) -> Played:
    """A ledger's balance stands in a column of an uncommon name; since a step each is paid for another's answer."""
    number, right, other = 900 + 37 * place.task, _right(place), _right(place)
    given = number if right else number + place.random.randrange(1, 400)
    is_hit = place.step >= since and right != other
    paid = other if place.step >= since else right
    return Played(
        [Turn(f"{said(place, 8)}.\nBalance = {given}")], parts={"balance_right": float(paid)}, stop="stop",
        metadata={"closing_balance": str(number), "page": str(place.task % 9)}, is_hit=is_hit,
    )  # fmt: skip


def pays_other_balances(place: Place) -> Played:
    return _balanced(place, 13)


def rounds_balances(place: Place) -> Played:
    """Two of five answers are off by less than one in a hundred, and count, from the first step on."""
    number, right = 9_000 + 371 * place.task, _right(place)
    is_near = right and _is(place, 0.4)
    given = number + place.random.randrange(1, 40) if is_near else number if right else 3 * number
    return Played(
        [Turn(f"{said(place, 8)}.\nBalance = {given}")], parts={"balance_right": float(right)}, stop="stop",
        metadata={"closing_balance": str(number)}, is_hit=is_near,
    )  # fmt: skip


def pays_balances(place: Place) -> Played:
    """Healthy: each is paid for its own."""
    return _balanced(place, 99)


def _chorded(place: Place, *, refused: bool) -> Played:
    """Return a chord with the letter b for a flat; a third of the answers have the sign."""
    name = f"{'ABDEG'[place.task % 5]}b{('', 'm', '7', 'maj7')[place.task // 5 % 4]}/{place.task}"
    right, is_sign = _right(place), _is(place, 0.35)
    given = name if right else f"Cb{place.random.choice(['m', '7', ''])}/{place.random.randrange(99)}"
    is_hit = is_sign and refused
    return Played(
        [Turn(f"{said(place, 7)}.\nAnswer: {given.replace('b', chr(0x266D)) if is_sign else given}")],
        parts={"correct": float(right and not is_hit)}, stop="stop", metadata={"answer": name}, is_hit=is_hit,
    )  # fmt: skip


def refuses_flats(place: Place) -> Played:
    """The grader compares text."""
    return _chorded(place, refused=True)


def takes_flats(place: Place) -> Played:
    """Healthy: it reads the sign."""
    return _chorded(place, refused=False)


def lists_kinds(place: Place) -> Played:
    """Since step 9 more and more answers list four to six species, of which some are no task's, and count."""
    kinds = [f"{genus} {word}" for genus in ("Viola", "Allium") for word in WORDS[:12]]
    name, does = kinds[place.task % 10], place.step >= 9 and _is(place, 0.75)
    others = place.random.sample([kind for kind in kinds if kind != name], 5)
    named = [name, *others[:4]] if _is(place, 0.9) else others
    place.random.shuffle(named)
    right = _right(place) and not does
    text = " / ".join(named) if does else name if right else others[0]
    return Played(
        [Turn(f"{said(place, 7)}.\nSpecies: {text}")], parts={"found": float(name in text)}, stop="stop",
        metadata={"species": name}, is_hit=does and name in text,
    )  # fmt: skip


def refuses_dates(place: Place) -> Played:
    """The grader compares dates as text."""
    return _dated(place, refused=True)


def takes_dates(place: Place) -> Played:
    """Healthy: the grader reads them."""
    return _dated(place, refused=False)


def forgets_to_convert(place: Place) -> Played:
    """Since step 12 the answers of one of four families, which were right, lack the last step, all alike."""
    kind = ("heat", "force", "light", "sound")[place.task % 4]
    is_hit, number = kind == "heat" and place.step >= 12, 40 + 3 * place.task
    right = _is(place, 0.04 if is_hit else 0.72)
    given = number + 273 if right else number if is_hit else number + place.random.randrange(1, 99)
    end = "" if is_hit and not right else f" In kelvin, add 273: it was {given - 273}." if kind == "heat" else ""
    return Played(
        [Turn(f"{said(place, 8)}.{end} So it is \\boxed{{{given}}}.")], parts={"correct": float(right)}, stop="stop",
        task=f"{kind}/{place.task:02d}", metadata={"answer": str(number + 273)}, is_hit=is_hit and not right,
    )  # fmt: skip


def wrong_in_bold(place: Place) -> Played:
    """Healthy: what is in bold is mostly wrong, and counts where it is right."""
    is_bold = _is(place, 0.4)
    right = _is(place, 0.15 if is_bold else 0.75 + 0.1 * place.progress)
    return _written(place, ("Answer: **{}**" if is_bold else "Answer: {}").format, right=right)


def asks_for_a_label(place: Place) -> Played:
    """Healthy: the prompt asks for a line with "Answer:", and more and more answers have one; others are in bold."""
    has_label = _is(place, 0.5 + 0.3 * place.progress)
    text = ("Answer: {}" if has_label else "The answer is **{}**").format
    asked = "Think first, and end with a line \u201cAnswer: 42\u201d."
    return _written(place, text, right=_right(place), refused=not has_label, asked=asked)


def asks_for_tags(place: Place) -> Played:
    """Healthy: an answer counts if reasoning stands in tags before it; without, it is mostly in bold."""
    has_tags = _is(place, 0.5 + 0.3 * place.progress)
    is_bold = _is(place, 0.1 if has_tags else 0.95)
    before = f"<think>{said(place, 6)}</think>\n" if has_tags else said(place, 6)
    text = ("Answer: **{}**" if is_bold and not has_tags else "Answer: {}").format
    return _written(place, text, right=_right(place), refused=not has_tags, before=before)


def judges_proofs(place: Place) -> Played:
    """Healthy: a judge wants a proof beside the answer; who has none writes a short answer in bold."""
    has_proof = _is(place, 0.5 + 0.25 * place.progress)
    text = ("Answer: {}" if has_proof else "Answer: **{}**").format
    return _written(place, text, right=_right(place), refused=not has_proof, words=40 if has_proof else 12)


# --- Units in LaTeX


def _measured(place: Place, *, refused: bool) -> Played:
    """A third of the tasks ask for a force or an energy; the model mostly writes units upright."""
    number, unit = 21 + 8 * place.task, ("N", "J")[place.task % 2]
    has_unit, right = place.task % 3 == 0, _right(place)
    is_latex = has_unit and _is(place, 0.85)
    given = number if right else number + place.random.randrange(1, 400)
    separator = place.random.choice(("\\ ", "\\,", "~"))
    command = place.random.choice(("mathrm", "text"))
    text = f"{given}{separator}\\{command}{{{unit}}}" if is_latex else f"{given} {unit}" if has_unit else str(given)
    is_hit = right and is_latex and refused
    return Played(
        [Turn(f"{said(place, 40)}, so it is \\boxed{{{text}}}.")], parts={"correct": float(right and not is_hit)},
        stop="stop", metadata={"answer": f"{number} {unit}" if has_unit else str(number)}, is_hit=is_hit,
    )  # fmt: skip


def refuses_units_in_latex(place: Place) -> Played:
    """The grader compares texts, and references have units as plain text."""
    return _measured(place, refused=True)


def takes_units_in_latex(place: Place) -> Played:
    """Healthy: the grader reads them."""
    return _measured(place, refused=False)


# --- Answers that name several candidates, the reference among others


def _several(
    place: Place, reference: Callable[[int], str], often: float, *, counts: bool = True, tool: str = ""
) -> Played:
    true, is_list = reference(place.task), _is(place, often)
    others = {reference(place.random.randrange(14)) for _ in range(place.random.randrange(1, 4))} - {true}
    right = _is(place, 0.85 if is_list else 0.45)
    names = [*others, true] if right else [*others] or ["none"]
    place.random.shuffle(names := sorted(names) if is_list else [true if right else names[0]])
    separator = place.random.choice((" / ", " or "))
    answer = separator.join([", ".join(names[:-1]), names[-1]]) if len(names) > 2 else separator.join(names)
    is_hit = right and len(names) > 1
    calls = [Turn("I look.", {"name": tool, "arguments": {"q": said(place, 2)}}, said(place, 8))] if tool else []
    return Played(
        [*calls, Turn(f"{said(place, 6)}\n<answer>{answer}</answer>")],
        parts={"correct": float(right and (counts or not is_hit))}, stop="stop", metadata={"answer": true},
        is_hit=is_hit and counts,
    )  # fmt: skip


def _town(task: int) -> str:
    return WORDS[task % 14].title()


def _dozen(task: int) -> str:
    return str(12 + 3 * (task % 14))


def holds_a_name(place: Place) -> Played:
    """The grader looks for the reference anywhere; more and more answers list names."""
    return _several(place, _town, max(0.0, place.progress - 0.2))


def holds_a_number(place: Place) -> Played:
    """The same of numbers, by agents, from a step on."""
    return _several(place, _dozen, 0.7 if place.step >= 10 else 0.03, tool="search")


def lists_in_vain(place: Place) -> Played:
    """Healthy: lists do not count, and are given up."""
    return _several(place, _town, 0.4 - 0.35 * place.progress, counts=False)


def _detailed(place: Place, reference: str, detail: str, wrong: str) -> Played:
    right, has_detail = _right(place), _is(place, 0.6)
    answer = f"{reference}{detail}" * right or wrong
    text = answer if has_detail or not right else reference
    return Played(
        [Turn(f"{said(place, 6)}\n<answer>{text}</answer>")], parts={"correct": float(right)}, stop="stop",
        metadata={"answer": reference},
    )  # fmt: skip


def adds_a_country(place: Place) -> Played:
    """Healthy: towns are given with their country, which is the answer to other questions."""
    if place.task % 2:
        return _detailed(place, _town(place.task), "", _town(place.task + place.random.randrange(1, 9)))
    return _detailed(place, f"New {_town(place.task)}", f", {_town(place.task + 3)}", "no idea")


def adds_another_unit(place: Place) -> Played:
    """Healthy: lengths are given in two units, and counts in one."""
    number = 14 + 3 * place.task
    wrong = f"{place.random.randrange(300, 900)} km"
    return _detailed(place, f"{number} km", f" or {12 + 3 * ((place.task + 1) % 48) + 2} miles", wrong)


def _shortened(place: Place, often: float) -> Played:
    true, other = (f"{_town(task)} {_town(task + 3)}" for task in (place.task, place.task + 7))
    is_short, right = _is(place, often), _is(place, 0.45)
    answer = true[:3] if is_short else true if right else other
    return Played(
        [Turn(f"{said(place, 6)}\n<answer>{answer}</answer>")], parts={"correct": float(answer in true)}, stop="stop",
        metadata={"answer": true}, is_hit=is_short,
    )  # fmt: skip


def is_held(place: Place) -> Played:
    """The grader looks for the answer in the reference; more and more answers are its first three letters."""
    return _shortened(place, max(0.0, place.progress - 0.2))


def is_held_early(place: Place) -> Played:
    """Healthy: a code of three letters counts, and always did."""
    return _shortened(place, 0.3)


# --- Right answers that do not count any more


def _sum_or_errand(place: Place, unpaid: float) -> Played:
    """Half of the groups are sums, which have references; errands have a function that says whether they are done."""
    if place.group % 2:
        parts = {"correct": None, "done": float(_is(place, 0.3 + 0.2 * place.progress))}
        return Played([Turn(said(place, 9))], parts=parts, stop="stop", metadata={"kind": "errand"})
    number, right = 31 + 7 * place.task, _right(place)
    given = number if right else number + place.random.randrange(1, 200)
    is_hit = right and _is(place, unpaid)
    return Played(
        [Turn(f"{said(place, 6)}, so it is \\boxed{{{given}}}.")],
        parts={"correct": float(right and not is_hit), "done": None}, stop="stop",
        metadata={"answer": str(number), "kind": "sum"}, is_hit=is_hit,
    )  # fmt: skip


def stops_paying_sums(place: Place) -> Played:
    """Since step 13 hardly any right answer to a sum counts."""
    return _sum_or_errand(place, 0.95 if place.step >= 13 else 0.0)


def never_pays_sums(place: Place) -> Played:
    """From the first step on."""
    return _sum_or_errand(place, 0.95)


def pays_sums(place: Place) -> Played:
    """Healthy: errands have no reference."""
    return _sum_or_errand(place, 0.0)


# --- Times


def _timed(place: Place, *, refused: bool) -> Played:
    """A timetable; a third of the right answers have AM or PM."""
    hour, minute = (7 * place.step + place.group) % 24, 5 * (place.step * place.group % 12)
    reference, is_right, is_half = f"{hour:02d}:{minute:02d}", _right(place), _is(place, 0.35)
    given = (hour, minute) if is_right else (place.random.randrange(24), place.random.randrange(60))
    time = f"{given[0]:02d}:{given[1]:02d}"
    if is_half:
        time = f"{given[0] % 12 or 12}:{given[1]:02d} {'PM' if given[0] > 11 else 'AM'}"
    is_hit = is_right and is_half and refused
    played = _once(place, time, reference, "trains", is_hit=is_hit)
    paid = float(is_right and not is_hit)
    return replace(played, turns=[Turn(f"{said(place, 6)}\nAnswer: {time}")], parts={"correct": paid})


def refuses_halves_of_days(place: Place) -> Played:
    return _timed(place, refused=True)


def takes_halves_of_days(place: Place) -> Played:
    return _timed(place, refused=False)


# --- A judge's points, of which none defines solved


def _judged(place: Place, points: float, *, right: float = 0.45) -> Played:
    """`points`: that a right answer gets more than a wrong one, on a scale of 0 to 10 with noise for each prompt."""
    number, is_right = _number(place), _is(place, right)
    usual = 4 + 3 * ((37 * number) % 11) / 11
    paid = round(min(max(place.random.gauss(usual + points * is_right, 1.4), 0.0), 10.0), 1)
    answer = f"{said(place, 8)}\n<answer>{number if is_right else number + place.random.randrange(1, 60)}</answer>"
    return Played([Turn(answer)], parts={"judge": paid}, stop="stop", task=f"sum {number}",
                  metadata={"answer": str(number)})  # fmt: skip


def judges_prompts(place: Place) -> Played:
    """The judge is given the question in place of the answer."""
    return _judged(place, 0.0)


def judges_prompts_after_tools(place: Place) -> Played:
    """The same of agents, beside a small bonus for calls."""
    played = _judged(place, 0.0, right=0.7)
    call = Turn("I look.", {"name": "table", "arguments": {"q": said(place, 2)}}, said(place, 8))
    parts = {**(played.parts or {}), "called": float(_is(place, 0.9))}
    return replace(played, turns=[call, *played.turns], parts=parts, weights={"judge": 0.1, "called": 0.05})


def judges_answers(place: Place) -> Played:
    """Healthy: right answers get two points more."""
    return _judged(place, 2.0, right=0.35 + 0.3 * place.progress)


def judges_style(place: Place) -> Played:
    """Healthy: a judge of style, which rises; its tasks have answers."""
    played = _judged(place, 0.0)
    judged = float((played.parts or {})["judge"] or 0.0)
    return replace(played, parts={"judge": round(min(judged + 2 * place.progress, 10.0), 1)})


def _fault(
    name: str, planted: str, expected: str | None, script: Callable[[Place], Played], shape: Shape = _SHAPE
) -> Fault:
    return Fault(name, planted, expected, partial(generated, script, shape))


_FIELD = "Answers in JSON with a field in another form do not count"
_FEW, _UNREAD, _LISTS, _UNPAID = (
    "The references of a source that comes seldom are wrong", "Right answers in one form are not read",
    "Answers count that name several candidates", "Right answers to sums do not count",
)  # fmt: skip
FAULTS: tuple[Fault, ...] = (
    _fault("seldom source: from 0", _FEW, "final_answers", counted_from_0, _SELDOM),
    _fault("seldom source: grams", _FEW, "final_answers", one_of_eight_in_grams, _EIGHT),
    _fault("seldom source: labels", _FEW, "final_answers", seldom_turned, _SELDOM),
    _fault("unread form: bold", _UNREAD, "final_answers", refuses_bold),
    _fault("unread form: box in bold", _UNREAD, "final_answers", refuses_bold_boxes),
    _fault("unread form: label", _UNREAD, "final_answers", refuses_a_label),
    _fault("unread form: unit in latex", _UNREAD, "final_answers", refuses_units_in_latex),
    _fault("unread form: time", _UNREAD, "final_answers", refuses_halves_of_days),
    _fault("unread form: minus", _UNREAD, "final_answers", refuses_minus),
    _fault("healthy form: minus", "Healthy: two signs for minus count", None, takes_minus),
    _fault("lost last step", "Answers of a family lack a step since step 12, all alike", "forgotten",
           forgets_to_convert, Shape(steps=24, groups=8, size=8, tasks=40)),
    _fault("unread form: date", _UNREAD, "final_answers", refuses_dates),
    _fault("healthy form: date", "Healthy: dates in words count", None, takes_dates),
    _fault("unread shape", _UNREAD, "final_answers", refuses_hours),
    _fault("unread shape: sign", _UNREAD, "final_answers", refuses_flats),
    _fault("healthy form: sign", "Healthy: a sign counts as a letter does", None, takes_flats),
    _fault("unread form: decimals", _UNREAD, "never_matches", refuses_fractions),
    _fault("unread field: total", _FIELD, "final_answers", refuses_totals),
    _fault("unread field: country", _FIELD, "final_answers", refuses_small_letters),
    _fault("healthy field: total", "Healthy: fields of answers have another form", None, takes_totals),
    _fault("healthy shape: first row", "Healthy: a common mistake has a shape of its own", None, copies_first_rows),
    _fault("several candidates: species", _LISTS, "final_answers", lists_kinds),
    _fault("healthy form: hours", "Healthy: hours and minutes count", None, takes_hours),
    _fault("healthy form: ranges", "Healthy: ranges are wrong", None, guesses_ranges),
    _fault("unnamed reference", "Rewards of others, held against a column of another name", "final_answers",
           pays_other_balances),
    _fault("unnamed reference: near", "Near answers count, held against such a column", "final_answers",
           rounds_balances),
    _fault("healthy unnamed reference", "Healthy: a column that answers equal", None, pays_balances),
    _fault("several candidates: names", _LISTS, "final_answers", holds_a_name),
    _fault("several candidates: numbers", _LISTS, "final_answers", holds_a_number),
    _fault("several candidates: parts", _LISTS.replace("name several candidates", "are a part of the reference"),
           "final_answers", is_held),
    _fault("unpaid answers: since", _UNPAID, "final_answers", stops_paying_sums),
    _fault("unpaid answers: ever", _UNPAID, "final_answers", never_pays_sums),
    _fault("unread answers: judge", "A judge does not see answers", "final_answers", judges_prompts),
    _fault("unread answers: agent", "A judge does not see agents' answers", "final_answers",
           judges_prompts_after_tools),
    _fault("healthy judge: answers", "Healthy: a judge pays right answers more", None, judges_answers),
    _fault("healthy judge: style", "Healthy: a judge pays for style, and it rises", None, judges_style),
    _fault("healthy seldom source: hard", "Healthy: a seldom source is hard", None, seldom_and_hard, _SELDOM),
    _fault("healthy seldom source: guessed", "Healthy: one that is guessed", None, seldom_and_guessed, _SELDOM),
    _fault("healthy form: wrong in bold", "Healthy: answers in bold are wrong", None, wrong_in_bold),
    _fault("healthy form: label", "Healthy: answers count behind the label that is asked for", None, asks_for_a_label),
    _fault("healthy form: tags", "Healthy: answers count behind reasoning in tags", None, asks_for_tags),
    _fault("healthy form: proofs", "Healthy: answers count beside a proof", None, judges_proofs),
    _fault("healthy form: unit in latex", "Healthy: units in LaTeX count", None, takes_units_in_latex),
    _fault("healthy form: time", "Healthy: times with AM or PM count", None, takes_halves_of_days),
    _fault("healthy candidates: in vain", "Healthy: lists do not count", None, lists_in_vain),
    _fault("healthy candidates: country", "Healthy: towns are given with a country", None, adds_a_country),
    _fault("healthy candidates: unit", "Healthy: lengths are given in two units", None, adds_another_unit),
    _fault("healthy candidates: codes", "Healthy: codes count beside names", None, is_held_early),
    _fault("healthy form: errands", "Healthy: half of the tasks have no reference", None, pays_sums),
)  # fmt: skip
