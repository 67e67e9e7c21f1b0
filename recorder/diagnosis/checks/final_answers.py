"""Holds final answers against the dataset's references: do rewards, references and answers fit together?

The texts of some groups of the last steps are read, of some rollouts over all steps, and of the newest groups of places
that have few groups in the last steps. Answers are compared in a plain form: one number by its value, all else by its
letters and digits.
"""

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain
from math import comb, inf
from typing import Any

import numpy as np

from logs_ui.recorder.diagnosis import contrast
from logs_ui.recorder.diagnosis.answers import LAST_LINE, Told, final_answer, last_text
from logs_ui.recorder.diagnosis.card import SOLVED_UNDEFINED, Below, Card, NotJudged, Outcome, Run, Texts, check, needs
from logs_ui.recorder.diagnosis.change_point import above
from logs_ui.recorder.diagnosis.checks.never_matches import bare, kind_of, plain, reference_column, tell_lack
from logs_ui.recorder.diagnosis.links import ids
from logs_ui.recorder.diagnosis.places import list_parts
from logs_ui.recorder.diagnosis.prompt_changes import prompt_of
from logs_ui.recorder.diagnosis.rollout_rows import Bools, Ints, Rows, distinct, means
from logs_ui.recorder.diagnosis.wording import listed, percent

_GROUPS, _SPREAD = 120, 300  # groups of the last steps, and rollouts of all steps, that are read [ours]
_SELDOM, _PLACES = 20, 3  # groups that a place has read at least; places of which more are read [ours]
_LESS = 0.5  # as often solved as the run: of no other places more is read [ours]
_ENOUGH, _DISTINCT = 5, 3  # groups; references that differ [ours]
_READ = 0.5  # of the rollouts that count have an answer that is read: else those that are read are special [ours]
_EQUAL = 0.2  # of the answers equal their reference: else the column may be something else [ours]
_WRONG, _MISSED = 0.1, 0.2  # of the wrong answers count as right, or of those that do; of the right ones do not [ours]
_FORM, _COUNT, _OTHERS = 0.1, 0.02, 0.8  # of the right answers have a form; of these count; of the others [ours]
_FEW, _NEARLY_ALL = 0.5, 0.95  # the same, where some of a part count: other forms of it may be read [ours]
_AS_LONG = 0.8  # of the median length of refused answers, or the reverse: others may count for their length [ours]
_EMPTY = 0.05  # of the rollouts have no reference [ours]
_AGREE = 0.5  # of a group give one answer; of such groups, it is another task's reference; of lists, count [ours]
_HARDLY = 0.05  # of the groups of a place give most often their reference [ours]
_CHANCE = 0.01  # that so many groups agree on the reference of another task, or so few give theirs [ours]
_SAME = 0.5  # of the rollouts give the same answer, twice as many as references, and as at first [ours]
_READ_FORM = "Let the reward function read this form, or ask for another one in the prompt."
_COMPARE = "Look at what the reward function needs there, and at how it compares answers."
_SIGN = re.compile(r"\\[A-Za-z]+|%")
_NUMBER = re.compile(r"-?\d+(/\d+)?")
_LABEL = re.compile(r"((?:final |correct )?(?:answer|result|solution)(?: is)?:?)[\s*$]*$", re.IGNORECASE)
_CANDIDATES = re.compile(r"[,;]\s|\s/\s|\b(?:either|or|and)\b", re.IGNORECASE)
_EITHER = re.compile(r"\s/\s|\bor\b", re.IGNORECASE)  # without, one of two may be a detail, as in Paris, France
_TAG = re.compile(r"</?\w+>")
# Bold text that begins right before the answer, but for a box, a currency or a bracket, and ends right behind it.
_OPENS, _CLOSES = re.compile(r"(?<![\w*])\*\*[^\w*]*(?:boxed\{)?[^\w*]*$"), re.compile(r"[^\w*]*\*\*(?![\w*])")

_Parts = list[tuple[Sequence[str], Ints]]
"""As `places.list_parts` returns them."""


@dataclass(frozen=True)
class _Answers:
    """The final answers of M rollouts."""

    column: str  # that has the references
    rows: Rows  # (M)
    written: list[str]  # (M)
    around: list[list[str]]  # (M) the forms in which its line has it: in bold, after a label
    mark: list[str]  # (M) what stands before it, the tags in the message, and the label if the prompt asks for it
    answer: list[str]  # (M) in plain form
    reference: list[str]  # (M) likewise
    target: list[str]  # (M) the reference as it is written
    solved: Bools  # (M)

    @property
    def name(self) -> str:
        """The column's name in the dataset."""
        return self.column.removeprefix("metadata.")

    @cached_property
    def equal(self) -> Bools:
        """(M) True for an answer that is the reference."""
        return np.array([a == b for a, b in zip(self.answer, self.reference, strict=True)], bool)

    def is_another(self, references: set[str]) -> Bools:
        """Return (M) True for an answer that is not the rollout's reference, but that of another task."""
        return np.array([answer in references for answer in self.answer], bool) & ~self.equal

    @property
    def is_other_number(self) -> Bools:
        """Return (M) True where answer and reference are numbers that differ."""
        pairs = zip(self.answer, self.reference, strict=True)
        return np.array([all(map(_NUMBER.fullmatch, pair)) for pair in pairs], bool) & ~self.equal


def _read_answers(run: Run, rows: Rows, column: str, known: dict[int, Texts]) -> _Answers:
    """Read the answers of some rollouts; those that give none are left out. Texts that are known are not read again."""
    labels = dict(zip(run.all.id.tolist(), run.labels_of_all[column], strict=True))
    references = {row: labels[row] for row in rows.id.tolist()}
    known |= run.read_texts([row for row in references if row not in known])
    ends = {row: end for row in references if row in known and (end := final_answer(known[row].messages)) is not None}
    written = {row: bare(end.text, is_line=end.place == LAST_LINE) for row, end in ends.items()}
    plain_answers = {row: plain(text) for row, text in written.items()}
    some = rows.where(
        np.array([bool(plain_answers.get(row)) and references[row] is not None for row in rows.id.tolist()], bool)
    )
    of = some.id.tolist()
    frames = [_read_frame(known[row], ends[row], written[row]) for row in of]
    return _Answers(
        column, some, [written[row] for row in of], [forms for forms, _ in frames], [mark for _, mark in frames],
        [plain_answers[row] for row in of],
        [plain(references[row] or "") for row in of], [bare(references[row] or "") for row in of],
        run.scale.success.solved(some),
    )  # fmt: skip


def _read_frame(texts: Texts, end: Told, written: str) -> tuple[list[str], str]:
    """Return in which forms the line of an answer has it, and its mark: see `_Answers`."""
    before, _, after = last_text(texts.messages).rpartition(written)
    line, rest, prompt = before.rpartition("\n")[2], after.partition("\n")[0], prompt_of(texts)
    label = match[1] if (match := _LABEL.search(line)) else ""
    is_asked = label != "" and (label.rstrip(":") in prompt or label.casefold() in prompt.casefold())
    last = [message for message in texts.messages if message.get("role") == "assistant"][-1]
    # Reasoning in tags is stored apart from the answer.
    tags = {*_TAG.findall(str(last.get("content"))), *["<think>", "</think>"] * bool(last.get("reasoning_content"))}
    is_bold = bool(_OPENS.search(line) and _CLOSES.match(rest))
    forms = ["is in bold"] * is_bold + [f"follows \u201c{label}\u201d"] * bool(label)
    return forms, " ".join([end.place, *sorted(tags), label.casefold() * is_asked])


def _check(run: Run) -> Outcome:
    if not run.scale.success.is_defined:
        return SOLVED_UNDEFINED
    column = reference_column(run.rows, run.labels, run.settings.reference)
    if column is None:
        return tell_lack(run)
    if (card := _empty_references(run, column)) is not None:
        return card
    chosen = np.unique(run.rows.group)
    chosen = chosen[np.unique(np.linspace(0, len(chosen) - 1, _GROUPS).astype(int))]
    rows = run.rows.where(np.isin(run.rows.group, chosen))
    texts, parts = dict[int, Texts](), list_parts(run)[1:]
    answers = _read_answers(run, rows, column, texts)
    won = run.scale.success.solved(rows)[[reference is not None for reference in run.read_labels(rows)[column]]]
    references = {plain(reference) for reference in run.labels[column] if reference is not None}
    name = answers.name
    if len(answers.answer) < _ENOUGH or len(references) < _DISTINCT:
        return NotJudged(f"Too few answers or references ({name}) can be read.")
    if (read := int(answers.solved.sum())) < _READ * won.sum():
        return NotJudged(f"Of {won.sum():,} rollouts that count as right, {read:,} have an answer that can be read.")
    places = _list_places(run, parts, answers)
    forms = _list_forms(answers)
    equal = answers.equal
    common = [(name, of) for name, of in forms if (equal & of).sum() >= _FORM * equal.sum()]
    insides = [("", equal), *((f"in {name} ", equal & of) for name, of in places if not of.all())]
    both = ((f"{where}{form}", inside & of) for where, inside in insides for form, of in forms)
    local = [(name, of) for name, of in both if of.sum() >= _ENOUGH]
    card_of_answers = (
        _find_refused(run, answers, common, "that are written otherwise", _READ_FORM)
        or _find_several(run, answers)
        or _find_contradicted(run, answers, references)
        or _find_refused(run, answers, [(f"in {name}", of) for name, of in places], "elsewhere", _COMPARE)
        or _find_refused(run, answers, local, "that are written otherwise, or elsewhere", _READ_FORM)
        or _find_shuffled(run, answers)
        or _find_wrong_references(run, answers, places, len(places))
        or _find_in_seldom_places(run, parts, answers, texts, len(places) + _PLACES)
    )
    share = percent(float(equal.mean()))
    calm = f"Of {len(answers.answer):,} final answers that were read, {share} equal their reference ({name})."
    return card_of_answers or _find_single_answer(run, answers) or Below(calm)


def _empty_references(run: Run, column: str) -> Card | None:
    """Return the card if rollouts whose reference is empty or missing are never solved, and others are."""
    affected, won = _lack_reference(run, run.rows, run.labels[column]), run.scale.success.solved(run.rows)
    groups = min(len(np.unique(run.rows.group[of])) for of in (affected, ~affected))
    if groups < _ENOUGH or affected.mean() < _EMPTY or won[affected].mean() > _COUNT or won[~affected].mean() < _EQUAL:
        return None
    name, share = column.removeprefix("metadata."), percent(float(affected.mean()))
    every = _lack_reference(run, run.all, run.labels_of_all[column])
    return Card(
        id="final_answers",
        title=f"{share} of rollouts have an empty reference: {won[affected].sum()} of {affected.sum():,} are solved",
        cost=contrast.cost(run, affected),
        evidence=(f"Of those with a reference ({name}), {percent(float(won[~affected].mean()))} are solved.",),
        suggestion="Look at these rows of the dataset: what was read as the reference is empty.",
        where=ids(run.rows.id[affected]),
        **above(run.all.by_step(every), _EMPTY),
        own=affected,
        is_setup=True,
        is_loss=False,
    )


def _lack_reference(run: Run, rows: Rows, references: Sequence[str | None]) -> Bools:
    """Return (N,) True for rollouts whose reference is empty or missing, and that count as solved by what decides of
    those that have one: tasks of another kind, such as those with tests, may need none.
    """
    success = run.scale.success
    lacks = np.array([not (reference or "").strip() for reference in references], bool)
    of_functions = [values for name, values in rows.values.items() if success.is_decided_by(name)]
    deciding = [np.isfinite(values) for values in of_functions if np.isfinite(values[~lacks]).any()]
    return lacks & success.countable(rows) & (np.logical_or.reduce(deciding) if of_functions else True)


def _list_forms(answers: _Answers) -> list[tuple[str, Bools]]:
    """Return the ways in which answers are written: their kinds, in LaTeX or not, the commands and the percent sign
    that they have, in bold, and after a label; with (M) True for the answers of each.
    """
    signs = [[f"has {sign}" for sign in _SIGN.findall(text)] for text in answers.written]
    kinds = [
        [f"{kind_of(text)} in LaTeX", "is in LaTeX"] if "\\" in text else [kind_of(text)] for text in answers.written
    ]
    forms = [[*some, *kind, *around] for some, kind, around in zip(signs, kinds, answers.around, strict=True)]
    counts = Counter(chain.from_iterable(map(dict.fromkeys, forms)))
    names = [name for name, count in counts.items() if count >= _ENOUGH]  # text may hold thousands of commands
    return [(f"where the answer {name}", np.array([name in form for form in forms], bool)) for name in names]


def _list_places(run: Run, of_all: _Parts, answers: _Answers) -> list[tuple[str, Bools]]:
    """Return the evals, families of tasks and values of columns, with (M) True for the answers of each."""
    is_read = np.isin(run.all.id, answers.rows.id)
    parts = [(names, codes[is_read]) for names, codes in of_all]
    return [(names[code], codes == code) for names, codes in parts for code in np.unique(codes).tolist() if code >= 0]


def _find_refused(
    run: Run, answers: _Answers, parts: list[tuple[str, Bools]], otherwise: str, suggestion: str
) -> Card | None:
    """Return the card if the right answers of one of these parts hardly count, and most others do: also those in
    the same groups, and those with the same marks that are as long, since a reward may need more than the answer.
    """
    equal, group, tokens = answers.equal, answers.rows.group, answers.rows.completion_tokens
    marks, best = np.unique(answers.mark, return_inverse=True)[1], None
    for where, of in parts:
        mine, others = equal & of, equal & ~of
        if len(np.unique(group[mine])) < _ENOUGH or not others.any():
            continue
        share = answers.solved[mine].mean()
        least = _OTHERS if share <= _COUNT else _NEARLY_ALL if share <= _FEW else inf
        usual_length = np.median(tokens[mine])
        differs = (tokens < _AS_LONG * usual_length) | (_AS_LONG * tokens > usual_length)
        alike = others & np.isin(marks, marks[mine]) & ~differs
        same = others & np.isin(group, group[mine])
        sides = [others, alike, *([same] if same.sum() >= _ENOUGH else [])]
        counted = min(float(answers.solved[side].mean()) if side.any() else 0.0 for side in sides)
        (hits, of_mine), (other_hits, of_others) = (_count_groups(answers, side) for side in (mine, others))
        usual = (other_hits + 0.5) / (of_others + 1)
        chance = (1 - _tail(hits + 1, of_mine, usual)) * len(parts)
        if len(np.unique(group[alike])) < _ENOUGH or counted < least or chance > _CHANCE:
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
    in_groups = f"; of those in the same groups, {answers.solved[same].sum():,} of {same.sum():,}" * bool(same.any())
    return Card(
        id="final_answers",
        title=f"{answers.solved[mine].sum()} of {mine.sum():,} right answers count {where}",
        cost=contrast.spread(run) * float(refused.mean()),
        evidence=(_read_said(answers), f"Such answers: {listed(list(examples))}.", f"{shares}{in_groups}."),
        suggestion=suggestion,
        **_extent(run, answers, refused),
        is_setup=True,
        is_loss=False,
    )


def _count_groups(answers: _Answers, side: Bools) -> tuple[int, int]:
    """Return in how many groups half or more of these answers count, and how many groups have any."""
    group = np.unique(answers.rows.group[side], return_inverse=True)[1]
    shares = np.bincount(group, answers.solved[side]) / np.bincount(group)
    return int((shares >= 0.5).sum()), len(shares)


def _find_several(run: Run, answers: _Answers) -> Card | None:
    """Return the card if answers count that name several candidates, the reference among them."""
    references = {plain(reference) for reference in set(run.labels_of_all[answers.column]) if reference is not None}
    several = _name_several(answers, references)
    paid, least = several & answers.solved, _WRONG * answers.solved.mean()
    if paid.mean() < max(least, _AGREE * several.mean()) or len(np.unique(answers.rows.group[paid])) < _ENOUGH:
        return None
    examples = dict.fromkeys(f"{answers.written[row]} (for {answers.target[row]})" for row in np.flatnonzero(paid))
    right, spread = percent(float(answers.equal[answers.solved].mean())), _read_spread(run, answers.column)
    shares = f"Of the answers that count as right, {right} equal their reference."
    return Card(
        id="final_answers",
        title=f"{paid.sum():,} of {several.sum():,} answers that list several candidates, one of them their reference, "
        "count as right",
        cost=contrast.spread(run) * float(paid.mean()),
        evidence=(_read_said(answers), f"Such answers: {listed(list(examples))}.", shares),
        suggestion="Let the reward function compare the whole answer, not look for the reference in the answer.",
        **_extent(run, answers, paid),
        **above(spread.rows.by_step(_name_several(spread, references) & spread.solved), least),
        is_setup=True,
        is_loss=False,
    )


def _name_several(answers: _Answers, references: set[str]) -> Bools:
    """Return (M) True for answers that list their reference and other numbers of its kind, or other references."""
    several = np.zeros(len(answers.answer), bool)
    for row, (text, reference) in enumerate(zip(answers.written, answers.reference, strict=True)):
        parts = {plain(part): bare(part) for part in _CANDIDATES.split(text) if bare(part)}
        kinds = {(kind_of(part), re.sub(r"[\d.,]", "", part)) for part in parts.values()}
        is_alike = len(kinds) == 1 if _NUMBER.fullmatch(reference) else parts.keys() <= references
        several[row] = reference in parts and len(parts) > 2 - bool(_EITHER.search(text)) and is_alike
    return several


def _find_contradicted(run: Run, answers: _Answers, references: set[str]) -> Card | None:
    """Return the card if wrong answers count as right: another number than the reference, or another task's reference.

    Other words than the reference's may say the same.
    """
    equal, wrong = answers.equal, answers.is_another(references) | answers.is_other_number
    paid, missed = wrong & answers.solved, equal & ~answers.solved
    if equal.mean() < _EQUAL:
        return None
    titles = {
        "answers that contradict their reference count as right": (paid, wrong, _WRONG, paid),
        "answers that equal their reference do not count as right": (missed, equal, _MISSED, _find_unpaid(answers)),
    }
    findings = [
        (f"{affected.sum():,} of {of.sum():,} {title}", affected)
        for title, (affected, of, limit, by_group) in titles.items()
        if affected.sum() >= limit * of.sum() and len(np.unique(answers.rows.group[by_group])) >= _ENOUGH
    ]
    if not findings:
        return None
    affected = np.logical_or.reduce([rollouts for _, rollouts in findings])
    neither = len(equal) - equal.sum() - wrong.sum()
    kinds = f"{equal.sum():,} equal their reference; {wrong.sum():,} are another number, or another task's reference"
    sentences = [f"{kinds}; {neither:,} are neither."]
    pairs = [(answers.written[row], answers.target[row]) for row in np.flatnonzero(missed)]
    others = [pair for pair in pairs if pair[0] != pair[1]]
    # Where wrong answers count as well, more than the comparison is at fault.
    is_notation = 2 * len(others) > len(pairs) and paid.sum() < _WRONG * wrong.sum()
    if is_notation:
        example = " for ".join(others[0])
        sentences.append(
            f"Of the right ones that do not count, {len(others):,} are written otherwise than the reference: {example}."
        )
    is_missed = findings[0][0].endswith("do not count as right")
    since, over_time = _compare_over_time(_read_spread(run, answers.column)) if is_missed else ({}, [])
    return Card(
        id="final_answers",
        title=findings[0][0],
        cost=contrast.spread(run) * float((paid | missed).mean()),
        evidence=(_read_said(answers), *(f"{title}." for title, _ in findings[1:]), *sentences, *over_time),
        suggestion="Let the reward function compare values, not texts: it refuses answers that have the reference's "
        "value in another notation."
        if is_notation
        else "Look at what changed in the reward function, or in what that calls, at this step."
        if over_time
        else "Check that a reward is computed with the reference of its own task, and returned in the order of the "
        "completions.",
        **_extent(run, answers, affected),
        **since,
        is_setup=True,
        is_loss=False,
    )


def _compare_over_time(spread: _Answers) -> tuple[dict[str, Any], list[str]]:
    """Return since when right answers do not count, as fields of a card, and a sentence if some count before."""
    right, solved = spread.rows.where(spread.equal), spread.solved[spread.equal]
    fields = {**above(right.by_step(~solved), _MISSED), "measure": "right answers that do not count"}
    is_early = right.step < (fields["since_step"] or 0)
    before, after = (f"{solved[side].sum():,} of {side.sum():,}" for side in (is_early, ~is_early))
    sentence = f"Of right answers of all steps that were read, {before} counted before, and {after} since."
    return fields, [sentence] * bool(is_early.any())


def _find_unpaid(answers: _Answers) -> Bools:
    """Return (M) True in groups of which most answers equal their reference, and none counts as right."""
    groups, group = np.unique(answers.rows.group, return_inverse=True)
    equal, solved = (np.bincount(group, column, len(groups)) for column in (answers.equal, answers.solved))
    return np.asarray(((solved == 0) & (equal > np.bincount(group) / 2))[group], bool)


def _find_most_frequent(answers: _Answers, group: Ints) -> dict[int, tuple[str, bool]]:
    """Return the answer that more rollouts of a group give than any other, and whether most of two or more do, by the
    group's code.
    """
    most = dict[int, tuple[str, bool]]()
    for number in range(int(group.max()) + 1):
        mine = np.flatnonzero(group == number)
        (answer, count), *others = Counter(answers.answer[row] for row in mine).most_common(2)
        if not others or others[0][1] < count:
            most[number] = answer, len(mine) > 1 and count > _AGREE * len(mine)
    return most


def _find_shuffled(run: Run, answers: _Answers) -> Card | None:
    """Return the card if groups without a right answer agree on the reference of another task."""
    group: Ints = np.unique(answers.rows.group, return_inverse=True)[1]
    unsolved = [
        number for number in range(int(group.max()) + 1) if not (answers.solved | answers.equal)[group == number].any()
    ]
    most = _find_most_frequent(answers, group)
    agreed = {number: most[number][0] for number in unsolved if number in most and most[number][1]}
    if len(agreed) < max(_ENOUGH, _AGREE * len(unsolved)):
        return None
    references = {plain(reference) for reference in set(run.labels_of_all[answers.column]) if reference is not None}
    swapped = [number for number, answer in agreed.items() if answer in references]
    is_agreed = np.array([answers.answer[row] == agreed.get(int(group[row])) for row in range(len(group))], bool)
    # Wrong answers on which no group agrees show how often one is another task's reference by chance.
    others = ~answers.equal & ~is_agreed
    by_chance = float(answers.is_another(references)[others].mean()) if others.any() else 0.0
    is_varied = len({agreed[number] for number in swapped}) > len(swapped) / 2  # and not one answer to all
    chance = _tail(len(swapped), len(agreed), by_chance)
    if len(swapped) < max(_ENOUGH, _AGREE * len(unsolved)) or chance > _CHANCE or not is_varied:
        return None
    affected = np.isin(group, swapped)
    examples = [
        f"{agreed[number]} (not {answers.reference[int(np.argmax(group == number))]})" for number in swapped[:3]
    ]
    groups = f"the {len(unsolved):,} groups without a right answer among {int(group.max()) + 1:,} that were read"
    title = f"In {len(swapped):,} of {groups}, most answers give another task's reference"
    return Card(
        id="final_answers",
        title=title,
        cost=contrast.spread(run) * float(affected.mean()),
        evidence=(
            _read_said(answers),
            f"Answers of these groups: {listed(examples)}.",
            f"Of other wrong answers, {percent(by_chance)} are another task's reference.",
            "Groups without a majority answer cannot be judged: more references may be wrong.",
        ),
        suggestion="Check the dataset: references may stand beside other tasks than their own, as after a shuffle or a "
        "join of one column.",
        **_extent(run, answers, affected),
        is_setup=True,
        is_loss=False,
        is_least=True,
    )


def _find_in_seldom_places(
    run: Run, parts: _Parts, answers: _Answers, texts: dict[int, Texts], count: int
) -> Card | None:
    """Return the same card for a place that has few groups among the answers, and is seldom solved in the last steps,
    by its newest groups of all steps. `count`: of places that are compared.
    """
    won, group = run.scale.success.solved(run.rows), run.all.group
    is_last, is_read = (np.isin(run.all.id, rows.id) for rows in (run.rows, answers.rows))
    seldom = list[tuple[float, int, str, Ints, int]]()
    for names, codes in parts:
        has_place, last = is_read & (codes >= 0), codes[is_last]
        groups = distinct(codes[has_place], group[has_place], count=len(names))
        share = means(last[last >= 0], won[last >= 0], len(names))
        few = np.flatnonzero((groups < _SELDOM) & (share <= _LESS * won.mean())).tolist()
        seldom += [(share[code], -groups[code], names[code], codes, code) for code in few]
    for _, _, name, codes, code in sorted(seldom, key=lambda place: place[:2])[:_PLACES]:
        inside = codes == code
        newest = list(dict.fromkeys(group[inside][::-1].tolist()))[:_SELDOM]
        chosen = inside & np.isin(group, newest)
        more = _read_answers(run, run.all.where(chosen | (is_read & ~inside)), answers.column, texts)
        of = np.isin(more.rows.id, run.all.id[chosen])
        card, steps = _find_wrong_references(run, more, [(name, of)], count), run.all.step[chosen]
        if card is not None:
            weight = float(inside[is_last].mean() / of.mean())  # of the place more was read than of others
            read = f"Few of these are in {name}, so its newest {len(newest)} groups were read, of steps"
            return replace(
                card,
                cost=(card.cost or 0.0) * weight,
                share=card.share and card.share * weight,
                evidence=(_read_said(answers), f"{read} {steps[0]:,} to {steps[-1]:,}.", *card.evidence[1:]),
            )
    return None


def _find_wrong_references(run: Run, answers: _Answers, places: list[tuple[str, Bools]], count: int) -> Card | None:
    """Return the card if the most frequent answer of a group is hardly ever the reference in one place, and nearly
    always elsewhere. `count`: of places that are compared.
    """
    group: Ints = np.unique(answers.rows.group, return_inverse=True)[1]
    most, first = _find_most_frequent(answers, group), np.unique(group, return_index=True)[1]
    answer = {number: text for number, (text, _) in most.items()}
    reference = {number: answers.reference[first[number]] for number in most}
    for name, of in places:
        mine, others = ([number for number in most if of[first[number]] == side] for side in (True, False))
        hits, others_hits = (sum(answer[number] == reference[number] for number in side) for side in (mine, others))
        if len(mine) < _ENOUGH or hits > _HARDLY * len(mine) or others_hits < max(_OTHERS * len(others), _ENOUGH):
            continue
        # Of letters and labels some are right by chance, so that it tells something if none is. Of answers that could
        # be anything none may be, and it is their agreement that tells.
        answers_by_text, references_by_text = (
            Counter(texts[number] for number in mine) for texts in (answer, reference)
        )
        pairs_alike = sum(count * references_by_text[text] for text, count in answers_by_text.items())
        share = pairs_alike / len(mine) ** 2
        if 2 * min(len(answers_by_text), len(references_by_text)) > len(mine):
            agreeing = sum(most[number][1] for number in mine)
            share = others_hits / len(others) if agreeing >= _OTHERS * len(np.unique(group[of])) else 0.0
        if (1 - _tail(hits + 1, len(mine), share)) * count > _CHANCE:
            continue
        wrong = [number for number in mine if answer[number] != reference[number]]
        affected, pairs = np.isin(group, wrong), dict.fromkeys(f"{answer[of]} (not {reference[of]})" for of in wrong)
        return Card(
            id="final_answers",
            title=f"In {name} the most frequent answer of {len(wrong):,} of {len(mine):,} groups is not the "
            f"reference; elsewhere of {len(others) - others_hits:,} of {len(others):,}",
            cost=contrast.spread(run) * float(affected.mean()),
            evidence=(_read_said(answers), f"Answers of these groups: {listed(list(pairs))}."),
            suggestion="Verify these references by hand first: the model may be right, and they may be shifted, "
            "inverted or in another unit.",
            **_extent(run, answers, affected),
            is_setup=True,
            is_loss=False,
        )
    return None


def _tail(hits: int, of: int, share: float) -> float:
    """Return the chance of at least so many hits, where each has this chance."""
    return sum(comb(of, k) * share**k * (1 - share) ** (of - k) for k in range(hits, of + 1))


def _read_spread(run: Run, column: str) -> _Answers:
    """Read the answers of some rollouts over all steps, of those that have a reference."""
    known = np.flatnonzero([reference is not None for reference in run.labels_of_all[column]])
    places = known[np.unique(np.linspace(0, len(known) - 1, _SPREAD).astype(int))]
    return _read_answers(run, run.all.where(np.isin(np.arange(len(run.all)), places)), column, {})


def _find_single_answer(run: Run, answers: _Answers) -> Card | None:
    """Return the card if most rollouts give one answer, which far fewer references are, and fewer gave at first."""
    answer, count = Counter(answers.answer).most_common(1)[0]
    share, expected = count / len(answers.answer), answers.reference.count(answer) / len(answers.reference)
    if share < max(_SAME, 2 * expected):
        return None
    spread = _read_spread(run, answers.column)
    is_answer = np.array([text == answer for text in spread.answer], bool)
    early = is_answer[: max(len(is_answer) // 5, 1)]
    first = float(early.mean())
    affected = np.array([text == answer for text in answers.answer], bool)
    lost = run.lost[np.isin(run.rows.id, answers.rows.id)]
    cost = (
        max(float(lost[affected].mean()) - (float(lost[~affected].mean()) if (~affected).any() else 0.0), 0.0) * share
    )
    if share < 2 * first or cost <= 0:
        return None
    solved = percent(float(answers.solved[affected].mean()))
    return Card(
        id="final_answers",
        title=f"{percent(share)} of the answers are \u201c{answer[:40]}\u201d, whatever is asked",
        cost=cost,
        evidence=(
            _read_said(answers),
            f"It is the reference of {percent(expected)} of these rollouts; {solved} of those that give it are solved.",
            f"In the first fifth of the run {early.sum():,} of {len(early):,} answers that were read were this one.",
        ),
        suggestion="Take a checkpoint from before; a lower learning rate or a KL penalty keeps answers varied. Read "
        "some of them: a prompt may suggest this answer.",
        **_extent(run, answers, affected),
        **above(spread.rows.by_step(is_answer), max(2 * first, _SAME / 2)),
    )


def _extent(run: Run, answers: _Answers, affected: Bools) -> dict[str, Any]:
    """Return the fields of a card about some of the rollouts that were read: these alone, if all were read."""
    chosen = answers.rows.id[affected]
    is_all = len(np.unique(run.rows.group)) <= _GROUPS
    extent = {"own": np.isin(run.rows.id, chosen)} if is_all else {"share": float(affected.mean())}
    return {"where": ids(chosen), **extent}


def _read_said(answers: _Answers) -> str:
    count = f"{len(answers.answer):,} final answers of the last steps"
    return f"{count} were read, and compared with the column {answers.name}."


DIAGNOSTIC = check(
    "final_answers",
    "Final answers",
    f"The final answers of {_GROUPS} groups of the last steps are compared with the dataset's reference: the column "
    "that is set, else the one that is named like a reference. "
    f"(1) At least {_EMPTY:.0%} of the rollouts have an empty reference or none, and count by the function that "
    f"those with one do; at most {_COUNT:.0%} of these are solved, and at least {_EQUAL:.0%} of the others. "
    f"What follows needs an answer that can be read in {_READ:.0%} of the rollouts that count as right. "
    f"(2) At least {_FORM:.0%} of the right answers are written in one way (with a thousands separator, in LaTeX, in "
    f"bold or after a label such as Answer:, say); at most {_COUNT:.0%} of these count as right, in {_ENOUGH} groups "
    f"or more, and at least {_OTHERS:.0%} (or at most {_FEW:.0%}, and at least {_NEARLY_ALL:.0%}) of the others, of "
    "those in the same groups, and of those behind the same mark (a box, say, or a label that the prompt asks for) and "
    f"in messages with the same tags that have at least {_AS_LONG:.0%} of the tokens, and at most "
    f"{1 / _AS_LONG:.0%}; with a probability below {_CHANCE:.0%}, corrected for the number of ways, of so few by "
    "chance. Or so of the right answers of an eval, a family of tasks or a value of a column, of all or of those "
    "written in one way. "
    f"(3) At least {_WRONG:.0%} of the wrong answers (another number than the reference, or another task's reference) "
    f"count as right, in {_ENOUGH} groups or more; or at least {_MISSED:.0%} of the right answers do not, and in "
    f"{_ENOUGH} groups or more most answers are right and none counts as right ({_SPREAD} rollouts of all steps say "
    f"since when). Only if at least {_EQUAL:.0%} of all answers equal their reference. (4) In at least half of the "
    f"groups without a right answer, and in {_ENOUGH} or more, more than {_AGREE:.0%} of the rollouts give one answer, "
    "which is another task's reference; the probability "
    f"of that is below {_CHANCE:.0%}, given how often other wrong answers are another task's reference. (5) At least "
    f"{_SAME:.0%} of the rollouts give one answer: at least twice the share of rollouts whose reference it is, and at "
    "least twice its share in the first fifth of the run. "
    f"(6) In at least {_ENOUGH} groups of such a place the most frequent answer of a group is the reference in at most "
    f"{_HARDLY:.0%}, and elsewhere in at least {_OTHERS:.0%}; with a probability below {_CHANCE:.0%}, corrected for "
    "the number of places, of so few by chance, if answers had nothing to do with references. Where most answers and "
    f"references differ, most rollouts must agree in {_OTHERS:.0%} of the groups, and so few be improbable if they "
    f"were as often right as elsewhere. If fewer than {_SELDOM} groups of a place are among those that are read, and "
    f"its share of solved rollouts in the last steps is at most {_LESS:.0%} of the run's, its newest {_SELDOM} groups "
    f"of all steps are read and compared likewise; so are at most {_PLACES} such places, those with the lowest shares. "
    f"(7) At least {_AGREE:.0%} of the answers that list several candidates, one of them their reference, count as "
    f"right, in {_ENOUGH} groups or more, and are {_WRONG:.0%} of those that do. Candidates are numbers of one kind "
    "and unit, or references of tasks; two alone (Paris, France) need \u201cor\u201d or a slash.",
    needs("a reward", lambda run: np.isfinite(run.rows.reward)),
    _check,
    limits=None,
)
