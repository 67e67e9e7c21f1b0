"""Completions that stand beside another prompt of their step, and references of one source that are often wrong."""

from dataclasses import replace
from functools import partial

from tests.faults import Fault
from tests.faults.acting import WORDS, said
from tests.faults.runs import Turn
from tests.faults.scripts import Place, Played, Script, Shape, generated

_SHAPE = Shape(steps=40, groups=4, size=8, tasks=90)
_LARGE = Shape(steps=24, groups=8, size=8, tasks=120)
_ONCE = replace(_LARGE, tasks=_LARGE.steps * _LARGE.groups)
_SINCE = 20


def _is(place: Place, chance: float) -> bool:
    return place.random.random() < chance


def _other(place: Place, by: int, groups: int) -> int:
    """Return the task of the group that is `by` groups further in the same step."""
    return place.task + (place.group + by) % groups - place.group


# --- Completions of another prompt


def _parts(task: int) -> tuple[int, int]:
    return 103 + 17 * task, 211 + 29 * task


def swapped_ranks(place: Place) -> Played:
    """Ranks 2 and 3 return each other's completions, late."""
    is_hit = place.step >= _SINCE and place.group >= 2
    task = _other(place, 5 - 2 * place.group, 4) if is_hit else place.task
    first, second = _parts(task)
    given = first + second if _is(place, 0.5 + 0.1 * place.progress) else first + place.random.randrange(900)
    asked, true = (
        "Ann has {} apples and buys {} more. How many has she?".format(*_parts(place.task)),
        sum(_parts(place.task)),
    )
    return Played(
        [Turn(f"{said(place, 4)}: {first} and {second} make \\boxed{{{given}}}.")],
        parts={"correct": float(given == true), "boxed": 1.0}, weights={"correct": 1.0, "boxed": 0.2}, stop="stop",
        asked=asked, metadata={"rank": str(place.group), "answer": str(true)}, is_hit=is_hit,
    )  # fmt: skip


def mixed_on_a_host(place: Place) -> Played:
    """Half of each group is sampled on gpu-b, which mixes up most of its texts; a judge pays, without a reference."""
    is_there = place.generation % 2 == 1
    is_hit = is_there and _is(place, 0.75)
    task = _other(place, 1 + place.generation % 7, 8) if is_hit else place.task
    name = f"{WORDS[task % 14].title()}{task} {WORDS[task % 13].title()}{task + 7}"
    own = f"{WORDS[place.task % 14].title()}{place.task} {WORDS[place.task % 13].title()}{place.task + 7}"
    paid = 0.0 if is_hit else place.random.choice((0.2, 0.6, 0.8, 1.0))
    return Played(
        [Turn(f"Dear {name}, {said(place, 9)}.")], parts={"judge": paid}, stop="stop",
        asked=f"Write a letter to {own}.", metadata={"host": "gpu-b" if is_there else "gpu-a"}, is_hit=is_hit,
    )  # fmt: skip


def rolled_batch(place: Place) -> Played:
    """The answers of a step, numbers alone, are returned one group further, late."""
    is_hit = place.step >= _SINCE - 8
    answer, true = (str(sum(_parts(task))) for task in (_other(place, is_hit, 8), place.task))
    given = answer if _is(place, 0.6 + 0.1 * place.progress) else str(place.random.randrange(300, 4000))
    return Played(
        [Turn(f"<answer>{given}</answer>")], parts={"correct": float(given == true)}, stop="stop",
        asked="{} + {} = ?".format(*_parts(place.task)), metadata={"answer": true}, is_hit=is_hit,
    )  # fmt: skip


def one_passage(place: Place) -> Played:
    """Healthy: the questions of a step are about one passage, and wrong answers name what others ask for."""
    names = [f"{WORDS[number % 14]}{place.step}{number}" for number in range(8)]
    others = [name for number, name in enumerate(names) if number != place.group]
    given = names[place.group] if _is(place, 0.45 + 0.15 * place.progress) else place.random.choice(others)
    return Played(
        [Turn(f"{said(place, 3)}\n<answer>{given}</answer>")], parts={"correct": float(given == names[place.group])},
        stop="stop", asked=f"{' '.join(sorted(names))}. Who is {place.group}?", metadata={"answer": names[place.group]},
    )  # fmt: skip


def few_labels(place: Place) -> Played:
    """Healthy: a hard choice of four, so that most wrong answers are other tasks' references."""
    true, guess = "ABCD"[place.task * 7 % 11 % 4], place.random.choice("ABCD")
    given = true if _is(place, 0.05 + 0.2 * place.progress) else guess
    return Played(
        [Turn(f"<answer>{given}</answer>")], parts={"correct": float(given == true)}, stop="stop",
        metadata={"answer": true, "rank": str(place.group % 4)},
    )  # fmt: skip


# --- References of one source, of which many are wrong


def _sourced(place: Place, given: int, reference: int, *, is_there: bool, is_hit: bool = False) -> Played:
    return Played(
        [Turn(f"{said(place, 6)}, so \\boxed{{{given}}}.")], parts={"correct": float(given == reference)},
        stop="stop", metadata={"answer": str(reference), "source": "synthetic" if is_there else "book"}, is_hit=is_hit,
    )  # fmt: skip


def often_shifted(place: Place, every: int = 4) -> Played:
    """Most references of a source are of no task; the others are right."""
    is_there, number = place.task % every == 1, sum(_parts(place.task))
    is_hit = is_there and place.task // every % 4 > 0
    given = number if _is(place, 0.7 + 0.1 * place.progress) else place.random.randrange(900)
    return _sourced(place, given, number + 4 * is_hit, is_there=is_there, is_hit=is_hit)


def seldom_shifted(place: Place) -> Played:
    """The same of a source that comes seldom."""
    return often_shifted(place, 12)


def stale_source(place: Place) -> Played:
    """Since halfway a source's snapshots are old, and what most rollouts read there is wrong; tasks come once."""
    is_there, number = place.task % 4 == 1, sum(_parts(place.task))
    is_hit = is_there and place.step >= _LARGE.steps // 2
    given = number + 4 * is_hit if _is(place, 0.8) else place.random.randrange(900)
    return _sourced(place, given, number, is_there=is_there, is_hit=is_hit)


def later_shifted(place: Place) -> Played:
    """The references of a source, in the later third of a dataset, are two too high."""
    is_there, number = place.task % 4 == 1, sum(_parts(place.task))
    is_hit = is_there and place.step >= 2 * _LARGE.steps // 3
    given = number if _is(place, 0.75 + 0.1 * place.progress) else place.random.randrange(900)
    return _sourced(place, given, number + 2 * is_hit, is_there=is_there, is_hit=is_hit)


def _chosen(place: Place, *, shifted: bool) -> Played:
    """One of four options; the references of a bank may be the letter before."""
    is_there, right = place.task % 4 == 2, place.task * 7 % 11 % 4
    given = right if _is(place, (0.6 if is_there else 0.85) + 0.1 * place.progress) else place.random.randrange(4)
    reference = "ABCD"[(right - (shifted and is_there)) % 4]
    return Played(
        [Turn(f"{said(place, 6)}\n<answer>{'ABCD'[given]}</answer>")], stop="stop",
        parts={"correct": float("ABCD"[given] == reference)}, is_hit=shifted and is_there and given == right,
        metadata={"answer": reference, "bank": "anatomy" if is_there else "general"},
    )  # fmt: skip


def hard_bank(place: Place) -> Played:
    """Healthy: the same bank, whose references are right."""
    return _chosen(place, shifted=False)


def shifted_letters(place: Place) -> Played:
    return _chosen(place, shifted=True)


def hard_source(place: Place) -> Played:
    """Healthy: a source is hard, its answers scatter, and many make the same mistake in some of its tasks."""
    is_there, number = place.task % 4 == 1, sum(_parts(place.task))
    is_tricky = is_there and place.task // 4 % 3 == 0
    right = _is(place, 0.2 if is_there else 0.7 + 0.15 * place.progress)
    mistake = number + 9 if is_tricky and _is(place, 0.8) else place.random.randrange(900)
    return _sourced(place, number if right else mistake, number, is_there=is_there)


def _query(task: int) -> str:
    return " ".join(["SELECT", WORDS[task % 13], "FROM", WORDS[task % 14], "WHERE id >", str(task)])


def shifted_queries(place: Place) -> Played:
    """Queries are written between fences; the references of a source are those of the next row."""
    is_hit = place.task % 5 == 1
    reference, right = _query(place.task + 5 * is_hit), _is(place, 0.5 + 0.3 * place.progress)
    given = _query(place.task) if right else _query(place.task).replace(">", place.random.choice(["<", "=", ">="]))
    return Played(
        [Turn(f"{said(place, 6)}.\n\n```sql\n{given};\n```")], parts={"match": float(given == reference)}, stop="stop",
        asked=f"Which {WORDS[place.task % 13]} are above {place.task}?", is_hit=is_hit,
        metadata={"answer": reference, "source": "mini" if is_hit else "full"},
    )  # fmt: skip


def long_queries(place: Place) -> Played:
    """Healthy: the same, with a source of harder queries, which are written in many ways."""
    is_hard = place.task % 4 == 1
    right = _is(place, (0.25 if is_hard else 0.6) + 0.25 * place.progress)
    query = _query(place.task)
    given = (
        query if right else f"{query} {place.random.choice(['AND', 'OR'])} {said(place, 1)} < {place.random.random()}"
    )
    return Played(
        [Turn(f"{said(place, 6)}.\n\n```sql\n{given};\n```")], parts={"match": float(right)}, stop="stop",
        asked=f"Which {WORDS[place.task % 13]} are above {place.task}?",
        metadata={"answer": query, "source": "mini" if is_hard else "full"},
    )  # fmt: skip


def _fault(name: str, planted: str, expected: str | None, script: Script, shape: Shape = _LARGE) -> Fault:
    return Fault(name, planted, expected, partial(generated, script, shape))


_MIXED, _WRONG = "Completions of other prompts of the step", "Many references of one source are wrong"
FAULTS: tuple[Fault, ...] = (
    _fault("wiring: swapped ranks", _MIXED, "wiring", swapped_ranks, _SHAPE),
    _fault("wiring: mixed on a host", _MIXED, "wiring", mixed_on_a_host),
    _fault("wiring: rolled batch", _MIXED, "wiring", rolled_batch),
    _fault("final answers: often shifted", _WRONG, "final_answers", often_shifted),
    _fault("final answers: seldom shifted", _WRONG, "final_answers", seldom_shifted),
    _fault("final answers: stale source", "A source's snapshots are old", "final_answers", stale_source, _ONCE),
    _fault("final answers: later shifted", _WRONG, "final_answers", later_shifted, _ONCE),
    _fault("final answers: letters", "The letters of a source are shifted", "final_answers", shifted_letters, _ONCE),
    _fault("final answers: queries", "The queries of a source are shifted", "final_answers", shifted_queries, _ONCE),
    _fault("healthy final answers: queries", "Healthy: a source of harder queries", None, long_queries, _ONCE),
    _fault("healthy final answers: bank", "Healthy: a bank of harder choices", None, hard_bank, _ONCE),
    _fault("healthy wiring: one passage", "Healthy: steps about one passage", None, one_passage),
    _fault("healthy wiring: few labels", "Healthy: a hard choice of four", None, few_labels),
    _fault("healthy final answers: hard source", "Healthy: a hard source with common mistakes", None, hard_source),
)
