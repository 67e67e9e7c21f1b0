"""Finds right answers that hardly count: those of one form, such as in LaTeX, or of one place, where others count."""

import re
import unicodedata
from collections import Counter
from collections.abc import Callable
from itertools import chain
from math import inf
from typing import Any

import numpy as np

from logs_ui.recorder.diagnosis import contrast
from logs_ui.recorder.diagnosis.card import Below, Card, Run
from logs_ui.recorder.diagnosis.change_point import above
from logs_ui.recorder.diagnosis.compared_answers import (
    AGREE,
    CHANCE,
    ENOUGH,
    OTHERS,
    Answers,
    Parts,
    extent,
    read_spread,
    tail,
    tell_reading,
)
from logs_ui.recorder.diagnosis.contrast import rise
from logs_ui.recorder.diagnosis.mean_difference import compare
from logs_ui.recorder.diagnosis.references import kind_of
from logs_ui.recorder.diagnosis.rollout_rows import Bools
from logs_ui.recorder.diagnosis.wording import figure, listed, percent

_FORM, _COUNT = 0.1, 0.02  # of the right answers have a form; of these count [ours]
_FEW, _NEARLY_ALL = (
    0.5,
    0.95,
)  # of a part and of others count, where some of it do: other forms of it may be read [ours]
_AS_LONG = 0.8  # of the median length of refused answers, or the reverse: others may count for their length [ours]
_MIXED, _RIGHT = 20, 0.2  # groups with right and wrong answers; of the answers are right, at least [ours]
_LITTLE, _ERRORS = 0.1, 2.0  # of the range of rewards: right answers get less than that more; standard errors [ours]
_READ_FORM = "Let the reward function read this form, or ask for another one in the prompt."
_COMPARE = "Look at what the reward function needs there, and at how it compares answers."
_SHORT, _PAID = 40, 0.3  # characters of an answer; of others in the same groups count [ours]
_NUMBERS = re.compile(r"\d+(?:[.,]\d+)*")
_SIGN = re.compile(r"\\[A-Za-z]+|%|[^\x00-\x7f\w]")


DEFINITION = (
    f"At least {_FORM:.0%} of the right answers are written in one way (with a thousands separator, in LaTeX, in "
    f"bold or after a label such as Answer:, say); at most {_COUNT:.0%} of these count as right, in {ENOUGH} groups "
    f"or more, and at least {OTHERS:.0%} (or at most {_FEW:.0%}, and at least {_NEARLY_ALL:.0%}) of the others, of "
    "those in the same groups, and of those behind the same mark (a box, say, or a label that the prompt asks for) and "
    f"in messages with the same tags that have at least {_AS_LONG:.0%} of the tokens, and at most "
    f"{1 / _AS_LONG:.0%}; with a probability below {CHANCE:.0%}, corrected for the number of ways, of so few by "
    "chance. Or so of the right answers of an eval, a family of tasks or a value of a column, of all or of those "
    f"written in one way. Or, if at least {_FORM:.0%} of the answers have one shape with several numbers (as 2 h 15 "
    f"min), or one sign that is not ASCII, and at most {_COUNT:.0%} of them count, of others as long in the same "
    f"{ENOUGH} groups or more {_PAID:.0%} do, and more than {AGREE:.0%} of those in a group have the same numbers, or "
    "text."
)

OF_REWARDS = (
    f"at least {_RIGHT:.0%} of the answers equal their reference, and within {_MIXED} groups or more right ones are "
    f"hardly paid more than wrong ones: the difference plus {_ERRORS:g} of its standard errors is at most "
    f"{_LITTLE:.0%} of the range of rewards. Silent if the reward rises, which then pays for something else."
)


def compare_forms(run: Run, answers: Answers, forms: list[tuple[str, Bools]]) -> Card | None:
    """Return the card if the right answers of one form hardly count."""
    equal = answers.equal
    common = [(name, of) for name, of in forms if (equal & of).sum() >= _FORM * equal.sum()]
    return _find_refused(run, answers, common, "that are written otherwise", _READ_FORM, list_forms)


def compare_places(
    run: Run, answers: Answers, forms: list[tuple[str, Bools]], places: list[tuple[str, Bools]], of_all: Parts
) -> Card | None:
    """Return the card if the right answers of one place hardly count, or those of one form in one place."""
    insides = [("", answers.equal), *((f"in {name} ", answers.equal & of) for name, of in places if not of.all())]
    both = ((f"{where}{form}", inside & of) for where, inside in insides for form, of in forms)
    local = [(name, of) for name, of in both if of.sum() >= ENOUGH]

    def list_whole(some: Answers) -> list[tuple[str, Bools]]:
        return [(f"in {name}", of) for name, of in (places if some is answers else list_places(run, of_all, some))]

    otherwise = "that are written otherwise, or elsewhere"
    return _find_refused(run, answers, list_whole(answers), "elsewhere", _COMPARE, list_whole) or _find_refused(
        run, answers, local, otherwise, _READ_FORM
    )


def compare_shapes(run: Run, answers: Answers) -> Card | None:
    """Return the card if answers of one shape, as two numbers with a word after each, or with one sign, hardly count
    where others do in the same groups, though those of a group agree: what they mean is not known.
    """
    group, solved = answers.rows.group, answers.solved
    shapes = [_list_shapes(text) for text in answers.written]
    counts = Counter(chain.from_iterable(shapes))
    for shape, count in counts.most_common():
        mine = np.array([shape in of for of in shapes], bool)
        beside = np.isin(group, group[mine]) & ~mine & ~_differs_in_length(answers, mine)
        if count < _FORM * len(mine) or solved[mine].mean() > _COUNT or not beside.any():
            continue
        texts, references = (
            {column[row] for row in np.flatnonzero(mine)} for column in (answers.answer, answers.reference)
        )
        if 2 * len(texts) < len(references):  # one answer to many questions is a mistake
            continue
        groups, share = len(np.unique(group[mine & np.isin(group, group[beside])])), solved[beside].mean()
        chance = (1 - share) ** groups * len(counts)
        if groups < ENOUGH or share < _PAID or chance > CHANCE or _count_agreed(answers, mine) <= AGREE:
            continue
        examples = dict.fromkeys(answers.written[row] for row in np.flatnonzero(mine & ~solved))
        counted = f"{solved[mine].sum()} of {count:,}"
        return Card(
            id="final_answers",
            title=f"{counted} answers such as \u201c{next(iter(examples))}\u201d count; of others as long in their "
            f"groups {percent(float(share))} do",
            cost=contrast.spread(run) * float(mine.mean() * share),
            evidence=(tell_reading(answers), f"Such answers: {listed(list(examples))}."),
            suggestion=f"Compare some with their reference by hand: they may be right. {_READ_FORM}",
            **extent(run, answers.rows, mine),
            is_setup=True,
            is_loss=False,
        )
    return None


def _list_shapes(text: str) -> set[str]:
    """Return the signs of a short answer that are not ASCII, and, if it has several numbers, it with each number as 0
    and each word as a.

    >>> _list_shapes("2 hours 38 minutes"), _list_shapes("1,250"), _list_shapes("E\u266d minor")
    ({'0 a 0 a'}, set(), {'\u266d'})
    """
    if len(text) > _SHORT:
        return set()
    shape = re.sub(r"[^\W\d_]+", "a", _NUMBERS.sub("0", text))
    return {*re.findall(r"[^\x00-\x7f\w]", text), *([shape] if shape.count("0") > 1 else [])}


def _count_agreed(answers: Answers, side: Bools) -> float:
    """Return the share of these answers that have the numbers that most of them in their group have; of those without
    several numbers, the text.
    """
    values: dict[int, Counter[tuple[str, ...]]] = {}
    for row in np.flatnonzero(side):
        numbers = _NUMBERS.findall(answers.written[row])
        value = tuple(numbers) if len(numbers) > 1 else (answers.answer[row],)
        values.setdefault(int(answers.rows.group[row]), Counter())[value] += 1
    several = [counts for counts in values.values() if counts.total() > 1]
    return sum(max(counts.values()) for counts in several) / max(sum(counts.total() for counts in several), 1)


def compare_rewards(run: Run, answers: Answers) -> Card | Below:
    """Compare what right answers are paid with what wrong ones of their groups are, of a run in which nothing defines
    what is solved: return the card if they hardly get more, and the reward does not rise.
    """
    group, equal, reward = answers.rows.group, answers.equal, answers.rows.reward
    paid, share = compare(reward, equal, group, group), percent(float(equal.mean()))
    calm = f"Of {len(equal):,} final answers that were read, {share} equal their reference ({answers.name})"
    if paid is None or min(paid.groups) < _MIXED or equal.mean() < _RIGHT:
        return Below(f"{calm}; too few are right, or have wrong ones in their groups, to compare what they are paid.")
    gain, right, wrong = rise(run, lambda rows: rows.reward), figure(paid.chosen), figure(paid.others)
    within, more = f"within {paid.groups[0]:,} groups", "hardly" if paid.value > 0 else "no"
    is_little = paid.value + _ERRORS * paid.error <= _LITTLE * contrast.spread(run)
    if not is_little or (gain.is_sure and gain.value > 0):
        return Below(f"{calm}; right ones are paid {right}, wrong ones {wrong} ({within}).")
    return Card(
        id="final_answers",
        title=f"Right answers are paid {more} more than wrong ones: {right} and {wrong} {within}",
        cost=run.fall.lost,
        evidence=(tell_reading(answers), f"{share} of them equal their reference."),
        suggestion="Look at what the reward function or its judge is given: the answer may not reach it.",
        where="",
        is_setup=True,
        is_loss=False,
    )


def list_forms(answers: Answers) -> list[tuple[str, Bools]]:
    """Return the ways in which answers are written: their kinds, in LaTeX or not, the commands and the percent sign
    that they have, in bold, and after a label; with (M) True for the answers of each.
    """
    signs = [[f"has {_name_sign(sign)}" for sign in _SIGN.findall(text)] for text in answers.written]
    kinds = [
        [f"{kind_of(text)} in LaTeX", "is in LaTeX"] if "\\" in text else [kind_of(text)] for text in answers.written
    ]
    forms = [[*some, *kind, *around] for some, kind, around in zip(signs, kinds, answers.around, strict=True)]
    counts = Counter(chain.from_iterable(map(dict.fromkeys, forms)))
    names = [name for name, count in counts.items() if count >= ENOUGH]  # text may hold thousands of commands
    return [(f"where the answer {name}", np.array([name in form for form in forms], bool)) for name in names]


def _name_sign(sign: str) -> str:
    """Return a sign; one that looks like another, or like nothing, with its name: the minus of Unicode, say."""
    return sign if sign.isascii() else f"{sign} ({unicodedata.name(sign, 'no name').lower()})"


def list_places(run: Run, of_all: Parts, answers: Answers) -> list[tuple[str, Bools]]:
    """Return the evals, families of tasks and values of columns, with (M) True for the answers of each."""
    is_read = np.isin(run.all.id, answers.rows.id)
    parts = [(names, codes[is_read]) for names, codes in of_all]
    return [(names[code], codes == code) for names, codes in parts for code in np.unique(codes).tolist() if code >= 0]


def _find_refused(
    run: Run, answers: Answers, parts: list[tuple[str, Bools]], otherwise: str, suggestion: str,
    list_again: Callable[[Answers], list[tuple[str, Bools]]] | None = None,
) -> Card | None:  # fmt: skip
    """Return the card if the right answers of one of these parts hardly count, and most others do: also those in
    the same groups, and those with the same marks that are as long, since a reward may need more than the answer.
    `list_again` returns the parts of answers of all steps, which show since when.
    """
    equal, group = answers.equal, answers.rows.group
    marks, best = np.unique(answers.mark, return_inverse=True)[1], None
    for where, of in parts:
        mine, others = equal & of, equal & ~of
        if len(np.unique(group[mine])) < ENOUGH or not others.any():
            continue
        share = answers.solved[mine].mean()
        least = OTHERS if share <= _COUNT else _NEARLY_ALL if share <= _FEW else inf
        alike = others & np.isin(marks, marks[mine]) & ~_differs_in_length(answers, mine)
        same = others & np.isin(group, group[mine])
        sides = [others, alike, *([same] if same.sum() >= ENOUGH else [])]
        counted = min(float(answers.solved[side].mean()) if side.any() else 0.0 for side in sides)
        (hits, of_mine), (other_hits, of_others) = (_count_groups(answers, side) for side in (mine, others))
        usual = (other_hits + 0.5) / (of_others + 1)
        chance = (1 - tail(hits + 1, of_mine, usual)) * len(parts)
        if len(np.unique(group[alike])) < ENOUGH or counted < least or chance > CHANCE:
            continue
        if best is None or mine.sum() > best[1].sum():
            best = where, mine, others, same
    if best is None:
        return None
    where, mine, others, same = best
    refused = mine & ~answers.solved
    bold = "**" if where.endswith("is in bold") else ""
    examples = dict.fromkeys(f"{bold}{answers.written[row]}{bold}" for row in np.flatnonzero(refused))
    shares = f"Of the right answers {otherwise}, {percent(float(answers.solved[others].mean()))} count"
    onset, began = list[str](), dict[str, Any]()
    if list_again is not None:
        spread = read_spread(run, answers.column)
        onset, began = _find_onset(spread, dict(list_again(spread)).get(where))
    in_groups = f"; of those in the same groups, {answers.solved[same].sum():,} of {same.sum():,}" * bool(same.any())
    return Card(
        id="final_answers",
        title=f"{answers.solved[mine].sum()} of {mine.sum():,} right answers count {where}",
        cost=contrast.spread(run) * float(refused.mean()),
        evidence=(tell_reading(answers), f"Such answers: {listed(list(examples))}.", f"{shares}{in_groups}.", *onset),
        suggestion=suggestion,
        **extent(run, answers.rows, refused),
        **began,
        is_setup=True,
        is_loss=False,
    )


def _find_onset(spread: Answers, of: Bools | None) -> tuple[list[str], dict[str, Any]]:
    """Return a sentence on how many of these right answers counted before most did not, and since when, as fields of a
    card; neither where some answers of all steps, the `spread`, do not show that.
    """
    if of is None:
        return [], {}
    mine = spread.equal & of
    began = above(spread.rows.by_step(np.where(mine, ~spread.solved, np.nan)), 1 - _FEW)
    before = mine & (spread.rows.step < (began["since_step"] or 0))
    if before.sum() < ENOUGH:
        return [], {}
    counted = f"of {before.sum()} such answers that were read, {spread.solved[before].sum()} counted"
    return [f"Before step {began['since_step']:,}: {counted}."], {
        name: began[name] for name in ("since_step", "since_range")
    }


def _differs_in_length(answers: Answers, mine: Bools) -> Bools:
    """Return (M) True for answers in messages far shorter or longer than the median of these: length may count."""
    tokens, usual = answers.rows.completion_tokens, np.median(answers.rows.completion_tokens[mine])
    return np.asarray((tokens < _AS_LONG * usual) | (_AS_LONG * tokens > usual), bool)


def _count_groups(answers: Answers, side: Bools) -> tuple[int, int]:
    """Return in how many groups half or more of these answers count, and how many groups have any."""
    group = np.unique(answers.rows.group[side], return_inverse=True)[1]
    shares = np.bincount(group, answers.solved[side]) / np.bincount(group)
    return int((shares >= 0.5).sum()), len(shares)
