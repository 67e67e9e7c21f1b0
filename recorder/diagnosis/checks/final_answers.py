"""Holds final answers against the dataset's references: do rewards, references and answers fit together?

The texts of some groups of the last steps are read, of some rollouts over all steps, and of the newest groups of places
that have few groups in the last steps. Answers are compared in a plain form: one number by its value, all else by its
letters and digits.
"""

import math
import re
from collections import Counter
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import numpy as np

from logs_ui.recorder.diagnosis import contrast
from logs_ui.recorder.diagnosis.card import (
    Below,
    Card,
    NotJudged,
    Outcome,
    Run,
    Texts,
    Trend,
    check,
    needs,
)  # fmt: skip
from logs_ui.recorder.diagnosis.change_point import above
from logs_ui.recorder.diagnosis.checks import json_answers, refused_answers, wrong_references
from logs_ui.recorder.diagnosis.compared_answers import (
    AGREE,
    ENOUGH,
    GROUPS,
    NUMBER,
    SPREAD,
    Answers,
    choose_rows,
    extent,
    find_column,
    read_answers,
    read_spread,
    tell_reading,
)  # fmt: skip
from logs_ui.recorder.diagnosis.links import ids
from logs_ui.recorder.diagnosis.places import list_parts
from logs_ui.recorder.diagnosis.references import bare, kind_of, plain, tell_lack
from logs_ui.recorder.diagnosis.rollout_rows import Bools, Rows
from logs_ui.recorder.diagnosis.wording import exact_percent, listed, percent
from logs_ui.recorder.settings import NO_THRESHOLD

_DISTINCT = 3  # references that differ [ours]
_READ = 0.5  # of the rollouts that count have an answer that is read: else those that are read are special [ours]
_EQUAL = 0.2  # of the answers equal their reference: else the column may be something else [ours]
_WRONG, _MISSED = 0.1, 0.2  # of the wrong answers count as right, or of those that do; of the right ones do not [ours]
_READ_EMPTY = 32  # rollouts whose reference seems to be empty [ours]
_EMPTY, _NONE = 0.05, 0.02  # of the rollouts have no reference; of these count, at most [ours]
_RARER = 1 / 3  # of the share of answers that are a part of their reference and count: so many did at first [ours]
_SAME = 0.5  # of the rollouts give the same answer, twice as many as references, and as at first [ours]
_NEAR, _NEARLY_ALL = 0.15, 0.9  # of the reference; of the wrong answers that count, or that are as near [ours]
_ROUNDED, _QUANTITIES = 0.01, 0.25  # of a reference, which graders let pass; of these have decimals, at least [ours]
_LISTED = 3  # candidates that have as many words [ours]
_CANDIDATES = re.compile(r"[,;]\s|\s/\s|\b(?:either|or|and)\b", re.IGNORECASE)
_EITHER = re.compile(r"\s/\s|\bor\b", re.IGNORECASE)  # without, one of two may be a detail, as in Paris, France


def _check(run: Run) -> Outcome:
    column, texts = find_column(run), dict[int, Texts]()
    card = None if column is None else _empty_references(run, column)
    card = card or json_answers.find_refused_field(run, texts)
    if card is not None or column is None:
        return card or tell_lack(run)
    rows, parts = choose_rows(run.rows), list_parts(run)[1:]
    answers = read_answers(run, rows, column, texts)
    won = run.scale.success.solved(rows)[[reference is not None for reference in run.read_labels(rows)[column]]]
    references = {plain(reference) for reference in run.labels[column] if reference is not None}
    name = answers.name
    if len(answers.answer) < ENOUGH or len(references) < _DISTINCT:
        return NotJudged(f"Too few answers or references ({name}) can be read.")
    if not run.scale.success.is_defined:
        return refused_answers.compare_rewards(run, answers)
    read, is_unlike = int(answers.solved.sum()), answers.equal.mean() <= _NONE
    if read < _READ * won.sum() or (is_unlike and read >= _EQUAL * len(answers.answer)):
        why = f"equals its reference ({name})" if is_unlike else "can be read"
        return NotJudged(f"Of {won.sum():,} rollouts that count as right, too few have an answer that {why}.")
    places, forms = refused_answers.list_places(run, parts, answers), refused_answers.list_forms(answers)
    card_of_answers = (
        refused_answers.compare_forms(run, answers, forms)
        or _find_several(run, answers)
        or _find_fragments(run, answers)
        or _find_contradicted(run, answers, references)
        or refused_answers.compare_places(run, answers, forms, places, parts)
        or refused_answers.compare_shapes(run, answers)
        or wrong_references.find_shuffled(run, answers)
        or wrong_references.compare_places(run, parts, answers, places)
        or wrong_references.compare_seldom_places(run, parts, answers, texts, len(places))
    )
    share = percent(float(answers.equal.mean()))
    calm = f"Of {len(answers.answer):,} final answers that were read, {share} equal their reference ({name})."
    return card_of_answers or _find_single_answer(run, answers) or Below(calm)


def _empty_references(run: Run, column: str) -> Card | None:
    """Return the card if rollouts whose reference is empty or missing are never solved, and others are."""
    affected, won = _lack_reference(run, run.rows, run.labels[column]), run.scale.success.solved(run.rows)
    groups = min(len(np.unique(run.rows.group[of])) for of in (affected, ~affected))
    if groups < ENOUGH or affected.mean() < _EMPTY or won[affected].mean() > _NONE or won[~affected].mean() < _EQUAL:
        return None
    name, share = column.removeprefix("metadata."), percent(float(affected.mean()))
    every = _lack_reference(run, run.all, run.labels_of_all[column])
    # Labels leave out long texts: these references are not empty.
    if any(texts.dataset.get(name, "").strip() for texts in run.sample(every, _READ_EMPTY).values()):
        return None
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


def _find_several(run: Run, answers: Answers) -> Card | None:
    """Return the card if answers count that name several candidates, the reference among them."""
    references = {plain(reference) for reference in set(run.labels_of_all[answers.column]) if reference is not None}
    several = _name_several(answers, references)
    if not _are_paid(answers, several):
        return None
    right, spread = percent(float(answers.equal[answers.solved].mean())), read_spread(run, answers.column)
    return _make_paid_card(
        run, answers, several, spread.rows.by_step(_name_several(spread, references) & spread.solved),
        "answers that list several candidates, one of them their reference,",
        f"Of the answers that count as right, {right} equal their reference.", "the reference in the answer",
    )  # fmt: skip


def _are_paid(answers: Answers, chosen: Bools) -> bool:
    """Return True if enough of these (M) answers count, in enough groups."""
    paid = chosen & answers.solved
    least = max(_WRONG * answers.solved.mean(), AGREE * chosen.mean())
    return bool(paid.mean() >= least and _count_groups(answers, paid) >= ENOUGH)


def _count_groups(answers: Answers, chosen: Bools) -> int:
    """Return in how many groups any of these (M) answers is."""
    return len(np.unique(answers.rows.group[chosen]))


def _make_paid_card(
    run: Run, answers: Answers, chosen: Bools, trend: Trend, which: str, sentence: str, sought: str
) -> Card:
    """Return the card about (M) answers that count though they only hold the reference, or a part of it. `trend`: of
    such answers that count; `sought`: what the reward function seems to look for, and where.
    """
    paid = chosen & answers.solved
    examples = dict.fromkeys(f"{answers.written[row]} (for {answers.target[row]})" for row in np.flatnonzero(paid))
    return Card(
        id="final_answers",
        title=f"{paid.sum():,} of {chosen.sum():,} {which} count as right",
        cost=contrast.spread(run) * float(paid.mean()),
        evidence=(tell_reading(answers), f"Such answers: {listed(list(examples))}.", sentence),
        suggestion=f"Let the reward function compare the whole answer, not look for {sought}.",
        **extent(run, answers.rows, paid),
        **above(trend, _WRONG * answers.solved.mean()),
        is_setup=True,
        is_loss=False,
    )


def _name_several(answers: Answers, references: set[str]) -> Bools:
    """Return (M) True for answers that list their reference and other numbers of its kind, or other references."""
    several = np.zeros(len(answers.answer), bool)
    for row, (text, reference) in enumerate(zip(answers.written, answers.reference, strict=True)):
        parts = {plain(part): bare(part) for part in _CANDIDATES.split(text) if bare(part)}
        kinds = {(kind_of(part), re.sub(r"[\d.,]", "", part)) for part in parts.values()}
        is_alike = len(kinds) == 1 if NUMBER.fullmatch(reference) else parts.keys() <= references
        if not is_alike and len(parts) >= _LISTED:  # some candidates are no task's reference
            is_alike = len({len(part.split()) for part in parts.values()}) == 1
        several[row] = reference in parts and len(parts) > 2 - bool(_EITHER.search(text)) and is_alike
    return several


def _find_fragments(run: Run, answers: Answers) -> Card | None:
    """Return the card if answers count that are a small part of their reference, and hardly any such did at first."""
    parts = _name_fragments(answers)
    if not _are_paid(answers, parts):
        return None
    spread = read_spread(run, answers.column)
    counted = _name_fragments(spread) & spread.solved
    early = counted[: max(len(counted) // 5, 1)]
    if early.mean() > _RARER * (parts & answers.solved).mean():  # a short form of the reference is usual here
        return None
    return _make_paid_card(
        run, answers, parts, spread.rows.by_step(counted), "answers that are a small part of their reference",
        f"In the first fifth of the run {early.sum():,} of {len(early):,} that were read were so, and counted.",
        "the answer in the reference",
    )  # fmt: skip


def _name_fragments(answers: Answers) -> Bools:
    """Return (M) True for answers that are at most half of their reference."""
    pairs = zip(answers.answer, answers.reference, strict=True)
    return np.array([2 * len(answer) <= len(reference) and answer in reference for answer, reference in pairs], bool)


def _find_contradicted(run: Run, answers: Answers, references: set[str]) -> Card | None:
    """Return the card if wrong answers count as right: another number than the reference, or another task's reference.

    Other words than the reference's may say the same.
    """
    equal, wrong = answers.equal, answers.is_another(references) | answers.is_other_number
    near, most, tolerance = _find_tolerance(answers, wrong)
    with_decimals = [re.search(r"\d\.\d", target) is not None for target in set(answers.target)]
    if is_rounded := bool(most <= _ROUNDED and np.mean(with_decimals) >= _QUANTITIES):  # whole numbers are exact
        equal, wrong, tolerance = equal | near, wrong & ~near, []
    paid, missed = wrong & answers.solved, equal & ~answers.solved
    if equal.mean() < _EQUAL:
        return None
    is_paid = paid.sum() >= _WRONG * wrong.sum() and _count_groups(answers, paid) >= ENOUGH
    # Where wrong answers count, too, rewards may have changed places within groups.
    unpaid = missed if is_paid else _find_unpaid(answers)
    is_unpaid = missed.sum() >= _MISSED * equal.sum() and _count_groups(answers, unpaid) >= ENOUGH
    contradict, deny = "contradict their reference count as right", "equal their reference do not count as right"
    findings = [
        (f"{affected.sum():,} of {of.sum():,} answers that {what}", affected)
        for is_often, affected, of, what in ((is_paid, paid, wrong, contradict), (is_unpaid, missed, equal, deny))
        if is_often
    ]
    if not findings:
        return None
    affected = np.logical_or.reduce([rollouts for _, rollouts in findings])
    shared, of_shared = _find_shared_verdicts(answers, wrong)
    titles = [*shared, *(title for title, _ in findings)]
    if len(findings) > 1 and not shared:
        of_all = f"{affected.sum():,} of {len(equal):,} final answers"
        titles.insert(0, f"The verdicts on {of_all} contradict their references")
    neither = len(equal) - equal.sum() - wrong.sum()
    within = f", {near.sum():,} of them within {exact_percent(most)}" * is_rounded
    unlike = f"{wrong.sum():,} are another number, or another task's reference"
    sentences = [f"{equal.sum():,} equal their reference{within}; {unlike}; {neither:,} could not be compared."]
    pairs = [(answers.written[row], answers.target[row]) for row in np.flatnonzero(missed)]
    others = [pair for pair in pairs if pair[0] != pair[1]]
    # Where wrong answers count as well, more than the comparison is at fault.
    is_notation = 2 * len(others) > len(pairs) and paid.sum() < _WRONG * wrong.sum()
    if is_notation:
        example = " for ".join(others[0])
        sentences.append(
            f"Of the right ones that do not count, {len(others):,} are written otherwise than the reference: {example}."
        )
    is_missed = not is_paid
    tolerance = [] if len(findings) > 1 or is_missed else tolerance
    sentences += tolerance
    spread = read_spread(run, answers.column)
    of = spread.equal if is_missed else spread.is_another(references) | spread.is_other_number
    since, over_time = ({}, list[str]()) if is_rounded else _compare_over_time(spread, of, is_right=is_missed)
    return Card(
        id="final_answers",
        title=titles[0],
        cost=contrast.spread(run) * float((paid | missed).mean()),
        evidence=(tell_reading(answers), *(f"{title}." for title in titles[1:]), *sentences, *over_time),
        suggestion="Look at what the reward function keeps between its calls, and under which key: all rollouts of a "
        "group seem to get the verdict of one of them."
        if shared
        else "Compare the reward function's tolerance of numbers with the one that you want."
        if tolerance
        else "Let the reward function compare values, not texts: it refuses answers that have the reference's "
        "value in another notation."
        if is_notation
        else "Look at what changed in the reward function, or in what that calls, at this step."
        if over_time and is_missed
        else "Check that a reward is computed with the reference of its own task, and returned in the order of the "
        "completions.",
        **extent(run, answers.rows, of_shared if shared else affected),
        **since,
        is_setup=True,
        is_loss=False,
        explains=("reward_parts",) * bool(shared),
    )


def _find_shared_verdicts(answers: Answers, wrong: Bools) -> tuple[list[str], Bools]:
    """Return a title if nearly all groups that hold right and wrong answers count as a whole, some as right, and some
    not; and (M) True for the answers of these groups.
    """
    groups, group = np.unique(answers.rows.group, return_inverse=True)
    right, others, paid, size = (
        np.bincount(group, of, len(groups)) for of in (answers.equal, wrong, answers.solved, None)
    )
    is_mixed = (right > 0) & (others > 0)
    is_whole = is_mixed & ((paid == size) | (paid == 0))
    every, whole = int((is_whole & (paid > 0)).sum()), int(is_whole.sum())
    if min(every, whole - every) < ENOUGH or whole < _NEARLY_ALL * is_mixed.sum():
        return [], is_whole[group]
    of = f"{whole} of {is_mixed.sum()} groups with right and wrong answers"
    title = f"In {of} all that were read get one verdict: all count as right in {every}, none in {whole - every}"
    return [title], is_whole[group]


def _find_tolerance(answers: Answers, wrong: Bools) -> tuple[Bools, float, list[str]]:
    """Return (M) True for the wrong answers that count and are numbers near their reference, the largest of their
    relative distances, and a sentence, if they are nearly all that count, and in the same groups hardly any that are as
    near do not; else none, infinity and no sentence.
    """
    distance = np.full(len(wrong), np.inf)
    for row in np.flatnonzero(answers.is_other_number):
        given, true = Fraction(answers.answer[row]), Fraction(answers.reference[row])
        distance[row] = abs(given - true) / abs(true) if true else np.inf
    paid, near = wrong & answers.solved, wrong & answers.solved & (distance <= _NEAR)
    most = math.ceil(1_000 * distance[near].max(initial=0.0)) / 1_000
    beside = wrong & ~answers.solved & np.isin(answers.rows.group, answers.rows.group[near])
    as_near = beside & (distance <= most)
    if near.sum() < max(_NEARLY_ALL * max(paid.sum(), (near | as_near).sum()), 1):
        return np.zeros(len(wrong), bool), math.inf, []
    others = f"of {beside.sum():,} wrong ones in the same groups that do not count, {as_near.sum():,}"
    return near, most, [f"{near.sum():,} that count are within {exact_percent(most)} of their reference; {others}."]


def _compare_over_time(spread: Answers, of: Bools, *, is_right: bool) -> tuple[dict[str, Any], list[str]]:
    """Return since when right answers do not count, or wrong ones do, as fields of a card, and a sentence on those
    before and since. `of` is (M) True for the answers that are right, or wrong.
    """
    rows, solved = spread.rows.where(of), spread.solved[of]
    kind, limit = ("right answers that do not count", _MISSED) if is_right else ("wrong answers that count", _WRONG)
    fields = {**above(rows.by_step(solved != is_right), limit), "measure": kind}
    is_early = rows.step < (fields["since_step"] or 0)
    before, after = (f"{solved[side].sum():,} of {side.sum():,}" for side in (is_early, ~is_early))
    which = "right" if is_right else "wrong"
    sentence = f"Of {which} answers of all steps that were read, {before} counted before, and {after} since."
    return fields, [sentence] * bool(is_early.any())


def _find_unpaid(answers: Answers) -> Bools:
    """Return (M) True in groups of which most answers equal their reference, and none counts as right."""
    groups, group = np.unique(answers.rows.group, return_inverse=True)
    equal, solved = (np.bincount(group, column, len(groups)) for column in (answers.equal, answers.solved))
    return np.asarray(((solved == 0) & (equal > np.bincount(group) / 2))[group], bool)


def _find_single_answer(run: Run, answers: Answers) -> Card | None:
    """Return the card if most rollouts give one answer, which far fewer references are, and fewer gave at first."""
    answer, count = Counter(answers.answer).most_common(1)[0]
    share, expected = count / len(answers.answer), answers.reference.count(answer) / len(answers.reference)
    if share < max(_SAME, 2 * expected):
        return None
    spread = read_spread(run, answers.column)
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
            tell_reading(answers),
            f"It is the reference of {percent(expected)} of these rollouts; {solved} of those that give it are solved.",
            f"In the first fifth of the run {early.sum():,} of {len(early):,} answers that were read were this one.",
        ),
        suggestion="Take a checkpoint from before; a lower learning rate or a KL penalty keeps answers varied. Read "
        "some of them: a prompt may suggest this answer.",
        **extent(run, answers.rows, affected),
        **above(spread.rows.by_step(is_answer), max(2 * first, _SAME / 2)),
    )


DIAGNOSTIC = check(
    "final_answers",
    "Final answers",
    f"The final answers of {GROUPS} groups of the last steps are compared with the dataset's reference: the column "
    "that is set, else the one that is named like a reference, else one that answers equal only where they are "
    "solved, in the first third of the steps. "
    f"(1) At least {_EMPTY:.0%} of the rollouts have an empty reference or none, and count by the function that "
    f"those with one do; at most {_NONE:.0%} of these are solved, and at least {_EQUAL:.0%} of the others. "
    f"What follows needs an answer that can be read in {_READ:.0%} of the rollouts that count as right. "
    f"(2) {refused_answers.DEFINITION} "
    f"(3) At least {AGREE:.0%} of the answers that list several candidates, one of them their reference, count as "
    f"right, in {ENOUGH} groups or more, and are {_WRONG:.0%} of those that do. Candidates are numbers of one kind "
    f"and unit, or references of tasks, or {_LISTED} or more of as many words; two "
    "alone (Paris, France) need \u201cor\u201d or a slash. Or so of the answers "
    f"that are at most half of their reference, of which in the first fifth of the run at most {_RARER:.0%} as many "
    "counted. "
    f"(4) At least {_WRONG:.0%} of the wrong answers (another number than the reference, or another task's reference) "
    f"count as right, in {ENOUGH} groups or more; or at least {_MISSED:.0%} of the right answers do not, and in "
    f"{ENOUGH} groups or more most answers are right and none counts as right ({SPREAD} rollouts of all steps say "
    f"since when). If {_NEARLY_ALL:.0%} of the wrong answers that count are within {_NEAR:.0%} of their reference, and "
    "hardly any others of their groups are as near, the advice is to compare the grader's tolerance; within "
    f"{_ROUNDED:.0%} of it they are not wrong, if at least {_QUANTITIES:.0%} of the references have decimals. If "
    f"{_NEARLY_ALL:.0%} of the groups with right and wrong answers count as a whole, {ENOUGH} or more as right and as "
    "many not, one verdict is given to each group. "
    f"Only if at least {_EQUAL:.0%} of all answers equal their reference. "
    f"(5) {wrong_references.DEFINITION} "
    f"(6) At least {_SAME:.0%} of the rollouts give one answer: at least twice the share of rollouts whose reference "
    "it is, and at least twice its share in the first fifth of the run. "
    f"(7) {json_answers.DEFINITION} "
    f"If nothing defines what is solved, only this: {refused_answers.OF_REWARDS}",
    needs("a reward", lambda run: np.isfinite(run.rows.reward)),
    _check,
    limits=NO_THRESHOLD,
)
