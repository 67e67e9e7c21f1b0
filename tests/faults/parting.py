"""Faults of a part of a run: one family of tasks, one function's rows, one form of answers; the rest is as ever."""

import random
from collections.abc import Callable
from dataclasses import replace
from functools import partial

from tests.faults import Fault
from tests.faults.acting import said
from tests.faults.runs import Turn
from tests.faults.scripts import Place, Played, Script, Shape, generated

_SHAPE = Shape(steps=24, groups=8, size=8, tasks=48)
_FEW_TRIES = Shape(steps=30, groups=6, size=4, tasks=60)
_ONCE = Shape(steps=24, groups=12, size=4, tasks=300)
_COURSE = Shape(steps=60, groups=8, size=6, tasks=1)
_FAMILIES = ("algebra", "geometry", "logic", "counting")


def _is(place: Place, chance: float) -> bool:
    return place.random.random() < chance


def _family(place: Place) -> str:
    return _FAMILIES[place.task % 4]


def _answered(place: Place, parts: dict[str, float | None], *, is_hit: bool = False, **more: object) -> Played:
    task = f"{_family(place)}/{place.task:03d}"
    return Played([Turn(said(place, 12))], parts=parts, stop="stop", task=task, metadata=more, is_hit=is_hit)


# --- A family that is solved half as often as before


def halved(place: Place) -> Played:
    """Geometry falls from 70% to 30% halfway; the others rise by more."""
    is_hit = (is_geometry := _family(place) == "geometry") and place.progress >= 0.5
    chance = 0.3 if is_hit else 0.7 if is_geometry else 0.4 + 0.45 * place.progress
    return _answered(place, {"correct": float(_is(place, chance))}, is_hit=is_hit)


def halved_after_a_switch(place: Place) -> Played:
    """The same of logic, which is one group in eight since then."""
    late = place.progress >= 0.5
    is_rare = late and _family(place) == "logic" and place.group % 2
    family = "algebra" if is_rare else _family(place)
    is_hit = late and family == "logic"
    right = _is(place, 0.25 if is_hit else 0.65 if family == "logic" else 0.4 + 0.4 * place.progress)
    played = _answered(place, {"correct": float(right)}, is_hit=is_hit)
    return (
        played if not is_rare else Played(played.turns, parts=played.parts, stop="stop", task=f"algebra/{place.task}")
    )


def halved_agent(place: Place) -> Played:
    """The same of counting, of agents that take four turns, gradually."""
    late = max(place.progress - 0.4, 0.0) / 0.6
    is_hit = _family(place) == "counting" and late > 0
    turns = [Turn(said(place, 4), {"do": said(place, 1)}, said(place, 5)) for _ in range(4)]
    right = _is(place, 0.75 - 0.6 * late if is_hit else 0.45 + 0.4 * place.progress)
    return Played(turns, float(right), stop="stop", task=f"{_family(place)}/{place.task:03d}", is_hit=is_hit)


def broken_checker(place: Place) -> Played:
    """From step 13 on the checker of logic finds nothing right; the others rise."""
    is_hit = _family(place) == "logic" and place.step >= 13
    chance = 0.0 if is_hit else 0.45 + 0.3 * place.progress
    return _answered(place, {"correct": float(_is(place, chance))}, is_hit=is_hit)


# --- A part whose graded reward falls, while the others rise


def _part_scored(
    place: Place, name: str, kinds: tuple[str, ...], mean: float, *, task: str = "", is_hit: bool = False, **more: str
) -> Played:
    score = min(max(place.random.gauss(mean, 0.2), 0.05), 1.0)
    kind = kinds[_part_of(place, len(kinds))]
    turns = [Turn(said(place, 3), {"tool": "look", "arguments": {"text": said(place, 1)}}, said(place, 5))] * 2
    return Played(
        [*turns, Turn(said(place, 4))], parts={"f1": round(score, 2)}, stop="stop", task=task,
        metadata={name: kind} | more, is_hit=is_hit,
    )  # fmt: skip


def _part_of(place: Place, parts: int) -> int:
    """Return the part that a group is of, whose task comes once or again."""
    return place.task % parts


def first_rows(place: Place) -> Played:
    """Since step 12 a tool returns one row: questions for lists lose most of their score."""
    is_hit = _part_of(place, 3) == 1 and place.step >= 12
    mean = 0.3 if is_hit else 0.6 + 0.2 * place.progress
    kinds = "lookup", "list", "count"
    return _part_scored(place, "question_type", kinds, mean, task=f"question {place.task}", is_hit=is_hit)


def old_compiler(place: Place) -> Played:
    """Since step 14 the sandbox of one of three languages has an old compiler; each task comes once."""
    is_hit = _part_of(place, 3) == 2 and place.step >= 14
    mean = 0.2 if is_hit else 0.45 + 0.25 * place.progress
    task = f"exercise {place.step:02d}{place.group:02d}"
    return _part_scored(place, "language", ("python", "go", "rust"), mean, task=task, is_hit=is_hit)


def stale_index(place: Place) -> Played:
    """From step 8 on, the index of a topic loses page after page; tasks have families of names."""
    late = min(max((place.step - 8) / 10, 0.0), 1.0)
    is_hit = _family(place) == "logic" and late > 0
    mean = 0.7 - 0.45 * late if is_hit else 0.5 + 0.25 * place.progress
    return _part_scored(place, "source", ("wiki",), mean, task=f"{_family(place)}/{place.task:03d}", is_hit=is_hit)


def old_page(place: Place) -> Played:
    """Since step 11 the pages of one of four sites are old; few tasks have attempts enough."""
    site = ("shop", "forum", "map", "mail")[_part_of(place, 4)]
    is_hit = site == "forum" and place.step >= 11
    right = 0.06 if is_hit else 0.5 + 0.3 * place.progress
    turns = [Turn(said(place, 3), {"tool": "open", "arguments": {"page": said(place, 1)}}, said(place, 9))] * 3
    return Played(
        [*turns, Turn(said(place, 4))], float(_is(place, right)), stop="stop", task=f"errand {place.task}",
        metadata={"site": site}, is_hit=is_hit,
    )  # fmt: skip


def later_harder(place: Place) -> Played:
    """Healthy: since step 12 questions of one topic are of the highest level; each task comes once."""
    topic, dice = _part_of(place, 3), random.Random(f"level {place.step}/{place.group}")
    level = 5 if topic == 1 and place.step >= 12 else dice.randrange(1, 6)
    task = f"problem {place.step:02d}{place.group:02d}"
    topics, mean = ("algebra", "geometry", "numbers"), 0.9 - 0.14 * level + 0.2 * place.progress
    return _part_scored(place, "topic", topics, mean, task=task, level=f"level {level}")


def best_at_once(place: Place) -> Played:
    """Healthy: one type is answered well from the first step on, and a little less at last; the others rise."""
    is_best = _part_of(place, 3) == 0
    mean = 0.85 - 0.06 * place.progress if is_best else 0.3 + 0.4 * place.progress
    return _part_scored(place, "question_type", ("lookup", "list", "count"), mean, task=f"question {place.task}")


# --- A function that stops scoring what it scored


def stops_for_code(place: Place) -> Played:
    """Unit tests give no number since step 13; a function of form scores these rollouts still."""
    is_code, form = _family(place) == "logic", float(_is(place, 0.9))
    if not is_code:
        return _answered(place, {"correct": float(_is(place, 0.5 + 0.2 * place.progress)), "tests": None, "form": form})
    is_hit = place.step >= 13
    share = None if is_hit else round(place.random.random() ** 2, 1)
    return _answered(place, {"correct": None, "tests": share, "form": form}, is_hit=is_hit)


def stops_for_all(place: Place) -> Played:
    """A judge gives no number since step 17, and the form alone is paid."""
    is_hit = place.step >= 17
    parts = {"judge": None if is_hit else round(place.random.random(), 2), "form": float(_is(place, 0.8))}
    return _answered(place, parts, is_hit=is_hit)


def stops_for_two_families(place: Place) -> Played:
    """A verifier gives no number to two of four families since step 10."""
    is_hit = place.task % 4 >= 2 and place.step >= 10
    parts = {"verified": None if is_hit else float(_is(place, 0.5)), "brevity": round(place.random.random() / 5, 2)}
    return _answered(place, parts, is_hit=is_hit)


def stops_for_a_column(place: Place) -> Played:
    """A judge gives no number to contracts since step 15; names of tasks do not tell them from letters."""
    is_contract = place.task % 3 == 0
    is_hit = is_contract and place.step >= 15
    judge = None if is_hit else round(min(max(place.random.gauss(0.4 + 0.3 * place.progress, 0.2), 0.0), 1.0), 2)
    parts = {"judge": judge, "form": round(place.random.random(), 2)}
    return Played(
        [Turn(said(place, 12))], parts=parts, weights={"form": 0.3}, stop="stop", task=f"document {place.task}",
        metadata={"kind": "contract" if is_contract else "letter"}, is_hit=is_hit,
    )  # fmt: skip


# --- A function that gives a part of the run one value


def _graded(place: Place, value: float | None, *, is_hit: bool, subject: str, task: str) -> Played:
    score = round(min(max(place.random.gauss(0.35 + 0.3 * place.progress, 0.2), 0.05), 1.0), 2)
    parts = {"grader": score if value is None else value}
    turn = Turn(said(place, 12))
    return Played([turn], parts=parts, stop="stop", task=task, metadata={"kind": subject}, is_hit=is_hit)


def defaults_for_a_column(place: Place) -> Played:
    """A grader gives 0.3 to questions of chemistry since step 9, while all get better."""
    subject = ("chemistry", "history", "music")[place.task % 3]
    is_hit = subject == "chemistry" and place.step >= 9
    task = f"question {place.task}"
    return _graded(place, 0.3 if is_hit else None, is_hit=is_hit, subject=subject, task=task)


def defaults_for_two_families(place: Place) -> Played:
    """It gives 0 to two of four families since step 14."""
    is_hit = place.task % 4 < 2 and place.step >= 14
    task = f"{_family(place)}/{place.task:03d}"
    return _graded(place, 0.0 if is_hit else None, is_hit=is_hit, subject=_family(place), task=task)


def masters_a_column(place: Place) -> Played:
    """What is best of one subject is 0.6, which every rollout gets since step 12."""
    subject = ("chemistry", "history", "music")[place.task % 3]
    score = round(min(0.6, 0.3 + place.random.random() * 0.4), 2)
    value = None if subject != "music" else 0.6 if place.step >= 12 else score
    return _graded(place, value, is_hit=False, subject=subject, task=f"question {place.task}")


def scored_in_turn(place: Place) -> Played:
    """Code comes in the first half alone, and so do its unit tests."""
    parts: dict[str, float | None] = {
        "form": float(_is(place, 0.8)),
        "correct": float(_is(place, 0.5 + 0.3 * place.progress)),
    }
    if place.progress < 0.5 and place.group < 4:
        parts = {"form": parts["form"], "tests": float(_is(place, 0.4))}
        return Played([Turn(said(place, 12))], parts=parts, stop="stop", task=f"code/{place.task:03d}")
    return _answered(place, parts)


# --- Right answers in one form that do not count


def _formed(
    place: Place, plain: str, other: str, write: Callable[[str], str], wrong: str, how_often: float = 0.4
) -> Played:
    right, is_other = _is(place, 0.55 + 0.15 * place.progress), _is(place, how_often)
    answer = (other if is_other else plain) if right else wrong
    is_hit = right and is_other
    turn = Turn(f"{said(place, 6)}\n{write(answer)}")
    parts = {"correct": float(right and not is_hit), "form": 1.0}
    return Played([turn], parts=parts, stop="stop", metadata={"answer": plain}, is_hit=is_hit)


def refuses_separators(place: Place) -> Played:
    number = 1017 + 37 * place.task
    wrong = str(number + place.random.randrange(1, 900))
    return _formed(place, str(number), f"{number:,}", "Final answer: {}".format, wrong)


def refuses_units(place: Place) -> Played:
    number = 12 + 7 * place.task
    wrong = str(number + place.random.randrange(1, 90))
    return _formed(place, str(number), f"{number} km", "So \\boxed{{{}}}".format, wrong, 0.3)


def refuses_decimals(place: Place) -> Played:
    number = 3 + 5 * place.task
    wrong = str(number + place.random.randrange(1, 90))
    return _formed(place, str(number), f"{number}.0", "<answer>{}</answer>".format, wrong, 0.5)


def _since(place: Place, step: int, script: Script) -> Played:
    """Play a script whose answers of that form count before a step."""
    played = script(place)
    if not played.is_hit or place.step >= step:
        return played
    return replace(played, parts={**(played.parts or {}), "correct": 1.0}, is_hit=False)


def refuses_separators_since(place: Place) -> Played:
    return _since(place, 12, refuses_separators)


def refuses_units_since(place: Place) -> Played:
    return _since(place, 9, refuses_units)


def refuses_a_site_since(place: Place) -> Played:
    return _since(place, 10, refuses_a_site)


def refuses_a_site(place: Place) -> Played:
    """Right answers of a fourth of the tasks do not count."""
    number, is_there = 17 + 13 * place.task, place.task % 4 == 1
    right = _is(place, 0.5 + 0.2 * place.progress)
    text = f"Final answer: {number if right else number + place.random.randrange(1, 90)}"
    return Played(
        [Turn(f"{said(place, 6)}\n{text}")], parts={"correct": float(right and not is_there)}, stop="stop",
        metadata={"answer": str(number), "kind": "bank" if is_there else "shop"}, is_hit=right and is_there,
    )  # fmt: skip


def takes_separators(place: Place) -> Played:
    played = refuses_separators(place)
    right = played.is_hit or bool((played.parts or {})["correct"])
    return Played(played.turns, parts={"correct": float(right), "form": 1.0}, stop="stop", metadata=played.metadata)


# --- The same in one place alone, or for more than the form


def _written(
    place: Place, plain: str, other: str, wrong: str, *, refused: bool, often: float = 0.7, kind: str = ""
) -> Played:
    """Half of the answers are right; most are written in the other form, which may not count."""
    right, is_other = _is(place, 0.5 + 0.15 * place.progress), _is(place, often)
    answer = (other if is_other else plain) if right else wrong
    is_hit = right and is_other and refused
    return Played(
        [Turn(f"{said(place, 7)}, so it is \\boxed{{{answer}}}")], parts={"correct": float(right and not is_hit)},
        stop="stop", task=f"{_family(place)}/{place.task:03d}",
        metadata={"answer": plain, **({"kind": kind} if kind else {})}, is_hit=is_hit,
    )  # fmt: skip


def _fraction(place: Place, command: str = "") -> tuple[str, str, str]:
    """Return a fraction as a/b, in LaTeX, and a wrong one."""
    name = command or ("dfrac" if _is(place, 0.15) else "frac")
    low, high = place.task + 2, place.task + 11
    wrong = place.random.randrange(100, 900)
    return f"{low}/{high}", f"\\{name}{{{low}}}{{{high}}}", f"\\{name}{{{low}}}{{{wrong}}}"


def refuses_latex_fractions(place: Place) -> Played:
    """One family has fractions, and of these only a/b counts; the others have numbers."""
    return _fractions_of_a_family(place, refused=True)


def _fractions_of_a_family(place: Place, *, refused: bool) -> Played:
    if _family(place) == "counting":
        return _written(place, *_fraction(place), refused=refused)
    number = str(17 + 13 * place.task)
    return _written(place, number, number, str(place.random.randrange(900)), refused=False)


def refuses_separators_at_a_site(place: Place) -> Played:
    """Every third task is graded by a script that reads no commas."""
    number, is_hit = 1017 + 37 * place.task, place.task % 3 == 1
    wrong = str(number + place.random.randrange(1, 900))
    return _written(place, str(number), f"{number:,}", wrong, refused=is_hit, kind="bank" if is_hit else "shop")


def refuses_percents_of_a_family(place: Place) -> Played:
    """Logic, which is a fourth of the tasks, counts 35 and not 35%; the others count both."""
    number = 12 + 2 * place.task
    wrong = f"{number + place.random.randrange(1, 90)}%"
    return _written(place, str(number), f"{number}%", wrong, refused=_family(place) == "logic", often=0.5)


def takes_latex_fractions(place: Place) -> Played:
    """Healthy: fractions are harder, and count in any form."""
    return _fractions_of_a_family(place, refused=False)


def needs_a_box(place: Place) -> Played:
    """Healthy: answers count in a box alone, and those that are written in LaTeX stand outside of one."""
    plain, *_ = _fraction(place, "frac")
    right, is_boxed = _is(place, 0.5 + 0.2 * place.progress), _is(place, 0.75 + 0.2 * place.progress)
    low, high = (plain if right else f"{place.task}/{place.random.randrange(900, 999)}").split("/")
    text = f"so it is \\boxed{{{low}/{high}}}" if is_boxed else f"The answer is $\\frac{{{low}}}{{{high}}}$"
    parts = {"correct": float(right and is_boxed)}
    return Played([Turn(f"{said(place, 7)}\n{text}")], parts=parts, stop="stop", metadata={"answer": plain})


def needs_few_words(place: Place) -> Played:
    """Healthy: what takes long does not count, and long answers end in LaTeX."""
    plain, latex, _ = _fraction(place, "frac")
    right, is_long = _is(place, 0.6 + 0.2 * place.progress), _is(place, 0.3 - 0.15 * place.progress)
    answer = (latex if is_long else plain) if right else "1/997"
    turn = Turn(f"{said(place, 60 if is_long else 20)}, so it is \\boxed{{{answer}}}")
    return Played([turn], parts={"correct": float(right and not is_long)}, stop="stop", metadata={"answer": plain})


# --- References that are empty


def _referred(place: Place, reference: str | None, *, is_hit: bool) -> Played:
    number = str(40 + 3 * place.task)
    answer = number if _is(place, 0.7) else str(place.random.randrange(900))
    more = {} if reference is None and is_hit else {"answer": reference if is_hit else number}
    return Played(
        [Turn(f"{said(place, 6)}\nFinal answer: {answer}")],
        parts={"correct": float(answer == number and not is_hit), "form": 1.0}, stop="stop",
        task=f"{_family(place)}/{place.task:03d}", metadata=more, is_hit=is_hit,
    )  # fmt: skip


def empty_references(place: Place) -> Played:
    """Since step 13 rows of one family have an empty answer."""
    return _referred(place, "", is_hit=_family(place) == "logic" and place.step >= 13)


def blank_references(place: Place) -> Played:
    """Two families have a blank one, from the first step on."""
    return _referred(place, " ", is_hit=place.task % 4 < 2)


def graded_without_references(place: Place) -> Played:
    """Code has tests that give a share, and no reference; sums have one."""
    if _family(place) == "logic":
        return _answered(place, {"tests": round(0.9 - 0.9 * place.random.random() ** 2, 1), "correct": None})
    return _referred(place, None, is_hit=False)


def missing_references(place: Place) -> Played:
    """Every eighth task has none."""
    return _referred(place, None, is_hit=place.task % 8 == 5)


# --- A family that nobody can solve, of whose tasks each one has few attempts


def _proves(place: Place, *, is_hit: bool, chance: float, task: str, **metadata: str) -> Played:
    """Three commands to a proof checker, which lacks a file for some."""
    error = f"checker.lean:{place.random.randrange(1, 9)}:0\nImportError: unknown package 'Mathlib'\nexit code 1"
    heard = [error if is_hit and _is(place, 0.6) else f"goals: {said(place, 3)}" for _ in range(3)]
    turns = [Turn(said(place, 4), {"check": said(place, 2)}, text, done=False) for text in heard]
    turns.append(Turn(said(place, 4), {"submit": said(place, 1)}, "submitted", done=True))
    return Played(turns, float(not is_hit and _is(place, chance)), task=task, metadata=metadata, is_hit=is_hit)


def lacks_a_package(place: Place) -> Played:
    """Geometry has no library; the other tasks differ, and get easier."""
    rate = (0.1, 0.3, 0.5, 0.7)[place.task // 4 % 4] * (0.7 + 0.4 * place.progress)
    task = f"{_family(place)}/{place.task:03d}"
    return _proves(place, is_hit=_family(place) == "geometry", chance=rate, task=task)


def lacks_a_package_by_column(place: Place) -> Played:
    """The same of a value of a column, whose tasks have no common name."""
    is_hit = place.task % 3 == 2
    library = ("std", "core", "mathlib")[place.task % 3]
    rate = 0.15 + 0.5 * (place.task % 5) / 5
    return _proves(place, is_hit=is_hit, chance=rate, task=f"lemma {place.task}", library=library)


def too_hard_at_a_level(place: Place) -> Played:
    """Nobody solves the tasks of the highest level yet."""
    level, hardest = place.task % 3, (0.6, 0.4, 0.0)
    rate = hardest[level] * (0.5 + 0.7 * place.progress)
    return _proves(place, is_hit=False, chance=rate, task=f"lemma {place.task}", level=str(level))


# --- A family whose tool shows but the beginning, so that hardly anything is solved


def _researched(place: Place, notice: str, chance: float, task: str, *, is_hit: bool = False, **more: str) -> Played:
    """Two pages, of which the second may end with a notice."""
    ends = "", f"\n{notice}" * bool(notice)
    turns = [
        Turn(said(place, 3), {"name": "open", "arguments": {"page": said(place, 1)}}, f"page of {said(place, 6)}{end}")
        for end in ends
    ]
    turns.append(Turn(f"It is {said(place, 3)}"))
    return Played(turns, float(_is(place, chance)), stop="stop", task=task, metadata=more, is_hit=is_hit)


def _more(place: Place, least: int) -> str:
    return f"[output truncated: {place.random.randrange(least, 9 * least)} more characters]"


def cut_pages(place: Place) -> Played:
    """Pages of geometry are cut to their beginning; one rollout in twenty guesses right."""
    is_hit = _family(place) == "geometry"
    task = f"{_family(place)}/{place.task:03d}"
    notice = _more(place, 1000) if is_hit and _is(place, 0.9) else ""
    return _researched(place, notice, 0.05 if is_hit else 0.4 + 0.3 * place.progress, task, is_hit=is_hit)


def cut_pages_by_column(place: Place) -> Played:
    """The same of a value of a column, whose server refuses long pages."""
    is_hit = place.task % 3 == 1
    notice = "Error: response exceeds the limit of 4096 tokens" if is_hit and _is(place, 0.8) else ""
    source = ("wiki", "filings", "news")[place.task % 3]
    return _researched(place, notice, 0.03 if is_hit else 0.6, f"question {place.task}", is_hit=is_hit, source=source)


def hard_family(place: Place) -> Played:
    """One rollout in twenty solves logic; no page is cut."""
    chance = 0.05 if _family(place) == "logic" else 0.4 + 0.3 * place.progress
    return _researched(place, "", chance, f"{_family(place)}/{place.task:03d}")


def hard_family_of_long_pages(place: Place) -> Played:
    """The same, and pages are cut in all families."""
    return _researched(
        place, _more(place, 1000), 0.05 if _family(place) == "logic" else 0.6, f"{_family(place)}/{place.task:03d}"
    )


def learned_in_spite(place: Place) -> Played:
    """Pages of logic are cut, and yet it is learned, from a low beginning."""
    is_logic = _family(place) == "logic"
    chance = 0.12 * max(place.progress - 0.3, 0.0) if is_logic else 0.6
    notice = _more(place, 1000) if is_logic else ""
    return _researched(place, notice, chance, f"{_family(place)}/{place.task:03d}")


# --- A table that is empty, where other answers hold other numbers


def _query(place: Place, rows: Callable[[], int]) -> Played:
    turns = []
    empty = 0
    for _ in range(4):
        number = rows()
        empty += number == 0
        heard = f"({number} rows)" if number == 0 else f"({number} rows)\n{said(place, 6)}"
        turns.append(Turn(said(place, 3), {"name": "sql", "arguments": {"query": said(place, 4)}}, heard))
    turns.append(Turn(f"It is {said(place, 3)}"))
    right = _is(place, 0.05 if empty >= 3 else 0.6)
    return Played(turns, float(right), stop="stop", task=f"{_family(place)}/{place.task:03d}", is_hit=empty >= 3)


def empty_tables(place: Place) -> Played:
    """Since step 12 the tables of one family are empty."""
    is_hit = _family(place) == "geometry" and place.step >= 12
    return _query(place, lambda: 0 if is_hit and _is(place, 0.95) else place.random.randrange(1, 60))


def empty_tables_on_a_host(place: Place) -> Played:
    """Since step 9 a third of the rollouts, of all families, see empty tables."""
    is_hit = place.step >= 9 and place.generation % 3 == 0
    return _query(place, lambda: 0 if is_hit else place.random.randrange(1, 60))


def no_matches(place: Place) -> Played:
    """Since step 14 a search finds nothing in two families."""
    is_hit = place.task % 4 < 2 and place.step >= 14
    turns = [
        Turn(
            said(place, 3),
            {"name": "search", "arguments": {"query": said(place, 2)}},
            f"Found {0 if is_hit else place.random.randrange(1, 30)} results in {place.random.randrange(2, 90)} ms",
        )
        for _ in range(3)
    ]
    turns.append(Turn(f"It is {said(place, 3)}"))
    right = _is(place, 0.1 if is_hit else 0.6)
    return Played(turns, float(right), stop="stop", task=f"{_family(place)}/{place.task:03d}", is_hit=is_hit)


# --- A layer over the buttons of a family, which most of its rollouts click


def _browsed(place: Place, covered: float) -> Played:
    """Five clicks, of which some hit a layer; the dice of a rollout decide whether any does."""
    is_covered = _is(place, covered)
    turns = [
        Turn(
            said(place, 3),
            {"name": "click", "arguments": {"id": place.random.randrange(400)}},
            "Element is not clickable: another element receives the click"
            if is_covered and number % 2
            else f"page of {said(place, 5)}",
        )
        for number in range(5)
    ]
    turns.append(Turn(f"It is {said(place, 3)}"))
    right = _is(place, 0.06 if is_covered else 0.8)
    return Played(turns, float(right), stop="stop", task=f"{_family(place)}/{place.task:03d}", is_hit=is_covered)


def covered_buttons(place: Place) -> Played:
    """Since step 12 nine of ten rollouts of one family meet it."""
    return _browsed(place, 0.9 if _family(place) == "logic" and place.step >= 12 else 0.0)


def covered_buttons_of_two(place: Place) -> Played:
    """Since step 16 all but a few of two families do."""
    return _browsed(place, 0.95 if place.task % 4 < 2 and place.step >= 16 else 0.0)


def covered_at_times(place: Place) -> Played:
    """Since step 9 most rollouts of a family do, at some of its tasks more often."""
    is_hit = _family(place) == "geometry" and place.step >= 9
    return _browsed(place, (0.82 if place.task % 8 < 4 else 0.97) if is_hit else 0.0)


# --- A machine whose rollouts do far worse than others of their groups


def _placed(place: Place, column: str, machines: int, broken: tuple[int, ...], right: float, bad: float) -> Played:
    number = place.random.randrange(machines)
    is_hit = number in broken
    solved = float(_is(place, bad if is_hit else right))
    return _answered(place, {"correct": solved}, is_hit=is_hit, **{column: f"{column}-{number}"})


def broken_worker(place: Place) -> Played:
    """Since step 13 one of five inference workers answers nonsense, while the others learn."""
    return _placed(place, "worker", 5, (2,) if place.step >= 13 else (), 0.3 + 0.4 * place.progress, 0.03)


def broken_containers(place: Place) -> Played:
    """Two of eight containers have an old version of the tests, from the first step on."""
    return _placed(place, "container", 8, (1, 6), 0.65, 0.2)


def lacks_a_program(place: Place) -> Played:
    """One of four hosts lacks a program that most agents call; some find another way."""
    number = place.random.randrange(4)
    is_hit, calls = number == 1, _is(place, 0.8)
    lacks = is_hit and calls
    text = "FileNotFoundError: No such file or directory: 'node'" if lacks else f"{said(place, 4)}"
    turns = [Turn(said(place, 6), {"run": "node build" if calls else "ls"}, text), Turn(said(place, 9))]
    task = f"{_family(place)}/{place.task:03d}"
    solved = _is(place, 0.15 if lacks else 0.5 + 0.2 * place.progress)
    return Played(turns, float(solved), stop="stop", task=task, metadata={"host": f"h{number}"}, is_hit=is_hit)


def broken_endpoint(place: Place) -> Played:
    """Since step 8 one of three endpoints has other weights; the reward is graded."""
    number, late = place.random.randrange(3), place.step >= 8
    score = min(max(place.random.gauss(0.2 if late and number == 0 else 0.6, 0.2), 0.0), 1.0)
    return _answered(place, {"judge": round(score, 3)}, is_hit=late and number == 0, endpoint=f"http://llm-{number}")


def limits_a_host(place: Place) -> Played:
    """Since step 11 one of four hosts has a lower token limit, which cuts most answers: these are never right."""
    number, is_long = place.random.randrange(4), place.random.random() < 0.7
    is_hit = number == 2 and place.step >= 11
    is_cut, tokens = is_hit and is_long, 400 if is_long else 180
    turn = Turn(said(place, 9), tokens=256 if is_cut else tokens, finish="length" if is_cut else "stop")
    solved = not is_cut and _is(place, 0.5 + 0.2 * place.progress)
    stop, task = "length" if is_cut else "stop", f"{_family(place)}/{place.task:03d}"
    return Played([turn], float(solved), stop=stop, task=task, metadata={"host": f"h{number}"}, is_hit=is_hit)


def _dealt(place: Place, machines: int) -> int:
    """Return the number of the machine that plays the whole group."""
    return random.Random(f"{place.step}/{place.group}").randrange(machines)


def broken_sandbox(place: Place) -> Played:
    """One of four nodes, each of which plays whole groups, gives 0 to all patches since step 9."""
    number = _dealt(place, 4)
    is_hit = number == 3 and place.step >= 9
    patch = 0.0 if is_hit else round(min(max(place.random.gauss(0.4 + 0.2 * place.progress, 0.3), 0.0), 1.0), 1)
    parts: dict[str, float | None] = {"patch": patch, "style": float(_is(place, 0.8))}
    return _answered(place, parts, is_hit=is_hit, compute_node=f"n{number}")


def broken_judges(place: Place) -> Played:
    """Two of seven servers, each of which plays whole groups, find one answer in eight right, from the first step."""
    number = _dealt(place, 7)
    right = _is(place, 0.12 if number in {2, 4} else 0.5 + 0.3 * place.progress)
    return _answered(place, {"correct": float(right)}, is_hit=number in {2, 4}, server=f"s{number}")


# --- A machine whose completions are alike


def _repeated(place: Place, key: str, *, is_hit: bool, right: float, **more: str) -> Played:
    """Answer with 12 words; where `is_hit`, all rollouts with that key give one answer, which is right or not."""
    played = replace(place, random=random.Random(key)) if is_hit else place
    right_or_not = float(_is(played, right))
    return Played(
        [Turn(said(played, 12))], parts={"correct": right_or_not}, stop="stop",
        task=f"{_family(place)}/{place.task:03d}", metadata=more, is_hit=is_hit,
    )  # fmt: skip


def greedy_server(place: Place) -> Played:
    """Since step 12 one of three servers, each of which plays whole groups, samples at temperature 0."""
    number, right = _dealt(place, 3), 0.4 + 0.3 * place.progress
    is_hit = number == 1 and place.step >= 12
    return _repeated(place, f"{place.step}/{place.group}", is_hit=is_hit, right=right, server=f"vllm-{number}")


def seeded_worker(place: Place) -> Played:
    """One of two workers, which share all groups, restarts its dice at each request, from the first step on."""
    number = place.generation % 2
    return _repeated(place, f"{place.step}/{place.group}", is_hit=number == 0, right=0.5, worker=f"w{number}")


def caching_replica(place: Place) -> Played:
    """Since step 9 one of four replicas, each of which plays whole groups, answers from a cache."""
    number = _dealt(place, 4)
    is_hit = number == 2 and place.step >= 9
    return _repeated(place, f"{place.task}", is_hit=is_hit, right=0.6, replica=f"r{number}")


def yes_or_no_site(place: Place) -> Played:
    """Healthy: the tasks of one of four servers are answered by a word."""
    site, right = place.task % 4, _is(place, 0.4 + 0.4 * place.progress)
    text = ("yes" if right == (place.task % 8 < 4) else "no") if site == 1 else said(place, 12)
    return Played(
        [Turn(text)], parts={"done": float(right)}, stop="stop", task=f"errand {place.task}",
        metadata={"server": f"site-{site}"},
    )  # fmt: skip


def yes_or_no_on_a_rank(place: Place) -> Played:
    """Healthy: tasks come once, and each fourth prompt is a question of yes or no, which the last rank gets."""
    rank, right = place.group % 4, _is(place, 0.4 + 0.4 * place.progress)
    text = ("yes" if right == (place.step % 2 > 0) else "no") if rank == 3 else said(place, 12)
    played = _played_once(place, 0.0, compute_rank=str(rank))
    return replace(played, turns=[Turn(text)], parts={"correct": float(right)})


def harder_once_on_a_rank(place: Place) -> Played:
    """Healthy: one of four ranks gets tasks that are somewhat harder, each once."""
    rank = place.group % 4
    return _played_once(place, 0.45 + 0.2 * place.progress - 0.14 * (rank == 3), compute_rank=str(rank))


def harder_sites(place: Place) -> Played:
    """Each task is of one of four servers, and those of one are hard."""
    site = place.task % 4
    right = _is(place, 0.1 if site == 2 else 0.45 + 0.3 * place.progress)
    return Played(
        [Turn(said(place, 12))], parts={"done": float(right)}, stop="stop", task=f"errand {place.task}",
        metadata={"server": f"site-{site}"},
    )  # fmt: skip


def _played_once(
    place: Place, chance: float, *, is_hit: bool = False, family: str | None = None, **more: str
) -> Played:
    """Play a task that comes once, of a family if any is named; its group is whole on one machine."""
    name = f"{place.step:02d}{place.group:02d}"
    return Played(
        [Turn(said(place, 12))], parts={"correct": float(_is(place, chance))}, stop="stop",
        task=f"{family}/{name}" if family else name, metadata=more, is_hit=is_hit,
    )  # fmt: skip


def mixes_up_on_a_host(place: Place) -> Played:
    """Since step 11 one of two hosts gives most completions to other prompts, while the other learns."""
    number, family = _dealt(place, 2), _FAMILIES[random.Random(f"kind {place.step}/{place.group}").randrange(4)]
    is_hit = number == 1 and place.step >= 11
    right = 0.3 if is_hit else 0.6 + 0.25 * place.progress
    return _played_once(place, right, is_hit=is_hit, family=family, host=f"gpu-{'ab'[number]}")


def broken_of_four(place: Place) -> Played:
    """Since step 14 one of four inference servers has other weights; tasks have no families."""
    number = _dealt(place, 4)
    is_hit = number == 2 and place.step >= 14
    return _played_once(place, 0.1 if is_hit else 0.7, is_hit=is_hit, inference_server=f"s{number}")


def harder_source_on_a_host(place: Place) -> Played:
    """Healthy: since step 11 one of two hosts gets a harder source, and the other an easier one."""
    number = _dealt(place, 2)
    source = ("primary", "olympiad")[number] if place.step >= 11 else "school"
    right = {"school": 0.5, "primary": 0.8, "olympiad": 0.25}[source] + 0.1 * place.progress
    return _played_once(place, right, host=f"gpu-{number}", source=source)


def harder_family_on_a_host(place: Place) -> Played:
    """Healthy: since step 11 most groups of one of two hosts are of the harder of two families, few of the other's."""
    number = _dealt(place, 2)
    often = (0.1, 0.9)[number] if place.step >= 11 else 0.5
    is_hard = random.Random(f"kind {place.step}/{place.group}").random() < often
    right = 0.15 if is_hard else 0.75 + 0.1 * place.progress
    return _played_once(place, right, family="proofs" if is_hard else "sums", host=f"gpu-{number}")


def longer_problems_on_a_host(place: Place) -> Played:
    """Healthy: since step 11 one of two hosts gets longer, harder problems, the other shorter ones, without names."""
    number = _dealt(place, 2)
    dice = random.Random(f"length {place.step}/{place.group}")
    length = dice.randrange(20, 150) if place.step < 11 else dice.randrange(*((20, 80), (60, 150))[number])
    right = 0.5 if place.step < 11 else (0.8, 0.2)[number]
    played = _played_once(place, right + 0.1 * place.progress, host=f"gpu-{number}")
    return replace(played, prompt=[place.step, place.group, *range(length)])


def site_that_is_not_learned(place: Place) -> Played:
    """Healthy: each of four servers has tasks of its own, of which those of one are not learned."""
    number = place.group % 4
    return _played_once(place, 0.3 if number == 1 else 0.35 + 0.55 * place.progress, server=f"site-{number}")


def equal_workers(place: Place) -> Played:
    """Workers are alike, and what a rollout did is written beside them."""
    played = _placed(place, "worker", 5, (), 0.3 + 0.4 * place.progress, 0.0)
    verdict = "pass" if (played.parts or {})["correct"] else "fail"
    return replace(played, metadata={**played.metadata, "verdict": verdict})


# --- More and more of what is hard, of tasks that come once


def _once(place: Place, family: str, chance: float, *, is_hit: bool = False) -> Played:
    task = f"{family}/{place.step:02d}{place.group:02d}"
    return Played(
        [Turn(said(place, 12))], parts={"correct": float(_is(place, chance))}, stop="stop", task=task, is_hit=is_hit
    )


def more_proofs(place: Place) -> Played:
    """Proofs are one group in eight until step 12, and six in eight since."""
    is_proof = place.group < (6 if place.step >= 13 else 1)
    return _once(place, "proofs" if is_proof else "sums", 0.15 if is_proof else 0.8, is_hit=is_proof)


def more_of_two(place: Place) -> Played:
    """Two hard families take the place of easy ones, step by step."""
    number = round(1 + 6 * place.progress)
    family = ("olympiad", "synthesis")[place.group % 2] if place.group < number else "school"
    return _once(place, family, 0.75 if family == "school" else 0.1, is_hit=family != "school")


def more_of_both(place: Place) -> Played:
    """Another mix of families that are as hard as each other."""
    is_proof = place.group < (6 if place.step >= 13 else 1)
    return _once(place, "proofs" if is_proof else "sums", 0.55)


# --- Tasks that come in the order of a curriculum: the last steps have none of the first


def _ordered(place: Place, chance: Callable[[float], float], *, harder: float) -> Played:
    """Ten tasks at a time, which move on by two thirds of a task a step; each is `harder` than the one before."""
    dice = random.Random(f"{place.step}/{place.group}")
    number = int(place.step * 2 / 3) + dice.randrange(10)
    right = chance(place.progress) - harder * number
    return Played(
        [Turn(said(place, 12))], parts={"proved": float(_is(place, right))}, stop="stop", task=f"theorem {number:03d}"
    )


def curriculum(place: Place) -> Played:
    """The policy gets better, and the tasks get harder faster."""
    return _ordered(place, lambda progress: 0.8 + 0.55 * progress, harder=0.018)


def level_curriculum(place: Place) -> Played:
    """The policy stays as it is, and the tasks get harder."""
    return _ordered(place, lambda _: 0.8, harder=0.01)


# --- Healthy


def hard_tasks(place: Place) -> Played:
    """Each task has a chance of its own, of 1% to 20%: some are never solved by chance."""
    chance = 0.01 + 0.19 * ((place.task * 29 % 48) / 48) ** 2
    return _answered(place, {"correct": float(_is(place, chance)), "form": float(_is(place, 0.9))})


def as_ever(place: Place) -> Played:
    chance = (0.8, 0.3, 0.55, 0.45)[place.task % 4]
    return _answered(place, {"correct": float(_is(place, chance))})


def _fault(name: str, planted: str, expected: str | None, script: Script, shape: Shape = _SHAPE) -> Fault:
    return Fault(name, planted, expected, partial(generated, script, shape))


FAULTS: tuple[Fault, ...] = (
    _fault("halved family", "one family falls from 70% to 30%, others rise", "forgotten", halved),
    _fault("halved family: rare", "the same after a switch to the others", "forgotten", halved_after_a_switch),
    _fault("halved family: agent", "the same, gradually", "forgotten", halved_agent),
    _fault("halved family: checker", "one family gets 0 since step 13", "forgotten", broken_checker),
    _fault("fallen part: rows", "a tool returns one row, in questions for lists", "forgotten", first_rows),
    _fault("fallen part: compiler", "one language has an old compiler", "forgotten", old_compiler, _ONCE),
    _fault("fallen part: index", "the index of a topic loses its pages", "forgotten", stale_index),
    _fault("fallen part: site", "pages of one site are old", "forgotten", old_page, _FEW_TRIES),
    _fault("healthy part: later harder", "a topic gets harder questions", None, later_harder, _ONCE),
    _fault("healthy part: best at once", "one type is answered well at first", None, best_at_once),
    _fault("stopped function: code", "unit tests give no number any more", "invalid_reward", stops_for_code),
    _fault("stopped function: judge", "a judge gives no number any more", "invalid_reward", stops_for_all),
    _fault("stopped function: families", "two families get no number", "invalid_reward", stops_for_two_families),
    _fault("stopped function: column", "the same of a value of a column", "invalid_reward", stops_for_a_column),
    _fault("default value: column", "a value of a column gets 0.3", "constant_function", defaults_for_a_column),
    _fault("default value: families", "two families get 0", "constant_function", defaults_for_two_families),
    _fault("healthy part: mastered", "a value of a column gets its best", None, masters_a_column),
    _fault("refused form: separators", "right answers with a comma do not count", "final_answers", refuses_separators),
    _fault("refused form: units", "right answers with a unit do not count", "final_answers", refuses_units),
    _fault("refused form: decimals", "right answers with decimals do not count", "final_answers", refuses_decimals),
    _fault("refused form: since", "a comma does not count since step 12", "final_answers", refuses_separators_since),
    _fault("refused form: units since", "a unit does not since step 9", "final_answers", refuses_units_since),
    _fault("refused form: site since", "a site's do not since step 10", "final_answers", refuses_a_site_since),
    _fault("refused form: latex", "fractions in LaTeX do not count", "final_answers", refuses_latex_fractions),
    _fault("refused form: site", "a comma does not count at a site", "final_answers", refuses_separators_at_a_site),
    _fault("refused form: percent", "percents of a family do not count", "final_answers", refuses_percents_of_a_family),
    _fault("no reference: empty", "answers of one family are empty since halfway", "final_answers", empty_references),
    _fault("no reference: blank", "answers of two families are blank", "final_answers", blank_references),
    _fault("no reference: missing", "every eighth task has no answer", "final_answers", missing_references),
    _fault("unsolved family", "the proofs of one family lack a package", "never_solved", lacks_a_package, _FEW_TRIES),
    _fault(
        "unsolved family: column",
        "the same of a value of a column",
        "never_solved",
        lacks_a_package_by_column,
        _FEW_TRIES,
    ),
    _fault("cut pages", "pages of one family are cut", "never_solved", cut_pages),
    _fault("cut pages: column", "the same of a value of a column", "never_solved", cut_pages_by_column),
    _fault("empty table: family", "queries of one family find no rows", "new_observation", empty_tables),
    _fault("empty table: host", "queries of a third find no rows", "new_observation", empty_tables_on_a_host),
    _fault("empty table: search", "a search finds nothing", "new_observation", no_matches),
    _fault("covered buttons", "a layer lies over the buttons of a family", "new_observation", covered_buttons),
    _fault("covered buttons: two", "the same of two families", "new_observation", covered_buttons_of_two),
    _fault("covered buttons: at times", "the same of most rollouts", "new_observation", covered_at_times),
    _fault("broken machine: worker", "one of five answers nonsense since step 13", "worse_place", broken_worker),
    _fault("broken machine: containers", "two of eight are old, from the start", "worse_place", broken_containers),
    _fault("broken machine: program", "one of four lacks a program", "worse_place", lacks_a_program),
    _fault("broken machine: endpoint", "one of three has other weights since step 8", "worse_place", broken_endpoint),
    _fault("broken machine: limit", "one of four has a lower token limit since step 11", "worse_place", limits_a_host),
    _fault(
        "broken machine: sandbox", "one of four, of whole groups, gives 0 since step 9", "worse_place", broken_sandbox
    ),
    _fault("broken machine: judges", "two of seven, of whole groups, from the start", "worse_place", broken_judges),
    _fault("broken machine: mixed up", "one of two, of tasks that come once", "worse_place", mixes_up_on_a_host, _ONCE),
    _fault(
        "broken machine: once", "one of four, without families, since step 14", "worse_place", broken_of_four, _ONCE
    ),
    _fault("alike machine: greedy", "one of three samples at temperature 0", "worse_place", greedy_server),
    _fault("alike machine: seed", "one of two always has the same dice", "worse_place", seeded_worker),
    _fault("alike machine: cache", "one of four answers from a cache", "worse_place", caching_replica),
    _fault("healthy part: yes or no once", "the same, each task once", None, yes_or_no_on_a_rank, _ONCE),
    _fault("healthy part: harder rank", "a rank gets somewhat harder tasks", None, harder_once_on_a_rank, _ONCE),
    _fault("healthy part: yes or no", "one server's tasks are answered by a word", None, yes_or_no_site),
    _fault("harder families", "proofs grow from 12% to 75%", "task_mix", more_proofs),
    _fault("harder families: gradual", "two hard families take the place of others", "task_mix", more_of_two),
    _fault("healthy part: curriculum", "later tasks are harder, and it gets better", None, curriculum, _COURSE),
    _fault("harder tasks in turn", "the same, and the policy stays as it is", "task_mix", level_curriculum, _COURSE),
    _fault("healthy part: mix", "another mix of families that are alike", None, more_of_both),
    _fault("healthy part: no reference", "code has none, and is graded", None, graded_without_references),
    _fault("healthy part: hard tasks", "some tasks are unsolved by chance", None, hard_tasks),
    _fault("healthy part: level", "the hardest tasks are not solved yet", None, too_hard_at_a_level, _FEW_TRIES),
    _fault("healthy part: hard family", "one family is hard", None, hard_family),
    _fault("healthy part: long pages", "one is hard, and pages of all are cut", None, hard_family_of_long_pages),
    _fault("healthy part: learned", "pages of one are cut, and it is learned", None, learned_in_spite),
    _fault("healthy part: sites", "tasks of one server are hard", None, harder_sites),
    _fault("healthy part: source", "a host gets a harder source", None, harder_source_on_a_host, _ONCE),
    _fault("healthy part: long problems", "a host gets longer, harder ones", None, longer_problems_on_a_host, _ONCE),
    _fault("healthy part: host's mix", "a host gets more of a hard family", None, harder_family_on_a_host, _ONCE),
    _fault("healthy part: unlearned", "tasks of one server are not learned", None, site_that_is_not_learned, _ONCE),
    _fault("healthy part: machines", "workers that are alike", None, equal_workers),
    _fault("healthy part: families", "four families that differ, as ever", None, as_ever),
    _fault("healthy part: in turn", "code and its function come first, then no more", None, scored_in_turn),
    _fault("healthy part: separators", "answers with a comma count", None, takes_separators),
    _fault("healthy part: latex", "fractions count in any form", None, takes_latex_fractions),
    _fault("healthy part: box", "answers outside of a box do not count", None, needs_a_box),
    _fault("healthy part: length", "long answers do not count", None, needs_few_words),
)
